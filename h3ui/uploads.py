"""Media on the page: files that were dropped, keyframe cards, the reference tray, and media of stored jobs.

It looks at files through the backend and keeps nothing; the items live in the tab's state.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.utils import get_upload_folder

from backend.errors import InvalidRequest, MediaRefused, Problem
from h3ui import form
from h3ui.board import Panels
from h3ui.context_ir.tags import renumber
from h3ui.form import MediaItem, Mode, StoredValues
from h3ui.panels import keyframes, references

if TYPE_CHECKING:
    from backend.api import Backend

Updates = dict[Any, Any]
LOOKING_AT_ONCE = 2  # files of one drop, each in a child of its own


class Uploads:
    """Handlers of keyframes and references."""

    def __init__(self, backend: Backend, panels: Panels) -> None:
        self.backend = backend
        self.panels = panels

    def probe(self, path: str | Path, *, keyframe: bool = False) -> MediaItem:
        """A dropped file with its report and small pictures, by the rules of a reference or a keyframe.

        Raises MediaRefused.
        """
        report, glimpse = self.backend.glimpse(Path(path), keyframe=keyframe)
        return form.fitted(MediaItem(path=Path(path), report=report, glimpse=glimpse))

    def drop_frame(self, name: str, path: str | None) -> Updates:
        """A file fell into a keyframe's slot."""
        slot = self.panels.keyframes.slots[name]
        if path is None:
            return {slot.item: None}
        try:
            item = self.probe(path, keyframe=True)
            if item.report.kind != "image":
                raise MediaRefused(_not_a_picture(item))
        except MediaRefused as error:
            return self._refused_frame(name, error.problem)
        return self.frame_updates(name, item)

    def _refused_frame(self, name: str, problem: Problem) -> Updates:
        slot = self.panels.keyframes.slots[name]
        return {
            slot.item: None,
            slot.drop: gr.update(value=None, visible=True),
            slot.card: gr.update(value=keyframes.card_html(name, None, problem), visible=True),
        }

    def frame_updates(self, name: str, item: MediaItem | None) -> Updates:
        """Show `item` in a keyframe's slot, or the empty drop zone."""
        slot = self.panels.keyframes.slots[name]
        return {
            slot.item: item,
            # Emptied only when it comes back: emptied and then hidden, it would take a file in between and lose it.
            slot.drop: gr.update(visible=False) if item else gr.update(value=None, visible=True),
            slot.card: gr.update(value=keyframes.card_html(name, item), visible=item is not None),
        }

    def look_at(self, paths: list[str] | None) -> Updates:
        """Files fell into the tray: look at each, which takes a moment; `arrive` puts them into the tray of then."""
        p = self.panels.references
        if not paths:
            return {p.arrived: ((), ()), p.drop: gr.skip()}
        with ThreadPoolExecutor(LOOKING_AT_ONCE) as pool:
            found = list(pool.map(self._looked_at, paths))
        good = tuple(each for each in found if isinstance(each, MediaItem))
        refusals = tuple(each for each in found if isinstance(each, Problem))
        return {p.arrived: (good, refusals), p.drop: gr.update(value=None)}

    def _looked_at(self, path: str) -> MediaItem | Problem:
        try:
            return self.probe(path)
        except MediaRefused as error:
            return error.problem

    def arrive(self, arrived: tuple[Any, Any], items: tuple[MediaItem, ...]) -> Updates:
        """What `look_at` found joins the tray as it is now, perhaps changed meanwhile; refusals are said."""
        p = self.panels.references
        good, refusals = arrived
        if not good and not refusals:
            return gr.skip()
        kept = (*(items or ()), *good)
        return {p.items: kept, p.tray: references.tray_html(kept, refusals), p.arrived: ((), ())}

    def edit_tray(self, event: gr.EventData, items: tuple[MediaItem, ...]) -> Updates:
        """Move, trim or remove a reference."""
        p = self.panels.references
        did = clicked(event)
        before = tuple(items or ())
        index = form.find(before, did.get("item", ""))
        if index is None:
            return gr.skip()
        kept, refusals = before, []
        try:
            kept = _edited(before, index, did)
        except InvalidRequest as error:
            refusals = list(error.problems)
        return {p.items: kept, p.tray: references.tray_html(kept, refusals, "Not changed")}

    def follow(self, prompt: str, items: tuple[MediaItem, ...], known: tuple[MediaItem, ...]) -> tuple[Any, Any]:
        """The prompt with tags that name the same files as before, and the tray it was written for from now on.

        `known` is the tray that the tags meant. A tray that was replaced as a whole brought its own prompt along.
        """
        followed = renumber(prompt or "", form.renumbering(known or (), items or ()))
        return gr.skip() if followed == (prompt or "") else followed, items

    def fill(self, labels: Mapping[str, str], stored: StoredValues) -> Updates:
        """Show the media of a stored job, copied to where this page may show them; what is gone is said.

        `labels` has the names they came with, by file name.
        """
        p = self.panels.references
        updates: Updates = {}
        lost: list[Problem] = []
        for name, path in (("first", stored.first_frame), ("last", stored.last_frame)):
            updates |= self.frame_updates(name, self._reuse(labels, path, lost, keyframe=True) if path else None)
        items = []
        for reference in stored.references:
            item = self._reuse(labels, reference.path, lost)
            if item is not None:
                cut = dataclasses.replace(item, start_s=reference.start_s, length_s=reference.length_s)
                items.append(item if item.report.kind == "image" else cut)
        return updates | {p.items: tuple(items), p.tray: references.tray_html(tuple(items), lost)}

    def add_reference(self, path: Path, items: tuple[MediaItem, ...], *, name: str = "") -> Updates:
        """A copy of the file at `path` joins the tray `items` and the page turns to references; `name` is shown.

        Whoever calls has checked that the file is the caller's own. Refusals are told in the tray.
        """
        p = self.panels
        added, refusals = tuple(items or ()), []
        try:
            added = (*added, self._copied(path, name))
        except MediaRefused as error:
            refusals = [error.problem]
        return {
            **self._turn_to(Mode.REFERENCES),
            p.references.items: added,
            p.references.tray: references.tray_html(added, refusals),
        }

    def set_frame(self, name: str, path: Path, *, label: str = "") -> Updates:
        """A copy of the picture at `path` becomes the `name` ("first" or "last") frame and the page turns to frames.

        Whoever calls has checked that the file is the caller's own. A refusal is told in the frame's place.
        """
        try:
            shown = self.frame_updates(name, self._copied(path, label, keyframe=True))
        except MediaRefused as error:
            shown = self._refused_frame(name, error.problem)
        return {**self._turn_to(Mode.FRAMES), **shown}

    def _turn_to(self, mode: Mode) -> Updates:
        p = self.panels
        return {
            p.mode: mode.value,
            p.keyframes.group: gr.update(visible=mode is Mode.FRAMES),
            p.references.group: gr.update(visible=mode is Mode.REFERENCES),
        }

    def _reuse(
        self, labels: Mapping[str, str], path: Path, lost: list[Problem], *, keyframe: bool = False
    ) -> MediaItem | None:
        try:
            return self._copied(path, labels.get(path.name, path.name), keyframe=keyframe)
        except MediaRefused as error:
            lost.append(error.problem)
        return None

    def _copied(self, path: Path, name: str = "", *, keyframe: bool = False) -> MediaItem:
        """A probed copy of `path` where the page may show it, under a name nobody guesses. Raises MediaRefused."""
        shown = Path(name).name or path.name
        target = Path(get_upload_folder()) / "reused" / secrets.token_urlsafe(9) / shown
        try:
            target.parent.mkdir(parents=True)
            shutil.copyfile(path, target)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            rule = "is not there any more" if missing else f"cannot be copied: {error.strerror}"
            raise MediaRefused(Problem(field="file", value=shown, rule=rule, way_out="add it again")) from error
        return self.probe(target, keyframe=keyframe)


def _edited(items: tuple[MediaItem, ...], index: int, did: dict[str, str]) -> tuple[MediaItem, ...]:
    """`items` after what was `did` to the one at `index`. Raises InvalidRequest where a number was none."""
    match did.get("action"):
        case "up" | "down":
            return form.move(items, index, index + (-1 if did["action"] == "up" else 1))
        case "move":
            target = did.get("to", "")
            return form.move(items, index, int(target)) if target.isdecimal() and len(target) < 4 else items
        case "remove":
            return items[:index] + items[index + 1 :]
        case "trim":
            item = items[index]
            for field in ("start", "length"):
                if field in did:
                    item = form.trim(item, field, did[field])
            return (*items[:index], item, *items[index + 1 :])
    return items


def clicked(event: gr.EventData) -> dict[str, str]:
    """What the button said of itself; everything in it is text from the page."""
    data = getattr(event, "_data", None)
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _not_a_picture(item: MediaItem) -> Problem:
    return Problem(
        field="frame",
        value=item.path.name,
        rule=f"must be a picture, this is {item.report.kind}",
        way_out="use it as a reference instead",
    )
