"""Train a transformer: `t2va` and `fl2va` together, or `ref2va`, on latents that are made once and stay on the GPU.

`python -m bench.nano.train_transformer --task t2va --vaes FOLDER --out FOLDER [--resume FOLDER] --minutes 8`; writes
`transformer.safetensors` or `transformer_ref.safetensors`, averaged weights in the types of the release.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
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

# (canvas, frames, share of the clips): mostly the default, then every ratio and the lengths up to the largest.
KEYFRAME_SHARDS: tuple[tuple[Canvas, int, float], ...] = (
    ((224, 128), 107, 0.74),
    ((128, 224), 107, 0.06),
    ((128, 128), 107, 0.05),
    ((160, 128), 107, 0.03),
    ((128, 160), 107, 0.03),
    ((256, 96), 107, 0.02),
    ((224, 128), 124, 0.02),
    ((224, 128), 192, 0.02),
    ((224, 128), 243, 0.02),
    ((224, 128), 362, 0.01),
)
REFERENCE_SHARDS: tuple[tuple[Canvas, int, float], ...] = (
    ((224, 128), 107, 0.9),
    ((128, 128), 107, 0.05),
    ((224, 128), 192, 0.05),
)
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
    if device.type == "cuda":
        models[0].encoder.to(memory_format=torch.channels_last_3d)
    presenter = conditioner.Presenter(Path(tempfile.mkdtemp(prefix="h3-nano-")))
    # In the type it is stored and run in: 50 layers of rounding are part of what the transformer reads.
    return Encoders(models[0], models[1], conditioner.build().to(device, torch.bfloat16), presenter)


def make_shards(
    task: str, encoders: Encoders, rope: Any, rng: random.Random, clips: int, only_default: bool
) -> list[Shard]:
    """All shards of a stage; a table line of time and size for each."""
    table = KEYFRAME_SHARDS if task == "t2va" else REFERENCE_SHARDS
    shards = []
    for canvas, num_frames, share in table[:1] if only_default else table:
        began = time.monotonic()
        count = max(2, int(clips * (1.0 if only_default else share)))
        make = keyframe_shard if task == "t2va" else reference_shard
        shard = make(encoders, rope, rng, Wanted(canvas, num_frames, count))
        prompts = sum(len(group.clip) for group in shard.groups)
        taken = time.monotonic() - began
        print(
            f"{canvas} x {num_frames}: {count} clips, {prompts} prompts, {len(shard.groups)} layouts, {taken:.1f} s",
            flush=True,
        )
        shards.append(shard)
    return shards


def loss_of(model: Any, shard: Shard, group: Group, entries: Tensor, block: packing.Block) -> tuple[Tensor, Tensor]:
    """Mean squared error of the velocity for video and audio targets."""
    (video, audio), (seen, heard), text = shard.batch(group, entries)
    count = len(entries)
    # One point of the grid in each of `count` equal parts: less noise than independent draws.
    base = (torch.randperm(count, device=video.device) + torch.rand(count, device=video.device)) / count
    base = _LEAST_BASE + (1 - _LEAST_BASE) * base
    times = packing.clip_times(base)
    noise, audio_noise = torch.randn_like(video), torch.randn_like(audio)
    at, audio_at = times[:, 0, None, None], times[:, 1, None, None]
    seen = packing.CONDITION_TIME * seen + (1 - packing.CONDITION_TIME) * torch.randn_like(seen)
    rows = (
        torch.cat((seen, at * video + (1 - at) * noise), 1),
        torch.cat((heard, audio_at * audio + (1 - audio_at) * audio_noise), 1),
        text,
    )
    flow, audio_flow = packing.velocity(model, group.plan, rows, times, block)
    error = (flow[:, seen.shape[1] :] - (video - noise)).pow(2).mean()
    audio_error = (audio_flow[:, heard.shape[1] :] - (audio - audio_noise)).pow(2).mean()
    return error, audio_error


def judge(model: Any, encoders: Encoders, rng: random.Random, count: int, points: int) -> scores.Table:
    """Score `count` held-out prompts of `t2va` at the default canvas, by the world's own detectors."""
    from bench.nano import evaluate

    table = scores.Table()
    generator = torch.Generator("cpu").manual_seed(0)
    for clip, prompt in evaluate.held_out_prompts(rng, count):
        shown = encoders.presenter.keyframes(prompt, 0, 0)
        plan = packing.keyframe_plan(model.rope, shown.tags, (224, 128), clip.num_frames, (), encoders.device)
        text = conditioner.embed(encoders.conditioner, torch.tensor([shown.ids], device=encoders.device)).to(
            torch.bfloat16
        )
        group = Group(plan, torch.zeros(1, dtype=torch.long, device=encoders.device), text, (), ())
        empty_video = torch.zeros(1, packing.latent_frames(clip.num_frames) * 28, 96, device=encoders.device)
        empty_audio = torch.zeros(1, 2 * packing.audio_latents(clip.num_frames), 32, device=encoders.device)
        shard = Shard((224, 128), clip.num_frames, empty_video, empty_audio, {}, (group,))
        rows = sampling.sample(
            model, group, shard, torch.zeros(1, dtype=torch.long, device=encoders.device), points, generator
        )
        frames, waves = sampling.decode(encoders, shard, *rows)
        table.add(scores.judge(clip, frames[0], waves[0]))
    return table


