"""Train the audio VAE on pieces of one channel: the world's sounds, and some free tones so that others pass too.

`python -m bench.nano.train_audio_vae --out FOLDER [--resume FOLDER] --minutes 3` writes `audio_vae.safetensors`:
averaged weights, with the latents' statistics in its notes. `--freeze-encoder` keeps the latents,
as the video VAE's does.
"""

from __future__ import annotations

import argparse
import math
import random
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
# A click is over within 25 ms and adds next to nothing to the other losses: the first weights left each out. So
# half of the sounds bounce, a share of the pieces holds a click, and its band is compared by itself.
_CLICK_WINDOWS = (128, 256, 512)
_CLICK_BAND_HZ = 2200.0  # the tones' overtones end below
_NOISE = 0.05  # of the latents' own size, as the video VAE's


class Pool:
    """Channels of whole clips' sounds on the GPU, and pieces of them; drawn from `rng`."""

    def __init__(self, rng: random.Random, clips: int, device: torch.device) -> None:
        self._device = device
        parts = []
        clicks: list[tuple[int, int]] = []
        for start in range(0, clips, 64):
            some = [
                world.sample(rng, **({"motion": world.MOTIONS.index("bounce")} if rng.random() < 0.5 else {}))
                for _ in range(min(64, clips - start))
            ]
            parts.append(sound.sound(world.Batch(some, device), 224, 128).flatten(0, 1))
            for index, clip in enumerate(some):
                clicks += [(2 * (start + index) + side, at) for side in (0, 1) for at in sound.click_latents(clip)]
        self._waves = torch.cat(parts)
        self._clicks = torch.tensor(clicks, device=device).reshape(-1, 2)  # (channel's row, latent)

    def batch(self, size: int, free: float = 0.1, times: int = 1, clicks: float = 0.0) -> Tensor:
        """Pieces `(size, 1, times * PIECE)` within -1..1; a share of `free` are tones of any pitch with a little noise.

        As many again start anywhere, as a reference may; the others on the latents' grid, a share of `clicks` of all
        around a click.
        """
        device, length = self._device, times * PIECE
        count, long = self._waves.shape

        def uniform(rows: int, low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(rows, 1, device=device)

        start = torch.randint((long - length) // sound.LATENT_SAMPLES, (size, 1), device=device) * sound.LATENT_SAMPLES
        off = torch.randint(sound.LATENT_SAMPLES, (size, 1), device=device)
        start = start + torch.where(uniform(size, 0, 1) < free, off, 0)
        row = torch.randint(count, (size, 1), device=device)
        if len(self._clicks) and clicks:
            chosen = self._clicks[torch.randint(len(self._clicks), (size,), device=device)]
            before = torch.randint(length // sound.LATENT_SAMPLES, (size, 1), device=device)
            around = (chosen[:, 1:] - before) * sound.LATENT_SAMPLES
            # From the end, since free tones replace the beginning.
            some = torch.arange(size, device=device)[:, None] >= size - int(size * clicks)
            start = torch.where(some, around.clamp(0, long - length), start)
            row = torch.where(some, chosen[:, :1], row)
        batch = self._waves.flatten()[row * long + start + torch.arange(length, device=device)]
        tones = int(size * free)
        if tones:
            seconds = torch.arange(length, device=device) / sound.SAMPLE_RATE
            angle = 2 * torch.pi * (100 * 12 ** uniform(tones, 0, 1) * seconds + uniform(tones, 0, 1))
            wave = torch.sin(angle) + uniform(tones, 0, 0.6) * torch.sin(2 * angle)
            noise = torch.randn(tones, length, device=device) * 0.004
            batch[:tones] = (uniform(tones, 0.05, 0.5) * wave + noise).clamp(-1, 1)
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


def click_loss(decoded: Tensor, wave: Tensor) -> Tensor:
    """Relative distance of magnitudes in the clicks' band, by short windows."""
    total = wave.new_zeros(())
    for size in _CLICK_WINDOWS:
        window = torch.hann_window(size, device=wave.device)
        low = math.ceil(_CLICK_BAND_HZ * size / sound.SAMPLE_RATE)
        ours, theirs = (
            torch.view_as_real(torch.stft(x.squeeze(1), size, size // 4, window=window, return_complex=True)[:, low:])
            .pow(2).sum(-1).add(1e-6).sqrt()
            for x in (decoded, wave)
        )  # fmt: skip
        total = total + (ours - theirs).norm() / theirs.norm()
    return total / len(_CLICK_WINDOWS)


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
    """One stage, bounded by `options.minutes` and `options.deadline`."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s, options.deadline)
    torch.manual_seed(options.seed)
    vae = audio_vae().to(device)
    notes = stage.resume(options.resume, NAME, vae)
    steps = first = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark_limit = 4
    if options.freeze_encoder:
        for part in (vae.encoder, vae.pre_block, vae.mean_proj, vae.logs_proj):
            part.requires_grad_(False)
    trained = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    descent = stage.Descent(vae, 0.998, (0.8, 0.98), 0.0)
    check = Pool(random.Random(998), options.check, device).batch(options.check, free=0.0)
    pool = Pool(rng, options.pool, device)
    print(f"{clock.elapsed_s:6.0f} s  {options.pool} sounds drawn", flush=True)

    def work(wave: Tensor) -> tuple[Tensor, ...]:
        decoded, kl = round_trip(vae, wave, _NOISE)
        error = decoded - wave
        waveform = 10 * error.abs().mean() + 60 * error.pow(2).mean()
        clicks = click_loss(decoded, wave)
        (waveform + _SPECTRAL * spectral_loss(decoded, wave) + options.click_weight * clicks + _KL * kl).backward()
        return error.detach().pow(2).mean() / wave.pow(2).mean(), clicks.detach()

    recorded: dict[int, stage.Step] = {}
    ratios: list[Tensor] = []

    def finish() -> None:
        descent.average.swap()
        descent.clear()
        quality = quality_db(vae, check)
        found = statistics(vae, check)
        if options.freeze_encoder and "latents_mean" in notes:
            found = {key: notes[key] for key in found}
        stage.save(options.out, NAME, vae.state_dict(), {"steps": steps, "quality_db": quality, **found})
        descent.average.swap()
        ratio, click = torch.stack(ratios).mean(0) if ratios else torch.ones(2)
        rate = (steps - first) / clock.elapsed_s
        spread = found["latents_std"]
        print(
            f"{clock.elapsed_s:6.0f} s  step {steps}  train {-10 * torch.log10(ratio):.2f} dB  clicks {click:.3f}"
            f"  held-out {quality:.2f} dB  {rate:.2f} steps/s  deviation {min(spread):.2f} to {max(spread):.2f}",
            flush=True,
        )

    while clock.running() and steps - first < options.max_steps:
        times = LONG if rng.random() < 0.1 else 1
        wave = pool.batch(max(1, options.batch // times), options.free, times, options.clicks)
        if times not in recorded:
            recorded[times] = stage.Step(f"pieces of {wave.shape[-1]} samples", work, trained, [wave])
        ratio, click = recorded[times](wave)
        descent.step(stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        ratios = [*ratios[-49:], torch.stack((ratio, click))]
        steps += 1
        if clock.due():
            finish()
    finish()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    stage.common_options(parser, minutes=3.0)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--pool", type=int, default=3000, help="clips whose sounds are in memory: 1.1 MB each")
    parser.add_argument("--check", type=int, default=48)
    parser.add_argument("--free", type=float, default=0.1, help="share of free tones, and of pieces off the grid")
    # At 1 or less a model that leaves clicks out still does so after 2,000 steps; at 10 it finds them within 75, loses
    # its tones, and learns them again at 1.
    parser.add_argument("--click-weight", type=float, default=1.0, help="of the clicks' band in the loss")
    parser.add_argument("--clicks", type=float, default=0.4, help="share of pieces around a click")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--lr-end", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--freeze-encoder", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
