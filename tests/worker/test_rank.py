import os
import queue
import signal
import subprocess
import sys

import pytest

from backend.presets import Device, Dtype
from backend.process.channel import CLOSED, Channel, pair
from backend.process.child import REPOSITORY
from backend.process.messages import Answer, Pulse, Ready, Setup, Shutdown
from backend.worker.main import EXIT_ORPHANED


@pytest.fixture
def rank(tmp_path):
    """A bare rank: its process, our end of its line, and what it said."""
    opened = []

    def start(parent=None):
        ours, theirs = pair()
        fd = str(theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "backend.worker.main", "--fd", fd, "--parent", str(parent or os.getpid())],
            pass_fds=(theirs.fileno(),),
            cwd=REPOSITORY,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        said = queue.SimpleQueue()
        channel = Channel(ours, Answer, "rank 0")
        channel.read_into(said.put)
        opened.append((process, channel))
        return process, channel, said, ours

    yield start
    for process, channel in opened:
        process.kill()
        process.wait()
        channel.close()


def setup(tmp_path, checkpoint="stub:", model="stub"):
    return Setup(
        run="r",
        rank=0,
        world_size=1,
        model=model,
        checkpoint=checkpoint,
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        rendezvous=tmp_path / "x",
        cache_dir=tmp_path,
    )


def until(said, kind):
    while not isinstance(item := said.get(timeout=10), kind):
        assert item is not CLOSED
    return item


def test_a_rank_loads_beats_while_idle_and_leaves_when_told(rank, tmp_path):
    process, channel, said, _ = rank()
    channel.send(setup(tmp_path))
    assert until(said, Ready).pid == process.pid
    pulse = until(said, Pulse)
    assert pulse.stage is None
    assert pulse.rss_bytes > 2**20
    channel.send(Shutdown())
    assert process.wait(timeout=5) == 0


def test_it_ends_at_end_of_file_in_any_state(rank, tmp_path):
    process, channel, _, _ = rank()
    channel.close()
    assert process.wait(timeout=5) == -signal.SIGKILL
    process, channel, said, _ = rank()
    channel.send(setup(tmp_path, "stub:load_s=60"))
    until(said, Pulse)
    channel.close()
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_it_ends_when_the_parent_talks_nonsense(rank):
    process, _, _, ours = rank()
    ours.sendall(b"what?\n")
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_an_orphan_ends_before_it_does_anything(rank):
    process, _, _, _ = rank(parent=1 if os.getpid() != 1 else 2)
    assert process.wait(timeout=5) == EXIT_ORPHANED


@pytest.mark.parametrize(
    ("checkpoint", "model", "says"),
    [("stub:nonsense=1", "stub", "unknown key 'nonsense'"), ("x", "gpt", "model=gpt: must be one of native, stub")],
)
def test_a_bad_setup_is_answered_in_words_and_exit_1(rank, tmp_path, checkpoint, model, says):
    from backend.process.messages import Broken

    process, channel, said, _ = rank()
    channel.send(setup(tmp_path, checkpoint, model))
    assert says in until(said, Broken).reason
    assert process.wait(timeout=5) == 1
