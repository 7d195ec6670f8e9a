"""What a setup's `parallel` section means on one rank: its groups, and what it loads, holds and does of each component.

Ties the other files of this folder together; the runtime asks it, and is the same with one rank as with many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from backend.process.messages import Setup
from backend.runtime.parallel import conditioner, group, ranks, vae

CONDITIONER, TRANSFORMERS = "text_encoder", ("transformer", "transformer_ref")


class Sharing:
    """How one rank takes part. With several ranks each makes one, after joining: it is a collective.

    Raises Unavailable where a trial of the exchange left a GPU waiting. `notify` is told of what stands in for it.
    """

    def __init__(self, setup: Setup, device: torch.device, notify: Callable[[str], None]) -> None:
        self.groups = group.form(setup.rank, setup.world_size, setup.parallel)
        self.trunk: ranks.OneRank = ranks.OneRank()
        if max(self.groups.ulysses.size, self.groups.tensor.size) > 1:
            exchange = ranks.settled(setup.parallel.wanted_exchange, self.groups.ulysses, device, notify)
            self.trunk = ranks.SharedTrunk(self.groups, exchange, notify)
        self.helps_decode = setup.world_size > 1 and setup.parallel.vae_tile_parallel
        self.tiles = vae.TileShare(self.groups.world if self.helps_decode else group.alone())
        self._dtype: torch.dtype = getattr(torch, setup.dtype.value)
        self._fsdp = self.groups.weights.size > 1
        # The libraries' own loaders give every rank a conditioner, which it then runs.
        self._told = setup.world_size > 1 and setup.runtime.fast_load

    def needed(self, component: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """What this rank reads of a component's tensors: nothing of a conditioner that others run."""
        elsewhere = component == CONDITIONER and self._told and self.groups.conditioner is None
        return {} if elsewhere else wanted

    def cut(self, component: str) -> Callable[[str, Tensor], Tensor]:
        """What this rank keeps of a component's parameter, by name."""
        if component in TRANSFORMERS:
            return self.trunk.cut
        encoders = self.groups.conditioner
        if component == CONDITIONER and encoders is not None:
            return lambda name, tensor: conditioner.cut(name, tensor, encoders.rank, encoders.size)
        return lambda _name, tensor: tensor

    def elements(self, component: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """How many elements this rank holds of each of a component's tensors."""
        cut = self.cut(component)
        held = self.needed(component, dict(shapes))
        return {name: cut(name, torch.empty(shape, device="meta")).numel() for name, shape in held.items()}

    def encode(self, text_encoder: Any, layer: int) -> None:
        """Have a loaded conditioner answer on every rank."""
        if self._told:
            conditioner.share(text_encoder, layer, self.groups, self._dtype)

    def info(self) -> dict[str, object]:
        """For log, page and sidecar: what this rank is in the fleet."""
        groups = self.groups
        return {
            "world_size": groups.world.size,
            "ulysses": {"degree": groups.ulysses.size, "rank": groups.ulysses.rank},
            "exchange": self.trunk.exchange,
            "tensor_parallel": {"size": groups.tensor.size, "rank": groups.tensor.rank},
            "fsdp": self._fsdp,
            "encodes": groups.conditioner is not None or not self._told,
            "decodes_tiles": self.helps_decode or groups.world.rank == 0,
        }
