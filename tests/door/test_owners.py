"""Whose jobs are whose, and what fifty of them may watch at once."""

import threading
import time

import pytest
from job_fakes import end_of, request, wait_until

from backend.api import ADMIN
from backend.errors import JobNotFound
from backend.events import TERMINAL, Cancelled


def test_another_owners_job_does_not_exist(backend, world):
    world.steps, world.step_s = 50, 0.05
    job = backend.submit(request(), owner="ann")
    wait_until(lambda: backend.status().running == job)
    attempts = (
        lambda who, what: backend.job(what, owner=who),
        lambda who, what: backend.events(what, owner=who),
        lambda who, what: backend.cancel(what, owner=who),
        lambda who, what: backend.retry(what, owner=who),
        lambda who, what: backend.duplicate(what, owner=who),
        lambda who, what: backend.edit(what, request(), owner=who),
        lambda who, what: backend.reorder(what, 1, owner=who),
        lambda who, what: backend.rename(what, "x", owner=who),
        lambda who, what: backend.set_favourite(what, True, owner=who),
        lambda who, what: backend.delete(what, owner=who),
        lambda who, what: backend.file(what, "video.mp4", owner=who),
        lambda who, what: backend.file_token(what, owner=who),
    )
    for attempt in attempts:
        messages = set()
        for who, what in (("bob", job), ("", job), ("bob", "unknown-id"), ("ann", "../../etc"), ("bob", "a' OR 1=1")):
            with pytest.raises(JobNotFound) as caught:
                attempt(who, what)
            messages.add(str(caught.value).replace(f"job={what}: ", ""))
        assert messages == {"there is no such job"}
    assert backend.history(owner="bob") == backend.queue(owner="bob") == []
    assert backend.job(job, owner=ADMIN).id == job
    backend.cancel(job, owner=ADMIN)
    assert isinstance(end_of(backend, job), Cancelled)


def test_files_by_owner_or_token_and_only_once_succeeded(backend, world):
    world.steps, world.step_s = 10, 0.05
    job = backend.submit(request(), owner="ann")
    with pytest.raises(JobNotFound):
        backend.file(job, "video.mp4", owner="ann")
    end_of(backend, job)
    token = backend.file_token(job, owner="ann")
    assert backend.file(job, "video.mp4", token=token).is_file()
    other = backend.submit(request(), owner="bob")
    end_of(backend, other)
    refused = [
        (other, "video.mp4", {"token": token}),
        (job, "video.mp4", {"token": ""}),
        (job, "video.mp4", {}),
        (job, "audio.wav", {"owner": "ann"}),
        *((job, name, {"owner": "ann"}) for name in ("../inputs/a.png", "..", "", "/etc/passwd", "video.mp4\0")),
    ]
    for what, name, who in refused:
        with pytest.raises(JobNotFound):
            backend.file(what, name, **who)


def test_rename_favourite_delete(backend):
    job = backend.submit(request(), owner="ann")
    end_of(backend, job)
    backend.rename(job, "  The\nboat ", owner="ann")
    backend.set_favourite(job, True, owner="ann")
    record = backend.job(job, owner="ann")
    assert (record.title, record.favourite) == ("The boat", True)
    assert [found.id for found in backend.history(owner="ann", search="boat")] == [job]
    backend.delete(job, owner="ann")
    assert not record.folder.exists()
    with pytest.raises(JobNotFound):
        backend.job(job, owner="ann")
    assert list(backend.settings.jobs_dir.iterdir()) == []


def test_fifty_followers_and_two_hundred_waiting_jobs(backend, world):
    world.steps, world.step_s = 10_000, 0.05  # runs until it is cancelled
    running = backend.submit(request(), owner="ann")
    waiting = [backend.submit(request(f"{index}"), owner="ann") for index in range(200)]
    delays, lock = [], threading.Lock()

    def follow(job):
        for event in backend.events(job, owner="ann", after=2, timeout_s=20):
            with lock:
                delays.append(time.time() - event.at)
            if isinstance(event, TERMINAL):
                return

    threads = [threading.Thread(target=follow, args=(running if i % 2 else waiting[i],)) for i in range(50)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    with lock:
        delays.clear()
    for index in range(1, 6):
        backend.cancel(waiting[200 - index], owner="ann")
    backend.pause()
    backend.cancel(waiting[0], owner="ann")
    time.sleep(2)
    backend.cancel(running, owner="ann")
    assert isinstance(end_of(backend, running), Cancelled)
    with lock:
        worst = max(delays)
        count = len(delays)
    for job in waiting:
        if not backend.job(job, owner="ann").state.ended:
            backend.cancel(job, owner="ann")
    for thread in threads:
        thread.join(20)
    assert count > 25 * 10  # 25 followers of the running job, each with its steps of two seconds
    assert worst < 1.0, f"an event came {worst:.2f} s late"
