"""What a rank tells while it works: stages with their seconds, steps, frames, and the counter behind its pulse.

Events go out on rank 0 only; the counter moves on every rank. Knows nothing of the model that reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from backend.events import (
    Event,
    FramesDone,
    LoadProgress,
    Notice,
    PreviewReady,
    StageFinished,
    StageStarted,
    StepDone,
)
from backend.process.messages import Pulse
from backend.types import Stage

# Rank 0 runs this alone; everything before it all ranks run in lockstep, so that they can agree to stop.
ALONE = (Stage.MUX,)


class Report:
    """Progress of one rank. One thread reports; `stop`, `stage_now` and `progress` may be used from any."""

    def __init__(self, rank: int, send: Callable[[Event | Pulse], None]) -> None:
        self.rank = rank
        self.progress = 0
        self.stage_now: Stage | None = None
        self.seconds: dict[Stage, float] = {}
        self.entered: dict[Stage, float] = {}  # time.monotonic() at which this job first came to a stage
        self._send = send
        self._since = 0.0
        self._stop = threading.Event()
        self._agree: Callable[[bool], bool] = bool
        self._agreed = False

    def begin(self, agree: Callable[[bool], bool], loaded_s: float = 0.0) -> None:
        """A new job starts: clocks at zero, but for the loading that was done for it."""
        self.seconds = {Stage.LOAD: loaded_s} if loaded_s else {}
        self.stage_now, self.entered = None, {}
        self._agree, self._agreed = agree, False

    def stop(self) -> None:
        """This rank was asked to stop."""
        self._stop.set()

    def clear_stop(self) -> None:
        """Forget an earlier wish to stop."""
        self._stop.clear()

    def stage(self, stage: Stage, detail: str = "") -> None:
        """Enter `stage` (ending the one before), or give the present one a new detail."""
        if stage is not self.stage_now:
            self.finish_stage()
            self.stage_now, self._since = stage, time.monotonic()
            self.entered.setdefault(stage, self._since)
        self._tell(StageStarted(stage=stage, detail=detail))
        if self.rank != 0:  # its next pulse may be half a second away, and the stage is what a failure names
            self._send(Pulse(rank=self.rank, stage=stage, progress=self.progress))

    def finish_stage(self) -> None:
        """End the present stage, if any; its seconds add up when a stage comes twice."""
        if self.stage_now is None:
            return
        took = self.stage_seconds()
        stage, self.stage_now = self.stage_now, None
        self.seconds[stage] = self.seconds.get(stage, 0.0) + took
        self._tell(StageFinished(stage=stage, seconds=took))

    def stage_seconds(self) -> float:
        """Seconds since the present stage began."""
        return time.monotonic() - self._since

    def load(self, component: str, done_bytes: int, total_bytes: int) -> None:
        """Weights of `component` were read."""
        self._tell(LoadProgress(component=component, done_bytes=done_bytes, total_bytes=total_bytes))

    def step(self, step: int, steps: int, seconds: float) -> None:
        """Forward `step` of `steps` (1-based) took `seconds`."""
        self._tell(StepDone(step=step, steps=steps, seconds=seconds))

    def frames(self, done: int, total: int) -> None:
        """`done` of `total` frames were decoded."""
        self._tell(FramesDone(done=done, total=total))

    def preview(self, path: Path, step: int) -> None:
        """Something to look at lies at `path`: a picture after forward `step`, or the growing video. Any thread."""
        if self.rank == 0:
            self._send(PreviewReady(path=path, step=step))

    def notice(self, message: str) -> None:
        """Something a user should know."""
        self._tell(Notice(message=message))

    def should_stop(self) -> bool:
        """Whether the ranks agree to stop; in stages that one rank runs alone, whether this one was asked to."""
        if self._agreed:
            return True
        wish = self._stop.is_set()
        self._agreed = wish if self.stage_now in ALONE else self._agree(wish)
        return self._agreed

    def _tell(self, event: Event) -> None:
        self.progress += 1
        if self.rank == 0:
            self._send(event)