def train(options: argparse.Namespace) -> None:
    """One stage: the data, then steps until `options.minutes` are over, then a few judged samples."""
    device = stage.pick_device()
    clock = stage.Clock(options.minutes, options.report_s)
    torch.manual_seed(options.seed)
    name = "transformer" if options.task == "t2va" else "transformer_ref"
    model = architecture.transformer().to(device)
    notes = stage.resume(options.resume, name, model)
    if not notes and options.start_from is not None:
        stage.resume(options.start_from, "transformer", model)  # `ref2va` begins with what `t2va` learned
    steps = first = int(notes.get("steps", 0))
    rng = random.Random(options.seed + steps)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    encoders = encoders_of(options.vaes, device)
    shards = make_shards(options.task, encoders, model.rope, rng, options.clips, options.only_default)
    choices = [(shard, group) for shard in shards for group in shard.groups]
    shares = [len(group.clip) * shard.video.shape[1] ** 0.5 for shard, group in choices]
    block: packing.Block = packing.modulated_block
    if options.compile:
        torch._dynamo.config.recompile_limit = 64
        block = torch.compile(packing.modulated_block, dynamic=True)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=options.lr, betas=(0.9, 0.98), fused=device.type == "cuda",
    )  # fmt: skip
    average = stage.Average(model, 0.9995)
    losses: list[Tensor] = []
    began = clock.elapsed_s

    def store() -> None:
        average.swap()
        kept = {key: value.clone() for key, value in model.state_dict().items()}
        architecture.released_dtypes(model)
        stage.save(options.out, name, model.state_dict(), {"steps": steps})
        model.float()
        model.load_state_dict(kept)
        average.swap()

    while clock.running() and steps - first < options.max_steps:
        shard, group = rng.choices(choices, shares)[0]
        size = max(1, min(len(group.clip), options.rows // group.plan.adaln.shape[0]))
        entries = torch.randint(len(group.clip), (size,), device=device)
        stage.set_rate(optimizer, stage.learning_rate(clock, steps - first, (options.lr, options.lr_end)))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            error, audio_error = loss_of(model, shard, group, entries, block)
        (error + _AUDIO_WEIGHT * audio_error).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update()
        losses.append(torch.stack((error.detach(), audio_error.detach())))
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
    if options.judge and options.task == "t2va":
        average.swap()
        print(judge(model, encoders, random.Random(5), options.judge, options.points), flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=("t2va", "ref2va"), required=True)
    parser.add_argument("--vaes", type=Path, required=True, help="folder of video_vae and audio_vae")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--start-from", type=Path, help="folder of a transformer that a first ref2va stage begins with")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--clips", type=int, default=12000)
    parser.add_argument("--only-default", action="store_true", help="the default canvas and 107 frames alone")
    parser.add_argument("--rows", type=int, default=110_000, help="packed rows a step")
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--lr-end", type=float, default=2e-4)
    parser.add_argument("--judge", type=int, default=24, help="held-out prompts scored at the end")
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
