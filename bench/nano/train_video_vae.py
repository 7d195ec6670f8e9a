"""Train the video VAE on windows of 22 frames, exactly one decoder chunk, from a pool drawn on the GPU and renewed.

`python -m bench.nano.train_video_vae --out FOLDER [--resume FOLDER] --minutes 7` writes `video_vae.safetensors`:
averaged weights, with the latents' statistics in its notes. `--freeze-encoder` keeps the latents, so that a transformer
trained on them stays valid while the decoder goes on; the other canvases are for that, `--canvases 6`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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
    square: float = 12.0
    edges: float = 0.5
    kl: float = 2e-6
    noise: float = 0.08  # of the latents' own size, so that the decoder forgives a sampler's last error


def normalize(image: Tensor) -> Tensor:
    """0..1 to the VAE's pixel space; `(batch, 3, frames, height, width)`."""
    mean, std = _constants(image.device)
    return (image - mean) / std


def denormalize(image: Tensor) -> Tensor:
    """The VAE's pixel space to 0..1, not clamped."""
    mean, std = _constants(image.device)
    return image * std + mean


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    # Made once: a copy from the host cannot be recorded.
    return tuple(torch.tensor(values, device=device).view(1, 3, 1, 1, 1) for values in (PIXEL_MEAN, PIXEL_STD))  # type: ignore[return-value]


def encode_window(vae: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log variance `(batch, 24, 7, h, w)` of normalized pixels of 22 frames.

    Latents depend on earlier frames of their own clip only, so a second clip needs just its first five frames.
    """
    parts = (pixels[:, :, :17], pixels[:, :, 17:])
    moments = torch.cat([vae.quant_conv(fast_encoder.encode(vae.encoder, part)) for part in parts], dim=2)
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


class Pool:
    """Windows of one canvas on the GPU, uint8, some of them new from time to time."""

    def __init__(self, rng: random.Random, size: int, canvas: tuple[int, int], device: torch.device) -> None:
        self._rng = rng
        self._canvas = canvas
        self._device = device
        self._at = 0
        self._pixels = torch.empty((size, 3, WINDOW, canvas[1], canvas[0]), dtype=torch.uint8, device=device)
        self.renew(size)

    def renew(self, count: int) -> None:
        """Draw `count` windows in place of the oldest."""
        while count > 0:
            some = min(32, count, len(self._pixels) - self._at)
            drawn = sample_batch(self._rng, some, self._canvas, self._device)
            self._pixels[self._at : self._at + some] = (drawn * 255).round().to(torch.uint8)
            self._at = (self._at + some) % len(self._pixels)
            count -= some

    def batch(self, size: int) -> Tensor:
        """Random windows, uint8 `(size, 3, 22, height, width)`."""
        return self._pixels[torch.randint(len(self._pixels), (size,), device=self._device)]


def loss_of(vae: Any, image: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The loss, and the squared error for a PSNR."""
    mean, logvar = encode_window(vae, normalize(image))
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
def psnr(vae: Any, image: Tensor) -> tuple[float, float]:
    """Mean PSNR in dB over held-out windows of 0..1, of the posterior's mean, and the lowest."""
    mean, _ = encode_window(vae, normalize(image))
    decoded = denormalize(decode_window(vae, mean)).clamp(0, 1)
    error = (decoded - image).pow(2).mean(dim=(1, 2, 3, 4))
    values = -10 * torch.log10(error.clamp(min=1e-10))
    return float(values.mean()), float(values.min())


@torch.no_grad()
def statistics(vae: Any, images: list[Tensor]) -> dict[str, list[float]]:
    """`latents_mean` and `latents_std` for each channel."""
    means = torch.cat([encode_window(vae, normalize(image))[0].transpose(0, 1).flatten(1) for image in images], 1)
    return {"latents_mean": means.mean(1).tolist(), "latents_std": means.std(1).clamp(min=1e-3).tolist()}


def train(options: argparse.Namespace) -> None:
    """One stage, bounded by `options.minutes` and `options.deadline`."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s, options.deadline)
    torch.manual_seed(options.seed)
    vae = video_vae().to(device)
    notes = stage.resume(options.resume, NAME, vae)
    steps = first = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)  # a resumed stage sees other clips
    held = random.Random(999)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark_limit = 4
    if options.freeze_encoder:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    trained = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    descent = stage.Descent(vae, 0.998, (0.9, 0.98), 0.01)
    canvases = [canvas for canvas, _ in CANVASES[: options.canvases]]
    shares = [share for _, share in CANVASES[: options.canvases]]
    check = [sample_batch(held, options.check, canvas, device) for canvas in canvases]
    pools = [
        Pool(rng, max(options.batch, int(options.pool * share / sum(shares))), canvas, device)
        for canvas, share in zip(canvases, shares, strict=True)
    ]
    print(f"{clock.elapsed_s:6.0f} s  {options.pool} windows drawn", flush=True)

    def work(pixels: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            loss, square = loss_of(vae, pixels / 255, Weights())
        loss.backward()
        return (square,)

    recorded: dict[int, stage.Step] = {}
    squares: list[Tensor] = []

    def finish() -> float:
        descent.average.swap()
        descent.clear()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = statistics(vae, check)
            each = [psnr(vae, image) for image in check]
        reached = each[0][0]
        # Frozen latents keep the statistics that a transformer may have been trained with.
        if options.freeze_encoder and "latents_mean" in notes:
            found = {key: notes[key] for key in found}
        state = stage.half(vae.state_dict(), "decoder.")
        stage.save(options.out, NAME, state, {"steps": steps, "psnr_db": reached, **found})
        descent.average.swap()
        running = -10 * torch.log10(torch.stack(squares[-50:]).mean()) if squares else torch.tensor(0.0)
        spread = found["latents_std"]
        print(
            f"{clock.elapsed_s:6.0f} s  step {steps}  train {running:.2f} dB  held-out "
            + ", ".join(f"{mean:.2f} (lowest {low:.2f})" for mean, low in each)
            + f" dB  {(steps - first) / clock.elapsed_s:.2f} steps/s  latents' deviation {min(spread):.2f}"
            f" to {max(spread):.2f}",
            flush=True,
        )
        return reached

    while clock.running() and steps - first < options.max_steps:
        which = rng.choices(range(len(canvases)), shares)[0]
        pixels = pools[which].batch(options.batch)
        if which not in recorded:
            recorded[which] = stage.Step(f"canvas {canvases[which]}", work, trained, [pixels])
        (square,) = recorded[which](pixels)
        descent.step(stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        squares.append(square.clone())
        steps += 1
        if clock.due():
            squares = squares[-50:]
            if finish() >= options.stop_db:
                return
            for pool, share in zip(pools, shares, strict=True):
                pool.renew(int(options.pool * share / sum(shares)) // 16)
    finish()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    stage.common_options(parser, minutes=7.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pool", type=int, default=12000, help="windows in memory: 1.9 MB each")
    parser.add_argument("--check", type=int, default=64, help="held-out windows a canvas")
    parser.add_argument("--canvases", type=int, default=1, help="how many of the table; each costs a recording")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--lr-end", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop-db", type=float, default=99.0, help="held-out PSNR at which the stage ends early")
    parser.add_argument("--freeze-encoder", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
