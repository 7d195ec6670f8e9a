"""Faults of the machine: a damaged database under a running program, a full disk, a lost folder, a jumping clock."""

import contextlib
import os
import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest
from job_fakes import open_backend, request, wait_until
from test_with_processes import ask, end_of, open_stub

from backend.api import ADMIN, JobState
from backend.errors import H3Error
from backend.events import TERMINAL, Failed, Succeeded
from backend.jobs import artifacts


@pytest.mark.parametrize("damage", ["pages", "header"])
def test_a_database_damaged_while_running_is_replaced_and_the_program_goes_on(backend, world, damage):
    done = [backend.submit(request(f"kept {index}"), owner="ann") for index in range(3)]
    for job in done:
        end_of(backend, job)
    world.steps, world.step_s = 400, 0.02
    running = backend.submit(request("running"), owner="ann")
    wait_until(lambda: backend.status().running == running)
    waiting = [backend.submit(request(f"waiting {index}"), owner="ann") for index in range(2)]
    database = backend.settings.database
    backend._store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backend._store._connection.execute("PRAGMA cache_size=0")
    with database.open("r+b") as file:
        file.seek(0 if damage == "header" else 4096)
        file.write(os.urandom(100 if damage == "header" else database.stat().st_size - 4096))
        file.flush()
    world.steps, world.step_s = 3, 0.01
    ends = []
    for job in (running, *waiting):
        with contextlib.suppress(H3Error):
            ends.append(list(backend.events(job, owner=ADMIN, timeout_s=10))[-1])
    assert all(isinstance(end, TERMINAL) for end in ends), ends
    with contextlib.suppress(H3Error):  # whoever asks first may meet the damage, in words
        backend.history(owner="ann")
    after = backend.submit(request("after"), owner="ann")
    assert isinstance(end_of(backend, after), Succeeded)
    assert "damaged" in backend.status().reason
    assert [path for path in database.parent.iterdir() if ".damaged-" in path.name]
    for job in done:  # the files of finished jobs are untouched, whatever became of their rows
        assert (backend.settings.jobs_dir / job / "output" / "video.mp4").stat().st_size == 5000


def test_a_pause_outlives_the_program(tmp_path, world):
    backend = open_backend(tmp_path / "data", world)
    backend.pause()
    job = backend.submit(request(), owner="ann")
    backend.close()
    backend = open_backend(tmp_path / "data", world)
    time.sleep(0.3)
    assert backend.status().paused
    assert backend.job(job, owner="ann").state is JobState.QUEUED
    backend.resume()
    assert isinstance(end_of(backend, job), Succeeded)
    backend.close()
    backend = open_backend(tmp_path / "data", world)
    assert not backend.status().paused
    backend.close()


def test_results_over_the_cap_go_oldest_first_favourites_stay_and_it_is_told(backend, monkeypatch):
    jobs = [backend.submit(request(str(index)), owner="ann") for index in range(5)]
    for job in jobs:
        end_of(backend, job)
    backend.set_favourite(jobs[0], True, owner="ann")
    each = sum(path.stat().st_size for path in (backend.settings.jobs_dir / jobs[0] / "output").iterdir())
    monkeypatch.setattr(artifacts, "KEEP_RESULTS_BYTES", 3 * each + 200)
    backend.sweep()
    assert [record.id for record in backend.history(owner="ann")] == [jobs[4], jobs[3], jobs[0]]
    assert sorted(path.name for path in backend.settings.jobs_dir.iterdir()) == sorted([jobs[0], *jobs[3:]])
    assert "2 oldest results were removed" in backend.status().notice
    told = backend.status().notice
    backend.sweep()
    assert backend.status().notice == told


def test_a_clock_that_jumps_back_changes_no_order_and_no_end(backend, world, monkeypatch):
    times = iter([1e9, 9e8, 8e8, 7e8, *[1e6 - index for index in range(10_000)]])
    monkeypatch.setattr("backend.jobs.store.time", SimpleNamespace(time=lambda: next(times)))
    jobs = [backend.submit(request(str(index)), owner="ann") for index in range(3)]
    assert all(isinstance(end_of(backend, job), Succeeded) for job in jobs)
    assert world.rendered == jobs
    for job in jobs:
        events = list(backend.events(job, owner="ann"))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [record.id for record in backend.history(owner="ann")] == jobs[::-1]


def test_a_real_disk_that_runs_full_fails_the_job_in_words_and_the_program_goes_on(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root and the right to mount")
    try:
        data = place / "data"
        backend = open_stub(data, "stub:step_s=0.02,decode_s=0.05", ranks=1)
        backend._intake.check_room = lambda preset, request: None  # 6 MiB are refused before queueing: get past that
        assert isinstance(end_of(backend, backend.submit(ask(steps=2), owner="ann")), Succeeded)
        (place / "ballast").write_bytes(b"x" * (shutil.disk_usage(place).free - 40_000))
        end, accepted = None, None
        try:
            accepted = backend.submit(ask(steps=2), owner="ann")
            end = end_of(backend, accepted)
        except H3Error as error:  # refused at the door: nothing is left of it
            assert "full" in str(error)
        if end is not None:
            assert isinstance(end, Failed), end
            assert "full" in end.reason or "written" in end.reason, end.reason
            assert not [path for path in backend.job(accepted, owner="ann").folder.rglob("*") if path.is_file()]
        (place / "ballast").unlink()
        wait_until(lambda: backend.status().running is None)
        assert isinstance(end_of(backend, backend.submit(ask(steps=2), owner="ann")), Succeeded)
        backend.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("gone", ["job folder", "jobs folder"])
def test_folders_that_vanish_fail_the_job_and_the_program_goes_on(tmp_path, gone):
    backend = open_stub(tmp_path / "data", "stub:step_s=0.1", ranks=1)
    job = backend.submit(ask(steps=8), owner="ann")
    wait_until(lambda: backend.job(job, owner="ann").num_events > 5)
    folder = backend.job(job, owner="ann").folder
    shutil.rmtree(folder if gone == "job folder" else folder.parent)
    end = end_of(backend, job)
    assert isinstance(end, Failed), end
    assert "cannot take the video: No such file or directory" in end.reason
    assert isinstance(end_of(backend, backend.submit(ask(steps=2), owner="ann")), Succeeded)
    backend.close()


def test_old_uploads_go_with_their_folders_and_young_ones_stay(backend):
    old, young = (backend.settings.uploads_dir / name / "a.png" for name in ("old", "young"))
    for path in (old, young):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 100)
    past = time.time() - artifacts.KEEP_UPLOADS_S - 60
    os.utime(old, (past, past))
    backend.sweep()
    assert not old.exists()
    os.utime(old.parent, (past, past))  # emptying it made the folder young
    backend.sweep()
    assert [path.name for path in backend.settings.uploads_dir.iterdir()] == ["young"]
    assert young.exists()
