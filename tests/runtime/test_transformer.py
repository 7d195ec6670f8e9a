import pytest
import torch
from torch import nn

from backend.presets import RuntimeOptions
from backend.runtime.adaln_tables import (
    AdaLNTables,
    Installation,
    ModelProjections,
    TableError,
    TableKey,
    build,
    timestep_bits,
)
from backend.runtime.block import fuse
from backend.runtime.kernels import choose_kernels, triton_or_reason, worst_distance
from backend.runtime.ops import TorchOps
from backend.runtime.transformer import FastTransformer
from bench import models

CPU = torch.device("cpu")


def fast(model, said=None, **options):
    said = [] if said is None else said
    dtype = model.transformer_blocks[0].attn.to_k.weight.dtype
    runtime = RuntimeOptions(**options)
    kernels = choose_kernels(next(model.parameters()).device, dtype, runtime, said.append, head_dim=32)
    return FastTransformer(model, kernels, said.append, fused=runtime.fused_block)


def with_tables(runner, timesteps):
    key = TableKey.of(timesteps, "test")
    installation = Installation(runner.model, build(ModelProjections(runner.model), timesteps, key))
    installation.release()
    runner.install(installation)
    runner.begin(timesteps)
    return runner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_exact_option_on_is_bit_equal_to_diffusers(dtype, case):
    model = models.transformer(CPU, dtype, tiny=True)
    case["encoder_hidden_states"] = case["encoder_hidden_states"].to(dtype)
    expected = model(**case, return_dict=False)
    runner = with_tables(fast(model), [case["timestep"], torch.tensor([0.1])])
    for _ in range(2):  # the second time from what was remembered
        got = runner(**case, return_dict=False)
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("options", [{"fused_block": False}, {"adaln_tables": False}, {}])
def test_each_option_alone_is_bit_equal(options, transformer, case):
    expected = transformer(**case, return_dict=False)
    got = fast(transformer, **options)(**case)
    assert torch.equal(got.sample, expected[0]) and torch.equal(got.audio_sample, expected[1])


@pytest.mark.thorough
def test_the_compiled_block_differs_by_rounding_only(transformer, case):
    # A fused graph keeps products in registers where eager operations round: 3 layers of float32 stay under 1e-5.
    expected = transformer(**case, return_dict=False)
    runner = fast(transformer, compile=True)
    assert runner.kernels.name == "compiled"
    got = runner(**case, return_dict=False)
    assert (got[0] - expected[0]).abs().max() < 1e-5


def test_a_block_that_cannot_be_compiled_is_said_once_and_costs_speed_only(transformer, case):
    expected = transformer(**case, return_dict=False)
    said = []
    runner = fast(transformer, said, compile=True)

    def fails(*_):
        raise RuntimeError("no compiler\nand more")

    runner.kernels.compiled = fails
    for _ in range(2):
        assert torch.equal(runner(**case, return_dict=False)[0], expected[0])
    assert said == ["The block could not be compiled (no compiler); it runs as eager, which is slower."]


def test_a_new_request_is_not_answered_from_the_last_one(transformer, case):
    runner = fast(transformer)
    runner(**case, return_dict=False)
    other = dict(case)
    other["encoder_hidden_states"] = torch.randn_like(case["encoder_hidden_states"])
    other["position_ids"] = case["position_ids"] + 3
    expected = transformer(**other, return_dict=False)
    assert torch.equal(runner(**other, return_dict=False)[0], expected[0])
    other["encoder_hidden_states"].mul_(2)  # the same tensor, changed in place
    expected = transformer(**other, return_dict=False)
    assert torch.equal(runner(**other, return_dict=False)[0], expected[0])


def test_q_k_v_share_one_storage_and_keep_their_values(transformer):
    attn = transformer.transformer_blocks[0].attn
    before = [each.weight.clone() for each in (attn.to_q, attn.to_k, attn.to_v)]
    weights = fuse(transformer.transformer_blocks[0])
    assert torch.equal(weights.qkv, torch.cat(before))
    assert attn.to_k.weight.untyped_storage().data_ptr() == weights.qkv.untyped_storage().data_ptr()
    assert fuse(transformer.transformer_blocks[0]).qkv.data_ptr() == weights.qkv.data_ptr()  # nothing is copied again


def test_weights_that_an_adapter_changed_are_seen_by_the_next_request(transformer, case):
    runner = fast(transformer)
    runner.begin([case["timestep"]])
    runner(**case, return_dict=False)
    to_q = transformer.transformer_blocks[1].attn.to_q
    to_q.weight.data = to_q.weight.data + 0.1  # as a merge that replaces the storage
    expected = transformer(**case, return_dict=False)
    runner.begin([case["timestep"]])
    assert torch.equal(runner(**case, return_dict=False)[0], expected[0])


