"""Which process sits on which GPU right now, with its state, its memory as planned and as it is.

Joins what engines say of their ranks with what the driver says of the cards; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.hardware.placement import Part
from backend.hardware.probe import GIB, Gpu, Hardware
from backend.types import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank of one fleet. GPU fields are empty or None on a CPU, and where CUDA made the choice.

    `state` is the fleet's ("starting", "ready", "busy", "defunct", "closed"), `stage` the rank's own in a job. `memory`
    is the forecast of the stage it is in, or of its peak; `gpu_used_gib` what the whole card really holds.
    """

    fleet: int
    rank: int
    pid: int
    state: str
    stage: Stage | None
    rss_gib: float
    gpu_index: int | None = None
    gpu_uuid: str = ""
    gpu_name: str = ""
    gpu_used_gib: float | None = None
    gpu_total_gib: float | None = None
    memory: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an engine says of one of its ranks; `gpu` is a UUID or empty."""

    rank: int
    pid: int
    state: str
    stage: Stage | None
    rss_bytes: int
    gpu: str


def view(fleet: int, seen: Seen, hardware: Hardware, memory: tuple[Part, ...]) -> RankView:
    """One rank with its card."""
    gpu: Gpu | None = next((item for item in hardware.gpus if seen.gpu and item.uuid == seen.gpu), None)
    return RankView(
        fleet=fleet,
        rank=seen.rank,
        pid=seen.pid,
        state=seen.state,
        stage=seen.stage,
        rss_gib=seen.rss_bytes / GIB,
        gpu_index=None if gpu is None else gpu.index,
        gpu_uuid=seen.gpu,
        gpu_name="" if gpu is None else gpu.name,
        gpu_used_gib=None if gpu is None else gpu.memory_total_gib - gpu.memory_free_gib,
        gpu_total_gib=None if gpu is None else gpu.memory_total_gib,
        memory=memory,
    )
