"""What happens when something is pressed, dropped or typed: calls of the backend and the updates they lead to.

Handlers only submit and watch; they are wired to components in `h3ui.page` and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend import limits
from backend.api import SHARED
from backend.errors import H3Error, InvalidRequest, JobNotFound
from backend.jobs.records import JobRecord, JobState
from backend.types import Adapter, GenerationRequest, JobId, Stage, Task
from h3ui import form, kept_form, markup, watch
from h3ui.board import Panels
from h3ui.form import Mode, PanelValues, Size
from h3ui.panels import hardware, licence, prompt, queue, result, sampling
from h3ui.panels.sampling import DRAFT
from h3ui.planned import Planned, problems_html
from h3ui.render import JobView
from h3ui.uploads import Updates, Uploads

if TYPE_CHECKING:
    from backend.api import Backend, QualityView


def owner_of(session: object, request: gr.Request | None) -> str:
    """Who a tab belongs to: the logged-in user, else the random id its browser keeps. Never the administrator."""
    if request is not None and getattr(request, "username", None):
        return f"user:{request.username}"
    return f"session:{session or 'nobody'}"


class Handlers:
    """Handlers of one page; they hold the backend and no state of any tab but who is watching."""

    def __init__(self, backend: Backend, panels: Panels) -> None:
        self.backend = backend
        self.panels = panels
        self.uploads = Uploads(backend, panels)
        self.planned = Planned(backend, panels)
        self.watchers = watch.Watchers()

    # Reading the panels

    def values(self, data: Mapping[Any, Any]) -> PanelValues:
        """Panel values out of Gradio's dictionary of components."""
        p = self.panels
        adapter, missing = self.adapter(data.get(p.sampling.adapter), data.get(p.sampling.strength))
        return PanelValues(
            adapter=adapter,
            missing_adapter=missing,
            prompt=data[p.prompt.text] or "",
            mode=Mode(data[p.mode]),
            first_frame=data[p.keyframes.slots["first"].item],
            last_frame=data[p.keyframes.slots["last"].item],
            references=tuple(data[p.references.items] or ()),
            ratio=data[p.canvas.ratio] or form.AUTO_RATIO,
            size=Size(data[p.canvas.size]),
            width=data[p.canvas.width],
            height=data[p.canvas.height],
            duration_s=data[p.canvas.duration],
            steps=data[p.sampling.steps],
            seed=data[p.sampling.seed] or "",
            quality=data[p.sampling.quality],
        )

    def adapter(self, name: object, strength: object) -> tuple[Adapter | None, str]:
        """The adapter of that name with its strength, or the name of one that cannot be had."""
        if not name:
            return None, ""
        try:
            return self.backend.adapter(str(name), float(strength) if isinstance(strength, int | float) else 1.0), ""
        except InvalidRequest:
            return None, str(name)[:80]

    def preset(self, data: Mapping[Any, Any]) -> str | None:
        """The preset that was chosen by hand, None for the automatic one."""
        chosen = data[self.panels.hardware.override]
        return None if chosen in (None, hardware.AUTO) else chosen

    # Submit

    def generate(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """Submit what the panels hold; the new job is shown, or every problem is."""
        p = self.panels
        owner = owner_of(data[p.session], request)
        values, preset = self.values(data), self.preset(data)
        try:
            self._ask_licence(preset)
            asked = form.to_request(values)
            job = self.backend.submit(asked, owner=owner, preset=preset, quality=values.quality)
        except H3Error as error:
            return {p.problems: problems_html(error)}
        return {p.problems: "", **self.show(job, owner, request)}

    def draft(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """Submit a draft of what the panels hold: the draft's canvas and no more steps than it takes."""
        p = self.panels
        try:
            most, steps = self.planned.quality(DRAFT, self.preset(data)).steps, data[p.sampling.steps]
        except H3Error as error:
            return {p.problems: problems_html(error)}
        fewer = most if steps is None else min(steps, most)
        return self.generate({**data, p.sampling.quality: DRAFT, p.sampling.steps: fewer}, request)

    def _ask_licence(self, preset: str | None) -> None:
        asked = self.backend.licence(preset)
        if asked is not None and not asked.accepted:
            raise InvalidRequest((licence.problem(asked),))

    def accept_licence(self, session: object, request: gr.Request) -> Updates:
        """The licence's button was pressed."""
        try:
            self.backend.accept_licence(owner_of(session, request))
        except H3Error as error:
            return {self.panels.problems: problems_html(error)}
        return {self.panels.licence: licence.html(self.backend.licence()), self.panels.problems: ""}

    def log_tail(self, rank: object, session: object, request: gr.Request) -> str:
        """The last lines of a log; they tell of everybody's jobs, so a visitor of a shared page does not get them."""
        if not self.backend.may_pause(owner_of(session, request)):
            return "Only an administrator sees the logs here."
        return self.backend.log_tail(rank=int(str(rank)))

    def show(self, job: JobId, owner: str, request: gr.Request) -> Updates:
        """Make `job` the one in the light; whoever watched another in this tab stops before it can draw over this."""
        p = self.panels
        self.watchers.begin(str(request.session_hash))
        return {p.job: job, p.last_job: job, **self.look(job, owner), p.queue.rows: self.queue_html(owner, job)}

    def look(self, job: JobId, owner: str) -> Updates:
        """One look at `job`, without following it."""
        try:
            return self.picture(*watch.look(self.backend, job, owner), owner)
        except JobNotFound as error:
            missing = f"{error}. It was deleted, or it belongs to another browser or user."
            return {
                self.panels.result.live: gr.update(value=result.missing_html(missing), visible=True),
                self.panels.result.player: gr.update(value=""),
            }

    def picture(self, record: JobRecord, view: JobView, owner: str, decode_s: float | None = None) -> Updates:
        """The result panel for one state of a job."""
        p = self.panels
        view = result.snapshot(record, view)
        token = self.backend.file_token(record.id, owner=owner)
        player = result.player_html(record, view, token)
        return {
            p.result.live: result.live_html(record, view, result.now(), decode_s, token),
            p.result.player: gr.update(value=player),
        }

    # Watch

    async def watch(self, job: str | None, session: object, request: gr.Request) -> AsyncIterator[Updates]:
        """Follow the job of this tab until its end; Gradio closes this generator when the tab is left."""
        p, owner, tab = self.panels, owner_of(session, request), str(request.session_hash)
        unchanged = {p.status: gr.skip()}
        if not job:
            yield unchanged  # a generator that yields nothing empties its outputs
            return
        token = self.watchers.begin(tab)
        wanted = functools.partial(self.watchers.beat, tab, token)
        decode_s: float | None = None
        try:
            async for record, view in watch.follow(self.backend, JobId(job), owner, wanted):
                if decode_s is None and view.started_at:
                    decode_s = await asyncio.to_thread(self.expected_decode_s, record, owner)
                yield self.picture(record, view, owner, decode_s)
        except JobNotFound:
            yield unchanged  # deleted meanwhile: the handler that deleted it has changed the panel
            return
        if not wanted():
            yield unchanged  # Gradio sends the last yield again at the end: it must not be a picture
            return
        self.watchers.end(tab, token, job)
        yield {p.queue.rows: self.queue_html(owner, job), p.status: self.status_html()}

    def tick(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """Every few seconds: status, queue, and the job itself where its watcher was lost."""
        p = self.panels
        owner, job, tab = owner_of(data[p.session], request), data[p.job], str(request.session_hash)
        updates = {p.status: self.status_html(), p.queue.rows: self.queue_html(owner, job)}
        if not job:
            return updates
        try:
            if not self.watchers.needs_help(tab, job):
                self.backend.job(JobId(job), owner=owner)  # is it still there?
                return updates
            record, view = watch.look(self.backend, JobId(job), owner)
        except JobNotFound:  # deleted in another tab
            return updates | self.look(JobId(job), owner)
        if view.terminal:
            self.watchers.helped(tab, job)
        return updates | self.picture(record, view, owner)

    def expected_decode_s(self, record: JobRecord, owner: str) -> float | None:
        """Seconds that decode and MP4 of `record` should take, from my last finished job on the same preset."""
        finished = self.backend.history(owner=owner, limit=8, states=(JobState.SUCCEEDED,))
        like = next((earlier for earlier in finished if earlier.preset == record.preset), None)
        if like is None or not result.volume_of(like):
            return None
        view = watch.whole_view(self.backend, like.id, owner)
        took = sum(view.stage_seconds(stage) or 0.0 for stage in (Stage.DECODE, Stage.MUX))
        return took * result.volume_of(record) / result.volume_of(like)

    # Loading the page

    def restore(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """A page was opened: who is it, which job was in the light, and what stood in the fields."""
        p = self.panels
        session = data[p.session] or secrets.token_urlsafe(18)
        owner = owner_of(session, request)
        job = request.query_params.get("job") or data[p.last_job]
        updates: Updates = {
            p.session: session,
            p.status: self.status_html(),
            p.queue.rows: self.queue_html(owner, job),
            p.licence: licence.html(self.backend.licence()),
            p.canvas.plan: self.planned.at_first(),
        }
        if job:
            updates |= {p.job: job, **self.look(JobId(job), owner)}
            with contextlib.suppress(JobNotFound):
                record = self.backend.job(JobId(job), owner=owner)
                updates |= self.fill(record) | self._as_asked(record)
        return updates | kept_form.restore(p, self.backend, data[p.kept], owner, job)

    def _as_asked(self, record: JobRecord) -> Updates:
        """A record has numbers where somebody asked for none: the next press should draw a seed, and choose a size."""
        p, sampling = self.panels, record.request.sampling
        updates: Updates = {p.sampling.seed: ""}
        if record.request.task is Task.FL2VA:
            return updates  # there Automatic follows a picture
        geometry = self.backend.checkpoint().geometry
        for ratio, sides in limits.RATIOS.items():
            if limits.canvas_for_ratio(*sides, geometry) == (sampling.width, sampling.height):
                shape = form.AUTO_RATIO if ratio == "16:9" else ratio
                hidden = gr.update(visible=False)
                return updates | {p.canvas.ratio: shape, p.canvas.size: Size.AUTO.value, p.canvas.custom: hidden}
        return updates

    # Texts of small panels

    def queue_html(self, owner: str, job: str | None) -> str:
        """My running and waiting jobs."""
        running = self.backend.history(owner=owner, states=(JobState.RUNNING,))
        stand = queue.Stand(
            viewer=owner,
            paused=self.backend.status().paused,
            may_pause=self.backend.may_pause(owner),
            limits=self.backend.caps.sentence() if self.backend.caps == SHARED else "",
        )
        return queue.rows_html([*running, *self.backend.queue(owner=owner)], job, stand)

    def status_html(self) -> str:
        """One pill: what the machine does now."""
        status = self.backend.status()
        words = {"starting": "Starting", "ready": "Ready", "busy": "Busy", "failed": "Not working"}
        label = words.get(str(status.health), str(status.health))
        kind = {"ready": "ok", "busy": "live", "failed": "bad"}.get(str(status.health), "")
        waiting = f" · {status.queued} waiting" if status.queued else ""
        paused = " · paused" if status.paused else ""
        return (
            f'<span class="pill {kind}" title="{markup.text(status.reason)}">{label}{waiting}{paused}</span>'
            f'<span class="muted preset">{markup.text(status.preset)}</span>'
        )

    def plan(self, data: dict[Any, Any]) -> Updates:
        """The live lines under the canvas."""
        return {self.panels.canvas.plan: self.planned.html(self.values(data), self.preset(data))}

    def quality_about(self, data: dict[Any, Any]) -> Any:
        """The words about the chosen quality, for the model that would run."""
        view = self._quality(data)
        return gr.skip() if view is None else sampling.about_html(view)

    def quality_chosen(self, data: dict[Any, Any]) -> Updates:
        """A quality was chosen: its steps on the model that would run; Turbo puts an adapter on, others take it off."""
        s, view = self.panels.sampling, self._quality(data)
        if view is None:
            return gr.skip()
        updates: Updates = {s.steps: view.steps}
        worn, lent = data.get(s.adapter) or "", data.get(s.lent) or ""
        if view.adapter is not None:
            updates[s.strength] = 1.0
            if worn != view.adapter.name:  # else somebody chose it by hand, and it stays
                updates |= {s.adapter: view.adapter.name, s.lent: view.adapter.name}
        elif lent:
            updates[s.lent] = ""
            if worn == lent:
                updates[s.adapter] = ""
        return updates

    def _quality(self, data: dict[Any, Any]) -> QualityView | None:
        try:
            return self.planned.quality(data[self.panels.sampling.quality], self.preset(data))
        except H3Error:  # the line under the canvas says what is wrong with the model
            return None

    def frames(self, data: dict[Any, Any]) -> Updates:
        """The keyframes as the model will see them."""
        return self.planned.frames(self.values(data), self.preset(data))

    def fill(self, record: JobRecord) -> Updates:
        """Panel values that make a stored job again; its media are copied to where this page may show them."""
        return self.fill_request(record.request, record.quality, record.labels)

    def fill_request(self, request: GenerationRequest, quality: str, labels: Mapping[str, str]) -> Updates:
        """Panel values that make `request`; `labels` has the names of its media by file name."""
        p = self.panels
        stored = form.from_request(request)
        size = stored.size
        updates: Updates = {
            p.prompt.text: stored.prompt,
            p.prompt.hint: prompt.hint_html(stored.prompt, (), p.prompt.examples),
            p.mode: stored.mode.value,
            p.keyframes.group: gr.update(visible=stored.mode is Mode.FRAMES),
            p.references.group: gr.update(visible=stored.mode is Mode.REFERENCES),
            p.canvas.size: size.value,
            p.canvas.custom: gr.update(visible=size is Size.CUSTOM),
            p.canvas.width: stored.width,
            p.canvas.height: stored.height,
            p.canvas.ratio: stored.ratio,
            p.canvas.duration: stored.duration_s,
            p.sampling.steps: stored.steps,
            p.sampling.seed: stored.seed,
            p.sampling.adapter: stored.adapter if self.adapter(stored.adapter, 1.0)[0] is not None else "",
            p.sampling.strength: stored.adapter_scale,
            p.problems: "",
        }
        qualities = self.backend.qualities()
        if quality in [name for _, name in sampling.offered(qualities)]:
            worn = updates[p.sampling.adapter] if qualities[quality].preset.turbo else ""
            updates |= {p.sampling.quality: quality, p.sampling.lent: worn}
        return updates | self.uploads.fill(labels, stored)
