"""My jobs that run or wait: position, open, cancel.

It knows records; order is kept by the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend.jobs.records import JobRecord, JobState
from h3ui import markup


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePanel:
    """Components of the queue."""

    rows: gr.HTML


def build() -> QueuePanel:
    """Create the components in the current layout block."""
    rows = gr.HTML("", js_on_load=markup.CLICKS, apply_default_css=False, elem_id="queue", elem_classes="card")
    return QueuePanel(rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """How the queue stands for whoever looks: `viewer` owns the jobs that need no name."""

    viewer: str = ""
    paused: bool = False
    may_pause: bool = False
    limits: str = ""


def rows_html(records: Sequence[JobRecord], shown: str | None = None, stand: Stand | None = None) -> str:
    """The list, or how to make it grow."""
    stand = stand or Stand()
    pause = ""
    if stand.may_pause:
        label, action = ("Let the queue go on", "resume") if stand.paused else ("Pause the queue", "pause")
        pause = markup.button(label, action)
    held = markup.note("The queue is paused: nothing more is started.", "warn") if stand.paused else ""
    limits = f'<p class="muted">{markup.text(stand.limits)}</p>' if stand.limits else ""
    if not records:
        return (
            f'<div class="card-head"><h3>Queue</h3>{pause}</div>{held}<p class="muted">Nothing waits. '
            f"You can add jobs while one runs; they go on when this tab is closed.</p>{limits}"
        )
    waiting = sum(record.state is JobState.QUEUED for record in records)
    rows = "".join(
        _row(record, record.id == shown, waiting, markup.owner(record.owner, stand.viewer)) for record in records
    )
    head = f'<div class="card-head"><h3>Queue</h3><span class="muted">{waiting} waiting</span>{pause}</div>{held}'
    return f'{head}<ol class="queue">{rows}</ol>{limits}'


def _row(record: JobRecord, shown: bool, waiting: int, whose: str) -> str:
    running = record.state is JobState.RUNNING
    place = (
        '<span class="pill live">running</span>' if running else f'<span class="pill">{record.position or "–"}</span>'
    )
    title = (
        f'<button type="button" class="plain" data-action="open" data-job="{markup.text(record.id)}">'
        f"{markup.text(record.title)}</button>"
    )
    moves = ""
    if not running and record.position:
        earlier = ("Move earlier", "up", record.position - 1) if record.position > 1 else None
        later = ("Move later", "down", record.position + 1) if record.position < waiting else None
        moves = "".join(
            markup.button(label, "reorder", symbol=symbol, kind="icon", job=record.id, position=place_to)
            for label, symbol, place_to in filter(None, (earlier, later))
        )
    cancel = markup.button("Cancel this job", "cancel", symbol="close", kind="icon", job=record.id)
    current = ' class="current" aria-current="true"' if shown else ""
    return f'<li{current}>{place}{title}{whose}<span class="row-buttons">{moves}{cancel}</span></li>'
