"""Weights of the trunk in equal shards over the ranks that share a sequence; one block is whole at a time, and the next
on its way.

Element-wise shards of each large matrix, gathered straight into their places without a copy; norms stay on every rank.
Reads blocks in order; what they compute is not known here. (torch's `fully_shard` gathers when a module is called; the
fused trunk calls none.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.errors import Unavailable
from backend.runtime.block import BlockWeights, OneAtATime, linear_weight
from backend.runtime.ops import Norm, QkNorm
from backend.runtime.parallel.group import Group

# The first three lie behind each other, so that one product makes q, k and v.
MATRICES = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "ff.net.0.proj", "ff.net.2")


def cut(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    """This rank's shard (n,) of a transformer's parameter `name`, or the whole tensor where it is on every rank.

    Raises Unavailable where the size does not divide the number of elements.
    """
    inside = name.removeprefix("transformer_blocks.").partition(".")[2].removesuffix(".weight")
    if inside not in MATRICES or not name.startswith("transformer_blocks.") or size == 1:
        return tensor
    if tensor.numel() % size:
        raise Unavailable(f"parallel.fsdp: {size} ranks do not divide the {tensor.numel()} elements of {name}")
    return tensor.reshape(-1).view(size, -1)[rank]


def shard_blocks(model: Any, group: Group) -> None:
    """Leave this rank's shard of every trunk block's matrices in `model`, unless its loader did."""
    for number, block in enumerate(model.transformer_blocks):
        for name in MATRICES:
            weight = linear_weight(block.get_submodule(name), name)
            if weight.ndim == 2:
                weight.data = cut(
                    f"transformer_blocks.{number}.{name}.weight", weight.data, group.rank, group.size
                ).clone()


@dataclass(slots=True)
class _Coming:
    """A block on its way: the room it is gathered into, and the collectives that do it."""

    number: int
    room: list[Tensor]
    works: list[Any]


class ShardedBlocks(OneAtATime):
    """The blocks of a model whose matrices are shards. Asking for a block makes it whole and starts the next one.

    Takes two blocks of memory beside the shards. A block's matrices are valid until the next block was asked for and
    what was started with them before is done.
    """

    def __init__(self, model: Any, group: Group) -> None:
        super().__init__(len(model.transformer_blocks))
        self._blocks = list(model.transformer_blocks)
        self._group = group
        self._rooms: list[list[Tensor]] = []
        self._whole: tuple[int, BlockWeights] | None = None
        self._coming: _Coming | None = None

    def bring(self, number: int) -> BlockWeights:
        """Block `number`, whole."""
        if self._whole is None or self._whole[0] != number:
            coming = self._arrived(number)
            self._whole = (number, self._weights(number, coming.room))
            # After the last block comes the first one of the next step.
            self._coming = self._start((number + 1) % len(self._blocks))
        return self._whole[1]

    def settle(self) -> None:
        """Have the device wait for what is on its way, so that its room may be used for something else."""
        coming, self._coming = self._coming, None
        for work in coming.works if coming is not None else ():
            work.wait()

    def _arrived(self, number: int) -> _Coming:
        coming = self._coming or self._start(number)
        for work in coming.works:
            work.wait()
        if coming.number == number:
            return coming
        coming = self._start(number)  # asked for out of order: a forward that begins anew
        for work in coming.works:
            work.wait()
        return coming

    def _start(self, number: int) -> _Coming:
        """Gather a block into the room of the one before the last; its stream waits for what was started with that."""
        shards = [linear_weight(self._blocks[number].get_submodule(name), name).detach() for name in MATRICES]
        if len(self._rooms) < 2:
            sizes = [shard.numel() * self._group.size for shard in shards]
            whole = torch.empty(sum(sizes), dtype=shards[0].dtype, device=shards[0].device)
            self._rooms.append(list(whole.split(sizes)))
        else:
            self._rooms.reverse()
        room = self._rooms[-1]
        works = [self._group.gather_into(into, shard, wait=False) for into, shard in zip(room, shards, strict=True)]
        return _Coming(number, room, works)

    def _weights(self, number: int, room: list[Tensor]) -> BlockWeights:
        block = self._blocks[number]
        attn = block.attn
        query, _, _, out, ff_in, ff_out = (
            whole.view(module.out_features, module.in_features)
            for whole, module in zip(room, map(block.get_submodule, MATRICES), strict=True)
        )
        return BlockWeights(
            norm1=Norm(block.norm1.weight, block.norm1.eps),
            qkv=query.as_strided((3 * query.shape[0], query.shape[1]), query.stride()),
            qk=QkNorm(attn.norm_q.weight, attn.norm_k.weight, attn.norm_q.eps),
            out=out,
            norm2=Norm(block.norm2.weight, block.norm2.eps),
            ff_in=ff_in,
            ff_out=ff_out,
            heads=attn.heads,
        )
