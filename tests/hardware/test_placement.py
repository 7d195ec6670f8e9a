"""Memory of every rank on every kind of machine, against what was measured on H200s and the facts of the model."""

import dataclasses

import pytest
from shapes import machine, shape

from backend import presets
from backend.footprint import Widths, planned_work
from backend.hardware.choose import choose, lacking, pick_gpus
from backend.hardware.model_size import GIB, ModelSize, size_of
from backend.hardware.placement import place
from backend.hardware.probe import Gpu, Hardware, select
from backend.presets import Device, Dtype, Exchange, HardwarePreset, Offload, Parallel, RuntimeOptions
from backend.types import Stage

SIZE = ModelSize()
ONE = HardwarePreset(name="one", title="", description="", source="", checkpoint="")
STOCK = dataclasses.replace(ONE, runtime=RuntimeOptions(fused_block=False, adaln_tables=False, fast_load=False))
TWO = dataclasses.replace(ONE, world_size=2, parallel=Parallel(ulysses_degree=2))
KINDS = {24: 23.99, 32: 31.84, 48: 44.98, 80: 79.65, 96: 95.59, 141: 140.4, 180: 179.06}  # GiB as NVML shows them
H200 = machine(8, 139.8)


def part(placement, stage, *names, rank=0):
    found = next(item for item in placement.ranks[rank].stages if item.stage is stage)
    return sum(item.gib for item in found.parts if item.name in names)


TORCH = ("transformer", "tables", "activations", "exchange")  # what torch's allocator holds in bench.step


@pytest.mark.parametrize(
    ("preset", "canvas", "measured"),
    [
        # bench/results/step.json, one H200: peak_gib beside a lone transformer
        (ONE, (960, 544, 124), 40.14),
        (ONE, (1344, 768, 124), 41.69),
        (ONE, (1344, 768, 209), 43.83),
        (STOCK, (960, 544, 124), 65.25),
        (STOCK, (1344, 768, 124), 68.34),
        (STOCK, (1344, 768, 209), 72.62),
        # performance.md 1: another run, its sketch and two GPUs
        (ONE, (1344, 768, 209), 43.7),
        (STOCK, (1344, 768, 209), 72.8),
    ],
)
def test_denoise_peaks_as_measured(preset, canvas, measured):
    peak = part(place(H200, preset, shape(*canvas), SIZE), Stage.DENOISE, *TORCH)
    assert peak == pytest.approx(measured, rel=0.02)  # the issue asks for 10 %


@pytest.mark.parametrize(
    ("parallel", "measured"),
    [
        # bench/results/parallel-2.json: 124 and 209 frames of 1344x768 over two H200s
        ({"exchange": Exchange.PACKED}, (41.14, 42.94)),
        ({"exchange": Exchange.OVERLAPPED}, (41.37, 43.34)),
        ({}, (40.57, 41.99)),
        # Rooms that GPUs map from each other are not in torch's count: 16 * 38,010 or 63,492 * 7168 / 2 bytes
        ({"exchange": Exchange.MAPPED}, (40.19 + 2.03, 41.36 + 3.39)),
        ({"exchange": Exchange.PACKED, "fsdp": True}, (24.68, 26.49)),
        ({"ulysses_degree": 1, "tensor_parallel_size": 2}, (22.69, 24.15)),
    ],
    ids=str,
)
def test_two_ranks_peak_as_measured(parallel, measured):
    preset = dataclasses.replace(ONE, world_size=2, parallel=Parallel(**{"ulysses_degree": 2, **parallel}))
    for frames, gib in zip((124, 209), measured, strict=True):
        peak = part(place(H200, preset, shape(1344, 768, frames), SIZE), Stage.DENOISE, *TORCH)
        assert peak == pytest.approx(gib, rel=0.03)  # the issue asks for 10 %


@pytest.mark.parametrize(("timesteps", "gib"), [(2, 0.89), (3, 1.33), (4, 1.77)])
def test_tables_take_what_the_facts_say(timesteps, gib):
    placement = place(H200, ONE, shape(1344, 768, 124, timesteps=timesteps), SIZE)
    assert part(placement, Stage.DENOISE, "tables") == pytest.approx(gib, abs=0.005)  # h3-facts 4


