"""Fan-out of live events: any number of followers wait on a job without touching the database.

Knows jobs that have not ended; ended ones are replayed from the store by the caller.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator

from backend.events import TERMINAL, Event, Heartbeat
from backend.types import JobId


class Channel:
    """The events of one live job so far, and everybody who waits for more."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = list(events)  # event with seq n is at index n - 1
        self._beat: Heartbeat | None = None
        self._beats = 0
        self._open = True
        self._changed = threading.Condition()

    def publish(self, event: Event) -> None:
        """Hand a stored event (or a heartbeat, which is only passed on) to every follower."""
        with self._changed:
            if isinstance(event, Heartbeat):
                self._beat = dataclasses.replace(event, seq=len(self._events), at=time.time())
                self._beats += 1
            else:
                self._events.append(event)
                self._open = not isinstance(event, TERMINAL)
            self._changed.notify_all()

    def beat_at(self) -> float | None:
        """Unix time of the last sign of life, a heartbeat or an event; None before any."""
        with self._changed:
            last = self._events[-1].at if self._events else 0.0
            return max(last, self._beat.at if self._beat is not None else 0.0) or None

    def close(self) -> None:
        """Let followers go without an end; the program stops."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def follow(self, after: int, deadline: float | None) -> Iterator[Event]:
        """Events with `seq > after`, then live ones, until the end, `close`, or monotonic time `deadline`."""
        beats = None
        while True:
            with self._changed:
                beats = self._beats if beats is None else beats
                while self._open and len(self._events) <= after and self._beats == beats:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    self._changed.wait(left)
                fresh = self._events[max(0, after) :]
                beat = self._beat if self._beats != beats and not fresh else None
                beats, is_open = self._beats, self._open
            yield from fresh
            after = max(after, fresh[-1].seq if fresh else 0)
            if beat is not None:
                yield beat
            if not is_open:
                return


class Feed:
    """The channels of all live jobs."""

    def __init__(self) -> None:
        self._channels: dict[JobId, Channel] = {}
        self._lock = threading.Lock()
        self._closed = False

    def open(self, job: JobId, events: Iterable[Event] = ()) -> None:
        """Begin to carry `job`, whose stored events so far are `events`."""
        with self._lock:
            self._channels[job] = Channel(events)

    def publish(self, job: JobId, event: Event) -> None:
        """Pass `event` on; an end closes the job's channel."""
        with self._lock:
            channel = self._channels.get(job)
            if channel is not None and isinstance(event, TERMINAL):
                del self._channels[job]
        if channel is not None:
            channel.publish(event)

    def channel(self, job: JobId) -> Channel | None:
        """The channel of a live job; None when it has ended (or the program stops)."""
        with self._lock:
            return self._channels.get(job)

    def close(self) -> None:
        """Let every follower go."""
        with self._lock:
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()
