"""The trunk of the transformer as fused steps: one projection for q, k, v and one pass over memory between products.

Works on the parameters of diffusers' blocks without copying them; which attention kernel and which element-wise
kernels run is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.runtime.attention import Attention
from backend.runtime.ops import BlockOps, Modulated, Norm, QkNorm, TorchOps

Rope = tuple[Tensor, Tensor]  # cos and sin, (rows, channels) each
Constants = tuple[int, float, float]  # heads, epsilon of the norms, epsilon of the query and key norms


class NotFusable(Exception):
    """A block is not what the fused path computes; says which module and why."""


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Parameters of one trunk block. `qkv` is (3 * inner, hidden); the module's own q, k, v are views into it."""

    norm1: Norm
    qkv: Tensor
    qk: QkNorm
    out: Tensor  # (hidden, inner)
    norm2: Norm
    ff_in: Tensor  # (2 * ffn, hidden)
    ff_out: Tensor  # (hidden, ffn)
    heads: int


@dataclass(frozen=True, slots=True)
class Modulation:
    """The six modulation tables of one block at one step, each (entries, hidden)."""

    shift_msa: Tensor
    scale_msa: Tensor
    gate_msa: Tensor
    shift_mlp: Tensor
    scale_mlp: Tensor
    gate_mlp: Tensor


class OneAtATime(Sequence[BlockWeights]):
    """Blocks of which one is whole on the device at a time; a block is valid until another was asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def bring(self, number: int) -> BlockWeights:
        """Block `number`, whole, on the device."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[BlockWeights]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, number: int) -> BlockWeights: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[BlockWeights]: ...
    def __getitem__(self, number: int | slice) -> BlockWeights | Sequence[BlockWeights]:
        """See `bring`."""
        if isinstance(number, slice):
            raise TypeError("these blocks are whole one at a time")
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self.bring(number)


def fuse(block: Any) -> BlockWeights:
    """Take a diffusers `MiniMaxH3TransformerBlock` apart; its q, k, v weights become views of one tensor.

    Raises NotFusable when a projection carries an adapter that is not merged, or a bias.
    """
    attn, ff = block.attn, block.ff
    parts = [linear_weight(getattr(attn, name), f"attn.{name}") for name in ("to_q", "to_k", "to_v")]
    return BlockWeights(
        norm1=Norm(block.norm1.weight, block.norm1.eps),
        qkv=_one_storage(parts),
        qk=QkNorm(attn.norm_q.weight, attn.norm_k.weight, attn.norm_q.eps),
        out=linear_weight(attn.to_out[0], "attn.to_out"),
        norm2=Norm(block.norm2.weight, block.norm2.eps),
        ff_in=linear_weight(ff.net[0].proj, "ff.net.0"),
        ff_out=linear_weight(ff.net[2], "ff.net.2"),
        heads=attn.heads,
    )


def linear_weight(module: Any, name: str) -> nn.Parameter:
    """The weight a linear layer multiplies by; of a PEFT layer, its base weight once the adapter is merged into it."""
    base = getattr(module, "base_layer", None)
    if base is not None:
        if not getattr(module, "merged", False):
            raise NotFusable(f"{name} carries an adapter that is not merged into its weight")
        module = base
    if type(module) is not nn.Linear:
        raise NotFusable(f"{name} is a {type(module).__name__}, not a plain linear layer")
    if module.bias is not None:
        raise NotFusable(f"{name} has a bias")
    return module.weight


def _one_storage(parts: list[nn.Parameter]) -> Tensor:
    rows = sum(part.shape[0] for part in parts)
    first = parts[0]
    offset = first.storage_offset()
    together: Any = True
    for part in parts:
        together &= part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        together &= part.storage_offset() == offset
        offset += part.numel()
    if together:
        return first.detach().as_strided((rows, first.shape[1]), (first.shape[1], 1), first.storage_offset())
    fused = torch.cat([part.detach() for part in parts])
    start = 0
    for part in parts:
        part.data = fused[start : start + part.shape[0]]
        start += part.shape[0]
    return fused


