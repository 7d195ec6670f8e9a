"""The gate alone: quotas of uploads, stalled bodies, what passes untouched."""

import anyio
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from backend.api import SHARED, Caps
from backend.http import gate
from backend.http.gate import Gate

MIB = 2**20


class Page:
    """Stands for Gradio: stores what is uploaded under a folder named by content, and answers with its path."""

    def __init__(self, uploads):
        self.uploads = uploads
        self.bodies = []

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left")
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        folder = self.uploads / "content"
        folder.mkdir(exist_ok=True)
        (folder / "a.png").write_bytes(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": f'["{folder}/a.png"]'.encode()})


def ask(app, path="/gradio_api/upload", body=(b"",), headers=(), method="POST"):
    """(status, body) of one request whose body comes in pieces; None in `body` is a pause without end."""
    pieces, sent = list(body), []

    async def receive():
        piece = pieces.pop(0)
        if piece is None:
            await anyio.sleep(3600)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b""}
    anyio.run(app, scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture
def page(tmp_path):
    return Page(tmp_path)


def gate_of(page, caps, owner=None):
    return Gate(page, page.uploads, lambda: caps, lambda scope: owner)


def test_an_upload_moves_to_a_folder_of_its_own(page):
    app = gate_of(page, Caps())
    answers = [ask(app, body=[b"x" * 10, b"y"])[1] for _ in range(2)]
    assert answers[0] != answers[1]
    assert not (page.uploads / "content").exists()
    assert {path.read_bytes() for path in page.uploads.glob("*/a.png")} == {b"x" * 10 + b"y"}


def test_a_file_over_the_cap_is_refused_with_the_cap_declared_or_not(page):
    app = gate_of(page, Caps(file_bytes=MIB))
    length = (b"content-length", str(3 * MIB).encode())
    for request in ({"headers": [length]}, {"body": [b"x" * MIB] * 3}):
        status, body = ask(app, **request)
        assert (status, page.bodies) == (413, [])
        assert b"2 MiB" in body  # one for the file, one for the form around it


def test_quotas_of_one_user_and_of_all(page):
    caps = Caps(file_bytes=2 * MIB, upload_bytes_per_owner=3 * MIB, upload_bytes_in_all=5 * MIB)
    users = {name: gate_of(page, caps, name) for name in ("user:ann",)}
    ann = users["user:ann"]
    assert [ask(ann, body=[b"x" * MIB])[0] for _ in range(4)] == [200, 200, 200, 413]
    assert b"your files of today" in ask(ann, body=[b"x"])[1]
    anybody = gate_of(page, caps)
    assert [ask(anybody, body=[b"y" * MIB])[0] for _ in range(3)] == [200, 200, 413]  # three of ann's lie there already
    assert b"the place for uploads is full" in ask(anybody, body=[b"x"])[1]


def test_a_body_that_stalls_is_given_up(page, monkeypatch):
    monkeypatch.setattr(gate, "SLOW_BODY_S", 0.1)
    status, body = ask(gate_of(page, Caps()), body=[b"x", None, b"y"])
    assert status == 408
    assert b"nothing of the body came" in body


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ([], True),
        ([(b"origin", b"http://studio"), (b"host", b"studio")], True),
        ([(b"origin", b"http://studio"), (b"host", b"inner:7860"), (b"x-forwarded-host", b"studio")], True),
        ([(b"origin", b"https://studio"), (b"host", b"inner"), (b"sec-fetch-site", b"same-origin")], True),
        ([(b"origin", b"http://evil"), (b"host", b"studio")], False),
        ([(b"origin", b"null"), (b"host", b"studio")], False),
        ([(b"sec-fetch-site", b"cross-site")], False),
        ([(b"sec-fetch-site", b"same-site")], False),
    ],
)
def test_only_our_own_page_changes_anything(page, headers, passes):
    status, _ = ask(gate_of(page, Caps()), "/gradio_api/queue/join", headers=headers)
    assert (status == 200, bool(page.bodies)) == (passes, passes)


def test_the_limits_of_a_share_are_stated():
    assert "5 waiting jobs a person and 50 in all; files up to 256 MiB" in SHARED.sentence()


def test_a_tab_that_leaves_twice_is_no_error_but_any_other_missing_key_is():
    async def forgets(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("abc")

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        pass

    def scope(path, query):
        return {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": query}

    watched = Gate(forgets, None, Caps, lambda scope: None)
    anyio.run(watched, scope("/gradio_api/queue/data", b"session_hash=abc"), receive, send)
    for path, query in (("/gradio_api/queue/data", b"session_hash=other"), ("/health", b"session_hash=abc")):
        with pytest.raises(KeyError):
            anyio.run(watched, scope(path, query), receive, send)


@pytest.mark.parametrize(
    ("path", "code", "quiet"),
    [("/gradio_api/queue/data", 404, True), ("/gradio_api/queue/data", 500, False), ("/health", 404, False)],
)
def test_a_stream_that_misses_its_tab_is_no_error_but_any_other_one_is(path, code, quiet):
    async def misses():
        yield b"data: 1\n\n"
        raise HTTPException(code)

    async def endpoint(_request):
        return StreamingResponse(misses())

    app = Starlette(routes=[Route(path, endpoint)])
    client = TestClient(Gate(app, None, Caps, lambda scope: None))
    if quiet:
        assert client.get(path).text == "data: 1\n\n"
    else:
        with pytest.raises(RuntimeError, match="response already started"):
            client.get(path)
