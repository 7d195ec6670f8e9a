"""Streamed blocks: the same result to the bit, two rooms on the device, nothing of the host's weights changed."""

import dataclasses

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import get_qwen3vl_prompt_embeds
from test_conditioner import LAYER, Processor
from test_setup import REQUEST, check, order, render
from transformers import Qwen3VLForConditionalGeneration

from backend.errors import Unavailable
from backend.h3.pipeline import Pipeline
from backend.presets import Offload, RuntimeOptions
from backend.runtime import plan, streaming
from backend.runtime.conditioner import Conditioner, cut
from backend.runtime.kernels import choose_kernels
from backend.runtime.setup import Runtime
from backend.runtime.transformer import FastTransformer
from backend.types import Task

CPU = torch.device("cpu")
GIB = plan.GIB


def groups(count, device=CPU):
    """Groups of odd sizes and two types, as a block's matrices and norms are."""
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(3, 5 + number, generator=generator), torch.randn(7, generator=generator).to(torch.bfloat16)]
        for number in range(count)
    ]


@pytest.mark.parametrize("resident", [0, 1, 3, 4, 5, 9])
def test_each_group_arrives_whole_in_two_rooms(resident):
    hosts = groups(5)
    stream = streaming.Stream(hosts, CPU, resident)
    rooms = set()
    for _ in range(3):
        for number, host in enumerate(hosts):
            there = stream.fetch(number)
            assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(there, host, strict=True))
            assert all(a.data_ptr() != b.data_ptr() for a, b in zip(there, host, strict=True))
            assert stream.fetch(number)[0].data_ptr() == there[0].data_ptr()
            if number >= resident:
                rooms.add(there[0].data_ptr())
    assert len(rooms) == min(2, max(0, 5 - resident))
    stream.release()
    assert stream._used is stream._coming is stream._free is None


def test_a_pass_that_begins_anew_gets_the_right_group():
    hosts = groups(5)
    stream = streaming.Stream(hosts, CPU, 1)
    for number in (0, 1, 2, 0, 1, 4, 1, 3, 2):
        assert torch.equal(stream.fetch(number)[0], hosts[number][0]), number


def test_the_next_group_is_on_its_way_while_one_is_used():
    hosts = groups(4)
    stream = streaming.Stream(hosts, CPU)
    stream.fetch(0)
    assert stream._coming.number == 1
    stream.fetch(3)
    assert stream._coming.number == 0  # of the next pass


@pytest.mark.parametrize("resident", [0, 2, 3])
def test_a_streamed_trunk_is_bit_equal_to_diffusers(transformer, case, resident):
    expected = transformer(**case, return_dict=False)
    before = {name: each.clone() for name, each in transformer.named_parameters()}
    streamer = streaming.Streamer(CPU, resident, pytest.fail)
    kernels = choose_kernels(CPU, torch.float32, RuntimeOptions(), pytest.fail, head_dim=32)
    runner = FastTransformer(transformer, kernels, pytest.fail, stream=streamer.trunk)
    for _ in range(2):
        runner.begin([case["timestep"]])
        for _ in range(2):
            got = runner(**case, return_dict=False)
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert isinstance(runner._blocks, streaming.StreamedBlocks)
    assert all(torch.equal(each, before[name]) for name, each in transformer.named_parameters())
    runner.forget()
    streamer.leave("transformer_ref")  # the other one answers to the same rooms
    assert streamer._trunk is None


def test_a_streamed_conditioner_is_bit_equal_and_goes_home(tiny_checkpoint):
    text_encoder = Qwen3VLForConditionalGeneration.from_pretrained(
        tiny_checkpoint / "text_encoder", dtype=torch.float32
    ).eval()

    def embeds(tokens):
        return get_qwen3vl_prompt_embeds(text_encoder, Processor(), tokens, {}, LAYER, CPU, torch.float32)

    expected = [embeds([5, 9, 2]), embeds([1, 1, 8, 4])]
    cut(text_encoder, LAYER)
    Conditioner(text_encoder, LAYER, remember=False)
    layers = text_encoder.model.language_model.layers
    homes = [each.data_ptr() for layer in layers for each in layer.parameters()]
    streamer = streaming.Streamer(CPU, 0, pytest.fail)
    streamer.conditioner(text_encoder)
    used = set()
    layers[30].mlp.register_forward_pre_hook(lambda module, _: used.add(module.up_proj.weight.data_ptr()))
    for tokens, was in zip(([5, 9, 2], [1, 1, 8, 4]), expected, strict=True):
        assert torch.equal(embeds(tokens), was)
    assert used and not used & set(homes)  # it really ran from the rooms
    assert [each.data_ptr() for layer in layers for each in layer.parameters()] == homes
    streamer.leave("text_encoder")


