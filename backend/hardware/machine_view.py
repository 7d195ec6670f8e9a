"""The machine as people see it: GPUs and who uses them, every preset with its plan or its reason, ranks that run now.

Plain figures and words for the page and `doctor`, made from what the other modules answer; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.errors import Problem
from backend.hardware.choose import Choice, lacking, nearest_change
from backend.hardware.forecast import Question, StageTime, forecast, scaled_shape
from backend.hardware.model_size import ModelSize
from backend.hardware.placement import Part, Placement, StageMemory
from backend.hardware.probe import Gpu, GpuUser, Hardware
from backend.hardware.request_shape import RequestShape
from backend.hardware.topology import RankView
from backend.presets import EngineName, HardwarePreset, Offload
from backend.types import Stage

Case = tuple[RequestShape, ModelSize]  # the clip a preset is judged by, and the model it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU or MIG slice. `link` is "NVLink", "PCIe" or "MIG slice"; `ours` the ranks on it, `others` who else."""

    index: int
    uuid: str
    name: str
    link: str
    mig: bool
    total_gib: float
    free_gib: float
    used_gib: float
    compute_capability: str  # "9.0", or "" where the driver does not tell
    ours: tuple[int, ...]  # pids of ranks of this program
    others: tuple[GpuUser, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What a preset puts on one GPU, a stage at a time, with the fullest stage. GPU fields are empty on a CPU.

    `planned` says that no such GPU is here: the figures are for a card as the preset asks for.
    """

    rank: int
    gpu_index: int | None
    gpu_name: str
    planned: bool
    total_gib: float | None
    usable_gib: float | None
    peak_stage: Stage
    peak_gib: float
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetView:
    """One preset on this machine. `reason` says why it cannot run here and now and `change` what would let it, or None.

    Memory and seconds are those of the usual clip, in `clip`'s words. `step_s`, `total_s` and `times` are None and
    empty where this machine has no such GPUs, and all figures where a server elsewhere computes.
    """

    name: str
    title: str
    description: str
    source: str
    checkpoint: str
    device: str
    world_size: int
    gpu_memory_gib: float
    needs_host_ram_gib: float
    form: str  # "Ulysses 2 gathered, FSDP, all resident"
    chosen: bool
    fits: bool
    reason: str | None
    change: str | None
    clip: str  # "1344x768, 124 frames, 49 forwards"
    ranks: tuple[RankMemory, ...]
    peak_gib: float
    host: tuple[Part, ...]
    host_gib: float
    step_s: float | None
    total_s: float | None
    times: tuple[StageTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """Everything a panel of the machine shows. `gpu_note` says why there are no GPUs, or fewer than the machine has.

    `shares` holds the GPUs (UUIDs) of each fleet, empty where a fleet may take any.
    """

    gpus: tuple[GpuView, ...]
    gpu_note: str
    driver: str
    ram_total_gib: float
    ram_free_gib: float
    disk_free_gib: float
    cpu_cores: int
    chosen: str
    reason: str
    fleets: int
    shares: tuple[tuple[str, ...], ...]
    presets: tuple[PresetView, ...]
    ranks: tuple[RankView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What the presets are judged by: `unavailable` says why one cannot run here and now, `case` what it would run."""

    unavailable: Callable[[HardwarePreset], str | None]
    case: Callable[[HardwarePreset], Case]


def machine_view(
    hardware: Hardware,
    presets: Sequence[HardwarePreset],
    choice: Choice,
    ranks: Sequence[RankView],
    judge: Judge,
) -> MachineView:
    """The whole picture at this moment."""
    return MachineView(
        gpus=tuple(_gpu(gpu, ranks) for gpu in hardware.gpus),
        gpu_note=hardware.gpu_note,
        driver=hardware.driver,
        ram_total_gib=hardware.ram_total_gib,
        ram_free_gib=hardware.ram_free_gib,
        disk_free_gib=hardware.disk_free_gib,
        cpu_cores=hardware.cpu_cores,
        chosen=choice.preset.name,
        reason=choice.reason,
        fleets=choice.fleets,
        shares=choice.shares,
        presets=tuple(_preset(preset, hardware, choice, judge) for preset in presets),
        ranks=tuple(ranks),
    )


def form(preset: HardwarePreset, parked: Sequence[str]) -> str:
    """How a preset runs, in a few words: "Ulysses 4 packed, FSDP, parked: text encoder, transformer"."""
    if preset.elsewhere:
        return "nothing is computed here"
    words = [preset.parallel.form(preset.parallel.wanted_exchange)]
    if preset.runtime.offload is Offload.BLOCKS:
        kept = preset.runtime.resident_layers
        words.append("streamed block by block" + (f", {kept} kept" if kept else ""))
    elif parked:
        names = ", ".join(name.replace("_", " ") for name in parked)
        words.append("all parked" if "vae" in parked else f"parked: {names}")
    else:
        words.append("all resident")
    return ", ".join(word for word in words if word)


def _gpu(gpu: Gpu, ranks: Sequence[RankView]) -> GpuView:
    ours = tuple(rank.pid for rank in ranks if rank.gpu_uuid == gpu.uuid)
    return GpuView(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        link="MIG slice" if gpu.mig else gpu.link,
        mig=gpu.mig,
        total_gib=gpu.memory_total_gib,
        free_gib=gpu.memory_free_gib,
        used_gib=gpu.memory_total_gib - gpu.memory_free_gib,
        compute_capability=".".join(map(str, gpu.compute_capability)),
        ours=ours,
        others=tuple(user for user in gpu.users if user.pid not in ours),
    )


def _preset(preset: HardwarePreset, hardware: Hardware, choice: Choice, judge: Judge) -> PresetView:
    shape, size = judge.case(preset)
    question = Question(preset=preset, shape=shape, size=size, shape_at=lambda *at: scaled_shape(shape, *at), warm=True)
    told = forecast(hardware, question)
    reason = judge.unavailable(preset) or (None if told.refusal is None else str(told.refusal))
    here = all(not _planned(rank.gpu) for rank in told.placement.ranks)
    return PresetView(
        name=preset.name,
        title=preset.title,
        description=preset.description,
        source=preset.source,
        checkpoint=preset.checkpoint,
        device=preset.device.value,
        world_size=preset.world_size,
        gpu_memory_gib=preset.requires.gpu_memory_gib,
        needs_host_ram_gib=preset.requires.host_ram_gib,
        form=form(preset, told.placement.parked),
        chosen=preset.name == choice.preset.name,
        fits=reason is None,
        reason=reason,
        change=_change(preset, hardware, told.refusal, reason),
        clip=f"{shape.width}x{shape.height}, {shape.num_frames} frames, {shape.forwards} forwards",
        ranks=_ranks(told.placement),
        peak_gib=told.gpu_gib,
        host=told.placement.host,
        host_gib=told.host_gib,
        step_s=told.step_s if here else None,
        total_s=told.total_s if here else None,
        times=told.times if here else (),
    )


def _change(preset: HardwarePreset, hardware: Hardware, refusal: Problem | None, reason: str | None) -> str | None:
    """What would let the preset run: hardware first, then a smaller clip, then weights."""
    if lacking(preset, hardware) is not None:
        return nearest_change(preset, hardware)
    if refusal is not None:
        return refusal.way_out
    if preset.engine is EngineName.REMOTE:
        return None if reason is None else "the address of a server in H3_REMOTE_URL"
    return None if reason is None else f"the weights of {preset.checkpoint} on this disk"


def _planned(gpu: Gpu | None) -> bool:
    return gpu is not None and gpu.uuid.startswith("planned-")


def _ranks(placement: Placement) -> tuple[RankMemory, ...]:
    return tuple(
        RankMemory(
            rank=place.rank,
            gpu_index=None if place.gpu is None or _planned(place.gpu) else place.gpu.index,
            gpu_name="" if place.gpu is None else place.gpu.name,
            planned=_planned(place.gpu),
            total_gib=None if place.gpu is None else place.gpu.memory_total_gib,
            usable_gib=None if place.gpu is None else place.usable_gib,
            peak_stage=place.peak.stage,
            peak_gib=place.peak.gib,
            stages=place.stages,
        )
        for place in placement.ranks
    )
