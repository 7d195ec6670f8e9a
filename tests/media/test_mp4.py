import json
import os
import subprocess
import sys
from pathlib import Path

import av
import made
import numpy as np
import pytest
import soundfile
from PIL import Image

from backend.errors import WriteFailure
from backend.media import boxes, mp4
from backend.types import EncoderSettings

ROOT = Path(__file__).resolve().parents[2]
FAST = EncoderSettings(crf=20, x264_preset="ultrafast")
RNG = np.random.default_rng(0)


def write(path, frames, sound, settings=FAST, metadata=None, chunk=17):
    with mp4.Mp4Writer(path, frames.shape[2], frames.shape[1], settings) as writer:
        for start in range(0, len(frames), chunk):
            writer.write_frames(frames[start : start + chunk])
        for start in range(0, sound.shape[1], 4001):
            writer.write_audio(sound[:, start : start + 4001])
        return writer.close(metadata or {"title": "a test"})


def grey_steps(count: int, size=(64, 64)) -> np.ndarray:
    levels = (np.arange(count) * 5 % 200 + 20).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (count, *size, 3))


@pytest.mark.parametrize("count", [107, 124, 175, 226, 277, 328, 362])
def test_d09_frames_and_lengths_are_exact(tmp_path, count):
    path = tmp_path / "video.mp4"
    settings = EncoderSettings(crf=22, x264_preset="veryfast")  # of the draft preset
    info = write(path, grey_steps(count), made.sine(440, 1, round(count / 24 * 32000), 2), settings)
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        context = video.codec_context
        assert (context.name, context.profile, context.pix_fmt) == ("h264", "High", "yuv420p")
        assert video.average_rate == video.base_rate == 24
        assert (audio.codec_context.name, audio.profile, audio.rate, audio.channels) == ("aac", "LC", 32000, 2)
        times = [frame.time for frame in container.decode(video)]
        assert times == pytest.approx([index / 24 for index in range(count)], abs=1e-6)
        container.seek(0)
        decoded = sum(frame.samples for frame in container.decode(audio))
        assert abs(decoded / 32000 - count / 24) <= 0.032
        assert abs(float(audio.duration * audio.time_base) - count / 24) <= 0.001
        assert audio.start_time == video.start_time == 0
    assert info.num_frames == count and info.audio_samples == round(count / 24 * 32000)
    assert info.notes == () and info.size_bytes == path.stat().st_size


def test_d10_the_index_comes_before_the_media(tmp_path):
    path = tmp_path / "video.mp4"
    write(path, grey_steps(30), np.zeros((2, 40_000), np.float32))
    kinds = made.top_level_kinds(path)
    assert kinds.index(b"moov") < kinds.index(b"mdat") and kinds[0] == b"ftyp"


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128), (37, 90, 201)])
def test_d11_colours_survive_and_are_tagged(tmp_path, colour):
    path = tmp_path / "video.mp4"
    frames = np.broadcast_to(np.array(colour, np.uint8), (6, 768, 1344, 3))
    write(path, frames, np.zeros((2, 8000), np.float32), EncoderSettings())
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        tags = (context.color_primaries, context.color_trc, context.colorspace, context.color_range)
        assert tags == (1, 1, 1, 1)  # bt709, bt709, bt709, tv
        frame = next(container.decode(video=0))
        planes = frame.to_ndarray().astype(float)
    luma, cb, cr = planes[0, 0], planes[768, 0], planes[768 + 192, 0]
    # ITU-R BT.709: 8-bit limited range back to RGB, by the formula
    scaled, blue, red = (luma - 16) / 219, (cb - 128) / 224, (cr - 128) / 224
    rgb = np.array([scaled + 1.5748 * red, scaled - 0.1873 * blue - 0.4681 * red, scaled + 1.8556 * blue]) * 255
    assert np.abs(rgb - colour).max() <= 4


def test_sound_starts_at_zero_and_survives(tmp_path):
    path = tmp_path / "video.mp4"
    sound = made.sine(440, 2, 32000, 2)
    write(path, grey_steps(48), sound)
    with av.open(str(path)) as container:
        decoded = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
    # from the very first sample: FFmpeg's default AAC coder would garble the first 1024
    assert np.abs(decoded[:, :60_000] - sound[:, :60_000]).max() < 0.03


def test_click_and_flash_meet_in_the_file(tmp_path):
    path = tmp_path / "video.mp4"
    frames = np.zeros((48, 64, 64, 3), np.uint8)
    frames[24] = 255
    sound = np.zeros((2, 64_000), np.float32)
    sound[:, 32_000:32_064] = 0.9
    write(path, frames, sound)
    with av.open(str(path)) as container:
        flash = max(container.decode(video=0), key=lambda frame: frame.to_ndarray()[:64].mean()).time
        container.seek(0)
        blocks = [(frame.time, frame.to_ndarray()) for frame in container.decode(audio=0)]
    heard = next(
        time + np.argmax(np.abs(block[0]) > 0.3) / 32000 for time, block in blocks if np.abs(block).max() > 0.3
    )
    assert flash == pytest.approx(1.0) and heard == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(("samples", "words"), [(40_000, "followed by silence"), (90_000, "was cut"), (63_200, None)])
