"""The door: what is accepted and refused, whose jobs are whose, and what becomes of jobs when things go wrong."""

import dataclasses
import sqlite3
import threading
import time
import zipfile

import pytest
from job_fakes import World, open_backend, request, wait_until

from backend.api import ADMIN, Health, JobState
from backend.errors import InvalidRequest, JobNotFound, NotNow, PresetError, Unavailable
from backend.events import TERMINAL, Cancelled, Failed, Interrupted, Queued, Started, StepDone, Succeeded
from backend.jobs import schema
from backend.types import Adapter, GenerationRequest, Reference, ReferenceKind, Sampling


@pytest.fixture
def media(tmp_path):
    def make(name, content=b"content"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return make


def end_of(backend, job):
    return list(backend.events(job, owner=ADMIN))[-1]


def references(media, *counts):
    kinds = zip(counts, (".png", ".mp4", ".wav"), strict=True)
    return tuple(Reference(path=media(f"r{index}{suffix}")) for count, suffix in kinds for index in range(count))


# -- one job ----------------------------------------------------------------------------------------------------


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
    assert list(backend.events(job, after=len(events) - 2, owner="ann")) == events[-2:]
    assert list(backend.events(job, after=len(events), owner="ann")) == []


def test_d20_an_empty_seed_becomes_a_concrete_one_that_can_be_used_again(backend, world):
    first, second = (backend.submit(request(), owner="ann") for _ in range(2))
    end_of(backend, second)
    seeds = [backend.job(job, owner="ann").request.sampling.seed for job in (first, second)]
    assert world.seeds == seeds
    assert seeds[0] != seeds[1]
    assert all(isinstance(seed, int) and 0 <= seed < 2**32 for seed in seeds)
    again = backend.retry(first, owner="ann")
    other = backend.duplicate(first, owner="ann")
    chosen = backend.duplicate(first, owner="ann", seed=5)
    end_of(backend, chosen)
    assert world.seeds[2] == seeds[0] == backend.job(again, owner="ann").request.sampling.seed
    assert world.seeds[3] == backend.job(other, owner="ann").request.sampling.seed != seeds[0]
    assert world.seeds[4] == 5


def test_canvas_follows_ratio_keyframe_and_quality(backend, media):
    plan = backend.plan(request(ratio="1:1"))
    assert (plan.width, plan.height, plan.num_frames, plan.num_forwards) == (128, 128, 107, 49)
    assert plan.duration_s == pytest.approx(4.458, abs=0.001)
    keyframe = GenerationRequest(prompt="x", first_frame=media("a.png"))
    plan = backend.plan(keyframe)  # the fake picture is 640x360, the fake checkpoint's short edge 128
    assert (plan.width, plan.height) == (224, 128)
    half = backend.plan(request(), quality="draft")
    assert (half.width, half.height) == (128, 64)  # 16:9 of 64 px is 114, whose nearest multiple of 32 is 128


def test_media_are_copied_under_random_names_and_labels_kept(backend, media, world):
    backend.pause()
    ours = media("mine/../holiday photo <b>.png", b"ann's")
    theirs = media("other/holiday photo <b>.png", b"bob's")
    jobs = [
        backend.submit(GenerationRequest(prompt="x", first_frame=path, last_frame=path), owner=owner)
        for owner, path in (("ann", ours), ("bob", theirs))
    ]
    for job, content in zip(jobs, (b"ann's", b"bob's"), strict=True):
        record = backend.job(job, owner=ADMIN)
        copy = record.request.first_frame
        assert copy.parent == record.folder / "inputs"
        assert copy == record.request.last_frame
        assert copy.read_bytes() == content
        assert record.labels == {copy.name: "holiday photo <b>.png"}
        assert copy.name != ours.name
    ours.unlink()
    backend.resume()
    assert isinstance(end_of(backend, jobs[0]), Succeeded)


def test_tags_name_the_references_in_order(backend, media):
    job = backend.submit(GenerationRequest(prompt="x", references=references(media, 2, 1, 1)), owner="ann")
    record = backend.job(job, owner="ann")
    assert record.tags == (("<Picture 1>",), ("<Picture 2>",), ("<Video 1>",), ("<Audio 1>",))
    assert [item.kind for item in record.request.references] == [*["image"] * 2, "video", "audio"]


# -- refusals: no row ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "words"),
    [((0, 0, 1), "audio needs at least one image or video"), ((10, 0, 0), "at most 9"), ((7, 3, 3), "at most 12")],
)
def test_d08_refused_before_queueing(backend, media, counts, words):
    bad = GenerationRequest(prompt="x", references=references(media, *counts))
    with pytest.raises(InvalidRequest, match=words):
        backend.submit(bad, owner="ann")
    assert words in backend.check(bad)
    assert backend.history(owner=ADMIN) == []
    assert list((backend.settings.jobs_dir).iterdir()) == []


