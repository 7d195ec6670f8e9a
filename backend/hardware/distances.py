"""How far a quality preset is from the finest one, as `python -m bench.quality` measured it.

Reads `bench/results/quality.json`; a preset that was not measured has no entry.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import codec
from backend.checkpoints.catalog import NANO
from backend.hardware.rates import RESULTS_DIR

FILE = RESULTS_DIR / "quality.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One preset as it was measured; figures are None for the finest, and PSNR and SNR also for identical clips."""

    quality: str
    what: str  # empty, or what else the row was made with
    points: int  # sigma points
    canvas: str  # "224x128"
    clips: int
    median_s: float
    psnr_db: float | None = None
    psnr_range_db: tuple[float, float] | None = None
    ssim: float | None = None
    sound_db: float | None = None
    spectral_db: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """From one preset to the finest: PSNR in dB (None where no sample differs) and SSIM, over so many clips."""

    psnr_db: float | None
    ssim: float
    finest: str  # name of the preset it was measured against
    finest_points: int
    model: str  # for people: "built-in model", or the name of the checkpoint
    clips: int


@functools.cache
def rows(file: Path = FILE) -> tuple[Row, ...]:
    """Every row of the file, in its order, the finest preset first; none where there is no file."""
    return codec.decode(tuple[Row, ...], _content(file)["rows"], file.name) if file.is_file() else ()


@functools.cache
def distances(file: Path = FILE) -> dict[str, Distance]:
    """By the preset's name; neither the finest itself nor clips of another seed."""
    measured = rows(file)
    return {
        row.quality: Distance(
            psnr_db=row.psnr_db,
            ssim=row.ssim,
            finest=measured[0].quality,
            finest_points=measured[0].points,
            model=_for_people(_content(file)["model"]),
            clips=row.clips,
        )
        for row in measured[1:]
        if not row.what and row.ssim is not None
    }


def _for_people(model: str) -> str:
    return "built-in model" if model == NANO else model


def _content(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
