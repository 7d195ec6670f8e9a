"""Jobs that wait: cancelling, order, editing, holding the queue, and the file a queue travels in."""

import dataclasses
import io
import time
import zipfile

import pytest
from job_fakes import World, end_of, open_backend, request, wait_until

from backend.api import ADMIN
from backend.errors import InvalidRequest, NotNow
from backend.events import Cancelled, Queued, StepDone, Succeeded
from backend.types import GenerationRequest, Sampling


def test_d13_a_cancelled_waiting_job_never_starts(backend, world):
    world.steps, world.step_s = 20, 0.02
    a, b, c = (backend.submit(request(name), owner="ann") for name in "abc")
    wait_until(lambda: backend.status().running == a)
    assert [record.position for record in backend.queue(owner="ann")] == [1, 2]
    backend.cancel(b, owner="ann")
    assert backend.job(c, owner="ann").position == 1
    assert isinstance(end_of(backend, c), Succeeded)
    assert world.rendered == [a, c]
    story = [type(event) for event in backend.events(b, owner="ann")]
    assert story[-1] is Cancelled
    assert set(story[:-1]) == {Queued}
    positions = [event.position for event in backend.events(c, owner="ann") if isinstance(event, Queued)]
    assert positions[-1] == 1
    assert sorted(positions, reverse=True) == positions


def test_d12_a_closed_stream_stops_nothing(backend, world):
    world.steps, world.step_s = 20, 0.03
    job = backend.submit(request(), owner="ann")
    stream = backend.events(job, owner="ann")
    seen = [next(stream) for _ in range(4)]
    stream.close()
    again = list(backend.events(job, after=seen[-1].seq, owner="ann"))
    assert [event.seq for event in again if event.seq] == list(range(5, 5 + len(again)))
    assert isinstance(again[-1], Succeeded)
    assert world.rendered == [job]


def test_events_end_when_the_time_is_up(backend):
    backend.pause()
    job = backend.submit(request(), owner="ann")
    began = time.monotonic()
    assert [type(event) for event in backend.events(job, owner="ann", timeout_s=0.2)] == [Queued]
    assert list(backend.events(job, owner="ann", timeout_s=0))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("when", ["preparing", "loading", "first step", "last step"])
def test_cancel_at_every_stage_spares_the_next_job(backend, world, when):
    world.steps, world.step_s = 5, 0.15
    world.prepare_s = 1.0 if when == "preparing" else 0.0
    world.load_s = 1.0 if when == "loading" else 0.0
    job, after = backend.submit(request(), owner="ann"), backend.submit(request(), owner="ann")
    for event in backend.events(job, owner="ann"):
        name = getattr(event, "stage", None)
        if when == "preparing" and name == "prepare":
            break
        if when == "loading" and name == "load" and event.seq > 4:
            break
        if isinstance(event, StepDone) and event.step == {"first step": 1, "last step": 4}.get(when):
            break
    world.prepare_s = world.load_s = 0.0
    began = time.monotonic()
    backend.cancel(job, owner="ann")
    end = end_of(backend, job)
    assert isinstance(end, Cancelled)
    assert time.monotonic() - began < 1.0
    assert end.step == {"first step": 1, "last step": 4}.get(when, 0)
    assert isinstance(end_of(backend, after), Succeeded)
    with pytest.raises(NotNow):
        backend.cancel(job, owner="ann")


def test_a_cancel_between_the_line_and_the_run_is_not_lost(backend, monkeypatch):
    (dispatcher,) = backend._manager._floor.dispatchers
    order, jobs = dispatcher._carry_out, []

    def cancel_first(record, prepared):
        backend.cancel(record.id, owner="ann")
        jobs.append(record.id)
        return order(record, prepared)

    monkeypatch.setattr(dispatcher, "_carry_out", cancel_first)
    job = backend.submit(request(), owner="ann")
    assert isinstance(end_of(backend, job), Cancelled)
    assert jobs == [job]


def test_pause_reorder_edit(backend, world, media):
    backend.pause()
    a, b, c = (backend.submit(request(name), owner="ann") for name in "abc")
    backend.reorder(c, 1, owner="ann")
    assert [record.id for record in backend.queue(owner="ann")] == [c, a, b]
    backend.reorder(c, 99, owner="ann")
    assert [record.id for record in backend.queue(owner="ann")] == [a, b, c]
    changed = GenerationRequest(prompt="changed", first_frame=media("k.png"), sampling=Sampling(seed=3))
    backend.edit(a, changed, owner="ann")
    backend.edit(a, dataclasses.replace(changed, prompt="changed twice"), owner="ann")
    record = backend.job(a, owner="ann")
    assert (record.request.prompt, record.title, record.position) == ("changed twice", "changed twice", 1)
    assert [path.name for path in (record.folder / "inputs").iterdir()] == [record.request.first_frame.name]
    with pytest.raises(InvalidRequest):
        backend.edit(a, dataclasses.replace(changed, prompt=""), owner="ann")
    assert not world.rendered
    assert backend.status().paused
    backend.resume()
    end_of(backend, c)
    assert world.rendered == [a, b, c]
    assert world.seeds[0] == 3
    with pytest.raises(NotNow):
        backend.edit(a, changed, owner="ann")
    with pytest.raises(NotNow):
        backend.reorder(a, 1, owner="ann")


