"""Hardware and quality presets: TOML files under `presets/`, read into frozen dataclasses.

Knows the format and its rules. Which preset suits a machine is decided in `backend.hardware`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from backend import codec
from backend.errors import PresetError
from backend.types import EncoderSettings

PRESETS_DIR = Path(__file__).resolve().parent.parent / "presets"
NUM_ATTENTION_HEADS = 56  # transformer/config.json
ULYSSES_DEGREES = (1, 2, 4, 7, 8)  # divisors of 56 heads up to one host of 8, h3-facts 6
CONDITIONER_DEGREES = (1, 2, 4, 8)  # divide its 8 key and value heads, h3-facts 6


class EngineName(StrEnum):
    """Which engine a preset runs on."""

    NATIVE = "native"
    STUB = "stub"
    REMOTE = "remote"  # a server elsewhere


class Device(StrEnum):
    """Kind of device a rank computes on."""

    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Compute type; modules that the checkpoint pins to float32 stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Offload(StrEnum):
    """Where idle weights wait: on the GPU (`none`); in host RAM, with conditioner and transformer by turns on the GPU
    (`component`); as measured free memory allows (`auto`); in host RAM even while they run, block by block (`blocks`).
    """

    NONE = "none"
    COMPONENT = "component"
    BLOCKS = "blocks"
    AUTO = "auto"


class Exchange(StrEnum):
    """How ranks that share rows come to share heads for attention; results are those of one rank by each of them."""

    AUTO = "auto"  # gathered over two ranks, packed over more: docs/presets.md has the figures and the reason
    PACKED = "packed"  # queries, keys and values exchanged before attention, results after it
    GATHERED = "gathered"  # rows are gathered, and each rank projects them to its own heads
    OVERLAPPED = "overlapped"  # as packed, but beside products and attention
    MAPPED = "mapped"  # as overlapped, by copy engines, among GPUs of one host that reach each other's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """What a machine must have for a preset; 0 asks for nothing."""

    gpus: int = 0
    gpu_memory_gib: float = 0.0
    host_ram_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Longest time without progress, in seconds, before a rank counts as hung in a stage.

    `silence_s` bounds the time without any sign of life: a rank beats twice a second even inside a long forward. It
    does not apply while weights load, since reading a file may hold the interpreter.
    """

    silence_s: float = 60.0
    start_s: float = 120.0  # from spawn to the first message of a rank
    load_s: float = 1800.0
    encode_s: float = 600.0
    step_s: float = 600.0
    decode_s: float = 600.0
    mux_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """How the model is run; every option changes speed or memory, none the exact result unless its comment says so."""

    offload: Offload = Offload.NONE
    resident_layers: int = 0  # leading trunk blocks that stay on the GPU while the others are streamed
    attention: str = "auto"  # a name of backend.runtime.attention, or "auto": the fastest that works here
    adaln_tables: bool = True
    fused_block: bool = True  # the trunk as fused steps; off: diffusers' own forward
    triton: bool = True  # hand-written kernels between the products, where they work; off: plain torch
    compile: bool = False  # torch.compile where no hand-written kernels run
    fast_load: bool = True  # weights read in parallel straight to the device, unneeded ones left out
    prompt_cache: bool = True  # embeddings of a prompt (and its media) kept for the next request
    preview_every: int = 1  # steps between small pictures of the predicted video, at most 1 % of the time; 0: none
    vae_tile_batch: int = 0  # tiles decoded together; 0: as many as free memory allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the ranks of a fleet share one job."""

    ulysses_degree: int = 1  # ranks that share the rows of the sequence
    tensor_parallel_size: int = 1  # ranks that share heads and channels of each block
    exchange: Exchange = Exchange.AUTO  # how ranks that share rows exchange them
    fsdp: bool = False  # weights of the trunk in shards over the ranks that share rows
    conditioner_tensor_parallel: int = 1  # the first so many ranks encode, and tell the others
    vae_tile_parallel: bool = True  # every rank decodes some tiles of each chunk; off: rank 0 decodes alone

    @property
    def wanted_exchange(self) -> Exchange:
        """`exchange`, with what `auto` stands for."""
        if self.exchange is not Exchange.AUTO:
            return self.exchange
        return Exchange.GATHERED if self.ulysses_degree == 2 else Exchange.PACKED

    def form(self, exchange: Exchange) -> str:
        """In a few words, "Ulysses 4 packed, FSDP", with the exchange that was settled on; empty for one rank."""
        words = [
            f"Ulysses {self.ulysses_degree} {exchange}" if self.ulysses_degree > 1 else "",
            f"TP {self.tensor_parallel_size}" if self.tensor_parallel_size > 1 else "",
            "FSDP" if self.fsdp else "",
        ]
        return ", ".join(word for word in words if word)

    @property
    def no_adapters(self) -> str | None:
        """Why adapters cannot be merged into weights that ranks hold like this, or None."""
        if self.tensor_parallel_size > 1:
            return f"with tensor_parallel_size={self.tensor_parallel_size} each rank holds a part of every weight"
        return "with fsdp each rank holds a part of every weight" if self.fsdp else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePreset:
    """One way to run the model on one kind of machine."""

    name: str
    title: str
    description: str
    source: str  # where its numbers come from
    checkpoint: str  # a catalog name, a repository id or a folder
    engine: EngineName = EngineName.NATIVE
    device: Device = Device.CUDA
    dtype: Dtype = Dtype.BFLOAT16
    world_size: int = 1
    fleets: int = 1  # jobs at once, each on `world_size` GPUs of its own; 0: as many as the GPUs allow
    requires: Requires = field(default_factory=Requires)
    deadlines: Deadlines = field(default_factory=Deadlines)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    parallel: Parallel = field(default_factory=Parallel)

    @property
    def elsewhere(self) -> bool:
        """Whether another machine computes: it has the checkpoint, nothing is held here, and its speed is its own."""
        return self.engine is EngineName.REMOTE


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPreset:
    """A starting point for sampling, and how the file is encoded."""

    name: str
    title: str
    description: str  # without its steps: those depend on the model, and whoever shows it asks `steps`
    num_inference_steps: int
    turbo: bool = False  # takes the steps of an adapter that states fewer, and needs one: backend.jobs.turbo
    canvas_scale: float = 1.0  # of the checkpoint's default short edge; 0.5 drafts at half the size
    encoder: EncoderSettings = field(default_factory=EncoderSettings)

    def steps(self, own: int) -> int:
        """Sigma points on a model whose `own` recipe has so many: never more than that."""
        return min(self.num_inference_steps, own)


