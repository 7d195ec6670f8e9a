"""The real program with the tiny model as a child process, and headless Chromium in front of it."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from backend.checkpoints.catalog import TINY_FOLDER

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--autoplay-policy=no-user-gesture-required",
)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.browser)
            # A busy machine can starve Chromium, the server and the model at once; a second failure is a defect.
            item.add_marker(pytest.mark.flaky(reruns=1))


@dataclass
class Server:
    """The running program."""

    url: str
    process: subprocess.Popen[str]
    data: Path


@pytest.fixture(scope="module")  # not the session: Playwright keeps an event loop in this thread while it is open
def server(tmp_path_factory, tiny_checkpoint) -> Iterator[Server]:
    """`python app.py` on an empty data folder."""
    with running(tmp_path_factory.mktemp("studio"), tiny_checkpoint) as program:
        yield program


@contextlib.contextmanager
def running(data: Path, checkpoint: Path, *options: str) -> Iterator[Server]:
    """`python app.py` on a free port with the data folder `data / "data"`, ended by SIGTERM; it must end in order."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install chromium to run the browser tests")
    shutil.copytree(checkpoint, data / "data" / "checkpoints" / TINY_FOLDER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (data / "server.log").open("w")
    command = [sys.executable, "app.py", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data / "data")]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        _await_port(port, process, data / "server.log")
        yield Server(url=f"http://127.0.0.1:{port}", process=process, data=data / "data")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (data / "server.log").read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()
    assert "Traceback" not in (data / "server.log").read_text(), (data / "server.log").read_text()[-3000:]


def _await_port(port: int, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the port did not open: {log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def launch():
    """`running`, for files that fill a data folder first or need other options."""
    return running


@pytest.fixture(scope="module")
def chromium(server):
    """One browser for the tests of a file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        browser.new_context = functools.partial(browser.new_context, storage_state=been_here(server.url))
        yield browser
        browser.close()


def been_here(url: str) -> dict[str, object]:
    """What a browser keeps of a person who was led around the page before."""
    kept = [{"name": "h3-tour", "value": "seen"}]
    return {"cookies": [], "origins": [{"origin": url, "localStorage": kept}]}


@dataclass
class Studio:
    """A page of one person, with everything the browser complained about or fetched from elsewhere."""

    page: object
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> None:
        """Open the page and wait until it answered its first question."""
        self.page.goto(self.url + query)
        self.page.wait_for_selector("#plan .plan")

    def reload(self) -> None:
        """Reload; what Gradio's client says about its own torn connections is no complaint of the page."""
        kept = list(self.complaints)
        self.page.reload()
        self.page.wait_for_selector("#plan .plan")
        self.complaints[:] = kept

    def smallest(self, prompt: str, steps: int = 4) -> None:
        """Fill in a request that a laptop makes in seconds."""
        self.page.fill("#prompt textarea", prompt)
        self.page.click("#size label:has-text('Custom')")
        for name, value in (("width", 224), ("height", 128), ("duration", 4), ("steps", steps)):
            self.page.fill(f"#{name} input[type=number]", str(value))
            self.page.keyboard.press("Tab")
        for told in (f"{steps - 1} forwards", "224 × 128", "107 frames"):
            self.page.wait_for_selector(f"#plan :text('{told}')")

    def generate(self) -> None:
        """Press the button and wait until the job is in the light."""
        before = self.page.get_attribute("#live [data-shown]", "data-shown") if self.shown() else ""
        self.page.click("#generate")
        self.page.wait_for_function(
            "(before) => { const at = document.querySelector('#live [data-shown]');"
            " return at && at.dataset.shown && at.dataset.shown !== before }",
            arg=before,
        )

    def shown(self) -> bool:
        """Whether any job is in the light."""
        return self.page.locator("#live [data-shown]").count() > 0

    def await_video(self, timeout_s: float = 90) -> None:
        """Wait until the job that is shown is done and its video is there."""
        self.page.wait_for_selector("#live .pill.ok:text('succeeded')", timeout=timeout_s * 1000)
        self.page.wait_for_selector("#result-video")


@pytest.fixture
def studio(chromium, server) -> Iterator[Studio]:
    """A fresh person: nothing stored in the browser. At the end nothing may have been complained about or fetched."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(45_000)
    page = context.new_page()
    made = Studio(page=page, url=server.url + "/")

    def judge(request):
        if not request.url.startswith((server.url, "data:", "blob:")):
            made.complaints.append(f"fetched {request.url}")

    page.on("request", judge)
    page.on("console", lambda said: made.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: made.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (made.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    yield made
    context.close()
    assert made.complaints == []


@pytest.fixture(scope="session")
def media(tmp_path_factory) -> dict[str, Path]:
    """A portrait picture, a clip with sound, a sound, and a text that calls itself a picture."""
    folder = tmp_path_factory.mktemp("media")
    ramp = np.linspace(0, 255, 320, dtype=np.uint8)
    picture = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None, :], np.uint8(90)), axis=2)
    Image.fromarray(picture).resize((320, 480)).save(folder / "portrait.png")
    wave_s = (0.3 * np.sin(np.arange(32_000 * 3) * 0.05) * 32767).astype(np.int16)
    with wave.open(str(folder / "tone.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(32_000)
        sound.writeframes(wave_s.tobytes())
    _clip(folder / "clip.mp4", picture, wave_s)
    (folder / "fake.png").write_text("no picture")
    return {path.name: path for path in folder.iterdir()}


def _clip(path: Path, picture: np.ndarray, sound: np.ndarray) -> None:
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=24)
        video.width, video.height, video.pix_fmt = 320, 320, "yuv420p"
        audio = container.add_stream("aac", rate=32_000, layout="mono")
        for index in range(60):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, index * 4, axis=1))
            container.mux(video.encode(frame))
        samples = av.AudioFrame.from_ndarray(sound[None, : 32_000 * 5 // 2], format="s16", layout="mono")
        samples.sample_rate = 32_000
        container.mux(audio.encode(samples))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
