"""How alike two clips are, picture by picture: PSNR and SSIM by the formulas that FFmpeg's filters of those names use.

Knows planes of luma and chroma; nothing of files. Identical planes have no PSNR, which is infinite: None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PEAK = 255
# Wang et al. 2004, K1 = 0.01 and K2 = 0.03, for sums over 64 samples as FFmpeg's vf_ssim takes them
_C1 = int(0.01 * 0.01 * PEAK * PEAK * 64 + 0.5)
_C2 = int(0.03 * 0.03 * PEAK * PEAK * 64 * 63 + 0.5)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Of one pair of pictures: mean squared error and SSIM, each plane weighted by its number of samples."""

    mse: float
    ssim: float


def compare_planes(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Likeness:
    """Two pictures as planes, each uint8 (height, width) and of the same shape in both."""
    total = sum(plane.size for plane in first)
    mse = ssim = 0.0
    for one, other in zip(first, second, strict=True):
        weight = one.size / total
        difference = one.astype(np.int32) - other
        mse += weight * float(np.mean(np.square(difference), dtype=np.float64))
        ssim += weight * _ssim(one, other)
    return Likeness(mse, ssim)


def psnr_db(mse: float) -> float | None:
    """Decibels of a mean squared error of 8-bit samples; None for none."""
    return 10 * math.log10(PEAK * PEAK / mse) if mse > 0 else None


def _ssim(one: np.ndarray, other: np.ndarray) -> float:
    """Mean over windows of 8x8 samples that stand 4 apart; uint8 (height, width), at least 8 by 8."""
    a, b = (plane[: plane.shape[0] & ~3, : plane.shape[1] & ~3].astype(np.int32) for plane in (one, other))
    sum_a, sum_b = _windows(a), _windows(b)
    squares, product = _windows(a * a + b * b), _windows(a * b)
    means = sum_a * sum_b
    powers = sum_a * sum_a + sum_b * sum_b
    spread = squares * 64 - powers
    shared = product * 64 - means
    return float(np.mean((2 * means + _C1) * (2 * shared + _C2) / ((powers + _C1) * (spread + _C2))))


def _windows(values: np.ndarray) -> np.ndarray:
    """Sums over 8x8 samples, 4 apart, of int32 (4 h, 4 w): float64 (h - 1, w - 1)."""
    rows = values[0::4] + values[1::4] + values[2::4] + values[3::4]
    blocks = rows[:, 0::4] + rows[:, 1::4] + rows[:, 2::4] + rows[:, 3::4]
    pairs = blocks[:-1] + blocks[1:]
    return (pairs[:, :-1] + pairs[:, 1:]).astype(np.float64)
