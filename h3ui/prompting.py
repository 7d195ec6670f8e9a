"""What happens around the prompt: advice under it, its outline for the editor, fixes, templates, request files.

It knows panel values and the pure rooms `context_ir` and `lint`; it submits nothing and asks no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend import limits
from backend.errors import InvalidRequest
from h3ui import form, lint, prompt_editor, request_file
from h3ui.board import Panels
from h3ui.context_ir.model import Target
from h3ui.form import Mode, PanelValues, Size, StoredValues
from h3ui.panels import prompt
from h3ui.uploads import Updates

if TYPE_CHECKING:
    from h3ui.handlers import Handlers


class Prompts:
    """Handlers of the prompt; they hold the panels and nothing of any tab."""

    def __init__(self, panels: Panels, handlers: Handlers) -> None:
        self.panels = panels
        self.handlers = handlers

    def look(self, data: Mapping[Any, Any]) -> Updates:
        """The text or its video changed: advice below it, and the outline the editor shows."""
        values = self.handlers.values(data)
        target = target_of(values)
        p = self.panels.prompt
        text = prompt_editor.in_field(values.prompt)
        hint = prompt.hint_html(text, lint.check(text, target), p.examples)
        return {p.hint: hint, p.editor: prompt_editor.told(text, target)}

    def open_file(self, text: str, data: Mapping[Any, Any]) -> Updates:
        """A request file was chosen: its prompt and settings into the panels; media it names are not fetched."""
        p = self.panels
        try:
            opened = request_file.read(text)
        except InvalidRequest as error:
            return {p.problems: prompt.refused_html(error.problems)}
        return self._filled(opened.values) | {p.problems: prompt.opened_html(opened.media)}

    def _filled(self, values: StoredValues) -> Updates:
        """The panels as a request file says; pictures, clips and sounds that are there stay."""
        p = self.panels
        updates: Updates = {
            p.prompt.text: values.prompt,
            p.mode: values.mode.value,
            p.keyframes.group: gr.update(visible=values.mode is Mode.FRAMES),
            p.references.group: gr.update(visible=values.mode is Mode.REFERENCES),
            p.canvas.size: values.size.value,
            p.canvas.custom: gr.update(visible=values.size is Size.CUSTOM),
            p.canvas.ratio: values.ratio,
            p.canvas.duration: values.duration_s,
            p.sampling.steps: values.steps,
            p.sampling.seed: values.seed,
        }
        if values.size is Size.CUSTOM:
            updates |= {p.canvas.width: values.width, p.canvas.height: values.height}
        return updates


def target_of(values: PanelValues) -> Target:
    """The video that `values` ask for, as a prompt has to know it; a length that cannot be counts as the shortest."""
    try:
        frames = limits.num_frames_for_duration(values.duration_s or 0.0)
    except InvalidRequest:
        frames = limits.MIN_FRAMES
    in_frames = values.mode is Mode.FRAMES
    return Target(
        num_frames=frames,
        first_frame=in_frames and values.first_frame is not None,
        last_frame=in_frames and values.last_frame is not None,
        references=values.mode is Mode.REFERENCES,
        tags=form.all_tags(values),
    )
