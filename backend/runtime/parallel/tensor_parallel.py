"""Tensor parallelism of the trunk: every rank holds some heads and some channels of each block, and sums make it whole.

Which part of a tensor is whose depends on its name alone, so that a loader can cut what it reads; the token refiner,
embeddings and heads are on every rank.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from backend.errors import Unavailable
from backend.runtime.parallel.group import Group

# Dimension that is divided, and how many stacked parts it consists of (the feed-forward's value and gate).
_RULES = {
    "attn.to_q.weight": (0, 1),
    "attn.to_k.weight": (0, 1),
    "attn.to_v.weight": (0, 1),
    "attn.to_out.0.weight": (1, 1),
    "ff.net.0.proj.weight": (0, 2),
    "ff.net.2.weight": (1, 1),
}


def cut(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    """This rank's part of a transformer's parameter `name`: a view, or the whole tensor where it is on every rank.

    Raises Unavailable where the size does not divide the tensor.
    """
    rule = _RULES.get(name.removeprefix("transformer_blocks.").partition(".")[2])
    if rule is None or not name.startswith("transformer_blocks.") or size == 1:
        return tensor
    dim, parts = rule
    length = tensor.shape[dim]
    if length % (parts * size):
        raise Unavailable(
            f"parallel.tensor_parallel_size={size}: does not divide the {length // parts} channels of {name}"
        )
    shape = [*tensor.shape[:dim], parts, size, length // parts // size, *tensor.shape[dim + 1 :]]
    return tensor.view(shape).select(dim + 1, rank).flatten(dim, dim + 1)


def take(model: Any, group: Group) -> None:
    """Leave this rank's part of every trunk block in `model`, unless its loader did, and have its modules sum up.

    The sums of the modules serve the path on which modules are called; fused blocks sum by themselves.
    """
    for number, block in enumerate(model.transformer_blocks):
        block.attn.heads = model.config.num_attention_heads // group.size
        block.attn.register_forward_hook(lambda _module, _inputs, out: group.sum(out))
        block.ff.register_forward_hook(lambda _module, _inputs, out: group.sum(out))
        for name, (dim, _) in _RULES.items():
            module = block.get_submodule(name.removesuffix(".weight"))
            if module.weight.shape == (module.out_features, module.in_features):
                part = cut(f"transformer_blocks.{number}.{name}", module.weight.data, group.rank, group.size)
                module.weight.data = part.clone()
            if dim == 0:
                module.out_features //= group.size
            else:
                module.in_features //= group.size
