"""One job in the light: its progress while it runs, its video when it is done, its reason when it failed.

It knows a JobView and a JobRecord; following the events is `h3ui.watch`.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import gradio as gr

from backend.jobs.records import JobRecord, JobState
from backend.types import FPS, PREVIEW_NAME, STREAM_NAME
from h3ui import markup, render
from h3ui.command import command_line
from h3ui.panels.sampling import DRAFT
from h3ui.render import JobView

STAGE = '<div class="screen"></div><p class="caption num"></p>'
CHART_WIDTH, CHART_HEIGHT, CHART_GAP = 600, 46, 2
FIRST_MARK = ' class="first"'
FIRST_STEP_SHOWN = 2.0  # a first step longer than this many usual ones is cut, or the others would be flat
PILLS = {"succeeded": "ok", "failed": "bad", "running": "live"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPanel:
    """Components of the result: what is going on, what can be seen of it, and the finished video.

    `stage` is filled in the browser (assets/scripts/preview.js) from what `live` says of a running job: an element that
    is never drawn anew can play on while figures change.
    """

    live: gr.HTML
    stage: gr.HTML
    player: gr.HTML


def build(notice: str) -> ResultPanel:
    """Create the components in the current layout block."""
    player = gr.HTML("", js_on_load=markup.CLICKS, apply_default_css=False, elem_id="player", elem_classes="card")
    stage = gr.HTML(STAGE, apply_default_css=False, elem_id="stage", elem_classes="card")
    live = gr.HTML(
        empty_html(notice), js_on_load=markup.CLICKS, apply_default_css=False, elem_id="live", elem_classes="card"
    )
    return ResultPanel(live=live, stage=stage, player=player)


def empty_html(notice: str) -> str:
    """What to do when no job is shown, and what the model wants people to know of it."""
    waiting = markup.empty("Your video appears here", "Write a prompt, then press Generate.")
    return waiting + (markup.note(notice, "warn") if notice else "")


def live_html(record: JobRecord, view: JobView, now: float, decode_s: float | None = None, token: str = "") -> str:
    """Progress of a job, or how it ended; with the `token` of its files also what can be seen of it so far."""
    began = view.started_at or record.started_at
    ended = view.finished_at or record.finished_at
    elapsed = f"{render.duration(max((ended or now) - began, 0.0))}" if began else ""
    head = (
        f'<div class="live-head"><div><span class="pill {PILLS.get(view.state, "")}">{markup.text(view.state)}</span>'
        f'<h2 aria-live="polite">{markup.text(render.headline(view))}</h2></div>'
        f'<span class="muted num">{elapsed}{_heartbeat(view, now)}</span></div>'
    )
    title = f'<p class="job-title" translate="no">{markup.text(record.title)}</p>'
    body = "" if view.state == "succeeded" else _progress(view, now, decode_s)
    notices = "".join(markup.note(message, "warn") for message in view.notices)
    rest = f"{_timeline(view)}{_chart(view)}{notices}{_ending(record, view)}{_actions(record, view)}"
    seen = _seen(record, view, token)
    return (
        f'<div data-shown="{markup.text(record.id)}" data-state="{markup.text(view.state)}">'
        f"{head}{title}{seen}{body}{rest}</div>"
    )


def _seen(record: JobRecord, view: JobView, token: str) -> str:
    """What can be seen of a running job, for the stage: the newest picture, and the video that grows."""
    if view.state != "running" or not token or not (view.preview_step or view.streaming):
        return ""
    told, addresses = "Playing what is decoded so far", ""
    if not view.streaming:
        told = f"Preview after step {view.preview_step} of {view.steps}"
    if view.preview_step:
        picture = f"{file_url(record, PREVIEW_NAME, token)}&step={view.preview_step}"
        addresses += f' data-picture="{markup.text(picture)}"'
    if view.streaming:
        addresses += f' data-stream="{markup.text(file_url(record, STREAM_NAME, token))}"'
    sampling = record.request.sampling
    return f'<p class="seen" hidden data-shape="{sampling.width}/{sampling.height}"{addresses}>{told}</p>'


def _progress(view: JobView, now: float, decode_s: float | None) -> str:
    if view.state not in ("running", "queued"):
        return ""
    percent = render.fraction(view, decode_s) * 100
    unsure = " unsure" if view.state == "running" and percent == 0 else ""
    told = " · ".join(markup.text(fact) for fact in render.facts(view, now, decode_s))
    return (
        f'<div class="bar{unsure}" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent:.0f}"><span style="width:{percent:.1f}%"></span></div>'
        f'<p class="facts num">{told or "&nbsp;"}</p>'
    )


def _timeline(view: JobView) -> str:
    rows = []
    for row in render.timeline(view):
        took = render.duration(row.seconds) if row.seconds is not None else ""
        mark = markup.icon("check") if row.state == "done" else markup.icon("close") if row.state == "stopped" else ""
        rows.append(
            f'<li class="{row.state}"><span class="dot">{mark}</span><span>{row.label}</span>'
            f'<span class="num muted">{took}</span></li>'
        )
    return f'<ol class="timeline" aria-label="Stages">{"".join(rows)}</ol>'


def _heartbeat(view: JobView, now: float) -> str:
    words = render.sign_of_life(view, now)
    if not words:
        return ""
    kind = "" if words.startswith("alive") else " silent"
    return f'<span class="beat{kind}">{markup.text(words)}</span>'


def _chart(view: JobView) -> str:
    """Seconds of each step as bars over all steps, the first one marked: it warms up and tells nothing of the pace."""
    if len(view.step_seconds) < 2 or view.state == "succeeded":
        return ""
    first, later = view.step_seconds[0], view.step_seconds[1:]
    usual = max(later) or 1.0
    tallest = max(usual * FIRST_STEP_SHOWN, 1e-6) if first > usual * FIRST_STEP_SHOWN else max(usual, first)
    across = CHART_WIDTH / max(view.steps, len(view.step_seconds), 1)
    bars = "".join(
        f'<rect{FIRST_MARK if index == 0 else ""} x="{index * across:.2f}" '
        f'y="{CHART_HEIGHT - height:.1f}" width="{max(across - CHART_GAP, 0.6):.2f}" height="{height:.1f}" rx="1.5"/>'
        for index, seconds in enumerate(view.step_seconds)
        for height in (max(min(seconds / tallest, 1.0) * CHART_HEIGHT, 2.0),)
    )
    words = f"Seconds of each step: the first took {first:.2f}, later ones at most {usual:.2f}"
    return (
        f'<figure class="step-chart"><svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{words}">{bars}</svg><figcaption class="muted num">'
        f'<span><i class="first"></i>first step {first:.2f} s</span><span>later at most {usual:.2f} s</span>'
        f"<span>{view.steps} steps</span></figcaption></figure>"
    )


def _ending(record: JobRecord, view: JobView) -> str:
    reason = view.reason or record.error or ""
    if view.state == "failed":
        tail = ""
        if view.log_tail:
            tail = (
                "<details><summary>The worker's own words</summary>"
                f'<pre class="log" tabindex="0">{markup.text(view.log_tail)}</pre></details>'
            )
        return markup.problems([reason], title="What went wrong") + tail
    if view.state in ("cancelled", "interrupted") and reason:
        return markup.note(reason, "warn")
    return ""


def _actions(record: JobRecord, view: JobView) -> str:
    if view.state in ("queued", "running"):
        return f'<div class="actions-row">{markup.button("Cancel", "cancel", symbol="close", job=record.id)}</div>'
    if view.state == "succeeded":
        return ""
    again = markup.button("Run again", "retry", symbol="retry", kind="primary", job=record.id)
    reuse = markup.button("Use these settings", "settings", symbol="settings", job=record.id)
    return f'<div class="actions-row">{again}{reuse}</div>'


def player_html(record: JobRecord, view: JobView, token: str) -> str:
    """The finished video with its report line and what can be done with it; empty before that."""
    if record.state is not JobState.SUCCEEDED:
        return ""
    sampling = record.request.sampling
    source = file_url(record, "video.mp4", token)
    shape = f"aspect-ratio:{sampling.width}/{sampling.height}" if sampling.width and sampling.height else ""
    name = f"h3-{record.id}.mp4"
    buttons = (
        markup.link("Download", source, symbol="download", download=name)
        + (markup.button("Make the final", "final", symbol="plus", job=record.id) if record.quality == DRAFT else "")
        + markup.button("Use these settings", "settings", symbol="settings", job=record.id)
        + markup.button("Another seed", "reseed", symbol="dice", job=record.id)
        + markup.link("Details", file_url(record, "video.json", token), symbol="info", download=f"h3-{record.id}.json")
    )
    return (
        f'<video id="result-video" translate="no" controls playsinline loop preload="auto" src="{markup.text(source)}" '
        f'style="{shape}" aria-label="{markup.text(record.title)}"></video>'
        f'<p class="report num">{report_line(record, view)}</p>'
        f'<div class="actions-row">{buttons}</div>{_script(record)}'
    )


def _script(record: JobRecord) -> str:
    copy = f'<button type="button" class="btn" data-copy="#command">{markup.icon("copy")}<span>Copy</span></button>'
    return (
        "<details><summary>The same on the command line</summary>"
        f'<pre class="log" id="command" tabindex="0">{markup.text(command_line(record))}</pre>{copy}</details>'
    )


def file_url(record: JobRecord, name: str, token: str) -> str:
    """Where the program serves a file of a job; relative, so it works behind a path prefix."""
    return f"files/{record.id}/{name}?token={token}"


def report_line(record: JobRecord, view: JobView | None = None) -> str:
    """Size, length, seed, forwards, time and preset of a job in one line of HTML that breaks between facts only."""
    sampling = record.request.sampling
    told = [
        f"{sampling.width} × {sampling.height}",
        f"{sampling.num_frames} frames, {sampling.num_frames / FPS:.2f} s",
        f"seed {sampling.seed}",
        f"{sampling.num_inference_steps - 1} forwards",
    ]
    began = (view.started_at if view else None) or record.started_at
    ended = (view.finished_at if view else None) or record.finished_at
    if began and ended:
        told.append(f"made in {render.duration(ended - began)}")
    told.append(record.preset)
    return " · ".join(f'<span class="fact">{markup.text(part)}</span>' for part in told)


def cleared_html(notice: str) -> str:
    """The empty state after a job was in the light; it also takes the job out of the address."""
    return f'<div data-shown="">{empty_html(notice)}</div>'


def missing_html(reason: str) -> str:
    """When the job of a link is not there."""
    return markup.empty("This job is not here", reason, "info")


def volume_of(record: JobRecord) -> int:
    """Pixels of the whole video, 0 while the canvas is unknown."""
    sampling = record.request.sampling
    return (sampling.width or 0) * (sampling.height or 0) * sampling.num_frames


def snapshot(record: JobRecord, view: JobView) -> JobView:
    """`view` with the state of the record where no event told it yet (a job just submitted)."""
    if view.seq or view.terminal:
        return view
    return dataclasses.replace(view, state=record.state.value, position=record.position)


def now() -> float:
    """Unix seconds."""
    return time.time()
