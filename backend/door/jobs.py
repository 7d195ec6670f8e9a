"""What is asked of jobs that exist: their events, their records, their ends, their files.

Knows owners and their jobs; the order of those that wait is `queue`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from backend import presets as preset_files
from backend.door.house import House
from backend.errors import JobNotFound, NotNow
from backend.events import Event
from backend.jobs.finals import FINAL_QUALITY, final_request
from backend.jobs.records import JobRecord, JobState, title_of
from backend.types import JobId


class Jobs(House):
    """Jobs by id, each for its owner alone, or an admin."""

    def events(self, job: JobId, after: int = 0, *, owner: str, timeout_s: float | None = None) -> Iterator[Event]:
        """Events with `seq > after`, then live ones until the job's end, or until `timeout_s` have passed in all.

        Heartbeats are live only and carry the `seq` of the last stored event. Raises JobNotFound at once.
        """
        self._record(job, owner)
        return self._manager.events(job, after, timeout_s)

    def beat_at(self, job: JobId, *, owner: str) -> float | None:
        """Unix time of the last sign of life of a live job; None once it has ended. Raises JobNotFound."""
        self._record(job, owner)
        return self._manager.beat_at(job)

    def job(self, job: JobId, *, owner: str) -> JobRecord:
        """One job. Raises JobNotFound, for another owner's as for an unknown one."""
        return self._record(job, owner)

    def history(
        self,
        *,
        owner: str,
        limit: int = 50,
        offset: int = 0,
        states: Sequence[JobState] | None = None,
        search: str = "",
        favourite: bool = False,
    ) -> list[JobRecord]:
        """Jobs of `owner` in any state, newest first; with `favourite` only those that were marked."""
        return self._store.select(
            owner=self._whose(owner), states=states, search=search, favourite=favourite, limit=limit, offset=offset
        )

    def page(
        self, *, owner: str, after: JobId | None = None, limit: int = 50, oldest_first: bool = False
    ) -> list[JobRecord]:
        """At most `limit` jobs of `owner` behind the job `after`, in the order of their making."""
        return self._store.page(owner=self._whose(owner), after=after, limit=limit, oldest_first=oldest_first)

    def cancel(self, job: JobId, *, owner: str) -> None:
        """Stop a running job at its next boundary, or end a waiting one at once. Raises NotNow when it has ended."""
        self._record(job, owner)
        self._manager.cancel(job)

    def retry(self, job: JobId, *, owner: str) -> JobId:
        """The same job again, same seed. Raises NotNow while it has not ended."""
        record = self._record(job, owner)
        if not record.state.ended:
            raise NotNow(f"job={job}: it is {record.state}; only an ended job can be run again")
        return self._again(record, record.request, record.tensors)

    def duplicate(self, job: JobId, *, owner: str, seed: int | None = None) -> JobId:
        """The same request as a new job with another seed: `seed`, or one that is drawn."""
        record = self._record(job, owner)
        sampling = dataclasses.replace(record.request.sampling, seed=seed)
        return self._again(record, dataclasses.replace(record.request, sampling=sampling), None)

    def final(self, job: JobId, *, owner: str) -> JobId:
        """A draft again in full: same prompt, media and seed, on the full canvas and with the usual steps."""
        record = self._record(job, owner)
        request, checkpoint = record.request, self._machine.checkpoint(self._machine.preset(record.preset))
        frame = request.first_frame or request.last_frame
        report = self._services.probe_file(frame, frame.name, True) if frame is not None else None
        size = (report.width, report.height) if report and report.width and report.height else None
        made_with = preset_files.pick(self._quality_presets, record.quality)
        full = final_request(request, checkpoint.geometry, made_with, checkpoint.default_steps, size)
        return self._again(dataclasses.replace(record, quality=FINAL_QUALITY), full, None)

    def rename(self, job: JobId, title: str, *, owner: str) -> None:
        """Give a job another title."""
        self._record(job, owner)
        self._store.set_title(job, title_of(title) or "Untitled")

    def set_favourite(self, job: JobId, flag: bool, *, owner: str) -> None:
        """Mark or unmark a job."""
        self._record(job, owner)
        self._store.set_favourite(job, flag)

    def delete(self, job: JobId, *, owner: str) -> None:
        """Remove an ended or waiting job with all its files. Raises NotNow while it runs."""
        record = self._record(job, owner)
        if record.state is JobState.QUEUED:
            self._manager.cancel(job)
            record = self._record(job, owner)
        if not record.state.ended:
            raise NotNow(f"job={job}: it is running; cancel it first")
        self._artifacts.delete(job, lambda: self._store.delete(job))

    def file(self, job: JobId, name: str, *, owner: str | None = None, token: str | None = None) -> Path:
        """A result file of a succeeded job, for its owner or whoever has its token. Raises JobNotFound otherwise."""
        if self._opened(job, owner, token).state is not JobState.SUCCEEDED:
            raise JobNotFound(f"job={job}: it has no result")
        return self._artifacts.file(job, name)

    def live_file(self, job: JobId, name: str, *, owner: str | None = None, token: str | None = None) -> Path | None:
        """What a job shows of itself while it runs (`types.LIVE_NAMES`), for whoever may see its results.

        None once there is nothing to see (any more). The file is replaced or grows, and goes when the job ends. Raises
        JobNotFound for a job that is not there or somebody else's.
        """
        record = self._opened(job, owner, token)
        return self._artifacts.live_file(job, name) if record.state is JobState.RUNNING else None

    def file_token(self, job: JobId, *, owner: str) -> str:
        """What opens a job's files to whoever holds the link, without a login."""
        self._record(job, owner)
        return self._token(job)
