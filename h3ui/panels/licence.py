"""The licence of the model: asked for once, named for good.

It knows words and one button; who may run what is the backend's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gradio as gr

from backend.errors import Problem
from h3ui import markup

if TYPE_CHECKING:
    from backend.api import Licence


def build(licence: Licence | None) -> gr.HTML:
    """Create the component in the current layout block; hidden where there is nothing to accept."""
    return gr.HTML(
        html(licence),
        js_on_load=markup.CLICKS,
        apply_default_css=False,
        elem_id="licence",
        visible=licence is not None,
    )


def html(licence: Licence | None) -> str:
    """The question, or after it was answered the name and the link."""
    if licence is None:
        return ""
    name = f'<a href="{markup.text(licence.url)}" target="_blank" rel="noopener">{markup.text(licence.name)}</a>'
    if licence.accepted:
        return f'<p class="muted">MiniMax-H3 is used under the {name}.</p>'
    return (
        f'<div class="note warn" role="region" aria-label="Licence">{markup.icon("alert")}<span>MiniMax-H3 comes under '
        f"the {name}. {markup.text(licence.summary)} Read it before you make the first video.</span>"
        f"{markup.button('I accept the licence', 'accept-licence', kind='primary')}</div>"
    )


def problem(licence: Licence) -> Problem:
    """Why nothing is made yet."""
    return Problem(
        field="licence",
        value=licence.name,
        rule="must be accepted once",
        way_out="press “I accept the licence” at the top of the page",
    )
