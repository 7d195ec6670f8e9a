"""The only door into the backend: what the page, the command line and HTTP may ask.

Knows owners, presets and jobs; how a job runs is `backend.jobs`', how a model runs is the engines'.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend import presets as preset_files
from backend.errors import CheckpointError, H3Error, JobNotFound, NotNow
from backend.events import Event
from backend.hardware.choose import Choice, choose, unavailable
from backend.hardware.probe import Hardware, probe
from backend.jobs.artifacts import Artifacts
from backend.jobs.intake import Draft, Intake
from backend.jobs.lock import InstanceLock
from backend.jobs.manager import Health, JobManager, Workshop
from backend.jobs.planning import Plan
from backend.jobs.records import ADMIN, JobRecord, JobState, title_of
from backend.jobs.runner import Order
from backend.jobs.services import EngineFactory, Services, checkpoint_name, real_services
from backend.jobs.slot import EngineSlot
from backend.jobs.store import JobStore
from backend.jobs.transfer import read_queue, write_queue
from backend.presets import EngineName, HardwarePreset, QualityPreset
from backend.process import logs
from backend.settings import Settings
from backend.types import GenerationRequest, JobId, MediaReport

if TYPE_CHECKING:
    from backend.checkpoints.catalog import Checkpoint

__all__ = ["ADMIN", "Backend", "Choice", "Health", "JobRecord", "JobState", "Plan", "PresetStatus", "Status"]
log = logging.getLogger(__name__)
HARDWARE_FRESH_S = 10.0  # one look at the machine serves a page that asks for everything at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetStatus:
    """A hardware preset and why it cannot run here, or None."""

    preset: HardwarePreset
    unavailable: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The program as a whole; `reason` is empty when there is nothing to say."""

    health: Health
    reason: str
    preset: str
    running: JobId | None
    queued: int
    paused: bool
    accepting: bool


