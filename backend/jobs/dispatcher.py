"""One dispatcher: a thread with an engine slot that takes the head of the line, runs it, and sees that it ends once.

Several share one floor (line, feed, store), which decides who takes the head. It accepts and refuses nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from backend.errors import EngineFailure, H3Error, JobNotFound, NotNow
from backend.events import TERMINAL, Cancelled, Failed, Heartbeat, Interrupted, Started, Succeeded, TerminalEvent
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
CLOSED = "The program was closed while the job ran. Run it again: the seed is kept."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Everything dispatchers work with, one a slot. `order` turns a record into what is run; it raises H3Error."""

    store: JobStore
    artifacts: Artifacts
    slots: tuple[EngineSlot, ...]
    services: Services
    order: Callable[[JobRecord], Order]
    tidy: Callable[[], object]  # clears what is old


class Floor:
    """What all dispatchers share. Every attribute is read and written under `line.changed`."""

    def __init__(self, shop: Workshop, line: Line, feed: Feed) -> None:
        self.shop = shop
        self.line = line
        self.feed = feed
        self.dispatchers: tuple[Dispatcher, ...] = ()
        self.claimed: Dispatcher | None = None  # who is about to take the head; the others wait, so order is kept
        self.paused = shop.store.note("paused") != ""
        self.closing = False
        self.tidied_at = time.monotonic()

    def head_for(self, dispatcher: Dispatcher) -> JobId | None:
        """The next job, if it is `dispatcher`'s to take: an idle one whose engine is warm for it goes first."""
        if self.paused or not len(self.line) or self.claimed not in (None, dispatcher):
            return None
        job = self.line.jobs()[0]
        idle = [other for other in self.dispatchers if other.idle]
        return job if len(idle) < 2 or self._preferred(idle, job) is dispatcher else None

    def _preferred(self, idle: list[Dispatcher], job: JobId) -> Dispatcher:
        try:
            preset = self.shop.store.get(job).preset
        except H3Error:  # whoever takes it meets the same error and reports it
            return idle[0]
        warm = [other for other in idle if other.slot.holds(preset)]
        cold = [other for other in idle if not other.slot.up]
        return (warm or cold or idle)[0]


