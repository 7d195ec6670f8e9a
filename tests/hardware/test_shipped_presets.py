"""Every shipped hardware preset: its name, degrees and needs agree, and the longest clip fits what it asks for."""

import re

import pytest
from shapes import machine, shape

from backend import presets
from backend.hardware.choose import gpus_of, lacking
from backend.hardware.model_size import ModelSize
from backend.hardware.placement import place
from backend.presets import Device, Offload

SHIPPED = presets.hardware_presets()
LARGE = {name: preset for name, preset in SHIPPED.items() if preset.device is Device.CUDA}
NAME = re.compile(r"(\d+)x(\d+)gb")


@pytest.mark.parametrize("preset", LARGE.values(), ids=LARGE.keys())
def test_name_degrees_and_needs_agree(preset):
    parallel, needs = preset.parallel, preset.requires
    ranks = parallel.ulysses_degree * parallel.tensor_parallel_size
    assert ranks == preset.world_size == needs.gpus == gpus_of(preset)
    assert parallel.conditioner_tensor_parallel in (1, 2, 4, 8)  # h3-facts 6: 8 KV heads
    assert parallel.conditioner_tensor_parallel <= preset.world_size
    assert not (parallel.fsdp and parallel.ulysses_degree == 1), "shards lie over the ranks that share rows"
    assert preset.source
    assert preset.checkpoint == "MiniMaxAI/MiniMax-H3"
    match = NAME.fullmatch(preset.name)
    if match is None:
        assert preset.name == "one-gpu"
        return
    count, size = int(match[1]), int(match[2])
    assert count == preset.world_size
    assert 0.89 * size <= needs.gpu_memory_gib <= size  # a card shows a little less than its name says
    assert f"{size} GB" in preset.title


@pytest.mark.parametrize("preset", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("frames", [107, 209, 362])
def test_the_longest_clip_fits_the_least_machine(preset, frames):
    hardware = machine(preset.world_size, preset.requires.gpu_memory_gib, preset.requires.host_ram_gib)
    assert lacking(preset, hardware) is None
    placement = place(hardware, preset, shape(1344, 768, frames), ModelSize())
    assert placement.lacks is None
    assert len(placement.ranks) == preset.world_size
    assert len({rank.gpu.uuid for rank in placement.ranks}) == preset.world_size


def test_offload_is_named_where_needed_only():
    for preset in LARGE.values():
        hardware = machine(preset.world_size, preset.requires.gpu_memory_gib, 512)
        parked = place(hardware, preset, shape(1344, 768, 209), ModelSize()).parked
        assert bool(parked) == (preset.requires.host_ram_gib > 100), preset.name  # host memory is asked for to park
        assert preset.runtime.offload is not Offload.NONE or not parked


def test_files_are_read_in_ten_seconds():
    for path in (presets.PRESETS_DIR / "hardware").glob("*.toml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 24, path.name
        assert max(map(len, lines)) <= 160, path.name
