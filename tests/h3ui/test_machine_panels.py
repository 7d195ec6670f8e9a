"""Pictures and lists of the machine: memory by rank adds up, reasons are told, names from outside stay text."""

from __future__ import annotations

import re

import pytest

from backend.api import Backend
from backend.hardware.machine_view import GpuView
from backend.hardware.probe import Gpu, GpuUser, Hardware
from backend.settings import Settings
from backend.types import GenerationRequest, Sampling
from h3ui.panels import canvas, hardware, memory, system

EVIL = '<img src=x onerror="alert(1)">'


def h200(number: int) -> Gpu:
    return Gpu(
        index=number,
        uuid=f"GPU-{number}",
        name="NVIDIA H200",
        memory_total_gib=139.8,
        memory_free_gib=139.0,
        compute_capability=(9, 0),
        links=18,
    )


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """A machine of four H200s, made up: nothing is started on it."""
    here = Hardware(
        gpus=tuple(map(h200, range(4))),
        ram_total_gib=512,
        ram_free_gib=500,
        disk_free_gib=900,
        cpu_cores=64,
        driver="580",
    )
    monkeypatch.setattr("backend.jobs.machine.probe", lambda folder, only: here)
    made = Backend(Settings(data_dir=tmp_path / "data"), preset="4x141gb")
    yield made
    made.close()


def cost(backend, preset="4x141gb"):
    sampling = Sampling(num_frames=209, width=1344, height=768)
    return backend.forecast(GenerationRequest(prompt="a clip", sampling=sampling), preset)


def test_every_rank_has_a_bar_whose_pieces_fill_its_share_of_the_card(backend):
    told = cost(backend)
    drawn = memory.forecast_html(told)
    bars = re.findall(r'class="mem-card[^"]*" x="96" y="(\d+)" width="([\d.]+)"', drawn)
    assert len(bars) == 4
    for rank, (top, wide) in zip(told.placement.ranks, bars, strict=True):
        pieces = re.findall(rf'class="mem-\w" x="[\d.]+" y="{top}" width="([\d.]+)"', drawn)
        share = sum(map(float, pieces)) / float(wide)
        assert share == pytest.approx(rank.peak.gib / rank.gpu.memory_total_gib, abs=0.02)
    assert "Transformer" in drawn and "Memory of 4 GPUs" in drawn and "Such GPUs" not in drawn


def test_a_preset_that_needs_other_cards_is_drawn_as_planned(backend):
    assert "Such GPUs are not in this machine" in memory.forecast_html(cost(backend, "8x80gb"))


def test_a_server_elsewhere_has_no_memory_here_and_no_seconds_yet(backend):
    asked = GenerationRequest(prompt="a clip", sampling=Sampling(num_frames=209, width=1344, height=768))
    told, plan = cost(backend, "remote"), backend.plan(asked, preset="remote")
    assert memory.forecast_html(told) == (
        '<p class="muted">Nothing is held in memory here: a server elsewhere makes the video.</p>'
    )
    assert "<span>time not known yet</span>" in canvas.plan_html(plan, cost=told)
    option = canvas.SizeOption(name="Full", width=1344, height=768, cost=told, chosen=True)
    assert "time not known yet" in canvas.sizes_html([option])
    (view,) = [item for item in backend.machine().presets if item.name == "remote"]
    assert (view.form, view.total_s, view.times) == ("nothing is computed here", None, ())


def test_the_panel_says_what_was_chosen_the_other_way_to_share_and_what_would_let_others_run(backend):
    shown = hardware.table_html(backend.machine(), backend.qualities(), may_see=True)
    assert shown.count(">NVIDIA H200<") == 4 and "NVLink" in shown
    assert "python app.py --fleets 0" in shown
    assert "needs 8 GPUs" in shown and "Would run with 4 more GPUs" in shown
    assert ">exact<" in shown and ">approximate<" in shown


def test_other_users_of_a_card_are_told_to_whoever_may_see_and_names_stay_text():
    gpu = GpuView(
        index=0,
        uuid="GPU-0",
        name=EVIL,
        link="PCIe",
        mig=False,
        total_gib=24,
        free_gib=1,
        used_gib=23,
        compute_capability="8.9",
        ours=(),
        others=(GpuUser(pid=7, memory_gib=20.0),),
    )
    shown = hardware.gpu_html(gpu, may_see=True)
    assert "1 other program on it with 20.0 GiB" in shown and "<img" not in shown and "bar thin full" in shown
    assert "other program" not in hardware.gpu_html(gpu, may_see=False)


def test_no_engine_is_an_empty_state_and_not_an_empty_table(backend):
    shown = system.live_html(backend.machine())
    assert "No engine is up" in shown and "<table" not in shown and "driver 580" in shown
