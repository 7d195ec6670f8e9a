"""Prompt, keyframes and references to what conditions the transformer: prompt embeddings and condition latents.

Runs diffusers' encoder blocks in their order; media arrive prepared, and nothing here opens a user's file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep, MiniMaxH3ResizeStep
from diffusers.modular_pipelines.minimax_h3.encoders import (
    MiniMaxH3FL2VATextEncoderStep,
    MiniMaxH3KeyframeVaeEncoderStep,
    MiniMaxH3Ref2VAReferenceEncoderStep,
    MiniMaxH3Ref2VATextEncoderStep,
    MiniMaxH3TextEncoderStep,
)
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3Reference,
    MiniMaxH3VideoReference,
)
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from PIL import Image

from backend.types import (
    AUDIO_SAMPLE_RATE,
    FPS,
    GenerationRequest,
    PreparedMedia,
    PreparedReference,
    ReferenceKind,
    Task,
)

# For each task: the components a block needs on the device, and the block.
BLOCKS = {
    Task.T2VA: ((("text_encoder",), MiniMaxH3TextEncoderStep),),
    Task.FL2VA: (
        ((), MiniMaxH3ResizeStep),
        (("text_encoder",), MiniMaxH3FL2VATextEncoderStep),
        (("vae",), MiniMaxH3KeyframeVaeEncoderStep),
    ),
    Task.REF2VA: (
        ((), MiniMaxH3Ref2VASetupStep),
        (("text_encoder",), MiniMaxH3Ref2VATextEncoderStep),
        (("vae", "audio_vae"), MiniMaxH3Ref2VAReferenceEncoderStep),
    ),
}


def initial_state(request: GenerationRequest, media: PreparedMedia) -> PipelineState:
    """The blocks' state for a resolved request: canvas in px, frames, prompt, media and the seeded generator.

    The generator lives on the CPU whatever the device, so a seed means the same noise everywhere.
    """
    sampling = request.sampling
    if sampling.seed is None or sampling.width is None or sampling.height is None:
        raise ValueError(f"the request is not resolved: {sampling}")
    state = PipelineState()
    state.set("prompt", request.prompt)
    state.set("width", sampling.width)
    state.set("height", sampling.height)
    state.set("num_frames", sampling.num_frames)
    state.set("num_inference_steps", sampling.num_inference_steps)
    state.set("generator", torch.Generator("cpu").manual_seed(sampling.seed))
    if media.first_frame is not None:
        state.set("image", _image(media.first_frame))
    if media.last_frame is not None:
        state.set("last_image", _image(media.last_frame))
    if media.references:
        state.set("references", [_reference(reference) for reference in media.references])
    return state


def _reference(prepared: PreparedReference) -> MiniMaxH3Reference:
    if prepared.kind is ReferenceKind.IMAGE:
        return MiniMaxH3ImageReference(image=_image(_required(prepared.image)))
    if prepared.kind is ReferenceKind.AUDIO:
        return MiniMaxH3AudioReference(audio=_sound(_required(prepared.audio)), sample_rate=AUDIO_SAMPLE_RATE)
    # Mapped, not read: 15 s at 1344x768 is 1.1 GB, of which the blocks copy what they use.
    frames = np.load(_required(prepared.frames), mmap_mode="r")
    sound = None if prepared.audio is None else _sound(prepared.audio)
    rate = None if sound is None else AUDIO_SAMPLE_RATE
    return MiniMaxH3VideoReference(frames=frames, fps=float(FPS), audio=sound, sample_rate=rate)


def _required(path: Path | None) -> Path:
    if path is None:
        raise ValueError("a prepared reference lacks the file of its kind")
    return path


def _sound(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(path))


def _image(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")
