"""The page: where each panel stands, and the events that go across panels.

It knows layout; events inside one part of the page are wired in `h3ui.wiring`, what a handler does is `h3ui.handlers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from h3ui import markup
from h3ui.board import Panels
from h3ui.form import Mode
from h3ui.handlers import Handlers
from h3ui.keeping import Keeping
from h3ui.panels import (
    canvas,
    gallery,
    hardware,
    keyframes,
    licence,
    models,
    prompt,
    queue,
    references,
    result,
    sampling,
    scripts,
    system,
)
from h3ui.public_api import PublicApi
from h3ui.wiring import QUIET, compose
from h3ui.wiring import gallery as gallery_wiring
from h3ui.wiring import kept as kept_wiring
from h3ui.wiring import models as models_wiring
from h3ui.wiring import prompt as prompt_wiring
from h3ui.wiring import queue as queue_wiring
from h3ui.wiring import scripts as scripts_wiring
from h3ui.wiring import system as system_wiring
from h3ui.writer import Writer

if TYPE_CHECKING:
    from backend.api import Backend

TICK_S = 2.5
STORAGE_SECRET = "h3-studio"  # obscures what a browser keeps; it is no access control and must outlive restarts
MODES = (("Text", Mode.TEXT.value), ("First & last frame", Mode.FRAMES.value), ("References", Mode.REFERENCES.value))
HEADER = (
    '<div class="brand"><img src="studio/favicon.svg" alt="" width="30" height="30"><h1>H3 Studio</h1>'
    '<span class="muted tagline">video with sound, from MiniMax-H3</span></div>'
)
LANGUAGES = (
    '<select class="language" data-language aria-label="Language" title="Language of the page">'
    '<option value="en" lang="en" translate="no">English</option>'
    '<option value="zh" lang="zh-CN" translate="no">中文</option></select>'
)
THEME_BUTTON = (
    '<button type="button" class="btn icon" data-theme-toggle aria-label="Light or dark" title="Light or dark">'
    f"{markup.icon('theme')}</button>"
)
TOUR_BUTTON = (
    '<button type="button" class="btn icon" data-tour aria-label="Show me around" title="Show me around">'
    f"{markup.icon('help')}</button>"
)


def build(backend: Backend, *, strangers: bool = False) -> gr.Blocks:
    """The whole page on `backend`, also for `strangers`. Mount it with `h3ui.serve`, which brings theme and scripts."""
    choice, checkpoint, writer = backend.choice(), backend.checkpoint(), backend.settings.writer
    with gr.Blocks(title="H3 Studio", analytics_enabled=False, delete_cache=(3600, 86_400), fill_width=True) as demo:
        PublicApi(backend, strangers=strangers).publish()  # first, or handlers of the page would take the names
        session = gr.BrowserState(None, storage_key="h3-session", secret=STORAGE_SECRET)
        last_job = gr.BrowserState(None, storage_key="h3-job", secret=STORAGE_SECRET)
        kept = gr.BrowserState(None, storage_key="h3-form", secret=STORAGE_SECRET)
        job = gr.State(None)
        timer = gr.Timer(TICK_S)
        with gr.Row(elem_classes="topbar"):
            gr.HTML(HEADER, apply_default_css=False)
            status = gr.HTML("", apply_default_css=False, elem_id="status")
            gr.HTML(LANGUAGES + TOUR_BUTTON + THEME_BUTTON, apply_default_css=False, elem_id="theme")
        if backend.settings.space is not None and backend.settings.space.notice:
            gr.HTML(markup.note(backend.settings.space.notice, "warn"), apply_default_css=False, elem_id="space")
        licence_panel = licence.build(backend.licence())
        with gr.Tabs(elem_id="sections") as tabs:
            with gr.Tab("Studio", id="studio") as studio_tab, gr.Row(elem_classes="studio"):
                with gr.Column(elem_classes="compose", min_width=320):
                    with gr.Column(elem_classes="card"):
                        prompt_panel = prompt.build(
                            Writer(writer) if writer else None, checkpoint.examples or prompt.EXAMPLES
                        )
                        mode = gr.Radio(
                            choices=MODES,
                            value=Mode.TEXT.value,
                            label="Made from",
                            elem_id="mode",
                            elem_classes="segmented",
                        )
                        keyframes_panel = keyframes.build()
                        references_panel = references.build()
                    with gr.Column(elem_classes="card"):
                        canvas_panel = canvas.build()
                    with gr.Column(elem_classes="card"):
                        sampling_panel = sampling.build(backend.qualities(), checkpoint.default_steps)
                    hardware_panel = hardware.build(backend.presets(), choice)
                    scripts_panel = scripts.build()
                    with gr.Column(elem_classes="submit"):
                        editing = queue.build_editing()
                        problems = gr.HTML("", apply_default_css=False, elem_id="problems")
                        with gr.Row(elem_classes="submit-row"):
                            sampling_panel.draft.render()
                            generate = gr.Button("Generate", variant="primary", size="lg", elem_id="generate")
                with gr.Column(elem_classes="watch", min_width=320):
                    result_panel = result.build(checkpoint.notice)
                    queue_panel = queue.build(editing)
            with gr.Tab("Gallery", id="gallery", elem_classes="gallery-place") as gallery_tab:
                gallery_panel = gallery.build()
            with gr.Tab("Models", id="models", elem_classes="models-place") as models_tab:
                models_panel = models.build()
            with gr.Tab("System", id="system", elem_classes="system-place") as system_tab:
                system_panel = system.build(choice.preset.world_size)
        panels = Panels(
            prompt=prompt_panel,
            mode=mode,
            keyframes=keyframes_panel,
            references=references_panel,
            canvas=canvas_panel,
            sampling=sampling_panel,
            hardware=hardware_panel,
            result=result_panel,
            queue=queue_panel,
            gallery=gallery_panel,
            models=models_panel,
            system=system_panel,
            problems=problems,
            status=status,
            tabs=tabs,
            session=session,
            last_job=last_job,
            kept=kept,
            job=job,
            licence=licence_panel,
        )
        handlers = Handlers(backend, panels)
        fields = _fields(panels)
        filled = _filled(panels)
        compose.wire(panels, handlers, fields)
        prompt_wiring.wire(panels, handlers, fields, filled)
        shown: set[Any] = {job, last_job, panels.result.live, panels.result.player, panels.queue.rows}
        generate.click(
            handlers.generate, inputs=fields | {session}, outputs=[*shown, problems], concurrency_limit=None, **QUIET
        )
        job.change(
            handlers.watch,
            inputs=[job, session],
            outputs=[panels.result.live, panels.result.player, panels.queue.rows, status],
            concurrency_limit=None,
            trigger_mode="multiple",
            **QUIET,
        )
        keeping = Keeping(backend, handlers)
        queue_wiring.wire(panels, keeping, fields)
        scripts_wiring.wire(scripts_panel, handlers, fields, strangers=strangers)
        gallery_wiring.wire(panels, keeping, filled, gallery_tab.select, timer)
        licence_panel.click(handlers.accept_licence, inputs=session, outputs=[licence_panel, problems], **QUIET)
        elsewhere = [studio_tab.select, gallery_tab.select]
        models_wiring.wire(backend, panels, demo.load, models_tab.select, [*elsewhere, system_tab.select])
        system_wiring.wire(backend, panels, handlers, fields, (system_tab.select, [*elsewhere, models_tab.select]))
        timer.tick(
            handlers.tick,
            inputs={session, job},
            outputs=[status, panels.queue.rows, panels.result.live, panels.result.player],
            concurrency_limit=None,
            **QUIET,
        )
        opened = {session, kept, status, panels.canvas.plan, panels.licence, panels.hardware.override}
        loaded = demo.load(
            handlers.restore, inputs={session, last_job, kept}, outputs=list(shown | filled | opened), **QUIET
        )
        kept_wiring.wire(panels, loaded)
    return demo


def _fields(p: Panels) -> set[Any]:
    """Every component that a request is made of."""
    return {
        p.prompt.text,
        p.mode,
        *(slot.item for slot in p.keyframes.slots.values()),
        p.references.items,
        p.canvas.ratio,
        p.canvas.size,
        p.canvas.width,
        p.canvas.height,
        p.canvas.duration,
        p.sampling.quality,
        p.sampling.steps,
        p.sampling.seed,
        p.sampling.adapter,
        p.sampling.strength,
        p.hardware.override,
    }


def _filled(p: Panels) -> set[Any]:
    """Every component that a stored job fills."""
    slots = [part for slot in p.keyframes.slots.values() for part in (slot.drop, slot.card)]
    more = {
        p.sampling.lent,
        p.prompt.hint,
        p.keyframes.group,
        p.references.group,
        p.references.tray,
        p.canvas.custom,
        p.problems,
    }
    return (_fields(p) - {p.hardware.override}) | more | set(slots)
