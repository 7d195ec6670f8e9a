"""Train a transformer: `t2va` and `fl2va` together, or `ref2va`, on latents that are made once and stay on the GPU.

`python -m bench.nano.train_transformer --task t2va --vaes FOLDER --out FOLDER [--resume FOLDER] --minutes 8`; writes
`transformer.safetensors` or `transformer_ref.safetensors`, averaged weights in the types of the release. `--task both`
trains one for all tasks, since most of what they learn is the same, and writes it under both names.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.nano import (
    architecture,
    conditioner,
    packing,
    sampling,
    scores,
    stage,
    train_audio_vae,
    train_video_vae,
)
from bench.nano.dataset import Canvas, Encoders, Group, Shard, Wanted, keyframe_shard, reference_shard

# (canvas, frames, share of the time for drawing): mostly the default of 4 s and the page's 5 s, then every ratio and
# lengths from 2 s, which are cheap, up to the largest.
KEYFRAME_SHARDS: tuple[tuple[Canvas, int, float], ...] = (
    ((224, 128), 107, 0.44),
    ((128, 224), 107, 0.06),
    ((128, 128), 107, 0.05),
    ((160, 128), 107, 0.03),
    ((128, 160), 107, 0.03),
    ((256, 96), 107, 0.02),
    ((224, 128), 56, 0.08),
    ((224, 128), 124, 0.22),
    ((224, 128), 192, 0.03),
    ((224, 128), 243, 0.02),
    ((224, 128), 362, 0.02),
)
REFERENCE_SHARDS: tuple[tuple[Canvas, int, float], ...] = (
    ((224, 128), 107, 0.5),
    ((128, 128), 107, 0.05),
    ((224, 128), 56, 0.15),
    ((224, 128), 124, 0.25),
    ((224, 128), 192, 0.05),
)
NAMES = {"t2va": "transformer", "ref2va": "transformer_ref"}  # of the files, by task
_LEAST_BASE = 0.02  # the last point but one of a 50 point grid; nothing is sampled below it
_AUDIO_WEIGHT = 0.6


def encoders_of(folder: Path, device: torch.device) -> Encoders:
    """The trained VAEs of `folder` with their statistics, and the conditioner."""
    models = []
    for name, build in ((train_video_vae.NAME, architecture.video_vae), (train_audio_vae.NAME, architecture.audio_vae)):
        plain = build()
        notes = stage.resume(folder, name, plain)
        if not notes:
            raise FileNotFoundError(f"{folder}: has no {name}.safetensors; train it first")
        model = build(latents_mean=notes["latents_mean"], latents_std=notes["latents_std"])
        model.load_state_dict(plain.state_dict())
        models.append(model.to(device).eval().requires_grad_(False))
    presenter = conditioner.Presenter(Path(tempfile.mkdtemp(prefix="h3-nano-")))
    # In the type it is stored and run in: 50 layers of rounding are part of what the transformer reads.
    return Encoders(models[0], models[1], conditioner.build().to(device, torch.bfloat16), presenter)


def make_shards(
    options: argparse.Namespace, task: str, encoders: Encoders, rope: Any, rng: random.Random
) -> list[Shard]:
    """All shards of a task, each for its share of `options.data_seconds`; a line of time and size for each."""
    began = time.monotonic()
    table, make = {"t2va": (KEYFRAME_SHARDS, keyframe_shard), "ref2va": (REFERENCE_SHARDS, reference_shard)}[task]
    shards, gone = [], 0.0
    for canvas, num_frames, share in ((*table[0][:2], 1.0),) if options.only_default else table:
        gone += share
        count = max(2, int(options.clips * share))
        start = time.monotonic()
        shard = make(encoders, rope, rng, Wanted(canvas, num_frames, count, began + options.data_seconds * gone))
        prompts = sum(len(group.clip) for group in shard.groups)
        print(
            f"{time.monotonic() - began:6.0f} s  {canvas} x {num_frames}: {len(shard.video)} clips, {prompts} prompts,"
            f" {len(shard.groups)} layouts, {time.monotonic() - start:.1f} s",
            flush=True,
        )
        shards.append(shard)
    return shards


@dataclass(frozen=True, slots=True)
class Emphasis:
    """What a step stresses: how much rows count, against 1 for the others, and the sampler's points."""

    near: float = 1.0  # video rows that the shape touches
    keyframe: float = 1.0  # video rows of a latent whose frame is given: one in thirty, and to be copied exactly
    click: float = 1.0  # audio rows that a click begins in
    points: int = 0  # half of the clips are at a point of a sampler with so many; 0: all are anywhere


