"""The way in: a request is planned, its media copied, its row stored; or it is refused and nothing is left of it.

Knows presets, plans and folders; owners are checked by the caller.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backend import presets
from backend.errors import H3Error, InvalidRequest, NotNow, Problem, Unavailable
from backend.hardware.probe import disk_free
from backend.jobs import turbo
from backend.jobs.caps import Caps, Crowd
from backend.jobs.manager import JobManager
from backend.jobs.planning import Plan, make_plan, scaled
from backend.jobs.records import ADMIN, JobRecord, JobState, title_of
from backend.jobs.services import Services
from backend.presets import HardwarePreset
from backend.settings import Settings
from backend.types import GenerationRequest, JobId, MediaReport

MIN_FREE_BYTES = 256 * 2**20  # kept free for the database, prepared media and the video of the next job


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Everything about a new job but its request. `in_place` leaves its media where they are."""

    owner: str
    preset: HardwarePreset
    quality: str = "standard"
    tensors: Path | None = None
    title: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    in_place: bool = False


class Intake:
    """Turns requests into waiting jobs of `manager`. `unavailable` says why a preset cannot run here, or None."""

    def __init__(
        self,
        manager: JobManager,
        services: Services,
        unavailable: Callable[[HardwarePreset], str | None],
        settings: Settings,
    ) -> None:
        self._manager = manager
        self._services = services
        self._unavailable = unavailable
        self._settings = settings
        self._qualities = presets.quality_presets()
        self._door = threading.Lock()  # between counting and joining nobody else may come in
        self.caps = Caps()
        self.refuses: Callable[[Plan, HardwarePreset], Problem | None] = lambda plan, preset: None
        self.count: Callable[[str], Crowd] = lambda owner: Crowd(own=0, all=0)

    def plan(
        self,
        request: GenerationRequest,
        preset: HardwarePreset,
        quality: str,
        probed: Mapping[Path, MediaReport] | None = None,
    ) -> Plan:
        """What `request` will become. Raises InvalidRequest with all problems, PresetError, CheckpointError.

        Also refuses what this machine cannot hold on `preset`, naming the nearest change that fits.
        """
        plan = self.outline(request, preset, quality, probed)
        if problem := self.refuses(plan, preset):
            raise InvalidRequest((problem,))
        return plan

    def outline(
        self,
        request: GenerationRequest,
        preset: HardwarePreset,
        quality: str,
        probed: Mapping[Path, MediaReport] | None = None,
    ) -> Plan:
        """`plan` without asking whether it fits."""
        checkpoint = self._services.find_checkpoint(preset, self._settings)
        chosen = presets.pick(self._qualities, quality)
        problems: tuple[Problem, ...] = ()
        notices: tuple[str, ...] = ()
        if chosen.turbo and not turbo.brings_adapter(request):
            try:
                found = turbo.adapter_for(self._settings, preset, checkpoint.default_steps)
                request, notices = turbo.put_on(request, found), (f"{chosen.title} uses the adapter {found.title}",)
            except InvalidRequest as error:
                problems = error.problems
        try:
            plan = make_plan(request, scaled(checkpoint.geometry, chosen), self._services, probed)
        except InvalidRequest as error:
            raise InvalidRequest((*problems, *error.problems)) from error
        if problems:
            raise InvalidRequest(problems)
        return dataclasses.replace(plan, notices=(*notices, *plan.notices))

    def check_room(self, preset: HardwarePreset, request: GenerationRequest) -> None:
        """Raise Unavailable when `preset` cannot run here, InvalidRequest for what its engine or the disk refuses."""
        if reason := self._unavailable(preset):
            raise Unavailable(f"preset={preset.name}: {reason}")
        checkpoint = self._services.find_checkpoint(preset, self._settings)
        engine = self._services.engine(preset, checkpoint.folder or Path(checkpoint.name), self._settings)
        reason = engine.rejects(request)  # asked of a cold one, which costs nothing
        engine.close()
        if reason:
            raise InvalidRequest((Problem(field="preset", value=preset.name, rule=reason),))
        free = disk_free(self._settings.jobs_dir)
        if free < MIN_FREE_BYTES:
            value, rule = f"{free / 2**20:.0f} MiB free", f"a job needs at least {MIN_FREE_BYTES / 2**20:.0f} MiB"
            raise InvalidRequest((Problem(field="disk", value=value, rule=rule, way_out="free some space"),))

    def accept(self, request: GenerationRequest, draft: Draft) -> JobId:
        """Plan, copy, store; the row is on the disk when this returns. Raises H3Error, with nothing left behind."""
        plan = self.plan(request, draft.preset, draft.quality)
        self.check_room(draft.preset, plan.request)
        media_bytes = sum(path.stat().st_size for path in plan.media if path.is_file())
        self._check_caps(draft.owner, media_bytes)
        job, artifacts = JobId(secrets.token_urlsafe(12)), self._manager.artifacts
        copied = artifacts.begin(job, plan.request, draft.labels, draft.in_place)
        record = JobRecord(
            id=job,
            owner=draft.owner,
            state=JobState.QUEUED,
            position=None,
            request=copied.request,
            preset=draft.preset.name,
            quality=draft.quality,
            title=draft.title or title_of(request.prompt),
            favourite=False,
            created_at=time.time(),
            started_at=None,
            finished_at=None,
            video=None,
            sidecar=None,
            error=None,
            folder=artifacts.folder(job),
            num_events=0,
            tags=plan.tags,
            labels=copied.labels,
            tensors=draft.tensors.expanduser().resolve() if draft.tensors else None,
        )
        try:
            with self._door:
                self._check_caps(draft.owner, media_bytes)
                self._manager.submit(record)
        except BaseException:
            artifacts.abandon(job)
            raise
        return job

    def _check_caps(self, owner: str, media_bytes: int) -> None:
        if owner != ADMIN and self._manager.state().accepting:  # a closing program refuses in its own words
            self.caps.check(self.count(owner), media_bytes)

    def check_many(self, owner: str, media_bytes: Sequence[int]) -> None:
        """Raise InvalidRequest where so many jobs, with so much media each, are too much for `owner`."""
        if owner != ADMIN:
            self.caps.check(self.count(owner), sum(media_bytes), len(media_bytes))

    def edit(self, record: JobRecord, request: GenerationRequest, preset: HardwarePreset, quality: str) -> None:
        """Replace request and quality of a waiting job, which keeps its place. Raises NotNow once it runs."""
        if record.state is not JobState.QUEUED:
            raise NotNow(f"job={record.id}: it is {record.state}; only a waiting job can be edited, duplicate it")
        plan, artifacts = self.plan(request, preset, quality), self._manager.artifacts
        self.check_room(preset, plan.request)
        copied = artifacts.add_inputs(record.id, plan.request, record.labels)
        untitled = record.title == title_of(record.request.prompt)
        changed = dataclasses.replace(
            record,
            request=copied.request,
            quality=quality,
            labels=copied.labels,
            tags=plan.tags,
            title=title_of(request.prompt) if untitled else record.title,
        )
        try:
            self._manager.replace(changed)
        except H3Error:
            artifacts.drop_inputs(record.id, set(copied.labels))
            raise
        artifacts.drop_inputs(record.id, set(record.labels))
