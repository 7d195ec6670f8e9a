"""The element-wise parts of a trunk block, written once in plain torch: the reference every faster kernel is held to.

Each function repeats diffusers' own operations in their own order, so in float32 it gives the same bits; it knows
nothing of where modulation tables or weights come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight (hidden,) and epsilon of one RMS norm."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Modulated:
    """An RMS norm with the tables (entries, hidden) that modulate its output."""

    norm: Norm
    shift: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Per-head norm weights (head_dim,) of query and key; None where the norm has no weight."""

    query: Tensor | None
    key: Tensor | None
    eps: float


class BlockOps(Protocol):
    """The four fused steps of a block. `x` is the residual stream (rows, hidden), updated in place.

    `table` arguments are (entries, hidden), addressed per row by `index` (rows,), int64.
    """

    name: str

    def norm_modulate(self, x: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """RMS norm of `x`, times `1 + scale[index]`, plus `shift[index]`; (rows, hidden), a new tensor."""

    def gate_add(self, x: Tensor, y: Tensor, gate: Tensor, index: Tensor) -> None:
        """`x += gate[index] * y`."""

    def gate_norm_modulate(self, x: Tensor, y: Tensor, gate: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """`gate_add`, then `norm_modulate` of the sum."""

    def qk_norm_rope(self, qkv: Tensor, heads: int, qk: QkNorm, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Query, key, value, each (rows, heads, head_dim), from the packed projection (rows, 3 * heads * head_dim).

        Query and key are RMS-normed over the head and their leading `rope` channels rotated; may overwrite `qkv`.
        """

    def swiglu(self, up: Tensor) -> Tensor:
        """First half times silu of the second half of (rows, 2 * ffn); may overwrite `up` and return a view of it."""


class TorchOps:
    """Plain torch; works everywhere, and is what `torch.compile` fuses."""

    name = "eager"

    def norm_modulate(self, x: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """See `BlockOps`."""
        normed = functional.rms_norm(x, (x.shape[-1],), norm.norm.weight, norm.norm.eps)
        return normed * (1.0 + norm.scale.index_select(0, index)) + norm.shift.index_select(0, index)

    def gate_add(self, x: Tensor, y: Tensor, gate: Tensor, index: Tensor) -> None:
        """See `BlockOps`."""
        x.add_(gate.index_select(0, index) * y)

    def gate_norm_modulate(self, x: Tensor, y: Tensor, gate: Tensor, norm: Modulated, index: Tensor) -> Tensor:
        """See `BlockOps`."""
        self.gate_add(x, y, gate, index)
        return self.norm_modulate(x, norm, index)

    def qk_norm_rope(self, qkv: Tensor, heads: int, qk: QkNorm, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """See `BlockOps`."""
        query, key, value = (part.unflatten(-1, (heads, -1)) for part in qkv.chunk(3, dim=-1))
        head = (query.shape[-1],)
        query = functional.rms_norm(query, head, qk.query, qk.eps)
        key = functional.rms_norm(key, head, qk.key, qk.eps)
        return rotate(query, *rope), rotate(key, *rope), value

    def swiglu(self, up: Tensor) -> Tensor:
        """See `BlockOps`."""
        value, gate = up.chunk(2, dim=-1)
        return value * functional.silu(gate)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading channels of `x` (..., rows, heads, head_dim) by `cos`, `sin` (rows, channels)."""
    channels = cos.shape[-1]
    cos, sin = cos.to(x.dtype)[:, None, :], sin.to(x.dtype)[:, None, :]
    turning, kept = x[..., :channels], x[..., channels:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, kept), dim=-1).contiguous()
