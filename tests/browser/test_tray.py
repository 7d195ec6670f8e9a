"""What a video is made from, as a person handles it: references dragged, pasted, trimmed and played; frames; sizes."""

from __future__ import annotations

import io
import json
import urllib.request
from pathlib import Path
from urllib.parse import unquote

import av
import numpy as np
import pytest
from PIL import Image

from backend.media.inspection import Inspection, inspect_file
from backend.media.sandbox import Role
from backend.types import Geometry

REFERENCES = "#mode label:has-text('References')"
FRAMES = "#mode label:has-text('First')"
NAMES = "#tray .name"
PASTE = """([base64, name, selector]) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, {type: 'image/png'}));
  const at = document.querySelector(selector);
  if (at.focus) at.focus();
  at.dispatchEvent(new ClipboardEvent('paste', {clipboardData: carried, bubbles: true, cancelable: true}));
}"""
DROP = """([base64, name, selector]) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, {type: 'image/png'}));
  const at = document.querySelector(selector);
  for (const name of ['dragenter', 'dragover', 'drop'])
    at.dispatchEvent(new DragEvent(name, {dataTransfer: carried, bubbles: true, cancelable: true}));
}"""
PLAYED = """async ([clip, media]) => {
  const player = document.querySelector(media), at = [];
  const note = () => at.push(player.currentTime);
  const ended = new Promise((done) => player.addEventListener('pause', done, {once: true}));
  player.addEventListener('playing', note, {once: true});
  document.querySelector(clip + ' [data-play]').click();
  await ended;
  return [at[0], player.currentTime];
}"""


def base64(path: Path) -> str:
    import base64 as coding

    return coding.b64encode(path.read_bytes()).decode()


def add(studio, media, *names: str) -> None:
    for name in names:
        before = studio.page.locator(NAMES).count()
        studio.page.set_input_files("#add-references input[type=file]", media[name])
        studio.page.wait_for_function(f"document.querySelectorAll('{NAMES}').length === {before + 1}")


def names(studio) -> list[str]:
    return studio.page.locator(NAMES).all_inner_texts()


def await_names(studio, *wanted: str) -> None:
    studio.page.wait_for_function(
        f"(wanted) => JSON.stringify([...document.querySelectorAll('{NAMES}')].map((at) => at.innerText)) === wanted",
        arg=json.dumps(list(wanted), separators=(",", ":")),
    )


def prompt_is(studio, text: str) -> None:
    studio.page.wait_for_function("(text) => document.querySelector('#prompt textarea').value === text", arg=text)


def drag(studio, start, end, steps: int = 12) -> None:
    mouse = studio.page.mouse
    mouse.move(*start)
    mouse.down()
    mouse.move(*end, steps=steps)
    mouse.up()


def middle(box) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def tall(studio):
    """A window in which a whole tray is seen, so that the mouse reaches everything without scrolling."""
    studio.page.set_viewport_size({"width": 1440, "height": 1800})
    return studio


def test_references_are_reordered_by_mouse_and_keyboard_and_the_prompt_follows(tall, media):
    studio = tall
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, media, "portrait.png", "clip.mp4", "tone.wav")
    studio.page.fill("#prompt textarea", "<Picture 1> walks as in <Video 1> while <Audio 2> sounds like <Audio 1>")
    grip = studio.page.locator("#tray li:nth-child(3) [data-grip]")
    first = studio.page.locator("#tray li:nth-child(1)").bounding_box()
    x, y = middle(grip.bounding_box())
    drag(studio, (x, y), (x, first["y"] + 5))
    await_names(studio, "tone.wav", "portrait.png", "clip.mp4")
    prompt_is(studio, "<Picture 1> walks as in <Video 1> while <Audio 1> sounds like <Audio 2>")
    assert studio.page.locator("#tray .tags").all_inner_texts() == ["<Audio 1>", "<Picture 1>", "<Audio 2>\n<Video 1>"]
    studio.page.focus("#tray li:nth-child(1) [data-grip]")
    studio.page.keyboard.press("ArrowDown")
    await_names(studio, "portrait.png", "tone.wav", "clip.mp4")
    studio.page.keyboard.press("ArrowDown")  # the focus went along with the item
    await_names(studio, "portrait.png", "clip.mp4", "tone.wav")
    for _ in range(2):  # the second one before the answer to the first is drawn
        studio.page.keyboard.press("ArrowUp")
    await_names(studio, "tone.wav", "portrait.png", "clip.mp4")
    for _ in range(2):
        studio.page.keyboard.press("ArrowDown")
    await_names(studio, "portrait.png", "clip.mp4", "tone.wav")
    prompt_is(studio, "<Picture 1> walks as in <Video 1> while <Audio 2> sounds like <Audio 1>")
    studio.page.click("#tray li:nth-child(2) [data-action=remove]")
    await_names(studio, "portrait.png", "tone.wav")
    prompt_is(studio, "<Picture 1> walks as in <Video 1> while <Audio 1> sounds like <Audio 1 (removed)>")


