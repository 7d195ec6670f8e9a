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
        mean = _spread(total, x.shape[2])
        scale = _spread((square - total.square()).clamp(min=0).add(eps).rsqrt(), x.shape[2])
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
        about = _spread(_grouped(weight * first, ctx.groups), x.shape[2]) / count
        along = _spread(_grouped(weight * second, ctx.groups), x.shape[2]) / count
        slope = -scale.square() * along
        base = -scale * about - mean * slope
        partial = torch.addcmul(base.to(x.dtype)[:, None], x, slope.to(x.dtype)[:, None])
        result = torch.addcmul(partial, grad, (scale * weight).to(x.dtype)[:, None])
        return result, second.sum(0), first.sum(0), None, None


def _grouped(values: Tensor, groups: int) -> Tensor:
    return values.unflatten(1, (groups, -1)).sum(-1)


def _spread(values: Tensor, channels: int) -> Tensor:
    return values[:, :, None].expand(-1, -1, channels // values.shape[1]).flatten(1)


def _affine(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    factor = scale * weight
    return torch.addcmul((bias - mean * factor).to(x.dtype)[:, None], x, factor.to(x.dtype)[:, None])


class _Taps(torch.autograd.Function):
    """The channels of three frames beside each other, empty before the first; `spare` more are 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, spare: int) -> Tensor:
        batch, frames, height, width, channels = x.shape
        ctx.shape, ctx.stride = x.shape, stride
        taps = x.new_zeros((batch, (frames - 1) // stride + 1, height, width, 3 * channels + spare))
        for tap, source, since in _tap_slices(frames, stride):
            taps[:, since:, ..., tap * channels : (tap + 1) * channels] = x[:, source]
        return taps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        result, channels = grad.new_zeros(ctx.shape), ctx.shape[-1]
        for tap, source, since in _tap_slices(ctx.shape[1], ctx.stride):
            result[:, source] += grad[:, since:, ..., tap * channels : (tap + 1) * channels]
        return result, None, None


def _tap_slices(frames: int, stride: int) -> list[tuple[int, slice, int]]:
    """For each tap: the frames it reads, and the first output that has one."""
    found = []
    for tap in range(3):
        since = -((tap - 2) // stride)  # ceil((2 - tap) / stride)
        if since <= (frames - 1) // stride:
            last = (frames - 1) // stride * stride + tap - 2
            found.append((tap, slice(since * stride + tap - 2, last + 1, stride), since))
    return found


class _TakeEdges(torch.autograd.Function):
    """Rows of images as they are, and copies of the lines one within each side; gradients meet in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.view_as(x), x[:, :, 1].clone(), x[:, :, -2].clone(), x[:, 1].clone(), x[:, -2].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, left: Tensor, right: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
        # A convolution made this gradient for nobody else.
        grad[:, :, 1] += left
        grad[:, :, -2] += right
        grad[:, 1] += top
        grad[:, -2] += bottom
        return grad


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


def _pointwise(conv: Any, x: Tensor) -> Tensor:
    return F.linear(x, conv.weight.flatten(1).to(x.dtype), conv.bias.to(x.dtype))


def _causal(conv: Any, x: Tensor) -> Tensor:
    """A 3x3x3 convolution with two empty frames before; reflecting, at the far sides alone where it has a stride."""
    # (out, in, 3, 3, 3) with the time taps beside each other as channels.
    weight = conv.weight.permute(0, 2, 1, 3, 4).flatten(1, 2).to(x.dtype)
    spare = -weight.shape[1] % 8  # the matrix units take channels by eight
    if spare:
        weight = F.pad(weight, (0, 0, 0, 0, 0, spare))
    weight = weight.contiguous(memory_format=torch.channels_last)
    bias = conv.bias.to(x.dtype)
    taps = _Taps.apply(x, conv.stride[0], spare).flatten(0, 1)  # (images, height, width, channels)
    if conv.stride[1] == 2:
        taps = torch.cat((taps, taps[:, :, -2:-1]), dim=2)
        taps = torch.cat((taps, taps[:, -2:-1]), dim=1)
        result = F.conv2d(taps.permute(0, 3, 1, 2), weight, bias, stride=2)
    else:
        taps, left, right, top, bottom = _TakeEdges.apply(taps)
        result = F.conv2d(taps.permute(0, 3, 1, 2), weight, bias, padding=1)
        result = _AddEdges.apply(
            result,
            _along(_reflected(left), weight[..., 0])[..., None],
            _along(_reflected(right), weight[..., 2])[..., None],
            _along(F.pad(top, (0, 0, 1, 1)), weight[..., 0, :])[..., None, :],
            _along(F.pad(bottom, (0, 0, 1, 1)), weight[..., 2, :])[..., None, :],
        )
    return result.permute(0, 2, 3, 1).contiguous().unflatten(0, (len(x), -1))


def _reflected(line: Tensor) -> Tensor:
    return torch.cat((line[:, 1:2], line, line[:, -2:-1]), dim=1)


def _along(line: Tensor, kernel: Tensor) -> Tensor:
    """A convolution of lines `(images, length + 2, channels)` with three taps: `(images, out, length)`."""
    count = line.shape[1] - 2
    beside = torch.cat([line[:, k : k + count] for k in range(3)], dim=-1)
    return F.linear(beside, kernel.transpose(1, 2).flatten(1)).transpose(1, 2)
