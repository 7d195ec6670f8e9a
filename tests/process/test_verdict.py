import pytest

from backend.errors import memory_words
from backend.process.channel import CLOSED, ChannelError, Unreachable
from backend.process.child import Exit
from backend.process.exhaustion import HostMemory, host_memory, in_death
from backend.process.messages import Broken
from backend.process.verdict import Failure, Scene, report, root_cause
from backend.types import Stage

HOST = HostMemory(total_bytes=24 * 2**30, kills=0)


def failures(*items):
    return [Failure.of(rank, item, Stage.DENOISE) for rank, item in items]


@pytest.mark.parametrize(
    ("items", "culprit"),
    [
        ([(0, Broken(rank=0, reason="RuntimeError: Connection closed by peer")), (1, Exit(signal="SIGKILL"))], 1),
        ([(0, CLOSED), (0, Exit(code=1)), (1, Exit(signal="SIGSEGV"))], 1),
        ([(1, CLOSED), (1, Exit(code=7))], 1),
        ([(0, Exit(signal="SIGABRT")), (1, Broken(rank=1, reason="ValueError: bad shape"))], 1),
        ([(0, Broken(rank=0, reason="RuntimeError: [gloo] timed out")), (1, Exit(code=7))], 1),
        ([(0, Broken(rank=0, reason="ValueError: a")), (1, Broken(rank=1, reason="ValueError: b"))], 0),
        ([(0, Unreachable("rank 0: cannot send Setup: Broken pipe")), (0, CLOSED), (0, Exit(code=1))], 0),
        ([(1, ChannelError("rank 1: sent a line nobody can read")), (0, Exit(code=0))], 1),
    ],
)
def test_the_cause_is_named_not_its_consequences(items, culprit):
    assert root_cause(failures(*items)).rank == culprit


def test_report_holds_rank_signal_stage_and_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("loading\nlast words hf_ABCDEFGHIJKLMN\n")
    found = report(failures((1, Exit(signal="SIGSEGV"))), Scene((log, log), {}, HOST, survivors=(77,)))
    assert found.reason == ("rank 1 was killed by SIGSEGV in stage denoise; these processes could not be ended: 77")
    assert (found.rank, found.stage) == (1, Stage.DENOISE)
    assert found.log_tail == "loading\nlast words hf_[redacted]"


def test_torch_running_out_of_memory_is_named_with_its_numbers(tmp_path):
    words = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "139.72 GiB of which 1.02 GiB is free."
    )
    found = report(failures((0, Broken(rank=0, reason=words, stage=Stage.DECODE))), Scene((), {}, HOST))
    assert found.reason.startswith("out of memory on rank 0 in stage decode: ")
    assert "Tried to allocate 2.00 GiB" in found.reason
    assert "choose a smaller canvas" in found.reason


def test_the_kernels_kill_is_told_from_any_other():
    after = HostMemory(total_bytes=24 * 2**30, kills=1)
    assert in_death("SIGKILL", 23 * 2**30, HOST, HOST) is None
    assert in_death("SIGTERM", 23 * 2**30, HOST, after) is None
    assert "it held 23.0 GiB of 24.0 GiB" in in_death("SIGKILL", 23 * 2**30, HOST, after)


def test_the_last_line_about_memory_is_the_one():
    assert memory_words("a\nMemoryError: x\nstd::bad_alloc\nb") == "std::bad_alloc"
    assert memory_words("all is well") is None


def test_a_process_that_never_came_up_is_reported_by_its_exit():
    found = failures((0, Unreachable("rank 0: cannot send Setup: Broken pipe")), (0, Exit(code=1)))
    assert root_cause(found).why == "exited with code 1"


def test_memory_of_this_machine_can_be_read():
    memory = host_memory()
    assert 2**28 < memory.total_bytes < 2**50
    assert memory.kills >= 0
