"""The writer against servers on this machine that stream, refuse, stall, break off, redirect and lie."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from backend.api import SHARED
from backend.errors import Unavailable
from backend.settings import WriterSettings, writer_settings
from backend.types import Glimpse, MediaReport, ReferenceKind
from h3ui import writer as module
from h3ui.context_ir.brief import brief
from h3ui.context_ir.model import BASE_SECTIONS, REFERENCE_SECTIONS, Target
from h3ui.form import MediaItem, Mode, PanelValues
from h3ui.panels import writer as panel
from h3ui.panels.writer import WriterPanel
from h3ui.writer import MAX_ANSWER_CHARS, Picture, Writer, WriterFailed, readable
from h3ui.writing import Writing, pictures_of

KEY = "sk-very-secret"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@dataclass
class Endpoint:
    """A server on this machine, and what it was asked."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    open: int = 0


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()

    async def handle(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        endpoint.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
            )
            endpoint.heads.append(head)
            endpoint.bodies.append(json.loads(await reader.readexactly(length)))
            await answer(out)
            await out.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            endpoint.open -= 1
            out.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        server.close()


DONE = b"data: [DONE]\n\n"


def event(words: str, end: str | None = None) -> bytes:
    choice = {"delta": {"content": words}, "finish_reason": end}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def fixed(raw: bytes) -> Answer:
    async def answer(out: asyncio.StreamWriter) -> None:
        out.write(raw)

    return answer


def plain(status: str, body: object, extra: str = "") -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text.encode())}\r\n{extra}\r\n"
    return fixed(head.encode() + text.encode())


async def ask(
    answer: Answer, pictures: tuple[Picture, ...] = (), into: list[str] | None = None
) -> tuple[str, Endpoint]:
    pieces = [] if into is None else into  # kept where it fails after some
    async with serving(answer) as endpoint:
        made = Writer(WriterSettings(base_url=endpoint.url, model="small", key=KEY))
        async for piece in made.write("brief", "an idea", pictures):
            pieces.append(piece)
        return "".join(pieces), endpoint


def failure(answer: Answer) -> str:
    with pytest.raises(WriterFailed) as caught:
        asyncio.run(ask(answer))
    assert KEY not in str(caught.value)
    return str(caught.value)


def test_words_are_streamed_and_only_what_is_needed_is_sent():
    text, endpoint = asyncio.run(ask(fixed(EVENTS + event("A ") + b": ping\n\n" + event("boat 🎬") + DONE)))
    assert text == "A boat 🎬"
    (head,), (body,) = endpoint.heads, endpoint.bodies
    assert head.startswith("POST /v1/chat/completions HTTP/1.1") and f"Bearer {KEY}" in head
    assert body == {
        "model": "small",
        "stream": True,
        "messages": [{"role": "system", "content": "brief"}, {"role": "user", "content": "an idea"}],
    }


def test_pictures_are_sent_with_their_tags():
    shown = (Picture(tag="<Picture 1>", url="data:image/jpeg;base64,AA=="),)
    _, endpoint = asyncio.run(ask(fixed(EVENTS + event("x") + DONE), shown))
    content = endpoint.bodies[0]["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", "text", "image_url"]
    assert "<Picture 1>" in content[1]["text"] and content[2]["image_url"]["url"].startswith("data:image/jpeg")


def test_a_server_that_does_not_stream_is_understood():
    whole = {"choices": [{"message": {"content": "A boat."}}]}
    assert asyncio.run(ask(plain("200 OK", whole)))[0] == "A boat."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain("401 Unauthorized", {"error": {"message": f"bad key {KEY}"}}), "does not accept the key"),
        (plain("404 Not Found", {"error": "no such model"}), "knows no model small"),
        (plain("429 Too Many Requests", "{}"), "too many requests"),
        (plain("500 Server Error", "<html>" + "x" * 50_000), "error 500"),
        (plain("302 Found", "", "Location: http://169.254.169.254/latest\r\n"), "not followed"),
        (plain("200 OK", "<html>hello</html>"), "no answer"),
        (plain("200 OK", {"choices": "?"}), "no answer"),
        (fixed(EVENTS + event("A") + b'data: {"error": {"message": "out of memory"}}\n\n'), "stopped: out of memory"),
        (fixed(EVENTS + b"data: {nonsense\n\n"), "no answer"),
        (fixed(EVENTS + b"data: " + b"[" * 5000 + b"\n\n"), "no answer"),
        (fixed(EVENTS + DONE), "answered nothing"),
        (fixed(EVENTS + b"x" * (2 * 2**20)), "no answer"),
        (fixed(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"), "broke off"),
        (fixed(b"SSH-2.0-OpenSSH\r\n"), "broke off"),
    ],
)
def test_what_goes_wrong_is_said_in_words(answer, words):
    assert words in failure(answer)


