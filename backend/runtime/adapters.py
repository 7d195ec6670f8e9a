"""LoRA files merged into a transformer's weights, and taken out again to the bit.

Reads what diffusers and PEFT read, by diffusers' own conversion. A weight is always made from the checkpoint's own
bits and all adapters in force, so no order of jobs leaves a trace; AdaLN tables are told the changes they need.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from backend.errors import H3Error
from backend.runtime.adaln_store import projection_names
from backend.runtime.adaln_tables import Projections
from backend.runtime.shards import Entry, entries, read_all
from backend.types import Adapter

TRANSFORMERS = ("transformer", "transformer_ref")
_PROJECTIONS = (".adaln_proj.linear", "norm_out.linear")
PEFT_PREFIX = "base_model.model."
# Other kinds of adapter, by what their tensors are called.
OTHER_KINDS = {"dora_scale": "DoRA", "lora_magnitude_vector": "DoRA", ".lokr_": "LoKr", ".hada_": "LoHa"}
_KOHYA = (
    (".lora_down.", ".lora_A."),
    (".lora_up.", ".lora_B."),
    (".lora.down.", ".lora_A."),
    (".lora.up.", ".lora_B."),
)


class AdapterError(H3Error):
    """A file is no adapter for this model; names the file, what is wrong with it and what would do."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one adapter adds to one weight (outputs, inputs): `scale * up @ down`, in float32."""

    down: Tensor  # (rank, inputs)
    up: Tensor  # (outputs, rank)
    scale: float

    def delta(self, device: torch.device) -> Tensor:
        """(outputs, inputs), float32, on `device`."""
        up, down = self.up.to(device, torch.float32), self.down.to(device, torch.float32)
        return torch.mm(up * self.scale, down)


Changes = Mapping[str, Sequence[Change]]  # by module name


def merged(weight: Tensor, changes: Sequence[Change], device: torch.device) -> Tensor:
    """`weight` with the changes, added in float32 and rounded once to its own type; computed on `device`."""
    if not changes:
        return weight
    total = weight.to(device, torch.float32, copy=True)
    for change in changes:
        total += change.delta(device)
    return total.to(weight.dtype)


class Adapters:
    """What is merged into one loaded transformer.

    folder: the transformer's own, whose shards hold the unchanged weights. device: where to compute.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.identity = ""  # of the adapters in force, scales included; "" for none
        self.changes: Changes = {}  # of the AdaLN projections, which tables are made from
        self._folder = folder
        self._device = device
        self._touched: set[str] = set()
        self._whole = True  # whether every weight is what `identity` says

    @torch.no_grad()
    def apply(self, model: Any, adapters: Sequence[Adapter], leave: Callable[[], object]) -> None:
        """Have exactly these adapters in force. Raises AdapterError, with the model as it was.

        leave: called before a weight is written; whoever keeps copies of weights on the device lets go of them.
        """
        wanted = identity(adapters)
        if wanted == self.identity and self._whole:
            return
        stored = entries(self._folder)
        changes: dict[str, list[Change]] = {}
        for number, adapter in enumerate(adapters):
            found = read(adapter.path, self._folder.name)
            for name, change in checked(found, stored, f"adapters[{number}]={adapter.path}").items():
                scaled = Change(change.down, change.up, change.scale * adapter.scale)
                changes.setdefault(name, []).append(scaled)
        leave()
        self._whole = False  # until all are written: what an error leaves half done is done again
        before, self._touched = self._touched, self._touched | changes.keys()
        self._write(model, {name: stored[f"{name}.weight"] for name in before}, changes)
        for name in changes.keys() - before:
            weight = _weight(model, name)
            if weight is not None:
                weight.copy_(merged(weight, changes[name], self._device))
        self._touched, self.identity, self._whole = set(changes), wanted, True
        projections = [name for name in changes if name.endswith(_PROJECTIONS)]
        self.changes = {name: changes[name] for name in projections}

    def _write(self, model: Any, stored: Mapping[str, Entry], changes: Changes) -> None:
        """Weights made anew from the checkpoint's own."""

        def take(name: str, tensor: Tensor) -> None:
            weight = _weight(model, name)
            assert weight is not None
            weight.copy_(merged(tensor.to(weight.dtype), changes.get(name, ()), self._device))

        here = {name: entry for name, entry in stored.items() if _weight(model, name) is not None}
        read_all(here, self._device, take, lambda _: None)


class ChangedProjections:
    """AdaLN projections as the adapters in force change them; see `adaln_tables.Projections`."""

    def __init__(self, base: Projections, changes: Changes, device: torch.device) -> None:
        self.num_layers = base.num_layers
        self._base, self._changes, self._device = base, changes, device

    def temb(self, timesteps: Tensor) -> Tensor:
        """See `Projections`; the time embedder is the model's own, changed already."""
        return self._base.temb(timesteps)

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """See `Projections`."""
        names = projection_names(self.num_layers)
        for layer, weight, bias in self._base.layers():
            yield layer, merged(weight, self._changes.get(names[layer], ()), self._device), bias


def identity(adapters: Sequence[Adapter]) -> str:
    """A digest of the files' content and of the scales, in order; "" for none. Raises AdapterError."""
    parts = [f"{_digest(adapter.path)}:{adapter.scale!r}" for adapter in adapters]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest() if parts else ""


