"""What every training stage shares: a clock with a limit, averaged weights, and saving what the next one resumes from.

Knows tensors by name and nothing of what they mean.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class Clock:
    """Time of a stage: how much of it is gone, and when to print.

    `deadline` (Unix seconds, 0 for none) also counts what was lost before the stage began; keep some for the last save.
    """

    def __init__(self, minutes: float, report_s: float = 30.0, deadline: float = 0.0) -> None:
        self.start = time.monotonic()
        self.limit_s = minutes * 60
        if deadline:
            self.limit_s = max(1.0, min(self.limit_s, deadline - time.time()))
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


Work = Callable[..., tuple[Tensor, ...]]


class Step:
    """One step's forward and backward for inputs of one shape: recorded as a CUDA graph, so that launches cost nothing.

    `work` does the backward itself and returns detached figures; it must not wait for the GPU. Without a GPU, and where
    recording fails (it says so), it is simply called. Gradients are there afterwards; outputs last until the next call.
    """

    def __init__(self, name: str, work: Work, parameters: Sequence[nn.Parameter], inputs: Sequence[Tensor]) -> None:
        self._work = work
        self._parameters = list(parameters)
        self._inputs = [value.clone() for value in inputs]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: tuple[Tensor, ...] = ()
        self._gradients: list[Tensor | None] = []
        if not self._inputs[0].is_cuda:
            return
        for tuned in (True, False):
            torch.backends.cudnn.benchmark = tuned
            began = time.monotonic()
            try:
                self._record()
            except RuntimeError as error:
                print(f"{name}: no graph (cudnn.benchmark {tuned}): {str(error)[:300]}", flush=True)
                self._graph = None
                self._clear()
                torch.cuda.synchronize()
                continue
            taken, each = time.monotonic() - began, self._time()
            held = torch.cuda.memory_reserved() / 1e9
            print(f"{name}: recorded in {taken:.1f} s, {each * 1e3:.1f} ms a step, {held:.0f} GB held", flush=True)
            break

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run on `inputs`; the parameters' gradients are this step's alone."""
        if self._graph is None:
            self._clear()
            return self._work(*inputs)
        for held, value in zip(self._inputs, inputs, strict=True):
            held.copy_(value)
        self._graph.replay()
        # Another shape's recording may have been the last to write, into its own tensors.
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._outputs

    def _record(self) -> None:
        stream = _recording_stream()
        stream.wait_stream(torch.cuda.current_stream())
        # Trial runs and recording share a stream, so that no gradient waits for work outside of the recording.
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._clear()
                self._work(*self._inputs)
        self._clear()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._outputs = self._work(*self._inputs)
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._graph = graph
        torch.cuda.synchronize()

    def _time(self, count: int = 5) -> float:
        assert self._graph is not None
        self._graph.replay()
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(count):
            self._graph.replay()
        torch.cuda.synchronize()
        return (time.monotonic() - began) / count

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


@cache
def _recording_stream() -> torch.cuda.Stream:
    # One for every shape: a weight's gradient is collected on the stream that it was first used on.
    return torch.cuda.Stream()


class Descent:
    """AdamW with clipped gradients and averaged weights; a step whose gradient is not finite changes nothing."""

    def __init__(self, module: nn.Module, decay: float, betas: tuple[float, float], weight_decay: float) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._fused = self._parameters[0].is_cuda
        groups = [
            {"params": [value for value in self._parameters if value.ndim >= 2], "weight_decay": weight_decay},
            {"params": [value for value in self._parameters if value.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=betas, fused=self._fused)
        self._steps = 0
        self.average = Average(module, decay)

    def step(self, rate: float) -> None:
        """Take one step with the gradients that are there."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        if self._fused:
            # The flag that gradient scalers set: read on the GPU, so nothing waits.
            self._optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
        elif not torch.isfinite(norm):
            return
        self._optimizer.step()
        self.average.update()
        self._steps += 1
        # Launches may run ahead of the GPU by a little only, or the clock would not know how much is left to do.
        if self._fused and self._steps % 16 == 0:
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad(set_to_none=True)


def learning_rate(clock: Clock, step: int, rates: tuple[float, float], warmup: int = 200) -> float:
    """Linear warm-up by steps, then from the first rate to the second on a half cosine over the stage's time."""
    first, last = rates
    wave = 0.5 * (1 + math.cos(math.pi * clock.part))
    return min(1.0, (step + 1) / warmup) * (last + (first - last) * wave)


def save(folder: Path, name: str, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Write `name.safetensors`, notes in its header, in one go: a stage killed while saving leaves the last state."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.part"
    plain = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
    save_file(plain, part, metadata={"notes": json.dumps(notes)})
    part.replace(folder / f"{name}.safetensors")


def resume(folder: Path | None, name: str, module: nn.Module) -> dict[str, Any]:
    """Load `name` into `module` if the folder has it; its notes, empty without. Wrong shapes are an error."""
    if folder is None or not (folder / f"{name}.safetensors").is_file():
        return {}
    module.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return notes_of(folder, name)


def notes_of(folder: Path, name: str) -> dict[str, Any]:
    """What a stage noted: steps, quality and a VAE's latent statistics."""
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        return json.loads(file.metadata()["notes"])


def half(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """`state` with the large tensors under `prefix` in float16: half the bytes to carry between stages."""
    return {
        key: value.to(torch.float16) if key.startswith(prefix) and value.numel() > 4096 else value
        for key, value in state.items()
    }


def pick_device() -> torch.device:
    """The first GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def common_options(parser: argparse.ArgumentParser, minutes: float) -> None:
    """Add what every stage's command line has."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--deadline", type=float, default=0.0, help="Unix time at which the last save begins; 0: none")
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--max-steps", type=int, default=10**9)
