"""Every error a user can meet. Each says which field, what value, which rule and the way out.

Stdlib only. Whoever catches one may show `str(error)` to a person as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from backend.types import Stage

WHAT_FITS = "what fits: "  # begins the advice in an error about memory
# How torch, CUDA, numpy and C++ say that memory ran out.
_PHRASES = re.compile(
    r"(CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: can't allocate|std::bad_alloc|MemoryError|Cannot allocate memory|Unable to allocate)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a request: "num_frames=100: must be 17n+5; nearest is 107"."""

    field: str
    value: str
    rule: str
    way_out: str = ""

    def __str__(self) -> str:
        shown = f"{self.field}={self.value}" if self.value else self.field
        return f"{shown}: {self.rule}" + (f"; {self.way_out}" if self.way_out else "")


class H3Error(Exception):
    """Base of every error that is meant for people."""


class InvalidRequest(H3Error):
    """A request breaks rules of the model; carries all problems at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class MediaRefused(H3Error):
    """A file cannot be used: names the file, the rule, what it has, what to do."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class WriteFailure(H3Error):
    """A result cannot be written (disk full, encoder error), with the file and the way out; nothing is left of it."""


class UnusableResult(H3Error):
    """A render ended with nothing in it that can be seen or heard, with what was measured."""


class PresetError(H3Error):
    """A preset is unknown, malformed or impossible; names file and key."""


class CheckpointError(H3Error):
    """A folder or repository is no usable checkpoint; names what is missing or damaged."""


class Unavailable(H3Error):
    """An engine or preset cannot run on this machine, with the reason."""


class JobNotFound(H3Error):
    """No such job, or it belongs to somebody else."""


class NotNow(H3Error):
    """The action does not fit the job's state, with the state and what fits instead."""


class EngineFailure(H3Error):
    """The engine broke: rank, exit code or signal, stage, and its last words."""

    def __init__(self, reason: str, *, rank: int | None = None, stage: Stage | None = None, log_tail: str = "") -> None:
        self.reason = reason
        self.rank = rank
        self.stage = stage
        self.log_tail = log_tail
        super().__init__(reason)


def memory_words(text: str) -> str | None:
    """The line of `text` that says memory ran out (the last one), or None."""
    for line in reversed(text.splitlines()):
        if _PHRASES.search(line):
            return line.strip()
    return None
