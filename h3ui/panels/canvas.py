"""Shape, size and length of the video, with a live line of exactly what will be made.

It knows the fields; the arithmetic is `backend.limits`, asked through the backend's plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from backend import limits
from h3ui import markup, render
from h3ui.form import DURATION_STEP_S, RATIO_CHOICES, Size

if TYPE_CHECKING:
    from backend.api import Forecast, Plan

SIZE_CHOICES = (("Automatic", Size.AUTO.value), ("Custom", Size.CUSTOM.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasPanel:
    """Components of the canvas; `custom` holds the two numbers and is shown for a custom size."""

    ratio: gr.Radio
    size: gr.Radio
    custom: gr.Row
    width: gr.Number
    height: gr.Number
    duration: gr.Number
    plan: gr.HTML


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOption:
    """A canvas (px) of the chosen shape that can be had by a click, and what it costs."""

    name: str
    width: int
    height: int
    cost: Forecast
    chosen: bool


def build() -> CanvasPanel:
    """Create the components in the current layout block."""
    ratio = gr.Radio(
        choices=[("Auto", "auto"), *((name, name) for name in RATIO_CHOICES[1:])],
        value="auto",
        label="Shape",
        elem_id="ratio",
        elem_classes="segmented shapes",
    )
    with gr.Row(elem_classes="fields"):
        size = gr.Radio(
            choices=SIZE_CHOICES, value=Size.AUTO.value, label="Size", elem_id="size", elem_classes="segmented"
        )
        # A number without bounds of its own: Gradio would clamp or refuse in silence what `limits` answers in words.
        duration = gr.Number(
            label="Duration in seconds",
            info=f"{limits.MIN_DURATION_S:g} to {limits.MAX_DURATION_S:g}",
            value=5,
            step=DURATION_STEP_S,
            elem_id="duration",
            min_width=120,
        )
    with gr.Row(visible=False, elem_classes="fields") as custom:
        width = gr.Number(label="Width in pixels", value=1344, precision=0, elem_id="width", min_width=120)
        height = gr.Number(label="Height in pixels", value=768, precision=0, elem_id="height", min_width=120)
    plan = gr.HTML("", js_on_load=markup.CLICKS, apply_default_css=False, elem_id="plan")
    return CanvasPanel(ratio=ratio, size=size, custom=custom, width=width, height=height, duration=duration, plan=plan)


def sizes_html(options: Sequence[SizeOption]) -> str:
    """Canvases of the chosen shape to pick from, with pixels, tokens and time."""
    buttons = "".join(
        f'<button type="button" data-action="size" data-width="{option.width}" data-height="{option.height}" '
        f'aria-pressed="{"true" if option.chosen else "false"}"><span>{option.name}</span>'
        f'<b>{option.width} × {option.height}</b><span class="muted">{_tokens(option.cost)}</span>'
        f'<span class="muted">{_time(option.cost)}</span></button>'
        for option in options
    )
    return f'<div class="sizes" role="group" aria-label="Sizes of this shape">{buttons}</div>' if buttons else ""


def plan_html(made: Plan, asked_s: float | None = None, cost: Forecast | None = None) -> str:
    """Exactly what will be made, what a typed duration became, what it costs, and what the backend wants to say."""
    told = [
        f"<b>{made.width} × {made.height}</b>",
        f"<b>{made.num_frames}</b> frames",
        f"<b>{made.duration_s:.2f} s</b> at 24 fps",
        f"<b>{made.num_forwards}</b> forwards",
    ]
    costs = []
    if asked_s is not None and abs(asked_s - made.duration_s) >= 0.005:
        costs.append(f"{asked_s:g} s becomes {made.num_frames} frames, {made.duration_s:.3f} s")
    if cost is not None:
        costs += [f"{_tokens(cost)} a forward", _time(cost, " in all")]
    warned = "".join(markup.note(notice, "warn") for notice in made.notices)
    shown = " · ".join(f"<span>{part}</span>" for part in told)
    below = f'<div class="costs">{"".join(f"<span>{part}</span>" for part in costs)}</div>' if costs else ""
    return f'<div class="plan" aria-live="polite"><span class="muted">Will make</span> {shown}{below}</div>{warned}'


def _tokens(cost: Forecast) -> str:
    return f"{cost.shape.rows:,} tokens"


def _time(cost: Forecast, of: str = "") -> str:
    return "time not known yet" if cost.total_s is None else f"about {render.duration(cost.total_s)}{of}"
