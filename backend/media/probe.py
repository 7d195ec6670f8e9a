"""Says what files are, by content, before a job is queued.

Each file is looked at in a sandbox of its own. It applies rules about files; budgets over all are `backend.limits`'.
"""

from __future__ import annotations

from pathlib import Path

from backend.media.sandbox import Order, Role, run
from backend.types import GenerationRequest, Geometry, Glimpse, MediaReport


def probe_file(
    path: Path, *, role: Role = Role.REFERENCE, field: str = "file", geometry: Geometry | None = None
) -> MediaReport:
    """What the file at `path` is; raises MediaRefused where it cannot be used in this `role`."""
    order = Order(field=field, name=path.name, role=role, geometry=geometry or Geometry())
    return run(order, path)[0]


def glimpse_file(
    path: Path, *, role: Role = Role.REFERENCE, field: str = "file", folder: Path
) -> tuple[MediaReport, Glimpse]:
    """`probe_file` with pictures for people, written to `folder`; raises MediaRefused, leaving none then."""
    folder.mkdir(parents=True, exist_ok=True)
    order = Order(field=field, name=path.name, role=role, stem=folder.resolve() / "seen", glimpse=True)
    report, answer = run(order, path)
    return report, answer.glimpse


def probe_request_files(request: GenerationRequest, geometry: Geometry) -> dict[Path, MediaReport]:
    """Reports of all media of `request` by path; raises MediaRefused naming the field of the first that is refused."""
    reports = {}
    for field, path in (("first_frame", request.first_frame), ("last_frame", request.last_frame)):
        if path is not None:
            reports[path] = probe_file(path, role=Role.FIRST_FRAME, field=field, geometry=geometry)
    for index, reference in enumerate(request.references):
        reports[reference.path] = probe_file(reference.path, field=f"references[{index}]", geometry=geometry)
    return reports
