"""N ranks as one: started together, watched together, and ended together at the first failure of any.

Knows processes, messages and deadlines; it does not know what is computed. One fleet lives once: after a failure its
owner makes a new one.

All decisions are taken on one supervisor thread, which reads a single inbox: messages of the ranks, their exits, the
ends of their lines, and the wish to close. Callers only read events and send commands.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from backend.errors import EngineFailure, NotNow
from backend.events import Cancelled, Event, Failed, Heartbeat, Succeeded
from backend.process import exhaustion, logs
from backend.process.channel import ChannelError, Closed
from backend.process.child import Child, Exit, Launch
from backend.process.messages import Answer, Broken, Cancel, Done, Generate, Pulse, Ready, Shutdown
from backend.process.runs import RunFolder, sweep
from backend.process.spec import FleetSpec
from backend.process.verdict import Failure, Scene, report
from backend.process.watch import Watch
from backend.types import JobId, Render, Stage

TICK_S = 0.2
GRACE_S = 0.5  # after the first failure, for the cause to show itself: peers of a killed rank often speak first
CLOSE_S = 5.0  # for ranks to leave by themselves when asked to
WORKER = "backend.worker.main"
HEARTBEAT_EVENT_S = 1.0


class FleetState(StrEnum):
    """Where a fleet is in its one life."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DEFUNCT = "defunct"  # a rank failed; all are gone
    CLOSED = "closed"


class _Up:
    """What `start` waits for."""


_CLOSE = "close"


