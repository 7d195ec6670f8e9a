"""The only door into the backend: what the page, the command line and HTTP may ask.

Knows owners, presets and jobs; how a job runs is `backend.jobs`', how a model runs is the engines'.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend import presets as preset_files
from backend.errors import H3Error, JobNotFound, NotNow
from backend.events import Event
from backend.hardware.choose import Choice
from backend.hardware.forecast import Forecast
from backend.hardware.machine_view import MachineView
from backend.hardware.topology import RankView
from backend.jobs.artifacts import Artifacts
from backend.jobs.caps import SHARED, Caps
from backend.jobs.finals import FINAL_QUALITY, final_request
from backend.jobs.intake import Draft, Intake
from backend.jobs.lock import InstanceLock
from backend.jobs.machine import Machine
from backend.jobs.manager import Health, JobManager, Workshop
from backend.jobs.outlook import Outlook, Sight
from backend.jobs.planning import Plan
from backend.jobs.recall import Recalled
from backend.jobs.records import ADMIN, JobRecord, JobState, title_of
from backend.jobs.results import DiskUse, Results
from backend.jobs.runner import Order
from backend.jobs.services import EngineFactory, Services, checkpoint_name, real_services
from backend.jobs.slot import EngineSlot
from backend.jobs.store import JobStore
from backend.jobs.transfer import read_queue, write_queue
from backend.jobs.upkeep import Upkeep
from backend.media.finished import Comparison
from backend.presets import HardwarePreset, QualityPreset
from backend.process import logs
from backend.process.journal import NAME as PROGRAM_LOG
from backend.process.journal import Journal
from backend.settings import Settings
from backend.types import GenerationRequest, Glimpse, JobId, MediaReport, PreparedMedia

if TYPE_CHECKING:
    from backend.checkpoints.catalog import Checkpoint
    from backend.checkpoints.licence import Licence

__all__ = [
    "ADMIN",
    "SHARED",
    "Backend",
    "Caps",
    "Choice",
    "Comparison",
    "DiskUse",
    "Health",
    "JobRecord",
    "JobState",
    "Plan",
    "PresetStatus",
    "Recalled",
    "Status",
]
log = logging.getLogger(__name__)


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
    running: JobId | None  # the first of `running_jobs`
    queued: int
    paused: bool
    accepting: bool
    running_jobs: tuple[JobId, ...] = ()  # one a fleet
    notice: str = ""  # what happened that people should know of, and is no failure


class Backend:
    """Opens the job store of `settings`, alone, and starts its dispatcher; loads no model.

    Jobs that waited when the program ended go on. Raises Unavailable when another program has the data folder,
    PresetError for an unknown `preset`. `fleets` jobs run at once, each on GPUs of its own; 1 gives all to one job,
    0 runs as many as fit, None leaves it to the preset.
    """

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
            self.results = Results(self._store, self._artifacts, self._record, self._whose)
        except BaseException:
            self._stop_journal()
            self._lock.release()
            raise

    # -- the machine and its presets ----------------------------------------------------------------------------

    def presets(self) -> tuple[PresetStatus, ...]:
        """Every hardware preset for people, with why it cannot run here."""
        offered = self._machine.offered()
        return tuple(PresetStatus(preset=item, unavailable=self._machine.unavailable(item)) for item in offered)

    def choice(self) -> Choice:
        """The preset jobs run on unless they name another, and why."""
        return self._machine.choice

    def topology(self) -> tuple[RankView, ...]:
        """Every process of every engine that is up: its GPU, state, stage and memory; () when none is."""
        return self._outlook.topology(self._manager.running())

    def machine(self) -> MachineView:
        """GPUs and their users, every preset with its plan for a usual clip or its reason, and the ranks that run."""
        return self._outlook.machine(self._machine.choice, self._manager.running())

    def quality_presets(self) -> dict[str, QualityPreset]:
        """Quality presets by name."""
        return dict(self._quality_presets)

    def checkpoint(self, preset: str | None = None) -> Checkpoint:
        """The checkpoint a preset runs. Raises PresetError, CheckpointError."""
        return self._machine.checkpoint(self._machine.preset(preset))

    def model_name(self, preset: str) -> str:
        """The name of the checkpoint a preset runs, without looking for it."""
        known = self._machine.presets.get(preset)
        return checkpoint_name(known, self.settings) if known is not None else "unknown"

    def models(self) -> list[Checkpoint]:
        """Every checkpoint this program knows of."""
        from backend.checkpoints import catalog

        return list(catalog.list_checkpoints(self.settings))

    # -- who may do what ----------------------------------------------------------------------------------------

    def appoint(self, *admins: str) -> None:
        """From now on only these owners see everybody's jobs and may pause; before, any may pause and none sees all."""
        self._admins = frozenset(admins)

    def rules(self, owner: str) -> bool:
        """Whether `owner` sees everybody's jobs."""
        return owner == ADMIN or owner in (self._admins or ())

    def may_pause(self, owner: str) -> bool:
        """Whether `owner` may hold the queue: an admin, or anybody where none was appointed."""
        return self._admins is None or self.rules(owner)

    @property
    def caps(self) -> Caps:
        """Limits of the queue and of uploads."""
        return self._intake.caps

    def limit(self, caps: Caps) -> None:
        """Set other limits for jobs and uploads to come."""
        self._intake.caps = caps

    def licence(self, preset: str | None = None) -> Licence | None:
        """The licence of a preset's model and whether it was accepted; None where there is nothing to accept."""
        from backend.checkpoints.licence import licence_of

        return licence_of(self.checkpoint(preset), self.settings)

    def accept_licence(self, by: str) -> None:
        """Store that `by` accepted the licence of the released model. Raises H3Error when the disk refuses."""
        from backend.checkpoints.licence import accept

        accept(self.settings, by)
        log.info("licence accepted", extra={"by": by})

    # -- before a job -------------------------------------------------------------------------------------------

    def probe(self, path: Path, *, keyframe: bool = False) -> MediaReport:
        """What a file is, found out in a sandbox, by the rules of a reference or a keyframe. Raises MediaRefused."""
        return self._services.probe_file(path, path.name, keyframe)

    def glimpse(self, path: Path, *, keyframe: bool = False) -> tuple[MediaReport, Glimpse]:
        """`probe` with small pictures for people, kept among the uploads under names nobody guesses."""
        folder = self.settings.uploads_dir / "seen" / secrets.token_urlsafe(12)
        return self._services.glimpse_file(path, keyframe, folder)

    def prepared_frames(
        self,
        request: GenerationRequest,
        preset: str | None = None,
        quality: str = "standard",
        probed: Mapping[Path, MediaReport] | None = None,
    ) -> PreparedMedia:
        """The keyframes of `request` exactly as its job would hand them to the model, among the uploads.

        Made by the code a job uses. Raises what `plan` raises, MediaRefused.
        """
        chosen = self._machine.preset(preset)
        planned = self._intake.outline(request, chosen, quality, probed).request
        folder = self.settings.uploads_dir / "seen" / secrets.token_urlsafe(12)
        frames = dataclasses.replace(planned, references=())
        return self._services.prepare(frames, self._machine.checkpoint(chosen).geometry, folder)

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
        return self._intake.plan(request, self._machine.preset(preset), quality, probed)

    def forecast(
        self,
        request: GenerationRequest,
        preset: str | None = None,
        quality: str = "standard",
        probed: Mapping[Path, MediaReport] | None = None,
    ) -> Forecast:
        """Memory by part, disk and seconds of each stage, each with its basis. Raises what `plan` raises.

        A request that does not fit is not an error here: `refusal` says why, and what would fit.
        """
        chosen = self._machine.preset(preset)
        return self._outlook.forecast(self._intake.outline(request, chosen, quality, probed), chosen)

    def check(self, request: GenerationRequest, preset: str | None = None, quality: str = "standard") -> str | None:
        """Why `request` cannot be accepted here and now, or None."""
        try:
            plan = self.plan(request, preset, quality=quality)
            self._intake.check_room(self._machine.preset(preset), plan.request)
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
            owner=owner, preset=self._machine.preset(preset), quality=quality, tensors=tensors, in_place=media_in_place
        )
        return self._intake.accept(request, draft)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def events(self, job: JobId, after: int = 0, *, owner: str, timeout_s: float | None = None) -> Iterator[Event]:
        """Events with `seq > after`, then live ones until the job's end, or until `timeout_s` have passed in all.

        Heartbeats are live only and carry the `seq` of the last stored event. Raises JobNotFound at once.
        """
        self._record(job, owner)
        return self._manager.events(job, after, timeout_s)

    def beat_at(self, job: JobId, *, owner: str) -> float | None:
        """Unix time of the last sign of life of a live job; None once it has ended. Raises JobNotFound."""
        self._record(job, owner)
        return self._manager.beat_at(job)

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
        favourite: bool = False,
    ) -> list[JobRecord]:
        """Jobs of `owner` in any state, newest first; with `favourite` only those that were marked."""
        return self._store.select(
            owner=self._whose(owner), states=states, search=search, favourite=favourite, limit=limit, offset=offset
        )

    def page(
        self, *, owner: str, after: JobId | None = None, limit: int = 50, oldest_first: bool = False
    ) -> list[JobRecord]:
        """At most `limit` jobs of `owner` behind the job `after`, in the order of their making."""
        return self._store.page(owner=self._whose(owner), after=after, limit=limit, oldest_first=oldest_first)

    def queue(self, *, owner: str) -> list[JobRecord]:
        """Waiting jobs of `owner`, next one first; positions count everybody's."""
        return [record for record in self._store.waiting() if self._sees(owner, record)]

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

    def final(self, job: JobId, *, owner: str) -> JobId:
        """A draft again in full: same prompt, media and seed, on the full canvas and with the usual steps."""
        record = self._record(job, owner)
        request, checkpoint = record.request, self._machine.checkpoint(self._machine.preset(record.preset))
        frame = request.first_frame or request.last_frame
        report = self.probe(frame, keyframe=True) if frame is not None else None
        size = (report.width, report.height) if report and report.width and report.height else None
        made_with = preset_files.pick(self._quality_presets, record.quality)
        full = final_request(request, checkpoint.geometry, made_with, checkpoint.default_steps, size)
        return self._again(dataclasses.replace(record, quality=FINAL_QUALITY), full, None)

    def edit(self, job: JobId, request: GenerationRequest, *, owner: str, quality: str | None = None) -> None:
        """Replace the request (and `quality`) of a waiting job, which keeps its place. Raises NotNow once it runs."""
        record = self._record(job, owner)
        self._intake.edit(record, request, self._machine.preset(record.preset), quality or record.quality)

    def reorder(self, job: JobId, position: int, *, owner: str) -> None:
        """Move a waiting job to `position` (1 is next), or as near as the owner's own places in line allow."""
        self._record(job, owner)
        own = None if self.rules(owner) else frozenset(record.id for record in self.queue(owner=owner))
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

    def pause(self, *, owner: str = ADMIN) -> None:
        """Start no more jobs, also after a restart; running ones go on. Raises NotNow for whoever may not."""
        self._set_paused(True, owner)

    def resume(self, *, owner: str = ADMIN) -> None:
        """Let the queue go on. Raises NotNow for whoever may not."""
        self._set_paused(False, owner)

    def export_queue(self, path: Path, *, owner: str) -> None:
        """Write the owner's waiting jobs with their media as one file."""
        write_queue(path, self.queue(owner=owner))

    def import_queue(self, path: Path, *, owner: str) -> list[JobId]:
        """Submit the jobs of a queue file, in order. Raises InvalidRequest for a file that is none, before any job."""
        most = self.caps.media_bytes_per_owner
        with read_queue(path, self.settings.uploads_dir, most) as items:
            drafts = [
                Draft(
                    owner=owner,
                    preset=self._machine.presets.get(
                        item.preset, self._machine.choice.preset
                    ),  # perhaps another machine's
                    quality=item.quality,
                    title=item.title,
                    labels=item.labels,
                )
                for item in items
            ]
            for item, draft in zip(items, drafts, strict=True):  # all are good before the first is accepted
                self._intake.plan(item.request, draft.preset, draft.quality)
            self._intake.check_many(owner, [item.media_bytes() for item in items])
            return [self._intake.accept(item.request, draft) for item, draft in zip(items, drafts, strict=True)]

    # -- files, health, end -------------------------------------------------------------------------------------

    def file(self, job: JobId, name: str, *, owner: str | None = None, token: str | None = None) -> Path:
        """A result file of a succeeded job, for its owner or whoever has its token. Raises JobNotFound otherwise."""
        if self._opened(job, owner, token).state is not JobState.SUCCEEDED:
            raise JobNotFound(f"job={job}: it has no result")
        return self._artifacts.file(job, name)

    def live_file(self, job: JobId, name: str, *, owner: str | None = None, token: str | None = None) -> Path | None:
        """What a job shows of itself while it runs (`types.LIVE_NAMES`), for whoever may see its results.

        None once there is nothing to see (any more). The file is replaced or grows, and goes when the job ends. Raises
        JobNotFound for a job that is not there or somebody else's.
        """
        record = self._opened(job, owner, token)
        return self._artifacts.live_file(job, name) if record.state is JobState.RUNNING else None

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
            preset=self._machine.choice.preset.name,
            running=next(iter(state.running), None),
            running_jobs=state.running,
            queued=state.queued,
            paused=state.paused,
            accepting=state.accepting,
            notice=self._upkeep.notice,
        )

    def log_tail(self, rank: int = 0, lines: int = 200) -> str:
        """The last lines of the newest log of `rank` (below 0: of the program itself), secrets removed."""
        if rank < 0:
            return logs.tail(self.settings.logs_dir / PROGRAM_LOG, lines)
        for path in logs.listing(self.settings.logs_dir):
            if path.stem.endswith(f"-rank{rank}"):
                return logs.tail(path, lines)
        return ""

    def sweep(self) -> int:
        """Clear old inputs of ended jobs, stale uploads and results over the cap; returns bytes freed of the former."""
        return self._upkeep.sweep()

    def close(self, finish_running: bool = False, timeout_s: float = 15.0) -> None:
        """Accept no more, finish or stop the running job, end the engine; idempotent. Waiting jobs keep waiting."""
        self._manager.close(finish_running, timeout_s)
        self._store.close()
        self._stop_journal()
        self._lock.release()

    # -- within ------------------------------------------------------------------------------------------------

    def _record(self, job: JobId, owner: str) -> JobRecord:
        record = self._store.get(job)
        if not self._sees(owner, record):
            raise JobNotFound(f"job={job}: there is no such job")
        return record

    def _whose(self, owner: str) -> str | None:
        return None if self.rules(owner) else owner

    def _opened(self, job: JobId, owner: str | None, token: str | None) -> JobRecord:
        """The job whose files are asked for, by its owner or with its token."""
        if token is not None and hmac.compare_digest(token.encode(), self._token(job).encode()):
            owner = ADMIN
        if owner is None:
            raise JobNotFound(f"job={job}: there is no such job")
        return self._record(job, owner)

    def _sees(self, owner: str, record: JobRecord) -> bool:
        return owner == record.owner or self.rules(owner)

    def _set_paused(self, paused: bool, owner: str) -> None:
        if not self.may_pause(owner):
            raise NotNow("queue: only an administrator may pause it or let it go on")
        self._store.set_note("paused", "yes" if paused else "")
        self._manager.set_paused(paused)
        log.info("queue paused" if paused else "queue goes on", extra={"owner": owner})

    def _stop_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

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

    def _token(self, job: JobId) -> str:
        digest = hmac.new(self._store.secret.encode(), job.encode(), hashlib.sha256)
        return digest.hexdigest()[:32]
