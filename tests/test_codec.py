"""Dataclasses to JSON and back, and what a wrong document says."""

import json
from pathlib import Path

import pytest

from backend import codec
from backend.events import Event, Failed, StepDone, Succeeded
from backend.process.messages import Command, Generate
from backend.types import (
    Adapter,
    EncoderSettings,
    GenerationRequest,
    JobId,
    PreparedMedia,
    PreparedReference,
    Reference,
    ReferenceKind,
    Render,
    Sampling,
    Stage,
)

REQUEST = GenerationRequest(
    prompt='tabs\t"quotes" 雨 <Picture 1>',
    references=(Reference(path=Path("/a b/c.mp4"), kind=ReferenceKind.VIDEO, start_s=1.5, length_s=2),),
    sampling=Sampling(width=64, height=96, seed=2**63 - 1, adapters=(Adapter(path=Path("l.safetensors"), scale=0.5),)),
)


def through_json(value):
    return json.loads(json.dumps(value))


def test_request_survives():
    assert codec.decode(GenerationRequest, through_json(codec.encode(REQUEST))) == REQUEST


def test_command_survives_with_its_type():
    render = Render(
        job=JobId("j"),
        request=REQUEST,
        media=PreparedMedia(references=(PreparedReference(kind=ReferenceKind.AUDIO, audio=Path("a.npy")),)),
        folder=Path("/out"),
        encoder=EncoderSettings(crf=20),
    )
    message = Generate(render=render)
    assert codec.decode_tagged(Command, through_json(codec.encode_tagged(message))) == message


@pytest.mark.parametrize(
    "event",
    [
        StepDone(step=1, steps=5, seconds=0.25, seq=3, at=1.5),
        Failed(reason="rank 1 died", stage=Stage.DENOISE, rank=1),
        Succeeded(video=Path("v.mp4"), sidecar=Path("v.json"), details={"seconds": {"denoise": 1.0}, "n": [1, 2]}),
    ],
)
def test_events_survive(event):
    assert codec.decode_tagged(Event, through_json(codec.encode_tagged(event))) == event


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"prompt": "x", "colour": 1}, "unknown key 'colour'"),
        ({"prompt": 5}, r"prompt=5: must be a str"),
        ({}, "prompt"),
        ({"prompt": "x", "sampling": {"num_frames": "many"}}, r"sampling.num_frames='many': must be a int"),
        ({"prompt": "x", "sampling": {"num_frames": True}}, "must be a int"),
        ({"prompt": "x", "references": {"path": "a"}}, "expected a list"),
        ({"prompt": "x", "references": [{"path": "a", "kind": "smell"}]}, r"references\[0\].kind='smell': must be one"),
        ([], "expected an object"),
    ],
)
def test_wrong_documents_name_the_field(data, said):
    with pytest.raises(ValueError, match=said):
        codec.decode(GenerationRequest, data)


def test_unknown_message_type_is_an_error():
    with pytest.raises(ValueError, match="unknown type 'Surprise'"):
        codec.decode_tagged(Command, {"type": "Surprise"})


def test_a_tensor_or_other_stranger_cannot_be_encoded():
    with pytest.raises(TypeError, match="cannot encode a set"):
        codec.encode({"x": {1}})
