"""How large a checkpoint is once it is loaded: bytes of each component, and the widths that working memory follows.

Reads config files and safetensors headers, never weights; without a folder it knows the released model's figures.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import footprint
from backend.footprint import GIB as GIB

CONDITIONER_LAYERS = 50  # h3-facts 1: the hidden state after layer 50; later layers and the head are never loaded
_ITEMSIZE = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# Modules that the diffusers classes keep in float32 (`_keep_in_fp32_modules`, 0.42.1), whatever the compute type.
_PINNED = {
    "transformer": {"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"},
    "vae": {"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"},
    "audio_vae": {"encoder", "decoder", "pre_block", "dec_in_proj", "mean_proj", "logs_proj"},
    "text_encoder": set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """One checkpoint as `dtype_bytes` a number holds it. Defaults are the released model's (its config.json files).

    Sizes in bytes: `text_encoder` cut after layer 50, `trunk` the transformer without its AdaLN projections, which are
    `adaln`. `stored` is what lies on the disk for one task.
    """

    dtype_bytes: int = 2
    text_encoder: int = 51_505_000_000  # 66.71 GB stored, less 14 layers of 975 MB and a head of 1.56 GB
    text_layer: int = 975_196_672  # of `text_encoder`: one of its layers
    trunk: int = 40_200_700_000  # 33.123 B - 13.039 B parameters in bf16; 16.7 M of them stay float32
    outside_blocks: int = 1_664_000_000  # of `trunk`, what every rank holds whole: refiner, embedder, projections
    adaln: int = 26_078_739_456
    vae: int = (
        5_573_000_000  # 5.19 GiB on the GPU: decoder 2.42 B in bf16, encoder 180 M in float32 (bench decode.json)
    )
    audio_vae: int = 605_285_956  # 151.3 M parameters, float32
    stored: int = 144_000_000_000  # h3-facts 7: one partition is 134 GiB
    hidden: int = 5376
    inner: int = 7168
    ffn: int = 14336
    layers: int = 50
    text_hidden: int = 5120
    vae_width: int = 2048
    source: str = "the released model's configuration"

    @property
    def transformer(self) -> int:
        """Bytes of the whole transformer, projections included."""
        return self.trunk + self.adaln

    def tables(self, forwards: int, timesteps: int) -> int:
        """Bytes of exact AdaLN tables for a schedule of `forwards` steps with `timesteps` distinct timesteps each."""
        return footprint.tables(forwards, timesteps, self.widths)

    @property
    def widths(self) -> footprint.Widths:
        """What working memory follows."""
        return footprint.Widths(
            hidden=self.hidden,
            inner=self.inner,
            ffn=self.ffn,
            layers=self.layers,
            dtype_bytes=self.dtype_bytes,
        )

    @property
    def block(self) -> float:
        """Bytes of one trunk block without its projections."""
        return (self.trunk - self.outside_blocks) / max(1, self.layers)

    def alike(self, other: ModelSize) -> bool:
        """Whether a forward of both is the same work: the same widths and depth in the same compute type."""
        mine, theirs = ((each.dtype_bytes, each.hidden, each.inner, each.ffn, each.layers) for each in (self, other))
        return mine == theirs

    def linear_flops(self, rows: int) -> float:
        """Floating point operations of all products of one forward but attention's."""
        return 2.0 * rows * self.trunk / self.dtype_bytes

    def attention_flops(self, rows: int) -> float:
        """Floating point operations of attention in one forward, over `rows` keys and queries."""
        return 4.0 * rows * rows * self.inner * self.layers


def size_of(folder: Path | None, dtype_bytes: int, task_folder: str = "transformer") -> ModelSize:
    """Sizes of the checkpoint in `folder`; the released model's when it is not on this disk."""
    if folder is None or not (folder / task_folder / "config.json").is_file():
        return ModelSize() if dtype_bytes == 2 else _as_float32(ModelSize())
    changed = max(path.stat().st_mtime_ns for path in folder.glob("*/config.json"))
    return _read(folder, dtype_bytes, task_folder, changed)


def _as_float32(size: ModelSize) -> ModelSize:
    return ModelSize(
        dtype_bytes=4,
        text_encoder=2 * size.text_encoder,
        text_layer=2 * size.text_layer,
        trunk=2 * size.trunk,
        outside_blocks=2 * size.outside_blocks,
        adaln=2 * size.adaln,
        vae=4 * 2_603_868_984,
    )


@functools.lru_cache(maxsize=8)
def _read(folder: Path, dtype_bytes: int, task_folder: str, _changed: int) -> ModelSize:
    transformer, vae = _config(folder / task_folder), _config(folder / "vae")
    text = _config(folder / "text_encoder")
    weights: dict[str, int] = {"adaln": 0, "outside_blocks": 0, "text_layer": 0}
    stored = 0
    for name in ("text_encoder", task_folder, "vae", "audio_vae"):
        loaded = 0
        for key, elements, itemsize in _tensors(folder / name):
            stored += elements * itemsize
            size = elements * _loaded_bytes(name, key, dtype_bytes)
            if ".adaln_proj." in key or key.startswith("norm_out.linear."):
                weights["adaln"] += size
            elif not _cut(name, key):
                loaded += size
                if key.startswith("model.language_model.layers.0."):
                    weights["text_layer"] += size
                if name == task_folder and not key.startswith("transformer_blocks."):
                    weights["outside_blocks"] += size
        weights["trunk" if name == task_folder else name] = loaded
    return ModelSize(
        dtype_bytes=dtype_bytes,
        **weights,
        stored=stored,
        hidden=transformer["hidden_size"],
        inner=transformer["num_attention_heads"] * transformer["attention_head_dim"],
        ffn=transformer["ffn_dim"],
        layers=transformer["num_layers"],
        text_hidden=text.get("text_config", text)["hidden_size"],
        vae_width=vae["decoder_num_attention_heads"] * vae["decoder_attention_head_dim"],
        source=f"the files of {folder.name}",
    )


def _loaded_bytes(component: str, key: str, dtype_bytes: int) -> int:
    pinned = _PINNED["transformer" if component.startswith("transformer") else component]
    top = key.split(".")[0] if component == "vae" else None
    # Of the VAE, `encoder` names a component at the top; the same word deeper in is none of the pinned modules.
    inside = set(key.split(".")) - ({"encoder"} if top is not None and top != "encoder" else set())
    return 4 if pinned & inside else dtype_bytes


def _cut(component: str, key: str) -> bool:
    if component != "text_encoder":
        return False
    parts = key.split(".")
    if key.startswith(("lm_head.", "model.language_model.norm.")):
        return True
    return (
        "language_model" in parts and "layers" in parts and int(parts[parts.index("layers") + 1]) >= CONDITIONER_LAYERS
    )


def _tensors(component: Path) -> Iterator[tuple[str, int, int]]:
    """(name, elements, bytes of one as stored) of every tensor of a component, from the headers of its shards."""
    for shard in sorted(component.glob("*.safetensors")):
        with shard.open("rb") as stream:
            length = struct.unpack("<Q", stream.read(8))[0]
            header: Mapping[str, Any] = json.loads(stream.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                itemsize = _ITEMSIZE.get(entry["dtype"], 1)
                yield name, (end - begin) // itemsize, itemsize


def _config(component: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((component / "config.json").read_text(encoding="utf-8"))
    return data
