"""The prompt: free text, a counter, and examples to start from.

It knows the field and its limits; what a prompt means is the model's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

from backend import limits
from h3ui import markup

EXAMPLES = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPanel:
    """Components of the prompt."""

    text: gr.Textbox
    hint: gr.HTML


def build() -> PromptPanel:
    """Create the components in the current layout block."""
    field = gr.Textbox(
        label="Prompt",
        placeholder="What should be seen and heard? Scene, subjects, movement, camera, sound …",
        lines=5,
        max_lines=16,
        elem_id="prompt",
        autofocus=False,
    )
    hint = gr.HTML(hint_html(""), js_on_load=markup.CLICKS, apply_default_css=False, elem_id="prompt-hint")
    return PromptPanel(text=field, hint=hint)


def hint_html(prompt: str, notes: Sequence[str] = ()) -> str:
    """Examples while the field is empty, else the count of characters and advice about its tags."""
    if not prompt.strip():
        chips = "".join(
            markup.button(name, "example", kind="chip", index=index) for index, (name, _) in enumerate(EXAMPLES)
        )
        return f'<div class="hint-row"><span class="muted">Try</span>{chips}</div>'
    over = " over" if len(prompt) > limits.MAX_PROMPT_CHARS else ""
    count = f"{len(prompt):,} of {limits.MAX_PROMPT_CHARS:,} characters"
    advice = "".join(f"<li>{markup.text(note)}</li>" for note in notes)
    listed = f'<ul class="advice">{advice}</ul>' if advice else ""
    return f'<div class="hint-row"><span class="muted count{over}">{count}</span></div>{listed}'
