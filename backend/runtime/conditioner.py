"""The conditioner cut to what is read of it, and its answers kept by content: a second seed costs no encoding.

Works on transformers' Qwen3-VL in place, so that diffusers' blocks call it as ever; prompts are not known here.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CACHE_BYTES = 1 << 30  # of host memory; a detailed prompt is 3 MB, one with nine references 100 MB


class HiddenState:
    """What a cut conditioner returns: `hidden_states[layer]` and nothing else."""

    def __init__(self, layer: int, hidden: Tensor) -> None:
        self.hidden_states = {layer: hidden}


def cut(text_encoder: Any, layer: int) -> None:
    """Drop everything after decoder layer `layer`, the final norm and the language-model head.

    What is left computes `hidden_states[layer]` exactly: later layers and the final norm never touch it. The config
    still tells the layers of the checkpoint. Raises ValueError for a conditioner that is too short.
    """
    language = text_encoder.model.language_model
    if len(language.layers) < layer:
        raise ValueError(f"layer={layer}: the conditioner has only {len(language.layers)} decoder layers")
    language.layers = language.layers[:layer]
    language.norm = nn.Identity()
    text_encoder.lm_head = nn.Identity()


class Conditioner:
    """Stands in for a cut conditioner's inner model: one hidden state instead of all, and remembered answers.

    bring: called before a real encoding, to have the weights on the device; a remembered answer needs none.
    """

    def __init__(
        self, text_encoder: Any, layer: int, *, remember: bool, bring: Callable[[], None] | None = None
    ) -> None:
        self.encodings = 0  # how often the conditioner really ran
        self._inner = text_encoder.model.forward
        self._layer = layer
        self._remember = remember
        self._bring = bring
        self._known: OrderedDict[str, Tensor] = OrderedDict()
        text_encoder.model.forward = self.forward

    def forward(self, *, output_hidden_states: bool = False, **inputs: Any) -> HiddenState:
        """Inputs as of `Qwen3VLModel.forward`; the hidden state after `layer`, (1, rows, hidden)."""
        device = inputs["input_ids"].device
        key = content_key(inputs) if self._remember else ""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return HiddenState(self._layer, known.to(device))
        if self._bring is not None:
            self._bring()
        hidden = self._inner(output_hidden_states=False, **inputs).last_hidden_state
        self.encodings += 1
        if self._remember:
            self._known[key] = hidden.cpu()
            while len(self._known) > 1 and sum(each.nbytes for each in self._known.values()) > CACHE_BYTES:
                self._known.popitem(last=False)
        return HiddenState(self._layer, hidden)


def content_key(inputs: dict[str, Any]) -> str:
    """A digest of all inputs: names, shapes, types and every byte of the tensors."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            array: Any = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(array)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    return digest.hexdigest()
