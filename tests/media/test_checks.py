import numpy as np
import pytest

from backend.media.checks import OutputChecks

RNG = np.random.default_rng(0)


def moving(count: int = 12) -> np.ndarray:
    base = RNG.integers(0, 255, (1, 64, 96, 3), dtype=np.uint8)
    return np.concatenate([np.roll(base, 7 * index, axis=2) for index in range(count)])


def sound(seconds: float = 0.5) -> np.ndarray:
    time = np.arange(int(seconds * 32000)) / 32000
    return np.stack([0.3 * np.sin(2 * np.pi * 440 * time)] * 2).astype(np.float32)


def report(frames: np.ndarray, samples: np.ndarray):
    checks = OutputChecks()
    for start in range(0, len(frames), 5):
        checks.video(frames[start : start + 5])
    for start in range(0, samples.shape[1], 4000):
        checks.audio(samples[:, start : start + 4000])
    return checks.report()


def test_a_good_result_has_no_warning_and_true_figures():
    found = report(moving(), sound())
    assert found.warnings == () and found.unusable is None
    assert found.figures["video_frames"] == 12
    assert found.figures["audio_samples"] == 16000
    # a sine of amplitude a has RMS a / sqrt(2)
    assert found.figures["audio_rms_db"] == pytest.approx(20 * np.log10(0.3 / np.sqrt(2)), abs=0.02)
    assert found.figures["audio_peak"] == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize(
    ("frames", "samples", "word"),
    [
        (np.zeros((12, 64, 96, 3), np.uint8), sound(), "black"),
        (np.full((12, 64, 96, 3), 3, np.uint8), sound(), "black"),
        (np.repeat(moving(1), 12, axis=0), sound(), "frozen"),
        (np.concatenate([np.full((1, 64, 96, 3), 20 * i, np.uint8) for i in range(12)]), sound(), "flat"),
        (moving(), np.zeros((2, 16000), np.float32), "silent"),
        (moving(), np.full((2, 16000), 0.4, np.float32), "offset"),
        (moving(), np.where(np.arange(16000) < 50, np.nan, sound()).astype(np.float32), "no numbers"),
        (moving(), np.where(np.arange(16000) == 9, np.inf, sound()).astype(np.float32), "no numbers"),
        (moving(), 20 * sound(), "full scale"),
        (moving(), np.zeros((2, 0), np.float32), "no sound"),
    ],
)
def test_each_bad_signal_is_named(frames, samples, word):
    found = report(frames, samples)
    assert any(word in warning for warning in found.warnings), found.warnings
    assert found.unusable is None


@pytest.mark.parametrize("samples", [np.zeros((2, 16000), np.float32), np.full((2, 16000), np.nan, np.float32)])
def test_black_without_sound_is_unusable_and_says_what_to_do(samples):
    found = report(np.zeros((12, 64, 96, 3), np.uint8), samples)
    assert "every frame is black" in found.unusable and "try another seed" in found.unusable


def test_a_pause_in_a_moving_picture_is_no_warning():
    frames = np.concatenate([moving(12), np.repeat(moving(1), 5, axis=0)])
    assert report(frames, sound()).warnings == ()
