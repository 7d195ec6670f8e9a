"""The protocol between jobs and whatever renders them.

An engine yields events and ends each `generate` with exactly one terminal event; it knows nothing of queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from backend.errors import EngineFailure
from backend.events import Event
from backend.types import GenerationRequest, Render, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One process of an engine at this moment. `gpu` is the UUID it was given, empty on a CPU or when CUDA chose.

    `state` is the fleet's ("starting", "ready", "busy", "defunct", "closed"), `stage` the rank's own in a job.
    """

    rank: int
    pid: int
    state: str
    stage: Stage | None = None
    rss_bytes: int = 0
    gpu: str = ""


class Engine(Protocol):
    """One way to render. `cancel`, `close` and `ranks` may be called from any thread, everything else from one."""

    @property
    def failure(self) -> EngineFailure | None:
        """Why an engine that was up is so no longer, idle or not, or None."""

    def ranks(self) -> tuple[RankState, ...]:
        """The processes of this engine as they are now; from any thread."""

    def unavailable(self) -> str | None:
        """Why this engine cannot run on this machine ("needs 4 GPUs, found 2"), or None."""

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why this engine cannot render `request`, or None."""

    def start(self) -> Iterator[Event]:
        """Bring the engine up (idempotent); progress while it loads. Raises EngineFailure."""

    def generate(self, render: Render) -> Iterator[Event]:
        """Render; the last event, and only the last, is Succeeded, Failed or Cancelled."""

    def cancel(self) -> None:
        """Stop the render in progress at the next step boundary; no effect when idle."""

    def close(self) -> None:
        """End everything; idempotent. Leaves no process, port or shared memory."""
