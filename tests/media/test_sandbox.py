import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import made
import numpy as np
import pytest
import soundfile
from PIL import Image

from backend.errors import InvalidRequest, MediaRefused, WriteFailure
from backend.media import child, sandbox
from backend.media.inspection import Inspection, inspect_file, render_report
from backend.media.prepare import prepare_request
from backend.media.probe import probe_file, probe_request_files
from backend.types import GenerationRequest, Geometry, Reference, ReferenceKind, Sampling

SMALL = Geometry(canvas_short_edge=192, canvas_max_pixels=192 * 336)
ROOT = Path(__file__).resolve().parents[2]


def bomb(path: Path, side: int) -> Path:
    """A one-bit PNG of `side` x `side` black pixels that is tiny on disk."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    out = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    path.write_bytes(out)
    return path


def peak_memory_of(action) -> int:
    """Largest resident size (bytes) of the sandboxes while `action` runs.

    Before its exec, a child still is a picture of this process, with all its memory: that moment is left out.
    """
    import psutil

    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        me = psutil.Process()
        while not done.is_set():
            for started in me.children(recursive=True):
                try:
                    if "backend.media.sandbox" in started.cmdline():
                        peak = max(peak, started.memory_info().rss)
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        action()
    finally:
        done.set()
        watcher.join()
    return peak


@pytest.mark.parametrize("side", [13_000, 30_000])
@pytest.mark.parametrize("role", list(sandbox.Role))
def test_d17_bombs_are_refused_from_the_header(tmp_path, side, role):
    path = bomb(tmp_path / "bomb.png", side)

    def attempt() -> None:
        with pytest.raises(MediaRefused, match=rf"bomb\.png.*{side}x{side}.*40 megapixels.*scale it down"):
            probe_file(path, role=role)

    started = os.times()
    peak = peak_memory_of(attempt)
    ended = os.times()
    # processor time, so that a busy machine does not fail the test: starting Python and its libraries is most of it
    assert (ended.children_user + ended.children_system) - (started.children_user + started.children_system) < 2
    assert 10 * 2**20 < peak < 300 * 2**20


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mov", "clip.mp3"])
def test_d18_a_script_under_a_media_name_opens_nothing(tmp_path, name):
    other = made.clip(tmp_path / "other.mp4", 60)
    os.utime(other, (1, other.stat().st_mtime))
    path = tmp_path / name
    path.write_text("ffconcat version 1.0\nfile other.mp4\n")
    with pytest.raises(MediaRefused, match=rf"{name}.*a playlist.*must be a picture"):
        probe_file(path)
    with pytest.raises(MediaRefused, match="a playlist"):
        inspect_file(path, Inspection(), Geometry())
    assert other.stat().st_atime == 1  # nobody read it


DISGUISES = {
    "m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:1/x.ts\n",
    "svg": b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "html": b"<html><script>alert(1)</script></html>",
    "shell": b"#!/bin/sh\nrm -rf /\n",
    "json": b'{"a": 1}',
    "bytes": bytes(range(256)) * 8,
    "zip": b"PK\x03\x04" + bytes(100),
    "pdf": b"%PDF-1.7\n",
    "elf": b"\x7fELF" + bytes(200),
    "tiff": b"II*\x00" + bytes(100),
    "bmp": b"BM" + bytes(100),
    "avi": b"RIFF\x00\x00\x00\x00AVI " + bytes(100),
    "mkv": b"\x1a\x45\xdf\xa3" + bytes(100),
    "mp4 header only": b"\x00\x00\x00\x18ftypisom\x00\x00\x00\x00isommp42",
    "png header only": b"\x89PNG\r\n\x1a\n",
    "mp3 header only": b"ID3\x04\x00\x00\x00\x00\x00\x00",
    "wav header only": b"RIFF\x24\x00\x00\x00WAVEfmt ",
    "empty": b"",
}


@pytest.mark.parametrize("kind", DISGUISES)
def test_what_is_no_media_is_refused_in_one_sentence(tmp_path, see, kind):
    path = tmp_path / "holiday.mp4"
    path.write_bytes(DISGUISES[kind])
    with pytest.raises(MediaRefused) as refused:
        see(path)
    problem = refused.value.problem
    assert "holiday.mp4 (" in problem.value and problem.rule and problem.way_out


NAMES = ["with space.png", 'it\'s "quoted".png', "Ünïcödé 狐狸.png", "-rf.png", "a%20b;$(id).png", "x" * 250 + ".png"]


@pytest.mark.parametrize("name", NAMES)
def test_any_file_name_is_fine(tmp_path, name):
    path = tmp_path / name
    Image.new("RGB", (300, 300)).save(path)
    report = probe_file(path)
    assert report.name == name and (report.width, report.height) == (300, 300)


def test_only_regular_files_are_opened(tmp_path):
    real = tmp_path / "real.png"
    Image.new("RGB", (300, 300)).save(real)
    link, pipe = tmp_path / "link.png", tmp_path / "pipe.png"
    link.symlink_to(real)
    os.mkfifo(pipe)
    talk = socket.socket(socket.AF_UNIX)
    talk.bind(str(tmp_path / "s"))
    talk.close()
    kinds = {link: "symbolic link", pipe: "pipe", tmp_path: "folder", Path("/"): "folder", tmp_path / "s": "socket"}
    kinds |= {Path("/dev/zero"): "device", Path("/dev/null"): "device"}
    for path, words in ((path, f"is a {kind}") for path, kind in kinds.items()):
        with pytest.raises(MediaRefused, match=words):
            probe_file(path)
    for path in (tmp_path / "none.png", Path("/dev/zero"), Path("real.png"), Path("https://example.com/a.png")):
        with pytest.raises(MediaRefused):
            probe_file(path)


SPY = """
import json, os, resource, socket, subprocess, sys
from backend.media import confine
confine.deny_network()
confine.limit(30)
found = {}
for name, act in {
    "socket": lambda: socket.socket(),
    "process": lambda: subprocess.run(["true"]),
    "memory": lambda: bytearray(6 * 2**30),
    "files": lambda: [open(os.devnull) for _ in range(100)],
}.items():
    try:
        act()
        found[name] = "allowed"
    except (OSError, MemoryError) as error:
        found[name] = type(error).__name__
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
found["kernel socket"] = "allowed" if libc.socket(2, 1, 0) >= 0 else os.strerror(ctypes.get_errno())
print(json.dumps(found))
"""


def test_rights_are_gone_before_a_file_is_read():
    done = subprocess.run([sys.executable, "-c", SPY], cwd=ROOT, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert found == {
        "socket": "PermissionError",
        "process": "PermissionError",
        "memory": "MemoryError",
        "files": "OSError",
        "kernel socket": "Operation not permitted",
    }


def test_a_child_gets_no_secret_and_a_hung_one_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in str(child._environment())
    path = tmp_path / "a.png"
    Image.new("RGB", (300, 300)).save(path)
    monkeypatch.setattr(sandbox, "PROBE_DEADLINE_S", 0.01)
    with pytest.raises(MediaRefused, match=r"a\.png.*more than 0\.01 s"):
        probe_file(path)


def test_a_decoder_that_crashes_is_a_refusal(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (300, 300)).save(path)
    real = subprocess.Popen

    def crashing(command, **options):
        return real([sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGSEGV.value})"], **options)

    monkeypatch.setattr(child.subprocess, "Popen", crashing)
    with pytest.raises(MediaRefused, match=r"a\.png.*died of SIGSEGV.*export it again"):
        probe_file(path)


def test_a_refused_file_leaves_nothing_behind(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (400, 400, 3), dtype=np.uint8)
    whole = io.BytesIO()
    Image.fromarray(noise).save(whole, format="PNG")
    path = tmp_path / "half.png"
    path.write_bytes(whole.getvalue()[:2000])
    folder = tmp_path / "job"
    with pytest.raises(MediaRefused, match=r"references\[0\]=half\.png"):
        prepare_request(GenerationRequest(prompt="x", references=(Reference(path=path),)), SMALL, folder)
    assert list(folder.iterdir()) == []


def test_a_whole_request_is_prepared_in_order(tmp_path):
    clip = made.clip(tmp_path / "mute clip.mp4", 60)
    picture = tmp_path / "face.webp"
    Image.fromarray(made.solid((10, 200, 30), 400, 300)).save(picture, lossless=True)
    voice = tmp_path / "voice.wav"
    soundfile.write(voice, made.sine(440, 6, 16000)[0], 16000)
    references = (Reference(path=clip), Reference(path=picture), Reference(path=voice, start_s=1.0, length_s=3.0))
    request = GenerationRequest(prompt="x", references=references)
    media = prepare_request(request, SMALL, tmp_path / "job")
    assert [item.kind for item in media.references] == [ReferenceKind.VIDEO, ReferenceKind.IMAGE, ReferenceKind.AUDIO]
    assert np.load(media.references[0].frames, mmap_mode="r").shape == (60, 192, 320, 3)
    assert media.references[0].audio is None
    assert np.array_equal(np.asarray(Image.open(media.references[1].image)), made.solid((10, 200, 30), 400, 300))
    assert np.load(media.references[2].audio).shape == (2, 96_000)
    assert [report.name for report in media.reports] == ["mute clip.mp4", "face.webp", "voice.wav"]
    probed = probe_request_files(request, SMALL)
    assert {path.name: report.kind.value for path, report in probed.items()} == {
        "mute clip.mp4": "video",
        "face.webp": "image",
        "voice.wav": "audio",
    }


@pytest.mark.parametrize("given", [("first",), ("last",), ("first", "last")])
def test_the_first_keyframe_is_the_anchor_and_the_other_follows(tmp_path, given):
    paths = {}
    for name, size in (("first", (400, 300)), ("last", (300, 400))):
        paths[name] = tmp_path / f"{name}.png"
        noise = np.random.default_rng(len(name)).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(paths[name])
    frames = {f"{name}_frame": paths[name] for name in given}
    media = prepare_request(GenerationRequest(prompt="x", **frames), SMALL, tmp_path / "job")
    anchor = Image.open(paths[given[0]])
    canvas = (256, 192) if given[0] == "first" else (192, 256)
    prepared = media.first_frame if given[0] == "first" else media.last_frame
    assert np.array_equal(np.asarray(Image.open(prepared)), np.asarray(anchor.resize(canvas, Image.Resampling.LANCZOS)))
    if len(given) == 2:
        follower = Image.open(paths["last"]).resize((256, 341), Image.Resampling.LANCZOS).crop((0, 74, 256, 266))
        assert np.array_equal(np.asarray(Image.open(media.last_frame)), np.asarray(follower))


def test_a_canvas_that_was_asked_for_is_used(tmp_path):
    path = tmp_path / "first.png"
    Image.new("RGB", (400, 300), (9, 9, 9)).save(path)
    request = GenerationRequest(prompt="x", first_frame=path, sampling=Sampling(width=320, height=192))
    assert Image.open(prepare_request(request, SMALL, tmp_path / "job").first_frame).size == (320, 192)


def test_a_video_is_no_keyframe(tmp_path):
    clip = made.clip(tmp_path / "a.mp4", 60)
    with pytest.raises(MediaRefused, match=r"first_frame=a\.mp4.*keyframe must be a picture.*use it as a reference"):
        prepare_request(GenerationRequest(prompt="x", first_frame=clip), SMALL, tmp_path / "job")


@pytest.mark.parametrize("options", [{"start_s": 1.0}, {"length_s": 2.0}])
@pytest.mark.parametrize("role", list(sandbox.Role))
def test_a_picture_has_no_part(tmp_path, see, options, role):
    path = tmp_path / "a.png"
    Image.new("RGB", (300, 300)).save(path)
    with pytest.raises(MediaRefused, match=r"a\.png \(PNG\).*no start and no length"):
        see(path, role=role, **options)


def test_sound_is_no_keyframe_and_has_no_frame_to_save(tmp_path, see):
    path = tmp_path / "voice.wav"
    soundfile.write(path, made.sine(440, 3, 16000)[0], 16000)
    with pytest.raises(MediaRefused, match=r"voice\.wav \(WAV\): a keyframe must be a picture") as refused:
        see(path, role=sandbox.Role.FIRST_FRAME)
    assert "frames" not in refused.value.problem.way_out and "use it as a reference" in refused.value.problem.way_out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"role": sandbox.Role.FIRST_FRAME, "width": 224}, r"width=224: a canvas needs width and height"),
        ({"role": sandbox.Role.FIRST_FRAME, "height": 128}, r"height=128: a canvas needs width and height"),
        ({"width": 224, "height": 128}, r"width=224: only a keyframe has a canvas"),
        ({"role": sandbox.Role.FIRST_FRAME, "width": 224, "height": 0}, r"height=0: must be 1 px or more"),
        ({"role": sandbox.Role.FIRST_FRAME, "width": -5, "height": 9}, r"width=-5: must be 1 px or more"),
    ],
)
def test_inspect_refuses_options_it_would_ignore(tmp_path, options, words):
    path = tmp_path / "a.png"
    Image.new("RGB", (300, 300)).save(path)
    with pytest.raises(InvalidRequest, match=words):
        inspect_file(path, Inspection(**options), SMALL)


def test_inspect_names_an_output_it_cannot_write(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (300, 300)).save(path)
    for out in (path, path / "below", path / "far" / "below", Path("/proc/nowhere")):
        with pytest.raises(WriteFailure, match=r"cannot be written.*give a folder"):
            inspect_file(path, Inspection(), SMALL, out)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "image.png").mkdir()
    with pytest.raises(WriteFailure, match=r"out.*is a directory"):
        inspect_file(path, Inspection(), SMALL, tmp_path / "out")


def test_inspect_writes_what_the_model_sees(tmp_path):
    path = tmp_path / "talk.mp4"
    clip = made.Clip(path, 320, 192, sound=(48000, "mono"))
    for index in range(60):
        clip.frame(made.numbered(index), index / 24)
    clip.sound(made.sine(440, 2.5, 48000))
    clip.close()
    out = tmp_path / "out"
    report, written = inspect_file(path, Inspection(start_s=0.25, length_s=2.0), SMALL, out)
    assert report.num_frames == 48 and len(list((out / "frames").glob("*.png"))) == 48
    assert np.asarray(Image.open(out / "frames" / "00000.png")).mean() == pytest.approx(2 * 6, abs=1.5)
    samples, rate = soundfile.read(out / "audio.wav", dtype="float32")
    assert rate == 32000 and samples.shape == (64_000, 2)
    assert soundfile.info(out / "audio.wav").subtype == "FLOAT"
    assert json.loads((out / "report.json").read_text())["num_frames"] == 48
    assert len(written) == 50 and not list(tmp_path.glob("h3-inspect-*"))
    text = render_report(report)
    assert "talk.mp4" in text and "320x192" in text and "48 frames" in text
    shutil.rmtree(out)
    assert inspect_file(path, Inspection(start_s=0.25, length_s=2.0), SMALL)[1] == ()


def whole_files(folder: Path) -> list[Path]:
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), dtype=np.uint8)
    files = [made.clip(folder / "a.mp4", 50, 64, 64)]
    for ending in ("png", "jpg", "webp", "gif"):
        files.append(folder / f"a.{ending}")
        Image.fromarray(noise).save(files[-1])
    for ending in ("wav", "mp3", "flac", "ogg"):
        files.append(folder / f"b.{ending}")
        soundfile.write(files[-1], made.sine(440, 2.5, 22050)[0], 22050)
    return files


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path, see, seed):
    random = np.random.default_rng(seed)
    tiny = Geometry(canvas_short_edge=64, canvas_max_pixels=64 * 64)
    for path in whole_files(tmp_path):
        data = bytearray(path.read_bytes())
        reach = (len(data), min(400, len(data)))[seed % 2]
        for place in random.integers(0, reach, 1 + 4 * (seed % 3)):
            data[place] = random.integers(0, 256)
        damaged = tmp_path / f"damaged-{path.name}"
        damaged.write_bytes(data[: int(random.integers(1, len(data)))] if seed == 5 else data)
        try:
            seen = see(damaged, geometry=tiny)
        except MediaRefused as refused:
            assert damaged.name in str(refused) and refused.problem.way_out
        else:
            assert seen.audio is None or np.isfinite(seen.audio).all()
