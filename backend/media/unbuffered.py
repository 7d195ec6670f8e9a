"""Files for PyAV to write to: unbuffered, and keeping the operating system's own error, which PyAV passes on garbled.

Knows bytes; what they are is the writers'.
"""

from __future__ import annotations

import io
from pathlib import Path


class Appended:
    """A new file that only grows: no seeking, so that nothing that was played can change."""

    mode = "wb"

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self.size = 0  # bytes handed over
        self.raw = io.FileIO(path, self.mode)  # unbuffered: closing cannot fail for want of space

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        left = memoryview(data)
        try:
            while left:
                left = left[self.raw.write(left) :]
        except OSError as error:
            self.error = self.error or error
            raise
        self.size += len(data)
        return len(data)


class Scratch(Appended):
    """A new file that can be read and sought, too."""

    mode = "w+b"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read, self.seek, self.tell = self.raw.read, self.raw.seek, self.raw.tell
