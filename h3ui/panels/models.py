"""The models this machine knows: where each lies, what it can do, and whether it is complete.

It knows checkpoints as the backend lists them; downloading is done on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from h3ui import markup, render

if TYPE_CHECKING:
    from backend.api import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPanel:
    """Components of the models panel."""

    rows: gr.HTML


def build() -> ModelsPanel:
    """Create the components in the current layout block."""
    rows = gr.HTML("", apply_default_css=False, elem_id="models", elem_classes="card")
    return ModelsPanel(rows=rows)


def rows_html(checkpoints: Sequence[Checkpoint]) -> str:
    """One row a checkpoint."""
    rows = "".join(_row(checkpoint) for checkpoint in checkpoints)
    return f'<div class="card-head"><h3>Models</h3></div><ul class="models">{rows}</ul>'


def _row(checkpoint: Checkpoint) -> str:
    told = [", ".join(str(task) for task in checkpoint.tasks)]
    if checkpoint.bytes:
        told.append(render.size(checkpoint.bytes))
    if checkpoint.folder is not None:
        told.append(str(checkpoint.folder))
    about = markup.note(checkpoint.notice) if checkpoint.notice else ""
    if checkpoint.folder is None and not checkpoint.notice:
        about = (
            f'<p class="muted">Get it with <code>python app.py models download {markup.text(checkpoint.name)}</code>. '
            "It comes under the MiniMax H3 Community License, which you accept there.</p>"
        )
    head = f"<b>{markup.text(checkpoint.title)}</b> <code>{markup.text(checkpoint.name)}</code>"
    state = f'<span class="pill {"ok" if checkpoint.ready else ""}">{markup.text(checkpoint.state)}</span>'
    return f'<li><div>{head}<p class="muted">{markup.text(" · ".join(told))}</p>{about}</div>{state}</li>'
