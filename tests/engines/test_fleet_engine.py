import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "process"))
from ranks import BRISK, alive, ends, render, wait_until

from backend.engines.stub import StubEngine
from backend.errors import EngineFailure
from backend.events import Cancelled, Failed, PreviewReady, StageFinished, StageStarted, StepDone, Succeeded
from backend.presets import Device, Dtype, EngineName, HardwarePreset
from backend.process.fleet import FleetState
from backend.settings import Settings
from backend.types import Adapter, GenerationRequest, Sampling, Stage

ORDER = [Stage.LOAD, Stage.ENCODE, Stage.DENOISE, Stage.DECODE, Stage.MUX]


def preset(world_size: int = 1) -> HardwarePreset:
    return HardwarePreset(
        name="stub",
        title="Stub",
        description="",
        source="test",
        checkpoint="stub:",
        engine=EngineName.STUB,
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        world_size=world_size,
        deadlines=BRISK,
    )


@pytest.fixture
def open_engine(tmp_path):
    opened = []

    def make(checkpoint="stub:", world_size=1):
        engine = StubEngine(preset(world_size), Path(checkpoint), Settings(data_dir=tmp_path / "data"))
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        engine.close()
        engine.close()
        assert not any(alive(pid) for pid in engine.pids)


def stages(events, kind):
    return [event.stage for event in events if isinstance(event, kind)]


def test_every_stage_begins_and_ends_once_with_its_seconds(open_engine, tmp_path):
    engine = open_engine("stub:load_s=0.4,encode_s=0.2,step_s=0.1,mux_s=0.2")
    assert engine.unavailable() is None
    began = time.monotonic()
    events = list(engine.generate(render(tmp_path, steps=3)))
    took = time.monotonic() - began
    assert list(dict.fromkeys(stages(events, StageStarted))) == ORDER
    assert stages(events, StageFinished) == ORDER
    seconds = {event.stage: event.seconds for event in events if isinstance(event, StageFinished)}
    assert seconds[Stage.LOAD] > 0.4
    assert 0.2 <= seconds[Stage.ENCODE] < 0.6
    assert 0.3 <= seconds[Stage.DENOISE] < 0.9
    assert seconds[Stage.MUX] >= 0.2
    assert sum(seconds.values()) <= took
    end = events[-1]
    assert isinstance(end, Succeeded)
    assert set(end.details["seconds"]) == {stage.value for stage in ORDER}
    assert end.details["seconds"]["load"] >= 0.4


def test_the_prediction_is_shown_while_steps_go_by_and_leaves_no_file(open_engine, tmp_path):
    engine = open_engine("stub:step_s=0.05")
    events = []
    for event in engine.generate(render(tmp_path, steps=3)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            assert (tmp_path / "job" / "preview.png").read_bytes().startswith(b"\x89PNG")
    shown = [event for event in events if isinstance(event, PreviewReady)]
    assert [(event.path, event.step) for event in shown] == [(tmp_path / "job/preview.png", step) for step in (1, 2, 3)]
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"video.mp4", "video.json"}


def test_a_cancelled_render_leaves_no_picture(open_engine, tmp_path):
    engine = open_engine("stub:step_s=0.1")
    for event in engine.generate(render(tmp_path, steps=50)):
        if isinstance(event, PreviewReady):
            engine.cancel()
    assert isinstance(event, Cancelled) and list((tmp_path / "job").iterdir()) == []


def test_warm_between_jobs(open_engine, tmp_path):
    engine = open_engine()
    first = list(engine.generate(render(tmp_path, "a")))
    pids = engine.pids
    second = list(engine.generate(render(tmp_path, "b")))
    assert engine.pids == pids
    assert Stage.LOAD in stages(first, StageStarted)
    assert Stage.LOAD not in stages(second, StageStarted)
    assert "load" not in second[-1].details["seconds"]
    assert list(engine.start()) == []


