"""The page as a person uses it, on the real program with the tiny model: tasks, progress, cancel, reload, mistakes."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAY = """async () => {
  const video = document.querySelector('#result-video');
  if (video.readyState < 1) await new Promise((done) => video.addEventListener('loadedmetadata', done, {once: true}));
  await video.play();
  const until = Date.now() + 8000;
  while ((video.currentTime < 0.4 || !video.webkitAudioDecodedByteCount) && Date.now() < until)
    await new Promise((done) => setTimeout(done, 50));
  const seen = {width: video.videoWidth, height: video.videoHeight, duration: video.duration, at: video.currentTime,
    sound: video.webkitAudioDecodedByteCount, tracks: video.captureStream().getAudioTracks().length};
  video.pause();
  return seen;
}"""


RECORD = """() => {
  window.seen = {bars: [], texts: []};
  new MutationObserver(() => {
    const live = document.querySelector('#live'), bar = live.querySelector('[role=progressbar]');
    if (bar) window.seen.bars.push(bar.getAttribute('aria-valuenow'));
    window.seen.texts.push(live.innerText);
  }).observe(document.querySelector('#live'), {subtree: true, childList: true, attributes: true, characterData: true});
}"""


def check_playing(studio, width=224, height=128):
    seen = studio.page.evaluate(PLAY)
    assert (seen["width"], seen["height"]) == (width, height)
    assert seen["duration"] == pytest.approx(107 / 24, abs=0.1)
    assert seen["at"] > 0.2
    assert seen["sound"] > 0 and seen["tracks"] == 1


@pytest.mark.thorough
def test_an_idle_page_is_light_and_free_of_torch(studio, server):
    studio.open()
    studio.page.wait_for_selector("#live :text('Your video appears here')")
    studio.page.wait_for_selector("#live :text('noise')")  # the tiny model says plainly what it is
    process = psutil.Process(server.process.pid)
    assert process.memory_info().rss < 400 * 2**20
    assert not [mapped.path for mapped in process.memory_maps() if "libtorch" in mapped.path]
    assert json.load(urllib.request.urlopen(server.url + "/health"))["status"] == "healthy"


def test_text_becomes_a_playing_video_while_progress_moves(studio, server):
    studio.open()
    studio.smallest("A lighthouse at dusk", steps=12)
    studio.page.evaluate(RECORD)
    studio.generate()
    studio.await_video()
    seen = studio.page.evaluate("window.seen")
    assert not [text for text in seen["texts"] if "failed" in text]
    percent = [int(value) for value in seen["bars"]]
    assert percent == sorted(percent) and len(set(percent)) >= 3  # the bar moved, and never back
    step = r"step \d+ of 11 · \d+\.\d\d s a step · about .* left, decode and MP4 included"
    assert [text for text in seen["texts"] if re.search(step, text)]
    check_playing(studio)
    studio.page.wait_for_selector("#player :text('107 frames, 4.46 s')")
    assert re.search(r"seed \d+", studio.page.inner_text("#player"))
    with studio.page.expect_download() as saved:
        studio.page.click("#player a:has-text('Download')")
    assert saved.value.path().read_bytes()[4:8] == b"ftyp"
    maps = [mapped.path for mapped in psutil.Process(server.process.pid).memory_maps()]
    assert not [path for path in maps if "libtorch" in path]


def test_first_and_last_frame(studio, media):
    studio.open()
    studio.page.click("#mode label:has-text('First')")
    studio.page.set_input_files("#first-frame input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#first-frame-card :text('320 × 480')")
    studio.page.wait_for_selector("#plan :text('128 × 192')")  # the canvas follows the picture
    studio.page.set_input_files("#last-frame input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#last-frame-card img")
    studio.smallest("The wall changes its colour")
    studio.generate()
    studio.await_video()
    check_playing(studio)


def test_references_with_tags_order_and_trim(studio, media):
    studio.open()
    studio.page.click("#mode label:has-text('References')")
    for name in ("clip.mp4", "tone.wav", "portrait.png"):
        studio.page.set_input_files("#add-references input[type=file]", media[name])
        studio.page.wait_for_selector(f"#tray .name:text('{name}')")
    tags = "#tray li .tags"
    assert studio.page.locator(tags).all_inner_texts() == ["<Audio 1>\n<Video 1>", "<Audio 2>", "<Picture 1>"]
    studio.page.click("#tray li:nth-child(2) [data-action=up]")
    studio.page.wait_for_selector("#tray li:first-child .name:text('tone.wav')")
    assert studio.page.locator(tags).all_inner_texts() == ["<Audio 1>", "<Audio 2>\n<Video 1>", "<Picture 1>"]
    studio.page.fill("#tray li:first-child [data-field=length]", "2,5")
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector("#tray .budget:has-text('2.5 of 15 s')")
    studio.smallest("Somebody sings as in ")
    studio.page.click("#tray .tag:text('<Picture 1>')")
    assert "<Picture 1>" in studio.page.input_value("#prompt textarea")
    studio.page.wait_for_selector("#prompt-hint .advice :text('<Audio 2> or <Video 1> is not mentioned')")
    studio.page.click("#tray .tag:text('<Video 1>')")
    studio.page.wait_for_selector("#prompt-hint .advice li:nth-child(2)", state="detached")
    studio.generate()
    studio.await_video()
    check_playing(studio)


def test_cancel_stops_this_job_and_the_next_one_runs(studio):
    studio.open()
    studio.smallest("A long one", steps=100)
    studio.generate()
    studio.page.wait_for_selector("#live .facts:text-matches('step [1-9][0-9]* of 99')", timeout=60_000)
    studio.page.click("#live [data-action=cancel]")
    studio.page.wait_for_selector("#live :text-matches('Stopped after step \\\\d+ of 99')")
    assert studio.page.locator("#result-video").count() == 0
    studio.smallest("A short one")
    studio.generate()
    studio.await_video()


def test_a_reload_finds_the_running_job_and_then_its_result(studio, chromium):
    studio.open()
    studio.smallest("Found <again>", steps=50)
    studio.generate()
    studio.page.wait_for_selector("#live .facts:text-matches('step [1-9][0-9]* of 49')", timeout=60_000)
    studio.page.wait_for_url(re.compile(r"\?job="))
    address = studio.page.url
    studio.reload()
    studio.page.wait_for_selector("#live .pill:text('running')")
    assert studio.page.url == address
    assert studio.page.input_value("#prompt textarea") == "Found <again>"
    assert studio.page.input_value("#steps input[type=number]") == "50"
    studio.page.fill("#steps input[type=number]", "7")
    studio.page.click("#size label:has-text('Automatic')")
    studio.page.focus("#prompt textarea")
    studio.page.keyboard.press("End")
    studio.page.keyboard.type(" and not sent", delay=15)
    field = "document.activeElement.selectionStart"
    assert studio.page.evaluate(field) == len("Found <again> and not sent")  # nothing draws the field anew
    studio.reload()
    studio.page.wait_for_function("document.querySelector('#prompt textarea').value === 'Found <again> and not sent'")
    assert studio.page.input_value("#steps input[type=number]") == "7"
    assert studio.page.locator("#size label.selected").inner_text() == "Automatic"
    studio.page.wait_for_selector("#live .pill:text-matches('^(running|succeeded)$')")  # a quick machine is done by now
    other = chromium.new_page()  # somebody else with the link
    other.goto(address)
    other.wait_for_selector("#live :text('This job is not here')")
    other.close()
    studio.await_video()
    studio.reload()
    studio.await_video()
    check_playing(studio)


@pytest.mark.thorough
def test_jobs_wait_their_turn_and_a_waiting_one_can_be_taken_out(studio):
    studio.open()
    studio.smallest("The one that runs", steps=60)
    studio.generate()
    studio.page.wait_for_selector("#live .pill:text('running')", timeout=60_000)
    studio.page.fill("#prompt textarea", "The one that waits")
    studio.generate()
    studio.page.wait_for_selector("#live :text('Waiting, number 1')")
    rows = studio.page.locator("#queue li")
    assert rows.count() == 2 and "The one that waits" in rows.nth(1).inner_text()
    rows.nth(1).locator("[data-action=cancel]").click()
    studio.page.wait_for_selector("#live :text('Taken out of the queue')")
    studio.page.locator("#queue [data-action=open]").first.click()
    studio.page.wait_for_selector("#live .pill:text('running')")
    studio.page.click("#live [data-action=cancel]")
    studio.page.wait_for_selector("#live :text-matches('Stopped')")


def test_mistakes_are_told_in_words_and_nothing_starts(studio, media):
    studio.open()
    studio.smallest("x")
    studio.page.fill("#prompt textarea", "")
    studio.page.fill("#width input", "100")
    studio.page.fill("#seed textarea, #seed input", "abc")
    studio.page.click("#generate")
    studio.page.wait_for_selector("#problems .problems")
    told = studio.page.inner_text("#problems")
    for words in ("prompt", "must not be empty", "width", "nearest is 96", "seed", "must be a whole number"):
        assert words in told
    assert not studio.shown()
    studio.page.click("#mode label:has-text('First')")
    studio.page.set_input_files("#first-frame input[type=file]", media["fake.png"])
    studio.page.wait_for_selector("#first-frame-card :text('cannot be used')")
    assert "fake.png" in studio.page.inner_text("#first-frame-card")
    studio.page.click("#mode label:has-text('References')")
    studio.page.set_input_files("#add-references input[type=file]", media["tone.wav"])
    studio.page.wait_for_selector("#tray .name:text('tone.wav')")
    studio.page.fill("#prompt textarea", "sound alone")
    studio.page.click("#generate")
    studio.page.wait_for_selector("#problems :text('audio needs at least one image or video')")
    assert studio.page.locator(".toast-wrap :text('Error')").count() == 0


@pytest.mark.thorough
def test_markup_in_a_prompt_is_text_everywhere(studio):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>{{x}} ${y}"
    studio.open()
    studio.smallest(evil)
    studio.generate()
    studio.page.wait_for_selector("#live .job-title:has-text('<img src=x')")
    studio.await_video()
    studio.page.click("role=tab[name='Gallery']")
    studio.page.wait_for_selector("#gallery b:has-text('<img src=x')")
    assert studio.page.locator("#gallery img[src=x], #live img[src=x], #queue img[src=x]").count() == 0


@pytest.mark.thorough
def test_gallery_opens_reuses_and_forgets(studio):
    studio.open()
    studio.smallest("Kept for later")
    studio.page.fill("#seed textarea, #seed input", "424242")
    studio.generate()
    studio.await_video()
    studio.page.fill("#prompt textarea", "something else")
    studio.page.click("role=tab[name='Gallery']")
    studio.page.wait_for_selector("#gallery article")
    assert studio.page.locator("#gallery article").count() == 1  # others' jobs are theirs
    studio.page.click("#gallery [data-action=settings]")
    studio.page.wait_for_function("document.querySelector('#prompt textarea').value === 'Kept for later'")
    assert studio.page.locator("#seed textarea, #seed input").input_value() == "424242"
    studio.page.click("role=tab[name='Gallery']")
    studio.page.evaluate("window.confirm = () => true")
    studio.page.click("#gallery [data-action=delete]")
    studio.page.wait_for_selector("#gallery :text('No videos yet')")
    studio.page.click("role=tab[name='Studio']")
    studio.page.wait_for_selector("#live :text('Your video appears here')")


def test_models_and_logs_tell_what_there_is(studio):
    studio.open()
    studio.page.click("role=tab[name='Models']")
    studio.page.wait_for_selector("#models :text('noise')")
    studio.page.wait_for_selector("#models :text('MiniMaxAI/MiniMax-H3')")
    studio.page.click("role=tab[name='System']")
    studio.page.wait_for_selector("#log-tail textarea")


def test_a_phone_has_one_column_and_nothing_sticks_out(studio):
    studio.page.set_viewport_size({"width": 390, "height": 844})
    studio.open()
    assert studio.page.evaluate("document.documentElement.scrollWidth") <= 390
    compose, watch = (studio.page.locator(name).bounding_box() for name in (".compose", ".watch"))
    assert watch["y"] >= compose["y"] + compose["height"] - 1


UNNAMED = """() => [...document.querySelectorAll('input, textarea, select, button, a[href], [role=button]')]
  .filter((part) => part.checkVisibility({opacityProperty: false}) && !part.closest('[aria-hidden=true]'))
  .filter((part) => !(part.ariaLabel || part.title || part.textContent.trim() || part.getAttribute('aria-labelledby')
    || (part.labels && part.labels.length) || part.closest('label')))
  .map((part) => part.outerHTML.slice(0, 160))"""


@pytest.mark.thorough
def test_everything_that_can_be_used_has_a_name_and_works_by_keyboard(studio, media):
    studio.open()
    studio.page.click("#mode label:has-text('References')")
    studio.page.set_input_files("#add-references input[type=file]", media["clip.mp4"])
    studio.page.wait_for_selector("#tray .name")
    studio.page.click("#hardware-card > button")
    for section in ("Studio", "Gallery", "Models", "System"):
        studio.page.click(f"role=tab[name='{section}']")
        studio.page.wait_for_timeout(300)
        assert studio.page.evaluate(UNNAMED) == []
    studio.page.click("role=tab[name='Studio']")
    studio.page.focus("#prompt textarea")
    studio.page.keyboard.press("Control+Enter")  # submits the empty prompt, which is told in words
    studio.page.wait_for_selector("#problems :text('must not be empty')")


@pytest.mark.thorough
def test_the_theme_can_be_chosen_and_is_kept(studio):
    studio.open()
    dark = "document.body.classList.contains('dark')"
    assert not studio.page.evaluate(dark)
    studio.page.click("[data-theme-toggle]")
    assert studio.page.evaluate(dark)
    studio.reload()
    studio.page.wait_for_function(dark)


def test_files_of_the_program_stay_private(studio, server):
    studio.open()
    for path in (
        "gradio_api/file=/etc/hostname",
        f"gradio_api/file={ROOT / 'app.py'}",
        "files/x/video.mp4",
        "studio/../app.py",
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{server.url}/{path}")
        assert error.value.code in (403, 404)
    named = json.load(urllib.request.urlopen(server.url + "/gradio_api/info"))["named_endpoints"]
    assert set(named) == {"/generate", "/status", "/result", "/cancel"}  # and no handler of the page


@pytest.mark.thorough
def test_numbers_out_of_range_are_said_and_never_changed_in_silence(studio):
    studio.open()
    studio.smallest("A long one")
    tried = (("duration", "16"), ("duration", "3"), ("steps", "1"), ("steps", "1000000"))
    for name, value in tried:
        said = "4 to 15 seconds" if name == "duration" else "must be 2 to 200"
        studio.page.fill(f"#{name} input[type=number]", value)
        studio.page.keyboard.press("Tab")
        studio.page.click("#generate")
        studio.page.wait_for_selector(f"#problems :text('{said}')")
        assert studio.page.input_value(f"#{name} input[type=number]") == value
        studio.smallest("A long one")
