"""Whether a result is any good: running figures of frames and sound while they are written.

Samples sparsely, so that it costs well under a millisecond a frame. It judges signals, not taste.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from backend.types import AUDIO_SAMPLE_RATE

GRID = 48  # rows and columns looked at in a frame
DARK_LEVEL = 6.0  # of 255: no brighter than compression noise on black
FLAT_LEVEL = 1.0  # standard deviation of 255 below which a frame shows one colour
FROZEN_LEVEL = 0.25  # mean change of 255 between frames below which nothing moves; dithering alone makes 0.3
SILENT_DB = -60.0  # RMS of full scale; room tone of a quiet recording is about -55
DC_LEVEL = 0.02  # mean of full scale; real sound is within 0.005
CLIPPED_SHARE = 0.01  # of samples beyond full scale before clipping is heard as distortion


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport:
    """`figures` for the sidecar (JSON numbers), `warnings` for people, `unusable` where nothing can be used."""

    figures: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unusable: str | None = None


class OutputChecks:
    """Feed it what the MP4 writer gets, in the same order; `report` may be asked at any time."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._spreads: list[float] = []
        self._changes: list[float] = []
        self._previous: np.ndarray | None = None
        self._audio_samples = 0
        self._bad_samples = 0
        self._clipped = 0
        self._peak = 0.0
        self._sum = np.zeros(2)
        self._squares = np.zeros(2)

    def video(self, frames: np.ndarray) -> None:
        """Look at frames: uint8 (n, height, width, 3)."""
        rows = max(1, frames.shape[1] // GRID)
        columns = max(1, frames.shape[2] // GRID)
        for frame in frames[:, rows // 2 :: rows, columns // 2 :: columns].astype(np.float32):
            self._means.append(float(frame.mean()))
            self._spreads.append(float(frame.std(axis=(0, 1)).max()))
            if self._previous is not None:
                self._changes.append(float(np.abs(frame - self._previous).mean()))
            self._previous = frame

    def audio(self, samples: np.ndarray) -> None:
        """Look at sound: float (2, n), full scale -1..1."""
        finite = np.isfinite(samples)
        bad = int(samples.size - np.count_nonzero(finite))
        values = np.where(finite, samples, 0.0).astype(np.float64) if bad else samples.astype(np.float64)
        self._audio_samples += samples.shape[1]
        self._bad_samples += bad
        if values.size:
            magnitude = np.abs(values)
            self._clipped += int(np.count_nonzero(magnitude > 1.0))
            self._peak = max(self._peak, float(magnitude.max()))
        self._sum = self._sum + values.sum(axis=1)
        self._squares = self._squares + (values**2).sum(axis=1)

    def report(self) -> OutputReport:
        """Figures so far, and what they mean."""
        video, video_warnings, video_useless = self._judge_video()
        audio, audio_warnings, audio_useless = self._judge_audio()
        unusable = None
        if video_useless and audio_useless:
            unusable = f"nothing usable came out: {video_useless} and {audio_useless}; "
            unusable += "try another seed or preset, and run doctor if it happens again"
        return OutputReport(figures={**video, **audio}, warnings=(*video_warnings, *audio_warnings), unusable=unusable)

    def _judge_video(self) -> tuple[dict[str, float], list[str], str | None]:
        if not self._means:
            return {"video_frames": 0}, [], "there is no picture"
        means, spreads = np.array(self._means), np.array(self._spreads)
        changes = np.array(self._changes or [0.0])
        dark = (means < DARK_LEVEL) & (spreads < DARK_LEVEL)
        flat = spreads < FLAT_LEVEL
        still = changes < FROZEN_LEVEL
        figures = {
            "video_frames": len(means),
            "video_mean": round(float(means.mean()), 3),
            "video_spread": round(float(spreads.mean()), 3),
            "video_change": round(float(changes.mean()), 4),
            "video_black_share": round(float(dark.mean()), 4),
            "video_flat_share": round(float(flat.mean()), 4),
            "video_frozen_share": round(float(still.mean()), 4) if self._changes else 0.0,
        }
        if dark.all() and not means.any():
            return figures, ["every frame is black"], "every frame is black"
        warnings = []
        if dark.all():
            warnings.append(f"every frame is nearly black (mean {means.mean():.1f} of 255)")
        elif flat.all():
            warnings.append("every frame is one flat colour")
        elif dark.mean() > 0.25:
            warnings.append(f"{dark.sum()} of {len(dark)} frames are black")
        elif flat.mean() > 0.25:
            warnings.append(f"{flat.sum()} of {len(flat)} frames are one flat colour")
        if self._changes and still.all():
            warnings.append("the picture is frozen: no frame differs from the one before")
        elif still.mean() > 0.5 and self._changes:
            warnings.append(f"the picture stands still in {still.sum()} of {len(still)} frames")
        return figures, warnings, None

    def _judge_audio(self) -> tuple[dict[str, float], list[str], str | None]:
        figures: dict[str, float] = {"audio_samples": self._audio_samples}
        if not self._audio_samples:
            return figures, ["there is no sound"], "there is no sound"
        mean = self._sum / self._audio_samples
        rms = np.sqrt(np.maximum(self._squares / self._audio_samples - mean**2, 0.0))
        rms_db = float(20 * np.log10(max(float(rms.max()), 1e-9)))
        total = 2 * self._audio_samples
        figures |= {
            "audio_peak": round(self._peak, 5),
            "audio_rms_db": round(rms_db, 2),
            "audio_dc": round(float(np.abs(mean).max()), 5),
            "audio_non_finite": self._bad_samples,
            "audio_clipped_share": round(self._clipped / total, 5),
        }
        warnings = []
        if self._bad_samples:
            share = 100 * self._bad_samples / total
            warnings.append(
                f"the sound held {self._bad_samples} values that are no numbers ({share:.1f} %), now silence"
            )
        if float(np.abs(mean).max()) > DC_LEVEL:
            warnings.append(f"the sound has a constant offset of {np.abs(mean).max():.3f} of full scale")
        if rms_db < SILENT_DB:
            warnings.append(f"the sound is silent ({rms_db:.0f} dB of full scale, {AUDIO_SAMPLE_RATE} Hz)")
        if self._clipped / total > CLIPPED_SHARE:
            warnings.append(f"{100 * self._clipped / total:.1f} % of the sound was beyond full scale and is clipped")
        if self._bad_samples == total:
            return figures, warnings, "all of the sound is no number"
        return figures, warnings, "the sound is silent" if rms_db < SILENT_DB else None
