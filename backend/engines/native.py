"""Our own engine: one rank a GPU (or one on the CPU), each with the real model.

Knows which machines and checkpoints it can run on; the ranks know torch.
"""

from __future__ import annotations

from pathlib import Path

from backend.engines.fleet_engine import FleetEngine
from backend.hardware.choose import lacking
from backend.hardware.probe import probe
from backend.types import GenerationRequest, Task


class NativeEngine(FleetEngine):
    """The fleet with the real model."""

    MODEL = "native"

    def unavailable(self) -> str | None:
        """Why this machine cannot run the preset, or None."""
        return lacking(self._preset, probe())

    def rejects(self, request: GenerationRequest) -> str | None:
        """Why this engine cannot render `request`: an adapter, or a task whose transformer the checkpoint lacks."""
        folder = "transformer_ref" if request.task is Task.REF2VA else "transformer"
        checkpoint = Path(self._spec.checkpoint)
        if checkpoint.is_dir() and not (checkpoint / folder).is_dir():
            return f"task={request.task.value}: the checkpoint {checkpoint} has no {folder}/; download it first"
        return super().rejects(request)
