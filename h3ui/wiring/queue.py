"""Events of the queue: a saved one is loaded, a waiting job gets what the panels hold.

It knows wiring; what a handler does is `h3ui.keeping`.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from h3ui.board import Panels
from h3ui.keeping import Keeping
from h3ui.wiring import QUIET


def wire(p: Panels, keeping: Keeping, fields: set[Any]) -> None:
    """`fields` are what a request is made of."""
    here: set[Any] = {p.session, p.job, p.queue.editing.job}

    def load(data: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        return keeping.load_queue(data[p.queue.load], data, request)

    p.queue.load.upload(load, inputs=here | {p.queue.load}, outputs=[p.queue.rows, p.queue.told], **QUIET)
    p.queue.editing.bar.click(
        keeping.save_edit,
        inputs=fields | here,
        outputs=[p.problems, p.queue.editing.bar, p.queue.editing.job, p.queue.rows, p.result.live, p.result.player],
        **QUIET,
    )
