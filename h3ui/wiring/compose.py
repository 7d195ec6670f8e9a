"""Events of the left column: they change what is on the page and submit nothing.

It knows wiring; what a handler does is `h3ui.handlers` and `h3ui.uploads`.
"""

from __future__ import annotations

import functools
import secrets
from typing import Any

import gradio as gr

from h3ui.board import Panels
from h3ui.form import Mode, Size
from h3ui.handlers import Handlers
from h3ui.uploads import clicked
from h3ui.wiring import QUIET, changed


def wire(p: Panels, handlers: Handlers, fields: set[Any]) -> None:
    """Events of the left column: they change what is on the page and submit nothing."""
    changed(
        [p.mode],
        lambda mode: (gr.update(visible=mode == Mode.FRAMES), gr.update(visible=mode == Mode.REFERENCES)),
        inputs=p.mode,
        outputs=[p.keyframes.group, p.references.group],
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
    tray = p.references
    looking: dict[str, Any] = {**QUIET, "show_progress": "minimal", "show_progress_on": tray.drop}
    tray.drop.upload(
        handlers.uploads.look_at, inputs=tray.drop, outputs=[tray.arrived, tray.drop], concurrency_limit=4, **looking
    ).then(
        handlers.uploads.arrive,
        inputs=[tray.arrived, tray.items],
        outputs=[tray.items, tray.tray, tray.arrived],
        **QUIET,
    )
    tray.tray.click(
        handlers.uploads.edit_tray,
        inputs=tray.items,
        outputs=[tray.items, tray.tray],
        trigger_mode="multiple",
        concurrency_limit=1,  # one after another: each starts from what the one before left
        **QUIET,
    )
    changed(
        [tray.items],
        handlers.uploads.follow,
        inputs=[p.prompt.text, tray.items, tray.known],
        outputs=[p.prompt.text, tray.known],
    )
    p.canvas.ratio.input(lambda: Size.AUTO.value, outputs=p.canvas.size, **QUIET)  # numbers of before have no shape
    p.canvas.plan.click(
        _size,
        outputs=[p.canvas.size, p.canvas.width, p.canvas.height],
        **QUIET,
    )
    changed(
        [p.canvas.size],
        lambda size: gr.update(visible=size == Size.CUSTOM),
        inputs=p.canvas.size,
        outputs=p.canvas.custom,
    )
    s = p.sampling
    s.quality.input(
        handlers.quality_chosen, inputs=fields | {s.lent}, outputs=[s.steps, s.adapter, s.strength, s.lent], **QUIET
    )
    changed(
        [p.sampling.quality, p.hardware.override],  # also where a stored request was filled in
        handlers.quality_about,
        inputs=fields,
        outputs=p.sampling.about,
    )
    p.sampling.dice.click(lambda: str(secrets.randbelow(2**31)), outputs=p.sampling.seed, **QUIET)
    p.sampling.random.click(lambda: "", outputs=p.sampling.seed, **QUIET)
    planned = fields - {p.prompt.text, p.sampling.seed}
    changed(planned, handlers.plan, inputs=fields, outputs=[p.canvas.plan])
    frames: list[Any] = [slot.item for slot in p.keyframes.slots.values()]
    shaping = [p.mode, p.canvas.ratio, p.canvas.size, p.canvas.width, p.canvas.height, p.sampling.quality]
    changed(
        (*frames, *shaping, p.hardware.override),
        handlers.frames,
        inputs=fields,
        outputs=[*(slot.card for slot in p.keyframes.slots.values()), p.problems],
    )
    p.sampling.draft.click(
        handlers.draft,
        inputs=fields | {p.session},
        outputs=[p.job, p.last_job, p.result.live, p.result.player, p.queue.rows, p.problems],
        concurrency_limit=None,
        **QUIET,
    )


def _size(event: gr.EventData) -> tuple[str, int, int]:
    """A size of the shape was chosen; what comes from the page are two numbers or nothing."""
    did = clicked(event)
    return Size.CUSTOM.value, int(did["width"]), int(did["height"])
