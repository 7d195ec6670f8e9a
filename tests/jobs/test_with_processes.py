"""Jobs over real rank processes (stub model) and real media children: faults, recovery, kill -9 of the program."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import psutil
import pytest
from job_fakes import World, fake_services, wait_until
from PIL import Image

from backend import limits
from backend.api import ADMIN, Backend, Health, JobState
from backend.engines.stub import StubEngine
from backend.errors import InvalidRequest
from backend.events import TERMINAL, Cancelled, Failed, Interrupted, StepDone, Succeeded
from backend.jobs.services import Services, real_services
from backend.settings import Settings
from backend.types import GenerationRequest, Reference, Sampling

ROOT = Path(__file__).resolve().parent.parent.parent


def stub_services(line: str, ranks: int = 2) -> Services:
    """The program's own services, with a stub fleet and no checkpoint to build."""

    def engine(preset, checkpoint, settings):
        deadlines = dataclasses.replace(preset.deadlines, silence_s=3.0)  # a stopped rank is found soon
        return StubEngine(dataclasses.replace(preset, world_size=ranks, deadlines=deadlines), Path(line), settings)

    fakes = fake_services(World())
    return dataclasses.replace(
        real_services(engine), find_checkpoint=fakes.find_checkpoint, ensure_checkpoint=fakes.ensure_checkpoint
    )


def open_stub(folder: Path, line: str = "stub:step_s=0.05", ranks: int = 2) -> Backend:
    return Backend(Settings(data_dir=folder), preset="tiny-cpu", services=stub_services(line, ranks))


@pytest.fixture
def backend(tmp_path):
    backend = open_stub(tmp_path / "data")
    yield backend
    backend.close()
    assert not psutil.Process().children(recursive=True)


def ask(prompt="a boat", duration=4.0, steps=6, **media):
    frames = limits.num_frames_for_duration(duration)
    sampling = Sampling(num_frames=frames, width=64, height=64, num_inference_steps=steps, seed=1)
    return GenerationRequest(prompt=prompt, sampling=sampling, **media)


def end_of(backend, job):
    return list(backend.events(job, owner=ADMIN))[-1]


def rank_pids():
    return [child.pid for child in psutil.Process().children() if "backend.worker" in " ".join(child.cmdline())]


def decoded_frames(path):
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize("duration", [4.0, 7.3])
def test_d07_frames_agree_in_plan_record_sidecar_and_file(backend, duration):
    request = ask(duration=duration)
    plan = backend.plan(request)
    job = backend.submit(request, owner="ann")
    end = end_of(backend, job)
    assert isinstance(end, Succeeded), end
    record = backend.job(job, owner="ann")
    sidecar = json.loads(record.sidecar.read_text())
    assert end.details == sidecar
    expected = {4.0: 107, 7.3: 175}[duration]  # h3-facts 2: up to the next 17n+5 frames at 24 fps
    assert {plan.num_frames, record.request.sampling.num_frames, decoded_frames(record.video)} == {expected}
    assert sidecar["request"]["sampling"]["num_frames"] == expected


def test_real_media_are_looked_at_before_a_job_exists(backend, tmp_path):
    picture, text = tmp_path / "photo.bin", tmp_path / "clip.png"
    Image.new("RGB", (640, 360), "red").save(picture, format="PNG")  # kinds are told by content
    text.write_text("ffconcat version 1.0\nfile other.mp4\n")
    with pytest.raises(InvalidRequest) as caught:
        backend.submit(ask(first_frame=text, last_frame=tmp_path / "absent.png"), owner="ann")
    assert "first_frame" in str(caught.value)
    assert "absent.png" in str(caught.value)
    assert backend.history(owner=ADMIN) == []
    plan = backend.plan(GenerationRequest(prompt="x", first_frame=picture))
    assert (plan.width, plan.height) == (224, 128)
    job = backend.submit(ask(references=(Reference(path=picture),)), owner="ann")
    assert backend.job(job, owner="ann").tags == (("<Picture 1>",),)
    assert isinstance(end_of(backend, job), Succeeded)
    assert not (backend.settings.jobs_dir / job / "prepared").exists()


