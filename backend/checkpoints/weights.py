"""The models of this machine: what is on the disk, what a task still needs, one download or check at a time, removal.

Downloads and checks run in a child that ends with the program; who may start one and what is in use is asked of others.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints import catalog, errand_child, hub_cache, manifest, parts
from backend.checkpoints.catalog import Checkpoint
from backend.checkpoints.errands import WAIT_S, Action, Kind, Order, Reason, Report
from backend.checkpoints.licence import Licence, licence_of
from backend.checkpoints.parts import Bundle
from backend.errors import CheckpointError, NotNow
from backend.settings import Settings
from backend.types import Task

SPEED_OVER_S = 10.0  # the speed that is shown is that of these last seconds
_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME; a folder's source begins with a slash
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """One folder of a model: bytes in all (`listed`: as the repository says, else as published) and on this disk."""

    name: str
    bytes: int
    here: int
    listed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleView:
    """Tasks that are downloaded together, the parts they need, and what of them is not on this disk yet.

    `lacks` is by how many bytes the disk is too small for what is missing; a download would be refused.
    """

    bundle: Bundle
    parts: tuple[str, ...]
    bytes: int
    missing: int
    lacks: int
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model for people. `repo` is empty where nothing can be downloaded; `kept` says why it cannot be removed."""

    checkpoint: Checkpoint
    repo: str
    place: Path | None
    parts: tuple[PartView, ...]
    bundles: tuple[BundleView, ...]
    here: int
    kept: str | None
    licence: Licence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The download or check that runs, or the last one. Bytes; `left_s` is None while nothing can be said.

    `state` is "running", "done", "failed" or "stopped".
    """

    model: str
    action: Action
    tasks: tuple[Task, ...]
    state: str
    done: int = 0
    total: int = 0
    file: str = ""
    bytes_s: float = 0.0
    left_s: float | None = None
    message: str = ""
    reason: Reason | None = None

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """All models, the state of the token (never the token), and the disk that downloads go to."""

    models: tuple[ModelView, ...]
    token: bool
    folder: Path
    free: int
    activity: Activity | None
    may_change: bool


class Weights:
    """Answers from any thread. `may` says whether an owner may change models, `in_use` whether a folder is loaded."""

    def __init__(self, settings: Settings, may: Callable[[str], bool], in_use: Callable[[Path], bool]) -> None:
        self._settings = settings
        self._may = may
        self._in_use = in_use
        self._door = threading.Lock()
        self._child: errand_child.ErrandChild | None = None
        self._activity: Activity | None = None
        self._seen: list[tuple[float, int]] = []  # monotonic seconds and bytes, for the speed
        self.wait_s = WAIT_S

    # -- looking ------------------------------------------------------------------------------------------------

    def activity(self) -> Activity | None:
        """What runs, or ran last; None before the first."""
        with self._door:
            return self._activity

    def shelf(self, owner: str) -> Shelf:
        """Everything the page shows. Reads file sizes and headers, some tens of milliseconds."""
        return Shelf(
            models=tuple(self._view(item) for item in catalog.list_checkpoints(self._settings)),
            token=hub_cache.token_present(),
            folder=hub_cache.folder_of(catalog.RELEASED).parent,
            free=self.free(),
            activity=self.activity(),
            may_change=self._may(owner),
        )

    def free(self) -> int:
        """Bytes free on the disk that downloads go to."""
        return shutil.disk_usage(hub_cache.standing(hub_cache.folder_of(catalog.RELEASED).parent)).free

    def view(self, name: str) -> ModelView:
        """One model. Raises CheckpointError for an unknown name."""
        return self._view(self._find(name))

    def _view(self, checkpoint: Checkpoint) -> ModelView:
        repo = checkpoint.source if _is_repository(checkpoint.source) else ""
        place = checkpoint.folder
        if repo:
            kept = manifest.read(self._settings, repo)
            pieces = _repo_parts(repo, kept, checkpoint.folder)
            folder = hub_cache.folder_of(repo)
            place = folder if folder.exists() else None
            free, known = self.free(), parts.BUNDLES if pieces else ()
            bundles = tuple(_bundle(bundle, pieces, checkpoint, free) for bundle in known)
            here = sum(piece.here for piece in pieces)
        else:
            pieces, bundles, here = (), (), checkpoint.bytes if checkpoint.folder else 0
        return ModelView(
            checkpoint=checkpoint,
            repo=repo,
            place=place,
            parts=pieces,
            bundles=bundles,
            here=here,
            kept=self._keeps(checkpoint, place),
            licence=licence_of(checkpoint, self._settings),
        )

    def _keeps(self, checkpoint: Checkpoint, place: Path | None) -> str | None:
        """Why a model cannot be removed, or None."""
        if place is None:
            return "it is not on this disk"
        if checkpoint.folder is not None and self._in_use(checkpoint.folder):
            return "it is in use: a job runs on it, or an engine holds it ready for the next one"
        activity = self.activity()
        if activity is not None and activity.running and activity.model == checkpoint.name:
            return f"its {activity.action} is going on; stop that first"
        own = not place.is_symlink() and place.parent.resolve() == self._settings.checkpoints_dir.resolve()
        if not own and checkpoint.source == "built in":
            return "it comes with the program"
        if not own and not _is_repository(checkpoint.source):
            return f"{place} lies outside the folders of this program; remove it by hand"
        return None

    def _find(self, name: str) -> Checkpoint:
        try:
            return catalog.find(name, self._settings)
        except CheckpointError:
            listed = {item.name: item for item in catalog.list_checkpoints(self._settings)}
            if name in listed:
                return listed[name]
            if _is_repository(name):
                return self._elsewhere(name)
            raise

    def _elsewhere(self, repo: str) -> Checkpoint:
        """A repository that nothing is known of here but its name; taken for a copy of the released model."""
        like = next(item for item in catalog.list_checkpoints(self._settings) if item.name == catalog.RELEASED)
        state = catalog.NOT_DOWNLOADED
        return dataclasses.replace(like, name=repo, source=repo, title=repo, folder=None, bytes=0, state=state)

    # -- doing --------------------------------------------------------------------------------------------------

    def download(self, name: str, tasks: tuple[Task, ...], owner: str) -> None:
        """Start fetching what `tasks` need, going on with what is there. Raises NotNow, CheckpointError."""
        self._check(owner)
        checkpoint = self._find(name)
        if not _is_repository(checkpoint.source):
            raise CheckpointError(f"{name}: there is nothing to download, it comes from {checkpoint.source}")
        licence = licence_of(checkpoint, self._settings)
        if licence is not None and not licence.accepted:
            raise NotNow(f"{name}: the {licence.name} ({licence.url}) must be accepted before it is downloaded")
        repo = checkpoint.source
        known = manifest.read(self._settings, repo)
        again = () if known is None else known.damaged
        order = Order(action=Action.DOWNLOAD, repo=repo, tasks=tasks, again=again, wait_s=self.wait_s)
        self._start(order, checkpoint.name)

    def verify(self, name: str, owner: str) -> None:
        """Start reading every file of a model again and comparing its hash. Raises NotNow, CheckpointError."""
        self._check(owner)
        checkpoint = catalog.find(name, self._settings)
        if checkpoint.folder is None:
            raise CheckpointError(f"{name}: it is {checkpoint.state}")
        order = Order(action=Action.VERIFY, repo=checkpoint.source, tasks=checkpoint.tasks, folder=checkpoint.folder)
        self._start(order, checkpoint.name)

    def cancel(self, owner: str) -> None:
        """Stop what runs; what came so far is kept. Raises NotNow for whoever may not."""
        self._check(owner)
        self.close()

    def remove(self, name: str, owner: str) -> int:
        """Delete a model from this disk; returns bytes freed. Raises NotNow, CheckpointError with the reason."""
        self._check(owner)
        checkpoint = self._find(name)
        view = self._view(checkpoint)
        if view.kept is not None:
            raise NotNow(f"{name}: {view.kept}")
        if view.repo:
            freed = hub_cache.remove(view.repo)
            manifest.forget(self._settings, view.repo)
        else:
            assert view.place is not None
            freed = _remove_folder(view.place, self._settings.checkpoints_dir)
        log.info("model removed", extra={"model": name, "bytes": freed, "owner": owner})
        return freed

    def wait(self, tell: Callable[[Activity], None]) -> Activity | None:
        """Until what runs has ended, with a word twice a second; for the command line."""
        while (now := self.activity()) is not None and now.running:
            tell(now)
            time.sleep(0.5)
        return now

    def close(self) -> None:
        """End the child, if there is one; idempotent."""
        with self._door:
            child, self._child = self._child, None
        if child is not None:
            child.stop()
            self._change(state="stopped", message=self._stopped_words(), running_only=True)

    # -- within -------------------------------------------------------------------------------------------------

    def _stopped_words(self) -> str:
        activity = self.activity()
        if activity is None or activity.action is not Action.DOWNLOAD:
            return "Stopped."
        kept = hub_cache.so_far(self._find(activity.model).source)
        return f"Stopped; {kept}."

    def _check(self, owner: str) -> None:
        if not self._may(owner):
            raise NotNow("models: only an administrator may change them")

    def _start(self, order: Order, name: str) -> None:
        with self._door:
            if self._activity is not None and self._activity.running:
                raise NotNow(
                    f"models: the {self._activity.action} of {self._activity.model} is going on; one at a time"
                )
            self._activity = Activity(model=name, action=order.action, tasks=order.tasks, state="running")
            self._seen = []
        log.info("model errand", extra={"action": str(order.action), "model": name})
        try:
            child = errand_child.ErrandChild(order, self._settings.logs_dir, lambda report: self._hear(report, order))
        except OSError as error:
            self._change(state="failed", message=f"it could not be started: {error.strerror or error}")
            raise CheckpointError(f"{name}: {order.action} could not be started: {error.strerror or error}") from error
        with self._door:
            self._child = child if self._activity is not None and self._activity.running else None

    def _hear(self, report: Report, order: Order) -> None:
        """One report of the child, in its reader's thread."""
        if report.kind is Kind.PLANNED:
            manifest.write(self._settings, manifest.Manifest(repo=order.repo, tasks=order.tasks, files=report.files))
        if report.kind in (Kind.PLANNED, Kind.PROGRESS):
            self._advance(report)
            return
        if report.kind is Kind.DONE:
            manifest.mark(self._settings, order.repo, ())
            self._change(state="done", message=_done_words(order), running_only=True, full=True)
            return
        manifest.mark(self._settings, order.repo, tuple(file.path for file in report.files))
        self._change(state="failed", message=report.message, reason=report.reason, running_only=True)
        log.warning("model errand failed", extra={"why": report.message})

    def _advance(self, report: Report) -> None:
        now = time.monotonic()
        self._seen = [item for item in self._seen if now - item[0] < SPEED_OVER_S] + [(now, report.done)]
        (then, before), speed = self._seen[0], 0.0
        if now > then:
            speed = max(0.0, (report.done - before) / (now - then))
        left = (report.total - report.done) / speed if speed else None
        self._change(
            done=report.done, total=report.total, file=report.file, bytes_s=speed, left_s=left, running_only=True
        )

    def _change(self, *, running_only: bool = False, full: bool = False, **values: object) -> None:
        with self._door:
            now = self._activity
            if now is None or (running_only and not now.running):
                return
            if full:
                values |= {"done": now.total, "left_s": 0.0}
            self._activity = dataclasses.replace(now, **values)  # type: ignore[arg-type]


