"""The sound of a clip: a tone whose pitch class is the shape's, panned with it, clicks at bounces, maybe a drone.

Every frequency is a multiple of 5 Hz, so that at 40 latents a second the phase of a tone repeats every few latents and
a small model can keep it; each is within 25 cents of the tempered note. For the same reason a click begins with the
latent nearest to its bounce, at most 12.5 ms off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.nano.world import FPS, SIZES, Batch, Clip, bounces, path

SAMPLE_RATE = 32000
LATENT_SAMPLES = 800  # one audio latent: h3-facts 1
NOTE_NAMES = ("C", "D", "E", "F", "G", "A", "B")
# Hz for octaves 3, 4, 5: a large shape is deep, a small one high.
FREQUENCIES = (
    (130.0, 145.0, 165.0, 175.0, 195.0, 220.0, 245.0),
    (260.0, 290.0, 330.0, 350.0, 390.0, 440.0, 490.0),
    (520.0, 580.0, 660.0, 700.0, 780.0, 880.0, 980.0),
)
DRONE_HZ = 55.0
CLICK_HZ = 3200.0
CLICK_DECAY_S = 0.012  # gone within one latent
BEEPS_A_SECOND = 2.5
BEEP_PART = 0.6  # of a beep's period that sounds


def num_samples(num_frames: int) -> int:
    """Samples of a clip of `num_frames`: a whole number of audio latents (h3-facts 2)."""
    return round(num_frames / FPS * 40) * LATENT_SAMPLES


def click_latents(clip: Clip) -> list[int]:
    """The audio latents that a click of `clip` begins with, one for each bounce that is heard."""
    latents = (round(moment * SAMPLE_RATE / LATENT_SAMPLES) for moment in bounces(clip))
    return [latent for latent in latents if latent < num_samples(clip.num_frames) // LATENT_SAMPLES]


def sound(batch: Batch, width: int, height: int) -> Tensor:
    """Stereo sound of equally long clips: `(batch, 2, samples)` float32 at 32 kHz, within -1..1."""
    count = num_samples(batch.clips[0].num_frames)
    times = (torch.arange(count, device=batch.device) / SAMPLE_RATE)[None, :].expand(len(batch.clips), count)
    # Octave by size: small is the highest.
    table = torch.tensor(FREQUENCIES, device=batch.device)
    octave = (len(SIZES) - 1 - batch.size).long()
    frequency = table[octave, batch.note.long()]
    angle = 2 * torch.pi * frequency * times
    tone = torch.sin(angle) + 0.35 * torch.sin(2 * angle)

    beat = torch.remainder(times * BEEPS_A_SECOND, 1.0)
    edge = 0.04
    beeps = ((beat / edge).clamp(0, 1) * ((BEEP_PART - beat) / edge).clamp(0, 1)).clamp(0, 1)
    envelope = torch.where(batch.tone == 1, beeps, torch.ones_like(beeps))
    fade = (times / 0.02).clamp(0, 1) * ((times[:, -1:] - times) / 0.02).clamp(0, 1)
    tone = 0.28 * tone * envelope * fade

    click = torch.zeros_like(tone)
    for row, clip in enumerate(batch.clips):
        for latent in click_latents(clip):
            since = times[row] - latent * LATENT_SAMPLES / SAMPLE_RATE
            burst = torch.exp(-since.clamp(min=0) / CLICK_DECAY_S) * torch.sin(2 * torch.pi * CLICK_HZ * since)
            click[row] += torch.where(since >= 0, burst, 0.0)
    drone = batch.drone * 0.1 * fade * torch.sin(2 * torch.pi * DRONE_HZ * times)

    where = path(batch, times, width, height)
    side = (where.x / width).clamp(0.03, 0.97) * (torch.pi / 2)
    source = tone + 0.5 * click
    left, right = torch.cos(side) * source + drone, torch.sin(side) * source + drone
    return torch.stack((left, right), dim=1).clamp(-1, 1)
