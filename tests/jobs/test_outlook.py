"""Through the door: forecasts, refusals with a way out, GPUs given to fleets, and who sits where."""

import dataclasses
import sys
from pathlib import Path

import pytest
from job_fakes import FakeCheckpoint, World, fake_services, request, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hardware"))
from shapes import machine

from backend.api import ADMIN, Backend
from backend.engines.native import NativeEngine
from backend.errors import EngineFailure, InvalidRequest, PresetError
from backend.presets import hardware_presets
from backend.process.runs import RunFolder
from backend.settings import Settings, from_environment
from backend.types import Stage

RELEASED = FakeCheckpoint(name="MiniMaxAI/MiniMax-H3")


@pytest.fixture
def open_on(tmp_path, monkeypatch):
    """Open a backend on an imagined machine with the released model."""
    opened = []

    def make(hardware, **options):
        monkeypatch.setattr("backend.jobs.machine.probe", lambda *_: hardware)
        services = dataclasses.replace(fake_services(World()), find_checkpoint=lambda preset, settings: RELEASED)
        backend = Backend(Settings(data_dir=tmp_path / f"data{len(opened)}"), services=services, **options)
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.close()


def test_a_forecast_before_and_after_a_job(tmp_path):
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=fake_services(World()))
    first = backend.forecast(request())
    assert first.refusal is None
    assert {time.stage for time in first.times} == set(Stage)
    assert first.shape.num_frames == 107
    list(backend.events(backend.submit(request(), owner="ann"), owner=ADMIN))
    wait_until(lambda: backend.status().running is None)
    (rank,) = backend.topology()
    assert (rank.fleet, rank.rank, rank.state, rank.gpu_index, rank.memory) == (0, 0, "ready", None, ())
    assert next(time for time in backend.forecast(request()).times if time.stage is Stage.LOAD).seconds == 0
    backend.close()
    assert backend.topology() == ()


def test_what_cannot_fit_is_refused_before_a_row_exists_with_what_would(open_on):
    backend = open_on(machine(1, 79.65, ram=64, name="H100"), preset="one-gpu")
    with pytest.raises(InvalidRequest) as caught:
        backend.submit(request(), owner="ann")
    (problem,) = caught.value.problems
    assert problem.rule == "needs 88 GiB of host RAM, this machine has 64 GiB"
    assert "no preset of this machine holds it" in problem.way_out
    assert problem.rule in backend.check(request())
    assert backend.history(owner=ADMIN) == []
    assert backend.forecast(request()).refusal == problem  # the page shows why, and the numbers
    roomy = open_on(machine(1, 79.65, ram=256, name="H100"))
    assert roomy.choice().preset.name == "one-gpu"
    assert roomy.plan(request()).num_frames == 107


def test_fleets_are_given_gpus_of_their_own(open_on):
    backend = open_on(machine(4, 140.4, name="H200"), fleets=2)
    choice = backend.choice()
    assert (choice.preset.name, choice.fleets) == ("2x141gb", 2)
    assert choice.shares == (("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"))
    assert choice.reason.endswith("2 jobs run at once, each on 2 GPUs of its own.")
    assert [slot._settings.gpus for slot in backend._slots] == list(choice.shares)
    reason = next(item.unavailable for item in backend.presets() if item.preset.name == "4x141gb")
    assert reason == (
        "needs 4 GPUs with 138 GiB, found 2 x H200 (140 GiB) for each of 2 jobs at once; "
        "start the program with --fleets 1"
    )


@pytest.mark.parametrize(
    ("count", "fleets", "preset", "shares"),
    [(8, 0, "1x141gb", 8), (8, 1, "8x141gb", 1), (8, None, "8x141gb", 1), (8, 2, "4x141gb", 2), (8, 3, "2x141gb", 3)],
)
def test_one_job_faster_or_more_jobs_at_once(open_on, count, fleets, preset, shares):
    choice = open_on(machine(count, 140.4, name="H200"), fleets=fleets).choice()
    assert (choice.preset.name, len(choice.shares)) == (preset, shares)
    given = [uuid for share in choice.shares for uuid in share]
    assert len(given) == len(set(given))


def test_more_fleets_than_gpus_or_memory_name_what_fits(open_on):
    with pytest.raises(PresetError, match=r"fleets=3: 2x141gb needs 6 GPUs .* for 3 jobs at once, .*; fleets=2 fits"):
        open_on(machine(4, 140.4, name="H200"), preset="2x141gb", fleets=3)
    with pytest.raises(PresetError, match=r"280 GiB of host RAM for 2 jobs at once, found 200 GiB; fleets=1 fits"):
        open_on(machine(2, 79.65, ram=200, name="H100"), preset="one-gpu", fleets=2)


def test_an_engine_hands_its_gpus_to_its_ranks(tmp_path, monkeypatch):
    preset = hardware_presets()["2x80gb"]
    mixed = machine(3, 79.65, name="H100")
    small = dataclasses.replace(mixed.gpus[0], memory_total_gib=24.0, name="display")
    hardware = dataclasses.replace(mixed, gpus=(small, *mixed.gpus[1:]))
    asked = []

    def probe(folder=None, only=()):
        asked.append(only)
        return hardware

    monkeypatch.setattr("backend.engines.native.probe", probe)
    engine = NativeEngine(preset, tmp_path, Settings(data_dir=tmp_path).with_gpus(("GPU-0", "GPU-1", "GPU-2")))
    assert engine.gpus() == ("GPU-1", "GPU-2")
    assert asked == [("GPU-0", "GPU-1", "GPU-2")]
    run = RunFolder(tmp_path / "run")
    environment = dataclasses.replace(engine._spec, gpus=engine.gpus()).environment(run)
    run.close()
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    hardware = dataclasses.replace(hardware, gpus=hardware.gpus[:2])
    with pytest.raises(EngineFailure, match="preset=2x80gb: needs 2 GPUs with 78 GiB, found"):
        engine.gpus()


def test_the_command_line_names_gpus(tmp_path):
    from app import _gpus, _parser

    options = _parser().parse_args(["doctor", "--gpus", "0, GPU-7", "--fleets", "2"])
    assert _gpus(options) == ("0", "GPU-7")
    assert options.fleets == 2
    assert from_environment(tmp_path, None, _gpus(options)).gpus == ("0", "GPU-7")
    assert _gpus(_parser().parse_args(["models", "list"])) == ()
