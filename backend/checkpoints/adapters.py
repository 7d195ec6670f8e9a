"""What an adapter file says of itself before anything loads it: what it changes, and the schedule it was made for.

Reads a safetensors header and a small TOML file beside it; weights are merged by a rank, which checks them fully.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import limits
from backend.errors import H3Error, Problem
from backend.types import GenerationRequest

MAX_HEADER = 64 << 20  # bytes; a header of all layers is under one
SHIFTS = ("flow_shift", "audio_flow_shift")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCard:
    """One LoRA file. Shifts and steps (sigma points) are those it was made for, None where it does not say."""

    title: str
    bytes: int
    matrices: int  # weights it changes
    flow_shift: float | None = None
    audio_flow_shift: float | None = None
    num_inference_steps: int | None = None


class NotAnAdapter(H3Error):
    """A file is no LoRA, or what it says of its schedule cannot be."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def card(path: Path, field: str = "adapter") -> AdapterCard:
    """What `path` says of itself: its safetensors metadata, changed by a TOML file of the same name beside it.

    Raises NotAnAdapter, whose problem names `field`.
    """
    try:
        header = _header(path)
        said = {name: value for name, value in header.pop("__metadata__", {}).items() if name in _KEYS}
        beside = path.with_suffix(".toml")
        if beside.is_file():
            said |= _toml(beside)
        matrices = sum(".lora_A." in name or ".lora_down." in name or ".lora.down." in name for name in header)
        if not matrices:
            raise ValueError("holds no LoRA matrices; only LoRA files can be used")
        figures = {name: _KEYS[name](value, name) for name, value in said.items()}
    except (OSError, ValueError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        rule, _, way_out = reason.partition("; ")
        raise NotAnAdapter(Problem(field=field, value=path.name, rule=rule, way_out=way_out)) from error
    return AdapterCard(**{"title": path.stem, "bytes": path.stat().st_size, "matrices": matrices} | figures)


def with_schedule(request: GenerationRequest) -> tuple[GenerationRequest, tuple[str, ...]]:
    """The request with the shifts that its adapters were made for, where it names none, and what to say about it.

    The first adapter that states a value decides. Raises NotAnAdapter.
    """
    sampling, notices = request.sampling, list[str]()
    for number, adapter in enumerate(sampling.adapters):
        found = card(adapter.path, f"adapters[{number}]")
        for name in SHIFTS:
            value = getattr(found, name)
            if value is not None and getattr(sampling, name) is None:
                sampling = dataclasses.replace(sampling, **{name: value})
                notices.append(f"{found.title}: {name} is {value:g}, as it was made for")
        steps = found.num_inference_steps
        if steps is not None and steps != sampling.num_inference_steps:
            notices.append(f"{found.title} was made for {steps} steps; this request has {sampling.num_inference_steps}")
    return dataclasses.replace(request, sampling=sampling), tuple(notices)


def steps_of(request: GenerationRequest) -> int | None:
    """Sigma points that the first adapter which states them was made for. Raises NotAnAdapter."""
    cards = (card(adapter.path, f"adapters[{number}]") for number, adapter in enumerate(request.sampling.adapters))
    return next((each.num_inference_steps for each in cards if each.num_inference_steps is not None), None)


def _header(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, MAX_HEADER):
            raise ValueError("is no safetensors file; convert it to one")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError("is no safetensors file; convert it to one") from error
    if not isinstance(header, dict):
        raise ValueError("is no safetensors file; convert it to one")
    return header


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}; correct or remove it") from error
    unknown = sorted(said.keys() - _KEYS.keys())
    if unknown:
        raise ValueError(f"{path.name} has the key {unknown[0]}; its keys are {', '.join(_KEYS)}")
    return said


def _shift(value: Any, name: str) -> float:
    number = _number(value, name)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}={value} must be a number above 0; correct the file")
    return number


def _steps(value: Any, name: str) -> int:
    number = _number(value, name)
    if number != int(number) or not limits.MIN_STEPS <= number <= limits.MAX_STEPS:
        raise ValueError(f"{name}={value} must be {limits.MIN_STEPS} to {limits.MAX_STEPS}; correct the file")
    return int(number)


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)  # metadata is text
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r} must be a number; correct the file") from error
    return number if math.isfinite(number) else -1.0


def _title(value: Any, _name: str) -> str:
    return str(value)


_KEYS = {"title": _title, "flow_shift": _shift, "audio_flow_shift": _shift, "num_inference_steps": _steps}
