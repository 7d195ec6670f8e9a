"""What panels write is text where people or files supplied it, and says what to do where there is nothing."""

from __future__ import annotations

import ast
import dataclasses
import html.parser
import re
from pathlib import Path

import pytest

from backend import events as ev
from backend.errors import Problem
from backend.jobs.records import JobRecord, JobState
from backend.types import GenerationRequest, JobId, MediaReport, ReferenceKind, Sampling, Stage
from h3ui import form, markup, render
from h3ui.form import MediaItem
from h3ui.panels import compare, gallery, keyframes, prompt, queue, references, result

EVIL = """<script>alert(1)</script><img src=x onerror="alert(2)">'"><b>{{#each}} ${x}"""


class Collector(html.parser.HTMLParser):
    """All tags, attributes and text a browser would see."""

    def __init__(self, markup_text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(markup_text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data


def record(state: JobState = JobState.SUCCEEDED, **changes) -> JobRecord:
    values = dict(
        id=JobId("job_1-a"),
        owner="session:x",
        state=state,
        position=1 if state is JobState.QUEUED else None,
        request=GenerationRequest(
            prompt=EVIL, sampling=Sampling(width=224, height=128, num_frames=107, num_inference_steps=4, seed=11)
        ),
        preset="tiny-cpu",
        quality="standard",
        title=EVIL,
        favourite=False,
        created_at=0.0,
        started_at=100.0,
        finished_at=142.0,
        video=None,
        sidecar=None,
        error=EVIL,
        folder=Path("/nowhere"),
        num_events=1,
    )
    return JobRecord(**{**values, **changes})


def item(name: str, kind: ReferenceKind, duration_s: float | None = None) -> MediaItem:
    report = MediaReport(
        name=name, kind=kind, container="X", duration_s=duration_s, actions=(EVIL,), warnings=(EVIL,), codec=EVIL
    )
    return MediaItem(path=Path("/up") / name, report=report)


FAILED = render.follow(
    [ev.StageStarted(stage=Stage.DENOISE, detail=EVIL), ev.Notice(message=EVIL), ev.Failed(reason=EVIL, log_tail=EVIL)]
)
RUNNING = render.follow([ev.Started(engine="n", preset=EVIL), ev.StageStarted(stage=Stage.LOAD, detail=EVIL)])
NAME = EVIL.replace("/", "")
EVIL_FACTS = gallery.Facts(tokens={JobId("job_1-a"): EVIL}, kernels={JobId("job_1-a"): EVIL})


@pytest.mark.parametrize(
    "written",
    [
        result.live_html(record(JobState.FAILED), FAILED, 0.0),
        result.live_html(record(JobState.RUNNING), RUNNING, 0.0),
        result.player_html(record(), render.JobView(), EVIL),
        queue.rows_html([record(JobState.RUNNING), record(JobState.QUEUED)]),
        gallery.cards_html([record(), record(JobState.FAILED)], EVIL_FACTS, more=True, filtered=False),
        compare.html(compare.Side(record(), EVIL), compare.Side(record(quality=EVIL, preset=EVIL), EVIL)),
        queue.editing_html(record(JobState.QUEUED)),
        queue.saved_html(Path("/up") / NAME, 2),
        references.tray_html((item(NAME, ReferenceKind.IMAGE), item(NAME, ReferenceKind.VIDEO, 5.0))),
        references.tray_html((), [Problem(field=EVIL, value=EVIL, rule=EVIL, way_out=EVIL)]),
        keyframes.card_html("first", item(NAME, ReferenceKind.IMAGE)),
        markup.problems([EVIL]),
        result.missing_html(EVIL),
    ],
)
def test_foreign_text_stays_text(written):
    seen = Collector(written)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert ("src", "x") not in seen.attributes
    assert "<script>" in seen.text or any("<script>" in value or "%3Cscript" in value for _, value in seen.attributes)


def test_the_field_of_a_problem_is_a_word_of_the_program_never_of_a_person():
    """A field's name is translated where it is shown; a file's name belongs into `value`, which is left alone."""
    found = []
    for path in Path(form.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
                (field,) = [part.value for part in node.keywords if part.arg == "field"]
                fixed = isinstance(field, ast.Constant) or getattr(field, "id", "") == "field"
                found.append((fixed, f"{path.name}:{node.lineno}"))
    assert len(found) >= 10
    assert [where for fixed, where in found if not fixed] == []


def test_a_field_is_called_what_people_call_it():
    fields = [field.name for kind in (GenerationRequest, Sampling) for field in dataclasses.fields(kind)]
    written = markup.problems([Problem(field=name, value="", rule="is wrong") for name in fields])
    assert "<b>first frame</b>" in written
    assert "_" not in written
    assert set(markup.FIELDS) <= set(fields)


def test_icon_buttons_have_names():
    written = gallery.cards_html([record()], gallery.Facts(), more=False, filtered=False) + queue.rows_html(
        [record(JobState.QUEUED)]
    )
    names = [value for name, value in Collector(written).attributes if name == "aria-label"]
    assert {"Download", "Delete", "Use these settings", "Cancel this job"} <= set(names)


def test_the_report_line_tells_what_was_made():
    line = Collector(result.report_line(record()))
    assert line.text == "224 × 128 · 107 frames, 4.46 s · seed 11 · 3 forwards · made in 42 s · tiny-cpu"
    assert line.attributes == [("class", "fact")] * 6  # each breaks as a whole


def test_the_player_is_there_only_for_a_result():
    assert 'src="files/job_1-a/video.mp4?token=t"' in result.player_html(record(), render.JobView(), "t")
    assert result.player_html(record(JobState.RUNNING), render.JobView(), "t") == ""


def seen_of(view, state=JobState.RUNNING, token="t"):
    attributes = Collector(result.live_html(record(state), view, 0.0, token=token)).attributes
    return {name: value for name, value in attributes if name in ("data-picture", "data-stream", "data-shape")}


def test_what_can_be_seen_of_a_running_job_is_named_with_its_step():
    picture = ev.PreviewReady(path=Path("/x/preview.png"), step=2)
    steps = [ev.StageStarted(stage=Stage.DENOISE), ev.StepDone(step=2, steps=3, seconds=1.0)]
    view = render.follow([ev.Started(engine="n", preset="p"), *steps, picture])
    address = "files/job_1-a/preview.png?token=t&step=2"
    assert seen_of(view) == {"data-shape": "224/128", "data-picture": address}
    assert "Preview after step 2 of 3" in result.live_html(record(JobState.RUNNING), view, 0.0, token="t")
    playing = render.advance(view, ev.PreviewReady(path=Path("/x/stream.mp4"), step=3))
    assert seen_of(playing)["data-stream"] == "files/job_1-a/stream.mp4?token=t"
    assert seen_of(view, token="") == {}  # without a token nobody gets an address
    assert seen_of(render.advance(view, ev.Failed(reason="x")), JobState.FAILED) == {}


def test_cancel_is_offered_while_there_is_something_to_cancel():
    running = result.live_html(record(JobState.RUNNING), RUNNING, 0.0)
    assert 'data-action="cancel"' in running
    assert 'data-action="cancel"' not in result.live_html(record(JobState.FAILED), FAILED, 0.0)


def test_the_progress_bar_tells_its_value_to_screen_readers():
    view = render.follow([ev.Started(engine="n", preset="p"), ev.StepDone(step=5, steps=10, seconds=1.0)])
    assert 'aria-valuenow="40"' in result.live_html(record(JobState.RUNNING), view, 0.0)  # 5 s of 10 s + 2.5 s decode


def test_tags_and_budgets_of_the_tray():
    written = Collector(
        references.tray_html(
            (
                item("a.png", ReferenceKind.IMAGE),
                item("b.png", ReferenceKind.IMAGE),
                item("c.wav", ReferenceKind.AUDIO, 6.2),
            )
        )
    ).text
    assert "<Picture 2>" in written and "<Audio 1>" in written
    assert "2 of 9 pictures" in written and "6.2 of 15 s" in written


def test_a_burst_budget_is_marked():
    clips = tuple(item(f"{index}.mp4", ReferenceKind.VIDEO, 9.0) for index in range(2))
    assert "budget over" in references.tray_html(clips)


def test_empty_places_say_what_to_do():
    assert "press Generate" in result.empty_html("")
    assert "noise" in result.empty_html("It makes noise.")
    assert "Everything you make is kept here" in gallery.cards_html([], gallery.Facts(), more=False, filtered=False)
    assert "Change the words" in gallery.cards_html([], gallery.Facts(), more=False, filtered=True)
    assert "Nothing waits" in queue.rows_html([])
    assert 'data-action="example"' in prompt.hint_html("")


def test_the_counter_warns_past_the_limit():
    assert "5 of 7,000" in prompt.hint_html("hello")
    assert "over" in prompt.hint_html("x" * 7001)


def test_the_step_chart_marks_the_first_step_and_keeps_the_others_readable():
    view = render.JobView(state="running", step=4, steps=10, step_seconds=(8.0, 1.0, 0.5, 1.0))
    written = result.live_html(record(JobState.RUNNING), view, 0.0)
    bars = re.findall(r'<rect( class="first")? x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', written)
    assert [bool(first) for first, _, _ in bars] == [True, False, False, False]
    assert [float(x) for _, x, _ in bars] == [0, 60, 120, 180]  # a tenth of the width each: six steps are to come
    heights = [float(height) for _, _, height in bars]
    assert heights[0] == 46 and heights[1] == heights[3] == 23 and heights[2] == 11.5  # 8 s is cut at two usual steps
    assert "first took 8.00, later ones at most 1.00" in written
