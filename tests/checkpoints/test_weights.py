"""Downloading from a hub: only what a task needs, resumed after a cut and a cancel, checked, refused in words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest
from fake_hub import COMMIT, FakeHub, files_of

from backend.checkpoints import catalog, hub_cache, licence
from backend.checkpoints.errands import Reason
from backend.checkpoints.fetch import PIECE
from backend.checkpoints.weights import Weights
from backend.errors import CheckpointError, NotNow
from backend.settings import Settings
from backend.types import Task

ROOT = Path(__file__).resolve().parents[2]
TEXT = (Task.T2VA, Task.FL2VA)


@pytest.fixture
def hub(tiny_checkpoint):
    hub = FakeHub(files_of(tiny_checkpoint))
    yield hub
    hub.close()


@pytest.fixture
def settings(tmp_path, hub, monkeypatch):
    """A data folder and an empty cache of Hugging Face, both in this process and in children."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    made = Settings(data_dir=tmp_path / "data")
    licence.accept(made, "test")
    return made


@pytest.fixture
def weights(settings):
    made = Weights(settings, lambda owner: owner == "boss", lambda folder: False)
    made.wait_s = 0.05
    yield made
    made.close()


def fetch(weights, tasks=TEXT):
    weights.download(catalog.RELEASED, tasks, "boss")
    return weights.wait(lambda _: None)


def needed(hub):
    """What text and keyframes need: everything but the other transformer, other layouts and demonstrations."""
    return {name for name in hub.files if not name.startswith(("transformer_ref/", "FL2VA/", "assets/"))}


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_only_what_the_tasks_need_is_fetched_and_is_then_a_whole_checkpoint(hub, weights, settings, tiny_checkpoint):
    ended = fetch(weights)
    assert ended.state == "done", ended.message
    names = {name for method, name, _ in hub.asked if method == "GET"}
    assert not any(name.startswith(("FL2VA/", "assets/", "transformer_ref/")) for name in names)
    wanted = needed(hub)
    assert {hub.files[name] for name in wanted} == {hub.files[name] for name in names}  # the same content comes once
    found = catalog.find(catalog.RELEASED, settings)
    assert found.ready and set(found.tasks) == set(TEXT)
    assert ended.total == sum(len(hub.files[name]) for name in wanted)
    # The second bundle fetches its own part alone, and while it is under way the first one stays usable.
    hub.asked.clear()
    assert fetch(weights, (Task.REF2VA,)).state == "done"
    more = {name for method, name, _ in hub.asked if method == "GET"}
    assert all(name.startswith("transformer_ref/") for name in more)
    own = {data for name, data in hub.files.items() if name.startswith("transformer_ref/")}
    assert {hub.files[name] for name in more} == own - {hub.files[name] for name in wanted}
    assert set(catalog.find(catalog.RELEASED, settings).tasks) == set(Task)
    sizes = {piece.name: piece for piece in weights.view(catalog.RELEASED).parts}
    own = sum(len(data) for name, data in hub.files.items() if name.startswith("vae/"))
    assert (sizes["vae"].bytes, sizes["vae"].here, sizes["vae"].listed) == (own, own, True)


def test_a_begun_transformer_does_not_spoil_a_complete_one(hub, weights, settings):
    fetch(weights)
    snapshot = catalog.find(catalog.RELEASED, settings).folder
    (snapshot / "transformer_ref").mkdir()
    (snapshot / "transformer_ref" / "diffusion_pytorch_model.safetensors").write_bytes(b"")
    assert catalog.find(catalog.RELEASED, settings).tasks == TEXT


def test_a_connection_that_is_cut_goes_on_where_it_ended(hub, weights):
    hub.cut_after = 600_000
    ended = fetch(weights)
    assert ended.state == "done", ended.message
    ranges = [asked for method, _, asked in hub.asked if method == "GET" and asked]
    assert ranges and set(ranges) == {f"bytes={600_000 // PIECE * PIECE}-"}  # whole pieces are kept
    once = sum(map(len, {hub.files[name] for name in needed(hub)}))
    assert hub.sent - once == len(ranges) * (600_000 % PIECE)


