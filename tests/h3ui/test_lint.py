"""Advice about a prompt: what is wrong is named with its line and mended where that is mechanical; good ones pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from h3ui import lint
from h3ui.context_ir import instruction
from h3ui.context_ir.model import Target

TAGS = (("<Picture 1>",), ("<Audio 1>", "<Video 1>"))
REFERENCES = Target(references=True, tags=TAGS)
TEXT = Target(num_frames=124)  # 5.17 s
OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "h3-official" / "requests"


def described(shots: str) -> str:
    return f"integrated_multimodal_description: {shots}\n\noverall_soundscape: Wind.\n\nnon_diegetic_music: N/A"


def only(prompt: str, target: Target):
    (found,) = lint.check(prompt, target)
    return found


def test_a_prompt_that_names_every_reference_needs_no_advice():
    assert lint.check("<Subject 1> from <Picture 1> sings as in <Video 1>", REFERENCES) == ()


@pytest.mark.parametrize(
    ("prompt", "words", "mended"),
    [
        ("<Picture 1> <Video 1> <Picture 3>", "<Picture 3> names nothing here: there is <Picture 1>, <Audio 1>", None),
        ("<Image 1> and <Video 1>", "<Image 1> is written <Picture 1>", "<Picture 1> and <Video 1>"),
        ("<picture 1> and <Audio 1>", "<picture 1> is written <Picture 1>", "<Picture 1> and <Audio 1>"),
        ("<Video 1> alone", "<Picture 1> is not mentioned", None),
        ("<Picture 1> alone", "<Audio 1> or <Video 1> is not mentioned", None),
        ("<Picture 1><Video 1> <Picture 2 (removed)>", "was taken away", "<Picture 1><Video 1> "),
    ],
)
def test_what_is_wrong_with_tags_is_named(prompt, words, mended):
    found = only(prompt, REFERENCES)
    assert words in found.message
    assert (found.change.applied(prompt) if found.change else None) == mended


def test_tags_without_references_name_nothing():
    assert "no reference" in only("<Picture 1>", TEXT).message
    assert "subjects are defined from references" in only("<Subject 1>", TEXT).message


def test_subjects_are_defined_once_and_used():
    text = (
        "subject_definitions:\n<Subject 1> is the man in <Picture 1>.\n<Subject 2> is his dog in <Video 1>.\n\n"
        "summary:\n[reference generation] <Subject 1> and <Subject 3>.\n\nretention_analysis:\nx\n\n"
        "detailed_description:\nStyle.\n[Shot 1] <Subject 1> runs.\n\noverall_soundscape:\nWind.\n\n"
        "non_diegetic_music:\nN/A"
    )
    told = [(found.line(text), found.message) for found in lint.check(text, REFERENCES)]
    assert told == [
        (3, "<Subject 2> is defined and never used."),
        (6, "<Subject 3> is not defined in subject_definitions."),
    ]


def test_advice_comes_in_the_order_of_lines_and_what_concerns_the_whole_last():
    prompt = 'one\n<Picture 9>\n<Image 1>\nshe says "go"\n<Video 7>'
    lines = [found.line(prompt) for found in lint.check(prompt, REFERENCES)]
    assert lines == [2, 3, 4, 5, None]


def test_an_empty_prompt_is_left_in_peace():
    assert lint.check(" \n", REFERENCES) == ()


@pytest.mark.parametrize(
    ("first", "last", "line"),
    [  # base-en 2.1; 192 frames at 24 fps are 8 s
        (
            True,
            False,
            "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully",
        ),
        (True, True, "Picture 2 (from Shot 2) aligns with the 8.00-second mark of the target video."),
        (False, True, "<Picture 1> (from [Shot 2]) aligns with the 8.00-second mark of the target video."),
    ],
)
def test_keyframes_ask_for_their_first_line(first, last, line):
    target = Target(num_frames=192, first_frame=first, last_frame=last, tags=(("<Picture 1>",), ("<Picture 2>",)))
    prompt = described("[Shot 1] A. [Shot 2] At 00:02.000, B.")
    found = only(prompt, target)
    mended = lint.mend(prompt, target, found.key)
    assert line in mended.split("\n\n")[0] and mended.endswith(prompt)
    assert lint.check(mended, target) == ()


def test_the_first_line_says_the_exact_seconds():
    target = Target(num_frames=124, first_frame=True, last_frame=True, tags=(("<Picture 1>",), ("<Picture 2>",)))
    other = instruction.expected(Target(num_frames=192, first_frame=True, last_frame=True), 1)
    prompt = f"{other}\n\n{described('[Shot 1] A.')}"
    found = only(prompt, target)
    assert found.message == "The first line says 8 s; the video ends at 5.17 s."
    assert "5.17-second mark" in lint.mend(prompt, target, found.key)
    only_first = f"{instruction.expected(Target(first_frame=True), 1)}\n\n{described('[Shot 1] A.')}"
    assert only(only_first, target).message == "The first line is not the one for these frames."


def test_a_first_line_without_a_keyframe_is_one_too_many():
    line = instruction.expected(Target(first_frame=True), 1)
    prompt = f"{line}\n\nA boat."
    found = next(item for item in lint.check(prompt, TEXT) if item.code == "first-line-alone")
    assert found.change.applied(prompt) == "A boat."


@pytest.mark.parametrize(
    ("shots", "words", "mended"),
    [
        ("[Shot 1] A. [Shot 2] At 00:09.000, B.", "after the end of the video at 5.17 s", "[Shot 2] At 00:02.580, B."),
        ("[Shot 1] A. [Shot 2] B.", "Shot 2 has no cut time", "[Shot 2] At 00:02.580, B."),
        ("[Shot 1] A. [Shot 2] At 3.5s, B.", "3.5s is written 00:03.500", "[Shot 2] At 00:03.500, B."),
        ("[Shot 1] A. [Shot 3] At 00:03.500, B.", "[Shot 3] is shot 2 in this order", "[Shot 2] At 00:03.500, B."),
        ("[Shot 1] At 00:00.000, A.", "has no time", ": [Shot 1] A."),
        ("[Shot 1] A. [Shot 2] At 00:05.000, B.", "lasts 0.17 s only", "[Shot 2] At 00:02.580, B."),
        ("A house.", "begins with [Shot 1]", ": [Shot 1] A house."),
        ("[Shot 1] A man (S1) says: <d>Go.</d>", "begins with its language", "<d>[English] Go.</d>"),
        ("[Shot 1] A man (S1) says: <d>[English] Go.", "is not closed", None),
        ("[Shot 1] A man says: <d>[English] Go.</d>", "name the speaker", None),
        ("[Shot 1] A man (S1) says, “加油!” to her.", "inside <d>", "says, <d>[Chinese] 加油!</d> to her."),
        ("[Shot 1] As in [Shot 4].", "no shot 4", None),
    ],
)
def test_what_is_wrong_with_shots_and_speech_is_named_and_mended(shots, words, mended):
    prompt = described(shots)
    found = only(prompt, TEXT)
    assert words in found.message and found.line(prompt) == 1
    if mended is None:
        assert found.change is None
        return
    result = lint.mend(prompt, TEXT, found.key)
    assert mended in result
    assert lint.check(result, TEXT) == ()


def test_cuts_out_of_order_are_put_in_order():
    prompt = described("[Shot 1] A. [Shot 2] At 00:04.000, B. [Shot 3] At 00:02.000, C.")
    found = only(prompt, TEXT)
    assert found.message == "Shot 3 cuts at 2 s, not after shot 2 at 4 s."
    assert lint.check(lint.mend(prompt, TEXT, found.key), TEXT) == ()


def test_text_in_the_picture_is_no_speech():
    assert lint.check(described('[Shot 1] A neon sign that says "OPEN" glows, and a banner reading "Hi".'), TEXT) == ()


def test_sections_missing_empty_twice_or_in_another_order_are_told():
    prompt = "overall_soundscape: Wind.\n\nintegrated_multimodal_description: [Shot 1] A.\n\nnon_diegetic_music: N/A"
    found = only(prompt, TEXT)
    assert lint.mend(prompt, TEXT, found.key) == described("[Shot 1] A.")
    missing = described("[Shot 1] A.").replace("\n\nnon_diegetic_music: N/A", "")
    assert lint.mend(missing, TEXT, only(missing, TEXT).key) == described("[Shot 1] A.")
    assert "is empty" in only(described("[Shot 1] A.").replace("Wind.", ""), TEXT).message
    assert "is there twice" in only(described("[Shot 1] A.") + "\n\noverall_soundscape: B.", TEXT).message
    assert "six" in lint.check(described("[Shot 1] A."), Target(references=True))[0].message


def test_too_long_a_prompt_is_told_by_how_much():
    found = only("x" * 7123, TEXT)
    assert "123 characters over the limit of 7,000" in found.message


def test_a_button_that_came_too_late_changes_nothing_or_what_it_meant():
    for key in ("tag-spelling:3", "tag-spelling:", "tag-spelling:²", ":", "x" * 99):
        assert lint.mend("A boat.", TEXT, key) == "A boat."
    prompt = "<image 1> and <Video 1>: he says “Go”."
    tag, speech = lint.check(prompt, REFERENCES)
    once = lint.mend(prompt, REFERENCES, tag.key)
    assert lint.mend(once, REFERENCES, speech.key) == "<Picture 1> and <Video 1>: he says <d>[English] Go</d>."


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("t2va", Target(num_frames=243)),
        ("fl2va", Target(num_frames=192, first_frame=True, tags=(("<Picture 1>",),))),
        ("ref2va", Target(references=True, tags=(("<Audio 1>", "<Video 1>"), ("<Audio 2>",)))),
    ],
)
def test_the_official_prompts_pass(name, target):
    path = OFFICIAL / f"{name}.json"
    if not path.is_file():
        pytest.skip("the official example requests are not beside the repository")
    assert lint.check(json.loads(path.read_text())["prompt"], target) == ()
