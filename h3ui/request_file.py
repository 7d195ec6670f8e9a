"""A request file to panel values: a sidecar or request of this program, or the JSON body of the official examples.

Pure. Media that a file names are counted, never opened: a path in a file may name anything on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend import codec, limits
from backend.errors import InvalidRequest, Problem
from backend.types import GenerationRequest
from h3ui import form
from h3ui.form import Mode, StoredValues

MAX_FILE_CHARS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a file says of the panels, and how many pictures, clips and sounds it names that have to be added."""

    values: StoredValues
    media: int


def read(text: str) -> Opened:
    """Raises InvalidRequest, in words, for what is no request."""
    try:
        if len(text) > MAX_FILE_CHARS:
            raise ValueError("it is far too long")
        data: Any = json.loads(text)
        if isinstance(data, dict) and isinstance(data.get("request"), dict):
            data = data["request"]
        if not isinstance(data, dict) or not isinstance(data.get("prompt"), str):
            raise ValueError("it holds no prompt")
        return _official(data) if isinstance(data.get("target"), dict) else _ours(data)
    except (ValueError, RecursionError) as error:
        problem = Problem(field="request file", value="", rule=f"is no request: {error}")
        raise InvalidRequest((problem,)) from error


def _ours(data: dict[str, Any]) -> Opened:
    request = codec.decode(GenerationRequest, data, "request")
    stored = form.from_request(request)
    media = len(request.references) + sum(path is not None for path in (request.first_frame, request.last_frame))
    return Opened(values=stored, media=media)


def _official(data: Mapping[str, Any]) -> Opened:
    """`{"task", "prompt", "conditions", "target": {"aspect_ratio", "duration_seconds"}, "seed"}`, as released."""
    target: Mapping[str, Any] = data["target"]
    mode = {"fl2va": Mode.FRAMES, "ref2va": Mode.REFERENCES}.get(str(data.get("task")), Mode.TEXT)
    ratio, seconds, seed = target.get("aspect_ratio"), target.get("duration_seconds"), data.get("seed")
    known = isinstance(seconds, int | float) and limits.MIN_DURATION_S <= seconds <= limits.MAX_DURATION_S
    conditions = data.get("conditions")
    return Opened(
        values=StoredValues(
            prompt=data["prompt"],
            mode=mode,
            first_frame=None,
            last_frame=None,
            references=(),
            width=None,
            height=None,
            ratio=ratio if ratio in limits.RATIOS else form.AUTO_RATIO,
            duration_s=float(seconds) if known else 5.0,  # type: ignore[arg-type]
            steps=50,  # the released recipe
            seed=str(seed) if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 else "",
            adapter="",
            adapter_scale=1.0,
        ),
        media=len(conditions) if isinstance(conditions, list) else 0,
    )
