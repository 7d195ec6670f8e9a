"""VAE tiles over all ranks: each decodes some of a clip's tiles, rank 0 gets them all in their order.

Knows tiles as a count and a list; layout, stitching and frames are `vae_tiles`' and `h3`'s matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from backend.runtime.parallel.group import Group


class TileShare:
    """How a group divides tiles. Rank 0, which also stitches, gets the fewest."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def mine(self, tiles: Tensor) -> Tensor:
        """The tiles this rank decodes, (n, ...), of all; never none.

        A rank that has none of its own decodes one that another has: it must know what a tile becomes, and that takes
        no longer than the others need.
        """
        start, stop = self._bounds(tiles.shape[0], self._group.rank)
        return tiles[start : max(stop, start + 1)]

    def collect(self, decoded: Sequence[Tensor], count: int) -> list[Tensor] | None:
        """All `count` tiles (1, ...) in order on rank 0, None elsewhere, from what each rank made of `mine`."""
        size = self._group.size
        if size == 1:
            return list(decoded)
        own = torch.cat(list(decoded))
        most = max(stop - start for start, stop in (self._bounds(count, rank) for rank in range(size)))
        send = own if own.shape[0] == most else own.new_zeros((most, *own.shape[1:]))
        if send is not own:
            send[: own.shape[0]] = own
        if self._group.rank != 0:
            dist.gather(send, dst=self._group.members[0], group=self._group.handle)
            return None
        parts = [torch.empty_like(send) for _ in range(size)]
        dist.gather(send, parts, dst=self._group.members[0], group=self._group.handle)
        whole: list[Tensor] = []
        for rank, part in enumerate(parts):
            start, stop = self._bounds(count, rank)
            whole.extend(part[: stop - start].split(1) if stop > start else ())
        return whole

    def _bounds(self, count: int, rank: int) -> tuple[int, int]:
        return count * rank // self._group.size, count * (rank + 1) // self._group.size
