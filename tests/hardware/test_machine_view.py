"""What is shown of a machine: who uses which GPU, each preset with its plan or its reason and nearest change."""

import dataclasses
import json

import pytest
from shapes import machine, shape

from backend import codec, presets
from backend.hardware.choose import choose, nearest_change, unavailable
from backend.hardware.machine_view import Judge, MachineView, machine_view
from backend.hardware.model_size import ModelSize
from backend.hardware.probe import GpuUser
from backend.hardware.topology import RankView
from backend.types import Stage

SHIPPED = presets.hardware_presets()
RELEASED = {name: preset for name, preset in SHIPPED.items() if preset.device is presets.Device.CUDA}


def here(_preset):
    return None


def missing(preset):
    return None if preset.device is presets.Device.CPU else f"{preset.checkpoint} is not downloaded"


def look(hardware, ranks=(), checkpoint=here, offered=RELEASED):
    choice = choose(SHIPPED, hardware, checkpoint)
    judge = Judge(
        unavailable=lambda preset: unavailable(preset, hardware, checkpoint),
        case=lambda _: (shape(1344, 768, 124), ModelSize()),
    )
    return machine_view(hardware, tuple(offered.values()), choice, ranks, judge)


def by_name(view):
    return {preset.name: preset for preset in view.presets}


def test_each_preset_fits_or_says_what_would_let_it():
    view = look(machine(2, 79.65, ram=64, name="NVIDIA H100 80GB HBM3", links=18))
    found = by_name(view)
    assert view.chosen == "2x80gb"
    assert found["2x80gb"].fits and found["2x80gb"].chosen and found["2x80gb"].change is None
    assert found["2x80gb"].total_s == pytest.approx(sum(time.seconds for time in found["2x80gb"].times))
    assert [rank.gpu_index for rank in found["2x80gb"].ranks] == [0, 1]
    assert found["4x80gb"].change == "2 more GPUs with 78 GiB or more"
    assert found["2x96gb"].change == "2 GPUs with 94 GiB or more (the largest here has 80)"
    assert found["one-gpu"].change == "76 GiB more host RAM"  # 140 of 64
    assert all((preset.reason is None) == preset.fits == (preset.change is None) for preset in view.presets)


def test_a_preset_without_its_cards_is_planned_for_the_ones_it_asks_for_and_promises_no_seconds():
    four = by_name(look(machine()))["4x48gb"]
    assert four.reason == "needs 4 GPUs with 44 GiB, found none"
    assert four.step_s is None and four.times == ()
    assert all(rank.planned and rank.gpu_index is None for rank in four.ranks)
    assert all(0 < rank.peak_gib <= rank.usable_gib for rank in four.ranks)
    assert four.peak_gib == max(rank.peak_gib for rank in four.ranks)


def test_missing_weights_are_named_where_the_machine_would_do():
    found = by_name(look(machine(1, 140.4, name="NVIDIA H200"), checkpoint=missing))
    assert found["1x141gb"].reason == "MiniMaxAI/MiniMax-H3 is not downloaded"
    assert found["1x141gb"].change == "the weights of MiniMaxAI/MiniMax-H3 on this disk"


def test_users_of_a_card_are_told_apart_from_our_ranks():
    plain = machine(2, 79.65, links=18)
    users = (GpuUser(pid=10, memory_gib=40.0), GpuUser(pid=99, memory_gib=7.0))
    cards = (dataclasses.replace(plain.gpus[0], users=users, memory_free_gib=30.0), plain.gpus[1])
    rank = RankView(fleet=0, rank=0, pid=10, state="busy", stage=Stage.DENOISE, rss_gib=3.0, gpu_uuid="GPU-0")
    view = look(dataclasses.replace(plain, gpus=cards), ranks=(rank,))
    first, second = view.gpus
    assert (first.ours, first.others) == ((10,), (GpuUser(pid=99, memory_gib=7.0),))
    assert first.used_gib == pytest.approx(49.65)
    assert (second.ours, second.others, second.link) == ((), (), "NVLink")
    assert view.ranks == (rank,)


def test_mig_slices_are_called_so_and_everything_is_json():
    plain = machine(2, 24.0)
    slices = tuple(dataclasses.replace(gpu, mig=True, compute_capability=(9, 0)) for gpu in plain.gpus)
    view = look(dataclasses.replace(plain, gpus=slices))
    assert {gpu.link for gpu in view.gpus} == {"MIG slice"}
    assert view.gpus[0].compute_capability == "9.0"
    assert codec.decode(MachineView, json.loads(json.dumps(codec.encode(view)))) == view


def test_what_is_asked_for_is_enough():
    """The change that is named, made, leaves nothing lacking."""
    for preset in RELEASED.values():
        for hardware in (machine(), machine(1, 23.99, ram=16), machine(2, 79.65, ram=30), machine(8, 44.98, ram=500)):
            change = nearest_change(preset, hardware)
            if change is None:
                continue
            ram = int(change.split(" GiB more host RAM")[0].split()[-1]) if "host RAM" in change else 0
            count = int(change.split()[0]) if "GPU" in change else 0
            added = machine(count, preset.requires.gpu_memory_gib, name="new").gpus
            better = dataclasses.replace(
                hardware, gpus=(*hardware.gpus, *added), ram_total_gib=hardware.ram_total_gib + ram
            )
            assert nearest_change(preset, better) is None, (preset.name, change)
