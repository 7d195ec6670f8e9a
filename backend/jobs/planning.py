"""From what a user asks to what will be rendered: media looked at, canvas and seed concrete, every problem at once.

Knows requests, media reports and checkpoints' canvas rules; it stores nothing.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend import limits
from backend.checkpoints import adapters
from backend.errors import InvalidRequest, MediaRefused, Problem
from backend.jobs.services import Services
from backend.presets import QualityPreset
from backend.types import FPS, GenerationRequest, Geometry, MediaReport, Reference, ReferenceKind

SEEDS = 2**32  # a drawn seed is short enough to read out; a given one may be larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request will become: resolved, in px, frames and seconds, with its prompt tags and media reports."""

    request: GenerationRequest
    width: int
    height: int
    num_frames: int
    duration_s: float
    num_forwards: int
    tags: tuple[tuple[str, ...], ...]
    reports: tuple[MediaReport, ...]
    notices: tuple[str, ...]

    @property
    def media(self) -> tuple[Path, ...]:
        """The files it needs, each once."""
        return tuple(dict.fromkeys(path for _, path in _named(self.request)))


def scaled(geometry: Geometry, quality: QualityPreset) -> Geometry:
    """Canvas rules at a quality preset's scale; references keep theirs."""
    scale, multiple = quality.canvas_scale, geometry.canvas_multiple
    edge = max(multiple, round(geometry.canvas_short_edge * scale / multiple) * multiple)
    pixels = round(geometry.canvas_max_pixels * (edge / geometry.canvas_short_edge) ** 2)
    return dataclasses.replace(geometry, canvas_short_edge=edge, canvas_max_pixels=pixels)


def make_plan(
    request: GenerationRequest,
    geometry: Geometry,
    services: Services,
    probed: Mapping[Path, MediaReport] | None = None,
) -> Plan:
    """The plan of `request` on canvas rules `geometry`. Raises InvalidRequest with all problems."""
    problems: list[Problem] = []
    reports = _look_at(request, services, probed or {}, problems)
    problems += limits.validate(request, reports)
    for field, path in (("first_frame", request.first_frame), ("last_frame", request.last_frame)):
        report = reports.get(path) if path is not None else None
        if report is not None and report.kind is not ReferenceKind.IMAGE:
            rule = f"must be a picture, and this is {'a video' if report.kind is ReferenceKind.VIDEO else 'sound'}"
            problems.append(Problem(field=field, value=report.name, rule=rule, way_out="choose an image file"))
    request, notices = _with_kinds(request, reports)
    try:
        request, said = adapters.with_schedule(request)
        notices += said
    except adapters.NotAnAdapter as error:
        if not any(problem.field == error.problem.field for problem in problems):  # a missing file was named already
            problems.append(error.problem)
    seed = secrets.randbelow(SEEDS)
    try:
        resolved = limits.resolve(request, geometry, _keyframe_size(request, reports), seed)
    except InvalidRequest as error:
        raise InvalidRequest(tuple(dict.fromkeys((*problems, *error.problems)))) from error
    if problems:
        raise InvalidRequest(tuple(dict.fromkeys(problems)))
    for report in reports.values():
        notices += [f"{report.name}: {warning}" for warning in report.warnings]
    sampling = resolved.sampling
    assert sampling.width is not None and sampling.height is not None  # `resolve` made them concrete
    return Plan(
        request=resolved,
        width=sampling.width,
        height=sampling.height,
        num_frames=sampling.num_frames,
        duration_s=sampling.num_frames / FPS,
        num_forwards=sampling.num_inference_steps - 1,
        tags=_tags(request.references, reports),
        reports=tuple(reports[path] for _, path in _named(request)),
        notices=tuple(notices),
    )


def _named(request: GenerationRequest) -> list[tuple[str, Path]]:
    """(field, path) of every medium of a request."""
    named = [("first_frame", request.first_frame), ("last_frame", request.last_frame)]
    named += [(f"references[{index}]", reference.path) for index, reference in enumerate(request.references)]
    return [(field, path) for field, path in named if path is not None]


def _look_at(
    request: GenerationRequest, services: Services, probed: Mapping[Path, MediaReport], problems: list[Problem]
) -> dict[Path, MediaReport]:
    """Reports of all media that can be looked at; a refused file becomes a problem."""
    reports: dict[Path, MediaReport] = {}
    named = _named(request)
    for field, path in named if len(named) <= limits.MAX_REFERENCES + 2 else ():  # more is refused without opening any
        if path in reports:
            continue
        if path in probed:
            reports[path] = probed[path]
        elif not limits.no_file(path):  # a missing one is reported by `limits.validate`
            try:
                reports[path] = services.probe_file(path, field, not field.startswith("references"))
            except MediaRefused as error:
                problems.append(error.problem)
    return reports


def _with_kinds(request: GenerationRequest, reports: Mapping[Path, MediaReport]) -> tuple[GenerationRequest, list[str]]:
    """References with the kind of their content, which decides, and a notice where another was named."""
    notices: list[str] = []
    references: list[Reference] = []
    for reference in request.references:
        report = reports.get(reference.path)
        if report is not None and reference.kind not in (None, report.kind):
            notices.append(f"{report.name}: used as {report.kind}, which it is, and not as {reference.kind}")
        kind = report.kind if report is not None else reference.kind
        references.append(dataclasses.replace(reference, kind=kind))
    return dataclasses.replace(request, references=tuple(references)), notices


def _keyframe_size(request: GenerationRequest, reports: Mapping[Path, MediaReport]) -> tuple[int, int] | None:
    for path in (request.first_frame, request.last_frame):
        report = reports.get(path) if path is not None else None
        if report is not None and report.width and report.height:
            return report.width, report.height
    return None


def _tags(references: tuple[Reference, ...], reports: Mapping[Path, MediaReport]) -> tuple[tuple[str, ...], ...]:
    kinds = []
    for reference in references:
        report = reports.get(reference.path)
        has_sound = report is not None and report.audio_codec is not None
        kinds.append((reference.kind or ReferenceKind.IMAGE, has_sound))
    return limits.reference_tags(kinds)
