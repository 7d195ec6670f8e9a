"""Events of the prompt: advice and outline follow the text, examples and request files fill it.

It knows wiring; what a handler does is `h3ui.prompting`, what the editor does by itself `assets/scripts/prompt.js`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from h3ui.panels import prompt
from h3ui.prompting import Prompts
from h3ui.uploads import clicked
from h3ui.wiring import QUIET

if TYPE_CHECKING:
    from h3ui.board import Panels
    from h3ui.handlers import Handlers


def wire(p: Panels, handlers: Handlers, fields: set[Any], filled: set[Any]) -> None:
    """`fields` are what a request is made of, `filled` what a stored one fills."""
    prompts = Prompts(p, handlers)
    media: list[Any] = [p.references.items, *(slot.item for slot in p.keyframes.slots.values())]
    gr.on(
        [part.change for part in (p.prompt.text, p.mode, p.canvas.duration, *media)],
        prompts.look,
        inputs=fields,
        outputs=[p.prompt.hint, p.prompt.editor],
        trigger_mode="always_last",
        **QUIET,
    )
    p.prompt.hint.click(_example, outputs=p.prompt.text, **QUIET)

    def open_file(event: gr.EventData, data: dict[Any, Any]) -> dict[Any, Any]:
        return prompts.open_file(clicked(event).get("text", ""), data)

    p.prompt.editor.click(open_file, inputs=fields, outputs=list(filled), **QUIET)


def _example(event: gr.EventData) -> str:
    index = int(clicked(event).get("index", 0))
    return prompt.EXAMPLES[index % len(prompt.EXAMPLES)][1]
