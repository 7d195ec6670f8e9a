from fractions import Fraction
from pathlib import Path

import made
import numpy as np
import pytest
from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3VideoReference
from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep

from backend.errors import MediaRefused
from backend.media import colour, timeline
from backend.types import Geometry

CLIPS = Path(__file__).resolve().parents[3] / "shared" / "h3-official" / "clips"
SMALL = Geometry(canvas_short_edge=192, canvas_max_pixels=192 * 336)  # 320x192 is on its own canvas


def slots_of_diffusers(count: int, fps: float) -> np.ndarray:
    """Which source frame diffusers shows in each slot."""
    frames = np.zeros((count, 32, 32, 3), np.uint8) + np.arange(count)[:, None, None, None].astype(np.uint8)
    normalize = MiniMaxH3Ref2VASetupStep._normalize_video_condition
    return normalize(frames, fps, 10_000, 32, 32, 32 * 32, 24.0)[:, 0, 0, 0]


def shown(seen) -> np.ndarray:
    """Number of the source frame in each prepared frame; its brightness, twice the number, comes back 0 or 1 lower."""
    return np.round(seen.frames.mean(axis=(1, 2, 3)) / 2 + 0.25).astype(int)


@pytest.mark.parametrize("fps", [Fraction(24), Fraction(24000, 1001), 25, 30, Fraction(30000, 1001), 48, 50, 60])
def test_constant_rates_follow_diffusers_slots(fps):
    count = 90
    found = timeline.timing(
        [Fraction(index) / fps for index in range(count)], 1 / Fraction(fps), fps, Fraction(1, 90000)
    )
    counts = timeline.slots(found, Fraction(0), None)
    assert np.array_equal(np.repeat(np.arange(count), counts), slots_of_diffusers(count, float(fps)))


@pytest.mark.parametrize("clock", [Fraction(1, 600), Fraction(1, 1000), Fraction(1, 90000)])
def test_rounded_clocks_still_count_as_constant(clock):
    times = [round(index / Fraction(30000, 1001) / clock) * clock for index in range(90)]
    found = timeline.timing(times, clock, Fraction(30000, 1001), clock)
    assert found.constant_rate == Fraction(30000, 1001)


@pytest.mark.parametrize("fps", [Fraction(24000, 1001), 30, 60])
def test_a_file_at_another_rate_shows_diffusers_frames(tmp_path, see, fps):
    path = made.clip(tmp_path / "a.mp4", 126, fps=fps, clock=1 / (Fraction(fps) * 1000))
    seen = see(path, geometry=SMALL)
    reference = MiniMaxH3VideoReference.from_file(path)
    normalize = MiniMaxH3Ref2VASetupStep._normalize_video_condition
    expected = normalize(reference.frames, reference.fps, 10_000, 32, 192, 192 * 336, 24.0)
    assert np.array_equal(seen.frames, expected)


def test_variable_rate_is_sampled_by_time(tmp_path, see):
    # 30 frames a second for one second, 60 for the next, then 30 again
    times = [Fraction(i, 30) for i in range(30)]
    times += [1 + Fraction(i, 60) for i in range(60)] + [2 + Fraction(i, 30) for i in range(30)]
    clip = made.Clip(tmp_path / "phone.mp4", 320, 192, rate=40)
    for index, time in enumerate(times):
        clip.frame(made.numbered(index), time)
    seen = see(clip.close(), geometry=SMALL)
    assert len(seen.frames) == 72
    late = [times[number] - Fraction(slot, 24) for slot, number in enumerate(shown(seen))]
    # each slot shows the frame of its moment: never more than half a slot early or one source frame late
    assert max(late) <= Fraction(1, 48) and min(late) >= -Fraction(1, 30)


