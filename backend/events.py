"""What can happen to a job: one closed union, with exactly one terminal event, always the last.

Stdlib only. Events say what happened, never how to show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from backend.types import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """`seq` (1, 2, ... within the job) and `at` (unix seconds) are filled in by the job store."""

    seq: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(_Event):
    """The job waits; `position` 1 is next."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Event):
    """The job left the queue. `preset` and `engine` name what runs it."""

    engine: str
    preset: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(_Event):
    """A stage begins; `detail` is a short phrase for people ("loading transformer")."""

    stage: Stage
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished(_Event):
    """A stage ended after `seconds`."""

    stage: Stage
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress(_Event):
    """Weights of `component` were read: bytes of the component so far and in all."""

    component: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(_Event):
    """Forward `step` of `steps` (1-based; steps = num_inference_steps - 1) took `seconds`."""

    step: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesDone(_Event):
    """`done` of `total` frames were decoded and handed to the encoder."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewReady(_Event):
    """What there is of the video so far lies at `path`, while the job runs: `types.PREVIEW_NAME`, a small picture after
    forward `step`, or `types.STREAM_NAME`, a video that grows while it is decoded."""

    path: Path
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_Event):
    """Rank `rank` is alive in `stage` though nothing else happened. Not stored."""

    rank: int
    stage: Stage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(_Event):
    """Something a user should know that is no failure (a slower kernel, a trimmed input)."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded(_Event):
    """Terminal. `video` is complete and playable; `details` is the sidecar's content (JSON values)."""

    video: Path
    sidecar: Path
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Event):
    """Terminal. `reason` is for people and names what to do; `log_tail` holds the worker's own words."""

    reason: str
    stage: Stage | None = None
    rank: int | None = None
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(_Event):
    """Terminal. Says where the job stopped; `step` is the last finished forward (0 when none)."""

    stage: Stage | None = None
    step: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(_Event):
    """Terminal. The program ended while the job ran; it can be run again with the same seed."""

    reason: str


TerminalEvent = Succeeded | Failed | Cancelled | Interrupted
Event = (
    Queued
    | Started
    | StageStarted
    | StageFinished
    | LoadProgress
    | StepDone
    | FramesDone
    | PreviewReady
    | Heartbeat
    | Notice
    | Succeeded
    | Failed
    | Cancelled
    | Interrupted
)
TERMINAL = (Succeeded, Failed, Cancelled, Interrupted)
