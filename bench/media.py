"""Speed of media in and out: a 15 s 1080p reference prepared, and a 15 s 1344x768 result written.

Run `python -m bench.media` on an otherwise idle machine; it prints one JSON object. Targets: performance of issue 02.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import psutil

from backend.media.inspection import Inspection, inspect_file
from backend.media.mp4 import Mp4Writer
from backend.presets import quality_presets
from backend.types import EncoderSettings, Geometry

FRAMES, WIDTH, HEIGHT = 362, 1344, 768


def moving(width: int, height: int, rate: int, seconds: float):
    """Frames of FFmpeg's testsrc2: edges, gradients and motion."""
    graph = av.filter.Graph()
    source = graph.add("testsrc2", f"size={width}x{height}:rate={rate}:duration={seconds}")
    sink = graph.add("buffersink")
    source.link_to(sink)
    graph.configure()
    for _ in range(round(seconds * rate)):
        yield graph.pull()


def make_reference(path: Path) -> None:
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "20"})
        video.width, video.height, video.pix_fmt = 1920, 1080, "yuv420p"
        audio = container.add_stream("aac", rate=48000, layout="stereo")
        for index, frame in enumerate(moving(1920, 1080, 30, 15)):
            frame = frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        noise = np.random.default_rng(0).normal(0, 0.1, (2, 15 * 48000)).astype(np.float32)
        sound = av.AudioFrame.from_ndarray(noise, format="fltp", layout="stereo")
        sound.sample_rate, sound.pts, sound.time_base = 48000, 0, Fraction(1, 48000)
        container.mux(audio.encode(sound))
        container.mux(audio.encode(None))


def prepared(path: Path) -> dict[str, float]:
    """Seconds and the child's largest resident size."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            for child in psutil.Process().children(recursive=True):
                try:
                    peak = max(peak, child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, started = os.times(), time.perf_counter()
    inspect_file(path, Inspection(), Geometry())
    seconds, after = time.perf_counter() - started, os.times()
    done.set()
    watcher.join()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "peak_mb": round(peak / 2**20)}


def written(folder: Path, settings: EncoderSettings) -> dict[str, float]:
    """Frames a second from the first frame handed over to the file in place, and the wait the caller sees."""
    clip = np.stack([frame.to_ndarray(format="rgb24") for frame in moving(WIDTH, HEIGHT, 24, 4)])
    sound = np.random.default_rng(0).normal(0, 0.1, (2, round(FRAMES / 24 * 32000))).astype(np.float32)
    started, cpu = time.perf_counter(), time.process_time()
    with Mp4Writer(folder / "video.mp4", WIDTH, HEIGHT, settings) as writer:
        for start in range(0, FRAMES, 17):
            rows = [index % len(clip) for index in range(start, min(start + 17, FRAMES))]
            writer.write_frames(clip[rows])
        writer.write_audio(sound)
        info = writer.close({"title": "bench"})
    seconds = time.perf_counter() - started
    return {
        "frames_per_s": round(FRAMES / seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "megabytes": round(info.size_bytes / 1e6, 2),
    }


def main() -> None:
    figures: dict[str, object] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_reference(folder / "reference.mp4")
        figures["reference_1080p30_15s"] = prepared(folder / "reference.mp4")
        for quality in quality_presets().values():
            figures[f"mp4_{WIDTH}x{HEIGHT}_{FRAMES}_{quality.name}"] = written(folder, quality.encoder)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
