"""The panel "For scripts": it follows the page, says what is missing, and can be copied."""

import ast
import shlex

import pytest

HARD = 'It\'s "late" <Picture 1>\n$HOME `id` \\ 雨 <b>x</b>'


def shown(studio, name: str) -> str:
    return studio.page.evaluate("(id) => (document.getElementById(id) || {}).textContent || ''", name)


def open_panel(studio) -> None:
    studio.page.click("#scripts-card button.label-wrap, #scripts-card .label-wrap")


def choose(studio, name: str) -> None:
    studio.page.locator("#scripts").get_by_role("tab", name=name, exact=True).click()


@pytest.mark.thorough
def test_the_scripts_follow_the_page(studio, media):
    studio.open()
    open_panel(studio)
    studio.page.wait_for_selector("#scripts-about :text('does not hold a whole request')")
    studio.page.fill("#prompt textarea", HARD)
    studio.page.wait_for_selector("#script-python")
    studio.page.wait_for_function("() => document.getElementById('script-python').textContent.includes('雨')")
    tree = ast.parse(shown(studio, "script-python"))
    (prompt,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "prompt"]
    assert ast.literal_eval(prompt) == HARD
    assert studio.url in shown(studio, "script-python")
    choose(studio, "Command line")
    words = shlex.split(shown(studio, "script-shell"))
    assert words[3:5] == ["--prompt", HARD]
    choose(studio, "curl")
    words = shlex.split(shown(studio, "script-create"))
    assert f"prompt={HARD}" in words and f"{studio.url}v1/videos" in words

    studio.page.click("#mode label:has-text('First & last frame')")
    studio.page.set_input_files("#first-frame input[type=file]", str(media["portrait.png"]))
    studio.page.wait_for_selector("#scripts-about :text('portrait.png')")
    studio.page.wait_for_function("() => document.getElementById('script-create').textContent.includes('portrait.png')")


@pytest.mark.thorough
def test_a_text_is_copied_and_typing_is_not_disturbed(studio):
    studio.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    studio.open()
    open_panel(studio)
    studio.page.fill("#prompt textarea", "a kettle")
    studio.page.wait_for_selector("#script-python")
    studio.page.click("#scripts-card [data-copy='#script-python']")
    studio.page.wait_for_function(
        "async () => (await navigator.clipboard.readText()) === document.getElementById('script-python').textContent"
    )
    studio.page.click("#prompt textarea")
    studio.page.keyboard.press("End")
    studio.page.keyboard.type(" sings in the kitchen", delay=90)
    assert studio.page.evaluate("() => document.activeElement.matches('#prompt textarea')")
    studio.page.wait_for_function(
        "() => document.getElementById('script-python').textContent.includes('in the kitchen')"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1440, 390])
def test_the_panel_fits_its_screen(studio, width):
    studio.page.set_viewport_size({"width": width, "height": 900})
    studio.open()
    studio.page.fill("#prompt textarea", "word" * 300)
    open_panel(studio)
    studio.page.wait_for_selector("#script-python")
    for name in ("Python", "curl", "Command line"):
        choose(studio, name)
        assert studio.page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
