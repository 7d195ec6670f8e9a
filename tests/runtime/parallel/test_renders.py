"""Whole renders of the tiny model by all forms, all three tasks: what one rank makes."""

import dataclasses

import numpy as np
import pytest
from PIL import Image
from whole import render

from backend.presets import Dtype, Offload
from backend.types import (
    GenerationRequest,
    PreparedMedia,
    PreparedReference,
    Reference,
    ReferenceKind,
    Sampling,
    Stage,
)

SAMPLING = Sampling(num_frames=107, width=448, height=64, num_inference_steps=3, seed=11)  # three tiles a clip
FORMS = {
    "replicas": (2, {}),
    "ulysses 2": (2, {"ulysses_degree": 2}),
    "ulysses 4": (4, {"ulysses_degree": 4}),
    "ulysses 2, sharded": (2, {"ulysses_degree": 2, "fsdp": True}),
    "ulysses 2, tiles on one rank": (2, {"ulysses_degree": 2, "vae_tile_parallel": False}),
    "tensor 2": (2, {"tensor_parallel_size": 2}),
    "tensor 2, ulysses 2, sharded": (4, {"tensor_parallel_size": 2, "ulysses_degree": 2, "fsdp": True}),
}
USUAL = ("ulysses 2", "tensor 2", "tensor 2, ulysses 2, sharded")  # each part of the others is in one of these
PREVIEWS = {"preview_every": 2}


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """One request a task, with its media."""
    folder = tmp_path_factory.mktemp("media")
    picture, square = folder / "picture.png", folder / "square.png"
    pixels = np.random.default_rng(5).integers(0, 256, (8, 56, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((SAMPLING.width, SAMPLING.height)).save(picture)
    Image.fromarray(pixels[:, :8]).resize((64, 64)).save(square)
    reference = PreparedReference(kind=ReferenceKind.IMAGE, image=square)
    prompt = "a kite over the sea"
    return (
        (GenerationRequest(prompt=prompt, sampling=SAMPLING), PreparedMedia()),
        (GenerationRequest(prompt=prompt, first_frame=picture, sampling=SAMPLING), PreparedMedia(first_frame=picture)),
        (
            GenerationRequest(prompt=prompt, references=(Reference(path=square),), sampling=SAMPLING),
            PreparedMedia(references=(reference,)),
        ),
    )


@pytest.fixture(scope="module")
def alone(orders, tiny_checkpoint, tmp_path_factory):
    return render(0, 1, {}, tiny_checkpoint, tmp_path_factory.mktemp("one"), orders, PREVIEWS)


@pytest.mark.parametrize(
    "name", [*USUAL, *(pytest.param(name, marks=pytest.mark.thorough) for name in FORMS if name not in USUAL)]
)
def test_a_render_is_that_of_one_rank(teams, orders, alone, tiny_checkpoint, tmp_path, name):
    size, parallel = FORMS[name]
    answers = teams(size).run(render, parallel, tiny_checkpoint, tmp_path, orders, PREVIEWS)
    exact = "tensor" not in name
    for number, expected in enumerate(alone):
        by_rank = [results[number] for results in answers]
        found = by_rank[0]
        assert len({each["asked"] for each in by_rank}) == 1
        assert found["steps"] == expected["steps"] == [(1, 2), (2, 2)]
        # 107 frames are six clips of 17 and the 5 that overlap; helpers count clips.
        assert [each["done"] for each in by_rank] == [[(107, 107)], *[[(102, 107)]] * (size - 1)]
        for key in ("latents", "audio_latents", "audio", "frames"):
            gap = np.abs(found[key].astype(np.float64) - expected[key]).max()
            assert gap == 0 if exact else gap <= (1 if key == "frames" else 1e-5), (key, gap)
        assert [step for step, _ in found["previews"]] == [2]
        shown = found["previews"][0][1].astype(int) - expected["previews"][0][1]
        assert np.abs(shown).max() <= (0 if exact else 1)


@pytest.mark.parametrize(
    "parallel",
    [{"ulysses_degree": 2}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.thorough)],
    ids=str,
)
def test_streamed_weights_change_nothing(teams, orders, tiny_checkpoint, tmp_path, parallel):
    """What each rank holds comes block by block; of two ranks one has no conditioner to stream."""
    streaming = {"offload": Offload.BLOCKS, "resident_layers": 1}
    found = teams(2).run(render, parallel, tiny_checkpoint, tmp_path / "a", orders[::2], streaming)[0]
    expected = teams(2).run(render, parallel, tiny_checkpoint, tmp_path / "b", orders[::2], {})[0]
    for mine, theirs in zip(found, expected, strict=True):
        assert all(np.array_equal(mine[key], theirs[key]) for key in ("latents", "audio_latents", "audio", "frames"))


@pytest.mark.parametrize("parallel", [{"ulysses_degree": 2}, {"ulysses_degree": 2, "fsdp": True}], ids=str)
def test_all_ranks_stop_together_wherever_one_wants_to(teams, orders, alone, tiny_checkpoint, tmp_path, parallel):
    """The last rank wants to stop at its n-th question; every rank stops there, and the next job is as ever."""
    # The transformer is loaded between the second and the third; loading asks once.
    stops = (1, 2, 4, 5, alone[0]["asked"] - 1)
    answers = teams(2).run(render, parallel, tiny_checkpoint, tmp_path, orders[:1] * 6, {}, stops)
    for number, question in enumerate(stops):
        assert [results[number]["asked"] for results in answers] == [question] * 2
        assert len({results[number]["stopped"] for results in answers}) == 1
    places = [each["stopped"] for each in answers[0]]
    assert [stage for stage, _ in places[:3]] == [Stage.LOAD, Stage.ENCODE, Stage.DENOISE]
    assert places[4:] == [(Stage.DECODE, 2), None]
    assert np.array_equal(answers[0][5]["latents"], alone[0]["latents"])


def test_bfloat16_over_ranks_of_which_one_encodes(teams, orders, tiny_checkpoint, tmp_path):
    """A rank without a conditioner must expect its answer in the type that it comes in."""
    expected = render(0, 1, {}, tiny_checkpoint, tmp_path, orders[1:2], {}, dtype=Dtype.BFLOAT16)[0]
    order = (tiny_checkpoint, tmp_path, orders[1:2], {}, (), Dtype.BFLOAT16)
    found = teams(2).run(render, {"ulysses_degree": 2}, *order)[0][0]
    spread = expected["latents"].std()
    assert np.abs(found["latents"] - expected["latents"]).max() < 0.05 * spread


def test_another_seed_is_another_video_on_all_forms(teams, orders, alone, tiny_checkpoint, tmp_path):
    request = dataclasses.replace(orders[0][0], sampling=dataclasses.replace(SAMPLING, seed=12))
    found = teams(2).run(render, {"ulysses_degree": 2}, tiny_checkpoint, tmp_path, ((request, PreparedMedia()),), {})
    assert np.abs(found[0][0]["latents"] - alone[0]["latents"]).max() > 0.5
