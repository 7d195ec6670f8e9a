"""Signed distances of the seven shapes, in units of a shape's radius, negative inside.

Knows plane geometry only: no colours, no frames, no motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "heart")


def distance(shape: int, x: Tensor, y: Tensor) -> Tensor:
    """Distance of the points (x right, y down; radius 1) to the outline of `SHAPES[shape]`; the points' shape."""
    return _DISTANCES[shape](x, y)


def _circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y + 1e-9) - 0.96


def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.84


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    # Equilateral, pointing up: the largest of three half-plane distances.
    slope = math.sqrt(3) / 2
    return torch.maximum(y - 0.62, x.abs() * slope - 0.5 * (y + 0.08) - 0.54)


def _star(x: Tensor, y: Tensor) -> Tensor:
    # Fold the plane onto one of ten mirrored sectors, then the distance to that sector's edge.
    outer, inner = 1.05, 0.46
    radius = torch.sqrt(x * x + y * y + 1e-9)
    sector = math.pi / 5
    angle = torch.remainder(torch.atan2(x, -y) + sector, 2 * sector) - sector
    px, py = radius * torch.cos(angle), radius * torch.sin(angle.abs())
    ax, ay = outer, 0.0
    bx, by = inner * math.cos(sector), inner * math.sin(sector)
    length = math.hypot(bx - ax, by - ay)
    return ((px - ax) * (by - ay) - (py - ay) * (bx - ax)) / length


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.sqrt(x * x + y * y + 1e-9) - 0.74).abs() - 0.24


def _cross(x: Tensor, y: Tensor) -> Tensor:
    wide = torch.maximum(x.abs() - 0.98, y.abs() - 0.32)
    tall = torch.maximum(x.abs() - 0.32, y.abs() - 0.98)
    return torch.minimum(wide, tall)


def _heart(x: Tensor, y: Tensor) -> Tensor:
    # Two discs over a square that stands on its corner.
    side = x.abs()
    discs = torch.sqrt((side - 0.46) ** 2 + (y + 0.32) ** 2 + 1e-9) - 0.5
    corner = (side + (y + 0.02).abs() - 0.9) / math.sqrt(2)
    lower = torch.maximum(corner, -(y + 0.32))
    return torch.minimum(discs, lower)


_DISTANCES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _circle,
    _square,
    _triangle,
    _star,
    _ring,
    _cross,
    _heart,
)