def test_weights_are_those_of_the_facts():
    assert SIZE.transformer / GIB == pytest.approx(61.7, abs=0.05)  # h3-facts 1
    assert SIZE.adaln / GIB == pytest.approx(24.29, abs=0.005)  # h3-facts 4
    assert SIZE.text_encoder / 1e9 == pytest.approx(51.5, abs=0.05)
    assert SIZE.vae / GIB == pytest.approx(5.19, abs=0.005)  # bench/results/decode.json
    assert SIZE.stored / GIB == pytest.approx(134, abs=0.5)  # h3-facts 7


def test_a_whole_job_on_one_h200_peaks_as_measured():
    """bench/results/end_to_end.json: 92.05 GiB of weights and tables, 97.55 and 97.81 GiB at the peak of two jobs."""
    placement = place(H200, ONE, shape(1344, 768, 209), SIZE)
    resident = part(placement, Stage.ENCODE, "transformer", "text_encoder", "vae", "audio_vae", "tables")
    assert resident == pytest.approx(92.05, abs=0.02)
    libraries = "CUDA context and libraries"  # not in torch's count
    peak = max(sum(item.gib for item in stage.parts if item.name != libraries) for stage in placement.ranks[0].stages)
    assert peak == pytest.approx(97.7, rel=0.005)


def test_decode_peaks_as_measured():
    placement = place(H200, ONE, shape(1344, 768, 209), SIZE)
    stack = next(item for item in placement.ranks[0].stages if item.stage is Stage.DECODE).parts
    tiles = next(item for item in stack if item.name.startswith("VAE stack"))
    assert tiles.name == "VAE stack of 28 tiles"  # h3-facts 6
    assert tiles.gib + SIZE.vae / GIB == pytest.approx(8.83, rel=0.02)  # bench/results/decode.json


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_machine_is_placed_or_refused_with_figures(kind, count):
    """1 to 8 GPUs of every listed kind: what is chosen fits its longest clip, what is refused says by how much."""
    hardware = machine(count, KINDS[kind], 512, name=f"GPU of {kind} GB")
    offered = {name: item for name, item in presets.hardware_presets().items() if item.device is Device.CUDA}
    tiny = presets.hardware_presets()["tiny-cpu"]
    choice = choose({**offered, "tiny-cpu": tiny}, hardware, lambda item: None)
    fits = not (count == 8 and kind < 80)
    assert choice.preset is not tiny
    assert choice.preset.world_size <= count
    placement = place(hardware, choice.preset, shape(1344, 768, 362), SIZE)
    assert placement.lacks is None
    assert [rank.gpu.uuid for rank in placement.ranks] == [f"GPU-{i}" for i in range(choice.preset.world_size)]
    if fits:
        assert choice.preset.world_size == count
    for preset in offered.values():
        reason = lacking(preset, hardware)
        if reason is None:
            longest = place(hardware, preset, shape(1344, 768, 362), SIZE)
            assert longest.lacks is None, f"{preset.name} says it runs here: {longest.lacks}"
        else:
            assert reason.startswith("needs "), reason
            assert f"found {count} x GPU of {kind} GB" in reason or "host RAM" in reason


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_odd_machines_use_the_largest_even_share(count):
    chosen = choose(presets.hardware_presets(), machine(count, 140.4), lambda item: None)
    assert chosen.preset.name == {3: "2x141gb", 5: "4x141gb", 6: "4x141gb", 7: "4x141gb"}[count]


