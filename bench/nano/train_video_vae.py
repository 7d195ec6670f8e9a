"""Train the video VAE on windows of 22 frames, exactly one decoder chunk, drawn on the GPU as they are needed.

`python -m bench.nano.train_video_vae --out FOLDER [--resume FOLDER] --minutes 7` writes `video_vae.safetensors`:
averaged weights, with the latents' statistics in its notes. `--freeze-encoder` keeps the latents, so that a transformer
trained on them stays valid while the decoder goes on.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.nano import fast_encoder, stage, world
from bench.nano.architecture import video_vae

WINDOW = 22  # 17 + 5 frames: 7 latents, one call of the decoder
NAME = "video_vae"
# (width, height) and how often: the default canvas first, then what the other ratios give at a short edge of 128 px.
CANVASES = (
    ((224, 128), 0.66),
    ((128, 224), 0.1),
    ((128, 128), 0.1),
    ((160, 128), 0.05),
    ((128, 160), 0.05),
    ((256, 96), 0.04),
)
PIXEL_MEAN = (0.485, 0.456, 0.406)  # the class's docstring: ImageNet's
PIXEL_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the loss's parts."""

    absolute: float = 1.0
    square: float = 6.0
    edges: float = 0.5
    kl: float = 2e-6
    noise: float = 0.08  # of the latents' own size, so that the decoder forgives a sampler's last error


def normalize(image: Tensor) -> Tensor:
    """0..1 to the VAE's pixel space; `(batch, 3, frames, height, width)`."""
    mean, std = _constants(image)
    return (image - mean) / std


def denormalize(image: Tensor) -> Tensor:
    """The VAE's pixel space to 0..1, not clamped."""
    mean, std = _constants(image)
    return image * std + mean


def _constants(like: Tensor) -> tuple[Tensor, Tensor]:
    shape = (1, 3, 1, 1, 1)
    return torch.tensor(PIXEL_MEAN, device=like.device).view(shape), torch.tensor(PIXEL_STD, device=like.device).view(
        shape
    )


def encode_window(vae: Any, pixels: Tensor, activate: fast_encoder.Activate) -> tuple[Tensor, Tensor]:
    """Mean and log variance `(batch, 24, 7, h, w)` of normalized pixels of 22 frames.

    Latents depend on earlier frames of their own clip only, so a second clip needs just its first five frames.
    """
    parts = (pixels[:, :, :17], pixels[:, :, 17:])
    moments = torch.cat([vae.quant_conv(fast_encoder.encode(vae.encoder, part, activate)) for part in parts], dim=2)
    mean, logvar = moments.float().chunk(2, dim=1)
    return mean, logvar.clamp(-30, 20)