def test_an_endless_answer_is_cut_off_and_the_connection_closed():
    async def endless(out: asyncio.StreamWriter) -> None:
        out.write(EVENTS)
        while True:
            out.write(event("na " * 100))
            await out.drain()
            await asyncio.sleep(0)

    async def run() -> tuple[str, int]:
        pieces: list[str] = []
        async with serving(endless) as endpoint:
            made = Writer(WriterSettings(base_url=endpoint.url, model="small", key=KEY))
            with pytest.raises(WriterFailed, match="went on and on; the rest after 20,000 characters"):
                async for piece in made.write("brief", "an idea"):
                    pieces.append(piece)
            await asyncio.sleep(0.1)
            return "".join(pieces), endpoint.open

    text, still_open = asyncio.run(run())
    assert (len(text), still_open) == (MAX_ANSWER_CHARS, 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (fixed(EVENTS + event("A boat")), "broke off before the end"),
        (fixed(EVENTS + event("A boat", "length") + DONE), "own limit of length"),
        (plain("200 OK", {"choices": [{"message": {"content": "A boat"}, "finish_reason": "length"}]}), "own limit"),
        (fixed(EVENTS + event("A ") + event("boat", "stop")), None),
        (fixed(EVENTS + event("A boat") + b"data: [DONE]"), None),
        (fixed(EVENTS + event("A ") + event("boat", "stop").strip()), None),
    ],
)
def test_an_answer_that_is_not_whole_is_given_and_said_to_be_so(answer, words):
    pieces: list[str] = []
    with pytest.raises(WriterFailed, match=words) if words else contextlib.nullcontext():
        asyncio.run(ask(answer, into=pieces))
    assert "".join(pieces) == "A boat"
    said = panel.failed_html("why", some=True)
    assert "not the whole answer" in said and "Nothing was written" not in said


def test_silence_is_given_up(monkeypatch):
    async def silent(out: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2)

    monkeypatch.setattr(module, "SILENCE_S", 0.2)
    assert "silent for too long" in failure(silent)


def test_nobody_there_is_said_so():
    made = Writer(WriterSettings(base_url="http://127.0.0.1:9", model="small"))
    with pytest.raises(WriterFailed, match="cannot be reached"):
        asyncio.run(anext(made.write("brief", "idea")))


def test_the_key_is_in_no_log_and_no_text(caplog):
    caplog.set_level(logging.DEBUG)
    asyncio.run(ask(fixed(EVENTS + event("x") + DONE)))
    settings = WriterSettings(base_url="http://a/v1", model="m", key=KEY)
    assert KEY not in caplog.text and KEY not in repr(settings)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a/v1", "is no address"),
        ("localhost:11434", "is no address"),
        ("http://user:pw@a/v1", "no user"),
        ("http://a/v1?key=1", "no user, password or query"),
        ("http://a:99999/v1", "is no address"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_the_start(url, words):
    with pytest.raises(Unavailable, match=words):
        Writer(WriterSettings(base_url=url, model="m"))
    with pytest.raises(Unavailable, match="no model"):
        Writer(WriterSettings(base_url="http://a", model=""))


def test_settings_come_from_arguments_before_the_environment(monkeypatch):
    monkeypatch.delenv("H3_WRITER_URL", raising=False)
    assert writer_settings() is None
    monkeypatch.setenv("H3_WRITER_URL", "http://env/v1")
    monkeypatch.setenv("H3_WRITER_MODEL", "one")
    monkeypatch.setenv("H3_WRITER_KEY", KEY)
    assert writer_settings(model="two") == WriterSettings(base_url="http://env/v1", model="two", key=KEY)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<think>hm\nhm</think>\n\nA boat.", "A boat."),
        ("<think>still thinking", ""),
        ("```text\nA boat.\n```", "A boat."),
        ("A\r\nboat\u202e.\x00\x1b[31m", "A\nboat.[31m"),
        ("  plain \n", "plain"),
    ],
)
def test_only_the_prompt_is_kept_of_an_answer(answer, text):
    assert readable(answer) == text


def test_what_a_model_writes_is_text_and_never_markup():
    shown = panel.preview_html("<script>alert(1)</script><img src=x onerror=alert(1)>", "<b>")
    assert "<script" not in shown and "<img" not in shown and "<b>" not in shown


def test_the_brief_names_the_form_the_seconds_and_the_references():
    base = brief(Target(num_frames=192, last_frame=True, tags=(("<Picture 1>",),)))
    assert all(name in base for name in BASE_SECTIONS) and "8.00-second mark" in base
    refs = brief(Target(references=True, tags=(("<Audio 1>", "<Video 1>"),)))
    assert all(f"{name}" in refs for name in REFERENCE_SECTIONS) and "<Audio 1> and <Video 1>" in refs


# The handlers


def item(path, poster, kind=ReferenceKind.IMAGE) -> MediaItem:
    report = MediaReport(name=path.name, kind=kind, container="JPEG")
    return MediaItem(path=path, report=report, glimpse=Glimpse(poster=poster))


