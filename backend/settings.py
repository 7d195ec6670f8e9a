"""Where things lie and what the environment says: the only reader of environment variables in the parent.

Knows folders and defaults; creates nothing until asked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Paths of one installation. `data_dir` holds everything the program writes."""

    data_dir: Path
    checkpoint: str | None = None  # overrides the preset's

    @property
    def jobs_dir(self) -> Path:
        """One folder a job: inputs, outputs, sidecar."""
        return self.data_dir / "jobs"

    @property
    def database(self) -> Path:
        """SQLite file of all jobs and their events."""
        return self.data_dir / "jobs.sqlite3"

    @property
    def checkpoints_dir(self) -> Path:
        """Checkpoints this program made or downloaded."""
        return self.data_dir / "checkpoints"

    @property
    def logs_dir(self) -> Path:
        """One file a rank and one of the parent."""
        return self.data_dir / "logs"

    @property
    def run_dir(self) -> Path:
        """Short-lived files of running fleets (rendezvous, sandboxes); swept at start."""
        return self.data_dir / "run"

    @property
    def cache_dir(self) -> Path:
        """Things that can be computed again (tables, compiled kernels)."""
        return self.data_dir / "cache"

    @property
    def uploads_dir(self) -> Path:
        """Files a browser sent that no job owns yet."""
        return self.data_dir / "uploads"


def from_environment(data_dir: Path | None = None, checkpoint: str | None = None) -> Settings:
    """Settings from arguments first, then H3_DATA_DIR and H3_CHECKPOINT, then XDG defaults."""
    chosen = data_dir or os.environ.get("H3_DATA_DIR")
    if chosen is None:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        chosen = Path(base) / "h3-studio"
    return Settings(
        data_dir=Path(chosen).expanduser().resolve(),
        checkpoint=checkpoint or os.environ.get("H3_CHECKPOINT") or None,
    )
