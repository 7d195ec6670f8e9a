"""Where one render's pictures and sound go: what is shown of them at once, the MP4, the sidecar, then Succeeded.

Knows the writer and the sidecar; it does not know which model made what it writes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from PIL import Image

from backend.errors import UnusableResult, WriteFailure
from backend.events import Succeeded
from backend.media import kept
from backend.media.checks import OutputChecks
from backend.media.mp4 import Growing, Mp4Writer
from backend.types import PREVIEW_NAME, SIDECAR_NAME, STREAM_NAME, VIDEO_NAME, Render, Stage
from backend.worker import sidecar
from backend.worker.report import Report


class Output:
    """The files of one render. A context manager: left without `seal`, nothing remains.

    With a `report`, what can be seen early is told to it: small pictures, and the growing video. Those files are gone
    when the context is left, however that happens.
    """

    def __init__(self, render: Render, report: Report | None = None) -> None:
        sampling = render.request.sampling
        if sampling.width is None or sampling.height is None or sampling.seed is None:
            raise ValueError("a render needs a concrete canvas and seed")
        self._render = render
        self._report = report
        self._frames = 0
        self._blind = False  # the disk refused a picture: this job shows no more
        self._checks = OutputChecks()
        growing = None
        if report is not None and render.encoder.stream:
            stream = render.folder / STREAM_NAME
            growing = Growing(path=stream, tell=lambda: report.preview(stream, sampling.num_inference_steps - 1))
        self._writer = Mp4Writer(render.folder / VIDEO_NAME, sampling.width, sampling.height, render.encoder, growing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.abort()
        remove(self._render.folder / PREVIEW_NAME)

    def preview(self, step: int, pixels: np.ndarray) -> None:
        """Show what forward `step` promises: uint8 (height, width, 3), small. Without a report nobody looks."""
        if self._report is None or self._blind:
            return
        path = self._render.folder / PREVIEW_NAME
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        try:
            Image.fromarray(pixels).save(part, format="PNG", compress_level=1)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            self._blind = True
            self._report.notice(f"The live preview ends here: {path.name} could not be written ({error.strerror}).")
        else:
            self._report.preview(path, step)

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
        details = {**details, "checks": checked.figures, "warnings": list(checked.warnings), **self._timing()}
        path = self._render.folder / SIDECAR_NAME
        written = self._writer.close({"comment": json.dumps(kept.portable(details), ensure_ascii=False)})
        try:
            sidecar.write(path, details)
        except OSError as error:
            remove(written.path, written.last_frame, written.wav)
            way_out = f"free space in {path.parent} and run it again"
            raise WriteFailure(f"{path.name} could not be written: {error.strerror or error}; {way_out}") from error
        return Succeeded(video=written.path, sidecar=path, details=details)

    def _timing(self) -> dict[str, float]:
        """Seconds from the last forward until the first second could be watched with its sound; {} where it was not."""
        seen = self._writer.first_second_at
        ready = self._report.entered.get(Stage.DECODE) if self._report is not None else None
        return {} if seen is None or ready is None else {"first_second_s": round(seen - ready, 3)}


def remove(*paths: Path | None) -> None:
    """Delete what was written of a result that did not become one."""
    for path in paths:
        if path is not None:
            path.unlink(missing_ok=True)
