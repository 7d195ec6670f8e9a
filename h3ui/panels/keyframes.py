"""First and last frame: one drop zone each, and a card in its place once a picture is there.

It knows two slots; whether a picture fits the model is said by the backend's report or refusal.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from backend.errors import Problem
from h3ui import markup
from h3ui.form import MediaItem
from h3ui.panels import media

SLOTS = ("first", "last")
TITLES = {"first": "First frame", "last": "Last frame"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One keyframe: where a file is dropped, the card that shows it, and the item itself."""

    drop: gr.File
    card: gr.HTML
    item: gr.State


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyframesPanel:
    """Components of both frames; `group` is shown in frames mode only."""

    group: gr.Group
    slots: dict[str, Slot]


def build() -> KeyframesPanel:
    """Create the components in the current layout block."""
    with gr.Column(visible=False, elem_classes="media-group") as group:
        gr.HTML(
            markup.note("The canvas follows the first frame. One of the two is enough."),
            apply_default_css=False,
        )
        with gr.Row(elem_classes="slots"):
            slots = {name: _slot(name) for name in SLOTS}
    return KeyframesPanel(group=group, slots=slots)


def _slot(name: str) -> Slot:
    with gr.Column(min_width=200):
        drop = gr.File(label=TITLES[name], height=140, elem_id=f"{name}-frame", elem_classes="drop")
        card = gr.HTML(
            "", js_on_load=markup.CLICKS, apply_default_css=False, elem_id=f"{name}-frame-card", visible=False
        )
        item = gr.State(None)
    return Slot(drop=drop, card=card, item=item)


def card_html(name: str, item: MediaItem | None, refusal: Problem | None = None) -> str:
    """The picture with its report, or why it was refused; empty without either."""
    if refusal:
        return markup.problems([refusal], title=f"{TITLES[name]} cannot be used")
    if item is None:
        return ""
    remove = markup.button(f"Remove {TITLES[name].lower()}", "remove", symbol="close", kind="icon", slot=name)
    return (
        f'<figure class="frame-card">{media.thumbnail(item)}{remove}<figcaption><b>{TITLES[name]}</b>'
        f'<div class="name">{markup.text(item.path.name)}</div>{media.report_html(item.report)}</figcaption></figure>'
    )
