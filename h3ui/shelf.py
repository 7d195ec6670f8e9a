"""The gallery as it is shown: its cards, redrawn when something changed, and two results side by side.

It knows records and panels; what a button does with a job is `h3ui.keeping`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend.errors import H3Error, JobNotFound
from backend.jobs.records import JobRecord, JobState
from backend.types import JobId
from h3ui import markup
from h3ui.handlers import Handlers, owner_of
from h3ui.panels import compare, gallery, result
from h3ui.planned import problems_html
from h3ui.uploads import Updates

if TYPE_CHECKING:
    from backend.api import Backend


class Shelf:
    """Handlers that draw the gallery."""

    def __init__(self, backend: Backend, handlers: Handlers) -> None:
        self.backend = backend
        self.panels = handlers.panels

    def gallery(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """The gallery was opened, searched or filtered."""
        owner = owner_of(data[self.panels.session], request)
        return self.cards(owner, data)

    def tick(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """Every few seconds, once the gallery was opened: what another tab or a finished job has changed."""
        if not data[self.panels.gallery.mark]:
            return gr.skip()
        owner = owner_of(data[self.panels.session], request)
        records = self._records(owner, data)
        if _mark(records) == data[self.panels.gallery.mark]:
            return gr.skip()
        return {**self.cards(owner, data), **self.gone(owner, data)}

    def _records(self, owner: str, data: Mapping[Any, Any], more: int = 0) -> list[JobRecord]:
        """One more than is shown, so that it is known whether there are more."""
        p = self.panels.gallery
        shown, search = data[p.shown], (data[p.search] or "").strip()
        return self.backend.history(
            owner=owner,
            limit=data[p.count] + more + 1,
            states=gallery.STATES.get(shown, gallery.ENDS),
            search=search,
            favourite=shown == "favourite",
        )

    def cards(self, owner: str, data: Mapping[Any, Any], more: int = 0) -> Updates:
        """Finished jobs as cards; `more` adds to how many are asked for."""
        p = self.panels.gallery
        records = self._records(owner, data, more)
        shown = records[: data[p.count] + more]
        done = [record.id for record in shown if record.state is JobState.SUCCEEDED]
        facts = gallery.Facts(
            tokens={job: self.backend.file_token(job, owner=owner) for job in done},
            bytes=self.backend.results.sizes([record.id for record in shown], owner=owner),
            kernels=self.backend.results.kernels(done, owner=owner),
        )
        filtered = bool((data[p.search] or "").strip()) or data[p.shown] != "all"
        notice = self.backend.status().notice
        cards = gallery.cards_html(shown, facts, len(records) > len(shown), filtered, owner)
        use = self.backend.results.disk_use(owner=owner)
        return {
            p.cards: (markup.note(notice, "warn") if notice else "") + cards,
            p.summary: gallery.summary_html(use.jobs, use.used_bytes, use.free_bytes),
            p.mark: _mark(records),
        }

    def gone(self, owner: str, data: Mapping[Any, Any]) -> Updates:
        """What must leave the page with jobs that were deleted: the result in the light, and the comparison."""
        p = self.panels
        updates: Updates = {}
        if data[p.job] and not self._there(data[p.job], owner):
            updates |= {
                p.job: None,
                p.last_job: None,
                p.result.player: gr.update(value=""),
                p.result.live: result.cleared_html(self.backend.checkpoint().notice),
            }
        if any(not self._there(job, owner) for job in data[p.gallery.compare.pair] or ()):
            updates |= self.no_comparison()
        return updates

    def _there(self, job: str, owner: str) -> bool:
        try:
            self.backend.job(JobId(job), owner=owner)
        except JobNotFound:
            return False
        return True

    def comparison(self, jobs: tuple[JobId, ...], owner: str, measured: str = "") -> str:
        """Two results side by side. Raises NotNow and JobNotFound where one has no video."""
        sides = []
        for job in jobs:
            self.backend.results.video(job, owner=owner)  # raises where there is none
            record, token = self.backend.job(job, owner=owner), self.backend.file_token(job, owner=owner)
            sides.append(compare.Side(record, token))
        return compare.html(sides[0], sides[1], measured)

    def no_comparison(self) -> Updates:
        """Nothing is compared."""
        p = self.panels.gallery.compare
        return {p.pair: None, p.view: gr.update(value="", visible=False)}

    def measure(self, data: dict[Any, Any], request: gr.Request) -> Iterator[Updates]:
        """PSNR and SSIM of the two that are compared; says that it works while it does."""
        p = self.panels.gallery.compare
        owner, jobs = owner_of(data[self.panels.session], request), data[p.pair]
        if not jobs:
            yield gr.skip()
            return
        try:
            yield {p.view: self.comparison(jobs, owner, compare.busy_html())}
            measured = compare.figures_html(self.backend.results.compare(*jobs, owner=owner))
        except JobNotFound:
            yield self.no_comparison()
            return
        except H3Error as error:
            measured = problems_html(error)
        yield {p.view: self.comparison(jobs, owner, measured)}


def _mark(records: list[JobRecord]) -> str:
    """What the cards show of these records, in a few characters; never empty."""
    seen = [(record.id, record.state.value, record.title, record.favourite) for record in records]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
