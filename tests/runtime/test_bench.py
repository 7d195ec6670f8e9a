import json
import sys

import pytest
import torch

from bench import decode, end_to_end, step


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
