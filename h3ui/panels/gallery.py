"""My finished jobs as cards: rename, use again, continue, compare, download, favourite, delete; with search.

It knows records; nothing here decides who may see what.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import gradio as gr

from backend.jobs.records import JobRecord, JobState
from backend.types import FPS, SIDECAR_NAME, VIDEO_NAME, JobId
from h3ui import keyed, markup, render
from h3ui.panels import compare, result

PAGE_SIZE = 24  # cards a page; more come when the end is scrolled to
FILTERS = (("Everything", "all"), ("Videos", "succeeded"), ("Favourites", "favourite"), ("Failed or stopped", "ended"))
ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED)
STATES = {"succeeded": ENDS[:1], "favourite": ENDS[:1], "ended": ENDS[1:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryPanel:
    """Components of the gallery. `count` holds how many cards are asked for, `mark` what the cards were drawn from.

    `summary` is what all jobs take on the disk, `drop` takes an MP4 for its settings (also one that falls anywhere on
    the gallery), `told` says what came of it.
    """

    search: gr.Textbox
    shown: gr.Radio
    drop: gr.UploadButton
    told: gr.HTML
    summary: gr.HTML
    bulk: gr.HTML
    compare: compare.ComparePanel
    cards: gr.HTML
    count: gr.State
    mark: gr.State


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a card says beyond the record: `tokens` open files, `bytes` are on the disk, `kernels` made it."""

    tokens: Mapping[JobId, str] = field(default_factory=dict)
    bytes: Mapping[JobId, int] = field(default_factory=dict)
    kernels: Mapping[JobId, str] = field(default_factory=dict)


def build() -> GalleryPanel:
    """Create the components in the current layout block."""
    with gr.Row(elem_classes="toolbar"):
        search = gr.Textbox(
            label="Search", placeholder="words of a prompt or title", max_lines=1, elem_id="search", min_width=200
        )
        shown = gr.Radio(choices=FILTERS, value="all", label="Show", elem_id="filter", elem_classes="segmented")
        drop = gr.UploadButton("Settings from an MP4", elem_id="drop-result", elem_classes="drop-button", min_width=200)
    told = gr.HTML("", apply_default_css=False, elem_id="gallery-told", visible=False)
    summary = gr.HTML("", apply_default_css=False, elem_id="disk-use")
    bulk = gr.HTML(bulk_html(), js_on_load=markup.CLICKS, apply_default_css=False, elem_id="bulk")
    panel = compare.build()
    cards = keyed.html("", elem_id="gallery")
    return GalleryPanel(
        search=search,
        shown=shown,
        drop=drop,
        told=told,
        summary=summary,
        bulk=bulk,
        compare=panel,
        cards=cards,
        count=gr.State(PAGE_SIZE),
        mark=gr.State(""),
    )


def bulk_html() -> str:
    """What can be done with the cards that are ticked; the page fills in which, and shows it once there are some."""
    both = markup.button("Compare", "compare", symbol="compare", kind="small")
    away = markup.button("Delete", "delete-many", symbol="trash", kind="small", confirm="Delete the ticked jobs?")
    none = '<button type="button" class="btn small" data-tick-none><span>Tick none</span></button>'
    every = '<button type="button" class="btn small" data-tick-all><span>Tick all shown</span></button>'
    return (
        f'<div class="bulk" role="toolbar" aria-label="Ticked videos"><b class="num" data-ticked></b>'
        f"{both}{away}{every}{none}"
        '<span class="muted" data-compare-hint>Tick two videos to compare them.</span></div>'
    )


def summary_html(jobs: int, used_bytes: int, free_bytes: int) -> str:
    """What the owner's jobs take in all; nothing while there are none."""
    if not jobs:
        return ""
    words = "1 job" if jobs == 1 else f"{jobs} jobs"
    return (
        f'<p class="muted num disk">{words} · {render.size(used_bytes)} on this disk · '
        f"{render.size(free_bytes)} free</p>"
    )


def cards_html(records: Sequence[JobRecord], facts: Facts, more: bool, filtered: bool, viewer: str = "") -> str:
    """The grid, or an empty state that says what to do."""
    if not records:
        if filtered:
            return markup.empty("Nothing found", "Change the words or the filter above.")
        return markup.empty("No videos yet", "Everything you make is kept here, with the settings it was made with.")
    grid = "".join(_card(record, facts, markup.owner(record.owner, viewer)) for record in records)
    button = f'<div class="more" data-more>{markup.button("Show more", "more")}</div>' if more else ""
    return f'<div class="grid">{grid}</div>{button}'


