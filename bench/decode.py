"""Latents to a finished MP4: stock diffusers (decode, then convert, then encode) and ours (all at once), one run.

Both use the same random weights, latents and encoder settings; the frames are compared.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from diffusers.video_processor import VideoProcessor
from torch import Tensor, nn

from backend.h3 import decode
from backend.media.mp4 import Growing, Mp4Writer
from backend.runtime import vae_tiles
from backend.runtime.attention import choose
from backend.runtime.frames import to_host
from backend.runtime.kernels import triton_or_reason
from backend.types import EncoderSettings
from bench import models, report

COLUMNS = [
    "shape",
    "what",
    "kernel",
    "median_s",
    "first_second_s",
    "mp4_s",
    "clip_mp4_s",
    "peak_gib",
    "weights_gib",
    "max",
    "mean",
]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the VAE's pixel space, components.pixel_mean / pixel_std


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = report.parser("decode", __doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", default="auto,cudnn", help="attention kernels to measure ours with")
    parser.add_argument("--shapes", default="", help="only these, comma-separated, as 1344x768x209")
    parser.add_argument("--short", action="store_true", help="stock, and ours with fused blocks, only")
    parser.add_argument("--clip", type=Path, default=None, help="a video whose frames are encoded instead of noise")
    report.run("decode", measure, COLUMNS, parser.parse_args())


def measure(device: torch.device, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """Stock first, then ours: stacked only, then stacked with fused blocks."""
    vae = models.vae(device, dtype, options.tiny)
    if options.clip is not None:
        for shape in models.FULL_SHAPES[:2]:
            _pictures(options.clip, shape)  # read before anything is timed
    weights = sum(each.nbytes for each in vae.parameters()) / 2**30
    shapes = models.TINY_SHAPES[:1] if options.tiny else models.FULL_SHAPES[:2]
    if options.shapes:
        shapes = tuple(shape for shape in shapes if shape.name in options.shapes.split(","))
    rows: list[dict[str, Any]] = []
    expected: dict[models.Shape, np.ndarray] = {}
    for shape in shapes:
        latents = models.latents(shape, device)
        row = report.timed(lambda z=latents: stock(vae, z), device, warm=0, repeats=max(1, options.repeats - 2))
        frames = expected[shape] = row.pop("result")
        if not options.short:
            started = time.perf_counter()
            encode(iter([frames]), shape)
            row["mp4_s"] = round(row["median_s"] + time.perf_counter() - started, 2)
        if options.clip is not None:
            started = time.perf_counter()
            encode(dressed(iter([frames]), options.clip, shape), shape)
            row["clip_mp4_s"] = round(row["median_s"] + time.perf_counter() - started, 2)
        rows.append(row | {"shape": shape.name, "what": "stock diffusers", "kernel": "torch's default"})
        print(rows[-1], flush=True)
    notices: list[str] = []
    if not options.short:
        ours(vae, shapes, expected, rows, options, "stacked tiles", "torch's default", notices)
    vae.set_attention_backend("_native_flash" if device.type == "cuda" else "_native_math")
    if not options.short:
        ours(vae, shapes, expected, rows, options, "stacked tiles", "another kernel", notices)
    vae.set_attention_backend("native")  # for all models; `reset` leaves the last choice in force
    ops, reason = triton_or_reason(device, dtype)
    if ops is None:
        notices.append(f"fused blocks are not used: {reason}")
    else:
        for wanted in options.kernels.split(","):
            head_dim = vae.config.decoder_attention_head_dim
            kernel = choose(device, dtype, wanted, head_dim)
            vae_tiles.slow_down(vae)
            vae_tiles.speed_up(vae, kernel, ops)
            ours(vae, shapes, expected, rows, options, "stacked tiles, fused blocks", kernel.name, notices)
    for row in rows:
        row["weights_gib"] = round(weights, 2)
    return {
        "what": "latents to frames and to a finished MP4, random weights, one run",
        "environment": report.environment(device),
        "encoder": "x264, crf 17, preset fast, beside the decoder; silence as sound",
        "notices": notices,
        "rows": rows,
    }


def ours(  # noqa: PLR0913
    vae: nn.Module,
    shapes: tuple[models.Shape, ...],
    expected: dict[models.Shape, np.ndarray],
    rows: list[dict[str, Any]],
    options: argparse.Namespace,
    what: str,
    kernel: str,
    notices: list[str],
) -> None:
    """Frames alone, then the whole way to a file, with the time to the first second of video."""
    for shape in shapes:
        latents = models.latents(shape, next(vae.parameters()).device)
        tiles = vae_tiles.TileDecoder(0, notices.append)
        row = report.timed(lambda z=latents, t=tiles: list(stream(vae, z, t)), latents.device, repeats=options.repeats)
        frames = np.concatenate(row.pop("result"))
        gap = np.abs(expected[shape].astype(np.int16) - frames.astype(np.int16))
        row |= {"max": int(gap.max()), "mean": float(gap.mean())}
        row |= encode(stream(vae, latents, tiles), shape)
        if options.clip is not None:
            row["clip_mp4_s"] = encode(dressed(stream(vae, latents, tiles), options.clip, shape), shape)["mp4_s"]
        rows.append(row | {"shape": shape.name, "what": what, "kernel": kernel})
        print(rows[-1], flush=True)


def stream(vae: nn.Module, latents: Tensor, tiles: vae_tiles.TileDecoder) -> Iterator[np.ndarray]:
    """Frames as the worker gets them: chunk by chunk, uint8, through pinned memory."""
    for chunk in decode.video_chunks(vae, latents, tiles.decode_clip, to_host):
        yield chunk.numpy()


def dressed(chunks: Iterator[np.ndarray], clip: Path, shape: models.Shape) -> Iterator[np.ndarray]:
    """The chunks as they come, showing a real clip: what random weights decode to is noise, which x264 is slow on."""
    pictures = _pictures(clip, shape)
    start = 0
    for chunk in chunks:
        places = [(start + place) % len(pictures) for place in range(len(chunk))]
        start += len(chunk)
        yield np.stack([pictures[place] for place in places])


@functools.cache
def _pictures(clip: Path, shape: models.Shape) -> list[np.ndarray]:
    with av.open(str(clip)) as container:
        size = {"width": shape.width, "height": shape.height, "format": "rgb24"}
        return [frame.reformat(**size).to_ndarray() for frame in container.decode(video=0)]


def stock(vae: nn.Module, latents: Tensor) -> np.ndarray:
    """What diffusers' decode block does, then what any writer needs: uint8 frames (n, height, width, 3)."""
    shape = (1, -1, 1, 1, 1)
    mean, std = (torch.tensor(each, device=latents.device).view(shape) for each in (MEAN, STD))
    latents_mean = torch.tensor(vae.config.latents_mean, device=latents.device).view(shape)
    latents_std = torch.tensor(vae.config.latents_std, device=latents.device).view(shape)
    video = vae.decode(latents * latents_std + latents_mean, return_dict=False)[0]
    video = (video.float() * std + mean).clamp(0, 1)
    processor = VideoProcessor(vae_scale_factor=16, do_normalize=False)
    return (processor.postprocess_video(video, output_type="np")[0] * 255).round().astype(np.uint8)


def encode(chunks: Iterator[np.ndarray], shape: models.Shape) -> dict[str, float]:
    """Write the chunks to an MP4; seconds until its first second could be played, and until all is closed."""
    started, clock = time.perf_counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        growing = Growing(path=path.with_name("stream.mp4"), tell=lambda: None)
        with Mp4Writer(path, shape.width, shape.height, EncoderSettings(), growing) as writer:
            writer.write_audio(np.zeros((2, round(shape.num_frames / 24 * 32000)), np.float32))
            for chunk in chunks:
                writer.write_frames(chunk)
            writer.close({})
    first = (writer.first_second_at or clock) - clock
    return {"first_second_s": round(first, 2), "mp4_s": round(time.perf_counter() - started, 2)}


if __name__ == "__main__":
    main()
