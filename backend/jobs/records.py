"""What is known of a job: its state, its record, and how its paths are kept independent of where the data lies.

Stdlib only. It knows neither the database nor the queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from backend.events import Cancelled, Failed, Interrupted, Succeeded, TerminalEvent
from backend.types import LAST_FRAME_NAME, SIDECAR_NAME, VIDEO_NAME, GenerationRequest, JobId

ADMIN = "*"  # sees every job and may do everything; no session id or user name is a lone asterisk
TITLE_CHARS = 60

OUTPUT_NAMES = {  # every file a job may hand out, and what it is
    VIDEO_NAME: "video/mp4",
    SIDECAR_NAME: "application/json",
    LAST_FRAME_NAME: "image/png",
    "audio.wav": "audio/wav",
    "tensors.safetensors": "application/octet-stream",
}

T = TypeVar("T")


class JobState(StrEnum):
    """Where a job is; the last four are ends and never change again."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """Whether the job has reached its one end."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


END_STATES: dict[type, JobState] = {
    Succeeded: JobState.SUCCEEDED,
    Failed: JobState.FAILED,
    Cancelled: JobState.CANCELLED,
    Interrupted: JobState.INTERRUPTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job as stored. Times are unix seconds; `position` is 1 for the next job and None unless it waits.

    `request` is resolved (canvas and seed concrete) and its media lie inside `folder`; `labels` maps their file names
    there to the names they came with. `tags` holds the prompt tags of each reference, in order.
    """

    id: JobId
    owner: str
    state: JobState
    position: int | None
    request: GenerationRequest
    preset: str
    quality: str
    title: str
    favourite: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    video: Path | None
    sidecar: Path | None
    error: str | None
    folder: Path
    num_events: int
    tags: tuple[tuple[str, ...], ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    tensors: Path | None = None


def title_of(prompt: str) -> str:
    """The first words of a prompt, at most TITLE_CHARS characters."""
    words = " ".join(prompt.split())
    if len(words) <= TITLE_CHARS:
        return words
    return words[: TITLE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def error_of(event: TerminalEvent) -> str | None:
    """The reason a person reads in a list, for an end that is no success."""
    if isinstance(event, Failed | Interrupted):
        return event.reason
    return None


def with_paths(value: T, change: Callable[[Path], Path]) -> T:
    """`value` with `change` applied to every path in it, through dataclasses and tuples."""
    if isinstance(value, Path):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(with_paths(item, change) for item in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        new = {name: with_paths(item, change) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def inside_out(value: T, folder: Path) -> T:
    """`value` with paths below `folder` made relative to it, as they are stored."""
    return with_paths(value, lambda path: path.relative_to(folder) if path.is_relative_to(folder) else path)


def outside_in(value: T, folder: Path) -> T:
    """Inverse of `inside_out`: relative paths are below `folder`."""
    return with_paths(value, lambda path: path if path.is_absolute() else folder / path)
