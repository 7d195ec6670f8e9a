"""Presets against machines: the most demanding one that fits, named ones win, and every refusal has its figures."""

import dataclasses

import pytest

from backend.errors import PresetError
from backend.hardware import probe as probing
from backend.hardware.choose import choose, unavailable
from backend.hardware.probe import Gpu, Hardware, disk_free, probe
from backend.presets import Device, HardwarePreset, Requires

GIB = 2**30


def preset(name, gpus=0, memory=0.0, ram=0.0, device=Device.CUDA):
    return HardwarePreset(
        name=name,
        title=name.title(),
        description="",
        source="",
        checkpoint="big" if gpus else "tiny",
        device=device if gpus else Device.CPU,
        world_size=max(1, gpus),
        requires=Requires(gpus=gpus, gpu_memory_gib=memory, host_ram_gib=ram),
    )


PRESETS = {
    item.name: item
    for item in (preset("tiny"), preset("one", 1, 78, 140), preset("four", 4, 78, 64), preset("small", 2, 22, 200))
}


def machine(count=0, memory=80.0, ram=512.0):
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", name="H100", memory_total_gib=memory, memory_free_gib=memory)
        for i in range(count)
    )
    return Hardware(gpus=gpus, ram_total_gib=ram, ram_free_gib=ram, disk_free_gib=100, cpu_cores=8)


@pytest.mark.parametrize(
    ("hardware", "chosen", "words"),
    [
        (machine(0), "tiny", "No GPU found"),
        (machine(1), "one", "1 x H100 (80 GiB)"),
        (machine(1, ram=64), "tiny", "140 GiB of host RAM, found 64 GiB"),
        (machine(8), "four", "8 x H100"),
        (machine(2, memory=24), "small", "2 x H100 (24 GiB)"),
        (machine(1, memory=24), "tiny", "needs 1 GPU with 78 GiB"),
        (machine(1, memory=77.9), "one", "found"),  # a nominal 78 GiB card shows a little less
    ],
)
def test_the_most_demanding_preset_that_fits(hardware, chosen, words):
    choice = choose(PRESETS, hardware, lambda item: None)
    assert choice.preset.name == chosen
    assert words in choice.reason
    assert choice.reason.endswith(".")


def test_missing_weights_fall_back_and_say_so():
    choice = choose(PRESETS, machine(4), lambda item: "not downloaded" if item.checkpoint == "big" else None)
    assert choice.preset.name == "tiny"
    assert "Four would fit, but its model is missing (not downloaded)" in choice.reason


def test_explicit_names_win_and_unknown_ones_are_listed():
    assert choose(PRESETS, machine(0), lambda item: None, "four").preset.name == "four"
    with pytest.raises(PresetError, match="choose one of four, one, small, tiny"):
        choose(PRESETS, machine(0), lambda item: None, "nine")


def test_refusals_carry_figures():
    none = lambda item: None  # noqa: E731
    assert unavailable(PRESETS["one"], machine(0), none) == "needs 1 GPU with 78 GiB, found none"
    assert unavailable(PRESETS["four"], machine(2, 24), none) == "needs 4 GPUs with 78 GiB, found 2 x H100 (24 GiB)"
    assert unavailable(PRESETS["tiny"], machine(0), lambda item: "damaged") == "damaged"
    assert unavailable(PRESETS["tiny"], machine(0), none) is None


def test_nothing_fits_names_every_reason():
    only = {"one": PRESETS["one"]}
    with pytest.raises(PresetError, match="one needs 1 GPU with 78 GiB, found none"):
        choose(only, machine(0), lambda item: None)


def test_this_machine(tmp_path):
    hardware = probe(tmp_path / "not" / "yet" / "there")
    assert 0 < hardware.ram_free_gib <= hardware.ram_total_gib
    assert hardware.cpu_cores >= 1
    assert hardware.disk_free_gib == pytest.approx(disk_free(tmp_path) / GIB, rel=0.1)
    assert bool(hardware.gpus) != bool(hardware.gpu_note) or hardware.gpus


def test_a_missing_driver_is_a_normal_state(monkeypatch):
    def no_driver():
        raise probing.pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(probing.pynvml, "nvmlInit", no_driver)
    hardware = probe()
    assert hardware.gpus == ()
    assert "no NVIDIA driver" in hardware.gpu_note


def test_a_containers_limit_counts_and_page_cache_is_free(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 2}\n")
    monkeypatch.setattr(probing, "_CGROUP_V2", (tmp_path / "memory.max", tmp_path / "memory.current"))
    monkeypatch.setattr(probing, "_CGROUP_V1", (tmp_path / "none", tmp_path / "none"))
    hardware = probe()
    assert hardware.ram_total_gib == 2
    assert hardware.ram_free_gib == pytest.approx(1.5)
    (tmp_path / "memory.max").write_text("max\n")
    assert probe().ram_total_gib > 2


def test_a_cpu_quota_counts(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(probing, "_CPU_MAX", tmp_path / "cpu.max")
    assert probe().cpu_cores == 1


def test_visible_devices_limit_and_order_what_is_seen(monkeypatch):
    gpus = list(machine(4).gpus)
    for text, expected in (("2,0", [2, 0]), ("GPU-3", [3]), ("1,9,2", [1]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert [gpu.index for gpu in probing._visible(gpus)] == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert probing._visible(gpus) == gpus
    slice_of_one = dataclasses.replace(gpus[0], uuid="MIG-abc", mig=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-abc")
    assert probing._visible([slice_of_one]) == [slice_of_one]
