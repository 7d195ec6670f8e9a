"""`/files/{job}/{name}`: results by unguessable id, for their owner or whoever holds the link's token.

Serves the fixed names of a succeeded job and nothing else; anything wrong is one and the same 404.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from backend.api import Backend
from backend.errors import JobNotFound
from backend.http.guards import OwnerOf, error_response
from backend.jobs.records import OUTPUT_NAMES
from backend.types import JobId

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=3600",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Content-Security-Policy": "default-src 'none'; media-src 'self'; img-src 'self'; sandbox",
}
_UNSAFE = re.compile(r"[^\w.-]+")


def files_router(backend: Backend, owner_of: OwnerOf | None = None) -> APIRouter:
    """The route. Without `owner_of`, only a token opens a file."""
    router = APIRouter()

    @router.api_route("/files/{job}/{name}", methods=["GET", "HEAD"])
    def file(request: Request, job: str, name: str, token: str | None = None, download: bool = False) -> Response:
        """The file, inline or as a download; answers `Range` with 206."""
        owner = owner_of(request) if owner_of is not None else None
        try:
            path = backend.file(JobId(job), name, owner=owner, token=token)
        except JobNotFound:
            return error_response(404, "there is no such file")
        return serve_file(path, download=download, title=f"h3-{job}")

    return router


def serve_file(path: Path, *, download: bool, title: str) -> FileResponse:
    """A result file with its own content type; `title` names the download."""
    return FileResponse(
        path,
        media_type=OUTPUT_NAMES[path.name],
        filename=f"{_UNSAFE.sub('-', title)}-{path.name}" if download else path.name,
        content_disposition_type="attachment" if download else "inline",
        headers=_HEADERS,
    )
