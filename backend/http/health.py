"""`/health` (the program answers) and `/ready` (a job would be served), told as they are, also while a model loads.

Knows `Backend.status` only.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from backend.api import Backend, Health


def health_router(backend: Backend) -> APIRouter:
    """Routes for whoever watches over the program; they tell no job ids."""
    router = APIRouter()

    @router.get("/health")
    def health() -> JSONResponse:
        """200 while the program lives and its dispatcher runs."""
        status = backend.status()
        alive = status.accepting
        body = {"status": "healthy" if alive else "unhealthy", "state": status.health.value, "reason": status.reason}
        return JSONResponse(body, status_code=200 if alive else 503)

    @router.get("/ready")
    def ready() -> JSONResponse:
        """200 when ready or busy, 503 with the reason while starting or after a failure."""
        status = backend.status()
        able = status.accepting and status.health in (Health.READY, Health.BUSY)
        body = {
            "ready": able,
            "state": status.health.value,
            "reason": status.reason,
            "preset": status.preset,
            "busy": status.running is not None,
            "queued": status.queued,
            "paused": status.paused,
        }
        return JSONResponse(body, status_code=200 if able else 503)

    return router