def grid_points(count: int, points: int, device: torch.device) -> Tensor:
    """Points of the schedulers' 1-to-0 grid for `count` clips, in no order.

    One in each of `count` equal parts, which is less noise than independent draws. Half of them move up to the next one
    that a sampler of `points` visits: what it asks at those few is all that is ever seen of a model.
    """
    base = (torch.randperm(count, device=device) + torch.rand(count, device=device)) / count
    base = _LEAST_BASE + (1 - _LEAST_BASE) * base
    if not points:
        return base
    steps = points - 1
    return torch.where(torch.rand(count, device=device) < 0.5, (base * steps).ceil() / steps, base)


def loss_of(
    model: Any, shard: Shard, group: Group, entries: Tensor, block: packing.Block, stress: Emphasis
) -> tuple[Tensor, Tensor]:
    """Mean squared error of the velocity for video and audio targets."""
    (video, audio), (seen, heard), text = shard.batch(group, entries)
    times = packing.clip_times(grid_points(len(entries), stress.points, video.device))
    noise, audio_noise = torch.randn_like(video), torch.randn_like(audio)
    at, audio_at = times[:, 0, None, None], times[:, 1, None, None]
    seen = packing.CONDITION_TIME * seen + (1 - packing.CONDITION_TIME) * torch.randn_like(seen)
    rows = (
        torch.cat((seen, at * video + (1 - at) * noise), 1),
        torch.cat((heard, audio_at * audio + (1 - audio_at) * audio_noise), 1),
        text,
    )
    flow, audio_flow = packing.velocity(model, group.plan, rows, times, block)
    error = (flow[:, seen.shape[1] :] - (video - noise)).pow(2).mean(-1)
    audio_error = (audio_flow[:, heard.shape[1] :] - (audio - audio_noise)).pow(2).mean(-1)
    weights, audio_weights = row_weights(shard, group, entries, stress)
    return _mean(error, weights), _mean(audio_error, audio_weights)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum()


def row_weights(shard: Shard, group: Group, entries: Tensor, stress: Emphasis) -> tuple[Tensor, Tensor]:
    """How much each target row of `entries` counts, video and audio: `(batch, rows)`."""
    clips = group.clip[entries]
    weights = 1.0 + (stress.near - 1.0) * shard.near[clips].float()
    frame = weights.shape[1] // packing.latent_frames(shard.num_frames)
    for name, rows in (("first", slice(None, frame)), ("last", slice(-frame, None))):
        if name in group.visual:
            weights[:, rows] *= stress.keyframe
    return weights, 1.0 + (stress.click - 1.0) * shard.clicks[clips].float()


def judge(model: Any, encoders: Encoders, rng: random.Random, options: argparse.Namespace) -> scores.Table:
    """Score held-out prompts of `t2va` at the default canvas, by the world's own detectors, while there is time."""
    from bench.nano import evaluate

    began = time.monotonic()
    table = scores.Table()
    generator = torch.Generator("cpu").manual_seed(0)
    for clip, prompt in evaluate.held_out_prompts(rng, options.judge):
        if time.monotonic() - began > options.judge_seconds:
            break
        shown = encoders.presenter.keyframes(prompt, 0, 0)
        plan = packing.keyframe_plan(model.rope, shown.tags, (224, 128), clip.num_frames, (), encoders.device)
        text = conditioner.embed(encoders.conditioner, torch.tensor([shown.ids], device=encoders.device)).to(
            torch.bfloat16
        )
        alone = torch.zeros(1, dtype=torch.long, device=encoders.device)
        group = Group(plan, alone, alone, text, (), ())
        empty_video = torch.zeros(1, packing.latent_frames(clip.num_frames) * 28, 96, device=encoders.device)
        empty_audio = torch.zeros(1, 2 * packing.audio_latents(clip.num_frames), 32, device=encoders.device)
        unmarked = empty_video[..., 0].bool(), empty_audio[..., 0].bool()
        shard = Shard((224, 128), clip.num_frames, empty_video, empty_audio, *unmarked, {}, (group,))
        rows = sampling.sample(model, group, shard, alone, options.points, generator)
        frames, waves = sampling.decode(encoders, shard, *rows)
        table.add(scores.judge(clip, frames[0], waves[0]))
    return table


