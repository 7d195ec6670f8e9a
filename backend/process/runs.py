"""A folder for everything short-lived of one run, removed with it; leftovers of dead runs are swept at start.

A lock held by the owner tells living runs from dead ones, so a reused process id cannot mislead it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ID = re.compile(r"\d{8}-\d{6}-\d+-[0-9a-f]{6}")  # others keep folders of their own in run_dir
_LOCK = "lock"
_GATE = ".gate"


class RunFolder:
    """`run_dir/<id>`, ours until `close`. The lock dies with the process, however it dies."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
        self.path = run_dir / self.id
        with _gate(run_dir):  # between mkdir and flock a sweep would take the folder for a dead one
            self.path.mkdir(mode=0o700)
            self._lock: int | None = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.temp.mkdir()

    @property
    def rendezvous(self) -> Path:
        """File for torch's store: ranks find each other through it."""
        return self.path / "rendezvous"

    @property
    def temp(self) -> Path:
        """TMPDIR of the ranks (short, since socket paths end at 107 bytes)."""
        return self.path / "t"

    def close(self) -> None:
        """Remove the folder and release the lock; idempotent."""
        if self._lock is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)  # what stays (a full disk, odd rights) is the next sweep's
        os.close(self._lock)
        self._lock = None


def sweep(run_dir: Path) -> tuple[str, ...]:
    """Remove folders of runs whose owner is gone; returns their ids. Every fleet does so first."""
    if not run_dir.is_dir():
        return ()
    removed = []
    with _gate(run_dir):
        for folder in sorted(path for path in run_dir.iterdir() if _ID.fullmatch(path.name) and path.is_dir()):
            if not _alive(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
    return tuple(removed)


def _alive(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def _gate(run_dir: Path) -> Iterator[None]:
    gate = os.open(run_dir / _GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)
