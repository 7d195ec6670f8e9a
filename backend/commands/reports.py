"""What `doctor`, `models` and `inspect` say, as JSON values and as text for people.

Looks and asks; starts no job, prints nothing.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from backend import codec
from backend.api import Backend
from backend.checkpoints import catalog
from backend.commands.generation import size
from backend.commands.state import private_state
from backend.errors import CheckpointError, MediaRefused
from backend.hardware.probe import Hardware, probe
from backend.hardware.report import forecast_lines, preset_lines
from backend.http import running
from backend.media import finished, kept
from backend.media.inspection import Inspection, inspect_file, render_report
from backend.settings import Settings, worker_environment
from backend.types import GenerationRequest, Geometry, MediaReport, ReferenceKind, Sampling

KERNEL_DEADLINE_S = 120.0  # importing torch and trying every kernel once
ROOT = Path(__file__).resolve().parents[2]


def examine_machine(settings: Settings, preset: str | None, fleets: int | None = None) -> tuple[dict[str, object], str]:
    """What `doctor` says, as JSON values and as text."""
    hardware = probe(settings.data_dir, settings.gpus)
    with (
        private_state(settings) as private,
        contextlib.closing(Backend(private, preset=preset, fleets=fleets)) as backend,
    ):
        choice = backend.choice()
        statuses = backend.presets()
        machine = backend.machine()
        forecast = backend.forecast(_usual_request(backend))
    checkpoints = catalog.list_checkpoints(settings)
    kernels = attention_kernels() if hardware.gpus else {}
    report: dict[str, object] = {
        "hardware": codec.encode(hardware),
        "attention": kernels,
        "presets": [
            {"name": s.preset.name, "title": s.preset.title, "fits": s.unavailable is None, "reason": s.unavailable}
            for s in statuses
        ],
        "machine": codec.encode(machine),
        "chosen": choice.preset.name,
        "reason": choice.reason,
        "fleets": choice.fleets,
        "forecast": codec.encode(forecast),
        "checkpoints": [codec.encode(checkpoint) for checkpoint in checkpoints],
        "data_dir": str(settings.data_dir),
        "space": settings.space.notice if settings.space is not None else None,
        "running": (now := running.ask(settings)),
    }
    lines = [*_hardware_lines(hardware)]
    lines += [f"  Space: {settings.space.id}. {settings.space.notice}".rstrip()] if settings.space is not None else []
    lines += ["", "Attention kernels", *(f"  {name:<12} {state}" for name, state in kernels.items())] if kernels else []
    lines += ["", "Presets"]
    lines += [f"  {line}" for line in preset_lines(machine)]
    lines += ["", f"Chosen: {choice.preset.name}. {choice.reason}", "", *forecast_lines(forecast), "", "Checkpoints"]
    lines += [_checkpoint_line(checkpoint) for checkpoint in checkpoints]
    lines += ["", _running_line(now), f"Data folder: {settings.data_dir}"]
    return report, "\n".join(lines)


def attention_kernels() -> dict[str, str]:
    """Every attention kernel by name with "works" or why not, tried on the first GPU by a child that imports torch."""
    command = [sys.executable, "-m", "backend.runtime.survey"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=worker_environment(),
            capture_output=True,
            text=True,
            timeout=KERNEL_DEADLINE_S,
            check=True,
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"unknown": f"trying them took over {KERNEL_DEADLINE_S:g} s"}
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        tail = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        return {"unknown": f"they could not be tried: {' '.join(tail)}"}


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
    lines.append(f"  Driver: {hardware.driver}" if hardware.gpus else f"  GPU: none found ({hardware.gpu_note})")
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


def _checkpoint_line(checkpoint: catalog.Checkpoint) -> str:
    bytes_ = size(checkpoint.bytes) if checkpoint.bytes else "-"
    return f"  {checkpoint.name:<24} {bytes_:>10}  {', '.join(checkpoint.tasks)}  {checkpoint.state}"


def inspect_media(path: Path, inspection: Inspection, out: Path | None) -> tuple[dict[str, object], str]:
    """What `inspect` says of a file; with `out` also writes what the model will see. Raises MediaRefused."""
    geometry = Geometry()  # the released model's, whatever checkpoint is installed here
    report, written = inspect_file(path, inspection, geometry, out)
    text = render_report(report)
    if written:
        text += f"\n  written   {len(written)} files to {out}"
    inside = _settings_inside(path) if report.kind is ReferenceKind.VIDEO else None
    if inside is not None:
        text += "\n" + _settings_text(inside)
    settings = codec.encode(inside) if inside is not None else None
    return {**encode_report(report), "written": [str(item) for item in written], "settings": settings}, text


def _settings_inside(path: Path) -> kept.Kept | None:
    """The settings in an MP4 that this program made; None for any other file."""
    try:
        return kept.understand(finished.read_settings(path.absolute()), path.name)
    except MediaRefused:
        return None


def _settings_text(inside: kept.Kept) -> str:
    sampling = inside.request.sampling
    lines = [
        "  made by H3 Studio",
        f"    prompt  {inside.request.prompt}",
        f"    canvas  {sampling.width}x{sampling.height}, {sampling.num_frames} frames",
        f"    steps   {sampling.num_inference_steps} sigma points, seed {sampling.seed}, quality {inside.quality}",
    ]
    lines += [f"    {item.field:<14} {item.name}  sha256 {item.sha256 or 'unknown'}" for item in inside.inputs]
    return "\n".join(lines)


def encode_report(report: MediaReport) -> dict[str, object]:
    """A media report as JSON values."""
    return dict(codec.encode(report))