def test_tensor_parallel_shards_and_readers_divide_what_they_should():
    base = part(place(H200, ONE, shape(1344, 768, 124), SIZE), Stage.DENOISE, "transformer")
    whole = SIZE.outside_blocks / GIB  # the refiner and the rest: h3-facts 6 replicates them
    tensor = dataclasses.replace(ONE, world_size=4, parallel=Parallel(tensor_parallel_size=4))
    assert part(place(H200, tensor, shape(1344, 768, 124), SIZE), Stage.DENOISE, "transformer") == pytest.approx(
        whole + (base - whole) / 4
    )
    sharded = dataclasses.replace(ONE, world_size=4, parallel=Parallel(ulysses_degree=4, fsdp=True))
    held = part(place(H200, sharded, shape(1344, 768, 124), SIZE), Stage.DENOISE, "transformer")
    assert held == pytest.approx(whole + (base - whole) * (1 / 4 + 2 / 50))  # own shard, two of 50 blocks gathered
    readers = dataclasses.replace(
        ONE, world_size=4, parallel=Parallel(ulysses_degree=4, conditioner_tensor_parallel=2, vae_tile_parallel=False)
    )
    placement = place(H200, readers, shape(1344, 768, 124), SIZE)
    texts = [part(placement, Stage.ENCODE, "text_encoder", rank=rank) for rank in range(4)]
    # 50 layers of 975 MB are divided; embedding and vision tower, 2.7 GB, are whole on every reader
    assert texts == [pytest.approx((50 * 0.9752e9 / 2 + 2.745e9) / GIB, rel=1e-3)] * 2 + [0, 0]
    tiles = next(item for item in placement.ranks[0].stages if item.stage is Stage.DECODE).parts[-2]
    assert tiles.name == "VAE stack of 28 tiles"  # rank 0 decodes alone


def test_a_mixed_machine_uses_the_cards_that_suit():
    def gpu(index, name, total, free=None):
        return Gpu(index=index, uuid=f"GPU-{index}", name=name, memory_total_gib=total, memory_free_gib=free or total)

    mixed = (gpu(0, "small", 24), gpu(1, "H100", 80, 10), gpu(2, "H100", 80), gpu(3, "H200", 140), gpu(4, "H100", 80))
    shipped = presets.hardware_presets()
    assert [item.index for item in pick_gpus(shipped["2x80gb"], mixed)] == [2, 4]  # one kind, and not the busy one
    assert [item.index for item in pick_gpus(shipped["1x141gb"], mixed)] == [3]
    assert {item.index for item in pick_gpus(shipped["4x80gb"], mixed)} == {1, 2, 3, 4}  # no kind has four
    assert pick_gpus(shipped["2x141gb"], mixed) == ()


def test_gpus_are_selected_by_index_or_uuid():
    gpus = machine(4).gpus
    assert [gpu.index for gpu in select(gpus, ("2", "GPU-0"))] == [2, 0]
    for only, said in ((("9",), "gpus=9: there is no such GPU"), (("1", "GPU-1"), "named twice")):
        with pytest.raises(presets.PresetError, match=said):
            select(gpus, only)


def test_a_request_too_large_says_which_rank_lacks_what():
    """A card of 48 GB is never offered the preset of one GPU, and one that is forced says by how much it fails."""
    placement = place(machine(1, 44.98), ONE, shape(1344, 768, 362), SIZE)
    assert placement.lacks.startswith("rank 0 needs 10")  # 102 GiB
    assert placement.lacks.endswith("H100 has 43.6 GiB usable")
    offloading = dataclasses.replace(ONE, runtime=RuntimeOptions(offload=Offload.COMPONENT))
    small = place(machine(1, 79.65, ram=64), offloading, shape(1344, 768, 124), SIZE)
    assert small.lacks == "needs 88 GiB of host RAM, this machine has 64 GiB"


def test_parking_follows_the_runtimes_own_rule():
    """`offload = auto` parks as backend.runtime.plan does, for every size of card that holds the model at all."""
    plan = pytest.importorskip("backend.runtime.plan")
    auto = dataclasses.replace(ONE, runtime=RuntimeOptions(offload=Offload.AUTO))
    weights = {
        "text_encoder": SIZE.text_encoder,
        "transformer": SIZE.trunk,
        "vae": SIZE.vae,
        "audio_vae": SIZE.audio_vae,
    }
    for total in (60, 66, 80, 96, 102, 104, 110, 140, 180):
        decided = plan.decide(weights, int(total * GIB), Offload.AUTO)
        placed = place(machine(1, total), auto, shape(1344, 768, 124), SIZE)
        assert set(placed.parked) == set(decided.parked), total


