import json
import struct

import pytest

from backend.checkpoints.adapters import NotAnAdapter, card, steps_of, with_schedule
from backend.types import Adapter, GenerationRequest, Sampling


def write(path, metadata=None, names=("transformer.proj_in.lora_A.weight", "transformer.proj_in.lora_B.weight")):
    """A safetensors file by its format: 8 bytes of header length, the header, the bytes."""
    header = {
        name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * at, 4 * at + 4]} for at, name in enumerate(names)
    }
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))
    return path


def request(*paths, **sampling):
    return GenerationRequest(prompt="x", sampling=Sampling(adapters=tuple(Adapter(path=p) for p in paths), **sampling))


def test_a_card_holds_what_metadata_and_the_file_beside_it_say(tmp_path):
    path = write(tmp_path / "turbo.safetensors", {"flow_shift": "6.0", "num_inference_steps": "5", "alpha": "64"})
    found = card(path)
    assert (found.title, found.matrices, found.flow_shift, found.num_inference_steps) == ("turbo", 1, 6.0, 5)
    assert found.audio_flow_shift is None and found.bytes == path.stat().st_size
    (tmp_path / "turbo.toml").write_text('title = "Turbo"\nflow_shift = 12\naudio_flow_shift = 3.0\n')
    found = card(path)
    assert (found.title, found.flow_shift, found.audio_flow_shift, found.num_inference_steps) == ("Turbo", 12.0, 3.0, 5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello", "is no safetensors file"),
        (struct.pack("<Q", 2**60), "is no safetensors file"),
        (struct.pack("<Q", 4) + b"{{{{", "is no safetensors file"),
        (struct.pack("<Q", 2) + b"{}", "holds no LoRA matrices"),
    ],
)
def test_what_is_no_lora_is_refused_in_words(tmp_path, content, words):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(NotAnAdapter, match=words):
        card(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shift = 3", "has the key shift; its keys are title, flow_shift, audio_flow_shift, num_inference_steps"),
        ("flow_shift = -1", "flow_shift=-1 must be a number above 0"),
        ("flow_shift = nan", "must be a number above 0"),
        ("num_inference_steps = 1", "must be 2 to 200"),
        ("num_inference_steps = [4]", "must be a number"),
        ("flow_shift =", "a.toml cannot be read"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(tmp_path, text, words):
    path = write(tmp_path / "a.safetensors")
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(NotAnAdapter, match=words) as end:
        card(path, "adapters[0]")
    assert end.value.problem.field == "adapters[0]" and end.value.problem.value == "a.safetensors"


def test_shifts_are_filled_in_where_the_request_names_none(tmp_path):
    a = write(tmp_path / "a.safetensors", {"flow_shift": "6", "num_inference_steps": "5"})
    b = write(tmp_path / "b.safetensors", {"flow_shift": "9", "audio_flow_shift": "2"})
    found, notices = with_schedule(request(a, b, num_inference_steps=5))
    assert (found.sampling.flow_shift, found.sampling.audio_flow_shift) == (6.0, 2.0)
    assert len(notices) == 2
    found, notices = with_schedule(request(a, flow_shift=12.0, num_inference_steps=50))
    assert found.sampling.flow_shift == 12.0
    assert notices == ("a was made for 5 steps; this request has 50",)
    assert steps_of(request(b, a)) == 5 and steps_of(request(b)) is None
    bare = request()
    assert with_schedule(bare) == (bare, ())
