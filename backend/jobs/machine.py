"""The machine jobs run on: its presets, the one that was chosen, and why the others cannot run here and now.

Looks at hardware and checkpoints, at most every few seconds; knows no job.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from backend import presets as preset_files
from backend.errors import CheckpointError
from backend.hardware.choose import Choice, choose, unavailable
from backend.hardware.probe import Hardware, probe
from backend.jobs.services import Services, checkpoint_name
from backend.presets import EngineName, HardwarePreset
from backend.settings import Settings, lack_of_address

if TYPE_CHECKING:
    from backend.checkpoints.catalog import Checkpoint

REMOTE = "remote"  # presets/hardware/remote.toml
FRESH_S = 10.0  # one look at the machine serves a page that asks for everything at once


class Machine:
    """Presets and hardware of this program. Raises PresetError for an unknown `preset`."""

    def __init__(self, settings: Settings, services: Services, preset: str | None, fleets: int | None) -> None:
        self.settings = settings
        self.services = services
        self.presets = preset_files.hardware_presets()
        self._looked = (-FRESH_S, probe(settings.data_dir, settings.gpus))
        elsewhere = REMOTE if preset is None and settings.remote is not None else preset
        self.choice: Choice = choose(self.presets, self.hardware(), self._checkpoint_lack, elsewhere, fleets)
        if settings.remote is not None and preset is None:
            flaw = settings.remote.flaw
            reason = flaw or f"H3_REMOTE_URL is set: the server at {settings.remote.host} makes the videos."
            self.choice = dataclasses.replace(self.choice, reason=reason)

    def offered(self) -> tuple[HardwarePreset, ...]:
        """The presets for people; the stub's are for tests."""
        return tuple(item for item in self.presets.values() if item.engine is not EngineName.STUB)

    def preset(self, name: str | None) -> HardwarePreset:
        """The preset called `name`, or the chosen one. Raises PresetError."""
        return self.choice.preset if name is None else preset_files.pick(self.presets, name)

    def hardware(self) -> Hardware:
        """What the machine has, looked at again when the last look is old."""
        at, hardware = self._looked
        if time.monotonic() - at > FRESH_S:
            hardware = probe(self.settings.data_dir, self.settings.gpus)
            self._looked = (time.monotonic(), hardware)
        return hardware

    def checkpoint(self, preset: HardwarePreset) -> Checkpoint:
        """The checkpoint a preset runs. Raises CheckpointError."""
        return self.services.find_checkpoint(preset, self.settings)

    def unavailable(self, preset: HardwarePreset) -> str | None:
        """Why `preset` cannot run here and now on the share of one fleet, or None."""
        hardware, share = self.hardware(), self.choice.shares[0]
        if not share:
            return unavailable(preset, hardware, self._checkpoint_lack)
        own = dataclasses.replace(hardware, gpus=tuple(gpu for gpu in hardware.gpus if gpu.uuid in share))
        reason = unavailable(preset, own, self._checkpoint_lack)
        if reason and unavailable(preset, hardware, self._checkpoint_lack) is None:
            reason += f" for each of {self.choice.fleets} jobs at once; start the program with --fleets 1"
        return reason

    def shares(self) -> tuple[Settings, ...]:
        """The settings of each fleet: the same, with the GPUs that are its own."""
        return tuple(self.settings.with_gpus(share) if share else self.settings for share in self.choice.shares)

    def _checkpoint_lack(self, preset: HardwarePreset) -> str | None:
        """Why a preset's checkpoint cannot be loaded, or None; the tiny one is made on first use."""
        if preset.engine is EngineName.REMOTE:
            return lack_of_address(self.settings.remote)
        try:
            checkpoint = self.checkpoint(preset)
        except CheckpointError as error:
            return str(error)
        if checkpoint.ready or checkpoint_name(preset, self.settings) == "tiny":
            return None
        return f"{checkpoint.name} is {checkpoint.state}"
