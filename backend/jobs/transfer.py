"""A queue as one file: a ZIP of `queue.json` and the media it names, written whole and read with suspicion.

Knows requests and files; it submits nothing.
"""

from __future__ import annotations

import functools
import json
import lzma
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backend import codec
from backend.errors import InvalidRequest, Problem
from backend.jobs.artifacts import writing
from backend.jobs.records import JobRecord, inside_out, with_paths
from backend.media.kept import media_of
from backend.types import GenerationRequest

MANIFEST = "queue.json"
FORMAT = 1
MAX_JOBS = 500
MAX_BYTES = 8 * 2**30  # unpacked
MAX_MANIFEST_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """One job of a queue file. `labels` maps file names of its media to the names users gave them."""

    request: GenerationRequest
    preset: str
    quality: str
    title: str
    labels: dict[str, str] = field(default_factory=dict)

    def media_bytes(self) -> int:
        """Bytes of its media, once they are unpacked."""
        return sum(path.stat().st_size for _, path in media_of(self.request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    format: int
    jobs: tuple[QueueItem, ...]


def write_queue(path: Path, records: Sequence[JobRecord]) -> None:
    """Write `records` with their media to `path`, whole or not at all. Adapters are named, not packed."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    jobs = []
    with writing(f"the queue file {path}"):
        try:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
                for index, record in enumerate(records):
                    inner = inside_out(record.request, record.folder)
                    request = with_paths(inner, functools.partial(_member, index))
                    for name in record.labels:
                        archive.write(record.folder / "inputs" / name, f"media/{index}/{name}")
                    item = QueueItem(
                        request=request,
                        preset=record.preset,
                        quality=record.quality,
                        title=record.title,
                        labels=record.labels,
                    )
                    jobs.append(item)
                manifest = codec.encode(_Manifest(format=FORMAT, jobs=tuple(jobs)))
                archive.writestr(MANIFEST, json.dumps(manifest, ensure_ascii=False))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


# What zipfile, its decompressors and json raise for damaged, encrypted or absurdly nested files.
# RuntimeError covers unknown methods (NotImplementedError) and depth (RecursionError).
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


@contextmanager
def read_queue(path: Path, scratch: Path, max_bytes: int = MAX_BYTES) -> Iterator[tuple[QueueItem, ...]]:
    """The jobs of the queue file at `path`, their media unpacked below `scratch` while the block runs.

    Raises InvalidRequest for a file that is no queue, too large, or names anything but its own members.
    """
    folder = scratch / f"queue-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True)
        try:
            with zipfile.ZipFile(path) as archive:
                items = _unpack(archive, folder, min(max_bytes, MAX_BYTES))
        except _UNREADABLE as error:
            raise _refused(path, f"is no queue file ({error})") from error
        yield items
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(archive: zipfile.ZipFile, folder: Path, max_bytes: int) -> tuple[QueueItem, ...]:
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    if sum(sizes.values()) > max_bytes or sizes.get(MANIFEST, 0) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it unpacks to more than {max_bytes / 2**30:.3g} GiB")
    manifest = codec.decode(_Manifest, json.loads(archive.read(MANIFEST)), MANIFEST)
    if manifest.format != FORMAT or len(manifest.jobs) > MAX_JOBS:
        raise ValueError(f"format {manifest.format} with {len(manifest.jobs)} jobs is not understood")
    placed: dict[str, Path] = {}

    def place(file: Path) -> Path:
        name = file.as_posix()
        if not name.startswith("media/") or name not in sizes:
            raise ValueError(f"{name}: it is not in the file")
        if name not in placed:
            # A name of our own: what the archive calls its members never becomes a path.
            target = folder / (secrets.token_hex(8) + file.suffix[:9])
            with archive.open(name) as source, target.open("xb") as sink:
                shutil.copyfileobj(source, sink)
            placed[name] = target
        return placed[name]

    items = []
    for item in manifest.jobs:
        if item.request.sampling.adapters:
            raise ValueError("a job names an adapter file, which a queue file does not carry")
        request = with_paths(item.request, place)
        names = {file.name: label for path, file in placed.items() for old, label in item.labels.items()
                 if path.endswith(f"/{old}")}  # fmt: skip
        items.append(QueueItem(
            request=request, preset=item.preset, quality=item.quality, title=item.title, labels=names,
        ))  # fmt: skip
    return tuple(items)


def _member(index: int, file: Path) -> Path:
    return Path("media") / str(index) / file.name if not file.is_absolute() else file


def _refused(path: Path, rule: str) -> InvalidRequest:
    return InvalidRequest((Problem(field="queue", value=path.name, rule=rule, way_out="choose a saved queue"),))
