"""Prepares all media of a request in a folder, one sandboxed child a file.

Knows requests and where their files go; the pixels and samples are made in `readers`.
"""

from __future__ import annotations

from pathlib import Path

from backend.limits import canvas_of
from backend.media.probe import probe_file
from backend.media.sandbox import Order, Role, run
from backend.types import GenerationRequest, Geometry, MediaReport, PreparedMedia, PreparedReference


def prepare_request(request: GenerationRequest, geometry: Geometry, folder: Path) -> PreparedMedia:
    """Everything the model will see of `request`, written to `folder` (absolute); raises MediaRefused.

    Keyframes come first in `reports`, then the references in their order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keyframes, reports = _keyframes(request, geometry, folder)
    references = []
    for index, reference in enumerate(request.references):
        order = Order(
            field=f"references[{index}]",
            name=reference.path.name,
            role=Role.REFERENCE,
            stem=folder / f"reference-{index}",
            start_s=reference.start_s,
            length_s=reference.length_s,
            geometry=geometry,
        )
        report, answer = run(order, reference.path)
        reports.append(report)
        references.append(
            PreparedReference(kind=report.kind, image=answer.image, frames=answer.frames, audio=answer.audio)
        )
    return PreparedMedia(
        first_frame=keyframes.get("first_frame"),
        last_frame=keyframes.get("last_frame"),
        references=tuple(references),
        reports=tuple(reports),
    )


def _keyframes(
    request: GenerationRequest, geometry: Geometry, folder: Path
) -> tuple[dict[str, Path], list[MediaReport]]:
    """The first keyframe given is stretched onto the canvas; a last frame that follows it is cover-cropped."""
    named = {"first_frame": request.first_frame, "last_frame": request.last_frame}
    given = {field: path for field, path in named.items() if path is not None}
    files: dict[str, Path] = {}
    reports: list[MediaReport] = []
    canvas: tuple[int, int] | None = None
    for field, path in given.items():
        follows = canvas is not None
        if canvas is None:
            canvas = _canvas(request, geometry, field, path)
        order = Order(
            field=field,
            name=path.name,
            role=Role.FIRST_FRAME,
            stem=folder / field.replace("_", "-"),
            width=canvas[0],
            height=canvas[1],
            cover=follows,
            geometry=geometry,
        )
        report, answer = run(order, path)
        reports.append(report)
        if answer.image is not None:
            files[field] = answer.image
    return files, reports


def _canvas(request: GenerationRequest, geometry: Geometry, field: str, path: Path) -> tuple[int, int]:
    size = None
    if request.sampling.width is None and request.sampling.ratio is None:
        report = probe_file(path, role=Role.FIRST_FRAME, field=field, geometry=geometry)
        if report.width and report.height:
            size = (report.width, report.height)
    return canvas_of(request.sampling, geometry, size)
