"""What is done with jobs once they exist: open, order, change, run again, keep, compare, take away.

It knows records and buttons; submitting and watching are `h3ui.handlers`'.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.utils import get_upload_folder

from backend.errors import H3Error, InvalidRequest, JobNotFound, NotNow, Problem
from backend.jobs.records import JobRecord, JobState
from backend.types import JobId
from h3ui import form, markup
from h3ui.handlers import Handlers, owner_of
from h3ui.panels import gallery, queue
from h3ui.planned import problems_html
from h3ui.shelf import Shelf
from h3ui.uploads import Updates, clicked

if TYPE_CHECKING:
    from backend.api import Backend

MAX_TICKED = 500
MAX_TITLE_CHARS = 200


class Keeping:
    """Handlers of queue and gallery, and of every button that names a job."""

    def __init__(self, backend: Backend, handlers: Handlers) -> None:
        self.backend = backend
        self.handlers = handlers
        self.panels = handlers.panels
        self.shelf = Shelf(backend, handlers)
        self._ordering = threading.Lock()

    # Buttons

    def act(self, event: gr.EventData, data: dict[Any, Any], request: gr.Request) -> Updates:
        """A button of the result, the queue, a card, the ticked cards or the comparison."""
        did = clicked(event)
        owner = owner_of(data[self.panels.session], request)
        known = self._buttons().get(did.get("action", ""))
        if known is None:
            return gr.skip()
        try:
            return known(_Press(did, JobId(did.get("job", "")), owner, data, request))
        except H3Error as error:
            told = {self.panels.problems: problems_html(error), **self._told(error)}
            return {**told, **self._queue(owner, data)}

    def _buttons(self) -> dict[str, Callable[[_Press], Updates]]:
        return {
            "open": self._open,
            "cancel": self._cancel,
            "retry": lambda press: self._show(press, self.backend.retry(press.job, owner=press.owner)),
            "reseed": self._reseed,
            "final": lambda press: self._show(press, self.backend.final(press.job, owner=press.owner)),
            "pause": self._pause,
            "resume": self._resume,
            "reorder": self._reorder,
            "edit": self._edit,
            "stop-edit": lambda press: {**self._stop_editing(), **self._queue(press.owner, press.data)},
            "save-queue": self._save_queue,
            "settings": self._settings,
            "favourite": self._favourite,
            "rename": self._rename,
            "delete": self._delete,
            "delete-many": self._delete_many,
            "continue": self._continue,
            "reference": self._reference,
            "compare": self._compare,
            "compare-close": lambda press: self.shelf.no_comparison(),
            "more": self._more,
        }

    def _show(self, press: _Press, job: JobId) -> Updates:
        return {**self.handlers.show(job, press.owner, press.request), self.panels.tabs: gr.update(selected="studio")}

    def _open(self, press: _Press) -> Updates:
        return self._show(press, press.job)

    def _reseed(self, press: _Press) -> Updates:
        """Another seed of a job that waits or runs joins the line; of one that has ended, it comes into the light."""
        ended = self.backend.job(press.job, owner=press.owner).state.ended
        made = self.backend.duplicate(press.job, owner=press.owner)
        return self._show(press, made) if ended else self._queue(press.owner, press.data)

    def _cancel(self, press: _Press) -> Updates:
        self.backend.cancel(press.job, owner=press.owner)
        over = press.data[self.panels.queue.editing.job] == press.job
        stopped = self._stop_editing() if over else {}
        return {**stopped, **self._queue(press.owner, press.data)}

    def _pause(self, press: _Press) -> Updates:
        self.backend.pause(owner=press.owner)
        return self._queue(press.owner, press.data)

    def _resume(self, press: _Press) -> Updates:
        self.backend.resume(owner=press.owner)
        return self._queue(press.owner, press.data)

    def _reorder(self, press: _Press) -> Updates:
        position, by = press.did.get("position", ""), press.did.get("by", "")
        with self._ordering:  # a place is read and given by one press at a time, so that quick presses add up
            if by in ("-1", "1"):
                at = self.backend.job(press.job, owner=press.owner).position
                position = str(at + int(by)) if at is not None else ""
            if position.isdecimal() and len(position) < 6:
                self.backend.reorder(press.job, int(position), owner=press.owner)
        return self._queue(press.owner, press.data)

    def _settings(self, press: _Press) -> Updates:
        record = self.backend.job(press.job, owner=press.owner)
        return {**self.handlers.fill(record), self.panels.tabs: gr.update(selected="studio")}

    # Changing a waiting job

    def _edit(self, press: _Press) -> Updates:
        record = self.backend.job(press.job, owner=press.owner)
        if record.state is not JobState.QUEUED:
            raise NotNow(f"“{record.title}” waits no longer, so it cannot be changed; run it again with other settings")
        editing = self.panels.queue.editing
        return {
            **self.handlers.fill(record),
            editing.job: press.job,
            editing.bar: gr.update(value=queue.editing_html(record), visible=True),
            **self._queue(press.owner, press.data),
        }

    def save_edit(self, event: gr.EventData, data: dict[Any, Any], request: gr.Request) -> Updates:
        """A button of the bar above Generate: the job that is being changed gets what the panels hold, or stays."""
        did, p = clicked(event), self.panels
        owner = owner_of(data[p.session], request)
        job = data[p.queue.editing.job]
        if did.get("action") != "save-edit" or not job:
            return {**self._stop_editing(), **self._queue(owner, data)}
        values = self.handlers.values(data)
        try:
            self.backend.edit(JobId(job), form.to_request(values), owner=owner, quality=values.quality)
        except H3Error as error:
            return {p.problems: problems_html(error), **self._queue(owner, data)}
        looked = self.handlers.look(JobId(job), owner) if data[p.job] == job else {}
        return {p.problems: "", **looked, **self._stop_editing(), **self._queue(owner, data)}

    def _stop_editing(self) -> Updates:
        editing = self.panels.queue.editing
        return {editing.job: None, editing.bar: gr.update(value="", visible=False)}

    # The queue as a file

    def _save_queue(self, press: _Press) -> Updates:
        count = len(self.backend.queue(owner=press.owner))
        if not count:  # it ran meanwhile; what an earlier press said of a saved queue goes
            return {self.panels.queue.told: gr.update(value=queue.nothing_html(), visible=True)}
        # One saved queue an owner: whoever presses often does not fill the disk. The way to it cannot be guessed.
        place = Path(get_upload_folder()) / "queues" / hashlib.sha256(press.owner.encode()).hexdigest()[:24]
        shutil.rmtree(place, ignore_errors=True)
        target = place / secrets.token_urlsafe(18) / "h3-queue.zip"
        target.parent.mkdir(parents=True)
        self.backend.export_queue(target, owner=press.owner)
        return {self.panels.queue.told: gr.update(value=queue.saved_html(target, count), visible=True)}

    def load_queue(self, path: str | None, data: dict[Any, Any], request: gr.Request) -> Updates:
        """A saved queue was chosen."""
        p = self.panels
        owner = owner_of(data[p.session], request)
        if not path:
            return gr.skip()
        try:
            jobs = self.backend.import_queue(Path(path), owner=owner)
        except H3Error as error:
            told = problems_html(error)
        else:
            told = queue.loaded_html(len(jobs))
        return {p.queue.told: gr.update(value=told, visible=True), **self._queue(owner, data)}

    def _queue(self, owner: str, data: Mapping[Any, Any]) -> Updates:
        return {self.panels.queue.rows: self.handlers.queue_html(owner, data[self.panels.job])}

    # Cards

    def _more(self, press: _Press) -> Updates:
        count = press.data[self.panels.gallery.count] + gallery.PAGE_SIZE
        return {self.panels.gallery.count: count, **self.shelf.cards(press.owner, press.data, gallery.PAGE_SIZE)}

    def _favourite(self, press: _Press) -> Updates:
        record = self.backend.job(press.job, owner=press.owner)
        self.backend.set_favourite(press.job, not record.favourite, owner=press.owner)
        return self.shelf.cards(press.owner, press.data)

    def _rename(self, press: _Press) -> Updates:
        self.backend.rename(press.job, press.did.get("value", "")[:MAX_TITLE_CHARS], owner=press.owner)
        return self.shelf.cards(press.owner, press.data)

    def _delete(self, press: _Press) -> Updates:
        self.backend.delete(press.job, owner=press.owner)
        return {**self.shelf.cards(press.owner, press.data), **self.shelf.gone(press.owner, press.data)}

    def _delete_many(self, press: _Press) -> Updates:
        kept: list[Problem] = []
        for job in _ticked(press):
            try:
                self.backend.delete(job, owner=press.owner)
            except JobNotFound:
                continue  # deleted in another tab meanwhile
            except H3Error as error:
                kept.append(Problem(field="job", value=job, rule=str(error)))
        told = markup.problems(kept, title="Not deleted")
        return {
            self.panels.gallery.told: gr.update(value=told, visible=bool(told)),
            **self.shelf.cards(press.owner, press.data),
            **self.shelf.gone(press.owner, press.data),
        }

    def _told(self, error: H3Error) -> Updates:
        """Said in the gallery, too: the other place is on another tab of the page."""
        return {self.panels.gallery.told: gr.update(value=problems_html(error), visible=True)}

    # From a result to the next request

    def _continue(self, press: _Press) -> Updates:
        """The last picture becomes the first frame of a new request with the same settings and another seed."""
        record = self.backend.job(press.job, owner=press.owner)
        with tempfile.TemporaryDirectory(prefix="h3-frame-") as folder:
            picture = Path(folder) / "last.png"
            self.backend.results.last_frame(press.job, picture, owner=press.owner)
            sampling = dataclasses.replace(record.request.sampling, seed=None)
            bare = dataclasses.replace(
                record.request, first_frame=None, last_frame=None, references=(), sampling=sampling
            )
            filled = self.handlers.fill(dataclasses.replace(record, request=bare))
            frame = self.handlers.uploads.set_frame("first", picture, label=f"End of {_file_title(record)}.png")
        return {**filled, **frame, self.panels.tabs: gr.update(selected="studio")}

    def _reference(self, press: _Press) -> Updates:
        record = self.backend.job(press.job, owner=press.owner)
        video = self.backend.results.video(press.job, owner=press.owner)
        items = press.data[self.panels.references.items]
        added = self.handlers.uploads.add_reference(video, items, name=f"{_file_title(record)}.mp4")
        return {**added, self.panels.tabs: gr.update(selected="studio")}

    def drop_result(self, path: str | None, data: dict[Any, Any], request: gr.Request) -> Updates:
        """One of our MP4s was dropped: its settings fill the panels, its media too where this owner still has them."""
        p = self.panels
        if not path:
            return gr.skip()
        owner = owner_of(data[p.session], request)
        try:
            recalled = self.backend.results.recall(Path(path), owner=owner)
        except H3Error as error:
            return {p.gallery.told: gr.update(value=problems_html(error), visible=True)}
        mode = form.from_request(recalled.kept.request).mode
        return {
            **self.handlers.fill_request(recalled.request(), recalled.kept.quality, recalled.labels()),
            p.mode: mode.value,
            p.keyframes.group: gr.update(visible=mode is form.Mode.FRAMES),
            p.references.group: gr.update(visible=mode is form.Mode.REFERENCES),
            p.gallery.told: gr.update(value="", visible=False),
            p.problems: _lost_html(recalled.missing()),
            p.tabs: gr.update(selected="studio"),
        }

    # Two side by side

    def _compare(self, press: _Press) -> Updates:
        jobs = _ticked(press)
        if len(jobs) != 2:
            raise InvalidRequest(
                (
                    Problem(
                        field="compare", value=f"{len(jobs)} ticked", rule="two videos are compared", way_out="tick two"
                    ),
                )
            )
        p = self.panels.gallery.compare
        return {
            p.pair: tuple(jobs),
            p.view: gr.update(value=self.shelf.comparison(jobs, press.owner), visible=True),
            self.panels.gallery.told: gr.update(value="", visible=False),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Press:
    """One press of a button: what it says of itself, the job it names, who pressed it, and what the page holds."""

    did: dict[str, str]
    job: JobId
    owner: str
    data: dict[Any, Any]
    request: gr.Request


def _ticked(press: _Press) -> tuple[JobId, ...]:
    """The jobs a button of the ticked cards names, each once."""
    named = dict.fromkeys(part for part in press.did.get("jobs", "").split(",") if part)
    return tuple(JobId(job) for job in named)[:MAX_TICKED]


def _file_title(record: JobRecord) -> str:
    kept = "".join(letter if letter.isalnum() or letter in " -_" else " " for letter in record.title)
    return " ".join(kept.split())[:60] or "video"


def _lost_html(names: tuple[str, ...]) -> str:
    """Which files must be given again."""
    lost = [
        Problem(field="file", value=name, rule="was used for this video and is not here", way_out="add it again")
        for name in names
    ]
    return markup.problems(lost, title="The settings are filled in; these files are missing")
