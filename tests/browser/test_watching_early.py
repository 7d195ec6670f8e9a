"""What can be seen of a job before its end: pictures of the prediction, then the first seconds while it decodes."""

from __future__ import annotations

import json
import urllib.request
from urllib.parse import urljoin

import pytest

# What the stage shows, noted whenever it changes: pictures by their address, and how far the growing video has played
# while the job was still running.
RECORD = """() => {
  const seen = window.seen = {pictures: [], captions: [], played: 0, sound: 0, swapped: null, sizes: []};
  let last = 0;
  setInterval(() => {
    const image = document.querySelector('#stage img');
    if (image && image.complete && !seen.pictures.includes(image.src)) {
      seen.pictures.push(image.src);
      seen.sizes.push([image.naturalWidth, image.naturalHeight]);
    }
    const told = document.querySelector('#stage .caption');
    if (told && told.textContent && !seen.captions.includes(told.textContent)) seen.captions.push(told.textContent);
    const video = document.querySelector('#stage video'), live = document.querySelector('#live [data-shown]');
    if (video) last = video.currentTime;
    if (video && live && live.dataset.state === 'running') {
      seen.played = Math.max(seen.played, video.currentTime);
      seen.sound = Math.max(seen.sound, video.webkitAudioDecodedByteCount || 0);
    }
    const finished = document.querySelector('#result-video');
    if (finished && !video && seen.swapped === null && seen.played)
      seen.swapped = {from: last, at: finished.currentTime, paused: finished.paused};
  }, 20);
}"""


def long_clip(studio, prompt, steps=8, duration=10):
    """A request that samples and decodes for long enough to be watched."""
    studio.page.fill("#prompt textarea", prompt)
    studio.page.click("#size label:has-text('Custom')")
    for name, value in (("width", 224), ("height", 128), ("duration", duration), ("steps", steps)):
        studio.page.fill(f"#{name} input[type=number]", str(value))
        studio.page.keyboard.press("Tab")
    for told in (f"{steps - 1} forwards", "224 × 128"):
        studio.page.wait_for_selector(f"#plan :text('{told}')")


@pytest.mark.thorough
def test_the_picture_changes_and_the_first_seconds_play_before_the_job_has_ended(studio, server, tmp_path):
    studio.open()
    long_clip(studio, "A lighthouse at dusk")
    studio.page.evaluate(RECORD)
    studio.generate()
    studio.await_video(180)
    studio.page.wait_for_selector("#stage .screen > *", state="detached")
    studio.page.wait_for_function("window.seen.swapped !== null")
    seen = studio.page.evaluate("window.seen")
    print(seen)
    assert len(set(seen["pictures"])) >= 2  # it changed while steps went by
    assert set(map(tuple, seen["sizes"])) == {(56, 32)}  # four times the latents of 224 x 128
    assert any(told.startswith("Preview after step ") and told.endswith(" of 7") for told in seen["captions"])
    assert seen["captions"][-1] == "Playing what is decoded so far"
    assert seen["played"] > 0 and seen["sound"] > 0  # with sound, while the job ran
    assert seen["swapped"]["at"] >= seen["swapped"]["from"] - 0.3 and not seen["swapped"]["paused"]
    for address in (seen["pictures"][-1], seen["pictures"][-1].replace("preview.png", "stream.mp4")):
        with urllib.request.urlopen(urljoin(server.url, address)) as answer:  # both are gone, which is no error
            assert answer.status == 204
    details = studio.page.get_attribute("#player a:has-text('Details')", "href")
    sidecar = json.load(urllib.request.urlopen(urljoin(studio.url, details)))
    assert 0 < sidecar["first_second_s"] < sidecar["seconds"]["decode"]
    assert {path.name for path in server.data.glob("jobs/*/output/*")} == {"video.mp4", "video.json"}


@pytest.mark.thorough
def test_a_reloaded_page_shows_the_last_picture_and_a_cancelled_job_shows_none(studio, server):
    studio.open()
    long_clip(studio, "A long one", steps=100, duration=4)
    studio.generate()
    studio.page.wait_for_selector("#stage img", timeout=120_000)
    studio.reload()
    studio.page.wait_for_selector("#stage img")
    assert studio.page.get_attribute("#stage img", "alt").startswith("Preview after step ")
    studio.page.wait_for_selector("#stage .caption:text('of 99')")
    studio.page.click("#live [data-action=cancel]")
    studio.page.wait_for_selector("#live .pill:text('cancelled')")
    studio.page.wait_for_selector("#stage .screen > *", state="detached")
    assert studio.page.locator("#stage").is_hidden()
    shown = studio.page.get_attribute("#live [data-shown]", "data-shown")
    assert not (server.data / "jobs" / shown / "output").exists()
