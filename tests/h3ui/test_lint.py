"""Advice about tags: unknown, miswritten, unused; and silence where all is well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from h3ui import lint

TAGS = (("<Picture 1>",), ("<Audio 1>", "<Video 1>"))
OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "h3-official" / "requests"


def test_a_prompt_that_names_every_reference_needs_no_advice():
    assert lint.notes("<Subject 1> from <Picture 1> sings as in <Video 1>", TAGS) == ()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("<Picture 1> <Video 1> <Picture 3>", "<Picture 3> names nothing here"),
        ("<Image 1> and <Video 1>", "<Image 1> is written <Picture 1>"),
        ("<picture 1> and <Audio 1>", "<picture 1> is written <Picture 1>"),
        ("<Video 1> alone", "<Picture 1> is not mentioned"),
        ("<Picture 1> alone", "<Audio 1> or <Video 1> is not mentioned"),
    ],
)
def test_what_is_wrong_is_named(prompt, words):
    (note,) = lint.notes(prompt, TAGS)
    assert words in note


def test_tags_without_references_name_nothing():
    assert "no references" in lint.notes("<Picture 1>", ())[0]


def test_an_empty_prompt_is_left_in_peace_and_long_advice_is_cut():
    assert lint.notes(" ", TAGS) == ()
    assert len(lint.notes(" ".join(f"<Picture {n}>" for n in range(20)), ())) == lint.MAX_NOTES + 1


@pytest.mark.parametrize(
    ("name", "tags"),
    [("t2va", ()), ("fl2va", (("<Picture 1>",),)), ("ref2va", (("<Audio 1>", "<Video 1>"), ("<Audio 2>",)))],
)
def test_the_official_prompts_pass(name, tags):
    path = OFFICIAL / f"{name}.json"
    if not path.is_file():
        pytest.skip("the official example requests are not beside the repository")
    assert lint.notes(json.loads(path.read_text())["prompt"], tags) == ()
