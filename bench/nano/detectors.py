"""Judges of pictures: which colour, which shape, which motion, at which place; made from palettes and templates alone.

They see uint8 frames `(frames, height, width, 3)` and know neither the model nor the clip that was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.nano.shapes import SHAPES, distance
from bench.nano.world import COLORS, GROUNDS

_TEMPLATE = 40  # pixels a side of a normalised outline
_MIN_PIXELS = 24  # fewer in a frame are noise, not a shape


@dataclass(frozen=True, slots=True)
class Seen:
    """What the frames show, in names of the world's tables; NaN centres where a frame shows nothing."""

    color: str
    shape: str
    motion: str
    area: Tensor  # (frames,) pixels of the shape
    center: Tensor  # (frames, 2) x, y in pixels


def look(frames: Tensor) -> Seen | None:
    """Judge one clip; None if it shows no shape in most frames."""
    masks, color = _masks(frames)
    area = masks.flatten(1).sum(1).float()
    visible = area >= _MIN_PIXELS
    if visible.float().mean() < 0.5:
        return None
    center = _centers(masks)
    shape = _shape(masks[visible])
    return Seen(color=color, shape=shape, motion=_motion(frames, masks, center, visible), area=area, center=center)


def psnr(first: Tensor, second: Tensor) -> float:
    """PSNR in dB of two uint8 pictures or clips of one shape."""
    error = (first.float() - second.float()).pow(2).mean()
    return float(10 * torch.log10(255.0**2 / error.clamp(min=1e-6)))


def side(center: Tensor, width: int) -> str:
    """ "left", "center" or "right": where the shape is on average over the clip."""
    mean = float(center[:, 0].nanmean()) / width
    return "left" if mean < 0.42 else "right" if mean > 0.58 else "center"


def _masks(frames: Tensor) -> tuple[Tensor, str]:
    """`(frames, height, width)` booleans of the shape, and its colour: the palette's most frequent off the ground."""
    names = list(COLORS)
    table = _classes()
    levels = (frames >> 2).long()
    index = table[levels[..., 0], levels[..., 1], levels[..., 2]]  # (frames, height, width)
    masks = index >= 0
    # One pixel of margin: edges are mixtures and vote for neither colour.
    core = -F.max_pool2d(-masks[:, None].float(), 3, 1, 1)[:, 0] > 0
    votes = core if core.sum() > 0.2 * masks.sum() else masks
    counts = torch.bincount(index[votes], minlength=len(names)).float()
    white = names.index("white")
    others = counts.clone()
    others[white] = 0
    # Every texture but a white shape's is white: white wins only where hardly any other colour is.
    best = int(others.argmax())
    color = names[white] if counts[white] > 1.6 * others[best] else names[best]
    # Stray pixels far from the largest part do not belong to the shape.
    return _keep_cluster(masks), color


@cache
def _classes() -> Tensor:
    """For colours of 6 bits a channel: the index of the nearest palette colour, -1 where a ground's tone is nearer."""
    level = torch.arange(64) * 4.0 + 2
    cube = torch.stack(torch.meshgrid(level, level, level, indexing="ij"), dim=-1).reshape(-1, 3)
    palette = torch.tensor(list(COLORS.values()), dtype=torch.float32)
    # A ground is a line of tones: its patterns make it darker and brighter.
    grounds = torch.tensor(list(GROUNDS.values()), dtype=torch.float32)
    tones = torch.cat([grounds * factor + 11.5 * (factor - 1) / 0.26 for factor in (0.74, 0.87, 1.0, 1.13, 1.26)])
    to_color, index = torch.cdist(cube, palette).min(1)
    to_ground = torch.cdist(cube, tones).min(1).values
    return torch.where((to_color < to_ground) & (to_color < 110), index, -1).reshape(64, 64, 64)


def _keep_cluster(masks: Tensor) -> Tensor:
    """Drop pixels without a crowd around them: what remains is the shape."""
    crowd = F.avg_pool2d(masks[:, None].float(), 5, 1, 2)[:, 0]
    return masks & (crowd > 0.28)


def _centers(masks: Tensor) -> Tensor:
    """Middles of the bounding boxes `(frames, 2)`, NaN where a frame shows nothing; 2 % of outliers are ignored."""
    centers = torch.full((masks.shape[0], 2), float("nan"))
    for index, box in enumerate(map(_box, masks)):
        if box is not None:
            left, top, right, bottom = box
            centers[index] = torch.tensor(((left + right) / 2, (top + bottom) / 2))
    return centers


def _box(mask: Tensor) -> tuple[float, float, float, float] | None:
    rows, columns = mask.nonzero(as_tuple=True)
    if len(rows) < _MIN_PIXELS:
        return None
    low, high = torch.tensor(0.01), torch.tensor(0.99)
    left, right = torch.quantile(columns.float(), low), torch.quantile(columns.float(), high)
    top, bottom = torch.quantile(rows.float(), low), torch.quantile(rows.float(), high)
    return float(left), float(top), float(right) + 1, float(bottom) + 1


@cache
def _templates() -> Tensor:
    axis = torch.linspace(-1.3, 1.3, 130)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([_normalised(distance(kind, x, y) < 0) for kind in range(len(SHAPES))])


