"""AdaLN tables from the shards, and tables kept on disk: the second start reads one gigabyte instead of 24.

A table file carries its whole key and is written whole or not at all; when tables are installed is not decided here.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backend.runtime.adaln_tables import AdaLNTables, ModelProjections, TableError, TableKey
from backend.runtime.shards import Entry, Reader, entries

SAMPLE = 4096  # bytes at the start, the middle and the end of a projection that go into a checkpoint's identity
VERSION = 1  # of the file's content; part of its name


class ShardProjections:
    """The projections of a transformer's folder, streamed from its shards to `device` one at a time, as `dtype`.

    The small time embedder is `model`'s own, so that its numbers are exactly those the model would have used.
    """

    def __init__(self, folder: Path, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.num_layers = int(model.config.num_layers)
        self._model = model
        self._entries = entries(folder)
        self._reader = Reader(device)
        self._device, self._dtype = device, dtype

    def temb(self, timesteps: Tensor) -> Tensor:
        """See `Projections`."""
        return ModelProjections(self._model).temb(timesteps).to(self._device)

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """See `Projections`; in file order."""
        names = projection_names(self.num_layers)
        present = (layer for layer in range(len(names)) if f"{names[layer]}.weight" in self._entries)

        def place(layer: int) -> tuple[Path, int]:
            entry = self._entries[f"{names[layer]}.weight"]
            return entry.file, entry.offset

        for layer in sorted(present, key=place):
            weight, bias = (self._read(f"{names[layer]}.{part}").to(self._dtype) for part in ("weight", "bias"))
            yield layer, weight, bias

    def _read(self, name: str) -> Tensor:
        if name not in self._entries:
            raise TableError(f"{name} is not in the checkpoint's shards: no table was made")
        return self._reader.read(self._entries[name])


def projection_names(num_layers: int) -> list[str]:
    """Module names of the AdaLN projections, the output norm's last."""
    return [*(f"transformer_blocks.{layer}.adaln_proj.linear" for layer in range(num_layers)), "norm_out.linear"]


def checkpoint_identity(folder: Path) -> str:
    """A digest of what tables depend on: every header, the time embedder, and samples of each projection.

    Reads about a megabyte. A copy of a checkpoint has the same identity; a fine-tune or a merged adapter has another.
    """
    found = entries(folder)
    digest = hashlib.sha256()
    for name in sorted(found):
        entry = found[name]
        digest.update(f"{name} {entry.dtype} {entry.shape}\n".encode())
        if ".adaln_proj." in name or name.startswith(("norm_out.linear.", "time_embedder.")):
            for piece in _samples(entry):
                digest.update(piece)
    return digest.hexdigest()


def _samples(entry: Entry) -> Iterator[bytes]:
    with entry.file.open("rb") as handle:
        for start in {0, max(0, entry.nbytes // 2 - SAMPLE // 2), max(0, entry.nbytes - SAMPLE)}:
            handle.seek(entry.offset + start)
            yield handle.read(min(SAMPLE, entry.nbytes - start))


class TableStore:
    """Table files in one folder, named by their key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: TableKey) -> Path:
        """Where the tables of `key` lie, whether they are there or not."""
        return self._folder / f"adaln-{hashlib.sha256(_as_json(key).encode()).hexdigest()[:32]}.safetensors"

    def load(self, key: TableKey, device: torch.device) -> AdaLNTables | None:
        """The tables of `key` on `device`, or None where there are none (or none that are whole and truly theirs)."""
        path = self.path(key)
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                if (file.metadata() or {}).get("key") != _as_json(key):
                    return None
                return AdaLNTables(key, file.get_tensor("blocks"), file.get_tensor("final"))
        except (FileNotFoundError, SafetensorError):
            return None

    def save(self, tables: AdaLNTables) -> Path:
        """Write the tables, whole or not at all. Raises OSError where the folder cannot take them."""
        path = self.path(tables.key)
        self._folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        content = {"blocks": tables.blocks.cpu().contiguous(), "final": tables.final.cpu().contiguous()}
        try:
            save_file(content, part, metadata={"key": _as_json(tables.key)})
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path


def _as_json(key: TableKey) -> str:
    return json.dumps([VERSION, key.checkpoint, key.adapters, [list(step) for step in key.steps]])
