"""Events told as progress: where a job is, how fast, how long still; and how each end reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backend import events as ev
from backend.types import Stage
from h3ui import render

BEGIN = (
    ev.Queued(seq=1, at=0.0, position=2),
    ev.Started(seq=2, at=10.0, engine="native", preset="tiny-cpu"),
    ev.StageStarted(seq=3, at=10.0, stage=Stage.PREPARE),
    ev.StageFinished(seq=4, at=11.0, stage=Stage.PREPARE, seconds=1.0),
    ev.StageStarted(seq=5, at=11.0, stage=Stage.LOAD, detail="loading transformer"),
)
SAMPLING = (
    *BEGIN,
    ev.StageFinished(seq=6, at=15.0, stage=Stage.LOAD, seconds=4.0),
    ev.StageStarted(seq=7, at=15.0, stage=Stage.DENOISE),
    *(ev.StepDone(seq=7 + n, at=15.0 + 2 * n, step=n, steps=10, seconds=2.0) for n in range(1, 5)),
)


def states(view: render.JobView) -> list[str]:
    return [row.state for row in render.timeline(view)]


def test_a_waiting_job_tells_its_place():
    view = render.follow(BEGIN[:1])
    assert render.headline(view) == "Waiting, number 2 in the queue"
    assert states(view) == ["waiting"] * 6
    assert render.time_left_s(view, 1.0) is None


def test_stages_are_done_active_and_waiting_in_order():
    view = render.follow(BEGIN)
    assert states(view) == ["done", "active", "waiting", "waiting", "waiting", "waiting"]
    assert view.stage_seconds(Stage.PREPARE) == 1.0
    assert "loading transformer" in render.facts(view, 12.0)


def test_loading_tells_bytes():
    view = render.advance(
        render.follow(BEGIN), ev.LoadProgress(component="vae", done_bytes=3 * 2**29, total_bytes=2**31)
    )
    assert render.facts(view, 12.0)[0] == "vae: 1.5 GiB of 2.0 GiB"


def test_sampling_tells_step_pace_and_time_left_with_decode():
    view = render.follow(SAMPLING)
    # 4 of 10 steps of 2 s are done: 12 s of sampling, and decode as an earlier job took it
    assert render.time_left_s(view, 23.0, decode_s=7.0) == pytest.approx(12.0 + 7.0)
    assert render.time_left_s(view, 24.0, decode_s=7.0) == pytest.approx(11.0 + 7.0)
    told = render.facts(view, 23.0, decode_s=7.0)
    assert told == ("step 4 of 10", "2.00 s a step", "about 19 s left, decode and MP4 included")
    assert render.fraction(view, decode_s=5.0) == pytest.approx(8.0 / 25.0)


def test_a_slow_first_step_does_not_spoil_the_pace():
    steps = [ev.StepDone(step=n, steps=9, seconds=30.0 if n == 1 else 1.0, at=float(n)) for n in range(1, 5)]
    assert render.follow(steps).seconds_a_step == 1.0


def test_decode_tells_frames_and_their_own_pace():
    view = render.follow(
        (
            *SAMPLING,
            ev.StageFinished(stage=Stage.DENOISE, seconds=20.0, at=35.0),
            ev.StageStarted(stage=Stage.DECODE, at=35.0),
            ev.FramesDone(done=31, total=124, at=37.0),
        )
    )
    assert "frame 31 of 124" in render.facts(view, 37.0)
    assert render.time_left_s(view, 37.0) == pytest.approx(2.0 * 93 / 31)


def test_progress_never_goes_back_and_ends_at_one():
    view, before = render.JobView(), 0.0
    events = (
        *SAMPLING,
        *(ev.StepDone(step=n, steps=10, seconds=2.0, at=15.0 + 2 * n) for n in range(5, 11)),
        ev.StageStarted(stage=Stage.DECODE, at=36.0),
        *(ev.FramesDone(done=n, total=124, at=37.0) for n in (17, 51, 124)),
    )
    for event in events:
        view = render.advance(view, event)
        assert render.fraction(view) >= before
        before = render.fraction(view)
    assert 0.9 < before < 1.0
    done = render.advance(view, ev.Succeeded(at=40.0, video=Path("v"), sidecar=Path("s")))
    assert render.fraction(done) == 1.0
    assert states(done) == ["done"] * 6


@pytest.mark.parametrize(
    ("event", "headline", "reason"),
    [
        (ev.Failed(reason="Out of memory; choose half size.", stage=Stage.DENOISE), "This job failed", "Out of memory"),
        (ev.Cancelled(stage=Stage.DENOISE, step=4, steps=10), "Cancelled", "Stopped after step 4 of 10."),
        (ev.Cancelled(), "Cancelled", "Taken out of the queue"),
        (ev.Interrupted(reason="The program ended."), "Interrupted", "The program ended."),
    ],
)
def test_each_end_says_what_happened(event, headline, reason):
    view = render.advance(render.follow(SAMPLING), event)
    assert view.terminal
    assert render.headline(view) == headline
    assert view.reason.startswith(reason)
    assert render.facts(view, 50.0) == () and render.time_left_s(view, 50.0) is None
    assert "done" in states(view)


def test_heartbeats_change_no_figure():
    view = render.follow(SAMPLING)
    assert render.advance(view, ev.Heartbeat(rank=0, stage=Stage.DENOISE)) == view


def test_previews_tell_what_can_be_seen_and_no_figure():
    view = render.follow(SAMPLING)
    for step in (1, 2):
        seen = render.advance(view, ev.PreviewReady(path=Path("/job/output/preview.png"), step=step))
        assert seen == dataclasses.replace(view, preview_step=step)
    playing = render.advance(seen, ev.PreviewReady(path=Path("/job/output/stream.mp4"), step=9))
    assert playing == dataclasses.replace(view, preview_step=2, streaming=True)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.84, "0.8 s"), (42.4, "42 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (4800, "1 h 20 min")],
)
def test_durations_for_people(seconds, words):
    assert render.duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(12, "12 B"), (1536, "1.5 KiB"), (12 * 2**20, "12.0 MiB"), (2**33, "8.0 GiB")]
)
def test_sizes_for_people(count, words):
    assert render.size(count) == words


def test_a_sign_of_life_is_told_while_a_job_runs_and_a_long_silence_is_said():
    running = render.JobView(state="running", beat_at=100.0)
    assert render.sign_of_life(running, 100.4) == "alive 0.4 s ago"
    assert render.sign_of_life(running, 135.0) == "no sign of life for 35 s"
    assert render.sign_of_life(dataclasses.replace(running, state="succeeded"), 101.0) == ""
    assert render.sign_of_life(render.JobView(state="running"), 101.0) == ""
