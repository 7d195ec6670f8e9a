"""Noise and the two sigma schedules: condition noise first, then video, then audio, off one generator.

Runs diffusers' blocks; the order of draws is part of what a seed means.
"""

from __future__ import annotations

from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3FL2VAPrepareLatentsStep,
    MiniMaxH3PrepareConditionLatentsStep,
    MiniMaxH3PrepareLatentsStep,
    MiniMaxH3Ref2VAPrepareLatentsStep,
    MiniMaxH3SetTimestepsStep,
)

from backend.h3.components import H3Components
from backend.types import Sampling, Task

BLOCKS = {
    Task.T2VA: (MiniMaxH3PrepareLatentsStep, MiniMaxH3SetTimestepsStep),
    Task.FL2VA: (
        MiniMaxH3PrepareConditionLatentsStep,
        MiniMaxH3PrepareLatentsStep,
        MiniMaxH3FL2VAPrepareLatentsStep,
        MiniMaxH3SetTimestepsStep,
    ),
    Task.REF2VA: (
        MiniMaxH3PrepareConditionLatentsStep,
        MiniMaxH3PrepareLatentsStep,
        MiniMaxH3Ref2VAPrepareLatentsStep,
        MiniMaxH3SetTimestepsStep,
    ),
}


def set_shifts(components: H3Components, sampling: Sampling) -> None:
    """Apply the request's flow shifts, or the checkpoint's own (12 for video, 3 for audio in the release)."""
    for scheduler, shift in (
        (components.scheduler, sampling.flow_shift),
        (components.audio_scheduler, sampling.audio_flow_shift),
    ):
        scheduler.set_shift(scheduler.config.shift if shift is None else shift)
