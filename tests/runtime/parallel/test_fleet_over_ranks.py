"""Ranks that share a job, as real processes of a fleet: results, cancelling, and a rank that dies in a collective."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "process"))
from ranks import alive, ends
from ranks import render as order_of
from safetensors.numpy import load_file
from whole import render

from backend.engines.native import NativeEngine
from backend.events import Cancelled, Failed, FramesDone, StageFinished, StepDone, Succeeded
from backend.presets import Deadlines, Device, Dtype, HardwarePreset, Parallel
from backend.settings import Settings
from backend.types import Stage

FRAMES = 107


@pytest.fixture(scope="module")
def engine(tiny_checkpoint, tmp_path_factory):
    preset = HardwarePreset(
        name="two",
        title="Two ranks",
        description="",
        source="test",
        checkpoint="tiny",
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        world_size=2,
        parallel=Parallel(ulysses_degree=2, fsdp=True),
        deadlines=Deadlines(start_s=60, load_s=120),
    )
    opened = NativeEngine(preset, tiny_checkpoint, Settings(data_dir=tmp_path_factory.mktemp("data")))
    yield opened
    opened.close()
    assert not any(alive(pid) for pid in opened.pids)


def test_a_job_over_two_ranks_is_that_of_one(engine, tiny_checkpoint, tmp_path):
    order = order_of(tmp_path, steps=3, frames=FRAMES, tensors=tmp_path / "t.safetensors")
    events = list(engine.generate(order))
    assert isinstance(events[-1], Succeeded)
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2, 3]
    assert [event.done for event in events if isinstance(event, FramesDone)][-1] == FRAMES
    found = load_file(order.tensors)
    alone = render(0, 1, {}, tiny_checkpoint, tmp_path, [(order.request, order.media)], {})[0]
    for name in ("latents", "audio_latents", "audio"):
        assert np.array_equal(found[name], alone[name])
    details = events[-1].details
    assert details["world_size"] == 2
    assert details["parallel"] == {
        "world_size": 2,
        "ulysses": {"degree": 2, "rank": 0},
        "exchange": "gathered",
        "tensor_parallel": {"size": 1, "rank": 0},
        "fsdp": True,
        "encodes": True,
        "decodes_tiles": True,
    }


def test_each_rank_says_once_in_its_log_what_was_chosen(engine):
    list(engine.start())
    for rank, path in enumerate(engine.log_paths):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("Ready")]
        told = rf"Ready after \d+\.\d s: rank {rank} of 2, Ulysses 2 gathered, FSDP, attention (\w+)"
        assert [re.fullmatch(told, line)[1] for line in lines] == ["sdpa"]


def test_cancelled_in_the_middle_both_ranks_are_ready_again(engine, tmp_path):
    steps = 60
    for number in range(2):
        for event in engine.generate(order_of(tmp_path, f"cancelled{number}", steps=steps, frames=FRAMES)):
            if isinstance(event, StepDone) and event.step == 2 + number:
                engine.cancel()
        assert isinstance(event, Cancelled)
        assert event.stage is Stage.DENOISE and event.step < steps - 10
    pids = engine.pids
    for event in engine.generate(order_of(tmp_path, "decoding", steps=2, frames=FRAMES)):
        if isinstance(event, StageFinished) and event.stage is Stage.DENOISE:
            engine.cancel()
    assert isinstance(event, Cancelled) and event.stage is Stage.DECODE
    assert isinstance(list(engine.generate(order_of(tmp_path, "after", steps=2, frames=FRAMES)))[-1], Succeeded)
    assert engine.pids == pids


def test_a_rank_killed_while_the_other_waits_for_it_ends_the_job_on_both(engine, tmp_path):
    events, killed = [], 0.0
    for event in engine.generate(order_of(tmp_path, steps=200, frames=FRAMES)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            os.kill(engine.pids[1], signal.SIGSTOP)
            time.sleep(0.5)  # many forwards: rank 0 now stands in a collective
            os.kill(engine.pids[1], signal.SIGKILL)
            killed = time.monotonic()
    assert time.monotonic() - killed < 5
    assert isinstance(events[-1], Failed)
    assert events[-1].reason == "rank 1 was killed by SIGKILL in stage denoise"
    assert ends(events) == events[-1:]
    assert not any(alive(pid) for pid in engine.pids)
    assert not list((tmp_path / "job").iterdir())
