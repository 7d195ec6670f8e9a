"""The machine on the page: presets with their reasons, memory as it would be, what runs now, logs and a report.

It only looks; a visitor of a shared page sees presets and figures of a clip, and nothing of the machine's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from backend.errors import H3Error
from h3ui import form
from h3ui.form import PanelValues
from h3ui.handlers import owner_of
from h3ui.panels import hardware, system
from h3ui.planned import with_prompt
from h3ui.uploads import Updates

if TYPE_CHECKING:
    from backend.api import Backend
    from h3ui.board import Panels
    from h3ui.handlers import Handlers


class Machine:
    """Handlers of the hardware panel and of the system tab."""

    def __init__(self, backend: Backend, panels: Panels, handlers: Handlers) -> None:
        self.backend = backend
        self.panels = panels
        self.handlers = handlers

    def hardware(self, data: dict[Any, Any], request: gr.Request) -> Updates:
        """The hardware panel was opened: the machine, and memory of what the panels hold."""
        p = self.panels
        may = self.backend.may_pause(owner_of(data[p.session], request))
        table = hardware.table_html(self.backend.machine(), self.backend.qualities(), may)
        return {p.hardware.table: table, **self.memory(data)}

    def memory(self, data: dict[Any, Any]) -> Updates:
        """The canvas or the preset changed."""
        values, preset = self.handlers.values(data), self.handlers.preset(data)
        return {self.panels.hardware.memory: hardware.memory_html(self._cost(values, preset))}

    def _cost(self, values: PanelValues, preset: str | None) -> Any:
        planned = with_prompt(values)
        try:
            asked, probed = form.to_request(planned), form.reports(planned)
            return self.backend.forecast(asked, preset=preset, probed=probed, quality=planned.quality)
        except H3Error:  # the line under the canvas says what is wrong
            return None

    def opened(self, session: object, rank: object, request: gr.Request) -> Updates:
        """The system tab was opened."""
        p = self.panels.system
        tail = self.handlers.log_tail(rank, session, request)
        return {**self.live(session, request), p.logs.tail: tail, p.timer: gr.Timer(active=True)}

    def live(self, session: object, request: gr.Request) -> Updates:
        """GPUs, memory and processes now."""
        if not self.backend.may_pause(owner_of(session, request)):
            return {self.panels.system.live: f'<section class="card"><p class="muted">{system.PUBLIC}</p></section>'}
        return {self.panels.system.live: system.live_html(self.backend.machine())}

    def report(self, session: object, request: gr.Request) -> Updates:
        """The report was asked for."""
        may = self.backend.may_pause(owner_of(session, request))
        return {
            self.panels.system.report: gr.update(value=self.backend.report() if may else system.PUBLIC, visible=True)
        }
