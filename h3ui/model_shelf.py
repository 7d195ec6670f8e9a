"""Models and adapters on the page: what is pressed there becomes calls of the backend, and the panel tells the outcome.

It submits and looks; a download goes on without any page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend.errors import H3Error
from backend.types import Task
from h3ui import markup, render
from h3ui.handlers import owner_of
from h3ui.panels import models, sampling
from h3ui.planned import problems_html
from h3ui.uploads import Updates, clicked

if TYPE_CHECKING:
    from backend.api import Backend
    from h3ui.board import Panels


class ModelShelf:
    """Handlers of the models tab; state is the backend's."""

    def __init__(self, backend: Backend, panels: Panels) -> None:
        self.backend = backend
        self.panels = panels

    def opened(self, session: object, request: gr.Request) -> Updates:
        """The tab was opened: everything anew, and the timer runs."""
        return {**self.everything(owner_of(session, request)), self.panels.models.timer: gr.Timer(active=True)}

    def everything(self, owner: str) -> Updates:
        """The whole panel for one person."""
        p, may = self.panels.models, self.backend.may_pause(owner)
        folder = str(self.backend.settings.adapters_dir) if may else ""
        return {
            p.rows: models.shelf_html(self.backend.weights.shelf(owner)),
            p.activity: models.activity_html(self.backend.weights.activity(), may),
            p.adapters: models.adapters_html(self.backend.adapters(), folder),
            p.upload: gr.update(visible=may),
        }

    def tick(self, session: object, known: object, request: gr.Request) -> Updates:
        """Every second while the tab is open: the download's line; the list once it has ended, or the disk changed."""
        p, owner = self.panels.models, owner_of(session, request)
        activity = self.backend.weights.activity()
        updates: Updates = {p.activity: models.activity_html(activity, self.backend.may_pause(owner))}
        done = "" if activity is None else f"{activity.model} {activity.action} {activity.state}"
        state = f"{done} {render.size(self.backend.weights.free())}"  # as it is shown: room makes a download possible
        if state != known:
            updates |= {p.rows: models.shelf_html(self.backend.weights.shelf(owner)), p.seen: state}
        return updates

    def act(self, event: gr.EventData, session: object, request: gr.Request) -> Updates:
        """A button of the panel was pressed."""
        owner, did = owner_of(session, request), clicked(event)
        try:
            told = self._do(did, owner)
        except H3Error as error:
            told = problems_html(error)
        return {**self.everything(owner), self.panels.models.told: told}

    def _do(self, did: Mapping[str, Any], owner: str) -> str:
        weights, name = self.backend.weights, str(did.get("model", ""))
        match did.get("action"):
            case "download":
                weights.download(name, _tasks(str(did.get("tasks", ""))), owner)
            case "verify":
                weights.verify(name, owner)
            case "stop":
                weights.cancel(owner)
            case "remove":
                freed = weights.remove(name, owner)
                return markup.note(f"{name} was removed, {freed / 2**30:.1f} GiB are free again.")
            case "accept-licence":
                if self.backend.may_pause(owner):
                    self.backend.accept_licence(owner)
            case "remove-adapter":
                self.backend.remove_adapter(str(did.get("name", "")), owner=owner)
        return ""

    def choices(self, name: object, quality: object) -> Updates:
        """What may be chosen beside the steps; no adapters are shown where none is installed, nor Turbo without one."""
        s, qualities = self.panels.sampling, self.backend.qualities()
        offered = sampling.offered(qualities)
        usable = [item for item in self.backend.adapters() if item.card is not None]
        listed = [sampling.NO_ADAPTER, *((item.card.title, item.name) for item in usable if item.card is not None)]
        updates: Updates = {
            s.quality: gr.update(choices=offered),
            s.adapters: gr.update(visible=bool(usable)),
            s.adapter: gr.update(choices=listed),
            s.adapter_about: self.about(name),
        }
        if quality not in [each for _, each in offered]:  # Turbo, whose adapter was removed
            kept = name if name in [each for _, each in listed] else ""
            updates[s.quality] = gr.update(choices=offered, value=sampling.DEFAULT_QUALITY)
            updates[s.adapter] = gr.update(choices=listed, value=kept)
            updates |= {s.steps: qualities[sampling.DEFAULT_QUALITY].steps, s.lent: ""}
        return updates

    def about(self, name: object) -> str:
        """The schedule that an adapter was made for."""
        found = next((item for item in self.backend.adapters() if item.name == name and item.card is not None), None)
        return "" if found is None else f'<p class="muted about">{models.schedule(found)}.</p>'

    def choose(self, name: object) -> Updates:
        """An adapter was chosen: its schedule is shown, and its steps filled in."""
        s = self.panels.sampling
        found = next((item for item in self.backend.adapters() if item.name == name), None)
        steps = found.card.num_inference_steps if found is not None and found.card is not None else None
        return {s.adapter_about: self.about(name), s.steps: steps if steps is not None else gr.skip()}

    def add_adapter(self, path: str | None, session: object, request: gr.Request) -> Updates:
        """A LoRA file was sent."""
        owner, told = owner_of(session, request), ""
        try:
            if path:
                added = self.backend.add_adapter(Path(path), Path(path).name, owner=owner)
                told = markup.note(f"{added.name} was added; choose it under Adapter in the Studio.")
        except H3Error as error:
            told = problems_html(error)
        return {**self.everything(owner), self.panels.models.told: told}


def _tasks(text: str) -> tuple[Task, ...]:
    known = {str(task): task for task in Task}
    return tuple(known[word] for word in text.split(",") if word in known) or tuple(Task)
