"""Reads one file from a user in a short-lived child with limits, and answers with a report, files or a refusal.

`run` is the parent's side, `python -m backend.media.sandbox` the child's. It knows orders and processes, no requests.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backend import codec
from backend.errors import MediaRefused, Problem
from backend.media import child
from backend.media.source import open_regular, refusal
from backend.types import Geometry, Glimpse, MediaReport

PROBE_DEADLINE_S = 30.0
PREPARE_DEADLINE_S = 180.0  # a 15 s 4K HDR clip on one slow core


class Role(StrEnum):
    """What a file is wanted for; keyframes and references have rules of their own."""

    FIRST_FRAME = "first-frame"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do with one file. `stem` None only looks; else files `stem`.png, .npy and -audio.npy are written.

    `width`, `height` are the canvas of a keyframe (None: leave it at its size); `cover` crops instead of stretching.
    `glimpse` looks, and writes small pictures for people instead of what a model reads: `stem`-poster.jpg, -strip.jpg.
    """

    field: str
    name: str
    role: Role
    stem: Path | None = None
    start_s: float = 0.0
    length_s: float | None = None
    width: int | None = None
    height: int | None = None
    cover: bool = False
    glimpse: bool = False
    geometry: Geometry = dataclasses.field(default_factory=Geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it: a report and the files written, or a problem."""

    report: MediaReport | None = None
    problem: Problem | None = None
    image: Path | None = None
    frames: Path | None = None
    audio: Path | None = None
    glimpse: Glimpse = dataclasses.field(default_factory=Glimpse)


def run(order: Order, path: Path) -> tuple[MediaReport, Answer]:
    """Carry out `order` on the regular file at `path` in a child; raises MediaRefused, leaving no files then."""
    deadline_s = PROBE_DEADLINE_S if order.stem is None else PREPARE_DEADLINE_S
    fd = open_regular(order.field, path)
    try:
        answer = _in_child(order, fd, deadline_s)
    finally:
        os.close(fd)
    if answer.problem is not None or answer.report is None:
        for file in (*outputs(order.stem), *glimpse_files(order.stem)):
            file.unlink(missing_ok=True)
        raise MediaRefused(answer.problem or _broke(order, "it gave no answer"))
    return answer.report, answer


def _in_child(order: Order, fd: int, deadline_s: float) -> Answer:
    try:
        return codec.decode(Answer, child.ask("backend.media.sandbox", codec.encode(order), (fd,), deadline_s))
    except child.ChildFailed as error:
        return Answer(problem=_broke(order, str(error)))


def _broke(order: Order, why: str) -> Problem:
    rule = "a file must be readable within the limits set for uploads"
    return refusal(order.field, order.name, why, rule, "export it again, smaller or in another format").problem


def outputs(stem: Path | None) -> tuple[Path, ...]:
    """The picture, the frames and the sound that an order with `stem` may write."""
    if stem is None:
        return ()
    return tuple(stem.with_name(stem.name + ending) for ending in (".png", ".npy", "-audio.npy"))


def glimpse_files(stem: Path | None) -> tuple[Path, ...]:
    """The poster and the strip that an order for a glimpse may write."""
    return () if stem is None else tuple(stem.with_name(stem.name + ending) for ending in ("-poster.jpg", "-strip.jpg"))


# ---- the child ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read an order from stdin, carry it out on the descriptor named in the arguments, answer on stdout."""
    with child.answering() as (question, answers):
        order = codec.decode(Order, question)
        from backend.media import readers  # the heavy imports happen here, before rights are taken away

        child.give_up_rights()
        try:
            answer = readers.carry_out(order, int(sys.argv[1]))
        except MediaRefused as error:
            answer = Answer(problem=error.problem)
        except MemoryError:
            answer = Answer(problem=_broke(order, "it needs too much memory"))
        answers.append(codec.encode(answer))


if __name__ == "__main__":
    from backend.media import sandbox  # not __main__: `readers` must meet the same classes

    sandbox.main()
