"""What a rank can drive: the Model protocol and the table of models by name.

Knows names, not tensors: a model is imported only when it is chosen, so the pretend one never loads torch.
"""

from __future__ import annotations

from typing import Protocol

from backend.events import Succeeded
from backend.process.messages import Setup
from backend.types import Render, Stage
from backend.worker.report import Report


class Stopped(Exception):
    """A render ended early because every rank agreed to stop; `step` of `steps` forwards were finished."""

    def __init__(self, stage: Stage, step: int = 0, steps: int = 0) -> None:
        self.stage, self.step, self.steps = stage, step, steps
        super().__init__(f"stopped in stage {stage.value} after {step} of {steps} steps")


class Model(Protocol):
    """One model on one rank. `load` is called once, `generate` for each job, `close` at the end, all on one thread."""

    def load(self, setup: Setup, report: Report) -> dict[str, object]:
        """Load what every task shares; returns facts for the sidecar (versions, kernels, device)."""

    def agree(self, stop: bool) -> bool:
        """Whether any rank wants to stop. With several ranks a collective: each calls it equally often."""

    def generate(self, render: Render, report: Report) -> Succeeded | None:
        """Render; rank 0 returns Succeeded once the files are in place, other ranks None. Raises Stopped."""

    def close(self) -> None:
        """Release what the process end does not."""


def create(name: str) -> Model:
    """The model called `name`; raises ValueError listing what there is."""
    match name:
        case "native":
            from backend.worker.native_model import NativeModel

            return NativeModel()
        case "stub":
            from backend.worker.stub_model import StubModel

            return StubModel()
    raise ValueError(f"model={name}: must be one of native, stub")
