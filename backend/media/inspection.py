"""What `inspect` does: say what a file is and show what the model will see of it, by the code a job uses.

Knows reports and files for people; prints nothing.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from backend import codec
from backend.media.sandbox import Answer, Order, Role, run
from backend.types import AUDIO_SAMPLE_RATE, Geometry, MediaReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """How a file is to be looked at: the options of the command line."""

    role: Role = Role.REFERENCE
    width: int | None = None  # canvas of a keyframe, px
    height: int | None = None
    start_s: float = 0.0
    length_s: float | None = None


def inspect_file(
    path: Path, inspection: Inspection, geometry: Geometry, out: Path | None = None
) -> tuple[MediaReport, tuple[Path, ...]]:
    """The report of `path`, prepared as a job would; with `out`, what the model will see is written there.

    `out` gets image.png, or frames/00000.png ..., audio.wav (32 kHz, stereo, float32), and report.json.
    Raises MediaRefused where a job would.
    """
    with tempfile.TemporaryDirectory(
        prefix="h3-inspect-", dir=out.parent if out and out.parent.is_dir() else None
    ) as at:
        order = Order(
            field="file",
            name=path.name,
            role=inspection.role,
            stem=Path(at).resolve() / "prepared",
            start_s=inspection.start_s,
            length_s=inspection.length_s,
            width=inspection.width,
            height=inspection.height,
            geometry=geometry,
        )
        report, answer = run(order, path.absolute())
        return report, () if out is None else _write(report, answer, out)


def render_report(report: MediaReport) -> str:
    """The report in a few lines for people."""
    lines = [
        f"{report.name}: {report.kind.value}, {report.container}" + (f" with {report.codec}" if report.codec else "")
    ]
    if report.width:
        lines.append(f"  picture   {report.width}x{report.height}" + (f", {report.fps:g} fps" if report.fps else ""))
    if report.duration_s is not None:
        lines.append(f"  length    {report.duration_s:.3f} s")
    if report.audio_sample_rate:
        lines.append(
            f"  sound     {report.audio_codec}, {report.audio_sample_rate} Hz, {report.audio_channels} channels"
        )
    if report.used_length_s is not None:
        lines.append(f"  used      {report.used_length_s:.3f} s from {report.used_start_s or 0:.3f} s")
    if report.prepared_width:
        frames = f", {report.num_frames} frames at 24 fps" if report.num_frames else ""
        lines.append(f"  prepared  {report.prepared_width}x{report.prepared_height}{frames}")
    lines += [f"  - {action}" for action in report.actions]
    lines += [f"  ! {warning}" for warning in report.warnings]
    return "\n".join(lines)


def _write(report: MediaReport, answer: Answer, out: Path) -> tuple[Path, ...]:
    out.mkdir(parents=True, exist_ok=True)
    written = []
    if answer.image is not None:
        written.append(out / "image.png")
        written[-1].write_bytes(answer.image.read_bytes())
    if answer.frames is not None:
        folder = out / "frames"
        folder.mkdir(exist_ok=True)
        for stale in folder.glob("[0-9]*.png"):
            stale.unlink()
        for index, frame in enumerate(np.load(answer.frames, mmap_mode="r")):
            written.append(folder / f"{index:05d}.png")
            Image.fromarray(frame).save(written[-1], compress_level=1)
    if answer.audio is not None:
        written.append(out / "audio.wav")
        soundfile.write(written[-1], np.load(answer.audio).T, AUDIO_SAMPLE_RATE, subtype="FLOAT")
    written.append(out / "report.json")
    written[-1].write_text(json.dumps(codec.encode(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return tuple(written)
