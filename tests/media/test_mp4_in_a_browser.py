"""The written MP4 through a decoder that is not ours: headless Chromium, which draws it to a canvas."""

import http.server
import json
import threading
from functools import partial
from pathlib import Path

import made
import numpy as np
import pytest

from backend.media import mp4
from backend.types import EncoderSettings

CHROMIUM = Path("/usr/bin/chromium")
PURE = [(0, 255, 0), (0, 0, 255)]
MILD = [(255, 0, 0), (128, 128, 128), (255, 255, 255), (0, 0, 0), (180, 60, 40), (60, 140, 80), (70, 90, 130)]
COLOURS = [*MILD, *PURE]
READ = """async ([times, size]) => {
  const video = document.querySelector('video');
  // a blob can be sought in, which this plain server's answers cannot
  video.src = URL.createObjectURL(await (await fetch('video.mp4')).blob());
  await new Promise((ready, fail) => {
    video.onerror = () => fail(new Error('cannot play: ' + (video.error && video.error.message)));
    if (video.readyState >= 2) ready(); else video.onloadeddata = ready;
  });
  const canvas = document.createElement('canvas');
  canvas.width = size[0]; canvas.height = size[1];
  const pen = canvas.getContext('2d', {willReadFrequently: true});
  const pixels = [], planes = [];
  let space = null;
  for (const time of times) {
    await new Promise(done => { video.onseeked = done; video.currentTime = time; });
    pen.drawImage(video, 0, 0);
    pixels.push(Array.from(pen.getImageData(size[0] / 2, size[1] / 2, 1, 1).data.slice(0, 3)));
    const frame = new VideoFrame(video);
    const data = new Uint8Array(frame.allocationSize());
    const layout = await frame.copyTo(data);
    planes.push(layout.map(plane => data[plane.offset]));
    space = {format: frame.format, ...frame.colorSpace.toJSON()};
    frame.close();
  }
  return {pixels, planes, space, duration: video.duration, size: [video.videoWidth, video.videoHeight]};
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.browser
def test_flat_colours_in_chromium_are_within_4(tmp_path, served):
    if not CHROMIUM.is_file():
        pytest.skip(f"no Chromium at {CHROMIUM}")
    from playwright.sync_api import sync_playwright

    width, height, hold = 1344, 768, 6
    settings = EncoderSettings(crf=17, x264_preset="veryfast")
    with mp4.Mp4Writer(tmp_path / "video.mp4", width, height, settings) as writer:
        for colour in COLOURS:
            writer.write_frames(np.broadcast_to(np.array(colour, np.uint8), (hold, height, width, 3)))
        writer.write_audio(made.sine(440, len(COLOURS) * hold / 24, 32000, 2))
        writer.close({"title": "colours", "comment": json.dumps({"a": "b" * 100_000})})
    (tmp_path / "page.html").write_text("<video muted preload='auto'></video>")
    # the middle of each colour
    times = [(index * hold + hold / 2 + 0.5) / 24 for index in range(len(COLOURS))]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{served}/page.html")
        found = page.evaluate(READ, [times, [width, height]])
        browser.close()
    assert found["size"] == [width, height]
    assert found["duration"] == pytest.approx(len(COLOURS) * hold / 24, abs=0.032)
    drawn = np.array(found["pixels"])[: len(MILD)]
    assert np.abs(drawn - MILD).max() <= 4, found["pixels"]
    # Drawn without a GPU, Chromium caps its BT.709 blue gain at 2.0 of 2.112 (libyuv works in signed bytes), whoever
    # wrote the file. So the purest colours are read as Chromium decoded them, and turned into RGB by the standard.
    assert found["space"] == {
        "format": "I420",
        "fullRange": False,
        "matrix": "bt709",
        "primaries": "bt709",
        "transfer": "bt709",
    }
    luma, blue, red = (np.array(found["planes"], float) - (16, 128, 128)).T / np.array([[219], [224], [224]])
    rgb = np.stack([luma + 1.5748 * red, luma - 0.1873 * blue - 0.4681 * red, luma + 1.8556 * blue], axis=1) * 255
    assert np.abs(rgb - COLOURS).max() <= 4, rgb
