"""Which of several failures of a fleet is the cause, when one dead rank makes its peers fail too, and how to say it.

Knows how failures look and which look like consequences; it does not watch or kill anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.errors import WHAT_FITS, EngineFailure, memory_words
from backend.process import exhaustion, logs
from backend.process.channel import ChannelError, Closed, Unreachable
from backend.process.child import Exit
from backend.process.messages import Broken
from backend.types import Stage

Kind = Literal["death", "words", "hung", "garbage", "hangup", "spawn"]

# What a collective says on the ranks that were left behind.
_CONSEQUENCE = re.compile(
    r"(Connection (closed|reset) by peer|Connection refused|gloo|NCCL|ProcessGroup|Broken pipe|store)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One rank's failure: `why` continues the sentence "rank 3 ..."."""

    rank: int
    why: str
    kind: Kind
    stage: Stage | None = None
    exit: Exit | None = None

    @staticmethod
    def of(rank: int, item: Exit | Closed | ChannelError | Broken, stage: Stage | None) -> Failure:
        """The failure that a message, an exit or the end of a line amounts to."""
        match item:
            case Exit():
                return Failure(rank=rank, why=str(item), kind="death", stage=stage, exit=item)
            case Broken():
                return Failure(rank=rank, why=f"failed: {item.reason}", kind="words", stage=item.stage or stage)
            case Unreachable():
                return Failure(rank=rank, why=f"cannot be reached: {item}", kind="hangup", stage=stage)
            case ChannelError():
                return Failure(rank=rank, why=f"broke its channel: {item}", kind="garbage", stage=stage)
            case Closed():
                return Failure(rank=rank, why="closed its channel", kind="hangup", stage=stage)


def root_cause(failures: list[Failure]) -> Failure:
    """The failure to name: `failures` in order of arrival, at least one.

    A death by signal outranks words, words outrank a mere exit code (which follows them), and all of these outrank
    complaints about peers. Between equals the first to arrive is the cause.
    """
    return min(failures, key=_precedence)


def _precedence(failure: Failure) -> int:
    if failure.kind == "hung":
        return 0
    if failure.exit is not None and failure.exit.signal is not None:
        return 1 if failure.exit.signal != "SIGABRT" else 4  # an abort is how a collective's watchdog gives up
    if failure.kind in ("words", "garbage", "spawn"):
        return 2 if not _CONSEQUENCE.search(failure.why) or failure.kind == "garbage" else 5
    return 3 if failure.kind == "death" else 6


@dataclass(frozen=True, slots=True)
class Scene:
    """What was found when a fleet had failed: logs by rank, the last known resident bytes, memory at the start,
    and process ids that could not be ended."""

    logs: tuple[Path, ...]
    rss_bytes: Mapping[int, int]
    memory: exhaustion.HostMemory
    survivors: tuple[int, ...] = ()


def report(failures: list[Failure], scene: Scene) -> EngineFailure:
    """The failure of the fleet in words for people: rank, exit or signal, stage, exhausted memory, last lines."""
    cause = root_cause(failures)
    tail = logs.tail(scene.logs[cause.rank]) if cause.rank < len(scene.logs) else ""
    where = f" in stage {cause.stage.value}" if cause.stage is not None and cause.kind != "hung" else ""
    memory = _exhausted(cause, tail, scene)
    if cause.kind == "words" and WHAT_FITS in cause.why:
        reason = f"rank {cause.rank} {cause.why}"
    elif memory is None:
        reason = f"rank {cause.rank} {cause.why}{where}"
    else:
        said = "" if memory in cause.why else f" (it {cause.why})"
        reason = f"out of memory on rank {cause.rank}{where}: {memory}{said}; {exhaustion.WAY_OUT}"
    if scene.survivors:
        reason += f"; these processes could not be ended: {', '.join(map(str, scene.survivors))}"
    return EngineFailure(logs.redact(reason), rank=cause.rank, stage=cause.stage, log_tail=tail)


def _exhausted(cause: Failure, tail: str, scene: Scene) -> str | None:
    if cause.kind == "words":
        return memory_words(cause.why)
    if cause.exit is None:
        return None
    killed = exhaustion.in_death(
        cause.exit.signal, scene.rss_bytes.get(cause.rank, 0), scene.memory, exhaustion.host_memory()
    )
    return killed or memory_words(tail)
