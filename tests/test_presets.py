"""The shipped presets load, and a wrong one names file, key, value and rule."""

import re

import pytest

from backend import presets
from backend.errors import PresetError

GOOD = 'title = "t"\ndescription = "d"\nsource = "s"\ncheckpoint = "tiny"\n'


def test_shipped_presets_load():
    hardware, quality = presets.hardware_presets(), presets.quality_presets()
    assert {"tiny-cpu", "one-gpu"} <= set(hardware)
    assert {"draft", "standard"} <= set(quality)
    assert quality["standard"].num_inference_steps == 50  # the released recipe
    assert hardware["tiny-cpu"].device is presets.Device.CPU
    for name, preset in {**hardware, **quality}.items():
        assert preset.name == name
        assert preset.title and preset.description
    for preset in quality.values():  # how many steps it is depends on the model, so no text may say a number
        assert not re.search(r"\d|twelve|fifty", preset.description, re.IGNORECASE), preset.description


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("speed = 3\n", r"odd\.toml.*unknown key 'speed'"),
        ('device = "tpu"\n', r"odd\.toml.*device='tpu': must be one of cpu, cuda"),
        ('world_size = "two"\n', r"odd\.toml.*world_size='two': must be a int"),
        ("world_size = 0\n", r"odd\.toml.*world_size=0"),
        ("[parallel]\nulysses_degree = 3\n", r"odd\.toml.*ulysses_degree=3"),
        ("[parallel]\ntensor_parallel_size = 5\n", r"odd\.toml.*tensor_parallel_size=5"),
        ("[parallel]\nulysses_degree = 8\ntensor_parallel_size = 2\n", r"odd\.toml.*must divide 56"),
        ("[parallel]\nulysses_degree = 5\n", r"odd\.toml.*ulysses_degree=5: must be one of \(1, 2, 4, 7, 8\)"),
        ("[parallel]\nulysses_degree = 6\n", r"odd\.toml.*ulysses_degree=6"),
        ("world_size = 4\n[parallel]\nulysses_degree = 2\n", r"odd\.toml.*world_size=4: must be .*, 2"),
        ("world_size = 2\n[parallel]\nulysses_degree = 2\n[requires]\ngpus = 1\n", r"odd\.toml.*requires\.gpus=1"),
        ("[parallel]\nconditioner_tensor_parallel = 2\n", r"odd\.toml.*conditioner_tensor_parallel=2: must be one of"),
        (
            "world_size = 4\n[parallel]\nulysses_degree = 4\nconditioner_tensor_parallel = 3\n",
            r"odd\.toml.*conditioner_tensor_parallel=3",
        ),
        ("[parallel]\nfsdp = true\n", r"odd\.toml.*fsdp=true: needs an ulysses_degree over 1"),
        ('[parallel]\nexchange = "fast"\n', r"odd\.toml.*exchange='fast': must be one of auto, packed, gathered"),
        ('[parallel]\nexchange = "mapped"\n', r"odd\.toml.*exchange=mapped: needs an ulysses_degree over 1"),
        ("[parallel]\nring_degree = 2\n", r"odd\.toml.*unknown key 'ring_degree'"),
        ("fleets = 9\n", r"odd\.toml.*fleets=9"),
        ("[parallel]\nulysses_degree = 6\n", r"odd\.toml.*ulysses_degree=6: must be one of \(1, 2, 4, 7, 8\)"),
        (
            "world_size = 2\n[parallel]\nulysses_degree = 2\nfsdp = true\n[runtime]\nfused_block = false\n",
            r"odd\.toml.*fsdp=true: needs runtime\.fused_block",
        ),
        (
            "world_size = 2\n[parallel]\nulysses_degree = 2\nconditioner_tensor_parallel = 2\n"
            "[runtime]\nfast_load = false\n",
            r"odd\.toml.*conditioner_tensor_parallel=2: needs runtime\.fast_load",
        ),
        (
            '[runtime]\noffload = "blocks"\nfused_block = false\n',
            r"odd\.toml.*offload=blocks: needs runtime\.fused_block",
        ),
        ('[runtime]\noffload = "blocks"\nfast_load = false\n', r"odd\.toml.*offload=blocks: needs runtime\.fast_load"),
        (
            'world_size = 2\n[runtime]\noffload = "blocks"\n[parallel]\nulysses_degree = 2\nfsdp = true\n',
            r"odd\.toml.*offload=blocks: .*use one of both",
        ),
        ("[runtime]\nresident_layers = 3\n", r"odd\.toml.*resident_layers: needs runtime\.offload = blocks"),
        ('[runtime]\noffload = "blocks"\nresident_layers = -1\n', r"odd\.toml.*resident_layers=-1"),
        ("[runtime]\nturbo = true\n", r"odd\.toml.*unknown key 'turbo'"),
        ("title = 'twice'\n", r"odd\.toml"),
        ("= nonsense", r"odd\.toml"),
    ],
)
def test_a_wrong_preset_names_file_key_and_rule(tmp_path, extra, said):
    (tmp_path / "odd.toml").write_text(GOOD + extra, encoding="utf-8")
    with pytest.raises(PresetError, match=said):
        presets.hardware_presets(tmp_path)


def test_a_missing_key_is_named(tmp_path):
    (tmp_path / "bare.toml").write_text('title = "t"\n', encoding="utf-8")
    with pytest.raises(PresetError, match="checkpoint"):
        presets.hardware_presets(tmp_path)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(PresetError, match=r"preset=nope: .*one-gpu, .*tiny-cpu"):
        presets.pick(presets.hardware_presets(), "nope")
