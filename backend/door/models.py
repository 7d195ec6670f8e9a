"""Adapters that may be chosen, and the report about this machine; models themselves are `Backend.weights`.

Knows who may change what; files are `backend.checkpoints`'.
"""

from __future__ import annotations

from pathlib import Path

from backend.checkpoints import adapter_shelf, catalog
from backend.checkpoints.adapter_shelf import ListedAdapter
from backend.door.house import House
from backend.errors import NotNow
from backend.hardware.report import machine_report
from backend.jobs.records import JobState
from backend.types import Adapter


class Models(House):
    """Adapters by name, and what this machine is in words."""

    def adapters(self) -> tuple[ListedAdapter, ...]:
        """Every adapter of this installation, with why one cannot be used."""
        return adapter_shelf.listed(self.settings)

    def adapter(self, name: str, scale: float = 1.0, field: str = "adapter") -> Adapter:
        """The adapter of that name for a request. Raises InvalidRequest: nobody names a path."""
        return adapter_shelf.pick(self.settings, name, scale, field)

    def add_adapter(self, source: Path, name: str, *, owner: str) -> ListedAdapter:
        """Keep an uploaded LoRA file. Raises NotNow for whoever may not, InvalidRequest, NotAnAdapter."""
        self._check_may_change(owner)
        return adapter_shelf.add(self.settings, source, name)

    def remove_adapter(self, name: str, *, owner: str) -> None:
        """Delete an adapter. Raises NotNow while a job that waits or runs asks for it, or for whoever may not."""
        self._check_may_change(owner)
        live = self._store.select(owner=None, states=(JobState.QUEUED, JobState.RUNNING), limit=10_000)
        used = {adapter.path for record in live for adapter in record.request.sampling.adapters}
        if any(item.path in used for item in self.adapters() if item.name == name):
            raise NotNow(f"adapter={name}: a job that waits or runs asks for it; wait for it, or cancel it")
        adapter_shelf.remove(self.settings, name)

    def report(self) -> str:
        """What this machine is and which presets fit it, in text to send to somebody who helps."""
        machine = self._outlook.machine(self._machine.choice, self._manager.running())
        models = [f"{item.name:<24} {item.state}" for item in catalog.list_checkpoints(self.settings)]
        return machine_report(machine, models)

    def _check_may_change(self, owner: str) -> None:
        if not self.may_pause(owner):
            raise NotNow("models: only an administrator may change them")