def test_d14_a_killed_rank_fails_its_job_and_nothing_else(tmp_path, capsys):
    backend = open_stub(tmp_path / "data", "stub:step_s=0.3")
    first = backend.submit(ask(steps=40), owner="ann")
    for event in backend.events(first, owner="ann"):
        if isinstance(event, StepDone) and event.step == 3:
            break
    old = rank_pids()
    assert len(old) == 2
    os.kill(old[1], signal.SIGKILL)
    killed = time.monotonic()
    others = [backend.submit(ask(f"{index}", steps=2), owner="ann") for index in range(3)]
    states = []
    while not backend.job(first, owner="ann").state.ended:
        states.append(backend.status().health)
        assert time.monotonic() - killed < 20
        time.sleep(0.02)
    failed_after = time.monotonic() - killed
    end = end_of(backend, first)
    assert isinstance(end, Failed)
    assert "SIGKILL" in end.reason
    assert end.rank == 1
    wait_until(lambda: backend.status().health is not Health.BUSY or backend.status().running != first, 5)
    ends = [end_of(backend, job) for job in others]
    done_after = time.monotonic() - killed
    assert all(isinstance(end, Succeeded) for end in ends), ends
    assert not set(old) & set(rank_pids())
    with capsys.disabled():
        print(f"\nkilled rank: job failed after {failed_after:.2f} s, three others done after {done_after:.2f} s")
    assert failed_after < 5
    assert done_after < 60
    backend.close()


@pytest.mark.parametrize("stage", ["denoise", "decode"])
def test_cancel_in_the_engine_is_prompt_and_leaves_it_warm(tmp_path, stage):
    backend = open_stub(tmp_path / "data", "stub:step_s=0.1,decode_s=0.3")
    job, after = backend.submit(ask(steps=6), owner="ann"), backend.submit(ask(steps=2), owner="ann")
    for event in backend.events(job, owner="ann"):
        if stage == "denoise" and isinstance(event, StepDone):
            break
        if getattr(event, "stage", None) == stage == "decode":
            break
    pids = rank_pids()
    began = time.monotonic()
    backend.cancel(job, owner="ann")
    assert isinstance(end_of(backend, job), Cancelled)
    assert time.monotonic() - began < 2
    assert isinstance(end_of(backend, after), Succeeded)
    assert rank_pids() == pids
    backend.close()


PROGRAM = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests", {root!r} + "/tests/jobs"]
from test_with_processes import ask, open_stub
from backend.events import StepDone
backend = open_stub(Path({data!r}), "stub:step_s=0.2")
job = backend.submit(ask("running", steps=100), owner="ann")
print(job, flush=True)
for _ in range(2):
    print(backend.submit(ask("waiting", steps=3), owner="ann"), flush=True)
for event in backend.events(job, owner="ann"):
    if isinstance(event, StepDone):
        print("step", flush=True)
        break
time.sleep(60)
"""


def test_d15_kill_9_of_the_program_leaves_no_process_and_each_job_one_end(tmp_path):
    code = PROGRAM.format(root=str(ROOT), data=str(tmp_path / "data"))
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    running, *waiting = [program.stdout.readline().strip() for _ in range(3)]
    assert program.stdout.readline() == "step\n"
    children = psutil.Process(program.pid).children(recursive=True)
    assert len(children) >= 2
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    backend = open_stub(tmp_path / "data")  # the lock went with the process
    try:
        assert isinstance(end_of(backend, running), Interrupted)
        assert all(isinstance(end_of(backend, job), Succeeded) for job in waiting)
        again = backend.retry(running, owner="ann")
        assert backend.job(again, owner="ann").request.sampling.seed == 1
        backend.cancel(again, owner="ann")
        end_of(backend, again)
        for record in backend.history(owner=ADMIN):
            events = list(backend.events(record.id, owner=ADMIN))
            assert sum(isinstance(event, TERMINAL) for event in events) == 1
            assert (record.state is JobState.SUCCEEDED) == (record.video is not None)
    finally:
        backend.close()


def test_a_disk_that_takes_no_more_fails_the_job_in_words_and_the_program_goes_on(tmp_path):
    backend = open_stub(tmp_path / "data", ranks=1)
    end_of(backend, backend.submit(ask(), owner="ann"))
    (rank,) = rank_pids()
    usual = resource.prlimit(rank, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    job = backend.submit(ask(), owner="ann")
    end = end_of(backend, job)
    assert isinstance(end, Failed)
    assert "video.mp4" in end.reason
    assert not [path for path in backend.job(job, owner="ann").folder.rglob("*") if path.is_file()]
    for rank in rank_pids():
        resource.prlimit(rank, resource.RLIMIT_FSIZE, usual)
    assert isinstance(end_of(backend, backend.submit(ask(), owner="ann")), Succeeded)
    backend.close()