def test_d03_a_rotated_phone_clip_is_portrait(tmp_path, see):
    clip = made.Clip(tmp_path / "rot90.mp4", 640, 360)
    for index in range(96):
        clip.frame(made.picture_and_pattern(640, 360), Fraction(index, 24))
    path = made.with_matrix(clip.close(), (0, -1, 1, 0))  # what -display_rotation 90 writes: counterclockwise
    seen = see(path)
    height, width = seen.frames.shape[1:3]
    assert abs(width / height - 9 / 16) < 0.02 * 9 / 16
    assert seen.frames[0, height - 20, 20].argmax() == 1  # green was top left: counterclockwise is bottom left
    assert (seen.report.width, seen.report.height) == (360, 640)
    assert any("counterclockwise" in action for action in seen.report.actions)


MATRICES = {
    (1, 0, 0, 1): lambda a: a,
    (0, 1, -1, 0): lambda a: np.rot90(a, -1),
    (-1, 0, 0, -1): lambda a: np.rot90(a, 2),
    (0, -1, 1, 0): lambda a: np.rot90(a, 1),
    (-1, 0, 0, 1): lambda a: a[:, ::-1],
    (1, 0, 0, -1): lambda a: a[::-1],
    (0, 1, 1, 0): lambda a: a.swapaxes(0, 1),
    (0, -1, -1, 0): lambda a: a.swapaxes(0, 1)[::-1, ::-1],
}


@pytest.mark.parametrize("matrix", MATRICES)
def test_display_matrices_stand_upright(tmp_path, see, matrix):
    clip = made.Clip(tmp_path / "m.mp4", 320, 192)
    for index in range(49):
        clip.frame(made.picture_and_pattern(320, 192), Fraction(index, 24))
    seen = see(made.with_matrix(clip.close(), matrix), geometry=SMALL)
    expected = MATRICES[matrix](made.picture_and_pattern(320, 192))
    assert seen.frames.shape[1:] == expected.shape
    assert np.abs(seen.frames[0].astype(int) - expected).mean() < 6


@pytest.mark.parametrize(("degrees", "warned"), [(45, True), (10, True), (135, True), (90, False), (0.2, False)])
def test_a_slanted_display_matrix_is_noticed(tmp_path, see, degrees, warned):
    clip = made.Clip(tmp_path / "slanted.mp4", 320, 192)
    for index in range(49):
        clip.frame(made.picture_and_pattern(320, 192), Fraction(index, 24))
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    seen = see(made.with_matrix(clip.close(), (cosine, sine, -sine, cosine)), geometry=SMALL)
    assert any("no quarter turn" in warning for warning in seen.report.warnings) == warned


