"""What has happened to a job since a client last asked, waiting a moment for more: no stream has to be kept open.

Events leave as JSON without paths of this machine; who may ask is the caller's question.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.concurrency import run_in_threadpool

from backend import codec
from backend.api import Backend
from backend.events import Event, Heartbeat, PreviewReady, Succeeded
from backend.media import kept
from backend.types import JobId

MAX_WAIT_S = 20.0  # proxies give up on a silent answer after half a minute
LOOK_S = 0.4


async def await_events(backend: Backend, job: JobId, owner: str, after: int, wait_s: float) -> list[dict[str, Any]]:
    """Events of `job` with `seq > after`, at once where there are any, else the first within `wait_s`, or [].

    Raises JobNotFound, also when the job is deleted meanwhile.
    """
    deadline = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
    while True:
        found = await run_in_threadpool(_since, backend, job, owner, after)
        ended = not found and (await run_in_threadpool(lambda: backend.job(job, owner=owner))).state.ended
        if found or ended or time.monotonic() >= deadline:
            return found
        await asyncio.sleep(LOOK_S)


def _since(backend: Backend, job: JobId, owner: str, after: int) -> list[dict[str, Any]]:
    events = backend.events(job, after, owner=owner, timeout_s=0)
    return [told(event) for event in events if not isinstance(event, Heartbeat)]


def told(event: Event) -> dict[str, Any]:
    """An event as JSON values, its class under "type", files by name and what a result says of itself by `kept`."""
    data = codec.encode_tagged(event)
    if isinstance(event, PreviewReady):
        data["path"] = event.path.name
    if isinstance(event, Succeeded):
        data |= {"video": event.video.name, "sidecar": event.sidecar.name, "details": kept.portable(event.details)}
    return data
