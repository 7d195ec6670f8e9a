"""Models built without weights and filled from their shards on the device: no second copy, nothing that is not needed.

Knows the classes' own rules (which modules stay float32); where components wait afterwards is the plan's matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from backend.errors import CheckpointError
from backend.runtime.shards import Entry, entries, read_all

OnBytes = Callable[[int, int], None]  # bytes read so far, bytes in all


def build(kind: Any, folder: Path) -> nn.Module:
    """A diffusers or transformers model from its config, parameters on the meta device, buffers real."""
    with init_empty_weights(include_buffers=False):
        if hasattr(kind, "load_config"):
            return kind.from_config(kind.load_config(str(folder))).eval().requires_grad_(False)
        config = kind.config_class.from_pretrained(str(folder))
        return kind(config).eval().requires_grad_(False)


def needed(model: nn.Module, folder: Path) -> dict[str, Entry]:
    """The shards' tensors that are parameters or buffers of `model`. Raises CheckpointError when one is missing."""
    stored = entries(folder)
    names = {name for name, _ in model.named_parameters()}
    missing = sorted(names - stored.keys())
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise CheckpointError(f"checkpoint={folder}: has no {shown}; download it again")
    wanted = names | {name for name, _ in model.named_buffers()}
    chosen = {name: entry for name, entry in stored.items() if name in wanted}
    for name, parameter in model.named_parameters():
        if chosen[name].shape != tuple(parameter.shape):
            rule = f"is {chosen[name].shape} in the file and {tuple(parameter.shape)} in the model's config"
            raise CheckpointError(f"checkpoint={folder}: {name} {rule}; the files do not belong together")
    return chosen


def _whole(_name: str, tensor: Tensor) -> Tensor:
    return tensor


def fill(
    model: nn.Module,
    wanted: Mapping[str, Entry],
    device: torch.device,
    dtype: torch.dtype,
    on_bytes: OnBytes,
    cut: Callable[[str, Tensor], Tensor] = _whole,
) -> nn.Module:
    """Read `wanted` into `model` on `device` as `dtype`; modules that the class pins stay float32, as it loads them.

    Parameters that are not in `wanted` stay on the meta device. cut: what is kept of a tensor, given its name. Peak
    memory is what is kept and one tensor a thread.
    """
    total = sum(entry.nbytes for entry in wanted.values())
    pinned = set(getattr(model, "_keep_in_fp32_modules", None) or ())

    def take(name: str, tensor: Tensor) -> None:
        part = cut(name, tensor)
        # A copy of a part, so that what it was cut from can go.
        tensor = part if part.numel() == tensor.numel() else part.clone()
        if tensor.is_floating_point():
            kind = torch.float32 if dtype is not torch.float32 and pinned & set(name.split(".")) else dtype
            tensor = tensor.to(kind)
        put(model, name, tensor)

    on_bytes(0, total)
    read_all(wanted, device, take, lambda done: on_bytes(done, total))
    for name, buffer in list(model.named_buffers()):
        put(model, name, buffer.to(device))
    return model


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Set parameter or buffer `name` of `model`."""
    owner_name, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(owner_name)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        owner._buffers[leaf] = tensor


def config_of(folder: Path) -> dict[str, Any]:
    """The component's config.json."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))
