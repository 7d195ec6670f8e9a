"""A checkpoint folder without weights (configs, tokenizer, shard headers), and a runtime that draws them at random.

Everything but the reading of weights then goes through the program's own loader, plan and pipeline.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from backend.checkpoints import nano
from backend.checkpoints.tokenizer import SPECIAL_TOKENS, write_tokenizer
from backend.h3.seams import OnLoad
from backend.process.messages import Setup
from backend.runtime import adaln_tables
from backend.runtime.setup import TRANSFORMERS, Runtime
from backend.types import Geometry
from bench import models

GEOMETRY = {False: Geometry(), True: nano.TINY_GEOMETRY}  # by whether the checkpoint is tiny
PICTURE_PX = {"shortest_edge": 65536, "longest_edge": 16777216}  # processor/preprocessor_config.json of the release
CLIP_PX = {"shortest_edge": 4096, "longest_edge": 25165824}  # processor/video_preprocessor_config.json
_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def write(folder: Path, tiny: bool) -> Path:
    """Make the folder, in the released layout and at its sizes, or at the tiny model's. A few MB on the disk."""
    write_tokenizer(folder / "tokenizer")
    write_tokenizer(folder / "processor")
    nano.write_processor(folder / "processor", 128)
    nano._write_schedulers(folder)
    index = nano._index()
    if not tiny:
        geometry = GEOMETRY[False]
        index |= {name: getattr(geometry, name) for name in index.keys() & set(Geometry.__slots__)}
        for name, size in (("preprocessor_config", PICTURE_PX), ("video_preprocessor_config", CLIP_PX)):
            path = folder / "processor" / f"{name}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"size": size}))
    for name, model in _models(tiny):
        if name == "text_encoder":
            model.config.save_pretrained(folder / name)
        else:
            model.save_config(folder / name)
        _header(folder / name, model, torch.float32 if "vae" in name else torch.bfloat16)
    (folder / "modular_model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def _models(tiny: bool) -> Iterator[tuple[str, Any]]:
    """Every component on the meta device, as the checkpoint holds it."""
    if tiny:
        text = nano._text_encoder().config
    else:
        named = {
            "image_token_id": "<|image_pad|>",
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        }
        text = Qwen3VLConfig(
            text_config=dict(models.FULL_TEXT),
            vision_config=dict(models.FULL_VISION),
            tie_word_embeddings=False,
            **{name: SPECIAL_TOKENS[token] for name, token in named.items()},
        )
    yield "text_encoder", models.on_meta(Qwen3VLForConditionalGeneration, config=text)
    pictures, sound = nano._latent_statistics(24), nano._latent_statistics(32)
    yield "vae", models.on_meta(AutoencoderKLMiniMaxH3, **(nano.VAE if tiny else {}), **pictures)
    yield "audio_vae", models.on_meta(AutoencoderKLMiniMaxH3Audio, **(nano.AUDIO_VAE if tiny else {}), **sound)
    for name in TRANSFORMERS:
        yield name, models.on_meta(MiniMaxH3Transformer3DModel, **(nano.TRANSFORMER if tiny else {}))


def _header(folder: Path, model: nn.Module, stored: torch.dtype) -> None:
    """One shard whose tensors all begin at its first byte: true shapes and types in a sparse file of the largest."""
    pinned = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    header, largest = {}, 0
    for name, parameter in model.named_parameters():
        kind = torch.float32 if pinned & set(name.split(".")) else stored
        size = parameter.numel() * kind.itemsize
        header[name] = {"dtype": _NAMES[kind], "shape": list(parameter.shape), "data_offsets": [0, size]}
        largest = max(largest, size)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + largest)


class BlankRuntime(Runtime):
    """One rank's runtime over such a folder: weights are drawn on the device where others read them."""

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self.said: list[str] = []
        super().__init__(setup, device, self.said.append)

    def load_component(self, name: str, kind: type, folder: Path, on_load: OnLoad) -> nn.Module | None:
        """The outline that the loader would fill, filled with random numbers; what it leaves unread stays unread."""
        model, wanted = self._outline(name, kind, folder)
        home = torch.device("cpu") if name in self.plan.parked else self._device
        models.random_weights(model, self._device, self._dtype, only=set(wanted), home=home)
        if name == "vae":
            nano._smooth_pictures(model, torch.Generator().manual_seed(0))
        return model

    def _build(self, folder: Path, model: Any, timesteps: Any, key: adaln_tables.TableKey) -> adaln_tables.AdaLNTables:
        self.table_source = "random"
        return adaln_tables.build(_Drawn(model, self._dtype), [each.to(self._device) for each in timesteps], key)


class _Drawn:
    """Projections of which each has the same random weight: see `adaln_tables.Projections`."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.num_layers = len(model.transformer_blocks)
        self._model, self._dtype = model, dtype

    def temb(self, timesteps: Tensor) -> Tensor:
        """See `Projections`."""
        return adaln_tables.ModelProjections(self._model).temb(timesteps)

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """See `Projections`."""
        config = self._model.config
        device = next(self._model.time_embedder.parameters()).device
        drawn: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in range(self.num_layers + 1):
            outputs = config.hidden_size * (2 if layer == self.num_layers else 6 * adaln_tables.MODALITIES)
            if outputs not in drawn:
                size = (outputs, config.time_embed_dim)
                weight = torch.empty(size, device=device, dtype=self._dtype).normal_(0, config.time_embed_dim**-0.5)
                drawn[outputs] = weight, torch.zeros(outputs, device=device, dtype=self._dtype)
            yield layer, *drawn[outputs]
