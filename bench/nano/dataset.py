"""Everything a transformer stage trains on, made once and kept on the GPU: latents, conditions and encoded prompts.

Draws and encodes clips with the trained VAEs and groups prompts by their layout; knows nothing of losses.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.nano import conditioner, fast_encoder, grammar, packing, references, sound, world
from bench.nano.packing import Plan
from bench.nano.shapes import SHAPES
from bench.nano.train_video_vae import normalize
from bench.nano.world import MOTIONS, Clip

Canvas = tuple[int, int]
# One prompt: its clip, the picture that goes with it, and its token ids.
Entry = tuple[int, int, tuple[int, ...]]
# Prompts by (conditions, row tags).
Entries = dict[tuple[tuple[str, ...], tuple[int, ...]], list[Entry]]
PORTRAITS = 6  # reference images of one clip: each costs a hundredth of the clip, and what is new in them is learned
CLIP = 17  # frames the VAE encodes at a time


@dataclass(frozen=True, slots=True)
class Encoders:
    """The frozen models a dataset is made with, on one device."""

    vae: Any
    audio_vae: Any
    conditioner: Any
    presenter: conditioner.Presenter

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(self.vae.parameters()).device

    @torch.no_grad()
    def video(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized mean and deviation `(batch, 24, n, h, w)` of `(batch, 3, frames, height, width)` in 0..1."""
        parts = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            for start in range(0, image.shape[2], CLIP):
                pixels = normalize(image[:, :, start : start + CLIP])
                parts.append(self.vae.quant_conv(fast_encoder.encode(self.vae.encoder, pixels)))
        mean, logvar = torch.cat(parts, dim=2).float().chunk(2, dim=1)
        center, scale = _statistics(self.vae, (1, -1, 1, 1, 1), mean)
        return (mean - center) / scale, torch.exp(0.5 * logvar.clamp(-30, 20)) / scale

    def condition(self, image: Tensor) -> Tensor:
        """Rows of a visual condition: the posterior sampled and rounded to float16 before it is normalized."""
        mean, deviation = self.video(image)
        center, scale = _statistics(self.vae, (1, -1, 1, 1, 1), mean)
        latents = (mean + deviation * torch.randn_like(mean)) * scale + center
        return packing.pack_video((latents.half().float() - center) / scale).half()

    @torch.no_grad()
    def audio(self, waves: Tensor) -> Tensor:
        """Normalized channel-major rows `(batch, 2 n, 32)` of stereo waves `(batch, 2, samples)`."""
        mean = self.audio_vae.encode(waves.flatten(0, 1)[:, None], return_dict=False)[0].mode()
        center, scale = _statistics(self.audio_vae, (1, -1, 1), mean)
        return packing.pack_audio(((mean - center) / scale).unflatten(0, (-1, 2))).half()