def _is_repository(source: str) -> bool:
    return _REPO_ID.fullmatch(source) is not None


def _done_words(order: Order) -> str:
    return "Every file is whole." if order.action is Action.VERIFY else "Downloaded and checked."


def _repo_parts(repo: str, known: manifest.Manifest | None, folder: Path | None) -> tuple[PartView, ...]:
    """Parts of a repository: from its own list where that was fetched, else with the released model's sizes."""
    if known is None and repo != catalog.RELEASED and folder is None:
        return ()
    names = parts.components(Task)
    listed: dict[str, int] = {}
    here: dict[str, int] = {}
    for file in known.files if known is not None else ():
        listed[file.component] = listed.get(file.component, 0) + file.bytes
        here[file.component] = here.get(file.component, 0) + hub_cache.bytes_here(repo, file)
    views = []
    for name in names:
        stored = _bytes_in(folder / name) if folder is not None else 0
        present = max(here.get(name, 0), stored)
        size = listed.get(name) or (parts.RELEASED_BYTES.get(name, 0) if repo == catalog.RELEASED else present)
        views.append(PartView(name=name, bytes=max(size, present), here=present, listed=name in listed))
    return tuple(views)


def _bundle(bundle: Bundle, pieces: tuple[PartView, ...], checkpoint: Checkpoint, free: int) -> BundleView:
    names = parts.components(bundle.tasks)
    own = [piece for piece in pieces if piece.name in names]
    ready = checkpoint.ready and set(bundle.tasks) <= set(checkpoint.tasks)
    missing = 0 if ready else sum(piece.bytes - piece.here for piece in own)
    lacks, whole = parts.lacking(missing, free), sum(piece.bytes for piece in own)
    return BundleView(bundle=bundle, parts=names, bytes=whole, missing=missing, lacks=lacks, ready=ready)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0


def _remove_folder(folder: Path, home: Path) -> int:
    freed = _bytes_in(folder) + sum(_bytes_in(item) for item in folder.iterdir() if item.is_dir())
    going = home / f".{folder.name}.removed"
    try:
        shutil.rmtree(going, ignore_errors=True)
        folder.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be removed: {error.strerror or error}") from error
    return freed
