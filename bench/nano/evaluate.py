"""Score a finished checkpoint on held-out prompts, through the program's own pipeline, and print the table.

`python -m bench.nano.evaluate assets/nano --clips 200 [--task all] [--points 12] [--json FILE] [--keep DIR]`; without a
checkpoint the world's own clips are judged, which shows what the detectors miss. `--keep` shows what went wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backend.types import GenerationRequest, PreparedMedia, PreparedReference, Reference, ReferenceKind, Sampling
from bench.nano import detectors, grammar, hearing, references, scores, sound, world
from bench.nano.world import Clip

CANVAS = (224, 128)
FRAMES = 107
DTYPE = "float32"  # as the CPU preset
REFERENCE_FRAMES = 56
TASKS = ("t2va", "fl2va", "ref2va")
_PSNR_GOAL_DB = 24.0
Part = tuple[int, int]


def held_out_prompts(rng: random.Random, count: int, num_frames: int = FRAMES) -> list[tuple[Clip, str]]:
    """Clips whose (shape, colour, motion) was never trained, motions in turn, in sentence frames never trained."""
    found: list[tuple[Clip, str]] = []
    while len(found) < count:
        clip = world.sample(rng, num_frames, motion=len(found) % len(world.MOTIONS))
        if grammar.held_out(clip):
            found.append((clip, grammar.describe(clip, rng, test=True)))
    return found


def judge_world(rng: random.Random, count: int) -> scores.Table:
    """The scores of the world itself: what they lack of 100 % is the detectors' fault."""
    table = scores.Table()
    for clip, _ in held_out_prompts(rng, count):
        table.add(scores.judge(clip, world.frames([clip], *CANVAS)[0], sound.sound(world.Batch([clip]), *CANVAS)[0]))
    return table


def _of_part(clips: list[tuple[Clip, Any]], part: Part) -> list[tuple[int, tuple[Clip, Any]]]:
    """Every n-th clip with its seed, from clip i on, of `part` (i, n)."""
    return list(enumerate(clips))[part[0] :: part[1]]


class Collect:
    """The pipeline's sink and monitor at once: keeps frames and sound in memory."""

    def __init__(self) -> None:
        self._pictures: list[np.ndarray] = []
        self._sound: list[np.ndarray] = []

    def audio(self, samples: np.ndarray) -> None:
        """Take the next samples."""
        self._sound.append(samples.copy())

    def video(self, frames: np.ndarray) -> None:
        """Take the next frames."""
        self._pictures.append(frames.copy())

    def should_stop(self) -> bool:
        """Never."""
        return False

    def __getattr__(self, name: str) -> Any:
        # Progress of every kind is ignored.
        return lambda *_: None

    def clip(self) -> tuple[Tensor, Tensor]:
        """Frames `(n, height, width, 3)` uint8 and sound `(2, samples)`."""
        wave = torch.from_numpy(np.concatenate(self._sound, axis=-1)).float()
        return torch.from_numpy(np.concatenate(self._pictures)), wave.reshape(-1, wave.shape[-1])[:2]


