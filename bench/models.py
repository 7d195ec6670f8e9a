"""Models and inputs to measure with: the released sizes with random weights, or tiny ones that a laptop runs.

Weights are drawn on the device, never read; what is measured is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from backend.checkpoints.nano import AUDIO_VAE
from backend.runtime.conditioner import cut

TINY_TRANSFORMER = {
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "hidden_size": 96,
    "num_layers": 3,
    "num_refiner_layers": 1,
    "ffn_dim": 160,
    "text_dim": 48,
    "freq_dim": 16,
    "time_embed_hidden_dim": 64,
    "time_embed_dim": 40,
    "rope_freq_dim": 4,
}
TINY_VAE = {
    "block_out_channels": (32, 32, 32, 32, 32, 32),
    "layers_per_block": 1,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 32,
}
# text_encoder/config.json of the release
FULL_TEXT = {
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 64,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
}
FULL_VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 5120,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
TINY_TEXT = FULL_TEXT | {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 4,
    "head_dim": 24,
    "vocab_size": 512,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 4, 4], "rope_type": "default"},
}
TINY_VISION = FULL_VISION | {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0],
}
TEXT_ROWS = 300  # of a detailed prompt


@dataclass(frozen=True, slots=True)
class Shape:
    """A clip to render: canvas in px, frames as 17 n + 5."""

    width: int
    height: int
    num_frames: int

    @property
    def name(self) -> str:
        """`1344x768x209`."""
        return f"{self.width}x{self.height}x{self.num_frames}"

    @property
    def latent_frames(self) -> int:
        """5 n + 2."""
        return (self.num_frames - 5) // 17 * 5 + 2

    @property
    def video_rows(self) -> int:
        """Rows of the packed sequence that are target video."""
        return self.latent_frames * (self.height // 32) * (self.width // 32)

    @property
    def audio_rows(self) -> int:
        """Rows that are target audio, both channels."""
        return 2 * round(self.num_frames / 24 * 40)


FULL_SHAPES = (Shape(1344, 768, 209), Shape(1344, 768, 124), Shape(960, 544, 124))
TINY_SHAPES = (Shape(160, 96, 22), Shape(96, 96, 22))


def random_weights(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    only: Container[str] | None = None,
    home: torch.device | None = None,
) -> nn.Module:
    """Give a model made on the meta device weights on `device`; modules that its class pins stay float32.

    Matrices are drawn with the variance that keeps activations at one, vectors as ones or zeros with 10 % of noise.
    only: names of the parameters that get any; the others stay as they are. home: where they are put once drawn.
    """
    generator = torch.Generator(device).manual_seed(seed)
    pinned = tuple(model._keep_in_fp32_modules or ())
    for name, parameter in list(model.named_parameters()):
        if only is not None and name not in only:
            continue
        kind = torch.float32 if any(part in name.split(".") for part in pinned) else dtype
        values = torch.empty(parameter.shape, device=device, dtype=kind)
        if parameter.ndim > 1:
            values.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
        else:
            values.normal_(0, 0.1, generator=generator)
            if "norm" in name and name.endswith("weight"):
                values += 1
        _replace(model, name, nn.Parameter(values if home is None else values.to(home), requires_grad=False))
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta:
            raise ValueError(f"buffer {name} has no values: build the model with buffers on the CPU")
        _replace(model, name, buffer.to(device if home is None else home))
    return model.eval()


def _replace(model: nn.Module, name: str, value: Tensor | nn.Parameter) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if isinstance(value, nn.Parameter):
        owner._parameters[leaf] = value
    else:
        owner._buffers[leaf] = value


def on_meta(kind: type[nn.Module], **config: Any) -> nn.Module:
    """A model whose parameters have no storage, and whose (small, computed) buffers do."""
    with init_empty_weights(include_buffers=False):
        return kind(**config)


def transformer(device: torch.device, dtype: torch.dtype, tiny: bool = False, seed: int = 0) -> nn.Module:
    """A MiniMax-H3 transformer with random weights."""
    model = on_meta(MiniMaxH3Transformer3DModel, **(TINY_TRANSFORMER if tiny else {}))
    return random_weights(model, device, dtype, seed)


def vae(device: torch.device, dtype: torch.dtype, tiny: bool = False, seed: int = 0) -> nn.Module:
    """A MiniMax-H3 video VAE with random weights, in the released mixed precision."""
    return random_weights(on_meta(AutoencoderKLMiniMaxH3, **(TINY_VAE if tiny else {})), device, dtype, seed)


def latents(shape: Shape, device: torch.device, seed: int = 1) -> Tensor:
    """Random latents (1, 24, T, H/16, W/16) of a clip, float32."""
    generator = torch.Generator(device).manual_seed(seed)
    size = (1, 24, shape.latent_frames, shape.height // 16, shape.width // 16)
    return torch.randn(size, generator=generator, device=device)


def sequence(  # noqa: PLR0913
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    text_dim: int,
    condition_rows: int = 0,
    times: tuple[float, float] = (0.25, 0.5),
    seed: int = 1,
) -> dict[str, Tensor]:
    """Arguments of one forward over `[text | audio | video]`, as t2va packs them.

    `times` are those of video and audio; `condition_rows` of the video rows stand at t = 0.999.
    """
    generator = torch.Generator(device).manual_seed(seed)
    text, audio, video = min(TEXT_ROWS, shape.video_rows), shape.audio_rows, shape.video_rows
    rows = text + audio + video
    tags = torch.tensor([1] * text + [2] * audio + [0] * video)
    at = [times[0]] * text + [times[1]] * audio + [0.999] * condition_rows + [times[0]] * (video - condition_rows)
    timestep, indices = torch.unique(torch.tensor(at), sorted=True, return_inverse=True)
    grid = (shape.latent_frames, shape.height // 32, shape.width // 32)
    positions = torch.cartesian_prod(*(torch.arange(size) for size in grid)) + torch.tensor([text, 0, 0])
    words = torch.arange(text)[:, None].expand(-1, 3)
    sound = torch.arange(audio)[:, None].expand(-1, 3) + text

    def draw(count: int, channels: int, kind: torch.dtype) -> Tensor:
        return torch.randn((1, count, channels), generator=generator, device=device).to(kind)

    return {
        "hidden_states": draw(video, 96, torch.float32),
        "audio_hidden_states": draw(audio, 32, torch.float32),
        "encoder_hidden_states": draw(text, text_dim, dtype),
        "timestep": timestep.to(device),
        "timestep_indices": indices.to(device),
        "token_tags": tags.to(device),
        "position_ids": torch.cat([words, sound, positions]).to(device),
        "video_indices": torch.arange(text + audio, rows, device=device),
        "audio_indices": torch.arange(text, text + audio, device=device),
        "text_indices": torch.arange(text, device=device),
    }


def conditioner(device: torch.device, dtype: torch.dtype, tiny: bool = False) -> Any:
    """A Qwen3-VL conditioner with random weights, cut after the layer that is read."""
    text, vision = (TINY_TEXT, TINY_VISION) if tiny else (FULL_TEXT, FULL_VISION)
    config = Qwen3VLConfig(text_config=dict(text), vision_config=dict(vision))
    model = on_meta(Qwen3VLForConditionalGeneration, config=config)
    cut(model, conditioner_layer(tiny))
    return random_weights(model, device, dtype)


def conditioner_layer(tiny: bool) -> int:
    """The layer whose output conditions the transformer."""
    return 2 if tiny else 50


def audio_vae(device: torch.device, tiny: bool = False) -> nn.Module:
    """A MiniMax-H3 audio VAE with random weights, float32 as released."""
    statistics = {"latents_mean": (0.0,) * 32, "latents_std": (1.0,) * 32}
    model = on_meta(AutoencoderKLMiniMaxH3Audio, **(AUDIO_VAE if tiny else {}), **statistics)
    return random_weights(model, device, torch.float32)
