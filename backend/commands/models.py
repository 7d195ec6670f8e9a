"""`models download`, `verify` and `remove`: the same shelf as on the page, with progress on stderr.

Returns results as JSON values; it prints nothing else and asks nothing but whether to delete.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from backend.checkpoints import licence, parts
from backend.checkpoints.weights import Activity, Weights
from backend.commands.generation import size
from backend.errors import NotNow
from backend.http import running
from backend.settings import Settings
from backend.types import Task

OWNER = "the command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What to fetch: the model, and the tasks it must be able to do (all where none is named)."""

    name: str
    tasks: tuple[Task, ...] = ()
    accept_licence: bool = False


def download(asked: Download, settings: Settings) -> dict[str, object]:
    """Fetch what is missing and wait for it. Raises NotNow, CheckpointError before anything is fetched."""
    tasks = asked.tasks or tuple(Task)
    if asked.accept_licence:
        licence.accept(settings, OWNER)
    with _shelf(settings) as weights:
        weights.download(asked.name, tasks, OWNER)
        ended = _wait(weights)
        place = weights.view(asked.name).place
    return {**_result(ended), "tasks": [str(task) for task in tasks], "folder": None if place is None else str(place)}


def verify(name: str, settings: Settings) -> dict[str, object]:
    """Read every file again and compare it with its hash. Raises CheckpointError where there is nothing to read."""
    with _shelf(settings) as weights:
        weights.verify(name, OWNER)
        return _result(_wait(weights))


def remove(name: str, settings: Settings, *, sure: bool) -> dict[str, object]:
    """Delete a model from this disk, after asking. Raises NotNow where it is in use, elsewhere or not confirmed."""
    if (now := running.ask(settings)) is not None:
        raise NotNow(f"{name}: the program is running at {now['url']}; remove it there, or stop the program first")
    with _shelf(settings) as weights:
        view = weights.view(name)
        if view.kept is not None:
            raise NotNow(f"{name}: {view.kept}")
        if not sure and not _asked(f"Delete {size(view.here)} of {name} in {view.place}? [y/N] "):
            raise NotNow(f"{name}: nothing was deleted; say yes, or add --yes")
        freed = weights.remove(name, OWNER)
    return {"ok": True, "model": name, "freed_bytes": freed}


def tasks_of(words: list[str]) -> tuple[Task, ...]:
    """The tasks that names of bundles ("text", "references", "all") or of tasks stand for."""
    bundles = {bundle.key: bundle.tasks for bundle in parts.BUNDLES}
    named = [bundles.get(word) or (Task(word),) for word in words]
    return tuple(dict.fromkeys(task for group in named for task in group))


@contextlib.contextmanager
def _shelf(settings: Settings) -> Iterator[Weights]:
    weights = Weights(settings, lambda owner: True, lambda folder: False)
    try:
        yield weights
    finally:
        weights.close()


def _wait(weights: Weights) -> Activity:
    line = _Line()
    ended = weights.wait(line.tell)
    line.end()
    assert ended is not None
    return ended


def _result(ended: Activity) -> dict[str, object]:
    ok = ended.state == "done"
    result: dict[str, object] = {"ok": ok, "model": ended.model, "bytes": ended.total, "message": ended.message}
    return result if ok else {**result, "reason": None if ended.reason is None else str(ended.reason)}


class _Line:
    """Progress on stderr: one line that changes on a terminal, else one every tenth of the way."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._tenth = -1

    def tell(self, now: Activity) -> None:
        """What happens now."""
        if not now.total:
            return
        text = f"{size(now.done)} of {size(now.total)}"
        if now.bytes_s:
            text += f", {size(round(now.bytes_s))}/s"
        if now.left_s is not None:
            text += f", {now.left_s / 60:.0f} min left" if now.left_s >= 90 else f", {now.left_s:.0f} s left"
        tenth = 10 * now.done // now.total
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}  {now.file[-40:]}")
            sys.stderr.flush()
        elif tenth != self._tenth:
            self._tenth = tenth
            sys.stderr.write(f"{text}\n")

    def end(self) -> None:
        """No more of it."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


def _asked(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
