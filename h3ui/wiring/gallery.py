"""Events of finished jobs: every button that names one, search and filter, a dropped MP4, and the comparison.

It knows wiring; what a handler does is `h3ui.keeping`.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from h3ui.board import Panels
from h3ui.keeping import Keeping
from h3ui.uploads import clicked
from h3ui.wiring import QUIET


def wire(p: Panels, keeping: Keeping, filled: set[Any], opened: Any, timer: gr.Timer) -> None:
    """`filled` is what a stored job fills, `opened` the event of the gallery's tab."""
    g = p.gallery
    listed: set[Any] = {p.session, p.job, g.search, g.shown, g.count, g.mark, g.compare.pair}
    drawn: set[Any] = {g.cards, g.summary, g.mark}
    light: set[Any] = {p.job, p.last_job, p.result.live, p.result.player, p.queue.rows}
    compared: set[Any] = {g.compare.view, g.compare.pair}
    editing: set[Any] = {p.queue.editing.job, p.queue.editing.bar}
    acting = listed | {p.queue.editing.job, p.references.items}
    acted = light | filled | drawn | compared | editing | {p.tabs, g.count, g.told, p.queue.told}
    for panel in (p.result.live, p.result.player, p.queue.rows, g.cards, g.bulk):
        panel.click(keeping.act, inputs=acting, outputs=list(acted), trigger_mode="multiple", **QUIET)

    def compare(event: gr.EventData, data: dict[Any, Any], request: gr.Request) -> Any:
        if clicked(event).get("action") == "measure":
            yield from keeping.shelf.measure(data, request)
        else:
            yield {g.compare.view: gr.update(value="", visible=False), g.compare.pair: None}

    g.compare.view.click(
        compare, inputs={p.session, g.compare.pair}, outputs=list(compared), concurrency_limit=1, **QUIET
    )
    gr.on(
        [opened, g.search.change, g.shown.change],
        keeping.shelf.gallery,
        inputs=listed,
        outputs=list(drawn),
        trigger_mode="always_last",
        **QUIET,
    )
    timer.tick(
        keeping.shelf.tick, inputs=listed, outputs=list(drawn | light | compared), concurrency_limit=None, **QUIET
    )

    def drop(data: dict[Any, Any], request: gr.Request) -> dict[Any, Any]:
        return keeping.drop_result(data[g.drop], data, request)

    g.drop.upload(drop, inputs={p.session, g.drop}, outputs=list(filled | {g.told, p.tabs}), **QUIET)