@pytest.mark.thorough
def test_a_pasted_picture_and_a_drop_beside_the_zone_join_the_tray(studio, media):
    studio.open()
    studio.page.evaluate(PASTE, [base64(media["portrait.png"]), "image.png", "#prompt textarea"])
    studio.page.wait_for_selector(f"{NAMES}:text('pasted-1.png')")  # the page turned to references by itself
    studio.page.evaluate(DROP, [base64(media["portrait.png"]), "dropped.png", "#canvas-card, #ratio"])
    await_names(studio, "pasted-1.png", "dropped.png")
    studio.page.evaluate(DROP, [base64(media["fake.png"]), "fake.png", "#add-references button"])
    studio.page.wait_for_selector("#tray .problems :text('fake.png')")
    assert names(studio) == ["pasted-1.png", "dropped.png"]
    studio.page.click(FRAMES)
    studio.page.wait_for_selector("#first-frame input[type=file]", state="attached")
    for place in ("first", "last"):
        studio.page.evaluate(PASTE, [base64(media["portrait.png"]), "image.png", "#prompt textarea"])
        studio.page.wait_for_selector(f"#{place}-frame-card [data-seen={place}]")


@pytest.mark.thorough
def test_files_that_come_while_others_are_looked_at_wait_their_turn(studio, media):
    studio.open()
    picture = base64(media["portrait.png"])
    for _ in range(3):
        studio.page.evaluate(PASTE, [picture, "image.png", "#prompt textarea"])
    await_names(studio, "pasted-1.png", "pasted-2.png", "pasted-3.png")
    studio.page.set_input_files("#add-references input[type=file]", media["clip.mp4"])
    studio.page.wait_for_selector("#add-references .file-preview-holder")
    assert not studio.page.locator("#add-references button").first.is_visible()  # Gradio's own would lose what it takes
    studio.page.evaluate(DROP, [picture, "dropped.png", "#add-references"])
    await_names(studio, "pasted-1.png", "pasted-2.png", "pasted-3.png", "clip.mp4", "dropped.png")
    studio.page.click(FRAMES)
    studio.page.wait_for_selector("#first-frame input[type=file]", state="attached")
    for name in ("one.png", "two.png"):
        studio.page.evaluate(PASTE, [picture, name, "#prompt textarea"])
    studio.page.wait_for_selector("#first-frame-card .name:text('one.png')")
    studio.page.wait_for_selector("#last-frame-card .name:text('two.png')")


@pytest.mark.thorough
@pytest.mark.parametrize("scrolled", [0, 120])
def test_what_is_trimmed_or_played_stays_under_the_pointer_when_its_picture_comes(studio, media, scrolled):
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, media, "clip.mp4")
    studio.page.evaluate("(to) => scrollTo({top: to, behavior: 'instant'})", scrolled)
    track = studio.page.locator("#tray .track")
    before = track.bounding_box()
    x, y = middle(studio.page.locator("#tray [data-handle=start]").bounding_box())
    studio.page.mouse.move(x, y)
    studio.page.mouse.down()
    studio.page.mouse.move(x + 20, y, steps=3)
    assert studio.page.locator("#tray video.stage").is_visible()
    assert track.bounding_box()["y"] == pytest.approx(before["y"], abs=2)
    studio.page.mouse.up()


@pytest.mark.thorough
def test_text_that_is_pasted_with_a_picture_stays_text(studio, media):
    studio.open()
    studio.page.evaluate(
        """() => {
          const carried = new DataTransfer();
          carried.items.add(new File([new Uint8Array([1])], 'image.png', {type: 'image/png'}));
          carried.setData('text/plain', 'words');
          const event = new ClipboardEvent('paste', {clipboardData: carried, bubbles: true, cancelable: true});
          window.taken = !document.querySelector('#prompt textarea').dispatchEvent(event);
        }"""
    )
    assert studio.page.evaluate("window.taken") is False


