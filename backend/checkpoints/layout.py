"""What a checkpoint folder must hold, and whether it does: JSON, file sizes and safetensors headers, no weights read.

Stdlib only; knows the released diffusers layout, not where folders come from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from backend.errors import CheckpointError
from backend.types import Geometry, Task

INDEX = "modular_model_index.json"
NAME = "diffusers"  # of the layout: one folder a component, beside the index

# For each component, files of which one must be there (config files of the release); models hold weights as well.
MODELS = ("text_encoder", "vae", "audio_vae")
CONFIGS = {
    "tokenizer": ("tokenizer.json", "vocab.json"),
    "processor": ("preprocessor_config.json", "processor_config.json"),
    "scheduler": ("scheduler_config.json",),
    "audio_scheduler": ("scheduler_config.json",),
}
TASKS_OF = {"transformer": (Task.T2VA, Task.FL2VA), "transformer_ref": (Task.REF2VA,)}
_WAY_OUT = "download it again, or copy it whole from where it is complete"
_MAX_NAMED = 12  # files in one message
_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A complete folder: what it can do, its canvas rules, its weights in bytes, sigma points where its index says."""

    tasks: tuple[Task, ...]
    geometry: Geometry
    bytes: int
    default_steps: int | None = None


def examine(folder: Path) -> Contents:
    """Check `folder` and say what it holds; raises CheckpointError naming all weights that are missing or damaged.

    One of the two transformers is enough; tasks follow from which are there.
    """
    index = _read_json(_index_of(folder))
    transformers = _transformers(folder)
    if not transformers:
        raise CheckpointError(
            f"checkpoint={folder}: has neither transformer/ (t2va, fl2va) nor transformer_ref/ (ref2va); {_WAY_OUT}"
        )
    for name, choices in CONFIGS.items():
        if not any((folder / name / choice).is_file() for choice in choices):
            raise CheckpointError(f"checkpoint={folder}: {name}/{choices[0]} is missing; {_WAY_OUT}")
    total = _sum_of(folder, [partial(_check_model, folder, name) for name in (*MODELS, *transformers)])
    tasks = tuple(task for name in transformers for task in TASKS_OF[name])
    steps = _positive(folder, index, ("default_steps",)).get("default_steps")
    return Contents(tasks=tasks, geometry=_geometry(folder, index), bytes=total, default_steps=steps)


def _transformers(folder: Path) -> list[str]:
    """The transformers that are there. A download puts the configuration last: one that is only begun does not count
    beside one that is whole."""
    there = [name for name in TASKS_OF if (folder / name).is_dir()]
    return [name for name in there if (folder / name / "config.json").is_file()] or there


def _index_of(folder: Path) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint={folder}: there is no such folder; check the path")
    if not (folder / INDEX).is_file():
        more = ""
        if (folder / "model_index.json").is_file():
            more = "; it has a model_index.json, so it may be another model or H3's original (FL2VA/Ref2VA) layout"
        raise CheckpointError(f"checkpoint={folder}: is no MiniMax-H3 checkpoint, {INDEX} is missing{more}")
    return folder / INDEX


def _geometry(folder: Path, index: dict[str, Any]) -> Geometry:
    if index.get("_class_name") != "MiniMaxH3ModularPipeline":
        shown = index.get("_class_name")
        raise CheckpointError(
            f"checkpoint={folder}: {INDEX} describes {shown!r}; it must be a MiniMaxH3ModularPipeline"
        )
    given = _positive(folder, index, ("canvas_short_edge", "canvas_max_pixels", "reference_image_short_edge"))
    vae = _read_json(folder / "vae" / "config.json")
    transformer = _transformers(folder)[0]
    patch = _read_json(folder / transformer / "config.json").get("patch_size", (1, 2, 2))
    ratio = 1
    for factor in vae.get("spatial_downsample_factors", (2, 2, 2, 2)):
        ratio *= factor
    return Geometry(**given, canvas_multiple=ratio * patch[-1])


def _positive(folder: Path, index: dict[str, Any], names: Sequence[str]) -> dict[str, int]:
    """Those of the index's entries `names` that are there, all of them positive whole numbers."""
    given = {name: index[name] for name in names if name in index}
    for name, value in given.items():
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(f"checkpoint={folder}: {INDEX}: {name}={value!r} must be a positive whole number")
    return given


def _check_model(folder: Path, name: str) -> int:
    """Bytes of weights of component `name`, after checking that every file of it is whole."""
    component = folder / name
    if not (component / "config.json").is_file():
        raise CheckpointError(f"checkpoint={folder}: {name}/config.json is missing; {_WAY_OUT}")
    indexes = sorted(component.glob("*.safetensors.index.json"))
    if not indexes:
        files = sorted(component.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"checkpoint={folder}: {name}/ holds no *.safetensors weights; {_WAY_OUT}")
        return _sum_of(folder, [partial(_check_shard, folder, file, set()) for file in files])
    weight_map: dict[str, str] = _read_json(indexes[0]).get("weight_map", {})
    promised: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        promised.setdefault(shard, set()).add(tensor)
    checks = [partial(_check_shard, folder, component / shard, promised[shard]) for shard in sorted(promised)]
    return _sum_of(folder, checks)


def _check_shard(folder: Path, file: Path, promised: set[str]) -> int:
    """Bytes of one file of weights that is whole and holds the `promised` tensors."""
    lost = sorted(promised - _tensors_of(folder, file))
    if lost:
        raise CheckpointError(f"checkpoint={folder}: {file.relative_to(folder)} lacks tensor {lost[0]}; {_WAY_OUT}")
    return file.stat().st_size


def _sum_of(folder: Path, checks: Sequence[Callable[[], int]]) -> int:
    """Carry out all `checks` and add up; raises one CheckpointError with the words of all that failed."""
    total, said = 0, []
    for check in checks:
        try:
            total += check()
        except CheckpointError as error:
            said.append(str(error).removeprefix(f"checkpoint={folder}: ").removesuffix(f"; {_WAY_OUT}"))
    if said:
        more = f"; and {len(said) - _MAX_NAMED} more" if len(said) > _MAX_NAMED else ""
        raise CheckpointError(f"checkpoint={folder}: {'; '.join(said[:_MAX_NAMED])}{more}; {_WAY_OUT}")
    return total


def _tensors_of(folder: Path, file: Path) -> frozenset[str]:
    """Names of the tensors in a safetensors file whose size is what its header says."""
    shown = f"checkpoint={folder}: {file.relative_to(folder)}"
    if not file.is_file():
        raise CheckpointError(f"{shown} is missing; {_WAY_OUT}")
    stat = file.stat()
    return _header_of(file, shown, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)  # asked for with every change on the page; size and time tell whether a file is another
def _header_of(file: Path, shown: str, size: int, _changed: int) -> frozenset[str]:
    with file.open("rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise CheckpointError(f"{shown} is truncated or damaged ({size} bytes, no whole header); {_WAY_OUT}")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointError(f"{shown} is damaged (unreadable header); {_WAY_OUT}") from error
    if size != 8 + length + end:
        what = "truncated" if size < 8 + length + end else "damaged"
        raise CheckpointError(f"{shown} is {what}: {size} bytes, its header asks for {8 + length + end}; {_WAY_OUT}")
    return frozenset(tensors)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint={path.parent}: {path.name} is missing; {_WAY_OUT}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: is no valid JSON ({error}); {_WAY_OUT}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: must hold a JSON object; {_WAY_OUT}")
    return data
