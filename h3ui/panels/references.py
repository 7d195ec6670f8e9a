"""The reference tray: an ordered list of pictures, clips and sounds with the tags that name them in the prompt.

It knows order, tags and budgets as they are shown; the rules themselves are `backend.limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend import limits
from backend.errors import Problem
from backend.types import ReferenceKind
from h3ui import markup, named_file
from h3ui.form import MediaItem, faults, tags
from h3ui.panels import media

PLURALS = {ReferenceKind.IMAGE: "pictures", ReferenceKind.VIDEO: "videos", ReferenceKind.AUDIO: "sounds"}
# The list is drawn by assets/scripts/tray.js, item by item, so that a redraw never takes a field from under a cursor.
MOUNT = """
const mount = () => window.h3Tray.mount(element, trigger, props, watch);
if (window.h3Tray) mount();
else document.addEventListener('h3-tray', mount, {once: true});
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencesPanel:
    """Components of the tray; `items` holds a tuple of MediaItem, `group` is shown in references mode only.

    `arrived` holds what was dropped last and its refusals, `known` the items that the tags in the prompt mean.
    """

    group: gr.Group
    drop: gr.File
    tray: gr.HTML
    items: gr.State
    arrived: gr.State
    known: gr.State


def build() -> ReferencesPanel:
    """Create the components in the current layout block."""
    with gr.Column(visible=False, elem_classes="media-group", elem_id="references") as group:
        tray = gr.HTML(
            tray_html(()),
            html_template='<div class="tray-root"></div>',
            js_on_load=MOUNT,
            apply_default_css=False,
            elem_id="tray",
        )
        drop = named_file.build(
            label="Add pictures, clips or sounds",
            file_count="multiple",
            height=120,
            elem_id="add-references",
            elem_classes="drop",
        )
        items, arrived, known = gr.State(()), gr.State(((), ())), gr.State(())
    return ReferencesPanel(group=group, drop=drop, tray=tray, items=items, arrived=arrived, known=known)


def tray_html(items: tuple[MediaItem, ...], refusals: Sequence[Problem] = (), title: str = "Not added") -> str:
    """The list with budgets above it and refusals, called `title`, below."""
    refused = markup.problems(refusals, title=title)
    if not items:
        return refused or markup.note(
            "Up to 9 pictures, 3 clips and 3 sounds. Their order numbers the tags you use in the prompt."
        )
    rows = "".join(
        _row(place, item, row_tags, wrong, len(items))
        for place, (item, row_tags, wrong) in enumerate(zip(items, tags(items), faults(items), strict=True))
    )
    return f'{_budgets(items)}<ol class="tray">{rows}</ol>{refused}'


def _row(place: int, item: MediaItem, row_tags: tuple[str, ...], wrong: tuple[Problem, ...], count: int) -> str:
    name, key = markup.text(item.path.name), item.key
    chips = "".join(
        f'<button type="button" class="tag" data-action="insert" data-tag="{markup.text(tag)}" '
        f'title="Insert into the prompt" translate="no">{markup.text(tag)}</button>'
        for tag in row_tags
    )
    grip = (
        f'<button type="button" class="btn icon grip" data-grip aria-label="Move {name}: drag, or use the arrow keys" '
        f'title="Drag to reorder">{markup.icon("grip")}</button>'
    )
    moves = _move(name, "up", key, place > 0) + _move(name, "down", key, place < count - 1)
    remove = markup.button(f"Remove {item.path.name}", "remove", symbol="close", kind="icon", item=key)
    return (
        f'<li data-key="{key}" class="{item.report.kind.value}">{grip}{media.thumbnail(item)}'
        f'<div class="what"><div class="tags">{chips}</div><div class="name" translate="no">{name}</div>'
        f'{media.report_html(item.report)}</div><div class="row-buttons">{moves}{remove}</div>'
        f"{media.clip_html(item)}{markup.problems(wrong, title='Cannot be used like this')}</li>"
    )


def _move(name: str, way: str, key: str, can: bool) -> str:
    """Always there, so that the keyboard keeps its place; without effect at the ends of the list."""
    off = "" if can else ' aria-disabled="true"'
    return (
        f'<button type="button" class="btn icon" data-action="{way}" data-item="{key}"{off} '
        f'aria-label="Move {name} {way}" title="Move {way}">{markup.icon(way)}</button>'
    )


def _budgets(items: tuple[MediaItem, ...]) -> str:
    told = "".join(media.used_line(kind, items, PLURALS[kind]) for kind in limits.MAX_OF_KIND)
    return f'<div class="budgets" aria-live="polite">{told}</div>'
