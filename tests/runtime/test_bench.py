import json
import sys

import pytest
import torch

from bench import decode, end_to_end, gpu_checks, step


@pytest.mark.parametrize(("module", "name"), [(step, "step"), (decode, "decode"), (end_to_end, "end_to_end")])
def test_a_bench_runs_tiny_on_a_cpu_and_compares_with_stock(module, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--tiny", "--out", str(tmp_path)])
    module.main()
    content = json.loads((tmp_path / f"{name}-tiny.json").read_text())
    assert content["environment"]["versions"]["torch"] in torch.__version__
    assert "written:" in capsys.readouterr().out
    whats = {row.get("what", row.get("job")) for row in content["rows"]}
    if name == "end_to_end":
        assert whats == {"first", "second, other seed"}
    else:
        assert "stock diffusers" in whats and len(whats) > 1
        ours = [row for row in content["rows"] if row["what"] == "ours" or "stacked" in row["what"]]
        ours = [row for row in ours if row["kernel"] != "another kernel"]
        assert ours and all(row["max"] == 0 for row in ours)  # float32 on a CPU: equal to the bit


def test_a_gpu_check_that_takes_too_long_is_ended_and_the_rest_is_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        gpu_checks,
        "CHECKS",
        {name: (check, 0.2 / gpu_checks.SLOWER_CPU) for name, (check, _) in gpu_checks.CHECKS.items()},
    )
    monkeypatch.setattr(
        sys, "argv", ["gpu_checks", "--tiny", "--only", "load,job", "--budget", "0.1", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        gpu_checks.main()
    assert end.value.code == 1
    first, second = json.loads((tmp_path / "gpu_checks-tiny.json").read_text())["rows"]
    assert first["verdict"] == "fail" and "took longer than 0.2 s" in first["reason"]
    assert second == {"check": "job", "verdict": "not run", "reason": "the budget of 0 s was used up"}
    assert "FAIL     load" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_gpu_check_answers_with_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_checks", "--tiny", "--only", "checkpoint,load", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        gpu_checks.main()
    rows = json.loads((tmp_path / "gpu_checks-tiny.json").read_text())["rows"]
    assert end.value.code == 0 and [row["verdict"] for row in rows] == ["pass", "pass"]
    assert rows[1]["first_gb_s"] > 0