def test_pictures_are_the_sandboxes_own_small_copies(tmp_path):
    poster = tmp_path / "poster.jpg"
    poster.write_bytes(b"small copy")
    there, gone = item(tmp_path / "a.png", poster), item(tmp_path / "b.png", tmp_path / "swept.jpg")
    values = PanelValues(prompt="x", mode=Mode.REFERENCES, references=(gone, there))
    (shown,) = pictures_of(values)
    assert (shown.tag, base64.b64decode(shown.url.split(",")[1])) == ("<Picture 2>", b"small copy")
    assert pictures_of(PanelValues(prompt="x", mode=Mode.TEXT, references=(there,))) == ()


def writing(url: str, *, caps: object = None, values: PanelValues | None = None) -> Writing:
    names = ("idea", "see", "write", "stop", "preview", "choice", "take", "discard")
    made = Writer(WriterSettings(base_url=url, model="small", key=KEY))
    backend = types.SimpleNamespace(caps=caps)
    handlers = types.SimpleNamespace(backend=backend, values=lambda data: values or PanelValues(prompt="A boat."))
    return Writing(made, WriterPanel(writer=made, **{name: name for name in names}), handlers)


def tab(name: str = "t", username: str | None = None) -> types.SimpleNamespace:
    return types.SimpleNamespace(session_hash=name, username=username)


async def shown_by(writer: Writing, idea: str = "", request: object = None) -> list[dict]:
    return [update async for update in writer.write({"idea": idea, "see": False}, request or tab())]


def test_the_preview_grows_and_ends_with_a_choice():
    async def run() -> tuple[list[dict], Endpoint]:
        async def slow(out: asyncio.StreamWriter) -> None:
            out.write(EVENTS)
            for word in ("One ", "two ", "three."):
                await asyncio.sleep(0.25)
                out.write(event(word))
                await out.drain()

        async with serving(slow) as endpoint:
            return await shown_by(writing(endpoint.url)), endpoint

    updates, endpoint = asyncio.run(run())
    assert endpoint.bodies[0]["messages"][1]["content"] == "A boat."  # no idea: the prompt is rewritten
    previews = [update["preview"] for update in updates]
    assert "Waiting for the model" in previews[0] and any("One two" in text for text in previews[1:-1])
    assert "One two three." in previews[-1] and updates[-1]["choice"]["visible"] is True
    assert updates[0]["stop"]["visible"] is True and updates[-1]["stop"]["visible"] is False


def test_stopping_closes_the_connection_at_once_and_keeps_what_came():
    async def run() -> tuple[list[dict], int]:
        async def hanging(out: asyncio.StreamWriter) -> None:
            out.write(EVENTS + event("Half a"))
            await out.drain()
            while not out.is_closing():
                out.write(b": ping\n\n")
                await out.drain()
                await asyncio.sleep(0.05)

        async with serving(hanging) as endpoint:
            made, updates = writing(endpoint.url), []
            async for update in made.write({"idea": "x", "see": False}, tab()):
                updates.append(update)
                if "Half a" in update["preview"]:
                    await made.stop(tab("another"))
                    assert endpoint.open == 1  # somebody else's button stops nothing here
                    await made.stop(tab())
            await asyncio.sleep(0.3)
            return updates, endpoint.open

    updates, still_open = asyncio.run(run())
    assert "Half a" in updates[-1]["preview"] and updates[-1]["choice"]["visible"] is True
    assert still_open == 0


def test_leaving_the_tab_closes_the_connection():
    async def run() -> int:
        async def hanging(out: asyncio.StreamWriter) -> None:
            out.write(EVENTS)
            while not out.is_closing():
                out.write(b": ping\n\n")
                await out.drain()
                await asyncio.sleep(0.05)

        async with serving(hanging) as endpoint:
            shown = writing(endpoint.url).write({"idea": "x", "see": False}, tab())
            await anext(shown)
            await asyncio.sleep(0.2)
            await shown.aclose()
            await asyncio.sleep(0.3)
            return endpoint.open

    assert asyncio.run(run()) == 0


def test_a_failure_is_shown_in_the_panel():
    async def run() -> list[dict]:
        async with serving(plain("404 Not Found", {"error": "<b>none</b>"})) as endpoint:
            return await shown_by(writing(endpoint.url), "x")

    last = asyncio.run(run())[-1]
    assert "knows no model small" in last["preview"] and "<b>none" not in last["preview"]
    assert last["choice"]["visible"] is False


def test_nothing_is_sent_without_an_idea_or_for_a_visitor_of_a_shared_page():
    async def run() -> tuple[str, str, Endpoint]:
        async with serving(fixed(EVENTS + event("x"))) as endpoint:
            (empty,) = await shown_by(writing(endpoint.url, values=PanelValues(prompt=" ")))
            (visitor,) = await shown_by(writing(endpoint.url, caps=SHARED), "x")
            await shown_by(writing(endpoint.url, caps=SHARED), "x", tab(username="anna"))
            return empty["preview"], visitor["preview"], endpoint

    empty, visitor, endpoint = asyncio.run(run())
    assert "There is no idea yet" in empty and "Visitors of a shared page" in visitor
    assert len(endpoint.bodies) == 1  # only Anna's