def decode_window(vae: Any, latents: Tensor, decoder: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Pixels of 22 frames from 7 latents, in the VAE's space: the class's own cut of one chunk."""
    clip = (decoder or vae.decoder)(vae.post_quant_conv(latents))
    return torch.cat((clip[:, :, 3:20], clip[:, :, 23:28]), dim=2).float()


def sample_batch(rng: random.Random, size: int, canvas: tuple[int, int], device: torch.device) -> Tensor:
    """Random windows of random clips, 0..1: `(size, 3, 22, height, width)`."""
    clips = [world.sample(rng) for _ in range(size)]
    batch = world.Batch(clips, device)
    # Any frame may start a window; chunks of a clip start at multiples of 17, which differ in nothing.
    first = torch.tensor([[float(rng.randrange(clip.num_frames - WINDOW + 1))] for clip in clips], device=device)
    return world.draw(batch, world.frame_times(batch, first, WINDOW), *canvas)


def loss_of(vae: Any, image: Tensor, activate: fast_encoder.Activate, weights: Weights) -> tuple[Tensor, Tensor]:
    """The loss, and the squared error for a PSNR."""
    mean, logvar = encode_window(vae, normalize(image), activate)
    latents = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
    spread = mean.detach().std(dim=(0, 2, 3, 4), keepdim=True)
    latents = latents + weights.noise * spread * torch.randn_like(mean) * torch.rand(
        len(mean), 1, 1, 1, 1, device=mean.device
    )
    error = denormalize(decode_window(vae, latents)) - image
    square = error.pow(2).mean()
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    kl = 0.5 * (mean.pow(2) + logvar.exp() - 1 - logvar).mean(0).sum() / (image.shape[-1] * image.shape[-2] / 256)
    total = weights.absolute * error.abs().mean() + weights.square * square + weights.edges * edges + weights.kl * kl
    return total, square.detach()


@torch.no_grad()
def psnr(vae: Any, images: list[Tensor], activate: fast_encoder.Activate) -> tuple[float, float]:
    """Mean PSNR in dB over held-out windows, of the posterior's mean, and the lowest."""
    values = []
    for image in images:
        mean, _ = encode_window(vae, normalize(image), activate)
        decoded = denormalize(decode_window(vae, mean)).clamp(0, 1)
        error = (decoded - image).pow(2).mean(dim=(1, 2, 3, 4))
        values.append(-10 * torch.log10(error.clamp(min=1e-10)))
    every = torch.cat(values)
    return float(every.mean()), float(every.min())


@torch.no_grad()
def statistics(vae: Any, images: list[Tensor], activate: fast_encoder.Activate) -> dict[str, list[float]]:
    """`latents_mean` and `latents_std` for each channel."""
    means = torch.cat(
        [encode_window(vae, normalize(image), activate)[0].transpose(0, 1).flatten(1) for image in images], 1
    )
    return {"latents_mean": means.mean(1).tolist(), "latents_std": means.std(1).clamp(min=1e-3).tolist()}


def train(options: argparse.Namespace) -> None:
    """One stage, bounded by `options.minutes`."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    vae = video_vae().to(device)
    notes = stage.resume(options.resume, NAME, vae)
    steps = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)  # a resumed stage sees other clips
    held = random.Random(999)
    activate: fast_encoder.Activate = fast_encoder.activate
    if options.compile:
        torch.backends.cudnn.benchmark = True
        torch._dynamo.config.cache_size_limit = 64
        torch._dynamo.config.recompile_limit = 64
        # The decoder alone: compiling the encoder's steps took 34 s for each of its shapes, five minutes in all.
        for block in vae.decoder.transformer_blocks:
            block.compile(dynamic=False)
    if device.type == "cuda":
        vae.encoder.to(memory_format=torch.channels_last_3d)
        torch.set_float32_matmul_precision("high")
    if options.freeze_encoder:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    trained = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=options.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=device.type == "cuda"
    )
    average = stage.Average(vae, 0.998)
    canvases = [canvas for canvas, _ in CANVASES[: options.canvases]]
    shares = [share for _, share in CANVASES[: options.canvases]]
    weights = Weights()
    first = steps
    cast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    check = [sample_batch(held, options.check, canvas, device) for canvas in canvases[:3]]
    squares: list[Tensor] = []

    def report() -> float:
        average.swap()
        with cast:
            mean, low = psnr(vae, check, activate)
            wide, _ = psnr(vae, check[:1], activate)
        average.swap()
        running = -10 * torch.log10(torch.stack(squares[-50:]).mean()) if squares else torch.tensor(0.0)
        print(
            f"{clock.elapsed_s:6.0f} s  step {steps}  train {running:.2f} dB  held-out {mean:.2f} dB"
            f" (default canvas {wide:.2f}, lowest {low:.2f})  {(steps - first) / clock.elapsed_s:.2f} steps/s",
            flush=True,
        )
        return mean

    def store() -> None:
        average.swap()
        with cast:
            found = statistics(vae, check, activate)
            mean, _ = psnr(vae, check, activate)
        state = stage.half(vae.state_dict(), "decoder.")
        stage.save(options.out, NAME, state, {"steps": steps, "psnr_db": mean, **found})
        average.swap()

    while clock.running() and steps - first < options.max_steps:
        # The first steps stay on one canvas: each new one costs the compiler time.
        canvas = canvases[0] if steps - first < 50 else rng.choices(canvases, shares)[0]
        with torch.no_grad():
            image = sample_batch(rng, options.batch, canvas, device)
        stage.set_rate(optimizer, stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss, square = loss_of(vae, image, activate, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        average.update()
        squares.append(square)
        steps += 1
        if clock.due():
            reached = report()
            store()
            if reached >= options.stop_db:
                return
    report()
    store()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--check", type=int, default=32, help="held-out windows a canvas")
    parser.add_argument("--canvases", type=int, default=len(CANVASES))
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--lr-end", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--stop-db", type=float, default=99.0, help="held-out PSNR at which the stage ends early")
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--freeze-encoder", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
