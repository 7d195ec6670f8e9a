"""What the command line does beyond parsing: run a job to a file, examine the machine, list checkpoints.

Speaks to `Backend`, the catalog and media; returns JSON values and text, and prints only progress, to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from backend import codec, limits
from backend.api import ADMIN, Backend
from backend.checkpoints import catalog
from backend.errors import CheckpointError, InvalidRequest, MediaRefused, Problem, Unavailable
from backend.events import Cancelled, Event, Failed, FramesDone, LoadProgress, Notice, StageStarted, StepDone, Succeeded
from backend.hardware.probe import Hardware, probe
from backend.hardware.report import forecast_lines
from backend.http import running
from backend.jobs.lock import InstanceLock
from backend.media import mp4
from backend.media.inspection import Inspection, inspect_file, render_report
from backend.presets import pick
from backend.settings import COMMAND_FOLDER, Settings
from backend.types import GenerationRequest, Geometry, JobId, MediaReport, Sampling

GIB = 1 << 30
COMMAND_START_S = 60.0  # a younger folder may belong to a command that has not taken its lock yet


def read_request(path: Path) -> GenerationRequest:
    """The request in a sidecar, in one of our MP4s, or in a bare request file; relative media lie beside the file.

    Raises InvalidRequest naming the key that is wrong.
    """
    path = path.expanduser().resolve()
    try:
        data: Any = mp4.read_metadata(path) if path.suffix.lower() == ".mp4" else json.loads(path.read_text("utf-8"))
        data = data.get("request", data) if isinstance(data, dict) else data
        request = codec.decode(GenerationRequest, data, "request")
    except (OSError, ValueError, MediaRefused) as error:
        rule = f"is no request: {error}"
        raise InvalidRequest((Problem(field="request", value=str(path), rule=rule),)) from error
    return request.with_media_beside(path.parent)


@contextlib.contextmanager
def private_state(settings: Settings) -> Iterator[Settings]:
    """Settings with a job store of their own, so that a command runs beside an open page; removed afterwards."""
    _sweep_dead_commands(settings)
    private = settings.with_private_state()
    try:
        yield private
    finally:
        shutil.rmtree(private.jobs_dir.parent, ignore_errors=True)


def _sweep_dead_commands(settings: Settings) -> None:
    """Remove what commands left that were killed; one that lives holds the lock of its folder."""
    for folder in settings.run_dir.glob(f"{COMMAND_FOLDER}*"):
        with contextlib.suppress(Unavailable, OSError):
            if time.time() - folder.stat().st_mtime > COMMAND_START_S:
                InstanceLock(folder).release()
                shutil.rmtree(folder)


@dataclass(kw_only=True)
class Progress:
    """Prints what happens to a job, a line a message; step and frame counts overwrite their line on a terminal."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _open_line: bool = False

    def show(self, event: Event) -> None:
        """Print one event."""
        match event:
            case StageStarted():
                self._line(f"{event.stage}: {event.detail}" if event.detail else f"{event.stage}")
            case LoadProgress() if event.total_bytes:
                done = 100 * event.done_bytes // event.total_bytes
                self._counter(f"load: {event.component} {done} % of {_size(event.total_bytes)}")
            case StepDone():
                left = (event.steps - event.step) * event.seconds
                self._counter(
                    f"denoise: step {event.step} of {event.steps}, {event.seconds:.2f} s a step, {left:.0f} s left"
                )
            case FramesDone():
                self._counter(f"decode: {event.done} of {event.total} frames")
            case Notice():
                self._line(f"note: {event.message}")
            case Failed():
                self._line(f"failed: {event.reason}")
                if event.log_tail:
                    self._line(event.log_tail.rstrip())
            case Cancelled():
                self._line(f"cancelled in {event.stage or 'the queue'}, step {event.step} of {event.steps}")

    def _counter(self, text: str) -> None:
        if self.stream.isatty():
            self.stream.write(f"\r\033[K{text}")
            self.stream.flush()
            self._open_line = True
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self.stream.write(("\n" if self._open_line else "") + text + "\n")
        self.stream.flush()
        self._open_line = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where `generate` puts its results, and with which quality preset."""

    out: Path
    tensors: Path | None
    quality: str


def default_steps(backend: Backend, quality: str) -> int:
    """Sigma points when nobody says: the quality preset's, or fewer where the checkpoint needs no more."""
    return min(pick(backend.quality_presets(), quality).num_inference_steps, backend.checkpoint().default_steps)


