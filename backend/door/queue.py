"""What is asked of the jobs that wait: their order, their change, holding all of them, and the file of a queue.

Knows the line; how a job leaves it is the manager's.
"""

from __future__ import annotations

import logging
from pathlib import Path

from backend.door.house import House
from backend.errors import NotNow
from backend.jobs.intake import Draft
from backend.jobs.records import ADMIN, JobRecord
from backend.jobs.transfer import read_queue, write_queue
from backend.types import GenerationRequest, JobId

log = logging.getLogger(__name__)


class Queue(House):
    """The line of waiting jobs."""

    def queue(self, *, owner: str) -> list[JobRecord]:
        """Waiting jobs of `owner`, next one first; positions count everybody's."""
        return [record for record in self._store.waiting() if self._sees(owner, record)]

    def edit(self, job: JobId, request: GenerationRequest, *, owner: str, quality: str | None = None) -> None:
        """Replace the request (and `quality`) of a waiting job, which keeps its place. Raises NotNow once it runs."""
        record = self._record(job, owner)
        self._intake.edit(record, request, self._machine.preset(record.preset), quality or record.quality)

    def reorder(self, job: JobId, position: int, *, owner: str) -> None:
        """Move a waiting job to `position` (1 is next), or as near as the owner's own places in line allow."""
        self._record(job, owner)
        own = None if self.rules(owner) else frozenset(record.id for record in self.queue(owner=owner))
        self._manager.line.move(job, position, own)

    def pause(self, *, owner: str = ADMIN) -> None:
        """Start no more jobs, also after a restart; running ones go on. Raises NotNow for whoever may not."""
        self._set_paused(True, owner)

    def resume(self, *, owner: str = ADMIN) -> None:
        """Let the queue go on. Raises NotNow for whoever may not."""
        self._set_paused(False, owner)

    def export_queue(self, path: Path, *, owner: str) -> None:
        """Write the owner's waiting jobs with their media as one file."""
        write_queue(path, self.queue(owner=owner))

    def import_queue(self, path: Path, *, owner: str) -> list[JobId]:
        """Submit the jobs of a queue file, in order. Raises InvalidRequest for a file that is none, before any job."""
        most = self._intake.caps.media_bytes_per_owner
        with read_queue(path, self.settings.uploads_dir, most) as items:
            drafts = [
                Draft(
                    owner=owner,
                    preset=self._machine.presets.get(
                        item.preset, self._machine.choice.preset
                    ),  # perhaps another machine's
                    quality=item.quality,
                    title=item.title,
                    labels=item.labels,
                )
                for item in items
            ]
            for item, draft in zip(items, drafts, strict=True):  # all are good before the first is accepted
                self._intake.plan(item.request, draft.preset, draft.quality)
            self._intake.check_many(owner, [item.media_bytes() for item in items])
            return [self._intake.accept(item.request, draft) for item, draft in zip(items, drafts, strict=True)]

    def _set_paused(self, paused: bool, owner: str) -> None:
        if not self.may_pause(owner):
            raise NotNow("queue: only an administrator may pause it or let it go on")
        self._store.set_note("paused", "yes" if paused else "")
        self._manager.set_paused(paused)
        log.info("queue paused" if paused else "queue goes on", extra={"owner": owner})
