"""Latents to frames and sound, chunk by chunk: no float tensor ever holds the whole clip.

Replaces diffusers' decode blocks and mirrors `AutoencoderKLMiniMaxH3._decode`: overlap, cross-fade and pad rules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from diffusers.models.modeling_utils import get_parameter_dtype
from torch import Tensor

from backend.h3.seams import stock_to_host
from backend.types import AUDIO_SAMPLE_RATE, FPS

AUDIO_CHUNK = 60  # latents (1.5 s) decoded together, beside their context
# Samples on each side that one anti-aliased activation reads: 12 taps up and 12 taps down, at twice the rate.
_ACTIVATION_REACH = 6


def count_frames(vae: Any, num_latent_frames: int) -> int:
    """Frames that `num_latent_frames` latents decode to: `17 n + 5` for `5 n + 2`."""
    num_chunks, pad_tokens = _chunks(vae, num_latent_frames)
    kept = frames_of_a_clip(vae)
    overlap = vae.frame_overlap if vae.config.token_drop > 0 else 0
    return num_chunks * kept + overlap - _pad_frames(vae, num_latent_frames, pad_tokens)


def frames_of_a_clip(vae: Any) -> int:
    """Frames that a clip adds to the video."""
    return vae.tokens_chunk_size * vae.temporal_compression_ratio - vae.frame_pre_padding


@torch.no_grad()
def video_chunks(
    vae: Any,
    latents: Tensor,
    decode_clip: Callable[[Any, Tensor], Tensor],
    to_host: Callable[[Iterable[Tensor]], Iterator[Tensor]] = stock_to_host,
) -> Iterator[Tensor]:
    """Decode normalized latents (1, 24, T, h, w); yields uint8 CPU chunks (n, 16 h, 16 w, 3) in order.

    Equals rounding the frames that diffusers' pipeline gives for the same latents.
    """
    yield from to_host(_uint8_chunks(vae, latents, decode_clip))


def _uint8_chunks(vae: Any, latents: Tensor, decode_clip: Callable[[Any, Tensor], Tensor]) -> Iterator[Tensor]:
    remaining = count_frames(vae, latents.shape[2])
    # Made before the first chunk: a tensor copied from the host waits for everything that was started before it.
    mean = torch.tensor((0.485, 0.456, 0.406), device=latents.device).view(1, -1, 1, 1, 1)  # components.pixel_mean
    std = torch.tensor((0.229, 0.224, 0.225), device=latents.device).view(1, -1, 1, 1, 1)  # components.pixel_std
    for chunk in _float_chunks(vae, _denormalized(vae, latents), decode_clip):
        chunk = chunk[:, :, :remaining]  # frames decoded from repeated latents are not wanted
        remaining -= chunk.shape[2]
        if chunk.shape[2]:
            yield _to_uint8(chunk, mean, std)


@torch.no_grad()
def clips(vae: Any, latents: Tensor) -> Iterator[Tensor]:
    """What `video_chunks` decodes, clip by clip, (1, 24, t, h, w): for a rank that helps the one which calls that."""
    yield from _clips(vae, _denormalized(vae, latents))


@torch.no_grad()
def audio_chunks(audio_vae: Any, audio_latents: Tensor) -> Iterator[Tensor]:
    """Decode normalized audio latents (2, 32, A); yields float32 CPU chunks (2, samples), 800 samples a latent."""
    latents = _denormalized(audio_vae, audio_latents)
    hop, count, context = audio_vae.hop_length, latents.shape[-1], audio_context(audio_vae)
    for start in audio_chunk_starts(count):
        stop = min(start + AUDIO_CHUNK, count)
        left, right = max(0, start - context), min(count, stop + context)
        samples = audio_vae.decode(latents[..., left:right], return_dict=False)[0]
        yield samples[:, 0, (start - left) * hop : (stop - left) * hop].float().cpu()


def audio_chunk_starts(count: int) -> range:
    """Where the chunks of `count` audio latents begin."""
    return range(0, count, AUDIO_CHUNK)


def audio_ahead(vae: Any, audio_vae: Any, count: int) -> Iterator[int]:
    """For each clip, how many more chunks of `count` audio latents must be decoded to be heard with its frames."""
    seconds = AUDIO_CHUNK * audio_vae.hop_length / AUDIO_SAMPLE_RATE
    chunks = len(audio_chunk_starts(count))
    had = 0
    for clip in itertools.count(1):
        wanted = min(chunks, math.ceil(clip * frames_of_a_clip(vae) / FPS / seconds))
        yield wanted - had
        had = wanted


def audio_context(audio_vae: Any) -> int:
    """Latents on each side that a decoded sample can depend on: the decoder is convolutions only, so they are few.

    Summed over its layers (33 for the release): 3 for `conv_pre`, and at each rate the upsampler's kernel and the
    widest residual block, whose convolutions are padded by `d (k - 1) / 2` and each follow an activation.
    """
    config = audio_vae.config
    widest = max(
        sum((dilation + 1) * (kernel - 1) // 2 + 2 * _ACTIVATION_REACH for dilation in dilations)
        for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
    )
    rate, reach = 1, 3.0
    for factor, kernel in zip(config.decoder_rates, config.decoder_kernel_sizes, strict=True):
        reach += kernel / factor / rate
        rate *= factor
        reach += widest / rate
    return math.ceil(reach + (_ACTIVATION_REACH + 3) / rate)


def _denormalized(vae: Any, latents: Tensor) -> Tensor:
    shape = (1, -1, *[1] * (latents.ndim - 2))
    mean = torch.tensor(vae.config.latents_mean, device=latents.device).view(shape)
    std = torch.tensor(vae.config.latents_std, device=latents.device).view(shape)
    return latents * std + mean


def _float_chunks(vae: Any, latents: Tensor, decode_clip: Callable[[Any, Tensor], Tensor]) -> Iterator[Tensor]:
    """`_decode` of diffusers as a generator: chunks (1, 3, n, H, W) in the VAE's own pixel space."""
    frames = vae.tokens_chunk_size * vae.temporal_compression_ratio  # decoded from one chunk of latents
    overlap: Tensor | None = None
    for z in _clips(vae, latents):
        clip = decode_clip(vae, z)
        chunk = clip[:, :, :frames][:, :, vae.frame_pre_padding :]
        if overlap is not None:
            chunk = vae._blend(overlap, chunk, vae.frame_overlap, dim=-3)
        if vae.config.token_drop > 0:
            # A copy, so that the clip it is cut from can be freed before the next one is decoded.
            overlap = clip[:, :, frames : 2 * frames][:, :, vae.frame_pre_padding :].clone()
        del clip
        yield chunk
    if overlap is not None:
        yield overlap