def _card(record: JobRecord, facts: Facts, whose: str) -> str:
    job, title = markup.text(record.id), markup.text(record.title)
    done = record.state is JobState.SUCCEEDED
    tick = (
        f'<label class="tick"><input type="checkbox" data-tick="{job}"{" data-video" if done else ""} '
        f'aria-label="Tick {title}"></label>'
    )
    rename = (
        f'<div class="title-row"><b translate="no">{title}</b>'
        f'<input class="title-field" type="text" maxlength="120" value="{title}" data-edit="rename" data-job="{job}" '
        f'aria-label="New title" translate="no">'
        f'<button type="button" class="btn icon tiny" data-rename aria-label="Rename {title}" title="Rename">'
        f"{markup.icon('pencil')}</button></div>"
    )
    lines = "".join(f'<span class="muted num">{line}</span>' for line in _report(record, facts))
    return (
        f'<article class="video-card" data-key="{job}">{_shot(record, facts)}{tick}'
        f'<div class="card-text">{rename}{lines}{whose}</div>'
        f'<div class="card-buttons">{_buttons(record, facts)}</div></article>'
    )


def _shot(record: JobRecord, facts: Facts) -> str:
    sampling = record.request.sampling
    tall = bool(sampling.height and sampling.width and sampling.height > sampling.width)
    if record.state is JobState.SUCCEEDED:
        # The page gives a video its source while it is near the window: browsers stop making players at about 75.
        source = markup.text(result.file_url(record, VIDEO_NAME, facts.tokens.get(record.id, "")))
        inner = f'<video data-src="{source}#t=0.5" muted playsinline loop preload="metadata" data-hover-play></video>'
    else:
        state = record.state.value
        inner = markup.icon("alert" if record.state is JobState.FAILED else "film") + (
            f'<span class="pill {result.PILLS.get(state, "")}">{markup.text(state)}</span>'
        )
        inner += f'<span class="why" translate="no">{markup.text(record.error)}</span>' if record.error else ""
    return (
        f'<button type="button" class="shot{" tall" if tall else ""}" data-action="open" '
        f'data-job="{markup.text(record.id)}" aria-label="Open {markup.text(record.title)}">{inner}</button>'
    )


def _report(record: JobRecord, facts: Facts) -> tuple[str, ...]:
    """What was made, when and how, as short lines of escaped text."""
    sampling = record.request.sampling
    when = time.strftime("%d %b %H:%M", time.localtime(record.created_at))
    first = [when, f"{sampling.width} × {sampling.height}", f"{sampling.num_frames / FPS:.1f} s"]
    second = [f"seed {sampling.seed}", f"{sampling.num_inference_steps - 1} forwards", record.quality]
    third = [record.preset, facts.kernels.get(record.id, "")]
    if record.started_at and record.finished_at:
        third.insert(0, render.duration(record.finished_at - record.started_at))
    if record.id in facts.bytes:
        third.append(render.size(facts.bytes[record.id]))
    return tuple(" · ".join(markup.text(part) for part in line if part) for line in (first, second, third))


def _buttons(record: JobRecord, facts: Facts) -> str:
    done = record.state is JobState.SUCCEEDED
    buttons = ""
    if done:
        star = "Take from favourites" if record.favourite else "Add to favourites"
        kind = "icon on" if record.favourite else "icon"
        buttons += markup.button(star, "favourite", symbol="star", kind=kind, job=record.id)
    buttons += markup.button("Use these settings", "settings", symbol="settings", kind="icon", job=record.id)
    if done:
        buttons += markup.button("Continue from its last frame", "continue", symbol="next", kind="icon", job=record.id)
        buttons += markup.button("Use as a reference", "reference", symbol="reference", kind="icon", job=record.id)
        token = facts.tokens.get(record.id, "")
        for label, name, symbol in (("Download", VIDEO_NAME, "download"), ("Details", SIDECAR_NAME, "info")):
            href = markup.text(result.file_url(record, name, token))
            saved = markup.text(f"h3-{record.id}.{name.rpartition('.')[2]}")
            buttons += (
                f'<a class="btn icon" href="{href}" download="{saved}" aria-label="{label}" title="{label}">'
                f"{markup.icon(symbol)}</a>"
            )
    return buttons + markup.button(
        "Delete", "delete", symbol="trash", kind="icon", job=record.id, confirm="Delete this job and its files?"
    )
