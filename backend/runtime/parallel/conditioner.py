"""The conditioner on the first ranks of a fleet: its language model divided among them, its answer told to all.

Ranks beyond those hold none of its weights. Which rows are read, and what is remembered, is `runtime.conditioner`'s
matter.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from backend.errors import Unavailable
from backend.runtime.parallel.group import Group, Groups

_LAYERS = "model.language_model.layers."
# Dimension that is divided: heads and channels on the way in, the same on the way out.
_RULES = {
    "self_attn.q_proj.weight": 0,
    "self_attn.k_proj.weight": 0,
    "self_attn.v_proj.weight": 0,
    "self_attn.o_proj.weight": 1,
    "mlp.gate_proj.weight": 0,
    "mlp.up_proj.weight": 0,
    "mlp.down_proj.weight": 1,
}


def cut(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    """This rank's part of a conditioner's parameter `name`: a view, or the whole tensor where every encoder has it."""
    dim = _RULES.get(name.removeprefix(_LAYERS).partition(".")[2])
    if dim is None or not name.startswith(_LAYERS) or size == 1:
        return tensor
    return tensor.chunk(size, dim)[rank]


def check(config: Any, size: int) -> None:
    """Raises Unavailable unless `size` ranks can divide a language model of this (text) config."""
    heads, channels = config.num_key_value_heads, config.intermediate_size
    if heads % size or channels % size:
        raise Unavailable(
            f"parallel.conditioner_tensor_parallel={size}: must divide the {heads} key and value heads and the "
            f"{channels} channels of this checkpoint's conditioner"
        )


def take(text_encoder: Any, group: Group) -> None:
    """Leave this rank's part of the language model in `text_encoder`, unless its loader did, and have it sum up."""
    check(text_encoder.config.text_config, group.size)
    for number, layer in enumerate(text_encoder.model.language_model.layers):
        for name in _RULES:
            module = layer.get_submodule(name.removesuffix(".weight"))
            if module.weight.shape == (module.out_features, module.in_features):
                part = cut(f"{_LAYERS}{number}.{name}", module.weight.data, group.rank, group.size)
                module.weight.data = part.clone()
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.register_forward_hook(lambda _module, _inputs, out: group.sum(out))


def share(text_encoder: Any, layer: int, groups: Groups, dtype: torch.dtype) -> None:
    """Have `text_encoder.model` answer on every rank with what the encoders compute: hidden state `layer`, in `dtype`.

    Its weights may be missing where `groups.conditioner` is None. Every rank must call it with the same inputs, as
    often. Of a conditioner that is cut after `layer`, the last hidden state is taken.
    """
    if groups.conditioner is not None and groups.conditioner.size > 1:
        take(text_encoder, groups.conditioner)
    inner = text_encoder.model.forward
    width = text_encoder.config.text_config.hidden_size
    if groups.conditioner is None:
        text_encoder.to(dtype)  # no weights, but asked for its type by whoever prepares pixels for it

    def forward(*, output_hidden_states: bool = False, **inputs: Any) -> SimpleNamespace:
        tokens = inputs["input_ids"]
        if groups.conditioner is None:
            hidden = torch.empty((*tokens.shape, width), dtype=dtype, device=tokens.device)
        else:
            out = inner(output_hidden_states=output_hidden_states, **inputs)
            hidden = out.hidden_states[layer] if output_hidden_states else out.last_hidden_state
        if hidden.dtype is not dtype:
            raise TypeError(f"the conditioner computes in {hidden.dtype}; the other ranks expect {dtype}")
        hidden = hidden.contiguous()
        dist.broadcast(hidden, src=groups.world.members[0], group=groups.world.handle)
        return SimpleNamespace(last_hidden_state=hidden, hidden_states={layer: hidden})

    text_encoder.model.forward = forward
