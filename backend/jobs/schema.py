"""The database file of the jobs: its tables, how it is opened, and what happens when it is damaged.

Knows SQLite; what rows mean is `store`'s.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from pathlib import Path

from backend.errors import H3Error

SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 5000
log = logging.getLogger(__name__)

# `jobs.num` and `events.seq` give every order; no order depends on the clock. The two guards at the end hold the
# promise that a job ends exactly once, whatever code writes here.
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
    num INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'interrupted')),
    place INTEGER NOT NULL,
    request TEXT NOT NULL,
    prompt TEXT NOT NULL,
    preset TEXT NOT NULL,
    quality TEXT NOT NULL,
    title TEXT NOT NULL,
    favourite INTEGER NOT NULL DEFAULT 0,
    tags TEXT NOT NULL,
    labels TEXT NOT NULL,
    tensors TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    video TEXT,
    sidecar TEXT,
    error TEXT,
    num_events INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_by_owner ON jobs (owner, num);
CREATE INDEX jobs_waiting ON jobs (place) WHERE state = 'queued';
CREATE TABLE events (
    job INTEGER NOT NULL REFERENCES jobs (num) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    terminal INTEGER NOT NULL CHECK (terminal IN (0, 1)),
    body TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_end ON events (job) WHERE terminal = 1;
CREATE TRIGGER nothing_after_the_end BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE job = NEW.job AND terminal = 1)
BEGIN SELECT RAISE(ABORT, 'the job has ended'); END;
CREATE TRIGGER an_end_stays BEFORE UPDATE OF state ON jobs
WHEN OLD.state NOT IN ('queued', 'running') AND NEW.state <> OLD.state
BEGIN SELECT RAISE(ABORT, 'the job has ended'); END;
INSERT INTO meta VALUES ('secret', lower(hex(randomblob(24))));
"""


def open_database(path: Path) -> tuple[sqlite3.Connection, str | None]:
    """A connection to the database at `path`, made when missing, and a notice for people when it was damaged.

    A damaged file is moved aside, never deleted, and a fresh one is started with what can still be read.
    Raises H3Error when the file belongs to a newer version of the program or cannot be opened at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _open(path), None
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            raise H3Error(
                f"{path}: the job database cannot be opened: {error}; check the disk and its rights"
            ) from error
        return start_anew(path, str(error))


def start_anew(path: Path, damage: str) -> tuple[sqlite3.Connection, str]:
    """Move the damaged database at `path` aside and open a fresh one with what can be read of it, and say so."""
    aside = _move_aside(path)
    connection = _open(path)
    kept = _salvage(aside, connection)
    notice = f"The job database was damaged ({damage}). It was moved to {aside} and a new one started with the "
    notice += f"{kept} jobs that could be read; all job folders with their results are untouched."
    log.error(notice)
    return connection, notice


def _salvage(damaged: Path, fresh: sqlite3.Connection) -> int:
    """Copy jobs with their events out of a damaged database, one by one; returns how many came through whole."""
    kept = 0
    old = sqlite3.connect(damaged, isolation_level=None)
    try:
        old.execute("PRAGMA query_only=ON")
        last = old.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()[0]
        secret = old.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()[0]
        fresh.execute("UPDATE meta SET value = ? WHERE key = 'secret'", (secret,))  # links given out go on working
        for num in range(1, int(last) + 1):
            kept += _salvage_job(old, fresh, num)
    except (sqlite3.Error, TypeError):  # TypeError: a table that lost its row; what was copied stays
        log.warning("the damaged database could not be read to its end", exc_info=True)
    finally:
        old.close()
    return kept


def _salvage_job(old: sqlite3.Connection, fresh: sqlite3.Connection, num: int) -> bool:
    names = [row["name"] for row in fresh.execute("PRAGMA table_info(jobs)")]
    try:
        row = old.execute(f"SELECT {', '.join(names)} FROM jobs WHERE num = ?", (num,)).fetchone()
        events = old.execute(
            "SELECT job, seq, terminal, body FROM events WHERE job = ? ORDER BY seq", (num,)
        ).fetchall()
        if row is None or len(events) != row[names.index("num_events")]:
            return False
        fresh.execute("BEGIN IMMEDIATE")
        try:
            fresh.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(names))})", row)
            fresh.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", events)
            fresh.execute("COMMIT")
        except BaseException:
            fresh.execute("ROLLBACK")
            raise
    except sqlite3.Error:
        return False  # this job's pages are the damaged ones; the next job's may not be
    return True


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(damage)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        _ensure_tables(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _ensure_tables(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise H3Error(f"{path}: written by a newer version of H3 Studio (schema {version}); update the program")
    try:
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{TABLES}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        connection.execute("SELECT num, place, request, num_events FROM jobs LIMIT 1").fetchone()
        connection.execute("SELECT job, seq, terminal, body FROM events LIMIT 1").fetchone()
        if connection.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone() is None:
            raise sqlite3.DatabaseError("it has no secret")
    except sqlite3.OperationalError as error:
        if "no such" in str(error) or "already exists" in str(error):  # other tables than ours: as good as damaged
            raise sqlite3.DatabaseError(str(error)) from error
        raise


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
