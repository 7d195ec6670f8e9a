"""Every panel of the page in one place, so that handlers can name a component and page can wire it.

It knows which panels there are; each panel knows its own components.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from h3ui.panels import (
    canvas,
    gallery,
    hardware,
    keyframes,
    models,
    prompt,
    queue,
    references,
    result,
    sampling,
    system,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Every panel of the page, and what is kept for one tab."""

    prompt: prompt.PromptPanel
    mode: gr.Radio
    keyframes: keyframes.KeyframesPanel
    references: references.ReferencesPanel
    canvas: canvas.CanvasPanel
    sampling: sampling.SamplingPanel
    hardware: hardware.HardwarePanel
    result: result.ResultPanel
    queue: queue.QueuePanel
    gallery: gallery.GalleryPanel
    models: models.ModelsPanel
    system: system.SystemPanel
    problems: gr.HTML
    status: gr.HTML
    tabs: gr.Tabs
    session: gr.BrowserState
    last_job: gr.BrowserState
    kept: gr.BrowserState
    job: gr.State
    licence: gr.HTML
