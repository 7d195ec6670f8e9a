"""The tiny checkpoint against the release it imitates: names, dtypes, geometry, tokenizer."""

import json
import struct
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL = ROOT.parent / "shared" / "h3-official"
needs_official = pytest.mark.skipif(not OFFICIAL.is_dir(), reason="needs ../shared/h3-official (released configs)")


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def dtypes(folder: Path) -> dict[str, str]:
    """Tensor name -> dtype over all shards, from the safetensors headers."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        found.update({name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"})
    return found


@needs_official
def test_the_index_names_the_same_components(tiny_checkpoint: Path) -> None:
    ours, theirs = load(tiny_checkpoint / "modular_model_index.json"), load(OFFICIAL / "modular_model_index.json")
    components = {name: value[:2] for name, value in theirs.items() if isinstance(value, list)}
    assert {name: value[:2] for name, value in ours.items() if isinstance(value, list)} == components
    assert all((tiny_checkpoint / ours[name][2]["subfolder"]).is_dir() for name in components)


@needs_official
@pytest.mark.parametrize(
    ("component", "keys"),
    [
        ("vae", "spatial_downsample_factors temporal_downsample_factors clip_length token_drop latent_channels"),
        ("audio_vae", "encoder_rates decoder_rates decoder_kernel_sizes latent_channels sampling_rate"),
        ("transformer", "in_channels audio_in_channels patch_size num_refiner_layers rope_theta"),
        ("text_encoder", "image_token_id video_token_id vision_start_token_id vision_end_token_id"),
    ],
)
def test_geometry_is_the_released_one(tiny_checkpoint: Path, component: str, keys: str) -> None:
    ours, theirs = (
        load(tiny_checkpoint / component / "config.json"),
        load(OFFICIAL / "config" / component / "config.json"),
    )
    assert {key: ours[key] for key in keys.split()} == {key: theirs[key] for key in keys.split()}


@needs_official
@pytest.mark.parametrize("component", ["transformer", "transformer_ref", "vae", "text_encoder"])
def test_tensors_are_named_as_released(tiny_checkpoint: Path, component: str) -> None:
    def kinds(names: Any) -> set[str]:
        return {".".join("N" if part.isdigit() else part for part in name.split(".")) for name in names}

    source = component if component != "transformer_ref" else "transformer"
    (index,) = (OFFICIAL / "config" / source).glob("*.index.json")
    ours = kinds(dtypes(tiny_checkpoint / component))
    assert ours == kinds(load(index)["weight_map"])
    (own_index,) = (tiny_checkpoint / component).glob("*.index.json")
    assert len(set(load(own_index)["weight_map"].values())) >= 3, "several shards, as the release has"


def test_mixed_precision_is_the_released_one(tiny_checkpoint: Path) -> None:
    # h3-facts 5: patch projections, time embedder and heads are float32; AdaLN and the blocks bfloat16.
    pinned = ("proj_in.", "audio_proj_in.", "time_embedder.", "proj_out.", "audio_proj_out.")
    for name, dtype in dtypes(tiny_checkpoint / "transformer").items():
        assert dtype == ("F32" if name.startswith(pinned) else "BF16"), name
    assert set(dtypes(tiny_checkpoint / "text_encoder").values()) == {"BF16"}
    assert set(dtypes(tiny_checkpoint / "vae").values()) == {"F32"}
    assert set(dtypes(tiny_checkpoint / "audio_vae").values()) == {"F32"}


def test_conditioning_layer_exists(tiny_checkpoint: Path) -> None:
    text = load(tiny_checkpoint / "text_encoder" / "config.json")["text_config"]
    assert text["num_hidden_layers"] > 50  # get_qwen3vl_prompt_embeds refuses fewer


@pytest.mark.parametrize("folder", ["tokenizer", "processor"])
def test_any_text_encodes_and_comes_back(tiny_checkpoint: Path, folder: str) -> None:
    from transformers import Qwen2TokenizerFast

    tokenizer = Qwen2TokenizerFast.from_pretrained(tiny_checkpoint / folder)
    for text in (
        "The camera moves slowly.",
        "漢字 émoji 👩‍🚀 \t\n",
        "".join(map(chr, range(1, 256))),
        "<Picture 1>: x",
    ):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        assert max(ids) < 151643
    words = "the camera moves slowly through the forest at night"
    assert len(tokenizer(" " + words, add_special_tokens=False)["input_ids"]) == len(words.split())
    for token, index in (("<|vision_start|>", 151652), ("<|vision_end|>", 151653), ("<|image_pad|>", 151655)):
        assert tokenizer.convert_tokens_to_ids(token) == index  # tokenizer_config.json of the release


@needs_official
def test_special_tokens_are_the_released_ones(tiny_checkpoint: Path) -> None:
    ours = load(tiny_checkpoint / "tokenizer" / "tokenizer_config.json")["added_tokens_decoder"]
    theirs = load(OFFICIAL / "tokenizer" / "tokenizer_config.json")["added_tokens_decoder"]
    assert ours == {index: entry for index, entry in theirs.items() if entry["special"]}


def test_the_catalog_needs_no_torch() -> None:
    program = "import sys, backend.checkpoints.catalog; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
