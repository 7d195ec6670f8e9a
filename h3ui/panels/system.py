"""The system: GPUs, memory and disk as they are now, every process of the engine, and a report to send along.

It knows figures as the backend states them; logs are `logs`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from h3ui import keyed, markup
from h3ui.panels import hardware, logs
from h3ui.panels.logs import LogsPanel

if TYPE_CHECKING:
    from backend.api import MachineView, RankView

LIVE_S = 2.0
PUBLIC = "Only an administrator sees the machine and its logs here."


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPanel:
    """Components of the system tab; `timer` runs while it is open."""

    live: gr.HTML
    logs: LogsPanel
    make_report: gr.Button
    report: gr.Textbox
    timer: gr.Timer


def build(world_size: int) -> SystemPanel:
    """Create the components in the current layout block."""
    live = keyed.html("", elem_id="system")
    with gr.Column(elem_classes="card"):
        log = logs.build(world_size)
    with gr.Column(elem_classes="card"):
        gr.HTML(
            '<div class="card-head"><h3>Report</h3></div><p class="muted">Everything somebody needs who helps you with '
            "this machine: GPUs, presets with their reasons, models, versions. No prompts, no names of your files.</p>",
            apply_default_css=False,
        )
        make = gr.Button("Make the report", elem_id="make-report", size="sm", min_width=160)
        report = gr.Textbox(
            label="Report",
            lines=14,
            max_lines=14,
            interactive=False,
            visible=False,
            buttons=["copy"],
            elem_id="report",
            elem_classes="log-tail",
        )
    return SystemPanel(live=live, logs=log, make_report=make, report=report, timer=gr.Timer(LIVE_S, active=False))


def live_html(view: MachineView) -> str:
    """The machine at this moment."""
    used = view.ram_total_gib - view.ram_free_gib
    gpus = "".join(hardware.gpu_html(gpu, may_see=True) for gpu in view.gpus)
    if not view.gpus:
        gpus = f'<p class="muted wide">No GPU: {markup.text(view.gpu_note)}.</p>'
    driver = f" · driver {markup.text(view.driver)}" if view.driver else ""
    return (
        f'<section class="card"><div class="card-head"><h3>Machine</h3><span class="muted">{view.cpu_cores} CPU cores'
        f'{driver} · <span class="num">{view.disk_free_gib:.1f} GiB</span> of disk free</span></div>'
        f'<div class="gauges">{gpus}{hardware.gauge("RAM", used, view.ram_total_gib)}</div></section>'
        f'<section class="card"><div class="card-head"><h3>Processes</h3>'
        f'<span class="muted">{_fleets(view.fleets)}</span></div>{_ranks(view)}</section>'
    )


def _fleets(count: int) -> str:
    return "one job at a time" if count == 1 else f"{count} jobs at once"


def _ranks(view: MachineView) -> str:
    if not view.ranks:
        return markup.empty("No engine is up", "It starts with the next job and stays warm for the one after.", "chip")
    rows = "".join(_rank(rank, view.fleets) for rank in view.ranks)
    return (
        '<div class="table-room"><table class="ranks"><thead><tr><th>Rank</th><th>State</th><th>Stage</th><th>GPU</th>'
        f"<th>GPU memory</th><th>RAM</th><th>Process</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _rank(rank: RankView, fleets: int) -> str:
    kind = {"ready": "ok", "busy": "live", "defunct": "bad"}.get(rank.state, "")
    number = f"{rank.fleet}.{rank.rank}" if fleets > 1 else str(rank.rank)
    card = f"{rank.gpu_index} · {rank.gpu_name}" if rank.gpu_index is not None else "CPU"
    memory = "–" if rank.gpu_used_gib is None else f"{rank.gpu_used_gib:.1f} of {rank.gpu_total_gib:.0f} GiB"
    stage = str(rank.stage) if rank.stage is not None else "–"
    return (
        f'<tr data-key="{rank.fleet}-{rank.rank}"><td class="num">{number}</td>'
        f'<td><span class="pill {kind}">{markup.text(rank.state)}</span></td><td>{markup.text(stage)}</td>'
        f'<td translate="no">{markup.text(card)}</td><td class="num">{memory}</td>'
        f'<td class="num">{rank.rss_gib:.2f} GiB</td><td class="num">{rank.pid}</td></tr>'
    )
