"""The detectors on the world's own clips, whose truth is known: at least 99 % must be judged right."""

import random

import pytest
import torch

from bench.nano import detectors, hearing, scores, sound, world


def _truth(count, seed, canvas):
    rng = random.Random(seed)
    for index in range(count):
        clip = world.sample(rng, 73, motion=index % len(world.MOTIONS), shape=(index * 3) % len(world.SHAPES))
        frames = world.frames([clip], *canvas)[0]
        yield clip, frames, sound.sound(world.Batch([clip]), *canvas)[0]


def test_the_world_itself_scores_full_marks():
    table = scores.Table()
    # One clip a motion keeps this short; `python -m bench.nano.evaluate --clips 200` judges as many as one likes.
    for clip, frames, wave in _truth(len(world.MOTIONS), seed=128, canvas=(160, 128)):
        table.add(scores.judge(clip, frames, wave))
    assert {name: share for name, share in table.shares().items() if share < 0.99} == {}


def test_nothing_is_seen_or_heard_in_an_empty_clip():
    frames = torch.full((24, 64, 64, 3), 98, dtype=torch.uint8)
    assert detectors.look(frames) is None
    heard = hearing.listen(torch.zeros(2, 32000))
    assert heard.note is None
    assert heard.clicks_s == ()


def test_a_wrong_clip_fails_its_scores():
    (clip, frames, _wave), (other, _, other_wave) = _truth(2, seed=5, canvas=(224, 128))
    assert clip.motion != other.motion
    result = scores.judge(other, frames, other_wave)
    assert not result["motion"]
    assert not result["shape"]


def test_a_bounce_without_its_click_and_a_click_without_a_bounce_are_counted():
    clip = world.sample(random.Random(3), 107, motion=world.MOTIONS.index("bounce"))
    frames = world.frames([clip], 224, 128)[0]
    wave = sound.sound(world.Batch([clip]), 224, 128)[0]
    assert scores.judge(clip, frames, wave)["bounce click"] == [True] * len(
        [moment for moment in world.bounces(clip) if 0.3 < moment < clip.duration_s - 0.3]
    )
    # Half a second later no click is within 60 ms of its bounce: periods are 1 to 1.4 s.
    late = torch.roll(wave, 16000, dims=-1)
    result = scores.judge(clip, frames, late)
    assert not any(result["bounce click"])
    assert not any(result["click at a bounce"])
    assert result["four in five of a clip's"] is False


@pytest.mark.parametrize(("frequency", "note"), [(261.63, "C"), (880.0, "A"), (493.88, "B"), (349.23, "F")])
def test_tempered_notes_are_named(frequency, note):
    times = torch.arange(64000) / 32000
    wave = 0.2 * torch.sin(2 * torch.pi * frequency * times)
    assert hearing.listen(torch.stack((wave, wave))).note == note


def test_clicks_are_timed():
    wave = torch.randn(2, 64000, generator=torch.Generator().manual_seed(0)) * 1e-4
    for moment in (0.5, 1.25):
        start = int(moment * 32000)
        wave[:, start : start + 200] += 0.4 * torch.sin(torch.arange(200) * 2 * torch.pi * 3600 / 32000)
    assert hearing.listen(wave).clicks_s == pytest.approx((0.5, 1.25), abs=0.01)


def test_psnr_is_the_formula():
    first = torch.zeros(4, 4, 3, dtype=torch.uint8)
    assert detectors.psnr(first, first + 10) == pytest.approx(20 * torch.log10(torch.tensor(25.5)).item(), abs=1e-4)
