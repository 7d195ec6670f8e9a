"""Sizes of the tiny model's parts, in diffusers' own classes: at most 40 MB in all, and fast enough for two CPU cores.

What must match the release (latent factors, clip length, rotary share, schedules) stays at the classes' defaults.
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
        for module in vae.encoder.modules():
            if isinstance(module, nn.Conv3d):
                module.weight.normal_(0.0, module.weight[0].numel() ** -0.5)
                module.bias.zero_()
        # The class starts its layer scales and registers at 0, which leaves the blocks out of the first steps.
        for name, parameter in vae.decoder.named_parameters():
            if name.endswith(("scale1", "scale2")):
                parameter.fill_(0.3)
            elif name.endswith("register_tokens"):
                parameter.normal_(0.0, 0.02)
        _quiet_posterior(vae.quant_conv.weight, vae.quant_conv.bias)
        vae.decoder.proj_in.weight.normal_(0.0, vae.decoder.proj_in.in_features**-0.5)
        vae.decoder.proj_out.weight.mul_(0.3)
        vae.decoder.proj_out.bias.fill_(-1.2)  # the world is dark: about the mean of its pixels in the VAE's space
    return vae


def _quiet_posterior(weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Mean and log variance from one projection: noise of deviation 1 would hide the picture until late."""
    half = weight.shape[0] // 2
    weight.normal_(0.0, weight.shape[1] ** -0.5)
    weight[half:] = 0.0
    bias.zero_()
    bias[half:] = -6.0


def audio_vae(**statistics: list[float]) -> AutoencoderKLMiniMaxH3Audio:
    """The audio VAE with fresh weights that keep a signal's size: by default 13 layers shrink it to nothing."""
    vae = AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE, **statistics)
    with torch.no_grad():
        for name, module in vae.named_modules():
            if hasattr(module, "weight_v"):
                inputs = module.in_channels * module.kernel_size[0]
                if isinstance(module, nn.ConvTranspose1d):
                    inputs /= module.stride[0]  # so many taps meet in one output sample
                # Branches of residual units start small, so that the straight way leads.
                branch = 0.3 if ".convs2." in name or name.endswith(".block.3") else 1.0
                module.weight_v.normal_(0.0, branch * inputs**-0.5)
                module.weight_g.copy_(module.weight_v.flatten(1).norm(dim=1).view_as(module.weight_g))
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Linear | nn.Conv1d):
                module.weight.normal_(0.0, module.weight[0].numel() ** -0.5)
        vae.decoder.conv_post.weight_g.mul_(0.2)
        vae.logs_proj.weight.zero_()
        vae.logs_proj.bias.fill_(-3.0)  # a quiet posterior, as the video VAE's
    return vae


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
    kept = released_state(model)
    for name, parameter in model.named_parameters():
        parameter.data = kept[name]
    return model


def released_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's state in the types of the release, `model` untouched."""
    pinned = tuple(model._keep_in_fp32_modules or ())  # type: ignore[arg-type, operator]
    parameters = {name for name, _ in model.named_parameters()}
    return {
        name: value.to(torch.bfloat16)
        if name in parameters and not any(part in name.split(".") for part in pinned)
        else value
        for name, value in model.state_dict().items()
    }
