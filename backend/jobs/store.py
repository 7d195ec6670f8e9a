"""Durable jobs: rows and their event log in SQLite, with exactly one end for each job held by the database itself.

Knows how jobs are kept; it starts nothing and notifies nobody.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend import codec
from backend.errors import H3Error, JobNotFound, NotNow
from backend.events import TERMINAL, Event, Failed, Interrupted, Queued, Started, Succeeded
from backend.jobs.caps import Crowd
from backend.jobs.records import END_STATES, JobRecord, JobState, error_of, inside_out
from backend.jobs.rows import columns_of, conditions, event_of, record_of, request_text
from backend.jobs.schema import open_database, start_anew
from backend.types import JobId

log = logging.getLogger(__name__)
RESERVE_BYTES = 512 * 2**10
_DAMAGE = ("malformed", "not a database", "disk image")
_POSITION = """CASE WHEN state = 'queued' THEN
    (SELECT COUNT(*) FROM jobs AS w WHERE w.state = 'queued' AND w.place <= jobs.place) END AS position"""


class StoreFailure(H3Error):
    """The database could not be read or written (locked, disk full, damaged), in words."""


class DiskFull(StoreFailure):
    """The disk takes no more."""


class JobStore:
    """All jobs of one data folder. Safe to call from any thread; every write is one transaction."""

    def __init__(self, database: Path, jobs_dir: Path) -> None:
        self.jobs_dir = jobs_dir
        self._lock = threading.RLock()
        self._connection, self.notice = open_database(database)
        self._database = database
        self._reserve = database.with_name(f"{database.name}.reserve")
        self.keep_reserve()
        with self._reading():
            self.secret: str = self._connection.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()[0]

    def close(self) -> None:
        """Close the database; idempotent."""
        with self._lock:
            self._connection.close()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def add(self, record: JobRecord, position: int) -> Event:
        """Add a waiting job behind all others, with its first event. Both are on the disk when this returns."""
        columns = columns_of(record)
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        place = "(SELECT COALESCE(MAX(place), 0) + 1 FROM jobs)"
        with self._writing(durable=True) as connection:
            connection.execute(f"INSERT INTO jobs ({names}, place) VALUES ({marks}, {place})", tuple(columns.values()))
            event = self._append(connection, record.id, Queued(position=position))
        log.info("job accepted", extra={"job": record.id, "owner": record.owner, "preset": record.preset})
        return event

    def get(self, job: JobId) -> JobRecord:
        """The record of `job`; raises JobNotFound."""
        with self._reading() as connection:
            row = connection.execute(f"SELECT *, {_POSITION} FROM jobs WHERE id = ?", (job,)).fetchone()
        if row is None:
            raise JobNotFound(f"job={job}: there is no such job")
        return record_of(row, self.jobs_dir)

    def select(
        self,
        *,
        owner: str | None,
        states: Sequence[JobState] | None = None,
        search: str = "",
        favourite: bool = False,
        limit: int = 50,
        offset: int = 0,
    ) -> list[JobRecord]:
        """Records, newest first; `owner=None` means everybody's. `search` looks in titles and prompts, `favourite`
        leaves only those that were marked."""
        where, values = conditions(owner, states, search)
        if favourite:
            where = f"{where} {'AND' if where else 'WHERE'} favourite = 1"
        query = f"SELECT *, {_POSITION} FROM jobs {where} ORDER BY num DESC LIMIT ? OFFSET ?"
        with self._reading() as connection:
            rows = connection.execute(query, (*values, max(0, limit), max(0, offset))).fetchall()
        return [record_of(row, self.jobs_dir) for row in rows]

    def page(self, *, owner: str | None, after: JobId | None, limit: int, oldest_first: bool) -> list[JobRecord]:
        """At most `limit` records behind the job `after` in that order; from the start when it is None or gone."""
        where, values = conditions(owner, None, "")
        order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
        with self._reading() as connection:
            row = connection.execute("SELECT num FROM jobs WHERE id = ?", (after,)).fetchone()
            if row is not None:
                where, values = f"{where} {'AND' if where else 'WHERE'} num {beyond} ?", (*values, row["num"])
            query = f"SELECT *, {_POSITION} FROM jobs {where} ORDER BY num {order} LIMIT ?"
            rows = connection.execute(query, (*values, max(0, limit))).fetchall()
        return [record_of(row, self.jobs_dir) for row in rows]

    def crowd(self, owner: str) -> Crowd:
        """How many jobs wait, of `owner` and in all, and the bytes of media that wait with the owner's."""
        query = "SELECT id, owner FROM jobs WHERE state = 'queued'"
        with self._reading() as connection:
            rows = connection.execute(query).fetchall()
        own = [self.jobs_dir / row["id"] / "inputs" for row in rows if row["owner"] == owner]
        held = sum(path.stat().st_size for folder in own for path in folder.glob("*"))
        return Crowd(own=len(own), all=len(rows), own_media_bytes=held)

    def removable_results(self) -> list[JobId]:
        """Succeeded jobs that are nobody's favourites, oldest first."""
        query = "SELECT id FROM jobs WHERE state = 'succeeded' AND favourite = 0 ORDER BY num"
        with self._reading() as connection:
            return [JobId(row["id"]) for row in connection.execute(query).fetchall()]

    def note(self, key: str) -> str:
        """A word kept for the program itself, such as whether the queue is paused; empty when never set."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (f"note:{key}",)).fetchone()
        return row[0] if row is not None else ""

    def set_note(self, key: str, value: str) -> None:
        """Keep a word over restarts."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"note:{key}", value))

    def waiting(self) -> list[JobRecord]:
        """All waiting jobs in the order they will run."""
        query = "SELECT *, NULL AS position FROM jobs WHERE state = 'queued' ORDER BY place"
        with self._reading() as connection:
            rows = connection.execute(query).fetchall()
        return [dataclasses.replace(record_of(row, self.jobs_dir), position=index) for index, row in enumerate(rows, 1)]

    def running(self) -> list[JobId]:
        """Jobs stored as running; after a restart, those that were cut off."""
        with self._reading() as connection:
            rows = connection.execute("SELECT id FROM jobs WHERE state = 'running' ORDER BY num").fetchall()
        return [JobId(row["id"]) for row in rows]

    def ended(self) -> list[JobId]:
        """Jobs that have ended, in the order they were accepted."""
        query = "SELECT id FROM jobs WHERE state NOT IN ('queued', 'running') ORDER BY num"
        with self._reading() as connection:
            return [JobId(row["id"]) for row in connection.execute(query).fetchall()]

    def ended_of(self, owner: str | None) -> list[JobId]:
        """Jobs of `owner` that have ended, `None` meaning everybody's."""
        where, values = conditions(owner, [state for state in JobState if state.ended], "")
        with self._reading() as connection:
            return [JobId(row["id"]) for row in connection.execute(f"SELECT id FROM jobs {where}", values).fetchall()]

    def exists(self, job: str) -> bool:
        """Whether there is a row for `job`."""
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchone() is not None

    def set_order(self, jobs: Sequence[JobId]) -> None:
        """Give waiting jobs this order; `jobs` names all of them."""
        with self._writing() as connection:
            first = connection.execute("SELECT COALESCE(MIN(place), 0) FROM jobs WHERE state = 'queued'").fetchone()[0]
            pairs = [(first + index, job) for index, job in enumerate(jobs)]
            connection.executemany("UPDATE jobs SET place = ? WHERE id = ? AND state = 'queued'", pairs)

    def set_request(self, record: JobRecord) -> None:
        """Replace request, quality, title, tags and labels of a waiting job; raises NotNow when it waits no longer."""
        text = request_text(record)
        said = (record.request.prompt, record.quality, record.title, json.dumps(record.tags), json.dumps(record.labels))
        with self._writing(durable=True) as connection:
            done = connection.execute(
                "UPDATE jobs SET request = ?, prompt = ?, quality = ?, title = ?, tags = ?, labels = ? "
                "WHERE id = ? AND state = 'queued'",
                (text, *said, record.id),
            )
            if done.rowcount == 0:
                raise NotNow(f"job={record.id}: only a waiting job can be edited; duplicate it instead")

    def set_title(self, job: JobId, title: str) -> None:
        """Rename a job."""
        with self._writing() as connection:
            connection.execute("UPDATE jobs SET title = ? WHERE id = ?", (title, job))

    def set_favourite(self, job: JobId, favourite: bool) -> None:
        """Mark or unmark a job."""
        with self._writing() as connection:
            connection.execute("UPDATE jobs SET favourite = ? WHERE id = ?", (int(favourite), job))

    def delete(self, job: JobId) -> None:
        """Remove the row and its events; the folder is not touched."""
        with self._writing(durable=True) as connection:
            connection.execute("DELETE FROM jobs WHERE id = ?", (job,))

    # -- events -------------------------------------------------------------------------------------------------

    def append(self, job: JobId, event: Event) -> Event:
        """Store `event` as the job's next one and return it with `seq` and `at`.

        `Started` and the ends change the job's state in the same transaction. Raises NotNow when the job has ended.
        """
        return self.append_all([(job, event)])[0]

    def append_all(self, events: Iterable[tuple[JobId, Event]]) -> list[Event]:
        """`append` for several jobs in one transaction: all of them or none."""
        items = list(events)
        durable = any(isinstance(event, TERMINAL) for _, event in items)
        try:
            stored = self._store_all(items, durable)
        except DiskFull:
            if not durable or not self._reserve.is_file():
                raise
            self._reserve.unlink()  # an end must be told also on a full disk: this is what the room is kept for
            stored = self._store_all(items, durable)
        except sqlite3.IntegrityError as error:
            raise NotNow("the job has ended already; its end does not change") from error
        for (job, _), event in zip(items, stored, strict=True):
            _journal(job, event)
        return stored

    def keep_reserve(self) -> None:
        """Set some room on the disk aside for the ends of jobs; where there is none now, a later call may find some."""
        if self._reserve.is_file():
            return
        try:
            self._reserve.write_bytes(os.urandom(RESERVE_BYTES))  # no file system makes zeros of these
        except OSError:
            self._reserve.unlink(missing_ok=True)

    def _store_all(self, items: list[tuple[JobId, Event]], durable: bool) -> list[Event]:
        with self._writing(durable=durable) as connection:
            return [self._append(connection, job, event) for job, event in items]

    def events(self, job: JobId, after: int = 0) -> list[Event]:
        """Stored events of `job` with `seq > after`, in order."""
        query = (
            "SELECT e.seq, e.body FROM events AS e JOIN jobs AS j ON j.num = e.job "
            "WHERE j.id = ? AND e.seq > ? ORDER BY e.seq"
        )
        with self._reading() as connection:
            rows = connection.execute(query, (job, after)).fetchall()
        folder = self.jobs_dir / job
        return [event_of(row["seq"], row["body"], folder) for row in rows]

    def _append(self, connection: sqlite3.Connection, job: JobId, event: Event) -> Event:
        row = connection.execute("SELECT num, num_events FROM jobs WHERE id = ?", (job,)).fetchone()
        if row is None:
            raise JobNotFound(f"job={job}: there is no such job")
        folder, now = self.jobs_dir / job, time.time()
        event = dataclasses.replace(event, seq=row["num_events"] + 1, at=now)
        body = json.dumps(codec.encode_tagged(inside_out(event, folder)))
        terminal = isinstance(event, TERMINAL)
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (row["num"], event.seq, int(terminal), body))
        changes: dict[str, Any] = {"num_events": event.seq}
        if isinstance(event, Started):
            changes |= {"state": JobState.RUNNING.value, "started_at": now}
        elif isinstance(event, TERMINAL):
            changes |= {"state": END_STATES[type(event)].value, "finished_at": now, "error": error_of(event)}
            if isinstance(event, Succeeded):
                inner = inside_out(event, folder)
                changes |= {"video": str(inner.video), "sidecar": str(inner.sidecar)}
        assignments = ", ".join(f"{name} = ?" for name in changes)
        connection.execute(f"UPDATE jobs SET {assignments} WHERE num = ?", (*changes.values(), row["num"]))
        return event

    # -- transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._failure(error) from error

    @contextmanager
    def _writing(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        # Progress may be lost with the power; an accepted job and its end may not: those wait for the disk.
        with self._lock:
            connection = self._connection
            try:
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error as error:
                raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> StoreFailure:
        """What to raise for `error`; a damaged database is replaced first, with the jobs that can still be read."""
        words = self._words(error)
        if "full" in str(error):
            return DiskFull(words)
        if not any(sign in str(error) for sign in _DAMAGE):
            return StoreFailure(words)
        try:
            self._connection.close()
            self._connection, self.notice = start_anew(self._database, str(error))
        except (sqlite3.Error, OSError) as worse:
            return StoreFailure(f"{words} ({worse})")
        return StoreFailure(f"{self._database.name}: the job database was damaged ({error}). {self.notice}")

    def _words(self, error: sqlite3.Error) -> str:
        text = str(error)
        if "locked" in text or "busy" in text:
            way_out = "another program holds it; close that program"
        elif "full" in text:
            way_out = "the disk is full; free some space"
        else:
            way_out = "check the disk; a damaged database is set aside at the next start"
        return f"{self._database.name}: the job database failed ({text}); {way_out}"


def _journal(job: JobId, event: Event) -> None:
    """One line in the program's log for the start and the end of a job."""
    if isinstance(event, Started):
        log.info("job started", extra={"job": job, "preset": event.preset, "engine": event.engine})
    elif isinstance(event, TERMINAL):
        level = logging.WARNING if isinstance(event, Failed | Interrupted) else logging.INFO
        end = {"job": job, "state": END_STATES[type(event)].value, "reason": error_of(event) or ""}
        log.log(level, "job ended", extra=end)
