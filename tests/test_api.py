"""The door: submit, follow, find again; whose jobs are whose."""

import pytest
from job_fakes import World, open_backend, request, wait_until

from backend.api import ADMIN, Health, JobState
from backend.errors import JobNotFound
from backend.events import TERMINAL, Queued, Started, StepDone, Succeeded


@pytest.fixture
def world():
    return World()


@pytest.fixture
def backend(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    yield backend
    backend.close()


def test_submit_events_result(backend):
    job = backend.submit(request(seed=7), owner="ann")
    events = list(backend.events(job, owner="ann"))
    assert isinstance(events[0], Queued)
    assert [type(event) for event in events if isinstance(event, Started | StepDone)] == [Started, *[StepDone] * 3]
    assert isinstance(events[-1], Succeeded)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert sum(isinstance(event, TERMINAL) for event in events) == 1
    record = backend.job(job, owner="ann")
    assert record.state is JobState.SUCCEEDED
    assert record.video.read_bytes() == b"video" * 1000
    assert events[-1].details == {"seed": 7, "job": job}
    assert backend.file(job, "video.mp4", owner="ann") == record.video
    wait_until(lambda: backend.status().health is Health.READY)
