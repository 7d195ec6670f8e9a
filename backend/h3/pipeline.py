"""The whole model on one rank: components loaded once, one transformer at a time, a request to frames and sound.

Decides the order of stages; what a machine does differently is handed in as `Hooks`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from torch import Tensor

from backend.errors import H3Error
from backend.h3 import conditioning, decode, layout, schedule
from backend.h3.components import SHARED, TRANSFORMERS, H3Components, Loader
from backend.h3.denoise import denoise
from backend.h3.seams import Forward, Generated, Hooks, Monitor, OnLoad, Sink, Stopped
from backend.types import Adapter, GenerationRequest, PreparedMedia, Stage, Task

__all__ = ["Generated", "Hooks", "Monitor", "Pipeline", "Sink", "Stopped"]

# Which of the two transformers a task runs on: h3-facts 1, diffusers' workflows.
TRANSFORMER_OF = {Task.T2VA: "transformer", Task.FL2VA: "transformer", Task.REF2VA: "transformer_ref"}


class Pipeline:
    """One loaded model. Not thread-safe: one generation at a time."""

    def __init__(
        self,
        checkpoint: Path,
        device: str | torch.device,
        dtype: str | torch.dtype,
        on_load: OnLoad,
        hooks: Hooks | None = None,
    ) -> None:
        """Load what all tasks share; a transformer is loaded by `use`.

        `dtype` ("bfloat16" or a torch dtype) is the compute type; modules that diffusers pins stay float32.
        """
        self.hooks = hooks or Hooks()
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self._on_load = on_load
        home = torch.device("cpu") if self.hooks.place else self.device
        self._loader = Loader(checkpoint, self.dtype, home, self.hooks)
        self.components: H3Components = self._loader.open(self.device)
        self._forward: Forward | None = None
        for name in SHARED:
            self._loader.load(self.components, name, on_load)

    @property
    def transformer_name(self) -> str | None:
        """The component name of the loaded transformer, if any."""
        loaded = (name for name in TRANSFORMERS if getattr(self.components, name, None) is not None)
        return next(loaded, None)

    def use(self, task: Task, on_load: OnLoad | None = None) -> None:
        """Have the transformer of `task` loaded; the other one is freed before, so two are never held."""
        wanted = TRANSFORMER_OF[task]
        if self.transformer_name == wanted and self._forward is not None:
            return
        self._forward = None
        if self.transformer_name is not None:
            self.components.unload_components(self.transformer_name)  # collects garbage and empties the device's cache
        self._loader.load(self.components, wanted, on_load or self._on_load)
        self._forward = self.hooks.prepare_transformer(getattr(self.components, wanted))

    @torch.no_grad()
    def generate(
        self, request: GenerationRequest, media: PreparedMedia, sink: Sink | None, monitor: Monitor
    ) -> Generated | None:
        """Render a resolved request (canvas and seed concrete); sound, then frames go to `sink` as they are decoded.

        Without a sink this rank takes its part in what another one renders, asks its monitor as often, and returns
        None. Raises Stopped where the monitor asks for it.
        """
        steps = request.sampling.num_inference_steps - 1
        task = request.task
        if self.transformer_name != TRANSFORMER_OF[task] or self._forward is None:
            _enter(monitor, Stage.LOAD, f"loading {TRANSFORMER_OF[task]}", 0, steps)
            self.use(task)
        assert self._forward is not None
        if request.sampling.adapters:
            _enter(monitor, Stage.LOAD, "merging adapters", 0, steps)
        self._adapt(request.sampling.adapters)

        _enter(
            monitor, Stage.ENCODE, "reading the prompt" if task is Task.T2VA else "reading prompt and media", 0, steps
        )
        state = conditioning.initial_state(request, media)
        for names, block in conditioning.BLOCKS[task]:
            if monitor.should_stop():
                raise Stopped(Stage.ENCODE, 0, steps)
            self._place(names)
            block()(self.components, state)
        schedule.set_shifts(self.components, request.sampling)
        self._run((*layout.BLOCKS[task], *schedule.BLOCKS[task]), state)
        steps = len(state.values["timesteps"])

        _enter(monitor, Stage.DENOISE, f"{steps} steps", 0, steps)
        self._place((TRANSFORMER_OF[task],))
        latents, audio_latents = denoise(self.components, state, self._forward, self.hooks, monitor)
        del state

        _enter(monitor, Stage.DECODE, "", steps, steps)
        if sink is None:
            self._help_decode((latents, audio_latents), monitor, steps)
            return None
        audio = self._decode((latents, audio_latents), sink, monitor, steps)
        return Generated(latents=latents.float().cpu(), audio_latents=audio_latents.float().cpu(), audio=audio)

    def _adapt(self, adapters: tuple[Adapter, ...]) -> None:
        if self.hooks.adapt is not None:
            self.hooks.adapt(adapters)
        elif adapters:
            raise H3Error("adapters: are not applied here; remove them")

    def _decode(self, made: tuple[Tensor, Tensor], sink: Sink, monitor: Monitor, steps: int) -> Tensor:
        """Sound and pictures to `sink`, the sound of a clip before its pictures; returns all of the sound."""
        latents, audio_latents = made
        vae = self.components.vae
        sound, parts = decode.audio_chunks(self.components.audio_vae, audio_latents), list[Tensor]()
        ahead = self._sound_ahead(latents, audio_latents)
        self._place(("audio_vae",) if latents.is_cuda else ("audio_vae", "vae"))

        def hear(count: int) -> None:
            for samples in itertools.islice(sound, count):
                parts.append(samples)
                sink.audio(samples.numpy())
                _go_on(monitor, steps)

        hear(next(ahead))
        if latents.is_cuda:
            self._place(("vae",))

        def decode_clip(vae: Any, clip: Tensor) -> Tensor:
            # Asked before a clip and nowhere else: frames reach the host later than the next clip is started, and all
            # ranks must have started as many clips when they agree to stop.
            hear(next(ahead))
            _go_on(monitor, steps)
            return self.hooks.decode_clip(vae, clip)

        done, total = 0, decode.count_frames(vae, latents.shape[2])
        for frames in decode.video_chunks(vae, latents, decode_clip, self.hooks.to_host):
            sink.video(frames.numpy())
            done += frames.shape[0]
            monitor.frames(done, total)
        hear(sys.maxsize)
        return torch.cat(parts, dim=-1)

    def _help_decode(self, made: tuple[Tensor, Tensor], monitor: Monitor, steps: int) -> None:
        """What a rank without a sink does while another decodes: the same questions, and its share of each clip."""
        latents, audio_latents = made
        vae, total = self.components.vae, decode.count_frames(self.components.vae, latents.shape[2])
        ahead, left = self._sound_ahead(latents, audio_latents), len(decode.audio_chunk_starts(audio_latents.shape[-1]))

        def let_pass(count: int) -> int:
            for _ in range(count):
                _go_on(monitor, steps)
            return left - count

        left = let_pass(next(ahead))
        if self.hooks.help_decode is not None:
            self._place(("vae",))
        for number, clip in enumerate(decode.clips(vae, latents), start=1):
            left = let_pass(next(ahead))
            _go_on(monitor, steps)
            if self.hooks.help_decode is not None:
                self.hooks.help_decode(vae, clip)
            monitor.frames(min(number * decode.frames_of_a_clip(vae), total), total)
        let_pass(left)

    def _sound_ahead(self, latents: Tensor, audio_latents: Tensor) -> Iterator[int]:
        """Chunks of sound to decode at the start, and before each clip.

        On a GPU all of it at the start: 15 s take 0.1 s, and no clip then waits for a copy between. On a CPU, where it
        takes as long as the pictures, a clip at a time, so that the first second does not wait for the last.
        """
        count = audio_latents.shape[-1]
        if latents.is_cuda:
            return itertools.chain((len(decode.audio_chunk_starts(count)),), itertools.repeat(0))
        return itertools.chain((0,), decode.audio_ahead(self.components.vae, self.components.audio_vae, count))

    def _run(self, blocks: Iterable[Any], state: PipelineState) -> None:
        for block in blocks:
            block()(self.components, state)

    def _place(self, names: tuple[str, ...]) -> None:
        if self.hooks.place is not None and names:
            self.hooks.place({name: getattr(self.components, name) for name in names})


def _go_on(monitor: Monitor, steps: int) -> None:
    """Raises Stopped where the monitor asks to stop decoding."""
    if monitor.should_stop():
        raise Stopped(Stage.DECODE, steps, steps)


def _enter(monitor: Monitor, stage: Stage, detail: str, step: int, steps: int) -> None:
    if monitor.should_stop():
        raise Stopped(stage, step, steps)
    monitor.stage(stage, detail)
