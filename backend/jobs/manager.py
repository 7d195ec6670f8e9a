"""The queue and its dispatcher: takes jobs in order, runs them one at a time, and sees that each ends exactly once.

Knows jobs and engines by their protocols; requests arrive here already checked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from backend.errors import EngineFailure, H3Error, JobNotFound, NotNow
from backend.events import (
    TERMINAL,
    Cancelled,
    Event,
    Failed,
    Heartbeat,
    Interrupted,
    Started,
    Succeeded,
    TerminalEvent,
)
from backend.jobs.artifacts import Artifacts
from backend.jobs.feed import Feed
from backend.jobs.line import Line
from backend.jobs.records import JobRecord, JobState
from backend.jobs.runner import Order, Run
from backend.jobs.services import Services
from backend.jobs.slot import EngineSlot
from backend.jobs.store import JobStore, StoreFailure
from backend.types import JobId

RETRY_S = 1.0  # between attempts to write to a database that refuses
TIDY_S = 3600.0  # old inputs are looked for this often, between jobs
LOOK_S = 1.0  # between looks at an idle engine
FORCE_S = 3.0  # of the time to close, kept for closing an engine by force
RESTARTED = "The program ended while the job ran. Run it again: the seed is kept."
CLOSED = "The program was closed while the job ran. Run it again: the seed is kept."
log = logging.getLogger(__name__)


class Health(StrEnum):
    """What the program can do right now."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The dispatcher as seen from outside."""

    health: Health
    reason: str
    running: JobId | None
    queued: int
    paused: bool
    accepting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Everything the dispatcher works with. `order` turns a record into what is run; it raises H3Error."""

    store: JobStore
    artifacts: Artifacts
    slot: EngineSlot
    services: Services
    order: Callable[[JobRecord], Order]
    tidy: Callable[[], object]  # clears what is old


class JobManager:
    """Starts its thread at once: jobs that waited at the last close go on, one that ran is marked interrupted."""

    def __init__(self, workshop: Workshop) -> None:
        self._shop = workshop
        self.artifacts = workshop.artifacts
        self._store = workshop.store
        self._feed = Feed()
        for job in self._store.running():
            self._store.append(job, Interrupted(reason=RESTARTED))
            workshop.artifacts.close_job(job, succeeded=False)
        self.line = Line(self._store, self._feed)
        self._run: Run | None = None
        self._running: JobId | None = None
        self._cancel_soon = False
        self._tidied_at = time.monotonic()
        self._paused = False
        self._closing = False
        self._trouble = ""  # why the dispatcher cannot go on, while it cannot
        self._thread = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)
        self._thread.start()

    # -- from any thread ----------------------------------------------------------------------------------------

    def submit(self, record: JobRecord) -> None:
        """Accept a job whose folder has begun. Raises NotNow when the program is closing."""
        with self.line.changed:
            if self._closing:
                raise NotNow("The program is closing and takes no more jobs; try again after it has started.")
            self.line.join(record, lambda: self._shop.artifacts.commit(record.id))

    def replace(self, record: JobRecord) -> None:
        """Store the edited request of a waiting job; raises NotNow when it waits no longer."""
        with self.line.changed:  # between two looks of the dispatcher, which compares what it read
            self._store.set_request(record)

    def cancel(self, job: JobId) -> None:
        """Cancel a waiting or running job; raises NotNow when it has ended."""
        with self.line.changed:
            if self.line.leave(job, Cancelled()):
                return
            run = self._run if self._running == job else None
            if run is None and self._running == job:
                self._cancel_soon = True  # taken from the line, its run not made yet
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

    def set_paused(self, paused: bool) -> None:
        """Hold the queue, or let it go on; the running job is not touched."""
        with self.line.changed:
            self._paused = paused
            self.line.changed.notify_all()

    def state(self) -> QueueState:
        """Health and queue, as they are at this moment."""
        slot = self._shop.slot
        with self.line.changed:
            running, queued = self._running, len(self.line)
            paused, accepting = self._paused, not self._closing
        if slot.starting:
            health, reason = Health.STARTING, "the engine is loading"
        elif self._trouble or slot.failure:
            health, reason = Health.FAILED, self._trouble or slot.failure or ""
        elif not self._thread.is_alive():
            health, reason = Health.FAILED, "the program is closed"
        elif running is not None:
            health, reason = Health.BUSY, "a job is running"
        else:
            health, reason = Health.READY, ""
        return QueueState(
            health=health, reason=reason, running=running, queued=queued, paused=paused, accepting=accepting
        )

    def close(self, finish_running: bool, timeout_s: float) -> None:
        """Accept no more, finish or stop the running job, end the engine; waiting jobs wait for the next start."""
        deadline = time.monotonic() + timeout_s
        with self.line.changed:
            self._closing = True
            run = self._run
            self.line.changed.notify_all()
        forced = min(FORCE_S, timeout_s / 3)
        if run is not None and finish_running:
            self._thread.join(max(0.0, deadline - forced - forced - time.monotonic()))
        if run is not None and self._thread.is_alive():
            run.cancel()
        self._thread.join(max(0.0, deadline - forced - time.monotonic()))
        if self._thread.is_alive():  # the engine does not answer: end the job, then the engine, over its head
            with self.line.changed:
                job = self._running
            if job is not None:
                self._try_end(job, Interrupted(reason=CLOSED))
            self._shop.slot.close()
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._feed.close()

    # -- the dispatcher's thread --------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        self._shop.tidy()
        while True:
            slot = self._shop.slot
            with self.line.changed:
                if not self._closing and not slot.broke_warm and (self._paused or not len(self.line)):
                    self.line.changed.wait(LOOK_S if slot.up else None)
                if self._closing:
                    break
                waiting = len(self.line) > 0 and not self._paused
            try:
                slot.look()
                if waiting:
                    self._run_next()
                elif slot.broke_warm:
                    self._bring_up_again()
            except Exception as error:  # the one broad net of this thread: it reports, and the queue goes on
                log.exception("the dispatcher met an unexpected error")
                self._trouble = f"unexpected error: {error}"
                self._pause_a_moment()
        self._shop.slot.close()

    def _run_next(self) -> None:
        try:
            job = next(iter(self.line.jobs()), None)
            if job is None:
                return
            record = self._store.get(job)
            order = self._order(record)
            with self.line.changed:
                still_next = not self._closing and not self._paused and self.line.jobs()[:1] == [job]
                if not still_next or self._store.get(job).request != record.request:
                    return  # moved, cancelled or edited meanwhile: look again
                engine = "none" if isinstance(order, H3Error) else order.preset.engine.value
                self.line.take(job, Started(engine=engine, preset=record.preset))
                self._running, self._cancel_soon = job, False
            self._trouble = ""
        except JobNotFound:
            return
        except StoreFailure as error:  # the job keeps its place; nothing has happened to it
            self._trouble = str(error)
            self._pause_a_moment()
            return
        try:
            end = self._carry_out(record, order)
        except Exception as error:  # a fault of ours must not take the queue with it
            log.exception("job %s broke the dispatcher", job)
            self._shop.slot.discard(f"unexpected error: {error}")
            end = Failed(reason=f"Unexpected error: {type(error).__name__}: {error}. The log has the details.")
        with self.line.changed:
            self._run = None
        self._finish(job, end)

    def _order(self, record: JobRecord) -> Order | H3Error:
        if record.error:
            return H3Error(record.error)
        try:
            return self._shop.order(record)
        except H3Error as error:  # its preset or checkpoint is gone; the job is started and fails with these words
            return error

    def _carry_out(self, record: JobRecord, order: Order | H3Error) -> TerminalEvent:
        """Run the job, store and publish all that happens, and return its end, not yet stored."""
        if isinstance(order, H3Error):
            return Failed(reason=str(order))
        run = Run(order, self._shop.slot, self._shop.artifacts, self._shop.services)
        with self.line.changed:
            self._run = run
            if self._closing or self._cancel_soon:
                run.cancel()
        happening = run.events()
        try:
            for event in happening:
                if isinstance(event, TERMINAL):
                    return event
                self._feed.publish(
                    record.id, event if isinstance(event, Heartbeat) else self._store.append(record.id, event)
                )
        except (StoreFailure, NotNow) as error:
            run.cancel()
            self._shop.slot.close()  # in the middle of a render: it cannot be used again
            return Failed(reason=str(error))
        finally:
            happening.close()
        raise EngineFailure("The job stopped without an end.")

    def _finish(self, job: JobId, end: TerminalEvent) -> None:
        """Store and publish the end, however long the database refuses; only closing gives up (a restart repairs)."""
        if isinstance(end, Cancelled) and self._closing:
            end = Interrupted(reason=CLOSED)
        self._shop.artifacts.close_job(job, succeeded=isinstance(end, Succeeded))
        while not self._try_end(job, end) and not self._closing:
            self._pause_a_moment()
        with self.line.changed:
            self._running = None
        if time.monotonic() - self._tidied_at > TIDY_S:
            self._tidied_at = time.monotonic()
            self._shop.tidy()

    def _try_end(self, job: JobId, end: TerminalEvent) -> bool:
        try:
            self._feed.publish(job, self._store.append(job, end))
        except StoreFailure as error:
            self._trouble = str(error)
            return False
        except NotNow:  # it was ended from another side; the first end stands
            self._shop.artifacts.close_job(job, succeeded=self._store_says_success(job))
        self._trouble = ""
        return True

    def _store_says_success(self, job: JobId) -> bool:
        try:
            return self._store.get(job).state is JobState.SUCCEEDED
        except H3Error:
            return True  # not known: keep the files

    def _bring_up_again(self) -> None:
        """After a fleet broke and nobody waits: a fresh one, so that the program is ready again by itself."""
        try:
            for _ in self._shop.slot.bring_up_again():
                if self._closing:
                    break
        except H3Error as error:  # stays not ready, with this reason; the next job tries again
            self._shop.slot.failure = str(error)

    def _pause_a_moment(self) -> None:
        with self.line.changed:
            if not self._closing:
                self.line.changed.wait(RETRY_S)
