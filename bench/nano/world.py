"""The synthetic world: one shape with a colour, a texture and a motion before a ground, drawn anti-aliased at any time.

A `Clip` says everything that is seen and heard; knows no words and no model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bench.nano.shapes import SHAPES, distance

FPS = 24  # h3-facts 1: always
COLORS = {
    "red": (228, 36, 40),
    "orange": (250, 140, 20),
    "yellow": (250, 226, 40),
    "green": (44, 186, 70),
    "blue": (52, 104, 244),
    "purple": (152, 60, 204),
    "pink": (252, 128, 188),
    "white": (244, 244, 244),
}
GROUNDS = {
    "black": (14, 14, 18),
    "gray": (98, 98, 104),
    "navy": (22, 30, 92),
    "brown": (92, 58, 28),
    "teal": (10, 92, 92),
    "maroon": (96, 16, 36),
}
SIZES = ("small", "medium", "large")
RADII = (0.17, 0.22, 0.27)  # of the short edge; at 0.13 a star's points were finer than the VAE shows
TEXTURES = ("solid", "striped", "spotted", "outlined")
PATTERNS = ("plain", "gradient", "stripes", "checks")
MOTIONS = (
    "right", "left", "up", "down", "bounce", "clockwise", "counterclockwise",
    "grow", "shrink", "pan right", "pan left", "still",
)  # fmt: skip
PLACES = ("left", "center", "right")
TONES = ("hum", "beeps")
NOTES = len(SHAPES)  # one pitch class a shape, unless a reference sound says otherwise

# Pairs that a person, or a detector, could take for one colour.
_TOO_CLOSE = {("green", "teal"), ("blue", "navy"), ("red", "maroon"), ("orange", "brown")}
_MOVES_SIDEWAYS = {"right", "left", "clockwise", "counterclockwise", "pan right", "pan left"}
_WAVE_PX = 44.0  # one period of a ground's pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One clip, as indices into the tables above; times in seconds, offsets as fractions of the canvas."""

    shape: int
    color: int
    size: int
    texture: int
    ground: int
    pattern: int
    motion: int
    place: int  # index into PLACES: where it is, for motions that do not go sideways
    drift: int  # -1, 0 or 1: which way a bouncing shape also travels
    note: int  # pitch class of its sound
    tone: int
    drone: int  # 1: a deep background tone
    num_frames: int
    x_jitter: float  # -1 to 1
    y_jitter: float
    phase: float  # 0 to 1: where a period starts; of an orbit 0 is its right end and 0.75 its top
    period_s: float

    @property
    def duration_s(self) -> float:
        """Length of the clip in seconds."""
        return self.num_frames / FPS


def sample(rng: random.Random, num_frames: int = 107, **fixed: int) -> Clip:
    """A random clip; `fixed` sets fields. Colours that could be confused with their ground are not drawn."""
    colors, grounds = list(COLORS), list(GROUNDS)
    shape = fixed.get("shape", rng.randrange(len(SHAPES)))
    while True:
        color = fixed.get("color", rng.randrange(len(colors)))
        ground = fixed.get("ground", rng.randrange(len(grounds)))
        if (colors[color], grounds[ground]) not in _TOO_CLOSE:
            break
        if "color" in fixed and "ground" in fixed:
            raise ValueError(f"color={colors[color]}, ground={grounds[ground]}: too close to tell apart")
    motion = fixed.get("motion", rng.randrange(len(MOTIONS)))
    name = MOTIONS[motion]
    place = 1 if name in _MOVES_SIDEWAYS else rng.randrange(3)
    drift = rng.choice((0, 0, -1, 1)) if name == "bounce" else 0
    orbits = name in ("clockwise", "counterclockwise")
    values: dict[str, int | float] = {
        "shape": shape,
        "color": color,
        "size": rng.randrange(3),
        "texture": rng.choice((0, 0, 1, 2, 3)),
        "ground": ground,
        # A pan shows only against a ground that has features.
        "pattern": rng.randrange(2, 4) if name.startswith("pan") else rng.choice((0, 0, 1, 2, 3)),
        "motion": motion,
        "place": 1 if drift else place,
        "drift": drift,
        "note": shape,
        "tone": rng.randrange(2),
        "drone": int(rng.random() < 0.3),
        "x_jitter": rng.uniform(-1, 1),
        "y_jitter": rng.uniform(-1, 1),
        # An orbit begins near its top. From anywhere, both directions would put a shape everywhere equally often, and
        # only the whole path would tell them apart: 20,000 steps of training did not learn that.
        "phase": 0.65 + 0.2 * rng.random() if orbits else rng.random(),
        "period_s": rng.uniform(1.0, 1.4) if name == "bounce" else rng.uniform(2.6, 3.6),
    }
    return Clip(num_frames=num_frames, **{**values, **fixed})  # type: ignore[arg-type]


