"""What every training stage shares: a clock with a limit, averaged weights, and saving what the next one resumes from.

Knows tensors by name and nothing of what they mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class Clock:
    """Time of a stage: how much of it is gone, and when to print."""

    def __init__(self, minutes: float, report_s: float = 30.0) -> None:
        self.start = time.monotonic()
        self.limit_s = minutes * 60
        self._report_s = report_s
        self._next = report_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self.start

    @property
    def part(self) -> float:
        """Share of the limit that is gone, 0 to 1."""
        return min(1.0, self.elapsed_s / self.limit_s)

    def running(self) -> bool:
        """Whether there is time for another step."""
        return self.elapsed_s < self.limit_s

    def due(self) -> bool:
        """True about every `report_s` seconds."""
        if self.elapsed_s < self._next:
            return False
        self._next = self.elapsed_s + self._report_s
        return True


class Average:
    """Exponential moving average of a module's parameters, in float32 beside them."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._steps = 0
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._values = [parameter.detach().clone().float() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Take one step's weights in; young averages forget faster."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(self._values, [parameter.detach().float() for parameter in self._parameters], 1 - decay)

    def swap(self) -> None:
        """Exchange weights and averages; calling it twice restores both."""
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._values, strict=True):
                kept = parameter.detach().clone()
                parameter.copy_(value)
                value.copy_(kept)


def learning_rate(clock: Clock, step: int, rates: tuple[float, float], warmup: int = 200) -> float:
    """Linear warm-up by steps, then from the first rate to the second on a half cosine over the stage's time."""
    first, last = rates
    wave = 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * clock.part))))
    return min(1.0, (step + 1) / warmup) * (last + (first - last) * wave)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def save(folder: Path, name: str, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Write `name.safetensors` and `name.json` atomically: a stage killed while saving leaves the last state."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.part"
    save_file({key: value.detach().contiguous().cpu() for key, value in tensors.items()}, part)
    part.replace(folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(notes, indent=2), encoding="utf-8")


def resume(folder: Path | None, name: str, module: nn.Module) -> dict[str, Any]:
    """Load `name` into `module` if the folder has it; its notes, empty without. Wrong shapes are an error."""
    if folder is None or not (folder / f"{name}.safetensors").is_file():
        return {}
    module.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def half(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """`state` with the large tensors under `prefix` in float16: half the bytes to carry between stages."""
    return {
        key: value.to(torch.float16) if key.startswith(prefix) and value.numel() > 4096 else value
        for key, value in state.items()
    }


def pick_device() -> torch.device:
    """The first GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batches(count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Endless shuffled index batches of `size` out of `count`."""
    while True:
        order = torch.randperm(count, device=device)
        for start in range(0, max(1, count - size + 1), size):
            yield order[start : start + size]
