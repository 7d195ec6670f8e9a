"""First and last frame: one drop zone each, and a card in its place once a picture is there.

It knows two slots; whether a picture fits the model is said by the backend's report or refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from backend.errors import Problem
from backend.types import MediaReport
from h3ui import markup, named_file
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
        drop = named_file.build(label=TITLES[name], height=140, elem_id=f"{name}-frame", elem_classes="drop")
        card = gr.HTML(
            "", js_on_load=markup.CLICKS, apply_default_css=False, elem_id=f"{name}-frame-card", visible=False
        )
        item = gr.State(None)
    return Slot(drop=drop, card=card, item=item)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCanvas:
    """A keyframe as the job would hand it to the model: the picture, and what was done to get there.

    `cropped` says that it was scaled to cover the canvas, so that what sticks out was cut off; else it was stretched.
    """

    picture: Path
    report: MediaReport
    cropped: bool = False


def card_html(
    name: str, item: MediaItem | None, refusal: Problem | None = None, on_canvas: OnCanvas | None = None
) -> str:
    """The picture as the model will see it with its report, or why it was refused; empty without either.

    Until it was put on the canvas (`on_canvas` None) the file's own poster is shown.
    """
    if refusal:
        return markup.problems([refusal], title=f"{TITLES[name]} cannot be used")
    if item is None:
        return ""
    remove = markup.button(f"Remove {TITLES[name].lower()}", "remove", symbol="close", kind="icon", slot=name)
    shown, told = media.thumbnail(item), media.report_html(item.report)
    if on_canvas is not None:
        report = on_canvas.report
        label = f"{TITLES[name]} as the model will see it"
        shown = f'<img src="{markup.text(media.url(on_canvas.picture))}" alt="{label}" data-seen="{name}">'
        shown += _kept(item, on_canvas)
        size = f"{report.prepared_width} × {report.prepared_height}"
        told = f'<div class="on-canvas"><span>The model sees</span><b>{size}</b></div>{media.report_html(report)}'
    return (
        f'<figure class="frame-card"><div class="seen">{shown}</div>{remove}<figcaption><b>{TITLES[name]}</b>'
        f'<div class="name" translate="no">{markup.text(item.path.name)}</div>{told}</figcaption></figure>'
    )


def _kept(item: MediaItem, on_canvas: OnCanvas) -> str:
    """The whole picture, small, with a line around the part that is kept; empty where nothing is cut off."""
    share = kept_share(item.report, on_canvas.report)
    if not on_canvas.cropped or item.glimpse.poster is None or min(share) > 0.99:
        return ""
    size = f"width:{share[0] * 100:.1f}%;height:{share[1] * 100:.1f}%"
    return (
        f'<span class="kept" role="img" aria-label="The part that is kept" title="The part that is kept">'
        f'<img src="{markup.text(media.url(item.glimpse.poster))}" alt=""><i style="{size}"></i></span>'
    )


def kept_share(whole: MediaReport, placed: MediaReport) -> tuple[float, float]:
    """The share of width and of height (0 to 1) left of a picture that covers its canvas, cut in the middle."""
    if not (whole.width and whole.height and placed.prepared_width and placed.prepared_height):
        return 1.0, 1.0
    wider = (whole.width / whole.height) / (placed.prepared_width / placed.prepared_height)
    return (1 / wider, 1.0) if wider > 1 else (1.0, wider)
