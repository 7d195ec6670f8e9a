"""Which rank sits on which GPU and what lies in its memory in each stage: arithmetic over presets, sizes and rows.

Pure: nothing is asked of a driver, nothing is loaded. Seconds are `forecast`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend import footprint
from backend.footprint import NCCL, RESERVE
from backend.hardware.choose import gpus_of, pick_gpus
from backend.hardware.model_size import CONDITIONER_LAYERS, GIB, ModelSize
from backend.hardware.probe import Gpu, Hardware
from backend.hardware.request_shape import RequestShape
from backend.presets import Device, HardwarePreset, Offload
from backend.types import Stage

TILE_BYTES = 136_000_000  # of one VAE tile in a stack, width 2048: (8.83 - 5.19) GiB for 28
LIBRARIES = 0.6 * GIB  # of RESERVE: CUDA context, cuBLAS and cuDNN workspaces, outside torch's allocator
ROOMS = 2  # blocks that are whole at a time where they are gathered or streamed: one computes, one arrives
ENCODER_PX_BYTES = 128 * 4 * 4  # first stage of the VAE's encoder: 128 channels, float32, four of them alive
ENCODER_TILE_PX = 256 * 256 * 17
# Host memory of a rank: torch, diffusers and transformers, and on a CPU the frames on their way to the encoder.
CPU_PROCESS_GIB, GPU_PROCESS_GIB = 0.84, 3.0
CPU_FRAME_PX_BYTES = 1500
USED_IN = {
    Stage.ENCODE: ("text_encoder", "vae", "audio_vae"),
    Stage.DENOISE: ("transformer",),
    Stage.DECODE: ("vae", "audio_vae"),
}
FORMULA, MEASURED = "formula", "measured on one H200 (bench/results/step.json, decode.json)"
MEASURED_2 = "measured on two H200s (bench/results/parallel-2.json)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An amount of memory or disk, with where its number comes from."""

    name: str
    gib: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What lies on one GPU (on a CPU: in one process) in a stage."""

    stage: Stage
    parts: tuple[Part, ...]

    @property
    def gib(self) -> float:
        """The sum."""
        return sum(part.gib for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank: its GPU (None on a CPU) and its memory by stage."""

    rank: int
    gpu: Gpu | None
    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> StageMemory:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.gib)

    @property
    def usable_gib(self) -> float:
        """What this rank may fill of its GPU; unlimited on a CPU, where host RAM is the limit."""
        return float("inf") if self.gpu is None else self.gpu.memory_total_gib - (RESERVE - LIBRARIES) / GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where everything of a request lies. `lacks` says in words why it does not fit, or is None."""

    ranks: tuple[RankPlace, ...]  # empty where a server elsewhere computes
    parked: tuple[str, ...]  # components that wait in host memory while idle
    host: tuple[Part, ...]
    lacks: str | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The GPU of rank 0, as the others have; None on a CPU and elsewhere."""
        return self.ranks[0].gpu if self.ranks else None

    @property
    def host_gib(self) -> float:
        """Host memory of all ranks."""
        return sum(part.gib for part in self.host)

    @property
    def tightest(self) -> RankPlace:
        """The rank with the least room left."""
        return min(self.ranks, key=lambda rank: rank.usable_gib - rank.peak.gib)


def place(hardware: Hardware, preset: HardwarePreset, shape: RequestShape, size: ModelSize) -> Placement:
    """Place a request of `shape` on `preset`. A machine with too few GPUs gets imaginary ones of the preset's size."""
    if preset.elsewhere:
        return Placement(ranks=(), parked=(), host=())
    gpus: tuple[Gpu | None, ...] = (None,) * preset.world_size
    if gpus_of(preset):
        gpus = pick_gpus(preset, hardware.gpus) or tuple(imaginary(preset))
    weights = [_weights(preset, size, shape, rank) for rank in range(preset.world_size)]
    parked = _parked(preset, size, weights, gpus)
    case = _Case(preset, shape, size, parked)
    places = []
    for rank, (gpu, held) in enumerate(zip(gpus, weights, strict=True)):
        stages = tuple(_stage(stage, case, held, gpu) for stage in USED_IN)
        places.append(RankPlace(rank=rank, gpu=gpu, stages=stages))
    host = _host(case, weights, places)
    placement = Placement(ranks=tuple(places), parked=parked, host=host)
    lacks = _gpu_lacks(placement) or _host_lacks(placement, hardware)
    return Placement(ranks=placement.ranks, parked=parked, host=host, lacks=lacks)


