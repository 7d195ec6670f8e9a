"""How many bytes each component takes on this rank, from the headers of its shards, before anything is loaded.

Counts what the loader will keep; where it lies is the plan's matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from backend.footprint import Widths, planned_work
from backend.process.messages import Setup
from backend.runtime import load, streaming
from backend.runtime.parallel.fsdp import MATRICES
from backend.runtime.parallel.sharing import CONDITIONER, TRANSFORMERS, Sharing

CONDITIONER_LAYER = 50  # diffusers MiniMaxH3ModularPipeline.text_encoder_layer
COMPONENTS = (CONDITIONER, *TRANSFORMERS, "vae", "audio_vae")
ROOMS = 2  # blocks that are whole at a time where they are gathered or streamed: one computes, one arrives


class Sizes:
    """Figures of one checkpoint on one rank. Of the two transformers, the one that is there speaks for both.

    without_projections: whether AdaLN projections of a transformer with this config are left unread.
    """

    def __init__(self, setup: Setup, sharing: Sharing, without_projections: Callable[[dict[str, Any]], bool]) -> None:
        self._setup, self._sharing = setup, sharing
        self._dtype: torch.dtype = getattr(torch, setup.dtype.value)
        self._without_projections = without_projections
        self._folders: dict[str, Path] = {}  # by the plan's name of a component
        for name in COMPONENTS:
            if (folder := Path(setup.checkpoint) / name).is_dir():
                self._folders.setdefault(plan_name(name), folder)

    @property
    def head_dim(self) -> int:
        """Channels of an attention head of the transformer; the released model's where there is none."""
        return int(self._config()["attention_head_dim"]) if TRANSFORMERS[0] in self._folders else 128

    def weights(self) -> dict[str, int]:
        """Bytes of each component as it will be held, with the blocks that are gathered from shards."""
        found = {name: sum(self._tensors(name).values()) for name in self._folders}
        parallel = self._setup.parallel
        if parallel.fsdp and TRANSFORMERS[0] in found:
            shards = self._tensors(TRANSFORMERS[0])
            first = sum(shards[f"transformer_blocks.0.{matrix}.weight"] for matrix in MATRICES)
            found[TRANSFORMERS[0]] += ROOMS * first * parallel.ulysses_degree
        return found

    def streamed(self) -> dict[str, int]:
        """Bytes on the device of each component that can be streamed, while its blocks come and go."""
        found = {}
        for name in (CONDITIONER, TRANSFORMERS[0]):
            if name not in self._folders:
                continue
            rest, blocks = 0, Counter[str]()
            for key, size in self._tensors(name).items():
                if streaming.stays(name, key):
                    blocks[_block(key)] += size
                else:
                    rest += size
            largest = max(blocks.values(), default=0)
            kept = self._setup.runtime.resident_layers if name == TRANSFORMERS[0] else 0
            found[name] = rest + largest * (ROOMS + kept)
        return found

    def work(self) -> dict[str, int]:
        """Bytes by stage that are kept free beside the weights, before a request is known."""
        widths = Widths(dtype_bytes=self._dtype.itemsize)
        if TRANSFORMERS[0] in self._folders:
            config = self._config()
            widths = Widths(
                hidden=config["hidden_size"],
                inner=config["num_attention_heads"] * config["attention_head_dim"],
                ffn=config["ffn_dim"],
                layers=config["num_layers"],
                dtype_bytes=self._dtype.itemsize,
            )
        return planned_work(widths, self._setup.parallel, self._setup.runtime)

    def _config(self) -> dict[str, Any]:
        return load.config_of(self._folders[TRANSFORMERS[0]])

    def _tensors(self, name: str) -> Mapping[str, int]:
        """Bytes of each tensor in the compute type. Modules pinned to float32 are small and counted as stored."""
        folder = self._folders[name]
        component = folder.name
        tables = name == TRANSFORMERS[0] and self._without_projections(load.config_of(folder))
        stored = load.entries(folder)
        held = self._sharing.elements(component, {key: entry.shape for key, entry in stored.items()})
        found = {}
        for key, elements in held.items():
            if tables and (".adaln_proj." in key or key.startswith("norm_out.linear.")):
                continue
            if self._setup.runtime.fast_load and name == CONDITIONER and _after_cut(key):
                continue
            found[key] = elements * min(self._dtype.itemsize, stored[key].dtype.itemsize)
        return found


def plan_name(name: str) -> str:
    """The plan's name of a component: both transformers share one entry."""
    return TRANSFORMERS[0] if name in TRANSFORMERS else name


def _block(key: str) -> str:
    """Which block a tensor belongs to: the first number in its name."""
    return next(part for part in key.split(".") if part.isdigit())


def _after_cut(key: str) -> bool:
    """Whether a conditioner's tensor is dropped by `conditioner.cut`."""
    parts = key.split(".")
    if key.startswith(("lm_head.", "model.language_model.norm.")):
        return True
    if "layers" not in parts or parts[1] != "language_model":
        return False
    return int(parts[parts.index("layers") + 1]) >= CONDITIONER_LAYER
