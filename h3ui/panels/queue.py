"""My jobs that run or wait: position, order, change, another seed, cancel; and the queue as a file.

It knows records; order is kept by the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import gradio as gr

from backend.jobs.records import JobRecord, JobState
from h3ui import keyed, markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """While a waiting job is being changed: the bar that says so above the submit button, and which job it is."""

    bar: gr.HTML
    job: gr.State


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePanel:
    """Components of the queue. `load` takes a saved queue, `told` says what came of saving or loading one."""

    rows: gr.HTML
    load: gr.UploadButton
    told: gr.HTML
    editing: Editing


def build_editing() -> Editing:
    """Create the bar in the current layout block."""
    bar = gr.HTML("", js_on_load=markup.CLICKS, apply_default_css=False, elem_id="editing", visible=False)
    return Editing(bar=bar, job=gr.State(None))


def build(editing: Editing) -> QueuePanel:
    """Create the components in the current layout block."""
    with gr.Column(elem_classes=["card", "queue-card"]):
        rows = keyed.html(rows_html(()), elem_id="queue")
        told = gr.HTML("", apply_default_css=False, elem_id="queue-told", visible=False)
        load = gr.UploadButton(
            "Load a saved queue", file_types=[".zip"], size="sm", elem_id="load-queue", elem_classes="quiet-button"
        )
    return QueuePanel(rows=rows, load=load, told=told, editing=editing)


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
    waiting = [record for record in records if record.state is JobState.QUEUED]
    buttons = ""
    if waiting:
        buttons += markup.button("Save", "save-queue", symbol="download", kind="small")
    if stand.may_pause:
        label, action = ("Let the queue go on", "resume") if stand.paused else ("Pause the queue", "pause")
        buttons += markup.button(label, action, kind="small")
    count = f'<span class="muted">{len(waiting)} waiting</span>' if records else ""
    head = f'<div class="card-head"><h3>Queue</h3>{count}<span class="head-buttons">{buttons}</span></div>'
    held = markup.note("The queue is paused: nothing more is started.", "warn") if stand.paused else ""
    limits = f'<p class="muted">{markup.text(stand.limits)}</p>' if stand.limits else ""
    if not records:
        body = (
            '<p class="muted">Nothing waits. You can add jobs while one runs; they go on when this tab is closed.</p>'
        )
        return f"{head}{held}{body}{limits}"
    rows = "".join(_row(record, shown, len(waiting), stand) for record in records)
    return f'{head}{held}<ol class="queue" data-sortable>{rows}</ol>{limits}'


def _row(record: JobRecord, shown: str | None, waiting: int, stand: Stand) -> str:
    running = record.state is JobState.RUNNING
    job = markup.text(record.id)
    place = (
        '<span class="pill live">running</span>' if running else f'<span class="pill">{record.position or "–"}</span>'
    )
    title = (
        f'<button type="button" class="plain" data-action="open" data-job="{job}" translate="no">'
        f"{markup.text(record.title)}</button>"
    )
    whose = markup.owner(record.owner, stand.viewer)
    again = markup.button("Another seed", "reseed", symbol="dice", kind="icon", job=record.id)
    cancel = markup.button("Cancel this job", "cancel", symbol="close", kind="icon", job=record.id)
    marks = ' class="current" aria-current="true"' if record.id == shown else ""
    if running or not record.position:
        buttons = f'<span class="row-buttons">{again}{cancel}</span>'
        return f'<li data-key="{job}"{marks}>{place}{title}{whose}{buttons}</li>'
    edit = markup.button("Change this job", "edit", symbol="pencil", kind="icon", job=record.id)
    moved = f'<button type="button" hidden data-action="reorder" data-job="{job}" data-moved></button>'
    buttons = f'<span class="row-buttons">{_moves(record, waiting)}{edit}{again}{cancel}</span>'
    grip = f'<span class="grip" title="Drag to another place">{markup.icon("grip")}</span>'
    place_at = f'data-position="{record.position}" draggable="true"'
    return f'<li data-key="{job}"{marks} {place_at}>{grip}{place}{title}{whose}{buttons}{moved}</li>'


def _moves(record: JobRecord, waiting: int) -> str:
    assert record.position is not None
    earlier = ("Move earlier", "up", -1) if record.position > 1 else None
    later = ("Move later", "down", 1) if record.position < waiting else None
    return "".join(
        markup.button(label, "reorder", symbol=symbol, kind="icon move", job=record.id, by=by)
        for label, symbol, by in filter(None, (earlier, later))
    )


def editing_html(record: JobRecord) -> str:
    """What is being changed, and the two ways out of it."""
    save = markup.button("Save the change", "save-edit", symbol="check", kind="primary", job=record.id)
    stop = markup.button("Leave it as it was", "stop-edit", job=record.id)
    where = f"Number {record.position} in the queue" if record.position else "A job of the queue"
    return (
        f'<div class="editing-bar"><div><b>You are changing a waiting job</b>'
        f'<span class="muted">{where}: <span translate="no">{markup.text(record.title)}</span></span></div>'
        f'<div class="editing-buttons">{save}{stop}</div></div>'
    )


def saved_html(path: Path, count: int) -> str:
    """The link to a saved queue, which the page follows by itself once."""
    address = "gradio_api/file=" + quote(str(path))
    link = markup.link("Download it again", address, symbol="download", download=path.name)
    words = (
        "1 waiting job was saved with its media."
        if count == 1
        else f"{count} waiting jobs were saved with their media."
    )
    return f'<div class="note ok" data-save-now="{markup.text(address)}" data-name="{markup.text(path.name)}">' + (
        f"{markup.icon('check')}<span>{words}</span>{link}</div>"
    )


def nothing_html() -> str:
    """There is nothing to save."""
    return markup.note("Nothing waits, so there is nothing to save.", "warn")


def loaded_html(count: int) -> str:
    """How many jobs a saved queue brought."""
    if not count:
        return markup.note("The file holds no job, so nothing was added.", "warn")
    words = "1 job was added to the queue." if count == 1 else f"{count} jobs were added to the queue."
    return f'<div class="note ok">{markup.icon("check")}<span>{words}</span></div>'
