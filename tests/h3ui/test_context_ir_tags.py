"""Tags: found as people write them, renumbered all at once, and never silently pointing to another file."""

from __future__ import annotations

import pytest

from h3ui.context_ir import tags


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("<Picture 1>", "<Picture 1>"),
        ("<image 2>", "<Picture 2>"),
        ("<Picture #3>", "<Picture 3>"),
        ("<VIDEO1>", "<Video 1>"),
        ("< sound 02 >", "<Audio 2>"),
        ("<Subject 4>", "<Subject 4>"),
    ],
)
def test_tags_are_found_as_people_write_them(written, tag):
    (found,) = tags.find(f"a {written} b")
    assert (found.written, found.tag, found.start) == (written, tag, 2)


@pytest.mark.parametrize("text", ["<Picture>", "<d>[English] one 1</d>", "Picture 1", "<Picture one>", "<1>", ""])
def test_other_angles_are_no_tags(text):
    assert tags.find(text) == ()


def test_a_swap_changes_both_at_once():
    mapping = {"<Picture 1>": "<Picture 2>", "<Picture 2>": "<Picture 1>"}
    assert tags.renumber("<Picture 1> meets <Picture 2> (<Image 1>)", mapping) == (
        "<Picture 2> meets <Picture 1> (<Picture 2>)"
    )


def test_a_removed_tag_stays_while_its_number_is_free():
    mapping = {"<Picture 1>": "<Picture 1>", "<Picture 2>": None}
    assert tags.renumber("<Picture 1>, <Picture 2>", mapping) == "<Picture 1>, <Picture 2>"


def test_a_removed_tag_never_means_the_file_that_took_its_number():
    mapping = {"<Picture 1>": None, "<Picture 2>": "<Picture 1>", "<Picture 3>": "<Picture 2>"}
    told = tags.renumber("<Picture 1>, <Picture 2>, <Picture 3>", mapping)
    assert told == "<Picture 1 (removed)>, <Picture 1>, <Picture 2>"
    assert [found.written for found in tags.find_removed(told)] == ["<Picture 1 (removed)>"]
    assert [found.tag for found in tags.find(told)] == ["<Picture 1>", "<Picture 2>"]


def test_what_the_mapping_does_not_name_is_left_as_written():
    text = "<Subject 1> of <image 1>, <Video 9>, 5 < 6 > 4"
    assert tags.renumber(text, {"<Picture 1>": "<Picture 1>"}) == text
