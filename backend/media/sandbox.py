"""Reads one file from a user in a short-lived child with limits, and answers with a report, files or a refusal.

`run` is the parent's side, `python -m backend.media.sandbox` the child's. It knows orders and processes, no requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backend import codec
from backend.errors import MediaRefused, Problem
from backend.media import confine
from backend.media.source import open_regular, refusal
from backend.types import Geometry, MediaReport

ROOT = Path(__file__).resolve().parents[2]
PROBE_DEADLINE_S = 30.0
PREPARE_DEADLINE_S = 180.0  # a 15 s 4K HDR clip on one slow core
_CPU_S = 300  # of all threads together; the wall clock ends most things before


class Role(StrEnum):
    """What a file is wanted for; keyframes and references have rules of their own."""

    FIRST_FRAME = "first-frame"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do with one file. `stem` None only looks; else files `stem`.png, .npy and -audio.npy are written.

    `width`, `height` are the canvas of a keyframe (None: leave it at its size); `cover` crops instead of stretching.
    """

    field: str
    name: str
    role: Role
    stem: Path | None = None
    start_s: float = 0.0
    length_s: float | None = None
    width: int | None = None
    height: int | None = None
    cover: bool = False
    geometry: Geometry = dataclasses.field(default_factory=Geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it: a report and the files written, or a problem."""

    report: MediaReport | None = None
    problem: Problem | None = None
    image: Path | None = None
    frames: Path | None = None
    audio: Path | None = None


def run(order: Order, path: Path) -> tuple[MediaReport, Answer]:
    """Carry out `order` on the regular file at `path` in a child; raises MediaRefused, leaving no files then."""
    deadline_s = PROBE_DEADLINE_S if order.stem is None else PREPARE_DEADLINE_S
    fd = open_regular(order.field, path)
    try:
        answer = _in_child(order, fd, deadline_s)
    finally:
        os.close(fd)
    if answer.problem is not None or answer.report is None:
        for file in outputs(order.stem):
            file.unlink(missing_ok=True)
        raise MediaRefused(answer.problem or _broke(order, "it gave no answer"))
    return answer.report, answer


def _in_child(order: Order, fd: int, deadline_s: float) -> Answer:
    with tempfile.TemporaryDirectory(prefix="h3-sandbox-") as empty:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "backend.media.sandbox", str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=empty,
            env=_environment(),
            pass_fds=(fd,),
            start_new_session=True,
        )
        try:
            out, errors = child.communicate(json.dumps(codec.encode(order)).encode(), timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return Answer(problem=_broke(order, f"reading it took more than {deadline_s:g} s"))
        finally:
            _end(child)
    if child.returncode or not out:
        return Answer(problem=_broke(order, _death(child.returncode, errors)))
    return codec.decode(Answer, json.loads(out))


def _environment() -> dict[str, str]:
    """Nothing of ours but where Python finds its modules: no token reaches a process that reads users' files."""
    modules = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    return {"PYTHONPATH": modules, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _death(code: int, errors: bytes) -> str:
    if code < 0:
        return f"the decoder died of {signal.Signals(-code).name}"
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return f"the decoder failed ({lines[-1] if lines else f'exit {code}'})"


def _broke(order: Order, why: str) -> Problem:
    rule = "a file must be readable within the limits set for uploads"
    return refusal(order.field, order.name, why, rule, "export it again, smaller or in another format").problem


def outputs(stem: Path | None) -> tuple[Path, ...]:
    """The picture, the frames and the sound that an order with `stem` may write."""
    if stem is None:
        return ()
    return tuple(stem.with_name(stem.name + ending) for ending in (".png", ".npy", "-audio.npy"))


# ---- the child ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read an order from stdin, carry it out on the descriptor named in the arguments, answer on stdout."""
    confine.die_with_parent()
    order = codec.decode(Order, json.loads(sys.stdin.buffer.read()))
    line = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not reach the answer
    from backend.media import readers  # the heavy imports happen here, before rights are taken away

    confine.deny_network()
    confine.limit(_CPU_S)
    try:
        answer = readers.carry_out(order, int(sys.argv[1]))
    except MediaRefused as error:
        answer = Answer(problem=error.problem)
    except MemoryError:
        answer = Answer(problem=_broke(order, "it needs too much memory"))
    with os.fdopen(line, "wb") as out:
        out.write(json.dumps(codec.encode(answer)).encode())


if __name__ == "__main__":
    from backend.media import sandbox  # not __main__: `readers` must meet the same classes

    sandbox.main()