def _statistics(vae: Any, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(
        torch.tensor(values, device=like.device).view(shape)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a shard is made of: a canvas (width, height) in pixels, a length and how many clips.

    At most so many: no more are drawn after `until`, a moment of `time.monotonic()`.
    """

    canvas: Canvas
    num_frames: int
    clips: int
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts of one layout: entry i belongs to clip `clip[i]` of the shard, with `text[i]` as prompt embeddings."""

    plan: Plan
    clip: Tensor  # (entries,)
    picture: Tensor  # (entries,) which of the shard's reference pictures it brings, if any
    text: Tensor  # (entries, tokens, TEXT_DIM) bfloat16
    visual: tuple[str, ...]  # names of the shard's condition rows, in packed order
    heard: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Clips of one canvas and length: rows of the targets and of every condition they may have."""

    canvas: Canvas
    num_frames: int
    video: Tensor  # (clips, rows, 96) float16
    audio: Tensor  # (clips, rows, 32) float16
    near: Tensor  # (clips, rows) booleans: video rows that the moving shape touches
    clicks: Tensor  # (clips, rows) booleans: audio rows that a click begins in
    conditions: dict[str, Tensor]
    groups: tuple[Group, ...]

    def batch(self, group: Group, entries: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
        """Targets (video, audio), conditions (video, audio) and text of `entries`, float32 rows."""
        clips, pictures = group.clip[entries], group.picture[entries]

        def rows(names: tuple[str, ...], width: int) -> Tensor:
            parts = [self.conditions[name][pictures if name == "image" else clips].float() for name in names]
            return torch.cat(parts, dim=1) if parts else self.video.new_zeros((len(clips), 0, width)).float()

        targets = self.video[clips].float(), self.audio[clips].float()
        return targets, (rows(group.visual, 96), rows(group.heard, 32)), group.text[entries].float()


def near_rows(batch: world.Batch, num_frames: int, canvas: Canvas) -> Tensor:
    """Which packed video rows the shape touches in any frame of theirs: `(batch, rows)` booleans, 32 pixels a side.

    One row in ten does; the others show a ground that is soon learned.
    """
    width, height = canvas
    where = world.path(batch, world.frame_times(batch, 0, num_frames), width, height)
    middle_x = torch.arange(width // 32, device=batch.device) * 32 + 16.0
    middle_y = torch.arange(height // 32, device=batch.device)[:, None] * 32 + 16.0
    x, y, radius = (value[:, :, None, None] for value in (where.x, where.y, 1.12 * where.radius))
    away = ((x - middle_x).abs() - 16).clamp(min=0) ** 2 + ((y - middle_y).abs() - 16).clamp(min=0) ** 2
    touched = away < radius**2  # (batch, frames, height / 32, width / 32)
    # Of 17 frames the first has a latent of its own, then every four share one.
    latent = [frame // CLIP * 5 + (frame % CLIP + 3) // 4 for frame in range(num_frames)]
    result = touched.new_zeros((len(touched), latent[-1] + 1, *touched.shape[2:]))
    for frame, index in enumerate(latent):
        result[:, index] |= touched[:, frame]
    return result.flatten(1)


def click_rows(batch: world.Batch, num_frames: int) -> Tensor:
    """Which packed audio rows a click begins in: `(batch, rows)` booleans, both channels alike."""
    count = packing.audio_latents(num_frames)
    result = torch.zeros(len(batch.clips), 2, count, dtype=torch.bool)
    for index, clip in enumerate(batch.clips):
        result[index, :, sound.click_latents(clip)] = True
    return result.flatten(1).to(batch.device)


def _targets(encoders: Encoders, batch: world.Batch, image: Tensor, wanted: Wanted) -> dict[str, Tensor]:
    """What a shard of any task holds of its clips; `image` is how they look."""
    return {
        "video": packing.pack_video(encoders.video(image)[0]).half(),
        "audio": encoders.audio(sound.sound(batch, *wanted.canvas)),
        "near": near_rows(batch, wanted.num_frames, wanted.canvas),
        "clicks": click_rows(batch, wanted.num_frames),
    }


def _shard(wanted: Wanted, rows: dict[str, Tensor], groups: list[Group]) -> Shard:
    """The shard of `rows`: those of `_targets`, and every other is a condition."""
    targets = {name: rows.pop(name) for name in ("video", "audio", "near", "clicks")}
    return Shard(wanted.canvas, wanted.num_frames, conditions=rows, groups=tuple(groups), **targets)


# What the first weights had not learned comes more often: a star's points and a ring's hole are finer than a row, the
# turn of an orbit shows only over time, and a click must agree with a picture that no sentence tells.
OFTEN = {"star": 2, "ring": 2, "bounce": 3, "clockwise": 2, "counterclockwise": 2}


def training_clips(rng: random.Random, count: int, num_frames: int, **fixed: int) -> list[Clip]:
    """Random clips without the triples that are kept for tests; more of what is learned last (`OFTEN`)."""
    clips: list[Clip] = []
    while len(clips) < count:
        drawn = {
            "shape": rng.choices(range(len(SHAPES)), [OFTEN.get(name, 1) for name in SHAPES])[0],
            "motion": rng.choices(range(len(MOTIONS)), [OFTEN.get(name, 1) for name in MOTIONS])[0],
        }
        clip = world.sample(rng, num_frames, **drawn | fixed)
        if not grammar.held_out(clip):
            clips.append(clip)
    return clips


def keyframe_shard(
    encoders: Encoders, rope: Any, rng: random.Random, wanted: Wanted, captions: int = 5, keyframed: int = 3
) -> Shard:
    """A shard for `t2va` and `fl2va`: `captions` prompts a clip, and `keyframed` more that have keyframes."""
    canvas, num_frames = wanted.canvas, wanted.num_frames
    clips = training_clips(rng, wanted.clips, num_frames)
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for batch, image in _drawn(clips, wanted, encoders.device):
        for name, values in _targets(encoders, batch, image, wanted).items():
            parts[name].append(values)
        parts["first"].append(encoders.condition(image[:, :, :1]))
        parts["last"].append(encoders.condition(image[:, :, -1:]))
        ends = image[:, :, [0, -1]].permute(0, 2, 3, 4, 1)
        parts["pixels"].append((ends * 255).round().to(torch.uint8))
    rows = {name: torch.cat(values) for name, values in parts.items()}
    pixels = rows.pop("pixels")
    clips = clips[: len(pixels)]

    entries: Entries = defaultdict(list)
    merged = (canvas[0] // 32) * (canvas[1] // 32)
    for index, clip in enumerate(clips):
        chosen = rng.choices((("first",), ("last",), ("first", "last")), (0.4, 0.3, 0.3), k=keyframed)
        for anchors in ((),) * captions + tuple(chosen):
            prompt = _of_few_lengths(encoders.presenter, partial(grammar.describe, clip, rng))
            shown = encoders.presenter.keyframes(prompt, len(anchors), merged)
            entries[anchors, shown.tags].append((index, index, shown.ids))
    groups = []
    for (anchors, tags), found in _common(entries):
        plan = packing.keyframe_plan(rope, tags, canvas, num_frames, anchors, encoders.device)
        ends = [0 if anchor == "first" else 1 for anchor in anchors]
        images = None if not ends else pixels[:, ends]
        groups.append(Group(plan, *_embedded(encoders, found, images, None), visual=anchors, heard=()))
    return _shard(wanted, rows, groups)


def reference_shard(
    encoders: Encoders, rope: Any, rng: random.Random, wanted: Wanted, reference_frames: int = 56, captions: int = 6
) -> Shard:
    """A shard for `ref2va`; each clip has one case, and what that case brings says the same as the clip does.

    `captions` prompts a clip, with its pictures in turn.
    """
    canvas, num_frames = wanted.canvas, wanted.num_frames
    cases = rng.choices(
        [case for case, _ in references.CASES], [share for _, share in references.CASES], k=wanted.clips
    )
    clips = [
        replace(clip, note=rng.randrange(world.NOTES)) if "audio" in case else clip
        for clip, case in zip(training_clips(rng, wanted.clips, num_frames), cases, strict=True)
    ]
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for batch, image in _drawn(clips, wanted, encoders.device):
        start = sum(len(part) for part in parts["video"])
        for name, values in _targets(encoders, batch, image, wanted).items():
            parts[name].append(values)
        asked = cases[start : start + len(batch.clips)]
        for name, values in _references(encoders, rng, (batch.clips, asked), canvas, reference_frames).items():
            parts[name].append(values)
    rows = {name: torch.cat(values) for name, values in parts.items()}
    pixels, film_pixels = rows.pop("image pixels").flatten(0, 1), rows.pop("film pixels")
    rows["image"] = rows["image"].flatten(0, 1)

    entries: Entries = defaultdict(list)
    drawn = len(film_pixels)
    for index, (clip, case) in enumerate(zip(clips[:drawn], cases[:drawn], strict=True)):
        for number in range(captions):
            shown_as = present(encoders.presenter, clip, case, rng, canvas, reference_frames)
            entries[case, shown_as.tags].append((index, index * PORTRAITS + number % PORTRAITS, shown_as.ids))
    groups = []
    for (case, tags), found in _common(entries):
        plan = packing.reference_plan(
            rope, tags, canvas, num_frames, references.described(case, canvas, reference_frames), encoders.device
        )
        images = pixels if "image" in case else None
        films_seen = film_pixels if any(kind.startswith("video") for kind in case) else None
        visual = tuple("image" if kind == "image" else "film" for kind in case if kind != "audio")
        heard = tuple("tone" if kind == "audio" else "soundtrack" for kind in case if kind.endswith("audio"))
        embedded = _embedded(encoders, found, images, films_seen)
        groups.append(Group(plan, *embedded, visual=visual, heard=heard))
    return _shard(wanted, rows, groups)


def _references(
    encoders: Encoders,
    rng: random.Random,
    asked: tuple[tuple[Clip, ...], list[tuple[str, ...]]],
    canvas: Canvas,
    frames: int,
) -> dict[str, Tensor]:
    """Rows and pixels of the references that clips with these cases bring; zeros where a case has no use for one."""
    clips, cases = asked
    made: dict[str, Tensor] = {}

    def put(name: str, of: list[int], values: Tensor) -> None:
        made[name] = values.new_zeros((len(clips), *values.shape[1:]))
        made[name][torch.tensor(of, device=values.device)] = values

    def those(*kinds: str) -> list[int]:
        # Never none, so that every part of the shard has its shape.
        return [index for index, case in enumerate(cases) if any(kind in case for kind in kinds)] or [0]

    of = those("video", "video+audio")
    film = world.Batch([references.film_of(clips[index], rng, frames) for index in of], encoders.device)
    shown = world.draw(film, world.frame_times(film, 0, frames), *canvas)
    put("film", of, encoders.condition(shown))
    put("soundtrack", of, encoders.audio(sound.sound(film, *canvas)))
    seen = shown[:, :, conditioner.sampled_frames(frames)].permute(0, 2, 3, 4, 1)
    put("film pixels", of, (seen * 255).round().to(torch.uint8))
    of = those("image")
    portraits = world.Batch(
        [references.portrait_of(clips[index], rng) for index in of for _ in range(PORTRAITS)], encoders.device
    )
    portrait = world.draw(portraits, world.frame_times(portraits, 0, 1), *references.IMAGE_CANVAS)
    put("image", of, encoders.condition(portrait).unflatten(0, (-1, PORTRAITS)))
    shot = (portrait.permute(0, 2, 3, 4, 1) * 255).round().to(torch.uint8)
    put("image pixels", of, shot.unflatten(0, (-1, PORTRAITS)))
    of = those("audio")
    sounds = world.Batch([references.sound_of(clips[index], rng, frames) for index in of], encoders.device)
    put("tone", of, encoders.audio(sound.sound(sounds, *canvas)))
    return made


def present(
    presenter: conditioner.Presenter, clip: Clip, case: tuple[str, ...], rng: random.Random, canvas: Canvas, frames: int
) -> conditioner.Presentation:
    """The presentation of one `ref2va` training example."""
    prompt = _of_few_lengths(presenter, partial(references.prompt_of, clip, case, rng))
    return presenter.references(
        prompt, case, (references.IMAGE_CANVAS[0] // 32) * (references.IMAGE_CANVAS[1] // 32), frames,
        (canvas[0] // 32) * (canvas[1] // 32),
    )  # fmt: skip


def _drawn(clips: list[Clip], wanted: Wanted, device: torch.device) -> Iterator[tuple[world.Batch, Tensor]]:
    """Clips and their frames in 0..1, as many at a time as 3 GB of float32 hold."""
    pixels = clips[0].num_frames * wanted.canvas[0] * wanted.canvas[1]
    size = max(1, int(2.5e8 // (pixels * 3))) if device.type == "cuda" else 4
    for start in range(0, len(clips), size):
        batch = world.Batch(clips[start : start + size], device)
        yield batch, world.draw(batch, world.frame_times(batch, 0, wanted.num_frames), *wanted.canvas)
        if device.type == "cuda":
            torch.cuda.synchronize()  # or the clock would not see what is still to do
        if time.monotonic() > wanted.until:
            return


def _embedded(
    encoders: Encoders, found: list[Entry], images: Tensor | None, films: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Clips, pictures and encoded prompts of entries of one layout."""
    device = encoders.device
    clip = torch.tensor([index for index, _, _ in found], device=device)
    picture = torch.tensor([index for _, index, _ in found], device=device)
    ids = torch.tensor([tokens for *_, tokens in found], device=device)
    parts = []
    for start in range(0, len(found), 1024):
        some = slice(start, start + 1024)
        shown = None if images is None else images[picture[some]]
        seen = None if films is None else films[clip[some]][:, None]
        parts.append(conditioner.embed(encoders.conditioner, ids[some], shown, seen).to(torch.bfloat16))
    return clip, picture, torch.cat(parts)


def _of_few_lengths(presenter: conditioner.Presenter, say: Callable[[], str], step: int = 4) -> str:
    """Of what `say` says, a prompt whose tokens are a multiple of `step`: each layout that a batch has costs its start.

    Places are relative to one another, so that other lengths are nothing new. A clip that can hardly be said so is said
    otherwise.
    """
    for _ in range(8 * step):
        prompt = say()
        if len(presenter.text(prompt)) % step == 0:
            break
    return prompt


def _common(entries: Entries, least: int = 64) -> list[tuple[Any, Any]]:
    """Layouts that about fill a batch, with their entries; all of them if every one is rare."""
    common = [(layout, found) for layout, found in entries.items() if len(found) >= least]
    return common or list(entries.items())