def run_trunk(
    x: Tensor,
    blocks: Sequence[BlockWeights],
    modulation: Callable[[int], Modulation],
    index: Tensor,
    rope: Rope,
    kernels: Kernels,
) -> Tensor:
    """All blocks over the packed sequence `x` (rows, hidden), in place; `index` (rows,) picks table entries.

    With fused element-wise kernels, the gate that ends a block and the norm that begins the next are one pass.
    """
    if kernels.compiled is not None:
        for number, weights in enumerate(blocks):
            x = kernels.compiled(x, weights, modulation(number), index, rope, kernels.attention)
        return x
    ops, reduce = kernels.ops, kernels.reduce
    now = modulation(0)
    h = ops.norm_modulate(x, Modulated(blocks[0].norm1, now.shift_msa, now.scale_msa), index)
    for number, weights in enumerate(blocks):
        h = reduce(kernels.attend(h, weights, rope, kernels))
        h = ops.gate_norm_modulate(x, h, now.gate_msa, Modulated(weights.norm2, now.shift_mlp, now.scale_mlp), index)
        h = functional.linear(h, weights.ff_in)
        h = ops.swiglu(h)
        h = reduce(functional.linear(h, weights.ff_out))
        gate = now.gate_mlp
        if number + 1 == len(blocks):
            ops.gate_add(x, h, gate, index)
        else:
            now = modulation(number + 1)
            norm = Modulated(blocks[number + 1].norm1, now.shift_msa, now.scale_msa)
            h = ops.gate_norm_modulate(x, h, gate, norm, index)
    return x


def attend(h: Tensor, weights: BlockWeights, rope: Rope, kernels: Kernels) -> Tensor:
    """Normed rows (rows, hidden) through q, k, v, attention and its output projection."""
    qkv = functional.linear(h, weights.qkv)
    query, key, value = kernels.ops.qk_norm_rope(qkv, weights.heads, weights.qk, rope)
    attended = kernels.attention(query[None], key[None], value[None])[0]
    return functional.linear(attended.flatten(1), weights.out)


CompiledBlock = Callable[[Tensor, BlockWeights, Modulation, Tensor, Rope, Attention], Tensor]


def _whole(part: Tensor) -> Tensor:
    return part


@dataclass(slots=True)
class Kernels:
    """What a trunk runs on.

    compiled: a whole block as compiled graphs; replaces `ops`, `attend` and `reduce`.
    attend: see the function of that name; another one where ranks share the rows.
    reduce: makes a product's result whole where ranks share its weights; may do so in place.
    """

    attention: Attention
    ops: BlockOps
    compiled: CompiledBlock | None = None
    attend: Callable[[Tensor, BlockWeights, Rope, Kernels], Tensor] = attend
    reduce: Callable[[Tensor], Tensor] = _whole

    @property
    def name(self) -> str:
        """How the element-wise parts run: "eager", "triton" or "compiled"."""
        return "compiled" if self.compiled is not None else self.ops.name


def compile_block() -> CompiledBlock:
    """The block as two graphs of `torch.compile`, around attention: any kernel, or an exchange, fits between them.

    Shared by all blocks: their weights are inputs.
    """
    ops = TorchOps()
    # Tuples of tensors and numbers: of an object, a graph would ask at every call whether it is still the same one.

    def before(
        x: Tensor,
        tensors: tuple[Tensor, ...],
        tables: tuple[Tensor, Tensor],
        index: Tensor,
        rope: Rope,
        constants: Constants,
    ) -> tuple[Tensor, ...]:
        norm1, qkv, norm_q, norm_k = tensors
        heads, eps, qk_eps = constants
        h = ops.norm_modulate(x, Modulated(Norm(norm1, eps), *tables), index)
        return ops.qk_norm_rope(functional.linear(h, qkv), heads, QkNorm(norm_q, norm_k, qk_eps), rope)

    def after(
        x: Tensor, h: Tensor, tensors: tuple[Tensor, ...], tables: tuple[Tensor, ...], index: Tensor, eps: float
    ) -> Tensor:
        out, norm2, ff_in, ff_out = tensors
        gate_msa, shift_mlp, scale_mlp, gate_mlp = tables
        x = x + gate_msa.index_select(0, index) * functional.linear(h.flatten(1), out)
        h = ops.norm_modulate(x, Modulated(Norm(norm2, eps), shift_mlp, scale_mlp), index)
        h = functional.linear(ops.swiglu(functional.linear(h, ff_in)), ff_out)
        return x + gate_mlp.index_select(0, index) * h

    first, second = torch.compile(before, fullgraph=True), torch.compile(after, fullgraph=True)

    def call(
        x: Tensor, weights: BlockWeights, now: Modulation, index: Tensor, rope: Rope, attention: Attention
    ) -> Tensor:
        w = weights
        assert w.qk.query is not None and w.qk.key is not None  # the trunk's always have weights
        constants = (w.heads, w.norm1.eps, w.qk.eps)
        head, tail = (w.norm1.weight, w.qkv, w.qk.query, w.qk.key), (w.out, w.norm2.weight, w.ff_in, w.ff_out)
        query, key, value = first(x, head, (now.shift_msa, now.scale_msa), index, rope, constants)
        attended = attention(query[None], key[None], value[None])[0]
        tables = (now.gate_msa, now.shift_mlp, now.scale_mlp, now.gate_mlp)
        return second(x, attended, tail, tables, index, w.norm2.eps)

    return call
