"""Sound starts and ends where it did when it was recorded, whatever a codec puts around it."""

from fractions import Fraction
from pathlib import Path

import av
import made
import numpy as np
import pytest
import soundfile
from scipy.signal import chirp, resample_poly

from backend.media import audio
from backend.types import Geometry

SMALL = Geometry(canvas_short_edge=192, canvas_max_pixels=192 * 336)
RATE = 48_000
# (ending, encoder or soundfile's subtype, container): every way sound comes in
COMPRESSED = [
    ("m4a", "aac", "ipod"),
    ("m4a", "alac", "ipod"),
    ("ogg", "libopus", "ogg"),
    ("mp3", "libmp3lame", "mp3"),
    ("mp4", "aac", "mp4"),
    ("mp4", "libmp3lame", "mp4"),
    ("mov", "aac", "mov"),
]
BY_SOUNDFILE = [
    ("wav", "PCM_16"),
    ("wav", "FLOAT"),
    ("flac", "PCM_16"),
    ("ogg", "VORBIS"),
    ("opus", "OPUS"),
    ("mp3", None),
]


def recording(seconds: float, rate: int = RATE) -> np.ndarray:
    """float32 (2, n): noise below 5 kHz, which every codec keeps and which matches itself at one place only."""
    noise = np.random.default_rng(7).normal(0, 0.3, round(seconds * rate))
    spectrum = np.fft.rfft(noise)
    spectrum[round(5_000 * seconds) :] = 0
    return np.repeat(np.fft.irfft(spectrum, len(noise))[None], 2, axis=0).astype(np.float32)


def encoded(path: Path, encoder: str, container: str, samples: np.ndarray, b_frames: int = 2) -> Path:
    with av.open(str(path), "w", format=container) as out:
        if container in ("mp4", "mov"):
            video = out.add_stream("libx264", rate=24, options={"preset": "ultrafast", "bf": str(b_frames)})
            video.width, video.height, video.pix_fmt = 320, 192, "yuv420p"
        sound = out.add_stream(encoder, rate=RATE, layout="stereo")
        sound.bit_rate = 192_000
        if container in ("mp4", "mov"):
            for index in range(samples.shape[1] * 24 // RATE):
                frame = av.VideoFrame.from_ndarray(made.numbered(index), format="rgb24")
                out.mux(video.encode(frame))
            out.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        to_codec = av.AudioResampler(format=sound.format, layout="stereo", rate=RATE)
        for part in to_codec.resample(frame):
            out.mux(sound.encode(part))
        out.mux(sound.encode(None))
    return path


def late_by(heard: np.ndarray, expected: np.ndarray) -> int:
    """Samples by which `heard` comes after `expected`, by cross-correlation."""
    size = 1 << 20
    both = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(expected, size)), size)
    best = int(np.argmax(both))
    return best if best < size // 2 else best - size


def is_in_place(heard: np.ndarray, expected: np.ndarray, tolerance: int = 0) -> None:
    """`heard` is `expected` from its first samples on, within `tolerance` samples (32 a millisecond)."""
    assert abs(late_by(heard, expected)) <= tolerance
    first = slice(0, 640)  # 20 ms: AAC and Opus put 6 to 21 ms in front
    assert np.corrcoef(heard[first], expected[first])[0, 1] > 0.95
    assert heard[:256].std() == pytest.approx(expected[:256].std(), rel=0.1)


def whole_and_trimmed(path: Path, see, source: np.ndarray) -> None:
    expected = resample_poly(source[0], 2, 3)
    seen = see(path, geometry=SMALL)
    assert seen.audio.shape[1] == len(expected)
    is_in_place(seen.audio[0], expected)
    for start in (0.5, 1.003):
        begin = round(start * 32_000)
        part = see(path, geometry=SMALL, start_s=start, length_s=2.5).audio[0]
        assert len(part) == 80_000
        is_in_place(part, expected[begin : begin + 80_000], tolerance=1)


@pytest.mark.parametrize(("ending", "encoder", "container"), COMPRESSED)
def test_sound_starts_with_its_first_sample(tmp_path, see, ending, encoder, container):
    source = recording(4)
    whole_and_trimmed(encoded(tmp_path / f"a.{ending}", encoder, container, source), see, source)


def test_a_soundtrack_beside_a_picture_without_b_frames_starts_with_its_first_sample(tmp_path, see):
    source = recording(4)
    whole_and_trimmed(encoded(tmp_path / "phone.mp4", "aac", "mp4", source, b_frames=0), see, source)


@pytest.mark.parametrize(("ending", "subtype"), BY_SOUNDFILE)
def test_sound_of_other_writers_starts_with_its_first_sample(tmp_path, see, ending, subtype):
    source = recording(4)
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, source.T, RATE, subtype=subtype, format="OGG" if ending == "opus" else None)
    whole_and_trimmed(path, see, source)


@pytest.mark.parametrize(
    ("ending", "encoder", "container"),
    [("m4a", "aac", "ipod"), ("ogg", "libopus", "ogg"), ("mp3", "libmp3lame", "mp3")],
)
@pytest.mark.parametrize("start", [12.0, 17.123])
def test_a_late_part_of_a_long_recording_lands_within_a_millisecond(tmp_path, see, ending, encoder, container, start):
    source = recording(21)
    path = encoded(tmp_path / f"long.{ending}", encoder, container, source)
    begin = round(start * 32_000)
    part = see(path, start_s=start, length_s=3.0)
    assert part.audio.shape[1] == 96_000
    is_in_place(part.audio[0], resample_poly(source[0], 2, 3)[begin : begin + 96_000], tolerance=1)
    assert part.report.duration_s == pytest.approx(21, abs=0.001)


@pytest.mark.parametrize("subtype", ["PCM_16", "FLAC"])
def test_a_late_part_without_loss_is_the_very_samples(tmp_path, see, subtype):
    source = recording(21, 32_000)
    path = tmp_path / ("long.flac" if subtype == "FLAC" else "long.wav")
    soundfile.write(path, source.T, 32_000, subtype="PCM_16")
    part = see(path, start_s=13.25, length_s=3.0)
    assert np.abs(part.audio - source[:, 424_000:520_000]).max() < 1e-4


@pytest.mark.parametrize("rate", [44_100, 48_000])
def test_a_sweep_beyond_the_band_leaves_no_alias(rate):
    """Above 16 kHz there is no room at 32 kHz: what folds back must stay 60 dB below the sweep."""
    time = np.arange(2 * rate) / rate
    sweep = 0.5 * chirp(time, 16_500, 2, rate / 2 - 500).astype(np.float32)
    out = audio.resample(np.repeat(sweep[None], 2, axis=0), rate)
    assert 20 * np.log10(np.abs(out[:, 500:-500]).max() / 0.5) < -60
    heard = 0.5 * chirp(time, 100, 2, 14_000).astype(np.float32)
    kept = audio.resample(heard[None], rate)[0]
    ideal = 0.5 * chirp(np.arange(64_000) / 32_000, 100, 2, 14_000)
    assert 20 * np.log10(np.abs(kept - ideal)[500:-500].max() / 0.5) < -60
