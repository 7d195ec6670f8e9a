"""Models, adapters, hardware and system in the browser, with a download that is stopped and gone on with."""

from __future__ import annotations

import contextlib

import pytest
from fake_hub import FakeHub, etag_of, files_of, lora

from backend.checkpoints import manifest
from backend.checkpoints.catalog import RELEASED
from backend.checkpoints.parts import RepoFile
from backend.settings import Settings

# How many different signs, at which side, the closed accordions of Gradio and our own lists have.
SIGNS = """() => {
const drawn = (style, text) => (style.maskImage !== 'none' ? style.maskImage : text);
return new Set([
  ...[...document.querySelectorAll('.compose .label-wrap:not(.open)')].map((at) => {
    const sign = at.lastElementChild, style = getComputedStyle(sign);
    return [drawn(style, sign.textContent), style.transform, getComputedStyle(at).justifyContent].join();
  }),
  ...[...document.querySelectorAll('#hardware details:not([open]) > summary')].map((at) => {
    const style = getComputedStyle(at, '::after');
    const { listStyleType, justifyContent } = getComputedStyle(at);
    const sign = drawn(style, style.content.slice(1, 2)) + (listStyleType === 'none' ? '' : 'marker');
    return [sign, style.transform, justifyContent].join();
  }),
]).size;
}"""
MODEL = f"#models li[data-key='{RELEASED}']"


@pytest.fixture(scope="module")
def hub(tiny_checkpoint):
    """The hub of this file's server."""
    hub = FakeHub(files_of(tiny_checkpoint), piece_s=0.25)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def server(launch, hub, tmp_path_factory, tiny_checkpoint):
    """The program, whose downloads come from the stand-in, with two adapters installed, one of few steps."""
    home = tmp_path_factory.mktemp("models")
    # The stand-in's sizes, as an earlier question would have left them: the released ones need not fit on this disk.
    files = tuple(RepoFile(path=name, bytes=len(body), etag=etag_of(body)) for name, body in hub.files.items())
    manifest.write(Settings(data_dir=home / "data"), manifest.Manifest(repo=RELEASED, tasks=(), files=files))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HUB_CACHE", str(home / "hub"))
        patch.setenv("HF_HOME", str(home / "hf"))
        patch.delenv("HF_TOKEN", raising=False)
        lora(home / "data" / "adapters" / "turbo.safetensors", title="Turbo", num_inference_steps="9", flow_shift="6")
        lora(home / "data" / "adapters" / "few.safetensors", title="Four", num_inference_steps="4")
        yield stack.enter_context(launch(home, tiny_checkpoint))


def open_tab(studio, name):
    studio.page.click(f"role=tab[name='{name}']")


@pytest.mark.thorough
def test_a_download_goes_on_over_a_reload_is_stopped_and_completed(studio, hub):
    studio.open()
    open_tab(studio, "Models")
    page = studio.page
    page.wait_for_selector(f"{MODEL} .pill:text('not downloaded')")
    assert page.locator(f"{MODEL} [data-action=download]:enabled").count() == 0  # the licence comes first
    page.click(f"{MODEL} [data-action=accept-licence]")
    page.click(f"{MODEL} .bundles li[data-key=text] [data-action=download]:enabled")
    page.wait_for_selector(".errand [role=progressbar]")
    page.wait_for_function("() => Number(document.querySelector('.errand .bar').ariaValueNow) >= 10")
    page.wait_for_selector(".errand-facts :text('/s')")
    studio.reload()
    open_tab(studio, "Models")
    page.wait_for_selector(".errand")
    assert page.locator(f"{MODEL} [data-action=download]:enabled").count() == 0  # one at a time
    page.click("#model-activity [data-action=stop]")
    page.wait_for_selector("#model-activity :text('Stopped')")
    page.wait_for_selector(f"{MODEL} .pill:text('partly here')")
    hub.piece_s = 0
    hub.asked.clear()
    page.click("#model-activity [data-action=download]")
    page.wait_for_selector("#model-activity .good :text('Downloaded and checked')", timeout=60_000)
    page.wait_for_selector(f"{MODEL} .bundles li[data-key=text] .pill.ok")
    assert any(asked for _, _, asked in hub.asked)  # from within a file
    page.click(f"{MODEL} [data-action=verify]")
    page.wait_for_selector("#model-activity .good :text('Every file is whole')")


