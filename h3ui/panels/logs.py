"""The last lines of a rank's log, with a copy button.

It knows text; ranks write their own files.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

PROGRAM = -1  # stands for the log of the program itself


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsPanel:
    """Components of the log panel."""

    rank: gr.Dropdown
    refresh: gr.Button
    tail: gr.Textbox


def build(world_size: int) -> LogsPanel:
    """Create the components in the current layout block."""
    with gr.Row(elem_classes="toolbar"):
        rank = gr.Dropdown(
            choices=[("Program", PROGRAM)] + [(f"Rank {number}", number) for number in range(world_size)],
            value=0,
            label="Log of",
            filterable=False,
            elem_id="log-rank",
            min_width=160,
        )
        refresh = gr.Button("Refresh", elem_id="log-refresh", min_width=120, scale=0)
    tail = gr.Textbox(
        label="Last lines",
        lines=18,
        max_lines=18,
        interactive=False,
        buttons=["copy"],
        elem_id="log-tail",
        elem_classes="log-tail",
        placeholder="Nothing has been logged yet. A worker writes here as soon as the first job starts.",
    )
    return LogsPanel(rank=rank, refresh=refresh, tail=tail)
