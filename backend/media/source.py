"""The file being read and the refusals about it: what every reader in this folder shares.

Knows how a refusal is worded. It decodes nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from backend.errors import MediaRefused, Problem
from backend.media import sniff

IMAGE_FORMATS = "JPEG, PNG, WebP, HEIC or GIF"
VIDEO_FORMATS = "MP4 or MOV with H.264 or H.265"
AUDIO_FORMATS = "WAV, MP3, M4A, FLAC, OGG or AAC"
ANY_FORMAT = f"a picture ({IMAGE_FORMATS}), a video ({VIDEO_FORMATS}) or sound ({AUDIO_FORMATS})"


@dataclass(frozen=True, slots=True)
class Source:
    """An open file. `field` is what errors call it ("references[0]"), `name` is the user's name for it."""

    field: str
    name: str
    file: BinaryIO
    size_bytes: int
    format: sniff.Format

    def refuse(self, has: str, rule: str, way_out: str) -> MediaRefused:
        """The error that says which file, what it has, which rule, and what to do."""
        return refusal(self.field, self.name, has, rule, way_out)


def refusal(field: str, name: str, has: str, rule: str, way_out: str) -> MediaRefused:
    """A MediaRefused for the file called `name`."""
    return MediaRefused(Problem(field=field, value=f"{name} ({has})" if has else name, rule=rule, way_out=way_out))


def open_source(field: str, name: str, fd: int) -> Source:
    """The open descriptor `fd` as a Source with its format told by content; raises MediaRefused for unknown ones."""
    file = os.fdopen(fd, "rb")
    size = os.fstat(fd).st_size
    found = sniff.sniff(file.read(sniff.HEAD_BYTES))
    file.seek(0)
    source = Source(field, name, file, size, found)
    if found.family is sniff.Family.REFUSED:
        if not size:
            raise source.refuse("0 bytes", "the file is empty", "upload it again")
        has = found.title if found.title.startswith(("a ", "no ")) else f"{found.title}, {size} bytes"
        raise source.refuse(has, f"must be {ANY_FORMAT}", "export it in one of these formats")
    return source


def open_regular(field: str, path: Path) -> int:
    """A read-only descriptor of the regular file at `path`; raises MediaRefused for links, devices, pipes, folders.

    The descriptor, not the path, goes to the decoder: what was checked is what is read.
    """
    if not path.is_absolute():
        raise refusal(field, str(path), "", "must be an absolute path to a file on this machine", "give the whole path")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise refusal(field, path.name, _what(path, error), "must be a readable file", "check the path") from error
    kind = _kind(os.fstat(fd).st_mode)
    if kind is not None:
        os.close(fd)
        raise refusal(field, path.name or str(path), kind, "must be a file", "give the media file itself")
    return fd


def _kind(mode: int) -> str | None:
    """What something that is no regular file is, for people; None for a file."""
    kinds = ((stat.S_ISDIR, "is a folder"), (stat.S_ISFIFO, "is a pipe"), (stat.S_ISSOCK, "is a socket"))
    if stat.S_ISREG(mode):
        return None
    return next((words for test, words in kinds if test(mode)), "is a device")


def _what(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return "is a symbolic link"
    with contextlib.suppress(OSError):  # a socket or a device without a driver is seen, but cannot be opened
        kind = _kind(path.lstat().st_mode)
        if kind is not None:
            return kind
    return (error.strerror or str(error)).lower()
