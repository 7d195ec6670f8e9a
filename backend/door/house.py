"""What every part of the door stands on: the rooms it opens, who sees which job, and the end of it all.

Knows owners and the parts of the backend; what may be asked of them is the door's other modules'.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from backend import presets as preset_files
from backend.checkpoints.weights import Weights
from backend.errors import JobNotFound
from backend.jobs.artifacts import Artifacts
from backend.jobs.intake import Draft, Intake
from backend.jobs.lock import InstanceLock
from backend.jobs.machine import Machine
from backend.jobs.manager import JobManager, Workshop
from backend.jobs.outlook import Outlook, Sight
from backend.jobs.records import ADMIN, JobRecord
from backend.jobs.results import Results
from backend.jobs.runner import Order
from backend.jobs.services import EngineFactory, Services, real_services
from backend.jobs.slot import EngineSlot
from backend.jobs.store import JobStore
from backend.jobs.upkeep import Upkeep
from backend.process.journal import Journal
from backend.settings import Settings
from backend.types import GenerationRequest, JobId


class House:
    """The parts of one backend, over the data folder of `settings`; `backend.api.Backend` says what to expect."""

    def __init__(
        self,
        settings: Settings,
        *,
        preset: str | None = None,
        engine_factory: EngineFactory | None = None,
        services: Services | None = None,
        fleets: int | None = None,
    ) -> None:
        self.settings = settings
        self._services = services or real_services(engine_factory)
        self._quality_presets = preset_files.quality_presets()
        self._machine = Machine(settings, self._services, preset, fleets)
        self._lock = InstanceLock(settings.jobs_dir.parent)
        self._admins: frozenset[str] | None = None
        self._journal = Journal(settings.logs_dir) if settings.state_dir is None else None  # commands speak on stderr
        try:
            self._store = JobStore(settings.database, settings.jobs_dir)
            self._artifacts = Artifacts(settings.jobs_dir)
            self._artifacts.repair(self._store.exists, self._store.delete)
            self._slots = tuple(EngineSlot(self._services.engine, own) for own in self._machine.shares())
            self._upkeep = Upkeep(self._store, self._artifacts, settings.uploads_dir)
            self._manager = JobManager(
                Workshop(
                    store=self._store,
                    artifacts=self._artifacts,
                    slots=self._slots,
                    services=self._services,
                    order=self._order,
                    tidy=self._upkeep.sweep,
                )
            )
            self._intake = Intake(self._manager, self._services, self._machine.unavailable, settings)
            self._intake.count = self._store.crowd
            self._outlook = Outlook(
                Sight(
                    store=self._store,
                    slots=self._slots,
                    services=self._services,
                    settings=settings,
                    hardware=self._machine.hardware,
                    presets=self._machine.presets,
                    runs=self._machine.unavailable,
                )
            )
            self._intake.refuses = self._outlook.refusal
            self.weights = Weights(settings, self.may_pause, self._in_use)
            self.results = Results(self._store, self._artifacts, self._record, self._whose)
        except BaseException:
            self._stop_journal()
            self._lock.release()
            raise

    def close(self, finish_running: bool = False, timeout_s: float = 15.0) -> None:
        """Accept no more, finish or stop the running job, end the engine; idempotent. Waiting jobs keep waiting."""
        self.weights.close()
        self._manager.close(finish_running, timeout_s)
        self._store.close()
        self._stop_journal()
        self._lock.release()

    def sweep(self) -> int:
        """Clear old inputs of ended jobs, stale uploads and results over the cap; returns bytes freed of the former."""
        return self._upkeep.sweep()

    def appoint(self, *admins: str) -> None:
        """From now on only these owners see everybody's jobs and may pause; before, any may pause and none sees all."""
        self._admins = frozenset(admins)

    def rules(self, owner: str) -> bool:
        """Whether `owner` sees everybody's jobs."""
        return owner == ADMIN or owner in (self._admins or ())

    def may_pause(self, owner: str) -> bool:
        """Whether `owner` may hold the queue: an admin, or anybody where none was appointed."""
        return self._admins is None or self.rules(owner)

    def _record(self, job: JobId, owner: str) -> JobRecord:
        record = self._store.get(job)
        if not self._sees(owner, record):
            raise JobNotFound(f"job={job}: there is no such job")
        return record

    def _whose(self, owner: str) -> str | None:
        return None if self.rules(owner) else owner

    def _sees(self, owner: str, record: JobRecord) -> bool:
        return owner == record.owner or self.rules(owner)

    def _opened(self, job: JobId, owner: str | None, token: str | None) -> JobRecord:
        """The job whose files are asked for, by its owner or with its token."""
        if token is not None and hmac.compare_digest(token.encode(), self._token(job).encode()):
            owner = ADMIN
        if owner is None:
            raise JobNotFound(f"job={job}: there is no such job")
        return self._record(job, owner)

    def _token(self, job: JobId) -> str:
        digest = hmac.new(self._store.secret.encode(), job.encode(), hashlib.sha256)
        return digest.hexdigest()[:32]

    def _order(self, record: JobRecord) -> Order:
        preset = self._machine.preset(record.preset)
        return Order(
            record=record,
            preset=preset,
            quality=preset_files.pick(self._quality_presets, record.quality),
            geometry=self._machine.checkpoint(preset).geometry,
            settings=self.settings,
        )

    def _again(self, record: JobRecord, request: GenerationRequest, tensors: Path | None) -> JobId:
        draft = Draft(
            owner=record.owner,
            preset=self._machine.preset(record.preset),
            quality=record.quality,
            tensors=tensors,
            title=record.title,
            labels=record.labels,
        )
        return self._intake.accept(request, draft)

    def _in_use(self, folder: Path) -> bool:
        """Whether the model in `folder` is loaded, or belongs to the preset of a job that runs."""
        running = [job for job in self._manager.running() if job is not None]
        presets = {self._machine.preset(self._store.get(job).preset).name for job in running}
        folders = [self._machine.checkpoint(self._machine.preset(name)).folder for name in presets]
        return folder in folders or any(slot.reads(folder) for slot in self._slots)

    def _stop_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
