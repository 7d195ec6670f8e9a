"""The forecast's bench: its checkpoint without weights has the released sizes, and its tiny run is complete."""

import json
import sys

import pytest

from backend.hardware import rates
from backend.hardware.model_size import ModelSize, size_of
from bench import blank_checkpoint, fit, forecast


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
    content["hardware"]["gpus"], content["preset"] = [], "tiny-cpu"
    repeated = fit.again(content)["rows"]  # of another model, but of the same request and measurements
    assert [row["measured_s"] for row in repeated] == [row["measured_s"] for row in content["rows"]]
    assert all(row["forecast_s"] > 0 for row in repeated)
    assert "within" in capsys.readouterr().out


def test_a_fit_finds_the_constants_that_made_its_measurements():
    """Seconds made from known constants by the bench's own rows; sizes as diffusers' tiling and the facts give them."""
    clips = {"960x544x107": (15, 6), "1344x768x124": (28, 7), "1344x768x209": (28, 12), "960x544x209": (15, 12)}
    rows = []
    for number, (clip, (tiles, chunks)) in enumerate(clips.items()):
        width, height, frames = map(int, clip.split("x"))
        px, name = 1_000_000 * number, f"{number} t2va {clip}"
        spoken = (300, 2000, 500, 4000)[number]
        text = 2 * 25.7525e9 * spoken / (989 * 0.5e12)
        seconds = {
            "encode": 0.4 + 2e-4 * spoken + 5e-8 * px + text,
            "decode": 0.02 * tiles * chunks + 3e-9 * width * height * frames,
            "mux": 0.1,
        }
        rows += [{"request": name, "stage": stage, "measured_s": value} for stage, value in seconds.items()]
        rows.append({"request": name, "stage": "whole", "text_rows": spoken, "encoded_px": px})
    content = {"environment": {"device": "NVIDIA H200", "date": "today"}, "rows": rows}
    found, compared = fit.fit(content, "x.json")
    for name, value in (
        ("encode_s", 0.4), ("encode_row_s", 2e-4), ("encode_px_s", 5e-8),
        ("tile_s", 0.02), ("rest_px_s", 3e-9), ("mux_s", 0.1)
    ):  # fmt: skip
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name
    assert all(row["ratio"] == pytest.approx(1, abs=0.002) for row in compared)


def test_the_fit_that_is_kept_reads_and_says_where_it_is_from():
    kept = rates.fitted()
    assert kept.device in ("NVIDIA H200",) and kept.nominal_tflops == rates.nominal_tflops(kept.device)
    assert kept.source and min(kept.encode_s, kept.tile_s, kept.mux_s) > 0
