import pytest

from backend.events import FramesDone, LoadProgress, Notice, StageFinished, StageStarted, StepDone
from backend.process.messages import Pulse
from backend.types import Stage
from backend.worker.report import Report


def test_rank_0_tells_and_every_rank_counts():
    for rank in (0, 1):
        told = []
        report = Report(rank, told.append)
        report.stage(Stage.ENCODE, "reading")
        report.load("vae", 1, 2)
        report.step(1, 9, 0.5)
        report.frames(17, 107)
        report.notice("slow")
        assert report.progress == 5
        expected = [
            StageStarted(stage=Stage.ENCODE, detail="reading"),
            LoadProgress(component="vae", done_bytes=1, total_bytes=2),
            StepDone(step=1, steps=9, seconds=0.5),
            FramesDone(done=17, total=107),
            Notice(message="slow"),
        ]
        pulse = Pulse(rank=1, stage=Stage.ENCODE, progress=1)
        assert told == (expected if rank == 0 else [pulse])


def test_stages_end_when_the_next_begins_and_their_seconds_add_up(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("backend.worker.report.time.monotonic", lambda: now[0])
    told = []
    report = Report(0, told.append)
    report.begin(bool, loaded_s=7.0)
    for stage, seconds in ((Stage.LOAD, 2.0), (Stage.ENCODE, 1.5), (Stage.DENOISE, 30.0)):
        report.stage(stage)
        now[0] += seconds
    report.stage(Stage.DENOISE, "more words about the same stage")
    now[0] += 1
    report.finish_stage()
    report.finish_stage()
    assert report.seconds == {Stage.LOAD: 9.0, Stage.ENCODE: 1.5, Stage.DENOISE: 31.0}
    ended = [(event.stage, event.seconds) for event in told if isinstance(event, StageFinished)]
    assert ended == [(Stage.LOAD, 2.0), (Stage.ENCODE, 1.5), (Stage.DENOISE, 31.0)]
    report.begin(bool)
    assert report.seconds == {}


@pytest.mark.parametrize("stage", [None, Stage.LOAD, Stage.ENCODE, Stage.DENOISE, Stage.DECODE])
def test_in_lockstep_the_others_decide_too(stage):
    asked = []

    def agree(wish):
        asked.append(wish)
        return len(asked) == 3  # a peer wants to stop

    report = Report(0, lambda event: None)
    report.begin(agree)
    report.stage_now = stage
    assert [report.should_stop() for _ in range(5)] == [False, False, True, True, True]
    assert asked == [False, False, False]  # once agreed, no rank enters the collective again


def test_what_one_rank_does_alone_it_decides_alone():
    def agree(wish):
        raise AssertionError("the other ranks are not there any more")

    report = Report(0, lambda event: None)
    report.begin(agree)
    report.stage(Stage.MUX)
    assert not report.should_stop()
    report.stop()
    assert report.should_stop()
    report.clear_stop()
    report.begin(agree)
    report.stage(Stage.MUX)
    assert not report.should_stop()
