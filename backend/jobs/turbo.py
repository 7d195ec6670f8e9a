"""The quality Turbo: the listed adapter with the fewest steps, put on a request that brings no such adapter itself.

Knows the shelf and requests; the adapter's steps and shifts are `backend.checkpoints.adapters`'.
"""

from __future__ import annotations

import dataclasses

from backend.checkpoints import adapter_shelf, adapters
from backend.checkpoints.adapter_shelf import ListedAdapter
from backend.errors import InvalidRequest, Problem
from backend.presets import HardwarePreset
from backend.settings import Settings
from backend.types import Adapter, GenerationRequest

NAME = "turbo"  # presets/quality/turbo.toml


def adapter_for(settings: Settings, hardware: HardwarePreset, own_steps: int) -> ListedAdapter:
    """The adapter that Turbo puts on where the model's own recipe has `own_steps` sigma points.

    Raises InvalidRequest where none is there, or none can be used on `hardware`, with the way out.
    """
    way_out = "choose another quality"
    if hardware.elsewhere:
        raise _wrong("needs an adapter, and LoRA files are not sent to a server elsewhere", way_out)
    if reason := hardware.parallel.no_adapters:
        raise _wrong(f"needs an adapter, which this setup cannot use: {reason}", way_out)
    found = adapter_shelf.fewest_steps(settings, own_steps)
    if found is None:
        rule = f"needs an adapter made for fewer than {own_steps} steps, and none is installed here"
        raise _wrong(rule, "add one as docs/adapters.md says, or choose another quality")
    return found


def brings_adapter(request: GenerationRequest) -> bool:
    """Whether `request` has an adapter that states its steps; one that cannot be read is the plan's to refuse."""
    try:
        return adapters.steps_of(request) is not None
    except adapters.NotAnAdapter:
        return True


def put_on(request: GenerationRequest, found: ListedAdapter) -> GenerationRequest:
    """`request` with the adapter at its full strength, behind those it has; its steps stay what they are."""
    worn = (*request.sampling.adapters, Adapter(path=found.path))
    return dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, adapters=worn))


def _wrong(rule: str, way_out: str) -> InvalidRequest:
    return InvalidRequest((Problem(field="quality", value=NAME, rule=rule, way_out=way_out),))
