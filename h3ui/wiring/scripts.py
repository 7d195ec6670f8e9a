"""Events of the panel for scripts: while it is open, its texts follow what the page holds.

It knows wiring and the address a browser came by; the texts are `h3ui.command`'s.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from backend.errors import InvalidRequest
from h3ui import command, form
from h3ui.command import Call, Door
from h3ui.handlers import Handlers
from h3ui.panels import scripts
from h3ui.panels.scripts import ScriptsPanel
from h3ui.uploads import Updates
from h3ui.wiring import QUIET


def wire(panel: ScriptsPanel, handlers: Handlers, fields: set[Any], *, strangers: bool) -> None:
    """`fields` are what a request is made of; with `strangers` there is no `/v1/videos`."""

    def follow(data: dict[Any, Any], request: gr.Request) -> Updates:
        door = door_of(request)
        made = _texts(handlers, data, None if strangers else door, door)
        return gr.skip() if made == data[panel.known] else {panel.known: made, **made_updates(panel, made)}

    shown = [panel.known, panel.about, panel.python, panel.curl, panel.shell]
    looking: dict[str, Any] = {"inputs": fields | {panel.known}, "outputs": shown, **QUIET}
    panel.accordion.expand(follow, **looking).then(lambda: gr.Timer(active=True), outputs=panel.timer, **QUIET)
    panel.accordion.collapse(lambda: gr.Timer(active=False), outputs=panel.timer, **QUIET)
    panel.timer.tick(follow, concurrency_limit=None, **looking)


def made_updates(panel: ScriptsPanel, made: tuple[str, str, str, str]) -> Updates:
    """The texts where they stand."""
    return dict(zip((panel.about, panel.python, panel.curl, panel.shell), made, strict=True))


def _texts(handlers: Handlers, data: dict[Any, Any], videos: Door | None, door: Door) -> tuple[str, str, str, str]:
    """About, Python, curl and command line of what the page holds; only the first where that is no request."""
    values = handlers.values(data)
    try:
        request = form.to_request(values)
    except InvalidRequest as error:
        return scripts.wrong_html(error.problems), "", "", ""
    names = command.told_apart({path: path.name for path in Call(request=request).files})
    call = Call(request=request, quality=values.quality, preset=handlers.preset(data), names=names)
    return (
        scripts.about_html([call.name(path) for path in dict.fromkeys(call.files)]),
        scripts.python_html(command.python(call, door)),
        scripts.no_curl_html() if videos is None else scripts.curl_html(*command.curl(call, videos)),
        scripts.shell_html(command.shell(call)),
    )


def door_of(request: gr.Request) -> Door:
    """The address the browser came by, also through a proxy, and who is logged in."""
    headers = request.headers
    host = headers.get("x-forwarded-host") or headers.get("host") or "127.0.0.1:7860"
    own = request.request.url.scheme if request.request is not None else "http"
    scheme = (headers.get("x-forwarded-proto") or own).split(",")[0].strip()
    return Door(url=f"{scheme}://{host.split(',')[0].strip()}", user=request.username or "")
