"""The packed sequence `[text | conditions | audio | video]`: where every row lies, and rows back to latents.

Runs diffusers' layout blocks; it knows shapes and row indices, not weights.
"""

from __future__ import annotations

from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3NoKeyframeAnchorsStep,
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
)
from diffusers.modular_pipelines.minimax_h3.decoders import MiniMaxH3AfterDenoiseStep
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from torch import Tensor

from backend.h3.components import H3Components
from backend.types import Task

BLOCKS = {
    Task.T2VA: (MiniMaxH3NoKeyframeAnchorsStep, MiniMaxH3PrepareLayoutStep),
    Task.FL2VA: (MiniMaxH3PrepareLayoutStep,),
    Task.REF2VA: (MiniMaxH3Ref2VAPrepareLayoutStep,),
}


def unpack(components: H3Components, state: PipelineState, rows: Tensor, audio_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the packed sequence, conditions first, to latents (1, 24, T, h, w) and audio latents (2, 32, A)."""
    scratch = PipelineState(values={**state.values, "latents": rows, "audio_latents": audio_rows})
    MiniMaxH3AfterDenoiseStep()(components, scratch)
    return scratch.values["latents"], scratch.values["audio_latents"]
