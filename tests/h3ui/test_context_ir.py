"""The format: every text survives being taken apart, parts mean what the guides say, edits touch nothing else."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3ui import lint
from h3ui.context_ir import edit, instruction, outline, templates, timecode
from h3ui.context_ir.model import BASE_SECTIONS, REFERENCE_SECTIONS, Form, Line, Target
from h3ui.context_ir.parse import parse, pieces, speakers

OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "h3-official"
FIVE_S, EIGHT_S = Target(num_frames=124), Target(num_frames=192)  # 24 fps: 5.17 s and 8 s
THREE = (
    "integrated_multimodal_description: [Shot 1] Wide. A woman (S1) says: <d>[English] Hello.</d> "
    "[Shot 2] At 00:02.000, the camera cuts to a door. [Shot 3] At 00:04.500, the shot cuts to the sea, as in [Shot 1]."
    "\n\noverall_soundscape: Wind.\n\nnon_diegetic_music: N/A"
)

marks = st.sampled_from(
    [
        *(f"{name}:" for name in {*BASE_SECTIONS, *REFERENCE_SECTIONS}),
        *("[Shot 1] ", "[Shot 2] At 00:03.500, ", "\n[shot 3]At 5s,", "(from [Shot 1])", "[Shot 99] At 1:2.3, "),
        *(
            "<d>",
            "</d>",
            "[English] ",
            "(S1)",
            "(S1, S2)",
            "<Picture 1>",
            "\n",
            "\r\n",
            " ",
            "\t",
            ". ",
            "…",
            "🎬",
            "\u2028",
        ),
        "For the target video, at 0.00 seconds into the target video, <Picture 1> (from [Shot 1]) is fully referenced.",
    ]
)
texts = st.lists(st.one_of(marks, st.text(max_size=12)), max_size=24).map("".join)


def official_prompts() -> dict[str, str]:
    return {path.stem: json.loads(path.read_text())["prompt"] for path in sorted(OFFICIAL.glob("requests/*.json"))}


def guide_examples() -> list[str]:
    fences = [
        found
        for path in sorted(OFFICIAL.glob("prompt-guides/*.txt"))
        for found in re.findall(r"```text\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]
    return [
        text for text in fences if "non_diegetic_music:" in text and "overall_soundscape:" in text and len(text) > 500
    ]


@settings(max_examples=400, deadline=None)
@given(texts)
def test_any_text_survives(text):
    assert parse(text).text == text
    assert "".join(outline.outline(text, FIVE_S)["parts"]) == text
    for shot in parse(text).shots:
        assert "".join(part if isinstance(part, str) else part.text for part in pieces(shot.body)) == shot.body


@settings(max_examples=150, deadline=None)
@given(
    texts,
    st.sampled_from(["fit", "add", "remove", "move", "start", "length", "line", "instruction"]),
    st.integers(-1, 4),
)
def test_no_edit_fails_or_loses_a_section(text, name, index):
    operation = {"name": name, "shot": index, "to": 0, "value": 2.5, "word": ""}
    changed = outline.apply(text, operation, FIVE_S)
    assert [section.name for section in parse(changed).sections] == [section.name for section in parse(text).sections]
    lint.check(text, FIVE_S)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60).filter(lambda text: parse(text).form is Form.FREE and "[" not in text), st.booleans())
def test_free_text_stays_whole_in_the_form(text, references):
    target = Target(references=references)
    made = edit.structure(text, target)
    assert made.form is target.form or not text.strip()
    assert [section.name for section in made.sections] == list(target.form.sections)
    assert all(word in made.text for word in text.split())


def test_official_prompts_are_read_as_the_guides_say():
    prompts = official_prompts()
    if not prompts:
        pytest.skip("the official example requests are not beside the repository")
    found = {name: parse(text) for name, text in prompts.items()}
    assert all(document.text == prompts[name] for name, document in found.items())
    assert [section.name for section in found["t2va"].sections] == list(BASE_SECTIONS)
    assert [section.name for section in found["ref2va"].sections] == list(REFERENCE_SECTIONS)
    assert [(shot.number, shot.start_s) for shot in found["t2va"].shots] == [(1, None), (2, 4.5)]
    assert instruction.find(found["fl2va"].opening).line == instruction.expected(Target(first_frame=True), 1)
    (who,) = speakers(found["ref2va"])
    assert (who.id, who.languages, who.lines) == ("S1", ("English",), 2)


def test_the_guides_own_examples_are_read_and_need_no_advice():
    examples = guide_examples()
    if not examples:
        pytest.skip("the official prompt guides are not beside the repository")
    assert len(examples) >= 5
    lengths = {"8.00-second": 192, "6.00-second": 144}
    for text in examples:
        frames = next((count for said, count in lengths.items() if said in text), 243)
        first = "0.00-second" in text or "at 0.00 seconds" in text
        last = any(said in text for said in lengths)
        named = re.findall(r"<(?:Picture|Video|Audio) \d>", text) if "subject_definitions" in text else ["<Picture 1>"]
        target = Target(
            num_frames=frames,
            first_frame=first,
            last_frame=last,
            references="subject_definitions" in text,
            tags=tuple((tag,) for tag in dict.fromkeys(named)),
        )
        assert parse(text).text == text
        told = [found.message for found in lint.check(text.strip(), target)]
        assert not told, (told, text[:80])


def test_spoken_lines_have_speaker_language_and_words():
    (line,) = [part for part in pieces(parse(THREE).shots[0].body) if isinstance(part, Line)]
    assert (line.speakers, line.language, line.words) == (("S1",), "English", "Hello.")


def test_a_mention_of_a_shot_is_no_shot():
    assert [shot.number for shot in parse(THREE).shots] == [1, 2, 3]
    empty = "integrated_multimodal_description: [Shot 1] [Shot 2] At 00:01.000, [Shot 3] At 00:02.000, B"
    assert [shot.start_s for shot in parse(empty).shots] == [None, 1.0, 2.0]


@pytest.mark.parametrize(
    ("written", "seconds"), [("00:03.500", 3.5), ("0:3.5", 3.5), ("1:02", 62.0), ("3.5s", 3.5), ("4 seconds", 4.0)]
)
def test_times_are_read_as_people_write_them(written, seconds):
    assert timecode.read(written) == seconds


@given(st.integers(0, 99 * 60_000))
def test_a_written_time_is_read_back(milliseconds):
    text = timecode.write(milliseconds / 1000)
    assert timecode.is_exact(text) and timecode.read(text) == pytest.approx(milliseconds / 1000, abs=1e-9)


def shots_of(text: str) -> list[tuple[int, float | None, str]]:
    return [(shot.number, shot.start_s, shot.body[:12]) for shot in parse(text).shots]


def test_moving_a_shot_takes_its_length_along_and_mentions_follow():
    moved = outline.apply(THREE, {"name": "move", "shot": 2, "to": 0}, EIGHT_S)
    assert shots_of(moved) == [(1, None, "the shot cut"), (2, 3.5, "Wide. A woma"), (3, 5.5, "the camera c")]
    assert "as in [Shot 2]" in moved
    assert moved.endswith("overall_soundscape: Wind.\n\nnon_diegetic_music: N/A")


def test_adding_removing_and_retiming_shots():
    added = outline.apply(THREE, {"name": "add", "shot": 0}, EIGHT_S)
    assert [start for _, start, _ in shots_of(added)] == [None, 1.0, 2.0, 4.5]
    assert shots_of(outline.apply(THREE, {"name": "remove", "shot": 0}, EIGHT_S))[0] == (1, None, "the camera c")
    longer = outline.apply(THREE, {"name": "length", "shot": 0, "value": 3}, EIGHT_S)
    assert [start for _, start, _ in shots_of(longer)] == [None, 3.0, 5.5]
    cut = outline.apply(THREE, {"name": "start", "shot": 1, "value": 9}, EIGHT_S)
    assert [start for _, start, _ in shots_of(cut)] == [None, 4.0, 4.5]  # kept before the next one
    assert "At 00:04.000, the camera" in cut


def test_cuts_are_fitted_into_a_shorter_video():
    fitted = parse(outline.apply(THREE, {"name": "fit"}, Target(num_frames=107)))
    times = [shot.start_s for shot in fitted.shots[1:]]
    assert times == sorted(times) and times[0] > 0 and times[-1] < 107 / 24
    assert lint.check(fitted.text, Target(num_frames=107)) == ()


def test_the_last_frame_moves_to_the_new_last_shot():
    target = Target(num_frames=192, last_frame=True, tags=(("<Picture 1>",),))
    text = instruction.put(parse(THREE), instruction.expected(target, 3)).text
    added = outline.apply(text, {"name": "add", "shot": 2}, target)
    assert "(from [Shot 4])" in added and lint.check(added, target) == ()


def test_a_speakers_language_changes_in_every_line():
    text = outline.apply(THREE, {"name": "line", "shot": 1, "word": "S1"}, EIGHT_S)
    changed = outline.apply(text, {"name": "language", "speaker": "S1", "word": "French"}, EIGHT_S)
    assert changed.count("<d>[French]") == 2 and "[English]" not in changed


@pytest.mark.parametrize("frames", [107, 124, 243, 362])
@pytest.mark.parametrize("template", templates.TEMPLATES, ids=lambda template: template.key)
def test_templates_need_no_advice_at_any_length(template, frames):
    target = Target(
        num_frames=frames,
        first_frame=template.frames,
        last_frame=template.frames,
        references=template.form is Form.REFERENCE,
        tags=(("<Picture 1>",),) if template.form is Form.REFERENCE else (),
    )
    assert template in templates.fitting(target)
    assert lint.check(templates.written(template.key, target), target) == ()


def test_what_an_editor_sends_is_taken_for_nothing_more_than_it_is():
    sent = outline.target_payload(
        Target(num_frames=362, last_frame=True, references=True, tags=(("<Audio 1>", "<Video 1>"),))
    )
    assert outline.target_payload(outline.read_target(json.loads(json.dumps(sent)))) == sent
    for odd in (None, [], {"frames": "x", "tags": 3}, {"frames": -1, "tags": [[{}]], "first": 1}):
        outline.outline(THREE, outline.read_target(odd))
    for name in ("start", "nonsense", None, "language", "move"):
        assert parse(
            outline.apply(THREE, {"name": name, "shot": "1", "to": [], "value": {}, "word": "a]b"}, EIGHT_S)
        ).shots


@pytest.mark.parametrize(
    "text", ["<d> ", "[Shot 1] ", "(S1) ", "For the target video, at  ", " \t", '"', "says <", "\n[shot 1]"]
)
def test_no_text_takes_long(text):
    huge = "integrated_multimodal_description: " + text * (30_000 // len(text)) + " " * 9_000
    began = time.process_time()
    assert parse(huge).text == huge
    outline.outline(huge, FIVE_S)
    lint.check(huge, FIVE_S)
    assert time.process_time() - began < 3  # a pattern that goes back over the text would take minutes