@pytest.mark.thorough
def test_a_clip_is_trimmed_by_its_handles_and_by_number_and_played_exactly(tall, media):
    studio = tall
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, media, "tone.wav", "clip.mp4")
    tone = "#tray li:nth-child(1)"
    studio.page.wait_for_selector("#tray .budget:has-text('1 of 3 sounds, 3.0 of 15 s')")
    assert studio.page.locator(f"{tone} svg.wave polygon").count() == 1
    track = studio.page.locator(f"{tone} .track").bounding_box()
    start = middle(studio.page.locator(f"{tone} [data-handle=start]").bounding_box())
    drag(studio, start, (track["x"] + track["width"] * 0.2, start[1]))  # 0.6 of 3 s
    studio.page.wait_for_selector("#tray .budget:has-text('2.4 of 15 s')")
    assert studio.page.input_value(f"{tone} [data-field=start]") == "0.6"
    assert studio.page.get_attribute(f"{tone} [data-handle=start]", "aria-valuenow") == "0.60"
    drag(studio, middle(studio.page.locator(f"{tone} [data-handle=end]").bounding_box()), (track["x"], start[1]))
    studio.page.wait_for_selector("#tray .budget:has-text('2.0 of 15 s')")  # no shorter than a reference may be
    assert studio.page.input_value(f"{tone} [data-field=length]") == "2"
    studio.page.focus(f"{tone} [data-handle=end]")
    studio.page.keyboard.press("ArrowRight")
    studio.page.keyboard.press("ArrowRight")
    studio.page.wait_for_selector("#tray .budget:has-text('2.2 of 15 s')")
    began, ended = studio.page.evaluate(PLAYED, [tone, f"{tone} audio"])
    assert began == pytest.approx(0.6, abs=0.12) and ended == pytest.approx(2.8, abs=0.12)
    clip = "#tray li:nth-child(2)"
    studio.page.fill(f"{clip} [data-field=start]", "0,3")
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector("#tray .budget:has-text('1 of 3 videos, 2.2 of 15 s')")
    studio.page.wait_for_function(f"document.querySelector('{clip} [data-field=start]').value === '0.3'")
    strip = studio.page.get_attribute(f"{clip} img.strip", "src")
    with urllib.request.urlopen(f"{studio.url}{strip}") as answer:
        assert Image.open(io.BytesIO(answer.read())).format == "JPEG"
    began, ended = studio.page.evaluate(PLAYED, [clip, f"{clip} video"])
    assert began == pytest.approx(0.3, abs=0.12) and ended == pytest.approx(2.5, abs=0.12)
    studio.page.fill(f"{clip} [data-field=start]", "2")
    studio.page.keyboard.press("Enter")
    studio.page.wait_for_selector(f"{clip} .problems :text('must use 2 to 15 seconds')")  # refused in its own place


@pytest.mark.thorough
def test_a_sound_that_the_browser_cannot_play_says_so(studio, media, tmp_path):
    path = tmp_path / "lossless.m4a"  # ALAC: H3 reads it, Chromium does not
    with av.open(str(path), "w", format="ipod") as container:
        stream = container.add_stream("alac", rate=32_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 32_000 * 3), np.int16), format="s16p", layout="mono")
        frame.sample_rate = 32_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, {"lossless.m4a": path}, "lossless.m4a")
    studio.page.click("#tray [data-play]")
    studio.page.wait_for_selector("#tray .clip-note:has-text('cannot play this file')")
    assert studio.page.locator(".clip.playing").count() == 0


@pytest.mark.thorough
def test_typing_survives_a_file_that_arrives_and_a_row_that_goes(tall, media):
    studio = tall
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, media, "portrait.png", "tone.wav")
    studio.page.set_input_files("#add-references input[type=file]", media["clip.mp4"])
    field = "#tray li:nth-child(2) [data-field=start]"
    studio.page.focus(field)
    studio.page.keyboard.press("Control+A")
    studio.page.keyboard.type("0.2")
    await_names(studio, "portrait.png", "tone.wav", "clip.mp4")
    studio.page.keyboard.type("5")
    assert studio.page.input_value(field) == "0.25"
    # A row above leaves while the field is being typed in: the field moves up with its clip, and keeps the cursor.
    studio.page.evaluate("document.querySelector('#tray li [data-action=remove]').click()")
    await_names(studio, "tone.wav", "clip.mp4")
    studio.page.keyboard.type("4")
    assert studio.page.input_value("#tray li:nth-child(1) [data-field=start]") == "0.254"
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector("#tray .budget:has-text('2.7 of 15 s')")