def _normalised(mask: Tensor) -> Tensor:
    """The mask's bounding box scaled to a square, as coverage 0..1."""
    box = _box(mask)
    assert box is not None
    left, top, right, bottom = (round(value) for value in box)
    cut = mask[top:bottom, left:right].float()
    return F.interpolate(cut[None, None], size=(_TEMPLATE, _TEMPLATE), mode="bilinear", align_corners=False)[0, 0]


def _shape(masks: Tensor) -> str:
    """The template that overlaps the mean outline best, holes of textures closed but the ring's kept."""
    step = max(1, len(masks) // 16)
    outlines = torch.stack([_normalised(mask) for mask in masks[::step]])
    mean = outlines.mean(0)
    templates = _templates()
    overlap = torch.minimum(mean, templates).flatten(1).sum(1)
    union = torch.maximum(mean, templates).flatten(1).sum(1)
    return SHAPES[int((overlap / union).argmax())]


def _motion(frames: Tensor, masks: Tensor, center: Tensor, visible: Tensor) -> str:
    """One of the world's motions, from the centre's path, the outline's size and the ground's shift."""
    height, width = frames.shape[1:3]
    short = min(height, width)
    path = center[visible]
    sizes = masks[visible].flatten(1).sum(1).float().sqrt()
    third = max(1, len(path) // 4)
    growth = float(sizes[-third:].mean() / sizes[:third].mean())
    travel = (path[-third:].mean(0) - path[:third].mean(0)) / short
    extent = (_spread(path[:, 0]) / short, _spread(path[:, 1]) / short)
    turned = _turns(path)
    if abs(turned) > 0.6 and min(extent) > 0.12:
        return "clockwise" if turned > 0 else "counterclockwise"
    if growth > 1.28 and max(extent) < 0.3:
        return "grow"
    if growth < 0.78 and max(extent) < 0.3:
        return "shrink"
    if _reversals(path[:, 1] / short) >= 2 and extent[1] > 0.15:
        return "bounce"
    horizontal, vertical = float(travel[0]), float(travel[1])
    if max(abs(horizontal), abs(vertical)) < 0.1:
        return "still"
    if abs(vertical) > abs(horizontal):
        return "down" if vertical > 0 else "up"
    shift = _ground_shift(frames, masks)
    if abs(shift) > 0.15:
        return "pan right" if shift < 0 else "pan left"
    return "right" if horizontal > 0 else "left"


def _spread(values: Tensor) -> float:
    return float(torch.quantile(values, 0.95) - torch.quantile(values, 0.05))


def _turns(path: Tensor) -> float:
    """Full turns of the path around its middle; positive is clockwise on a screen, whose y points down."""
    middle = (path.amax(0) + path.amin(0)) / 2
    smooth = path.unfold(0, 5, 1).mean(-1) if len(path) > 8 else path
    angle = torch.atan2(smooth[:, 1] - middle[1], smooth[:, 0] - middle[0])
    radius = (smooth - middle).norm(dim=1)
    if float(radius.min()) < 0.45 * float(radius.max()):
        return 0.0  # it crosses its own middle: no circle
    step = torch.remainder(angle[1:] - angle[:-1] + torch.pi, 2 * torch.pi) - torch.pi
    return float(step.sum() / (2 * torch.pi))


def _reversals(values: Tensor) -> int:
    """How often a path turns back by more than 8 % of the short edge."""
    count, sign, extreme = 0, 0, float(values[0])
    for value in values.tolist():
        if (sign >= 0 and value > extreme) or (sign <= 0 and value < extreme):
            if sign == 0 and abs(value - float(values[0])) > 0.08:
                sign = 1 if value > float(values[0]) else -1
                extreme = value
            elif sign != 0:
                extreme = value
        elif sign != 0 and abs(value - extreme) > 0.08:
            count, sign, extreme = count + 1, -sign, value
    return count


def _ground_shift(frames: Tensor, masks: Tensor) -> float:
    """How far the ground moves sideways over the clip, in widths, positive to the right; 0 without features."""
    gray = frames.float().mean(-1)
    blocked = F.max_pool2d(masks[:, None].float(), 7, 1, 3)[:, 0] > 0
    gray = torch.where(blocked, torch.nan, gray)
    # Rows differ in checkered grounds, so each is compared with itself.
    total, step = 0.0, 4
    for index in range(0, len(frames) - step, step):
        total += _row_shift(gray[index], gray[index + step])
    return total / frames.shape[2]


def _row_shift(before: Tensor, after: Tensor, reach: int = 10) -> float:
    """Whole-pixel shift of `after` against `before` with the least difference, refined by a parabola."""
    errors = []
    width = before.shape[1]
    for offset in range(-reach, reach + 1):
        a = before[:, max(0, -offset) : width - max(0, offset)]
        b = after[:, max(0, offset) : width - max(0, -offset)]
        errors.append(float((a - b).pow(2).nanmean()))
    best = min(range(len(errors)), key=errors.__getitem__)
    if errors[reach] < 1.5 * errors[best] + 2.0:
        return 0.0  # standing still explains it as well
    if 0 < best < len(errors) - 1:
        low, mid, high = errors[best - 1], errors[best], errors[best + 1]
        best += 0.5 * (low - high) / (low - 2 * mid + high)
    return float(best - reach)
