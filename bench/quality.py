"""How far each quality preset is from the finest one: the same prompts and seeds, pictures and sound of finished MP4s.

Presets run as their files are written, on any checkpoint; prompts are of the built-in model's world, held out from its
training. A row of the finest preset with other seeds shows how far apart unrelated clips of one prompt are.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import Interpolation

from backend import limits, presets, settings
from backend.checkpoints import adapter_shelf, adapters, catalog
from backend.checkpoints.adapter_shelf import ListedAdapter
from backend.h3.pipeline import Pipeline
from backend.h3.seams import Hooks
from backend.jobs import turbo
from backend.jobs.planning import scaled
from backend.media import finished
from backend.media.likeness import psnr_db
from backend.media.mp4 import Mp4Writer
from backend.presets import QualityPreset
from backend.runtime.adapters import Adapters
from backend.types import FPS, EncoderSettings, GenerationRequest, Geometry, PreparedMedia, Sampling
from bench import report
from bench.nano.evaluate import Collect, held_out_prompts

COLUMNS = ["quality", "what", "points", "canvas", "clips", "psnr_db", "ssim", "sound_db", "spectral_db", "median_s"]
OTHER_SEED = 1_000_000  # added to the seed of each clip for the row of unrelated clips
WINDOW, HOP = 1024, 256  # samples of a spectrum and between two: 32 and 8 ms
FLOOR_DB = -60.0  # below a spectrum's loudest value; what is quieter is not heard beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One finished clip and the seconds it took, without loading."""

    path: Path
    seconds: float


Render = Callable[[QualityPreset, str, int, Path], Clip]  # (preset, prompt, seed, where to)


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = report.parser("quality", __doc__)
    parser.add_argument("--checkpoint", default=None, help="catalog name or folder; default the built-in trained model")
    parser.add_argument("--clips", type=int, default=6, help="prompts, each rendered with every preset")
    parser.add_argument("--seed", type=int, default=5, help="of the choice of prompts")
    report.run("quality", measure, COLUMNS, parser.parse_args())


def measure(device: torch.device, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """Every preset on one checkpoint."""
    name = options.checkpoint or (catalog.TINY if options.tiny else catalog.NANO)
    checkpoint = catalog.find(name, settings.from_environment())
    if checkpoint.folder is None or not checkpoint.ready:
        raise SystemExit(f"checkpoint={name}: {checkpoint.state}")
    worn = Adapters(checkpoint.folder / "transformer", device)
    adapt = Hooks(adapt=lambda wanted: worn.apply(pipeline.components.transformer, wanted, lambda: None))
    pipeline = Pipeline(checkpoint.folder, device, dtype, lambda *_: None, adapt)
    prompts = [prompt for _, prompt in held_out_prompts(random.Random(options.seed), options.clips)]
    qualities = presets.quality_presets()
    found = adapter_shelf.fewest_steps(settings.from_environment(), checkpoint.default_steps)
    qualities = measurable(qualities, found)
    with tempfile.TemporaryDirectory() as folder:
        rows = compare_all(renderer(pipeline, checkpoint.geometry, found), qualities, prompts, Path(folder))
    own = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "dtype": str(dtype),
    }
    for row in rows:
        preset = qualities[row["quality"]]
        row["points"] = preset.num_inference_steps
        # With `what` the page does not tell these figures, which are this adapter's and no other's.
        row["what"] = f"adapter {found.title}" if preset.turbo and found else row["what"]
        row["canvas"] = "{}x{}".format(*canvas(checkpoint.geometry, preset))
    return {
        "what": "distance of quality presets to the finest one, same prompts and seeds, of finished MP4s",
        "note": "seconds compare presets of this run only: other programs ran on the machine",
        "environment": report.environment(device) | own,
        "model": checkpoint.name,
        "model_title": checkpoint.title,
        "finest": presets.finest(qualities).name,
        "frames": limits.MIN_FRAMES,
        "prompts": prompts,
        "rows": rows,
    }


def measurable(qualities: dict[str, QualityPreset], found: ListedAdapter | None) -> dict[str, QualityPreset]:
    """Turbo with the steps of its adapter; without one it is left out, and said to be."""
    if found is None or found.card is None or found.card.num_inference_steps is None:
        skipped = ", ".join(name for name, preset in qualities.items() if preset.turbo)
        print(f"{skipped}: left out, no adapter made for few steps is installed (docs/adapters.md)", flush=True)
        return {name: preset for name, preset in qualities.items() if not preset.turbo}
    steps = found.card.num_inference_steps
    return {
        name: dataclasses.replace(preset, num_inference_steps=steps) if preset.turbo else preset
        for name, preset in qualities.items()
    }


def canvas(geometry: Geometry, preset: QualityPreset) -> tuple[int, int]:
    """(width, height) in px that a 16:9 request gets under `preset`."""
    return limits.canvas_for_ratio(16, 9, scaled(geometry, preset))


def renderer(pipeline: Pipeline, geometry: Geometry, found: ListedAdapter | None = None) -> Render:
    """Clips by the program's own pipeline and writer, encoded as the preset says; `found` is Turbo's adapter."""

    def render(preset: QualityPreset, prompt: str, seed: int, path: Path) -> Clip:
        width, height = canvas(geometry, preset)
        sampling = Sampling(
            width=width,
            height=height,
            num_frames=limits.MIN_FRAMES,
            num_inference_steps=preset.num_inference_steps,
            seed=seed,
        )
        request = GenerationRequest(prompt=prompt, sampling=sampling)
        if preset.turbo and found is not None:
            request, _ = adapters.with_schedule(turbo.put_on(request, found))
        sink, began = Collect(), time.monotonic()
        pipeline.generate(request, PreparedMedia(), sink, sink)  # type: ignore[arg-type]
        frames, sound = sink.clip()
        _write(path, frames.numpy(), sound.numpy(), preset.encoder)
        return Clip(path=path, seconds=time.monotonic() - began)

    return render


