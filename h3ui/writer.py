"""A language model that writes prompts: one OpenAI-compatible endpoint, asked only when somebody presses the button.

It talks to the address that whoever runs the server has set, and to no other; it knows nothing of the page.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from backend.errors import H3Error, Unavailable
from backend.settings import WriterSettings

MAX_ANSWER_CHARS = 20_000  # a prompt has 7,000; what goes on longer is cut off
MAX_LINE_BYTES = 2**20
CONNECT_S, SILENCE_S = 10.0, 120.0  # an endpoint may load its model before the first word
# Control characters, and those that turn the direction of text around: what is shown is what would be taken over.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_THOUGHTS = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)(?:\n```\s*)?\Z", re.DOTALL)


class WriterFailed(H3Error):
    """The endpoint did not write, in words a person can act on; it never holds the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture that is shown to the model: its tag, and a `data:` URL."""

    tag: str
    url: str


class Writer:
    """One endpoint. Raises Unavailable when its settings cannot be used."""

    def __init__(self, settings: WriterSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._address = _checked(settings)
        self._settings = settings
        self._transport = transport

    @property
    def model(self) -> str:
        """The name of the model that is asked."""
        return self._settings.model

    @property
    def host(self) -> str:
        """The machine that is asked, without the rest of the address."""
        return urlsplit(self._address).netloc

    async def write(self, brief: str, text: str, pictures: tuple[Picture, ...] = ()) -> AsyncIterator[str]:
        """Pieces of the answer as they come, at most MAX_ANSWER_CHARS in all.

        Raises WriterFailed where the endpoint refuses, breaks off, is silent for SILENCE_S, or says nothing; also
        after the last piece where the answer is not whole.
        """
        body = {"model": self._settings.model, "stream": True, "messages": _messages(brief, text, pictures)}
        headers = {"Authorization": f"Bearer {self._settings.key}"} if self._settings.key else {}
        count, ended = 0, ""
        try:
            async with (
                self._client() as client,
                client.stream("POST", self._address, json=body, headers=headers) as response,
            ):
                await self._check(response)
                async for piece, end in self._pieces(response):
                    ended = ended or end
                    kept = piece[: MAX_ANSWER_CHARS - count]
                    count += len(kept)
                    if kept:
                        yield kept
                    if count >= MAX_ANSWER_CHARS:
                        break
        except httpx.ConnectError as error:
            raise WriterFailed(f"{self.host} cannot be reached: is the server running there?") from error
        except httpx.TimeoutException as error:
            raise WriterFailed(f"{self.host} has been silent for too long; it was given up") from error
        except httpx.HTTPError as error:
            raise WriterFailed(f"{self.host} broke off: {self._clean(str(error) or type(error).__name__)}") from error
        if count == 0:
            raise WriterFailed(f"{self._settings.model} answered nothing")
        if count >= MAX_ANSWER_CHARS:
            raise WriterFailed(
                f"{self._settings.model} went on and on; the rest after {count:,} characters was left out"
            )
        if ended == "length":
            raise WriterFailed(f"{self.host} ended it at its own limit of length; allow longer answers there")
        if not ended:
            raise WriterFailed(f"{self.host} broke off before the end")

    def _client(self) -> httpx.AsyncClient:
        """A client that follows nobody elsewhere; a proxy of the environment is not for this machine itself."""
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        outside = not _is_here(urlsplit(self._address))
        return httpx.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=outside, transport=self._transport)

    async def _check(self, response: httpx.Response) -> None:
        """Raises WriterFailed for every answer that is none."""
        status = response.status_code
        if status == 200:
            return
        if response.is_redirect:
            raise WriterFailed(f"{self.host} sends elsewhere ({status}), which is not followed; set the final address")
        said = await self._said(response)
        words = {
            401: "does not accept the key",
            403: "does not accept the key",
            404: f"knows no model {self._settings.model}, or speaks no OpenAI protocol at this address",
            413: "finds the request too large; send no pictures",
            429: "has had too many requests; try again later",
        }.get(status, f"answered with error {status}")
        raise WriterFailed(f"{self.host} {words}{f': {said}' if said else ''}")

    async def _said(self, response: httpx.Response) -> str:
        held = b""
        async for chunk in response.aiter_bytes():
            held += chunk
            if len(held) > 10_000:
                break
        try:
            told = json.loads(held)
        except ValueError:
            return ""
        return self._clean(_error_of(told))

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[tuple[str, str]]:
        """Words of a stream of events, or of one whole answer from a server that does not stream; and why they end.

        The reason is "" while more is to come.
        """
        whole = "text/event-stream" not in response.headers.get("content-type", "")
        held = b""
        async for chunk in response.aiter_bytes():
            held += chunk
            if not whole:
                *lines, held = held.split(b"\n")
                for line in lines:
                    if line.strip() == b"data: [DONE]":
                        yield "", "stop"
                        return
                    if line.startswith(b"data:"):
                        yield self._words(line[5:])
            if len(held) > MAX_LINE_BYTES:
                raise WriterFailed(f"{self.host} sent something that is no answer")
        if whole and held.strip():
            words, end = self._words(held)
            yield words, end or "stop"
        elif held.startswith(b"data:"):  # a last line without its end
            yield ("", "stop") if held.strip() == b"data: [DONE]" else self._words(held[5:])

    def _words(self, raw: bytes) -> tuple[str, str]:
        try:
            told = json.loads(raw)
            if isinstance(told, dict) and told.get("error"):
                raise WriterFailed(f"{self.host} stopped: {self._clean(_error_of(told))}")
            choices = told["choices"]
            message = (choices[0].get("delta") or choices[0].get("message") or {}) if choices else {}
            words = message.get("content") or ""
            end = choices[0].get("finish_reason") if choices else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WriterFailed(f"{self.host} sent something that is no answer") from error
        return words if isinstance(words, str) else "", end if isinstance(end, str) else ""

    def _clean(self, words: str) -> str:
        """At most 200 characters of what the other side said, without the key."""
        key = self._settings.key
        return _UNSEEN.sub(" ", words.replace(key, "…") if key else words)[:200].strip()


def readable(answer: str) -> str:
    """What of an answer is the prompt: no thoughts before it, no fence around it, nothing that cannot be seen."""
    text = _UNSEEN.sub("", _THOUGHTS.sub("", answer).replace("\r\n", "\n"))
    fenced = _FENCE.match(text)
    return (fenced[1] if fenced else text).strip()


def _messages(brief: str, text: str, pictures: tuple[Picture, ...]) -> list[dict[str, Any]]:
    if not pictures:
        return [{"role": "system", "content": brief}, {"role": "user", "content": text}]
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for picture in pictures:
        content += [
            {"type": "text", "text": f"This is {picture.tag}:"},
            {"type": "image_url", "image_url": {"url": picture.url}},
        ]
    return [{"role": "system", "content": brief}, {"role": "user", "content": content}]


def _checked(settings: WriterSettings) -> str:
    """The address of chat completions. Raises Unavailable naming the setting that is wrong."""
    try:
        parts = urlsplit(settings.base_url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not port_is_fine or parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unavailable(f"writer: {settings.base_url!r} is no address; give for example http://127.0.0.1:11434/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise Unavailable("writer: the address must hold no user, password or query; the key is H3_WRITER_KEY")
    if not settings.model:
        raise Unavailable("writer: no model is named; give --writer-model or H3_WRITER_MODEL")
    path = parts.path.rstrip("/") or "/v1"
    return SplitResult(parts.scheme, parts.netloc, f"{path}/chat/completions", "", "").geturl()


def _is_here(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _error_of(told: Any) -> str:
    error = told.get("error", told.get("message", "")) if isinstance(told, dict) else ""
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
