"""Judges of sound: is there a tone, which pitch class, from which side, and when does it click.

They hear `(2, samples)` float32 at 32 kHz and know neither the model nor the clip that was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.nano.sound import NOTE_NAMES, SAMPLE_RATE

_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_SILENCE_RMS = 0.01
_CLICK_BAND_HZ = 2600.0  # tones end below 2 kHz, clicks ring at 3.6 kHz


@dataclass(frozen=True, slots=True)
class Heard:
    """`note` is None for silence; `balance` is (R - L) / (R + L) of energy for eight equal parts of the clip."""

    note: str | None
    balance: Tensor
    clicks_s: tuple[float, ...]


def listen(audio: Tensor) -> Heard:
    """Judge one clip's stereo sound."""
    mono = audio.mean(0)
    loud = float(mono.pow(2).mean().sqrt()) >= _SILENCE_RMS
    return Heard(note=_note(mono) if loud else None, balance=_balance(audio), clicks_s=_clicks(mono))


def _note(mono: Tensor) -> str | None:
    """The nearest natural note of the strongest fundamental between 110 Hz and 1.1 kHz."""
    spectrum = torch.fft.rfft(mono * torch.hann_window(len(mono))).abs()
    hertz = torch.arange(len(spectrum)) * SAMPLE_RATE / len(mono)

    def energy(frequency: float) -> float:  # magnitude within 30 cents
        near = (hertz > frequency * 2 ** (-30 / 1200)) & (hertz < frequency * 2 ** (30 / 1200))
        return float(spectrum[near].max()) if bool(near.any()) else 0.0

    best, best_score = None, 0.0
    for octave in (3, 4, 5):
        for name in NOTE_NAMES:
            frequency = 440.0 * 2 ** ((_SEMITONES[name] - 9) / 12 + octave - 4)
            score = energy(frequency) + 0.5 * energy(2 * frequency)
            if score > best_score:
                best, best_score = name, score
    return best


def _balance(audio: Tensor, parts: int = 8) -> Tensor:
    length = audio.shape[1] // parts * parts
    # The drone sits in the middle and would hide the side: judge above 100 Hz.
    spectrum = torch.fft.rfft(audio[:, :length])
    hertz = torch.arange(spectrum.shape[1]) * SAMPLE_RATE / length
    spectrum[:, hertz < 100] = 0
    energy = torch.fft.irfft(spectrum, n=length).reshape(2, parts, -1).pow(2).mean(-1)
    return (energy[1] - energy[0]) / (energy.sum(0) + 1e-9)


def _clicks(mono: Tensor, hop: int = 160) -> tuple[float, ...]:
    """Onsets in seconds of short bursts above the tones' band."""
    spectrum = torch.fft.rfft(mono)
    hertz = torch.arange(len(spectrum)) * SAMPLE_RATE / len(mono)
    spectrum[hertz < _CLICK_BAND_HZ] = 0
    high = torch.fft.irfft(spectrum, n=len(mono))
    count = len(high) // hop
    level = high[: count * hop].reshape(count, hop).pow(2).mean(1).sqrt()
    threshold = max(0.02, 6 * float(level.median()), 0.35 * float(level.max()))
    clicks: list[float] = []
    for index in range(count):
        if level[index] < threshold:
            continue
        time = index * hop / SAMPLE_RATE
        if not clicks or time - clicks[-1] > 0.2:
            clicks.append(time)
    return tuple(clicks)


def pitch_class(name: str, other: str | None) -> bool:
    """Whether both name one pitch class."""
    return other is not None and math.isclose(_SEMITONES[name], _SEMITONES[other])
