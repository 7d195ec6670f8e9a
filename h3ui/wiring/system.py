"""Events of the machine: the hardware panel when it opens and when the canvas changes, the system tab while it is open.

It knows wiring; what a handler does is `h3ui.machine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from h3ui.machine import Machine
from h3ui.wiring import QUIET, changed

if TYPE_CHECKING:
    from backend.api import Backend
    from h3ui.board import Panels
    from h3ui.handlers import Handlers


def wire(backend: Backend, p: Panels, handlers: Handlers, fields: set[Any], tabs: tuple[Any, list[Any]]) -> None:
    """`tabs` are the event of the system tab and those of the others; `fields` are what a request is made of."""
    machine, s = Machine(backend, p, handlers), p.system
    opened, left = tabs
    p.hardware.card.expand(
        machine.hardware, inputs=fields | {p.session}, outputs=[p.hardware.table, p.hardware.memory], **QUIET
    )
    planned = fields - {p.prompt.text, p.sampling.seed}
    changed(planned, machine.memory, inputs=fields, outputs=p.hardware.memory)
    opened(machine.opened, inputs=[p.session, s.logs.rank], outputs=[s.live, s.logs.tail, s.timer], **QUIET)
    gr.on(left, lambda: gr.Timer(active=False), outputs=s.timer, **QUIET)
    s.timer.tick(machine.live, inputs=p.session, outputs=s.live, **QUIET)
    s.make_report.click(machine.report, inputs=p.session, outputs=s.report, **QUIET)
    gr.on(
        [s.logs.rank.change, s.logs.refresh.click],
        handlers.log_tail,
        inputs=[s.logs.rank, p.session],
        outputs=s.logs.tail,
        **QUIET,
    )
