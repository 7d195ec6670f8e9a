"""Train the audio VAE on pieces of one channel: the world's sounds, and some free tones so that others pass too.

`python -m bench.nano.train_audio_vae --out FOLDER [--resume FOLDER] --minutes 3` writes `audio_vae.safetensors`:
averaged weights, with the latents' statistics in its notes.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.nano import sound, stage, world
from bench.nano.architecture import audio_vae

NAME = "audio_vae"
PIECE = 24 * sound.LATENT_SAMPLES  # 0.6 s: many short pieces teach more a second than few long ones
LONG = 4  # times as long is every tenth batch, because attention must hold over a whole clip
_WINDOWS = (256, 512, 1024, 2048)
_KL = 1e-5
_FLOOR = 1e-2  # magnitudes below are silence: fidelity there is worth nothing and would be bought with the tone
# At 0.5 the decoder fell silent and stayed so (0.0 dB); at 0.1 it learned from the first hundred steps.
_SPECTRAL = 0.1
_NOISE = 0.05  # of the latents' own size, as the video VAE's


def sample_batch(rng: random.Random, size: int, device: torch.device, free: float = 0.1, times: int = 1) -> Tensor:
    """Pieces `(size, 1, times * PIECE)` within -1..1; a share of `free` are tones of any pitch with a little noise."""
    length = times * PIECE
    clips = [world.sample(rng) for _ in range(size)]
    waves = sound.sound(world.Batch(clips, device), 224, 128)
    pieces = []
    for row in range(size):
        start = rng.randrange((waves.shape[2] - length) // sound.LATENT_SAMPLES + 1) * sound.LATENT_SAMPLES
        # A reference may start anywhere, so some pieces ignore the latents' grid.
        start += rng.randrange(sound.LATENT_SAMPLES) if rng.random() < free else 0
        start = min(start, waves.shape[2] - length)
        pieces.append(waves[row, rng.randrange(2), start : start + length])
    batch = torch.stack(pieces)
    count = int(size * free)
    if count:
        seconds = torch.arange(length, device=device) / sound.SAMPLE_RATE
        hertz = torch.tensor([[100 * 12 ** rng.random()] for _ in range(count)], device=device)
        level = torch.tensor([[rng.uniform(0.05, 0.5)] for _ in range(count)], device=device)
        second = torch.tensor([[rng.uniform(0, 0.6)] for _ in range(count)], device=device)
        angle = 2 * torch.pi * (hertz * seconds + torch.rand(count, 1, device=device))
        noise = torch.randn(count, length, device=device) * 0.004
        batch[:count] = (level * (torch.sin(angle) + second * torch.sin(2 * angle)) + noise).clamp(-1, 1)
    return batch[:, None]


def spectral_loss(decoded: Tensor, wave: Tensor) -> Tensor:
    """Distance of magnitudes at four resolutions: relative, and of their logarithms."""
    total = wave.new_zeros(())
    for size in _WINDOWS:
        window = torch.hann_window(size, device=wave.device)
        spectra = [
            torch.stft(x.squeeze(1), size, size // 4, window=window, return_complex=True).abs().clamp(min=_FLOOR)
            for x in (decoded, wave)
        ]
        ours, theirs = spectra
        total = total + (ours - theirs).norm() / theirs.norm() + (ours.log() - theirs.log()).abs().mean()
    return total / len(_WINDOWS)


def round_trip(vae: Any, wave: Tensor, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """The decoded piece and the KL a latent, from a sampled posterior."""
    posterior = vae.encode(wave, return_dict=False)[0]
    mean, logs = posterior.mean, posterior.logs.clamp(-15, 5)
    latents = mean + logs.exp() * torch.randn_like(mean)
    if noise:
        spread = mean.detach().std(dim=(0, 2), keepdim=True)
        latents = latents + noise * spread * torch.randn_like(mean) * torch.rand(len(mean), 1, 1, device=mean.device)
    kl = 0.5 * (mean.pow(2) + (2 * logs).exp() - 1 - 2 * logs).sum(1).mean()
    return vae.decode(latents, return_dict=False)[0], kl


@torch.no_grad()
def quality_db(vae: Any, wave: Tensor) -> float:
    """Signal-to-error ratio in dB of the posterior's mean, over a batch."""
    decoded = vae.decode(vae.encode(wave, return_dict=False)[0].mode(), return_dict=False)[0]
    return float(10 * torch.log10(wave.pow(2).sum() / (decoded - wave).pow(2).sum().clamp(min=1e-9)))


@torch.no_grad()
def statistics(vae: Any, wave: Tensor) -> dict[str, list[float]]:
    """`latents_mean` and `latents_std` for each channel."""
    mean = vae.encode(wave, return_dict=False)[0].mode().transpose(0, 1).flatten(1)
    return {"latents_mean": mean.mean(1).tolist(), "latents_std": mean.std(1).clamp(min=1e-3).tolist()}


def train(options: argparse.Namespace) -> None:
    """One stage, bounded by `options.minutes`."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s)
    torch.manual_seed(options.seed)
    vae = audio_vae().to(device)
    notes = stage.resume(options.resume, NAME, vae)
    steps = first = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    optimizer = torch.optim.AdamW(vae.parameters(), lr=options.lr, betas=(0.8, 0.98), weight_decay=0.0)
    average = stage.Average(vae, 0.998)
    check = sample_batch(random.Random(998), options.check, device, free=0.0)

    def finish() -> None:
        average.swap()
        quality = quality_db(vae, check)
        found = statistics(vae, check)
        stage.save(options.out, NAME, vae.state_dict(), {"steps": steps, "quality_db": quality, **found})
        average.swap()
        rate = (steps - first) / clock.elapsed_s
        print(f"{clock.elapsed_s:6.0f} s  step {steps}  held-out {quality:.2f} dB  {rate:.2f} steps/s", flush=True)

    while clock.running() and steps - first < options.max_steps:
        times = LONG if rng.random() < 0.1 else 1
        wave = sample_batch(rng, max(1, options.batch // times), device, options.free, times)
        stage.set_rate(optimizer, stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        optimizer.zero_grad(set_to_none=True)
        decoded, kl = round_trip(vae, wave, _NOISE)
        error = decoded - wave
        waveform = 10 * error.abs().mean() + 60 * error.pow(2).mean()
        loss = waveform + _SPECTRAL * spectral_loss(decoded, wave) + _KL * kl
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average.update()
        steps += 1
        if clock.due():
            finish()
    finish()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--check", type=int, default=48)
    parser.add_argument("--free", type=float, default=0.1, help="share of free tones, and of pieces off the grid")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--lr-end", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--max-steps", type=int, default=10**9)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
