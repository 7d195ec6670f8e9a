"""The catalog on the real tiny checkpoint, and on copies of it that are damaged in every way a disk damages files."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.checkpoints import catalog
from backend.errors import CheckpointError
from backend.presets import hardware_presets
from backend.settings import Settings
from backend.types import Geometry, Task

ROOT = Path(__file__).resolve().parents[2]
SHARD = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def damaged(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to break; the large text encoder is linked, never written to."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("text_encoder"))
    (folder / "text_encoder").symlink_to(tiny_checkpoint / "text_encoder")
    return folder


def test_a_complete_folder(tiny_checkpoint: Path, settings: Settings) -> None:
    found = catalog.find(str(tiny_checkpoint), settings)
    assert found.ready
    assert found.folder == tiny_checkpoint
    assert found.layout == "diffusers"
    assert set(found.tasks) == set(Task)
    assert found.bytes == sum(path.stat().st_size for path in tiny_checkpoint.rglob("*.safetensors"))
    assert found.geometry == Geometry(
        canvas_short_edge=128, canvas_max_pixels=28672, reference_image_short_edge=128, canvas_multiple=32
    )
    assert (found.default_width, found.default_height) == (224, 128)  # diffusers' resolve_canvas_size(16, 9, ...)


def test_the_trained_model_is_what_a_machine_without_gpu_gets(settings: Settings) -> None:
    name = hardware_presets()["tiny-cpu"].checkpoint
    found = catalog.find(name, settings)
    files = [path for path in (ROOT / "assets" / "nano").rglob("*") if path.is_file()]
    assert (found.ready, found.folder) == (True, ROOT / "assets" / "nano")
    assert catalog.ensure(name, settings, lambda _: None) == found.folder
    assert set(found.tasks) == set(Task)
    assert (found.default_width, found.default_height) == (224, 128)
    assert 8 <= found.default_steps <= 12
    assert max(path.stat().st_size for path in files) <= 10_000_000
    assert sum(path.stat().st_size for path in files) <= 40_000_000
    assert len(found.examples) >= 3 and "Random" not in found.notice


def test_default_steps_come_with_the_folder(damaged: Path, settings: Settings) -> None:
    path = damaged / "modular_model_index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"default_steps": 9}))
    assert catalog.find(str(damaged), settings).default_steps == 9
    path.write_text(json.dumps(index | {"default_steps": 0}))
    with pytest.raises(CheckpointError, match=r"default_steps=0 must be a positive whole number"):
        catalog.find(str(damaged), settings)


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 10)


def _scramble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 40)


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        (SHARD, Path.unlink, "is missing"),
        (SHARD, _cut, "is truncated"),
        (SHARD, _grow, "is damaged"),
        (SHARD, _scramble, "unreadable header"),
        (SHARD, lambda path: path.write_bytes(b""), "truncated or damaged"),
        (SHARD, lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1"), "truncated or damaged"),
        ("audio_vae/diffusion_pytorch_model.safetensors", Path.unlink, "audio_vae/ holds no"),
        ("audio_vae/diffusion_pytorch_model.safetensors", _cut, "is truncated"),
        ("vae/config.json", Path.unlink, "vae/config.json is missing"),
        ("tokenizer/vocab.json", Path.unlink, "tokenizer/tokenizer.json is missing"),
        ("scheduler/scheduler_config.json", Path.unlink, "scheduler/scheduler_config.json is missing"),
        ("modular_model_index.json", Path.unlink, "modular_model_index.json is missing"),
        ("modular_model_index.json", lambda path: path.write_text("{"), "no valid JSON"),
        ("modular_model_index.json", lambda path: path.write_text('{"_class_name": "Wan"}'), "'Wan'"),
    ],
)
def test_damage_is_named(damaged: Path, settings: Settings, file: str, damage: Any, reason: str) -> None:
    assert catalog.find(str(damaged), settings).ready
    damage(damaged / file)
    with pytest.raises(CheckpointError) as error:
        catalog.find(str(damaged), settings)
    assert reason in str(error.value)
    assert str(damaged) in str(error.value)
    if file == SHARD:
        assert SHARD in str(error.value)


def test_a_tensor_that_the_index_promises_but_no_shard_holds(damaged: Path, settings: Settings) -> None:
    index = damaged / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["blocks.99.weight"] = SHARD.split("/")[1]
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"00002-of-00003.safetensors lacks tensor blocks.99.weight"):
        catalog.find(str(damaged), settings)


def test_one_transformer_is_enough_for_its_tasks(damaged: Path, settings: Settings) -> None:
    shutil.rmtree(damaged / "transformer_ref")
    assert catalog.find(str(damaged), settings).tasks == (Task.T2VA, Task.FL2VA)
    shutil.rmtree(damaged / "transformer")
    with pytest.raises(CheckpointError, match="neither transformer/"):
        catalog.find(str(damaged), settings)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nemo", "choose nano, MiniMaxAI/MiniMax-H3, tiny, a folder, or a repository id"),
        ("/nowhere/at/all", "no such folder"),
        ("./nowhere", "no such folder"),
        ("somebody/some-model", "models download somebody/some-model"),
        (str(ROOT / "backend"), "is no MiniMax-H3 checkpoint"),
    ],
)
def test_what_is_no_checkpoint(settings: Settings, name: str, reason: str) -> None:
    with pytest.raises(CheckpointError) as error:
        catalog.find(name, settings)
    assert reason in str(error.value)
    assert name.lstrip(".") in str(error.value)


def test_a_repository_in_the_local_cache(tiny_checkpoint: Path, settings: Settings, tmp_path: Path) -> None:
    released = catalog.find(catalog.RELEASED, settings)
    assert (released.state, released.folder) == ("not downloaded", None)
    assert (released.default_width, released.default_height) == (1344, 768)
    with pytest.raises(CheckpointError, match="models download MiniMaxAI/MiniMax-H3"):
        catalog.ensure(catalog.RELEASED, settings, lambda _: None)
    # The hub's cache: models--owner--name/refs/main names a snapshot.
    repository = tmp_path / "hub" / "models--MiniMaxAI--MiniMax-H3"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / ("0" * 40)).symlink_to(tiny_checkpoint)
    cached = catalog.find(catalog.RELEASED, settings)
    assert cached.ready
    assert catalog.ensure(catalog.RELEASED, settings, lambda _: None) == cached.folder
    assert (cached.folder / "transformer" / "config.json").is_file()


def test_the_list_names_every_state(tiny_checkpoint: Path, damaged: Path, settings: Settings) -> None:
    settings.checkpoints_dir.mkdir(parents=True)
    (settings.checkpoints_dir / catalog.TINY_FOLDER).symlink_to(tiny_checkpoint)
    (damaged / SHARD).unlink()
    (settings.checkpoints_dir / "mine").symlink_to(damaged)
    named = dataclasses.replace(settings, checkpoint=str(tiny_checkpoint))
    states = {checkpoint.name: checkpoint.state for checkpoint in catalog.list_checkpoints(named)}
    assert states["tiny"] == "ready"
    assert states["MiniMaxAI/MiniMax-H3"] == "not downloaded"
    assert states["mine"].startswith("incomplete: ") and SHARD in states["mine"]
    assert states[str(tiny_checkpoint)] == "ready"
    assert "Random weights" in catalog.find("tiny", named).notice


def _digest(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.thorough
def test_two_builds_at_once_make_one_checkpoint_the_same_as_ever(settings: Settings, tiny_checkpoint: Path) -> None:
    before = catalog.find("tiny", settings)
    assert not before.ready and before.geometry.canvas_short_edge == 128
    folder = settings.checkpoints_dir / catalog.TINY_FOLDER
    other = subprocess.Popen([sys.executable, "-m", "backend.checkpoints.nano", str(folder)], cwd=ROOT)
    try:
        said: list[str] = []
        assert catalog.ensure("tiny", settings, said.append) == folder
        assert said
        assert other.wait(timeout=120) == 0
    finally:
        other.kill()
    assert [path.name for path in settings.checkpoints_dir.iterdir()] == [catalog.TINY_FOLDER]
    assert catalog.find("tiny", settings).ready
    assert catalog.ensure("tiny", settings, said.append) == folder
    assert len(said) == 1
    assert _digest(folder) == _digest(tiny_checkpoint)


def test_a_failed_build_says_why(settings: Settings) -> None:
    settings.checkpoints_dir.mkdir(parents=True)
    settings.checkpoints_dir.joinpath(catalog.TINY_FOLDER).write_text("a file in the way")
    with pytest.raises(CheckpointError, match=r"(?s)building failed with exit code 1.*is in the way"):
        catalog.ensure("tiny", settings, lambda _: None)
    assert [path.name for path in settings.checkpoints_dir.iterdir()] == [catalog.TINY_FOLDER]
