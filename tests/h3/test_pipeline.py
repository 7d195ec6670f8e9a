"""The pipeline's promises beside parity: seeds, stopping, one transformer at a time, hooks, the real tokenizer."""

import dataclasses
import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from stock import Recorder, render

from backend.h3.denoise import NotFinite
from backend.h3.pipeline import Hooks, Pipeline, Stopped
from backend.types import GenerationRequest, PreparedMedia, Sampling, Stage, Task

OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "h3-official"
REQUEST = GenerationRequest(
    prompt="waves at night",
    sampling=Sampling(num_frames=107, width=64, height=32, num_inference_steps=4, seed=11),
)


def with_sampling(**changes: Any) -> GenerationRequest:
    return dataclasses.replace(REQUEST, sampling=dataclasses.replace(REQUEST.sampling, **changes))


def test_a_seed_repeats_and_another_differs(pipeline: Pipeline) -> None:
    first, recorder = render(pipeline, REQUEST)
    again, _ = render(pipeline, REQUEST)
    other, _ = render(pipeline, with_sampling(seed=12))
    assert torch.equal(first.latents, again.latents)
    assert torch.equal(first.audio, again.audio)
    assert not torch.equal(first.latents, other.latents)
    # h3-facts 2: 107 frames are 32 latents and 178 audio latents of 800 samples.
    assert first.latents.shape == (1, 24, 32, 2, 4)
    assert first.audio_latents.shape == (2, 32, 178)
    assert first.audio.shape == (2, 178 * 800)
    assert recorder.stages[-3:] == [Stage.ENCODE, Stage.DENOISE, Stage.DECODE]
    assert recorder.steps == [(1, 3), (2, 3), (3, 3)]
    assert recorder.done[-1] == (107, 107)


def test_output_is_visible_and_audible(pipeline: Pipeline) -> None:
    generated, recorder = render(pipeline, with_sampling(width=224, height=128))
    frames, sound = recorder.video_frames.astype("float32"), generated.audio
    assert torch.isfinite(generated.latents).all()
    assert frames.std() > 30
    assert abs(frames[1:] - frames[:-1]).mean() > 3, "must move"
    assert frames.mean((0, 1, 2)).min() > 60, "must not be black"
    assert 0.02 < sound.pow(2).mean().sqrt() < 0.3
    assert (sound.abs() >= 1).float().mean() < 0.01


def test_flow_shifts_change_the_schedule_for_one_request_only(pipeline: Pipeline) -> None:
    stock, _ = render(pipeline, REQUEST)
    seen: list[torch.Tensor] = []
    pipeline.hooks = dataclasses.replace(pipeline.hooks, begin_denoise=seen.extend)
    shifted, _ = render(pipeline, with_sampling(flow_shift=5.0, audio_flow_shift=5.0))
    pipeline.hooks = Hooks()
    assert not torch.equal(stock.latents, shifted.latents)
    # 4 points, shift 5: sigma = 5 b / (1 + 4 b) at b = 1, 2/3, 1/3; video and audio coincide, t = 1 - sigma.
    expected = [1 - 5 * b / (1 + 4 * b) for b in (1, 2 / 3, 1 / 3)]
    assert [len(timesteps) for timesteps in seen] == [1, 1, 1]
    assert torch.cat(seen).tolist() == pytest.approx(expected, abs=1e-6)
    again, _ = render(pipeline, REQUEST)
    assert torch.equal(stock.latents, again.latents)


@pytest.mark.parametrize(
    ("stop_after", "stage", "step"),
    [
        (lambda seen: True, Stage.ENCODE, 0),
        (lambda seen: Stage.DENOISE in seen.stages, Stage.DENOISE, 0),
        (lambda seen: (2, 3) in seen.steps, Stage.DENOISE, 2),
        (lambda seen: bool(seen.done), Stage.DECODE, 3),
    ],
    ids=["at once", "before the first step", "after step 2", "while decoding"],
)
def test_stops_where_asked_and_renders_on(pipeline: Pipeline, stop_after: Any, stage: Stage, step: int) -> None:
    expected, _ = render(pipeline, REQUEST)
    recorder = Recorder(stop_after=stop_after)
    with pytest.raises(Stopped) as stopped:
        pipeline.generate(REQUEST, PreparedMedia(), recorder, recorder)
    assert (stopped.value.stage, stopped.value.step, stopped.value.steps) == (stage, step, 3)
    again, _ = render(pipeline, REQUEST)
    assert torch.equal(expected.latents, again.latents)


