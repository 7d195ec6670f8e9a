"""A file at a glance: a poster, a strip of a clip's frames, and the peaks of its sound.

For people only, so it is small, approximate in time and gives up early on what is slow; runs inside the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from backend.errors import MediaRefused
from backend.media import audio, containers, images, videos
from backend.media.sandbox import Order, glimpse_files
from backend.media.source import Source
from backend.types import Glimpse, MediaReport

PEAKS = 240
POSTER_PX = 360  # longest side
STRIP_WIDTH_PX, STRIP_HEIGHT_PX = 720, 72
MIN_TILES, MAX_TILES = 4, 18
BUDGET_S = 6.0  # for the frames of a strip, and once more for the peaks
JPEG_QUALITY = 82


def of_picture(order: Order, picture: images.Picture) -> Glimpse:
    """A small upright copy."""
    poster = glimpse_files(order.stem)[0]
    small = picture.image.copy()
    small.thumbnail((POSTER_PX, POSTER_PX))
    small.save(poster, format="JPEG", quality=JPEG_QUALITY)
    return Glimpse(poster=poster)


def of_sound(source: Source, opened: containers.Opened, report: MediaReport) -> Glimpse:
    """The peaks over the length of a sound."""
    return Glimpse(peaks=_peaks(source, opened, None, Fraction(report.duration_s or 0)))


def of_video(
    order: Order, source: Source, opened: containers.Opened, facts: videos.Facts, report: MediaReport
) -> tuple[MediaReport, Glimpse]:
    """Poster, strip and peaks of a clip. What cannot be decoded is told in the report: it may be trimmed away."""
    poster, strip = glimpse_files(order.stem)
    warnings: list[str] = []
    pictures: tuple[Path, ...] = ()
    try:
        pictures = _write_strip(source, opened, facts, (poster, strip))
    except MediaRefused as error:
        warnings.append(f"not all of its pictures can be shown: {error.problem.value}")
    peaks: tuple[float, ...] = ()
    try:
        peaks = _peaks(source, opened, facts.start, facts.duration) if opened.audio is not None else ()
    except MediaRefused as error:
        warnings.append(f"its sound cannot be shown: {error.problem.value}")
    shown = replace(report, warnings=(*report.warnings, *warnings))
    if not pictures:
        return shown, Glimpse(peaks=peaks)
    return shown, Glimpse(poster=poster, strip=strip, peaks=peaks)


def _write_strip(
    source: Source, opened: containers.Opened, facts: videos.Facts, files: tuple[Path, Path]
) -> tuple[Path, Path]:
    """Frames at the middle of equal parts, side by side; the first of them is the poster, too."""
    width, height = facts.display
    tile = (min(max(round(STRIP_HEIGHT_PX * width / height), 24), 4 * STRIP_HEIGHT_PX), STRIP_HEIGHT_PX)
    count = min(max(round(STRIP_WIDTH_PX / tile[0]), MIN_TILES), MAX_TILES)
    scale = POSTER_PX / max(width, height)
    large = (max(1, round(width * scale)), max(1, round(height * scale)))
    times = [facts.start + facts.duration * Fraction(2 * number + 1, 2 * count) for number in range(count)]
    painter = videos.Painter(facts, tile)
    tiles: list[np.ndarray] = []
    for frame in _frames_at(source, opened, facts, times):
        if not tiles:
            upright = facts.flips.apply(videos.Painter(facts, large).rgb(frame))
            Image.fromarray(np.ascontiguousarray(upright)).save(files[0], format="JPEG", quality=JPEG_QUALITY)
        tiles.append(facts.flips.apply(painter.rgb(frame)))
    Image.fromarray(np.concatenate(tiles, axis=1)).save(files[1], format="JPEG", quality=JPEG_QUALITY)
    return files


def _frames_at(source: Source, opened: containers.Opened, facts: videos.Facts, times: list[Fraction]) -> Iterator[Any]:
    """The frame shown at each of the rising file times (s); once the budget is spent, the keyframe before it."""
    stream = facts.stream
    step = Fraction(1, 2) / Fraction(facts.timing.rate).limit_denominator(1000)
    keys = sorted(entry.timestamp * stream.time_base for entry in stream.index_entries if entry.is_keyframe)
    deadline = time.monotonic() + BUDGET_S
    frames: Iterator[Any] | None = None
    shown, at = None, Fraction(-1)
    try:
        for wanted in times:
            key = max((each for each in keys if each <= wanted), default=None)
            if frames is None or (key is not None and key > at + step):
                opened.container.seek(int(wanted / stream.time_base), stream=stream)
                frames, at = opened.container.decode(stream), Fraction(-1)
            while at < 0 or (at < wanted - step and time.monotonic() < deadline):
                frame = next(frames, None)
                if frame is None:
                    break
                if frame.pts is not None:
                    shown, at = frame, frame.pts * stream.time_base
            if shown is None:
                raise source.refuse("no picture in it can be decoded", "must hold a picture", "export it again")
            yield shown
    except av.FFmpegError as error:
        raise containers.damaged(source, error) from error


def _peaks(source: Source, opened: containers.Opened, origin: Fraction | None, duration: Fraction) -> tuple[float, ...]:
    """The largest absolute sample of any channel in each part of `duration` s from file time `origin` (None: the first
    sample); () where reading it all takes too long.
    """
    stream = audio.check_stream(source, opened.audio)
    total = max(1, round(duration * stream.rate))
    loudest = np.zeros(PEAKS, np.float32)
    deadline = time.monotonic() + BUDGET_S
    cursor = 0
    for at, block in audio.blocks(source, opened.container, stream, None):
        if time.monotonic() > deadline:
            return ()
        if at is not None:
            origin = at if origin is None else origin
            cursor = round((at - origin) * stream.rate)
        places = (np.arange(block.shape[1]) + cursor) * PEAKS // total
        inside = (places >= 0) & (places < PEAKS)
        np.maximum.at(loudest, places[inside], np.abs(np.nan_to_num(block)).max(axis=0)[inside])
        cursor += block.shape[1]
    return tuple(round(float(peak), 3) for peak in np.minimum(loudest, 1.0))