def imaginary(preset: HardwarePreset) -> list[Gpu]:
    """GPUs such as `preset` asks for, to plan without any."""
    total = preset.requires.gpu_memory_gib or 80.0
    return [
        Gpu(
            index=index,
            uuid=f"planned-{index}",
            name=f"a GPU of {total:g} GiB",
            memory_total_gib=total,
            memory_free_gib=total,
        )
        for index in range(preset.world_size)
    ]


def _weights(preset: HardwarePreset, size: ModelSize, shape: RequestShape, rank: int) -> dict[str, float]:
    """Bytes of each component that `rank` has on its device while the component runs."""
    parallel, runtime = preset.parallel, preset.runtime
    tables = size.tables(shape.forwards, shape.timesteps)
    use_tables = runtime.adaln_tables and (tables < size.adaln or runtime.fast_load)
    block = size.block / parallel.tensor_parallel_size
    blocks = block * size.layers
    if parallel.fsdp and parallel.ulysses_degree > 1:  # own shard, and the blocks that are gathered
        blocks = blocks / parallel.ulysses_degree + ROOMS * block
    readers, layers = parallel.conditioner_tensor_parallel, CONDITIONER_LAYERS
    if runtime.offload is Offload.BLOCKS:
        blocks = min(blocks, (ROOMS + runtime.resident_layers) * block)
        layers = ROOMS
    adaln = 0.0 if use_tables else size.adaln / parallel.tensor_parallel_size
    return {
        "text_encoder": _conditioner(size, layers, readers) if rank < readers else 0.0,
        "transformer": size.outside_blocks + blocks + adaln,
        "tables": float(tables) if use_tables else 0.0,
        "vae": float(size.vae),
        "audio_vae": float(size.audio_vae),
    }


def _conditioner(size: ModelSize, layers: int, readers: int) -> float:
    """Bytes of so many of the conditioner's layers, divided by its ranks, and of all that each of them holds whole."""
    return size.text_encoder - CONDITIONER_LAYERS * size.text_layer + layers * size.text_layer / readers


def _parked(
    preset: HardwarePreset, size: ModelSize, weights: list[dict[str, float]], gpus: tuple[Gpu | None, ...]
) -> tuple[str, ...]:
    """Components that wait in host memory, by the rule of backend.runtime.plan: only as many as must."""
    if preset.device is Device.CPU or preset.runtime.offload is Offload.NONE:
        return ()
    large = ("text_encoder", "transformer")
    room = min(gpu.memory_total_gib * GIB - RESERVE for gpu in gpus if gpu is not None)
    held = {name: max(each[name] for each in weights) for name in weights[0] if name != "tables"}
    work = footprint.planned_work(size.widths, preset.parallel, preset.runtime)
    if preset.runtime.offload is Offload.AUTO and sum(held.values()) + max(work.values()) <= room:
        return ()
    enough = all(_planned(stage, held, large) + work[stage.value] <= room for stage in USED_IN)
    return large if enough else tuple(held)


def _planned(stage: Stage, held: Mapping[str, float], parked: tuple[str, ...]) -> float:
    staying = sum(size for name, size in held.items() if name not in parked)
    return staying + _visiting(stage, held, parked)


