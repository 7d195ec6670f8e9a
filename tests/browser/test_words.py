"""The page in Chinese: every state is translated, nothing a person wrote is, and turning a redraw costs little."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import page_words

RUNNING = "#live [data-state=running]"
USER_TEXT = "Queue"  # a title that is also a heading of the page


@pytest.fixture
def chinese(studio):
    """The page, opened in Chinese by its address."""
    studio.open("?lang=zh")
    studio.page.wait_for_selector("#generate:has-text('生成')")
    return studio


def fill(page, **fields):
    for name, value in fields.items():
        page.fill(f"#{name} input[type=number]", str(value))
        page.keyboard.press("Tab")


def smallest(page, prompt, steps):
    """`Studio.smallest` without its English words."""
    page.fill("#prompt textarea", prompt)
    page.click("#size label:nth-of-type(2)")
    fill(page, width=224, height=128, duration=4, steps=steps)
    page.wait_for_selector("#plan :text('224 × 128')")


def all_chinese(page, where):
    page.wait_for_timeout(300)
    left = page_words.english(page)
    assert left == [], f"{where}: {left}"


@pytest.mark.thorough
def test_every_section_and_part_speaks_chinese(chinese):
    page = chinese.page
    for section in page_words.sections(page):
        page_words.go(page, section)
        page.wait_for_timeout(800)
        all_chinese(page, section)
    page_words.go(page, "studio")
    for part in page.locator("#sections .compose .label-wrap:visible").all():
        part.click()
        all_chinese(page, "accordions")
    page.click(".ir-menu summary")
    all_chinese(page, "templates")
    page.keyboard.press("Escape")
    page.click("[data-tour]")
    page.wait_for_selector(".tour h2:text('写下想看到和听到的')")
    for _ in range(5):
        all_chinese(page, "tour")
        page.keyboard.press("Enter")
    assert page.locator(".tour").count() == 0


@pytest.mark.thorough
def test_media_advice_and_problems_speak_chinese(chinese, media):
    page = chinese.page
    page.click("#mode label:nth-of-type(2)")
    all_chinese(page, "frames")
    page.click("#generate")
    page.wait_for_selector("#problems :text('没有添加帧')")
    all_chinese(page, "no frame")
    page.set_input_files("#first-frame input[type=file]", media["portrait.png"])
    page.wait_for_selector("#first-frame-card img")
    page.set_input_files("#last-frame input[type=file]", media["fake.png"])
    page.wait_for_selector("#last-frame-card .problems")
    all_chinese(page, "frame refused")
    page.click("#mode label:nth-of-type(3)")
    for name in ("clip.mp4", "tone.wav", "portrait.png"):
        page.set_input_files("#add-references input[type=file]", media[name])
        page.wait_for_selector(f"#tray .name:text('{name}')")
    page.fill("#prompt textarea", "something with <Picture 4>")
    page.wait_for_selector("#prompt-hint .advice :text('<Picture 4> 没有对应的素材')")
    all_chinese(page, "tray and advice")
    page.click(".ir-views label:nth-of-type(2)")
    all_chinese(page, "free text, structured view")
    page.click("[data-key=structure]")
    page.wait_for_selector(".ir-tab")
    for part in page.locator(".ir-tab").all():
        part.click()
        all_chinese(page, f"structured {part.inner_text()}")
    page.click(".ir-views label:nth-of-type(1)")
    page.click("#mode label:nth-of-type(1)")
    page.fill("#prompt textarea", "")
    page.click("#size label:nth-of-type(2)")
    fill(page, width=100, height=5000, duration=30, steps=1)
    page.fill("#seed textarea, #seed input", "abc")
    page.click("#generate")
    page.wait_for_selector("#problems :text('必须是')")
    told = page.inner_text("#problems")
    for words in ("提示词 不能为空", "宽度", "最接近的是 96", "种子", "必须是整数"):
        assert words in re.sub(r"\s+", " ", told), told
    all_chinese(page, "problems")


@pytest.mark.thorough
def test_a_job_speaks_chinese_from_queue_to_gallery_and_its_title_stays(chinese):
    page = chinese.page
    smallest(page, USER_TEXT, steps=40)
    page.click("#generate")
    page.wait_for_selector(RUNNING, timeout=60_000)
    all_chinese(page, "running")
    page.fill("#prompt textarea", "等候室")
    page.click("#generate")
    page.wait_for_selector("#live [data-state=queued]")
    all_chinese(page, "queued")
    assert page.locator("#queue [data-action=open]").all_inner_texts() == [USER_TEXT, "等候室"]
    page.click("#queue [data-action=edit]")
    page.wait_for_selector("#editing :text('正在修改')")
    all_chinese(page, "editing")
    page.click("[data-action=stop-edit]")
    page.locator("#queue [data-action=open]").nth(1).click()
    page.click("#live [data-action=cancel]")
    page.wait_for_selector("#live [data-state=cancelled]")
    all_chinese(page, "cancelled")
    page.locator("#queue [data-action=open]").first.click()
    page.wait_for_selector(RUNNING)
    for _ in range(4):
        all_chinese(page, "running")
    page.wait_for_selector("#live [data-state=succeeded]", timeout=90_000)
    page.wait_for_selector("#result-video")
    assert page.inner_text("#live .job-title") == USER_TEXT
    assert page.get_attribute("#result-video", "aria-label") == USER_TEXT
    all_chinese(page, "done")
    page_words.go(page, "gallery")
    page.wait_for_selector("#gallery article")
    all_chinese(page, "gallery")
    assert USER_TEXT in page.locator("#gallery article b").all_inner_texts()
    page.fill("#search textarea, #search input", "nothing like that")
    page.wait_for_selector("#gallery :text('没有找到')")
    page_words.go(page, "studio")
    page.click("#player [data-action=settings]")
    page.wait_for_function("(words) => document.querySelector('#prompt textarea').value === words", arg=USER_TEXT)
    page.select_option("select[data-language]", "en")
    page.wait_for_selector("#generate:has-text('Generate')")
    assert not re.search(r"[\u4e00-\u9fff]", page.inner_text("#sections"))  # all of it is English again


@pytest.mark.thorough
def test_the_language_is_chosen_kept_and_follows_the_browser(studio, chromium):
    page = studio.page
    studio.open()
    assert page.evaluate("document.documentElement.lang") != "zh-CN"
    page.select_option("select[data-language]", "zh")
    page.wait_for_selector("#generate:has-text('生成')")
    studio.reload()
    page.wait_for_selector("#generate:has-text('生成')")
    assert page.input_value("select[data-language]") == "zh"
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.select_option("select[data-language]", "en")
    page.wait_for_selector("#generate:has-text('Generate')")
    other = chromium.new_context(locale="zh-CN")
    page = other.new_page()
    page.goto(studio.url)
    page.wait_for_selector("#generate:has-text('生成')")
    page.select_option("select[data-language]", "en")
    page.click("#mode label:nth-of-type(3)")
    page.wait_for_selector("#add-references :text('Click to Upload')")  # Gradio's own texts, too
    assert not re.search(r"[\u4e00-\u9fff]", page.inner_text("#sections"))
    page.goto(studio.url + "?lang=zh")  # an address that names a language wins
    page.wait_for_selector("#generate:has-text('生成')")
    other.close()


TYPE_WHILE_TURNING = """async () => {
  const field = document.querySelector('#prompt textarea');
  field.focus();
  field.setSelectionRange(2, 4);
  const made = document.createElement('div');
  document.querySelector('#sections').append(made);
  const row = (at) => `<li><span title="Drag to another place">x</span><span class="pill">running</span>
    <b>${at} waiting</b><span>seed ${at} · 49 forwards · made in ${at}.5 s</span>
    <button aria-label="Cancel this job">Cancel</button></li>`;
  const list = (from) => Array.from({length: 20}, (_, at) => row(from + at)).join('');
  const draw = async (html) => {
    made.innerHTML = '';
    await null;
    const before = performance.now();
    made.innerHTML = html;
    await null; // what observes the page runs before this goes on
    return performance.now() - before;
  };
  const times = [];
  for (let round = 0; round < 12; round++) {
    const alone = await draw(`<div translate="no">${list(0)}</div>`);
    times.push(await draw(`<div>${list(round * 20)}</div>`) - alone);
  }
  const shown = made.innerText;
  let records = 0;
  const watching = new MutationObserver((changes) => (records += changes.length));
  watching.observe(made, {subtree: true, childList: true, characterData: true, attributes: true});
  made.querySelector('.pill').firstChild.data = 'paused';
  await new Promise((done) => setTimeout(done, 300));
  watching.disconnect();
  const last = made.querySelector('.pill').innerText;
  made.remove();
  const focus = document.activeElement === field && [field.selectionStart, field.selectionEnd];
  return {times, shown, last, records, focus};
}"""


def test_turning_a_redraw_takes_under_5_ms_does_not_loop_and_leaves_the_focus(chinese):
    chinese.page.fill("#prompt textarea", "typing")
    seen = chinese.page.evaluate(TYPE_WHILE_TURNING)
    assert "进行中" in seen["shown"] and "种子 239 · 49 次前向计算" in seen["shown"]
    assert seen["last"] == "已暂停"
    assert seen["records"] == 2  # the write and its translation
    assert seen["focus"] == [2, 4]
    assert sorted(seen["times"])[len(seen["times"]) // 2] < 5, seen["times"]


@pytest.mark.thorough
def test_the_login_page_follows_the_language_too(tmp_path, tiny_checkpoint, launch, chromium):
    with launch(tmp_path, tiny_checkpoint, "--auth", "anna:secret") as program:
        context = chromium.new_context(locale="zh-CN")
        page = context.new_page()
        page.goto(program.url)
        page.wait_for_selector("button:has-text('登录')")
        assert page.locator(".panel").bounding_box()["width"] <= 400  # Gradio's own reaches across the window
        page.fill("input[type=password]", "wrong")
        page.fill("input[type=text]", "anna")
        page.click("button:has-text('登录')")
        page.wait_for_selector(":text('凭据不正确')")
        assert page_words.english(page) == []
        context.close()
