"""Settings, last picture and likeness of finished MP4s, held against FFmpeg's own filters and against the writer."""

from __future__ import annotations

import contextlib
import gc
import json
import re

import av
import numpy as np
import pytest
from PIL import Image

from backend.errors import MediaRefused
from backend.media import finished, likeness
from backend.media.mp4 import Mp4Writer
from backend.types import EncoderSettings

DETAILS = {"format": 1, "request": {"prompt": "狐狸 runs"}, "seed": 5}


def clip(path, shift=0, frames=12, size=(96, 64), crf=17, comment=None):
    """A moving picture with some texture, as our own writer makes it."""
    width, height = size
    grid = np.random.default_rng(3).integers(0, 255, (height // 8 + 9, width // 8 + 9, 3), dtype=np.uint8)
    ground = np.asarray(Image.fromarray(grid).resize((width + 64, height + 64), Image.Resampling.BICUBIC))
    with Mp4Writer(path, width, height, EncoderSettings(crf=crf)) as writer:
        for index in range(frames):
            at = index + shift
            writer.write_frames(np.ascontiguousarray(ground[None, at : at + height, at : at + width]))
        writer.close({} if comment is None else {"comment": comment})
    return path


def ffmpeg_says(name, first, second, stats):
    """What FFmpeg's filter of that name writes of each pair of pictures."""
    graph = av.filter.Graph()
    inputs = [av.open(str(path)) for path in (first, second)]
    feeds = [graph.add_buffer(template=file.streams.video[0]) for file in inputs]
    judge, sink = graph.add(name, f"stats_file={stats}"), graph.add("buffersink")
    feeds[0].link_to(judge, 0, 0)
    feeds[1].link_to(judge, 0, 1)
    judge.link_to(sink)
    graph.configure()
    for pair in zip(*(file.decode(video=0) for file in inputs), strict=True):
        for feed, frame in zip(feeds, pair, strict=True):
            feed.push(frame)
    for feed in feeds:
        feed.push(None)
    with contextlib.suppress(av.error.EOFError):
        while True:
            sink.pull()
    del graph, judge, sink, feeds  # the filter writes its file when it goes
    gc.collect()
    return stats.read_text()


def test_psnr_and_ssim_are_what_ffmpeg_measures(tmp_path):
    first, second = clip(tmp_path / "a.mp4", crf=12), clip(tmp_path / "b.mp4", crf=38)
    found = finished.compare(first, second)
    assert found.sizes == ("96 × 64", "96 × 64") and found.frames == (12, 12) and not found.reason
    psnr = ffmpeg_says("psnr", first, second, tmp_path / "psnr.txt")
    mse = [float(value) for value in re.findall(r"mse_avg:(\S+)", psnr)]
    assert found.mse == pytest.approx(mse, abs=0.006)  # FFmpeg prints two digits
    told = [float(value) for value in re.findall(r"psnr_avg:(\S+)", psnr)]
    assert [likeness.psnr_db(value) for value in found.mse] == pytest.approx(told, abs=0.006)
    ssim = [float(value) for value in re.findall(r"All:(\S+)", ffmpeg_says("ssim", first, second, tmp_path / "s.txt"))]
    assert len(ssim) == 12 and min(ssim) < 0.99
    assert found.ssim == pytest.approx(ssim, abs=2e-6)


def test_a_clip_is_identical_to_itself(tmp_path):
    path = clip(tmp_path / "a.mp4")
    found = finished.compare(path, path)
    assert set(found.mse) == {0.0} and found.ssim == pytest.approx([1.0] * 12)
    assert likeness.psnr_db(0.0) is None


def test_other_sizes_are_said_and_other_lengths_compared_as_far_as_both_go(tmp_path):
    first = clip(tmp_path / "a.mp4")
    other = finished.compare(first, clip(tmp_path / "b.mp4", size=(64, 96)))
    assert "96 × 64 and 64 × 96" in other.reason and other.mse == ()
    longer = finished.compare(first, clip(tmp_path / "c.mp4", frames=20))
    assert longer.frames == (12, 20) and len(longer.mse) == len(longer.ssim) == 12 and not longer.reason


def test_the_last_picture_is_the_last_one_written(tmp_path):
    path = tmp_path / "a.mp4"
    ramp = np.broadcast_to(np.linspace(20, 230, 96, dtype=np.uint8)[None, :, None], (64, 96, 3))
    red = np.broadcast_to(np.array([200, 30, 40], np.uint8), (64, 96, 3))
    with Mp4Writer(path, 96, 64, EncoderSettings(crf=1)) as writer:
        for picture in (ramp, ramp, red):
            writer.write_frames(np.ascontiguousarray(picture[None]))
        writer.close({})
    finished.write_last_frame(path, tmp_path / "last.png")
    last = np.asarray(Image.open(tmp_path / "last.png"))
    assert last.shape == (64, 96, 3)
    assert np.abs(last.astype(int) - red).max() <= 3  # 8-bit YUV at crf 1


def test_settings_come_back_as_they_were_written(tmp_path):
    path = clip(tmp_path / "a.mp4", comment=json.dumps(DETAILS, ensure_ascii=False))
    assert finished.read_settings(path) == DETAILS


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        (None, "holds no settings"),
        ("made with love", "its comment is not ours"),
        ("[1]", "its comment is not ours"),
        ('{"request": 5}', "its comment is not ours"),
        ("[" * 50_000, "its comment is not ours"),
        ("x" * (5 * 2**20), "holds too much text"),
    ],
)
def test_foreign_files_are_refused_in_words(tmp_path, comment, why):
    path = clip(tmp_path / "a.mp4", frames=2, comment=comment)
    with pytest.raises(MediaRefused, match=f"a\\.mp4 \\({why}\\).*MP4 that this program made"):
        finished.read_settings(path)


def test_what_is_no_mp4_or_broken_is_refused_in_words(tmp_path):
    picture = tmp_path / "a.png"
    Image.new("RGB", (32, 32)).save(picture)
    with pytest.raises(MediaRefused, match=r"a\.png \(is PNG\)"):
        finished.read_settings(picture)
    whole = clip(tmp_path / "a.mp4", comment=json.dumps(DETAILS))
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[:900])
    for ask in (finished.read_settings, lambda path: finished.compare(path, whole)):
        with pytest.raises(MediaRefused, match=r"cut\.mp4"):
            ask(cut)
    target = tmp_path / "last.png"
    with pytest.raises(MediaRefused, match=r"cut\.mp4"):
        finished.write_last_frame(cut, target)
    assert not target.exists()
    link = tmp_path / "link.mp4"
    link.symlink_to(whole)
    with pytest.raises(MediaRefused, match="symbolic link"):
        finished.read_settings(link)
