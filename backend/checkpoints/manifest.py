"""What a repository said it holds when it was asked last, kept so that a page knows how far a download came.

One small JSON file a repository in the data folder; what is really there is read off the disk each time.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from backend import codec
from backend.checkpoints.parts import RepoFile
from backend.errors import CheckpointError
from backend.settings import Settings
from backend.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Files of `repo` that were asked for last, all tasks ever asked for, and files that a check found damaged."""

    repo: str
    tasks: tuple[Task, ...]
    files: tuple[RepoFile, ...]
    damaged: tuple[str, ...] = ()


def read(settings: Settings, repo: str) -> Manifest | None:
    """What is kept of `repo`, None when nothing is (an unreadable file is as good as none: it is written anew)."""
    try:
        return codec.decode(Manifest, json.loads(_file(settings, repo).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def write(settings: Settings, found: Manifest) -> None:
    """Keep `found`, with the files of other tasks that were listed before. Raises CheckpointError."""
    before = read(settings, found.repo)
    if before is not None:
        files = {file.path: file for file in (*before.files, *found.files)}
        tasks = tuple(dict.fromkeys((*before.tasks, *found.tasks)))
        found = Manifest(repo=found.repo, tasks=tasks, files=tuple(files.values()), damaged=before.damaged)
    _store(settings, found)


def mark(settings: Settings, repo: str, damaged: tuple[str, ...]) -> None:
    """Keep which files must be fetched again."""
    known = read(settings, repo) or Manifest(repo=repo, tasks=(), files=())
    if known.damaged != damaged:
        _store(settings, dataclasses.replace(known, damaged=damaged))


def forget(settings: Settings, repo: str) -> None:
    """Nothing is known of `repo` any more."""
    _file(settings, repo).unlink(missing_ok=True)


def _store(settings: Settings, found: Manifest) -> None:
    path = _file(settings, found.repo)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(codec.encode(found)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def _file(settings: Settings, repo: str) -> Path:
    return settings.data_dir / "downloads" / f"{repo.replace('/', '--')}.json"