def test_a_cancelled_download_keeps_its_parts_and_resumes(hub, weights, settings):
    hub.piece_s = 0.05
    weights.download(catalog.RELEASED, TEXT, "boss")
    with pytest.raises(NotNow, match="one at a time"):
        weights.download(catalog.RELEASED, TEXT, "boss")
    wait_for(lambda: (weights.activity().done or 0) > 400_000)
    weights.cancel("boss")
    assert weights.activity().state == "stopped"
    sent = hub.sent
    time.sleep(0.3)
    assert hub.sent - sent <= 4 * (1 << 16)  # what was on its way
    kept = weights.view(catalog.RELEASED)
    assert 0 < kept.here < sum(piece.bytes for piece in kept.parts)
    assert not kept.checkpoint.ready and kept.checkpoint.state == catalog.NOT_DOWNLOADED
    assert list((hub_cache.folder_of(catalog.RELEASED) / "blobs").glob("*" + hub_cache.PART))
    hub.piece_s = 0
    hub.asked.clear()
    again = Weights(settings, lambda owner: True, lambda folder: False)  # the program was started anew
    again.download(catalog.RELEASED, TEXT, "boss")
    assert again.wait(lambda _: None).state == "done"
    assert any(asked for _, _, asked in hub.asked)
    assert catalog.find(catalog.RELEASED, settings).ready


def test_no_token_a_gated_repository_and_one_that_is_not_there_are_said_in_words(hub, weights, monkeypatch):
    hub.token, hub.gated = "right", True
    ended = fetch(weights)
    assert (ended.state, ended.reason) == ("failed", Reason.NO_TOKEN)
    assert "hf auth login" in ended.message and "https://huggingface.co/MiniMaxAI/MiniMax-H3" in ended.message
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_secret")
    ended = fetch(weights)
    assert (ended.state, ended.reason) == ("failed", Reason.GATED)
    assert "no access yet" in ended.message and "hf_wrong" not in ended.message
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch(weights).state == "done"
    weights.download("nobody/nothing", TEXT, "boss")
    ended = weights.wait(lambda _: None)
    assert ended.state == "failed" and "nobody/nothing" in ended.message and "404" in ended.message


def test_the_disk_is_looked_at_before_the_first_byte(hub, weights):
    huge = next(name for name in hub.files if name.startswith("text_encoder/") and name.endswith(".safetensors"))
    hub.claimed[huge] = 10**17
    ended = fetch(weights)
    assert (ended.state, ended.reason) == ("failed", Reason.DISK)
    assert "GiB free" in ended.message and "HF_HOME" in ended.message
    assert hub.sent == 0


def test_a_disk_that_is_too_small_is_known_before_anybody_asks(weights, monkeypatch):
    def text_bundle():
        return next(item for item in weights.view(catalog.RELEASED).bundles if item.bundle.key == "text")

    usage = shutil.disk_usage(ROOT)
    missing = text_bundle().missing
    assert missing > 130 * 2**30  # the repository's 134 GiB for text and keyframes
    for free, lacks in ((10 * 2**30, missing - 9 * 2**30), (missing + 2**30, 0), (missing + 2**30 - 1, 1)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        assert text_bundle().lacks == lacks  # 1 GiB stays free


def test_a_disk_that_fills_up_on_the_way_is_said_in_words(weights, settings, monkeypatch):
    import errno

    from backend.checkpoints import fetch as fetching
    from backend.checkpoints.errands import Action, Kind, Order

    told = []

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching.Download, "_go_on", full)
    # This process read its endpoint when huggingface_hub was imported.
    monkeypatch.setattr(fetching.Download, "_list", lambda self: (COMMIT, [a_file("modular_model_index.json")]))
    fetching.carry_out(Order(action=Action.DOWNLOAD, repo=catalog.RELEASED, tasks=TEXT), told.append)
    assert (told[-1].kind, told[-1].reason) == (Kind.FAILED, Reason.DISK)
    assert "the disk is full; nothing has come yet" in told[-1].message


def a_file(path):
    from backend.checkpoints.parts import RepoFile

    return RepoFile(path=path, bytes=10, etag="0" * 40)


