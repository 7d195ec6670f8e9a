"""The settings inside an MP4 that somebody brought, with the media they name looked for among that person's own jobs.

Knows job folders and digests; what the settings mean, and whether they are possible, is `backend.media.kept`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from backend.jobs.records import JobRecord
from backend.media.kept import Kept, media_of, sha256_of, with_files
from backend.types import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """`kept` and, for each of its inputs in order, the same file in `source`, or None where there is none."""

    kept: Kept
    files: tuple[Path | None, ...]

    def request(self) -> GenerationRequest:
        """The request with the files that were found; what was not is left out."""
        found = {item.field: file for item, file in zip(self.kept.inputs, self.files, strict=True) if file is not None}
        asked = with_files(self.kept.request, found)
        return replace(
            asked,
            first_frame=found.get("first_frame"),
            last_frame=found.get("last_frame"),
            references=tuple(item for index, item in enumerate(asked.references) if f"references[{index}]" in found),
        )

    def labels(self) -> dict[str, str]:
        """What the found files were called, by file name."""
        return {file.name: item.name for item, file in zip(self.kept.inputs, self.files, strict=True) if file}

    def missing(self) -> tuple[str, ...]:
        """Names of the files that were not found."""
        return tuple(item.name for item, file in zip(self.kept.inputs, self.files, strict=True) if file is None)


def find_media(kept: Kept, source: JobRecord | None) -> Recalled:
    """Look for the inputs of `kept` among those of the job `source`, by their content."""
    held: dict[str, Path] = {}
    wanted = {item.sha256 for item in kept.inputs if item.sha256}
    for _, path in media_of(source.request) if source is not None and wanted else ():
        try:
            held[sha256_of(path)] = path
        except OSError:  # inputs are cleared after a while
            continue
    return Recalled(kept=kept, files=tuple(held.get(item.sha256) for item in kept.inputs))