@pytest.mark.parametrize("interlaced", [True, False])
def test_interlaced_video_is_noticed(tmp_path, see, interlaced):
    import av

    path = tmp_path / "broadcast.mp4"
    with av.open(str(path), "w") as container:
        options = {"x264-params": "tff=1", "flags": "+ildct+ilme"} if interlaced else {}
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        for index in range(60):
            frame = av.VideoFrame.from_ndarray(made.numbered(index), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    seen = see(path, geometry=SMALL)
    assert any("interlaced" in warning for warning in seen.report.warnings) == interlaced


def test_d04_no_soundtrack_is_fine(tmp_path, see):
    seen = see(made.clip(tmp_path / "mute.mp4", 96))
    assert seen.audio is None and len(seen.frames) == 96
    assert any("no sound" in warning for warning in seen.report.warnings)


@pytest.mark.parametrize("name", ["t2va", "fl2va", "ref2va"])
def test_official_clips_round_trip(see, name):
    if not CLIPS.is_dir():
        pytest.skip(f"the official clips are not at {CLIPS}")
    path = CLIPS / f"{name}.mp4"
    seen = see(path)
    reference = MiniMaxH3VideoReference.from_file(path)
    assert np.array_equal(seen.frames, reference.frames)
    sound = reference.audio.numpy()
    length = seen.audio.shape[1]
    assert abs(length / 32000 - len(seen.frames) / 24) < 1 / 24
    assert np.array_equal(seen.audio, sound[:, :length])


@pytest.mark.parametrize("late", [-0.4, 0.0, 0.25])
def test_click_and_flash_stay_together(tmp_path, see, late):
    clip = made.Clip(tmp_path / "sync.mp4", 320, 192, rate=30, sound=(48000, "stereo"))
    for index in range(120):
        clip.frame(made.solid((255,) * 3 if index == 60 else (0,) * 3, 320, 192), Fraction(index, 30) + 1)
    sound = np.zeros((2, 4 * 48000), np.float32)
    click = round((2.0 - late) * 48000)  # the flash is 2 s after the first frame; the sound starts `late` after it
    sound[:, click : click + 96] = 0.9
    clip.sound(sound, at=1 + late)
    seen = see(clip.close(), geometry=SMALL)
    flash = int(np.argmax(seen.frames.mean(axis=(1, 2, 3)))) / 24
    heard = int(np.argmax(np.abs(seen.audio[0]) > 0.3)) / 32000
    assert flash == pytest.approx(2.0, abs=0.5 / 24)
    assert heard == pytest.approx(2.0, abs=0.005)


@pytest.mark.parametrize("start", [0.5, 11.0])
def test_trimming_takes_picture_and_sound_of_the_same_time(tmp_path, see, start):
    clip = made.Clip(tmp_path / "long.mp4", 320, 192, rate=24, sound=(32000, "stereo"))
    count = 24 * 16
    for index in range(count):
        clip.frame(made.solid((index // 24 * 15,) * 3, 320, 192), Fraction(index, 24))
    tones = [made.sine(300 + 100 * second, 1, 32000, channels=2) for second in range(16)]
    clip.sound(np.concatenate(tones, axis=1))
    seen = see(clip.close(), geometry=SMALL, start_s=start, length_s=2.5)
    assert len(seen.frames) == 60 and seen.audio.shape == (2, 80_000)
    middle = start + 1.25
    assert round(seen.frames[30].mean() / 15) == int(middle)
    assert made.peak_hz(seen.audio[0, 36_000:44_000]) == pytest.approx(300 + 100 * int(middle), abs=8)
    assert (seen.report.used_start_s, seen.report.used_length_s) == (start, 2.5)


def test_non_square_pixels_get_their_display_shape(tmp_path, see):
    seen = see(made.clip(tmp_path / "dv.mp4", 60, width=720, height=576, aspect=Fraction(16, 15)))
    assert (seen.report.width, seen.report.height) == (768, 576)
    assert seen.frames.shape[2] / seen.frames.shape[1] == pytest.approx(4 / 3, rel=0.02)


@pytest.mark.parametrize("size", [(322, 194), (642, 358), (320, 240)])
def test_odd_sizes_fit_the_canvas_of_their_aspect(tmp_path, see, size):
    seen = see(made.clip(tmp_path / "odd.mp4", 50, *size), geometry=SMALL)
    height, width = seen.frames.shape[1:3]
    assert width % 32 == height % 32 == 0
    assert width / height == pytest.approx(size[0] / size[1], rel=0.1)
    assert np.abs(shown(seen) - np.arange(50)).max() <= 1


def test_several_streams_use_the_first_video(tmp_path, see):
    import av

    path = tmp_path / "two.mp4"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("libx264", rate=24) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        for number, stream in enumerate(streams):
            for _ in range(60):
                frame = av.VideoFrame.from_ndarray(made.solid((60 + 120 * number,) * 3, 320, 192), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    seen = see(path, geometry=SMALL)
    assert seen.frames.mean() == pytest.approx(60, abs=3)
    assert any("first of 2 video streams" in action for action in seen.report.actions)


BT709 = {"colorspace": 1, "color_range": 1, "color_primaries": 1, "color_trc": 1}
FULL = {**BT709, "color_range": 2}
BT601 = {"colorspace": 6, "color_range": 1, "color_primaries": 6, "color_trc": 6}


@pytest.mark.parametrize("tags", [{}, BT709, FULL, BT601], ids=["untagged", "bt709", "full-range", "bt601"])
@pytest.mark.parametrize("size", [(320, 192), (480, 288)], ids=["on-canvas", "scaled"])
def test_matrices_and_ranges_are_honoured(tmp_path, see, tags, size):
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128), (30, 90, 200)]
    clip = made.Clip(tmp_path / "c.mp4", *size, tags=tags)
    for index in range(60):
        clip.frame(made.solid(colours[index // 12], *size), Fraction(index, 24))
    seen = see(clip.close(), geometry=SMALL)
    for number, colour_ in enumerate(colours):
        assert np.abs(seen.frames[12 * number + 6].astype(int) - colour_).max() <= 4


def test_ten_bit_hevc_becomes_eight(tmp_path, see):
    path = made.clip(tmp_path / "ten.mp4", 60, codec="libx265", pixel_format="yuv420p10le", tags=BT709)
    seen = see(path, geometry=SMALL)
    assert seen.report.codec == "H.265"
    assert np.abs(shown(seen) - np.arange(60)).max() <= 1


# Signal levels and the light they stand for, ITU-R BT.2408: HLG 75 % and PQ 58 % are diffuse white, HLG 38 % and PQ
# 38 % are 26 nits, an 18 % grey card. On a BT.709 display 26 / 203 of white is a code of (26 / 203) ** (1 / 2.4) * 255.
@pytest.mark.parametrize(("look", "white", "grey"), [("hlg", 0.75, 0.38), ("pq", 0.58, 0.38)])
def test_hdr_is_tone_mapped_to_sensible_levels(tmp_path, see, look, white, grey):
    import av

    transfer = {"hlg": 18, "pq": 16}[look]
    tags = {"colorspace": 9, "color_range": 1, "color_primaries": 9, "color_trc": transfer}
    clip = made.Clip(tmp_path / "hdr.mp4", 320, 192, codec="libx265", pixel_format="yuv420p10le", tags=tags)
    for index in range(60):
        luma = round(64 + 876 * (0, grey, white, 1)[index // 15])
        planes = np.concatenate([np.full((192, 320), luma), np.full((96, 320), 512)]).astype(np.uint16)
        clip.frame(av.VideoFrame.from_ndarray(planes, format="yuv420p10le"), Fraction(index, 24))
    seen = see(clip.close(), geometry=SMALL)
    levels = [int(seen.frames[15 * step + 7].mean()) for step in range(4)]
    assert levels[0] <= 3 and levels[3] >= 250
    assert levels[1] == pytest.approx((26 / 203) ** (1 / 2.4) * 255, abs=6)
    assert 225 <= levels[2] <= 250
    assert any("tone-mapped" in action for action in seen.report.actions)


def test_wide_gamut_keeps_greys_and_saturates_colours():
    grey = colour.to_sdr(np.array([[0.5, 0.5, 0.5]]), colour.Look.WIDE)
    assert grey == pytest.approx(0.5, abs=0.002)
    red = colour.to_sdr(np.array([[0.8, 0.2, 0.2]]), colour.Look.WIDE)[0]
    assert red[0] > 0.8 and red[1] < 0.2


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libvpx-vp9"), ("a.mp4", "libsvtav1"), ("a.webm", "libvpx-vp9")])
def test_other_codecs_and_containers_name_rule_and_way_out(tmp_path, see, name, codec):
    path = made.clip(tmp_path / name, 50, codec=codec)
    with pytest.raises(MediaRefused, match=r"a\..*H\.264 or H\.265.*; export it"):
        see(path)


@pytest.mark.parametrize(("fps", "count"), [(15, 45), (120, 300)])
def test_rates_outside_the_rule(tmp_path, see, fps, count):
    with pytest.raises(MediaRefused, match=rf"{fps}\.000 frames a second.*23\.976 to 60"):
        see(made.clip(tmp_path / "r.mp4", count, fps=fps))


@pytest.mark.parametrize("count", [36, 380])
def test_lengths_outside_the_rule(tmp_path, see, count):
    with pytest.raises(MediaRefused, match=rf"{count / 24:.2f} s used.*2 to 15 seconds"):
        see(made.clip(tmp_path / "l.mp4", count, 64, 64))


def test_extreme_shapes_and_large_pictures_are_refused(tmp_path, see):
    with pytest.raises(MediaRefused, match=r"640x128.*1:4 and 4:1"):
        see(made.clip(tmp_path / "wide.mp4", 50, 640, 128))
    with pytest.raises(MediaRefused, match=r"4160x64.*4096x2304"):
        see(made.clip(tmp_path / "huge.mp4", 2, 4160, 64))


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.97])
@pytest.mark.parametrize("fast_start", [True, False])
def test_a_file_that_is_cut_off_is_refused(tmp_path, see, keep, fast_start):
    path = made.clip(tmp_path / "cut.mp4", 96)
    if fast_start:
        from backend.media import boxes

        whole = tmp_path / "whole.mp4"
        path.rename(whole)
        with whole.open("rb") as source, path.open("wb") as target:
            boxes.put_index_first(source, target, {})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(MediaRefused, match=r"cut\.mp4.*must be a complete file"):
        see(path)


@pytest.mark.parametrize("start", [0.0, 33.0])
def test_a_part_of_a_long_file_is_found_by_seeking(tmp_path, see, start):
    clip = made.Clip(tmp_path / "long.mp4", 64, 64, rate=24, sound=(32000, "stereo"))
    for index in range(24 * 40):
        clip.frame(made.solid((index // 24 * 6,) * 3, 64, 64), Fraction(index, 24))
    tones = [made.sine(300 + 50 * second, 1, 32000, channels=2) for second in range(40)]
    clip.sound(np.concatenate(tones, axis=1))
    path = clip.close()
    tiny = Geometry(canvas_short_edge=64, canvas_max_pixels=64 * 64)
    with pytest.raises(MediaRefused, match=r"used.*2 to 15 seconds.*trim it"):
        see(path, geometry=tiny, start_s=start / 2)
    seen = see(path, geometry=tiny, start_s=start, length_s=4.0)
    assert seen.report.duration_s == pytest.approx(40, abs=0.05)
    assert [round(level / 6) for level in seen.frames[12::24].mean(axis=(1, 2, 3))] == [start + k for k in range(4)]
    assert made.peak_hz(seen.audio[0, 36_000:60_000]) == pytest.approx(300 + 50 * (start + 1), abs=3)


@pytest.mark.parametrize("container", ["mov", "fragmented"])
def test_quicktime_and_fragmented_files(tmp_path, see, container):
    import av

    path = tmp_path / "a.bin"
    options = {"movflags": "frag_keyframe+empty_moov"} if container == "fragmented" else {}
    with av.open(str(path), "w", format="mov" if container == "mov" else "mp4", options=options) as out:
        video = out.add_stream("libx264", rate=24, options={"g": "12", "qp": "12"})
        video.width, video.height, video.pix_fmt = 320, 192, "yuv420p"
        audio = out.add_stream("pcm_s16le" if container == "mov" else "aac", rate=48000, layout="stereo")
        for index in range(60):
            out.mux(video.encode(av.VideoFrame.from_ndarray(made.numbered(index), format="rgb24")))
        out.mux(video.encode(None))
        sound = av.AudioFrame.from_ndarray(made.sine(440, 2.5, 48000, 2), format="fltp", layout="stereo")
        sound.sample_rate, sound.pts, sound.time_base = 48000, 0, Fraction(1, 48000)
        sound = av.AudioResampler(format=audio.format, layout="stereo", rate=48000).resample(sound)[0]
        out.mux(audio.encode(sound))
        out.mux(audio.encode(None))
    seen = see(path, geometry=SMALL)
    assert seen.report.container == ("MOV" if container == "mov" else "MP4")
    assert seen.report.duration_s == pytest.approx(2.5, abs=0.01)
    assert np.abs(shown(seen) - np.arange(60)).max() <= 1
    assert abs(made.peak_hz(seen.audio[0]) - 440) <= 2
