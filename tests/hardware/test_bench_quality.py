"""The bench of quality presets: its distances by formulas, its rows, and that page and file tell the same numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from fake_hub import lora

from backend import presets
from backend.api import Backend, QualityView
from backend.checkpoints import adapter_shelf
from backend.checkpoints.catalog import TINY_GEOMETRY
from backend.hardware import distances
from backend.settings import Settings
from backend.types import EncoderSettings
from bench import quality
from h3ui.panels import hardware, sampling

PURE = EncoderSettings(crf=0, x264_preset="veryfast", stream=False)
# RGB grays of 100 and 110 are 102 and 110 in 8-bit BT.709 luma, 16 + 219/255 of them; both chromas are 128. Luma has
# four of six samples, so the mean squared error is 8 * 8 * 4 / 6.
GRAYS_DB = 10 * math.log10(255**2 / (64 * 4 / 6))


def film(path, gray, size=(224, 128), frames=12, volume=0.5):
    """A still gray clip with a fixed noise as its sound."""
    pictures = np.full((frames, size[1], size[0], 3), gray, np.uint8)
    noise = np.random.default_rng(1).uniform(-volume, volume, (2, 16_000)).astype(np.float32)
    quality._write(path, pictures, noise, PURE)
    return path


@pytest.mark.parametrize("size", [(224, 128), (96, 64)])
def test_pictures_are_compared_at_the_size_of_the_finest(tmp_path, size):
    finest, other = film(tmp_path / "a.mp4", 100), film(tmp_path / "b.mp4", 110, size)
    found = quality.distance([finest], [other])
    assert found["psnr_db"] == pytest.approx(GRAYS_DB, abs=0.01)
    assert found["psnr_range_db"] == [found["psnr_db"], found["psnr_db"]]
    assert found["sound_db"] is None and found["spectral_db"] == 0  # the very same sound


def test_a_clip_is_identical_to_itself(tmp_path):
    path = film(tmp_path / "a.mp4", 100)
    found = quality.distance([path], [path])
    assert (found["psnr_db"], found["psnr_range_db"], found["ssim"]) == (None, None, 1.0)


def test_sound_has_the_distance_of_the_formulas():
    noise = np.random.default_rng(2).uniform(-0.5, 0.5, (2, 16_000)).astype(np.float32)
    quieter = noise * 10 ** (-6 / 20)
    assert quality.spectral_db(noise, quieter) == pytest.approx(6, abs=1e-3)
    assert quality.snr_db([(noise, quieter)]) == pytest.approx(-20 * math.log10(1 - 10 ** (-6 / 20)), abs=1e-3)
    assert quality.snr_db([(noise, noise)]) is None
    upside_down = -noise  # no ear hears that, a signal-to-noise ratio does: the difference is twice the sound
    assert quality.spectral_db(noise, upside_down) == pytest.approx(0, abs=1e-6)
    assert quality.snr_db([(noise, upside_down)]) == pytest.approx(-20 * math.log10(2))


def test_every_preset_has_a_row_and_other_seeds_one(tmp_path):
    qualities = {
        "small": presets.QualityPreset(
            name="small", title="S", description="d", num_inference_steps=9, canvas_scale=0.5
        ),
        "whole": presets.QualityPreset(name="whole", title="W", description="d", num_inference_steps=9),
    }
    asked = []

    def render(preset, prompt, seed, path):
        asked.append((preset.name, prompt, seed))
        size = quality.canvas(TINY_GEOMETRY, preset)
        gray = 100 if preset.name == "whole" and seed < quality.OTHER_SEED else 110
        return quality.Clip(path=film(path, gray, size), seconds=2.0 if preset.name == "whole" else 1.0)

    rows = quality.compare_all(render, qualities, ["one", "two"], tmp_path)
    assert [(row["quality"], row["what"], row["median_s"]) for row in rows] == [
        ("whole", "", 2.0),
        ("small", "", 1.0),
        ("whole", "another seed", 2.0),
    ]
    assert "psnr_db" not in rows[0]
    assert [row["psnr_db"] for row in rows[1:]] == pytest.approx([GRAYS_DB] * 2, abs=0.01)
    assert asked[:4] == [("whole", "one", 0), ("whole", "two", 1), ("small", "one", 0), ("small", "two", 1)]


def test_turbo_is_measured_with_its_adapters_steps_or_left_out_and_said(tmp_path, capsys):
    qualities = presets.quality_presets()
    assert set(quality.measurable(qualities, None)) == set(qualities) - {"turbo"}
    assert "turbo: left out, no adapter" in capsys.readouterr().out
    settings = Settings(data_dir=tmp_path)
    lora(settings.adapters_dir / "few.safetensors", num_inference_steps="5")
    measured = quality.measurable(qualities, adapter_shelf.fewest_steps(settings, 12))
    assert measured["turbo"].num_inference_steps == 5 and presets.finest(measured).name == "standard"
    assert {name: item for name, item in measured.items() if name != "turbo"} == quality.measurable(qualities, None)


def test_the_page_tells_the_numbers_of_the_file(tmp_path):
    content = json.loads(distances.FILE.read_text(encoding="utf-8"))
    (finest,) = [row for row in content["rows"] if "psnr_db" not in row]
    (draft,) = [row for row in content["rows"] if row["quality"] == "draft"]
    backend = Backend(Settings(data_dir=tmp_path))
    try:
        views = backend.qualities("1x141gb")  # on the released model every preset makes something else
        words = (
            f"{draft['psnr_db']:.1f} dB to Standard at {finest['points']} sigma points, "
            f"built-in model, {draft['clips']} clips."
        )
        assert content["model"] == "nano" and finest["quality"] == "standard"
        assert words in sampling.about_html(views["draft"])
        assert words in hardware.table_html(backend.machine(), views, may_see=True)
        assert "dB" not in sampling.about_html(views["standard"])
        here = backend.qualities("tiny-cpu")["fast"]  # its own recipe has fewer steps than Fast
        assert "On this model it changes nothing: the same clip as Standard." in sampling.about_html(here)
    finally:
        backend.close()


def test_a_preset_without_a_row_was_not_measured(tmp_path):
    content = json.loads(distances.FILE.read_text(encoding="utf-8"))
    content["rows"] = [row for row in content["rows"] if row["quality"] != "draft"]
    (file := tmp_path / "quality.json").write_text(json.dumps(content), encoding="utf-8")
    assert "draft" not in distances.distances(file) and "fast" in distances.distances(file)
    assert distances.distances(tmp_path / "none.json") == {}
    preset = presets.quality_presets()["draft"]
    view = QualityView(preset=preset, steps=12, finest="Standard", same=False, distance=None)
    assert sampling.distance_told(view) == "Its distance to Standard was not measured."
