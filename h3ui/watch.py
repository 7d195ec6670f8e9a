"""Following one job for one browser tab: coalesced views of it, and who is watching what.

A closed tab ends its watching and nothing else; the job belongs to the backend.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.events import Event
from backend.jobs.records import JobRecord
from backend.types import JobId
from h3ui import render
from h3ui.render import JobView

if TYPE_CHECKING:
    from backend.api import Backend

POLL_S = 0.3  # events of a fast job are shown together, at most this often
QUIET_S = 1.0  # without events, the clock on the page still moves this often, and a left tab is noticed
STALE_S = 4.0  # a watcher that has not come back for this long has lost its browser
MAX_TABS = 512


@dataclass(slots=True)
class _Watch:
    token: int
    beat: float
    finished: str | None = None  # the job whose end this tab has been shown


class Watchers:
    """Who watches in each tab (by Gradio's session hash). A new watch of a tab ends the one before."""

    def __init__(self) -> None:
        self._tabs: OrderedDict[str, _Watch] = OrderedDict()
        self._tokens = 0

    def begin(self, tab: str) -> int:
        """Start a watch; returns its token."""
        self._tokens += 1
        self._tabs[tab] = _Watch(token=self._tokens, beat=time.monotonic())
        self._tabs.move_to_end(tab)
        while len(self._tabs) > MAX_TABS:
            self._tabs.popitem(last=False)
        return self._tokens

    def beat(self, tab: str, token: int) -> bool:
        """The watch is still on; False when another took its place."""
        watch = self._tabs.get(tab)
        if watch is None or watch.token != token:
            return False
        watch.beat = time.monotonic()
        return True

    def end(self, tab: str, token: int, job: str) -> None:
        """The watch showed the end of `job`."""
        watch = self._tabs.get(tab)
        if watch is not None and watch.token == token:
            watch.finished = job

    def needs_help(self, tab: str, job: str) -> bool:
        """Whether nobody shows `job` to this tab, so that the timer should."""
        watch = self._tabs.get(tab)
        if watch is None:
            return True
        return watch.finished != job and time.monotonic() - watch.beat > STALE_S

    def helped(self, tab: str, job: str) -> None:
        """The timer showed the end of `job`."""
        self.end(tab, self.begin(tab), job)


async def follow(
    backend: Backend, job: JobId, owner: str, wanted: Callable[[], bool]
) -> AsyncIterator[tuple[JobRecord, JobView]]:
    """(record, view) from the first event on, again whenever something changed, at least every second; then the end.

    Stops early once `wanted` says no.
    Raises JobNotFound for a job that is gone or somebody else's.
    """
    view = JobView()
    shown_at = 0.0
    while wanted():
        record, fresh, beat_at = await asyncio.to_thread(_look, backend, job, owner, view.seq)
        if not wanted():
            return
        changed = bool(fresh)
        view = dataclasses.replace(render.follow(fresh, view), beat_at=beat_at)
        if changed or time.monotonic() - shown_at >= QUIET_S:
            shown_at = time.monotonic()
            yield record, view
        if view.terminal:
            return
        await asyncio.sleep(POLL_S)


def _look(backend: Backend, job: JobId, owner: str, after: int) -> tuple[JobRecord, list[Event], float | None]:
    fresh = list(backend.events(job, after=after, owner=owner, timeout_s=0.0))
    return backend.job(job, owner=owner), fresh, backend.beat_at(job, owner=owner)


def whole_view(backend: Backend, job: JobId, owner: str) -> JobView:
    """The view of a job after all its events so far."""
    return render.follow(backend.events(job, owner=owner, timeout_s=0.0))


def look(backend: Backend, job: JobId, owner: str) -> tuple[JobRecord, JobView]:
    """A job as it is: its events first, so that a view that tells of the end never meets a record from before it."""
    view = whole_view(backend, job, owner)
    return backend.job(job, owner=owner), view
