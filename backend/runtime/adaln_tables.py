"""Exact AdaLN tables: every modulation a schedule will ask for, computed once, so that 13 of 33 B parameters can go.

Each step is projected at its own shape with the operations of diffusers' modules, so the tables hold the same bits the
model would compute; who runs the steps, and when, is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.errors import H3Error

MODALITIES = 3  # diffusers MINIMAX_H3_MODALITY_NUM: video, text, audio
Bits = tuple[int, ...]


class TableError(H3Error):
    """Tables do not hold what a step asks for, or cannot be made; says what was asked and what is there."""


@dataclass(frozen=True, slots=True)
class TableKey:
    """What tables depend on: per step the int32 bit patterns of its float32 timesteps, and whose weights made them."""

    steps: tuple[Bits, ...]
    checkpoint: str
    adapters: str = ""

    @classmethod
    def of(cls, timesteps: Sequence[Tensor], checkpoint: str, adapters: str = "") -> TableKey:
        """The key of a schedule; `timesteps` holds one float32 tensor (distinct timesteps,) a step."""
        return cls(tuple(timestep_bits(each) for each in timesteps), checkpoint, adapters)


def timestep_bits(timesteps: Tensor) -> Bits:
    """The float32 bit patterns of `timesteps` (n,); reads the tensor, which waits for its device."""
    return tuple(struct.unpack("<i", struct.pack("<f", value))[0] for value in timesteps.to(torch.float32).tolist())


class Projections(Protocol):
    """The AdaLN projections of one checkpoint, one at a time."""

    num_layers: int

    def temb(self, timesteps: Tensor) -> Tensor:
        """The shared timestep embedding, (n, time_embed_dim), in the time embedder's own precision."""

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(layer, weight, bias) in any order, on the device to compute on; layer `num_layers` is the output norm's."""


@dataclass(frozen=True, slots=True)
class AdaLNTables:
    """Modulations of every step of a schedule, on one device.

    blocks: (layers, steps, most timesteps * 3, 6 * hidden); final: (steps, most timesteps, 2 * hidden). Rows past a
    step's own number of timesteps are zeros that nothing addresses.
    """

    key: TableKey
    blocks: Tensor = field(repr=False)
    final: Tensor = field(repr=False)

    def step(self, bits: Bits) -> int:
        """Index of the step whose timesteps have these bits; raises TableError where the tables have none."""
        try:
            return self.key.steps.index(bits)
        except ValueError:
            shown = ", ".join(f"{struct.unpack('<f', struct.pack('<i', each))[0]!r}" for each in bits)
            raise TableError(
                f"timestep={shown}: the AdaLN tables hold {len(self.key.steps)} other steps; "
                "tables must be built for the schedule that runs"
            ) from None

    def block(self, layer: int, step: int) -> Tensor:
        """(timesteps * 3, 6 * hidden) of one block at one step. Raises TableError when out of range."""
        self._check(step)
        if not 0 <= layer < self.blocks.shape[0]:
            raise TableError(f"layer={layer}: the AdaLN tables hold layers 0 to {self.blocks.shape[0] - 1}")
        return self.blocks[layer, step, : len(self.key.steps[step]) * MODALITIES]

    def output(self, step: int) -> Tensor:
        """(timesteps, 2 * hidden) of the output norm at one step. Raises TableError when out of range."""
        self._check(step)
        return self.final[step, : len(self.key.steps[step])]

    def _check(self, step: int) -> None:
        if not 0 <= step < len(self.key.steps):
            raise TableError(f"step={step}: the AdaLN tables hold steps 0 to {len(self.key.steps) - 1}")

    @property
    def nbytes(self) -> int:
        """Bytes the tables take."""
        return self.blocks.nbytes + self.final.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes of the projections that tables replace, of the tables, and what is saved."""

    weights_bytes: int
    tables_bytes: int

    @property
    def net_bytes(self) -> int:
        """Bytes saved; negative where tables are larger."""
        return self.weights_bytes - self.tables_bytes


def forecast(config: dict[str, int], steps: int, timesteps: int, itemsize: int = 2) -> MemoryReport:
    """Memory of tables for `steps` forwards of at most `timesteps` distinct timesteps, from a transformer's config."""
    hidden, embed, layers = config["hidden_size"], config["time_embed_dim"], config["num_layers"]
    outputs = layers * 6 * MODALITIES * hidden + 2 * hidden
    return MemoryReport(
        weights_bytes=outputs * (embed + 1) * itemsize,
        tables_bytes=outputs * steps * timesteps * itemsize,
    )


