"""The denoise loop: one forward a step over the packed sequence, two Euler steps, conditions untouched.

Replaces diffusers' loop block, with the same arithmetic, to report progress and to stop between steps.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState
from torch import Tensor

from backend.h3 import layout
from backend.h3.components import H3Components
from backend.h3.seams import Forward, Hooks, Monitor, Stopped
from backend.types import Stage


class NotFinite(RuntimeError):
    """A tensor holds NaN or infinity; names the tensor and the step."""


@torch.no_grad()
def denoise(
    components: H3Components, state: PipelineState, forward: Forward, hooks: Hooks, monitor: Monitor
) -> tuple[Tensor, Tensor]:
    """Denoise the prepared state; returns latents (1, 24, T, h, w) and audio latents (2, 32, A), float32, normalized.

    Raises Stopped before a forward when the monitor asks for it, NotFinite where that check is on.
    """
    rows: Tensor = state.values["latents"]  # (condition rows + video rows, 96)
    audio_rows: Tensor = state.values["audio_latents"]  # (reference rows + audio rows, 32), channel-major
    first = state.values["num_condition_video_rows"]
    first_audio = state.values["num_condition_audio_rows"]
    plan: list[tuple[Tensor, Tensor]] = state.values["row_timestep_plan"]
    names = ("token_tags", "position_ids", "video_indices", "audio_indices", "text_indices")
    sequence = {name: state.values[name] for name in names}

    if hooks.begin_denoise is not None:
        hooks.begin_denoise(tuple(timesteps for timesteps, _ in plan))
    moments = zip(state.values["timesteps"], state.values["audio_timesteps"], plan, strict=True)
    for step, (t, audio_t, (timesteps, timestep_indices)) in enumerate(moments, start=1):
        if monitor.should_stop():
            raise Stopped(Stage.DENOISE, step - 1, len(plan))
        started = time.perf_counter()
        velocity, audio_velocity = forward(
            hidden_states=rows[None],
            audio_hidden_states=audio_rows[None],
            encoder_hidden_states=state.values["prompt_embeds"],
            timestep=timesteps,
            timestep_indices=timestep_indices,
            attention_kwargs=None,
            return_dict=False,
            **sequence,
        )
        if hooks.validate_finite:
            _check_finite({"video velocity": velocity, "audio velocity": audio_velocity}, step, len(plan))
        velocity = velocity[0, first:].float()
        audio_velocity = audio_velocity[0, first_audio:].float()
        predicted = rows[first:] + (1 - t) * velocity if hooks.preview is not None else None
        rows[first:] = components.scheduler.step(velocity, t, rows[first:], return_dict=False)[0]
        audio_rows[first_audio:] = components.audio_scheduler.step(
            audio_velocity, audio_t, audio_rows[first_audio:], return_dict=False
        )[0]
        if rows.is_cuda:
            torch.cuda.synchronize(rows.device)  # so that `seconds` and the next question about stopping are true
        monitor.step(step, len(plan), time.perf_counter() - started)
        if hooks.preview is not None and predicted is not None:
            hooks.preview(step, partial(_predicted_latents, components, state, predicted, audio_rows))
    return layout.unpack(components, state, rows, audio_rows)


def _predicted_latents(components: H3Components, state: PipelineState, predicted: Tensor, audio_rows: Tensor) -> Tensor:
    conditions = state.values["latents"][: state.values["num_condition_video_rows"]]
    return layout.unpack(components, state, torch.cat([conditions, predicted]), audio_rows)[0]


def _check_finite(tensors: dict[str, Tensor], step: int, steps: int) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NotFinite(
                f"{name} is not finite at step {step} of {steps}; lower the precision of less, or report it"
            )