def test_all_problems_are_named_at_once(backend, media, tmp_path):
    bad = GenerationRequest(
        prompt=" ",
        first_frame=media("a.png", b"text file"),
        last_frame=tmp_path / "absent.png",
        sampling=Sampling(num_frames=100, width=100, height=128, num_inference_steps=-1),
    )
    with pytest.raises(InvalidRequest) as caught:
        backend.submit(bad, owner="ann")
    text = str(caught.value)
    for part in ("prompt", "a.png", "absent.png", "num_frames=100", "107", "width=100", "num_inference_steps=-1"):
        assert part in text
    assert backend.history(owner=ADMIN) == []


def test_a_clip_is_no_keyframe(backend, media):
    reason = backend.check(GenerationRequest(prompt="x", first_frame=media("a.mp4")))
    assert "must be a picture" in reason


def test_unknown_and_impossible_presets(backend):
    with pytest.raises(PresetError, match="choose one of"):
        backend.submit(request(), owner="ann", preset="no-such")
    with pytest.raises(PresetError):
        backend.submit(request(), owner="ann", quality="no-such")
    with pytest.raises(Unavailable, match="needs 1 GPU with 78 GiB, found none"):
        backend.submit(request(), owner="ann", preset="one-gpu")
    assert backend.history(owner=ADMIN) == []
    assert {status.preset.name: bool(status.unavailable) for status in backend.presets()}["tiny-cpu"] is False


def test_what_the_engine_rejects_is_refused_before_queueing(backend, media):
    file = media("a.safetensors")
    header = b'{"proj_in.lora_A.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    adapted = request(adapters=(Adapter(path=file),))
    with pytest.raises(InvalidRequest, match="adapters: not applied"):
        backend.submit(adapted, owner="ann")
    assert "adapters: not applied" in backend.check(adapted)
    assert backend.history(owner=ADMIN) == []


def test_a_full_disk_refuses_in_words_and_leaves_nothing(backend, media, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backend.jobs.artifacts.shutil.copyfile", full)
    with pytest.raises(Exception, match="disk is full"):
        backend.submit(GenerationRequest(prompt="x", first_frame=media("a.png")), owner="ann")
    monkeypatch.undo()
    monkeypatch.setattr("backend.jobs.intake.disk_free", lambda _: 2**20)
    assert "free some space" in backend.check(request())
    assert backend.history(owner=ADMIN) == []
    assert list(backend.settings.jobs_dir.iterdir()) == []


# -- queue --------------------------------------------------------------------------------------------------------


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
    assert backend.history(owner="eve") == []


# -- owners -------------------------------------------------------------------------------------------------------


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


# -- faults -------------------------------------------------------------------------------------------------------


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


# -- closing and coming back --------------------------------------------------------------------------------------


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


# -- load ---------------------------------------------------------------------------------------------------------


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


def test_the_kinds_of_a_reference_come_from_its_content(backend, media):
    wrong = GenerationRequest(prompt="x", references=(Reference(path=media("a.png"), kind=ReferenceKind.AUDIO),))
    plan = backend.plan(wrong)
    assert plan.request.references[0].kind is ReferenceKind.IMAGE
    assert any("used as image" in notice for notice in plan.notices)
