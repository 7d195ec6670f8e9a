from fractions import Fraction

import av
import made
import numpy as np
import pytest
import soundfile

from backend.errors import MediaRefused
from backend.media import audio


def wav(path, samples, rate, **options):
    soundfile.write(path, samples.T, rate, **options)
    return path


def test_d05_a_slow_mono_voice_keeps_pitch_and_length(tmp_path, see):
    seen = see(wav(tmp_path / "voice.wav", made.sine(440, 4, 8000), 8000, subtype="PCM_16"))
    assert seen.audio.dtype == np.float32 and seen.audio.shape[0] == 2
    assert abs(seen.audio.shape[1] - 128_000) <= 40
    for channel in seen.audio:
        assert abs(made.peak_hz(channel) - 440) <= 2
    assert (seen.report.audio_sample_rate, seen.report.audio_channels) == (8000, 1)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000, 96000, 192000])
def test_resampling_is_exact_in_length_time_and_level(rate):
    wave = made.sine(1000, 2, rate, channels=2)
    out = audio.resample(wave, rate)
    assert out.shape == (2, 64_000)
    ideal = made.sine(1000, 2, 32000)[0]
    # away from the ends, where nothing is known beyond the recording
    assert np.abs(out[0] - ideal)[500:-500].max() < 2e-4


def test_resampling_leaves_out_what_would_alias():
    out = audio.resample(made.sine(18_000, 2.5, 48_000), 48_000)
    assert np.abs(out[0, 500:-500]).max() < 1e-3


def test_d06_an_mp3_with_a_cover_is_sound_of_four_seconds(tmp_path, see):
    import io

    from PIL import Image

    cover = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 20, 20)).save(cover, format="PNG")
    path = made.mp3_with_cover(tmp_path / "song.mp3", made.sine(440, 4, 44100, channels=2), 44100, cover.getvalue())
    seen = see(path)
    assert seen.report.kind == "audio" and seen.frames is None
    assert seen.report.duration_s == pytest.approx(4.0, abs=0.06)
    assert seen.audio.shape[1] / 32000 == pytest.approx(4.0, abs=0.06)
    assert any("attached picture" in action for action in seen.report.actions)
    assert abs(made.peak_hz(seen.audio[0]) - 440) <= 2


@pytest.mark.parametrize(("name", "codec"), [("a.m4a", "aac"), ("a.ogg", "libopus")])
def test_compressed_formats_keep_length_and_pitch(tmp_path, see, name, codec):
    path = tmp_path / name
    with av.open(str(path), "w", format="ipod" if name == "a.m4a" else "ogg") as out:
        stream = out.add_stream(codec, rate=48000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(made.sine(440, 3, 48000, channels=2), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = 48000, 0, Fraction(1, 48000)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    heard(see(path))


@pytest.mark.parametrize(("name", "options"), [("a.flac", {}), ("a.ogg", {"subtype": "VORBIS"}), ("a.mp3", {})])
def test_formats_of_other_writers_keep_length_and_pitch(tmp_path, see, name, options):
    heard(see(wav(tmp_path / name, made.sine(440, 3, 48000, channels=2), 48000, **options)))


def heard(seen):
    assert seen.report.kind == "audio"
    assert seen.audio.shape[1] / 32000 == pytest.approx(3.0, abs=0.05)
    assert abs(made.peak_hz(seen.audio[1]) - 440) <= 2


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_wav_sample_formats(tmp_path, see, subtype):
    seen = see(wav(tmp_path / "a.wav", made.sine(440, 2, 32000, channels=2), 32000, subtype=subtype))
    tolerance = 0.03 if subtype in ("PCM_U8", "ULAW") else 1e-4
    assert np.abs(seen.audio - made.sine(440, 2, 32000, channels=2)).max() < tolerance


@pytest.mark.parametrize("channels", [3, 4, 6, 8])
def test_more_channels_are_mixed_down(tmp_path, see, channels):
    samples = np.zeros((channels, 64_000), np.float32)
    samples[0] = made.sine(440, 2, 32000)[0]  # front left
    seen = see(wav(tmp_path / "s.wav", samples, 32000, subtype="FLOAT"))
    assert np.abs(seen.audio[0]).max() > 0.3 and np.abs(seen.audio[1]).max() < 0.3
    assert any("down to stereo" in action for action in seen.report.actions)


def test_surround_follows_itu_bs775():
    # FL FR FC LFE SL SR at 0.1, 0.2, ...: left is FL + 0.7071 FC + 0.7071 SL, the LFE left out
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.05, 0.06], np.float32)[:, None]
    mixed = audio.to_stereo(values, ("FL", "FR", "FC", "LFE", "SL", "SR"))
    half = 1 / np.sqrt(2)
    assert mixed[:, 0] == pytest.approx([0.1 + half * 0.35, 0.2 + half * 0.36], abs=1e-4)
    loud = audio.to_stereo(np.ones((6, 1), np.float32), ("FL", "FR", "FC", "LFE", "SL", "SR"))
    assert loud.max() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda a: a * 0, "silent"),
        (lambda a: a * 0 + 0.3, "constant offset"),
        (lambda a: np.where(np.arange(a.shape[1]) == 7, np.nan, a), "no numbers"),
        (lambda a: np.where(np.arange(a.shape[1]) == 7, np.inf, a), "no numbers"),
        (lambda a: a * 8, "beyond full scale"),
    ],
)
def test_bad_signals_are_noticed_and_finite(tmp_path, see, change, word):
    path = wav(tmp_path / "bad.wav", change(made.sine(440, 2, 44100)).astype(np.float32), 44100, subtype="FLOAT")
    seen = see(path)
    assert np.isfinite(seen.audio).all()
    assert any(word in warning for warning in seen.report.warnings), seen.report.warnings


