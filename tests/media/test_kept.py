"""What travels inside an MP4: no path of this machine goes out, and nothing that comes in is believed unchecked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from backend import codec
from backend.errors import MediaRefused
from backend.media import kept
from backend.types import Adapter, GenerationRequest, Reference, Sampling

SAMPLING = Sampling(num_frames=107, width=224, height=128, num_inference_steps=4, seed=9)


def details(request: GenerationRequest, **more: object) -> dict:
    return {"format": 1, "job": "abc", "request": codec.encode(request), "checkpoint": "/srv/models/H3", **more}


def frames(folder: Path) -> GenerationRequest:
    (folder / "0a1b.png").write_bytes(b"first")
    return GenerationRequest(prompt="x", first_frame=folder / "0a1b.png", sampling=SAMPLING)


def test_inputs_have_the_names_people_gave_and_their_sha256(tmp_path):
    (made,) = kept.inputs_of(frames(tmp_path), {"0a1b.png": "my cat.png"})
    assert (made.field, made.name, made.size_bytes) == ("first_frame", "my cat.png", 5)
    assert made.sha256 == hashlib.sha256(b"first").hexdigest()
    gone = GenerationRequest(prompt="x", references=(Reference(path=tmp_path / "gone.mp4"),), sampling=SAMPLING)
    assert kept.inputs_of(gone, {}) == (kept.KeptInput(field="references[0]", name="gone.mp4", sha256=""),)


def test_what_goes_into_the_mp4_holds_no_path(tmp_path):
    request = GenerationRequest(
        prompt="x",
        last_frame=tmp_path / "z.png",
        references=(Reference(path=tmp_path / "a.png"), Reference(path=tmp_path / "b.wav", start_s=1.0)),
        sampling=Sampling(adapters=(Adapter(path=tmp_path / "turbo.safetensors"),), num_frames=107, seed=1),
    )
    inputs = codec.encode(kept.inputs_of(request, {"a.png": "fox.png"}))
    sidecar = details(request, inputs=inputs)
    before = json.dumps(sidecar)
    inside = kept.portable(sidecar)
    assert json.dumps(sidecar) == before  # the sidecar itself keeps its paths
    assert "/" not in json.dumps(inside)
    assert [item["path"] for item in inside["request"]["references"]] == ["fox.png", "b.wav"]
    assert inside["request"]["last_frame"] == "z.png"
    assert inside["request"]["sampling"]["adapters"][0]["path"] == "turbo.safetensors"
    assert inside["request"]["references"][1]["start_s"] == 1.0


def test_settings_travel_unchanged(tmp_path):
    request = frames(tmp_path)
    sidecar = details(request, inputs=codec.encode(kept.inputs_of(request, {"0a1b.png": "cat.png"})), quality="draft")
    back = kept.understand(json.loads(json.dumps(kept.portable(sidecar))), "a.mp4")
    assert back.request.sampling == SAMPLING and back.request.prompt == "x"
    assert back.request.first_frame == Path("cat.png")
    assert (back.quality, back.job, back.model) == ("draft", "abc", "H3")
    assert back.inputs[0].sha256 == hashlib.sha256(b"first").hexdigest()


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x/passwd", "C:\\secrets\\passwd", "..", "a\0passwd"])
def test_no_path_of_a_stranger_is_ever_used(path):
    request = codec.encode(GenerationRequest(prompt="x", sampling=SAMPLING)) | {"first_frame": path}
    back = kept.understand({"request": request}, "a.mp4")
    assert back.request.first_frame.name == str(back.request.first_frame)
    assert str(back.request.first_frame) in ("passwd", "file", "apasswd")
    assert back.inputs == (kept.KeptInput(field="first_frame", name=str(back.request.first_frame), sha256=""),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": 5}, "request.prompt=5: must be a str"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"prompt": ""}, "must not be empty"),
        ({"sampling": {"num_frames": 10**30}}, "num_frames"),
        ({"sampling": {"width": 1e300}}, "must be a int"),
        ({"references": [{"path": "a.png"}] * 13}, "too many references"),
    ],
)
def test_impossible_settings_are_refused_in_words(change, said):
    request = codec.encode(GenerationRequest(prompt="x", sampling=SAMPLING)) | change
    with pytest.raises(MediaRefused, match=r"a\.mp4") as refused:
        kept.understand({"request": request}, "a.mp4")
    assert said in str(refused.value)


def test_odd_claims_become_short_words():
    request = codec.encode(GenerationRequest(prompt="x", sampling=SAMPLING))
    back = kept.understand(
        {"request": request, "job": ["a"], "quality": "q" * 5000, "versions": {"torch": "2\ud800", "x": {}}}, "a.mp4"
    )
    assert back.job == "" and len(back.quality) == 200
    assert back.versions == (("torch", "2?"), ("x", ""))
