import json
import os
import signal
import time
from pathlib import Path

import av
import pytest
from ranks import BRISK, alive, children, descriptors, ends, fleet, render, wait_until

from backend.errors import EngineFailure, NotNow
from backend.events import Cancelled, Failed, Heartbeat, LoadProgress, StageStarted, StepDone, Succeeded
from backend.presets import Deadlines
from backend.process.fleet import FleetState
from backend.types import Stage


@pytest.fixture
def open_fleet(tmp_path):
    opened = []

    def make(checkpoint="stub:", **kwargs):
        opened.append(fleet(tmp_path, checkpoint, **kwargs))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
        assert not any(alive(pid) for pid in one.pids)
    assert not [path for path in (tmp_path / "data" / "run").glob("*-*")]


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_render_twice_and_stay_warm(open_fleet, tmp_path, world_size):
    ranks = open_fleet("stub:load_s=0.1", world_size=world_size)
    loading = list(ranks.start())
    assert [event.done_bytes for event in loading if isinstance(event, LoadProgress)] == [1, 2, 3, 4]
    assert ranks.state is FleetState.READY
    before = ranks.pids
    for job in ("a", "b"):
        events = list(ranks.generate(render(tmp_path, job)))
        assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2, 3, 4, 5]
        assert ends(events) == events[-1:]
        assert isinstance(events[-1], Succeeded)
        with av.open(str(events[-1].video)) as file:
            assert sum(1 for _ in file.decode(video=0)) == 22
            assert file.streams.audio[0].rate == 32_000
        assert json.loads(events[-1].sidecar.read_text()) == events[-1].details
    assert ranks.pids == before
    assert len(set(before)) == world_size
    assert all(os.getpgid(pid) == pid and os.getsid(pid) == pid for pid in before)


def test_a_fleet_lives_once(open_fleet, tmp_path):
    ranks = open_fleet()
    with pytest.raises(NotNow, match="new"):
        next(ranks.generate(render(tmp_path)))
    list(ranks.start())
    with pytest.raises(NotNow, match="ready"):
        next(ranks.start())
    ranks.close()
    ranks.close()
    assert ranks.state is FleetState.CLOSED
    assert ranks.failure is None


@pytest.mark.parametrize(
    ("checkpoint", "stage"),
    [
        ("stub:encode_s=10", Stage.ENCODE),
        ("stub:step_s=0.2", Stage.DENOISE),
        ("stub:decode_s=10", Stage.DECODE),
        ("stub:mux_s=10", Stage.MUX),
    ],
)
def test_cancel_at_each_stage_leaves_no_file_and_a_warm_fleet(open_fleet, tmp_path, checkpoint, stage):
    ranks = open_fleet(checkpoint, world_size=2)
    list(ranks.start())
    order = render(tmp_path, "first", steps=20 if stage is Stage.DENOISE else 2)
    events, asked = [], None
    for event in ranks.generate(order):
        events.append(event)
        if isinstance(event, StageStarted) and event.stage is stage:
            asked = time.monotonic()
            ranks.cancel(order.job)
    assert time.monotonic() - asked < 2
    assert isinstance(events[-1], Cancelled)
    assert events[-1].stage is stage
    assert list(order.folder.iterdir()) == []
    assert ranks.state is FleetState.READY


def test_cancel_of_another_job_is_ignored(open_fleet, tmp_path):
    ranks = open_fleet("stub:step_s=0.05")
    list(ranks.start())
    stream = ranks.generate(render(tmp_path, "mine"))
    next(stream)
    ranks.cancel("other")
    assert isinstance(list(stream)[-1], Succeeded)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV")])
