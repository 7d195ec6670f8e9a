"""Sizes of the tiny model's parts, in diffusers' own classes: at most 40 MB in all, and fast enough for two CPU cores.

Everything that must match the release (latent factors, clip length, rotary share, schedules) stays at the classes' defaults.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from torch import nn

TEXT_DIM = 64
TEXT_LAYERS = 52  # more than 50: conditioning is the hidden state after layer 50
TEXT_LAYER = 50

# The encoder is pinned to float32 by its class, so its widths count double; the decoder is stored in bfloat16.
VIDEO_VAE: dict[str, Any] = {
    "block_out_channels": (8, 24, 32, 48, 48, 40),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "decoder_num_layers": 5,
    "decoder_num_attention_heads": 4,
    "decoder_attention_head_dim": 64,
    "decoder_ffn_mult": 2,
}
# All of it is pinned to float32.
AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 4,
    "latent_dim": 64,
    "num_attention_heads": 4,
    "decoder_dim": 256,
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),),
}
TRANSFORMER: dict[str, Any] = {
    "num_attention_heads": 4,
    "attention_head_dim": 64,
    "hidden_size": 256,
    "num_layers": 6,
    "num_refiner_layers": 1,
    "ffn_dim": 512,
    "text_dim": TEXT_DIM,
    "freq_dim": 128,
    "time_embed_hidden_dim": 128,
    "time_embed_dim": 32,
    "rope_freq_dim": 8,  # 48 of 64 channels rotate, as 96 of 128 do in the release
}


def video_vae(**statistics: list[float]) -> AutoencoderKLMiniMaxH3:
    """The video VAE with fresh weights; `statistics` are `latents_mean` and `latents_std`."""
    vae = AutoencoderKLMiniMaxH3(**VIDEO_VAE, **statistics)
    with torch.no_grad():
        # The class starts its layer scales and registers at 0, which leaves the decoder's blocks out of the first steps.
        for name, parameter in vae.named_parameters():
            if name.endswith(("scale1", "scale2")):
                parameter.fill_(0.3)
            elif name.endswith("register_tokens"):
                parameter.normal_(0.0, 0.02)
    return vae


def audio_vae(**statistics: list[float]) -> AutoencoderKLMiniMaxH3Audio:
    """The audio VAE with fresh weights."""
    return AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE, **statistics)


def transformer() -> MiniMaxH3Transformer3DModel:
    """A transformer with fresh weights: gates and heads at 0, so that it starts as a velocity of 0."""
    model = MiniMaxH3Transformer3DModel(**TRANSFORMER)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adaln_proj" in name or name.startswith(("proj_out", "audio_proj_out", "norm_out.linear")):
                parameter.zero_()
            elif parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
        for block in model.transformer_blocks:
            # A gate of exactly 0 in front of trained weights learns late; a small one learns at once.
            gates = block.adaln_proj.linear.bias.view(3, 6, -1)
            gates[:, (2, 5)] = 0.2
            block.adaln_proj.linear.weight.normal_(0.0, 0.02)
    return model


def released_dtypes(model: nn.Module) -> nn.Module:
    """`model` as the release stores it: float32 where its class pins it, bfloat16 elsewhere; in place."""
    pinned = tuple(model._keep_in_fp32_modules or ())  # type: ignore[arg-type, operator]
    for name, parameter in model.named_parameters():
        if not any(part in name.split(".") for part in pinned):
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def stored_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and persistent buffers as they are now."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
