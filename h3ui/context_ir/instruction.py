"""The first line of a prompt with keyframes: what it must say, where it stands, and putting it there.

The wording is fixed by the prompt guide (base-en, 2.1); this module knows no other first line.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from h3ui.context_ir.model import Document, Target

_LINE = re.compile(
    r"\A\s*+((?:For the target video, at|How the reference pictures? aligns?\b)[^\n]*+)(\s*+)",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:-second mark| seconds into)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A first line that speaks of keyframes: `text[start:end]`, and the space after it up to `rest`."""

    line: str
    start: int
    end: int
    rest: int

    @property
    def seconds(self) -> tuple[float, ...]:
        """Every time it names."""
        return tuple(float(found) for found in _SECONDS.findall(self.line))


def find(text: str) -> Instruction | None:
    """The instruction that `text` begins with, None when it begins otherwise."""
    match = _LINE.match(text)
    if match is None:
        return None
    line = match[1].rstrip()
    return Instruction(line=line, start=match.start(1), end=match.start(1) + len(line), rest=match.end(2))


def expected(target: Target, shots: int) -> str | None:
    """The line that a prompt of `shots` shots for `target` begins with; None without keyframes."""
    end, last = f"{target.duration_s:.2f}", max(shots, 1)
    if target.first_frame and target.last_frame:
        return (
            "How the reference pictures align with the target video — Picture 1 (from Shot 1) aligns with the "
            f"0.00-second mark of the target video; Picture 2 (from Shot {last}) aligns with the {end}-second mark "
            "of the target video."
        )
    if target.first_frame:
        return (
            "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully "
            "referenced."
        )
    if target.last_frame:
        return (
            f"How the reference pictures align with the target video — <Picture 1> (from [Shot {last}]) aligns with "
            f"the {end}-second mark of the target video."
        )
    return None


def put(document: Document, line: str | None) -> Document:
    """`document` beginning with `line` and a blank line, in place of the instruction it has; None takes it away."""
    opening = document.opening
    found = find(opening)
    rest = opening[found.rest :] if found is not None else opening.lstrip() if line else opening
    return dataclasses.replace(document, opening=f"{line}\n\n{rest}" if line else rest)
