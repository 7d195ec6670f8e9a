"""How much sound a WAV file promises and how much of it is there: FFmpeg believes the end of the file instead.

Knows the chunks of RIFF and RF64; it reads headers only, and moves no file position.
"""

from __future__ import annotations

import os
import struct
from fractions import Fraction

_MAX_CHUNKS = 1000
_UNKNOWN = (0, 0xFFFFFFFF)  # written by recorders and pipes that never learnt the length


def promised_s(fd: int) -> Fraction | None:
    """Seconds of sound by the header of the WAV file `fd`; None where the header does not know."""
    at, byte_rate, long_size = 12, 0, None
    for _ in range(_MAX_CHUNKS):
        head = os.pread(fd, 8, at)
        if len(head) < 8:
            return None
        kind, size = head[:4], struct.unpack("<I", head[4:])[0]
        if kind == b"fmt ":
            byte_rate = int.from_bytes(os.pread(fd, 12, at + 8)[8:], "little")
        elif kind == b"ds64":  # RF64: the real size of data stands here
            long_size = int.from_bytes(os.pread(fd, 16, at + 8)[8:], "little")
        elif kind == b"data":
            length = long_size if size == 0xFFFFFFFF and long_size else size
            return None if length in _UNKNOWN or not byte_rate else Fraction(length, byte_rate)
        at += 8 + size + size % 2
    return None
