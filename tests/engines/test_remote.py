"""Videos from a server elsewhere: our own server on another port, and others as docs describe them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from job_fakes import wait_until

from app import main
from backend.api import Backend
from backend.engines.remote import RemoteEngine
from backend.engines.videos_client import Dialect, VideosClient, body_for, fields_for, unfit
from backend.errors import EngineFailure, Unavailable
from backend.events import Cancelled, Failed, FramesDone, Notice, StageFinished, StageStarted, StepDone, Succeeded
from backend.media import finished, kept
from backend.presets import hardware_presets
from backend.settings import RemoteSettings, Settings
from backend.types import (
    GenerationRequest,
    JobId,
    PreparedMedia,
    Reference,
    ReferenceKind,
    Render,
    Sampling,
    Stage,
)

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "ann:very-secret-word"
SAMPLING = Sampling(num_frames=107, width=64, height=64, num_inference_steps=4, seed=7)
SERVER = """
import sys
from pathlib import Path
import backend.engines.stub
from app import main
from backend.api import Backend
from backend.settings import Settings
port, folder, checkpoint = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def stub(preset, _, settings):
    return backend.engines.stub.StubEngine(preset, Path(checkpoint), settings)
settings = Settings(data_dir=folder)
program = Backend(settings, preset="tiny-cpu", engine_factory=stub)
import uvicorn
from fastapi import FastAPI
from backend.http.login import login
from backend.http.routes import routers
app = FastAPI()
for router in routers(program, login((("ann", "very-secret-word"),))):
    app.include_router(router)
try:
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
finally:
    program.close()