def generate_to_file(
    backend: Backend, request: GenerationRequest, target: Target, known: tuple[Problem, ...] = ()
) -> dict[str, object]:
    """Run one job and move its video and sidecar to `target.out`; returns the result as JSON values.

    Raises InvalidRequest with all problems, those already `known` included, or another H3Error, before anything is
    loaded. Ctrl-C and SIGTERM cancel the job first.
    """
    known = (*known, *_target_problems(target))
    if known:
        raise InvalidRequest((*known, *limits.validate(request)))
    job = backend.submit(request, owner=ADMIN, quality=target.quality, tensors=target.tensors, media_in_place=True)
    progress = Progress()
    last: Event | None = None
    with _cancel_on_signal(backend, job) as stopped:
        for event in backend.events(job, owner=ADMIN):
            progress.show(event)
            last = event
    if isinstance(last, Succeeded):
        sidecar = target.out.with_suffix(".json")
        _place(last.video, target.out)
        _place(last.sidecar, sidecar)
        for name in ("last_frame.png", "audio.wav"):
            extra = last.video.with_name(name)
            if extra.is_file():
                _place(extra, target.out.with_name(f"{target.out.stem}.{name}"))
        return {"ok": True, "video": str(target.out), "sidecar": str(sidecar), **last.details}
    if stopped.is_set():
        raise KeyboardInterrupt
    return {"ok": False, "event": type(last).__name__.lower(), "error": getattr(last, "reason", "cancelled")}


def _target_problems(target: Target) -> tuple[Problem, ...]:
    problems = []
    for name, path, suffix in (("out", target.out, ".mp4"), ("tensors", target.tensors, ".safetensors")):
        if path is None:
            continue
        rule = ""
        if path.suffix.lower() != suffix:
            rule = f"must end in {suffix}"
        elif path.is_dir():
            rule = "is a folder"
        elif not path.parent.is_dir():
            rule = f"there is no folder {path.parent}"
        elif not os.access(path.parent, os.W_OK):
            rule = f"may not be written: no permission for {path.parent}"
        if rule:
            problems.append(Problem(field=name, value=str(path), rule=rule, way_out="choose another path"))
    return tuple(problems)


def _place(source: Path, destination: Path) -> None:
    """Move a file to its final name; never a half-written file under that name, also across file systems."""
    halfway = destination.with_name(f".{uuid.uuid4().hex}.part")
    try:
        shutil.move(source, halfway)
        halfway.replace(destination)
    finally:
        halfway.unlink(missing_ok=True)


@contextlib.contextmanager
def _cancel_on_signal(backend: Backend, job: JobId) -> Iterator[threading.Event]:
    stopped = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        if stopped.is_set():  # a second Ctrl-C does not wait for the step to end
            raise KeyboardInterrupt
        stopped.set()
        backend.cancel(job, owner=ADMIN)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def examine_machine(settings: Settings, preset: str | None, fleets: int | None = None) -> tuple[dict[str, object], str]:
    """What `doctor` says, as JSON values and as text."""
    hardware = probe(settings.data_dir, settings.gpus)
    with (
        private_state(settings) as private,
        contextlib.closing(Backend(private, preset=preset, fleets=fleets)) as backend,
    ):
        choice = backend.choice()
        statuses = backend.presets()
        forecast = backend.forecast(_usual_request(backend))
    checkpoints = catalog.list_checkpoints(settings)
    report: dict[str, object] = {
        "hardware": codec.encode(hardware),
        "presets": [
            {"name": s.preset.name, "title": s.preset.title, "fits": s.unavailable is None, "reason": s.unavailable}
            for s in statuses
        ],
        "chosen": choice.preset.name,
        "reason": choice.reason,
        "fleets": choice.fleets,
        "forecast": codec.encode(forecast),
        "checkpoints": [codec.encode(checkpoint) for checkpoint in checkpoints],
        "data_dir": str(settings.data_dir),
        "running": (now := running.ask(settings)),
    }
    lines = [*_hardware_lines(hardware), "", "Presets"]
    lines += [
        f"  {'fits' if s.unavailable is None else 'no  '}  {s.preset.name:<12} {s.unavailable or s.preset.title}"
        for s in statuses
    ]
    lines += ["", f"Chosen: {choice.preset.name}. {choice.reason}", "", *forecast_lines(forecast), "", "Checkpoints"]
    lines += [_checkpoint_line(checkpoint) for checkpoint in checkpoints]
    lines += ["", _running_line(now), f"Data folder: {settings.data_dir}"]
    return report, "\n".join(lines)


