"""`/files/{job}/{name}`: results by unguessable id, for their owner or whoever holds the link's token.

Serves the fixed names of a succeeded job and what a running one shows of itself, and nothing else; anything wrong is
one and the same 404.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from backend.api import Backend
from backend.errors import JobNotFound
from backend.http.guards import OwnerOf, error_response
from backend.jobs.records import OUTPUT_NAMES
from backend.types import LIVE_NAMES, STREAM_NAME, JobId

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=3600",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Content-Security-Policy": "default-src 'none'; media-src 'self'; img-src 'self'; sandbox",
}
_LIVE_HEADERS = {**_HEADERS, "Cache-Control": "private, no-store", "X-Accel-Buffering": "no"}
SILENCE_S = 600.0  # a decoder that gives nothing for that long has been given up by its deadline, too
_POLL_S = 0.05
_BLOCK_BYTES = 256 * 2**10
_UNSAFE = re.compile(r"[^\w.-]+")


def files_router(backend: Backend, owner_of: OwnerOf | None = None) -> APIRouter:
    """The route. Without `owner_of`, only a token opens a file."""
    router = APIRouter()

    @router.api_route("/files/{job}/{name}", methods=["GET", "HEAD"])
    def file(request: Request, job: str, name: str, token: str | None = None, download: bool = False) -> Response:
        """The file, inline or as a download; answers `Range` with 206."""
        owner = owner_of(request) if owner_of is not None else None
        try:
            if name in LIVE_NAMES:
                return serve_live(backend.live_file(JobId(job), name, owner=owner, token=token), request.method)
            path = backend.file(JobId(job), name, owner=owner, token=token)
        except JobNotFound:
            return error_response(404, "there is no such file")
        return serve_file(path, download=download, title=f"h3-{job}")

    return router


def serve_live(path: Path | None, method: str = "GET") -> Response:
    """What a running job shows: its newest picture, or its growing video, followed to its end.

    204 where there is nothing (any more): a page asks for what it heard of, and the job may have ended since.
    """
    nothing = Response(status_code=204, headers=_LIVE_HEADERS)
    if path is None:
        return nothing
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return nothing
    if path.name == STREAM_NAME:
        if method == "HEAD":
            file.close()
            return Response(media_type="video/mp4", headers=_LIVE_HEADERS)
        return StreamingResponse(follow(file), media_type="video/mp4", headers=_LIVE_HEADERS)
    with file:
        return Response(file.read(), media_type="image/png", headers=_LIVE_HEADERS)


async def follow(file: FileIO, silence_s: float = SILENCE_S) -> AsyncIterator[bytes]:
    """All of a growing file, as it grows, until whoever writes it has deleted it; closes it.

    The bytes of a deleted file can be read to its end by who has it open. Gives up after `silence_s` without any.
    """
    with file:
        heard = time.monotonic()
        while True:
            # Asked before the last bytes are read: what was written before the deletion is then seen.
            gone = os.fstat(file.fileno()).st_nlink == 0
            if block := file.read(_BLOCK_BYTES):
                heard = time.monotonic()
                yield block
            elif gone or time.monotonic() - heard > silence_s:
                return
            else:
                await asyncio.sleep(_POLL_S)


def serve_file(path: Path, *, download: bool, title: str) -> FileResponse:
    """A result file with its own content type; `title` names what is saved, for a browser asks this before a link."""
    return FileResponse(
        path,
        media_type=OUTPUT_NAMES[path.name],
        filename=f"{_UNSAFE.sub('-', title)}{path.suffix}",
        content_disposition_type="attachment" if download else "inline",
        headers=_HEADERS,
    )
