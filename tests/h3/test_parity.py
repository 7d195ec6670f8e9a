"""Our render against diffusers' own pipeline on the same weights: latents bit for bit, pixels and sound to 1e-5."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3 import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from PIL import Image
from stock import LiftedLimits, load_stock, render, run_stock

from backend.h3.pipeline import Pipeline
from backend.types import (
    GenerationRequest,
    PreparedMedia,
    PreparedReference,
    Reference,
    ReferenceKind,
    Sampling,
)

WIDTH, HEIGHT = 224, 128
PROMPT = "A red kite over the sea; <Picture 1> 漢字 \N{WATER WAVE} wind."
ANY = Path("never-opened")


def sampling(num_frames: int = 124, width: int = WIDTH, height: int = HEIGHT) -> Sampling:
    return Sampling(num_frames=num_frames, width=width, height=height, num_inference_steps=3, seed=7)


def assert_same(pipeline: Pipeline, pipe: Any, request: GenerationRequest, media: PreparedMedia, **stock: Any) -> None:
    expected = run_stock(pipe, request, **stock)
    generated, recorder = render(pipeline, request, media)
    assert torch.equal(generated.latents, expected["latents"])
    assert torch.equal(generated.audio_latents, expected["audio_latents"])
    assert generated.audio.shape == expected["audio"].shape
    assert torch.allclose(generated.audio, expected["audio"], rtol=0, atol=1e-5)
    assert np.array_equal(np.concatenate(recorder.sound, axis=-1), generated.audio.numpy())
    frames = recorder.video_frames
    assert (
        frames.shape
        == expected["frames"].shape
        == (
            request.sampling.num_frames,
            request.sampling.height,
            request.sampling.width,
            3,
        )
    )
    # The chunks were rounded already: within 1e-5 before rounding means equal but where stock lies on a half.
    scaled = expected["frames"].astype(np.float64) * 255
    on_a_half = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < 255 * 1e-5
    assert np.array_equal(frames[~on_a_half], scaled.round().astype(np.uint8)[~on_a_half])
    assert np.abs(frames - scaled).max() <= 0.5 + 255 * 1e-5


def png(path: Path, seed: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> tuple[Path, Image.Image]:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize(size)
    image.save(path)
    return path, image


def test_text_to_video(pipeline: Pipeline, stock_pipeline: Any) -> None:
    assert_same(pipeline, stock_pipeline, GenerationRequest(prompt=PROMPT, sampling=sampling()), PreparedMedia())


@pytest.mark.parametrize("ends", [("first",), ("last",), ("first", "last")], ids="+".join)
def test_keyframes(pipeline: Pipeline, stock_pipeline: Any, tmp_path: Path, ends: tuple[str, ...]) -> None:
    made = {end: png(tmp_path / f"{end}.png", seed) for seed, end in enumerate(ends)}
    paths = {f"{end}_frame": path for end, (path, _) in made.items()}
    stock = {{"first": "image", "last": "last_image"}[end]: image for end, (_, image) in made.items()}
    request = GenerationRequest(prompt=PROMPT, sampling=sampling(), **paths)
    assert_same(pipeline, stock_pipeline, request, PreparedMedia(**paths), **stock)


def references(folder: Path, kinds: str) -> tuple[PreparedMedia, list[Any]]:
    """Prepared references and the same ones for diffusers; i: image, v: video with sound, s: silent video, a: audio."""
    prepared, stock = [], []
    for index, kind in enumerate(kinds):
        rng = np.random.default_rng(index)
        sound = rng.uniform(-0.5, 0.5, (2, 16_123)).astype(np.float32)
        np.save(folder / f"{index}-sound.npy", sound)
        if kind == "i":
            path, image = png(folder / f"{index}.png", index, (160, 192))
            prepared.append(PreparedReference(kind=ReferenceKind.IMAGE, image=path))
            stock.append(MiniMaxH3ImageReference(image=image))
        elif kind == "a":
            prepared.append(PreparedReference(kind=ReferenceKind.AUDIO, audio=folder / f"{index}-sound.npy"))
            stock.append(MiniMaxH3AudioReference(audio=torch.from_numpy(sound), sample_rate=32_000))
        else:
            frames = rng.integers(0, 256, (25, HEIGHT, WIDTH, 3), dtype=np.uint8)
            np.save(folder / f"{index}.npy", frames)
            audio = folder / f"{index}-sound.npy" if kind == "v" else None
            prepared.append(PreparedReference(kind=ReferenceKind.VIDEO, frames=folder / f"{index}.npy", audio=audio))
            waveform = torch.from_numpy(sound) if kind == "v" else None
            stock.append(MiniMaxH3VideoReference(frames=frames, fps=24.0, audio=waveform))
    return PreparedMedia(references=tuple(prepared)), stock


@pytest.mark.parametrize("kinds", ["ii", "ivas"])
def test_references(pipeline: Pipeline, stock_pipeline: Any, tmp_path: Path, kinds: str) -> None:
    media, stock = references(tmp_path, kinds)
    request = GenerationRequest(
        prompt=PROMPT,
        references=tuple(Reference(path=ANY, kind=reference.kind) for reference in media.references),
        sampling=sampling(),
    )
    assert_same(pipeline, stock_pipeline, request, media, references=stock)


@pytest.mark.parametrize("num_frames", [107, pytest.param(362, marks=pytest.mark.thorough)])
def test_durations_that_diffusers_refuses(
    pipeline: Pipeline, stock_pipeline: Any, tiny_checkpoint: Path, num_frames: int
) -> None:
    request = GenerationRequest(prompt=PROMPT, sampling=sampling(num_frames, 96, 64))
    with pytest.raises(ValueError, match=r"between 5.0 and 15.0 seconds"):
        run_stock(stock_pipeline, request)
    lifted = load_stock(tiny_checkpoint, LiftedLimits)
    assert_same(pipeline, lifted, request, PreparedMedia())
