"""A place for one engine at a time: opened for a preset, kept warm, replaced when the preset changes or it broke.

Knows engines by their protocol; nothing of jobs.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from backend.engines.base import Engine, RankState
from backend.errors import EngineFailure, Unavailable
from backend.events import Event
from backend.jobs.services import EngineFactory
from backend.presets import HardwarePreset
from backend.settings import Settings


class EngineSlot:
    """Used by the dispatcher's thread; the plain attributes may be read from any.

    `failure` says why no engine is up after one broke; it is cleared when the next one is up. `broke_warm` tells an
    engine that had been up from one that never came up: only the former is worth bringing up again unasked.
    """

    def __init__(self, factory: EngineFactory, settings: Settings) -> None:
        self._factory = factory
        self._settings = settings
        self._engine: Engine | None = None
        self._opened: tuple[HardwarePreset, Path] | None = None
        self.up = False
        self.starting = False
        self.failure: str | None = None
        self.broke_warm = False

    @property
    def preset(self) -> HardwarePreset | None:
        """The preset of the engine that was opened last."""
        return None if self._opened is None else self._opened[0]

    def holds(self, preset: str) -> bool:
        """Whether the engine that is up is one of the preset of that name."""
        return self.up and self._opened is not None and self._opened[0].name == preset

    def reads(self, folder: Path) -> bool:
        """Whether an engine is up, or coming up, on the checkpoint in `folder`."""
        opened = self._opened
        return self._engine is not None and opened is not None and opened[1].resolve() == folder.resolve()

    def ranks(self) -> tuple[RankState, ...]:
        """The processes of the engine in this slot, up or starting; () when there is none."""
        engine = self._engine
        return () if engine is None else engine.ranks()

    def take(self, preset: HardwarePreset, checkpoint: Path) -> Engine:
        """The engine for `preset`, perhaps cold. Closes one of another preset. Raises Unavailable."""
        if self._engine is not None and self._opened != (preset, checkpoint):
            self.close()
        if self._engine is None:
            engine = self._factory(preset, checkpoint, self._settings)
            if reason := engine.unavailable():
                engine.close()
                raise Unavailable(f"preset={preset.name}: {reason}")
            self._engine, self._opened = engine, (preset, checkpoint)
        return self._engine

    def start(self, engine: Engine) -> Generator[Event, None, None]:
        """Bring `engine` up, passing on its progress; raises EngineFailure, after which the slot is empty."""
        self.starting = not self.up
        try:
            yield from engine.start()
            self.up, self.failure = True, None
        except EngineFailure as error:
            self.discard(str(error))
            raise
        finally:
            self.starting = False

    def bring_up_again(self) -> Generator[Event, None, None]:
        """Open and start what was open last; raises EngineFailure or Unavailable."""
        self.broke_warm = False
        if self._opened is not None:
            yield from self.start(self.take(*self._opened))

    def look(self) -> None:
        """Notice an engine that broke while nobody used it."""
        failure = self._engine.failure if self._engine is not None and self.up else None
        if failure is not None:
            self.discard(str(failure))

    def discard(self, reason: str) -> None:
        """Close a broken engine; the next job gets a fresh one."""
        self.failure = reason
        self.broke_warm = self.broke_warm or self.up
        self.close()

    def close(self) -> None:
        """Close the engine, if there is one."""
        engine, self._engine, self.up = self._engine, None, False
        if engine is not None:
            engine.close()
