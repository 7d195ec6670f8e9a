import dataclasses
from pathlib import Path

import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import save_file

from backend.errors import H3Error
from backend.h3.pipeline import Pipeline
from backend.presets import Device, Dtype, Parallel, RuntimeOptions
from backend.process.messages import Setup
from backend.runtime import setup as runtime_setup
from backend.runtime.adapters import AdapterError, identity, read
from backend.runtime.setup import Runtime
from backend.types import Adapter, GenerationRequest, PreparedMedia, Sampling

CPU = torch.device("cpu")
REQUEST = GenerationRequest(
    prompt="a red ball", sampling=Sampling(num_frames=107, width=64, height=64, num_inference_steps=3, seed=3)
)
ATTENTION = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"]
TARGETS = [*ATTENTION, "ff.net.0.proj", "ff.net.2", "adaln_proj.linear", "norm_out.linear", "time_embedder.linear_1"]
RANK = 4


class Nobody:
    """Sink and monitor of a render that nobody watches."""

    def __getattr__(self, name):
        return lambda *_, **__: False


def render(pipeline, *adapters):
    sampling = dataclasses.replace(
        REQUEST.sampling, adapters=tuple(Adapter(path=path, scale=s) for path, s in adapters)
    )
    request = dataclasses.replace(REQUEST, sampling=sampling)
    return pipeline.generate(request, PreparedMedia(), Nobody(), Nobody()).latents


def order(checkpoint, cache, parallel=None, **options):
    return Setup(
        run="r", rank=0, world_size=1, model="native", checkpoint=str(checkpoint), device=Device.CPU,
        dtype=Dtype.FLOAT32, rendezvous=Path("unused"), cache_dir=cache, runtime=RuntimeOptions(**options),
        parallel=parallel or Parallel(),
    )  # fmt: skip


def opened(checkpoint, cache, **options):
    runtime = Runtime.for_setup(order(checkpoint, cache, **options), CPU, lambda _: None)
    return runtime, Pipeline(checkpoint, "cpu", "float32", lambda *_: None, runtime.hooks())


def modules(model, targets=TARGETS):
    return [name for name, _ in model.named_modules() if name.endswith(tuple(targets))]


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    torch.set_num_threads(1)
    return MiniMaxH3Transformer3DModel.from_pretrained(tiny_checkpoint / "transformer", torch_dtype=torch.float32)


def lora_of(model, seed, rank=RANK, targets=TARGETS):
    """A LoRA as diffusers writes it, large enough to be seen."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in modules(model, targets):
        outputs, inputs = model.get_submodule(name).weight.shape
        tensors[f"transformer.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.2
        tensors[f"transformer.{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    return tensors


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for name, seed in (("a", 1), ("b", 2)):
        save_file(lora_of(model, seed), folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in "ab"}


@pytest.fixture(scope="module")
def plain(tiny_checkpoint, tmp_path_factory):
    _, pipeline = opened(tiny_checkpoint, tmp_path_factory.mktemp("cache"), fast_load=False)
    return render(pipeline)


def by_peft(checkpoint, path, scale):
    """The latents of diffusers' own pipeline with the adapter active, not merged, through PEFT."""
    pipeline = Pipeline(checkpoint, "cpu", "float32", lambda *_: None)
    pipeline.use(REQUEST.task)
    transformer = pipeline.components.transformer
    pipeline.components.load_lora_weights(str(path), adapter_name="it")
    transformer.set_adapters(["it"], weights=[scale])
    assert any("lora_A" in name for name, _ in transformer.named_parameters())
    return render(pipeline)


@pytest.mark.parametrize("options", [{}, {"fast_load": False}, {"adaln_tables": False}, {"fused_block": False}])
def test_a_merged_adapter_gives_what_peft_gives(tiny_checkpoint, tmp_path, files, plain, options):
    expected = by_peft(tiny_checkpoint, files["a"], 0.7)
    _, pipeline = opened(tiny_checkpoint, tmp_path, **options)
    got = render(pipeline, (files["a"], 0.7))
    assert float((got - expected).abs().max()) < 1e-4  # float32: sums in another order, through two steps
    assert float((got - plain).abs().max()) > 0.05