class Evaluator:
    """One loaded checkpoint that renders requests and fills a table."""

    def __init__(self, checkpoint: Path, points: int, folder: Path, keep: Path | None = None) -> None:
        from backend.h3.pipeline import Pipeline

        self._points = points
        self._folder = folder
        self._keep = keep
        self._pipeline = Pipeline(checkpoint, "cpu", DTYPE, lambda *_: None)
        self.table = scores.Table()
        self.seconds: list[float] = []

    def text(self, rng: random.Random, count: int, part: Part = (0, 1)) -> None:
        """`t2va`: every score of the world."""
        for seed, (clip, prompt) in _of_part(held_out_prompts(rng, count), part):
            frames, wave = self._render(prompt, seed, PreparedMedia())
            result = scores.judge(clip, frames, wave)
            self.table.add(result)
            if self._keep is not None:
                keep_clip(self._keep / f"{seed:03}", (clip, prompt), result, frames)

    def keyframes(self, rng: random.Random, count: int, part: Part = (0, 1)) -> None:
        """`fl2va`: whether the given frames come back, first, last or both in turn."""
        for seed, (clip, prompt) in _of_part(held_out_prompts(rng, count), part):
            truth = world.frames([clip], *CANVAS)[0]
            first = self._picture(truth[0], "first.png") if seed % 3 != 1 else None
            last = self._picture(truth[-1], "last.png") if seed % 3 != 0 else None
            frames, _ = self._render(prompt, seed, PreparedMedia(first_frame=first, last_frame=last))
            for name, given, shown, wanted in (
                ("first", first, frames[0], truth[0]),
                ("last", last, frames[-1], truth[-1]),
            ):
                if given is not None:
                    value = detectors.psnr(shown, wanted)
                    self.table.measure(f"{name} frame PSNR dB (goal {_PSNR_GOAL_DB:.0f})", value)
                    self.table.add({f"{name} frame over {_PSNR_GOAL_DB:.0f} dB": value >= _PSNR_GOAL_DB})

    def references(self, rng: random.Random, count: int, part: Part = (0, 1)) -> None:
        """`ref2va`: whether a picture's colour and shape, a film's motion and a sound's pitch are carried over."""
        cases = (("image",), ("video",), ("image", "audio"))
        drawn = [(clip, rng.random()) for clip, _ in held_out_prompts(rng, count)]
        for seed, (asked, own) in _of_part(drawn, part):
            rng = random.Random(own)  # each clip its own, so that parts draw what the whole would
            case = cases[seed % len(cases)]
            clip = replace(asked, note=rng.randrange(world.NOTES)) if "audio" in case else asked
            prompt = references.prompt_of(clip, case, rng)
            brought = tuple(self._reference(kind, clip, rng) for kind in case)
            frames, wave = self._render(prompt, seed, PreparedMedia(references=brought))
            seen, heard = detectors.look(frames), hearing.listen(wave)
            if "image" in case:
                color = seen is not None and seen.color == list(world.COLORS)[clip.color]
                shape = seen is not None and seen.shape == world.SHAPES[clip.shape]
                self.table.add({"picture's colour": color, "picture's shape": shape})
                self.table.add({"picture's colour and shape": color and shape})
            if "video" in case:
                self.table.add({"film's motion": seen is not None and seen.motion == world.MOTIONS[clip.motion]})
            if "audio" in case:
                self.table.add({"sound's pitch": hearing.pitch_class(sound.NOTE_NAMES[clip.note], heard.note)})

    def _reference(self, kind: str, clip: Clip, rng: random.Random) -> PreparedReference:
        if kind == "image":
            picture = world.frames([references.portrait_of(clip, rng)], *references.IMAGE_CANVAS)[0, 0]
            return PreparedReference(kind=ReferenceKind.IMAGE, image=self._picture(picture, "reference.png"))
        if kind == "audio":
            wave = sound.sound(world.Batch([references.sound_of(clip, rng, REFERENCE_FRAMES)]), *CANVAS)[0]
            return PreparedReference(kind=ReferenceKind.AUDIO, audio=self._array(wave.numpy(), "sound.npy"))
        film = world.frames([references.film_of(clip, rng, REFERENCE_FRAMES)], *CANVAS)[0]
        return PreparedReference(kind=ReferenceKind.VIDEO, frames=self._array(film.numpy(), "film.npy"))

    def _picture(self, pixels: Tensor, name: str) -> Path:
        path = self._folder / name
        Image.fromarray(pixels.numpy()).save(path)
        return path

    def _array(self, values: np.ndarray, name: str) -> Path:
        path = self._folder / name
        np.save(path, values)
        return path

    def _render(self, prompt: str, seed: int, media: PreparedMedia) -> tuple[Tensor, Tensor]:
        request = GenerationRequest(
            prompt=prompt,
            first_frame=media.first_frame,
            last_frame=media.last_frame,
            references=tuple(Reference(path=_path(item), kind=item.kind) for item in media.references),
            sampling=Sampling(
                width=CANVAS[0], height=CANVAS[1], num_frames=FRAMES, num_inference_steps=self._points, seed=seed
            ),
        )
        sink = Collect()
        began = time.monotonic()
        self._pipeline.generate(request, media, sink, sink)  # type: ignore[arg-type]
        self.seconds.append(time.monotonic() - began)
        return sink.clip()