class Batch:
    """Clips as tensors `(batch, 1)`, ready for vectorised drawing and sound."""

    def __init__(self, clips: Sequence[Clip], device: torch.device | str = "cpu") -> None:
        self.clips = tuple(clips)
        self.device = torch.device(device)
        for field in fields(Clip):
            column = torch.tensor([float(getattr(clip, field.name)) for clip in clips])
            setattr(self, field.name, column[:, None].to(self.device))
        self.duration = self.num_frames / FPS

    shape: Tensor
    color: Tensor
    size: Tensor
    texture: Tensor
    ground: Tensor
    pattern: Tensor
    motion: Tensor
    place: Tensor
    drift: Tensor
    note: Tensor
    tone: Tensor
    drone: Tensor
    num_frames: Tensor
    x_jitter: Tensor
    y_jitter: Tensor
    phase: Tensor
    period_s: Tensor

    def does(self, name: str) -> Tensor:
        """`(batch, 1)` booleans: whose motion is `name`."""
        return self.motion == MOTIONS.index(name)


@dataclass(frozen=True, slots=True)
class Path:
    """Where shapes are: `x`, `y`, `radius` and the ground's `shift`, in pixels, each `(batch, times)`."""

    x: Tensor
    y: Tensor
    radius: Tensor
    shift: Tensor


def path(batch: Batch, times: Tensor, width: int, height: int) -> Path:
    """Positions at `times` (seconds, `(batch, times)`) on a canvas of `width` x `height` pixels."""
    short = min(width, height)
    radius = torch.tensor(RADII, device=batch.device)[batch.size.long()] * short
    part = (times / batch.duration).clamp(0, 1)
    swells = batch.does("grow") | batch.does("shrink")
    reach = 1.12 * radius * torch.where(swells, 1.4, 1.0)
    left, right = reach, width - reach
    top, bottom = reach, height - reach
    ones = torch.ones_like(times)

    middle_x = width / 2 + batch.x_jitter * 0.04 * width
    place_x = width / 2 + (batch.place - 1) * (width / 2 - reach) * 0.72 + batch.x_jitter * 0.04 * width
    place_x = torch.minimum(torch.maximum(place_x, left), right)
    place_y = height / 2 + batch.y_jitter * (height / 2 - reach) * 0.6
    x, y = place_x * ones, place_y * ones

    def choose(name: str, value: Tensor, other: Tensor) -> Tensor:
        return torch.where(batch.does(name), value, other)

    rightward = left + (right - left) * part
    x = choose("right", rightward, x)
    x = choose("left", width - rightward, x)
    downward = top + (bottom - top) * part
    y = choose("down", downward, y)
    y = choose("up", height - downward, y)

    cycle = torch.remainder(times / batch.period_s + batch.phase, 1.0)
    y = choose("bounce", bottom - (bottom - top) * 0.8 * 4 * cycle * (1 - cycle), y)
    drifting = torch.where(batch.drift > 0, rightward, width - rightward)
    x = torch.where(batch.drift != 0, drifting, x)

    turn = 2 * torch.pi * (batch.phase + times / batch.period_s * torch.where(batch.does("clockwise"), 1.0, -1.0))
    orbits = batch.does("clockwise") | batch.does("counterclockwise")
    orbit = (short / 2 - reach) * 0.96
    x = torch.where(orbits, width / 2 + orbit * torch.cos(turn), x)
    y = torch.where(orbits, height / 2 + orbit * torch.sin(turn), y)

    scale = choose("grow", 0.6 + 0.8 * part, choose("shrink", 1.4 - 0.8 * part, ones))
    pans = batch.does("pan right").float() - batch.does("pan left").float()
    travel = ((right - left) / 2 - 0.04 * width).clamp(max=0.34 * width)
    shift = pans * travel * 2 * part
    panned = middle_x + pans * travel * (1 - 2 * part)
    x = torch.where(pans != 0, panned, x)
    return Path(x=x, y=y, radius=radius * scale, shift=shift)