def test_a_file_with_another_checksum_is_refused_and_not_kept(hub, weights, settings):
    spoiled = next(name for name in hub.files if name.startswith("vae/") and name.endswith(".safetensors"))
    hub.spoiled.add(spoiled)
    ended = fetch(weights)
    assert (ended.state, ended.reason) == ("failed", Reason.DAMAGED)
    assert spoiled in ended.message and "checksum" in ended.message
    hub.spoiled.clear()
    assert fetch(weights).state == "done"


def test_a_server_that_is_away_ends_in_words_and_keeps_what_came(hub, weights, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    ended = fetch(weights)
    assert (ended.state, ended.reason) == ("failed", Reason.OFFLINE)
    assert "cannot be reached" in ended.message and "nothing has come yet" in ended.message
    blob = hub_cache.folder_of(catalog.RELEASED) / "blobs" / f"x{hub_cache.PART}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(b"some")
    assert "what came so far is kept" in fetch(weights).message
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in fetch(weights).message


def test_verify_names_a_damaged_file_and_the_next_download_fetches_it_anew(hub, weights, settings):
    fetch(weights)
    weights.verify(catalog.RELEASED, "boss")
    assert weights.wait(lambda _: None).message == "Every file is whole."
    folder = catalog.find(catalog.RELEASED, settings).folder
    hurt = folder / "vae" / "config.json"
    text = hurt.read_bytes()
    hurt.resolve().write_bytes(b" " + text[:-1])  # of the same length, and JSON still
    weights.verify(catalog.RELEASED, "boss")
    ended = weights.wait(lambda _: None)
    assert (ended.state, ended.reason) == ("failed", Reason.DAMAGED) and "vae/config.json" in ended.message
    hub.asked.clear()
    assert fetch(weights).state == "done"
    assert [name for method, name, _ in hub.asked if method == "GET"] == ["vae/config.json"]
    assert hurt.read_bytes() == text


def test_who_may_what_and_what_is_never_removed(hub, weights, settings, tmp_path):
    for forbidden in (
        lambda: weights.download(catalog.RELEASED, TEXT, "guest"),
        lambda: weights.verify(catalog.TINY, "guest"),
        lambda: weights.remove(catalog.RELEASED, "guest"),
        lambda: weights.cancel("guest"),
    ):
        with pytest.raises(NotNow, match="administrator"):
            forbidden()
    with pytest.raises(NotNow, match="not on this disk"):
        weights.remove(catalog.RELEASED, "boss")
    fetch(weights)
    busy = Weights(settings, lambda owner: True, lambda folder: True)
    with pytest.raises(NotNow, match="in use"):
        busy.remove(catalog.RELEASED, "boss")
    beside = hub_cache.folder_of("other/model")
    beside.mkdir()
    assert weights.remove(catalog.RELEASED, "boss") > 1_000_000
    assert not hub_cache.folder_of(catalog.RELEASED).exists() and beside.is_dir()
    assert catalog.find(catalog.RELEASED, settings).state == catalog.NOT_DOWNLOADED


def test_a_folder_elsewhere_is_not_removed(weights, settings, tiny_checkpoint, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(tiny_checkpoint, mine)
    with pytest.raises(NotNow, match="outside the folders"):
        weights.remove(str(mine), "boss")
    settings.checkpoints_dir.mkdir(parents=True)
    (settings.checkpoints_dir / "linked").symlink_to(mine)
    with pytest.raises((NotNow, CheckpointError)):
        weights.remove("linked", "boss")
    shutil.copytree(tiny_checkpoint, settings.checkpoints_dir / "own")
    weights.remove("own", "boss")
    assert not (settings.checkpoints_dir / "own").exists() and (mine / "vae").is_dir()


def test_a_licence_that_was_not_accepted_stops_it(settings, weights):
    (settings.data_dir / "licences.json").unlink()
    with pytest.raises(NotNow, match="must be accepted"):
        weights.download(catalog.RELEASED, TEXT, "boss")


def test_the_child_ends_with_whoever_asked_it(hub, settings):
    hub.piece_s = 0.2
    order = {"action": "download", "repo": catalog.RELEASED, "tasks": ["t2va"]}
    child = subprocess.Popen(
        [sys.executable, "-m", "backend.checkpoints.fetch"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdin.write(json.dumps(order).encode() + b"\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["kind"] == "planned"
    child.stdin.close()
    assert child.wait(5) == 1
    child.stdout.close()
