"""My finished jobs as cards: open, use settings, download, favourite, delete; with search and a filter.

It knows records; nothing here decides who may see what.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gradio as gr

from backend.jobs.records import JobRecord, JobState
from backend.types import JobId
from h3ui import markup
from h3ui.panels import result

PAGE_SIZE = 24  # cards a page; browsers stop making players at about 75
FILTERS = (("Everything", "all"), ("Videos", "succeeded"), ("Favourites", "favourite"), ("Failed or stopped", "ended"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryPanel:
    """Components of the gallery; `count` holds how many cards are asked for."""

    search: gr.Textbox
    shown: gr.Radio
    cards: gr.HTML
    count: gr.State


def build() -> GalleryPanel:
    """Create the components in the current layout block."""
    with gr.Row(elem_classes="toolbar"):
        search = gr.Textbox(
            label="Search", placeholder="words of a prompt or title", max_lines=1, elem_id="search", min_width=200
        )
        shown = gr.Radio(choices=FILTERS, value="all", label="Show", elem_id="filter", elem_classes="segmented")
    cards = gr.HTML("", js_on_load=markup.CLICKS, apply_default_css=False, elem_id="gallery")
    count = gr.State(PAGE_SIZE)
    return GalleryPanel(search=search, shown=shown, cards=cards, count=count)


def cards_html(
    records: Sequence[JobRecord], tokens: Mapping[JobId, str], more: bool, filtered: bool, viewer: str = ""
) -> str:
    """The grid (`tokens` open the files of each job), or an empty state that says what to do."""
    if not records:
        if filtered:
            return markup.empty("Nothing found", "Change the words or the filter above.")
        return markup.empty("No videos yet", "Everything you make is kept here, with the settings it was made with.")
    grid = "".join(_card(record, tokens.get(record.id, ""), markup.owner(record.owner, viewer)) for record in records)
    button = f'<div class="more">{markup.button("Show more", "more")}</div>' if more else ""
    return f'<div class="grid">{grid}</div>{button}'


def _card(record: JobRecord, token: str, whose: str) -> str:
    job = markup.text(record.id)
    sampling = record.request.sampling
    when = time.strftime("%d %b %H:%M", time.localtime(record.created_at))
    tall = sampling.height and sampling.width and sampling.height > sampling.width
    opened = f'data-action="open" data-job="{job}" aria-label="Open {markup.text(record.title)}"'
    star = "Take from favourites" if record.favourite else "Add to favourites"
    buttons = (
        markup.button(star, "favourite", symbol="star", kind="icon on" if record.favourite else "icon", job=record.id)
        if record.state is JobState.SUCCEEDED
        else ""
    )
    if record.state is JobState.SUCCEEDED:
        source = markup.text(result.file_url(record, "video.mp4", token))
        picture = f'<video src="{source}#t=0.5" muted playsinline loop preload="metadata" data-hover-play></video>'
        state = ""
    else:
        picture = markup.icon("alert" if record.state is JobState.FAILED else "film")
        state = (
            f'<span class="pill {result.PILLS.get(record.state.value, "")}">{markup.text(record.state.value)}</span>'
        )
    buttons += markup.button("Use these settings", "settings", symbol="settings", kind="icon", job=record.id)
    if record.state is JobState.SUCCEEDED:
        saved = markup.text(f"h3-{record.id}.mp4")
        href = markup.text(result.file_url(record, "video.mp4", token))
        buttons += (
            f'<a class="btn icon" href="{href}" download="{saved}" aria-label="Download" title="Download">'
            f"{markup.icon('download')}</a>"
        )
    buttons += markup.button(
        "Delete", "delete", symbol="trash", kind="icon", job=record.id, confirm="Delete this job and its files?"
    )
    return (
        f'<article class="video-card"><button type="button" class="shot{" tall" if tall else ""}" {opened}>'
        f'{picture}{state}</button><div class="card-text"><b>{markup.text(record.title)}</b>'
        f'<span class="muted num">{when} · {sampling.width} × {sampling.height} · seed {sampling.seed}</span>'
        f"{whose}</div>"
        f'<div class="card-buttons">{buttons}</div></article>'
    )
