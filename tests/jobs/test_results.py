"""Questions about results through the door: whose they are, last pictures, likeness, recalled settings, caps."""

from __future__ import annotations

import hashlib
import json
import zipfile

import numpy as np
import pytest
from job_fakes import World, open_backend, request, wait_until
from PIL import Image

from backend import codec
from backend.api import ADMIN, Caps, JobState
from backend.errors import InvalidRequest, JobNotFound, MediaRefused, NotNow
from backend.media import kept
from backend.media.mp4 import Mp4Writer
from backend.types import EncoderSettings, GenerationRequest, Sampling


@pytest.fixture
def backend(tmp_path):
    backend = open_backend(tmp_path / "data", World())
    yield backend
    backend.close()


def finish(backend, asked, owner="ann", level=100, **comment):
    """A succeeded job whose fake result is replaced by a small real MP4."""
    job = backend.submit(asked, owner=owner)
    wait_until(lambda: backend.job(job, owner=owner).state is JobState.SUCCEEDED)
    video = backend.results.video(job, owner=owner)
    with Mp4Writer(video, 64, 32, EncoderSettings(crf=1)) as writer:
        for index in range(5):
            writer.write_frames(np.full((1, 32, 64, 3), level + index, np.uint8))
        writer.close({"comment": json.dumps(comment)})
    return job


def test_last_frame_compare_and_disk_use(backend, tmp_path):
    first, second = finish(backend, request("a"), level=100), finish(backend, request("b"), level=104)
    backend.results.last_frame(first, tmp_path / "last.png", owner="ann")
    assert np.abs(np.asarray(Image.open(tmp_path / "last.png")).astype(int) - 104).max() <= 2
    found = backend.results.compare(first, second, owner="ann")
    assert found.frames == (5, 5) and 5 < found.mse[0] < 20  # luma 4 * 219/255 apart, squared, by two thirds
    folder = backend.job(first, owner="ann").folder
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    size = backend.results.sizes([first], owner="ann")[first]
    assert held <= size <= held + 3 * 4096  # folders count as what they are
    use = backend.results.disk_use(owner="ann")
    assert use.jobs == 2 and use.used_bytes > size and use.free_bytes > 0
    assert backend.results.disk_use(owner="bob").used_bytes == 0


def test_a_saved_last_frame_is_taken_as_it_is(backend, tmp_path):
    job = finish(backend, request())
    saved = backend.job(job, owner="ann").video.with_name("last_frame.png")
    Image.new("RGB", (64, 32), (1, 2, 3)).save(saved)
    backend.results.last_frame(job, tmp_path / "last.png", owner="ann")
    assert (tmp_path / "last.png").read_bytes() == saved.read_bytes()


def test_another_owner_gets_nothing(backend, tmp_path):
    mine, theirs = finish(backend, request()), finish(backend, request(), owner="bob")
    for attempt in (
        lambda: backend.results.video(theirs, owner="ann"),
        lambda: backend.results.last_frame(theirs, tmp_path / "x.png", owner="ann"),
        lambda: backend.results.compare(mine, theirs, owner="ann"),
        lambda: backend.results.compare(theirs, mine, owner="ann"),
    ):
        with pytest.raises(JobNotFound):
            attempt()
    assert backend.results.sizes([theirs], owner="ann") == {}
    assert list(backend.results.sizes([theirs], owner=ADMIN)) == [theirs]


def test_what_has_no_video_is_said(backend, tmp_path):
    backend.pause()
    job = backend.submit(request(), owner="ann")
    with pytest.raises(NotNow, match="queued; only a finished video"):
        backend.results.last_frame(job, tmp_path / "x.png", owner="ann")


def test_settings_are_recalled_with_the_media_of_my_own_job_only(backend, tmp_path):
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"pixels")
    asked = GenerationRequest(prompt="x", first_frame=picture, sampling=Sampling(num_frames=107, seed=7))
    job = backend.submit(asked, owner="ann")
    wait_until(lambda: backend.job(job, owner="ann").state.ended)
    record = backend.job(job, owner="ann")
    sidecar = {
        "job": job,
        "request": codec.encode(record.request),
        "inputs": codec.encode(kept.inputs_of(record.request, record.labels)),
    }
    brought = tmp_path / "brought.mp4"
    with Mp4Writer(brought, 64, 32, EncoderSettings()) as writer:
        writer.write_frames(np.zeros((1, 32, 64, 3), np.uint8))
        writer.close({"comment": json.dumps(kept.portable(sidecar))})
    recalled = backend.results.recall(brought, owner="ann")
    assert recalled.files == (record.request.first_frame,)
    assert recalled.kept.inputs[0].sha256 == hashlib.sha256(b"pixels").hexdigest()
    assert recalled.kept.request.sampling == record.request.sampling
    assert backend.results.recall(brought, owner="eve").files == (None,)
    record.request.first_frame.write_bytes(b"others")  # the same name, another picture
    assert backend.results.recall(brought, owner="ann").files == (None,)
    (tmp_path / "x.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + b"x" * 100)
    with pytest.raises(MediaRefused, match=r"mine\.mp4"):
        backend.results.recall(tmp_path / "x.mp4", "mine.mp4", owner="ann")


def test_favourites_are_found_however_old(backend):
    jobs = [finish(backend, request(str(index))) for index in range(4)]
    backend.set_favourite(jobs[0], True, owner="ann")
    found = backend.history(owner="ann", limit=1, favourite=True)
    assert [record.id for record in found] == [jobs[0]]


def test_an_edit_may_change_the_quality(backend):
    backend.pause()
    job = backend.submit(request("a"), owner="ann")
    backend.edit(job, request("b"), owner="ann", quality="draft")
    assert backend.job(job, owner="ann").quality == "draft"
    backend.edit(job, request("c"), owner="ann")
    assert backend.job(job, owner="ann").quality == "draft"


def test_a_queue_file_over_the_caps_is_refused_whole(backend, tmp_path):
    backend.pause()
    for name in "abc":
        backend.submit(request(name), owner="ann")
    backend.export_queue(tmp_path / "q.zip", owner="ann")
    backend.limit(Caps(waiting_per_owner=2))
    with pytest.raises(InvalidRequest, match="at most 2 of your jobs"):
        backend.import_queue(tmp_path / "q.zip", owner="eve")
    assert backend.queue(owner="eve") == []
    backend.limit(Caps(media_bytes_per_owner=1000))
    with zipfile.ZipFile(tmp_path / "q.zip", "a") as archive:
        archive.writestr("media/0/x", bytes(2000))
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        backend.import_queue(tmp_path / "q.zip", owner="eve")
