"""Packed sequences for training: diffusers' own layouts, and a forward in which each clip of a batch has its own times.

The stock forward takes one plan of timesteps a batch; this is the same arithmetic with a table a clip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
)
from torch import Tensor

PATCH_SIZE = (1, 2, 2)
TEXT_TAG, VIDEO_TAG, AUDIO_TAG = 1, 0, 2
MODALITIES = 3
VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0  # the release's scheduler configs
CONDITION_TIME = 0.999
# Columns of a clip's times: target video and text, target audio, visual condition, audio reference.
ROLES = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout on one device; `adaln` is the row of the table (time * 3 + tag) for each row of the sequence."""

    rotary: tuple[Tensor, Tensor]  # cos, sin (rows, rotated channels)
    adaln: Tensor  # (rows, ROLES * MODALITIES) one-hot
    times: Tensor  # (rows, ROLES) one-hot
    video: Tensor
    audio: Tensor
    text: Tensor
    condition_video: int
    condition_audio: int


def keyframe_plan(
    rope: Any,
    tags: tuple[int, ...],
    canvas: tuple[int, int],
    num_frames: int,
    anchors: tuple[str, ...],
    device: torch.device,
) -> Plan:
    """Layout of `t2va` (no anchors) or `fl2va`; `canvas` is (width, height) in pixels."""
    packed = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        torch.tensor(tags), *_shape(canvas, num_frames), PATCH_SIZE, 2, AUDIO_TAG, VIDEO_TAG, anchors
    )
    return _plan(rope, packed, device)


def reference_plan(
    rope: Any,
    tags: tuple[int, ...],
    canvas: tuple[int, int],
    num_frames: int,
    references: tuple[tuple[str, tuple[int, int, int] | None, int], ...],
    device: torch.device,
) -> Plan:
    """Layout of `ref2va`; a reference is (kind, latent frames, height, width or None, audio rows or 0)."""
    described = [SimpleNamespace(kind=kind, has_audio=rows > 0) for kind, _, rows in references]
    visual = [torch.empty(1, 24, *shape, device="meta") for _, shape, _ in references if shape is not None]
    heard = [torch.empty(rows, 32, device="meta") for _, _, rows in references if rows]
    packed = MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
        torch.tensor(tags), described, visual, heard, *_shape(canvas, num_frames), PATCH_SIZE, 2, AUDIO_TAG, VIDEO_TAG
    )  # fmt: skip
    return _plan(rope, packed, device)


def latent_frames(num_frames: int) -> int:
    """5n + 2 latents for 17n + 5 frames: h3-facts 2."""
    return (num_frames - 5) // 17 * 5 + 2


def audio_latents(num_frames: int) -> int:
    """Audio latents a channel: h3-facts 2."""
    return round(num_frames / 24 * 40)


def _shape(canvas: tuple[int, int], num_frames: int) -> tuple[int, int, int, int]:
    width, height = canvas
    return latent_frames(num_frames), height // 16, width // 16, audio_latents(num_frames)


def _plan(rope: Any, packed: tuple[Any, ...], device: torch.device) -> Plan:
    positions, tags, video, audio, text, condition_video, condition_audio = packed
    role = torch.zeros(len(tags), dtype=torch.long)
    role[audio] = 1
    role[video[:condition_video]] = 2
    role[audio[:condition_audio]] = 3
    cos, sin = rope(positions.to(device=device, dtype=torch.float32))
    return Plan(
        rotary=(cos, sin),
        adaln=F.one_hot(role * MODALITIES + tags, ROLES * MODALITIES).to(device, torch.float32),
        times=F.one_hot(role, ROLES).to(device, torch.float32),
        video=video.to(device),
        audio=audio.to(device),
        text=text.to(device),
        condition_video=condition_video,
        condition_audio=condition_audio,
    )


def shifted(base: Tensor, shift: float) -> Tensor:
    """The scheduler's sigma for points `base` of its 1-to-0 grid."""
    return shift * base / (1 + (shift - 1) * base)


def clip_times(base: Tensor) -> Tensor:
    """Times `(batch, ROLES)` at grid points `base` `(batch,)`; video and audio share a point, as in a sampler."""
    video = 1 - shifted(base, VIDEO_SHIFT)
    audio = 1 - shifted(base, AUDIO_SHIFT)
    return torch.stack((video, audio, video.clamp(min=CONDITION_TIME), torch.ones_like(video)), dim=1)


