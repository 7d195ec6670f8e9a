"""What stays on the GPU and what waits in host memory, decided from measured sizes and free memory, and written down.

Pure arithmetic over bytes; who measures, loads and moves is `setup`'s, `residency`'s and `streaming`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.errors import Unavailable
from backend.footprint import GIB, RESERVE, Widths, planned_work
from backend.presets import Offload, Parallel, RuntimeOptions

LARGE = ("text_encoder", "transformer")
STAGES = {
    "encode": ("text_encoder", "vae", "audio_vae"),
    "denoise": ("transformer",),
    "decode": ("vae", "audio_vae"),
}
ONE_GPU_WORK = planned_work(
    Widths(), Parallel(), RuntimeOptions()
)  # beside the weights of a stage, of the released model


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where components live. `parked` ones wait in host memory while they are not needed; of those, `streamed` ones
    stay there while they run, and come block by block.
    """

    resident: tuple[str, ...]
    parked: tuple[str, ...]
    reason: str
    free_bytes: int
    weights_bytes: Mapping[str, int] = field(default_factory=dict)
    streamed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """JSON values for the sidecar, sizes in GiB."""
        return {
            "resident": list(self.resident),
            "parked": list(self.parked),
            "streamed": list(self.streamed),
            "reason": self.reason,
            "free_gib": round(self.free_bytes / GIB, 1),
            "weights_gib": {name: round(size / GIB, 2) for name, size in self.weights_bytes.items()},
        }


def decide(
    weights: Mapping[str, int],
    free_bytes: int,
    offload: Offload,
    work: Mapping[str, int] = ONE_GPU_WORK,
    streamed: Mapping[str, int] | None = None,
) -> Plan:
    """A plan for components of these sizes on a GPU with `free_bytes` before anything is loaded.

    NONE keeps everything on the GPU, COMPONENT parks the two large ones, AUTO parks only as much as must be, BLOCKS
    streams the large ones. work: bytes that each stage takes beside weights. streamed: bytes that are on the GPU of
    each large component while its blocks come and go. Raises Unavailable, naming the stage and what it needs, where
    that does not fit.
    """
    usable = free_bytes - RESERVE
    everything = sum(weights.values()) + max(work.values())
    names = tuple(weights)
    if offload is Offload.NONE or (offload is Offload.AUTO and everything <= usable):
        if everything > usable:
            need, have = everything / GIB, usable / GIB
            way_out = "use offload = component in the preset, which parks what is idle in host memory"
            raise Unavailable(f"offload=none: everything needs {need:.0f} GiB and {have:.0f} GiB are usable; {way_out}")
        reason = f"all fits: {everything / GIB:.0f} of {usable / GIB:.0f} GiB usable, work included"
        return Plan(resident=names, parked=(), reason=reason, free_bytes=free_bytes, weights_bytes=dict(weights))
    large = tuple(name for name in LARGE if name in weights)
    held = dict(weights)
    if offload is Offload.BLOCKS:
        held |= {name: size for name, size in (streamed or {}).items() if name in large}
    for parked in (large, names):
        needs = {stage: _stage_bytes(stage, held, parked) + work[stage] for stage in STAGES}
        if max(needs.values()) <= usable:
            return Plan(
                resident=tuple(name for name in names if name not in parked),
                parked=parked,
                reason=f"all would need {everything / GIB:.0f} GiB, {usable / GIB:.0f} GiB are usable",
                free_bytes=free_bytes,
                weights_bytes=dict(weights),
                streamed=large if offload is Offload.BLOCKS else (),
            )
    stage = max(needs, key=lambda name: needs[name])
    way_out = "use a larger GPU, or several of them with a preset for more than one"
    if offload is not Offload.BLOCKS:
        way_out += ", or offload = blocks, which streams weights"
    raise Unavailable(
        f"gpu_memory={usable / GIB:.0f} GiB usable: {stage} alone needs {needs[stage] / GIB:.0f} GiB; {way_out}"
    )


def on_cpu(weights: Mapping[str, int], offload: Offload) -> Plan:
    """A plan where device and host memory are one: all stays; BLOCKS copies blocks as it would elsewhere, to try it."""
    streamed = tuple(name for name in LARGE if name in weights) if offload is Offload.BLOCKS else ()
    return Plan(
        resident=tuple(name for name in weights if name not in streamed),
        parked=streamed,
        reason="on the CPU",
        free_bytes=0,
        weights_bytes=dict(weights),
        streamed=streamed,
    )


def _stage_bytes(stage: str, held: Mapping[str, int], parked: tuple[str, ...]) -> int:
    """Resident weights, and of the parked ones the largest the stage needs at a time."""
    staying = sum(size for name, size in held.items() if name not in parked)
    visiting = [size for name, size in held.items() if name in parked and name in STAGES[stage]]
    return staying + max(visiting, default=0)
