"""What parent and ranks say to each other: commands down, events and these answers up.

Stdlib only; encoded by `backend.codec` as one JSON object a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from backend.events import (
    Cancelled,
    Failed,
    FramesDone,
    LoadProgress,
    Notice,
    PreviewReady,
    StageFinished,
    StageStarted,
    StepDone,
    Succeeded,
)
from backend.presets import Device, Dtype, Parallel, RuntimeOptions
from backend.types import JobId, Render, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """First command to a rank: who it is and what it will run.

    `model` names an entry of `backend.worker.models` ("native" or "stub"). `rendezvous` is a path for torch's file
    store, unique to the run: no port is chosen by hand.
    """

    run: str
    rank: int
    world_size: int
    model: str
    checkpoint: str
    device: Device
    dtype: Dtype
    rendezvous: Path
    cache_dir: Path
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    parallel: Parallel = field(default_factory=Parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Render this, on every rank."""

    render: Render


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop `job` at the next boundary; ignored when another job (or none) is running."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Leave the loop and exit 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Answer to Setup: shared components are loaded. `info` holds versions and kernel names for the sidecar."""

    rank: int
    pid: int
    info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A rank other than 0 finished (or stopped) its part of a render; rank 0 sends a terminal event instead."""

    rank: int
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Sign of life of a rank, sent by a thread of its own.

    `progress` counts what the main thread achieved (weights read, steps, frames): a pulse whose `progress` stands
    still proves that the process lives, not that it works.
    """

    rank: int
    stage: Stage | None
    progress: int
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Last message of a rank that met an unexpected error and exits: the whole fleet must be replaced."""

    rank: int
    reason: str
    stage: Stage | None = None


Command = Setup | Generate | Cancel | Shutdown
Answer = (
    Ready
    | Done
    | Pulse
    | Broken
    | StageStarted
    | StageFinished
    | LoadProgress
    | StepDone
    | FramesDone
    | PreviewReady
    | Notice
    | Succeeded
    | Failed
    | Cancelled
)
