"""Build the tiny random checkpoint, in the released layout, so that the whole machine runs on any laptop.

A program of its own (`python -m backend.checkpoints.nano OUT`), because it needs torch; knows no job and no
settings.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.checkpoints.catalog import TINY_GEOMETRY
from backend.checkpoints.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, write_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import nn

SEED = 20260  # any fixed number: the same checkpoint everywhere
TEXT_LAYERS = 52  # more than 50, because conditioning is the hidden state after layer 50
TEXT_DIM = 32
PATCH, MERGE = 16, 2  # pixels a patch, and patches a token, each way: as released
REPOSITORY = "h3-studio/tiny"  # a name for the index; the files beside it are what is loaded

# Names of components, the library and class that load them: modular_model_index.json of the release.
COMPONENTS = {
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}

TRANSFORMER = {
    "num_attention_heads": 8,
    "attention_head_dim": 16,
    "hidden_size": 64,
    "num_layers": 4,
    "num_refiner_layers": 2,
    "ffn_dim": 128,
    "text_dim": TEXT_DIM,
    "freq_dim": 64,
    "time_embed_hidden_dim": 64,
    "time_embed_dim": 32,
    "rope_freq_dim": 2,  # 12 of 16 channels rotate, as 96 of 128 do in the release
}
VAE = {
    "block_out_channels": (4, 4, 8, 8, 16, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 4,
    "decoder_attention_head_dim": 16,
    # Spatial and temporal factors, clip_length and token_drop stay at the class's defaults, which are the release's.
}
AUDIO_VAE = {
    "encoder_dim": 4,
    "latent_dim": 64,
    "decoder_dim": 128,  # halved by each of the seven upsamplers, so it cannot be smaller
    "num_attention_heads": 4,
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),),
}
LOUDNESS = 0.1  # RMS of the sound, of full scale: -20 dBFS
PICTURE_GAIN = 1.5  # pictures then fill the range and hardly clip


def build(out: Path) -> Path:
    """Create the checkpoint at `out` in one atomic step and return it; an existing one is left as it is.

    Two processes may do this at once: each builds its own copy and the first rename wins.
    """
    if (out / "modular_model_index.json").is_file():
        return out
    if out.exists():
        raise FileExistsError(f"{out} is in the way and is no checkpoint; move it away")
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}-*"):  # of a build that was killed
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write(work)
        work.chmod(0o755)
        try:
            work.rename(out)
        except OSError:
            if not (out / "modular_model_index.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _write(folder: Path) -> None:
    import diffusers
    import torch

    library: Any = diffusers  # its lazy module shows type checkers placeholders
    generator = torch.Generator("cpu").manual_seed(SEED)
    write_tokenizer(folder / "tokenizer")
    write_tokenizer(folder / "processor")  # a processor carries one of its own
    write_processor(folder / "processor", 128)
    _write_schedulers(folder)

    text_encoder = _text_encoder()
    _randomize(text_encoder, generator)
    text_encoder.to(torch.bfloat16).save_pretrained(folder / "text_encoder", max_shard_size="8MB")

    vae = library.AutoencoderKLMiniMaxH3(**VAE, **_latent_statistics(24))
    _randomize(vae, generator)
    _smooth_pictures(vae, generator)
    vae.save_pretrained(folder / "vae", max_shard_size="600KB")  # float32, as released

    audio_vae = library.AutoencoderKLMiniMaxH3Audio(**AUDIO_VAE, **_latent_statistics(32))
    _randomize(audio_vae, generator)
    _set_loudness(audio_vae, generator)
    audio_vae.save_pretrained(folder / "audio_vae")  # float32, as released

    for name in ("transformer", "transformer_ref"):
        transformer = library.MiniMaxH3Transformer3DModel(**TRANSFORMER)
        _randomize(transformer, generator)
        _round_to_release_dtypes(transformer)
        transformer.save_pretrained(folder / name, max_shard_size="400KB")
    # Last: its presence says the folder is complete.
    (folder / "modular_model_index.json").write_text(json.dumps(_index(), indent=2), encoding="utf-8")


def _text_encoder() -> Any:
    text = {
        "hidden_size": TEXT_DIM,
        "intermediate_size": 64,
        "num_hidden_layers": TEXT_LAYERS,
        "vocab_size": VOCAB_SIZE,
    }
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_position_embeddings": 2304}
    return small_qwen3_vl(text, vision, SPECIAL_TOKENS)


def small_qwen3_vl(
    text: dict[str, Any], vision: dict[str, Any], special: Mapping[str, int], *, tied: bool = False
) -> Any:
    """A Qwen3-VL with the release's structure and two thin heads, of the sizes in `text` and `vision`, not yet filled.

    `special` gives the ids of Qwen's special tokens; `tied` shares the embedding with the last layer.
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {
        **text,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "bos_token_id": special["<|endoftext|>"],
        "eos_token_id": special["<|im_end|>"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000000,
            "mrope_interleaved": True,
            "mrope_section": [4, 2, 2],
        },
    }
    vision = {
        **vision,
        "depth": 3,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": [0, 1, 2],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=special["<|image_pad|>"],
        video_token_id=special["<|video_pad|>"],
        vision_start_token_id=special["<|vision_start|>"],
        vision_end_token_id=special["<|vision_end|>"],
        tie_word_embeddings=tied,
    )
    return Qwen3VLForConditionalGeneration(config)