"""


@contextlib.contextmanager
def server(folder: Path, tiny: Path, checkpoint: str = "stub:step_s=0.1"):
    """Our own program with the pretend model on a free port, in a process that can be killed."""
    (folder / "checkpoints").mkdir(parents=True)
    from backend.checkpoints.catalog import TINY_FOLDER

    (folder / "checkpoints" / TINY_FOLDER).symlink_to(tiny)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(folder), checkpoint],
        cwd=ROOT,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 90
    try:
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            time.sleep(0.1)
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


@pytest.fixture(scope="module")
def studio(tmp_path_factory, tiny_checkpoint):
    with server(tmp_path_factory.mktemp("elsewhere") / "data", tiny_checkpoint) as (url, _):
        yield url


def engine(url: str, token: str = TOKEN, transport=None, **deadlines) -> RemoteEngine:
    import dataclasses

    preset = hardware_presets()["remote"]
    preset = dataclasses.replace(preset, deadlines=dataclasses.replace(preset.deadlines, **deadlines))
    settings = Settings(data_dir=Path("/nowhere"), remote=RemoteSettings(url=url, token=token))
    return RemoteEngine(preset, Path("x"), settings, transport)


def render(folder: Path, **more) -> Render:
    folder.mkdir(exist_ok=True)
    request = GenerationRequest(prompt="a boat 雨\n<d>", sampling=SAMPLING, **more)
    return Render(job=JobId("here-1"), request=request, media=PreparedMedia(), folder=folder, quality="standard")


def test_a_request_goes_out_and_its_video_comes_back(studio, tmp_path):
    remote = engine(studio)
    assert remote.unavailable() is None
    events = list(remote.generate(render(tmp_path / "out")))
    end = events[-1]
    assert isinstance(end, Succeeded), end
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2, 3]
    assert [event.done for event in events if isinstance(event, FramesDone)][-1] == 107
    assert [event.stage for event in events if isinstance(event, StageFinished)] == [
        Stage.LOAD,
        Stage.ENCODE,
        Stage.DENOISE,
        Stage.DECODE,
        Stage.MUX,
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["video.json", "video.mp4"]
    inside = kept.understand(finished.read_settings(end.video), "video.mp4")
    assert inside.job == "here-1"
    assert inside.request == render(tmp_path / "out").request
    told = end.sidecar.read_text("utf-8") + json.dumps(finished.read_settings(end.video)) + repr(events)
    assert "very-secret-word" not in told
    assert (end.details["server"], end.details["num_frames"]) == ("H3 Studio", 107)
    assert end.details["checks"]["video_frames"] == 107
    with httpx.Client(base_url=studio, auth=("ann", "very-secret-word"), trust_env=False) as asked:
        assert asked.get("/v1/videos").json()["data"] == []  # nothing is left there
    remote.close()
    remote.close()


def test_a_cancel_here_stops_the_job_there(tmp_path, tiny_checkpoint):
    with server(tmp_path / "data", tiny_checkpoint, "stub:step_s=3") as (url, _):
        remote, events = engine(url), []
        following = threading.Thread(
            target=lambda: events.extend(remote.generate(render(tmp_path / "out"))), daemon=True
        )
        following.start()
        with httpx.Client(base_url=url, auth=("ann", "very-secret-word"), trust_env=False) as asked:
            wait_until(lambda: [job["status"] for job in asked.get("/v1/videos").json()["data"]] == ["in_progress"], 60)
            began = time.monotonic()
            remote.cancel()
            following.join(30)
            assert isinstance(events[-1], Cancelled) and time.monotonic() - began < 20
            wait_until(lambda: asked.get("/v1/videos").json()["data"] == [], 20)
        assert list((tmp_path / "out").iterdir()) == []
        remote.close()


def test_a_server_that_is_killed_fails_the_job_in_words(tmp_path, tiny_checkpoint):
    with server(tmp_path / "data", tiny_checkpoint, "stub:step_s=2") as (url, process):
        remote = engine(url, silence_s=3.0)
        events = []
        for event in remote.generate(render(tmp_path / "out")):
            events.append(event)
            if isinstance(event, StepDone) and event.step == 1:
                process.kill()
        end = events[-1]
        assert isinstance(end, Failed)
        assert "cannot be reached" in end.reason and url.removeprefix("http://") in end.reason
        assert any(isinstance(event, Notice) and "Trying again" in event.message for event in events)
        assert list((tmp_path / "out").iterdir()) == []
        remote.close()


@pytest.mark.parametrize(
    ("token", "told"),
    [("", "set H3_REMOTE_TOKEN"), ("ann:wrong-secret", "not the right one"), ("bearer-secret", "not the right one")],
)
def test_who_is_not_let_in_hears_so_without_the_token(studio, tmp_path, token, told):
    (end,) = [event for event in engine(studio, token).generate(render(tmp_path / "out")) if isinstance(event, Failed)]
    assert "401" in end.reason and told in end.reason
    assert "secret" not in end.reason


def test_nobody_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    remote = engine(f"http://127.0.0.1:{port}/v1/")
    events = list(remote.generate(render(tmp_path / "out")))
    assert isinstance(events[-1], Failed) and "cannot be reached" in events[-1].reason
    with pytest.raises(EngineFailure, match="cannot be reached"):
        list(remote.start())


NO_ADDRESSES = ["gpu.example.com", "ftp://x", "https://", "http://a:b@c", "http://[x", "http://x:port", "http://a b"]


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(EngineFailure, match="H3_REMOTE_URL"):
        VideosClient(url)


@pytest.mark.parametrize("url", NO_ADDRESSES)
@pytest.mark.parametrize("preset", ["remote", None])
def test_an_address_that_is_none_is_refused_before_anything_is_queued(tmp_path, url, preset):
    backend = Backend(Settings(data_dir=tmp_path, remote=RemoteSettings(url=url)), preset=preset)
    try:
        assert backend.choice().preset.name == "remote"
        with pytest.raises(Unavailable, match="preset=remote: H3_REMOTE_URL: must") as refused:
            backend.submit(GenerationRequest(prompt="x", sampling=SAMPLING), owner="ann")
        assert "a:b@" not in str(refused.value) + backend.choice().reason
        assert backend.history(owner="ann") == []
    finally:
        backend.close()


def test_the_command_refuses_an_address_that_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("H3_REMOTE_URL", "ftp://x")
    size = ("--width", "64", "--height", "64", "--frames", "107")
    arguments = ["generate", "--preset", "remote", "--prompt", "x", *size, "--data-dir", str(tmp_path / "data")]
    arguments += ["--out", str(tmp_path / "a.mp4")]
    assert main(arguments) == 2
    assert "H3_REMOTE_URL: must be an address" in capsys.readouterr().err


def test_what_the_server_refuses_is_said_in_its_words_without_our_token(tmp_path):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            return httpx.Response(200, json={"ready": True})
        if request.method == "GET":
            return httpx.Response(200, json={"data": []})
        return httpx.Response(400, json={"error": {"message": "queue: too many, secret-token\x07"}})

    remote = engine("http://gpu:1", "secret-token", httpx.MockTransport(answer))
    end = list(remote.generate(render(tmp_path / "out")))[-1]
    assert isinstance(end, Failed) and end.reason == "gpu:1 refused: queue: too many, ***"


class Omni:
    """vLLM-Omni as video-api.md describes it: no steps, failed polls with an error status, DELETE cancels."""

    def __init__(self, video: bytes, fail: str = "") -> None:
        self.video, self.fail = video, fail
        self.form, self.polls, self.deleted = b"", 0, []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/health":
            return httpx.Response(200, json={"status": "healthy"})
        if request.method == "POST":
            self.form = request.read()
            return httpx.Response(200, json={"id": "video_gen_1", "status": "queued", "progress": 0})
        if request.method == "DELETE":
            self.deleted.append(path)
            return httpx.Response(200, json={"deleted": True})
        if path.endswith("/content"):
            return httpx.Response(200, content=self.video)
        if path.startswith("/v1/videos/"):
            self.polls += 1
            body = {"id": "video_gen_1", "status": "in_progress" if self.polls == 1 else "completed", "model": "H3"}
            if self.fail and self.polls > 1:
                body |= {"status": "failed", "error": {"code": 400, "message": self.fail}}
                return httpx.Response(400, json=body)
            return httpx.Response(200, json=body)
        return httpx.Response(404, json={"detail": "Not Found"})


@pytest.fixture(scope="module")
def video(studio, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("video") / "out"
    end = list(engine(studio).generate(render(out)))[-1]
    assert isinstance(end, Succeeded)
    return end.video.read_bytes()


def test_vllm_omni_is_understood(video, tmp_path):
    omni = Omni(video)
    events = list(engine("http://gpu:8091/v1", "t", httpx.MockTransport(omni)).generate(render(tmp_path / "out")))
    assert isinstance(events[-1], Succeeded), events[-1]
    assert events[-1].details["server"] == "vLLM-Omni"
    assert b'name="num_inference_steps"\r\n\r\n3\r\n' in omni.form  # forwards, where we count sigma points
    assert omni.deleted == ["/v1/videos/video_gen_1"] or wait_until(lambda: omni.deleted) is None
    assert [event.stage for event in events if isinstance(event, StageStarted)][-2:] == [Stage.DENOISE, Stage.MUX]
    failed = list(
        engine("http://gpu", transport=httpx.MockTransport(Omni(b"", "ratio missing"))).generate(render(tmp_path / "b"))
    )
    assert isinstance(failed[-1], Failed) and "ratio missing" in failed[-1].reason
    broken = list(
        engine("http://gpu", transport=httpx.MockTransport(Omni(video[:5000]))).generate(render(tmp_path / "c"))
    )
    assert isinstance(broken[-1], Failed) and not list((tmp_path / "c").iterdir())


@pytest.mark.parametrize("num_frames", range(107, 363, 17))
def test_other_servers_make_as_many_frames_as_are_asked_for(num_frames):
    """They round the seconds to frames and up to 17n+5 (video-api.md 1.2)."""
    import dataclasses

    request = GenerationRequest(prompt="x", sampling=dataclasses.replace(SAMPLING, num_frames=num_frames))
    omni = json.loads(fields_for(Dialect.OMNI, request, "standard")["extra_params"])
    asked = round(omni["duration"] * 24)
    assert 4 <= omni["duration"] <= 15
    assert asked + (5 - asked) % 17 == num_frames
    assert body_for(request)["target"]["duration_seconds"] == omni["duration"]


def test_what_another_kind_of_server_cannot_do_is_not_sent(tmp_path):
    clip = Reference(path=tmp_path / "a.mp4", kind=ReferenceKind.VIDEO, start_s=1.0, length_s=2.0)
    request = GenerationRequest(prompt="x", references=(clip,), sampling=SAMPLING)
    assert unfit(Dialect.STUDIO, request) is None
    assert "cannot end a reference early" in unfit(Dialect.OMNI, request)
    assert json.loads(fields_for(Dialect.STUDIO, request, "q")["extra_params"]) == {
        "task": "ref2va",
        "start_time_seconds": [1.0],
        "length_seconds": [2.0],
    }


def test_the_preset_is_chosen_by_the_address_and_refuses_without(tmp_path):
    remote = RemoteSettings(url="https://user.example:7860/x", token="very-secret")
    backend = Backend(Settings(data_dir=tmp_path / "a", remote=remote))
    try:
        assert (backend.choice().preset.name, backend.choice().reason) == (
            "remote",
            "H3_REMOTE_URL is set: the server at user.example:7860 makes the videos.",
        )
        told = backend.forecast(GenerationRequest(prompt="x", sampling=SAMPLING))
        assert (told.refusal, told.total_s) == (None, None)
        assert "very-secret" not in repr(backend.settings)
    finally:
        backend.close()
    backend = Backend(Settings(data_dir=tmp_path / "b"))
    try:
        assert backend.choice().preset.name != "remote"
        (status,) = [item for item in backend.presets() if item.preset.name == "remote"]
        assert "H3_REMOTE_URL" in status.unavailable
    finally:
        backend.close()
