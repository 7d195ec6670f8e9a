"""The writer: an idea goes to a language model, its prompt streams into a preview, which is taken over or discarded.

It knows components and words; the endpoint is `h3ui.writer`, set by whoever runs the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from h3ui import markup
from h3ui.writer import Writer

SETUP = (
    "A language model can write the prompt from your idea. None is set up. Whoever starts H3 Studio names one that "
    "speaks the OpenAI protocol, such as Ollama, vLLM or LM Studio:"
)
COMMAND = "python app.py --writer-url http://127.0.0.1:11434/v1 --writer-model NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPanel:
    """Components of the writer, and who is asked."""

    writer: Writer
    idea: gr.Textbox
    see: gr.Checkbox
    write: gr.Button
    stop: gr.Button
    preview: gr.HTML
    choice: gr.Row
    take: gr.Button
    discard: gr.Button


def build(writer: Writer | None) -> WriterPanel | None:
    """Create the components in the current layout block, closed; None where nobody is set up to write."""
    with gr.Accordion("Let a language model write it", open=False, elem_id="writer", elem_classes="writer"):
        if writer is None:
            words = f'<p class="ir-help">{markup.text(SETUP)}</p><pre class="log" translate="no">{COMMAND}</pre>'
            gr.HTML(words, apply_default_css=False)
            return None
        gr.HTML(_about(writer), apply_default_css=False)
        idea = gr.Textbox(
            label="Your idea",
            placeholder="What should happen? Left empty, the prompt above is rewritten.",
            lines=2,
            max_lines=8,
            elem_id="writer-idea",
        )
        see = gr.Checkbox(label="Show it small copies of my pictures and clips", value=False, elem_id="writer-see")
        with gr.Row(elem_classes="writer-buttons"):
            write = gr.Button("Write", variant="secondary", elem_id="writer-write")
            stop = gr.Button("Stop", variant="secondary", visible=False, elem_id="writer-stop")
        preview = gr.HTML("", apply_default_css=False, js_on_load=None, elem_id="writer-preview")
        with gr.Row(visible=False, elem_classes="writer-buttons", elem_id="writer-choice") as choice:
            take = gr.Button("Use this prompt", variant="primary", elem_id="writer-take")
            discard = gr.Button("Discard", variant="secondary", elem_id="writer-discard")
    return WriterPanel(
        writer=writer,
        idea=idea,
        see=see,
        write=write,
        stop=stop,
        preview=preview,
        choice=choice,
        take=take,
        discard=discard,
    )


def _about(writer: Writer) -> str:
    return (
        '<p class="ir-help"><span>Your text is sent when you press Write, and only then, to</span> '
        f'<b translate="no">{markup.text(writer.model)}</b> <span>at</span> '
        f'<b translate="no">{markup.text(writer.host)}</b>.</p>'
    )


def preview_html(text: str, status: str) -> str:
    """What was written so far, as text and nothing else, and how it goes."""
    said = f'<p class="writer-status" role="status">{markup.text(status)}</p>' if status else ""
    shown = f'<pre class="writer-text" data-ir-draft translate="no">{markup.text(text)}</pre>' if text else ""
    return f"{shown}{said}"


def failed_html(reason: str, *, some: bool = False) -> str:
    """Why nothing was written, or only `some` of it."""
    return markup.problems([reason], title="This is not the whole answer" if some else "Nothing was written")