@torch.no_grad()
def build(projections: Projections, timesteps: Sequence[Tensor], key: TableKey) -> AdaLNTables:
    """Compute the tables of a schedule; `timesteps` holds one tensor (distinct timesteps,) a step, matching `key`.

    One projection is on the device at a time. Raises TableError when a layer is missing: tables are whole or not made.
    """
    if tuple(timestep_bits(each) for each in timesteps) != key.steps:
        raise TableError(f"a schedule of {len(timesteps)} steps does not match its key of {len(key.steps)} steps")
    # The activation runs in the embedder's precision, and is cast to the projection's once: as diffusers does.
    activations = [functional.silu(projections.temb(each)) for each in timesteps]
    most = max(each.shape[0] for each in activations)
    blocks: Tensor | None = None
    final: Tensor | None = None
    seen = set()
    for layer, weight, bias in projections.layers():
        rows = [functional.linear(each.to(weight.dtype), weight, bias) for each in activations]
        seen.add(layer)
        if layer == projections.num_layers:
            final = torch.zeros((len(rows), most, weight.shape[0]), dtype=weight.dtype, device=weight.device)
            for step, row in enumerate(rows):
                final[step, : row.shape[0]] = row
            continue
        if blocks is None:
            shape = (projections.num_layers, len(rows), most * MODALITIES, weight.shape[0] // MODALITIES)
            blocks = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        for step, row in enumerate(rows):
            blocks[layer, step, : row.shape[0] * MODALITIES] = row.view(-1, blocks.shape[-1])
    missing = sorted(set(range(projections.num_layers + 1)) - seen)
    if blocks is None or final is None or missing:
        raise TableError(f"AdaLN projections of layers {missing} are missing: no table was made")
    return AdaLNTables(key, blocks, final)


class ModelProjections:
    """The projections of a loaded diffusers transformer, merged adapters included."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_layers = len(model.transformer_blocks)

    def temb(self, timesteps: Tensor) -> Tensor:
        """See `Projections`."""
        embedder = self._model.time_embedder
        first = next(embedder.parameters())
        return embedder(self._model.time_proj(timesteps.to(first.device)).to(first.dtype))

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """See `Projections`."""
        device = next(self._model.time_embedder.parameters()).device
        modules = [block.adaln_proj.linear for block in self._model.transformer_blocks]
        for layer, module in enumerate([*modules, self._model.norm_out.linear]):
            if isinstance(module, TableLookup) or module.weight.is_meta:
                continue  # `build` then names it as missing
            yield layer, module.weight.to(device), module.bias.to(device)


class TableLookup(nn.Module):
    """Stands where an AdaLN projection was, and answers with the table row of the step that is running."""

    def __init__(self, tables: AdaLNTables, cursor: Cursor, layer: int) -> None:
        super().__init__()
        self._tables = tables
        self._cursor = cursor
        self._layer = layer
        # diffusers asks a projection's parameters for the dtype to cast to; this one is never multiplied by.
        self.anchor = nn.Parameter(torch.empty(0, dtype=tables.final.dtype, device=tables.final.device), False)

    def forward(self, activation: Tensor) -> Tensor:
        """(timesteps, time_embed_dim) -> (timesteps, outputs) of the projection that was replaced."""
        if self._layer == self._tables.blocks.shape[0]:
            return self._tables.output(self._cursor.step)
        return self._tables.block(self._layer, self._cursor.step).reshape(activation.shape[0], -1)


class Cursor:
    """Which step is running; shared by all lookups of one model."""

    def __init__(self) -> None:
        self.step = -1


class Installation:
    """Tables inside a diffusers transformer: every projection replaced, or none.

    The original projections are dropped with `release`; until then `remove` puts them back.
    """

    def __init__(self, model: Any, tables: AdaLNTables) -> None:
        """Replace all projections. On any error the model is as it was, and the error is raised."""
        self.tables = tables
        self.cursor = Cursor()
        self._model = model
        owners = [*(block.adaln_proj for block in model.transformer_blocks), model.norm_out]
        if len(owners) != tables.blocks.shape[0] + 1:
            raise TableError(f"tables of {tables.blocks.shape[0]} layers do not fit a model of {len(owners) - 1}")
        self._replaced: list[tuple[nn.Module, nn.Module]] = []
        try:
            for layer, owner in enumerate(owners):
                original = owner.linear
                outputs = tables.final.shape[-1] if layer == len(owners) - 1 else tables.blocks.shape[-1] * MODALITIES
                width = original.out_features if isinstance(original, nn.Linear) else outputs
                if width != outputs:
                    raise TableError(f"layer {layer} has {width} outputs, its table {outputs}")
                owner.linear = TableLookup(tables, self.cursor, layer)
                self._replaced.append((owner, original))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put every projection back that was replaced."""
        while self._replaced:
            owner, original = self._replaced.pop()
            owner.linear = original

    def release(self) -> None:
        """Let go of the original projections; `remove` can no longer bring them back."""
        self._replaced.clear()

    def select(self, bits: Bits) -> int:
        """Make the step with these timesteps the running one and return its index. Raises TableError without one."""
        self.cursor.step = self.tables.step(bits)
        return self.cursor.step
