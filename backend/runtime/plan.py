"""What stays on the GPU and what waits in host memory, decided from measured sizes and free memory, and written down.

Pure arithmetic over bytes; who measures, loads and moves is `setup`'s and `residency`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.errors import Unavailable
from backend.presets import Offload

GIB = 2**30
RESERVE = 2 * GIB  # CUDA context, cuBLAS and cuDNN workspaces, the allocator's rounding
# Working memory beside the weights of a stage. Denoise: 0.95 times hidden states, packed q, k, v and feed-forward of
# 63.5k rows is 5.7 GiB measured on an H200 (1344x768, 209 frames); 362 frames are 110k rows. Decode: 3.6 GiB, 28 tiles.
WORK_BYTES = {"encode": 4 * GIB, "denoise": 10 * GIB, "decode": 5 * GIB}
STAGES = {
    "encode": ("text_encoder", "vae", "audio_vae"),
    "denoise": ("transformer",),
    "decode": ("vae", "audio_vae"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where components live. `parked` ones wait in host memory while they are not needed."""

    resident: tuple[str, ...]
    parked: tuple[str, ...]
    reason: str
    free_bytes: int
    weights_bytes: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """JSON values for the sidecar, sizes in GiB."""
        return {
            "resident": list(self.resident),
            "parked": list(self.parked),
            "reason": self.reason,
            "free_gib": round(self.free_bytes / GIB, 1),
            "weights_gib": {name: round(size / GIB, 2) for name, size in self.weights_bytes.items()},
        }


def decide(weights: Mapping[str, int], free_bytes: int, offload: Offload) -> Plan:
    """A plan for components of these sizes on a GPU with `free_bytes` before anything is loaded.

    NONE keeps everything on the GPU, COMPONENT parks the two large ones, AUTO parks only as much as must be. Raises
    Unavailable, naming the stage and what it needs, where even that does not fit.
    """
    usable = free_bytes - RESERVE
    everything = sum(weights.values()) + max(WORK_BYTES.values())
    names = tuple(weights)
    if offload is Offload.NONE or (offload is Offload.AUTO and everything <= usable):
        if everything > usable:
            need, have = everything / GIB, usable / GIB
            way_out = "use offload = component in the preset, which parks what is idle in host memory"
            raise Unavailable(f"offload=none: everything needs {need:.0f} GiB and {have:.0f} GiB are usable; {way_out}")
        reason = f"all fits: {everything / GIB:.0f} of {usable / GIB:.0f} GiB usable, work included"
        return _plan(names, (), reason, weights, free_bytes)
    large = tuple(name for name in ("text_encoder", "transformer") if name in weights)
    for parked in (large, names):
        needs = {stage: _stage_bytes(stage, weights, parked) for stage in STAGES}
        if max(needs.values()) <= usable:
            reason = f"all would need {everything / GIB:.0f} GiB, {usable / GIB:.0f} GiB are usable"
            return _plan(names, parked, reason, weights, free_bytes)
    stage = max(needs, key=lambda name: needs[name])
    raise Unavailable(
        f"gpu_memory={usable / GIB:.0f} GiB usable: {stage} alone needs {needs[stage] / GIB:.0f} GiB; "
        "use a larger GPU, or several of them with a preset for more than one"
    )


def _stage_bytes(stage: str, weights: Mapping[str, int], parked: tuple[str, ...]) -> int:
    """Resident weights, and of the parked ones the largest the stage needs at a time, and its working memory."""
    staying = sum(size for name, size in weights.items() if name not in parked)
    visiting = [size for name, size in weights.items() if name in parked and name in STAGES[stage]]
    return staying + max(visiting, default=0) + WORK_BYTES[stage]


def _plan(
    names: tuple[str, ...], parked: tuple[str, ...], reason: str, weights: Mapping[str, int], free_bytes: int
) -> Plan:
    resident = tuple(name for name in names if name not in parked)
    return Plan(resident=resident, parked=parked, reason=reason, free_bytes=free_bytes, weights_bytes=dict(weights))