def test_a_rank_killed_in_mid_step_fails_the_job_by_name(open_fleet, tmp_path, number, name):
    ranks = open_fleet("stub:step_s=0.3", world_size=2)
    list(ranks.start())
    events, killed = [], None
    for event in ranks.generate(render(tmp_path, steps=20)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 3:
            killed = time.monotonic()
            os.kill(ranks.pids[1], number)
    assert time.monotonic() - killed < 5
    end = events[-1]
    assert isinstance(end, Failed)
    assert (end.rank, end.stage) == (1, Stage.DENOISE)
    assert end.reason == f"rank 1 was killed by {name} in stage denoise"
    assert not any(alive(pid) for pid in ranks.pids)
    assert ranks.state is FleetState.DEFUNCT
    assert ranks.failure.rank == 1


def test_a_stopped_rank_is_found_by_silence_and_said_to_be_halted(open_fleet, tmp_path):
    ranks = open_fleet("stub:step_s=0.1", world_size=2)
    list(ranks.start())
    events, stopped = [], None
    for event in ranks.generate(render(tmp_path, steps=200)):
        events.append(event)
        if isinstance(event, StepDone) and event.step == 2:
            stopped = time.monotonic()
            os.kill(ranks.pids[1], signal.SIGSTOP)
    assert BRISK.silence_s - 1 < time.monotonic() - stopped < BRISK.silence_s + 5
    assert events[-1].rank == 1
    assert "gave no sign of life" in events[-1].reason
    assert "halted by a signal (SIGSTOP)" in events[-1].reason
    assert not any(alive(pid) for pid in ranks.pids)


def test_a_rank_halted_while_it_loads_is_found_too(open_fleet):
    """Silence is allowed there, since reading a file may hold the interpreter; being halted is not."""
    ranks = open_fleet("stub:load_s=60", world_size=2)
    stream, halted = ranks.start(), None
    with pytest.raises(EngineFailure, match=r"rank 1 did nothing for .*halted by a signal") as caught:
        for event in stream:
            if halted is None and isinstance(event, StageStarted):
                halted = time.monotonic()
                os.kill(ranks.pids[1], signal.SIGSTOP)
    assert caught.value.rank == 1
    assert time.monotonic() - halted < 8  # silence_s is 3 here
    assert not any(alive(pid) for pid in ranks.pids)


def test_a_heartbeat_does_not_hide_a_main_thread_that_hangs(open_fleet, tmp_path):
    limits = Deadlines(silence_s=20, step_s=2)
    ranks = open_fleet("stub:spin=denoise,at_step=2,rank=1,step_s=0.1", world_size=2, deadlines=limits)
    list(ranks.start())
    events = list(ranks.generate(render(tmp_path, steps=200)))
    assert isinstance(events[-1], Failed)
    assert events[-1].rank == 1
    assert "made no progress for" in events[-1].reason
    assert "(limit 2 s)" in events[-1].reason
    assert any(isinstance(event, Heartbeat) and event.rank == 1 for event in events)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit=load,exit_code=7", "rank 1 exited with code 7 in stage load"),
        ("fail=load", "rank 1 failed: RuntimeError: stub was told to fail in stage load"),
        ("oom=load", "out of memory on rank 1 in stage load: failed: MemoryError: Unable to allocate 61.7 GiB"),
        ("garbage=load", "rank 1 broke its channel: rank 1: sent a line nobody can read"),
    ],
)
def test_load_failure_of_one_rank_ends_all(open_fleet, fault, says):
    ranks = open_fleet(f"stub:{fault},rank=1", world_size=2)
    with pytest.raises(EngineFailure) as caught:
        list(ranks.start())
    assert says in str(caught.value)
    assert (caught.value.rank, caught.value.stage) == (1, Stage.LOAD)
    assert len(ranks.pids) == 2
    assert not any(alive(pid) for pid in ranks.pids)


@pytest.mark.parametrize("stage", ["encode", "denoise", "decode", "mux"])
def test_an_unexpected_error_at_any_stage_gives_the_ranks_own_words(open_fleet, tmp_path, stage):
    ranks = open_fleet(f"stub:fail={stage}")
    list(ranks.start())
    events = list(ranks.generate(render(tmp_path)))
    assert ends(events) == events[-1:]
    assert events[-1].reason.startswith("rank 0 failed: RuntimeError: stub was told to fail")
    assert events[-1].stage == Stage(stage)
    assert "Traceback (most recent call last)" in events[-1].log_tail
    assert ranks.state is FleetState.DEFUNCT


