"""What becomes of jobs when an engine, a disk or the database fails under them."""

import sqlite3
import time

import pytest
from job_fakes import end_of, open_backend, request, wait_until

from backend.api import Health
from backend.events import Failed, Succeeded
from backend.jobs import schema


def test_a_broken_engine_fails_its_job_and_the_next_gets_a_fresh_one(backend, world):
    first = backend.submit(request(), owner="ann")
    end_of(backend, first)
    world.fail_at_step = 2
    second, third = backend.submit(request(), owner="ann"), backend.submit(request(), owner="ann")
    end = end_of(backend, second)
    assert isinstance(end, Failed)
    assert end.reason == "rank 0 was killed by SIGKILL"
    assert isinstance(end_of(backend, third), Succeeded)
    assert (len(world.opened), world.closed) == (2, 1)
    record = backend.job(second, owner="ann")
    assert (record.error, record.video) == ("rank 0 was killed by SIGKILL", None)
    assert not (record.folder / "output").exists()


def test_a_broken_engine_comes_back_by_itself_and_ready_tells_the_truth(backend, world):
    end_of(backend, backend.submit(request(), owner="ann"))
    world.fail_at_step, world.load_s = 2, 0.4
    end_of(backend, backend.submit(request(), owner="ann"))
    seen = set()
    deadline = time.monotonic() + 10
    while backend.status().health is not Health.READY and time.monotonic() < deadline:
        seen.add(backend.status().health)
        time.sleep(0.01)
    assert seen <= {Health.FAILED, Health.STARTING, Health.BUSY}
    assert Health.STARTING in seen
    assert backend.status().health is Health.READY
    assert len(world.opened) == 2


def test_an_engine_that_does_not_start_fails_jobs_not_the_program(backend, world):
    world.fail_to_start = "rank 0: no weights"
    end = end_of(backend, backend.submit(request(), owner="ann"))
    assert (end.reason, end.log_tail, end.stage) == ("rank 0: no weights", "Traceback: no weights", "load")
    wait_until(lambda: backend.status().running is None)
    status = backend.status()
    assert (status.health, status.reason) == (Health.FAILED, "rank 0: no weights")
    world.fail_to_start = None
    assert isinstance(end_of(backend, backend.submit(request(), owner="ann")), Succeeded)
    wait_until(lambda: backend.status().health is Health.READY)


@pytest.mark.parametrize("rank", [None, 0])
def test_a_success_without_a_file_is_a_failure(backend, world, rank):
    world.no_video = True
    job = backend.submit(request(), owner="ann")
    end = end_of(backend, job)
    assert isinstance(end, Failed)
    assert "video.mp4 is not there" in end.reason
    assert backend.job(job, owner="ann").video is None


def test_an_output_folder_that_vanishes_fails_the_job_in_words(backend, world):
    import shutil

    world.during_step = lambda render, step: shutil.rmtree(render.folder.parent, ignore_errors=True)
    end = end_of(backend, backend.submit(request(), owner="ann"))
    assert isinstance(end, Failed)
    assert "gone" in end.reason
    world.during_step = None
    assert isinstance(end_of(backend, backend.submit(request(), owner="ann")), Succeeded)


def test_an_unexpected_error_fails_the_job_not_the_queue(backend, world):
    def explode(render, step):
        raise RuntimeError("cosmic ray")

    world.during_step = explode
    end = end_of(backend, backend.submit(request(), owner="ann"))
    assert "cosmic ray" in end.reason
    world.during_step = None
    assert isinstance(end_of(backend, backend.submit(request(), owner="ann")), Succeeded)


def test_a_locked_database_fails_the_running_job_and_the_queue_goes_on(tmp_path, world, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 100)
    backend = open_backend(tmp_path / "data", world)
    world.steps, world.step_s = 30, 0.05
    job, after = backend.submit(request(), owner="ann"), backend.submit(request(), owner="ann")
    wait_until(lambda: world.rendered)
    other = sqlite3.connect(backend.settings.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    wait_until(lambda: backend.status().health is Health.FAILED)
    assert "locked" in backend.status().reason
    other.execute("ROLLBACK")
    other.close()
    end = end_of(backend, job)
    assert isinstance(end, Failed)
    assert "locked" in end.reason
    world.steps = 2
    assert isinstance(end_of(backend, after), Succeeded)
    backend.close()


def test_a_preset_switch_closes_one_engine_and_opens_another(backend, world, monkeypatch):
    monkeypatch.setattr(backend._machine, "unavailable", lambda preset: None)
    backend._intake._unavailable = lambda preset: None
    for preset in ("tiny-cpu", "tiny-cpu", "one-gpu"):
        end_of(backend, backend.submit(request(), owner="ann", preset=preset))
    assert world.opened == ["tiny-cpu", "one-gpu"]
    assert world.closed == 1
