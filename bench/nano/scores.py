"""What a clip must show and sound like to count, and the table of shares; detectors decide, by the clip asked for.

Knows nothing of how a clip was made: by the world itself (a check of the detectors) or by a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from bench.nano import detectors, hearing, world
from bench.nano.sound import NOTE_NAMES
from bench.nano.world import Clip

CLICK_TOLERANCE_S = 0.06
_EDGE_S = 0.3
# What is met, by score: of the clip, or each time that what is scored happens in it.
Result = dict[str, bool | list[bool]]
# Shares that the model must reach on held-out prompts and with references.
GOALS = {
    "color": 0.95,
    "shape": 0.90,
    "motion": 0.90,
    "sound and pitch": 0.85,
    "stereo side": 0.85,
    "bounce click": 0.80,
    "picture's colour and shape": 0.90,
    "film's motion": 0.80,
    "sound's pitch": 0.80,
}


def judge(clip: Clip, frames: Tensor, audio: Tensor) -> Result:
    """Which goals of `clip` are met by frames `(n, height, width, 3)` uint8 and audio `(2, samples)`."""
    seen = detectors.look(frames)
    heard = hearing.listen(audio)
    motion = world.MOTIONS[clip.motion]
    result: Result = {
        "color": seen is not None and seen.color == list(world.COLORS)[clip.color],
        "shape": seen is not None and seen.shape == world.SHAPES[clip.shape],
        "motion": seen is not None and seen.motion == motion,
        "sound and pitch": hearing.pitch_class(NOTE_NAMES[clip.note], heard.note),
    }
    sided = _sides(clip, heard)
    if sided is not None:
        result["stereo side"] = sided
    if motion == "bounce":
        result |= _clicks(clip, heard, seen)
    return result


def _sides(clip: Clip, heard: hearing.Heard) -> bool | None:
    """Whether the louder side follows the place or the travel that was asked for; None where that is the middle."""
    motion = world.MOTIONS[clip.motion]
    first, last = float(heard.balance[:2].mean()), float(heard.balance[-2:].mean())
    travel = clip.drift or {"right": 1, "left": -1, "pan left": 1, "pan right": -1}.get(motion, 0)
    if travel:
        return (last - first) * travel > 0.2
    if motion in ("clockwise", "counterclockwise") or world.PLACES[clip.place] == "center":
        return None
    return float(heard.balance.mean()) * (1 if world.PLACES[clip.place] == "right" else -1) > 0.05


def _clicks(clip: Clip, heard: hearing.Heard, seen: detectors.Seen | None) -> Result:
    """Of each bounce that is seen, whether a click is near; of each click, whether a bounce is; of the clip, both."""
    floor, clicks = [] if seen is None else seen_bounces(seen), heard.clicks_s

    def matched(times: Iterable[float], others: Sequence[float]) -> list[bool]:
        # Turns within five frames of an end cannot be seen, so times near the ends only serve as partners.
        inner = [time for time in times if _EDGE_S < time < clip.duration_s - _EDGE_S]
        # A clip without any has missed what it was asked for.
        return [any(abs(time - other) <= CLICK_TOLERANCE_S for other in others) for time in inner] or [False]

    bounces, heard_at = matched(floor, clicks), matched(clicks, floor)
    every = all(sum(found) >= 0.8 * len(found) for found in (bounces, heard_at))
    return {"bounce click": bounces, "click at a bounce": heard_at, "four in five of a clip's": every}


def seen_bounces(seen: detectors.Seen) -> list[float]:
    """Seconds at which the seen centre is lowest, from the parabolas on both sides of each turn."""
    y = seen.center[:, 1]
    found: list[float] = []
    reach = 5
    for index in range(reach, len(y) - reach):
        around = y[index - reach : index + reach + 1]
        if around.isnan().any() or int(around.argmax()) != reach or float(around.max() - around.min()) < 3:
            continue
        # A bounce is a corner, so each side is followed to where they meet.
        before, after = float(y[index] - y[index - 1]), float(y[index + 1] - y[index])
        speed = float(y[index - 1] - y[index - 3]) / 2
        part = 0.0 if speed <= 0 else (before + after) / (2 * speed)
        time = (index + max(-0.5, min(0.5, part))) / world.FPS
        if not found or time - found[-1] > 0.3:
            found.append(time)
    return found


class Table:
    """Counts of what was met, by score."""

    def __init__(self) -> None:
        self._met: dict[str, list[bool]] = defaultdict(list)
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, result: Mapping[str, bool | list[bool]]) -> None:
        """Count one clip."""
        for name, met in result.items():
            self._met[name].extend(met if isinstance(met, list) else [met])

    def measure(self, name: str, value: float) -> None:
        """Keep one measured value, such as a PSNR."""
        self._values[name].append(value)

    def merge(self, other: Table) -> None:
        """Add what another table holds."""
        for mine, theirs in ((self._met, other._met), (self._values, other._values)):
            for name, values in theirs.items():
                mine[name].extend(values)  # type: ignore[arg-type]

    def shares(self) -> dict[str, float]:
        """Share met, 0 to 1, or the mean of a measured value."""
        means = {name: sum(values) / len(values) for name, values in self._values.items()}
        return {name: sum(met) / len(met) for name, met in self._met.items()} | means

    def rows(self) -> dict[str, dict[str, float]]:
        """By score: what was reached (a share, or a mean), of how many, and the goal where there is one."""
        counts = {name: len(values) for name, values in (*self._met.items(), *self._values.items())}
        return {
            name: {"reached": round(value, 4), "of": counts[name]} | ({"goal": GOALS[name]} if name in GOALS else {})
            for name, value in self.shares().items()
        }

    def __str__(self) -> str:
        lines = [f"{'score':<28}{'reached':>9}{'goal':>7}{'of':>7}"]
        for name, met in self._met.items():
            goal = f"{GOALS[name]:.0%}" if name in GOALS else ""
            lines.append(f"{name:<28}{sum(met) / len(met):>9.1%}{goal:>7}{len(met):>7}")
        for name, values in self._values.items():
            lines.append(f"{name:<28}{sum(values) / len(values):>9.2f}{'':>7}{len(values):>7}")
        return "\n".join(lines)
