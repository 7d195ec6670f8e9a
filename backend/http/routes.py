"""Every route beside the page, ready to be mounted.

Without a way to tell who asks there is no `/v1/videos`: an open one would let anybody spend the GPUs.
"""

from __future__ import annotations

from fastapi import APIRouter

from backend.api import Backend
from backend.http.files import files_router
from backend.http.guards import OwnerOf
from backend.http.health import health_router
from backend.http.videos import videos_router


def routers(backend: Backend, owner_of: OwnerOf | None = None) -> tuple[APIRouter, ...]:
    """`/health`, `/ready`, `/files`, and with `owner_of` (who sends a request, or None) `/v1/videos`."""
    always = (health_router(backend), files_router(backend, owner_of))
    return always if owner_of is None else (*always, videos_router(backend, owner_of))
