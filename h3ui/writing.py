"""What happens when the writer's buttons are pressed: one answer a tab, streamed into its preview, stopped at once.

It knows the panel and the endpoint's client; the prompt itself is changed by the person who takes the answer over.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from backend.api import SHARED
from h3ui.context_ir.brief import brief
from h3ui.form import MediaItem, Mode, PanelValues, all_tags
from h3ui.panels import writer as panel
from h3ui.panels.writer import WriterPanel
from h3ui.prompting import target_of
from h3ui.writer import Picture, Writer, WriterFailed, readable

if TYPE_CHECKING:
    from h3ui.handlers import Handlers

Updates = dict[Any, Any]
LONGEST_S = 300.0  # of one answer
BETWEEN_S = 0.15  # between two looks at it
MAX_IDEA_CHARS = 20_000
MAX_PICTURE_BYTES = 400_000  # posters are far smaller


@dataclass(slots=True)
class _Draft:
    """One answer while it comes."""

    text: str = ""
    done: bool = False
    failed: str = ""
    since: float = field(default_factory=time.monotonic)


class Writing:
    """Handlers of the writer; they hold who is writing in which tab, so that a tab can stop its own."""

    def __init__(self, writer: Writer, p: WriterPanel, handlers: Handlers) -> None:
        self._writer = writer
        self._panel = p
        self._handlers = handlers
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def write(self, data: dict[Any, Any], request: gr.Request) -> AsyncIterator[Updates]:
        """Ask for a prompt and show it as it comes. Gradio closes this generator when the tab is left."""
        p, tab = self._panel, str(request.session_hash)
        values = self._handlers.values(data)
        idea = str(data[p.idea] or "").strip() or values.prompt.strip()
        refused = self._refusal(idea, request)
        if refused:
            yield {p.preview: panel.failed_html(refused), p.choice: gr.update(visible=False)}
            return
        pictures = await asyncio.to_thread(pictures_of, values) if data[p.see] else ()
        draft = _Draft()
        await self._end(tab)
        task = asyncio.create_task(self._fill(draft, values, idea, pictures))
        self._tasks[tab] = task
        try:
            shown = None
            while not draft.done:
                now = (draft.text, int(time.monotonic() - draft.since))
                if now != shown:
                    shown = now
                    yield self._coming(draft, now[1], len(pictures))
                await asyncio.wait({task}, timeout=BETWEEN_S)
            yield self._finished(draft)
        finally:
            await self._end(tab, task)

    async def stop(self, request: gr.Request) -> None:
        """Stop what this tab waits for; what has come stays in the preview."""
        await self._end(str(request.session_hash))

    def clear(self) -> Updates:
        """Taken over or discarded: the preview is empty again."""
        p = self._panel
        return {p.preview: "", p.choice: gr.update(visible=False)}

    async def _fill(self, draft: _Draft, values: PanelValues, idea: str, pictures: tuple[Picture, ...]) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                pieces = self._writer.write(brief(target_of(values)), idea, pictures)
                async with contextlib.aclosing(pieces):  # type: ignore[type-var]
                    async for piece in pieces:
                        draft.text += piece
        except WriterFailed as error:
            draft.failed = str(error)
        except TimeoutError:
            draft.failed = f"{self._writer.host} took longer than {LONGEST_S / 60:g} minutes; it was given up"
        except asyncio.CancelledError:
            draft.failed = "" if draft.text else "It was stopped before the first word"
            raise
        finally:
            draft.done = True

    async def _end(self, tab: str, task: asyncio.Task[None] | None = None) -> None:
        """Cancel what `tab` has running, or only `task`, and wait until its connection is closed."""
        running = self._tasks.get(tab) if task is None else task
        if running is None:
            return
        if self._tasks.get(tab) is running:
            del self._tasks[tab]
        running.cancel()
        await asyncio.wait({running})

    def _refusal(self, idea: str, request: gr.Request) -> str:
        if self._handlers.backend.caps == SHARED and not getattr(request, "username", None):
            return "Visitors of a shared page cannot use the writer; log in first"
        if not idea:
            return "There is no idea yet, and the prompt above is empty: write a few words"
        if len(idea) > MAX_IDEA_CHARS:
            return f"The text is too long: at most {MAX_IDEA_CHARS:,} characters"
        return ""

    def _coming(self, draft: _Draft, seconds: int, pictures: int) -> Updates:
        p, text = self._panel, readable(draft.text)
        sent = f", {pictures} pictures sent" if pictures else ""
        status = f"Writing … {len(text):,} characters" if text else f"Waiting for the model … {seconds} s{sent}"
        return {
            p.preview: panel.preview_html(text, status),
            p.write: gr.update(visible=False),
            p.stop: gr.update(visible=True),
            p.choice: gr.update(visible=False),
        }

    def _finished(self, draft: _Draft) -> Updates:
        p, text = self._panel, readable(draft.text)
        failed = draft.failed or ("" if text else f"{self._writer.model} answered nothing that could be used")
        shown = panel.preview_html(text, "" if failed else f"{len(text):,} characters") if text else ""
        return {
            p.preview: shown + (panel.failed_html(failed, some=bool(text)) if failed else ""),
            p.write: gr.update(visible=True),
            p.stop: gr.update(visible=False),
            p.choice: gr.update(visible=bool(text)),
        }


def pictures_of(values: PanelValues) -> tuple[Picture, ...]:
    """Small copies, made in the sandbox, of what would be sent to the model: pictures, and a frame of each clip."""
    items = values.references
    if values.mode is Mode.FRAMES:
        items = tuple(frame for frame in (values.first_frame, values.last_frame) if frame is not None)
    if values.mode is Mode.TEXT:
        items = ()
    shown = []
    for item, tags in zip(items, all_tags(values), strict=True):
        url = _url_of(item)
        if url:
            shown.append(Picture(tag=tags[-1], url=url))
    return tuple(shown)


def _url_of(item: MediaItem) -> str:
    poster: Path | None = item.glimpse.poster
    try:
        content = poster.read_bytes() if poster is not None else b""
    except OSError:  # swept meanwhile: the model then sees one picture less, and the status says how many
        return ""
    fine = content and len(content) <= MAX_PICTURE_BYTES
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}" if fine else ""
