"""The server: HTTP routes of the backend, the page beside them, one port, and an orderly end.

It knows uvicorn and Gradio's mounting; it starts no job and loads no model.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import importlib.util
import logging
import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from backend.api import SHARED
from backend.errors import Unavailable
from backend.http import running
from backend.http.gate import Gate
from backend.settings import Settings
from h3ui.doorway import Doorway
from h3ui.markup import ASSETS_DIR

if TYPE_CHECKING:
    from backend.api import Backend

GRACE_S = 3  # open event streams get this long when the program ends
CLOSE_S = 11.5  # and the backend the rest: all is over within 15 s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Where and how the page is served. `auth` holds (user, password) pairs.

    A share link needs some, unless `share_open` says that anybody who has the link may use this machine. `admin` names
    the user who sees everybody's jobs, the first one when left out.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    share: bool = False
    share_open: bool = False
    auth: tuple[tuple[str, str], ...] = ()
    open_browser: bool = False
    admin: str | None = None
    accept_licence: bool = False
    space: bool = False  # in a Hugging Face Space: for strangers, and the port opens before the page is built
    mcp: bool = False  # also as tools for assistants
    finish_running: bool = False  # when stopped, let the running job end if it can within CLOSE_S


def serve(backend: Backend, settings: Settings, options: ServeOptions, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then close the backend. `announce` gets the address once the port is open.

    Raises Unavailable when the port is taken, or a share link is asked for without a password or the model's licence.
    """

    def announced(url: str) -> None:
        running.announce(settings, url)
        announce(url)

    errors: list[BaseException] = []

    def broken(error: BaseException) -> None:
        errors.append(error)
        server.should_exit = True

    try:
        grant(backend, options)
        _probe_port(options)
        page = functools.partial(build_app, backend, settings, options)
        server = _Server(Doorway(page, broken) if options.space else page(), options, announced)
        if options.share:
            announce(backend.caps.sentence())
        server.run()
        if errors:
            raise errors[0]
    finally:
        running.withdraw(settings)
        backend.close(options.finish_running, timeout_s=CLOSE_S)


def grant(backend: Backend, options: ServeOptions) -> None:
    """Who may do what, and how much, by how the page is served. Raises Unavailable for what must not be shared."""
    users = [user for user, _ in options.auth]
    twice = sorted({user for user in users if users.count(user) > 1})
    if twice:
        raise Unavailable(f"auth={twice[0]}: has two passwords; give each user one")
    if options.admin is not None and options.admin not in users:
        raise Unavailable(f"admin={options.admin}: there is no such user; give --auth {options.admin}:PASSWORD as well")
    if options.share and not users and not options.share_open:
        raise Unavailable(
            "share: a public link needs a password; give --auth USER:PASSWORD as well, or --share-open instead"
        )
    if options.mcp and users:
        raise Unavailable("mcp: tools of assistants cannot log in; serve without --auth, or without --mcp")
    if options.accept_licence:
        backend.accept_licence("--accept-licence")
    shared = options.share or options.space
    licence = backend.licence()
    if shared and licence is not None and not licence.accepted:
        then = "set the variable H3_ACCEPT_LICENCE=1" if options.space else "start with --accept-licence"
        raise Unavailable(
            f"share: running the model for others needs the {licence.name} ({licence.url}) to be accepted once; "
            f"read it, then {then}"
        )
    if users:
        backend.appoint(f"user:{options.admin or users[0]}")
    elif shared or options.host not in ("127.0.0.1", "localhost", "::1"):
        backend.appoint()  # nobody of the strangers rules
    if shared:
        backend.limit(SHARED)


