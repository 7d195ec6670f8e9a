"""What a caller hands to the pipeline and gets back: monitor, sink, hooks, result.

Only types; nothing here computes, and nothing knows who the caller is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from backend.types import Adapter, Stage

OnLoad = Callable[[str, int, int], None]  # component, bytes read so far, bytes in all
LoadModel = Callable[[str, type, Path, OnLoad], nn.Module | None]  # component, its class, its folder
Forward = Callable[..., tuple[Tensor, Tensor]]  # the signature of MiniMaxH3Transformer3DModel.forward


class Monitor(Protocol):
    """Who watches a generation."""

    def stage(self, stage: Stage, detail: str = "") -> None:
        """A stage begins; the previous one has ended."""

    def step(self, step: int, steps: int, seconds: float) -> None:
        """Forward `step` of `steps` (1-based) took `seconds`."""

    def frames(self, done: int, total: int) -> None:
        """`done` of `total` frames were decoded and handed to the sink."""

    def should_stop(self) -> bool:
        """Whether to stop here; all ranks must answer alike. Asked before every forward, chunk and stage."""

    def notice(self, message: str) -> None:
        """Something a person should know that is no failure."""


class Sink(Protocol):
    """Where decoded media go, both in order; the sound of a picture comes before it."""

    def audio(self, samples: np.ndarray) -> None:
        """float32 (2, samples) in -1..1 at 32 kHz, what follows the samples before."""

    def video(self, frames: np.ndarray) -> None:
        """uint8 (n, height, width, 3), the next n frames at 24 fps."""


class Stopped(Exception):
    """The monitor asked to stop; `step` forwards of `steps` were finished."""

    def __init__(self, stage: Stage, step: int, steps: int) -> None:
        self.stage = stage
        self.step = step
        self.steps = steps
        super().__init__(f"stopped in {stage} after step {step} of {steps}")


def stock_decode_clip(vae: Any, latents: Tensor) -> Tensor:
    """One temporal clip through diffusers' tiled decoder: (1, 24, 7, h, w) -> (1, 3, 28, 16 h, 16 w)."""
    return vae._decode_clip(latents)


def stock_to_host(chunks: Iterable[Tensor]) -> Iterator[Tensor]:
    """Each chunk copied to the CPU when it is asked for."""
    for chunk in chunks:
        yield chunk.cpu()


def _unchanged(transformer: nn.Module) -> Forward:
    return transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Parts handed in from outside, so that `h3` need not know how a machine runs them.

    load: gives a model with the weights of a component's folder, given name, class and folder; None (the hook, or
        what it returns) leaves it to the libraries' own loaders.
    loaded: told of every model right after it was loaded, by either way.
    prepare_transformer: wraps a freshly loaded transformer; what it returns is called in its place.
    adapt: has exactly these adapters applied to the transformer; called for every request, before anything is computed.
        Without it, a request with adapters is refused.
    begin_denoise: told the distinct timesteps of every forward, in order, before the first one.
    decode_clip: decodes one clip of latents (see `stock_decode_clip`), on the rank that has a sink.
    help_decode: does a rank's share of a clip that the rank with the sink decodes; None: that one decodes alone.
    to_host: brings decoded uint8 chunks to the CPU, in order; may start a chunk before it hands out the one before.
    place: the named modules are needed now, together; others may leave the device. Without it, everything is loaded
        onto the device and stays; with it, everything is loaded into host memory.
    preview: called after a forward with its number and a function that gives the predicted clean video latents,
        (1, 24, T, H/16, W/16) float32, normalized.
    validate_finite: check the outputs of every forward (a device sync each); an error names the tensor.
    """

    load: LoadModel | None = None
    loaded: Callable[[str, nn.Module], None] | None = None
    prepare_transformer: Callable[[nn.Module], Forward] = _unchanged
    adapt: Callable[[tuple[Adapter, ...]], None] | None = None
    begin_denoise: Callable[[tuple[Tensor, ...]], None] | None = None
    decode_clip: Callable[[Any, Tensor], Tensor] = stock_decode_clip
    help_decode: Callable[[Any, Tensor], None] | None = None
    to_host: Callable[[Iterable[Tensor]], Iterator[Tensor]] = stock_to_host
    place: Callable[[Mapping[str, nn.Module]], None] | None = None
    preview: Callable[[int, Callable[[], Tensor]], None] | None = None
    validate_finite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What is small enough to keep of a generation, float32 on the CPU.

    latents: (1, 24, T, H/16, W/16) and audio_latents: (2, 32, A), both as denoised (normalized). audio: (2, samples).
    """

    latents: Tensor
    audio_latents: Tensor
    audio: Tensor = field(repr=False)