@pytest.mark.thorough
def test_frames_are_shown_as_the_job_will_hand_them_over(studio, media, tmp_path):
    phone = tmp_path / "phone.jpg"  # landscape pixels that EXIF turns upright, as phones write them
    picture = Image.open(media["portrait.png"]).rotate(90, expand=True)
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(phone, exif=exif, quality=95)
    studio.open()
    studio.page.click(FRAMES)
    studio.page.set_input_files("#first-frame input[type=file]", phone)
    studio.page.wait_for_selector("#first-frame-card .on-canvas:has-text('128 × 192')")  # portrait stays portrait
    studio.page.wait_for_selector("#plan :text('128 × 192')")
    _same_as_inspect(studio, "first", phone, (128, 192), tmp_path)
    studio.page.click("#ratio label:has-text('1:1')")
    studio.page.wait_for_selector("#first-frame-card .on-canvas:has-text('128 × 128')")
    studio.page.wait_for_selector("#first-frame-card :text('stretched from 320x480 to 128x128')")
    _same_as_inspect(studio, "first", phone, (128, 128), tmp_path)
    studio.page.set_input_files("#last-frame input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#last-frame-card :text('cropped to 128x128')")
    studio.page.click("#first-frame-card [data-action=remove]")
    studio.page.wait_for_selector("#last-frame-card :text('stretched from 320x480 to 128x128')")  # now it leads


def _same_as_inspect(studio, place: str, path: Path, size: tuple[int, int], folder: Path) -> None:
    source = studio.page.get_attribute(f"#{place}-frame-card [data-seen={place}]", "src")
    with urllib.request.urlopen(f"{studio.url}{source}") as answer:
        shown = np.asarray(Image.open(io.BytesIO(answer.read())))
    assert "/seen/" in unquote(source)
    asked = Inspection(role=Role.FIRST_FRAME, width=size[0], height=size[1])
    inspect_file(path, asked, Geometry(), folder / f"seen-{size[1]}")
    assert np.array_equal(shown, np.asarray(Image.open(folder / f"seen-{size[1]}" / "image.png")))


@pytest.mark.thorough
def test_sizes_tell_tokens_and_time_and_are_chosen_by_a_click(studio):
    studio.open()
    studio.page.wait_for_selector("#plan .sizes button[aria-pressed=true]:has-text('224 × 128')")
    studio.page.wait_for_selector("#plan .costs:has-text('5 s becomes 124 frames, 5.167 s')")
    studio.page.click("#plan .sizes button:has-text('Half')")
    studio.page.wait_for_selector("#plan .plan :text('128 × 64')")
    assert studio.page.input_value("#width input") == "128"
    studio.page.wait_for_selector("#plan .sizes button[aria-pressed=true]:has-text('Half')")
    rows = studio.page.locator("#plan .sizes button").all_inner_texts()
    assert len(rows) == 3 and all("tokens" in row and "about" in row for row in rows)
    # video rows (W/32)(H/32)(5n+2) and two channels of 40 audio latents a second (h3-facts 3), besides the text
    assert int(rows[0].split()[-5].replace(",", "")) - int(rows[2].split()[-5].replace(",", "")) == (28 - 8) * 37
    studio.page.click("#ratio label:has-text('9:16')")
    studio.page.wait_for_selector("#plan .plan :text('128 × 224')")  # a shape takes the numbers' place
    studio.page.wait_for_selector("#size label.selected:has-text('Automatic')")


@pytest.mark.thorough
def test_a_draft_becomes_the_final_with_the_same_seed(studio):
    studio.open()
    studio.page.fill("#prompt textarea", "A draft of a <quiet> sea")
    studio.page.fill("#duration input", "4")
    studio.page.fill("#steps input", "4")
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector("#plan :text('3 forwards')")
    studio.page.click("#draft-first")
    studio.await_video()
    drafted = studio.page.inner_text("#player .report")
    assert "128 × 64" in drafted and "3 forwards" in drafted  # no more steps than were asked for
    draft = studio.page.get_attribute("#live [data-shown]", "data-shown")
    studio.page.click("#player [data-action=final]")
    studio.page.wait_for_function(
        "(before) => document.querySelector('#live [data-shown]')?.dataset.shown !== before", arg=draft
    )
    studio.await_video()
    studio.page.wait_for_selector("#player .report:has-text('224 × 128')")
    final = studio.page.inner_text("#player .report")
    seed = next(part for part in drafted.split(" · ") if part.startswith("seed"))
    assert seed in final and "5 forwards" in final
    assert studio.page.locator("#player [data-action=final]").count() == 0


@pytest.mark.thorough
def test_a_tray_on_a_phone_is_compact_and_nothing_sticks_out(studio, media):
    studio.page.set_viewport_size({"width": 390, "height": 844})
    studio.open()
    studio.page.click(REFERENCES)
    add(studio, media, "portrait.png", "clip.mp4")
    assert studio.page.evaluate("document.documentElement.scrollWidth") <= 390
    picture, clip = (studio.page.locator(f"#tray li:nth-child({place})").bounding_box() for place in (1, 2))
    assert picture["height"] <= 100 and clip["height"] <= 260
