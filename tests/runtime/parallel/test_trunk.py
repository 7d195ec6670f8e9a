"""Every form of sharing the trunk against one rank, in float32: bit for bit where nothing is summed in another order.

Most packed lengths here divide by no degree: 149 rows is a prime.
"""

import functools

import numpy as np
import pytest
import torch
from trunk import EIGHT_HEADS, FIFTY_SIX_HEADS, SEVEN_HEADS, cut_model, trunk

from backend.presets import Parallel
from backend.runtime.parallel import fsdp, tensor_parallel
from backend.runtime.parallel.group import Group, form
from backend.runtime.parallel.rows import PartOfRows

ULYSSES_2, ULYSSES_4 = {"ulysses_degree": 2}, {"ulysses_degree": 4}
TENSOR_2, TENSOR_4 = {"tensor_parallel_size": 2}, {"tensor_parallel_size": 4}
BOTH = ULYSSES_2 | TENSOR_2
HEADS = {7: SEVEN_HEADS, 8: EIGHT_HEADS, 56: FIFTY_SIX_HEADS}


@functools.cache
def on_one(heads, options):
    return trunk(0, 1, {}, HEADS[heads], dict(options))[0]


def furthest(teams, parallel, heads=8, **options):
    """The largest difference to one rank, after checking that all ranks have the same; and weights a rank holds."""
    size = parallel.get("ulysses_degree", 1) * parallel.get("tensor_parallel_size", 1)
    expected = on_one(
        heads, tuple((name, value) for name, value in options.items() if name not in ("exchange", "done_without"))
    )
    answers = teams(size).run(trunk, parallel, HEADS[heads], options)
    first, held = answers[0]
    for results, _ in answers[1:]:
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(results, first, strict=True))
    assert len(expected) == 4
    assert all(np.isfinite(each).all() and each.std() > 0.1 for each in expected)
    return max(np.abs(mine - one).max() for mine, one in zip(first, expected, strict=True)), held


@pytest.mark.parametrize("rows", [(10, 74, 63), (12, 74, 63), (13, 74, 63), (30, 80, 210)], ids=sum)
@pytest.mark.parametrize("parallel", [ULYSSES_2, ULYSSES_4], ids=str)
def test_ulysses_has_the_bits_of_one_rank(teams, parallel, rows):
    for options in ({}, {"tables": True}, {"shuffled": True}):
        assert furthest(teams, parallel, rows=rows, **options)[0] == 0.0


@pytest.mark.parametrize(
    "options",
    [{"fused": False}, {"fused": False, "tables": True}, {"exchange": "gathered"}, {"attention": "math"}],
    ids=str,
)
def test_ulysses_by_every_path(teams, options):
    for parallel in (ULYSSES_2, ULYSSES_4):
        assert furthest(teams, parallel, **options)[0] == 0.0


@pytest.mark.parametrize("degree", [7, 8])
def test_ulysses_over_seven_and_eight(teams, degree):
    # So few rows a rank that the library's products sum in another order.
    assert furthest(teams, {"ulysses_degree": degree}, 56)[0] <= 1e-5
    # Ranks 5 to 7 of 8, and rank 6 of 7, hold dead rows only; audio and text lie on one rank.
    assert furthest(teams, {"ulysses_degree": degree}, 56, rows=(2, 2, 7))[0] <= 1e-5


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("parallel", [TENSOR_2, TENSOR_4, BOTH], ids=str)
def test_tensor_parallel(teams, parallel, fused):
    """Sums over ranks are in another order, so not bit for bit."""
    whole = furthest(teams, ULYSSES_2)[1]
    for options in ({}, {"tables": True}):
        difference, held = furthest(teams, parallel, fused=fused, **options)
        assert difference <= 1e-5
        assert held == whole // parallel["tensor_parallel_size"]


def test_tensor_parallel_with_gathered_rows(teams):
    assert furthest(teams, BOTH, exchange="gathered")[0] <= 1e-5


def test_gathered_rows_with_sharded_weights_have_the_bits_of_one_rank(teams):
    for parallel in (ULYSSES_2, ULYSSES_4):
        assert furthest(teams, parallel | {"fsdp": True}, exchange="gathered", tables=True)[0] == 0.0


@pytest.mark.parametrize("rows", [(10, 74, 63), (12, 74, 63), (30, 80, 210)], ids=sum)
@pytest.mark.parametrize("parallel", [ULYSSES_2, ULYSSES_4], ids=str)
def test_exchanges_beside_the_work_have_the_bits_of_one_rank(teams, parallel, rows):
    """Three exchanges a block, own rows first and last, keys and values projected apart from queries."""
    for options in ({}, {"tables": True}, {"shuffled": True}, {"attention": "math"}):
        assert furthest(teams, parallel, rows=rows, exchange="overlapped", **options)[0] == 0.0


