"""Safetensors files read straight to where their tensors belong: in parallel, with progress, and no copy in between.

Knows the file format (8 bytes of header length, a JSON header, the bytes), not which tensors a model needs.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.errors import CheckpointError

PIECE = 32 << 20  # bytes a thread reads at once, into its own pinned buffer
THREADS = 8  # enough to keep an NVMe drive's queue full; more only contend for the page cache
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a shard."""

    file: Path
    offset: int  # of its first byte in the file
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def entries(folder: Path) -> dict[str, Entry]:
    """All tensors in a component's folder by name, from the headers alone. Raises CheckpointError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"checkpoint={folder}: holds no .safetensors file; download it again")
    found: dict[str, Entry] = {}
    for file in files:
        for name, (start, header) in _header(file):
            begin, end = header["data_offsets"]
            kind = DTYPES.get(header["dtype"])
            if kind is None:
                raise CheckpointError(f"checkpoint={file}: {name} has type {header['dtype']}, which is not known here")
            found[name] = Entry(file, start + begin, end - begin, kind, tuple(header["shape"]))
    return found


def _header(file: Path) -> Iterator[tuple[str, tuple[int, dict]]]:
    size = file.stat().st_size
    with file.open("rb") as handle:
        raw = handle.read(8)
        length = struct.unpack("<Q", raw)[0] if len(raw) == 8 else size
        if length > size - 8:
            raise CheckpointError(f"checkpoint={file}: is cut short or no safetensors file; download it again")
        header = json.loads(handle.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if 8 + length + entry["data_offsets"][1] > size:
            raise CheckpointError(f"checkpoint={file}: is cut short at {size} bytes; download it again")
        yield name, (8 + length, entry)


def read_all(
    wanted: Mapping[str, Entry],
    device: torch.device,
    take: Callable[[str, Tensor], None],
    on_bytes: Callable[[int], None],
) -> None:
    """Read every wanted tensor to `device`; `take(name, tensor)` and `on_bytes(so far)` run on the calling thread."""
    reader = Reader(device)
    done = 0
    # In file order, so that the drive reads ahead.
    order = sorted(wanted, key=lambda name: (wanted[name].file, wanted[name].offset))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="shards") as pool:
        jobs = {pool.submit(reader.read, wanted[name]): name for name in order}
        try:
            for job in as_completed(jobs):
                name = jobs.pop(job)
                take(name, job.result())
                done += wanted[name].nbytes
                on_bytes(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class Reader:
    """Reads single tensors to one device, from any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._local = threading.local()

    def read(self, entry: Entry) -> Tensor:
        """The tensor, in its stored type. On a GPU its bytes pass through one small pinned buffer a thread."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device=self._device)
        if not entry.nbytes:
            return tensor
        target = tensor.reshape(-1).view(torch.uint8)
        handle = os.open(entry.file, os.O_RDONLY)
        try:
            if self._device.type == "cpu":
                _fill(handle, _memory(target), entry)
            else:
                self._through_buffer(handle, target, entry)
        finally:
            os.close(handle)
        return tensor

    def _through_buffer(self, handle: int, target: Tensor, entry: Entry) -> None:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
            self._local.stream = torch.cuda.Stream(self._device)
        buffer, stream = self._local.buffer, self._local.stream
        # The target's memory may still be in use by work that freed it on the current stream.
        stream.wait_stream(torch.cuda.current_stream(self._device))
        for start in range(0, entry.nbytes, PIECE):
            count = min(PIECE, entry.nbytes - start)
            part = Entry(entry.file, entry.offset + start, count, entry.dtype, entry.shape)
            _fill(handle, _memory(buffer)[:count], part)
            with torch.cuda.stream(stream):
                target[start : start + count].copy_(buffer[:count], non_blocking=True)
            stream.synchronize()


def _memory(tensor: Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array)


def _fill(handle: int, into: memoryview, entry: Entry) -> None:
    done = 0
    while done < entry.nbytes:
        count = os.preadv(handle, [into[done:]], entry.offset + done)
        if count <= 0:
            raise CheckpointError(f"checkpoint={entry.file}: ends early while being read; download it again")
        done += count
