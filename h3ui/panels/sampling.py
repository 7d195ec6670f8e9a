"""How the video is sampled: a quality to start from, steps, and the seed.

It knows the fields; qualities come from the backend's presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from backend import limits
from h3ui import markup

if TYPE_CHECKING:
    from backend.api import QualityView

DEFAULT_QUALITY = "standard"
NO_ADAPTER = ("None", "")
DRAFT = "draft"  # presets/quality/draft.toml


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPanel:
    """Components of sampling; `draft` submits a draft of what is on the page, and stands beside the button Generate."""

    quality: gr.Radio
    lent: gr.State  # name of the adapter that Turbo put on, "" for none
    about: gr.HTML
    steps: gr.Number
    seed: gr.Textbox
    adapters: gr.Column
    adapter: gr.Dropdown
    strength: gr.Number
    adapter_about: gr.HTML
    dice: gr.Button
    random: gr.Button
    draft: gr.Button


def build(qualities: Mapping[str, QualityView], steps_at_first: int) -> SamplingPanel:
    """Create the components in the current layout block; `steps_at_first` is what suits the model."""
    chosen = DEFAULT_QUALITY if DEFAULT_QUALITY in qualities else next(iter(qualities))
    quality = gr.Radio(
        choices=offered(qualities),
        value=chosen,
        label="Quality",
        elem_id="quality",
        elem_classes="segmented",
    )
    about = gr.HTML(about_html(qualities[chosen]), apply_default_css=False, elem_id="quality-about")
    with gr.Row(elem_classes="fields"):
        steps = gr.Number(
            label="Steps",
            info=f"{limits.MIN_STEPS} to {limits.MAX_STEPS}; one forward fewer is run.",
            value=steps_at_first,
            step=1,
            elem_id="steps",
            min_width=120,
        )
        with gr.Column(min_width=200, elem_classes="seed"):
            seed = gr.Textbox(label="Seed", placeholder="random", max_lines=1, elem_id="seed")
            with gr.Row(elem_classes="seed-buttons"):
                dice = gr.Button("New number", size="sm", elem_id="dice", min_width=60)
                random = gr.Button("Random", size="sm", elem_id="random-seed", min_width=60)
    with gr.Column(visible=False, elem_id="adapter-choice", elem_classes="adapter-choice") as adapters:
        with gr.Row(elem_classes="fields"):
            adapter = gr.Dropdown(
                choices=[NO_ADAPTER], value="", label="Adapter", elem_id="adapter", filterable=False, min_width=200
            )
            strength = gr.Number(
                label="Strength",
                info="1 is as it was made.",
                value=1.0,
                step=0.1,
                elem_id="adapter-strength",
                min_width=120,
            )
        adapter_about = gr.HTML("", apply_default_css=False, elem_id="adapter-about")
    draft = gr.Button(
        "Draft first", size="lg", elem_id="draft-first", min_width=120, visible=DRAFT in qualities, render=False
    )
    return SamplingPanel(
        quality=quality,
        lent=gr.State(""),
        about=about,
        steps=steps,
        seed=seed,
        adapters=adapters,
        adapter=adapter,
        strength=strength,
        adapter_about=adapter_about,
        dice=dice,
        random=random,
        draft=draft,
    )


def offered(qualities: Mapping[str, QualityView]) -> list[tuple[str, str]]:
    """(title, name) of what may be chosen; Turbo is not, where its adapter is missing."""
    return [(view.preset.title, name) for name, view in qualities.items() if view.unavailable is None]


def about_html(view: QualityView) -> str:
    """What a quality is, how many steps it is on the model that would run, and how far from the finest quality."""
    missing = view.unavailable
    told = (view.preset.description, adapter_told(view), steps_told(view.steps), distance_told(view))
    if missing is not None:
        told = (view.preset.description, f"Not here: it {missing.rule}.", f"You can {missing.way_out}.", "")
    return f'<p class="muted about">{" ".join(f"<span>{markup.text(words)}</span>" for words in told if words)}</p>'


def distance_told(view: QualityView) -> str:
    """The measured distance with its basis; empty for the finest quality itself."""
    found = view.distance
    if view.preset.title == view.finest:
        return ""
    if view.same:
        return f"On this model it changes nothing: the same clip as {view.finest}."
    if found is None:
        return f"Its distance to {view.finest} was not measured."
    near = "Identical" if found.psnr_db is None else f"{found.psnr_db:.1f} dB"
    return f"{near} to {view.finest} at {found.finest_points} sigma points, {found.model}, {found.clips} clips."


def adapter_told(view: QualityView) -> str:
    """Which adapter a quality puts on; empty for those without."""
    return "" if view.adapter is None else f"{view.preset.title} uses the adapter {view.adapter.title}."


def steps_told(steps: int) -> str:
    """Sigma points in words."""
    return f"Here {steps} sigma points, {steps - 1} forwards."
