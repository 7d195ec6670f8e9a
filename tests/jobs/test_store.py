"""Rows and events: one end each, in order whatever the clock says, surviving damage, locks and full disks."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.errors import H3Error, JobNotFound, NotNow
from backend.events import Cancelled, Failed, Interrupted, Notice, Queued, Started, StepDone, Succeeded
from backend.jobs import schema
from backend.jobs.records import JobRecord, JobState, title_of
from backend.jobs.store import JobStore, StoreFailure
from backend.types import GenerationRequest, JobId, Reference, ReferenceKind, Sampling

ROOT = Path(__file__).resolve().parent.parent.parent


def record(store, name="job-00001", owner="ann", prompt="a red boat", **changes):
    folder = store.jobs_dir / name
    fields = {
        "id": JobId(name), "owner": owner, "state": JobState.QUEUED, "position": None,
        "request": GenerationRequest(prompt=prompt, sampling=Sampling(num_frames=107, seed=1, width=224, height=128)),
        "preset": "tiny-cpu", "quality": "standard", "title": title_of(prompt), "favourite": False,
        "created_at": 1.0, "started_at": None, "finished_at": None, "video": None, "sidecar": None, "error": None,
        "folder": folder, "num_events": 0,
    }  # fmt: skip
    return JobRecord(**{**fields, **changes})


@pytest.fixture
def store(tmp_path):
    store = JobStore(tmp_path / "jobs.sqlite3", tmp_path / "jobs")
    yield store
    store.close()


def test_a_job_comes_back_as_it_went_in_wherever_the_data_lies(store, tmp_path):
    folder = store.jobs_dir / "job-00001"
    request = GenerationRequest(
        prompt="x",
        references=(Reference(path=folder / "inputs" / "a.png", kind=ReferenceKind.IMAGE, start_s=0.5),),
        sampling=Sampling(num_frames=107, seed=2**40, width=224, height=128),
    )
    store.add(record(store, request=request, tags=(("<Picture 1>",),), labels={"a.png": "holiday.png"}), 1)
    found = store.get(JobId("job-00001"))
    assert found.request == request
    assert (found.tags, found.labels, found.position) == ((("<Picture 1>",),), {"a.png": "holiday.png"}, 1)
    store.close()
    moved = JobStore(tmp_path / "jobs.sqlite3", tmp_path / "elsewhere")
    path = moved.get(JobId("job-00001")).request.references[0].path
    moved.close()
    assert path == tmp_path / "elsewhere" / "job-00001" / "inputs" / "a.png"


@pytest.mark.parametrize("first", [Cancelled(), Failed(reason="x"), Interrupted(reason="y")])
def test_a_second_end_is_refused(store, first):
    store.add(record(store), 1)
    store.append(JobId("job-00001"), Started(engine="native", preset="tiny-cpu"))
    store.append(JobId("job-00001"), first)
    state = store.get(JobId("job-00001")).state
    for late in (Cancelled(), Failed(reason="late"), StepDone(step=1, steps=2, seconds=1.0)):
        with pytest.raises(NotNow):
            store.append(JobId("job-00001"), late)
    assert store.get(JobId("job-00001")).state is state
    assert [type(event) for event in store.events(JobId("job-00001"))] == [Queued, Started, type(first)]


def test_the_database_itself_refuses_a_second_end_and_a_change_of_end(store, tmp_path):
    store.add(record(store), 1)
    store.append(JobId("job-00001"), Cancelled())
    raw = sqlite3.connect(tmp_path / "jobs.sqlite3")
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("INSERT INTO events VALUES (1, 99, 1, '{}')")
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("UPDATE jobs SET state = 'queued'")
    raw.close()


def test_one_refused_event_undoes_the_whole_batch(store):
    for name in ("job-00001", "job-00002"):
        store.add(record(store, name), 1)
    store.append(JobId("job-00002"), Cancelled())
    with pytest.raises(NotNow):
        store.append_all([(JobId("job-00001"), Failed(reason="x")), (JobId("job-00002"), Failed(reason="x"))])
    assert store.get(JobId("job-00001")).state is JobState.QUEUED


def test_events_after_n_have_no_gap_and_no_repeat(store):
    store.add(record(store), 1)
    for step in range(1, 6):
        store.append(JobId("job-00001"), StepDone(step=step, steps=5, seconds=0.1))
    assert [event.seq for event in store.events(JobId("job-00001"), after=3)] == [4, 5, 6]
    assert store.events(JobId("job-00001"), after=6) == []


def test_order_does_not_depend_on_the_clock(store, monkeypatch):
    times = iter([100.0, 50.0, 10.0, 900.0])
    monkeypatch.setattr("backend.jobs.store.time", SimpleNamespace(time=lambda: next(times)))
    for name in ("job-00001", "job-00002", "job-00003"):
        store.add(record(store, name, created_at=-5.0), 1)
    assert [job.id for job in store.select(owner=None)] == ["job-00003", "job-00002", "job-00001"]
    assert [job.id for job in store.waiting()] == ["job-00001", "job-00002", "job-00003"]
    store.append(JobId("job-00001"), Failed(reason="x"))
    assert [event.at for event in store.events(JobId("job-00001"))] == [100.0, 900.0]


def test_paths_of_a_result_follow_the_folder(store):
    store.add(record(store), 1)
    output = store.jobs_dir / "job-00001" / "output"
    store.append(
        JobId("job-00001"), Succeeded(video=output / "video.mp4", sidecar=output / "video.json", details={"seed": 3})
    )
    done = store.get(JobId("job-00001"))
    assert (done.video, done.state) == (output / "video.mp4", JobState.SUCCEEDED)
    assert store.events(JobId("job-00001"))[-1].details == {"seed": 3}


def test_rows_of_another_version_are_shown_and_keep_their_numbers(store, tmp_path):
    store.add(record(store, prompt="old words"), 1)
    store.append(JobId("job-00001"), StepDone(step=1, steps=2, seconds=0.1))
    raw = sqlite3.connect(tmp_path / "jobs.sqlite3")
    raw.execute("UPDATE jobs SET request = json_set(request, '$.negative_prompt', 'x')")
    raw.execute("UPDATE events SET body = json_set(body, '$.type', 'Exploded') WHERE seq = 2")
    raw.commit()
    raw.close()
    (shown,) = store.waiting()
    assert shown.request.prompt == "old words"
    assert "negative_prompt" in shown.error
    assert [(event.seq, type(event)) for event in store.events(JobId("job-00001"))] == [(1, Queued), (2, Notice)]


def test_search_owner_state_and_pages(store):
    for index, (owner, prompt) in enumerate([("ann", "100% red"), ("bob", "red_boat"), ("ann", "redXboat")]):
        store.add(record(store, f"job-0000{index}", owner, prompt), index + 1)
    assert [job.request.prompt for job in store.select(owner="ann")] == ["redXboat", "100% red"]
    assert [job.request.prompt for job in store.select(owner=None, search="d_b")] == ["red_boat"]
    assert [job.request.prompt for job in store.select(owner=None, search="0% R")] == ["100% red"]
    assert [job.request.prompt for job in store.select(owner=None, limit=1, offset=1)] == ["red_boat"]
    assert store.select(owner=None, states=[JobState.FAILED]) == []
    assert store.select(owner="' OR 1=1 --") == []
    with pytest.raises(JobNotFound):
        store.get(JobId("job-00009"))


def test_ten_thousand_rows_list_within_a_tenth_of_a_second(store):
    connection = store._connection
    connection.execute("BEGIN")
    for index in range(10_000):
        store_row = (f"j{index:08d}", "ann" if index % 2 else "bob", index, f"a boat number {index}")
        connection.execute(
            "INSERT INTO jobs (id, owner, state, place, request, prompt, preset, quality, title, tags, labels,"
            " created_at) VALUES (?1, ?2, 'succeeded', ?3, json_object('prompt', ?4), ?4, 'p', 'q', ?4, '[]', '{}', 0)",
            store_row,
        )
    connection.execute("COMMIT")
    for question in ({"owner": "ann"}, {"owner": None, "offset": 9_900}, {"owner": "bob", "search": "number 77"}):
        began = time.perf_counter()
        found = store.select(limit=100, **question)
        seconds = time.perf_counter() - began
        assert len(found) >= 50
        assert seconds < 0.1, f"{question}: {seconds:.3f} s"


@pytest.mark.parametrize("damage", ["header", "middle", "text", "foreign tables"])
def test_a_damaged_database_is_set_aside_and_a_fresh_one_started(tmp_path, damage):
    path, jobs = tmp_path / "jobs.sqlite3", tmp_path / "jobs"
    store = JobStore(path, jobs)
    for index in range(200):
        store.add(record(store, f"job-{index:05d}", prompt="x" * 500), 1)
    store.close()
    (jobs / "job-00001" / "output").mkdir(parents=True)
    (jobs / "job-00001" / "output" / "video.mp4").write_bytes(b"video")
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:64] = os.urandom(64)
    elif damage == "middle":
        data[4096 : len(data) // 2] = os.urandom(len(data) // 2 - 4096)
    elif damage == "text":
        data = bytearray(b"not a database at all\n" * 500)
    path.write_bytes(data)
    if damage == "foreign tables":
        path.unlink()
        other = sqlite3.connect(path)
        other.executescript("CREATE TABLE jobs (x); PRAGMA user_version=1;")
        other.close()
    fresh = JobStore(path, jobs)
    assert "moved to" in fresh.notice
    kept = fresh.select(owner=None)  # what could still be read, each job whole
    assert {job.id for job in kept} <= {f"job-{index:05d}" for index in range(200)}
    assert all([event.seq for event in fresh.events(job.id)] == [1] for job in kept)
    fresh.add(record(fresh, "job-99999"), 1)
    fresh.close()
    assert (jobs / "job-00001" / "output" / "video.mp4").read_bytes() == b"video"
    assert (
        len([item for item in tmp_path.glob("jobs.sqlite3.damaged-*") if not item.name.endswith(("-wal", "-shm"))]) == 1
    )
    again = JobStore(path, jobs)
    assert again.notice is None
    again.close()


def test_a_newer_database_is_left_alone(tmp_path):
    path = tmp_path / "jobs.sqlite3"
    JobStore(path, tmp_path / "jobs").close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version=99")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(H3Error, match="newer version"):
        JobStore(path, tmp_path / "jobs")
    assert path.read_bytes() == before


def test_a_locked_database_is_said_in_words_and_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT_MS", 100)
    store = JobStore(tmp_path / "jobs.sqlite3", tmp_path / "jobs")
    store.add(record(store), 1)
    other = sqlite3.connect(tmp_path / "jobs.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailure, match=r"locked.*close that program"):
        store.append(JobId("job-00001"), Failed(reason="x"))
    other.execute("ROLLBACK")
    other.close()
    store.append(JobId("job-00001"), Failed(reason="x"))
    store.close()


def test_a_full_database_is_said_in_words_and_recovers(store):
    store.add(record(store), 1)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreFailure, match="disk is full"):
        store.append(JobId("job-00001"), Failed(reason="x" * 100_000))
    store._connection.execute("PRAGMA max_page_count=1000000")
    store.append(JobId("job-00001"), Failed(reason="x"))


def test_what_was_promised_survives_kill_9(tmp_path):
    code = (
        "import sys, time; sys.path[:0] = [sys.argv[2], sys.argv[2] + '/tests/jobs']\n"
        "from pathlib import Path\n"
        "from test_store import JobStore, JobId, Started, record\n"
        "store = JobStore(Path(sys.argv[1]) / 'jobs.sqlite3', Path(sys.argv[1]) / 'jobs')\n"
        "for index in range(50): store.add(record(store, f'job-{index:05d}'), index + 1)\n"
        "store.append(JobId('job-00000'), Started(engine='native', preset='tiny-cpu'))\n"
        "print('stored', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(ROOT)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "stored\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = JobStore(tmp_path / "jobs.sqlite3", tmp_path / "jobs")
    assert store.notice is None
    assert store.running() == ["job-00000"]
    assert [job.id for job in store.waiting()] == [f"job-{index:05d}" for index in range(1, 50)]
    store.close()
