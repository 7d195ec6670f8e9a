"""D19: a checkpoint with a shard cut in half and another missing ends the start in words, before any process of it."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [["ui", "--port", "0"], ["generate", "--prompt", "x", "--out", "x.mp4"]])
def test_d19_a_cut_shard_and_a_missing_one_are_named_and_no_worker_starts(tiny_checkpoint, tmp_path, command):
    folder = tmp_path / "sharded"
    shutil.copytree(tiny_checkpoint, folder)
    cut, gone = sorted(folder.glob("transformer*/*.safetensors"))[:2]
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    gone.unlink()
    began = time.monotonic()
    words = [str(tmp_path / word) if word == "x.mp4" else word for word in command]
    arguments = ["--preset", "tiny-cpu", "--checkpoint", str(folder), "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(
        [sys.executable, "app.py", *words, *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    workers = 0
    while process.poll() is None and time.monotonic() - began < 30:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            workers += "backend.worker" in " ".join(child.cmdline())
        time.sleep(0.05)
    took = time.monotonic() - began
    _, said = process.communicate(timeout=5)
    assert process.returncode == 2, said
    assert took < 30
    assert str(cut.relative_to(folder)) in said and str(gone.relative_to(folder)) in said
    assert workers == 0
    assert not list((tmp_path / "data" / "logs").glob("*-rank*.log"))
