"""The sampler of a training stage: diffusers' Euler steps on packed rows, decoded by the trained VAEs.

For judging a model while it trains, many clips at a time; the scores of record go through the program's own pipeline.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bench.nano import packing
from bench.nano.dataset import Encoders, Group, Shard
from bench.nano.train_video_vae import denormalize


@torch.no_grad()
def sample(
    model: Any, group: Group, shard: Shard, entries: Tensor, points: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Denoised target rows (video, audio) of `entries`; `points` sigma points, so one forward less."""
    targets, conditions, text = shard.batch(group, entries)
    device = text.device
    base = torch.linspace(1, 0, points)
    video, audio = (torch.randn(target.shape, generator=generator).to(device) for target in targets)
    seen = conditions[0]
    seen = packing.CONDITION_TIME * seen + (1 - packing.CONDITION_TIME) * torch.randn(
        seen.shape, generator=generator
    ).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for here, there in pairwise(base):
            times = packing.clip_times(here.expand(len(entries)).to(device))
            rows = torch.cat((seen, video), 1), torch.cat((conditions[1], audio), 1), text
            flow, audio_flow = packing.velocity(model, group.plan, rows, times)
            video = _step(video, flow[:, seen.shape[1] :], here, there, packing.VIDEO_SHIFT)
            audio = _step(audio, audio_flow[:, conditions[1].shape[1] :], here, there, packing.AUDIO_SHIFT)
    return video, audio


def _step(rows: Tensor, flow: Tensor, here: Tensor, there: Tensor, shift: float) -> Tensor:
    sigma, following = packing.shifted(here, shift), packing.shifted(there, shift)
    clean = rows + sigma * flow.float()
    ratio = following / sigma
    return ratio * rows + (1 - ratio) * clean


@torch.no_grad()
def decode(encoders: Encoders, shard: Shard, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
    """Frames `(batch, n, height, width, 3)` uint8 and waves `(batch, 2, samples)` of sampled rows, on the CPU."""
    width, height = shard.canvas
    frames = packing.latent_frames(shard.num_frames)
    latents = packing.unpack_video(video, frames, height // 16, width // 16)
    center, scale = (
        torch.tensor(values, device=video.device).view(1, -1, 1, 1, 1)
        for values in (encoders.vae.config.latents_mean, encoders.vae.config.latents_std)
    )
    with torch.autocast(video.device.type, torch.bfloat16, enabled=video.device.type == "cuda"):
        image = encoders.vae.decode(latents * scale + center, return_dict=False)[0]
    image = (denormalize(image.float()).clamp(0, 1) * 255).round().to(torch.uint8)
    sounds = packing.unpack_audio(audio)
    center, scale = (
        torch.tensor(values, device=audio.device).view(1, -1, 1)
        for values in (encoders.audio_vae.config.latents_mean, encoders.audio_vae.config.latents_std)
    )
    waves = encoders.audio_vae.decode(sounds.flatten(0, 1) * scale + center, return_dict=False)[0]
    return image.permute(0, 2, 3, 4, 1).cpu(), waves.squeeze(1).unflatten(0, (-1, 2)).float().cpu()