Block = Callable[..., Tensor]


def modulated_block(block: Any, hidden: Tensor, table: Tensor, adaln: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One transformer block; `table` is each clip's modulation, `(batch, ROLES * MODALITIES, 6 * hidden)`.

    The rows' modulation is a product with a one-hot matrix: a gather's gradient would collide in twelve rows.
    """
    rows = adaln.to(table.dtype) @ table
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = rows.chunk(6, dim=-1)
    normed = block.norm1(hidden) * (1 + scale_msa) + shift_msa
    hidden = hidden + gate_msa * block.attn(normed, (cos, sin))
    normed = block.norm2(hidden) * (1 + scale_mlp) + shift_mlp
    return hidden + gate_mlp * block.ff(normed)


def velocity(
    model: Any, plan: Plan, rows: tuple[Tensor, Tensor, Tensor], times: Tensor, block: Block = modulated_block
) -> tuple[Tensor, Tensor]:
    """Velocities of all video and audio rows, conditions included.

    `rows` are video `(batch, n, 96)`, audio `(batch, n, 32)` and text `(batch, n, text_dim)`; `times` `(batch, ROLES)`.
    """
    video, audio, text = rows
    batch = len(video)
    # What the release keeps in float32 stays there under autocast as well.
    exact = partial(torch.autocast, video.device.type, enabled=False)
    with exact():
        video_embeds = model.proj_in(video.float())
        audio_embeds = model.audio_proj_in(audio.float())
        temb = model.time_embedder(model.time_proj(times.reshape(-1)))
    text_embeds = model.token_refiner(model.context_embedder(text.to(model.context_embedder.weight.dtype)))
    count = plan.adaln.shape[0]
    hidden = text_embeds.new_zeros((batch, count, text_embeds.shape[-1]))
    hidden = hidden.index_copy(1, plan.text, text_embeds)
    hidden = hidden.index_copy(1, plan.video, video_embeds.to(hidden.dtype))
    hidden = hidden.index_copy(1, plan.audio, audio_embeds.to(hidden.dtype))
    active = F.silu(temb)
    for layer in model.transformer_blocks:
        # (batch * ROLES, 3 * 6 * hidden) read as (batch, ROLES * 3, 6 * hidden), the class's own row order.
        table = layer.adaln_proj.linear(active).view(batch, ROLES * MODALITIES, -1)
        hidden = block(layer, hidden, table, plan.adaln, *plan.rotary)
    final = model.norm_out.linear(active).view(batch, ROLES, -1)
    shift, scale = (plan.times.to(final.dtype) @ final).chunk(2, dim=-1)
    hidden = model.norm_out.norm(hidden) * (1 + scale) + shift
    with exact():
        return (
            model.proj_out(hidden.index_select(1, plan.video).float()),
            model.audio_proj_out(hidden.index_select(1, plan.audio).float()),
        )


def pack_video(latents: Tensor) -> Tensor:
    """Latents `(batch, 24, frames, height, width)` to rows `(batch, n, 96)`, the order of diffusers' patchify."""
    batch, channels, frames, height, width = latents.shape
    grid = latents.reshape(batch, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    return grid.reshape(batch, -1, channels * 4)


def unpack_video(rows: Tensor, frames: int, height: int, width: int) -> Tensor:
    """The inverse of `pack_video`; height and width in latents."""
    grid = rows.reshape(len(rows), frames, height // 2, width // 2, -1, 2, 2).permute(0, 4, 1, 2, 5, 3, 6)
    return grid.reshape(len(rows), -1, frames, height, width)


def pack_audio(latents: Tensor) -> Tensor:
    """Latents `(batch, 2, 32, n)` to channel-major rows `(batch, 2 n, 32)`."""
    return latents.permute(0, 1, 3, 2).reshape(len(latents), -1, latents.shape[2])


def unpack_audio(rows: Tensor) -> Tensor:
    """The inverse of `pack_audio`."""
    return rows.reshape(len(rows), 2, -1, rows.shape[-1]).permute(0, 1, 3, 2)
