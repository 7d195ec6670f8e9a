import os
import signal
import subprocess
import sys

from backend.process.child import REPOSITORY
from backend.process.runs import RunFolder, sweep

OWNER = """
import sys, time
from pathlib import Path
from backend.process.runs import RunFolder
run = RunFolder(Path(sys.argv[1]))
print(run.id, flush=True)
time.sleep(60)
"""


def test_a_run_leaves_nothing_and_closes_twice(tmp_path):
    run = RunFolder(tmp_path / "run")
    (run.temp / "x").write_text("y")
    assert run.path.stat().st_mode & 0o077 == 0
    run.close()
    run.close()
    assert not run.path.exists()


def test_two_runs_of_one_process_differ(tmp_path):
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    assert first.path != second.path
    first.close()
    second.close()


def test_sweep_takes_the_dead_and_spares_the_living(tmp_path):
    ours = RunFolder(tmp_path)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert owner.stdout is not None
    theirs = owner.stdout.readline().strip()
    assert sweep(tmp_path) == ()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert sweep(tmp_path) == (theirs,)
    assert ours.path.exists()
    assert not (tmp_path / theirs).exists()
    ours.close()


def test_a_living_process_id_does_not_protect_a_dead_run(tmp_path):
    stale = tmp_path / f"20200101-000000-{os.getpid()}-abcdef"
    stale.mkdir()
    (stale / "lock").touch()
    bare = tmp_path / "20200101-000001-1-abcdef"
    bare.mkdir()
    foreign = tmp_path / "page"
    foreign.mkdir()
    assert sweep(tmp_path) == (stale.name, bare.name)
    assert foreign.is_dir()
    assert sweep(tmp_path / "absent") == ()