def test_the_picture_bounds_the_sound(tmp_path, samples, words):
    info = write(tmp_path / "video.mp4", grey_steps(48), np.full((2, samples), 0.1, np.float32))
    assert info.audio_samples == 64_000
    assert (words in info.notes[0]) if words else info.notes == ()


def test_metadata_of_300_kilobytes_comes_back(tmp_path):
    details = {"prompt": "ein Fuchs läuft 狐狸", "more": ["x" * 1000] * 300}
    path = tmp_path / "video.mp4"
    write(
        path,
        grey_steps(24),
        np.zeros((2, 32_000), np.float32),
        metadata={"title": "狐狸", "comment": json.dumps(details)},
    )
    with path.open("rb") as file:
        assert json.loads(boxes.metadata(file)["comment"]) == details
    with av.open(str(path)) as container:  # FFmpeg reads them, too
        assert container.metadata["title"] == "狐狸" and json.loads(container.metadata["comment"]) == details


def test_extra_outputs(tmp_path):
    frames = RNG.integers(0, 255, (24, 64, 96, 3), dtype=np.uint8)
    sound = made.sine(440, 1, 32000, 2) * 2.5  # beyond full scale: the WAV keeps it, the MP4 clips it
    settings = EncoderSettings(x264_preset="ultrafast", save_last_frame=True, save_wav=True)
    info = write(tmp_path / "video.mp4", frames, sound, settings)
    assert np.array_equal(np.asarray(Image.open(info.last_frame)), frames[-1])
    samples, rate = soundfile.read(info.wav, dtype="float32")
    assert rate == 32000 and np.array_equal(samples.T, sound)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audio.wav", "last_frame.png", "video.mp4"]


def test_sound_that_is_no_number_does_not_break_the_file(tmp_path):
    sound = made.sine(440, 1, 32000, 2)
    sound[0, 100], sound[1, 200] = np.nan, np.inf
    write(tmp_path / "video.mp4", grey_steps(24), sound)
    with av.open(str(tmp_path / "video.mp4")) as container:
        assert all(np.isfinite(frame.to_ndarray()).all() for frame in container.decode(audio=0))


def test_abort_leaves_nothing_and_may_be_repeated(tmp_path):
    writer = mp4.Mp4Writer(tmp_path / "video.mp4", 64, 64, FAST)
    writer.write_frames(grey_steps(60))
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        writer.write_frames(grey_steps(1))


def test_no_frames_is_an_error_and_leaves_nothing(tmp_path):
    writer = mp4.Mp4Writer(tmp_path / "video.mp4", 64, 64, FAST)
    with pytest.raises(ValueError, match="num_frames=0"):
        writer.close({})
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_error_surfaces_and_leaves_nothing(tmp_path):
    writer = mp4.Mp4Writer(tmp_path / "video.mp4", 64, 64, EncoderSettings(x264_preset="no-such-preset"))
    with pytest.raises(WriteFailure, match=r"video\.mp4 could not be written"):
        for _ in range(200):
            writer.write_frames(grey_steps(8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "frames",
    [np.zeros((2, 64, 64, 3), np.float32), np.zeros((2, 32, 64, 3), np.uint8), np.zeros((64, 64, 3), np.uint8)],
)
def test_wrong_frames_name_what_is_expected(tmp_path, frames):
    with mp4.Mp4Writer(tmp_path / "v.mp4", 64, 64, FAST) as writer, pytest.raises(ValueError, match="must be uint8"):
        writer.write_frames(frames)


FULL_DISK = """
import resource, signal, sys
import numpy as np
from pathlib import Path
from backend.errors import WriteFailure
from backend.media.mp4 import Mp4Writer
from backend.types import EncoderSettings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
settings = EncoderSettings(x264_preset="ultrafast", save_wav=True, save_last_frame=True)
rng = np.random.default_rng(0)
try:
    with Mp4Writer(Path(sys.argv[1]) / "video.mp4", 320, 320, settings) as writer:
        for _ in range(48):
            writer.write_frames(rng.integers(0, 255, (1, 320, 320, 3), dtype=np.uint8))
        writer.write_audio(np.zeros((2, 64000), np.float32))
        writer.close({})
except WriteFailure as failure:
    print(failure)
"""


@pytest.mark.parametrize("limit", [20_000, 400_000, 3_000_000])
def test_a_full_disk_is_said_clearly_and_leaves_nothing(tmp_path, limit):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert "video.mp4 could not be written: File too large; free space in" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_flat_while_the_caller_is_faster(tmp_path):
    import threading

    writer = mp4.Mp4Writer(tmp_path / "video.mp4", 64, 64, EncoderSettings(x264_preset="veryslow"))
    seen = []
    feeder = threading.Thread(target=lambda: [writer.write_frames(grey_steps(4)) for _ in range(80)])
    feeder.start()
    while feeder.is_alive():
        seen.append(writer._queue.qsize())
        feeder.join(0.005)
    writer.close({})
    assert max(seen) <= mp4.QUEUED_FRAMES
