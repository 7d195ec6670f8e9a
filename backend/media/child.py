"""A short-lived child with few rights for one question about files of users: asked in JSON, answered in JSON.

Knows processes and limits; what is asked is `sandbox`'s and `finished`'s. Whatever breaks in the child is words here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.media import confine

ROOT = Path(__file__).resolve().parents[2]
_CPU_S = 300  # of all threads together; the wall clock ends most things before


class ChildFailed(Exception):
    """The child gave no answer; the text says why, for people."""


def ask(module: str, question: Any, fds: tuple[int, ...], deadline_s: float) -> Any:
    """The JSON answer of `python -m module FD ...` to `question`. Raises ChildFailed; the child is gone either way."""
    with tempfile.TemporaryDirectory(prefix="h3-sandbox-") as empty:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, fds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=empty,
            env=_environment(),
            pass_fds=fds,
            start_new_session=True,
        )
        try:
            out, errors = child.communicate(json.dumps(question).encode(), timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(f"reading it took more than {deadline_s:g} s") from error
        finally:
            _end(child)
    if child.returncode or not out:
        raise ChildFailed(_death(child.returncode, errors))
    return json.loads(out)


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


# ---- in the child ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering() -> Iterator[tuple[Any, list[Any]]]:
    """In the child: the question, and a list whose first item becomes the answer when the block ends.

    Whatever a library prints does not reach the answer.
    """
    confine.die_with_parent()
    question = json.loads(sys.stdin.buffer.read())
    line = os.dup(1)
    os.dup2(2, 1)
    answer: list[Any] = []
    yield question, answer
    with os.fdopen(line, "wb") as out:
        out.write(json.dumps(answer[0]).encode())


def give_up_rights() -> None:
    """In the child, once everything heavy is imported: no network, no programs, bounded memory and time."""
    confine.deny_network()
    confine.limit(_CPU_S)
