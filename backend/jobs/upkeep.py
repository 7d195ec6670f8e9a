"""Clearing up: old inputs of ended jobs, stale uploads, and results over the cap, the oldest first, favourites kept.

Knows the store and the folders; when it runs is the dispatcher's.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from backend.errors import H3Error
from backend.jobs.artifacts import KEEP_RESULTS_BYTES, Artifacts
from backend.jobs.store import JobStore

log = logging.getLogger(__name__)


class Upkeep:
    """`notice` tells people what was removed last, also after a restart."""

    def __init__(self, store: JobStore, artifacts: Artifacts, uploads_dir: Path) -> None:
        self._store = store
        self._artifacts = artifacts
        self._uploads_dir = uploads_dir
        self.notice = store.note("results")

    def sweep(self) -> int:
        """Clear what is due; returns bytes freed of inputs and uploads."""
        try:
            self._keep_results_within_cap()
            self._store.keep_reserve()
            return self._artifacts.sweep(self._store.ended(), self._uploads_dir)
        except (OSError, H3Error):  # clearing up is no reason to stop; the next time may do
            log.warning("old inputs could not be cleared", exc_info=True)
            return 0

    def _keep_results_within_cap(self) -> None:
        going = self._artifacts.over_cap(self._store.removable_results())
        for job in going:
            self._artifacts.delete(job, partial(self._store.delete, job))
        if going:
            told = f"On {time.strftime('%Y-%m-%d')} the {len(going)} oldest results were removed, favourites kept, "
            told += f"because all results took more than {KEEP_RESULTS_BYTES / 2**30:g} GiB."
            self._store.set_note("results", told)
            self.notice = told
            log.warning(told)