P = TypeVar("P", HardwarePreset, QualityPreset)


def hardware_presets(folder: Path | None = None) -> dict[str, HardwarePreset]:
    """All hardware presets by name. Raises PresetError naming file and key."""
    presets = _load_all(HardwarePreset, folder or PRESETS_DIR / "hardware")
    for name, preset in presets.items():
        _check_parallel(name, preset)
    return presets


def quality_presets(folder: Path | None = None) -> dict[str, QualityPreset]:
    """All quality presets by name. Raises PresetError naming file and key."""
    return _load_all(QualityPreset, folder or PRESETS_DIR / "quality")


def finest(qualities: dict[str, QualityPreset]) -> QualityPreset:
    """What the others are measured against: the largest canvas, then the most sigma points; no adapter's."""
    own = (each for each in qualities.values() if not each.turbo)
    return max(own, key=lambda each: (each.canvas_scale, each.num_inference_steps))


def pick(presets: dict[str, P], name: str) -> P:
    """The preset called `name`; raises PresetError listing what there is."""
    if name not in presets:
        kind = "quality" if any(isinstance(item, QualityPreset) for item in presets.values()) else "preset"
        raise PresetError(f"{kind}={name[:40]}: there is no such preset; choose one of {', '.join(sorted(presets))}")
    return presets[name]


