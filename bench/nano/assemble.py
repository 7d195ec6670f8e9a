"""Put what the stages trained into one checkpoint folder of the released layout, in the released types.

`python -m bench.nano.assemble STAGES OUT`; a part that is not trained yet gets fresh weights only on demand. `--unpack`
goes the other way, so that a later stage resumes from the checkpoint alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from backend.checkpoints.catalog import TINY_GEOMETRY
from backend.checkpoints.nano import COMPONENTS
from bench.nano import architecture, conditioner, stage, train_audio_vae, train_transformer, train_video_vae, vocabulary

REPOSITORY = "h3-studio/nano"  # a name for the index; the files beside it are what is loaded
SHARD = "9MB"  # a file of at most 10 MB
LIMIT_BYTES = 40_000_000
HISTORY = "training.json"  # what the stages noted: steps and quality
FOLDERS = {
    train_video_vae.NAME: "vae",
    train_audio_vae.NAME: "audio_vae",
    **{name: name for name in train_transformer.NAMES.values()},
}
DEFAULT_STEPS = 12  # sigma points: 11 forwards, as many as `evaluate` measures with
SHIFTS = {"scheduler": 12.0, "audio_scheduler": 3.0}  # the release's scheduler configs


def assemble(stages: Path, out: Path, fresh: bool = False) -> dict[str, int]:
    """Write the checkpoint and return bytes by component; `fresh` allows parts that no stage has trained.

    Raises FileNotFoundError for a missing part and ValueError where the whole is over its limit.
    """
    torch.manual_seed(0)
    vocabulary.write(out / "tokenizer")
    conditioner.write_processor(out / "processor")
    for name, shift in SHIFTS.items():
        _write(out / name / "scheduler_config.json", {"_class_name": "MiniMaxH3Scheduler", "shift": shift})
    _save(conditioner.build().to(torch.bfloat16), out / "text_encoder")
    _save(architecture.released_dtypes(_vae(stages, train_video_vae.NAME, architecture.video_vae, fresh)), out / "vae")
    _save(
        architecture.released_dtypes(_vae(stages, train_audio_vae.NAME, architecture.audio_vae, fresh)),
        out / "audio_vae",
    )
    for name in train_transformer.NAMES.values():
        model = architecture.transformer()
        if not stage.resume(stages, name, model) and not fresh:
            raise FileNotFoundError(f"{stages}: has no {name}.safetensors; train it first")
        _save(architecture.released_dtypes(model), out / name)
    _write(out / HISTORY, {name: _notes(stages, name) for name in FOLDERS})
    # Last: its presence says the folder is complete.
    _write(out / "modular_model_index.json", _index())
    sizes = {
        folder.name: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for folder in out.iterdir()
        if folder.is_dir()
    }
    if sum(sizes.values()) > LIMIT_BYTES:
        raise ValueError(f"{out}: {sum(sizes.values())} bytes, at most {LIMIT_BYTES}: {sizes}")
    return sizes


def unpack(checkpoint: Path, stages: Path) -> None:
    """Write `stages` from an assembled `checkpoint`: what `assemble` makes that checkpoint of, in its types."""
    history = json.loads((checkpoint / HISTORY).read_text(encoding="utf-8"))
    for name, folder in FOLDERS.items():
        tensors: dict[str, torch.Tensor] = {}
        for shard in sorted((checkpoint / folder).glob("*.safetensors")):
            tensors |= load_file(shard)
        config = json.loads((checkpoint / folder / "config.json").read_text(encoding="utf-8"))
        statistics = {key: config[key] for key in ("latents_mean", "latents_std") if key in config}
        stage.save(stages, name, tensors, history[name] | statistics)


def _notes(stages: Path, name: str) -> dict[str, Any]:
    if not (stages / f"{name}.safetensors").is_file():
        return {}
    notes = stage.notes_of(stages, name)
    return {key: value for key, value in notes.items() if not key.startswith("latents_")}  # those are in the config


def _vae(stages: Path, name: str, build: Any, fresh: bool) -> Any:
    plain = build()
    notes = stage.resume(stages, name, plain)
    if not notes:
        if not fresh:
            raise FileNotFoundError(f"{stages}: has no {name}.safetensors; train it first")
        return plain if name == train_video_vae.NAME else build(latents_mean=[0.0] * 32, latents_std=[1.0] * 32)
    model = build(latents_mean=notes["latents_mean"], latents_std=notes["latents_std"])
    model.load_state_dict(plain.state_dict())
    return model


def _save(model: Any, folder: Path) -> None:
    # A former version may have had other shards.
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=SHARD)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _index() -> dict[str, Any]:
    index: dict[str, Any] = {
        "_class_name": "MiniMaxH3ModularPipeline",
        "_blocks_class_name": "MiniMaxH3Blocks",
        # What this model was trained at, in place of the release's 768, 768 * 1344 and 2048.
        "canvas_short_edge": TINY_GEOMETRY.canvas_short_edge,
        "canvas_max_pixels": TINY_GEOMETRY.canvas_max_pixels,
        "reference_image_short_edge": TINY_GEOMETRY.reference_image_short_edge,
        "default_steps": DEFAULT_STEPS,
    }
    for name, (library, class_name) in COMPONENTS.items():
        place = {"pretrained_model_name_or_path": REPOSITORY, "subfolder": name, "variant": None, "revision": None}
        index[name] = [library, class_name, {"type_hint": [library, class_name], **place}]
    return index


def main() -> int:
    """Read the command line, assemble and print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--fresh", action="store_true", help="allow untrained parts, to try the plumbing")
    parser.add_argument("--unpack", action="store_true", help="write STAGES from the checkpoint OUT instead")
    options = parser.parse_args()
    if options.unpack:
        unpack(options.out, options.stages)
        return 0
    sizes = assemble(options.stages, options.out, options.fresh)
    for name, size in sizes.items():
        print(f"{name:<20}{size / 1e6:8.2f} MB")
    print(f"{'all':<20}{sum(sizes.values()) / 1e6:8.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
