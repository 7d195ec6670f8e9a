"""The file that is watched while the rest decodes: same packets, same times, playable from its first fragment on."""

import io
import os
import threading

import av
import made
import numpy as np
import pytest

from backend.media.mp4 import KEYFRAME_EVERY, Growing, Mp4Writer
from backend.types import EncoderSettings

FAST = EncoderSettings(crf=20, x264_preset="veryfast")
COUNT = 124
SOUND = made.sine(440, 1, round(COUNT / 24 * 32000), 2)


def pictures(start, stop):
    ramp = np.linspace(0, 255, 96, dtype=np.uint8)
    return np.stack([np.broadcast_to(np.roll(ramp, 3 * i)[None, :, None], (64, 96, 3)) for i in range(start, stop)])


def packets(source):
    with av.open(source) as container:
        return {
            stream.type: [
                (float(packet.pts * packet.time_base), bytes(packet))
                for packet in container.demux(stream)
                if packet.pts is not None
            ]
            for stream in container.streams
            if container.seek(0) is None
        }


def kinds_in_order(path):
    with av.open(str(path)) as container:
        return [packet.stream.type for packet in sorted(container.demux(), key=lambda p: p.pos or 0) if packet.size]


def frames(source):
    with av.open(source) as container:
        return [(frame.time, frame.to_ndarray()) for frame in container.decode(video=0)]


def sound(source):
    with av.open(source) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


class Run:
    """A clip written in chunks as the decoder gives them. A second name for the growing file keeps its bytes."""

    def __init__(self, folder, sound_first=True, stop_at=COUNT):
        self.path, self.kept, self.stream = folder / "video.mp4", folder / "kept", folder / "stream.mp4"
        self.told = threading.Event()
        self.told_before = None
        growing = Growing(path=self.stream, tell=self._tell)
        self.prefixes = []
        with Mp4Writer(self.path, 96, 64, FAST, growing) as self.writer:
            if sound_first:
                self.writer.write_audio(SOUND)
            for start in range(0, stop_at, 17):
                self.writer.write_frames(pictures(start, min(start + 17, COUNT)))
                while self.writer._queue.qsize():
                    threading.Event().wait(0.01)
                if self.told.is_set():
                    self.told_before = self.told_before or start + 17
                    self.prefixes.append(self.stream.read_bytes())
            if not sound_first:
                self.writer.write_audio(SOUND)
            if stop_at == COUNT:
                self.info = self.writer.close({})

    def _tell(self):
        os.link(self.stream, self.kept)
        self.told.set()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("growing"))


def test_it_holds_the_packets_of_the_finished_file_at_the_same_times(run):
    finished, grown = packets(str(run.path)), packets(str(run.kept))
    for kind in ("video", "audio"):
        assert [data for _, data in grown[kind]] == [data for _, data in finished[kind]], kind
        # Microseconds of difference: an index counts edits in milliseconds.
        assert [at for at, _ in grown[kind]] == pytest.approx([at for at, _ in finished[kind]], abs=1e-3)
    assert [at for at, _ in frames(str(run.kept))] == pytest.approx([index / 24 for index in range(COUNT)], abs=1e-6)


def test_every_prefix_plays_with_its_sound_and_only_grows(run):
    assert run.told_before <= 68  # long before the last of 124 frames
    whole = frames(str(run.path))
    assert len(run.prefixes) >= 3
    for earlier, later in zip(run.prefixes, run.prefixes[1:], strict=False):
        assert later.startswith(earlier)
    for prefix in run.prefixes:
        seen = frames(io.BytesIO(prefix))
        assert len(seen) >= 12
        assert all(np.array_equal(mine, theirs) for (_, mine), (_, theirs) in zip(seen, whole, strict=False))
        heard = sound(io.BytesIO(prefix))
        assert abs(heard.shape[1] / 32000 - len(seen) / 24) < 0.1
        # The last packet of a prefix lacks its neighbour: its second half is not what it will be.
        assert np.array_equal(heard[:, :-1024], sound(str(run.path))[:, : heard.shape[1] - 1024])
    assert run.writer.first_second_at is not None


def test_the_finished_file_keeps_its_own_key_frames_and_index(run):
    with av.open(str(run.path)) as container:
        keys = [packet.pts * packet.time_base for packet in container.demux(video=0) if packet.is_keyframe]
    gaps = np.diff([*(float(key) * 24 for key in keys), COUNT])
    assert len(keys) == 3 and gaps.max() <= KEYFRAME_EVERY  # and none for a fragment's sake
    kinds = made.top_level_kinds(run.path)
    assert kinds[0] == b"ftyp" and kinds.index(b"moov") < kinds.index(b"mdat") and b"moof" not in kinds


def test_only_the_finished_file_is_left(run):
    assert {path.name for path in run.path.parent.iterdir()} == {"video.mp4", "kept"}


def test_late_sound_gives_the_same_finished_file(run, tmp_path):
    late = Run(tmp_path, sound_first=False)
    assert late.told_before is None and not late.prefixes  # nothing to play before its sound
    one, other = packets(str(late.path)), packets(str(run.path))
    assert one["audio"] == other["audio"]
    assert [at for at, _ in one["video"]] == [at for at, _ in other["video"]]
    # x264's macroblock tree differs by some bytes from run to run when it works in threads: the pictures are compared.
    for (_, mine), (_, theirs) in zip(frames(str(late.path)), frames(str(run.path)), strict=True):
        assert np.abs(mine.astype(int) - theirs).mean() < 1
    order = [kinds_in_order(path) for path in (late.path, run.path)]
    assert order[0] == order[1]  # sound lies beside its picture, whenever it came


def test_left_in_the_middle_nothing_remains(tmp_path):
    left = Run(tmp_path, stop_at=85)
    left.kept.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_growing_file_that_cannot_be_written_costs_the_finished_one_nothing(tmp_path):
    told = []
    growing = Growing(path=tmp_path / "missing" / "stream.mp4", tell=lambda: told.append(1))
    with Mp4Writer(tmp_path / "video.mp4", 96, 64, FAST, growing) as writer:
        writer.write_audio(SOUND)
        writer.write_frames(pictures(0, COUNT))
        info = writer.close({})
    assert info.notes == ("it could not be watched while it was decoded: No such file or directory",)
    assert not told and len(frames(str(tmp_path / "video.mp4"))) == COUNT
