"""What jobs need from the rest of the backend, gathered in one frozen object so that a test can hand in its own.

Knows where the real ones live; holds no state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backend.engines.base import Engine
from backend.presets import EngineName, HardwarePreset
from backend.settings import Settings
from backend.types import GenerationRequest, Geometry, Glimpse, MediaReport, PreparedMedia

if TYPE_CHECKING:
    from backend.checkpoints.catalog import Checkpoint

EngineFactory = Callable[[HardwarePreset, Path, Settings], Engine]  # preset, checkpoint folder, settings
Tell = Callable[[str], None]
_ensuring = threading.Lock()  # two jobs must not build or complete the same checkpoint at once


def glimpse_media(path: Path, keyframe: bool, folder: Path) -> tuple[MediaReport, Glimpse]:
    """What a file is, with small pictures of it written to `folder`. Raises MediaRefused."""
    from backend.media.probe import glimpse_file
    from backend.media.sandbox import Role

    return glimpse_file(path, role=Role.FIRST_FRAME if keyframe else Role.REFERENCE, field=path.name, folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """`probe_file` (file, field it fills, whether as a keyframe) and `prepare` decode in a sandboxed child and raise
    MediaRefused; so does `glimpse_file` (file, whether as a keyframe, folder for the pictures).

    `find_checkpoint` describes a preset's checkpoint, `ensure_checkpoint` makes it complete on this disk; both raise
    CheckpointError.
    """

    engine: EngineFactory
    probe_file: Callable[[Path, str, bool], MediaReport]
    prepare: Callable[[GenerationRequest, Geometry, Path], PreparedMedia]
    find_checkpoint: Callable[[HardwarePreset, Settings], Checkpoint]
    ensure_checkpoint: Callable[[HardwarePreset, Settings, Tell], Path]
    glimpse_file: Callable[[Path, bool, Path], tuple[MediaReport, Glimpse]] = glimpse_media


def checkpoint_name(preset: HardwarePreset, settings: Settings) -> str:
    """The checkpoint a preset runs with these settings. The stub's own is no checkpoint; it borrows the tiny one's."""
    if preset.engine is EngineName.STUB:
        return "tiny"
    return settings.checkpoint or preset.checkpoint


def find_checkpoint(preset: HardwarePreset, settings: Settings) -> Checkpoint:
    """What the catalog knows of a preset's checkpoint."""
    from backend.checkpoints import catalog  # the catalog and the engines load only once somebody asks

    return catalog.find(checkpoint_name(preset, settings), settings)


def ensure_checkpoint(preset: HardwarePreset, settings: Settings, tell: Tell) -> Path:
    """The folder of a preset's checkpoint, complete; for the stub, the line of settings it takes instead, and for a
    server elsewhere, which has its own, only the name."""
    from backend.checkpoints import catalog

    if preset.engine is EngineName.STUB or preset.elsewhere:
        return Path(preset.checkpoint)
    with _ensuring:
        return catalog.ensure(checkpoint_name(preset, settings), settings, tell)


def probe_media(path: Path, field: str, keyframe: bool) -> MediaReport:
    """What a file is, found out in a sandbox. Raises MediaRefused naming `field`."""
    from backend.media.probe import probe_file
    from backend.media.sandbox import Role

    return probe_file(path, role=Role.FIRST_FRAME if keyframe else Role.REFERENCE, field=field)


def build_engine(preset: HardwarePreset, checkpoint: Path, settings: Settings) -> Engine:
    """The engine a preset names, not started."""
    if preset.engine is EngineName.STUB:
        from backend.engines.stub import StubEngine

        return StubEngine(preset, checkpoint, settings)
    if preset.engine is EngineName.REMOTE:
        from backend.engines.remote import RemoteEngine

        return RemoteEngine(preset, checkpoint, settings)
    from backend.engines.native import NativeEngine

    return NativeEngine(preset, checkpoint, settings)


def real_services(engine: EngineFactory | None = None) -> Services:
    """The services of the program itself, with another engine factory where one is given."""
    from backend.media.prepare import prepare_request

    return Services(
        engine=engine or build_engine,
        probe_file=probe_media,
        prepare=prepare_request,
        find_checkpoint=find_checkpoint,
        ensure_checkpoint=ensure_checkpoint,
    )