class Dispatcher:
    """`start` begins its thread. `run`, `running`, `idle` and `trouble` are read under `floor.line.changed`."""

    def __init__(self, floor: Floor, slot: EngineSlot, number: int) -> None:
        self.slot = slot
        self.run: Run | None = None
        self.running: JobId | None = None
        self.idle = False
        self.trouble = ""  # why it cannot go on, while it cannot
        self._number = number
        self._floor = floor
        self._shop = floor.shop
        self._cancel_soon = False
        self._thread = threading.Thread(target=self._dispatch, name=f"dispatcher {number}", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs: from `start` until the program closes."""
        return self._thread.is_alive()

    def join(self, until: float) -> None:
        """Wait for the thread to end, at most until that time of the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))

    def cancel(self) -> Run | None:
        """The run to cancel, or None when it is not made yet and will be cancelled as soon as it is."""
        if self.run is None:
            self._cancel_soon = True
        return self.run

    def end_by_force(self) -> None:
        """The engine does not answer: end the job, then the engine, over its head."""
        with self._floor.line.changed:
            job = self.running
        if job is not None:
            self._try_end(job, Interrupted(reason=CLOSED))
        self.slot.close()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._number == 0:
            self._shop.tidy()
        while True:
            with self._floor.line.changed:
                job = self._wait()
                if self._floor.closing:
                    break
            try:
                self.slot.look()
                if job is not None:
                    self._run_next(job)
                elif self.slot.broke_warm:
                    self._bring_up_again()
            except Exception as error:  # the one broad net of this thread: it reports, and the queue goes on
                log.exception("the dispatcher met an unexpected error")
                self.trouble = f"unexpected error: {error}"
                self._pause_a_moment()
            finally:
                self._release_claim()
        self.slot.close()

    def _wait(self) -> JobId | None:
        """Wait for a job of ours, which is claimed then; None when the engine wants a look, or all is closing."""
        floor, job = self._floor, None
        self.idle = True
        while not floor.closing:
            job = floor.head_for(self)
            if job is not None:
                floor.claimed = self
                break
            if self.slot.broke_warm or not floor.line.changed.wait(LOOK_S if self.slot.up else None):
                break
        self.idle = False
        if job is None:
            floor.line.changed.notify_all()  # whoever left the head to this one must take it
        return job

    def _release_claim(self) -> None:
        with self._floor.line.changed:
            if self._floor.claimed is self:
                self._floor.claimed = None
                self._floor.line.changed.notify_all()

    def _run_next(self, job: JobId) -> None:
        floor = self._floor
        try:
            record = self._shop.store.get(job)
            order = self._order(record)
            with floor.line.changed:
                still_next = not floor.closing and not floor.paused and floor.line.jobs()[:1] == [job]
                if not still_next or self._shop.store.get(job).request != record.request:
                    return  # moved, cancelled or edited meanwhile: look again
                engine = "none" if isinstance(order, H3Error) else order.preset.engine.value
                floor.line.take(job, Started(engine=engine, preset=record.preset))
                self.running, self._cancel_soon = job, False
                floor.claimed = None
            self.trouble = ""
        except JobNotFound:  # the database lost it with damage; a deleted one has left the line before
            floor.line.forget(job)
            return
        except StoreFailure as error:  # the job keeps its place; nothing has happened to it
            self.trouble = str(error)
            self._pause_a_moment()
            return
        try:
            end = self._carry_out(record, order)
        except Exception as error:  # a fault of ours must not take the queue with it
            log.exception("job %s broke the dispatcher", job)
            self.slot.discard(f"unexpected error: {error}")
            end = Failed(reason=f"Unexpected error: {type(error).__name__}: {error}. The log has the details.")
        with floor.line.changed:
            self.run = None
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
        run = Run(order, self.slot, self._shop.artifacts, self._shop.services)
        with self._floor.line.changed:
            self.run = run
            if self._floor.closing or self._cancel_soon:
                run.cancel()
        happening = run.events()
        try:
            for event in happening:
                if isinstance(event, TERMINAL):
                    return event
                live = isinstance(event, Heartbeat)
                self._floor.feed.publish(record.id, event if live else self._shop.store.append(record.id, event))
        except (StoreFailure, NotNow) as error:
            run.cancel()
            self.slot.close()  # in the middle of a render: it cannot be used again
            return Failed(reason=str(error))
        finally:
            happening.close()
        raise EngineFailure("The job stopped without an end.")

    def _finish(self, job: JobId, end: TerminalEvent) -> None:
        """Store and publish the end, however long the database refuses; only closing gives up (a restart repairs)."""
        floor = self._floor
        if isinstance(end, Cancelled) and floor.closing:
            end = Interrupted(reason=CLOSED)
        self._shop.artifacts.close_job(job, succeeded=isinstance(end, Succeeded))
        while not self._try_end(job, end) and not floor.closing:
            self._pause_a_moment()
        with floor.line.changed:
            self.running = None
            untidy = time.monotonic() - floor.tidied_at > TIDY_S
            if untidy:
                floor.tidied_at = time.monotonic()
        if untidy:
            self._shop.tidy()

    def _try_end(self, job: JobId, end: TerminalEvent) -> bool:
        try:
            self._floor.feed.publish(job, self._shop.store.append(job, end))
        except StoreFailure as error:
            self.trouble = str(error)
            return False
        except JobNotFound:  # lost with a damaged database: whoever watches is told all the same
            self._floor.feed.publish(job, end)
        except NotNow:  # it was ended from another side; the first end stands
            self._shop.artifacts.close_job(job, succeeded=self._store_says_success(job))
        self.trouble = ""
        return True

    def _store_says_success(self, job: JobId) -> bool:
        try:
            return self._shop.store.get(job).state is JobState.SUCCEEDED
        except H3Error:
            return True  # not known: keep the files

    def _bring_up_again(self) -> None:
        """After a fleet broke and nobody waits: a fresh one, so that the program is ready again by itself."""
        try:
            for _ in self.slot.bring_up_again():
                if self._floor.closing:
                    break
        except H3Error as error:  # stays not ready, with this reason; the next job tries again
            self.slot.failure = str(error)

    def _pause_a_moment(self) -> None:
        with self._floor.line.changed:
            if not self._floor.closing:
                self._floor.line.changed.wait(RETRY_S)
