"""What `inspect` does: say what a file is and show what the model will see of it, by the code a job uses.

Knows reports and files for people; prints nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from backend import codec
from backend.errors import InvalidRequest, Problem, WriteFailure
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
    Raises MediaRefused where a job would, InvalidRequest for options that do not fit, WriteFailure for a bad `out`.
    """
    _check_options(inspection, out)
    with _scratch(out) as at:
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
        if out is None:
            return report, ()
        try:
            return report, _write(report, answer, out)
        except OSError as error:
            raise _unwritable(out, (error.strerror or str(error)).lower()) from error


def _check_options(inspection: Inspection, out: Path | None) -> None:
    """Say before the work what could not be done with it."""
    size = {"width": inspection.width, "height": inspection.height}
    given = {name: value for name, value in size.items() if value is not None}
    if given and inspection.role is Role.REFERENCE:
        rule, way_out = "only a keyframe has a canvas of its own", "add --as first-frame, or leave width and height out"
    elif len(given) == 1:
        rule, way_out = "a canvas needs width and height", "give both, or neither"
    elif any(value < 1 for value in given.values()):
        rule, way_out = "must be 1 px or more", "give the canvas of the job, such as 1344 and 768"
    else:
        rule = way_out = ""
    if rule:
        wrong = next((name for name, value in given.items() if value < 1), next(iter(given)))
        raise InvalidRequest((Problem(field=wrong, value=str(given[wrong]), rule=rule, way_out=way_out),))
    if out is not None:
        place = _nearest(out)
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise _unwritable(out, f"{place} is no folder" if not place.is_dir() else f"{place} is not yours to write")


def _scratch(out: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder on the disk of `out`, as a clip's frames may be a gigabyte."""
    if out is None:
        return tempfile.TemporaryDirectory(prefix="h3-inspect-")
    try:
        return tempfile.TemporaryDirectory(prefix="h3-inspect-", dir=_nearest(out))
    except OSError as error:
        raise _unwritable(out, (error.strerror or str(error)).lower()) from error


def _nearest(out: Path) -> Path:
    """`out`, or what there is of the way to it."""
    return next((place for place in (out, *out.absolute().parents) if place.exists()), Path("/"))


def _unwritable(out: Path, why: str) -> WriteFailure:
    return WriteFailure(f"out={out}: cannot be written ({why}); give a folder that you may write to")


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