class Fleet:
    """The ranks of one run. `start` and `generate` from one thread; `cancel`, `close` and the properties from any."""

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._state = FleetState.NEW
        self._failure: EngineFailure | None = None
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Event | EngineFailure | _Up] = queue.SimpleQueue()
        self._children: list[Child] = []
        self._logs: list[Path] = []
        self._info: dict[int, dict[str, object]] = {}
        self._job: JobId | None = None
        self._done: set[int] = set()
        self._terminal: Event | None = None
        self._rss: dict[int, int] = {}
        self._beat: dict[int, float] = {}
        self._stopped: dict[int, float] = {}  # ranks that a signal halted, and since when
        self._run: RunFolder | None = None
        self._supervisor: threading.Thread | None = None

    @property
    def state(self) -> FleetState:
        """Where the fleet is in its life; an idle one is DEFUNCT at the first sign of failure."""
        return self._state

    @property
    def failure(self) -> EngineFailure | None:
        """Why the fleet is defunct, once every rank is gone; else None."""
        return self._failure

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by rank."""
        return tuple(child.pid for child in self._children)

    def glance(self, rank: int) -> tuple[Stage | None, int]:
        """(stage, resident bytes) of a rank, as its last pulse said."""
        return self._watch.stage(rank), self._rss.get(rank, 0)

    @property
    def log_paths(self) -> tuple[Path, ...]:
        """Log files by rank."""
        return tuple(self._logs)

    @property
    def info(self) -> dict[str, object]:
        """What rank 0 said of itself when ready: versions, kernels."""
        return self._info.get(0, {})

    def start(self) -> Iterator[Event]:
        """Spawn and load; events until every rank is ready. Raises EngineFailure, after which nothing is left."""
        with self._lock:
            if self._state is not FleetState.NEW:
                raise NotNow(f"this fleet is {self._state.value}; only a new one can start")
            self._state = FleetState.STARTING
            self._supervisor = threading.Thread(target=self._supervise, name="fleet supervisor", daemon=True)
            self._supervisor.start()
        while not isinstance(item := self._out.get(), _Up):
            if isinstance(item, EngineFailure):
                raise item
            yield item

    def generate(self, render: Render) -> Iterator[Event]:
        """Render on all ranks; the last event is terminal, also when the fleet breaks (Failed).

        The ranks have their order when this returns. Raises NotNow unless the fleet is READY.
        """
        with self._lock:
            if self._state is not FleetState.READY:
                raise NotNow(f"the fleet is {self._state.value}; it must be ready to render")
            self._state = FleetState.BUSY
            self._job, self._terminal, self._done = render.job, None, set()
            self._watch.work(time.monotonic())
        for rank, child in enumerate(self._children):
            self._send(rank, child, Generate(render=render))
        return self._relay()

    def _relay(self) -> Iterator[Event]:
        while True:
            item = self._out.get()
            if isinstance(item, EngineFailure):
                yield Failed(reason=item.reason, rank=item.rank, stage=item.stage, log_tail=item.log_tail)
                return
            if not isinstance(item, _Up):
                yield item
            if isinstance(item, Succeeded | Failed | Cancelled):
                return

    def cancel(self, job: JobId) -> None:
        """Ask every rank to stop `job` at the next boundary."""
        for child in list(self._children):
            try:
                child.channel.send(Cancel(job=job))
            except ChannelError:
                continue  # a rank that cannot be told is dead or hung: the supervisor says so

    def close(self, *, wait: bool = True) -> None:
        """Shut down and leave nothing: asked first, then SIGTERM, then SIGKILL. Idempotent; from any thread."""
        with self._lock:
            if self._state is FleetState.NEW:
                self._state = FleetState.CLOSED
        self._inbox.put((-1, _CLOSE))
        if wait and self._supervisor is not None and self._supervisor is not threading.current_thread():
            self._supervisor.join()

    # ---- everything below runs on the supervisor thread --------------------------------------------------------

    def _supervise(self) -> None:
        self._memory = exhaustion.host_memory()
        self._watch = Watch(self.spec.world_size, self.spec.deadlines, time.monotonic())
        try:
            sweep(self.spec.settings.run_dir)
            self._run = run = RunFolder(self.spec.settings.run_dir)
            failures = self._spawn_all(run) or self._loop()
        except Exception as error:  # the outermost frame of this thread: whoever waits for an event must hear of it
            failures = [Failure(rank=0, why=f"could not be run: {type(error).__name__}: {error}", kind="spawn")]
        self._end(failures)

    def _spawn_all(self, run: RunFolder) -> list[Failure]:
        for rank in range(self.spec.world_size):
            path, log = logs.open_log(self.spec.settings.logs_dir, run.id, rank)
            self._logs.append(path)
            launch = Launch(
                module=WORKER,
                name=f"rank {rank}",
                log=log,
                cwd=run.path,
                answers=Answer,
                environment=self.spec.environment(run),
                with_token=self.spec.with_token,
            )
            try:
                child = Child(launch, partial(self._put, rank))
            except OSError as error:
                return [Failure(rank=rank, why=f"could not be started: {error}", kind="spawn")]
            finally:
                logs.close(log)
            self._children.append(child)
            child.channel.read_into(partial(self._put, rank))
            self._send(rank, child, self.spec.setup(rank, run))
        return []

    def _loop(self) -> list[Failure]:
        """Live until something fails (returned) or the owner closes (an empty list)."""
        rotated = time.monotonic()
        while True:
            try:
                rank, item = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                rank, item = -1, None
            if item == _CLOSE:
                return []
            failure = self._take(rank, item) if item is not None else None
            now = time.monotonic()
            if failure is None and (hung := self._watch.verdict(now) or self._halted(now)) is not None:
                failure = self._hung(*hung)
            if failure is not None:
                with self._lock:
                    if self._state is FleetState.READY:  # idle: from now on nobody may give it work
                        self._state = FleetState.DEFUNCT
                return self._gather(failure)
            if now - rotated > 60:
                rotated = now
                for path in self._logs:
                    logs.rotate(path)

    def _take(self, rank: int, item: Any) -> Failure | None:
        now = time.monotonic()
        if not isinstance(item, Exit | Closed | ChannelError):
            self._watch.heard(rank, now)
        match item:
            case Exit() | Closed() | ChannelError() | Broken():
                return Failure.of(rank, item, self._watch.stage(rank))
            case Pulse():
                self._watch.pulse(rank, now, item.stage, item.progress)
                self._rss[rank] = item.rss_bytes or self._rss.get(rank, 0)
                if self._state is not FleetState.READY and now - self._beat.get(rank, 0.0) >= HEARTBEAT_EVENT_S:
                    self._beat[rank] = now
                    self._out.put(Heartbeat(rank=rank, stage=item.stage))
            case Ready():
                self._info[rank] = item.info
                self._watch.rest(rank)
                if len(self._info) == self.spec.world_size:
                    self._state = FleetState.READY
                    self._out.put(_Up())
            case Done() | Succeeded() | Failed() | Cancelled():
                self._finish_part(rank, item)
            case _:
                self._watch.progressed(rank, now, getattr(item, "stage", None))
                self._out.put(item)
        return None

    def _finish_part(self, rank: int, item: Any) -> None:
        """A rank ended its part. The job's terminal event is rank 0's, handed on when every rank is free again."""
        self._watch.rest(rank)
        self._done.add(rank)
        if not isinstance(item, Done):
            self._terminal = item
        if len(self._done) == self.spec.world_size and self._terminal is not None:
            self._job, terminal, self._terminal = None, self._terminal, None
            self._state = FleetState.READY
            self._out.put(terminal)

    def _gather(self, first: Failure) -> list[Failure]:
        """The first failure and whatever shows itself shortly after."""
        failures = [first]
        deadline = time.monotonic() + GRACE_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                rank, item = self._inbox.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, Exit | Closed | ChannelError | Broken):
                failures.append(Failure.of(rank, item, self._watch.stage(rank)))
            elif isinstance(item, Done):
                self._done.add(rank)
            elif isinstance(item, Succeeded):
                self._late(item, {failure.rank for failure in failures})
        return failures

    def _late(self, success: Succeeded, failed: set[int]) -> None:
        """Rank 0 finished while the fleet fell: it counts if those who failed had done their part before."""
        if failed <= self._done:
            self._terminal = success

    def _end(self, failures: list[Failure]) -> None:
        survivors = self._kill_all(asked=not failures)
        if self._run is not None:
            self._run.close()
        with self._lock:
            was = self._state
            failure = self._describe(failures, survivors)
            self._failure = failure if failures else None
            self._state = FleetState.DEFUNCT if failures else FleetState.CLOSED
        if was is FleetState.BUSY and isinstance(self._terminal, Succeeded):
            self._out.put(self._terminal)
        elif was in (FleetState.BUSY, FleetState.STARTING):
            self._out.put(failure)

    def _kill_all(self, *, asked: bool) -> list[int]:
        """End every group, politely when `asked`; returns process ids that could not be ended."""
        if asked:
            for rank, child in enumerate(self._children):
                self._send(rank, child, Shutdown())
            deadline = time.monotonic() + CLOSE_S
            if self._state is FleetState.READY:
                for child in self._children:
                    child.wait(deadline - time.monotonic())
        for child in self._children:
            if child.exit is None:
                child.terminate()
        return [pid for child in self._children for pid in child.finish()]

    def _describe(self, failures: list[Failure], survivors: list[int]) -> EngineFailure:
        if not failures:
            return EngineFailure("the engine was closed while it worked")
        return report(failures, Scene(tuple(self._logs), self._rss, self._memory, tuple(survivors)))

    def _halted(self, now: float) -> tuple[int, str] | None:
        """A rank that a signal has halted for too long. While weights load its silence proves nothing, this does."""
        for rank, child in enumerate(self._children):
            if not child.stopped():
                self._stopped.pop(rank, None)
            elif now - self._stopped.setdefault(rank, now) > self.spec.deadlines.silence_s:
                stage = self._watch.stage(rank)
                where = f" in stage {stage.value}" if stage else ""
                return rank, f"did nothing for {now - self._stopped[rank]:.1f} s{where}"
        return None

    def _hung(self, rank: int, why: str) -> Failure:
        if self._children[rank].stopped():
            why += "; the process is halted by a signal (SIGSTOP)"
        return Failure(rank=rank, why=why, kind="hung", stage=self._watch.stage(rank))

    def _put(self, rank: int, item: Any) -> None:
        self._inbox.put((rank, item))

    def _send(self, rank: int, child: Child, message: Any) -> None:
        try:
            child.channel.send(message)
        except ChannelError as error:
            self._put(rank, error)
