"""`/v1/videos`: create, list, poll, fetch and delete, as OpenAI-style video clients expect, on the same jobs.

A failed job answers 200 with its error inside, so that a client shows the message. Steps count sigma points.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from backend.api import Backend, JobRecord, JobState
from backend.errors import NotNow
from backend.events import FramesDone, PreviewReady, StepDone
from backend.http.files import serve_file
from backend.http.forms import Asked, asked_by_form, asked_by_json
from backend.http.guards import GuardedRoute, OwnerOf
from backend.http.progress import await_events
from backend.types import FPS, STREAM_NAME, JobId

MAX_FIELDS, MAX_FILES = 64, 16
MAX_FIELD_BYTES = 128 * 2**20  # a data URL
MAX_LIST = 100
DELETE_WAIT_S = 8.0  # a running job stops at its next step
DENOISE_SHARE = 85  # per cent of a job's progress; the rest is decoding
_Seq = Annotated[int, Query(gt=-(2**63), lt=2**63)]  # what the database can compare
_Seconds = Annotated[float, Query(allow_inf_nan=False)]
_STATUS = {JobState.QUEUED: "queued", JobState.RUNNING: "in_progress", JobState.SUCCEEDED: "completed"}


def videos_router(backend: Backend, owner_of: OwnerOf) -> APIRouter:
    """The routes; each asks `owner_of` who is there and answers 401 to nobody."""
    router = APIRouter(prefix="/v1/videos", route_class=GuardedRoute)

    def owner(request: Request) -> str:
        who = owner_of(request)
        if who is None:
            raise HTTPException(401, "Unauthorized")
        return who

    @router.post("")
    async def create(request: Request) -> Response:
        who = owner(request)
        with _scratch(backend.settings.uploads_dir) as folder:
            asked = await _read(request, folder)
            job = await run_in_threadpool(
                lambda: backend.submit(asked.complete(backend), owner=who, quality=asked.quality, preset=asked.preset)
            )
            return JSONResponse(await run_in_threadpool(lambda: describe(backend, backend.job(job, owner=who))))

    @router.get("")
    def listing(request: Request, after: str = "", limit: int = MAX_LIST, order: str = "desc") -> Response:
        if not 0 <= limit <= MAX_LIST or order not in ("asc", "desc"):
            raise HTTPException(400, f"limit must be 0 to {MAX_LIST} and order asc or desc")
        page, more = _page(backend, owner(request), after, limit, order)
        return JSONResponse(
            {
                "object": "list",
                "data": [describe(backend, record) for record in page],
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
                "has_more": more,
            }
        )

    @router.get("/{job}")
    def poll(request: Request, job: str) -> Response:
        return JSONResponse(describe(backend, backend.job(JobId(job), owner=owner(request))))

    @router.get("/{job}/events")
    async def events(request: Request, job: str, after: _Seq = 0, wait: _Seconds = 0.0) -> Response:
        found = await await_events(backend, JobId(job), owner(request), after, wait)
        return JSONResponse({"object": "list", "data": found, "last_seq": found[-1]["seq"] if found else after})

    @router.get("/{job}/content")
    def content(request: Request, job: str) -> Response:
        who = owner(request)
        record = backend.job(JobId(job), owner=who)
        if record.state in (JobState.QUEUED, JobState.RUNNING):
            raise HTTPException(404, "Generation is still in-progress")
        if record.state is not JobState.SUCCEEDED:
            raise HTTPException(422, record.error or f"the job was {record.state}")
        path = backend.file(record.id, "video.mp4", owner=who)
        return serve_file(path, download=True, title=record.id)

    @router.delete("/{job}")
    def delete(request: Request, job: str) -> Response:
        who, what = owner(request), JobId(job)
        if not backend.job(what, owner=who).state.ended:
            with contextlib.suppress(NotNow):  # it ended this moment
                backend.cancel(what, owner=who)
            for _ in backend.events(what, owner=who, timeout_s=DELETE_WAIT_S):
                pass
        if not backend.job(what, owner=who).state.ended:
            raise HTTPException(409, "Cancellation in progress; ask again")
        backend.delete(what, owner=who)
        return JSONResponse({"id": job, "deleted": True, "object": "video.deleted"})

    return router


def _page(backend: Backend, who: str, after: str, limit: int, order: str) -> tuple[list[JobRecord], bool]:
    """Jobs behind `after` in `order`, at most `limit`, and whether there are more."""
    records = backend.page(
        owner=who, after=JobId(after) if after else None, limit=limit + 1, oldest_first=order == "asc"
    )
    return records[:limit], len(records) > limit


def describe(backend: Backend, record: JobRecord) -> dict[str, Any]:
    """A job as a VideoResponse."""
    sampling = record.request.sampling
    status = _STATUS.get(record.state, "failed")
    error = None
    if status == "failed":
        error = {"code": record.state.value, "message": record.error or f"the job was {record.state}"}
    spent = None
    if record.finished_at is not None and record.started_at is not None:
        spent = round(max(0.0, record.finished_at - record.started_at), 3)
    return {
        "id": record.id,
        "object": "video",
        "model": backend.model_name(record.preset),
        "prompt": record.request.prompt,
        "status": status,
        **_under_way(backend, record),
        "size": f"{sampling.width}x{sampling.height}",
        "seconds": f"{sampling.num_frames / FPS:.3f}",
        "quality": record.quality,
        "preset": record.preset,
        "seed": sampling.seed,
        "created_at": int(record.created_at),
        "completed_at": int(record.finished_at) if record.finished_at is not None else None,
        "expires_at": None,
        "error": error,
        "file_name": f"{record.id}.mp4",
        "media_type": "video/mp4",
        "inference_time_s": spent,
        "fps": FPS,
        "num_frames": sampling.num_frames,
        "duration_s": round(sampling.num_frames / FPS, 3),
        "position": record.position,
    }


def _under_way(backend: Backend, record: JobRecord) -> dict[str, Any]:
    """Per cent done, and of a running job where its newest small picture and its growing video are, from its events."""
    told: dict[str, Any] = {"progress": 0, "preview_url": None, "stream_url": None}
    if record.state is JobState.SUCCEEDED:
        told["progress"] = 100
    if record.state is not JobState.RUNNING:
        return told
    for event in backend.events(record.id, owner=record.owner, timeout_s=0):
        if isinstance(event, StepDone):
            told["progress"] = DENOISE_SHARE * event.step // event.steps
        elif isinstance(event, FramesDone):
            told["progress"] = DENOISE_SHARE + (99 - DENOISE_SHARE) * event.done // event.total
        elif isinstance(event, PreviewReady):
            kind = "stream_url" if event.path.name == STREAM_NAME else "preview_url"
            token = backend.file_token(record.id, owner=record.owner)
            told[kind] = f"/files/{record.id}/{event.path.name}?token={token}"
    return told


async def _read(request: Request, folder: Path) -> Asked:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the body is no JSON") from error
        return await run_in_threadpool(asked_by_json, body, folder)
    if kind not in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise HTTPException(415, "send multipart/form-data or application/json")
    async with request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES) as form:
        return await run_in_threadpool(asked_by_form, form, folder)


@contextlib.contextmanager
def _scratch(uploads: Path) -> Iterator[Path]:
    folder = uploads / f"http-{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
