"""The video encoder's forward for training: the module's own weights, rows of channels throughout, frames as a batch.

Same arithmetic as diffusers' classes (tests compare them); knows their attribute names and nothing of training.
A causal 3x3x3 convolution is one flat 3x3 convolution over the channels of three frames, a reflecting border is a zero
border with its four edges added, and norm and activation are one function that keeps its input alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Tensors here are `(batch, frames, height, width, channels)`, contiguous: a view of a flat channels-last image batch.


class _NormSilu(torch.autograd.Function):
    """Group norm of each frame by itself, then SiLU, of `(images, places, channels)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        count = x.shape[1] * x.shape[2] // groups
        total = _grouped(x.sum(1, dtype=exact), groups) / count
        square = _grouped(torch.linalg.vector_norm(x, dim=1, dtype=exact).square(), groups) / count
        mean = total.repeat_interleave(x.shape[2] // groups, 1)
        scale = (square - total.square()).clamp(min=0).add(eps).rsqrt().repeat_interleave(x.shape[2] // groups, 1)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.groups = groups
        return F.silu(_affine(x, weight, bias, mean, scale))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        grad = torch.ops.aten.silu_backward(grad.contiguous(), _affine(x, weight, bias, mean, scale))
        first = grad.sum(1, dtype=mean.dtype)
        second = scale * ((grad * x).sum(1, dtype=mean.dtype) - mean * first)  # with the normed x
        count = x.shape[1] * x.shape[2] // ctx.groups
        wide = x.shape[2] // ctx.groups
        about = _grouped(weight * first, ctx.groups).repeat_interleave(wide, 1) / count
        along = _grouped(weight * second, ctx.groups).repeat_interleave(wide, 1) / count
        slope = -scale.square() * along
        base = -scale * about - mean * slope
        partial = torch.addcmul(base.to(x.dtype)[:, None], x, slope.to(x.dtype)[:, None])
        result = torch.addcmul(partial, grad, (scale * weight).to(x.dtype)[:, None])
        return result, second.sum(0), first.sum(0), None, None


def _grouped(values: Tensor, groups: int) -> Tensor:
    return values.unflatten(1, (groups, -1)).sum(-1)


def _affine(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    factor = scale * weight
    return torch.addcmul((bias - mean * factor).to(x.dtype)[:, None], x, factor.to(x.dtype)[:, None])


class _AddEdges(torch.autograd.Function):
    """Adds to the outer columns and rows of images in place; its gradient is a view, not four copies."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, left: Tensor, right: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
        y[..., :1] += left
        y[..., -1:] += right
        y[..., :1, :] += top
        y[..., -1:, :] += bottom
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, grad[..., :1], grad[..., -1:], grad[..., :1, :], grad[..., -1:, :]


def encode(encoder: Any, pixels: Tensor) -> Tensor:
    """What `encoder(pixels)` computes, for `(batch, 3, frames, height, width)` of at most one clip of 17 frames."""
    dtype = torch.bfloat16 if pixels.is_cuda else pixels.dtype
    with torch.autocast(pixels.device.type, enabled=False):
        x = _causal(encoder.conv_in, pixels.permute(0, 2, 3, 4, 1).to(dtype).contiguous())
        for block in encoder.down_blocks:
            for resnet in block.resnets:
                residual = x if resnet.conv_shortcut is None else _pointwise(resnet.conv_shortcut, x)
                hidden = _causal(resnet.conv1, _normed(resnet.norm1, x))
                x = residual + _causal(resnet.conv2, _normed(resnet.norm2, hidden))
            for down in block.downsamplers or ():
                x = _causal(down.conv, x)
        x = _causal(encoder.conv_out, _normed(encoder.norm_out, x))
    return x.permute(0, 4, 1, 2, 3)


def _normed(norm: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1).flatten(1, 2)
    return _NormSilu.apply(flat, norm.weight, norm.bias, norm.num_groups, norm.eps).view_as(x)


def _images(x: Tensor) -> Tensor:
    """`(batch, frames, height, width, channels)` as images, without a copy."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)


def _rows(images: Tensor, batch: int) -> Tensor:
    return images.permute(0, 2, 3, 1).contiguous().unflatten(0, (batch, -1))


def _pointwise(conv: Any, x: Tensor) -> Tensor:
    return F.linear(x, conv.weight.flatten(1).to(x.dtype), conv.bias.to(x.dtype))


def _causal(conv: Any, x: Tensor) -> Tensor:
    """A 3x3x3 convolution with two empty frames before; reflecting, at the far sides alone where it has a stride."""
    stride, across = conv.stride[0], conv.stride[1]
    last = (x.shape[1] - 1) // stride * stride
    before = F.pad(x, (0, 0, 0, 0, 0, 0, 2, 0))
    taps = torch.cat([before[:, k : k + last + 1 : stride] for k in range(3)], dim=-1)
    # (out, in, 3, 3, 3) with the time taps beside each other as channels.
    weight = conv.weight.permute(0, 2, 1, 3, 4).flatten(1, 2).to(x.dtype)
    spare = -weight.shape[1] % 8  # the matrix units take channels by eight
    if spare:
        taps, weight = F.pad(taps, (0, spare)), F.pad(weight, (0, 0, 0, 0, 0, spare))
    weight = weight.contiguous(memory_format=torch.channels_last)
    bias = conv.bias.to(x.dtype)
    if across == 2:
        taps = torch.cat((taps, taps[..., -2:-1, :]), dim=-2)
        taps = torch.cat((taps, taps[..., -2:-1, :, :]), dim=-3)
        return _rows(F.conv2d(_images(taps), weight, bias, stride=2), len(x))
    inner = F.conv2d(_images(taps), weight, bias, padding=1)
    return _rows(_AddEdges.apply(inner, *_edges(taps, weight)), len(x))


def _edges(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a reflecting border adds to a zero border: to the left and right columns (corners too), top and bottom."""
    flat = x.flatten(0, 1)  # (images, height, width, channels)

    def along(line: Tensor, kernel: Tensor) -> Tensor:  # (images, length + 2, channels) -> (images, out, length)
        count = line.shape[1] - 2
        beside = torch.cat([line[:, k : k + count] for k in range(3)], dim=-1)
        return F.linear(beside, kernel.transpose(1, 2).flatten(1)).transpose(1, 2)

    def column(at: int, tap: int) -> Tensor:
        line = flat[:, :, at]
        return along(torch.cat((line[:, 1:2], line, line[:, -2:-1]), dim=1), weight[..., tap])[..., None]

    def row(at: int, tap: int) -> Tensor:
        return along(F.pad(flat[:, at], (0, 0, 1, 1)), weight[..., tap, :])[..., None, :]

    return column(1, 0), column(-2, 2), row(1, 0), row(-2, 2)