@pytest.mark.parametrize(
    "name", [name for name, item in presets.hardware_presets().items() if item.device is Device.CUDA]
)
def test_the_runtime_agrees_on_every_shipped_preset(name):
    """On the least machine a preset asks for, backend.runtime.plan loads what rank 0 holds, and parks the same."""
    plan = pytest.importorskip("backend.runtime.plan")
    preset = presets.hardware_presets()[name]
    hardware = machine(preset.world_size, preset.requires.gpu_memory_gib)
    placement = place(hardware, preset, shape(1344, 768, 124), SIZE)
    parallel = preset.parallel
    tensor, readers = parallel.tensor_parallel_size, parallel.conditioner_tensor_parallel
    blocks = (SIZE.trunk - SIZE.outside_blocks) // tensor
    shards = blocks // parallel.ulysses_degree + 2 * blocks // 50 if parallel.fsdp else blocks
    weights = {
        "text_encoder": SIZE.text_encoder - 50 * SIZE.text_layer + 50 * SIZE.text_layer // readers,
        "transformer": SIZE.outside_blocks + shards,
        "vae": SIZE.vae,
        "audio_vae": SIZE.audio_vae,
    }
    layers = 48 * SIZE.text_layer // readers  # two of 50 are there
    streamed = {
        "text_encoder": weights["text_encoder"] - layers,
        "transformer": SIZE.outside_blocks + (2 + preset.runtime.resident_layers) * blocks // 50,
    }
    work = planned_work(Widths(), parallel, preset.runtime)
    room = int(preset.requires.gpu_memory_gib * GIB)
    decided = plan.decide(weights, room, preset.runtime.offload, work, streamed)
    assert set(decided.parked) == set(placement.parked)
    assert bool(decided.streamed) == (preset.runtime.offload is Offload.BLOCKS)


def test_sizes_of_a_folder_are_read_from_its_headers(tiny_checkpoint):
    size = size_of(tiny_checkpoint, 4)
    stored = sum(path.stat().st_size for path in tiny_checkpoint.rglob("*.safetensors"))
    twice = sum(path.stat().st_size for path in (tiny_checkpoint / "transformer_ref").glob("*.safetensors"))
    headers = 8 * 2**20
    assert 0 < stored - twice - size.stored < headers
    assert (size.hidden, size.inner, size.layers, size.vae_width) == (64, 128, 4, 64)  # backend.checkpoints.nano
    from backend.jobs.outlook import TINY

    for name in ("text_encoder", "trunk", "adaln", "vae", "audio_vae", "stored"):  # before it is built, it is guessed
        assert getattr(TINY, name) == pytest.approx(getattr(size, name), rel=0.15), name


def test_a_cpu_counts_host_memory():
    preset = dataclasses.replace(ONE, device=Device.CPU, dtype=Dtype.FLOAT32, world_size=2)
    placement = place(
        Hardware(gpus=(), ram_total_gib=16, ram_free_gib=16, disk_free_gib=9, cpu_cores=2),
        preset,
        shape(224, 128, 107),
        SIZE,
    )
    assert placement.parked == ()
    assert all(rank.gpu is None for rank in placement.ranks)
    assert "host RAM" in placement.lacks  # twice the released model in 16 GiB


def test_streamed_presets_hold_two_blocks_and_the_rest_waits_in_host_memory():
    one = dataclasses.replace(ONE, runtime=RuntimeOptions(offload=Offload.BLOCKS, resident_layers=10))
    placement = place(machine(1, 31.84), one, shape(1344, 768, 124), SIZE)
    block = (SIZE.trunk - SIZE.outside_blocks) / 50 / GIB
    assert block == pytest.approx(0.7178, abs=1e-3)  # 28672 + 14336 + 21504 + 7168 rows of 5376: 385.3 M numbers
    assert part(placement, Stage.DENOISE, "transformer") == pytest.approx(SIZE.outside_blocks / GIB + 12 * block)
    assert part(placement, Stage.ENCODE, "text_encoder") == pytest.approx((2.745e9 + 2 * 0.9752e9) / GIB, rel=1e-3)
    waiting = next(item.gib for item in placement.host if item.name == "parked components")
    assert waiting == pytest.approx((SIZE.trunk + SIZE.text_encoder) / GIB)
    assert set(placement.parked) == {"text_encoder", "transformer"}
