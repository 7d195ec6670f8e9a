"""The bench of several ranks on a CPU: forms agree to the bit, and what there is no time for is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thorough
def test_forms_are_measured_and_compared_and_what_is_left_out_is_told(tmp_path):
    command = [sys.executable, "-m", "bench.parallel", "--tiny", "--parts", "one,overlapped,mapped,decode"]
    done = subprocess.run(
        [*command, "--repeats", "1", "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=290
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "parallel-tiny.json").read_text())
    whats = ["ours, one", "ours, overlapped", "ours, mapped"]
    assert [row["what"] for row in content["rows"]] == [
        *(what for what in whats for _ in range(2)),
        "decode, one rank",
        "decode, tiles over 2",
    ]
    assert all(row["max"] == 0 for row in content["rows"])
    assert content["environment"]["ranks"] == 2
    rates = content["estimate"]["160x96x22, overlapped"]
    assert abs(rates["clips_an_hour_one_faster"] * rates["job_over_2_s"] / 3600 - 1) < 0.05
    # What no CPU can do is said, and the bench does without as a fleet would.
    (notice,) = content["notices"]
    assert notice.startswith(
        "Exchanging rows over 2 ranks is gathered instead of mapped: rank 0: Unavailable: not every"
    )