def build_app(backend: Backend, settings: Settings, options: ServeOptions) -> Gate:
    """The application: `/health`, `/ready`, `/files`, `/studio` (icons) and the page at `/`, behind the gate."""
    prepare_process(settings)
    if options.mcp and importlib.util.find_spec("mcp") is None:
        raise Unavailable('mcp: needs the extra package; install it with: pip install "gradio[mcp]"')
    import gradio as gr  # after prepare_process: Gradio reads where uploads go when it is imported

    from backend.http.login import login
    from backend.http.routes import routers
    from h3ui import page, theme

    _fetch_nothing()
    app = FastAPI(title="H3 Studio", docs_url=None, redoc_url=None, openapi_url=None)
    open_link = (
        options.share or options.space
    ) and not options.auth  # strangers would share one owner there: they get the page only
    for router in routers(backend, None if open_link else login(options.auth)):
        app.include_router(router)
    app.mount("/studio/locales", StaticFiles(directory=ASSETS_DIR / "locales"), name="locales")
    app.mount("/studio", StaticFiles(directory=ASSETS_DIR / "icons"), name="studio")
    demo = page.build(backend, strangers=open_link)
    demo.queue(max_size=None, default_concurrency_limit=8)
    app = gr.mount_gradio_app(
        app,
        demo,
        path="/",
        server_name=options.host,
        server_port=options.port,
        auth=list(options.auth) or None,
        auth_message=theme.login_page(),
        allowed_paths=[],
        blocked_paths=[str(settings.jobs_dir), str(settings.database), str(settings.logs_dir)],
        max_file_size=backend.caps.file_bytes,
        show_error=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=options.mcp,
        run_history=False,
        footer_links=[],
        favicon_path=str(ASSETS_DIR / "icons" / "favicon.png"),
        theme=theme.studio(),
        css_paths=theme.styles(),
        head=f'<link rel="icon" href="studio/favicon.svg" type="image/svg+xml"><script>{theme.script()}</script>',
    )
    demo.has_launched = True  # mounting forgets it, and Gradio then takes any path a browser names for an upload
    return Gate(app, settings.uploads_dir, lambda: backend.caps, _users_of(app), mcp=options.mcp)


def _users_of(app: FastAPI) -> Callable[[Scope], str | None]:
    """Who is logged in on the page, by the cookie that Gradio gave."""
    mounted: list[Any] = [getattr(route, "app", None) for route in app.routes]
    pages = [page for page in mounted if hasattr(page, "tokens")]

    def user(scope: Scope) -> str | None:
        cookies = Request(scope).cookies
        for page in pages:
            for name in (f"access-token-{page.cookie_id}", f"access-token-unsecure-{page.cookie_id}"):
                if name in cookies and page.tokens.get(cookies[name]) is not None:
                    return f"user:{page.tokens[cookies[name]]}"
        return None

    return user


def _fetch_nothing() -> None:
    """Gradio downloads what a browser names by URL; here nothing is fetched on anybody's behalf."""
    from gradio import processing_utils

    async def refuse(*_: object) -> Any:
        raise ValueError("this server fetches nothing from elsewhere; upload the file")

    for name in ("async_ssrf_protected_download", "async_ssrf_protected_get"):
        setattr(processing_utils, name, refuse)


def prepare_process(settings: Settings) -> None:
    """Uploads go to our folder, nothing is reported home, the working directory, which Gradio serves, is empty."""
    settings.uploads_dir.mkdir(parents=True, exist_ok=True)
    empty = settings.run_dir / "page"
    empty.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_TEMP_DIR"] = str(settings.uploads_dir)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.chdir(empty)


def _not_a_cut_stream(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log is worth showing: a stream that ends because the program does is none."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError)


class _Server(uvicorn.Server):
    """uvicorn with our own signals: the first one ends in order, so that the backend is closed; the second at once."""

    def __init__(self, app: Gate | Doorway, options: ServeOptions, announce: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=options.host,
                port=options.port,
                log_level="warning",
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=5,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_not_a_cut_stream)
        self._options = options
        self._announce = announce

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours while serving: uvicorn's own raise the signal again at the end, which would kill us before the close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, then say where."""
        await super().startup(sockets=sockets)
        if self.should_exit:
            return
        shown = "127.0.0.1" if self._options.host in ("0.0.0.0", "::") else self._options.host
        url = f"http://{shown}:{self._options.port}"
        self._announce(url)
        if self._options.open_browser:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        if self._options.share:
            threading.Thread(target=self._share, daemon=True).start()

    def _share(self) -> None:
        from gradio import networking

        try:
            url = networking.setup_tunnel("127.0.0.1", self._options.port, secrets.token_urlsafe(32), None, None)
        except (OSError, RuntimeError, ValueError) as error:
            self._announce(f"no share link: {error}")
        else:
            self._announce(url)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _probe_port(options: ServeOptions) -> None:
    """Raises Unavailable in words before anything is built, instead of uvicorn's exit without a word."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((options.host, options.port))
        except (OSError, OverflowError) as error:
            if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
                rule = "is no address of this machine; leave --host out, or use 0.0.0.0 for all"
                raise Unavailable(f"host={options.host}: {rule}") from error
            raise Unavailable(
                f"port={options.port}: {getattr(error, 'strerror', None) or error} on {options.host}; "
                "choose another with --port"
            ) from error