def compare_all(
    render: Render, qualities: dict[str, QualityPreset], prompts: Sequence[str], folder: Path
) -> list[dict[str, Any]]:
    """A row for each preset, and one of unrelated clips of the finest; clips are kept in `folder` meanwhile."""
    best = presets.finest(qualities)
    plan = [(best.name, best, 0, "")]
    plan += [(name, preset, 0, "") for name, preset in qualities.items() if name != best.name]
    plan += [("other-seed", best, OTHER_SEED, "another seed")]
    references: list[Clip] = []
    rows = []
    for label, preset, shift, what in plan:
        clips = []
        for number, prompt in enumerate(prompts):
            clips.append(render(preset, prompt, number + shift, folder / f"{label}-{number}.mp4"))
            print(f"{label} {number + 1} of {len(prompts)}: {clips[-1].seconds:.1f} s", flush=True)
        references = references or clips
        found = (
            {} if clips is references else distance([each.path for each in references], [each.path for each in clips])
        )
        took = round(statistics.median(each.seconds for each in clips), 2)
        rows.append({"quality": preset.name, "what": what, "clips": len(clips), **found, "median_s": took})
    return rows


def distance(references: Sequence[Path], others: Sequence[Path]) -> dict[str, Any]:
    """Of `others` to `references`, clip by clip: the pictures as the gallery compares them, and the sound.

    A smaller picture is first enlarged to the reference's size. PSNR is of all frames of all clips together, None where
    none differs; `psnr_range_db` is that of the clip that is farthest and of the nearest.
    """
    pairs = list(zip(references, others, strict=True))
    found = [finished.compare(first, enlarged(second, first)) for first, second in pairs]
    sounds = [(sound(first), sound(second)) for first, second in pairs]
    each = [psnr_db(statistics.fmean(clip.mse)) for clip in found]
    known = [value for value in each if value is not None]
    return {
        "psnr_db": _rounded(psnr_db(statistics.fmean(value for clip in found for value in clip.mse)), 2),
        "psnr_range_db": [round(min(known), 2), round(max(known), 2)] if known else None,
        "ssim": round(statistics.fmean(value for clip in found for value in clip.ssim), 4),
        "sound_db": _rounded(snr_db(sounds), 2),
        "spectral_db": round(statistics.fmean(spectral_db(*pair) for pair in sounds), 2),
    }


def snr_db(sounds: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Energy of the first of each pair over that of the difference, all pairs together; None for no difference."""
    signal = sum(float(np.sum(np.square(first, dtype=np.float64))) for first, _ in sounds)
    noise = sum(float(np.sum(np.square(second - first, dtype=np.float64))) for first, second in sounds)
    return 10 * math.log10(signal / noise) if noise > 0 and signal > 0 else None


def spectral_db(first: np.ndarray, second: np.ndarray) -> float:
    """Log-spectral distance of two sounds `(channels, samples)`: blind to phase, which no ear hears, unlike SNR.

    The root of the mean squared difference of levels in dB over windows, frequencies and channels, each level at least
    `FLOOR_DB` under the loudest of the first sound.
    """
    one, other = _powers(first), _powers(second)
    floor = max(float(one.max()), 1e-12) * 10 ** (FLOOR_DB / 10)
    levels = [10 * np.log10(np.maximum(power, floor)) for power in (one, other)]
    return float(np.sqrt(np.mean(np.square(levels[0] - levels[1]))))


def _powers(samples: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW, axis=-1)[:, ::HOP]
    return np.square(np.abs(np.fft.rfft(windows * np.hanning(WINDOW), axis=-1)))


def enlarged(path: Path, reference: Path) -> Path:
    """`path`, or where its pictures are smaller than the reference's a lossless copy enlarged to their size."""
    with av.open(str(reference)) as wanted, av.open(str(path)) as opened:
        size, own = [(each.streams.video[0].width, each.streams.video[0].height) for each in (wanted, opened)]
        if size == own:
            return path
        target = path.with_suffix(".enlarged.mp4")
        with av.open(str(target), "w") as copy:
            stream = copy.add_stream("libx264", rate=FPS, options={"qp": "0", "preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            for frame in opened.decode(video=0):  # in YUV all along: RGB in between would cost a level of 8 bits
                larger = frame.reformat(*size, interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND)
                larger.pts, larger.time_base = frame.pts, frame.time_base
                copy.mux(stream.encode(larger))
            copy.mux(stream.encode(None))
    return target


def sound(path: Path) -> np.ndarray:
    """What is heard of an MP4 of ours, float32 `(2, samples)`."""
    with av.open(str(path)) as opened:
        return np.concatenate([frame.to_ndarray() for frame in opened.decode(audio=0)], axis=-1)


def _write(path: Path, frames: np.ndarray, samples: np.ndarray, encoder: EncoderSettings) -> None:
    height, width = frames.shape[1:3]
    with Mp4Writer(path, width, height, dataclasses.replace(encoder, save_last_frame=False)) as writer:
        writer.write_audio(samples)
        writer.write_frames(frames)
        writer.close({})


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


if __name__ == "__main__":
    main()
