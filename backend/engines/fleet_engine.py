"""The Engine protocol over a fleet of ranks: warm between jobs, fresh after a failure, quiet when closed.

Knows presets, fleets and events; it does not know queues, jobs' rows or what the ranks compute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from backend.engines.base import RankState
from backend.errors import EngineFailure, NotNow
from backend.events import TERMINAL, Cancelled, Event, Failed, StageFinished, StageStarted
from backend.presets import HardwarePreset
from backend.process.fleet import Fleet, FleetState
from backend.process.spec import FleetSpec
from backend.settings import Settings
from backend.types import LIVE_NAMES, SIDECAR_NAME, VIDEO_NAME, GenerationRequest, JobId, Render, Stage


class FleetEngine:
    """One fleet at a time, made anew whenever the last one broke. Subclasses name the model and their conditions."""

    MODEL: str
    ADAPTERS = False  # whether its ranks merge LoRA files

    def __init__(self, preset: HardwarePreset, checkpoint: Path, settings: Settings) -> None:
        self._preset = preset
        self._spec = FleetSpec.from_preset(preset, self.MODEL, str(checkpoint), settings)
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._job: JobId | None = None
        self._cancelled = threading.Event()
        self._closed = False

    @property
    def state(self) -> FleetState:
        """Of the present fleet: NEW before the first start, DEFUNCT within a second of a rank's death, idle or not."""
        return FleetState.NEW if self._fleet is None else self._fleet.state

    @property
    def failure(self) -> EngineFailure | None:
        """Why the present fleet is defunct, or None."""
        return None if self._fleet is None else self._fleet.failure

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks, in order."""
        return () if self._fleet is None else self._fleet.pids

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """Logs of the ranks, in order."""
        return () if self._fleet is None else self._fleet.log_paths

    def ranks(self) -> tuple[RankState, ...]:
        """The processes of the present fleet as they are now."""
        fleet = self._fleet
        if fleet is None:
            return ()
        views = []
        for rank, pid in enumerate(fleet.pids):
            stage, rss = fleet.glance(rank)
            gpu = fleet.spec.gpus[rank] if rank < len(fleet.spec.gpus) else ""
            views.append(RankState(rank=rank, pid=pid, state=fleet.state.value, stage=stage, rss_bytes=rss, gpu=gpu))
        return tuple(views)

    def unavailable(self) -> str | None:
        """Why this machine cannot run the preset, or None."""
        return None

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why this engine cannot render `request`, or None."""
        if request.sampling.adapters and not self.ADAPTERS:
            return "adapters: this engine does not apply LoRA files; remove them"
        return None

    def start(self) -> Iterator[Event]:
        """Bring the ranks up unless they are; raises EngineFailure."""
        if self.state in (FleetState.READY, FleetState.BUSY):
            return
        fleet = self._fresh()
        began = time.monotonic()
        ranks = f"{self._spec.world_size} processes" if self._spec.world_size > 1 else "one process"
        yield StageStarted(stage=Stage.LOAD, detail=f"starting {ranks}")
        yield from fleet.start()
        yield StageFinished(stage=Stage.LOAD, seconds=time.monotonic() - began)

    def generate(self, render: Render) -> Iterator[Event]:
        """Render, starting the ranks first if need be; ends with exactly one terminal event and never raises for them.

        From this call on (not only from its first event) `cancel` stops this render.
        """
        with self._lock:
            self._job = render.job
            self._cancelled = threading.Event()
        return self._generate(render, self._cancelled)

    def cancel(self) -> None:
        """Stop the render in progress: at the next boundary, or at once while the ranks still start."""
        with self._lock:
            job, fleet = self._job, self._fleet
            if job is None:
                return
            self._cancelled.set()
        if fleet is None:
            return
        if fleet.state is FleetState.STARTING:
            fleet.close(wait=False)  # nothing is warm yet that would be worth waiting for
        elif fleet.state is FleetState.BUSY:
            fleet.cancel(job)

    def close(self) -> None:
        """End the ranks; idempotent, from any thread. A render in progress ends as Failed."""
        with self._lock:
            self._closed = True
            fleet = self._fleet
        if fleet is not None:
            fleet.close()

    def _generate(self, render: Render, cancelled: threading.Event) -> Iterator[Event]:
        ended = False
        try:
            for event in self._events(render, cancelled):
                ended = isinstance(event, TERMINAL)
                if isinstance(event, Failed | Cancelled):
                    _remove_result(render.folder)
                yield event
        finally:
            with self._lock:
                if self._cancelled is cancelled:
                    self._job = None
            if not ended and self._fleet is not None:
                self._fleet.close()  # abandoned half-way: what the ranks would say next belongs to nobody

    def _events(self, render: Render, cancelled: threading.Event) -> Iterator[Event]:
        running: tuple[Fleet, Iterator[Event]] | None = None
        while running is None:
            try:
                yield from self._up(cancelled)
            except EngineFailure as failure:
                if not cancelled.is_set():
                    stage = failure.stage or Stage.LOAD
                    yield Failed(reason=str(failure), rank=failure.rank, stage=stage, log_tail=failure.log_tail)
                    return
            if cancelled.is_set():
                yield Cancelled(stage=Stage.LOAD)
                return
            fleet = self._fleet
            assert fleet is not None  # it was brought up above
            with contextlib.suppress(NotNow):  # it died since, idle: a fresh one is brought up, or says why not
                running = fleet, fleet.generate(render)
        fleet, stream = running
        sent = False
        for event in stream:
            if cancelled.is_set() and not sent:  # it came between start and generate, when no rank had the job
                sent = True
                fleet.cancel(render.job)
            yield event

    def _up(self, cancelled: threading.Event) -> Iterator[Event]:
        for event in self.start():
            yield event
            if cancelled.is_set() and self._fleet is not None and self._fleet.state is FleetState.STARTING:
                self._fleet.close()
                return

    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs for the next fleet, one a rank; () leaves the choice to CUDA. Raises Unavailable."""
        return ()

    def _fresh(self) -> Fleet:
        spec = dataclasses.replace(self._spec, gpus=self.gpus())
        with self._lock:
            if self._closed:
                raise EngineFailure("the engine is closed")
            old, self._fleet = self._fleet, Fleet(spec)
            fleet = self._fleet
        if old is not None:
            old.close()
        return fleet


def _remove_result(folder: Path) -> None:
    """Delete what a render left that did not succeed: a rank may be killed in mid-file, or between two files."""
    names = (SIDECAR_NAME, VIDEO_NAME, *LIVE_NAMES)
    for path in (*(folder / name for name in names), *folder.glob(".*.part")):
        path.unlink(missing_ok=True)
