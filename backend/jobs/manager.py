"""The queue: jobs come in, are cancelled, watched and closed here; dispatchers, one an engine slot, run them in order.

Knows jobs and dispatchers; requests arrive here already checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from backend.errors import NotNow
from backend.events import Cancelled, Event, Interrupted
from backend.jobs.dispatcher import Dispatcher, Floor, Workshop
from backend.jobs.feed import Feed
from backend.jobs.line import Line
from backend.jobs.records import JobRecord
from backend.types import JobId

__all__ = ["Health", "JobManager", "QueueState", "Workshop"]
FORCE_S = 3.0  # of the time to close, kept for closing an engine by force
RESTARTED = "The program ended while the job ran. Run it again: the seed is kept."


class Health(StrEnum):
    """What the program can do right now."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The queue as seen from outside; `running` holds at most one job a slot."""

    health: Health
    reason: str
    running: tuple[JobId, ...]
    queued: int
    paused: bool
    accepting: bool


class JobManager:
    """Starts its threads at once: jobs that waited at the last close go on, those that ran are marked interrupted."""

    def __init__(self, workshop: Workshop) -> None:
        self.artifacts = workshop.artifacts
        self._store = workshop.store
        self._feed = Feed()
        for job in self._store.running():
            self._store.append(job, Interrupted(reason=RESTARTED))
            workshop.artifacts.close_job(job, succeeded=False)
        self.line = Line(self._store, self._feed)
        self._floor = floor = Floor(workshop, self.line, self._feed)
        floor.dispatchers = tuple(Dispatcher(floor, slot, number) for number, slot in enumerate(workshop.slots))
        for dispatcher in floor.dispatchers:
            dispatcher.start()

    def submit(self, record: JobRecord) -> None:
        """Accept a job whose folder has begun. Raises NotNow when the program is closing."""
        with self.line.changed:
            if self._floor.closing:
                raise NotNow("The program is closing and takes no more jobs; try again after it has started.")
            self.line.join(record, lambda: self.artifacts.commit(record.id))

    def replace(self, record: JobRecord) -> None:
        """Store the edited request of a waiting job; raises NotNow when it waits no longer."""
        with self.line.changed:  # between two looks of a dispatcher, which compares what it read
            self._store.set_request(record)

    def cancel(self, job: JobId) -> None:
        """Cancel a waiting or running job; raises NotNow when it has ended."""
        with self.line.changed:
            if self.line.leave(job, Cancelled()):
                return
            who = next((item for item in self._floor.dispatchers if item.running == job), None)
            run = who.cancel() if who is not None else None
        if run is not None:
            run.cancel()
        elif (record := self._store.get(job)).state.ended:
            raise NotNow(f"job={job}: it has ended already ({record.state})")

    def events(self, job: JobId, after: int, timeout_s: float | None) -> Iterator[Event]:
        """Stored events after `after`, then live ones, until the end or for at most `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.line.changed:  # a job is carried from the moment its row can be seen
            channel = self._feed.channel(job)
        if channel is not None:
            return channel.follow(after, deadline)
        return iter(self._store.events(job, after))

    def beat_at(self, job: JobId) -> float | None:
        """Unix time of the last sign of life of a job that has not ended; None for one that has."""
        channel = self._feed.channel(job)
        return channel.beat_at() if channel is not None else None

    def set_paused(self, paused: bool) -> None:
        """Hold the queue, or let it go on; running jobs are not touched."""
        with self.line.changed:
            self._floor.paused = paused
            self.line.changed.notify_all()

    def state(self) -> QueueState:
        """Health and queue, as they are at this moment. With several slots it is as good as the best of them."""
        with self.line.changed:
            dispatchers = self._floor.dispatchers
            running = tuple(item.running for item in dispatchers if item.running is not None)
            queued, paused, accepting = len(self.line), self._floor.paused, not self._floor.closing
            states = [_health(item) for item in dispatchers]
        order = (Health.BUSY, Health.READY, Health.STARTING, Health.FAILED)
        health = min((state for state, _ in states), key=order.index)
        broken = [f"engine {number}: {why}" for number, (state, why) in enumerate(states) if state is Health.FAILED]
        reason = next(why for state, why in states if state is health)
        if broken and len(states) > 1:
            reason = "; ".join(broken)
        return QueueState(
            health=health, reason=reason, running=running, queued=queued, paused=paused, accepting=accepting
        )

    def running(self) -> tuple[JobId | None, ...]:
        """The job of each slot, or None where none runs."""
        with self.line.changed:
            return tuple(item.running for item in self._floor.dispatchers)

    def close(self, finish_running: bool, timeout_s: float) -> None:
        """Accept no more, finish or stop running jobs, end the engines; waiting jobs wait for the next start."""
        deadline = time.monotonic() + timeout_s
        dispatchers = self._floor.dispatchers
        with self.line.changed:
            self._floor.closing = True
            runs = [(item, item.run) for item in dispatchers if item.run is not None]
            self.line.changed.notify_all()
        forced = min(FORCE_S, timeout_s / 3)
        for item, _ in runs if finish_running else ():
            item.join(deadline - forced - forced)
        for item, run in runs:
            if item.alive:
                run.cancel()
        for item in dispatchers:
            item.join(deadline - forced)
        stuck = [threading.Thread(target=item.end_by_force) for item in dispatchers if item.alive]
        for thread in stuck:
            thread.start()
        for thread in stuck:
            thread.join()
        for item in dispatchers:
            item.join(deadline)
        self._feed.close()


def _health(dispatcher: Dispatcher) -> tuple[Health, str]:
    slot = dispatcher.slot
    if slot.starting:
        return Health.STARTING, "the engine is loading"
    if dispatcher.trouble or slot.failure:
        return Health.FAILED, dispatcher.trouble or slot.failure or ""
    if not dispatcher.alive:
        return Health.FAILED, "the program is closed"
    if dispatcher.running is not None:
        return Health.BUSY, "a job is running"
    return Health.READY, ""
