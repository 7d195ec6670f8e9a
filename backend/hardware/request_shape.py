"""How much work a request is: rows of the packed sequence, distinct timesteps, tiles and chunks.

Exact for pictures, frames and sound; rows of a prompt are estimated, since the tokenizer belongs to the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend import limits
from backend.types import FPS, GenerationRequest, Geometry, MediaReport, Reference, ReferenceKind, Task

BYTES_PER_TOKEN = 4  # of UTF-8 prompt text; English and Chinese both come to about this with Qwen's vocabulary
TEMPLATE_ROWS = 40  # of the conversation around a prompt
MAX_PICTURE_ROWS = 16_384  # processor/preprocessor_config.json: longest_edge 16777216 px, 1024 of them a row
TILE_PX, OVERLAP_PX = 256, 64  # h3-facts 6: the released tiling of the video VAE
CONDITIONER_FPS = 1  # rows a second of a reference video: 2 frames a second, two of them in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """A resolved request in numbers. `rows` is the length of the packed sequence of one forward."""

    task: Task
    width: int
    height: int
    num_frames: int
    forwards: int
    timesteps: int  # distinct ones in a forward, at most: h3-facts 3
    text_rows: int
    condition_rows: int  # of keyframes and references, sound included
    audio_rows: int
    video_rows: int
    encoded_px: int = 0  # pixels the VAE encodes, over all conditions
    largest_picture_px: int = 0  # of one frame of them

    @property
    def rows(self) -> int:
        """Rows of the packed sequence."""
        return self.text_rows + self.condition_rows + self.audio_rows + self.video_rows

    @property
    def tiles(self) -> int:
        """VAE tiles of one chunk: 28 for 1344x768."""
        return _tiles(self.width) * _tiles(self.height)

    @property
    def chunks(self) -> int:
        """Temporal chunks of the decoder: 7 for 124 frames, 12 for 209."""
        return (self.num_frames - limits.LATENTS_PER_CHUNK) // limits.FRAMES_PER_CHUNK

    @property
    def duration_s(self) -> float:
        """Seconds of the clip."""
        return self.num_frames / FPS


def shape_of(request: GenerationRequest, geometry: Geometry, media: Mapping[Path, MediaReport]) -> RequestShape:
    """The shape of a resolved request (canvas concrete). `media` describes its references, where they were probed."""
    sampling = request.sampling
    assert sampling.width is not None and sampling.height is not None  # a resolved request has its canvas
    edge = geometry.canvas_multiple
    frame_rows = (sampling.width // edge) * (sampling.height // edge)
    text = TEMPLATE_ROWS + math.ceil(len(request.prompt.encode()) / BYTES_PER_TOKEN)
    keyframes = sum(path is not None for path in (request.first_frame, request.last_frame))
    frame_px = sampling.width * sampling.height
    found = _Conditions(text + keyframes * frame_rows, keyframes * frame_rows, keyframes * frame_px)
    found.largest_px = frame_px if keyframes else 0
    for reference in request.references:
        found.add(reference, media.get(reference.path), geometry)
    timesteps = {Task.T2VA: 2, Task.FL2VA: 3, Task.REF2VA: 4 if found.sound else 3}[request.task]
    return RequestShape(
        task=request.task,
        width=sampling.width,
        height=sampling.height,
        num_frames=sampling.num_frames,
        forwards=sampling.num_inference_steps - 1,
        timesteps=timesteps,
        text_rows=found.text,
        condition_rows=found.rows,
        audio_rows=2 * limits.num_audio_latents(sampling.num_frames),
        video_rows=limits.num_latent_frames(sampling.num_frames) * frame_rows,
        encoded_px=found.px,
        largest_picture_px=found.largest_px,
    )


class _Conditions:
    """Adds up what keyframes and references contribute."""

    def __init__(self, text: int, rows: int, px: int) -> None:
        self.text, self.rows, self.px = text, rows, px
        self.largest_px = 0
        self.sound = False

    def add(self, reference: Reference, report: MediaReport | None, geometry: Geometry) -> None:
        """One reference; a file that was not probed counts as the largest of its kind."""
        kind = report.kind if report is not None else reference.kind
        seconds = limits.used_length_s(reference, report.duration_s if report is not None else None)
        seconds = limits.MAX_CLIP_S if seconds is None else seconds
        if kind is ReferenceKind.AUDIO:
            self._hear(seconds)
            return
        aspect = report.width / report.height if report is not None and report.width and report.height else 16 / 9
        if kind is ReferenceKind.VIDEO:
            width, height = limits.canvas_for_ratio(min(max(aspect, 0.25), 4.0), 1, geometry)
            frames = max(limits.LATENTS_PER_CHUNK, round(seconds * FPS))
            frames -= (frames - limits.LATENTS_PER_CHUNK) % limits.FRAMES_PER_CHUNK
            rows = _rows(width, height, geometry)
            self._see(width * height, frames, limits.num_latent_frames(frames) * rows)
            self.text += math.ceil(seconds * CONDITIONER_FPS) * rows
            if report is None or report.audio_codec is not None:
                self._hear(seconds)
            return
        edge = geometry.reference_image_short_edge
        width, height = (round(edge * aspect), edge) if aspect >= 1 else (edge, round(edge / aspect))
        rows = _rows(width, height, geometry)
        self._see(width * height, 1, rows)
        self.text += min(rows, MAX_PICTURE_ROWS)

    def _see(self, px: int, frames: int, rows: int) -> None:
        self.rows += rows
        self.px += px * frames
        self.largest_px = max(self.largest_px, px)

    def _hear(self, seconds: float) -> None:
        self.sound = True
        self.rows += 2 * round(seconds * limits.AUDIO_LATENTS_PER_SECOND)


def _rows(width: int, height: int, geometry: Geometry) -> int:
    multiple = geometry.canvas_multiple
    return max(1, round(width / multiple)) * max(1, round(height / multiple))


def _tiles(side: int) -> int:
    return 1 if side <= TILE_PX else math.ceil((side - OVERLAP_PX) / (TILE_PX - OVERLAP_PX))
