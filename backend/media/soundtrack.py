"""The sound of one MP4: samples as they come, fitted to the picture's length, encoded as AAC a step ahead of it.

Knows samples and the encoder; files, pictures and who listens are not known here.
"""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Any

import av
import numpy as np

from backend.types import AUDIO_CHANNELS, AUDIO_SAMPLE_RATE, FPS

AAC_FRAME = 1024  # samples of one packet
# FFmpeg's default coder (twoloop) garbles the first 32 ms of sound that starts at once: errors of the size of the
# signal, measured with a 440 Hz sine in FFmpeg 8.1. "fast" keeps them under 1 % and is as good afterwards.
AAC_OPTIONS = {"aac_coder": "fast"}


class Soundtrack:
    """float32 (2, n) at 32 kHz. One thread adds and fits, another encodes; what was encoded is never changed."""

    def __init__(self) -> None:
        self.given = 0  # samples that were added, before they were fitted
        self._samples = np.zeros((AUDIO_CHANNELS, 0), np.float32)
        self._encoded = 0
        self._lock = threading.Lock()

    @property
    def samples(self) -> np.ndarray:
        """All of it, float32 (2, n)."""
        with self._lock:
            return self._samples

    def add(self, samples: np.ndarray) -> None:
        """Append sound, float32 (2, n) in -1..1, any n: 15 s are 4 MB."""
        with self._lock:
            self._samples = np.concatenate([self._samples, samples.astype(np.float32)], axis=1)
            self.given += samples.shape[1]

    def fit(self, num_frames: int) -> None:
        """Bring the sound to the length of `num_frames` pictures: exactly round(n / 24 * 32000) samples."""
        wanted = samples_of(num_frames)
        with self._lock:
            sound = self._samples[:, :wanted]
            self._samples = np.pad(sound, ((0, 0), (0, wanted - sound.shape[1])))

    def encode(self, stream: Any, num_frames: int) -> list[Any]:
        """Packets of the whole AAC frames that are there and do not outlast `num_frames` pictures."""
        with self._lock:
            there = min(self._samples.shape[1], samples_of(num_frames))
            sound = self._samples[:, self._encoded : there]
        return self._encode(stream, sound[:, : sound.shape[1] // AAC_FRAME * AAC_FRAME])

    def finish(self, stream: Any) -> list[Any]:
        """Packets of all that is left."""
        return [*self._encode(stream, self.samples[:, self._encoded :]), *stream.encode(None)]

    def notes(self) -> tuple[str, ...]:
        """Where `fit` cut or padded, in words; less than a frame is no news: audio latents round to 25 ms."""
        difference_s = (self.given - self._samples.shape[1]) / AUDIO_SAMPLE_RATE
        if abs(difference_s) <= 1 / FPS:
            return ()
        verb = "cut" if difference_s > 0 else "followed by silence"
        return (f"the sound was {verb} for {abs(difference_s):.3f} s to match the picture",)

    def _encode(self, stream: Any, sound: np.ndarray) -> list[Any]:
        # The encoder refuses NaN and decoders clip: `checks` reports both, the file stays playable.
        sound = np.clip(np.nan_to_num(sound, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)
        packets: list[Any] = []
        for start in range(0, sound.shape[1], AAC_FRAME):
            block = np.ascontiguousarray(sound[:, start : start + AAC_FRAME])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = AUDIO_SAMPLE_RATE, self._encoded
            frame.time_base = Fraction(1, AUDIO_SAMPLE_RATE)
            packets += stream.encode(frame)
            self._encoded += block.shape[1]
        return packets


def samples_of(num_frames: int) -> int:
    """Samples that last as long as `num_frames` pictures."""
    return round(Fraction(num_frames, FPS) * AUDIO_SAMPLE_RATE)
