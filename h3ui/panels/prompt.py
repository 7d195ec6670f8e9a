"""The prompt: one text, as free text or by its parts; a counter, advice with fixes, examples, templates.

It knows the fields and how advice looks; what a prompt means is `h3ui.context_ir`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend import limits
from backend.errors import Problem
from h3ui import markup, prompt_editor
from h3ui.context_ir.findings import Finding
from h3ui.context_ir.model import Target
from h3ui.panels import writer
from h3ui.writer import Writer

Examples = tuple[tuple[str, str], ...]  # title, prompt
EXAMPLES: Examples = (
    (
        "Lighthouse",
        "A lighthouse on a cliff at dusk, waves breaking below. The camera rises slowly as the lamp turns on. "
        "Sound: deep surf, gulls far away, a low foghorn.",
    ),
    (
        "Street musician",
        "Close shot of an old man playing an accordion in a rainy arcade, neon reflected in puddles. "
        "Sound: accordion waltz, light rain, footsteps.",
    ),
    (
        "Paper boat",
        "Macro shot: a folded paper boat drifts down a gutter stream after rain and spins around a leaf. "
        "Sound: trickling water, birds, a distant bicycle bell.",
    ),
)
SHOWN = 4  # findings in view; the others open
# The page's script owns what is inside: a value that comes from the server is told to it and touches no markup.
MOUNT = """
window.h3Prompt.mount(element, {
  edit: (payload) => server.edit(payload),
  open: (text) => trigger('click', {action: 'open', text}),
  value: () => props.value,
});
watch('value', () => window.h3Prompt.told(props.value));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPanel:
    """Components of the prompt; `editor` shows the outline of `text` and changes `text` only."""

    text: gr.Textbox
    editor: gr.HTML
    hint: gr.HTML
    writer: writer.WriterPanel | None
    examples: Examples


def build(asked: Writer | None = None, examples: Examples = EXAMPLES) -> PromptPanel:
    """Create the components in the current layout block; `asked` is who writes prompts, if anybody."""
    gr.HTML(toolbar_html(), apply_default_css=False, js_on_load=None, elem_id="prompt-tools")
    field = gr.Textbox(
        label="Prompt",
        show_label=False,
        placeholder="What should be seen and heard? Scene, subjects, movement, camera, sound …",
        lines=5,
        max_lines=16,
        elem_id="prompt",
        autofocus=False,
    )
    editor = gr.HTML(
        prompt_editor.told("", Target()),
        html_template='<div class="ir" data-ir></div>',
        js_on_load=MOUNT,
        server_functions=[prompt_editor.edit],
        apply_default_css=False,
        elem_id="prompt-editor",
    )
    hint = gr.HTML(
        hint_html("", (), examples), js_on_load=markup.CLICKS, apply_default_css=False, elem_id="prompt-hint"
    )
    return PromptPanel(text=field, editor=editor, hint=hint, writer=writer.build(asked), examples=examples)


def toolbar_html() -> str:
    """Title, the two views, and what fills the prompt: templates, a request file, back."""
    views = "".join(
        f'<label><input type="radio" name="prompt-view" value="{value}"{" checked" if value == "text" else ""}>'
        f"<span>{label}</span></label>"
        for value, label in (("text", "Free text"), ("parts", "Structured"))
    )
    return (
        '<div class="ir-tools"><h3 id="prompt-title">Prompt</h3>'
        f'<div class="ir-views" role="radiogroup" aria-label="View of the prompt">{views}</div>'
        '<div class="ir-actions"><button type="button" class="btn quiet" data-ir-undo hidden '
        f'title="Take the last change back">{markup.icon("retry")}<span>Undo</span></button>'
        '<details class="ir-menu" data-ir-menu><summary class="btn quiet">Templates</summary>'
        '<div class="ir-menu-list" data-ir-templates></div></details>'
        '<label class="btn quiet ir-file" title="A request or sidecar as JSON, also the official examples">'
        f'{markup.icon("open")}<span>Open</span><input type="file" accept=".json,application/json" data-ir-file '
        'aria-label="Open a request file"></label></div>'
        '<span class="sr-only" role="status" data-ir-status></span></div>'
    )


def hint_html(prompt: str, findings: Sequence[Finding] = (), examples: Examples = EXAMPLES) -> str:
    """Examples while the field is empty, else the count of characters and what could be better, line by line."""
    if not prompt.strip():
        chips = "".join(
            markup.button(name, "example", kind="chip", index=index) for index, (name, _) in enumerate(examples)
        )
        return f'<div class="hint-row"><span class="muted">Try</span>{chips}</div>'
    over = " over" if len(prompt) > limits.MAX_PROMPT_CHARS else ""
    count = f"{len(prompt):,} of {limits.MAX_PROMPT_CHARS:,} characters"
    return f'<div class="hint-row"><span class="muted count{over}">{count}</span></div>{_advice(prompt, findings)}'


def _advice(prompt: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    rows = [_finding(prompt, found) for found in findings]
    first, rest = "".join(rows[:SHOWN]), "".join(rows[SHOWN:])
    listed = f'<ul class="advice" aria-label="Advice about the prompt">{first}</ul>'
    if not rest:
        return listed
    more = f"<summary>{len(rows) - SHOWN} more</summary>"
    return f'{listed}<details class="advice-more">{more}<ul class="advice">{rest}</ul></details>'


def _finding(prompt: str, found: Finding) -> str:
    line = found.line(prompt)
    where = ""
    if line is not None and found.at is not None:
        where = (
            f'<button type="button" class="where" data-ir-line="{found.at}" title="Go there">'
            f'<span>line</span> <span translate="no">{line}</span></button>'
        )
    fix = ""
    if found.change is not None:
        label = markup.text(found.change.label)
        fix = f'<button type="button" class="btn chip fix" data-ir-mend="{markup.text(found.key)}">{label}</button>'
    said = f'<span class="said">{markup.text(found.message)}</span>'
    return f'<li data-code="{markup.text(found.code)}">{where}{said}{fix}</li>'


def refused_html(problems: Sequence[Problem]) -> str:
    """Why a request file was not opened."""
    return markup.problems(problems, title="The file was not opened")


def opened_html(media: int) -> str:
    """What still has to be added by hand after a request file was opened; "" when nothing has."""
    if not media:
        return ""
    things = "1 picture, clip or sound" if media == 1 else f"{media} pictures, clips or sounds"
    return markup.note(f"The file names {things}. They are not in the file: add them here yourself.")
