"""What a `ref2va` request brings beside its sentence: a picture, a film or a sound that says what the clip does.

Knows the world, its words and the rows that a reference takes; nothing of latents.
"""

from __future__ import annotations

import random
from dataclasses import replace

from bench.nano import grammar, packing, world
from bench.nano.world import Clip

IMAGE_CANVAS = (128, 128)  # a reference image at the checkpoint's short edge of 128 px
# What a `ref2va` request may bring, in order, and how often it is trained: a picture's shape is what is learned last.
CASES: tuple[tuple[tuple[str, ...], float], ...] = (
    (("image",), 0.4),
    (("video+audio",), 0.08),
    (("video",), 0.08),
    (("image", "audio"), 0.3),
    (("image", "video+audio"), 0.07),
    (("image", "video"), 0.07),
)


def prompt_of(clip: Clip, case: tuple[str, ...], rng: random.Random, test: bool = False) -> str:
    """The prompt of a `ref2va` request whose references are of `case`."""
    subject = "<Picture 1>" if "image" in case else None
    if any(kind.startswith("video") for kind in case):
        return grammar.imitate(clip, rng, subject)
    prompt = grammar.describe(clip, rng, test=test, subject=subject)
    return grammar.sounds_like(prompt, rng) if "audio" in case else prompt


def described(
    case: tuple[str, ...], canvas: tuple[int, int], frames: int
) -> tuple[tuple[str, tuple[int, int, int] | None, int], ...]:
    """A case's references as `packing.reference_plan` takes them."""
    heard = 2 * packing.audio_latents(frames)
    film = (packing.latent_frames(frames), canvas[1] // 16, canvas[0] // 16)
    table: dict[str, tuple[str, tuple[int, int, int] | None, int]] = {
        "image": ("image", (1, IMAGE_CANVAS[1] // 16, IMAGE_CANVAS[0] // 16), 0),
        "audio": ("audio", None, heard),
        "video": ("video", film, 0),
        "video+audio": ("video", film, heard),
    }
    return tuple(table[kind] for kind in case)


def portrait_of(clip: Clip, rng: random.Random) -> Clip:
    """What a reference image shows: the clip's shape, standing still about in the middle before some other ground."""
    fixed = {"shape": clip.shape, "color": clip.color, "motion": world.MOTIONS.index("still"), "texture": clip.texture}
    portrait = world.sample(rng, 22, **fixed)
    return replace(portrait, place=1, size=rng.randrange(1, 3), y_jitter=0.5 * portrait.y_jitter)


def film_of(clip: Clip, rng: random.Random, num_frames: int) -> Clip:
    """What a reference video shows: another shape doing what the clip does."""
    other = world.sample(rng, num_frames, motion=clip.motion)
    return replace(
        other, place=clip.place, drift=clip.drift, phase=clip.phase, period_s=clip.period_s,
        x_jitter=clip.x_jitter, y_jitter=clip.y_jitter,
    )  # fmt: skip


def sound_of(clip: Clip, rng: random.Random, num_frames: int) -> Clip:
    """What a reference sound holds: the clip's pitch class in some octave, standing in the middle."""
    other = world.sample(rng, num_frames, motion=world.MOTIONS.index("still"))
    return replace(other, note=clip.note, place=1, drone=0)
