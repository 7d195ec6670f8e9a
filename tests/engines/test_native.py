import json
import os
import signal
import sys
import time
from pathlib import Path

import av
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "process"))
from ranks import alive, ends, render
from safetensors.numpy import load_file

from backend.engines.native import NativeEngine
from backend.events import Cancelled, Failed, StageFinished, StepDone, Succeeded
from backend.media import kept
from backend.presets import Deadlines, Device, Dtype, HardwarePreset, Requires
from backend.settings import Settings
from backend.types import GenerationRequest, Reference, Stage

FRAMES = 107


def preset(world_size: int = 1, **kwargs) -> HardwarePreset:
    return HardwarePreset(
        name="tiny",
        title="Tiny",
        description="",
        source="test",
        checkpoint="tiny",
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        world_size=world_size,
        deadlines=Deadlines(start_s=60, load_s=120),
        **kwargs,
    )


@pytest.fixture(scope="module")
def engines(tiny_checkpoint, tmp_path_factory):
    """One warm engine for each number of ranks: starting one costs seconds of imports."""
    opened = {}

    def get(world_size):
        if world_size not in opened:
            data = tmp_path_factory.mktemp("data")
            opened[world_size] = NativeEngine(preset(world_size), tiny_checkpoint, Settings(data_dir=data))
        return opened[world_size]

    yield get
    for engine in opened.values():
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < 8
        assert not any(alive(pid) for pid in engine.pids)


@pytest.fixture(scope="module")
def single(engines, tmp_path_factory):
    """A render of one rank and its tensors, to compare others with."""
    folder = tmp_path_factory.mktemp("single")
    order = render(folder, steps=3, frames=FRAMES, tensors=folder / "t.safetensors")
    return list(engines(1).generate(order)), load_file(order.tensors)


def test_one_rank_renders_a_whole_result(single):
    events, tensors = single
    end = events[-1]
    assert isinstance(end, Succeeded)
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2, 3]
    assert [event.stage for event in events if isinstance(event, StageFinished)] == [
        Stage.LOAD,  # the processes and what tasks share
        Stage.LOAD,  # the transformer of this task
        Stage.ENCODE,
        Stage.DENOISE,
        Stage.DECODE,
        Stage.MUX,
    ]
    with av.open(str(end.video)) as file:
        assert sum(1 for _ in file.decode(video=0)) == FRAMES
        assert json.loads(file.metadata["comment"]) == kept.portable(end.details)
    assert tensors["latents"].shape == (1, 24, 32, 4, 4)  # 107 = 17 * 6 + 5 -> 5 * 6 + 2 latent frames
    assert tensors["audio_latents"].shape == (2, 32, 178)  # round(107 / 24 * 40)
    assert tensors["audio"].shape == (2, 178 * 800)
    assert end.details["request"]["sampling"]["seed"] == 7
    assert end.details["versions"]["torch"]
    assert set(end.details["seconds"]) == {"load", "encode", "denoise", "decode", "mux"}


@pytest.mark.thorough
def test_two_ranks_make_the_same_tensors_as_one(engines, single, tmp_path):
    order = render(tmp_path, steps=3, frames=FRAMES, tensors=tmp_path / "t.safetensors")
    end = list(engines(2).generate(order))[-1]
    assert isinstance(end, Succeeded)
    assert end.details["world_size"] == 2
    found = load_file(order.tensors)
    assert {name: (found[name] == value).all() for name, value in single[1].items()} == dict.fromkeys(found, True)


def test_two_ranks_agree_to_stop_and_render_again(engines, tmp_path):
    engine = engines(2)
    steps = 40
    for round_number in range(3):
        events, at = [], 0
        for event in engine.generate(render(tmp_path, f"cancelled{round_number}", steps=steps, frames=FRAMES)):
            events.append(event)
            if isinstance(event, StepDone) and event.step == 2 + round_number:
                engine.cancel()
        end = events[-1]
        at = max(event.step for event in events if isinstance(event, StepDone))
        assert isinstance(end, Cancelled)
        assert (end.stage, end.step, end.steps) == (Stage.DENOISE, at, steps)
        assert at < steps - 10
        assert not list((tmp_path / f"cancelled{round_number}").iterdir())
    pids = engine.pids
    # Had one rank run on alone, it would now wait in a collective that the other never enters.
    assert isinstance(list(engine.generate(render(tmp_path, "after", steps=2, frames=FRAMES)))[-1], Succeeded)
    assert engine.pids == pids


def test_cancel_while_decoding_stops_both_ranks(engines, tmp_path):
    engine = engines(2)
    for event in engine.generate(render(tmp_path, steps=2, frames=FRAMES)):
        if isinstance(event, StageFinished) and event.stage is Stage.DENOISE:
            engine.cancel()
    assert isinstance(event, Cancelled)
    assert event.stage is Stage.DECODE
    assert not list((tmp_path / "job").iterdir())


def test_a_killed_peer_is_named_though_the_other_complains_first(engines, tmp_path):
    engine = engines(2)
    events, killed = [], 0.0
    for event in engine.generate(render(tmp_path, steps=100, frames=FRAMES)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            killed = time.monotonic()
            os.kill(engine.pids[1], signal.SIGKILL)
    assert time.monotonic() - killed < 5
    assert isinstance(events[-1], Failed)
    assert events[-1].reason == "rank 1 was killed by SIGKILL in stage denoise"
    assert ends(events) == events[-1:]
    assert not any(alive(pid) for pid in engine.pids)


def test_a_machine_that_is_too_small_is_told_before_anything_starts(tmp_path):
    greedy = preset(requires=Requires(host_ram_gib=1e6))
    engine = NativeEngine(greedy, tmp_path, Settings(data_dir=tmp_path / "data"))
    assert "needs 1e+06 GiB of host RAM" in engine.unavailable()
    assert not (tmp_path / "data").exists()


def test_a_task_whose_transformer_is_missing_is_rejected(tmp_path):
    (tmp_path / "transformer").mkdir()
    engine = NativeEngine(preset(), tmp_path, Settings(data_dir=tmp_path / "data"))
    assert engine.rejects(GenerationRequest(prompt="x")) is None
    said = engine.rejects(GenerationRequest(prompt="x", references=(Reference(path=Path("a.png")),)))
    assert said is not None
    assert "transformer_ref" in said
