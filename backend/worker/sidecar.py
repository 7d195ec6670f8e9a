"""What a result says of itself: one JSON object, beside the video and, with files named instead of paths, inside it.

Knows the fields and how to write them whole or not at all; it measures nothing itself.
"""

from __future__ import annotations

import json
import os
import platform
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from backend import codec
from backend.media import kept
from backend.process.messages import Setup
from backend.types import FPS, Render, Stage
from backend.worker.report import Report

FORMAT = 1


def describe(render: Render, setup: Setup, info: dict[str, object], report: Report) -> dict[str, object]:
    """The sidecar of `render`, as JSON values.

    `seconds` holds each finished stage and, for `mux`, the time until this text was sealed: it goes into the file
    whose closing is the rest of that stage.
    """
    request, sampling = render.request, render.request.sampling
    seconds = {stage.value: round(took, 3) for stage, took in report.seconds.items()}
    if report.stage_now is Stage.MUX:
        seconds[Stage.MUX.value] = round(report.stage_seconds(), 3)
    return {
        "format": FORMAT,
        "job": render.job,
        "request": codec.encode(request),
        "inputs": codec.encode(kept.inputs_of(request, render.names)),
        "quality": render.quality,
        "task": request.task.value,
        "seed": sampling.seed,
        "num_frames": sampling.num_frames,
        "fps": FPS,
        "width": sampling.width,
        "height": sampling.height,
        "steps": {"sigma_points": sampling.num_inference_steps, "forwards": sampling.num_inference_steps - 1},
        "encoder": codec.encode(render.encoder),
        "checkpoint": setup.checkpoint,
        "model": setup.model,
        "device": setup.device.value,
        "dtype": setup.dtype.value,
        "world_size": setup.world_size,
        **info,
        "seconds": seconds,
        "media": codec.encode(render.media.reports),
    }


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the named distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an optional kernel package that this machine lacks
    return found


def write(path: Path, details: dict[str, object]) -> None:
    """Put `details` at `path`, whole or not at all."""
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(details, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
