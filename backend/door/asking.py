"""What comes before a job: looking at media, planning and foreseeing a request, and handing it in.

Knows requests; what becomes of a job is `jobs`'.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path

from backend.checkpoints import adapters
from backend.checkpoints.adapters import NotAnAdapter
from backend.door.house import House
from backend.errors import H3Error, InvalidRequest
from backend.hardware.forecast import Forecast
from backend.jobs import turbo
from backend.jobs.caps import Caps
from backend.jobs.intake import Draft
from backend.jobs.planning import Plan
from backend.types import GenerationRequest, Glimpse, JobId, MediaReport, PreparedMedia


class Asking(House):
    """A request on its way in: seen, planned, foreseen, accepted."""

    @property
    def caps(self) -> Caps:
        """Limits of the queue and of uploads."""
        return self._intake.caps

    def limit(self, caps: Caps) -> None:
        """Set other limits for jobs and uploads to come."""
        self._intake.caps = caps

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

    def default_steps(self, request: GenerationRequest, quality: str = "standard", preset: str | None = None) -> int:
        """Sigma points when nobody says: an adapter's, else the quality's or what the checkpoint needs, if fewer.

        What cannot be (no such quality, no such adapter) says nothing here: the plan names it with all other problems.
        Raises PresetError, CheckpointError.
        """
        hardware = self._machine.preset(preset)
        own, chosen = self._machine.checkpoint(hardware).default_steps, self._quality_presets.get(quality)
        with contextlib.suppress(NotAnAdapter, InvalidRequest):
            if chosen is not None and chosen.turbo and not turbo.brings_adapter(request):
                request = turbo.put_on(request, turbo.adapter_for(self.settings, hardware, own))
            if (stated := adapters.steps_of(request)) is not None:
                return stated
        return own if chosen is None else chosen.steps(own)

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
