"""What can be asked of finished jobs: their last picture, how alike two are, the settings inside an MP4, disk use.

Knows records and their folders; pictures and files of strangers are read in a sandboxed child.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.errors import JobNotFound, NotNow
from backend.hardware.probe import disk_free
from backend.jobs.artifacts import Artifacts, writing
from backend.jobs.recall import Recalled, find_media
from backend.jobs.records import JobRecord, JobState
from backend.jobs.store import JobStore
from backend.media import finished, kept
from backend.types import LAST_FRAME_NAME, SIDECAR_NAME, VIDEO_NAME, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Ended jobs, the bytes of their inputs and results, and the bytes that are free on their disk."""

    jobs: int
    used_bytes: int
    free_bytes: int


class Results:
    """Questions about results, each asked by an owner.

    `record` is the job as that owner may see it (JobNotFound otherwise); `whose` is the owner whose jobs are meant,
    None for everybody's.
    """

    def __init__(
        self,
        store: JobStore,
        artifacts: Artifacts,
        record: Callable[[JobId, str], JobRecord],
        whose: Callable[[str], str | None],
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._record = record
        self._whose = whose
        self._told: dict[JobId, str] = {}  # a result never changes

    def video(self, job: JobId, *, owner: str) -> Path:
        """The MP4 of a succeeded job; raises NotNow for any other, JobNotFound where it is gone."""
        record = self._record(job, owner)
        if record.state is not JobState.SUCCEEDED:
            raise NotNow(f"job={job}: it is {record.state}; only a finished video can be used")
        return self._artifacts.file(job, VIDEO_NAME)

    def last_frame(self, job: JobId, target: Path, *, owner: str) -> None:
        """Put the last picture at `target`, a PNG: the one that was saved with the video, else decoded from it.

        Raises what `video` raises, MediaRefused, and H3Error when the disk refuses.
        """
        video = self.video(job, owner=owner)
        try:
            saved = self._artifacts.file(job, LAST_FRAME_NAME)
        except JobNotFound:
            finished.write_last_frame(video, target)
            return
        with writing(f"the last frame of job {job}"):
            shutil.copyfile(saved, target)

    def compare(self, first: JobId, second: JobId, *, owner: str) -> finished.Comparison:
        """PSNR and SSIM of two results, picture by picture; takes seconds. Raises what `video` does, MediaRefused."""
        return finished.compare(self.video(first, owner=owner), self.video(second, owner=owner))

    def recall(self, path: Path, name: str = "", *, owner: str) -> Recalled:
        """The settings inside one of our MP4s, with those of its media that are in the owner's own job of that id.

        Raises MediaRefused for any other file.
        """
        inside = kept.understand(finished.read_settings(path, name), name or path.name)
        with contextlib.suppress(JobNotFound):
            return find_media(inside, self._record(JobId(inside.job), owner))
        return find_media(inside, None)

    def sizes(self, jobs: Sequence[JobId], *, owner: str) -> dict[JobId, int]:
        """Bytes on the disk of each of `jobs` that has ended and is the owner's."""
        mine = set(self._store.ended_of(self._whose(owner)))
        return {job: _size(self._artifacts.folder(job)) for job in jobs if job in mine}

    def kernels(self, jobs: Sequence[JobId], *, owner: str) -> dict[JobId, str]:
        """The attention kernel that made each of `jobs`, where its sidecar tells and the job is the owner's."""
        mine = set(self._store.ended_of(self._whose(owner)))
        return {job: kernel for job in jobs if job in mine and (kernel := self._kernel(job))}

    def _kernel(self, job: JobId) -> str:
        if job not in self._told:
            self._told[job] = _attention(self._artifacts.output(job) / SIDECAR_NAME)
        return self._told[job]

    def disk_use(self, *, owner: str) -> DiskUse:
        """What the owner's ended jobs take in all."""
        jobs = self._store.ended_of(self._whose(owner))
        used = sum(_size(self._artifacts.folder(job)) for job in jobs)
        return DiskUse(jobs=len(jobs), used_bytes=used, free_bytes=disk_free(self._artifacts.jobs_dir))


def _attention(sidecar: Path) -> str:
    try:
        told = json.loads(sidecar.read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    kernel = told.get("attention") if isinstance(told, dict) else None
    return kernel if isinstance(kernel, str) else ""


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            total += path.lstat().st_size
    return total
