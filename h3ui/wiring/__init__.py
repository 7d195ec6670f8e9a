"""Which event of which component calls which handler, one module a part of the page.

Each has one function `wire`, called once by `h3ui.page`; none holds state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gradio as gr

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def changed(parts: Iterable[Any], handler: Callable[..., Any], **wiring: Any) -> None:
    """Call `handler` after any of `parts` changed; what changes while it runs is followed by one more call.

    A step in the browser stands between, since two handlers of one event that are both `always_last` start each other
    for ever: when one ends, Gradio's page repeats the event (6.31, `dispatch` in js/core/src/dependency.ts) and with it
    the other, not only the handler that was put off.
    """
    step = gr.on([part.change for part in parts], None, js="() => {}", api_visibility="private")
    step.then(handler, trigger_mode="always_last", **QUIET, **wiring)
