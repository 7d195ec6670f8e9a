"""A pretend model behind the real worker: sleeps where the real one computes, and writes a real MP4 of a test pattern.

No torch. Everything around a model (processes, cancel, faults, files) is tested against it.

Its checkpoint is a line of settings, `stub:step_s=0.3,load_s=0.2`. A fault is `fail`, `refuse`, `hang`, `exit`, `oom`,
`garbage` or `spin=STAGE`, on rank `rank` (default 0), in stage denoise after `at_step` forwards; `ignore_term=1`
makes the process deaf to SIGTERM. `pattern=flat` shows red, green, blue and grey for a quarter each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, fields

import numpy as np

from backend.errors import H3Error
from backend.events import Succeeded
from backend.process.messages import Setup
from backend.types import AUDIO_SAMPLE_RATE, FPS, Render, Stage
from backend.worker import sidecar
from backend.worker.models import Stopped
from backend.worker.output import Output
from backend.worker.report import Report

PREFIX = "stub:"
TONE_HZ = 440.0
_CHUNK_FRAMES = 17  # as the VAE decodes
_SLICE_S = 0.02
_FAULTS = ("fail", "refuse", "hang", "exit", "oom", "garbage", "spin")


@dataclass(frozen=True, slots=True, kw_only=True)
class StubOptions:
    """How the pretend model behaves; seconds are slept."""

    load_s: float = 0.0
    encode_s: float = 0.0
    step_s: float = 0.02
    decode_s: float = 0.0  # a chunk of 17 frames
    mux_s: float = 0.0
    pattern: str = "moving"
    rank: int = 0
    at_step: int = 0
    exit_code: int = 7
    ignore_term: int = 0
    fail_step: int = 0  # short for fail=denoise,at_step=N
    fail: str = ""
    refuse: str = ""
    hang: str = ""
    exit: str = ""
    oom: str = ""
    garbage: str = ""
    spin: str = ""


def parse(checkpoint: str) -> StubOptions:
    """Options from `stub:key=value,...`; raises ValueError naming an unknown key or a bad value."""
    if not checkpoint.startswith(PREFIX):
        raise ValueError(f"checkpoint={checkpoint}: the stub engine's starts with {PREFIX!r}")
    kinds = {field.name: {"float": float, "int": int, "str": str}[str(field.type)] for field in fields(StubOptions)}
    values: dict[str, float | int | str] = {}
    for item in filter(None, checkpoint.removeprefix(PREFIX).split(",")):
        key, _, value = item.partition("=")
        if key not in kinds:
            raise ValueError(f"checkpoint={checkpoint}: unknown key {key!r}; known: {', '.join(kinds)}")
        values[key] = kinds[key](value)
    if values.get("fail_step"):
        values |= {"fail": Stage.DENOISE.value, "at_step": values["fail_step"]}
    return StubOptions(**values)  # type: ignore[arg-type]  # kinds come from the same fields


class StubModel:
    """The pretend model on one rank. Ranks do not talk to each other: each honours its own Cancel."""

    def load(self, setup: Setup, report: Report) -> dict[str, object]:
        """Sleep `load_s`, with progress."""
        self._setup = setup
        self._options = options = parse(setup.checkpoint)
        if options.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._report = report
        self._fault(Stage.LOAD)
        parts = 4
        for part in range(1, parts + 1):
            time.sleep(options.load_s / parts)
            report.load("stub", part, parts)
        self._info: dict[str, object] = {
            "versions": sidecar.versions(("numpy", "av")),
            "attention": "none (pretend model)",
        }
        return self._info

    def agree(self, stop: bool) -> bool:
        """This rank's own wish."""
        return stop

    def generate(self, render: Render, report: Report) -> Succeeded | None:
        """Pretend to render; rank 0 writes the files."""
        steps = render.request.sampling.num_inference_steps - 1
        options = self._options
        report.stage(Stage.ENCODE, "pretending to read the prompt")
        self._fault(Stage.ENCODE)
        self._pass(options.encode_s, Stage.ENCODE, 0, steps)
        writes = self._setup.rank == 0
        with Output(render, report) if writes else contextlib.nullcontext() as output:
            self._denoise(render, output, steps)
            if output is None:
                return None
            self._decode(render, output, steps)
            report.stage(Stage.MUX, "closing the MP4")
            self._fault(Stage.MUX)
            self._pass(options.mux_s, Stage.MUX, steps, steps)
            return output.seal(sidecar.describe(render, self._setup, self._info, report), report.notice)

    def close(self) -> None:
        """Nothing to release."""

    def _denoise(self, render: Render, output: Output | None, steps: int) -> None:
        report, options, every = self._report, self._options, self._setup.runtime.preview_every
        report.stage(Stage.DENOISE, f"{steps} steps")
        for step in range(1, steps + 1):
            self._stop_here(Stage.DENOISE, step - 1, steps)
            started = time.monotonic()
            self._fault(Stage.DENOISE, step - 1)
            time.sleep(options.step_s)
            report.step(step, steps, time.monotonic() - started)
            if output is not None and every and step % every == 0:
                sampling = render.request.sampling
                output.preview(step, moving(step, steps, (sampling.width or 0) // 4, (sampling.height or 0) // 4))
        self._stop_here(Stage.DENOISE, steps, steps)

    def _decode(self, render: Render, output: Output, steps: int) -> None:
        sampling = render.request.sampling
        report, total = self._report, sampling.num_frames
        report.stage(Stage.DECODE)
        self._fault(Stage.DECODE)
        output.audio(tone(round(total / FPS * AUDIO_SAMPLE_RATE)))
        picture = flat if self._options.pattern == "flat" else moving
        for start in range(0, total, _CHUNK_FRAMES):
            self._pass(self._options.decode_s, Stage.DECODE, steps, steps)
            indices = range(start, min(start + _CHUNK_FRAMES, total))
            output.video(np.stack([picture(i, total, sampling.width or 0, sampling.height or 0) for i in indices]))
            report.frames(indices.stop, total)

    def _pass(self, seconds: float, stage: Stage, step: int, steps: int) -> None:
        """Let time pass, open to Cancel."""
        end = time.monotonic() + seconds
        self._stop_here(stage, step, steps)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_SLICE_S, left))
            self._stop_here(stage, step, steps)

    def _stop_here(self, stage: Stage, step: int, steps: int) -> None:
        if self._report.should_stop():
            raise Stopped(stage, step, steps)

    def _fault(self, stage: Stage, step: int = 0) -> None:
        options = self._options
        if options.rank != self._setup.rank or (stage is Stage.DENOISE and step != options.at_step):
            return
        wanted = next((name for name in _FAULTS if getattr(options, name) == stage.value), None)
        match wanted:
            case "fail":
                raise RuntimeError(f"stub was told to fail in stage {stage.value}")
            case "refuse":
                raise H3Error(f"stub was told to refuse in stage {stage.value}")
            case "hang":
                threading.Event().wait()
            case "spin":  # the heartbeat still beats, the counter stands still
                while True:
                    time.sleep(_SLICE_S)
            case "exit":
                os._exit(options.exit_code)
            case "oom":
                raise MemoryError("Unable to allocate 61.7 GiB for an array with shape (33120000000,)")
            case "garbage":
                self._scribble()

    def _scribble(self) -> None:
        """Write what no codec can read onto the line to the parent, then wait for the consequences."""
        import gc

        from backend.process.channel import Channel

        channel = next(item for item in gc.get_objects() if isinstance(item, Channel))
        channel._sock.sendall(b"\x00this is not JSON\n")
        threading.Event().wait()


def tone(samples: int) -> np.ndarray:
    """A quiet 440 Hz sine on both channels, float32 (2, samples)."""
    wave = 0.2 * np.sin(2 * np.pi * TONE_HZ / AUDIO_SAMPLE_RATE * np.arange(samples))
    return np.stack([wave, wave]).astype(np.float32)


def moving(index: int, total: int, width: int, height: int) -> np.ndarray:
    """Frame `index`: a gradient with a white bar that crosses the picture once, uint8 (height, width, 3)."""
    frame = np.empty((height, width, 3), np.uint8)
    frame[..., 0] = np.linspace(0, 255, width).astype(np.uint8)
    frame[..., 1] = np.linspace(0, 255, height).astype(np.uint8)[:, None]
    frame[..., 2] = 96
    left = round(index / max(1, total - 1) * (width - width // 16))
    frame[:, left : left + width // 16] = 255
    return frame


def flat(index: int, total: int, width: int, height: int) -> np.ndarray:
    """Frame `index` of red, green, blue and grey, a quarter of the video each, uint8 (height, width, 3)."""
    colours = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128))
    return np.full((height, width, 3), colours[min(3, index * 4 // total)], np.uint8)
