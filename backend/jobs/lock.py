"""One program for each data folder: a lock that the kernel lets go when the process dies, however it dies.

Knows one file and nothing of jobs.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from backend.errors import Unavailable


class InstanceLock:
    """Held from construction to `release`. Raises Unavailable naming the process that holds it."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._path = data_dir / "program.lock"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise Unavailable(
                f"data_dir={data_dir}: already in use by process {holder}; "
                "stop that program, or choose another folder with --data-dir"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
