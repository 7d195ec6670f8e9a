"""Questions about finished MP4s: the settings inside, the last picture, and how alike two of them are.

A child with few rights does the reading, as for any file: what calls itself our MP4 may be anybody's. It knows no jobs.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from backend import codec
from backend.errors import MediaRefused, Problem
from backend.media import child
from backend.media.source import open_regular, refusal

SETTINGS_DEADLINE_S = 20.0
PICTURES_DEADLINE_S = 240.0  # two clips of 15 s at 1344x768 on one slow core
MODULE = "backend.media.finished"


class Task(StrEnum):
    """What is asked of one file, or of two."""

    SETTINGS = "settings"
    LAST_FRAME = "last-frame"
    COMPARE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`names` are what people call the files; `target` is where the last picture goes, a PNG."""

    task: Task
    names: tuple[str, ...]
    target: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How alike two clips are: for each pair of pictures from the start, as many as both have.

    `mse` holds mean squared errors of 8-bit samples (Y, U and V, weighted by their number), `ssim` the structural
    similarity. `reason` says why nothing was measured; both are empty then.
    """

    sizes: tuple[str, ...]  # "1344 × 768" of each
    frames: tuple[int, ...]  # pictures of each; 0 where they were not counted
    mse: tuple[float, ...] = ()
    ssim: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question, or the problem."""

    settings: dict[str, Any] | None = None
    comparison: Comparison | None = None
    problem: Problem | None = None


def read_settings(path: Path, name: str = "") -> dict[str, Any]:
    """What an MP4 of this program says of itself, still unchecked JSON values; raises MediaRefused for other files."""
    answer = _ask(Question(task=Task.SETTINGS, names=(name or path.name,)), (path,), SETTINGS_DEADLINE_S)
    return answer.settings or {}


def write_last_frame(path: Path, target: Path) -> None:
    """Write the last picture of the MP4 at `path` to `target`, a PNG of exactly its size; raises MediaRefused."""
    question = Question(task=Task.LAST_FRAME, names=(path.name,), target=target.absolute())
    _ask(question, (path,), PICTURES_DEADLINE_S)


def compare(first: Path, second: Path) -> Comparison:
    """How alike two MP4s are; raises MediaRefused for what cannot be read. Takes some seconds."""
    question = Question(task=Task.COMPARE, names=(first.name, second.name))
    answer = _ask(question, (first, second), PICTURES_DEADLINE_S)
    assert answer.comparison is not None
    return answer.comparison


def _ask(question: Question, paths: tuple[Path, ...], deadline_s: float) -> Answer:
    with ExitStack() as opened:
        fds = []
        for path in paths:
            fds.append(open_regular("file", path.absolute()))
            opened.callback(os.close, fds[-1])
        try:
            answer = codec.decode(Answer, child.ask(MODULE, codec.encode(question), tuple(fds), deadline_s))
        except (child.ChildFailed, ValueError) as error:
            answer = Answer(problem=_broke(question, str(error)))
    if answer.problem is not None:
        if question.target is not None:
            question.target.unlink(missing_ok=True)
        raise MediaRefused(answer.problem)
    return answer


def _broke(question: Question, why: str) -> Problem:
    way_out = "make it again, or use another file"
    return refusal("file", question.names[0], why, "must be a complete MP4 of this program", way_out).problem


# ---- the child ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read a question from stdin, answer it from the descriptors named in the arguments, on stdout."""
    with child.answering() as (asked, answers):
        question = codec.decode(Question, asked)
        from backend.media import pictures  # the heavy imports happen here, before rights are taken away

        child.give_up_rights()
        try:
            answer = pictures.answer(question, [int(fd) for fd in sys.argv[1:]])
        except MediaRefused as error:
            answer = Answer(problem=error.problem)
        except MemoryError:
            answer = Answer(problem=_broke(question, "it needs too much memory"))
        answers.append(codec.encode(answer))


if __name__ == "__main__":
    from backend.media import finished  # not __main__: `pictures` must meet the same classes

    finished.main()
