"""Each stage for a step or two on the smallest canvas, and the checkpoint they are put into."""

import argparse
import dataclasses
import json
import random
import time
from collections import Counter

import pytest
import torch
from safetensors import safe_open

from bench.nano import (
    assemble,
    dataset,
    evaluate,
    grammar,
    hearing,
    packing,
    references,
    sampling,
    scores,
    sound,
    stage,
    train_audio_vae,
    train_transformer,
    train_video_vae,
    world,
)

SMALL = (96, 64)


def _options(parser_main, monkeypatch, *arguments):
    """The namespace that the stage's own command line gives."""
    caught: list[argparse.Namespace] = []
    module = __import__(parser_main.__module__, fromlist=["train"])
    monkeypatch.setattr(module, "train", caught.append)
    monkeypatch.setattr("sys.argv", ["stage", *map(str, arguments)])
    parser_main()
    monkeypatch.undo()
    return caught[0]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A folder with both VAEs after a step, and the video VAE after one more of its decoder alone."""
    folder = tmp_path_factory.mktemp("stages")
    with pytest.MonkeyPatch.context() as monkeypatch:
        common = ("--out", folder, "--minutes", "1", "--batch", "2", "--check", "2", "--max-steps", "1")
        common = (*common, "--pool", "2")
        video = _options(train_video_vae.main, monkeypatch, *common)
        audio = _options(train_audio_vae.main, monkeypatch, *common)
        monkeypatch.setattr(train_video_vae, "CANVASES", ((SMALL, 1.0),))
        monkeypatch.setattr(train_audio_vae, "PIECE", 8 * 800)
        train_video_vae.train(video)
        train_audio_vae.train(audio)
        video.resume = folder
        video.freeze_encoder = True
        before = _tensors(folder / "video_vae.safetensors")
        train_video_vae.train(video)
    after = _tensors(folder / "video_vae.safetensors")
    assert torch.equal(before["encoder.conv_in.weight"], after["encoder.conv_in.weight"])
    assert not torch.equal(before["decoder.proj_out.weight"], after["decoder.proj_out.weight"])
    return folder


def _tensors(path):
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  a safetensors handle is no dict


def test_stages_count_their_steps_on(stages):
    notes = stage.notes_of(stages, "video_vae")
    assert notes["steps"] == 2
    assert len(notes["latents_mean"]) == 24
    assert min(notes["latents_std"]) > 0


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("t2va", ["transformer"]),
        ("ref2va", ["transformer_ref"]),
        pytest.param("both", ["transformer", "transformer_ref"], marks=pytest.mark.thorough),
    ],
)
def test_a_transformer_stage_trains_and_saves_released_types(stages, tmp_path, monkeypatch, task, names):
    options = _options(
        train_transformer.main, monkeypatch, "--task", task, "--vaes", stages, "--out", tmp_path, "--minutes", "1",
        "--clips", "2", "--rows", "500", "--max-steps", "1", "--no-compile", "--judge", "0",
    )  # fmt: skip
    table = ((SMALL, 22, 1.0),)
    monkeypatch.setattr(train_transformer, "KEYFRAME_SHARDS", table)
    monkeypatch.setattr(train_transformer, "REFERENCE_SHARDS", table)
    monkeypatch.setattr(dataset.reference_shard, "__defaults__", (22, 2))
    monkeypatch.setattr(references, "IMAGE_CANVAS", (64, 64))
    train_transformer.train(options)
    assert sorted(path.stem for path in tmp_path.glob("*.safetensors")) == names
    tensors = _tensors(tmp_path / f"{names[-1]}.safetensors")
    # diffusers pins the projections in and out and the time embedder: MiniMaxH3Transformer3DModel._keep_in_fp32_modules
    assert tensors["proj_in.weight"].dtype == torch.float32
    assert tensors["time_embedder.linear_1.weight"].dtype == torch.float32
    assert tensors["transformer_blocks.0.attn.to_q.weight"].dtype == torch.bfloat16


def test_sampling_with_the_true_velocity_returns_the_target(stages):
    encoders = train_transformer.encoders_of(stages, torch.device("cpu"))
    rope = train_transformer.architecture.transformer().rope
    wanted = dataset.Wanted(SMALL, 39, 2)
    shard = dataset.keyframe_shard(encoders, rope, random.Random(0), wanted, captions=1)
    group = next(group for group in shard.groups if not group.visual)
    target, sounds = shard.video[group.clip[:1]].float(), shard.audio[group.clip[:1]].float()

    class Truth:
        """Velocity (target - x) / sigma leads straight to the target from anywhere."""

    def velocity(_model, _plan, rows, times):
        video_sigma, audio_sigma = 1 - times[0, 0], 1 - times[0, 1]
        return (target - rows[0]) / video_sigma, (sounds - rows[1]) / audio_sigma

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(packing, "velocity", velocity)
        generator = torch.Generator().manual_seed(0)
        video, audio = sampling.sample(Truth(), group, shard, torch.tensor([0]), 4, generator)
    torch.testing.assert_close(video, target, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(audio, sounds, atol=1e-4, rtol=1e-4)
    frames, waves = sampling.decode(encoders, shard, video, audio)
    assert frames.shape == (1, 39, 64, 96, 3)
    assert waves.shape == (1, 2, 65 * 800)


def test_a_checkpoint_of_the_stages_fits(stages, tmp_path):
    with pytest.raises(FileNotFoundError, match="transformer"):
        assemble.assemble(stages, tmp_path / "incomplete")
    sizes = assemble.assemble(stages, tmp_path / "whole", fresh=True)
    assert sum(sizes.values()) <= 40_000_000
    assert max(path.stat().st_size for path in (tmp_path / "whole").rglob("*.safetensors")) <= 10_000_000
    index = json.loads((tmp_path / "whole" / "modular_model_index.json").read_text())
    assert index["canvas_short_edge"] == 128
    vae = {}
    for path in (tmp_path / "whole" / "vae").glob("*.safetensors"):
        vae |= _tensors(path)
    assert vae["encoder.conv_in.weight"].dtype == torch.float32
    assert vae["decoder.proj_out.weight"].dtype == torch.bfloat16


def test_a_checkpoint_is_unpacked_into_the_stages_it_was_made_of(stages, tmp_path):
    assemble.assemble(stages, tmp_path / "whole", fresh=True)
    assemble.unpack(tmp_path / "whole", tmp_path / "stages")
    first, again = (_tensors(folder / "video_vae.safetensors") for folder in (stages, tmp_path / "stages"))
    assert torch.equal(first["encoder.conv_in.weight"], again["encoder.conv_in.weight"])
    # A stage stores its decoder in float16, the release in bfloat16: eight bits of mantissa.
    wanted = first["decoder.proj_out.weight"].float()
    torch.testing.assert_close(wanted, again["decoder.proj_out.weight"].float(), rtol=2**-7, atol=1e-6)
    assert stage.notes_of(tmp_path / "stages", "video_vae") == stage.notes_of(stages, "video_vae")


def test_every_reference_an_example_names_is_there(stages):
    encoders = train_transformer.encoders_of(stages, torch.device("cpu"))
    rope = train_transformer.architecture.transformer().rope
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(references, "IMAGE_CANVAS", (64, 64))
        monkeypatch.setattr(dataset, "PORTRAITS", 2)
        shard = dataset.reference_shard(encoders, rope, random.Random(0), dataset.Wanted(SMALL, 22, 12), 22)
    assert sum(len(group.clip) for group in shard.groups) >= 12
    assert {name for group in shard.groups for name in (*group.visual, *group.heard)} >= {"image", "film", "tone"}
    for group in shard.groups:
        for name in (*group.visual, *group.heard):
            # Rows of latents; all zeros are what an example has that does not bring this reference.
            index = group.picture if name == "image" else group.clip
            assert shard.conditions[name][index].float().abs().sum(dim=(1, 2)).min() > 1, name
        if "image" in group.visual:
            assert (group.picture // 2 == group.clip).all()


def test_rows_near_the_shape_are_those_that_change_with_it():
    clips = [world.sample(random.Random(seed), 39, texture=0) for seed in range(12)]
    others = [dataclasses.replace(clip, color=(clip.color + 1) % len(world.COLORS)) for clip in clips]
    change = (world.frames(clips, *SMALL).int() - world.frames(others, *SMALL).int()).abs().amax(-1)
    cells = change.unflatten(2, (2, 32)).unflatten(4, (3, 32)).amax((3, 5)) > 0  # (clips, frames, rows, columns)
    near = dataset.near_rows(world.Batch(clips), 39, SMALL).unflatten(1, (-1, 2, 3))
    assert near.shape[1] == packing.latent_frames(39)
    # By hand: 17 frames give latents of frames 0, 1 to 4, 5 to 8 and so on; 34 begins the third clip.
    for latent, frames in ((0, [0]), (1, range(1, 5)), (4, range(13, 17)), (5, [17]), (10, [34]), (11, range(35, 39))):
        seen = cells[:, list(frames)].any(1)
        assert not (seen & ~near[:, latent]).any()
    assert near.float().mean() < 2 * cells.float().mean()


def test_rows_with_a_click_are_those_in_which_the_sound_rings_high():
    clips = [world.sample(random.Random(seed), 107, motion=world.MOTIONS.index("bounce")) for seed in range(6)]
    waves = sound.sound(world.Batch(clips), 224, 128)
    spectrum = torch.fft.rfft(waves)
    hertz = torch.arange(spectrum.shape[-1]) * 32000 / waves.shape[-1]
    spectrum[..., hertz < 2600] = 0  # tones end below
    high = torch.fft.irfft(spectrum, n=waves.shape[-1]).unflatten(-1, (-1, 800)).pow(2).mean(-1).flatten(1)
    marked = dataset.click_rows(world.Batch(clips), 107)
    assert marked.shape == (6, 2 * 178)
    for clip in range(6):
        # By energy of one 25 ms latent; the side that the shape is far from still hears a little of it.
        assert high[clip][marked[clip]].min() > 3 * high[clip][~marked[clip]].max()


def test_a_share_of_the_pieces_holds_a_click():
    pool = train_audio_vae.Pool(random.Random(0), 40, torch.device("cpu"))
    torch.manual_seed(0)
    counts = []
    for clicks in (0.0, 1.0):
        pieces = pool.batch(64, free=0.0, clicks=clicks)[:, 0]
        counts.append(sum(bool(hearing.listen(piece.expand(2, -1)).clicks_s) for piece in pieces))
    # Half of the sounds bounce, about every 1.2 s; a piece is 0.6 s: one in four by chance.
    assert 6 <= counts[0] <= 32
    assert counts[1] >= 60


def test_only_the_clicks_band_counts_as_clicks():
    times = torch.arange(19200) / 32000
    tone = 0.3 * torch.sin(2 * torch.pi * 440 * times)[None, None]
    click = tone.clone()
    click[..., 8000:8400] += 0.4 * torch.sin(2 * torch.pi * 3200 * times[:400])
    assert float(train_audio_vae.click_loss(click, click)) == 0.0
    assert float(train_audio_vae.click_loss(0.5 * tone, click)) == pytest.approx(1.0, abs=0.05)  # none of it there
    assert float(train_audio_vae.click_loss(click - tone, click)) < 0.05  # all of it there, without the tone


def test_rows_count_by_what_they_show():
    # Two latents of one row each; by hand: near 3, a given frame 6, a click 8.
    shard = dataset.Shard(
        (32, 32), 5, torch.zeros(1, 2, 96), torch.zeros(1, 3, 32), torch.tensor([[False, True]]),
        torch.tensor([[False, True, False]]), {}, (),
    )  # fmt: skip
    stress = train_transformer.Emphasis(near=3.0, keyframe=6.0, click=8.0)
    for visual, wanted in (((), [1, 3]), (("first",), [6, 3]), (("last",), [1, 18]), (("first", "last"), [6, 18])):
        group = dataset.Group(None, torch.tensor([0]), torch.tensor([0]), torch.zeros(1, 1, 64), visual, ())
        video, audio = train_transformer.row_weights(shard, group, torch.tensor([0]), stress)
        assert video.tolist() == [wanted]
        assert audio.tolist() == [[1, 8, 1]]


def test_half_of_the_clips_are_at_a_point_of_the_sampler():
    torch.manual_seed(0)
    anywhere = train_transformer.grid_points(4000, 0, torch.device("cpu"))
    assert anywhere.unique().numel() > 3900
    base = train_transformer.grid_points(4000, 12, torch.device("cpu"))
    grid = torch.linspace(1, 0, 12)[:-1]  # diffusers' grid of 12 points; nothing is asked at its end
    near = (base[:, None] - grid).abs() < 1e-6
    assert 0.45 < float(near.any(1).float().mean()) < 0.55
    # Every point equally often.
    assert near.sum(0).float().std() < 0.1 * near.sum(0).float().mean()


def test_prompts_of_a_stage_have_few_lengths(stages):
    encoders = train_transformer.encoders_of(stages, torch.device("cpu"))
    rope = train_transformer.architecture.transformer().rope
    shard = dataset.keyframe_shard(encoders, rope, random.Random(0), dataset.Wanted(SMALL, 22, 4))
    lengths = [group.text.shape[1] for group in shard.groups if not group.visual]
    assert sum(len(group.clip) for group in shard.groups) == 4 * 8
    assert len(set(lengths)) > 1
    assert all(length % 4 == 0 for length in lengths)


def test_parts_of_an_evaluation_are_its_whole():
    clips = evaluate.held_out_prompts(random.Random(5), 7)
    parts = [item for index in range(3) for item in evaluate._of_part(clips, (index, 3))]
    assert sorted(parts, key=lambda item: item[0]) == list(enumerate(clips))
    whole, half = scores.Table(), scores.Table()
    whole.add({"color": True})
    half.add({"color": False, "shape": True})
    half.measure("dB", 3.0)
    whole.merge(half)
    assert whole.shares() == {"color": 0.5, "shape": 1.0, "dB": 3.0}


def test_an_average_forgets_its_start_and_swaps_back():
    module = torch.nn.Linear(1, 1, bias=False)
    average = stage.Average(module, 0.9)
    with torch.no_grad():
        module.weight.fill_(3.0)
    for _ in range(200):
        average.update()
    average.swap()
    assert float(module.weight) == pytest.approx(3.0, abs=1e-3)
    average.swap()
    assert float(module.weight) == 3.0


def test_a_gradient_that_is_not_finite_changes_nothing():
    module = torch.nn.Linear(2, 1)
    before = module.weight.detach().clone()
    descent = stage.Descent(module, 0.9, (0.9, 0.98), 0.0)
    module(torch.tensor([[1.0, float("inf")]])).sum().backward()
    descent.step(0.1)
    assert torch.equal(module.weight, before)
    descent.clear()
    module(torch.ones(1, 2)).sum().backward()
    descent.step(0.1)
    assert not torch.equal(module.weight, before)


def test_a_deadline_shortens_a_stage():
    assert stage.Clock(9.0, deadline=time.time() + 30).limit_s == pytest.approx(30, abs=1)
    assert stage.Clock(0.1, deadline=time.time() + 30).limit_s == 6.0


def test_training_draws_more_of_what_is_learned_last_and_nothing_held_out():
    assert set(dataset.OFTEN) <= {*world.SHAPES, *world.MOTIONS}
    clips = dataset.training_clips(random.Random(1), 4000, 107)
    assert not any(grammar.held_out(clip) for clip in clips)
    shapes = Counter(world.SHAPES[clip.shape] for clip in clips)
    motions = Counter(world.MOTIONS[clip.motion] for clip in clips)
    assert shapes["star"] / shapes["circle"] == pytest.approx(2, rel=0.2)  # 4 sigma of 890 and 440 are 16 %
    assert motions["bounce"] / motions["still"] == pytest.approx(3, rel=0.25)
    assert {clip.shape for clip in dataset.training_clips(random.Random(1), 50, 107, shape=3)} == {3}
