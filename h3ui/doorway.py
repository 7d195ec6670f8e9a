"""A port that is open at once: it says that the program starts, and hands over to the page as soon as that is built.

It knows ASGI; what is behind it, and how long that takes, it does not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

AGAIN_S = 2
PAGE = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>H3 Studio starts</title>"
    f"<meta http-equiv='refresh' content='{AGAIN_S}'><meta name='viewport' content='width=device-width'>"
    "<style>body{font:16px system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:0;"
    "color-scheme:light dark}p{opacity:.7}</style></head><body><main role='status'><h1>H3 Studio starts</h1>"
    "<p>The page opens by itself in a few seconds.</p></main></body></html>"
)


class Doorway:
    """An ASGI application that answers for another one while `build` makes it, in a thread.

    `broken` gets the error of a build that fails, after which nothing is served any more.
    """

    def __init__(self, build: Callable[[], ASGIApp], broken: Callable[[BaseException], None]) -> None:
        self._build = build
        self._broken = broken
        self._app: ASGIApp | None = None
        self._building: asyncio.Task[None] | None = None
        self._words: asyncio.Queue[Message] = asyncio.Queue()  # lifespan messages for the application
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._living: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what comes, or say that the program starts."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _starting(scope["path"], send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._building = asyncio.create_task(self._open())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._living is not None:
            await self._words.put({"type": "lifespan.shutdown"})
            await self._answers.get()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        try:
            app = await asyncio.to_thread(self._build)
            self._living = asyncio.create_task(self._alive(app))
            await self._words.put({"type": "lifespan.startup"})
            said = await self._answers.get()
            if said["type"] != "lifespan.startup.complete":
                raise RuntimeError(str(said.get("message") or "the page did not start"))
            self._app = app
        except BaseException as error:  # the outermost loop of this task: it reports
            self._broken(error)

    async def _alive(self, app: ASGIApp) -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._words.get, self._answers.put)


async def _starting(path: str, send: Send) -> None:
    """Healthy from the first moment, ready not yet; a page that asks again by itself."""
    status, kind, body = 503, b"application/json", json.dumps({"ready": False, "state": "starting", "reason": "starts"})
    if path == "/health":
        status, body = 200, json.dumps({"status": "healthy", "state": "starting", "reason": "starts"})
    elif path == "/":
        status, kind, body = 200, b"text/html; charset=utf-8", PAGE
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"retry-after", str(AGAIN_S).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})
