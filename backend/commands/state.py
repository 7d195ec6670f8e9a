"""Before a command does anything: settings that can work, and a job store of its own.

Knows folders and the catalog; no request and no job.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator

from backend.checkpoints import catalog
from backend.errors import CheckpointError, Unavailable
from backend.jobs.lock import InstanceLock
from backend.settings import COMMAND_FOLDER, Settings

COMMAND_START_S = 60.0  # a younger folder may belong to a command that has not taken its lock yet


def check_settings(settings: Settings) -> None:
    """Raises Unavailable where the data folder cannot be written, CheckpointError for an unusable `--checkpoint`."""
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.run_dir):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        way_out = "choose another folder with --data-dir or H3_DATA_DIR"
        raise Unavailable(f"data_dir={settings.data_dir}: cannot be written ({reason}); {way_out}") from error
    if settings.checkpoint is not None:
        found = catalog.find(settings.checkpoint, settings)
        if not found.ready and found.name != catalog.TINY:
            raise CheckpointError(f"checkpoint={settings.checkpoint}: {found.state}")


@contextlib.contextmanager
def private_state(settings: Settings) -> Iterator[Settings]:
    """Settings with a job store of their own, so that a command runs beside an open page; removed afterwards."""
    _sweep_dead_commands(settings)
    private = settings.with_private_state()
    try:
        yield private
    finally:
        shutil.rmtree(private.jobs_dir.parent, ignore_errors=True)


def _sweep_dead_commands(settings: Settings) -> None:
    """Remove what commands left that were killed; one that lives holds the lock of its folder."""
    for folder in settings.run_dir.glob(f"{COMMAND_FOLDER}*"):
        with contextlib.suppress(Unavailable, OSError):
            if time.time() - folder.stat().st_mtime > COMMAND_START_S:
                InstanceLock(folder).release()
                shutil.rmtree(folder)
