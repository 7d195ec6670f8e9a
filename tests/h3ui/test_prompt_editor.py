"""What the page's editor and buttons get: edits by name, advice as markup, request files; whatever a browser sends."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

from backend import codec
from backend.errors import InvalidRequest
from backend.types import GenerationRequest, Reference, Sampling
from h3ui import lint, prompt_editor, request_file
from h3ui.context_ir import templates
from h3ui.context_ir.model import Target
from h3ui.form import Mode, PanelValues, Size
from h3ui.panels import prompt
from h3ui.prompting import Prompts, target_of

OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "h3-official" / "requests"
EVIL = """<script>alert(1)</script><img src=x onerror="alert(2)">'"><b>"""


def test_an_edit_gives_the_new_text_and_its_outline():
    target = prompt_editor.told("", Target())["target"]
    reply = prompt_editor.edit({"name": "template", "word": "two-shots", "text": "old", "target": target})
    assert reply["text"] == templates.written("two-shots", Target())
    assert "".join(reply["outline"]["parts"]) == reply["text"]
    assert json.loads(json.dumps(reply)) == reply  # it crosses to a browser


def test_a_fix_is_found_again_by_its_key():
    text = "A <image 1>."
    told = prompt_editor.told(text, Target(references=True, tags=(("<Picture 1>",),)))
    (found,) = lint.check(text, Target(references=True, tags=(("<Picture 1>",),)))
    reply = prompt_editor.edit({"name": "mend", "key": found.key, "text": text, "target": told["target"]})
    assert reply["text"] == "A <Picture 1>."


@pytest.mark.parametrize(
    "payload", [None, [], "x", {}, {"text": 3}, {"text": "x" * 50_000}, {"text": "a", "name": "mend", "key": {}}]
)
def test_whatever_a_browser_sends_changes_nothing(payload):
    assert prompt_editor.edit(payload)["text"] in (None, "a")


def test_an_endless_text_is_not_taken_apart():
    assert prompt_editor.told("x" * 50_000, Target())["form"] == "long"


def test_parts_are_those_of_the_text_in_a_browsers_field():
    told = prompt_editor.told("summary: a\r\n\r\nb\rc", Target())
    assert "".join(told["parts"]) == "summary: a\n\nb\nc"


def test_the_right_templates_are_offered():
    assert [item["key"] for item in prompt_editor.told("", Target(references=True))["templates"]] == ["references"]
    assert prompt_editor.told("", Target(first_frame=True))["templates"][0]["key"] == "frames"


def test_advice_is_text_with_its_line_and_a_fix():
    text = f'A boat.\nA girl says "{EVIL.replace(chr(34), "")}" <image 2>'
    found = lint.check(text, Target(references=True, tags=(("<Picture 1>",), ("<Picture 2>",))))
    shown = prompt.hint_html(text, found)
    assert "<script" not in shown and "<img" not in shown
    assert 'data-ir-mend="tag-spelling:' in shown and '<span translate="no">2</span>' in shown
    assert shown.count("<li") == len(found) == 3


def test_long_advice_folds():
    found = lint.check("\n".join(f"<Picture {number}>" for number in range(20, 30)), Target())
    shown = prompt.hint_html("x", found)
    assert "<summary>6 more</summary>" in shown and shown.count("<li") == 10


def test_the_target_follows_the_panels():
    values = PanelValues(prompt="x", duration_s=8.0, mode=Mode.REFERENCES)
    assert target_of(values) == Target(num_frames=192, references=True)
    assert target_of(PanelValues(duration_s=None)).num_frames == 107


@pytest.mark.parametrize(
    ("name", "mode", "seconds"), [("t2va", "text", 10), ("fl2va", "frames", 8), ("ref2va", "references", 5)]
)
def test_the_official_examples_open(name, mode, seconds):
    path = OFFICIAL / f"{name}.json"
    if not path.is_file():
        pytest.skip("the official example requests are not beside the repository")
    text = path.read_text(encoding="utf-8")
    opened = request_file.read(text)
    asked = json.loads(text)
    assert opened.values.prompt == asked["prompt"] and opened.values.seed == str(asked["seed"])
    assert (opened.values.mode, opened.values.duration_s, opened.media) == (mode, seconds, len(asked["conditions"]))


def test_our_own_requests_open_and_their_paths_stay_closed(tmp_path):
    secret = tmp_path / "passwd"
    secret.write_text("root")
    sampling = Sampling(width=224, height=128, num_frames=107, num_inference_steps=9, seed=3)
    request = GenerationRequest(prompt="A boat", references=(Reference(path=secret),), sampling=sampling)
    for data in (codec.encode(request), {"request": codec.encode(request), "more": 1}):
        opened = request_file.read(json.dumps(data))
        assert (opened.values.prompt, opened.values.mode, opened.media) == ("A boat", Mode.REFERENCES, 1)
        assert (opened.values.size, opened.values.steps, opened.values.seed) == (Size.CUSTOM, 9, "3")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"prompt": 3}',
        '{"prompt": "x", "nonsense": 1}',
        "[" * 100_000,
        '{"target": {}}',
        "x" * 2_000_000,
    ],
)
def test_what_is_no_request_is_said_in_words(text):
    with pytest.raises(InvalidRequest, match="is no request"):
        request_file.read(text)


def test_odd_figures_of_a_file_are_left_out():
    body = {
        "prompt": "x",
        "task": 3,
        "target": {"aspect_ratio": "7:1", "duration_seconds": 99},
        "seed": -4,
        "conditions": 1,
    }
    values = request_file.read(json.dumps(body)).values
    assert (values.ratio, values.duration_s, values.seed, values.mode) == ("auto", 5.0, "", Mode.TEXT)


class Names:
    """Names stand in for components."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    def __getattr__(self, name: str) -> Names:
        return Names(f"{self.path}.{name}")

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self.path == other.path


def test_opening_a_file_fills_the_panels_and_says_what_is_missing():
    p = Names()
    prompts = Prompts(p, types.SimpleNamespace(values=lambda data: PanelValues()))
    body = {
        "prompt": "x",
        "task": "ref2va",
        "target": {"aspect_ratio": "9:16", "duration_seconds": 8},
        "conditions": [1, 2],
    }
    updates = prompts.open_file(json.dumps(body), {})
    assert (updates[p.prompt.text], updates[p.mode], updates[p.canvas.ratio]) == ("x", "references", "9:16")
    assert updates[p.references.group]["visible"] is True and "2 pictures, clips or sounds" in updates[p.problems]
    refused = prompts.open_file("no", {})
    assert list(refused) == [p.problems] and "The file was not opened" in refused[p.problems]


def test_advice_and_outline_follow_the_text():
    p = Names()
    prompts = Prompts(p, types.SimpleNamespace(values=lambda data: PanelValues(prompt="<Picture 1>")))
    updates = prompts.look({})
    assert "names nothing here" in updates[p.prompt.hint] and updates[p.prompt.editor]["parts"] == ["<Picture 1>"]