class Backend:
    """Opens the job store of `settings`, alone, and starts its dispatcher; loads no model.

    Jobs that waited when the program ended go on. Raises Unavailable when another program has the data folder,
    PresetError for an unknown `preset`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        preset: str | None = None,
        engine_factory: EngineFactory | None = None,
        services: Services | None = None,
    ) -> None:
        self.settings = settings
        self._services = services or real_services(engine_factory)
        self._hardware_presets = preset_files.hardware_presets()
        self._quality_presets = preset_files.quality_presets()
        self._looked = (-HARDWARE_FRESH_S, probe(settings.data_dir))
        self._choice = choose(self._hardware_presets, self._hardware(), self._checkpoint_lack, preset)
        self._lock = InstanceLock(settings.jobs_dir.parent)
        try:
            self._store = JobStore(settings.database, settings.jobs_dir)
            self._artifacts = Artifacts(settings.jobs_dir)
            self._artifacts.repair(self._store.exists, self._store.delete)
            self._slot = EngineSlot(self._services.engine, settings)
            self._manager = JobManager(
                Workshop(
                    store=self._store,
                    artifacts=self._artifacts,
                    slot=self._slot,
                    services=self._services,
                    order=self._order,
                    tidy=self.sweep,
                )
            )
            self._intake = Intake(self._manager, self._services, self._unavailable, settings)
        except BaseException:
            self._lock.release()
            raise

    # -- the machine and its presets ----------------------------------------------------------------------------

    def presets(self) -> tuple[PresetStatus, ...]:
        """Every hardware preset for people, with why it cannot run here."""
        offered = [item for item in self._hardware_presets.values() if item.engine is not EngineName.STUB]
        return tuple(PresetStatus(preset=item, unavailable=self._unavailable(item)) for item in offered)

    def choice(self) -> Choice:
        """The preset jobs run on unless they name another, and why."""
        return self._choice

    def quality_presets(self) -> dict[str, QualityPreset]:
        """Quality presets by name."""
        return dict(self._quality_presets)

    def checkpoint(self, preset: str | None = None) -> Checkpoint:
        """The checkpoint a preset runs. Raises PresetError, CheckpointError."""
        return self._services.find_checkpoint(self._preset(preset), self.settings)

    def model_name(self, preset: str) -> str:
        """The name of the checkpoint a preset runs, without looking for it."""
        known = self._hardware_presets.get(preset)
        return checkpoint_name(known, self.settings) if known is not None else "unknown"

    def models(self) -> list[Checkpoint]:
        """Every checkpoint this program knows of."""
        from backend.checkpoints import catalog

        return list(catalog.list_checkpoints(self.settings))

    # -- before a job -------------------------------------------------------------------------------------------

    def probe(self, path: Path, *, keyframe: bool = False) -> MediaReport:
        """What a file is, found out in a sandbox, by the rules of a reference or a keyframe. Raises MediaRefused."""
        return self._services.probe_file(path, path.name, keyframe)

    def plan(
        self,
        request: GenerationRequest,
        preset: str | None = None,
        probed: Mapping[Path, MediaReport] | None = None,
        quality: str = "standard",
    ) -> Plan:
        """What `request` will become. Raises InvalidRequest with all problems, PresetError, CheckpointError.

        `probed` spares a second look at files that were probed already.
        """
        return self._intake.plan(request, self._preset(preset), quality, probed)

    def check(self, request: GenerationRequest, preset: str | None = None, quality: str = "standard") -> str | None:
        """Why `request` cannot be accepted here and now, or None."""
        try:
            plan = self.plan(request, preset, quality=quality)
            self._intake.check_room(self._preset(preset), plan.request)
        except H3Error as error:
            return str(error)
        return None

    def submit(
        self,
        request: GenerationRequest,
        *,
        owner: str,
        preset: str | None = None,
        quality: str = "standard",
        tensors: Path | None = None,
        media_in_place: bool = False,
    ) -> JobId:
        """Accept a job: checked, its media copied, its row on the disk when this returns.

        `tensors` also writes the latents to that file. `media_in_place` leaves the media where they are, for a caller
        who keeps them there until the job has ended. Raises what `plan` raises, Unavailable, and H3Error when the
        disk refuses.
        """
        draft = Draft(
            owner=owner, preset=self._preset(preset), quality=quality, tensors=tensors, in_place=media_in_place
        )
        return self._intake.accept(request, draft)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def events(self, job: JobId, after: int = 0, *, owner: str, timeout_s: float | None = None) -> Iterator[Event]:
        """Events with `seq > after`, then live ones until the job's end, or until `timeout_s` have passed in all.

        Heartbeats are live only and carry the `seq` of the last stored event. Raises JobNotFound at once.
        """
        self._record(job, owner)
        return self._manager.events(job, after, timeout_s)

    def job(self, job: JobId, *, owner: str) -> JobRecord:
        """One job. Raises JobNotFound, for another owner's as for an unknown one."""
        return self._record(job, owner)

    def history(
        self,
        *,
        owner: str,
        limit: int = 50,
        offset: int = 0,
        states: Sequence[JobState] | None = None,
        search: str = "",
    ) -> list[JobRecord]:
        """Jobs of `owner` in any state, newest first."""
        whose = None if owner == ADMIN else owner
        return self._store.select(owner=whose, states=states, search=search, limit=limit, offset=offset)

    def queue(self, *, owner: str) -> list[JobRecord]:
        """Waiting jobs of `owner`, next one first; positions count everybody's."""
        return [record for record in self._store.waiting() if owner in (ADMIN, record.owner)]

    def cancel(self, job: JobId, *, owner: str) -> None:
        """Stop a running job at its next boundary, or end a waiting one at once. Raises NotNow when it has ended."""
        self._record(job, owner)
        self._manager.cancel(job)

    def retry(self, job: JobId, *, owner: str) -> JobId:
        """The same job again, same seed. Raises NotNow while it has not ended."""
        record = self._record(job, owner)
        if not record.state.ended:
            raise NotNow(f"job={job}: it is {record.state}; only an ended job can be run again")
        return self._again(record, record.request, record.tensors)

    def duplicate(self, job: JobId, *, owner: str, seed: int | None = None) -> JobId:
        """The same request as a new job with another seed: `seed`, or one that is drawn."""
        record = self._record(job, owner)
        sampling = dataclasses.replace(record.request.sampling, seed=seed)
        return self._again(record, dataclasses.replace(record.request, sampling=sampling), None)

    def edit(self, job: JobId, request: GenerationRequest, *, owner: str) -> None:
        """Replace the request of a waiting job, which keeps its place. Raises NotNow once it runs."""
        record = self._record(job, owner)
        self._intake.edit(record, request, self._preset(record.preset))

    def reorder(self, job: JobId, position: int, *, owner: str) -> None:
        """Move a waiting job to `position` (1 is next), or as near as the owner's own places in line allow."""
        self._record(job, owner)
        own = None if owner == ADMIN else frozenset(record.id for record in self.queue(owner=owner))
        self._manager.line.move(job, position, own)

    def rename(self, job: JobId, title: str, *, owner: str) -> None:
        """Give a job another title."""
        self._record(job, owner)
        self._store.set_title(job, title_of(title) or "Untitled")

    def set_favourite(self, job: JobId, flag: bool, *, owner: str) -> None:
        """Mark or unmark a job."""
        self._record(job, owner)
        self._store.set_favourite(job, flag)

    def delete(self, job: JobId, *, owner: str) -> None:
        """Remove an ended or waiting job with all its files. Raises NotNow while it runs."""
        record = self._record(job, owner)
        if record.state is JobState.QUEUED:
            self._manager.cancel(job)
            record = self._record(job, owner)
        if not record.state.ended:
            raise NotNow(f"job={job}: it is running; cancel it first")
        self._artifacts.delete(job, lambda: self._store.delete(job))

    def pause(self) -> None:
        """Start no more jobs; the running one goes on."""
        self._manager.set_paused(True)

    def resume(self) -> None:
        """Let the queue go on."""
        self._manager.set_paused(False)

    def export_queue(self, path: Path, *, owner: str) -> None:
        """Write the owner's waiting jobs with their media as one file."""
        write_queue(path, self.queue(owner=owner))

    def import_queue(self, path: Path, *, owner: str) -> list[JobId]:
        """Submit the jobs of a queue file, in order. Raises InvalidRequest for a file that is none, before any job."""
        with read_queue(path, self.settings.uploads_dir) as items:
            drafts = [
                Draft(
                    owner=owner,
                    preset=self._hardware_presets.get(item.preset, self._choice.preset),  # perhaps another machine's
                    quality=item.quality,
                    title=item.title,
                    labels=item.labels,
                )
                for item in items
            ]
            for item, draft in zip(items, drafts, strict=True):  # all are good before the first is accepted
                self._intake.plan(item.request, draft.preset, draft.quality)
            return [self._intake.accept(item.request, draft) for item, draft in zip(items, drafts, strict=True)]

    # -- files, health, end -------------------------------------------------------------------------------------

    def file(self, job: JobId, name: str, *, owner: str | None = None, token: str | None = None) -> Path:
        """A result file of a succeeded job, for its owner or whoever has its token. Raises JobNotFound otherwise."""
        if token is not None and hmac.compare_digest(token.encode(), self._token(job).encode()):
            owner = ADMIN
        if owner is None:
            raise JobNotFound(f"job={job}: there is no such job")
        if self._record(job, owner).state is not JobState.SUCCEEDED:
            raise JobNotFound(f"job={job}: it has no result")
        return self._artifacts.file(job, name)

    def file_token(self, job: JobId, *, owner: str) -> str:
        """What opens a job's files to whoever holds the link, without a login."""
        self._record(job, owner)
        return self._token(job)

    def status(self) -> Status:
        """Health and queue at this moment."""
        state = self._manager.state()
        reason = state.reason or (self._store.notice or "")
        return Status(
            health=state.health,
            reason=reason,
            preset=self._choice.preset.name,
            running=state.running,
            queued=state.queued,
            paused=state.paused,
            accepting=state.accepting,
        )

    def log_tail(self, rank: int = 0, lines: int = 200) -> str:
        """The last lines of the newest log of `rank`, secrets removed."""
        for path in logs.listing(self.settings.logs_dir):
            if path.stem.endswith(f"-rank{rank}"):
                return logs.tail(path, lines)
        return ""

    def sweep(self) -> int:
        """Clear old inputs of ended jobs and stale uploads; returns bytes freed."""
        try:
            return self._artifacts.sweep(self._store.ended(), self.settings.uploads_dir)
        except (OSError, H3Error):  # clearing up is no reason to stop; the next time may do
            log.warning("old inputs could not be cleared", exc_info=True)
            return 0

    def close(self, finish_running: bool = False, timeout_s: float = 15.0) -> None:
        """Accept no more, finish or stop the running job, end the engine; idempotent. Waiting jobs keep waiting."""
        self._manager.close(finish_running, timeout_s)
        self._store.close()
        self._lock.release()

    # -- within ------------------------------------------------------------------------------------------------

    def _record(self, job: JobId, owner: str) -> JobRecord:
        record = self._store.get(job)
        if owner not in (ADMIN, record.owner):
            raise JobNotFound(f"job={job}: there is no such job")
        return record

    def _order(self, record: JobRecord) -> Order:
        preset = self._preset(record.preset)
        return Order(
            record=record,
            preset=preset,
            quality=preset_files.pick(self._quality_presets, record.quality),
            geometry=self._services.find_checkpoint(preset, self.settings).geometry,
            settings=self.settings,
        )

    def _preset(self, name: str | None) -> HardwarePreset:
        return self._choice.preset if name is None else preset_files.pick(self._hardware_presets, name)

    def _again(self, record: JobRecord, request: GenerationRequest, tensors: Path | None) -> JobId:
        draft = Draft(
            owner=record.owner,
            preset=self._preset(record.preset),
            quality=record.quality,
            tensors=tensors,
            title=record.title,
            labels=record.labels,
        )
        return self._intake.accept(request, draft)

    def _hardware(self) -> Hardware:
        at, hardware = self._looked
        if time.monotonic() - at > HARDWARE_FRESH_S:
            hardware = probe(self.settings.data_dir)
            self._looked = (time.monotonic(), hardware)
        return hardware

    def _unavailable(self, preset: HardwarePreset) -> str | None:
        return unavailable(preset, self._hardware(), self._checkpoint_lack)

    def _checkpoint_lack(self, preset: HardwarePreset) -> str | None:
        """Why a preset's checkpoint cannot be loaded, or None; the tiny one is made on first use."""
        try:
            checkpoint = self._services.find_checkpoint(preset, self.settings)
        except CheckpointError as error:
            return str(error)
        if checkpoint.ready or checkpoint_name(preset, self.settings) == "tiny":
            return None
        return f"{checkpoint.name} is {checkpoint.state}"

    def _token(self, job: JobId) -> str:
        digest = hmac.new(self._store.secret.encode(), job.encode(), hashlib.sha256)
        return digest.hexdigest()[:32]
