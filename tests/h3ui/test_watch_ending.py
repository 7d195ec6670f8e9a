"""One look at a job while it ends: what its events tell and what its record says must belong together."""

from __future__ import annotations

import types

from backend.events import StepDone, Succeeded
from h3ui import watch


class EndsMeanwhile:
    """A backend whose job ends between two questions, whichever comes first."""

    def __init__(self) -> None:
        self.asked = 0

    def _ended(self) -> bool:
        self.asked += 1
        return self.asked > 1

    def events(self, job, *, owner, timeout_s):
        step = StepDone(seq=1, step=1, steps=1, seconds=0.1)
        return [step, Succeeded(seq=2)] if self._ended() else [step]

    def job(self, job, *, owner):
        return types.SimpleNamespace(state="succeeded" if self._ended() else "running")


def test_a_view_of_the_end_never_meets_a_record_from_before():
    record, view = watch.look(EndsMeanwhile(), "job", "me")
    assert (record.state, view.state) == ("succeeded", "queued")  # the next look shows the end, with its video
    assert not view.terminal
