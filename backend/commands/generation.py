"""`generate`: a request from arguments or a file, run as one job, its video and sidecar put where they were asked for.

Prints only progress, to stderr; what it returns is the result as JSON values.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from backend import codec
from backend.api import ADMIN, Backend
from backend.errors import H3Error, InvalidRequest, MediaRefused, Problem
from backend.events import Cancelled, Event, Failed, FramesDone, LoadProgress, Notice, StageStarted, StepDone, Succeeded
from backend.media import finished, kept
from backend.types import LAST_FRAME_NAME, GenerationRequest, JobId


def read_request(path: Path) -> GenerationRequest:
    """The request in a sidecar, in one of our MP4s, or in a bare request file; relative media lie beside the file.

    An MP4 names its media and their SHA-256: they lie beside it, or where its own sidecar beside it says. Raises
    InvalidRequest naming the key that is wrong, or the file that is another one than the video was made from.
    """
    path = path.expanduser().resolve()
    try:
        if path.suffix.lower() == ".mp4":
            return _from_mp4(path)
        data: Any = json.loads(path.read_text("utf-8"))
        data = data.get("request", data) if isinstance(data, dict) else data
        request = codec.decode(GenerationRequest, data, "request")
    except (OSError, ValueError, RecursionError, MediaRefused) as error:
        rule = f"is no request: {error}"
        raise InvalidRequest((Problem(field="request", value=str(path), rule=rule),)) from error
    return request.with_media_beside(path.parent)


def _from_mp4(path: Path) -> GenerationRequest:
    made = kept.understand(finished.read_settings(path), path.name)
    told = _told_by_sidecar(path.with_suffix(".json"), made.job) if made.inputs else {}
    files: dict[str, Path] = {}
    for item in made.inputs:
        here = path.parent / item.name
        places = [place for place in (here, told.get(item.field)) if place is not None and place.is_file()]
        same = [place for place in places if item.sha256 in ("", kept.sha256_of(place))]
        if places and not same:
            rule = "is another file than the video was made from (its SHA-256 differs)"
            problem = Problem(field=item.field, value=str(places[0]), rule=rule, way_out=f"put {item.name} beside it")
            raise InvalidRequest((problem,))
        files[item.field] = (same or [here])[0]
    return kept.with_files(made.request, files)


def _told_by_sidecar(path: Path, job: str) -> dict[str, Path]:
    """Where the sidecar at `path` says the media of `job` lie, by field; nothing when it is not that job's."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if not isinstance(data, dict) or data.get("job") != job:
            return {}
        return dict(kept.media_of(codec.decode(GenerationRequest, data.get("request"), "request")))
    except (OSError, ValueError, RecursionError):
        return {}


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


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
                self._counter(f"load: {event.component} {done} % of {size(event.total_bytes)}")
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
    """Where `generate` puts its results, with which quality preset, and which files it must not replace."""

    out: Path
    tensors: Path | None
    quality: str
    inputs: tuple[Path, ...] = ()

    @property
    def sidecar(self) -> Path:
        """Beside the video, under its name."""
        return self.out.with_suffix(".json")


def generate_to_file(
    backend: Backend, request: GenerationRequest, target: Target, known: tuple[Problem, ...] = ()
) -> dict[str, object]:
    """Run one job and move its video and sidecar to `target.out`; returns the result as JSON values.

    Raises InvalidRequest with all problems, those already `known` included, or another H3Error, before anything is
    loaded. Ctrl-C and SIGTERM cancel the job first. A finished video that cannot be moved to its place is kept in the
    data folder, and the result says where.
    """
    _refuse(backend, request, target, known)
    job = backend.submit(request, owner=ADMIN, quality=target.quality, tensors=target.tensors, media_in_place=True)
    progress = Progress()
    last: Event | None = None
    with _cancel_on_signal(backend, job) as stopped:
        for event in backend.events(job, owner=ADMIN):
            progress.show(event)
            last = event
    if isinstance(last, Succeeded):
        try:
            _place_all(last, target)
        except OSError as error:
            kept = backend.settings.data_dir / "kept" / job
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(last.video.parent, kept)
            reason = f"the video is made but cannot be put at {target.out} ({error.strerror or error}); it is in {kept}"
            progress.show(Failed(reason=reason))
            return {"ok": False, "event": "failed", "error": reason, "video": str(kept / last.video.name)}
        return {"ok": True, "video": str(target.out), "sidecar": str(target.sidecar), **last.details}
    if stopped.is_set():
        raise KeyboardInterrupt
    return {"ok": False, "event": type(last).__name__.lower(), "error": getattr(last, "reason", "cancelled")}