def test_after_a_kill_the_next_job_runs_on_a_fresh_fleet_by_itself(open_engine, tmp_path):
    engine = open_engine("stub:step_s=0.2", world_size=2)
    events, killed, old = [], 0.0, ()
    for event in engine.generate(render(tmp_path, "a", steps=20)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            old, killed = engine.pids, time.monotonic()
            os.kill(old[0], signal.SIGKILL)
    failed_s = time.monotonic() - killed
    assert failed_s < 5
    assert ends(events) == events[-1:]
    assert events[-1].reason == "rank 0 was killed by SIGKILL in stage denoise"
    assert engine.state is FleetState.DEFUNCT
    assert engine.failure is not None
    assert not list((tmp_path / "a").iterdir())
    events = list(engine.generate(render(tmp_path, "b", steps=2)))
    assert isinstance(events[-1], Succeeded)
    assert not set(engine.pids) & set(old)
    print(f"killed -> failed {failed_s:.2f} s; killed -> next job done {time.monotonic() - killed:.2f} s")


def test_a_writer_killed_in_mid_file_leaves_no_part(open_engine, tmp_path):
    engine = open_engine("stub:decode_s=0.3")
    for event in engine.generate(render(tmp_path, frames=107)):
        if isinstance(event, StageStarted) and event.stage is Stage.DECODE:
            assert wait_until(lambda: list((tmp_path / "job").glob(".*.part")), 2)
            os.kill(engine.pids[0], signal.SIGKILL)
    assert isinstance(event, Failed)
    assert event.stage is Stage.DECODE
    assert not list((tmp_path / "job").iterdir())


def test_a_rank_killed_between_mp4_and_sidecar_leaves_neither(open_engine, tmp_path):
    engine = open_engine("stub:hang=mux", world_size=2)
    for event in engine.generate(render(tmp_path)):
        if isinstance(event, StageStarted) and event.stage is Stage.MUX:
            (tmp_path / "job" / "video.mp4").write_bytes(b"whole, but nobody will say so")
            os.kill(engine.pids[0], signal.SIGKILL)
    assert isinstance(event, Failed)
    assert not list((tmp_path / "job").iterdir())


def test_an_idle_death_is_told_and_mended(open_engine, tmp_path):
    engine = open_engine()
    list(engine.start())
    os.kill(engine.pids[0], signal.SIGKILL)
    assert wait_until(lambda: engine.failure is not None, 4)
    assert isinstance(list(engine.generate(render(tmp_path)))[-1], Succeeded)
    assert engine.failure is None


def test_a_death_nobody_has_noticed_yet_still_ends_in_one_end(open_engine, tmp_path):
    engine = open_engine()
    list(engine.start())
    os.kill(engine.pids[0], signal.SIGKILL)
    events = list(engine.generate(render(tmp_path)))
    assert ends(events) == events[-1:]


def test_a_load_failure_is_a_failed_job_and_a_raise_from_start(open_engine, tmp_path):
    engine = open_engine("stub:fail=load,rank=1", world_size=2)
    end = list(engine.generate(render(tmp_path)))[-1]
    assert isinstance(end, Failed)
    assert (end.rank, end.stage) == (1, Stage.LOAD)
    assert "stub was told to fail in stage load" in end.log_tail
    with pytest.raises(EngineFailure, match="rank 1 failed"):
        list(engine.start())


@pytest.mark.parametrize(
    ("checkpoint", "stage"),
    [("stub:load_s=20", Stage.LOAD), ("stub:encode_s=20", Stage.ENCODE), ("stub:step_s=0.1", Stage.DENOISE)],
)
def test_cancel_from_another_thread(open_engine, tmp_path, checkpoint, stage):
    engine = open_engine(checkpoint, world_size=2)
    events, asked = [], 0.0
    for event in engine.generate(render(tmp_path, steps=100)):
        if isinstance(event, StageStarted) and event.stage is stage and not asked:
            asked = time.monotonic()
            threading.Thread(target=engine.cancel).start()
        events.append(event)
    assert time.monotonic() - asked < 4
    assert isinstance(events[-1], Cancelled)
    assert events[-1].stage is stage
    assert ends(events) == events[-1:]
    assert (engine.state is FleetState.READY) is (stage is not Stage.LOAD)


def test_cancel_before_the_first_event_and_when_idle(open_engine, tmp_path):
    engine = open_engine("stub:step_s=0.05")
    engine.cancel()
    list(engine.start())
    stream = engine.generate(render(tmp_path, "a", steps=100))
    engine.cancel()
    assert isinstance(list(stream)[-1], Cancelled)
    engine.cancel()
    assert isinstance(list(engine.generate(render(tmp_path, "b", steps=2)))[-1], Succeeded)


def test_an_abandoned_render_leaves_no_process_and_no_stale_events(open_engine, tmp_path):
    engine = open_engine("stub:step_s=0.05")
    stream = engine.generate(render(tmp_path, "a", steps=100))
    for event in stream:
        if isinstance(event, StepDone):
            break
    pids = engine.pids
    stream.close()
    assert not any(alive(pid) for pid in pids)
    events = list(engine.generate(render(tmp_path, "b", steps=2)))
    assert [event.steps for event in events if isinstance(event, StepDone)] == [2, 2]


def test_closed_for_good(open_engine, tmp_path):
    engine = open_engine()
    list(engine.start())
    engine.close()
    end = list(engine.generate(render(tmp_path)))[-1]
    assert isinstance(end, Failed)
    assert end.reason == "the engine is closed"


def test_adapters_are_refused_in_words(open_engine):
    request = GenerationRequest(prompt="x", sampling=Sampling(adapters=(Adapter(path=Path("a.safetensors")),)))
    assert "adapters" in open_engine().rejects(request)
    assert open_engine().rejects(GenerationRequest(prompt="x")) is None
