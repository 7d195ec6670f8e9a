"""A job's folder: copies of its media, what was prepared from them, and its results under fixed names.

Knows files only. Nothing is listed unless it is whole: results count once the job has succeeded.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import H3Error, JobNotFound
from backend.jobs.records import OUTPUT_NAMES, with_paths
from backend.types import LIVE_NAMES, SIDECAR_NAME, VIDEO_NAME, GenerationRequest, JobId

KEEP_INPUTS_S = 30 * 24 * 3600.0  # inputs of ended jobs serve retry and duplicate that long
KEEP_INPUTS_BYTES = 20 * 2**30  # oldest go first above this
KEEP_UPLOADS_S = 24 * 3600.0
KEEP_RESULTS_BYTES = 500 * 2**30  # above this the oldest results that are no favourites go
_INCOMING, _LEAVING = ".incoming-", ".leaving-"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A request whose media lie in its job's folder, and the names they came with by their names there."""

    request: GenerationRequest
    labels: dict[str, str]


class Artifacts:
    """All job folders below `jobs_dir`."""

    def __init__(self, jobs_dir: Path) -> None:
        self.jobs_dir = jobs_dir
        jobs_dir.mkdir(parents=True, exist_ok=True)

    def folder(self, job: JobId) -> Path:
        """The folder of `job`; raises JobNotFound for text that is no id."""
        if not _JOB_ID.fullmatch(job):
            raise JobNotFound("there is no such job")
        return self.jobs_dir / job

    def inputs(self, job: JobId) -> Path:
        """Copies of the media a user gave."""
        return self.folder(job) / "inputs"

    def prepared(self, job: JobId) -> Path:
        """What was made of them for the model; removed when the job ends."""
        return self.folder(job) / "prepared"

    def output(self, job: JobId) -> Path:
        """Results."""
        return self.folder(job) / "output"

    def begin(self, job: JobId, request: GenerationRequest, labels: dict[str, str], in_place: bool = False) -> Copied:
        """Copy the media of `request` (or leave them `in_place`) for a new job.

        `commit` makes the folder real; until then `abandon` undoes it.
        """
        with writing(f"the inputs of job {job}"):
            staging = self.jobs_dir / (_INCOMING + job)
            (staging / "inputs").mkdir(parents=True)
            if in_place:
                return Copied(request=with_paths(request, Path.resolve), labels={})
            try:
                return self._copy(request, staging / "inputs", self.inputs(job), labels)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise

    def commit(self, job: JobId) -> None:
        """Give a begun folder its name; its row is stored already, so a crash before this is repaired by `sweep`."""
        (self.jobs_dir / (_INCOMING + job)).rename(self.folder(job))

    def abandon(self, job: JobId) -> None:
        """Remove a begun folder that got no row."""
        shutil.rmtree(self.jobs_dir / (_INCOMING + job), ignore_errors=True)

    def add_inputs(self, job: JobId, request: GenerationRequest, labels: dict[str, str]) -> Copied:
        """Copy the media of an edited request beside the old ones; `drop_inputs` removes those afterwards."""
        with writing(f"the inputs of job {job}"):
            self.inputs(job).mkdir(parents=True, exist_ok=True)
            return self._copy(request, self.inputs(job), self.inputs(job), labels)

    def drop_inputs(self, job: JobId, names: set[str]) -> None:
        """Remove input files of `job` by name."""
        for name in names:
            (self.inputs(job) / name).unlink(missing_ok=True)

    def open_output(self, job: JobId) -> Path:
        """The empty output folder of a job that is about to run."""
        with writing(f"the output folder of job {job}"):
            for folder in (self.prepared(job), self.output(job)):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            return self.output(job)

    def result(self, job: JobId) -> tuple[Path, Path, dict[str, Any]]:
        """(video, sidecar, the sidecar's content) of a finished render. Raises H3Error naming what is missing."""
        video, sidecar = self.output(job) / VIDEO_NAME, self.output(job) / SIDECAR_NAME
        for path in (video, sidecar):
            if not path.is_file() or path.stat().st_size == 0:
                state = "is empty" if path.is_file() else "is not there"
                raise H3Error(f"The engine finished, but {path} {state}; check the disk and run the job again.")
        try:
            details = json.loads(sidecar.read_text(encoding="utf-8"))
        except ValueError as error:
            raise H3Error(f"The engine finished, but {sidecar} is no JSON ({error}); run the job again.") from error
        return video, sidecar, details

    def file(self, job: JobId, name: str) -> Path:
        """A result by its fixed name; raises JobNotFound for any other name and for what is not there."""
        path = self.output(job) / name if name in OUTPUT_NAMES else None
        if path is None or path.is_symlink() or not path.is_file():
            raise JobNotFound(f"job={job}: it has no file of that name")
        return path

    def live_file(self, job: JobId, name: str) -> Path | None:
        """What a running job shows of itself, by its fixed name, or None while it does not."""
        path = self.output(job) / name if name in LIVE_NAMES else None
        return path if path is not None and path.is_file() and not path.is_symlink() else None

    def close_job(self, job: JobId, succeeded: bool) -> None:
        """Clear what an ended job needs no longer: prepared media, what it showed, and results of a failure."""
        shutil.rmtree(self.prepared(job), ignore_errors=True)
        for name in LIVE_NAMES:
            (self.output(job) / name).unlink(missing_ok=True)
        if not succeeded:
            shutil.rmtree(self.output(job), ignore_errors=True)

    def delete(self, job: JobId, forget: Callable[[], None]) -> None:
        """Remove the folder of `job` around `forget`, which removes its row; a crash between is repaired by `sweep`."""
        folder, leaving = self.folder(job), self.jobs_dir / (_LEAVING + job)
        if folder.exists():
            folder.rename(leaving)
        forget()
        shutil.rmtree(leaving, ignore_errors=True)

    def repair(self, exists: Callable[[str], bool], forget: Callable[[JobId], None]) -> None:
        """Finish what a crash cut short: submits with a row are completed, without one undone; deletions are ended."""
        for staging in self.jobs_dir.glob(_INCOMING + "*"):
            job = JobId(staging.name.removeprefix(_INCOMING))
            if exists(job) and not self.folder(job).exists():
                staging.rename(self.folder(job))
            else:
                shutil.rmtree(staging, ignore_errors=True)
        for leaving in self.jobs_dir.glob(_LEAVING + "*"):
            forget(JobId(leaving.name.removeprefix(_LEAVING)))
            shutil.rmtree(leaving, ignore_errors=True)

    def sweep(self, ended: list[JobId], uploads_dir: Path) -> int:
        """Clear old inputs of `ended` jobs (oldest first) and stale uploads; returns bytes freed. Results are kept."""
        freed, kept, now = 0, 0, time.time()
        for job in reversed(ended):
            size = sum(path.stat().st_size for path in self.inputs(job).glob("*"))
            age = now - _changed_at(self.inputs(job), now)
            if size and (age > KEEP_INPUTS_S or kept + size > KEEP_INPUTS_BYTES):
                shutil.rmtree(self.inputs(job), ignore_errors=True)
                freed += size
            else:
                kept += size
            shutil.rmtree(self.prepared(job), ignore_errors=True)
        for path in uploads_dir.rglob("*") if uploads_dir.is_dir() else ():
            if path.is_file() and now - _changed_at(path, now) > KEEP_UPLOADS_S:
                freed += path.stat().st_size
                path.unlink(missing_ok=True)
        for folder in uploads_dir.iterdir() if uploads_dir.is_dir() else ():
            if folder.is_dir() and now - _changed_at(folder, now) > KEEP_UPLOADS_S:
                with suppress(OSError):  # not empty: something in it is younger
                    folder.rmdir()
        return freed

    def over_cap(self, removable: list[JobId]) -> list[JobId]:
        """Which of the `removable` jobs (oldest first) must go for all results to fit in KEEP_RESULTS_BYTES."""
        sizes: dict[str, int] = {}
        for path in self.jobs_dir.glob("*/output/*"):
            sizes[path.parts[-3]] = sizes.get(path.parts[-3], 0) + _size(path)
        too_much, going = sum(sizes.values()) - KEEP_RESULTS_BYTES, []
        for job in removable:
            if too_much <= 0:
                break
            going.append(job)
            too_much -= sizes.get(job, 0)
        return going

    def _copy(self, request: GenerationRequest, into: Path, final: Path, labels: dict[str, str]) -> Copied:
        placed: dict[Path, Path] = {}
        names: dict[str, str] = {}

        def place(path: Path) -> Path:
            if path not in placed:
                suffix = path.suffix.lower() if _SUFFIX.fullmatch(path.suffix) else ""
                name = secrets.token_hex(8) + suffix
                shutil.copyfile(path, into / name)
                placed[path], names[name] = final / name, labels.get(path.name, path.name)
            return placed[path]

        adapters = {adapter.path for adapter in request.sampling.adapters}  # gigabytes of weights stay where they are
        moved = with_paths(request, lambda path: path.resolve() if path in adapters else place(path))
        return Copied(request=moved, labels=names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted by its owner meanwhile
        return 0


def _changed_at(path: Path, default: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return default


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an OSError of the block into an H3Error that names what was being written and the way out."""
    try:
        yield
    except OSError as error:
        raise H3Error(f"Could not write {what}: {words(error)}") from error


def words(error: OSError) -> str:
    """An operating system error as a sentence with a way out."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}; free some space and run the job again."
    if error.errno == errno.EFBIG:
        return f"a file grew larger than this system allows{where}; raise the limit (ulimit -f)."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the folder may not be written{where}; check its rights."
    if error.errno == errno.ENOENT:
        return f"a file or folder is gone{where}; was it deleted or its disk taken away?"
    return f"{error.strerror or error}{where}"
