"""High dynamic range and wide gamut to BT.709 in 8 bits, as a table that FFmpeg's lut3d filter applies.

Knows transfer curves and primaries; nothing of files or frames.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import numpy as np

TABLE_SIZE = 33
WHITE_NITS = 203.0  # diffuse white of HDR programmes, ITU-R BT.2408
PEAK_NITS = 1000.0  # HLG reference display, and the usual PQ mastering peak
KNEE = 0.75  # of SDR white in linear light; below it nothing is changed
# BT.2020 to BT.709 primaries, linear light, ITU-R BT.2087
_TO_709 = np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]])
_LUMA_2020 = np.array([0.2627, 0.6780, 0.0593])


class Look(StrEnum):
    """What must be undone: the HDR curve, or just the wide primaries."""

    PQ = "pq"
    HLG = "hlg"
    WIDE = "wide"


def look_of(transfer: int, primaries: int) -> Look | None:
    """The look of a stream by its codes (ITU-T H.273), None for ordinary video."""
    if transfer == 16:
        return Look.PQ
    if transfer == 18:
        return Look.HLG
    return Look.WIDE if primaries == 9 else None


def to_sdr(signal: np.ndarray, look: Look) -> np.ndarray:
    """Non-linear BT.2020 RGB in 0..1, shape (..., 3), to non-linear BT.709 RGB in 0..1 (BT.1886, gamma 2.4)."""
    light = _linear(signal, look)
    if look is not Look.WIDE:
        # The largest channel decides, and all three follow, so that hues stay; above the knee a smooth shoulder
        # brings the peak to white.
        largest = np.maximum(light.max(axis=-1, keepdims=True), 1e-9)
        light = light * (_shoulder(largest) / largest)
    narrow = np.clip(light @ _TO_709.T, 0.0, 1.0)
    return narrow ** (1 / 2.4)


def write_cube(path: Path, look: Look) -> None:
    """Write the table for `look` as a .cube file (red varies fastest)."""
    steps = np.linspace(0.0, 1.0, TABLE_SIZE)
    blue, green, red = np.meshgrid(steps, steps, steps, indexing="ij")
    values = to_sdr(np.stack([red, green, blue], axis=-1).reshape(-1, 3), look)
    lines = "\n".join(f"{r:.6f} {g:.6f} {b:.6f}" for r, g, b in values)
    path.write_text(f"LUT_3D_SIZE {TABLE_SIZE}\n{lines}\n", encoding="ascii")


def _linear(signal: np.ndarray, look: Look) -> np.ndarray:
    """Display light relative to diffuse white."""
    if look is Look.WIDE:
        return signal**2.4
    if look is Look.PQ:  # SMPTE ST 2084
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 4096 * 128, 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        power = signal ** (1 / m2)
        return (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1) * 10_000 / WHITE_NITS
    a, b, c = 0.17883277, 0.28466892, 0.55991073  # ITU-R BT.2100 HLG
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    luma = np.maximum((scene * _LUMA_2020).sum(axis=-1, keepdims=True), 1e-9)
    return scene * luma**0.2 * PEAK_NITS / WHITE_NITS  # system gamma 1.2


def _shoulder(light: np.ndarray) -> np.ndarray:
    """Identity below the knee; above, a hyperbola of slope 1 at the knee that reaches 1 at the peak."""
    peak = PEAK_NITS / WHITE_NITS
    over, room, span = light - KNEE, 1 - KNEE, peak - KNEE
    # over * room * scale / (over + room * scale), with scale such that f(span) = room
    scale = span / (span - room)
    bent = KNEE + over * room * scale / (np.maximum(over, 0) + room * scale)
    return np.where(light <= KNEE, light, np.minimum(bent, 1.0))
