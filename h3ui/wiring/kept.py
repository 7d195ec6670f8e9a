"""Events that keep the form in the browser, and the one that puts it back.

It knows wiring; what is kept, and what may come back, is `h3ui.kept_form`'s.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from h3ui import kept_form
from h3ui.board import Panels


def wire(p: Panels, loaded: Any) -> None:
    """`loaded` is the event that fills the page when it is opened."""
    parts = list(kept_form.parts(p).values())
    browser_only: dict[str, Any] = {
        "fn": None,
        "inputs": [p.kept, p.last_job, *parts],
        "outputs": p.kept,
        "api_visibility": "private",
    }
    gr.on([part.change for part in parts], js=kept_form.keep(p, kept_form.ADDRESS), **browser_only)
    p.last_job.change(js=kept_form.keep(p, "last"), **browser_only)  # the fields stay, beside another job
    loaded.then(None, js=kept_form.READY, api_visibility="private")