def test_exchanges_beside_the_work_with_every_other_form(teams):
    for parallel in (BOTH, BOTH | {"fsdp": True}, {"ulysses_degree": 7}, {"ulysses_degree": 8}):
        assert furthest(teams, parallel, 56, exchange="overlapped")[0] <= 1e-5
    # What cannot be had here is done without: memory of another GPU; half of one head.
    assert furthest(teams, ULYSSES_2, exchange="mapped", done_without=1)[0] == 0.0
    assert furthest(teams, ULYSSES_4, exchange="mapped", done_without=1)[0] == 0.0
    assert furthest(teams, {"ulysses_degree": 7}, 7, exchange="overlapped", done_without=1)[0] <= 1e-5


@pytest.mark.parametrize("parallel", [ULYSSES_2, ULYSSES_4, BOTH], ids=str)
def test_fsdp_changes_no_bit_and_leaves_a_shard(teams, parallel):
    for options in ({}, {"tables": True}, {"rows": (13, 74, 63)}):
        difference, held = furthest(teams, parallel | {"fsdp": True}, **options)
        without, whole = furthest(teams, parallel, **options)
        assert difference == without
        assert held == whole // parallel["ulysses_degree"]


def test_rows_are_divided_once_and_all(teams):
    text, audio, video = (torch.tensor(at) for at in ([4, 0], [1, 9, 2], [3, 5, 6, 7, 8, 10]))
    for size in (2, 4, 7, 8):
        parts = [PartOfRows(Group(tuple(range(size)), rank, None), text, video, audio) for rank in range(size)]
        for name, at in (("text", text), ("audio", audio), ("video", video)):
            seen = torch.cat([at[getattr(part, name).which] for part in parts])
            assert sorted(seen.tolist()) == sorted(at.tolist())
            for rank, part in enumerate(parts):
                stream = getattr(part, name)
                assert (stream.where + rank * part.local).tolist() == at[stream.which].tolist()
        mine = torch.cat([part.mine(torch.arange(1, 12)) for part in parts])
        assert mine.tolist() == [*range(1, 12), *[0] * (size * parts[0].local - 11)]


@pytest.mark.parametrize("size", [2, 4])
def test_what_a_loader_cuts_adds_up(size):
    """A block computed from the parts of tensor-parallel ranks is the block; shards put in a row are the matrix."""
    parameters = cut_model(EIGHT_HEADS)
    x = torch.randn(5, EIGHT_HEADS["hidden_size"], generator=torch.Generator().manual_seed(0))
    prefix = "transformer_blocks.1."

    def feed_forward(weights):
        value, gate = torch.nn.functional.linear(x, weights["ff.net.0.proj.weight"]).chunk(2, dim=-1)
        return torch.nn.functional.linear(value * torch.nn.functional.silu(gate), weights["ff.net.2.weight"])

    def parts(rank):
        block = {name.removeprefix(prefix): each for name, each in parameters.items() if name.startswith(prefix)}
        return {name: tensor_parallel.cut(prefix + name, each, rank, size) for name, each in block.items()}

    whole = parameters | {}
    whole = {name.removeprefix(prefix): each for name, each in whole.items() if name.startswith(prefix)}
    assert torch.allclose(sum(feed_forward(parts(rank)) for rank in range(size)), feed_forward(whole), atol=1e-5)
    for name in ("attn.to_q.weight", "attn.to_k.weight", "attn.to_v.weight"):
        assert torch.equal(torch.cat([parts(rank)[name] for rank in range(size)]), whole[name])
    assert torch.equal(
        torch.cat([parts(rank)["attn.to_out.0.weight"] for rank in range(size)], 1), whole["attn.to_out.0.weight"]
    )
    for name in ("norm1.weight", "attn.norm_q.weight", "adaln_proj.linear.weight"):
        assert parts(1)[name] is whole[name]
        assert fsdp.cut(prefix + name, whole[name], 1, size) is whole[name]
    for name in ("attn.to_q.weight", "ff.net.2.weight"):
        shards = [fsdp.cut(prefix + name, whole[name], rank, size) for rank in range(size)]
        assert torch.equal(torch.cat(shards).view_as(whole[name]), whole[name])
    refiner = torch.zeros(8, 8)
    assert tensor_parallel.cut("token_refiner.refiner_blocks.0.attn.to_q.weight", refiner, 0, size) is refiner


def test_degrees_must_make_up_the_fleet_and_divide_the_heads(teams):
    with pytest.raises(ValueError, match="world_size=4: must equal ulysses_degree=2 times tensor_parallel_size=1"):
        form(0, 4, Parallel(ulysses_degree=2))
    with pytest.raises(AssertionError, match="ulysses_degree=7 times tensor_parallel_size=1 must divide the 8 heads"):
        teams(7).run(trunk, {"ulysses_degree": 7}, EIGHT_HEADS, {})