def pick_block(trial: Callable[[packing.Block], object], wanted: bool) -> packing.Block:
    """The compiled block where it compiles and is faster than the plain one; says what it found."""
    plain: packing.Block = packing.modulated_block
    if not wanted:
        return plain

    def seconds(block: packing.Block) -> float:
        trial(block)
        _wait()
        began = time.monotonic()
        for _ in range(3):
            trial(block)
        _wait()
        return (time.monotonic() - began) / 3

    torch._dynamo.config.recompile_limit = 64
    compiled: packing.Block = torch.compile(packing.modulated_block, dynamic=True)
    began = time.monotonic()
    try:
        trial(compiled)
        taken, fast, slow = time.monotonic() - began, seconds(compiled), seconds(plain)
    except Exception as error:  # compilers fail in many ways, and none of them is worth the stage
        print(f"no compiled block: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return plain
    print(f"block: compiled in {taken:.1f} s, {fast * 1e3:.0f} ms a step; plain {slow * 1e3:.0f} ms", flush=True)
    return compiled if fast < slow else plain


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train(options: argparse.Namespace) -> None:
    """One stage: the data, then steps until time is over, then a few judged samples."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s, options.deadline)
    torch.manual_seed(options.seed)
    names = NAMES if options.task == "both" else {options.task: NAMES[options.task]}
    model = architecture.transformer().to(device)
    notes = stage.resume(options.resume, next(iter(names.values())), model)
    if not notes and options.start_from is not None:
        stage.resume(options.start_from, "transformer", model)  # `ref2va` begins with what `t2va` learned
    steps = first = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    encoders = encoders_of(options.vaes, device)
    print(f"{clock.elapsed_s:6.0f} s  models are there", flush=True)
    choices: list[tuple[Shard, Group]] = []
    shares: list[float] = []
    for task in names:
        found = [
            (shard, group) for shard in make_shards(options, task, encoders, model.rope, rng) for group in shard.groups
        ]
        weights = [len(group.clip) * shard.video.shape[1] ** 0.5 for shard, group in found]
        choices += found
        shares += [weight / sum(weights) for weight in weights]  # as many steps for every task
    descent = stage.Descent(model, 0.9995, (0.9, 0.98), 0.01)
    losses: list[Tensor] = []
    stress = Emphasis(options.near_weight, options.keyframe_weight, options.click_weight, options.points)

    def forward_backward(shard: Shard, group: Group, block: packing.Block) -> Tensor:
        size = max(1, min(len(group.clip), options.rows // group.plan.adaln.shape[0]))
        entries = torch.randint(len(group.clip), (size,), device=device)
        descent.clear()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            error, audio_error = loss_of(model, shard, group, entries, block, stress)
        (error + _AUDIO_WEIGHT * audio_error).backward()
        return torch.stack((error.detach(), audio_error.detach()))

    # Two layouts, so that the compiler meets its second shape before the clock counts steps.
    trials = rng.choices(choices, shares, k=2)

    def trial(block: packing.Block) -> None:
        for choice in trials:
            forward_backward(*choice, block)

    block = pick_block(trial, options.compile)
    began = clock.elapsed_s
    print(f"{began:6.0f} s  {len(choices)} layouts, {sum(len(group.clip) for _, group in choices)} prompts", flush=True)

    def store() -> None:
        descent.average.swap()
        for name in names.values():
            stage.save(options.out, name, architecture.released_state(model), {"steps": steps})
        descent.average.swap()

    limit = clock.limit_s - (options.judge_seconds if options.judge and "t2va" in names else 0)
    while clock.elapsed_s < limit and steps - first < options.max_steps:
        shard, group = rng.choices(choices, shares)[0]
        try:
            losses.append(forward_backward(shard, group, block))
        except Exception as error:
            if block is packing.modulated_block:
                raise
            print(f"no compiled block from here on: {type(error).__name__}: {str(error)[:300]}", flush=True)
            block = packing.modulated_block
            continue
        descent.step(stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        steps += 1
        if clock.due():
            video, audio = torch.stack(losses[-200:]).mean(0).tolist()
            rate = (steps - first) / (clock.elapsed_s - began)
            print(
                f"{clock.elapsed_s:6.0f} s  step {steps}  video {video:.4f}  audio {audio:.4f}  {rate:.2f} steps/s",
                flush=True,
            )
            losses = losses[-200:]
            store()
    store()
    if options.judge and "t2va" in names:
        descent.average.swap()
        print(judge(model, encoders, random.Random(5), options), flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    stage.common_options(parser, minutes=8.0)
    parser.add_argument("--task", choices=(*NAMES, "both"), required=True)
    parser.add_argument("--vaes", type=Path, required=True, help="folder of video_vae and audio_vae")
    parser.add_argument("--start-from", type=Path, help="folder of a transformer that a first ref2va stage begins with")
    parser.add_argument("--clips", type=int, default=16000, help="at most so many")
    parser.add_argument("--data-seconds", type=float, default=75.0, help="for drawing and encoding them, each task")
    parser.add_argument("--only-default", action="store_true", help="the default canvas and 107 frames alone")
    parser.add_argument("--rows", type=int, default=64_000, help="packed rows a step")
    parser.add_argument("--near-weight", type=float, default=3.0, help="of video rows that the shape touches")
    parser.add_argument("--keyframe-weight", type=float, default=6.0, help="of video rows whose frame is given")
    parser.add_argument("--click-weight", type=float, default=8.0, help="of audio rows that a click begins in")
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--lr-end", type=float, default=1e-4)
    parser.add_argument("--judge", type=int, default=24, help="held-out prompts scored at the end")
    parser.add_argument("--judge-seconds", type=float, default=25.0, help="kept for that")
    parser.add_argument("--points", type=int, default=12, help="of the sampler that half of a batch is trained for")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
