import pytest
import torch
from torch import nn

from backend.runtime import residency as residency_module
from backend.runtime.residency import Residency, on_device

CPU = torch.device("cpu")


def shared():
    """Two parameters that are views of one storage, as fused projections are, and a buffer."""
    both = torch.arange(12.0).reshape(4, 3)
    module = nn.Module()
    module.first, module.second = (nn.Parameter(both[part], requires_grad=False) for part in (slice(2), slice(2, 4)))
    module.register_buffer("step", torch.ones(2))
    return module


@pytest.fixture
def copies(monkeypatch):
    """Stands in for a GPU: to be moved there is to be copied, which the address tells."""

    def copied(module, device, _stays):
        return [(each, each.detach().clone()) for each in [*module.parameters(), *module.buffers()]]

    monkeypatch.setattr(residency_module, "on_device", copied)


def test_views_of_one_storage_stay_views_of_one():
    module = shared()
    assert on_device(module, CPU) == []  # already there
    meta = torch.device("meta")
    moved = dict(zip(("first", "second", "step"), (there for _, there in on_device(module, meta)), strict=True))
    assert moved["first"].untyped_storage()._cdata == moved["second"].untyped_storage()._cdata
    assert moved["second"].storage_offset() == 6


def test_projections_without_storage_are_left_out():
    module = nn.Linear(2, 2, device="meta")
    assert on_device(module, CPU) == []


def test_parked_components_come_and_go_and_keep_their_values(copies):
    left = []
    residency = Residency(CPU, ("a", "b"), left.append)
    a, b, c = shared(), shared(), nn.Linear(2, 2)
    home, values = a.first.data_ptr(), a.second.clone()
    residency.place({"a": a})
    there = a.first.data_ptr()
    assert there != home
    residency.place({"a": a})
    assert a.first.data_ptr() == there  # not moved twice
    residency.place({"b": b, "c": c})
    assert a.first.data_ptr() == home  # the host copy was kept, nothing was copied back
    residency.place({"c": c})
    assert residency.moves == ["+a", "-a", "+b", "-b"]
    assert left == ["a", "b"]
    assert torch.equal(a.second, values)


def test_a_lazy_component_moves_only_when_it_runs(copies):
    residency = Residency(CPU, ("text_encoder", "transformer"), lambda _: None, lazy=("text_encoder",))
    text_encoder, transformer = shared(), shared()
    residency.place({"transformer": transformer})
    residency.place({"text_encoder": text_encoder})
    assert residency.moves == ["+transformer"]
    residency.ensure()
    residency.ensure()
    assert residency.moves == ["+transformer", "-transformer", "+text_encoder"]


def test_a_component_that_was_replaced_is_not_restored(copies):
    left = []
    residency = Residency(CPU, ("transformer",), left.append)
    residency.place({"transformer": shared()})
    residency.drop(("transformer",))
    residency.place({"vae": nn.Linear(2, 2)})
    assert left == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_follows_the_plan():
    device = torch.device("cuda")
    residency = Residency(device, ("a", "b"), lambda _: None)
    a, b = nn.Linear(4096, 4096), nn.Linear(4096, 4096)
    x = torch.randn(1, 4096)
    expected = a(x)
    nn.Linear(4096, 4096).to(device)(x.to(device))  # cuBLAS takes its workspace at the first product, and keeps it
    before = torch.cuda.memory_allocated()
    residency.place({"a": a})
    held = torch.cuda.memory_allocated() - before
    assert torch.allclose(a(x.to(device)).cpu(), expected, atol=1e-4)
    residency.place({"b": b})
    assert torch.cuda.memory_allocated() - before == held
    assert torch.equal(a(x), expected)


def test_what_stays_home_is_not_moved():
    module = shared()
    moved = on_device(module, torch.device("meta"), lambda name: name == "second")
    assert [tensor is module.second for tensor, _ in moved] == [False, False]
    assert len(moved) == 2
