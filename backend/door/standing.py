"""What the program has and how it fares: its state, its machine, presets, models and the licence.

Knows what is asked about the whole; one job is `jobs`'.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.door.house import House
from backend.errors import InvalidRequest, Problem
from backend.hardware.choose import Choice
from backend.hardware.distances import Distance, distances
from backend.hardware.machine_view import MachineView
from backend.hardware.topology import RankView
from backend.jobs import turbo
from backend.jobs.manager import Health
from backend.jobs.planning import scaled
from backend.jobs.services import checkpoint_name
from backend.presets import HardwarePreset, QualityPreset, finest
from backend.process import logs
from backend.process.journal import NAME as PROGRAM_LOG
from backend.types import JobId

if TYPE_CHECKING:
    from backend.checkpoints.adapter_shelf import ListedAdapter
    from backend.checkpoints.catalog import Checkpoint
    from backend.checkpoints.licence import Licence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetStatus:
    """A hardware preset and why it cannot run here, or None."""

    preset: HardwarePreset
    unavailable: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityView:
    """A quality preset on one model: its sigma points there, and how far it was measured from the finest quality.

    `distance` is None for the finest and for one that was not measured; `same` means that on this model it makes the
    very clip that the finest makes. Turbo has an `adapter`, or why it cannot be chosen here (`unavailable`).
    """

    preset: QualityPreset
    steps: int
    finest: str  # title of the finest
    same: bool
    distance: Distance | None
    adapter: ListedAdapter | None = None
    unavailable: Problem | None = None


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


class Standing(House):
    """Questions about the program as a whole; ones about presets take None for the preset that is chosen."""

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

    def qualities(self, preset: str | None = None) -> dict[str, QualityView]:
        """Quality presets by name on the model that a hardware preset runs. Raises PresetError, CheckpointError."""
        checkpoint, best, measured = self.checkpoint(preset), finest(self._quality_presets), distances()
        own, geometry = checkpoint.default_steps, checkpoint.geometry

        def made(item: QualityPreset) -> object:
            return item.steps(own), scaled(geometry, item), item.encoder

        def view(name: str, item: QualityPreset) -> QualityView:
            same = item is not best and not item.turbo and made(item) == made(best)
            steps, distance = item.steps(own), measured.get(name)
            seen = QualityView(preset=item, steps=steps, finest=best.title, same=same, distance=distance)
            if not item.turbo:
                return seen
            try:
                found = turbo.adapter_for(self.settings, self._machine.preset(preset), own)
            except InvalidRequest as error:
                return dataclasses.replace(seen, unavailable=error.problems[0])
            assert found.card is not None and found.card.num_inference_steps is not None  # it was chosen for them
            return dataclasses.replace(seen, adapter=found, steps=found.card.num_inference_steps)

        return {name: view(name, item) for name, item in self._quality_presets.items()}

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

    def licence(self, preset: str | None = None) -> Licence | None:
        """The licence of a preset's model and whether it was accepted; None where there is nothing to accept."""
        from backend.checkpoints.licence import licence_of

        return licence_of(self.checkpoint(preset), self.settings)

    def accept_licence(self, by: str) -> None:
        """Store that `by` accepted the licence of the released model. Raises H3Error when the disk refuses."""
        from backend.checkpoints.licence import accept

        accept(self.settings, by)
        log.info("licence accepted", extra={"by": by})
