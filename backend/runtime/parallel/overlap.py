"""Ulysses with its exchanges hidden behind products and attention: keys and values travel while queries are projected.

Every query row is attended to by itself, so a rank starts and ends with its own rows, whose queries and results stay
where they are, and other ranks' rows, which travel, come between; how data travels is a `Travel`'s matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from backend.runtime.attention import Attention
from backend.runtime.block import BlockWeights, Kernels
from backend.runtime.ops import QkNorm
from backend.runtime.parallel.group import Group
from backend.runtime.parallel.ulysses import Attend

TILE = 128  # query rows that a fused kernel takes at once


class Travel(Protocol):
    """An exchange that runs beside the work of the device."""

    def start(self, name: str, parts: Sequence[Tensor | None]) -> Callable[[], Tensor]:
        """Send `parts[j]` (all of one shape) to rank j of the group, nothing where it is None.

        Calling what is returned waits, and gives (size, *shape): row j came from rank j. It holds until `name` was
        started twice more. Every rank starts the same names in the same order, and waits before it starts one again.
        """


class CollectiveTravel:
    """By the group's own collective, which takes some of the device's processors meanwhile."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def start(self, name: str, parts: Sequence[Tensor | None]) -> Callable[[], Tensor]:
        """See `Travel`."""
        some = next(part for part in parts if part is not None)
        send = some.new_empty((self._group.size, *some.shape))
        for place, part in enumerate(parts):
            if part is None:
                send[place].zero_()
            else:
                send[place].copy_(part)
        got = torch.empty_like(send)
        work: Any = dist.all_to_all_single(got, send, group=self._group.handle, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return got

        return wait


def overlapped(kernel: Attention, group: Group, length: int, travel: Travel) -> Attend:
    """Attention of a block over all rows of `group`, `length` of them real, on this rank's share of the heads.

    A block's heads must be even in number and a multiple of the group's size. The rotary table is
    that of this rank's rows.
    """
    size, me = group.size, group.rank

    def attend(h: Tensor, weights: BlockWeights, rope: tuple[Tensor, Tensor], kernels: Kernels) -> Tensor:
        rows, inner = h.shape[0], weights.qkv.shape[0] // 3
        heads, dim = weights.heads // size, inner // weights.heads
        qkv = h.new_empty((rows, 3 * inner))

        def projected(start: int, stop: int, norm: Tensor | None) -> Tensor:
            """Columns from `start` to `stop` of the projection, the first `inner` of them normed and rotated."""
            torch.mm(h, weights.qkv[start:stop].t(), out=qkv[:, start:stop])
            # The operation on queries and keys, given half of these heads as either, leaves the next columns alone.
            view = qkv[:, start : start + 3 * inner // 2]
            turned = kernels.ops.qk_norm_rope(view, weights.heads // 2, QkNorm(norm, norm, weights.qk.eps), rope)
            for place, half in enumerate(turned[:2]):
                into = view[:, place * inner // 2 : (place + 1) * inner // 2].unflatten(1, (-1, dim))
                if into.data_ptr() != half.data_ptr():
                    into.copy_(half)
            return qkv[:, start:stop]

        pairs = projected(inner, 3 * inner, weights.qk.key).unflatten(1, (2, size, heads, dim))
        keys_values = travel.start("keys and values", [pairs[:, :, place] for place in range(size)])
        queries = projected(0, inner, weights.qk.query).unflatten(1, (size, heads, dim))
        others = travel.start("queries", [None if place == me else queries[:, place] for place in range(size)])
        whole = keys_values().flatten(0, 1)
        key, value = whole[None, :length, 0], whole[None, :length, 1]
        own, first = queries[None, :, me], first_rows(rows, heads, h.device)
        attended = h.new_empty((rows, size, heads, dim))
        attended[:first, me] = kernel(own[:, :first], key, value)[0]
        results: list[Tensor | None] = [None] * size
        arrived = others()
        for start, stop in ((0, me), (me + 1, size)):
            if stop > start:
                results[start:stop] = kernel(arrived[start:stop].flatten(0, 1)[None], key, value)[0].split(rows)
        back = travel.start("results", results)
        attended[first:, me] = kernel(own[:, first:], key, value)[0]
        arrived = back()
        for place in range(size):
            if place != me:
                attended[:, place] = arrived[place]
        return torch.nn.functional.linear(attended.flatten(1), weights.out)

    return attend


def first_rows(rows: int, heads: int, device: torch.device) -> int:
    """How many of `rows` own rows go first: at most half, on a GPU whole rounds of tiles over its processors.

    They only need to last as long as the queries travel; what is no whole round would leave processors idle twice.
    """
    if device.type != "cuda":
        return rows // 2
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return min(processors // math.gcd(processors, heads) * TILE, rows // 2)
