"""The machine: which preset runs the model and why, the others with why not, an override, and memory as a picture.

It knows presets and reasons as the backend states them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from h3ui import markup, render
from h3ui.panels import memory, sampling

if TYPE_CHECKING:
    from backend.api import Choice, Forecast, GpuView, MachineView, PresetStatus, PresetView, QualityView

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePanel:
    """Components of the hardware panel; `memory` follows the canvas."""

    card: gr.Accordion
    override: gr.Dropdown
    table: gr.HTML
    memory: gr.HTML


def build(statuses: Sequence[PresetStatus], choice: Choice) -> HardwarePanel:
    """Create the components in the current layout block; the table is filled when the panel is opened."""
    title = f"Hardware: {choice.preset.title}"
    with gr.Accordion(title, open=False, elem_classes="card", elem_id="hardware-card") as card:
        return _inside(card, statuses, choice)


def _inside(card: gr.Accordion, statuses: Sequence[PresetStatus], choice: Choice) -> HardwarePanel:
    choices = [(f"Automatic: {choice.preset.title}", AUTO)]
    choices += [(status.preset.title, status.preset.name) for status in statuses if status.unavailable is None]
    override = gr.Dropdown(choices=choices, value=AUTO, label="Runs on", elem_id="preset", filterable=False)
    picture = gr.HTML(memory.forecast_html(None), apply_default_css=False, elem_id="memory")
    table = gr.HTML("", apply_default_css=False, elem_id="hardware")
    return HardwarePanel(card=card, override=override, table=table, memory=picture)


def memory_html(cost: Forecast | None) -> str:
    """Memory by rank of what the panels would make."""
    return memory.forecast_html(cost)


def table_html(view: MachineView, qualities: Mapping[str, QualityView], may_see: bool) -> str:
    """GPUs, the chosen preset with its reason, jobs at once, the other presets, and the qualities."""
    chosen = next((preset for preset in view.presets if preset.chosen), None)
    title = chosen.title if chosen is not None else view.chosen
    form = f'<p class="muted">{markup.text(chosen.form)}</p>' if chosen is not None and view.gpus else ""
    rows = "".join(_preset(preset) for preset in view.presets if not preset.chosen)
    return (
        f'<div class="chosen">{markup.icon("chip")}<div><b>{markup.text(title)}</b>'
        f'<p class="muted">{markup.text(view.reason)}</p>{form}</div></div>'
        f"{_gpus(view, may_see)}{_at_once(view, chosen)}"
        f"<details><summary>Other setups ({len(view.presets) - (chosen is not None)})</summary>"
        f'<ul class="presets">{rows}</ul></details>{_qualities(qualities)}'
    )


def _gpus(view: MachineView, may_see: bool) -> str:
    if not view.gpus:
        used = view.ram_total_gib - view.ram_free_gib
        return (
            '<div class="gauges">'
            + gauge("RAM", used, view.ram_total_gib)
            + f'</div><p class="muted">No GPU is used here ({markup.text(view.gpu_note)}), so clips are made on '
            f"{view.cpu_cores} CPU cores with the small built-in model. MiniMax-H3 itself needs a GPU.</p>"
        )
    return f'<div class="gauges">{"".join(gpu_html(gpu, may_see) for gpu in view.gpus)}</div>'


def gpu_html(gpu: GpuView, may_see: bool) -> str:
    """One card: name, memory in use, how it is linked, and who else is on it."""
    facts = [gpu.link]
    if gpu.compute_capability:
        facts.append(f"compute {gpu.compute_capability}")
    if gpu.ours:
        facts.append("runs our rank")
    if gpu.others and may_see:
        held = sum(user.memory_gib or 0.0 for user in gpu.others)
        programs = "1 other program" if len(gpu.others) == 1 else f"{len(gpu.others)} other programs"
        facts.append(f"{programs} on it" + (f" with {held:.1f} GiB" if held else ""))
    return gauge(f"GPU {gpu.index}", gpu.used_gib, gpu.total_gib, gpu.name, " · ".join(facts))


def gauge(label: str, used: float, total: float, name: str = "", about: str = "") -> str:
    """One amount in use against what there is, in GiB."""
    share = 100 * used / total if total else 0.0
    kind = " full" if share >= 92 else ""
    named = f' <span class="muted" translate="no">{markup.text(name)}</span>' if name else ""
    below = f'<p class="muted">{markup.text(about)}</p>' if about else ""
    return (
        f'<div class="gauge" data-key="{markup.text(label)}"><div class="gauge-head"><span><b>{markup.text(label)}</b>'
        f'{named}</span><span class="num">{used:.1f} of {total:.1f} GiB</span></div>'
        f'<div class="bar thin{kind}" role="meter" aria-label="{markup.text(label)} in use" aria-valuemin="0" '
        f'aria-valuemax="{total:.1f}" aria-valuenow="{used:.1f}"><span style="width:{min(share, 100):.1f}%">'
        "</span></div>"
        f"{below}</div>"
    )


def _at_once(view: MachineView, chosen: PresetView | None) -> str:
    """One job faster or more jobs at once; fleets are made when the program starts, so the way there is its command."""
    if chosen is None or len(view.gpus) < 2:
        return ""
    many = view.fleets > 1
    now = f"{view.fleets} jobs run at once" if many else "all GPUs work on one job"
    command = "python app.py --fleets 1" if many else "python app.py --fleets 0"
    other = "one job on all GPUs" if many else "as many jobs at once as fit, each on GPUs of its own"
    return (
        f'<div class="at-once" role="group" aria-label="Jobs at once"><b>One job faster, or more jobs at once</b>'
        f'<p class="muted">Now {now}. For {other}, start the program with:</p>{copyable(command)}</div>'
    )


def copyable(text: str) -> str:
    """One line of text with a button that copies it."""
    return (
        f'<div class="copy-line"><code id="fleets-command" translate="no">{markup.text(text)}</code>'
        f'<button type="button" class="btn icon" data-copy="#fleets-command" aria-label="Copy" title="Copy">'
        f"{markup.icon('copy')}</button></div>"
    )


def _preset(preset: PresetView) -> str:
    if preset.fits:
        pill = '<span class="pill">available</span>'
        line = f"{preset.form}; at most {preset.peak_gib:.1f} GiB a GPU" if preset.device == "cuda" else preset.form
        line += f", about {render.duration(preset.total_s)} for {preset.clip}" if preset.total_s else ""
        more = ""
    else:
        pill, line = '<span class="pill off">not here</span>', preset.reason or ""
        more = f'<p class="change">Would run with {markup.text(preset.change)}.</p>' if preset.change else ""
    return (
        f'<li><div><b>{markup.text(preset.title)}</b> <code translate="no">{markup.text(preset.name)}</code>'
        f'<p class="muted">{markup.text(line)}</p>{more}</div>{pill}</li>'
    )


def _qualities(qualities: Mapping[str, QualityView]) -> str:
    rows = "".join(
        f"<li><div><b>{markup.text(item.preset.title)}</b>{sampling.about_html(item)}</div>{_nearness(item)}</li>"
        for item in qualities.values()
    )
    title = "Qualities, and how near each is to the model"
    return f'<details><summary>{title}</summary><ul class="presets">{rows}</ul></details>'


def _nearness(item: QualityView) -> str:
    if item.unavailable is not None:
        return '<span class="pill off">not here</span>'
    if item.same or item.preset.title == item.finest:
        return '<span class="pill ok">exact</span>'
    return '<span class="pill">approximate</span>'
