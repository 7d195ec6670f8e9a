"""The machine: which preset runs the model and why, the others with why not, and an override.

It knows presets and reasons as the backend states them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from h3ui import markup

if TYPE_CHECKING:
    from backend.api import Choice, PresetStatus

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePanel:
    """Components of the hardware panel."""

    override: gr.Dropdown
    table: gr.HTML


def build(statuses: Sequence[PresetStatus], choice: Choice) -> HardwarePanel:
    """Create the components in the current layout block."""
    choices = [(f"Automatic: {choice.preset.title}", AUTO)]
    choices += [(status.preset.title, status.preset.name) for status in statuses if status.unavailable is None]
    override = gr.Dropdown(choices=choices, value=AUTO, label="Runs on", elem_id="preset", filterable=False)
    table = gr.HTML(table_html(statuses, choice), apply_default_css=False, elem_id="hardware")
    return HardwarePanel(override=override, table=table)


def table_html(statuses: Sequence[PresetStatus], choice: Choice) -> str:
    """The chosen preset with its reason, then every preset with its state."""
    rows = "".join(_row(status, status.preset.name == choice.preset.name) for status in statuses)
    return (
        f'<div class="chosen">{markup.icon("chip")}<div><b>{markup.text(choice.preset.title)}</b>'
        f'<p class="muted">{markup.text(choice.reason)}</p></div></div><ul class="presets">{rows}</ul>'
    )


def _row(status: PresetStatus, chosen: bool) -> str:
    preset = status.preset
    if status.unavailable:
        pill, line = '<span class="pill off">not here</span>', status.unavailable
    else:
        pill = '<span class="pill ok">chosen</span>' if chosen else '<span class="pill">available</span>'
        line = preset.description
    return (
        f"<li><div><b>{markup.text(preset.title)}</b> <code>{markup.text(preset.name)}</code>"
        f'<p class="muted">{markup.text(line)}</p></div>{pill}</li>'
    )
