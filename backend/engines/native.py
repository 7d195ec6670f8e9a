"""Our own engine: one rank a GPU (or one on the CPU), each with the real model.

Knows which machines and checkpoints it can run on; the ranks know torch.
"""

from __future__ import annotations

from pathlib import Path

from backend.engines.fleet_engine import FleetEngine
from backend.errors import EngineFailure
from backend.hardware.choose import lacking, pick_gpus
from backend.hardware.probe import Hardware, probe
from backend.presets import Device
from backend.types import GenerationRequest, Task


class NativeEngine(FleetEngine):
    """The fleet with the real model."""

    MODEL = "native"
    ADAPTERS = True

    def unavailable(self) -> str | None:
        """Why this machine cannot run the preset, or None."""
        return lacking(self._preset, self._hardware())

    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs for the next fleet, one a rank; () on a CPU. Raises EngineFailure."""
        if self._preset.device is not Device.CUDA:
            return ()
        chosen = pick_gpus(self._preset, self._hardware().gpus)
        if not chosen:
            raise EngineFailure(f"preset={self._preset.name}: {lacking(self._preset, self._hardware())}")
        return tuple(gpu.uuid for gpu in chosen)

    def _hardware(self) -> Hardware:
        return probe(only=self._spec.settings.gpus)

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why this engine cannot render `request`, or None: its transformer is not there, adapters on split weights."""
        folder = "transformer_ref" if request.task is Task.REF2VA else "transformer"
        checkpoint = Path(self._spec.checkpoint)
        if checkpoint.is_dir() and not (checkpoint / folder).is_dir():
            return f"task={request.task.value}: the checkpoint {checkpoint} has no {folder}/; download it first"
        if request.sampling.adapters and (reason := self._preset.parallel.no_adapters):
            preset = self._preset.name
            return f"adapters: preset {preset} cannot merge them: {reason}; remove them, or choose another preset"
        return super().rejects(request)
