"""Which source frame is shown at each 24 fps slot: by time, and for constant rates exactly by diffusers' rule.

Pure arithmetic on time stamps in seconds; knows nothing of files or pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import median

from backend.types import FPS

_HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Timing:
    """Presentation times of all frames (s, ascending), the end of the last one, and the rate if it is constant."""

    times: tuple[Fraction, ...]
    end: Fraction
    constant_rate: Fraction | None

    @property
    def rate(self) -> float:
        """Frames a second: the constant rate, else that of the middle interval."""
        if self.constant_rate is not None or len(self.times) < 2:
            return float(self.constant_rate or 0)
        steps = [after - before for before, after in pairwise(self.times)]
        return float(1 / max(median(steps), Fraction(1, 100_000)))


def timing(times: Sequence[Fraction], last_duration: Fraction, nominal: Fraction | None, tick: Fraction) -> Timing:
    """Timing of frames at `times` (any order), whose clock counts in `tick` seconds and promises rate `nominal`.

    Times that lie within one tick of the nominal grid are put onto it: containers round, cameras do not.
    """
    ordered = sorted(set(times))
    first = ordered[0]
    if nominal and all(abs(time - first - index / nominal) <= tick for index, time in enumerate(ordered)):
        grid = tuple(first + index / nominal for index in range(len(ordered)))
        return Timing(grid, first + len(ordered) / nominal, nominal)
    return Timing(tuple(ordered), ordered[-1] + last_duration, None)


def slots(found: Timing, origin: Fraction, length: Fraction | None) -> tuple[int, ...]:
    """How many 24 fps frames each source frame becomes, for `length` seconds from time `origin` (None: to the end).

    A frame is held from slot floor(t * 24 + 0.5) to the slot of the next one, the last one to the slot of the end:
    `_normalize_video_condition` of diffusers, with times in place of index * 24 / fps.
    """
    end = found.end if length is None else min(found.end, origin + length)
    last = max(0, _slot(end - origin))
    edges = [min(max(0, _slot(time - origin)), last) for time in found.times] + [last]
    return tuple(after - before for before, after in pairwise(edges))


def _slot(time: Fraction) -> int:
    return math.floor(time * FPS + _HALF)
