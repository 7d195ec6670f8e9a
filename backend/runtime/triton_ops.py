"""The element-wise parts of a block as Triton kernels, each one pass over memory.

Rounds to bfloat16 exactly where the unfused operations would, so results differ from them only by the order of the
norm's sum; needs a GPU that Triton compiles for, and does not choose itself.
"""

# ruff: noqa: ANN001, ANN202, PLR0913  (kernels take raw pointers and strides, which have no Python type)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.runtime.ops import Modulated, Norm, QkNorm

SWIGLU_BLOCK = 2048  # channels a program; 14336 of the trunk is seven of them
# Without this, LLVM fuses a product, its rounding to bfloat16 and a sum into one multiply-add, and the rounding is
# lost: a quarter of all values then differed from the unfused operations on an H200.
EXACT = {"enable_fp_fusion": False}
HEADS_BLOCK = 2048  # channels a program of the query/key norm: 16 heads of 128, 32 of 64


@triton.jit
def _rounded(value, ROUND: tl.constexpr):
    if ROUND:
        value = value.to(tl.bfloat16).to(tl.float32)
    return value


@triton.jit
def _residual_norm(
    x_ptr,
    y_ptr,
    out_ptr,
    gate_ptr,
    weight_ptr,
    scale_ptr,
    shift_ptr,
    index_ptr,
    width,
    gate_stride,
    table_stride,
    eps,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    MODULATE: tl.constexpr,
    INDEXED: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: x += gate * y, then out = modulated RMS norm of x."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    entry = row * 0
    if INDEXED:
        entry = tl.load(index_ptr + row).to(tl.int64)
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        y = tl.load(y_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + entry * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
        x = _rounded(x + _rounded(gate * y, ROUND), ROUND)
        tl.store(x_ptr + row * width + columns, x, mask=inside)
    if NORM:
        rate = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        normed = _rounded(x * rate * weight, ROUND)
        if MODULATE:
            scale = tl.load(scale_ptr + entry * table_stride + columns, mask=inside, other=0.0).to(tl.float32)
            shift = tl.load(shift_ptr + entry * table_stride + columns, mask=inside, other=0.0).to(tl.float32)
            normed = _rounded(normed * _rounded(1.0 + scale, ROUND), ROUND)
            normed = normed + shift
        tl.store(out_ptr + row * width + columns, normed, mask=inside)


@triton.jit
def _qk_norm_rope(
    qkv_ptr,
    query_weight_ptr,
    key_weight_ptr,
    cos_ptr,
    sin_ptr,
    row_stride,
    heads,
    tokens,
    eps,
    AFFINE: tl.constexpr,
    ROUND: tl.constexpr,
    ROPE: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    """A group of heads of one row, in place; query heads first, then key heads."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channel = tl.arange(0, DIM)
    half: tl.constexpr = ROPE // 2
    partner = tl.where(channel < half, channel + half, tl.where(channel < ROPE, channel - half, channel))
    inside = (head < 2 * heads)[:, None] & (channel < DIM)[None, :]
    base = qkv_ptr + row * row_stride + head[:, None] * DIM
    x = tl.load(base + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(base + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    rate = (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / DIM + eps))[:, None]
    x = x * rate
    other = other * rate
    if AFFINE:
        is_query = (head < heads)[:, None]
        query_weight = tl.load(query_weight_ptr + channel).to(tl.float32)[None, :]
        key_weight = tl.load(key_weight_ptr + channel).to(tl.float32)[None, :]
        x = x * tl.where(is_query, query_weight, key_weight)
        query_weight = tl.load(query_weight_ptr + partner).to(tl.float32)[None, :]
        key_weight = tl.load(key_weight_ptr + partner).to(tl.float32)[None, :]
        other = other * tl.where(is_query, query_weight, key_weight)
    x = _rounded(x, ROUND)
    other = _rounded(other, ROUND)
    angle = (row % tokens) * ROPE + channel
    cos = tl.load(cos_ptr + angle, mask=channel < ROPE, other=1.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle, mask=channel < ROPE, other=0.0).to(tl.float32)[None, :]
    sin = tl.where(channel[None, :] < half, -sin, sin)
    turned = _rounded(x * cos, ROUND) + _rounded(other * sin, ROUND)
    # Every thread must have read its partner's channel before anyone overwrites it.
    tl.debug_barrier()
    tl.store(base + channel[None, :], turned, mask=inside)


@triton.jit
def _swiglu(up_ptr, out_ptr, ffn, up_stride, out_stride, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < ffn
    value = tl.load(up_ptr + row * up_stride + channel, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(up_ptr + row * up_stride + ffn + channel, mask=inside, other=0.0).to(tl.float32)
    gate = _rounded(gate / (1.0 + tl.exp(-gate)), ROUND)
    tl.store(out_ptr + row * out_stride + channel, value * gate, mask=inside)


class TritonOps:
    """`BlockOps` on the GPU. Rows must be contiguous; `qkv` and `up` are overwritten."""

    name = "triton"

    def norm_modulate(self, x: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """See `BlockOps`."""
        return self._launch(x, None, None, norm, index)

    def gate_add(self, x: Tensor, y: Tensor, gate: Tensor, index: Tensor) -> None:
        """See `BlockOps`."""
        self._launch(x, y, gate, None, index)

    def gate_norm_modulate(self, x: Tensor, y: Tensor, gate: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """See `BlockOps`."""
        return self._launch(x, y, gate, norm, index)

    def scale_norm(
        self, x: Tensor, y: Tensor | None, scale: Tensor | None, norm: Norm | None, dtype: torch.dtype
    ) -> Tensor:
        """The decoder's step: `x += scale * y` in float32, then the RMS norm of `x` as `dtype`.

        `x` is (rows, width) float32, `y` (rows, width), `scale` (width,); without `norm` only the sum is made and `x`
        returned, without `y` only the norm.
        """
        out = torch.empty_like(x, dtype=dtype) if norm is not None else x
        width = x.shape[-1]
        _residual_norm[(x.shape[0],)](
            x,
            x if y is None else y,
            out,
            x if scale is None else scale,
            x if norm is None else norm.weight,
            x,
            x,
            x,
            width,
            0,
            0,
            0.0 if norm is None else norm.eps,
            RESIDUAL=y is not None,
            NORM=norm is not None,
            MODULATE=False,
            INDEXED=False,
            ROUND=False,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8 if width > 4096 else 4,
            **EXACT,
        )
        return out

    def qk_norm_rope(self, qkv: Tensor, heads: int, qk: QkNorm, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """See `BlockOps`; `rope` may be shorter than the rows, and is then repeated (stacked tiles)."""
        rows, packed = qkv.shape
        dim = packed // 3 // heads
        cos, sin = rope
        affine = qk.query is not None
        group = max(1, HEADS_BLOCK // dim)
        _qk_norm_rope[(rows, triton.cdiv(2 * heads, group))](
            qkv,
            qk.query if affine else qkv,
            qk.key if affine else qkv,
            cos,
            sin,
            qkv.stride(0),
            heads,
            cos.shape[0],
            qk.eps,
            AFFINE=affine,
            ROUND=qkv.dtype == torch.bfloat16,
            ROPE=cos.shape[-1],
            DIM=dim,
            HEADS=group,
            num_warps=4,
            **EXACT,
        )
        query, key, value = (part.unflatten(-1, (heads, dim)) for part in qkv.chunk(3, dim=-1))
        return query, key, value

    def swiglu(self, up: Tensor) -> Tensor:
        """See `BlockOps`; the result lies in the first half of `up`."""
        ffn = up.shape[-1] // 2
        _swiglu[(up.shape[0], triton.cdiv(ffn, SWIGLU_BLOCK))](
            up,
            up,
            ffn,
            up.stride(0),
            up.stride(0),
            ROUND=up.dtype == torch.bfloat16,
            BLOCK=SWIGLU_BLOCK,
            num_warps=4,
            **EXACT,
        )
        return up[:, :ffn]

    @staticmethod
    def _launch(x: Tensor, y: Tensor | None, gate: Tensor | None, norm: Modulated | None, index: Tensor) -> Tensor:
        out = torch.empty_like(x) if norm is not None else x
        width = x.shape[-1]
        _residual_norm[(x.shape[0],)](
            x,
            x if y is None else y,
            out,
            x if gate is None else gate,
            x if norm is None else norm.norm.weight,
            x if norm is None else norm.scale,
            x if norm is None else norm.shift,
            index,
            width,
            0 if gate is None else gate.stride(0),
            0 if norm is None else norm.scale.stride(0),
            0.0 if norm is None else norm.norm.eps,
            RESIDUAL=y is not None,
            NORM=norm is not None,
            MODULATE=norm is not None,
            INDEXED=True,
            ROUND=x.dtype == torch.bfloat16,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8 if width > 4096 else 4,
            **EXACT,
        )
        return out