def _randomize(model: nn.Module, generator: torch.Generator) -> None:
    """Fill `model` with weights that keep signals at unit size: matrices by fan-in, gains around neutral."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "weight_g":
                continue  # set from its weight_v below
            if parameter.ndim >= 2:
                fan_in = math.prod(parameter.shape[1:])
                embeds = leaf == "register_tokens" or name.endswith(("embed_tokens.weight", "pos_embed.weight"))
                parameter.normal_(0.0, 1.0 if embeds else fan_in**-0.5, generator=generator)
            elif leaf in ("scale1", "scale2"):
                parameter.normal_(0.5, 0.1, generator=generator)
            elif "norm" in name and leaf == "weight":
                parameter.normal_(1.0, 0.1, generator=generator)
            else:
                parameter.normal_(0.0, 0.05, generator=generator)
        named = dict(model.named_parameters())
        for name, parameter in named.items():
            if name.endswith("weight_g"):
                direction = named[name[:-1] + "v"]
                dims = [dim for dim in range(direction.ndim) if parameter.shape[dim] == 1]
                parameter.copy_(torch.linalg.vector_norm(direction, dim=dims, keepdim=True))


def _set_loudness(audio_vae: Any, generator: torch.Generator) -> None:
    """Scale the last convolution until noise latents decode to sound of `LOUDNESS`."""
    import torch

    latents = torch.empty(1, 32, 80).normal_(0.0, 1.4, generator=generator)
    with torch.no_grad():
        gain = audio_vae.decoder.conv_post.weight_g
        gain.mul_(1e-4)  # far from the clamp at full scale while measuring
        rms = audio_vae.decode(latents).sample.square().mean().sqrt().item()
        gain.mul_(float(f"{LOUDNESS / rms:.2g}"))  # rounded: the same on every machine


def _smooth_pictures(vae: Any, generator: torch.Generator) -> None:
    """Make every decoded 4x16x16 block a gradient between eight corner colours: soft moving patches, not white noise.

    White noise looks like a fault and makes the largest files an encoder can write.
    """
    import torch

    weight = vae.decoder.proj_out.weight  # (3 * 4 * 16 * 16, dim), channel-major, then time, rows, columns
    corners = torch.empty(3, weight.shape[1], 2, 2, 2).normal_(0.0, weight.shape[1] ** -0.5, generator=generator)
    block = torch.nn.functional.interpolate(corners, size=(4, 16, 16), mode="trilinear", align_corners=True)
    with torch.no_grad():
        weight.copy_(PICTURE_GAIN * block.permute(0, 2, 3, 4, 1).reshape(weight.shape))
        vae.decoder.proj_out.bias.zero_()


def _round_to_release_dtypes(transformer: nn.Module) -> None:
    """float32 for what diffusers pins (patch projections, time embedder, heads), bfloat16 for the rest, as released."""
    import torch

    pinned: tuple[str, ...] = tuple(transformer._keep_in_fp32_modules)  # type: ignore[arg-type]
    for name, parameter in transformer.named_parameters():
        if not any(part in name.split(".") for part in pinned):
            parameter.data = parameter.data.to(torch.bfloat16)


def _latent_statistics(channels: int) -> dict[str, list[float]]:
    """Means and deviations that are neither 0 nor 1, so that a forgotten normalization shows."""
    return {
        "latents_mean": [0.3 * math.sin(channel) for channel in range(channels)],
        "latents_std": [1.0 + 0.25 * math.cos(channel) for channel in range(channels)],
    }


def write_processor(folder: Path, least_image_side: int) -> None:
    """Image and video processor settings; sizes are areas in pixels, an image's at least `least_image_side` squared."""
    vision = {
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    image = {
        **vision,
        "size": {"shortest_edge": least_image_side**2, "longest_edge": 512 * 512},
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    video = {
        **vision,
        "size": {"shortest_edge": 64 * 64, "longest_edge": 4096 * 4096},
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2), encoding="utf-8")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2), encoding="utf-8")


def _write_schedulers(folder: Path) -> None:
    for name, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):  # the release's scheduler configs
        (folder / name).mkdir()
        config = {"_class_name": "MiniMaxH3Scheduler", "shift": shift}
        (folder / name / "scheduler_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _index() -> dict[str, object]:
    index: dict[str, object] = {
        "_class_name": "MiniMaxH3ModularPipeline",
        "_blocks_class_name": "MiniMaxH3Blocks",
        "canvas_short_edge": TINY_GEOMETRY.canvas_short_edge,
        "canvas_max_pixels": TINY_GEOMETRY.canvas_max_pixels,
        "reference_image_short_edge": TINY_GEOMETRY.reference_image_short_edge,
    }
    for name, (library, class_name) in COMPONENTS.items():
        spec = {
            "type_hint": [library, class_name],
            "pretrained_model_name_or_path": REPOSITORY,
            "subfolder": name,
            "variant": None,
            "revision": None,
        }
        index[name] = [library, class_name, spec]
    return index


def main(arguments: list[str]) -> int:
    """Build at the path in `arguments`; 0 when it is there afterwards, 2 for a wrong call."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m backend.checkpoints.nano OUT\n")
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here comes from a network
    build(Path(arguments[0]).resolve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