def test_switching_task_swaps_one_transformer(pipeline: Pipeline) -> None:
    pipeline.use(Task.T2VA)
    shared = [id(getattr(pipeline.components, name)) for name in ("text_encoder", "vae", "audio_vae")]
    old = weakref.ref(pipeline.components.transformer)
    loads: list[tuple[str, int, int]] = []

    def on_load(name: str, done: int, total: int) -> None:
        gc.collect()
        assert old() is None, "the old transformer must be gone before the new one is read"
        loads.append((name, done, total))

    pipeline.use(Task.REF2VA, on_load)
    assert pipeline.transformer_name == "transformer_ref"
    assert {name for name, _, _ in loads} == {"transformer_ref"}
    assert [done for _, done, _ in loads] == sorted(done for _, done, _ in loads)
    assert loads[0][1] == 0 and loads[-1][1] == loads[-1][2] > 1_000_000
    pipeline.use(Task.REF2VA, on_load)
    assert shared == [id(getattr(pipeline.components, name)) for name in ("text_encoder", "vae", "audio_vae")]


def test_hooks_see_what_they_are_promised(tiny_checkpoint: Path) -> None:
    placed: list[set[str]] = []
    previews: list[torch.Tensor] = []
    calls: list[int] = []

    def prepare(transformer: Any) -> Any:
        def forward(**inputs: Any) -> Any:
            calls.append(1)
            return transformer(**inputs)

        return forward

    hooks = Hooks(
        prepare_transformer=prepare,
        place=lambda modules: placed.append(set(modules)),
        preview=lambda step, latents: previews.append(latents()),
        decode_clip=lambda vae, z: vae._decode_clip(z) * 0,
        validate_finite=True,
    )
    pipeline = Pipeline(tiny_checkpoint, "cpu", "bfloat16", lambda *_: None, hooks)
    generated, recorder = render(pipeline, REQUEST)
    assert len(calls) == 3
    assert placed == [{"text_encoder"}, {"transformer"}, {"audio_vae", "vae"}]
    assert {preview.shape for preview in previews} == {generated.latents.shape}
    assert torch.equal(previews[-1], generated.latents), "the last prediction is the result"
    assert recorder.video_frames.std((0, 1, 2)).max() == 0, "our decode_clip was used"
    # Released mixed precision survives loading in bfloat16.
    kinds = {name: p.dtype for name, p in pipeline.components.transformer.named_parameters()}
    assert kinds["proj_in.weight"] == kinds["time_embedder.linear_1.weight"] == torch.float32
    assert kinds["transformer_blocks.0.attn.to_q.weight"] == torch.bfloat16
    assert pipeline.components.audio_vae.dtype == torch.float32

    pipeline.components.transformer.proj_out.bias.data[0] = float("nan")
    with pytest.raises(NotFinite, match="video velocity is not finite at step 1 of 3"):
        render(pipeline, REQUEST)


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="needs ../shared/h3-official (the released tokenizer)")
def test_the_released_tokenizer_drives_the_tiny_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "real-tokenizer"
    shutil.copytree(tiny_checkpoint, folder)
    for name in ("tokenizer", "processor"):
        shutil.rmtree(folder / name)
        shutil.copytree(OFFICIAL / name, folder / name)
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(OFFICIAL / "tokenizer" / file, folder / "processor" / file)
    pipeline = Pipeline(folder, "cpu", "float32", lambda *_: None)
    ids = pipeline.components.tokenizer("<|image_pad|>", add_special_tokens=False)["input_ids"]
    assert ids == [151655]  # tokenizer_config.json of the release
    generated, _ = render(pipeline, REQUEST)
    assert torch.isfinite(generated.latents).all()
