"""Random kills, stops, cancels, closed pages and restarts over many jobs; then every job must have exactly one end.

As a program: `python tests/jobs/chaos.py --jobs 200 --seconds 170`. The test runs the same course unless told otherwise
by `H3_CHAOS_JOBS`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
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
from typing import Any

import psutil
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "jobs")]
TROUBLE_S = 40.0  # of each life; then what is left is finished in peace
KINDS = ("kill", "stop", "cancel waiting", "cancel running", "none")


def live(data: Path, jobs: int, seed: int) -> None:
    """One life of the program: submit, trouble, until told on stdin to close (or killed)."""
    from test_with_processes import ask, open_stub

    from backend.api import ADMIN
    from backend.errors import H3Error
    from backend.types import Reference

    chance = random.Random(seed)
    backend = open_stub(data, "stub:step_s=0.02,load_s=0.1")
    over = threading.Event()
    faults: collections.Counter[str] = collections.Counter()

    def watch(job: str, patience: int) -> None:
        with contextlib.suppress(H3Error):
            for count, _ in enumerate(backend.events(job, owner="ann", timeout_s=60)):
                if count == patience:
                    faults["page closed"] += 1
                    return

    def trouble() -> None:
        kinds = itertools.cycle(chance.sample(KINDS, len(KINDS)))  # none is left out in a short course
        began = time.monotonic()
        while not over.wait(chance.uniform(0.3, 2.0)) and time.monotonic() - began < TROUBLE_S:
            kind = next(kinds)
            with contextlib.suppress(H3Error, psutil.Error, ProcessLookupError):
                ranks = [child for child in psutil.Process().children() if "backend.worker" in str(child.cmdline())]
                if kind in ("kill", "stop") and ranks:
                    os.kill(chance.choice(ranks).pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
                    faults[kind] += 1
                elif kind == "cancel waiting" and (waiting := backend.queue(owner=ADMIN)):
                    backend.cancel(chance.choice(waiting).id, owner=ADMIN)
                    faults[kind] += 1
                elif kind == "cancel running" and (running := backend.status().running):
                    backend.cancel(running, owner=ADMIN)
                    faults[kind] += 1

    threading.Thread(target=trouble, daemon=True).start()
    for index in range(jobs):
        media = {"references": (Reference(path=data.parent / "a.png"),)} if chance.random() < 0.08 else {}
        job = backend.submit(ask(f"job {index}", steps=chance.randint(2, 8), **media), owner="ann")
        print(job, flush=True)
        threading.Thread(target=watch, args=(job, chance.choice([1, 5, 10_000])), daemon=True).start()
        time.sleep(chance.uniform(0, 0.1))
    finish = sys.stdin.readline().strip() == "drain"
    memory = []
    while finish and (backend.status().queued or backend.status().running):
        memory.append(psutil.Process().memory_info().rss)
        time.sleep(0.1)
    over.set()
    memory = memory or [psutil.Process().memory_info().rss]
    settled = memory[len(memory) // 4]  # libraries come in with the first jobs
    print("figures", json.dumps({"settled": settled, "last": memory[-1], "faults": faults}), flush=True)
    backend.close()


def course(data: Path, jobs: int, seconds: float, seed: int = 1) -> dict[str, float]:
    """Several lives over one data folder, ended by SIGKILL or in order; returns figures. Raises AssertionError."""
    Image.new("RGB", (320, 256), "navy").save(data.parent / "a.png")
    before = left_overs()
    began = time.monotonic()
    chance = random.Random(seed)
    killed = 0
    accepted: list[str] = []
    faults: collections.Counter[str] = collections.Counter()
    deadline, lives, per_life = began + seconds, 0, max(1, jobs // 8)
    while lives < 5:  # the last life has three eighths of the jobs
        program = _start(data, per_life, seed + lives)
        accepted += [program.stdout.readline().strip() for _ in range(per_life)]
        time.sleep(chance.uniform(0, seconds / 15))
        children = psutil.Process(program.pid).children(recursive=True)
        if lives % 2 == 0:
            killed += 1
            program.kill()
        else:
            program.stdin.write("close\n")
            program.stdin.flush()
        output, _ = program.communicate(timeout=30)
        faults.update(_figures(output).get("faults", {}))
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, f"left behind: {alive}"
        lives += 1
    last = _start(data, jobs - len(accepted), seed + lives)
    try:
        output, _ = last.communicate("drain\n", timeout=max(60.0, deadline - time.monotonic() + 120))
    finally:
        last.kill()
    assert last.returncode == 0
    accepted += [line for line in output.splitlines() if line and not line.startswith("figures")]
    told = _figures(output)
    faults.update(told["faults"])
    counts = judge(data, accepted)
    assert left_overs() <= before, f"left behind: {left_overs() - before}"
    return {
        "jobs": len(accepted),
        "lives": lives + 1,
        "program killed": killed,
        "settled_mib": told["settled"] >> 20,
        "last_mib": told["last"] >> 20,
        "growth": round(told["last"] / told["settled"] - 1, 3),
        "seconds": round(time.monotonic() - began),
        **faults,
        **counts,
    }


def _figures(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith("figures")]
    return json.loads(lines[-1].removeprefix("figures")) if lines else {}


def left_overs() -> set[str]:
    """What a course may not add to this machine: ranks and sandboxes of ours with their open ports, shared memory."""
    found = {f"shm {path.name}" for path in Path("/dev/shm").iterdir()}
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        mine = process.info["ppid"] in (1, os.getpid())  # orphans, and children of this program; others test as well
        if mine and ("backend.worker.main" in line or "backend.media.sandbox" in line or "--live" in line):
            found.add(f"process {process.info['pid']} {line}")
            with contextlib.suppress(psutil.Error):
                ports = [each.laddr.port for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
                found |= {f"port {port} of {process.info['pid']}" for port in ports}
    return found


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
                parts = [path for path in parts if path.parent.name != "inputs"]
                assert not parts, f"{record.id} ({record.state}) left {parts}"
        assert not [path for path in backend.settings.jobs_dir.iterdir() if path.name.startswith(".")]
        assert sum(counts.values()) == len(accepted)
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
