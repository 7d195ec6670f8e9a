"""`--request FILE.mp4`: the settings inside, with media found by content beside it or where its own sidecar says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from backend import codec
from backend.commands.generation import read_request
from backend.commands.reports import inspect_media
from backend.errors import InvalidRequest
from backend.media import kept
from backend.media.inspection import Inspection
from backend.media.mp4 import Mp4Writer
from backend.types import EncoderSettings, GenerationRequest, Reference, Sampling


@pytest.fixture
def made(tmp_path):
    """A result in one folder, made from a picture in another: (MP4, picture, request)."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    picture = tmp_path / "in" / "fox.png"
    Image.new("RGB", (300, 300), (200, 80, 20)).save(picture)
    sampling = Sampling(num_frames=107, width=64, height=64, num_inference_steps=3, seed=2**40)
    request = GenerationRequest(prompt="<Picture 1> 狐", references=(Reference(path=picture),), sampling=sampling)
    sidecar = {
        "job": "j1",
        "request": codec.encode(request),
        "inputs": codec.encode(kept.inputs_of(request, {})),
        "quality": "draft",
    }
    path = tmp_path / "out" / "a.mp4"
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    with Mp4Writer(path, 64, 64, EncoderSettings()) as writer:
        for level in range(60):
            writer.write_frames(np.full((1, 64, 64, 3), level, np.uint8))
        writer.close({"comment": json.dumps(kept.portable(sidecar))})
    return path, picture, request


def test_media_are_where_the_sidecar_says(made):
    path, _, request = made
    assert read_request(path) == request
    assert read_request(path.with_suffix(".json")) == request


def test_media_beside_the_mp4_are_found_without_a_sidecar(made, tmp_path):
    path, picture, request = made
    moved = tmp_path / "elsewhere" / "b.mp4"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    beside = moved.with_name("fox.png")
    assert read_request(moved).references[0].path == beside  # not there yet: the plan says so
    beside.write_bytes(picture.read_bytes())
    found = read_request(moved)
    assert found.references[0].path == beside and found.sampling == request.sampling
    Image.new("RGB", (300, 300)).save(beside)
    with pytest.raises(InvalidRequest, match=r"references\[0\].*fox\.png.*another file than the video was made from"):
        read_request(moved)


def test_another_videos_sidecar_is_not_asked(made):
    path, _, _ = made
    sidecar = path.with_suffix(".json")
    sidecar.write_text(sidecar.read_text().replace('"j1"', '"j2"'))
    assert read_request(path).references[0].path == path.with_name("fox.png")


def test_foreign_files_are_no_requests(tmp_path):
    for name, content in (("a.mp4", b"\0" * 64), ("b.mp4", b""), ("c.json", b"[]")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InvalidRequest, match=f"{name}.*is no request"):
            read_request(path)


def test_inspect_shows_the_settings_inside(made):
    path, _, _ = made
    report, text = inspect_media(path, Inspection(length_s=2.0), None)
    assert report["settings"]["request"]["sampling"]["seed"] == 2**40
    assert report["settings"]["inputs"][0]["name"] == "fox.png"
    for words in ("made by H3 Studio", "狐", "64x64, 107 frames", "seed 1099511627776, quality draft", "fox.png"):
        assert words in text
