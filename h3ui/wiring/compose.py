"""Events of the left column: they change what is on the page and submit nothing.

It knows wiring; what a handler does is `h3ui.handlers` and `h3ui.uploads`.
"""

from __future__ import annotations

import functools
import secrets
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend import limits
from h3ui.board import Panels
from h3ui.form import Mode, Size
from h3ui.handlers import Handlers
from h3ui.panels import prompt, sampling
from h3ui.wiring import QUIET

if TYPE_CHECKING:
    from backend.api import Backend


def wire(backend: Backend, p: Panels, handlers: Handlers, fields: set[Any]) -> None:
    """Events of the left column: they change what is on the page and submit nothing."""
    media: list[Any] = [p.references.items, *(slot.item for slot in p.keyframes.slots.values())]
    gr.on(
        [part.change for part in (p.prompt.text, p.mode, *media)],
        handlers.hint,
        inputs=fields,
        outputs=[p.prompt.hint],
        trigger_mode="always_last",
        **QUIET,
    )
    p.prompt.hint.click(_example, outputs=p.prompt.text, **QUIET)
    p.mode.change(
        lambda mode: (gr.update(visible=mode == Mode.FRAMES), gr.update(visible=mode == Mode.REFERENCES)),
        inputs=p.mode,
        outputs=[p.keyframes.group, p.references.group],
        **QUIET,
    )
    for name, slot in p.keyframes.slots.items():
        slot.drop.upload(
            functools.partial(handlers.uploads.drop_frame, name),
            inputs=slot.drop,
            outputs=[slot.item, slot.drop, slot.card],
            **QUIET,
        )
        slot.card.click(
            functools.partial(handlers.uploads.frame_updates, name, None),
            outputs=[slot.item, slot.drop, slot.card],
            **QUIET,
        )
    p.references.drop.upload(
        handlers.uploads.drop_references,
        inputs=[p.references.drop, p.references.items],
        outputs=[p.references.items, p.references.tray, p.references.drop],
        **QUIET,
    )
    p.references.tray.click(
        handlers.uploads.edit_tray,
        inputs=[p.references.items],
        outputs=[p.references.items, p.references.tray],
        **QUIET,
    )
    p.canvas.size.change(
        lambda size: gr.update(visible=size == Size.CUSTOM), inputs=p.canvas.size, outputs=p.canvas.custom, **QUIET
    )
    p.sampling.quality.input(
        functools.partial(_quality, backend),
        inputs=p.sampling.quality,
        outputs=[p.sampling.about, p.sampling.steps],
        **QUIET,
    )
    p.sampling.dice.click(lambda: str(secrets.randbelow(2**31)), outputs=p.sampling.seed, **QUIET)
    p.sampling.random.click(lambda: "", outputs=p.sampling.seed, **QUIET)
    planned = fields - {p.prompt.text, p.sampling.seed}
    gr.on(
        [field.change for field in planned],
        handlers.plan,
        inputs=fields,
        outputs=[p.canvas.plan],
        trigger_mode="always_last",
        **QUIET,
    )


def _example(event: gr.EventData) -> str:
    index = int((event._data or {}).get("index", 0))
    return prompt.EXAMPLES[index % len(prompt.EXAMPLES)][1]


def _quality(backend: Backend, name: str) -> tuple[str, int]:
    preset = backend.quality_presets()[name]
    return sampling.about_html(preset), min(max(preset.num_inference_steps, limits.MIN_STEPS), limits.MAX_STEPS)
