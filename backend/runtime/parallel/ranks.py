"""How the ranks of a fleet run the trunk: what each holds of rows and weights, as the transformer asks for it.

`OneRank` is the plain case, `SharedTrunk` all the others; the transformer does not know which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from backend.errors import Unavailable
from backend.presets import Exchange
from backend.runtime.block import BlockWeights, Kernels, Rope, fuse
from backend.runtime.parallel import fsdp, mapped, overlap, tensor_parallel, ulysses
from backend.runtime.parallel.group import Group, Groups
from backend.runtime.parallel.rows import AllRows, PartOfRows


def settled(wanted: Exchange, group: Group, device: torch.device, notify: Callable[[str], None]) -> Exchange:
    """`wanted`, or what stands in for it where mapped memory does not work here, said through `notify`; a collective.

    The same on all ranks of `group`. Raises Unavailable where a trial left a GPU waiting.
    """
    if wanted is not Exchange.MAPPED or group.size == 1:
        return wanted
    reason = mapped.why_not(group, device)
    if reason is None:
        return wanted
    instead = Exchange.GATHERED if group.size == 2 else Exchange.OVERLAPPED
    notify(f"Exchanging rows over {group.size} ranks is {instead} instead of mapped: {reason}.")
    return instead


class OneRank:
    """The whole trunk on this rank."""

    several = False
    exchange: Exchange | None = None  # how rows are exchanged, where they are shared

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """What this rank holds of the transformer's parameter `name`, for a loader; `take` accepts what was cut."""
        return tensor

    def take(self, model: nn.Module) -> None:
        """Keep this rank's share of the trunk's weights, and let go of the rest."""

    def blocks(self, model: nn.Module) -> Sequence[BlockWeights]:
        """The trunk's weights as this rank runs them; those of an earlier call are done with. Raises NotFusable."""
        return [fuse(block) for block in model.transformer_blocks]  # type: ignore[union-attr]

    def forget(self) -> None:
        """Let go of what `blocks` gave."""

    def rows(self, text_at: Tensor, video_at: Tensor, audio_at: Tensor) -> AllRows:
        """The rows this rank holds, from the places of each stream's rows."""
        return AllRows(text_at, video_at, audio_at)

    def kernels(self, kernels: Kernels, rows: AllRows) -> Kernels:
        """What the trunk runs on, for these rows."""
        return kernels

    def rope(self, table: Rope, rows: AllRows) -> Rope:
        """The rotary table as attention wants it, from that of the whole sequence."""
        return table


class SharedTrunk(OneRank):
    """The trunk over the groups of a fleet: rows by Ulysses, heads and channels by tensor parallelism, weights by FSDP.

    exchange: how, as `settled` found it; where it needs an even number of heads and there is none, packed, said through
    `notify`.
    """

    several = True

    def __init__(self, groups: Groups, exchange: Exchange, notify: Callable[[str], None]) -> None:
        self._groups = groups
        self._notify = notify
        self.exchange = exchange if groups.ulysses.size > 1 else None
        self._travel: overlap.Travel | None = None
        self._sharded: fsdp.ShardedBlocks | None = None

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """See `OneRank`. A view of `tensor` where one suffices; raises Unavailable where sizes do not divide."""
        group, weights = self._groups.tensor, self._groups.weights
        part = tensor_parallel.cut(name, tensor, group.rank, group.size)
        return fsdp.cut(name, part, weights.rank, weights.size)

    def take(self, model: nn.Module) -> None:
        """See `OneRank`. Raises Unavailable where heads or channels do not divide."""
        ulysses_degree, tensor = self._groups.ulysses.size, self._groups.tensor
        heads = int(model.config.num_attention_heads)  # type: ignore[union-attr, arg-type]
        if heads % (ulysses_degree * tensor.size):
            raise Unavailable(
                f"parallel: ulysses_degree={ulysses_degree} times tensor_parallel_size={tensor.size} must divide the "
                f"{heads} heads of this checkpoint"
            )
        if self.exchange in (Exchange.OVERLAPPED, Exchange.MAPPED) and heads // tensor.size % 2:
            self._notify(f"Exchanging rows is packed instead of {self.exchange}: {heads // tensor.size} heads are odd.")
            self.exchange = Exchange.PACKED
        if tensor.size > 1:
            tensor_parallel.take(model, tensor)
        if self._groups.weights.size > 1:
            fsdp.shard_blocks(model, self._groups.weights)

    def blocks(self, model: nn.Module) -> Sequence[BlockWeights]:
        """See `OneRank`."""
        self.forget()
        if self._groups.weights.size == 1:
            return super().blocks(model)
        self._sharded = fsdp.ShardedBlocks(model, self._groups.weights)
        return self._sharded

    def forget(self) -> None:
        """See `OneRank`."""
        if self._sharded is not None:
            self._sharded.settle()
            self._sharded = None

    def rows(self, text_at: Tensor, video_at: Tensor, audio_at: Tensor) -> AllRows:
        """See `OneRank`; reads how many rows of each stream lie here, which waits for the device once a request."""
        if self._groups.ulysses.size == 1:
            return AllRows(text_at, video_at, audio_at)
        return PartOfRows(self._groups.ulysses, text_at, video_at, audio_at)

    def kernels(self, kernels: Kernels, rows: AllRows) -> Kernels:
        """See `OneRank`. A compiled block takes no part in sums over ranks: tensor parallelism runs without it."""
        group, tensor = self._groups.ulysses, self._groups.tensor
        shared = replace(kernels)
        if tensor.size > 1:
            shared.reduce, shared.compiled = tensor.sum, None
        if group.size == 1:
            return shared
        # For modules that are called one by one, whichever way fused blocks take.
        shared.attention = ulysses.exchanged(kernels.attention, group, rows.count)
        if self.exchange is Exchange.GATHERED:
            shared.attend, shared.compiled = ulysses.gathered(kernels.attention, group, rows.count), None
        elif self.exchange is not Exchange.PACKED:
            travel = self._travelling(rows.device)
            shared.attend = overlap.overlapped(kernels.attention, group, rows.count, travel)
            shared.compiled = None
        return shared

    def _travelling(self, device: torch.device) -> overlap.Travel:
        if self._travel is None:
            group = self._groups.ulysses
            if self.exchange is Exchange.MAPPED:
                self._travel = mapped.MappedTravel(group, device)
            else:
                self._travel = overlap.CollectiveTravel(group)
        return self._travel

    def rope(self, table: Rope, rows: AllRows) -> Rope:
        """See `OneRank`; with gathered rows the whole table, dead rows included."""
        cos, sin = table
        if self.exchange is Exchange.GATHERED and self._groups.ulysses.size > 1:
            dead = rows.local * self._groups.ulysses.size - rows.count
            return torch.cat([cos, cos.new_zeros((dead, cos.shape[1]))]), torch.cat(
                [sin, sin.new_zeros((dead, sin.shape[1]))]
            )
        return rows.mine(cos), rows.mine(sin)