def _visiting(stage: Stage, held: Mapping[str, float], parked: tuple[str, ...]) -> float:
    return max((held[name] for name in USED_IN[stage] if name in parked), default=0.0)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is placed: the same for every rank and stage."""

    preset: HardwarePreset
    shape: RequestShape
    size: ModelSize
    parked: tuple[str, ...]


def _stage(stage: Stage, case: _Case, held: Mapping[str, float], gpu: Gpu | None) -> StageMemory:
    parked = case.parked
    parts = []
    for name, held_bytes in held.items():
        here = name not in parked or (name in USED_IN[stage] and held_bytes == _visiting(stage, held, parked))
        if name == "tables":
            here = stage is Stage.DENOISE or "transformer" not in parked
        if here and held_bytes:
            basis = FORMULA if name == "tables" else f"{FORMULA}: {case.size.source}"
            parts.append(Part(name=name, gib=held_bytes / GIB, basis=basis))
    used = sum(part.gib for part in parts) * GIB
    parts += _work(stage, case, used, gpu)
    if gpu is not None:
        parts.append(
            Part(name="CUDA context and libraries", gib=LIBRARIES / GIB, basis="typical of torch 2.11, CUDA 13")
        )
    return StageMemory(stage=stage, parts=tuple(parts))


def _work(stage: Stage, case: _Case, used: float, gpu: Gpu | None) -> list[Part]:
    preset, shape, size = case.preset, case.shape, case.size
    if stage is Stage.ENCODE:
        text = shape.text_rows * size.text_hidden * size.dtype_bytes * 20
        picture = min(shape.encoded_px, ENCODER_TILE_PX) * ENCODER_PX_BYTES * size.vae_width / 2048
        return [Part(name="activations", gib=(text + picture) / GIB, basis=FORMULA)]
    if stage is Stage.DECODE:
        tile = TILE_BYTES * size.vae_width / 2048 * size.dtype_bytes / 2
        share = preset.world_size if preset.parallel.vae_tile_parallel else 1
        tiles = -(-shape.tiles // share)
        if preset.runtime.vae_tile_batch:
            tiles = min(tiles, preset.runtime.vae_tile_batch)
        elif gpu is not None:  # the decoder takes what is free, and one tile at the least
            tiles = max(1, min(tiles, int((gpu.memory_total_gib * GIB - LIBRARIES - used) * 0.85 / tile)))
        return [Part(name=f"VAE stack of {tiles} tiles", gib=tiles * tile / GIB, basis=MEASURED)]
    parallel = preset.parallel
    forward = footprint.activations(shape.rows, size.widths, parallel, fused=preset.runtime.fused_block)
    parts = [Part(name="activations", gib=forward / GIB, basis=MEASURED)]
    if exchange := footprint.exchange(shape.rows, size.widths, parallel):
        measured = MEASURED_2 if parallel.ulysses_degree == 2 else f"{FORMULA}, {MEASURED_2}"
        parts.append(Part(name="exchange", gib=exchange / GIB, basis=measured))
    if preset.world_size > 1 and preset.device is Device.CUDA:
        parts.append(Part(name="NCCL", gib=NCCL / GIB, basis="an estimate"))
    return parts


def _stored(name: str, held: Mapping[str, float], size: ModelSize, preset: HardwarePreset) -> float:
    """Bytes of a rank's parked component in host memory: what it has on its device, or all of it where that streams."""
    if preset.runtime.offload is not Offload.BLOCKS:
        return held[name]
    if name == "text_encoder":
        return _conditioner(size, CONDITIONER_LAYERS, preset.parallel.conditioner_tensor_parallel)
    if name == "transformer":
        return size.outside_blocks + (size.trunk - size.outside_blocks) / preset.parallel.tensor_parallel_size
    return held[name]


def _host(case: _Case, weights: list[dict[str, float]], places: list[RankPlace]) -> tuple[Part, ...]:
    """Host memory of the fleet: every process, parked components, and on a CPU all that a GPU would hold."""
    preset, shape, size, parked = case.preset, case.shape, case.size, case.parked
    basis = "measured: libraries of one rank"
    count = preset.world_size
    if preset.device is Device.CPU:
        return (
            Part(name="processes", gib=CPU_PROCESS_GIB * count, basis=basis),
            Part(name="weights and work", gib=sum(place.peak.gib for place in places), basis=FORMULA),
            Part(name="frames", gib=shape.width * shape.height * CPU_FRAME_PX_BYTES / GIB, basis=basis),
        )
    waiting = sum(_stored(name, each, size, preset) for each in weights for name in parked if each[name])
    parts = [Part(name="processes", gib=GPU_PROCESS_GIB * count, basis=basis)]
    if waiting:
        parts.append(Part(name="parked components", gib=waiting / GIB, basis=FORMULA))
    return tuple(parts)


def _gpu_lacks(placement: Placement) -> str | None:
    tight = placement.tightest
    if tight.gpu is None or tight.peak.gib <= tight.usable_gib:
        return None
    need, have = tight.peak.gib, tight.usable_gib
    where = f"{tight.gpu.name} has {have:.1f} GiB usable"
    return f"rank {tight.rank} needs {need:.1f} GiB in stage {tight.peak.stage}, {where}"


def _host_lacks(placement: Placement, hardware: Hardware) -> str | None:
    if placement.host_gib <= hardware.ram_total_gib:
        return None
    return f"needs {placement.host_gib:.0f} GiB of host RAM, this machine has {hardware.ram_total_gib:.0f} GiB"
