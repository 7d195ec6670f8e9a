"""Recognises from the way a rank died that host memory ran out, and says so with the numbers.

Knows the kernel's own counter; it does not know how much a request needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")
WAY_OUT = "choose a smaller canvas, fewer frames, or a preset that offloads"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host RAM at one moment; `kills` is the kernel's count of processes it ended for want of memory."""

    total_bytes: int
    kills: int


def host_memory() -> HostMemory:
    """Read it now, as the control group of this process limits it."""
    total = psutil.virtual_memory().total
    limit = _figure(_CGROUP / "memory.max", r"^(\d+)$")
    kills = _figure(_CGROUP / "memory.events", r"^oom_kill (\d+)$")
    if kills is None:  # no limited group: the count of the whole machine
        kills = _figure(Path("/proc/vmstat"), r"^oom_kill (\d+)$")
    # Some containers hide both: then a SIGKILL is reported as just that.
    return HostMemory(total_bytes=min(total, limit or total), kills=kills or 0)


def in_death(signal: str | None, rss_bytes: int, before: HostMemory, after: HostMemory) -> str | None:
    """Why a SIGKILL was the kernel's for want of host memory, or None where nothing says so."""
    if signal != "SIGKILL" or after.kills <= before.kills:
        return None
    return (
        f"the kernel ended it because host memory ran out (it held {rss_bytes / GIB:.1f} GiB of "
        f"{before.total_bytes / GIB:.1f} GiB)"
    )


def _figure(path: Path, pattern: str) -> int | None:
    try:
        found = re.search(pattern, path.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
