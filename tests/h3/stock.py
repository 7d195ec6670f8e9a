"""diffusers' own pipeline on a checkpoint, as the reference that ours is compared with."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import MiniMaxH3ModularPipeline

from backend.types import GenerationRequest, PreparedMedia, Stage


class LiftedLimits(MiniMaxH3ModularPipeline):
    """Stock in everything but the durations it refuses."""

    min_duration = 0.0
    max_duration = 100.0


def load_stock(checkpoint: Path, kind: type[Any] = MiniMaxH3ModularPipeline) -> Any:
    pipe = kind(pretrained_model_name_or_path=str(checkpoint), local_files_only=True)
    pipe.load_components(dtype=torch.float32, local_files_only=True)
    return pipe


def run_stock(pipe: Any, request: GenerationRequest, **media: Any) -> dict[str, Any]:
    """Latents, audio latents, frames (n, H, W, 3) in 0..1 and audio (2, samples) of the unmodified blocks."""
    sampling = request.sampling
    kept: dict[str, Any] = {}
    decode = pipe.blocks.sub_blocks["decode"]
    original = type(decode).__call__

    def spy(self: Any, components: Any, state: Any) -> Any:
        kept.update({name: state.get(name).clone() for name in ("latents", "audio_latents")})
        return original(self, components, state)

    type(decode).__call__ = spy
    try:
        state = pipe(
            prompt=request.prompt,
            width=sampling.width,
            height=sampling.height,
            num_frames=sampling.num_frames,
            num_inference_steps=sampling.num_inference_steps,
            generator=torch.Generator("cpu").manual_seed(sampling.seed),
            output_type="np",
            **media,
        )
    finally:
        type(decode).__call__ = original
    frames = np.asarray(state.get("videos"))
    return {**kept, "frames": frames.reshape(-1, *frames.shape[-3:]), "audio": state.get("audio")[0]}


@dataclass
class Recorder:
    """A monitor and a sink that keep everything."""

    stop_after: Any = None  # called with the recorder; true stops
    stages: list[Stage] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    done: list[tuple[int, int]] = field(default_factory=list)
    chunks: list[np.ndarray] = field(default_factory=list)
    sound: list[np.ndarray] = field(default_factory=list)

    def stage(self, stage: Stage, detail: str = "") -> None:
        self.stages.append(stage)

    def step(self, step: int, steps: int, seconds: float) -> None:
        assert seconds > 0
        self.steps.append((step, steps))

    def frames(self, done: int, total: int) -> None:
        self.done.append((done, total))

    def should_stop(self) -> bool:
        return bool(self.stop_after and self.stop_after(self))

    def notice(self, message: str) -> None:
        raise AssertionError(message)

    def video(self, frames: np.ndarray) -> None:
        assert frames.dtype == np.uint8
        self.chunks.append(frames)
        # The last clip's 5 frames of overlap may come before the very last sound.
        shown, heard = sum(map(len, self.chunks)), sum(samples.shape[-1] for samples in self.sound)
        assert heard / 32000 >= (shown - 5) / 24, "the sound of a picture must come before it"

    def audio(self, samples: np.ndarray) -> None:
        assert samples.dtype == np.float32
        self.sound.append(samples)

    @property
    def video_frames(self) -> np.ndarray:
        return np.concatenate(self.chunks)


def render(pipeline: Any, request: GenerationRequest, media: PreparedMedia | None = None) -> tuple[Any, Recorder]:
    recorder = Recorder()
    return pipeline.generate(request, media or PreparedMedia(), recorder, recorder), recorder
