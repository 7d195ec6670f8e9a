"""Which hardware preset suits a machine, with the reason in one sentence, and why the others do not.

A pure function of presets, hardware and what checkpoints are on this disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.errors import PresetError
from backend.hardware.probe import Gpu, Hardware
from backend.presets import Device, EngineName, HardwarePreset, pick

SLACK_GIB = 0.25  # drivers report a little less than the nominal size

CheckpointState = Callable[[HardwarePreset], str | None]  # why a preset's checkpoint cannot be loaded now, or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A preset and why it was chosen."""

    preset: HardwarePreset
    reason: str


def lacking(preset: HardwarePreset, hardware: Hardware) -> str | None:
    """What `preset` needs and `hardware` has not ("needs 4 GPUs with 78 GiB, found 2 x 24 GiB"), or None."""
    needs = preset.requires
    count = max(needs.gpus, preset.world_size if preset.device is Device.CUDA else 0)
    large = [gpu for gpu in hardware.gpus if gpu.memory_total_gib + SLACK_GIB >= needs.gpu_memory_gib]
    if len(large) < count:
        size = f" with {needs.gpu_memory_gib:g} GiB" if needs.gpu_memory_gib else ""
        return f"needs {count} GPU{'s' if count > 1 else ''}{size}, found {_found(hardware.gpus)}"
    if hardware.ram_total_gib + SLACK_GIB < needs.host_ram_gib:
        return f"needs {needs.host_ram_gib:g} GiB of host RAM, found {hardware.ram_total_gib:.0f} GiB"
    return None


def unavailable(preset: HardwarePreset, hardware: Hardware, checkpoint: CheckpointState) -> str | None:
    """Why `preset` cannot run here and now, in words, or None."""
    return lacking(preset, hardware) or checkpoint(preset)


def choose(
    presets: Mapping[str, HardwarePreset],
    hardware: Hardware,
    checkpoint: CheckpointState,
    name: str | None = None,
) -> Choice:
    """The preset called `name`, or the most demanding one that can run here. Raises PresetError."""
    if name is not None:
        return Choice(preset=pick(dict(presets), name), reason=f"{name} was asked for by name.")
    offered = [preset for preset in presets.values() if preset.engine is not EngineName.STUB]
    fitting = [preset for preset in offered if unavailable(preset, hardware, checkpoint) is None]
    if not fitting:
        raise PresetError("no preset runs on this machine: " + _why_not(offered, hardware, checkpoint))
    best = max(fitting, key=_demand)
    return Choice(preset=best, reason=_reason(best, offered, hardware, checkpoint))


def _demand(preset: HardwarePreset) -> tuple[int, float, float, str]:
    needs = preset.requires
    gpus = max(needs.gpus, preset.world_size if preset.device is Device.CUDA else 0)
    return gpus, needs.gpu_memory_gib, needs.host_ram_gib, preset.name


def _reason(
    best: HardwarePreset, offered: list[HardwarePreset], hardware: Hardware, checkpoint: CheckpointState
) -> str:
    if best.device is Device.CUDA:
        return f"{best.title} is the largest setup that fits: {_found(hardware.gpus)} found."
    if not hardware.gpus:
        return f"No GPU found: {best.title}."
    wanting = [preset for preset in offered if preset.device is Device.CUDA]
    unloaded = [preset for preset in wanting if lacking(preset, hardware) is None]
    if unloaded:
        first = max(unloaded, key=_demand)
        return f"{first.title} would fit, but its model is missing ({checkpoint(first)}): {best.title}."
    return f"No GPU preset fits ({_why_not(wanting, hardware, checkpoint)}): {best.title}."


def _why_not(presets: list[HardwarePreset], hardware: Hardware, checkpoint: CheckpointState) -> str:
    return "; ".join(f"{preset.name} {unavailable(preset, hardware, checkpoint)}" for preset in presets)


def _found(gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "none"
    kinds: dict[str, int] = {}
    for gpu in gpus:
        label = f"{gpu.name} ({gpu.memory_total_gib:.0f} GiB)"
        kinds[label] = kinds.get(label, 0) + 1
    return ", ".join(f"{count} x {label}" for label, count in kinds.items())
