"""Where one render's pictures and sound go: the MP4 while they come, then the sidecar, then Succeeded.

Knows the writer and the sidecar; it does not know which model made what it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from backend.errors import UnusableResult, WriteFailure
from backend.events import Succeeded
from backend.media.checks import OutputChecks
from backend.media.mp4 import Mp4Writer
from backend.types import SIDECAR_NAME, VIDEO_NAME, Render
from backend.worker import sidecar


class Output:
    """The files of one render. A context manager: left without `seal`, nothing remains."""

    def __init__(self, render: Render) -> None:
        sampling = render.request.sampling
        if sampling.width is None or sampling.height is None or sampling.seed is None:
            raise ValueError("a render needs a concrete canvas and seed")
        self._render = render
        self._frames = 0
        self._checks = OutputChecks()
        self._writer = Mp4Writer(render.folder / VIDEO_NAME, sampling.width, sampling.height, render.encoder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.abort()

    def video(self, frames: np.ndarray) -> None:
        """Append frames, uint8 (n, height, width, 3); what exceeds the request's count is dropped."""
        wanted = frames[: self._render.request.sampling.num_frames - self._frames]
        self._checks.video(wanted)
        self._writer.write_frames(wanted)
        self._frames += len(wanted)

    def audio(self, samples: np.ndarray) -> None:
        """Append sound, float32 (2, n) at 32 kHz."""
        self._checks.audio(samples)
        self._writer.write_audio(samples)

    def seal(self, details: dict[str, object], notice: Callable[[str], None]) -> Succeeded:
        """Judge the result, then put MP4 and sidecar in place: the sidecar last, so that it means a complete result.

        What is odd about the result goes to `notice` and, with its figures, into the sidecar. Raises UnusableResult
        where neither picture nor sound can be used, WriteFailure where the disk refuses.
        """
        checked = self._checks.report()
        if checked.unusable:
            raise UnusableResult(checked.unusable)
        for warning in checked.warnings:
            notice(warning)
        details = {**details, "checks": checked.figures, "warnings": list(checked.warnings)}
        path = self._render.folder / SIDECAR_NAME
        written = self._writer.close({"comment": json.dumps(details, ensure_ascii=False)})
        try:
            sidecar.write(path, details)
        except OSError as error:
            remove(written.path, written.last_frame, written.wav)
            way_out = f"free space in {path.parent} and run it again"
            raise WriteFailure(f"{path.name} could not be written: {error.strerror or error}; {way_out}") from error
        return Succeeded(video=written.path, sidecar=path, details=details)


def remove(*paths: Path | None) -> None:
    """Delete what was written of a result that did not become one."""
    for path in paths:
        if path is not None:
            path.unlink(missing_ok=True)
