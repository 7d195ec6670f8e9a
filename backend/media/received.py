"""A video that another server made: decoded once to see whether it is any good, and given our own settings inside.

A child with few rights does both, as for any file that came from elsewhere. It knows no server and no job.
"""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from backend import codec
from backend.errors import MediaRefused, Problem
from backend.media import child
from backend.media.source import open_regular, refusal

MODULE = "backend.media.received"
DEADLINE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What the file holds. `figures` and `warnings` are those of `checks`, `unusable` why it is no video at all."""

    width: int
    height: int
    num_frames: int
    sample_rate: int  # Hz, 0 without sound
    figures: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unusable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Look at the file, or copy it to `target` with `comment` as its settings."""

    target: Path | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of an order, or the problem."""

    arrived: Arrived | None = None
    problem: Problem | None = None


def look_at(path: Path) -> Arrived:
    """Decode all of the MP4 at `path`; raises MediaRefused for what is none or is cut off."""
    answer = _ask(Order(), path)
    assert answer.arrived is not None
    return answer.arrived


def keep(path: Path, target: Path, comment: str) -> None:
    """Put the MP4 at `path` to `target`, whole or not at all, its index first and `comment` inside; MediaRefused."""
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        _ask(Order(target=part.absolute(), comment=comment), path)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _ask(order: Order, path: Path) -> Answer:
    fd = open_regular("video", path.absolute())
    try:
        answer = codec.decode(Answer, child.ask(MODULE, codec.encode(order), (fd,), DEADLINE_S))
    except (child.ChildFailed, ValueError) as error:
        answer = Answer(problem=_broken(str(error)))
    finally:
        os.close(fd)
    if answer.problem is not None:
        raise MediaRefused(answer.problem)
    return answer


def _broken(why: str) -> Problem:
    way_out = "run the job again, and look at the server's log if it happens again"
    return refusal("video", "the file from the server", why, "must be a complete MP4", way_out).problem


# ---- the child ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read an order from stdin, carry it out on the descriptor named in the arguments, answer on stdout."""
    with child.answering() as (asked, answers):
        order = codec.decode(Order, asked)
        from backend.media import arrival  # the heavy imports happen here, before rights are taken away

        child.give_up_rights()
        try:
            answer = arrival.carry_out(order, int(sys.argv[1]))
        except MediaRefused as error:
            answer = Answer(problem=error.problem)
        except (MemoryError, ValueError, OSError) as error:
            answer = Answer(problem=_broken(str(error) or "it needs too much memory"))
        answers.append(codec.encode(answer))


if __name__ == "__main__":
    from backend.media import received  # not __main__: `arrival` must meet the same classes

    received.main()