@pytest.mark.parametrize("tables_always", [False, True])
def test_taking_adapters_out_restores_every_bit(tiny_checkpoint, tmp_path, files, monkeypatch, tables_always):
    if tables_always:  # as with the released model, whose projections are never read
        monkeypatch.setattr(runtime_setup, "LONGEST", (1, 1))
        monkeypatch.setattr(runtime_setup.adaln_tables.MemoryReport, "net_bytes", 1)
    runtime, pipeline = opened(tiny_checkpoint, tmp_path)
    before = render(pipeline)
    weights = {
        name: each.clone() for name, each in pipeline.components.transformer.named_parameters() if not each.is_meta
    }
    a = render(pipeline, (files["a"], 1.0))
    both = render(pipeline, (files["a"], 1.0), (files["b"], 0.5))
    b = render(pipeline, (files["b"], 0.5))
    assert len({tuple(each.flatten()[:50].tolist()) for each in (before, a, both, b)}) == 4
    assert torch.equal(render(pipeline, (files["a"], 1.0)), a)  # whatever was in force in between
    assert torch.equal(render(pipeline), before)
    assert all(
        torch.equal(each, weights[name])
        for name, each in pipeline.components.transformer.named_parameters()
        if name in weights
    )
    other, fresh = opened(tiny_checkpoint, tmp_path)
    assert torch.equal(render(fresh, (files["b"], 0.5)), b)
    if tables_always:
        assert other.table_source == "disk" and runtime.table_source in ("disk", "in place")


def test_tables_are_made_of_the_changed_projections(tiny_checkpoint, tmp_path, model, plain, monkeypatch):
    monkeypatch.setattr(runtime_setup, "LONGEST", (1, 1))
    path = tmp_path / "adaln.safetensors"
    save_file(lora_of(model, 5, targets=["adaln_proj.linear", "norm_out.linear"]), path)
    runtime, pipeline = opened(tiny_checkpoint, tmp_path / "cache")
    got = render(pipeline, (path, 1.0))
    assert runtime.table_source == "shards, adapted"
    assert float((got - by_peft(tiny_checkpoint, path, 1.0)).abs().max()) < 1e-4
    assert float((got - plain).abs().max()) > 0.01


def test_the_identity_follows_content_scale_and_order(files, tmp_path):
    a, b = (Adapter(path=files[name]) for name in "ab")
    copy = tmp_path / "other name.safetensors"
    copy.write_bytes(files["a"].read_bytes())
    assert identity([]) == ""
    assert identity([a]) == identity([Adapter(path=copy)])
    assert (
        len(
            {
                identity([a]),
                identity([b]),
                identity([a, b]),
                identity([b, a]),
                identity([dataclasses.replace(a, scale=0.5)]),
            }
        )
        == 5
    )


def delta(changes, name):
    return changes[name].delta(CPU)


def test_files_of_peft_and_of_a_model_keep_their_alpha(tiny_checkpoint, tmp_path, model):
    from peft import LoraConfig, get_peft_model

    name = "transformer_blocks.1.attn.to_k"
    base = MiniMaxH3Transformer3DModel.from_pretrained(tiny_checkpoint / "transformer", torch_dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=6, target_modules=["to_k", "to_q"], init_lora_weights=False,
        alpha_pattern={"transformer_blocks.1.attn.to_k": 20}, rank_pattern={"transformer_blocks.1.attn.to_k": 2},
    )  # fmt: skip
    made = get_peft_model(base, config)
    made.save_pretrained(tmp_path / "peft")
    expected = {
        each: base.get_submodule(each).get_delta_weight("default").detach()
        for each in (name, "transformer_blocks.0.attn.to_q")
    }
    changes = read(tmp_path / "peft" / "adapter_model.safetensors", "transformer")
    assert all(torch.allclose(delta(changes, each), value, atol=1e-6) for each, value in expected.items())
    assert changes[name].scale == 10 and changes["transformer_blocks.0.attn.to_q"].scale == 1.5

    own = MiniMaxH3Transformer3DModel.from_pretrained(tiny_checkpoint / "transformer", torch_dtype=torch.float32)
    own.add_adapter(config, adapter_name="it")
    own.save_lora_adapter(tmp_path / "own", adapter_name="it", weight_name="own.safetensors")
    changes = read(tmp_path / "own" / "own.safetensors", "transformer")
    assert torch.allclose(delta(changes, name), own.get_submodule(name).get_delta_weight("it"), atol=1e-6)


