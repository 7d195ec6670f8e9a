"""The forecast's bench: its checkpoint without weights has the released sizes, and its tiny run is complete."""

import json
import sys

import pytest

from backend.hardware.model_size import ModelSize, size_of
from bench import blank_checkpoint, forecast


def test_a_checkpoint_without_weights_has_the_released_sizes(tmp_path):
    found = size_of(blank_checkpoint.write(tmp_path / "released", tiny=False), 2)
    known = ModelSize()
    for name in ("text_encoder", "trunk", "outside_blocks", "adaln", "vae", "audio_vae", "stored"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-3), name
    assert found.alike(known) and found != known  # what was measured of the one holds for the other


def test_the_bench_runs_a_tiny_request_and_keeps_forecast_and_measurement(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forecast", "--tiny", "--only", "0", "--forwards", "1", "--out", str(tmp_path)])
    forecast.main()
    content = json.loads((tmp_path / "forecast-tiny.json").read_text())
    assert content["preset"] == "tiny-cpu"
    rows = {row["stage"]: row for row in content["rows"]}
    assert list(rows) == ["encode", "denoise", "decode", "mux", "whole"]
    assert all(row["measured_s"] > 0 and row["forecast_s"] > 0 for row in rows.values())
    whole = rows["whole"]
    assert whole["rows"] == whole["text_rows"] + 2 * 178 + 32 * 16  # 107 frames: 178 audio latents, 32 of video
    assert whole["rows"] == pytest.approx(whole["forecast_rows"], abs=60)
    assert len(whole["steps_s"]) == 1
    assert "within" in capsys.readouterr().out
