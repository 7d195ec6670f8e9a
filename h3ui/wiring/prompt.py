"""Events of the prompt: advice and outline follow the text, examples and request files fill it.

It knows wiring; what a handler does is `h3ui.prompting`, what the editor does by itself `assets/scripts/prompt.js`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from h3ui.panels.writer import WriterPanel
from h3ui.prompting import Prompts
from h3ui.uploads import clicked
from h3ui.wiring import QUIET, changed
from h3ui.writing import Writing

if TYPE_CHECKING:
    from h3ui.board import Panels
    from h3ui.handlers import Handlers

# In the browser, so that Undo brings back what was there.
TAKE_OVER = "() => window.h3Prompt.replace(document.querySelector('[data-ir-draft]').textContent, 'Prompt taken over.')"


def wire(p: Panels, handlers: Handlers, fields: set[Any], filled: set[Any]) -> None:
    """`fields` are what a request is made of, `filled` what a stored one fills."""
    prompts = Prompts(p, handlers)
    media: list[Any] = [p.references.items, *(slot.item for slot in p.keyframes.slots.values())]
    changed(
        (p.prompt.text, p.mode, p.canvas.duration, *media),
        prompts.look,
        inputs=fields,
        outputs=[p.prompt.hint, p.prompt.editor],
    )

    def example(event: gr.EventData) -> str:
        index = int(clicked(event).get("index", 0))
        return p.prompt.examples[index % len(p.prompt.examples)][1]

    p.prompt.hint.click(example, outputs=p.prompt.text, **QUIET)

    def open_file(event: gr.EventData, data: dict[Any, Any]) -> dict[Any, Any]:
        return prompts.open_file(clicked(event).get("text", ""), data)

    p.prompt.editor.click(open_file, inputs=fields, outputs=list(filled), **QUIET)
    if p.prompt.writer is not None:
        _wire_writer(p.prompt.writer, handlers, fields)


def _wire_writer(w: WriterPanel, handlers: Handlers, fields: set[Any]) -> None:
    writing = Writing(w.writer, w, handlers)
    w.write.click(
        writing.write,
        inputs={*fields, w.idea, w.see},
        outputs=[w.preview, w.write, w.stop, w.choice],
        concurrency_limit=4,
        trigger_mode="once",
        **QUIET,
    )
    w.stop.click(writing.stop, concurrency_limit=None, **QUIET)
    w.take.click(None, js=TAKE_OVER, api_visibility="private").then(
        writing.clear, outputs=[w.preview, w.choice], **QUIET
    )
    w.discard.click(writing.clear, outputs=[w.preview, w.choice], **QUIET)
