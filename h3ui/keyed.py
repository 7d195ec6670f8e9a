"""HTML that is redrawn by key: events change what they are about, and leave a typed text, a focus and a playing video.

It knows one script; panels give the HTML, with `data-key` on the elements of a list.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from h3ui import markup

SCRIPT = (markup.ASSETS_DIR / "parts" / "keyed.js").read_text(encoding="utf-8")


def html(value: str, **options: Any) -> gr.HTML:
    """A `gr.HTML` that shows `value`, and reports clicks as every panel does."""
    return gr.HTML(
        value,
        html_template="<div data-keyed></div>",
        js_on_load=SCRIPT + markup.CLICKS,
        apply_default_css=False,
        **options,
    )
