"""The box structure of an MP4: reading it, and putting the index with its metadata in front of the media.

Knows bytes and offsets (ISO/IEC 14496-12); nothing of codecs, jobs or what the metadata means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

MAX_INDEX_BYTES = 32 * 2**20  # a 15 s moov is some 20 KB plus the metadata; more is not ours

# Names that players and exiftool show, and the iTunes atoms they live in.
ATOMS = {
    "title": b"\xa9nam",
    "comment": b"\xa9cmt",
    "artist": b"\xa9ART",
    "date": b"\xa9day",
    "encoder": b"\xa9too",
    "description": b"desc",
}
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
_UTF8 = 1  # type indicator of a `data` atom


@dataclass(frozen=True, slots=True)
class Box:
    """One box: its four-letter kind, where it starts in the file or buffer, and its sizes in bytes."""

    kind: bytes
    start: int
    header: int
    size: int


def top_level(file: BinaryIO) -> list[Box]:
    """The boxes of an open MP4 in file order; raises ValueError where the sizes do not add up."""
    end = file.seek(0, 2)
    boxes, at = [], 0
    while at < end:
        file.seek(at)
        box = _header(file.read(16), at, end)
        boxes.append(box)
        at += box.size
    return boxes


def put_index_first(source: BinaryIO, target: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Copy an MP4 from `source` to `target` as ftyp, moov (with `metadata`), mdat, so that playing starts at once.

    Metadata that it held before are left out. `metadata` keys are those of `ATOMS`. Raises ValueError for an unknown
    key or a file without index or media.
    """
    boxes = {box.kind: box for box in top_level(source)}
    missing = [kind.decode() for kind in (b"ftyp", b"moov", b"mdat") if kind not in boxes]
    if missing:
        raise ValueError(f"not a complete MP4: no {', '.join(missing)} box")
    moov = _read(source, boxes[b"moov"])
    head = boxes[b"moov"].header
    children = _children(moov, head, len(moov))
    index = bytearray(struct.pack(">I4s", 0, b"moov"))
    for box in children:
        index += moov[box.start : box.start + box.size] if box.kind != b"udta" else b""
    index += _user_data(metadata)
    struct.pack_into(">I", index, 0, len(index))
    media = boxes[b"mdat"]
    shift = boxes[b"ftyp"].size + len(index) - media.start
    for box in _walk(bytes(index), 0, len(index)):
        if box.kind in (b"stco", b"co64"):
            _shift_offsets(index, box, shift)
    target.write(_read(source, boxes[b"ftyp"]))
    target.write(index)
    source.seek(media.start)
    _copy(source, target, media.size)


def metadata(file: BinaryIO) -> dict[str, str]:
    """The metadata of an open MP4 under the names of `ATOMS`; raises ValueError where the file is no MP4."""
    moov = next((box for box in top_level(file) if box.kind == b"moov"), None)
    if moov is None or moov.size > MAX_INDEX_BYTES:
        raise ValueError("no readable index (moov box)")
    index = _read(file, moov)
    names = {atom: name for name, atom in ATOMS.items()}
    found: dict[str, str] = {}
    for user in _children(index, 8, len(index), b"udta"):
        for meta in _children(index, user.start + 8, user.start + user.size, b"meta"):
            # `meta` is a full box: four bytes of version and flags before its children.
            for items in _children(index, meta.start + 12, meta.start + meta.size, b"ilst"):
                for item in _children(index, items.start + 8, items.start + items.size):
                    for data in _children(index, item.start + 8, item.start + item.size, b"data"):
                        if item.kind in names:
                            text = index[data.start + 16 : data.start + data.size]
                            found[names[item.kind]] = text.decode("utf-8", "replace")
    return found


def _header(data: bytes, at: int, end: int) -> Box:
    if len(data) < 8:
        raise ValueError(f"box at byte {at} is cut off")
    size, kind = struct.unpack(">I4s", data[:8])
    header = 8
    if size == 1 and len(data) >= 16:
        size, header = struct.unpack(">Q", data[8:16])[0], 16
    elif size == 0:
        size = end - at
    if size < header or at + size > end:
        raise ValueError(f"box at byte {at} claims {size} bytes, the file has {end - at}")
    return Box(kind, at, header, size)


def _children(data: bytes, start: int, end: int, kind: bytes | None = None) -> Iterator[Box]:
    at = start
    while at + 8 <= end:
        box = _header(data[at : at + 16], at, end)
        if kind is None or box.kind == kind:
            yield box
        at += box.size


def _walk(data: bytes, start: int, end: int) -> Iterator[Box]:
    for box in _children(data, start, end):
        yield box
        if box.kind in _CONTAINERS:
            yield from _walk(data, box.start + box.header, box.start + box.size)


def _shift_offsets(index: bytearray, box: Box, shift: int) -> None:
    count = struct.unpack_from(">I", index, box.start + 12)[0]
    layout = f">{count}{'I' if box.kind == b'stco' else 'Q'}"
    offsets = struct.unpack_from(layout, index, box.start + 16)
    struct.pack_into(layout, index, box.start + 16, *(offset + shift for offset in offsets))


def _user_data(metadata: Mapping[str, str]) -> bytes:
    unknown = sorted(set(metadata) - set(ATOMS))
    if unknown:
        raise ValueError(f"metadata {unknown[0]!r}: must be one of {', '.join(ATOMS)}")
    items = b"".join(
        _box(ATOMS[name], _box(b"data", struct.pack(">II", _UTF8, 0) + text.encode()))
        for name, text in metadata.items()
    )
    handler = _box(b"hdlr", struct.pack(">II4s4s", 0, 0, b"mdir", b"appl") + bytes(9))
    return _box(b"udta", _box(b"meta", bytes(4) + handler + _box(b"ilst", items)))


def _box(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def _read(file: BinaryIO, box: Box) -> bytes:
    file.seek(box.start)
    return file.read(box.size)


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy `size` bytes from where `source` stands; the media is the last box we need."""
    left = size
    while left:
        block = source.read(min(left, 1 << 20))
        if not block:
            raise ValueError("the media ended early")
        target.write(block)
        left -= len(block)
