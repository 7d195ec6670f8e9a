"""The waiting line on the page: moved by buttons and by dragging, changed, doubled, saved to a file and loaded."""

from __future__ import annotations

import json
import zipfile

import pytest

ROWS = "#queue li[data-position]"


@pytest.fixture
def paused(studio):
    """A page whose queue is held, with three jobs in it; let go, empty, at the end."""
    studio.open()
    studio.page.click("#queue [data-action=pause]")
    studio.page.wait_for_selector("#queue :text('The queue is paused')")
    studio.smallest("first in line")
    for prompt in ("first in line", "second in line", "third in line"):
        studio.page.fill("#prompt textarea", prompt)
        studio.generate()
    await_order(studio, "first", "second", "third")
    yield studio
    while studio.page.locator("#queue [data-action=cancel]").count():
        before = studio.page.locator("#queue [data-action=cancel]").count()
        studio.page.locator("#queue [data-action=cancel]").first.click()
        studio.page.wait_for_function(
            "(n) => document.querySelectorAll('#queue [data-action=cancel]').length < n", arg=before
        )
    studio.page.click("#queue [data-action=resume]")
    studio.page.wait_for_selector("#queue [data-action=pause]")


def await_order(studio, *words):
    studio.page.wait_for_function(
        """(words) => {
      const seen = [...document.querySelectorAll('#queue li[data-position] .plain')].map((row) => row.innerText);
      return seen.length === words.length && seen.every((text, index) => text.startsWith(words[index]));
    }""",
        arg=list(words),
    )


def row(studio, words):
    return studio.page.locator(f"{ROWS}:has(.plain:text('{words}'))")


@pytest.mark.thorough
def test_jobs_are_moved_by_buttons_and_by_dragging(paused):
    row(paused, "third").locator("[aria-label='Move earlier']").click()
    await_order(paused, "first", "third", "second")
    row(paused, "first").drag_to(row(paused, "second"))
    await_order(paused, "third", "second", "first")
    row(paused, "first").drag_to(row(paused, "third"))
    await_order(paused, "first", "third", "second")
    row(paused, "first").locator("[aria-label='Move later']").click()
    await_order(paused, "third", "first", "second")
    paused.reload()
    await_order(paused, "third", "first", "second")


@pytest.mark.thorough
def test_a_waiting_job_is_changed_or_left_and_doubled_with_another_seed(paused):
    page = paused.page
    row(paused, "second").locator("[data-action=edit]").click()
    page.wait_for_selector("#editing :text('You are changing a waiting job')")
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'second in line'")
    page.fill("#prompt textarea", "now it is different")
    page.fill("#seed textarea, #seed input", "77")
    page.click("#editing [data-action=save-edit]")
    await_order(paused, "first", "now it is different", "third")
    page.wait_for_selector("#editing .editing-bar", state="hidden")
    row(paused, "third").locator("[data-action=edit]").click()
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'third in line'")
    page.fill("#prompt textarea", "never kept")
    page.click("#editing [data-action=stop-edit]")
    page.wait_for_selector("#editing .editing-bar", state="hidden")
    await_order(paused, "first", "now it is different", "third")
    row(paused, "now").locator("[data-action=reseed]").click()
    await_order(paused, "first", "now it is different", "third", "now it is different")
    page.locator(f"{ROWS} .plain").nth(3).click()
    page.wait_for_selector("#live .job-title:text('now it is different')")
    page.locator(f"{ROWS}").nth(3).locator("[data-action=edit]").click()
    page.wait_for_selector("#editing .editing-bar")
    seed = page.input_value("#seed textarea, #seed input")
    assert seed.isdecimal() and seed != "77"
    page.click("#editing [data-action=stop-edit]")


@pytest.mark.thorough
def test_the_queue_is_saved_with_its_media_and_loaded_again(paused, media, tmp_path):
    page = paused.page
    page.click("#mode label:has-text('First')")
    page.set_input_files("#first-frame input[type=file]", media["portrait.png"])
    page.wait_for_selector("#first-frame-card img")
    page.fill("#prompt textarea", "with a picture")
    paused.generate()
    await_order(paused, "first", "second", "third", "with a picture")
    with page.expect_download() as saved:
        page.click("#queue [data-action=save-queue]")
    assert saved.value.suggested_filename == "h3-queue.zip"
    saved.value.save_as(tmp_path / "queue.zip")
    with zipfile.ZipFile(tmp_path / "queue.zip") as archive:
        jobs = json.loads(archive.read("queue.json"))["jobs"]
        (picture,) = [name for name in archive.namelist() if name != "queue.json"]
        assert archive.read(picture) == media["portrait.png"].read_bytes()
    assert [job["title"] for job in jobs] == ["first in line", "second in line", "third in line", "with a picture"]
    page.wait_for_selector("#queue-told :text('4 waiting jobs were saved')")
    row(paused, "first").locator("[data-action=cancel]").click()
    row(paused, "with a picture").locator("[data-action=cancel]").click()
    await_order(paused, "second", "third")
    page.set_input_files(".queue-card input[type=file]", tmp_path / "queue.zip")
    await_order(paused, "second", "third", "first", "second", "third", "with a picture")
    page.wait_for_selector("#queue-told :text('4 jobs were added to the queue')")
    (tmp_path / "wrong.zip").write_bytes(b"nothing like it")
    page.set_input_files(".queue-card input[type=file]", tmp_path / "wrong.zip")
    page.wait_for_selector("#queue-told :text('is no queue file')")


@pytest.mark.thorough
def test_ticks_and_events_leave_the_field_being_typed_in_alone(paused):
    page = paused.page
    page.click("#prompt textarea")
    page.keyboard.press("Control+A")
    page.keyboard.type("typed while ")
    page.evaluate("window.held = document.activeElement")
    page.evaluate("document.querySelector('#queue [data-action=reseed]').click()")  # no focus of its own
    page.wait_for_function("document.querySelectorAll('#queue li[data-position]').length === 4")
    page.wait_for_timeout(3000)  # one tick of the clock at least
    page.keyboard.type("things change")
    assert page.evaluate("document.activeElement === window.held")
    assert page.input_value("#prompt textarea") == "typed while things change"
    button = row(paused, "second").locator("[aria-label='Move later']")
    button.focus()
    page.keyboard.press("Enter")
    await_order(paused, "first", "third", "second", "first")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Move later"
