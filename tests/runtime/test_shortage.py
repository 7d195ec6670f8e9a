import dataclasses
import weakref
from pathlib import Path

import pytest
import torch

from backend import limits
from backend.events import Succeeded
from backend.presets import Device, Dtype, RuntimeOptions
from backend.process.exhaustion import HostMemory
from backend.process.messages import Broken, Setup
from backend.process.verdict import Failure, Scene, report
from backend.runtime import shortage
from backend.runtime.plan import GIB, Plan
from backend.runtime.residency import Residency
from backend.runtime.shortage import Exhausted, Figures, fitting
from backend.types import EncoderSettings, GenerationRequest, JobId, PreparedMedia, Reference, Render, Sampling, Stage
from backend.worker.native_model import NativeModel
from backend.worker.report import Report

CPU = torch.device("cpu")
REQUEST = GenerationRequest(
    prompt="a red ball", sampling=Sampling(num_frames=124, width=64, height=64, num_inference_steps=3, seed=3)
)
TORCH = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1 GiB is free."


def plan(*parked):
    return Plan(resident=(), parked=parked, reason="", free_bytes=0)


def figures(held, needed, allowed, others=0):
    return Figures(held=held * GIB, needed=needed * GIB, allowed=allowed * GIB, others=others * GIB)


@pytest.fixture(scope="module")
def model(tiny_checkpoint, tmp_path_factory):
    torch.set_num_threads(1)
    cache = tmp_path_factory.mktemp("cache")
    setup = Setup(
        run="r", rank=0, world_size=1, model="native", checkpoint=str(tiny_checkpoint), device=Device.CPU,
        dtype=Dtype.FLOAT32, rendezvous=Path("unused"), cache_dir=cache, runtime=RuntimeOptions(prompt_cache=False),
    )  # fmt: skip
    made = NativeModel()
    made.load(setup, Report(0, lambda _: None))
    made.generate(render(cache / "first"), Report(0, lambda _: None))
    return made


def render(folder):
    folder.mkdir(exist_ok=True)
    return Render(
        job=JobId("a"), request=REQUEST, media=PreparedMedia(), folder=folder, encoder=EncoderSettings(), tensors=None,
        quality="draft", names={},
    )  # fmt: skip


def module_of(model, stage):
    components = model._pipeline.components
    owner = {
        Stage.ENCODE: components.text_encoder.model.language_model.layers[3],
        Stage.DENOISE: components.transformer.context_embedder,
        Stage.DECODE: components.vae.decoder,
    }
    return owner[stage]


@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.DENOISE, Stage.DECODE])
def test_a_job_that_runs_out_of_memory_ends_with_what_fits_and_the_next_one_runs(model, tmp_path, stage):
    held = []

    def fail(module, args, kwargs=None):
        big = torch.zeros(1000)
        held.append(weakref.ref(big))
        torch.empty(1 << 52, dtype=torch.uint8)  # torch's own words for host memory that is not there

    hook = module_of(model, stage).register_forward_pre_hook(fail)
    said = Report(0, lambda _: None)
    said.begin(bool)
    with pytest.raises(Exhausted) as end:
        model.generate(render(tmp_path), said)
    hook.remove()
    text = str(end.value)
    assert text.startswith(f"out of memory in stage {stage.value} (DefaultCPUAllocator: can't allocate memory")
    assert "what fits: " in text and "offload" not in text  # a CPU has nowhere to park anything
    assert ("a canvas of 32x32" in text) == (stage is not Stage.ENCODE)
    assert not any(path.suffix in (".mp4", ".part") for path in tmp_path.iterdir())
    assert all(each() is None for each in held)  # nothing of the failed calls is kept alive, the error at hand or not
    said.begin(bool)
    assert isinstance(model.generate(render(tmp_path / "next"), said), Succeeded)


def test_what_is_parked_is_back_in_host_memory_afterwards(model, tmp_path):
    runtime, pipeline = model._runtime, model._pipeline
    residency = Residency(CPU, ("text_encoder", "transformer"), runtime._left)
    before, runtime._residency = runtime._residency, residency
    pipeline.hooks = dataclasses.replace(pipeline.hooks, place=residency.place)

    def fail(module, args):
        raise torch.OutOfMemoryError(TORCH)

    hook = module_of(model, Stage.DENOISE).register_forward_pre_hook(fail)
    with pytest.raises(Exhausted, match="CUDA out of memory"):
        model.generate(render(tmp_path), Report(0, lambda _: None))
    hook.remove()
    assert residency.moves == ["+text_encoder", "-text_encoder", "+transformer", "-transformer"]
    runtime._residency = before
    pipeline.hooks = dataclasses.replace(pipeline.hooks, place=None)


def test_other_errors_pass_as_they_are(model, tmp_path):
    def fail(module, args):
        raise RuntimeError("shapes do not match")

    hook = module_of(model, Stage.DENOISE).register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        model.generate(render(tmp_path), Report(0, lambda _: None))
    hook.remove()


def test_what_fits_follows_the_figures():
    request = dataclasses.replace(REQUEST, sampling=Sampling(num_frames=209, width=1344, height=768, seed=1))
    # 20 GiB are left and 28 needed: 0.85 * 20 / 28 = 61 % of the rows.
    changes = fitting(request, Stage.DENOISE, plan(), figures(60, 28, 80))
    assert changes == [
        "124 frames (5.2 s)",
        "a canvas of 1024x576",
        "a preset that parks idle components (offload = component)",
    ]
    assert limits.num_latent_frames(124) <= 0.61 * limits.num_latent_frames(209) < limits.num_latent_frames(141)
    assert 1024 * 576 <= 0.61 * 1344 * 768
    # Enough by the figures, and yet it failed: still smaller than what was asked for.
    assert fitting(request, Stage.DENOISE, plan("transformer"), figures(10, 5, 80))[0] == "175 frames (7.3 s)"
    # Nothing is left beside the weights: no clip fits, only another way to run.
    assert fitting(request, Stage.DENOISE, plan("transformer"), figures(80, 5, 80)) == [
        "a machine with more memory, or several GPUs"
    ]


def test_an_encode_names_what_is_encoded():
    pictures = dataclasses.replace(REQUEST, references=(Reference(path=Path("a.png")),))
    assert fitting(pictures, Stage.ENCODE, plan("text_encoder"), None) == ["fewer or smaller references"]
    frames = dataclasses.replace(REQUEST, first_frame=Path("a.png"))
    assert "a canvas of 32x32" in fitting(frames, Stage.ENCODE, plan("text_encoder"), None)


def test_the_line_holds_stage_figures_and_whoever_else_is_on_the_gpu():
    text = shortage.report(REQUEST, Stage.DENOISE, plan("transformer"), figures(30, 12, 40, others=38), TORCH)
    assert text == (
        "out of memory in stage denoise (CUDA out of memory): 30.0 GiB of weights leave 10.0 GiB of 40.0, and this job "
        "needs at least 12.0; other programs hold 38.0 GiB of this GPU; what fits: a canvas of 32x32"
    )
    assert shortage.asked(TORCH) == 2 * GIB and shortage.asked("bad_alloc") == 0


def test_a_fleet_passes_a_ranks_own_advice_on_and_adds_none():
    reason = shortage.report(REQUEST, Stage.DENOISE, plan(), figures(30, 12, 40), TORCH)
    failure = Failure.of(1, Broken(rank=1, reason=reason, stage=Stage.DENOISE), None)
    found = report([failure], Scene((), {}, HostMemory(total_bytes=GIB, kills=0)))
    assert found.reason == f"rank 1 failed: {reason}" and found.reason.count("preset") == 1