def test_a_refused_request_fails_the_job_and_keeps_the_rank(open_fleet, tmp_path):
    ranks = open_fleet("stub:refuse=denoise")
    list(ranks.start())
    events = list(ranks.generate(render(tmp_path)))
    assert isinstance(events[-1], Failed)
    assert events[-1].reason == "stub was told to refuse in stage denoise"
    assert events[-1].rank is None  # no rank is to blame, and none has to be replaced
    assert ranks.state is FleetState.READY
    assert all(alive(pid) for pid in ranks.pids)


def test_a_complete_result_stands_though_another_rank_dies_after_it(open_fleet, tmp_path):
    ranks = open_fleet("stub:hang=denoise,at_step=1,rank=1", world_size=2, deadlines=Deadlines(silence_s=20, step_s=2))
    list(ranks.start())
    events = list(ranks.generate(render(tmp_path)))
    assert isinstance(events[-1], Succeeded)
    assert wait_until(lambda: ranks.failure is not None, 4)
    assert ranks.failure.rank == 1


def test_an_idle_rank_that_dies_makes_the_fleet_defunct_at_once(open_fleet):
    ranks = open_fleet(world_size=2)
    list(ranks.start())
    os.kill(ranks.pids[0], signal.SIGKILL)
    assert wait_until(lambda: ranks.failure is not None, 4)
    assert ranks.state is FleetState.DEFUNCT
    assert ranks.failure.reason == "rank 0 was killed by SIGKILL"
    assert not alive(ranks.pids[1])


def test_a_rank_deaf_to_sigterm_is_killed(open_fleet, tmp_path):
    ranks = open_fleet("stub:ignore_term=1,hang=denoise")
    list(ranks.start())
    stream = ranks.generate(render(tmp_path))
    while not isinstance(event := next(stream), StageStarted) or event.stage is not Stage.DENOISE:
        pass
    time.sleep(0.5)  # the stage is told before the rank hangs in it; until then it would still hear that it is to end
    began = time.monotonic()
    ranks.close()
    assert 1.5 < time.monotonic() - began < 8  # TERM_S passed before SIGKILL
    assert not any(alive(pid) for pid in ranks.pids)
    assert [event.reason for event in stream] == ["the engine was closed while it worked"]


def test_closing_while_it_starts_ends_the_start(open_fleet):
    ranks = open_fleet("stub:load_s=20", world_size=2)
    stream = ranks.start()
    next(stream)
    ranks.close()
    with pytest.raises(EngineFailure, match="closed while it worked"):
        list(stream)


def test_a_run_folder_that_cannot_be_made_is_a_failure_in_words(open_fleet, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run").write_text("in the way")
    with pytest.raises(EngineFailure, match="could not be run: FileExistsError"):
        list(open_fleet().start())
    (tmp_path / "data" / "run").unlink()


def test_twenty_lives_leak_nothing(tmp_path):
    ranks = fleet(tmp_path)
    list(ranks.start())
    ranks.close()
    fds, before = descriptors(), children()
    for _ in range(20):
        ranks = fleet(tmp_path)
        list(ranks.start())
        ranks.close()
    assert descriptors() <= fds
    assert children() == before


def test_ranks_get_no_secrets_but_on_demand(open_fleet, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("SOME_API_KEY", "x")
    for with_token in (False, True):
        ranks = open_fleet(with_token=with_token)
        list(ranks.start())
        environ = Path(f"/proc/{ranks.pids[0]}/environ").read_bytes()
        assert (b"HF_TOKEN=hf_secret" in environ) is with_token
        assert b"SOME_API_KEY" not in environ


def test_nothing_comes_by_standard_input_or_output(open_fleet):
    ranks = open_fleet()
    list(ranks.start())
    assert Path(f"/proc/{ranks.pids[0]}/fd/0").readlink() == Path("/dev/null")
    for descriptor in (1, 2):
        assert Path(f"/proc/{ranks.pids[0]}/fd/{descriptor}").readlink() == ranks.log_paths[0]