def _running_line(now: dict[str, Any] | None) -> str:
    if now is None:
        return "Running now: no"
    reason = f" ({now['reason']})" if now["reason"] else ""
    return f"Running now: {now['state']}{reason}, {now['queued']} waiting, at {now['url']} as process {now['pid']}"


def _usual_request(backend: Backend) -> GenerationRequest:
    """Five seconds on the default canvas, to show what a clip costs here."""
    steps = backend.checkpoint().default_steps
    return GenerationRequest(prompt="a usual clip", sampling=Sampling(num_inference_steps=steps))


def _hardware_lines(hardware: Hardware) -> list[str]:
    lines = ["Machine"]
    for gpu in hardware.gpus:
        free = f"{gpu.memory_free_gib:.1f} of {gpu.memory_total_gib:.1f} GiB free"
        slice_of = ", a MIG slice" if gpu.mig else f", {gpu.link}"
        others = f", used by {len(gpu.users)} processes" if gpu.users else ""
        lines.append(f"  GPU {gpu.index}: {gpu.name}, {free}{slice_of}{others}, {gpu.uuid}")
    if not hardware.gpus:
        lines.append("  GPU: none found")
    lines.append(f"  RAM: {hardware.ram_free_gib:.1f} of {hardware.ram_total_gib:.1f} GiB free")
    lines.append(f"  Disk: {hardware.disk_free_gib:.1f} GiB free")
    lines.append(f"  CPU: {hardware.cpu_cores} cores")
    return lines


def list_models(settings: Settings) -> tuple[dict[str, object], str]:
    """What `models list` says: name, folder, layout, tasks, bytes and state of each checkpoint."""
    checkpoints = catalog.list_checkpoints(settings)
    return {"models": [codec.encode(item) for item in checkpoints]}, "\n".join(map(_checkpoint_line, checkpoints))


def verify_model(name: str, settings: Settings) -> str:
    """One sentence saying that a checkpoint is complete; raises CheckpointError naming what is missing or damaged."""
    checkpoint = catalog.find(name, settings)
    if not checkpoint.ready:
        raise CheckpointError(f"{name}: {checkpoint.state}")
    return _checkpoint_line(checkpoint)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.1f} MiB"


def _checkpoint_line(checkpoint: catalog.Checkpoint) -> str:
    size = _size(checkpoint.bytes) if checkpoint.bytes else "-"
    return f"  {checkpoint.name:<24} {size:>10}  {', '.join(checkpoint.tasks)}  {checkpoint.state}"


def inspect_media(path: Path, inspection: Inspection, out: Path | None) -> tuple[dict[str, object], str]:
    """What `inspect` says of a file; with `out` also writes what the model will see. Raises MediaRefused."""
    geometry = Geometry()  # the released model's, whatever checkpoint is installed here
    report, written = inspect_file(path, inspection, geometry, out)
    text = render_report(report)
    if written:
        text += f"\n  written   {len(written)} files to {out}"
    return {**encode_report(report), "written": [str(item) for item in written]}, text


def encode_report(report: MediaReport) -> dict[str, object]:
    """A media report as JSON values."""
    return dict(codec.encode(report))
