"""What stands before everything the port serves: known addresses only, bounded requests, uploads under quota.

An ASGI wrapper around the page and the routes beside it; it knows HTTP and quotas, nothing of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.api import Caps
from backend.http import guards

SLOW_BODY_S = 30.0  # between two pieces of a body
MAX_HEADER_BYTES = 32 * 2**10
MAX_FORM_BYTES = 8 * 2**20  # what the page sends when something is pressed; files go another way
UPLOAD_ROOM = 2**20  # multipart framing around one file
UPLOAD_MEMORY_S = 24 * 3600.0  # a file counts against its owner that long; then it is swept
_UPLOAD = "/gradio_api/upload"
# Everything the page needs, and no other of the routes that Gradio brings along (proxy, code editor, monitoring, ...).
_GRADIO = re.compile(
    r"/gradio_api/(?:info/?|startup-events|queue/(?:join|data|status)/?|heartbeat/[\w-]+|cancel|reset/?|upload"
    r"|upload_progress|file=.+|component_server/?|theme\.css|login_check/?|user/?|app_id/?|call/[\w/-]+)",
    re.ASCII,
)
_OTHERS = re.compile(
    r"/(?:|login/?|logout|config/?|theme\.css|favicon\.ico|robots\.txt|manifest\.json|health|ready"
    r"|(?:static|assets|svelte|studio|files|v1)/.+|v1/videos)",
    re.ASCII,
)
_MCP = re.compile(r"/gradio_api/mcp(?:/[\w/-]*)?", re.ASCII)  # only where whoever runs the server asked for it
log = logging.getLogger(__name__)


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class _Sent:
    """One upload, also while it comes in."""

    at: float
    owner: str | None
    count: int
    open: bool = True


class Gate:
    """Wraps `app`. `caps` is asked at each request; `owner_of` names who sends one (a login), None for visitors."""

    def __init__(
        self,
        app: ASGIApp,
        uploads: Path,
        caps: Callable[[], Caps],
        owner_of: Callable[[Scope], str | None],
        *,
        mcp: bool = False,
    ) -> None:
        self._app = app
        self._uploads = uploads
        self._caps = caps
        self._owner_of = owner_of
        self._sent: list[_Sent] = []
        self._mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # nothing here speaks over web sockets
        try:
            await self._pass(scope, receive, send)
        except _Refused as refusal:
            log.warning("request refused", extra={"path": scope["path"][:200], "why": str(refusal)})
            await _answer(refusal)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        path = scope["path"]
        if not (self._mcp and _MCP.fullmatch(path)):
            _check_address(path)
        _check_origin(scope["method"], headers)
        if path == _UPLOAD:
            await self._take_upload(scope, receive, send, headers)
            return
        cap = guards.MAX_BODY_BYTES + UPLOAD_ROOM if path.startswith("/v1/") else MAX_FORM_BYTES
        await self._run(scope, _Body(receive, headers, cap, "a request"), send)

    async def _take_upload(self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        caps, owner = self._caps(), self._owner_of(scope)
        cap = min(caps.file_bytes + UPLOAD_ROOM, await asyncio.to_thread(self._left, caps, owner))
        body = _Body(receive, headers, cap, "an upload")
        sent = _Sent(time.monotonic(), owner, body.told)
        self._sent.append(sent)
        try:
            await self._run(scope, body, _Answer(send, self._uploads))
        finally:
            sent.count, sent.open = body.seen, False

    async def _run(self, scope: Scope, body: _Body, send: Send) -> None:
        """The application, unless its body is refused on the way: then it sees a lost client, and its last words
        are dropped."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            if body.refusal is None or started:
                started = True
                await send(message)

        try:
            await self._app(scope, body, watched)
        except Exception as error:
            if not _left_its_tab(scope, error) and (body.refusal is None or started):
                raise
        if body.refusal is not None and not started:
            raise body.refusal

    def _left(self, caps: Caps, owner: str | None) -> int:
        """Bytes that may still be sent, by this owner and by all."""
        now = time.monotonic()
        self._sent = [sent for sent in self._sent if now - sent.at < UPLOAD_MEMORY_S]
        own = caps.upload_bytes_per_owner - sum(sent.count for sent in self._sent if sent.owner == owner)
        if owner is not None and own <= 0:
            raise _Refused(413, f"your files of today take all they may; {caps.sentence()}")
        left = caps.upload_bytes_in_all - _held(self._uploads) - sum(sent.count for sent in self._sent if sent.open)
        if left <= 0:
            raise _Refused(413, f"the place for uploads is full, try again later; {caps.sentence()}")
        return left if owner is None else min(own, left)


