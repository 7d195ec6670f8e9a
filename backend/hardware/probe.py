"""What this machine has: GPUs through NVML, memory as this container sees it, disk and CPU cores.

Creates no CUDA context. No GPU, or no driver, is a normal state and not an error.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from backend.errors import PresetError
from backend.settings import visible_devices

GIB = 2**30
_CGROUP_V2 = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
_CGROUP_V1 = (
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process that holds GPU memory; None where the driver does not tell how much."""

    pid: int
    memory_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG slice of one. `links` counts active NVLinks, `users` the processes that hold memory on it.

    A container shows processes under ids of its host, or none: `memory_free_gib` counts them all the same.
    """

    index: int
    uuid: str
    name: str
    memory_total_gib: float
    memory_free_gib: float
    compute_capability: tuple[int, ...] = ()
    mig: bool = False
    links: int = 0
    users: tuple[GpuUser, ...] = ()

    @property
    def link(self) -> str:
        """How it reaches its peers: "NVLink" or "PCIe"."""
        return "NVLink" if self.links else "PCIe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine as it is now. `driver` is empty, and `gpu_note` says why, where no GPU can be asked."""

    gpus: tuple[Gpu, ...]
    ram_total_gib: float
    ram_free_gib: float
    disk_free_gib: float
    cpu_cores: int
    driver: str = ""
    gpu_note: str = ""


def probe(folder: Path | None = None, only: Sequence[str] = ()) -> Hardware:
    """Look at the machine; disk is that of `folder` (or of its nearest parent that exists).

    `only` limits the GPUs to these indices or UUIDs, in this order, of those that CUDA_VISIBLE_DEVICES shows. Raises
    PresetError for one that is not there.
    """
    gpus, driver, note = _gpus()
    if only and gpus:
        gpus, note = select(gpus, only), f"limited to {len(only)} of {len(gpus)} GPUs"
    total, free = _memory()
    return Hardware(
        gpus=gpus,
        ram_total_gib=total / GIB,
        ram_free_gib=free / GIB,
        disk_free_gib=disk_free(folder or Path.cwd()) / GIB,
        cpu_cores=_cpu_cores(),
        driver=driver,
        gpu_note=note,
    )


def disk_free(folder: Path) -> int:
    """Bytes a user may still write at `folder`, which need not exist yet."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def select(gpus: Sequence[Gpu], only: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that `only` names by index, UUID or a UUID's beginning, in that order. Raises PresetError."""
    chosen: list[Gpu] = []
    for token in only:
        match = next((gpu for gpu in gpus if _is(gpu, token)), None)
        shown = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        if match is None:
            raise PresetError(f"gpus={token}: there is no such GPU; choose of {shown}")
        if match in chosen:
            raise PresetError(f"gpus={','.join(only)}: {token} is named twice; name each GPU once")
        chosen.append(match)
    return tuple(chosen)


def _is(gpu: Gpu, token: str) -> bool:
    return (str(gpu.index) == token and not gpu.mig) or (not token.isdigit() and gpu.uuid.startswith(token))


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), "", f"no NVIDIA driver answers ({error})"
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found: list[Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            found += _devices(pynvml.nvmlDeviceGetHandleByIndex(index), index)
        visible = _visible(found)
        note = "" if len(visible) == len(found) else f"CUDA_VISIBLE_DEVICES shows {len(visible)} of {len(found)} GPUs"
        return tuple(visible), driver, note
    except pynvml.NVMLError as error:
        return (), "", f"the NVIDIA driver gave an error ({error})"
    finally:
        pynvml.nvmlShutdown()


def _devices(handle: Any, index: int) -> list[Gpu]:
    """The GPU itself, or its MIG slices where MIG is on."""
    slices = []
    if _ask(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0], 0):
        for place in range(_ask(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)):
            part = _ask(lambda place=place: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place), None)
            if part is not None:
                slices.append(_device(part, index, mig=True))
    return slices or [_device(handle, index, mig=False)]


def _device(handle: Any, index: int, *, mig: bool) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total_gib=memory.total / GIB,
        memory_free_gib=memory.free / GIB,
        compute_capability=tuple(_ask(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle), ())),
        mig=mig,
        links=0 if mig else _links(handle),
        users=_users(handle),
    )


def _users(handle: Any) -> tuple[GpuUser, ...]:
    found = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
    found = [*found, *_ask(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), [])]
    held = {item.pid: item.usedGpuMemory for item in found}
    return tuple(GpuUser(pid=pid, memory_gib=None if size is None else size / GIB) for pid, size in held.items())


def _links(handle: Any) -> int:
    return sum(
        bool(_ask(lambda link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link), 0))
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    )


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    """The GPUs a child process would see, in its order; NVML itself ignores CUDA_VISIBLE_DEVICES."""
    shown = visible_devices()
    if shown is None:
        return gpus
    chosen = []
    for token in shown:
        match = [gpu for gpu in gpus if _is(gpu, token)]
        if not match:
            break  # CUDA stops at the first one it does not know
        chosen.append(match[0])
    return chosen


def _ask(question: Any, default: Any) -> Any:
    """An answer a driver may not have (older cards, virtual GPUs), or `default`."""
    try:
        return question()
    except (pynvml.NVMLError, AttributeError):
        return default


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _memory() -> tuple[int, int]:
    """(total, free) bytes of RAM: the machine's, or less where a container's limit says so."""
    machine = psutil.virtual_memory()
    total, free = int(machine.total), int(machine.available)
    for limit_file, used_file in (_CGROUP_V2, _CGROUP_V1):
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and limit < total:
            total = limit
            free = min(free, max(0, limit - (used or 0) + _reclaimable(limit_file.parent)))
    return total, free


def _reclaimable(cgroup: Path) -> int:
    """Bytes of page cache that the kernel gives back before the limit hurts."""
    try:
        lines = (cgroup / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    figures = dict(line.split() for line in lines if line.startswith(("inactive_file ", "total_inactive_file ")))
    return int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cpu_cores() -> int:
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_MAX.read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return cores
