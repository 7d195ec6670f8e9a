"""What is asked of the program that downloads and checks models, and what it says of itself on the way.

Dataclasses that cross the processes as JSON lines; stdlib only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backend.checkpoints.parts import RepoFile
from backend.types import Task

WAIT_S = 2.0  # before the second attempt while the network is away; doubled before each later one


class Action(StrEnum):
    """What can be ordered."""

    DOWNLOAD = "download"
    VERIFY = "verify"


class Kind(StrEnum):
    """What a report says."""

    PLANNED = "planned"
    PROGRESS = "progress"
    DONE = "done"
    FAILED = "failed"


class Reason(StrEnum):
    """Why it failed, for whoever wants more than words."""

    NO_TOKEN = "no-token"
    GATED = "gated"
    OFFLINE = "offline"
    DISK = "disk"
    DAMAGED = "damaged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Download what `tasks` need of `repo`, or verify what lies in `folder`. Files in `again` are fetched anew."""

    action: Action
    repo: str
    tasks: tuple[Task, ...] = ()
    folder: Path | None = None
    again: tuple[str, ...] = ()
    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One line of what happens. Bytes are those on the disk (of a check: those read)."""

    kind: Kind
    done: int = 0
    total: int = 0
    file: str = ""
    message: str = ""
    reason: Reason | None = None
    files: tuple[RepoFile, ...] = ()
    folder: Path | None = None