def keep_clip(path: Path, asked: tuple[Clip, str], result: scores.Result, frames: Tensor) -> None:
    """Write `path`.png, six frames side by side, and `path`.json: what was asked for and what is seen."""
    clip, prompt = asked
    seen = detectors.look(frames)
    wanted = (list(world.COLORS)[clip.color], world.SHAPES[clip.shape], world.MOTIONS[clip.motion])
    found = None if seen is None else (seen.color, seen.shape, seen.motion)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(
        json.dumps({"prompt": prompt, "wanted": wanted, "seen": found, "met": result}), encoding="utf-8"
    )
    picked = frames[torch.linspace(0, len(frames) - 1, 6).long()]
    Image.fromarray(torch.cat(list(picked), dim=1).numpy()).save(path.with_suffix(".png"))


def run(options: argparse.Namespace, task: str, part: Part) -> tuple[scores.Table, list[float]]:
    """One part of a task's clips: its table and seconds a clip. Top level, so that a process can be given it."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        evaluator = Evaluator(options.checkpoint, options.points, Path(folder), options.keep)
        judge = {"t2va": evaluator.text, "fl2va": evaluator.keyframes, "ref2va": evaluator.references}[task]
        judge(random.Random(options.seed), options.clips, part)
        return evaluator.table, evaluator.seconds


def run_all(options: argparse.Namespace, task: str) -> tuple[scores.Table, list[float]]:
    """A task's clips, shared by `options.workers` processes."""
    table, seconds = scores.Table(), []
    parts = [(index, options.workers) for index in range(options.workers)]
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for some, taken in pool.map(partial(run, options, task), parts):
            table.merge(some)
            seconds += taken
    return table, seconds


def write_results(options: argparse.Namespace, task: str, table: scores.Table, seconds: list[float]) -> None:
    """Put one task's scores into the JSON file, beside what it holds of the others."""
    path = options.json
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    held[task] = {
        "clips": len(seconds),
        "points": options.points,
        "canvas": CANVAS,
        "frames": FRAMES,
        "dtype": DTYPE,
        "median_s": round(_median(seconds), 2),
        "threads": options.threads,
        "workers": options.workers,
        "processor": platform.processor() or platform.machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "scores": table.rows(),
    }
    path.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _path(item: PreparedReference) -> Path:
    path = item.image or item.frames or item.audio
    assert path is not None
    return path


def main() -> int:
    """Read the command line, render and print the table; 1 where a goal of text prompts is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--task", choices=(*TASKS, "all"), default="all")
    parser.add_argument("--points", type=int, default=12, help="sigma points; one forward less")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for pictures of every t2va clip and what is seen in it")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the clips")
    parser.add_argument("--threads", type=int, default=0, help="of each; by default they share the cores")
    options = parser.parse_args()
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.workers)
    if options.checkpoint is None:
        print(judge_world(random.Random(options.seed), options.clips))
        return 0
    missed = False
    for task in TASKS if options.task == "all" else (options.task,):
        table, seconds = run_all(options, task)
        print(table)
        print(
            f"{task}: median {_median(seconds):.1f} s a clip of {FRAMES} frames at {CANVAS[0]}x{CANVAS[1]},"
            f" {options.threads} threads",
            flush=True,
        )
        if options.json is not None:
            write_results(options, task, table, seconds)
        missed |= any(row.get("goal", 0) > row["reached"] for row in table.rows().values())
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