def test_another_owners_places_in_line_stay(backend):
    backend.pause()
    jobs = {name: backend.submit(request(name), owner=name[0]) for name in ("a1", "b1", "a2", "b2", "a3")}
    backend.reorder(jobs["a3"], 1, owner="a")
    order = [record.request.prompt for record in backend.queue(owner=ADMIN)]
    assert order == ["a3", "b1", "a1", "b2", "a2"]
    backend.reorder(jobs["b2"], 1, owner=ADMIN)
    assert next(record.request.prompt for record in backend.queue(owner=ADMIN)) == "b2"


def test_the_queue_travels_as_one_file_with_its_media(backend, tmp_path, media, world):
    backend.pause()
    picture = media("k.png", b"pixels")
    backend.submit(GenerationRequest(prompt="one", first_frame=picture, sampling=Sampling(seed=4)), owner="ann")
    backend.submit(request("two"), owner="ann")
    backend.submit(request("not mine"), owner="bob")
    backend.export_queue(tmp_path / "q.zip", owner="ann")
    picture.unlink()
    other = open_backend(tmp_path / "other", World())
    other.pause()
    jobs = other.import_queue(tmp_path / "q.zip", owner="eve")
    records = [other.job(job, owner="eve") for job in jobs]
    assert [record.request.prompt for record in records] == ["one", "two"]
    assert records[0].request.sampling.seed == 4
    assert records[0].request.first_frame.read_bytes() == b"pixels"
    assert list(records[0].labels.values()) == ["k.png"]
    assert list(other.settings.uploads_dir.iterdir()) == []
    other.close()


def test_forged_queue_files_are_refused_before_any_job(backend, tmp_path, media):
    backend.pause()
    backend.submit(GenerationRequest(prompt="one", first_frame=media("k.png")), owner="ann")
    backend.submit(request("two"), owner="ann")
    backend.export_queue(tmp_path / "q.zip", owner="ann")
    with zipfile.ZipFile(tmp_path / "q.zip") as archive:
        manifest = archive.read("queue.json").decode()
    member = manifest.split('"first_frame": "')[1].split('"')[0]
    bad_last = manifest.replace('"prompt": "two"', '"prompt": ""')
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("queue.json", bad_last)
        archive.writestr(member, b"pixels")
    with pytest.raises(InvalidRequest, match="prompt"):
        backend.import_queue(tmp_path / "bad.zip", owner="eve")
    for target in ("/etc/passwd", "media/../../../../etc/passwd", "https://example.com/a.png", "queue.json"):
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            archive.writestr("queue.json", manifest.replace(member, target))
        with pytest.raises(InvalidRequest, match="no queue file"):
            backend.import_queue(tmp_path / "bad.zip", owner="eve")
    (tmp_path / "bad.zip").write_bytes(b"PK nothing")
    with pytest.raises(InvalidRequest, match="no queue file"):
        backend.import_queue(tmp_path / "bad.zip", owner="eve")
    for damaged in _damaged(manifest):
        (tmp_path / "bad.zip").write_bytes(damaged)
        with pytest.raises(InvalidRequest, match="no queue file"):
            backend.import_queue(tmp_path / "bad.zip", owner="eve")
    assert backend.history(owner="eve") == []


def _damaged(manifest: str) -> list[bytes]:
    """Queue files with a manifest that is nested beyond reason, encrypted, packed in an unknown way, or corrupt."""

    def packed(text: str) -> bytearray:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("queue.json", text)
        return bytearray(held.getvalue())

    def marked(offset: int, value: int) -> bytes:  # the same field of the local and of the central header
        file = packed(manifest)
        file[offset] = value
        file[file.index(b"PK\x01\x02") + offset + 2] = value
        return bytes(file)

    corrupt = packed(manifest)
    start = 30 + len("queue.json")
    corrupt[start : start + 8] = b"\xff" * 8
    return [bytes(packed("[" * 200_000)), marked(6, 1), marked(8, 99), bytes(corrupt)]