class _Answer:
    """The answer to an upload, a JSON list of paths. Gradio names folders by content, which can be guessed by whoever
    has the same file: each is moved to a folder with a name of its own before the browser hears of it."""

    def __init__(self, send: Send, uploads: Path) -> None:
        self._send = send
        self._uploads = uploads
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body") or self._start is None:
            return
        body, status = self._body, self._start["status"]
        if status == 200:
            try:
                body = json.dumps(await asyncio.to_thread(self._moved, json.loads(body))).encode()
            except FileNotFoundError:
                body, status = b'{"detail": "the same file was being sent twice; send it again"}', 409
        headers = [(name, value) for name, value in self._start["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _moved(self, paths: list[str]) -> list[str]:
        moved = []
        for path in map(Path, paths):
            target = self._uploads / secrets.token_urlsafe(18) / path.name
            target.parent.mkdir(mode=0o700)
            path.rename(target)  # not there when somebody else sent the same file this moment
            with contextlib.suppress(OSError):  # not empty: another file of the same content, still on its way
                path.parent.rmdir()
            moved.append(str(target))
        return moved


def _check_address(path: str) -> None:
    if not (_GRADIO.fullmatch(path) if path.startswith("/gradio_api/") else _OTHERS.fullmatch(path)):
        raise _Refused(404, "there is nothing at this address")
    _, _, file = path.partition("/gradio_api/file=")
    if file and re.match(r"\s*[a-z][a-z0-9+.-]*:", unquote(file), re.IGNORECASE):
        raise _Refused(403, "this server fetches nothing from elsewhere")


def _check_origin(method: str, headers: Mapping[str, str]) -> None:
    """403 for a changing request that a browser sends on behalf of another site's page."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    hosts = (headers.get("host"), headers.get("x-forwarded-host"))
    if site == "same-origin" or (site in (None, "none") and (origin is None or urlsplit(origin).netloc in hosts)):
        return
    raise _Refused(403, "this request comes from another site's page")


def _headers(scope: Scope) -> dict[str, str]:
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        raise _Refused(431, "the request's headers are too large")
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


class _Body:
    """`receive` that ends a body over `cap` bytes, or one that stalls: `refusal` then says why. `told` is the declared
    length, `seen` what came."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], cap: int, what: str) -> None:
        self._receive = receive
        self._cap = cap
        self._large = _Refused(413, f"{what} may take {cap / 2**20:.4g} MiB")
        self._over = False
        self.refusal: _Refused | None = None
        self.seen = 0
        text = headers.get("content-length", "0")
        if not text.isdigit():
            raise _Refused(400, "Content-Length is no number")
        if len(text) > 18 or int(text) > cap:
            raise self._large
        self.told = int(text)

    async def __call__(self) -> Message:
        if self.refusal is not None:
            return {"type": "http.disconnect"}
        if self._over:  # after the body only a disconnect can come, and for that one waits
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), SLOW_BODY_S)
        except TimeoutError:
            self.refusal = _Refused(408, f"nothing of the body came for {SLOW_BODY_S:g} s")
            return {"type": "http.disconnect"}
        self.seen += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        if self.seen > self._cap:
            self.refusal = self._large
            return {"type": "http.disconnect"}
        return message


def _left_its_tab(scope: Scope, error: Exception) -> bool:
    """Whether it only says that a tab left while its events were told: Gradio forgets the tab with the first of its
    streams that ends, and the others then miss it, each at another place (routes.py, `sse_stream`)."""
    if not str(scope["path"]).rstrip("/").endswith("/queue/data"):
        return False
    if isinstance(error, KeyError):
        return error.args[:1] == (_session_of(scope),)
    cause = error.__cause__  # Starlette's RuntimeError: an answer that has begun cannot become a 404
    return isinstance(error, RuntimeError) and isinstance(cause, HTTPException) and cause.status_code == 404


def _session_of(scope: Scope) -> str:
    return parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]


def _held(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _answer(refusal: _Refused) -> JSONResponse:
    body: dict[str, Any] = {"error": {"message": str(refusal), "code": refusal.status}, "detail": str(refusal)}
    return JSONResponse(body, status_code=refusal.status, headers={"Connection": "close"})
