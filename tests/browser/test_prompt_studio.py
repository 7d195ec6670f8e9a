"""The prompt as a person writes it: two views of one text, shots on a timeline, fixes, templates, files, the writer."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

FIELD = "#prompt textarea"
ODD = "Notes first.\r\n\n  overall_soundscape :  wind \n\nmy_own: 1\n[Shot 2] At 3s, “odd” <d>[x\n\n\n"
TWO = (
    "integrated_multimodal_description: [Shot 1] A wide shot of a harbour. [Shot 2] At 00:02.000, the camera cuts to a "
    "man (S1) who says: <d>[English] Good morning.</d>\n\noverall_soundscape: Gulls.\n\nnon_diegetic_music: N/A"
)


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Writes a prompt with markup in it, slowly; refuses an idea that asks for it."""

    asked: ClassVar[list[dict]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        idea = json.dumps(body["messages"][1]["content"])
        if "refuse" in idea:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "no such model"}}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in ("A boat <b>sails</b>", "<img src=x onerror=alert(1)> ", "home."):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"delta": {"content": word}}]}).encode() + b"\n\n")
            self.wfile.flush()
            time.sleep(0.4)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *said):
        pass


@pytest.fixture(scope="module", autouse=True)
def endpoint() -> Iterator[list[dict]]:
    """The writer's other end; named in the environment before the program starts."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("H3_WRITER_URL", f"http://127.0.0.1:{server.server_port}/v1")
        patch.setenv("H3_WRITER_MODEL", "small-writer")
        patch.setenv("H3_WRITER_KEY", "sk-secret-of-the-server")
        yield Endpoint.asked
    server.shutdown()


def text(studio) -> str:
    return studio.page.input_value(FIELD)


def view(studio, name: str) -> None:
    studio.page.click(f".ir-views label:has-text('{name}')")


def write(studio, prompt: str) -> None:
    """Put a text in and wait until the editor knows it."""
    studio.page.fill(FIELD, prompt)
    studio.page.wait_for_selector(f"#prompt-hint :text('{len(prompt):,} of')")


def wait_text(studio, words: str) -> None:
    studio.page.wait_for_function(
        "(words) => document.querySelector('#prompt textarea').value.includes(words)", arg=words
    )


def test_switching_views_keeps_every_character(studio):
    studio.open()
    studio.page.evaluate(
        "(odd) => { const area = document.querySelector('#prompt textarea'); area.value = odd;"
        " area.dispatchEvent(new Event('input', {bubbles: true})); }",
        ODD,
    )
    kept = text(studio)  # a browser's field has only line feeds
    studio.page.wait_for_selector("#prompt-hint .count")
    for name in ("Structured", "Free text", "Structured"):
        view(studio, name)
    studio.page.wait_for_selector(".ir-tab:has-text('Sound and music')")
    assert studio.page.is_hidden(FIELD)
    assert text(studio) == kept
    studio.reload()
    studio.page.wait_for_selector(".ir-tab:has-text('Sound and music')")  # the chosen view is remembered
    wait_text(studio, kept)  # and what was typed
    assert text(studio) == kept
    view(studio, "Free text")
    assert studio.page.is_visible(FIELD)


@pytest.mark.thorough
def test_typing_in_a_shot_changes_the_text_and_is_never_interrupted(studio):
    studio.open()
    write(studio, TWO)
    view(studio, "Structured")
    body = studio.page.locator("[data-key=shot-0]")
    body.click()
    studio.page.keyboard.press("End")
    studio.page.keyboard.type("  Two  boats leave.  A dog", delay=90)  # spaces at the end, over several answers
    assert studio.page.evaluate("document.activeElement.dataset.key") == "shot-0"
    studio.page.wait_for_timeout(3000)  # a tick of the page's timer, too
    assert studio.page.evaluate("document.activeElement.dataset.key") == "shot-0"
    wait_text(studio, "a harbour.  Two  boats leave.  A dog [Shot 2]")
    studio.page.keyboard.type(" barks. ", delay=40)
    assert body.input_value() == "A wide shot of a harbour.  Two  boats leave.  A dog barks. "
    assert text(studio) == TWO.replace("a harbour. ", "a harbour.  Two  boats leave.  A dog barks.  ")
    studio.page.click(".ir-block >> nth=1")
    words = studio.page.locator("[data-key=words-1-0]")
    words.fill("Ahoy!")
    wait_text(studio, "<d>[English] Ahoy!</d>")
    assert "<d>[English] Ahoy!</d>" in studio.page.input_value("[data-key=shot-1]")
    studio.page.click(".ir-tab:has-text('Sound')")
    studio.page.fill("[data-key=non_diegetic_music]", "A fiddle.")
    wait_text(studio, "non_diegetic_music: A fiddle.")


@pytest.mark.thorough
def test_a_section_that_is_missing_appears_with_its_first_letter(studio):
    studio.open()
    write(studio, "integrated_multimodal_description: [Shot 1] A boat.")
    view(studio, "Structured")
    studio.page.click(".ir-tab:has-text('Sound')")
    studio.page.locator("[data-key=overall_soundscape]").click()
    studio.page.keyboard.type("Wind.", delay=60)
    wait_text(studio, "[Shot 1] A boat.\n\noverall_soundscape: Wind.")
    assert studio.page.evaluate("document.activeElement.dataset.key") == "overall_soundscape"


@pytest.mark.thorough
def test_shots_are_added_moved_cut_and_fitted_by_keyboard(studio):
    studio.open()
    write(studio, TWO)
    view(studio, "Structured")
    studio.page.wait_for_selector(".ir-sum:has-text('add up to 5.17 s, 124 frames')")
    studio.page.focus("[data-key=cut-1]")
    for _ in range(5):  # before the first answer is there: 0.1 s each, and all of them count
        studio.page.keyboard.press("ArrowUp")
    wait_text(studio, "[Shot 2] At 00:02.500,")
    studio.page.wait_for_selector("[data-key=cut-1][aria-valuenow='2.50']")
    assert studio.page.evaluate("document.activeElement.dataset.key") == "cut-1"
    studio.page.focus("[data-key=add-0]")
    studio.page.keyboard.press("Enter")
    wait_text(studio, "[Shot 2] At 00:01.250, the camera cuts to … [Shot 3] At 00:02.500,")
    studio.page.wait_for_selector(".ir-block >> nth=2")
    studio.page.focus(".ir-block[aria-selected=true]")
    studio.page.keyboard.press("ArrowRight")
    assert studio.page.inner_text(".ir-shot:not([hidden]) .ir-shot-head b") == "Shot 3"
    studio.page.fill("[data-key=start-2]", "4")
    studio.page.keyboard.press("Tab")
    wait_text(studio, "[Shot 3] At 00:04.000,")
    studio.page.click("[data-key=earlier-2]")
    wait_text(studio, "[Shot 2] At 00:01.250, the camera cuts to a man (S1)")
    before = text(studio)
    studio.page.fill("#duration input[type=number]", "15")
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector(".ir-sum:has-text('15.08 s')")
    write_cut = before.replace("[Shot 3] At 00:02.417", "[Shot 3] At 00:14.000")
    assert write_cut != before
    view(studio, "Free text")
    write(studio, write_cut)
    studio.page.fill("#duration input[type=number]", "5")
    studio.page.keyboard.press("Tab")
    studio.page.wait_for_selector(".advice li:has-text('after the end of the video at 5.17 s')")
    view(studio, "Structured")
    studio.page.wait_for_selector(".ir-sum.wrong:has-text('8.83 s past the end')")
    studio.page.click("[data-key=fit]")
    studio.page.wait_for_selector(".ir-sum:not(.wrong)")
    assert "00:14" not in text(studio)
    studio.page.click("[data-ir-undo]")
    assert text(studio) == write_cut


@pytest.mark.thorough
def test_a_cut_is_dragged(studio):
    studio.open()
    write(studio, TWO)
    view(studio, "Structured")
    handle, track = (
        studio.page.locator("[data-key=cut-1]").bounding_box(),
        studio.page.locator(".ir-track").bounding_box(),
    )
    studio.page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + 10)
    studio.page.mouse.down()
    studio.page.mouse.move(track["x"] + track["width"] * 0.6, handle["y"] + 10, steps=5)
    studio.page.mouse.up()
    wait_text(studio, "[Shot 2] At 00:03.100,")  # 0.6 of 5.17 s, in steps of 0.05 s


@pytest.mark.thorough
def test_a_line_is_added_and_its_language_changed_for_the_speaker(studio):
    studio.open()
    write(studio, TWO)
    view(studio, "Structured")
    studio.page.click("[data-key=line-0]")
    studio.page.wait_for_selector("[data-key=words-0-0]:focus")
    studio.page.keyboard.press("Control+a")
    studio.page.keyboard.type("Look!")
    wait_text(studio, "(S1) says: <d>[English] Look!</d>")
    studio.page.click(".ir-tab:has-text('Speakers')")
    studio.page.wait_for_selector(".ir-speakers li:has-text('2 lines, shots 1, 2')")
    studio.page.fill("[data-key=speaks-S1]", "French")
    studio.page.keyboard.press("Enter")
    wait_text(studio, "<d>[French] Good morning.</d>")
    assert "[English]" not in text(studio)


@pytest.mark.thorough
def test_advice_names_the_line_goes_there_and_mends(studio, media):
    studio.open()
    studio.page.click("#mode label:has-text('References')")
    studio.page.set_input_files("#add-references input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#tray .tag")
    studio.page.fill(FIELD, 'A boat.\nThe man of <image 1> says "Ahoy".')
    studio.page.wait_for_selector(".advice li:has-text('<image 1> is written <Picture 1>')")
    studio.page.click(".advice li >> nth=0 >> .where")
    assert studio.page.evaluate("document.activeElement.selectionStart") == len("A boat.\nThe man of ")
    studio.page.click(".advice li:has-text('is written') .fix")
    wait_text(studio, "The man of <Picture 1> says")
    studio.page.click(".advice li:has-text('inside <d>') .fix")
    wait_text(studio, "says <d>[English] Ahoy</d>.")
    studio.page.wait_for_selector(".advice li", state="detached")
    studio.page.click("[data-ir-undo]")
    studio.page.click("[data-ir-undo]")
    assert text(studio) == 'A boat.\nThe man of <image 1> says "Ahoy".'


@pytest.mark.thorough
def test_keyframes_get_their_first_line_with_the_exact_seconds(studio, media):
    studio.open()
    studio.page.fill(FIELD, "A boat sails.")
    studio.page.click("#mode label:has-text('First & last frame')")
    studio.page.set_input_files("#last-frame input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector(".advice li:has-text('at 5.17 s')")
    view(studio, "Structured")
    studio.page.click("[data-key=structure]")
    wait_text(studio, "[Shot 1] A boat sails.")
    assert text(studio).startswith("How the reference pictures align") and "the 5.17-second mark" in text(studio)
    studio.page.fill("#duration input[type=number]", "8")
    studio.page.keyboard.press("Tab")
    studio.page.click(".ir-tab:has-text('First line')")
    studio.page.click("button:has-text('Correct the first line')")
    wait_text(studio, "the 8.00-second mark")
    studio.page.wait_for_selector(".ir-ok")


@pytest.mark.thorough
def test_tags_go_into_the_shot_that_was_typed_in(studio, media):
    studio.open()
    write(studio, TWO)
    studio.page.click("#mode label:has-text('References')")
    studio.page.set_input_files("#add-references input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#tray .tag")
    view(studio, "Structured")
    studio.page.locator("[data-key=shot-0]").click()
    studio.page.keyboard.press("End")
    studio.page.click("#tray .tag")
    wait_text(studio, "A wide shot of a harbour. <Picture 1> [Shot 2]")


@pytest.mark.thorough
def test_templates_and_request_files_fill_the_prompt(studio, tmp_path):
    studio.open()
    studio.page.fill(FIELD, "my own words")
    studio.page.click(".ir-menu summary")
    studio.page.click(".ir-menu button:has-text('Two shots')")
    wait_text(studio, "[Shot 2] At 00:02.580,")
    studio.page.click("[data-ir-undo]")
    assert text(studio) == "my own words"
    body = {"task": "fl2va", "prompt": "From <a> file", "conditions": [{"type": "image", "uri": "/etc/passwd"}]}
    body |= {"target": {"aspect_ratio": "9:16", "duration_seconds": 8}, "seed": 11}
    (tmp_path / "request.json").write_text(json.dumps(body))
    studio.page.set_input_files("[data-ir-file]", tmp_path / "request.json")
    wait_text(studio, "From <a> file")
    studio.page.wait_for_selector("#problems :text('The file names 1 picture, clip or sound')")
    studio.page.wait_for_selector("#last-frame")
    assert studio.page.input_value("#seed input") == "11"
    assert studio.page.input_value("#duration input[type=number]") == "8"
    (tmp_path / "nothing.json").write_text("hello")
    studio.page.set_input_files("[data-ir-file]", tmp_path / "nothing.json")
    studio.page.wait_for_selector("#problems :text('The file was not opened')")
    assert text(studio) == "From <a> file"


@pytest.mark.thorough
def test_the_writer_streams_text_that_is_taken_over_or_discarded(studio, endpoint, media):
    studio.open()
    studio.page.fill(FIELD, "a boat")
    studio.page.wait_for_timeout(1500)
    assert endpoint == []  # nothing is sent before the button
    studio.page.click("#writer > button")
    studio.page.wait_for_selector("#writer :text('small-writer')")
    assert "sk-secret" not in studio.page.content()
    studio.page.click("#writer-write")
    studio.page.wait_for_selector("#writer-preview :text('A boat <b>sails</b>')")
    studio.page.wait_for_selector("#writer-take")
    studio.page.click("#writer-discard")
    studio.page.wait_for_selector("#writer-take", state="hidden")
    assert text(studio) == "a boat"
    studio.page.fill("#writer-idea textarea", "a boat that comes home")
    studio.page.click("#writer-write")
    studio.page.click("#writer-take")
    wait_text(studio, "A boat <b>sails</b><img src=x onerror=alert(1)> home.")
    studio.page.click("[data-ir-undo]")
    assert text(studio) == "a boat"
    said = [request["messages"][1]["content"] for request in endpoint]
    assert said == ["a boat", "a boat that comes home"]
    assert "5.17 seconds" in endpoint[0]["messages"][0]["content"]
    studio.page.fill("#writer-idea textarea", "please refuse")
    studio.page.click("#writer-write")
    studio.page.wait_for_selector("#writer-preview :text('knows no model small-writer')")
    studio.page.click("#mode label:has-text('References')")
    studio.page.set_input_files("#add-references input[type=file]", media["portrait.png"])
    studio.page.wait_for_selector("#tray img")
    studio.page.check("#writer-see input")
    studio.page.fill("#writer-idea textarea", "with pictures")
    studio.page.click("#writer-write")
    studio.page.wait_for_selector("#writer-take")
    shown = endpoint[-1]["messages"][1]["content"][2]["image_url"]["url"]
    assert shown.startswith("data:image/jpeg;base64,") and "<Picture 1>" in json.dumps(endpoint[-1])


@pytest.mark.thorough
def test_on_a_phone_everything_is_in_reach(studio):
    studio.page.set_viewport_size({"width": 390, "height": 844})
    studio.open()
    write(studio, TWO)
    view(studio, "Structured")
    studio.page.wait_for_selector(".ir-timeline")
    for name in ("Shots", "Speakers", "Sound"):
        studio.page.click(f".ir-tab:has-text('{name}')")
        assert studio.page.evaluate("document.documentElement.scrollWidth") <= 390
    nameless = studio.page.evaluate(
        "() => [...document.querySelectorAll('#prompt-editor :is(input, textarea, button, [role=slider]),"
        " #prompt-tools :is(input, button)')]"
        ".filter((node) => !(node.labels?.length || node.getAttribute('aria-label') || node.innerText.trim()"
        " || node.textContent.trim())).map((node) => node.outerHTML)"
    )
    assert nameless == []
    untranslated = studio.page.evaluate(
        "() => [...document.querySelectorAll('#prompt-editor :is(textarea, input:not([type=number]))')]"
        ".filter((node) => node.getAttribute('translate') !== 'no').length"
    )
    assert untranslated == 0


@pytest.mark.thorough
def test_the_official_examples_open_where_they_are(studio):
    folder = Path(__file__).resolve().parents[3] / "shared" / "h3-official" / "requests"
    if not folder.is_dir():
        pytest.skip("the official example requests are not beside the repository")
    studio.open()
    view(studio, "Structured")
    for name, tab in (("t2va", "Shots"), ("fl2va", "First line"), ("ref2va", "What is kept")):
        studio.page.set_input_files("[data-ir-file]", folder / f"{name}.json")
        prompt = json.loads((folder / f"{name}.json").read_text())["prompt"]
        wait_text(studio, prompt[200:400])
        studio.page.wait_for_selector(f".ir-tab:has-text('{tab}')")
        assert text(studio) == prompt