def test_files_of_the_original_layout_are_converted(model, tmp_path):
    fused = {
        "diffusion_model.blocks.0.attn.qkv_proj.lora_down.weight": torch.randn(2, 64),
        "diffusion_model.blocks.0.attn.qkv_proj.lora_up.weight": torch.randn(3 * 128, 2),
        "diffusion_model.blocks.0.attn.qkv_proj.alpha": torch.tensor(1.0),
    }
    path = tmp_path / "comfy.safetensors"
    save_file(fused, path)
    changes = read(path, "transformer")
    assert sorted(changes) == [f"transformer_blocks.0.attn.to_{each}" for each in "kqv"]
    down, up, _ = fused.values()
    whole = 0.5 * up @ down  # alpha / rank
    assert torch.allclose(delta(changes, "transformer_blocks.0.attn.to_k"), whole[128:256], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t | {"transformer.proj_in.weight": torch.ones(1)}, "proj_in.weight, which is no part of a LoRA"),
        (lambda t: {k.replace("blocks.0", "blocks.40"): v for k, v in t.items()}, "which this model does not have"),
        (
            lambda t: {k: v[:, :-1].contiguous() if "lora_A" in k else v for k, v in t.items()},
            "pruned or another model",
        ),
        (lambda t: t | {"transformer.proj_in.dora_scale": torch.ones(1)}, "is a DoRA adapter"),
        (lambda t: {k: v for k, v in t.items() if "lora_B" not in k}, "lacks one of its two matrices"),
        (lambda t: {k.replace("transformer.", "transformer_ref.", 1): v for k, v in t.items()}, "for transformer_ref"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(
    tiny_checkpoint, tmp_path, model, plain, change, words
):
    path = tmp_path / "odd.safetensors"
    save_file(change(lora_of(model, 1)), path)
    _, pipeline = opened(tiny_checkpoint, tmp_path, fast_load=False)
    with pytest.raises(AdapterError, match=words):
        render(pipeline, (path, 1.0))
    assert torch.equal(render(pipeline), plain)


def test_no_file_and_no_safetensors_are_refused_in_words(tmp_path):
    with pytest.raises(AdapterError, match="check the path"):
        identity([Adapter(path=tmp_path / "none.safetensors")])
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(AdapterError, match="is no safetensors file"):
        read(tmp_path / "text.safetensors", "transformer")


def test_an_error_half_way_is_made_good_by_the_next_job(tiny_checkpoint, tmp_path, files, plain, monkeypatch):
    _, pipeline = opened(tiny_checkpoint, tmp_path, fast_load=False)
    render(pipeline)
    from backend.runtime import adapters

    real, calls = adapters.merged, []

    def fails(weight, changes, device):
        calls.append(1)
        if len(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(weight, changes, device)

    monkeypatch.setattr(adapters, "merged", fails)
    with pytest.raises(torch.OutOfMemoryError):
        render(pipeline, (files["a"], 1.0))
    assert torch.equal(render(pipeline), plain)


def test_weights_that_ranks_share_out_are_refused(tiny_checkpoint, tmp_path, files):
    assert "tensor_parallel_size=2" in Parallel(tensor_parallel_size=2).no_adapters
    assert "fsdp" in Parallel(ulysses_degree=2, fsdp=True).no_adapters
    assert Parallel(ulysses_degree=8).no_adapters is None
    stock = Pipeline(tiny_checkpoint, "cpu", "float32", lambda *_: None)
    with pytest.raises(H3Error, match="are not applied here"):
        render(stock, (files["a"], 1.0))