_digests: dict[tuple[Path, int, int], str] = {}


def _digest(path: Path) -> str:
    try:
        state = path.stat()
        key = (path, state.st_size, state.st_mtime_ns)
        if key not in _digests:
            with path.open("rb") as file:
                _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterError(f"adapter={path}: cannot be read ({error.strerror}); check the path") from error
    return _digests[key]


def read(path: Path, component: str) -> dict[str, Change]:
    """The changes a file holds for `component` ("transformer" or "transformer_ref"), by module name.

    A file made for the first transformer is applied to the other one as well, as diffusers does. Raises AdapterError.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"adapter={path}: is no safetensors file ({error}); convert it to one") from error
    for mark, kind in OTHER_KINDS.items():
        if any(mark in name for name in names):
            raise AdapterError(f"adapter={path}: is a {kind} adapter; only LoRA is merged here")
    try:
        tensors, settings = _converted(path, names)
    except ValueError as error:
        raise AdapterError(f"adapter={path}: is no LoRA of MiniMax-H3 that diffusers knows ({error})") from error
    own = {prefix: _of(tensors, f"{prefix}.") for prefix in TRANSFORMERS}
    chosen = component if own[component] else TRANSFORMERS[0]
    if not own[chosen]:
        raise AdapterError(f"adapter={path}: holds nothing for {component}; it is for {TRANSFORMERS[1]} (ref2va) alone")
    return _pairs(path, own[chosen], _Scales(_of(settings, f"{chosen}.")))


def checked(changes: dict[str, Change], stored: Mapping[str, Entry], label: str) -> dict[str, Change]:
    """The changes, all of which fit weights of the checkpoint; raises AdapterError, which begins with `label`."""
    for name, change in changes.items():
        entry = stored.get(f"{name}.weight")
        if entry is None:
            raise AdapterError(f"{label}: changes {name}, which this model does not have; it is for another model")
        shape = (change.up.shape[0], change.down.shape[1])
        if entry.shape != shape:
            rule = f"changes {name} as {shape[0]}x{shape[1]}, which is {'x'.join(map(str, entry.shape))} here"
            raise AdapterError(f"{label}: {rule}; it is for a pruned or another model")
    return changes


def _converted(path: Path, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by diffusers' names with a component's prefix, and settings with the same prefix."""
    if any(name.startswith(PEFT_PREFIX) for name in names):
        tensors = {
            f"{TRANSFORMERS[0]}.{name.removeprefix(PEFT_PREFIX)}": each for name, each in load_file(path).items()
        }
        beside = path.with_name("adapter_config.json")
        settings = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
        return tensors, {f"{TRANSFORMERS[0]}.{name}": value for name, value in settings.items()}
    loaded, found = MiniMaxH3LoraLoaderMixin.lora_state_dict(
        str(path), return_lora_metadata=True, local_files_only=True, use_safetensors=True
    )
    prefixes = tuple(f"{name}." for name in TRANSFORMERS)

    def prefixed(content: Mapping[str, Any]) -> dict[str, Any]:
        # A file that a model itself saved names no component.
        return {name if name.startswith(prefixes) else prefixes[0] + name: value for name, value in content.items()}

    return prefixed(loaded), prefixed(found or {})


def _of(content: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in content.items() if name.startswith(prefix)}


class _Scales:
    """The factor of each module by a file's settings: alpha / rank, 1 where they say nothing."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._alpha = settings.get("lora_alpha")
        self._patterns: Mapping[str, float] = settings.get("alpha_pattern") or {}
        self._root = bool(settings.get("use_rslora"))

    def of(self, module: str, rank: int) -> float:
        """As PEFT computes it."""
        # peft.utils.get_pattern_key: a pattern names the end of a module's path.
        named = (alpha for pattern, alpha in self._patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
        alpha = next(named, self._alpha)
        return 1.0 if alpha is None else float(alpha) / (math.sqrt(rank) if self._root else rank)


def _pairs(path: Path, tensors: Mapping[str, Tensor], scales: _Scales) -> dict[str, Change]:
    left = {_plain(name): tensor for name, tensor in tensors.items()}
    changes = {}
    for module in sorted({name.partition(".lora_A.")[0] for name in left if ".lora_A." in name}):
        down, up = (left.pop(f"{module}.lora_{part}.weight", None) for part in ("A", "B"))
        if down is None or up is None or down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
            raise AdapterError(f"adapter={path}: {module} lacks one of its two matrices, or they do not fit together")
        alpha, rank = left.pop(f"{module}.alpha", None), down.shape[0]
        changes[module] = Change(down, up, scales.of(module, rank) if alpha is None else float(alpha) / rank)
    if left:
        raise AdapterError(f"adapter={path}: holds {min(left)}, which is no part of a LoRA that is merged here")
    if not changes:
        raise AdapterError(f"adapter={path}: holds no LoRA matrices")
    return changes


def _plain(name: str) -> str:
    for old, new in _KOHYA:
        name = name.replace(old, new)
    return re.sub(r"\.lora_([AB])\.default\.", r".lora_\1.", name)


def _weight(model: Any, name: str) -> Tensor | None:
    """The weight that a change of module `name` goes into; None where tables stand in its place."""
    weight = getattr(model.get_submodule(name), "weight", None)
    return None if weight is None or weight.is_meta else weight
