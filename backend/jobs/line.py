"""The waiting line: which jobs wait, in which order, and every change of position told and stored.

Knows order only; who runs a job and how is `manager`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from backend.errors import JobNotFound, NotNow
from backend.events import Event, Failed, Queued, Started, TerminalEvent
from backend.jobs.feed import Feed
from backend.jobs.records import JobRecord
from backend.jobs.store import JobStore
from backend.types import JobId

LOST = "The job database was damaged and this job could not be read from it any more; submit it again."


class Line:
    """Jobs that wait, next one first. `changed` guards it and wakes the dispatcher."""

    def __init__(self, store: JobStore, feed: Feed) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._store = store
        self._feed = feed
        self._jobs: list[JobId] = []
        self._told: dict[JobId, int] = {}
        for record in store.waiting():
            feed.open(record.id, store.events(record.id))
            self._jobs.append(record.id)
        self._tell([])

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: JobId) -> bool:
        return job in self._told

    def jobs(self) -> list[JobId]:
        """The waiting jobs, next one first."""
        with self.changed:
            return list(self._jobs)

    def join(self, record: JobRecord, commit: Callable[[], None]) -> None:
        """Store `record` as the last in line; `commit` makes its folder real, and undoes the row if it fails."""
        with self.changed:
            position = len(self._jobs) + 1
            event = self._store.add(record, position)
            try:
                commit()
            except BaseException:
                self._store.delete(record.id)
                raise
            self._feed.open(record.id, [event])
            self._jobs.append(record.id)
            self._told[record.id] = position
            self.changed.notify_all()

    def take(self, job: JobId, started: Started) -> None:
        """Take a waiting job out of the line, stored as started."""
        with self.changed:
            self._remove(job, started)

    def leave(self, job: JobId, end: TerminalEvent) -> bool:
        """End a job that waits; False when it does not wait (any longer)."""
        with self.changed:
            if job not in self._told:
                return False
            self._remove(job, end)
            return True

    def forget(self, job: JobId) -> None:
        """Drop a job whose row is lost (a damaged database), telling whoever watches it."""
        with self.changed:
            try:
                self._store.get(job)
            except JobNotFound:
                self._jobs = [other for other in self._jobs if other != job]
                self._told.pop(job, None)
                self._feed.publish(job, Failed(reason=LOST))
                self._tell([])

    def move(self, job: JobId, position: int, only_among: frozenset[JobId] | None = None) -> None:
        """Move `job` to `position` (1 is next). With `only_among`, every other job keeps its place in line."""
        with self.changed:
            if job not in self._told:
                raise NotNow(f"job={job}: only a waiting job can be moved")
            mine = [index for index, other in enumerate(self._jobs) if only_among is None or other in only_among]
            order = [self._jobs[index] for index in mine if self._jobs[index] != job]
            slot = min(range(len(mine)), key=lambda slot: (abs(mine[slot] + 1 - position), slot))
            order.insert(slot, job)
            new = list(self._jobs)
            for index, other in zip(mine, order, strict=True):
                new[index] = other
            self._store.set_order(new)
            self._jobs = new
            self._tell([])

    def _remove(self, job: JobId, event: Event) -> None:
        rest = [other for other in self._jobs if other != job]
        before, self._jobs = self._jobs, rest
        try:
            self._tell([(job, event)])
        except BaseException:
            self._jobs = before
            raise
        self._told.pop(job, None)
        self.changed.notify_all()

    def _tell(self, first: list[tuple[JobId, Event]]) -> None:
        """Store and publish `first` and every changed position, in one transaction."""
        moved = [(job, index) for index, job in enumerate(self._jobs, 1) if self._told.get(job) != index]
        items: list[tuple[JobId, Event]] = [*first, *((job, Queued(position=index)) for job, index in moved)]
        if not items:
            return
        stored = self._store.append_all(items)
        self._told.update(moved)
        for (job, _), event in zip(items, stored, strict=True):
            self._feed.publish(job, event)
