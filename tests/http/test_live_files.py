"""What a running job shows of itself over HTTP: to its owner and link only, growing while it grows, gone at its end."""

import asyncio
import threading
import time

import pytest
from fastapi import FastAPI
from job_fakes import World, request, wait_until
from starlette.testclient import TestClient

from backend.api import JobState
from backend.http.files import follow
from backend.http.routes import routers

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


@pytest.fixture
def world():
    return World(steps=1)


@pytest.fixture
def client(backend):
    app = FastAPI()
    for router in routers(backend, lambda asked: asked.headers.get("x-owner")):
        app.include_router(router)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


class Scene:
    """A job held in its only step, in whose folder `show` has put what a worker would."""

    def __init__(self, backend, world):
        self.go_on, self.folder = threading.Event(), None
        world.during_step = self._during
        self.job = backend.submit(request(), owner="ann")
        wait_until(lambda: self.folder is not None)
        self.picture, self.video = (f"/files/{self.job}/{name}" for name in ("preview.png", "stream.mp4"))
        self.token = {"token": backend.file_token(self.job, owner="ann")}

    def _during(self, render, step):
        (render.folder / "preview.png").write_bytes(PNG)
        (render.folder / "stream.mp4").write_bytes(b"first")
        self.folder = render.folder
        self.go_on.wait(20)


def test_only_owner_and_link_see_it_and_nobody_after_the_end(client, backend, world):
    scene = Scene(backend, world)
    ann, eve = {"x-owner": "ann"}, {"x-owner": "eve"}
    seen = client.get(scene.picture, headers=ann)
    assert (seen.status_code, seen.content, seen.headers["content-type"]) == (200, PNG, "image/png")
    assert "no-store" in seen.headers["cache-control"]
    assert client.get(scene.picture, params=scene.token).content == PNG
    for address in (scene.picture, scene.video):
        assert client.get(address, headers=eve).status_code == 404
        assert client.get(address).status_code == 404
        assert client.get(address, params={"token": "0" * 32}).status_code == 404
    assert client.get(f"/files/{scene.job}/video.mp4", headers=ann).status_code == 404  # no result yet
    scene.go_on.set()
    wait_until(lambda: backend.job(scene.job, owner="ann").state is JobState.SUCCEEDED)
    for address in (scene.picture, scene.video):
        assert client.get(address, headers=ann).status_code == 204
    wait_until(lambda: {path.name for path in scene.folder.iterdir()} == {"video.mp4", "video.json"})


def test_the_video_is_followed_until_it_is_deleted(client, backend, world):
    scene = Scene(backend, world)

    def write():
        with (scene.folder / "stream.mp4").open("ab") as file:
            for part in (b" second", b" third"):
                time.sleep(0.2)
                file.write(part)
                file.flush()
            time.sleep(0.1)
            (scene.folder / "stream.mp4").unlink()
            file.write(b" last")  # by who still has it open: seen, or not, but never an error

    writer = threading.Thread(target=write)
    writer.start()
    answer = client.get(scene.video, params=scene.token)
    writer.join()
    assert answer.headers["content-type"] == "video/mp4" and "content-length" not in answer.headers
    assert answer.content.startswith(b"first second third")
    assert client.head(scene.video, params=scene.token).status_code == 204
    scene.go_on.set()


def test_the_job_names_what_it_shows_while_it_runs(client, backend, world):
    world.steps = 2
    scene = Scene(backend, world)
    ann = {"x-owner": "ann"}

    def told():
        return client.get(f"/v1/videos/{scene.job}", headers=ann).json()

    assert (told()["preview_url"], told()["stream_url"]) == (None, None)  # a step must be done
    world.during_step = lambda render, step: scene.again.wait(20)
    scene.again = threading.Event()
    scene.go_on.set()
    wait_until(lambda: told()["stream_url"])
    assert client.get(told()["preview_url"]).content == PNG
    assert told()["stream_url"].startswith(f"{scene.video}?token=")
    scene.again.set()
    wait_until(lambda: told()["status"] == "completed")
    assert (told()["progress"], told()["preview_url"], told()["stream_url"]) == (100, None, None)


def test_a_failure_leaves_neither(client, backend, world):
    world.fail_at_step = 1
    scene = Scene(backend, world)
    scene.go_on.set()
    wait_until(lambda: backend.job(scene.job, owner="ann").state is JobState.FAILED)
    wait_until(lambda: not scene.folder.exists())
    assert client.get(scene.picture, params=scene.token).status_code == 204


def test_parts_are_sent_as_they_come_and_silence_ends_it(tmp_path):
    path = tmp_path / "stream.mp4"
    path.write_bytes(b"one")

    async def watch():
        parts = []
        async for part in follow(path.open("rb", buffering=0), silence_s=0.3):
            parts.append(part)
            if len(parts) == 1:
                with path.open("ab") as file:
                    file.write(b"two")
        return parts

    assert asyncio.run(watch()) == [b"one", b"two"]
