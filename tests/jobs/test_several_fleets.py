"""Several engine slots, one queue: jobs start in line, run side by side, end once each, and warm engines go first."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from job_fakes import World, fake_services, request, wait_until
from test_with_processes import ask, stub_services

from backend import presets
from backend.api import ADMIN, Backend, Health
from backend.errors import NotNow, PresetError
from backend.events import TERMINAL, Cancelled, Failed, Interrupted, Started, Succeeded
from backend.settings import Settings


@pytest.fixture
def two_fleets(monkeypatch):
    """The tiny preset with two fleets on the same CPU."""
    shipped = presets.hardware_presets()
    changed = {**shipped, "tiny-cpu": dataclasses.replace(shipped["tiny-cpu"], fleets=2)}
    monkeypatch.setattr(presets, "hardware_presets", lambda: changed)


@pytest.fixture
def world():
    return World(steps=40, step_s=0.02)


@pytest.fixture
def backend(tmp_path, world, two_fleets):
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=fake_services(world))
    yield backend
    backend.close()


def end_of(backend, job):
    return list(backend.events(job, owner=ADMIN))[-1]


def test_two_jobs_run_at_once_and_the_third_waits(backend, world):
    assert backend.choice().fleets == 2
    jobs = [backend.submit(request(name), owner="ann") for name in "abc"]
    wait_until(lambda: len(world.rendered) == 2 and backend.status().health is Health.BUSY)  # both engines are up
    status = backend.status()
    assert set(status.running_jobs) == set(jobs[:2])
    assert (status.queued, status.health) == (1, Health.BUSY)
    assert backend.job(jobs[2], owner="ann").position == 1
    assert all(isinstance(end_of(backend, job), Succeeded) for job in jobs)
    assert len(world.opened) == 2  # one engine a slot, kept warm
    ranks = backend.topology()
    assert [view.fleet for view in ranks] == [0, 1]


def test_jobs_start_in_the_order_of_the_line(backend, world):
    world.steps, world.step_s = 2, 0.002
    backend.pause()
    jobs = [backend.submit(request(str(index)), owner="ann") for index in range(30)]
    backend.reorder(jobs[20], 1, owner="ann")
    order = [record.id for record in backend.queue(owner=ADMIN)]
    backend.resume()
    ends = [list(backend.events(job, owner=ADMIN)) for job in jobs]
    started = {
        job: next(event.at for event in events if isinstance(event, Started))
        for job, events in zip(jobs, ends, strict=True)
    }
    assert sorted(jobs, key=started.__getitem__) == order
    for events in ends:
        assert sum(isinstance(event, TERMINAL) for event in events) == 1
        assert isinstance(events[-1], Succeeded)
    assert sorted(world.rendered) == sorted(jobs)


def test_a_lone_job_goes_to_the_warm_engine(backend, world):
    world.steps = 2
    for _ in range(6):
        end_of(backend, backend.submit(request(), owner="ann"))
        wait_until(lambda: backend.status().health is Health.READY)
    assert world.opened == ["tiny-cpu"]


def test_cancel_reaches_the_right_one_of_two(backend):
    first, second = (backend.submit(request(name), owner="ann") for name in "ab")
    wait_until(lambda: len(backend.status().running_jobs) == 2)
    backend.cancel(second, owner="ann")
    assert isinstance(end_of(backend, second), Cancelled)
    assert isinstance(end_of(backend, first), Succeeded)
    with pytest.raises(NotNow):
        backend.cancel(second, owner="ann")


def test_a_failure_in_one_fleet_leaves_the_other_alone(backend, world):
    world.fail_at_step = 5  # once: whichever gets there first
    jobs = [backend.submit(request(name), owner="ann") for name in "abcd"]
    ends = [end_of(backend, job) for job in jobs]
    assert sorted(type(end).__name__ for end in ends) == ["Failed", "Succeeded", "Succeeded", "Succeeded"]
    wait_until(lambda: backend.status().health is Health.READY)


def test_closing_interrupts_both_and_keeps_the_rest(tmp_path, world, two_fleets):
    world.steps = 400
    settings = Settings(data_dir=tmp_path / "data")
    backend = Backend(settings, preset="tiny-cpu", services=fake_services(world))
    running = [backend.submit(request(name), owner="ann") for name in "ab"]
    wait_until(lambda: len(world.rendered) == 2)  # both engines are up and at work
    waiting = backend.submit(request("c"), owner="ann")
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 5
    assert world.closed == 2
    world.steps = 2
    backend = Backend(settings, preset="tiny-cpu", services=fake_services(world), fleets=1)
    assert isinstance(end_of(backend, waiting), Succeeded)
    assert all(isinstance(end_of(backend, job), Interrupted) for job in running)
    backend.close()


def test_engines_that_do_not_answer_are_ended_by_force_together(tmp_path, world, two_fleets):
    stop = threading.Event()
    world.during_step = lambda render, step: stop.wait(30)
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=fake_services(world))
    jobs = [backend.submit(request(name), owner="ann") for name in "ab"]
    wait_until(lambda: len(backend.status().running_jobs) == 2)
    wait_until(lambda: len(world.rendered) == 2)
    began = time.monotonic()
    threading.Timer(4.0, stop.set).start()
    backend.close(timeout_s=6.0)
    assert time.monotonic() - began < 8
    stop.set()
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=fake_services(World()))
    for job in jobs:
        events = list(backend.events(job, owner=ADMIN))
        assert isinstance(events[-1], Interrupted)
        assert sum(isinstance(event, TERMINAL) for event in events) == 1
    backend.close()


def test_impossible_numbers_of_fleets_are_refused(tmp_path, two_fleets):
    for fleets in (-1, 9):
        with pytest.raises(PresetError, match=rf"fleets={fleets}: must be 0"):
            Backend(Settings(data_dir=tmp_path / "data"), fleets=fleets, services=fake_services(World()))


def test_two_real_stub_fleets_with_a_rank_killed(tmp_path, two_fleets):
    """Four processes in two fleets, six jobs: one failure, five successes, and topology tells who is who."""
    services = stub_services("stub:step_s=0.05", ranks=2)
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=services)
    jobs = [backend.submit(ask(str(index), steps=10), owner="ann") for index in range(6)]
    wait_until(lambda: sum(view.state == "busy" for view in backend.topology()) == 4, 30)
    views = backend.topology()
    assert sorted((view.fleet, view.rank) for view in views) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({view.pid for view in views}) == 4
    assert all(Path(f"/proc/{view.pid}").exists() for view in views)
    victim = next(view for view in views if view.fleet == 1 and view.rank == 1)
    os.kill(victim.pid, signal.SIGKILL)
    ends = [end_of(backend, job) for job in jobs]
    assert sum(isinstance(end, Failed) and "SIGKILL" in end.reason for end in ends) == 1
    assert sum(isinstance(end, Succeeded) for end in ends) == 5
    backend.close()
    assert backend.topology() == ()
