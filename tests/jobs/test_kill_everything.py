"""Each kind of process killed, and jobs cancelled, at each stage: one end, nothing left, and the next job is fine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from job_fakes import wait_until
from PIL import Image
from test_with_processes import ask, decoded_frames, end_of, open_stub, rank_pids

from backend.events import Cancelled, Failed, Interrupted, StageStarted, StepDone, Succeeded
from backend.types import Reference

ROOT = Path(__file__).resolve().parents[2]
SLOW = "stub:load_s=0.4,encode_s=0.6,step_s=0.15,decode_s=0.1,mux_s=0.6"
STAGES = ("load", "encode", "denoise", "decode", "mux")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A program whose every stage lasts long enough to be met in it."""
    backend = open_stub(tmp_path_factory.mktemp("kill") / "data", SLOW)
    yield backend
    backend.close()
    left = psutil.Process().children(recursive=True)
    assert not left
    assert not [path for path in backend.settings.run_dir.iterdir() if path.is_dir() and path.name != "page"]


def until_stage(backend, job, stage):
    for event in backend.events(job, owner="ann", timeout_s=30):
        if isinstance(event, StageStarted) and event.stage == stage:
            return
    pytest.fail(f"the job never came to {stage}")


def cold(backend):
    """End the fleet, so that the next job loads one."""
    backend._slots[0].close()


def assert_nothing_of(backend, job):
    folder = backend.job(job, owner="ann").folder
    assert not [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "inputs"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_killed_at_each_stage_fails_this_job_and_no_other(slow, stage):
    if stage == "load":
        cold(slow)
    job = slow.submit(ask(steps=4), owner="ann")
    until_stage(slow, job, stage)
    wait_until(lambda: len(rank_pids()) == 2)
    old, began = rank_pids(), time.monotonic()
    os.kill(old[0], signal.SIGKILL)  # the one that reports and writes
    end = end_of(slow, job)
    assert time.monotonic() - began < 5
    assert isinstance(end, Failed), end
    assert "SIGKILL" in end.reason
    assert_nothing_of(slow, job)
    after = slow.submit(ask(steps=2), owner="ann")
    assert isinstance(end_of(slow, after), Succeeded)
    assert not set(old) & set(rank_pids())


@pytest.mark.parametrize("when", [*STAGES, "first step", "last step", "queued", "preparing"])
def test_a_cancel_at_each_stage_leaves_nothing(slow, when, tmp_path):
    if when == "load":
        cold(slow)
    if when == "queued":
        slow.pause()
    media = {}
    if when == "preparing":
        Image.effect_noise((2000, 1500), 60).convert("RGB").save(tmp_path / "a.jpg", quality=100)
        media["references"] = (Reference(path=tmp_path / "a.jpg"),)
    job = slow.submit(ask(steps=5, **media), owner="ann")
    if when in STAGES:
        until_stage(slow, job, when)
    elif when == "preparing":
        until_stage(slow, job, "prepare")
    elif when != "queued":
        wanted = 1 if when == "first step" else 4  # of the four forwards of five sigma points
        for event in slow.events(job, owner="ann", timeout_s=30):
            if isinstance(event, StepDone) and event.step == wanted:
                break
    began = time.monotonic()
    slow.cancel(job, owner="ann")
    slow.resume()
    end = end_of(slow, job)
    assert time.monotonic() - began < 3
    assert isinstance(end, Cancelled), end
    assert_nothing_of(slow, job)


def test_a_killed_sandbox_child_fails_its_job_in_words(slow, tmp_path, monkeypatch):
    """The child that decodes an upload dies (out of memory, say) while a job prepares its media."""
    Image.effect_noise((4000, 3000), 60).convert("RGB").save(tmp_path / "big.jpg", quality=100)
    job = slow.submit(ask(references=(Reference(path=tmp_path / "big.jpg"),)), owner="ann")

    def kill_one():
        for child in psutil.Process().children():
            try:
                if "backend.media.sandbox" in " ".join(child.cmdline()):
                    child.kill()
                    return True
            except psutil.Error:
                continue
        return False

    wait_until(kill_one, 10)
    end = end_of(slow, job)
    assert isinstance(end, Failed), end
    assert "SIGKILL" in end.reason
    assert end.stage == "prepare"
    assert isinstance(end_of(slow, slow.submit(ask(steps=2), owner="ann")), Succeeded)


PROGRAM = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests", {root!r} + "/tests/jobs"]
from test_with_processes import ask, open_stub
from backend.events import StageStarted
backend = open_stub(Path({data!r}), {line!r})
job = backend.submit(ask("running", steps=4), owner="ann")
for event in backend.events(job, owner="ann"):
    if isinstance(event, StageStarted) and event.stage == {stage!r}:
        print(job, flush=True)
        break
time.sleep(60)
"""


@pytest.mark.parametrize("stage", STAGES)
def test_the_program_killed_at_each_stage_leaves_no_process_and_an_interrupted_job(tmp_path, stage):
    code = PROGRAM.format(root=str(ROOT), data=str(tmp_path / "data"), line=SLOW, stage=stage)
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    job = program.stdout.readline().strip()
    if stage == "load":
        time.sleep(0.2)
    children = psutil.Process(program.pid).children(recursive=True)
    program.kill()
    program.wait()
    program.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    backend = open_stub(tmp_path / "data")
    try:
        assert isinstance(end_of(backend, job), Interrupted)
        assert_nothing_of(backend, job)
        if stage == "mux":  # one click runs it again, with its seed
            again = backend.retry(job, owner="ann")
            assert isinstance(end_of(backend, again), Succeeded)
            assert decoded_frames(backend.job(again, owner="ann").video) == 107
    finally:
        backend.close()
