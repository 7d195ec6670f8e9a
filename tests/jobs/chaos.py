"""Random kills, stops, cancels, closed pages and restarts over many jobs; then every job must have exactly one end.

As a program: `python tests/jobs/chaos.py --jobs 200 --seconds 170`. The test runs a shorter course.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "jobs")]
KINDS = ("kill", "stop", "cancel waiting", "cancel running", "leave", "none")


def live(data: Path, jobs: int, seed: int) -> None:
    """One life of the program: submit, trouble, until told on stdin to close (or killed)."""
    from test_with_processes import ask, open_stub

    from backend.api import ADMIN
    from backend.errors import H3Error

    chance = random.Random(seed)
    backend = open_stub(data, "stub:step_s=0.02,load_s=0.1")
    over = threading.Event()

    def watch(job: str, patience: int) -> None:
        with contextlib.suppress(H3Error):
            for count, _ in enumerate(backend.events(job, owner="ann", timeout_s=60)):
                if count == patience:
                    return  # the page is closed in the middle

    def trouble() -> None:
        while not over.wait(chance.uniform(0.2, 1.5)):
            kind = chance.choice(KINDS)
            with contextlib.suppress(H3Error, psutil.Error, ProcessLookupError):
                ranks = [child for child in psutil.Process().children() if "backend.worker" in str(child.cmdline())]
                if kind in ("kill", "stop") and ranks:
                    os.kill(chance.choice(ranks).pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
                elif kind == "cancel waiting" and (waiting := backend.queue(owner=ADMIN)):
                    backend.cancel(chance.choice(waiting).id, owner=ADMIN)
                elif kind == "cancel running" and (running := backend.status().running):
                    backend.cancel(running, owner=ADMIN)

    threading.Thread(target=trouble, daemon=True).start()
    for index in range(jobs):
        job = backend.submit(ask(f"job {index}", steps=chance.randint(2, 8)), owner="ann")
        print(job, flush=True)
        threading.Thread(target=watch, args=(job, chance.choice([1, 5, 10_000])), daemon=True).start()
        time.sleep(chance.uniform(0, 0.1))
    finish = sys.stdin.readline().strip() == "drain"
    over.set()
    while finish and (backend.status().queued or backend.status().running):
        time.sleep(0.1)
    print("memory", psutil.Process().memory_info().rss, flush=True)
    backend.close()


def course(data: Path, jobs: int, seconds: float, seed: int = 1) -> dict[str, float]:
    """Several lives over one data folder, ended by SIGKILL or in order; returns figures. Raises AssertionError."""
    chance = random.Random(seed)
    accepted: list[str] = []
    deadline, lives, per_life = time.monotonic() + seconds, 0, max(1, jobs // 5)
    while len(accepted) < jobs and time.monotonic() < deadline - seconds / 3:
        program = _start(data, min(per_life, jobs - len(accepted)), seed + lives)
        for line in iter(program.stdout.readline, ""):
            accepted.append(line.strip())
            if len(accepted) % per_life == 0 or len(accepted) == jobs:
                break
        time.sleep(chance.uniform(2, 6))
        children = psutil.Process(program.pid).children(recursive=True)
        if chance.random() < 0.6:
            program.kill()
        else:
            program.stdin.write("close\n")
            program.stdin.flush()
        program.communicate(timeout=30)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, f"left behind: {alive}"
        lives += 1
    last = _start(data, 0, seed + lives)
    output, _ = last.communicate("drain\n", timeout=max(60.0, deadline - time.monotonic() + 60))
    assert last.returncode == 0
    return {
        "jobs": len(accepted),
        "lives": lives + 1,
        "rss_mib": int(output.split()[-1]) >> 20,
        **judge(data, accepted),
    }


def judge(data: Path, accepted: list[str]) -> dict[str, float]:
    """Every accepted job has one end; what succeeded plays; nothing else is left in its folder."""
    from test_with_processes import decoded_frames, open_stub

    from backend.api import ADMIN, JobState
    from backend.events import TERMINAL

    backend = open_stub(data)
    counts: dict[str, float] = {}
    try:
        records = {record.id: record for record in backend.history(owner=ADMIN, limit=100_000)}
        assert set(accepted) <= set(records), "an accepted job is lost"
        for record in records.values():
            events = list(backend.events(record.id, owner=ADMIN))
            ends = [event for event in events if isinstance(event, TERMINAL)]
            assert len(ends) == 1, f"{record.id} has {len(ends)} ends"
            assert events[-1] is ends[0]
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            counts[record.state.value] = counts.get(record.state.value, 0) + 1
            parts = [path for path in record.folder.rglob("*") if path.is_file()]
            if record.state is JobState.SUCCEEDED:
                assert decoded_frames(record.video) == record.request.sampling.num_frames
            else:
                assert not parts, f"{record.id} ({record.state}) left {parts}"
        assert not [path for path in backend.settings.jobs_dir.iterdir() if path.name.startswith(".")]
        left = [path for path in backend.settings.run_dir.iterdir() if path.is_dir()]
        assert not left, f"fleets left {left}"
    finally:
        backend.close()
    return counts


def _start(data: Path, jobs: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--live", str(data), "--jobs", str(jobs), "--seed", str(seed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Run a course, or (from within one) a life."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--live", type=Path)
    options = parser.parse_args()
    if options.live is not None:
        live(options.live, options.jobs, options.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(course(Path(folder) / "data", options.jobs, options.seconds, options.seed)))


if __name__ == "__main__":
    main()
