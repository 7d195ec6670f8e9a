"""The synthetic world against geometry, the tempered scale and its own promises."""

import math
import random
from dataclasses import replace

import pytest
import torch

from bench.nano import grammar, hearing, sound, world

STILL = world.MOTIONS.index("still")


def _clip(**fixed):
    values = {"motion": STILL, "color": 0, "ground": 0, "texture": 0, "pattern": 0, **fixed}
    return replace(world.sample(random.Random(0), 107, **values), drone=0, tone=0, place=1)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_circle_covers_its_area(size):
    clip = _clip(shape=0, size=size)
    image = world.frames([replace(clip, num_frames=1)], 224, 128)[0, 0].float()
    red = (image[..., 0] - 14) / (228 - 14)  # red over black: the red channel is the coverage
    radius = world.RADII[size] * 128 * 0.96
    assert float(red.sum()) == pytest.approx(math.pi * radius**2, rel=0.02)


def test_colors_are_the_palette():
    image = world.frames([replace(_clip(shape=1, size=2), x_jitter=0.0, y_jitter=0.0, num_frames=1)], 128, 128)[0, 0]
    assert tuple(image[64, 64].tolist()) == world.COLORS["red"]
    assert tuple(image[2, 2].tolist()) == world.GROUNDS["black"]


def test_bounces_are_where_the_path_is_lowest():
    clip = _clip(motion=world.MOTIONS.index("bounce"), shape=0, size=1)
    batch = world.Batch([clip])
    fine = torch.arange(0, 4.4, 0.001)[None]
    y = world.path(batch, fine, 224, 128).y[0]
    lowest = [index / 1000 for index in range(1, len(y) - 1) if y[index] >= y[index - 1] and y[index] > y[index + 1]]
    assert world.bounces(clip)[: len(lowest)] == pytest.approx(lowest, abs=0.002)
    assert len(lowest) >= 2


@pytest.mark.parametrize(("motion", "axis", "sign"), [("right", 0, 1), ("left", 0, -1), ("up", 1, -1), ("down", 1, 1)])
def test_slides_go_where_they_say(motion, axis, sign):
    batch = world.Batch([_clip(motion=world.MOTIONS.index(motion), shape=0, size=0)])
    where = world.path(batch, torch.tensor([[0.0, 4.4]]), 224, 128)
    moved = torch.stack((where.x[0, 1] - where.x[0, 0], where.y[0, 1] - where.y[0, 0]))
    assert float(moved[axis]) * sign > 60
    assert abs(float(moved[1 - axis])) < 1e-3


def test_shapes_stay_on_the_canvas():
    rng = random.Random(3)
    for width, height in ((224, 128), (128, 224), (256, 96)):
        batch = world.Batch([world.sample(rng) for _ in range(200)])
        where = world.path(batch, world.frame_times(batch, 0, 107), width, height)
        assert float((where.x - 0.9 * where.radius).min()) > -0.5
        assert float((where.x + 0.9 * where.radius).max()) < width + 0.5
        assert float((where.y - 0.9 * where.radius).min()) > -0.5
        assert float((where.y + 0.9 * where.radius).max()) < height + 0.5


def test_confusable_colors_are_refused():
    with pytest.raises(ValueError, match=r"green.*teal"):
        world.sample(
            random.Random(0), color=list(world.COLORS).index("green"), ground=list(world.GROUNDS).index("teal")
        )


def test_notes_are_within_25_cents_of_the_tempered_scale():
    semitones = dict(zip(sound.NOTE_NAMES, (0, 2, 4, 5, 7, 9, 11), strict=True))
    for octave, row in zip((3, 4, 5), sound.FREQUENCIES, strict=True):
        for name, frequency in zip(sound.NOTE_NAMES, row, strict=True):
            tempered = 440 * 2 ** ((semitones[name] - 9) / 12 + octave - 4)
            assert abs(1200 * math.log2(frequency / tempered)) < 25
            assert frequency % 5 == 0


def test_the_tone_is_the_note_and_the_side_is_the_place():
    right = replace(_clip(shape=5, size=1), place=2)
    wave = sound.sound(world.Batch([right, replace(right, place=0)]), 224, 128)
    spectrum = torch.fft.rfft(wave[0].mean(0)).abs()
    assert float(spectrum.argmax()) * sound.SAMPLE_RATE / wave.shape[-1] == pytest.approx(440, abs=0.5)  # A4
    energy = wave.pow(2).mean(-1)
    assert energy[0, 1] > 2 * energy[0, 0]
    assert energy[1, 0] > 2 * energy[1, 1]


def test_a_click_begins_with_the_latent_nearest_to_its_bounce():
    clip = replace(_clip(motion=world.MOTIONS.index("bounce"), shape=0, size=1), phase=0.3, period_s=1.1)
    # By hand: touches at 0.77, 1.87, 2.97 and 4.07 s; 40 latents a second.
    assert sound.click_latents(clip) == [31, 75, 119, 163]
    wave = sound.sound(world.Batch([clip]), 224, 128)[0]
    assert hearing.listen(wave).clicks_s == pytest.approx((31 / 40, 75 / 40, 119 / 40, 163 / 40), abs=0.006)
    assert all(
        abs(latent / 40 - moment) <= 0.0126
        for latent, moment in zip(sound.click_latents(clip), world.bounces(clip), strict=True)
    )
    assert sound.click_latents(replace(clip, motion=STILL)) == []


@pytest.mark.parametrize(("frames", "latents"), [(107, 178), (124, 207), (192, 320), (362, 603)])
def test_sound_is_a_whole_number_of_latents(frames, latents):
    # round(frames / 24 * 40) at 800 samples, from the model's published rates.
    assert sound.num_samples(frames) == latents * 800


def test_held_out_triples_are_one_in_twelve_and_spare_no_value():
    rng = random.Random(1)
    clips = [world.sample(rng) for _ in range(4000)]
    held = [clip for clip in clips if grammar.held_out(clip)]
    assert len(held) / len(clips) == pytest.approx(1 / 12, abs=0.02)
    for field, count in (("shape", 7), ("color", 8), ("motion", 12)):
        assert {getattr(clip, field) for clip in held} == set(range(count))
        assert {getattr(clip, field) for clip in clips if not grammar.held_out(clip)} == set(range(count))


def test_sentences_name_what_is_seen_and_test_frames_are_other_sentences():
    rng = random.Random(2)
    clip = _clip(shape=6, size=2, color=4, motion=0)
    for _ in range(50):
        text = grammar.describe(clip, rng).lower()
        assert "heart" in text
        assert "blue" in text
        assert "right" in text
    assert not set(grammar.FRAMES) & set(grammar.TEST_FRAMES)
    assert "<Picture 1>" in grammar.imitate(clip, rng, "<Picture 1>")
    assert "<Audio 1>" in grammar.sounds_like("A.", rng)


@pytest.mark.parametrize(("motion", "side"), [("clockwise", 1), ("counterclockwise", -1)])
def test_an_orbit_begins_near_its_top_and_its_first_quarter_tells_its_direction(motion, side):
    clips = [world.sample(random.Random(seed), 107, motion=world.MOTIONS.index(motion)) for seed in range(40)]
    batch = world.Batch(clips)
    where = world.path(batch, world.frame_times(batch, 0, 24), 224, 128)
    assert (where.y[:, 0] < 64).all()
    # A clock's hand goes right from twelve; a period is 2.6 to 3.6 s, so one second is more than a quarter.
    assert (side * (where.x[:, 18] - 112) > 0).all()