def bounces(clip: Clip) -> list[float]:
    """Seconds at which a bouncing clip touches the floor, inside the clip; empty for the other motions."""
    if MOTIONS[clip.motion] != "bounce":
        return []
    first = (1.0 - clip.phase) % 1.0 * clip.period_s
    count = int((clip.duration_s - first) / clip.period_s) + 1 if clip.duration_s > first else 0
    return [first + index * clip.period_s for index in range(count)]


def frame_times(batch: Batch, first: Tensor | float, count: int) -> Tensor:
    """Times `(batch, count)` in seconds of `count` frames from frame `first` (a number or `(batch, 1)`)."""
    index = torch.arange(count, device=batch.device)[None, :]
    return (first + index).expand(len(batch.clips), count) / FPS


def draw(batch: Batch, times: Tensor, width: int, height: int) -> Tensor:
    """Frames at `times` `(batch, times)`: `(batch, 3, times, height, width)` in 0..1, float32."""
    device = batch.device
    where = path(batch, times, width, height)
    rows = torch.arange(height, device=device, dtype=torch.float32)[:, None] + 0.5
    columns = torch.arange(width, device=device, dtype=torch.float32)[None, :] + 0.5
    grounds = torch.tensor(list(GROUNDS.values()), device=device) / 255.0
    colors = torch.tensor(list(COLORS.values()), device=device) / 255.0

    def wide(value: Tensor) -> Tensor:  # (batch, times or 1) -> (batch, times or 1, 1, 1)
        return value[:, :, None, None]

    ground_x = (columns + wide(where.shift)) * (2 * torch.pi / _WAVE_PX)
    stripes = torch.tanh(3 * torch.sin(ground_x))
    checks = torch.tanh(4 * torch.sin(ground_x) * torch.sin(rows * (2 * torch.pi / _WAVE_PX)))
    gradient = (rows / height * 2 - 1).expand(height, width)
    pattern = wide(batch.pattern)
    wave = torch.where(pattern == 3, checks, torch.where(pattern == 2, stripes, 0.0))
    wave = torch.where(pattern == 1, gradient, wave)
    tone = grounds[batch.ground[:, 0].long()][:, :, None, None, None]  # (batch, 3, 1, 1, 1)
    image = tone * (1 + 0.26 * wave[:, None]) + 0.045 * wave[:, None]

    x = (columns - wide(where.x)) / wide(where.radius)
    y = (rows - wide(where.y)) / wide(where.radius)
    outline = torch.empty(*times.shape, height, width, device=device)
    kinds = [clip.shape for clip in batch.clips]
    for kind in sorted(set(kinds)):
        index = torch.tensor([position for position, value in enumerate(kinds) if value == kind], device=device)
        points = torch.broadcast_tensors(x[index], y[index])
        outline[index] = distance(kind, *points)
    pixels = wide(where.radius)

    def inside(value: Tensor) -> Tensor:  # coverage of a pixel by where `value` (radii) is negative
        return (0.5 - value * pixels).clamp(0, 1)

    striped = inside((torch.remainder((x + y) / 0.9, 1.0) - 0.5).abs() * 0.9 / 1.414 - 0.11)
    dots = torch.sqrt((torch.remainder(x / 0.62, 1.0) - 0.5) ** 2 + (torch.remainder(y / 0.62, 1.0) - 0.5) ** 2 + 1e-9)
    spotted = inside(dots * 0.62 - 0.15)
    edged = inside(-outline - 0.15)
    texture = wide(batch.texture)
    accent = torch.where(texture == 1, striped, torch.where(texture == 2, spotted, 0.0))
    accent = torch.where(texture == 3, edged, accent)[:, None]
    body = colors[batch.color[:, 0].long()]
    white = list(COLORS).index("white")
    second = torch.where(batch.color.long() == white, colors[0], colors[white])  # red on white, white on the others
    paint = body[:, :, None, None, None] * (1 - accent) + second[:, :, None, None, None] * accent
    cover = inside(outline)[:, None]
    return (image * (1 - cover) + paint * cover).clamp(0, 1)


def frames(clips: Sequence[Clip], width: int, height: int, device: torch.device | str = "cpu") -> Tensor:
    """All frames of equally long clips: `(batch, frames, height, width, 3)` uint8, as a decoder gives them."""
    batch = Batch(clips, device)
    image = draw(batch, frame_times(batch, 0, clips[0].num_frames), width, height)
    return (image * 255).round().to(torch.uint8).permute(0, 2, 3, 4, 1).contiguous()