@pytest.mark.parametrize("resident", [0, 2])
def test_a_whole_render_with_streamed_blocks_is_the_same(tiny_checkpoint, tmp_path, resident):
    """On a CPU both sides are one memory; copies, hooks, moves and the change of transformers are the real ones."""
    torch.set_num_threads(1)
    plain = Runtime.for_setup(order(tiny_checkpoint, tmp_path / "plain"), CPU, pytest.fail)
    expected = render(Pipeline(tiny_checkpoint, "cpu", "float32", lambda *_: None, plain.hooks()))
    setup = order(tiny_checkpoint, tmp_path, offload=Offload.BLOCKS, resident_layers=resident)
    runtime = Runtime.for_setup(setup, CPU, pytest.fail)
    assert runtime.plan.streamed == ("text_encoder", "transformer")
    pipeline = Pipeline(tiny_checkpoint, "cpu", "float32", lambda *_: None, runtime.hooks())
    check(render(pipeline), expected, exact=True)
    other = dataclasses.replace(REQUEST, sampling=dataclasses.replace(REQUEST.sampling, seed=4))
    again = render(pipeline, other)
    assert not torch.equal(again[0].latents, expected[0].latents)
    assert runtime._streamer._trunk is None  # rooms are given back before the decoder needs them
    pipeline.use(Task.REF2VA)
    check(render(pipeline), expected, exact=True)


def test_a_transformer_that_is_replaced_is_let_go_before_the_next_is_read(tiny_checkpoint, tmp_path):
    runtime = Runtime.for_setup(order(tiny_checkpoint, tmp_path), CPU, pytest.fail)
    pipeline = Pipeline(tiny_checkpoint, "cpu", "float32", lambda *_: None, runtime.hooks())
    pipeline.use(Task.T2VA)
    held = []
    real = runtime._outline
    runtime._outline = lambda *arguments: (held.append(runtime.fast), real(*arguments))[1]
    pipeline.use(Task.REF2VA)
    assert held == [None]
    assert runtime.fast is not None


def test_what_stays_in_host_memory_is_what_the_fused_trunk_streams(transformer):
    streamed = {name for name, _ in transformer.named_parameters() if streaming.stays("transformer", name)}
    assert len(streamed) == 6 * 3  # q, k, v, out, and two of the feed-forward, of three blocks
    assert not any("token_refiner" in name or "norm" in name for name in streamed)


def test_a_small_card_streams_and_a_smaller_one_is_refused():
    weights = {"text_encoder": 48 * GIB, "transformer": 37 * GIB, "vae": 5 * GIB, "audio_vae": GIB // 2}
    rest = {"text_encoder": int(4.5 * GIB), "transformer": 3 * GIB}
    made = plan.decide(weights, 24 * GIB, Offload.BLOCKS, streamed=rest)
    assert made.streamed == ("text_encoder", "transformer")
    assert set(made.parked) >= set(made.streamed)
    assert made.as_dict()["streamed"] == ["text_encoder", "transformer"]
    with pytest.raises(Unavailable, match="denoise alone needs 14 GiB"):
        plan.decide(weights, 14 * GIB, Offload.BLOCKS, streamed=rest)
    with pytest.raises(Unavailable, match="offload = blocks, which streams"):
        plan.decide(weights, 24 * GIB, Offload.COMPONENT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_and_work_overlap_without_a_race():
    """Large groups and slow work between fetches: a copy that came too early or too late would show."""
    device = torch.device("cuda")
    hosts = [[torch.full((4096, 4096), float(number))] for number in range(6)]
    streamer = streaming.Streamer(device, 0, pytest.fail)
    streamer._lock("transformer", [each for group in hosts for each in group])
    stream = streaming.Stream(hosts, device)
    busy = torch.randn(8192, 8192, device=device)
    sums = []
    for _ in range(4):
        for number in range(6):
            (there,) = stream.fetch(number)
            torch.mm(busy, busy)
            sums.append((there.double().mean(), number))
    torch.cuda.synchronize()
    assert [float(mean) for mean, _ in sums] == [float(number) for _, number in sums]
    stream.release()
    streamer.forget("transformer")