def _refuse(backend: Backend, request: GenerationRequest, target: Target, known: tuple[Problem, ...]) -> None:
    """Raises InvalidRequest with every problem of arguments, target and request at once."""
    problems = [*known, *_target_problems(target, request)]
    known_quality = target.quality in (names := backend.quality_presets())
    if not known_quality:
        way_out = f"choose one of {', '.join(sorted(names))}"
        problems.append(Problem(field="quality", value=target.quality, rule="there is no such preset", way_out=way_out))
    if not problems:
        return
    try:
        backend.plan(request, quality=target.quality if known_quality else "standard")
    except InvalidRequest as error:
        problems += error.problems
    except H3Error:
        pass  # said again, alone, once the request itself is right
    raise InvalidRequest(tuple(dict.fromkeys(problems)))


def _target_problems(target: Target, request: GenerationRequest) -> Iterator[Problem]:
    media = [path for path in (request.first_frame, request.last_frame) if path is not None]
    inputs = {*media, *(reference.path for reference in request.references), *target.inputs}
    for name, path, suffix in (("out", target.out, ".mp4"), ("tensors", target.tensors, ".safetensors")):
        if path is not None:
            rule = f"must end in {suffix}" if path.suffix.lower() != suffix else _unwritable(path, inputs)
            if rule:
                yield Problem(field=name, value=str(path), rule=rule, way_out="choose another path")
    rule = _unwritable(target.sidecar, inputs) or _not_a_sidecar(target.sidecar)
    if rule and target.out.parent.is_dir():
        way_out = "choose another name for the video"
        yield Problem(
            field="out", value=str(target.out), rule=f"its sidecar {target.sidecar.name} {rule}", way_out=way_out
        )


def _unwritable(path: Path, inputs: set[Path]) -> str:
    """Why a result cannot be put at `path`, or ""; found out by writing beside it."""
    try:
        if path in inputs:
            return "is also an input and would be lost"
        if path.is_dir():
            return "is a folder"
        if not path.parent.is_dir():
            return f"has no folder to be in: there is no folder {path.parent}"
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part"):
            return ""
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"


def _not_a_sidecar(path: Path) -> str:
    """Why the file at `path` must not be replaced by a sidecar, or "" when it is one or is not there."""
    try:
        found = json.loads(path.read_text("utf-8")) if path.exists() else {"request": None}
    except (OSError, ValueError, RecursionError):
        found = None
    return "" if isinstance(found, dict) and "request" in found else "exists and is not a sidecar"


def _place_all(made: Succeeded, target: Target) -> None:
    _place(made.video, target.out)
    _place(made.sidecar, target.sidecar)
    for name in (LAST_FRAME_NAME, "audio.wav"):
        extra = made.video.with_name(name)
        if extra.is_file():
            _place(extra, target.out.with_name(f"{target.out.stem}.{name}"))


def _place(source: Path, destination: Path) -> None:
    """Copy a file to its final name; never a half-written file under that name, also across file systems."""
    halfway = destination.with_name(f".{uuid.uuid4().hex}.part")
    try:
        shutil.copyfile(source, halfway)
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
