"""Which hardware preset suits a machine, with the reason in one sentence, and why the others do not.

A pure function of presets, hardware and what checkpoints are on this disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backend.errors import PresetError
from backend.hardware.probe import Gpu, Hardware
from backend.presets import Device, EngineName, HardwarePreset, pick

SLACK_GIB = 0.25  # drivers report a little less than the nominal size
MAX_FLEETS = 8  # of one host; as many as the GPUs of the largest

CheckpointState = Callable[[HardwarePreset], str | None]  # why a preset's checkpoint cannot be loaded now, or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A preset and why it was chosen, with the GPUs (UUIDs) of each fleet that runs at once.

    An empty share is not limited: its engine picks among all GPUs the program may use.
    """

    preset: HardwarePreset
    reason: str
    shares: tuple[tuple[str, ...], ...] = ((),)

    @property
    def fleets(self) -> int:
        """Jobs at once."""
        return len(self.shares)


def pick_gpus(preset: HardwarePreset, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs for one fleet of `preset`, one a rank, or () when there are not enough.

    Large enough ones only; of one kind where a kind has enough, the largest kind first; free ones before used ones.
    """
    count = gpus_of(preset)
    kinds: dict[str, list[Gpu]] = {}
    large = _large_enough(preset, gpus)
    for gpu in sorted(large, key=lambda gpu: gpu.memory_free_gib < gpu.memory_total_gib / 2):
        kinds.setdefault(gpu.name, []).append(gpu)
    whole = [kind for kind in kinds.values() if len(kind) >= count]
    if whole:
        return tuple(max(whole, key=lambda kind: kind[0].memory_total_gib)[:count])
    return tuple(large[:count]) if len(large) >= count else ()


def gpus_of(preset: HardwarePreset) -> int:
    """How many GPUs one fleet of `preset` takes."""
    return max(preset.requires.gpus, preset.world_size) if preset.device is Device.CUDA else preset.requires.gpus


def fleets_that_fit(preset: HardwarePreset, hardware: Hardware) -> int:
    """How many fleets of `preset` this machine holds side by side; a CPU holds as many as the preset says."""
    ram = hardware.ram_total_gib + SLACK_GIB
    by_ram = int(ram // preset.requires.host_ram_gib) if preset.requires.host_ram_gib else 8
    if not gpus_of(preset):
        return min(by_ram, max(1, preset.fleets))
    return min(by_ram, len(_large_enough(preset, hardware.gpus)) // gpus_of(preset))


def _large_enough(preset: HardwarePreset, gpus: Sequence[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if gpu.memory_total_gib + SLACK_GIB >= preset.requires.gpu_memory_gib]


def lacking(preset: HardwarePreset, hardware: Hardware, fleets: int = 1) -> str | None:
    """What `preset` needs and `hardware` has not ("needs 4 GPUs with 78 GiB, found 2 x 24 GiB"), or None."""
    needs = preset.requires
    count = gpus_of(preset) * fleets
    times = f" for {fleets} jobs at once" if fleets > 1 else ""
    if len(_large_enough(preset, hardware.gpus)) < count:
        size = f" with {needs.gpu_memory_gib:g} GiB" if needs.gpu_memory_gib else ""
        return f"needs {count} GPU{'s' if count > 1 else ''}{size}{times}, found {_found(hardware.gpus)}"
    if hardware.ram_total_gib + SLACK_GIB < needs.host_ram_gib * fleets:
        ram = f"{needs.host_ram_gib * fleets:g} GiB of host RAM{times}"
        return f"needs {ram}, found {hardware.ram_total_gib:.0f} GiB"
    return None


def nearest_change(preset: HardwarePreset, hardware: Hardware) -> str | None:
    """The least that would let `preset` run on this machine, in words, or None where nothing is lacking."""
    needs, count = preset.requires, gpus_of(preset)
    large = len(_large_enough(preset, hardware.gpus))
    changes = []
    if large < count:
        more = count - large
        which = f"GPU{'s' if more > 1 else ''} with {needs.gpu_memory_gib:g} GiB or more"
        changes.append(f"{more} {'more ' if large else ''}{which}")
        hidden = len(hardware.gpus) - large
        if hidden and not large:
            largest = max(gpu.memory_total_gib for gpu in hardware.gpus)
            changes[-1] += f" (the largest here has {largest:.0f})"
    short = needs.host_ram_gib - hardware.ram_total_gib
    if short > SLACK_GIB:
        changes.append(f"{math.ceil(short)} GiB more host RAM")
    return " and ".join(changes) or None


def unavailable(preset: HardwarePreset, hardware: Hardware, checkpoint: CheckpointState) -> str | None:
    """Why `preset` cannot run here and now, in words, or None."""
    return lacking(preset, hardware) or checkpoint(preset)


def choose(
    presets: Mapping[str, HardwarePreset],
    hardware: Hardware,
    checkpoint: CheckpointState,
    name: str | None = None,
    fleets: int | None = None,
) -> Choice:
    """The preset called `name`, or the most demanding one that can run here. Raises PresetError.

    fleets: jobs at once. 1 gives all GPUs to one job; N asks for N side by side; 0 for as many as fit, on the preset
    that takes the fewest GPUs a job; None leaves it to the preset.
    """
    if fleets is not None and not 0 <= fleets <= MAX_FLEETS:
        raise PresetError(f"fleets={fleets}: must be 0 (as many as fit) to {MAX_FLEETS}")
    if name is not None:
        preset = pick(dict(presets), name)
        return _spread(preset, f"{name} was asked for by name.", hardware, fleets)
    offered = [preset for preset in presets.values() if preset.engine is EngineName.NATIVE]
    wanted = fleets or 1

    def blocked(preset: HardwarePreset) -> str | None:
        return lacking(preset, hardware, wanted) or checkpoint(preset)

    fitting = [preset for preset in offered if blocked(preset) is None]
    if not fitting:
        why = "; ".join(f"{preset.name} {blocked(preset)}" for preset in offered)
        times = f"{wanted} times at once " if wanted > 1 else ""
        raise PresetError(f"no preset runs {times}on this machine: {why}")
    best = max(fitting, key=_most_jobs if fleets == 0 else _demand)
    return _spread(best, _reason(best, offered, hardware, checkpoint), hardware, fleets)


def _spread(preset: HardwarePreset, reason: str, hardware: Hardware, fleets: int | None) -> Choice:
    """Give each fleet its GPUs, and say so. Raises PresetError where the machine has too few."""
    wanted = preset.fleets if fleets is None else fleets
    count = wanted or max(1, fleets_that_fit(preset, hardware))
    if count == 1:
        return Choice(preset=preset, reason=reason)
    if missing := lacking(preset, hardware, count):
        way_out = f"fleets={max(1, fleets_that_fit(preset, hardware))} fits"
        raise PresetError(f"fleets={count}: {preset.name} {missing}; {way_out}")
    each = gpus_of(preset)
    left, shares = list(hardware.gpus), []
    for _ in range(count):
        chosen = pick_gpus(preset, left)
        left = [gpu for gpu in left if gpu not in chosen]
        shares.append(tuple(gpu.uuid for gpu in chosen))
    where = f"each on {each} GPU{'s' if each > 1 else ''} of its own" if each else "on the same CPU"
    return Choice(preset=preset, reason=f"{reason[:-1]}; {count} jobs run at once, {where}.", shares=tuple(shares))


def _most_jobs(preset: HardwarePreset) -> tuple[bool, int, float, str]:
    """Any GPU before none, then the fewest GPUs a job, then the largest."""
    count = gpus_of(preset)
    return count > 0, -count, preset.requires.gpu_memory_gib, preset.name


def _demand(preset: HardwarePreset) -> tuple[int, float, float, str]:
    needs = preset.requires
    return gpus_of(preset), needs.gpu_memory_gib, needs.host_ram_gib, preset.name


def _least_memory(preset: HardwarePreset) -> tuple[float, int]:
    return preset.requires.gpu_memory_gib, gpus_of(preset)


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
    nearest = {min(wanting, key=_demand).name, min(wanting, key=_least_memory).name}  # fewer GPUs, or smaller ones
    said = [preset for preset in wanting if preset.name in nearest]
    return f"No GPU preset fits ({_why_not(said, hardware, checkpoint)}): {best.title}."


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
