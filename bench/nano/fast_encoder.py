"""The video encoder's forward for training: the module's own weights, with norm, activation and padding as one step.

Same arithmetic as diffusers' classes (tests compare them); knows their attribute names and nothing of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Activate = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]


def activate(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """Group norm of each frame by itself, SiLU, then the causal and reflecting pad of a 3x3x3 convolution."""
    batch, channels, frames, height, width = x.shape
    grouped = x.float().reshape(batch, groups, channels // groups, frames, height, width)
    variance, mean = torch.var_mean(grouped, dim=(2, 4, 5), correction=0, keepdim=True)
    normed = ((grouped - mean) * torch.rsqrt(variance + eps)).reshape(x.shape)
    normed = normed * weight[:, None, None, None] + bias[:, None, None, None]
    padded = pad(F.silu(normed).to(torch.bfloat16 if x.is_cuda else x.dtype))
    return padded.contiguous(memory_format=torch.channels_last_3d) if x.is_cuda else padded


def pad(x: Tensor) -> Tensor:
    """One pixel of reflection on each side and two empty frames before."""
    # Joined slices, because the gradient of a reflecting pad adds atomically, pixel by pixel.
    x = torch.cat((x[..., 1:2], x, x[..., -2:-1]), dim=-1)
    x = torch.cat((x[..., 1:2, :], x, x[..., -2:-1, :]), dim=-2)
    return F.pad(x, (0, 0, 0, 0, 2, 0))


def pad_end(x: Tensor) -> Tensor:
    """One pixel of reflection at the right and at the bottom, as the class pads a strided convolution."""
    x = torch.cat((x, x[..., -2:-1]), dim=-1)
    return torch.cat((x, x[..., -2:-1, :]), dim=-2)


def encode(encoder: Any, pixels: Tensor, activate: Activate = activate) -> Tensor:
    """What `encoder(pixels)` computes, for `(batch, 3, frames, height, width)` of at most one clip of 17 frames."""
    x = _convolve(encoder.conv_in, pad(pixels))
    for block in encoder.down_blocks:
        for resnet in block.resnets:
            residual = x if resnet.conv_shortcut is None else _convolve(resnet.conv_shortcut, x)
            hidden = _convolve(resnet.conv1, _normed(resnet.norm1, x, activate))
            x = residual + _convolve(resnet.conv2, _normed(resnet.norm2, hidden, activate))
        for down in block.downsamplers or ():
            x = pad_end(x) if down.spatial_stride == 2 else x
            x = _convolve(down.conv, F.pad(x, (0, 0, 0, 0, 2, 0)))
    return _convolve(encoder.conv_out, _normed(encoder.norm_out, x, activate))


def _normed(norm: Any, x: Tensor, activate: Activate) -> Tensor:
    return activate(x, norm.weight, norm.bias, norm.num_groups, norm.eps)


def _convolve(conv: Any, x: Tensor) -> Tensor:
    return F.conv3d(x, conv.weight, conv.bias, stride=conv.stride)
