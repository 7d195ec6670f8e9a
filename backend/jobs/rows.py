"""How a job and its events are written into rows and read back, and the conditions rows are looked for by.

Knows columns and other versions' rows; connections and transactions are the store's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend import codec
from backend.events import Event, Notice
from backend.jobs.records import JobRecord, JobState, inside_out, outside_in
from backend.types import GenerationRequest, JobId


def columns_of(record: JobRecord) -> dict[str, Any]:
    """The columns of a new, waiting job, without its place in line."""
    return {
        "id": record.id,
        "owner": record.owner,
        "state": JobState.QUEUED.value,
        "request": request_text(record),
        "prompt": record.request.prompt,
        "preset": record.preset,
        "quality": record.quality,
        "title": record.title,
        "favourite": int(record.favourite),
        "tags": json.dumps(record.tags),
        "labels": json.dumps(record.labels),
        "tensors": str(record.tensors) if record.tensors else None,
        "created_at": record.created_at,
    }


def request_text(record: JobRecord) -> str:
    """The request as JSON, files in the job's folder by their names there."""
    return json.dumps(codec.encode(inside_out(record.request, record.folder)))


def record_of(row: sqlite3.Row, jobs_dir: Path) -> JobRecord:
    """The job of a row that also has `position`; one that cannot be read is given with its prompt and an error."""
    folder, error = jobs_dir / row["id"], row["error"]
    try:
        request = codec.decode(GenerationRequest, json.loads(row["request"]))
    except ValueError as unreadable:  # written by another version: the job is shown, and cannot run
        request = GenerationRequest(prompt=row["prompt"])
        error = error or f"The stored request cannot be read ({unreadable}); submit it anew."
    return JobRecord(
        id=JobId(row["id"]),
        owner=row["owner"],
        state=JobState(row["state"]),
        position=row["position"],
        request=outside_in(request, folder),
        preset=row["preset"],
        quality=row["quality"],
        title=row["title"],
        favourite=bool(row["favourite"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        video=folder / row["video"] if row["video"] else None,
        sidecar=folder / row["sidecar"] if row["sidecar"] else None,
        error=error,
        folder=folder,
        num_events=row["num_events"],
        tags=tuple(tuple(tags) for tags in json.loads(row["tags"])),
        labels=json.loads(row["labels"]),
        tensors=Path(row["tensors"]) if row["tensors"] else None,
    )


def event_of(seq: int, body: str, folder: Path) -> Event:
    """The event a row holds, its files inside the job's `folder`."""
    try:
        return outside_in(codec.decode_tagged(Event, json.loads(body)), folder)
    except ValueError:  # written by another version; its place in the numbering stays
        return Notice(seq=seq, message="Something happened that this version of the program cannot show.")


def conditions(owner: str | None, states: Sequence[JobState] | None, search: str) -> tuple[str, tuple[Any, ...]]:
    """A WHERE clause, or nothing, and its values; None leaves a condition out, as does an empty `search`."""
    parts: list[str] = []
    values: list[Any] = []
    if owner is not None:
        parts.append("owner = ?")
        values.append(owner)
    if states is not None:
        parts.append(f"state IN ({', '.join('?' * len(states))})")
        values += [JobState(state).value for state in states]
    if search.strip():
        escaped = search.strip().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        parts.append("(title LIKE ? ESCAPE '\\' OR prompt LIKE ? ESCAPE '\\')")
        values += [f"%{escaped}%"] * 2
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), tuple(values)
