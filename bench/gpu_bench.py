"""What a GPU check works with: a device, a checkpoint of the released widths that few layers make small, and a render.

Knows no check.
"""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Transformer3DModel
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from bench import models

GIB = 2**30
STEPS = 5  # sigma points of the renders here; their number changes nothing that is checked
# Parts of a checkpoint with the released widths that is quickly written and loaded: 5 to 7 GB.
SHALLOW_TRANSFORMER = {"num_layers": 3, "num_refiner_layers": 1}
SHALLOW_VAE = {"decoder_num_layers": 4}
SHALLOW_TEXT = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 8, "head_dim": 128}
Figures = dict[str, Any]


class Failed(Exception):
    """A check's condition does not hold; says which."""


class Bench:
    """What a check works with: a device, a folder that all checks share, and whether it is a dry run."""

    def __init__(self, work: Path, tiny: bool) -> None:
        self.work, self.tiny = work, tiny
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.checkpoint = work / "checkpoint"

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def shape(self) -> models.Shape:
        """The clip that renders make."""
        return models.Shape(64, 64, 107) if self.tiny else models.Shape(960, 544, 107)

    def setup(self, **options: Any) -> Any:
        """A rank's order to run the shared checkpoint."""
        from backend.presets import Device, Dtype, RuntimeOptions
        from backend.process.messages import Setup

        return Setup(
            run="check",
            rank=0,
            world_size=1,
            model="native",
            checkpoint=str(self.checkpoint),
            device=Device.CUDA if self.cuda else Device.CPU,
            dtype=Dtype.BFLOAT16 if self.cuda else Dtype.FLOAT32,
            rendezvous=self.work / "unused",
            cache_dir=self.work / "cache",
            runtime=RuntimeOptions(**options),
        )

    def peak_gib(self) -> float:
        return round(torch.cuda.max_memory_allocated() / GIB, 2) if self.cuda else 0.0

    def limit(self, cap_bytes: int) -> None:
        """Let this process have so much of the GPU; nothing on a CPU."""
        if self.cuda:
            torch.cuda.set_per_process_memory_fraction(cap_bytes / torch.cuda.get_device_properties(0).total_memory)

    def allocated(self) -> int:
        """Bytes of the GPU in use by tensors."""
        return torch.cuda.memory_allocated() if self.cuda else 0

    def empty(self) -> None:
        """Give back what no tensor uses, and start counting the peak anew."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


class Watcher:
    """Sink and monitor of a render: keeps frames, notices and the seconds of each step."""

    def __init__(self) -> None:
        self.stage_now: Any = None
        self.frames_made: list[Any] = []
        self.step_s: list[float] = []
        self.notices: list[str] = []

    def audio(self, samples: Any) -> None:
        pass

    def video(self, frames: Any) -> None:
        self.frames_made.append(torch.from_numpy(frames.copy()))

    def stage(self, stage: Any, detail: str = "") -> None:
        self.stage_now = stage

    def step(self, step: int, steps: int, seconds: float) -> None:
        self.step_s.append(seconds)

    def frames(self, done: int, total: int) -> None:
        pass

    def should_stop(self) -> bool:
        return False

    def notice(self, message: str) -> None:
        self.notices.append(message)


def require(condition: bool, words: str) -> None:
    """Raises Failed with these words unless the condition holds."""
    if not condition:
        raise Failed(words)


def request_of(shape: models.Shape, seed: int = 3, adapters: tuple[Any, ...] = ()) -> Any:
    """A t2va request of that shape."""
    from backend.types import GenerationRequest, Sampling

    sampling = Sampling(
        num_frames=shape.num_frames,
        width=shape.width,
        height=shape.height,
        num_inference_steps=STEPS,
        seed=seed,
        adapters=adapters,
    )
    return GenerationRequest(prompt="a red ball", sampling=sampling)


def render(pipeline: Any, shape: models.Shape, seed: int = 3, adapters: tuple[Any, ...] = ()) -> tuple[Any, Watcher]:
    """One t2va clip; what was generated, and what was seen of it."""
    from backend.types import PreparedMedia

    seen = Watcher()
    return pipeline.generate(request_of(shape, seed, adapters), PreparedMedia(), seen, seen), seen


def open_pipeline(bench: Bench, notices: list[str], **options: Any) -> tuple[Any, Any]:
    """(runtime, pipeline) on the shared checkpoint."""
    from backend.h3.pipeline import Pipeline
    from backend.runtime.setup import Runtime

    runtime = Runtime.for_setup(bench.setup(**options), bench.device, notices.append)
    return runtime, Pipeline(bench.checkpoint, bench.device, bench.dtype, lambda *_: None, runtime.hooks())


def shallow_checkpoint(tiny_folder: Path, folder: Path, device: torch.device, tiny: bool = False) -> Path:
    """A t2va and fl2va checkpoint in `folder`: the tiny one's files, with random models of the released widths.

    Tokenizer, schedulers and audio VAE are those of `tiny_folder`. tiny: tiny widths too, for a dry run.
    """
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("transformer_ref"))
    if tiny:
        return folder
    config = Qwen3VLConfig.from_pretrained(tiny_folder / "text_encoder")
    for name, value in SHALLOW_TEXT.items():
        setattr(config.text_config, name, value)
    config.text_config.rope_parameters = config.text_config.rope_parameters | {"mrope_section": [24, 20, 20]}
    config.vision_config.out_hidden_size = config.text_config.hidden_size
    statistics = json.loads((tiny_folder / "vae" / "config.json").read_text(encoding="utf-8"))
    statistics = {name: statistics[name] for name in ("latents_mean", "latents_std")}
    text_dim = {"text_dim": config.text_config.hidden_size}
    parts = {
        "text_encoder": models.on_meta(Qwen3VLForConditionalGeneration, config=config),
        "vae": models.on_meta(AutoencoderKLMiniMaxH3, **SHALLOW_VAE, **statistics),
        "transformer": models.on_meta(MiniMaxH3Transformer3DModel, **SHALLOW_TRANSFORMER, **text_dim),
    }
    for name, model in parts.items():
        shutil.rmtree(folder / name)
        models.random_weights(model, device, torch.bfloat16).save_pretrained(folder / name, max_shard_size="1GB")
    return folder
