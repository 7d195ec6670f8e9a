"""Ulysses sequence parallelism: ranks share rows everywhere but in attention, where they share heads instead.

Dead rows stand at the end of the sequence and keys and values are cut to the real length after the exchange, so any
length and any kernel is exact without a mask; which rows a rank embeds is `rows`' matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from backend.runtime.attention import Attention
from backend.runtime.block import BlockWeights, Kernels
from backend.runtime.parallel.group import Group


def exchanged(kernel: Attention, group: Group, length: int) -> Attention:
    """`kernel` over all rows of a group on a share of the heads: one exchange before it and one after.

    Called with this rank's rows of all heads, (1, local, heads, head_dim), as `kernel` itself is; `length` rows of the
    whole sequence are real.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, dim = query.shape[1], query.shape[3]
        heads = query.shape[2] // group.size
        # Packed as (to whom, rows, q k v, heads, dim): what arrives is then (all rows, q k v, heads, dim) as it lies.
        send = query.new_empty((group.size, rows, 3, heads, dim))
        for place, part in enumerate((query, key, value)):
            send[:, :, place].copy_(part[0].unflatten(1, (group.size, heads)).transpose(0, 1))
        whole = group.exchange(send).flatten(0, 1)
        del send
        attended = kernel(whole[None, :, 0], whole[None, :length, 1], whole[None, :length, 2])[0]
        back = group.exchange(attended.contiguous().view(group.size, rows, heads, dim))
        return back.transpose(0, 1).reshape(1, rows, -1, dim)

    return Attention(kernel.name, kernel.precision, attend)


Attend = Callable[[Tensor, BlockWeights, tuple[Tensor, Tensor], Kernels], Tensor]


def gathered(kernel: Attention, group: Group, length: int) -> Attend:
    """The other way to the same heads: gather the normed rows and project them to this rank's heads only.

    Of a group of two this moves hidden_size instead of 3 * inner channels a row (5376 against 10752 in the release)
    before attention; over four ranks as much, over more it moves more. The rotary table must hold all rows, dead ones
    included.
    """

    def attend(h: Tensor, weights: BlockWeights, rope: tuple[Tensor, Tensor], kernels: Kernels) -> Tensor:
        rows, heads = h.shape[0], weights.heads // group.size
        whole = group.gather(h)
        width = weights.qkv.shape[0] // 3 // group.size
        qkv = whole.new_empty((whole.shape[0], 3 * width))
        for place, weight in enumerate(weights.qkv.chunk(3)):
            mine = weight[group.rank * width : (group.rank + 1) * width]
            torch.mm(whole, mine.t(), out=qkv[:, place * width : (place + 1) * width])
        del whole
        query, key, value = kernels.ops.qk_norm_rope(qkv, heads, weights.qk, rope)
        attended = kernel(query[None], key[None, :length], value[None, :length])[0]
        back = group.exchange(attended.contiguous().view(group.size, rows, heads, -1))
        return torch.nn.functional.linear(back.transpose(0, 1).reshape(rows, -1), weights.out)

    return attend
