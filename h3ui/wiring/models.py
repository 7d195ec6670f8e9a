"""Events of the models tab: its buttons, the download's line while the tab is open, a LoRA file that was sent.

It knows wiring; what a handler does is `h3ui.model_shelf`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from h3ui.model_shelf import ModelShelf
from h3ui.wiring import QUIET, changed

if TYPE_CHECKING:
    from backend.api import Backend
    from h3ui.board import Panels


def wire(backend: Backend, p: Panels, loaded: Any, opened: Any, left: list[Any]) -> None:
    """`loaded` is the event of the page, `opened` that of the tab, `left` those of the other tabs."""
    shelf, m = ModelShelf(backend, p), p.models
    whole = [m.rows, m.activity, m.adapters, m.upload]
    opened(shelf.opened, inputs=p.session, outputs=[*whole, m.timer], **QUIET)
    gr.on(left, lambda: gr.Timer(active=False), outputs=m.timer, **QUIET)
    m.timer.tick(shelf.tick, inputs=[p.session, m.seen], outputs=[m.activity, m.rows, m.seen], **QUIET)
    for part in (m.rows, m.activity, m.adapters):
        part.click(shelf.act, inputs=p.session, outputs=[*whole, m.told], trigger_mode="multiple", **QUIET)
    s = p.sampling
    chosen = [s.quality, s.steps, s.lent, s.adapters, s.adapter, s.adapter_about]
    loaded(shelf.choices, inputs=[s.adapter, s.quality], outputs=chosen, **QUIET)
    gr.on(left, shelf.choices, inputs=[s.adapter, s.quality], outputs=chosen, **QUIET)
    s.adapter.input(shelf.choose, inputs=s.adapter, outputs=[s.adapter_about, s.steps], **QUIET)
    changed([s.adapter], shelf.about, inputs=s.adapter, outputs=s.adapter_about)
    m.upload.upload(shelf.add_adapter, inputs=[m.upload, p.session], outputs=[*whole, m.told], **QUIET)