def test_trimming_takes_exactly_the_part(tmp_path, see):
    samples = np.concatenate([made.sine(300, 5, 48000), made.sine(700, 3, 48000), made.sine(300, 12, 48000)], axis=1)
    path = wav(tmp_path / "long.wav", samples, 48000, subtype="FLOAT")
    seen = see(path, start_s=5.0, length_s=3.0)
    assert seen.audio.shape == (2, 96_000)
    assert abs(made.peak_hz(seen.audio[0]) - 700) <= 1
    assert (seen.report.used_start_s, seen.report.used_length_s) == (5.0, 3.0)
    late = see(path, start_s=17.5)
    assert late.report.used_length_s == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("seconds", "options", "rule"),
    [
        (1.5, {}, "2 to 15 seconds"),
        (16, {}, "2 to 15 seconds"),
        (6, {"start_s": 5.0}, "2 to 15 seconds"),
        (6, {"start_s": 7.0}, "inside the clip"),
        (6, {"start_s": -1.0}, "start must be seconds, 0 or more"),
        (6, {"start_s": float("nan")}, "start must be seconds, 0 or more"),
        (6, {"start_s": float("inf")}, "start must be seconds, 0 or more"),
        (6, {"length_s": float("nan")}, "length must be seconds, 0 or more"),
        (6, {"length_s": float("inf")}, "length must be seconds, 0 or more"),
        (6, {"length_s": -2.0}, "length must be seconds, 0 or more"),
        (6, {"length_s": 0.0}, "length must be more than 0 seconds"),
    ],
)
def test_lengths_outside_the_rule(tmp_path, see, seconds, options, rule):
    path = wav(tmp_path / "l.wav", made.sine(440, seconds, 16000), 16000)
    with pytest.raises(MediaRefused, match=rf"l\.wav.*{rule}"):
        see(path, **options)


def test_rates_outside_the_rule(tmp_path, see):
    path = wav(tmp_path / "slow.wav", made.sine(440, 3, 4000), 4000)
    with pytest.raises(MediaRefused, match=r"4000 Hz.*8000 to 192000"):
        see(path)


def test_an_empty_recording_is_refused(tmp_path, see):
    path = wav(tmp_path / "none.wav", np.zeros((1, 0), np.float32), 16000)
    with pytest.raises(MediaRefused, match=r"none\.wav"):
        see(path)


@pytest.mark.parametrize("keep", [0.75, 0.97])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_a_cut_recording_is_used_with_a_notice(tmp_path, see, keep, subtype):
    path = wav(tmp_path / "cut.wav", made.sine(440, 4, 48000), 48000, subtype=subtype)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    seen = see(path)
    assert any(f"{4 * keep:.2f} s of 4.00 s are there" in warning for warning in seen.report.warnings)


def test_a_length_that_was_never_written_is_no_cut(tmp_path, see):
    path = wav(tmp_path / "piped.wav", made.sine(440, 4, 48000), 48000, subtype="PCM_16")
    data = bytearray(path.read_bytes())
    assert see(path).report.warnings == ()
    for unknown in (b"\xff\xff\xff\xff", bytes(4)):  # what pipes and recorders without power leave
        data[4:8] = data[40:44] = unknown
        path.write_bytes(data)
        seen = see(path)
        assert seen.report.warnings == () and seen.report.duration_s == 4.0


def test_a_cut_m4a_is_noticed_or_refused(tmp_path, see):
    path = tmp_path / "memo.m4a"
    with av.open(str(path), "w", format="ipod", options={"movflags": "faststart"}) as out:
        stream = out.add_stream("aac", rate=48000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(made.sine(440, 6, 48000, channels=2), format="fltp", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = 48000, 0, Fraction(1, 48000)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    try:
        seen = see(path)
    except MediaRefused as refused:
        assert "complete" in str(refused)
    else:
        assert any("its end is missing" in warning for warning in seen.report.warnings)


def test_of_several_sound_streams_the_first_is_used_with_a_notice(tmp_path, see):
    path = tmp_path / "two.m4a"
    with av.open(str(path), "w", format="ipod") as out:
        streams = [out.add_stream("aac", rate=48000, layout="stereo") for _ in range(2)]
        for stream, hz in zip(streams, (440, 880), strict=True):
            frame = av.AudioFrame.from_ndarray(made.sine(hz, 3, 48000, channels=2), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts, frame.time_base = 48000, 0, Fraction(1, 48000)
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    seen = see(path)
    heard(seen)
    assert any("first of 2 sound streams" in action for action in seen.report.actions)
