"""What a fleet runs, where its files lie, and what each rank is told and given at its start.

Pure: it starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.presets import Deadlines, Device, Dtype, HardwarePreset, Parallel, RuntimeOptions
from backend.process.messages import Setup
from backend.process.runs import RunFolder
from backend.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """What a fleet runs and where its files lie."""

    model: str  # an entry of backend.worker.models
    checkpoint: str
    settings: Settings
    world_size: int = 1
    device: Device = Device.CPU
    dtype: Dtype = Dtype.FLOAT32
    deadlines: Deadlines = field(default_factory=Deadlines)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    parallel: Parallel = field(default_factory=Parallel)
    with_token: bool = False
    gpus: tuple[str, ...] = ()  # UUIDs, one a rank; () leaves the choice to CUDA

    @staticmethod
    def from_preset(preset: HardwarePreset, model: str, checkpoint: str, settings: Settings) -> FleetSpec:
        """The fleet that `preset` describes."""
        return FleetSpec(
            model=model,
            checkpoint=checkpoint,
            settings=settings,
            world_size=preset.world_size,
            device=preset.device,
            dtype=preset.dtype,
            deadlines=preset.deadlines,
            runtime=preset.runtime,
            parallel=preset.parallel,
        )

    def setup(self, rank: int, run: RunFolder) -> Setup:
        """The first command to `rank`."""
        return Setup(
            run=run.id,
            rank=rank,
            world_size=self.world_size,
            model=self.model,
            checkpoint=self.checkpoint,
            device=self.device,
            dtype=self.dtype,
            rendezvous=run.rendezvous,
            cache_dir=self.settings.cache_dir,
            runtime=self.runtime,
            parallel=self.parallel,
        )

    def environment(self, run: RunFolder) -> dict[str, str]:
        """Variables of every rank, on top of what is passed on."""
        cache = self.settings.cache_dir
        chosen = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return {
            **chosen,
            "TMPDIR": str(run.temp),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),  # else it lies in TMPDIR and ends with the run
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "GLOO_SOCKET_IFNAME": "lo",  # ranks of one fleet share a host
            "NCCL_NVLS_ENABLE": "0",  # performance.md 4: leave NVLink multicast off
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        }