def test_an_unmerged_adapter_runs_on_the_models_own_forward(transformer, case):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer, self.merged = base, False

        def forward(self, x):
            return self.base_layer(x) * 2

    attn = transformer.transformer_blocks[0].attn
    attn.to_q = Adapted(attn.to_q)
    expected = transformer(**case, return_dict=False)
    said = []
    runner = fast(transformer, said)
    for _ in range(2):
        assert torch.equal(runner(**case, return_dict=False)[0], expected[0])
    assert len(said) == 1 and "attn.to_q carries an adapter that is not merged" in said[0]


def test_a_step_that_was_not_tabulated_is_an_error(transformer, case):
    runner = with_tables(fast(transformer), [torch.tensor([0.1])])
    with pytest.raises(TableError, match="hold 1 other steps"):
        runner(**case, return_dict=False)


def test_steps_are_found_by_the_announced_tensor_without_reading_it(transformer, case, monkeypatch):
    runner = with_tables(fast(transformer), [case["timestep"]])
    monkeypatch.setattr("backend.runtime.transformer.timestep_bits", None)  # reading would call None
    assert runner(**case, return_dict=False)[0].isfinite().all()


TRITON = """
import torch
from backend.runtime.kernels import differing, worst_distance
from backend.runtime.ops import Norm, TorchOps
from backend.runtime.triton_ops import TritonOps
cpu = torch.device("cpu")
assert worst_distance(TorchOps(), TritonOps(), cpu, torch.float32) < 1e-6
x, y, scale, weight = torch.randn(9, 96), torch.randn(9, 96), torch.rand(96), torch.rand(96)
expected = x + scale * y
normed = torch.nn.functional.rms_norm(expected, (96,), weight, 1e-5)
got = TritonOps().scale_norm(x, y, scale, Norm(weight, 1e-5), torch.float32)
assert torch.equal(x, expected)
assert (got - normed).abs().max() < 1e-5
"""


def test_the_hand_written_kernels_compute_the_same_in_triton_s_interpreter():
    import os
    import subprocess
    import sys

    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", TRITON], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_a_gpu_the_hand_written_kernels_say_why():
    assert triton_or_reason(CPU, torch.float32) == (None, "they need a CUDA device, found cpu")


def test_the_trial_notices_a_wrong_kernel():
    class Wrong(TorchOps):
        def swiglu(self, up):
            value, gate = up.chunk(2, dim=-1)
            return value * torch.sigmoid(gate)

    assert worst_distance(TorchOps(), Wrong(), CPU, torch.float32) > 0.1
    assert worst_distance(TorchOps(), TorchOps(), CPU, torch.float32) == 0.0


def on_meta(case):
    return {name: each.to("meta") for name, each in case.items()}


def test_a_step_reads_no_value_back_from_its_device(transformer, case):
    # On the meta device nothing has a value: whatever asked for one, as a wait for a GPU does, would raise.
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.empty(1, device="meta").tolist()
    schedule = [case["timestep"], case["timestep"] * 0.9]
    runner = with_tables(fast(transformer), schedule)
    tables = runner._tables.tables
    transformer.to("meta")
    empty = AdaLNTables(tables.key, tables.blocks.to("meta"), tables.final.to("meta"))
    runner.install(Installation(transformer, empty))
    runner.forget()
    steps = [each.to("meta") for each in schedule]
    runner._announced = [(step, timestep_bits(known)) for step, known in zip(steps, schedule, strict=True)]
    sequence = on_meta(case)
    for step in steps:
        video, audio = runner(**(sequence | {"timestep": step}), return_dict=False)
        assert (video.is_meta, audio.shape[0]) == (True, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_step_does_not_wait_for_the_device():
    device = torch.device("cuda")
    model = models.transformer(device, torch.bfloat16, tiny=True)
    case = models.sequence(models.Shape(320, 192, 22), device, torch.bfloat16, text_dim=48)
    runner = with_tables(fast(model), [case["timestep"]])
    first = runner(**case, return_dict=False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = runner(**case, return_dict=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first[0], again[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_hand_written_kernels_keep_diffusers_rounding(case):
    device = torch.device("cuda")
    model = models.transformer(device, torch.bfloat16, tiny=True)
    case = models.sequence(models.Shape(320, 192, 22), device, torch.bfloat16, text_dim=48, condition_rows=2)
    expected = model(**case, return_dict=False)
    runner = fast(model, attention="sdpa")
    assert runner.kernels.name == "triton"
    got = runner(**case, return_dict=False)
    # Equal but for the order of a norm's sum, which moves a bf16 rounding in one of 10,000 values.
    assert float((got[0] - expected[0]).norm() / expected[0].norm()) < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_compiled_block_is_one_graph_around_the_chosen_kernel(case):
    device = torch.device("cuda")
    model = models.transformer(device, torch.bfloat16, tiny=True)
    case = models.sequence(models.Shape(320, 192, 22), device, torch.bfloat16, text_dim=48)
    expected = model(**case, return_dict=False)
    said = []
    runner = fast(model, said, triton=False, compile=True)
    got = runner(**case, return_dict=False)
    assert not said and runner.kernels.name == "compiled"
    assert float((got[0] - expected[0]).norm() / expected[0].norm()) < 2e-2
