"""Panel values to a GenerationRequest, and a stored request back to panel values.

Pure: it knows what the fields of the page mean, and neither Gradio nor the backend's state.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from backend import limits
from backend.errors import InvalidRequest, Problem
from backend.types import Adapter, GenerationRequest, Glimpse, MediaReport, Reference, ReferenceKind, Sampling

AUTO_RATIO = "auto"  # the first frame's shape, else 16:9
RATIO_CHOICES = (AUTO_RATIO, *limits.RATIOS)
DURATION_STEP_S = 0.5  # one chunk of 17 frames is 0.708 s, so half seconds reach every frame count


class Mode(StrEnum):
    """Which media the page hands over; what the other mode holds stays on the page and is not sent."""

    TEXT = "text"
    FRAMES = "frames"
    REFERENCES = "references"


class Size(StrEnum):
    """How large the canvas is: what model and quality make of the shape, or two numbers."""

    AUTO = "auto"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One file on the page, what the backend found in it, and the part of it to use (seconds).

    `key` names it on the page while it is moved around; the same file dropped twice is two items.
    """

    path: Path
    report: MediaReport
    start_s: float = 0.0
    length_s: float | None = None
    glimpse: Glimpse = field(default_factory=Glimpse)
    key: str = field(default_factory=lambda: secrets.token_hex(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelValues:
    """Everything the panels hold, as a person left it; numbers may be absent, the seed is text."""

    prompt: str = ""
    mode: Mode = Mode.TEXT
    first_frame: MediaItem | None = None
    last_frame: MediaItem | None = None
    references: tuple[MediaItem, ...] = ()
    ratio: str = AUTO_RATIO
    size: Size = Size.AUTO
    width: float | None = None
    height: float | None = None
    duration_s: float | None = 5.0
    steps: float | None = 50
    seed: str = ""
    quality: str = "standard"
    adapter: Adapter | None = None  # resolved from the name of one that is listed here, never from a path
    missing_adapter: str = ""  # the name of one that was chosen and is not there any more


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValues:
    """What a stored request says about the panels; media are paths still to be probed."""

    prompt: str
    mode: Mode
    first_frame: Path | None
    last_frame: Path | None
    references: tuple[Reference, ...]
    width: int | None
    height: int | None
    ratio: str
    duration_s: float
    steps: int
    seed: str
    adapter: str  # the name of the first one; the page has room for one
    adapter_scale: float

    @property
    def size(self) -> Size:
        """Stored canvases are concrete numbers, so they come back as a custom size."""
        return Size.AUTO if self.width is None else Size.CUSTOM


def to_request(values: PanelValues) -> GenerationRequest:
    """The request that `values` ask for.

    Raises InvalidRequest with every problem at once, those of the fields and those of the model's rules.
    """
    problems: list[Problem] = []
    num_frames = _num_frames(values.duration_s, problems)
    width, height, ratio = _canvas(values, problems)
    sampling = Sampling(
        num_frames=num_frames,
        width=width,
        height=height,
        ratio=ratio,
        num_inference_steps=_steps(values.steps, problems),
        seed=_seed(values.seed, problems),
        adapters=(values.adapter,) if values.adapter is not None else (),
    )
    frames = values.mode is Mode.FRAMES
    request = GenerationRequest(
        prompt=values.prompt or "",
        first_frame=values.first_frame.path if frames and values.first_frame else None,
        last_frame=values.last_frame.path if frames and values.last_frame else None,
        references=_references(values),
        sampling=sampling,
    )
    problems += [*_missing_adapter(values), *_missing_media(values), *limits.validate(request, reports(values))]
    if problems:
        raise InvalidRequest(tuple(problems))
    return request


def _missing_adapter(values: PanelValues) -> list[Problem]:
    rule, way_out = "is not installed here any more", "choose another, or none"
    name = values.missing_adapter
    return [Problem(field="adapter", value=name, rule=rule, way_out=way_out)] if name else []


def _missing_media(values: PanelValues) -> list[Problem]:
    """What the chosen way of making needs and the page does not hold: never make a text-only video in its place."""
    if values.mode is Mode.FRAMES and values.first_frame is None and values.last_frame is None:
        way_out = "add a first or a last frame, or choose Text"
        return [Problem(field="first_frame", value="", rule="no frame was added", way_out=way_out)]
    if values.mode is Mode.REFERENCES and not values.references:
        return [Problem(field="references", value="", rule="none was added", way_out="add one, or choose Text")]
    return []


def reports(values: PanelValues) -> dict[Path, MediaReport]:
    """The probed reports of every file the page holds, by path."""
    items = [values.first_frame, values.last_frame, *values.references]
    return {item.path: item.report for item in items if item is not None}


def tags(references: tuple[MediaItem, ...]) -> tuple[tuple[str, ...], ...]:
    """The prompt tags of each reference, in order."""
    return limits.reference_tags((item.report.kind, item.report.audio_codec is not None) for item in references)


def all_tags(values: PanelValues) -> tuple[tuple[str, ...], ...]:
    """The prompt tags of everything that would be sent: references, or the frames as pictures in their order."""
    if values.mode is Mode.REFERENCES:
        return tags(values.references)
    frames = [frame for frame in (values.first_frame, values.last_frame) if frame is not None]
    return tags(tuple(frames)) if values.mode is Mode.FRAMES else ()


def from_request(request: GenerationRequest) -> StoredValues:
    """Panel values that make `request` again: the same frames, canvas, steps and seed."""
    sampling = request.sampling
    mode = Mode.TEXT
    if request.references:
        mode = Mode.REFERENCES
    elif request.first_frame is not None or request.last_frame is not None:
        mode = Mode.FRAMES
    return StoredValues(
        prompt=request.prompt,
        mode=mode,
        first_frame=request.first_frame,
        last_frame=request.last_frame,
        references=request.references,
        width=sampling.width,
        height=sampling.height,
        ratio=sampling.ratio if sampling.ratio in limits.RATIOS else AUTO_RATIO,
        duration_s=duration_for_frames(sampling.num_frames),
        steps=sampling.num_inference_steps,
        seed="" if sampling.seed is None else str(sampling.seed),
        adapter=sampling.adapters[0].path.stem if sampling.adapters else "",
        adapter_scale=sampling.adapters[0].scale if sampling.adapters else 1.0,
    )


def duration_for_frames(num_frames: int) -> float:
    """Seconds on the slider that snap to `num_frames`: whole ones first, else half ones (107 -> 4, 209 -> 8.5)."""
    halves = range(round(limits.MIN_DURATION_S / DURATION_STEP_S), round(limits.MAX_DURATION_S / DURATION_STEP_S) + 1)
    fitting = [half / 2 for half in halves if limits.num_frames_for_duration(half / 2) == num_frames]
    whole = [seconds for seconds in fitting if seconds == int(seconds)]
    if not fitting:
        return min(max(num_frames / 24, limits.MIN_DURATION_S), limits.MAX_DURATION_S)
    return (whole or fitting)[-1]


def find(items: Sequence[MediaItem], key: str) -> int | None:
    """The place of the item called `key`, None when it is gone."""
    return next((index for index, item in enumerate(items) if item.key == key), None)


def move(items: tuple[MediaItem, ...], index: int, target: int) -> tuple[MediaItem, ...]:
    """`items` with the one at `index` moved to place `target`; unchanged where there is no such place."""
    if not (0 <= index < len(items) and 0 <= target < len(items)):
        return items
    reordered = list(items)
    reordered.insert(target, reordered.pop(index))
    return tuple(reordered)


def renumbering(before: tuple[MediaItem, ...], after: tuple[MediaItem, ...]) -> dict[str, str | None]:
    """Old prompt tags to new ones where a change of the tray changed them; None for tags of what was removed.

    Nothing is renumbered for a tray of which no item was kept: it was replaced, not rearranged.
    """
    if not {item.key for item in before} & {item.key for item in after}:
        return {}
    now = dict(zip((item.key for item in after), tags(after), strict=True))
    changed: dict[str, str | None] = {}
    for item, old in zip(before, tags(before), strict=True):
        new = now.get(item.key, (None,) * len(old))
        changed |= {was: to for was, to in zip(old, new, strict=True) if was != to}
    return changed


def used_s(item: MediaItem) -> float:
    """Seconds of a clip or sound that will be used, 0 when unknown."""
    return max(limits.used_length_s(_reference(item), item.report.duration_s) or 0.0, 0.0)


def faults(items: tuple[MediaItem, ...]) -> tuple[tuple[Problem, ...], ...]:
    """What is wrong with each item of the tray by itself, in their order; each stands beside its item, so unnamed."""
    request = GenerationRequest(prompt="a prompt", references=tuple(_reference(item) for item in items))
    found = limits.validate(request, {item.path: item.report for item in items})
    return tuple(
        tuple(
            dataclasses.replace(problem, field="", value="")
            for problem in found
            if problem.field == f"references[{index}]"
        )
        for index in range(len(items))
    )


def fitted(item: MediaItem) -> MediaItem:
    """A clip that is longer than any reference may be starts with its first seconds chosen, to be moved by hand."""
    seconds = item.report.duration_s or 0.0
    if item.report.kind is ReferenceKind.IMAGE or seconds <= limits.MAX_CLIP_S + limits.CLIP_TOLERANCE_S:
        return item
    return dataclasses.replace(item, length_s=limits.MAX_CLIP_S)


def trim(item: MediaItem, field: str, text: str) -> MediaItem:
    """`item` with `start` or `length` set from what was typed; empty text means from the start, or to the end.

    Raises InvalidRequest where the text is no number of seconds.
    """
    cleaned = text.strip().replace(",", ".")
    try:
        seconds = float(cleaned) if cleaned else None
    except ValueError:
        seconds = -1.0
    if seconds is not None and not 0 <= seconds < 36_000:
        shown = f"{item.path.name} ({text})"
        problem = Problem(field=field, value=shown, rule="must be seconds", way_out="for example 2.5")
        raise InvalidRequest((problem,))
    if field == "start":
        return dataclasses.replace(item, start_s=seconds or 0.0)
    return dataclasses.replace(item, length_s=seconds or None)


def _references(values: PanelValues) -> tuple[Reference, ...]:
    if values.mode is not Mode.REFERENCES:
        return ()
    return tuple(_reference(item) for item in values.references)


def _reference(item: MediaItem) -> Reference:
    if item.report.kind is ReferenceKind.IMAGE:
        return Reference(path=item.path, kind=item.report.kind)
    return Reference(path=item.path, kind=item.report.kind, start_s=item.start_s, length_s=item.length_s)


def _num_frames(duration_s: float | None, problems: list[Problem]) -> int:
    if duration_s is None:
        problems.append(Problem(field="duration", value="", rule="must be 4 to 15 seconds", way_out="move the slider"))
        return limits.MIN_FRAMES
    try:
        return limits.num_frames_for_duration(duration_s)
    except InvalidRequest as error:
        problems += error.problems
        return limits.MIN_FRAMES


def _canvas(values: PanelValues, problems: list[Problem]) -> tuple[int | None, int | None, str | None]:
    """(width, height, ratio): one of both ways; what neither says the backend takes from keyframe and quality."""
    if values.size is Size.AUTO:
        return None, None, None if values.ratio == AUTO_RATIO else values.ratio
    width, height = _whole("width", values.width, problems), _whole("height", values.height, problems)
    return (None, None, None) if width is None or height is None else (width, height, None)


def _whole(field: str, number: float | None, problems: list[Problem]) -> int | None:
    if number is None or number != int(number):
        shown = "" if number is None else f"{number:g}"
        problems.append(Problem(field=field, value=shown, rule="must be a whole number of pixels", way_out="e.g. 768"))
        return None
    return int(number)


def _steps(steps: float | None, problems: list[Problem]) -> int:
    if steps is None or steps != int(steps):
        shown = "" if steps is None else f"{steps:g}"
        rule = f"must be a whole number, {limits.MIN_STEPS} to {limits.MAX_STEPS}"
        problems.append(Problem(field="steps", value=shown, rule=rule, way_out="50 is the released recipe"))
        return limits.MIN_STEPS
    return int(steps)


def _seed(text: str, problems: list[Problem]) -> int | None:
    cleaned = (text or "").strip().replace(" ", "")
    if cleaned in ("", "-1"):
        return None
    if cleaned.isascii() and cleaned.removeprefix("-").isdigit():
        return int(cleaned[:30])  # longer than any seed already; int() of thousands of digits is an error of its own
    rule = "must be a whole number"
    problems.append(Problem(field="seed", value=text, rule=rule, way_out="leave it empty for a random seed"))
    return None
