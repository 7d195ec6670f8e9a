"""Files at a glance: posters upright, strips in order, peaks of sounds whose shape is known."""

import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from backend.errors import MediaRefused
from backend.media import containers, glimpse
from backend.media.probe import glimpse_file
from backend.media.sandbox import Role
from backend.media.source import open_source
from tests.media.made import sine, solid

SHADES = (20, 90, 160, 230)  # of the quarters of a clip


def quarters(path: Path, sound: np.ndarray | None = None, gop: int = 250) -> Path:
    """4 s of 24 fps whose quarters are grey in SHADES; with one keyframe unless `gop` says otherwise."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=24, options={"g": str(gop)})
        video.width, video.height, video.pix_fmt = 320, 192, "yuv420p"
        audio = container.add_stream("aac", rate=32_000, layout="mono") if sound is not None else None
        for index in range(96):
            shade = SHADES[index // 24]
            container.mux(video.encode(av.VideoFrame.from_ndarray(solid((shade,) * 3, 320, 192))))
        container.mux(video.encode(None))
        if audio is not None:
            samples = av.AudioFrame.from_ndarray(sound.astype(np.float32)[None], format="fltp", layout="mono")
            samples.sample_rate = 32_000
            container.mux(audio.encode(samples))
            container.mux(audio.encode(None))
    return path


def test_peaks_are_those_of_a_known_sine_and_of_silence(tmp_path):
    rate = 44_100
    tone = sine(440, 2.0, rate, amplitude=0.3)
    samples = np.concatenate([tone.reshape(-1), np.zeros(rate * 2)])
    soundfile.write(tmp_path / "half.wav", samples, rate, subtype="FLOAT")
    report, seen = glimpse_file(tmp_path / "half.wav", folder=tmp_path / "out")
    assert report.duration_s == pytest.approx(4.0) and len(seen.peaks) == glimpse.PEAKS
    # a part of 1/60 s holds seven periods, so its largest sample is the amplitude to cos(pi f / rate)
    assert seen.peaks[:119] == pytest.approx([0.3] * 119, abs=0.001)
    assert max(seen.peaks[121:]) == 0.0
    assert seen.poster is None and seen.strip is None


def test_the_louder_channel_counts_and_nothing_is_above_full_scale(tmp_path):
    rate = 32_000
    left, right = np.full(rate * 2, 0.1), np.full(rate * 2, 1.7)
    soundfile.write(tmp_path / "loud.wav", np.stack([left, right], axis=1), rate, subtype="FLOAT")
    assert set(glimpse_file(tmp_path / "loud.wav", folder=tmp_path / "out")[1].peaks) == {1.0}


@pytest.mark.parametrize("gop", [250, 12])
def test_a_strip_shows_the_clip_from_left_to_right(tmp_path, gop):
    path = quarters(tmp_path / "clip.mp4", gop=gop)
    report, seen = glimpse_file(path, folder=tmp_path / "out")
    strip = np.asarray(Image.open(seen.strip).convert("L"), dtype=float)
    assert strip.shape == (72, 6 * 120)  # 120 px wide tiles of 5:3, six of them fill 720
    middles = [strip[:, place * 120 + 20 : place * 120 + 100].mean() for place in range(6)]
    wanted = [SHADES[int((place + 0.5) / 6 * 4)] for place in range(6)]
    assert middles == pytest.approx(wanted, abs=4)
    assert Image.open(seen.poster).size == (360, 216)
    assert seen.peaks == () and report.duration_s == pytest.approx(4.0)


def test_a_clips_peaks_follow_the_clock_of_its_picture(tmp_path):
    burst = np.zeros(32_000 * 4)
    burst[32_000 * 2 : 32_000 * 3] = sine(500, 1.0, 32_000, amplitude=0.5).reshape(-1)[:32_000]
    peaks = glimpse_file(quarters(tmp_path / "clip.mp4", burst), folder=tmp_path / "out")[1].peaks
    loud = [place for place, peak in enumerate(peaks) if peak > 0.25]
    assert min(loud) == pytest.approx(120, abs=2) and max(loud) == pytest.approx(179, abs=2)


def test_a_poster_is_upright_and_the_report_says_what_was_done(tmp_path):
    pixels = np.zeros((300, 600, 3), np.uint8)
    pixels[:, :300] = 255  # white on the left; orientation 6 turns it clockwise: white on top
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "phone.jpg", exif=exif)
    report, seen = glimpse_file(tmp_path / "phone.jpg", folder=tmp_path / "out", role=Role.FIRST_FRAME)
    poster = np.asarray(Image.open(seen.poster).convert("L"))
    assert poster.shape == (360, 180)
    assert poster[:170].mean() > 250 and poster[190:].mean() < 5
    assert "rotated 90 degrees clockwise" in report.actions[0]


def test_a_refused_file_leaves_nothing(tmp_path):
    (tmp_path / "fake.png").write_text("no picture")
    with pytest.raises(MediaRefused):
        glimpse_file(tmp_path / "fake.png", folder=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_slow_reading_gives_up_instead_of_showing_silence(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", sine(440, 3.0, 32_000).reshape(-1), 32_000)
    monkeypatch.setattr(glimpse, "BUDGET_S", -1.0)
    source = open_source("file", "a.wav", os.open(tmp_path / "a.wav", os.O_RDONLY))
    with containers.opened(source) as opened:
        assert glimpse._peaks(source, opened, None, Fraction(3)) == ()
