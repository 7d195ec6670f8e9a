import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
from safetensors.torch import save_file
from transformers import Qwen3VLForConditionalGeneration

from backend.errors import CheckpointError
from backend.runtime import load, shards

CPU = torch.device("cpu")
KINDS = {
    "transformer": MiniMaxH3Transformer3DModel,
    "vae": AutoencoderKLMiniMaxH3,
    "audio_vae": AutoencoderKLMiniMaxH3Audio,
    "text_encoder": Qwen3VLForConditionalGeneration,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_a_model_equals_what_its_library_loads(tiny_checkpoint, name, dtype):
    folder, kind = tiny_checkpoint / name, KINDS[name]
    expected = kind.from_pretrained(folder, dtype=dtype)
    model = load.build(kind, folder)
    heard = []
    load.fill(model, load.needed(model, folder), CPU, dtype, lambda done, total: heard.append((done, total)))
    ours, theirs = (dict(each.named_parameters()) | dict(each.named_buffers()) for each in (model, expected))
    assert ours.keys() == theirs.keys()
    differ = [key for key in theirs if ours[key].dtype != theirs[key].dtype or not torch.equal(ours[key], theirs[key])]
    assert not differ
    assert not model.training
    total = sum(entry.nbytes for entry in load.needed(model, folder).values())
    assert heard[0] == (0, total) and heard[-1] == (total, total)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


def test_headers_tell_what_is_there(tmp_path):
    stored = {"a": torch.arange(6, dtype=torch.int32).reshape(2, 3), "b": torch.tensor(1.5), "c": torch.zeros(0, 4)}
    save_file(stored, tmp_path / "m.safetensors")
    found = shards.entries(tmp_path)
    assert {name: entry.shape for name, entry in found.items()} == {"a": (2, 3), "b": (), "c": (0, 4)}
    reader = shards.Reader(CPU)
    for name, tensor in stored.items():
        assert torch.equal(reader.read(found[name]), tensor)


def test_a_file_cut_short_names_itself(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(1000)}, path)
    whole = path.read_bytes()
    for size in (3, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.safetensors: is cut short"):
            shards.entries(tmp_path)


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        shards.entries(tmp_path)


def test_missing_and_foreign_tensors_are_named(tiny_checkpoint, tmp_path):
    model = load.build(MiniMaxH3Transformer3DModel, tiny_checkpoint / "transformer")
    weights = {name: torch.zeros(each.shape) for name, each in model.named_parameters()}
    short = {name: each for name, each in weights.items() if name != "proj_in.bias"}
    save_file(short, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"has no proj_in\.bias"):
        load.needed(model, tmp_path)
    save_file(weights | {"proj_in.bias": torch.zeros(3)}, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"proj_in\.bias is \(3,\) in the file"):
        load.needed(model, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_bytes_arrive_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PIECE", 1 << 16)
    stored = {f"t{number}": torch.randn(300, 1001).to(torch.bfloat16) for number in range(20)}
    save_file(stored, tmp_path / "m.safetensors")
    read = {}
    shards.read_all(shards.entries(tmp_path), torch.device("cuda"), read.__setitem__, lambda _: None)
    assert all(read[name].is_cuda and torch.equal(read[name].cpu(), tensor) for name, tensor in stored.items())
