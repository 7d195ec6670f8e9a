"""Closing the program, and what the next start finds: waiting, interrupted and half-made jobs, old files."""

import sqlite3
import threading
import time

import pytest
from job_fakes import end_of, open_backend, request, wait_until

from backend.api import ADMIN, JobState
from backend.errors import InvalidRequest, Unavailable
from backend.events import Interrupted, Succeeded
from backend.types import GenerationRequest


def test_waiting_jobs_outlive_the_program_and_a_running_one_is_interrupted(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    world.steps, world.step_s = 200, 0.05
    running = backend.submit(request("running", seed=9), owner="ann")
    wait_until(lambda: backend.status().running == running)  # it has left the line that is reordered below
    waiting = [backend.submit(request(name), owner="ann") for name in ("one", "two")]
    backend.reorder(waiting[1], 1, owner="ann")
    wait_until(lambda: world.rendered)
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 5
    assert world.closed == 1
    world.steps, world.step_s = 2, 0.01
    backend = open_backend(tmp_path / "data", world)
    assert isinstance(end_of(backend, waiting[0]), Succeeded)
    assert world.rendered == [running, waiting[1], waiting[0]]
    assert isinstance(end_of(backend, running), Interrupted)
    again = backend.retry(running, owner="ann")
    assert isinstance(end_of(backend, again), Succeeded)
    assert world.seeds[-1] == 9
    backend.close()


def test_closing_can_wait_for_the_running_job(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    world.steps, world.step_s = 10, 0.05
    job, after = backend.submit(request(), owner="ann"), backend.submit(request(), owner="ann")
    wait_until(lambda: world.rendered)
    backend.close(finish_running=True)
    with pytest.raises(Exception, match="closing"):
        backend.submit(request(), owner="ann")
    backend = open_backend(tmp_path / "data", world)
    assert backend.job(job, owner="ann").state is JobState.SUCCEEDED
    assert isinstance(end_of(backend, after), Succeeded)
    backend.close()
    backend.close()


def test_an_engine_that_ignores_everything_does_not_hold_up_closing(tmp_path, world, monkeypatch):
    backend = open_backend(tmp_path / "data", world)
    release = threading.Event()
    world.during_step = lambda render, step: release.wait(30)
    job = backend.submit(request(), owner="ann")
    wait_until(lambda: world.rendered)
    began = time.monotonic()
    backend.close(timeout_s=2)
    assert time.monotonic() - began < 4
    release.set()
    world.during_step = None
    backend = open_backend(tmp_path / "data", world)
    assert isinstance(end_of(backend, job), Interrupted)
    backend.close()


def test_one_program_a_data_folder(tmp_path, world):
    import os

    backend = open_backend(tmp_path / "data", world)
    with pytest.raises(Unavailable, match=rf"process {os.getpid()}.*--data-dir"):
        open_backend(tmp_path / "data", world)
    backend.close()
    open_backend(tmp_path / "data", world).close()


def test_a_submit_that_was_cut_off_is_repaired_at_the_next_start(tmp_path, world, media, monkeypatch):
    backend = open_backend(tmp_path / "data", world)
    backend.pause()
    keyframe = GenerationRequest(prompt="x", first_frame=media("k.png"))
    stays = backend.submit(keyframe, owner="ann")
    jobs = backend.settings.jobs_dir
    backend.close()
    (jobs / stays).rename(jobs / f".incoming-{stays}")  # killed between row and folder
    (jobs / ".incoming-never-stored" / "inputs").mkdir(parents=True)  # killed before the row
    backend = open_backend(tmp_path / "data", world)
    backend.resume()
    assert isinstance(end_of(backend, stays), Succeeded)
    assert [item.name for item in jobs.iterdir()] == [stays]
    backend.close()


def test_a_waiting_job_that_cannot_be_read_fails_and_the_queue_goes_on(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    backend.pause()
    odd, good = backend.submit(request(), owner="ann"), backend.submit(request(), owner="ann")
    backend.close()
    raw = sqlite3.connect(backend.settings.database)
    raw.execute("UPDATE jobs SET request = '{\"prompt\": 5}' WHERE id = ?", (odd,))
    raw.commit()
    raw.close()
    backend = open_backend(tmp_path / "data", world)
    backend.resume()
    assert "cannot be read" in end_of(backend, odd).reason
    assert isinstance(end_of(backend, good), Succeeded)
    backend.close()


def test_a_delete_that_was_cut_off_is_finished_at_the_next_start(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    job = backend.submit(request(), owner="ann")
    end_of(backend, job)
    jobs = backend.settings.jobs_dir
    backend.close()
    (jobs / job).rename(jobs / f".leaving-{job}")
    backend = open_backend(tmp_path / "data", world)
    assert backend.history(owner=ADMIN) == []
    assert list(jobs.iterdir()) == []
    backend.close()


def test_old_inputs_go_results_stay(backend, media, monkeypatch):
    job = backend.submit(GenerationRequest(prompt="x", first_frame=media("k.png")), owner="ann")
    end_of(backend, job)
    wait_until(lambda: backend.status().running is None)
    stale = backend.settings.uploads_dir / "u" / "a.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"123")
    assert backend.sweep() == 0
    monkeypatch.setattr("backend.jobs.artifacts.KEEP_INPUTS_S", -1.0)
    monkeypatch.setattr("backend.jobs.artifacts.KEEP_UPLOADS_S", -1.0)
    assert backend.sweep() == len(b"content") + 3
    record = backend.job(job, owner="ann")
    assert record.video.is_file()
    assert not (record.folder / "inputs").exists()
    with pytest.raises(InvalidRequest, match="no such file"):
        backend.retry(job, owner="ann")
