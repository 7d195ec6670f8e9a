"""The reference tray: an ordered list of pictures, clips and sounds with the tags that name them in the prompt.

It knows order, tags and budgets as they are shown; the rules themselves are `backend.limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend import limits
from backend.errors import Problem
from backend.types import Reference, ReferenceKind
from h3ui import markup
from h3ui.form import MediaItem, tags
from h3ui.panels import media

PLURALS = {ReferenceKind.IMAGE: "pictures", ReferenceKind.VIDEO: "videos", ReferenceKind.AUDIO: "sounds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencesPanel:
    """Components of the tray; `items` holds a tuple of MediaItem, `group` is shown in references mode only."""

    group: gr.Group
    drop: gr.File
    tray: gr.HTML
    items: gr.State


def build() -> ReferencesPanel:
    """Create the components in the current layout block."""
    with gr.Column(visible=False, elem_classes="media-group") as group:
        tray = gr.HTML(tray_html(()), js_on_load=markup.CLICKS, apply_default_css=False, elem_id="tray")
        drop = gr.File(
            label="Add pictures, clips or sounds",
            file_count="multiple",
            height=120,
            elem_id="add-references",
            elem_classes="drop",
        )
        items = gr.State(())
    return ReferencesPanel(group=group, drop=drop, tray=tray, items=items)


def tray_html(items: tuple[MediaItem, ...], refusals: Sequence[Problem] = ()) -> str:
    """The list with budgets above it and refusals below."""
    refused = markup.problems(refusals, title="Not added")
    if not items:
        return refused or markup.note(
            "Up to 9 pictures, 3 clips and 3 sounds. Their order numbers the tags you use in the prompt."
        )
    rows = "".join(
        _row(index, item, row_tags, len(items))
        for index, (item, row_tags) in enumerate(zip(items, tags(items), strict=True))
    )
    return f'{_budgets(items)}<ol class="tray">{rows}</ol>{refused}'


def _row(index: int, item: MediaItem, row_tags: tuple[str, ...], count: int) -> str:
    name = item.path.name
    chips = "".join(
        f'<button type="button" class="tag" data-action="insert" data-tag="{markup.text(tag)}" '
        f'title="Insert into the prompt">{markup.text(tag)}</button>'
        for tag in row_tags
    )
    moves = (markup.button(f"Move {name} up", "up", symbol="up", kind="icon", index=index) if index else "") + (
        markup.button(f"Move {name} down", "down", symbol="down", kind="icon", index=index) if index < count - 1 else ""
    )
    remove = markup.button(f"Remove {name}", "remove", symbol="close", kind="icon", index=index)
    return (
        f'<li>{media.thumbnail(item)}<div class="what"><div class="tags">{chips}</div>'
        f'<div class="name">{markup.text(name)}</div>{media.report_html(item.report)}{_trim(index, item)}</div>'
        f'<div class="row-buttons">{moves}{remove}</div></li>'
    )


def _trim(index: int, item: MediaItem) -> str:
    if item.report.kind is ReferenceKind.IMAGE:
        return ""
    length = "" if item.length_s is None else f"{item.length_s:g}"
    whole = f"{item.report.duration_s - item.start_s:.1f}" if item.report.duration_s else "all"
    fields = (("start", "Start", f"{item.start_s:g}", "0"), ("length", "Length", length, whole))
    return (
        '<div class="trim">'
        + "".join(
            f'<label>{label} <input type="text" inputmode="decimal" value="{markup.text(value)}" data-edit="trim" '
            f'placeholder="{markup.text(placeholder)}" data-field="{field}" data-index="{index}"> s</label>'
            for field, label, value, placeholder in fields
        )
        + "</div>"
    )


def _budgets(items: tuple[MediaItem, ...]) -> str:
    told = []
    for kind, limit in limits.MAX_OF_KIND.items():
        of_kind = [item for item in items if item.report.kind is kind]
        if not of_kind:
            continue
        over = len(of_kind) > limit
        line = f"{len(of_kind)} of {limit} {PLURALS[kind]}"
        if kind is not ReferenceKind.IMAGE:
            used = sum(used_seconds(item) for item in of_kind)
            over = over or used > limits.MAX_CLIPS_TOTAL_S + limits.CLIP_TOLERANCE_S
            line += f", {used:.1f} of {limits.MAX_CLIPS_TOTAL_S:g} s"
        told.append(f'<span class="budget{" over" if over else ""}">{line}</span>')
    return f'<div class="budgets">{"".join(told)}</div>'


def used_seconds(item: MediaItem) -> float:
    """Seconds of a clip that will be used, 0 when unknown."""
    reference = Reference(path=item.path, start_s=item.start_s, length_s=item.length_s)
    return max(limits.used_length_s(reference, item.report.duration_s) or 0.0, 0.0)