@pytest.mark.thorough
def test_a_gated_repository_is_said_in_words(studio, hub):
    hub.token, hub.gated = "right", True
    studio.open()
    open_tab(studio, "Models")
    studio.page.click(f"{MODEL} .bundles li[data-key=references] [data-action=download]")
    told = studio.page.wait_for_selector("#model-activity [role=alert]")
    assert "is gated" in told.inner_text() and "hf auth login" in told.inner_text()
    hub.token = None


@pytest.mark.thorough
def test_a_model_is_removed_after_a_question(studio, hub):
    studio.open()
    open_tab(studio, "Models")
    studio.page.click(f"{MODEL} [data-action=remove]")  # the fixture answers with no
    assert any("Delete MiniMax-H3 from this disk?" in said for said in studio.complaints)
    studio.complaints.clear()
    assert studio.page.locator(f"{MODEL} .bundles li[data-key=text] .pill.ok").count() == 1
    studio.page.evaluate("window.confirm = () => true")
    studio.page.click(f"{MODEL} [data-action=remove]")
    studio.page.wait_for_selector("#models-told :text('was removed')")
    studio.page.wait_for_selector(f"{MODEL} .pill:text('not downloaded')")


@pytest.mark.thorough
def test_an_adapter_is_chosen_by_name_and_fills_in_its_steps(studio):
    studio.open()
    page = studio.page
    page.wait_for_selector("#adapter-choice")
    page.click("#adapter input")
    page.click("role=option[name='Turbo']")
    page.wait_for_selector("#adapter-about :text('Made for 9 steps, video shift 6')")
    page.wait_for_function("() => document.querySelector('#steps input').value === '9'")
    page.wait_for_selector("#plan :text('8 forwards')")
    page.wait_for_selector("#plan :text('flow_shift is 6, as it was made for')")


def test_turbo_puts_the_adapter_on_and_another_quality_takes_it_off(studio):
    studio.open()
    page, worn = studio.page, "() => document.querySelector('#adapter input').value"
    page.wait_for_selector("#adapter-choice")
    page.click("#quality label:has-text('Turbo')")
    page.wait_for_selector("#quality-about :text('Turbo uses the adapter Four.')")
    page.wait_for_function(f"{worn} === 'Four' && document.querySelector('#steps input').value === '4'")
    page.wait_for_selector("#plan :text('3 forwards')")
    studio.reload()
    page.wait_for_selector("#quality label.selected:has-text('Turbo')")
    page.wait_for_function(f"{worn} === 'Four'")
    page.click("#quality label:has-text('Standard')")
    page.wait_for_function(f"{worn} === 'None'")


@pytest.mark.thorough
def test_memory_follows_the_canvas(studio):
    studio.open()
    page = studio.page
    page.click("#hardware-card > button")
    page.wait_for_selector("#hardware .chosen")
    page.wait_for_selector("#hardware :text('No GPU is used here')")
    first = page.wait_for_selector("#memory svg[role=img]").get_attribute("aria-label")
    assert "rank 0 needs" in first
    page.click("#size label:has-text('Custom')")
    for name, value in (("width", 224), ("height", 128), ("duration", 15)):
        page.fill(f"#{name} input[type=number]", str(value))
        page.keyboard.press("Tab")
    page.wait_for_selector("#memory :text('362 frames')")
    assert page.evaluate(SIGNS) == 1  # what opens says so in one way, whether Gradio or we draw it
    page.click("#hardware summary:has-text('Other setups')")
    page.wait_for_selector("#hardware .presets :text('Would run with')")


@pytest.mark.thorough
def test_the_system_tab_shows_the_engine_live_and_makes_a_report(studio):
    studio.open()
    studio.smallest("a red circle")
    studio.generate()
    open_tab(studio, "System")
    page = studio.page
    page.wait_for_selector("#system .ranks .pill.live", timeout=60_000)
    page.wait_for_selector("#system .ranks .pill.ok:text('ready')", timeout=90_000)
    page.wait_for_selector("#system [role=meter][aria-label='RAM in use']")
    page.click("#make-report")
    page.wait_for_function("() => /Versions/.test(document.querySelector('#report textarea')?.value)")
