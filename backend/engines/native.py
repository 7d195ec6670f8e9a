"""Our own engine: one rank a GPU (or one on the CPU), each with the real model.

Knows what a preset demands of a machine; the ranks know torch.
"""

from __future__ import annotations

from pathlib import Path

from backend.engines.fleet_engine import FleetEngine
from backend.hardware.probe import Hardware, probe
from backend.presets import Device, HardwarePreset
from backend.types import GenerationRequest, Task


class NativeEngine(FleetEngine):
    """The fleet with the real model."""

    MODEL = "native"

    def unavailable(self) -> str | None:
        """Why this machine cannot run the preset, or None."""
        return lacks(self._preset, probe())

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why this engine cannot render `request`: an adapter, or a task whose transformer the checkpoint lacks."""
        folder = "transformer_ref" if request.task is Task.REF2VA else "transformer"
        checkpoint = Path(self._spec.checkpoint)
        if checkpoint.is_dir() and not (checkpoint / folder).is_dir():
            return f"task={request.task.value}: the checkpoint {checkpoint} has no {folder}/; download it first"
        return super().rejects(request)


def lacks(preset: HardwarePreset, hardware: Hardware) -> str | None:
    """What `preset` requires and `hardware` has not, in words, or None. One rank needs one GPU."""
    needs = preset.requires
    gpus = max(needs.gpus, preset.world_size if preset.device is Device.CUDA else 0)
    if len(hardware.gpus) < gpus:
        return f"needs {gpus} GPUs, found {len(hardware.gpus)}"
    smallest = min((gpu.memory_total_gib for gpu in hardware.gpus[:gpus]), default=0.0)
    if gpus and smallest < needs.gpu_memory_gib:
        return f"needs GPUs of {needs.gpu_memory_gib:g} GiB, found one of {smallest:.1f} GiB"
    if hardware.ram_total_gib < needs.host_ram_gib:
        return f"needs {needs.host_ram_gib:g} GiB of host RAM, found {hardware.ram_total_gib:.1f} GiB"
    return None
