"""What a fleet of several ranks survives: a job stopped in the middle, a rank killed inside a collective, the next job.

Runs the real engine with a small checkpoint, on every GPU over NCCL or on a CPU over gloo; seconds and memory come
from outside the ranks, and nothing here imports torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.engines.native import NativeEngine
from backend.events import TERMINAL, Cancelled, Event, Failed, StageFinished, StageStarted, StepDone, Succeeded
from backend.hardware.probe import probe
from backend.presets import Deadlines, Device, Dtype, Exchange, HardwarePreset, Parallel
from backend.settings import Settings
from backend.types import GenerationRequest, JobId, PreparedMedia, Render, Sampling, Stage

FRAMES, STEPS, LONG = 107, 8, 4000
LIMITS = {"job_ends_s": 20.0, "next_step_s": 60.0, "memory_back_s": 20.0}  # what a fault may cost
MEMORY_NOISE_GIB = 0.25


class _Faults:
    """One engine, put through everything; what was found is written after each part."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        cuda = not options.tiny
        size = options.ranks or (len(probe().gpus) if cuda else 2)
        preset = HardwarePreset(
            name="faults",
            title="Faults",
            description="",
            source="bench",
            checkpoint="tiny",
            device=Device.CUDA if cuda else Device.CPU,
            dtype=Dtype.BFLOAT16 if cuda else Dtype.FLOAT32,
            world_size=size,
            parallel=Parallel(ulysses_degree=size, fsdp=options.fsdp, exchange=Exchange(options.exchange)),
            deadlines=Deadlines(start_s=90, load_s=120),
        )
        self._engine = NativeEngine(preset, options.checkpoint, Settings(data_dir=folder / "data"))
        self._number = 0
        self._free = self._memory()
        self.found: dict[str, Any] = {
            "what": f"faults of a fleet of {size} ranks, small model",
            "device": [gpu.name for gpu in probe().gpus] if cuda else "cpu",
            "collectives": "nccl" if cuda else "gloo",
            "fsdp": options.fsdp,
            "exchange": options.exchange,
            "limits": LIMITS,
            "free_gib_before": self._free,
        }

    def run(self) -> bool:
        """Everything in turn; whether all of it was as it must be."""
        good = True
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "plain job": self._plain,
            "cancelled while denoising": lambda: self._cancelled(Stage.DENOISE),
            "cancelled while decoding": lambda: self._cancelled(Stage.DECODE),
            "last rank killed, others in a collective": lambda: self._killed(-1, halt=True),
            "job after that": self._plain,
            "first rank killed": lambda: self._killed(0, halt=False),
            "job after that one": self._plain,
        }
        try:
            for name, part in parts.items():
                began = time.monotonic()
                self.found[name] = part() | {"part_s": round(time.monotonic() - began, 2)}
                good &= self.found[name]["good"]
                print(name, json.dumps(self.found[name]), flush=True)
                self._write()
        finally:
            pids = self._engine.pids
            self._engine.close()
            self.found["after closing"] = self._gone(pids)
            self._write()
        return good and bool(self.found["after closing"]["good"])

    def _plain(self) -> dict[str, Any]:
        began = time.monotonic()
        first = None
        for event in self._events(STEPS):
            if first is None and isinstance(event, StepDone):
                first = round(time.monotonic() - began, 2)
        good = isinstance(event, Succeeded) and first is not None and first <= LIMITS["next_step_s"]
        return self._outcome(event) | {
            "good": good,
            "first_step_s": first,
            "job_s": round(time.monotonic() - began, 2),
            "free_gib": self._memory(),
        }

    def _cancelled(self, stage: Stage) -> dict[str, Any]:
        """Stopped at the third step, or when decoding begins. The same ranks must be ready for the next job."""
        asked, done, pids = 0.0, 0, self._engine.pids
        for event in self._events(LONG if stage is Stage.DENOISE else STEPS):
            if isinstance(event, StepDone):
                done = event.step
                if stage is Stage.DENOISE and event.step == 3:
                    asked = time.monotonic()
                    self._engine.cancel()
            elif isinstance(event, StageFinished) and event.stage is Stage.DENOISE and stage is Stage.DECODE:
                asked = time.monotonic()
                self._engine.cancel()
        return self._outcome(event) | {
            "good": isinstance(event, Cancelled) and event.stage is stage and self._engine.pids == pids,
            "stopped_after_s": round(time.monotonic() - asked, 3),
            "steps_seen": done,
            "steps_asked_for_at": 3,
            "same_processes": self._engine.pids == pids,
        }

    def _killed(self, rank: int, *, halt: bool) -> dict[str, Any]:
        """SIGKILL for a rank in the third step; with `halt` it stands still first, so that others wait for it."""
        killed, pids = 0.0, ()
        for event in self._events(LONG):
            if isinstance(event, StepDone) and event.step == 3:
                pids = self._engine.pids
                if halt:
                    os.kill(pids[rank], signal.SIGSTOP)
                    time.sleep(0.5)  # many forwards
                os.kill(pids[rank], signal.SIGKILL)
                killed = time.monotonic()
        ended = round(time.monotonic() - killed, 2)
        gone = self._gone(pids)
        good = isinstance(event, Failed) and ended <= LIMITS["job_ends_s"] and gone["good"]
        return self._outcome(event) | gone | {"good": good, "job_ended_after_s": ended}

    def _gone(self, pids: tuple[int, ...]) -> dict[str, Any]:
        """Whether the processes are gone and the GPUs' memory is free again, and after how long."""
        began = time.monotonic()
        left = pids
        while time.monotonic() - began < LIMITS["memory_back_s"]:
            left = tuple(pid for pid in pids if _alive(pid))
            free = self._memory()
            back = all(now > before - MEMORY_NOISE_GIB for now, before in zip(free, self._free, strict=True))
            if not left and back:
                break
            time.sleep(0.2)
        return {
            "good": not left and back,
            "processes_left": list(left),
            "free_gib": free,
            "memory_back_after_s": round(time.monotonic() - began, 2),
        }

    def _events(self, steps: int) -> Any:
        """A job's events, the stages' beginnings told on the way."""
        self._number += 1
        out = self._folder / f"job{self._number}"
        out.mkdir()
        sampling = Sampling(num_frames=FRAMES, width=64, height=64, seed=7, num_inference_steps=steps + 1)
        request = GenerationRequest(prompt="a lighthouse", sampling=sampling)
        render = Render(job=JobId(out.name), request=request, media=PreparedMedia(), folder=out)
        for event in self._engine.generate(render):
            if isinstance(event, StageStarted):
                print(f"  {out.name}: {event.stage.value}", flush=True)
            yield event
            if isinstance(event, TERMINAL):
                return

    def _outcome(self, event: Event) -> dict[str, Any]:
        found: dict[str, Any] = {"ended_as": type(event).__name__}
        if isinstance(event, Failed):
            found |= {"reason": event.reason, "log": str(event.log_tail)[-1500:]}
        return found

    def _memory(self) -> list[float]:
        """Free GiB of each GPU, by NVML; nothing on a CPU."""
        return [] if self._options.tiny else [round(gpu.memory_free_gib, 2) for gpu in probe().gpus]

    def _write(self) -> None:
        self._options.out.mkdir(parents=True, exist_ok=True)
        name = "faults-tiny" if self._options.tiny else "faults"
        (self._options.out / f"{name}.json").write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Exit code 0 only if everything was as it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two ranks on the CPU, over gloo")
    parser.add_argument("--ranks", type=int, default=0, help="default: every GPU, or 2 on a CPU")
    parser.add_argument("--fsdp", action="store_true", help="with weights in shards")
    parser.add_argument("--exchange", choices=[each.value for each in Exchange], default="auto", help="of rows")
    parser.add_argument("--checkpoint", type=Path, default=None, help="default: the tiny one, built here")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.checkpoint is None:
            options.checkpoint = folder / "tiny"
            subprocess.run([sys.executable, "-m", "backend.checkpoints.nano", str(options.checkpoint)], check=True)
        good = _Faults(options, folder).run()
    raise SystemExit(0 if good else 1)


def _alive(pid: int) -> bool:
    """Whether `pid` runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


if __name__ == "__main__":
    main()
