"""Shape, size and length of the video, with a live line of exactly what will be made.

It knows the fields; the arithmetic is `backend.limits`, asked through the backend's plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from backend import limits
from h3ui import markup
from h3ui.form import DURATION_STEP_S, RATIO_CHOICES, Size

if TYPE_CHECKING:
    from backend.api import Plan

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
    plan = gr.HTML("", apply_default_css=False, elem_id="plan")
    return CanvasPanel(ratio=ratio, size=size, custom=custom, width=width, height=height, duration=duration, plan=plan)


def plan_html(made: Plan) -> str:
    """Exactly what will be made, and what the backend wants to say about it."""
    told = (
        f"<b>{made.width} × {made.height}</b>",
        f"<b>{made.num_frames}</b> frames",
        f"<b>{made.duration_s:.2f} s</b> at 24 fps",
        f"<b>{made.num_forwards}</b> forwards",
    )
    warned = "".join(markup.note(notice, "warn") for notice in made.notices)
    shown = " · ".join(f"<span>{part}</span>" for part in told)
    return f'<div class="plan" aria-live="polite"><span class="muted">Will make</span> {shown}</div>{warned}'