def _load_all(kind: type[P], folder: Path) -> dict[str, P]:
    return {path.stem: _load(kind, path) for path in sorted(folder.glob("*.toml"))}


def _load(kind: type[P], path: Path) -> P:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return codec.decode(kind, {"name": path.stem, **data}, path.name)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise PresetError(f"{path}: {error}") from error


def _check_parallel(name: str, preset: HardwarePreset) -> None:
    file = f"presets/hardware/{name}.toml"
    degree, tensor = preset.parallel.ulysses_degree, preset.parallel.tensor_parallel_size
    if degree not in ULYSSES_DEGREES:
        raise PresetError(f"{file}: parallel.ulysses_degree={degree}: must be one of {ULYSSES_DEGREES}")
    if tensor < 1 or NUM_ATTENTION_HEADS % (tensor * degree):
        raise PresetError(
            f"{file}: parallel.tensor_parallel_size={tensor}: times ulysses_degree={degree} must divide 56 heads"
        )
    if preset.world_size < 1:
        raise PresetError(f"{file}: world_size={preset.world_size}: must be at least 1")
    ranks, readers = degree * tensor, preset.parallel.conditioner_tensor_parallel
    if preset.engine is EngineName.NATIVE and preset.world_size != ranks:
        raise PresetError(
            f"{file}: world_size={preset.world_size}: must be parallel.ulysses_degree={degree} times "
            f"tensor_parallel_size={tensor}, {ranks}"
        )
    if readers not in CONDITIONER_DEGREES or readers > preset.world_size:
        raise PresetError(
            f"{file}: parallel.conditioner_tensor_parallel={readers}: must be one of {CONDITIONER_DEGREES}, "
            f"and no more than world_size={preset.world_size}"
        )
    if preset.parallel.exchange is not Exchange.AUTO and degree == 1:
        exchange = preset.parallel.exchange
        raise PresetError(
            f"{file}: parallel.exchange={exchange}: needs an ulysses_degree over 1, whose ranks share rows"
        )
    if preset.parallel.fsdp and degree == 1:
        raise PresetError(f"{file}: parallel.fsdp=true: needs an ulysses_degree over 1, whose ranks hold the shards")
    if preset.parallel.fsdp and not preset.runtime.fused_block:
        raise PresetError(f"{file}: parallel.fsdp=true: needs runtime.fused_block, which gathers block after block")
    if readers > 1 and not preset.runtime.fast_load:
        raise PresetError(
            f"{file}: parallel.conditioner_tensor_parallel={readers}: needs runtime.fast_load, which cuts what it reads"
        )
    if problem := _streaming_problem(preset):
        raise PresetError(f"{file}: {problem}")
    if not 0 <= preset.fleets <= 8:
        raise PresetError(f"{file}: fleets={preset.fleets}: must be 0 (as many as fit) to 8")
    if preset.device is Device.CUDA and preset.requires.gpus not in (0, preset.world_size):
        raise PresetError(
            f"{file}: requires.gpus={preset.requires.gpus}: must be world_size={preset.world_size}, one GPU a rank"
        )


def _streaming_problem(preset: HardwarePreset) -> str | None:
    """Why blocks cannot be streamed as a preset says, or None."""
    runtime = preset.runtime
    if runtime.resident_layers < 0:
        return f"runtime.resident_layers={runtime.resident_layers}: must be 0 or more"
    if runtime.offload is not Offload.BLOCKS:
        return "runtime.resident_layers: needs runtime.offload = blocks" if runtime.resident_layers else None
    for name in ("fused_block", "adaln_tables", "fast_load"):
        if not getattr(runtime, name):
            return f"runtime.offload=blocks: needs runtime.{name}; without it whole modules would have to be there"
    if preset.parallel.fsdp:
        return "runtime.offload=blocks: streams what a rank holds, which with parallel.fsdp are shards; use one of both"
    return None
