import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import alive, fleet, wait_until

from backend.process.child import REPOSITORY

OWNER = Path(__file__).with_name("owner.py")


def own(folder, checkpoint, mode):
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(folder), checkpoint, mode],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    process.stdout.close()
    return process, [int(word) for word in words[:2]], words[2:]


@pytest.mark.parametrize(
    ("checkpoint", "mode"),
    [
        ("stub:", "idle"),
        ("stub:step_s=0.05", "render"),
        ("stub:load_s=30", "start"),
        ("stub:ignore_term=1,hang=denoise", "render"),
    ],
)
def test_no_rank_outlives_its_parent(tmp_path, checkpoint, mode):
    process, pids, words = own(tmp_path, checkpoint, mode)
    assert all(alive(pid) for pid in pids)
    if mode != "start":
        assert words == ["ready"]  # though the thread that started them has ended
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    left = list((tmp_path / "data" / "run").glob("*-*"))
    assert len(left) == 1
    ranks = fleet(tmp_path)  # the next start sweeps
    list(ranks.start())
    assert not left[0].exists()
    ranks.close()


def test_a_stopped_rank_does_not_outlive_its_parent_either(tmp_path):
    process, pids, _ = own(tmp_path, "stub:", "idle")
    os.kill(pids[1], signal.SIGSTOP)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 10)