def _clips(vae: Any, latents: Tensor) -> Iterator[Tensor]:
    """Overlapping clips of denormalized latents in the decoder's type, the last one filled up with the last latent."""
    z = latents.to(get_parameter_dtype(vae.post_quant_conv))
    num_chunks, pad_tokens = _chunks(vae, z.shape[2])
    if pad_tokens > 0:
        z = torch.cat([z, z[:, :, -1:].repeat(1, 1, pad_tokens, 1, 1)], dim=2)
    for start in range(0, num_chunks * vae.tokens_chunk_size, vae.tokens_chunk_size):
        yield z[:, :, start : start + vae.tokens_chunk_size + vae.token_overlap]


def _chunks(vae: Any, num_latent_frames: int) -> tuple[int, int]:
    """(number of clips, latents to repeat at the end) for a latent length, as `_decode` counts them."""
    num_tokens = num_latent_frames + vae.config.token_drop
    pad_tokens = -num_tokens % vae.tokens_chunk_size
    return (num_tokens + pad_tokens) // vae.tokens_chunk_size - int(vae.config.token_drop > 0), pad_tokens


def _pad_frames(vae: Any, num_latent_frames: int, pad_tokens: int) -> int:
    """Frames that come of repeated latents: a chunk's last latent covers `clip_length % ratio` of them, if not 0."""
    ratio = vae.temporal_compression_ratio
    tail = vae.config.clip_length % ratio or ratio
    ends = ((num_latent_frames + extra) % vae.tokens_chunk_size == 0 for extra in range(pad_tokens))
    return sum(tail if end else ratio for end in ends)


def _to_uint8(chunk: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(1, 3, n, H, W) ImageNet-normalized to uint8 (n, H, W, 3) on the same device, rounded as PIL output is."""
    pixels = (chunk.float() * std + mean).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return pixels[0].permute(1, 2, 3, 0).contiguous()
