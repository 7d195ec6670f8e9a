"""The conditioner on the first ranks: the embeddings of one, on every rank."""

import functools

import numpy as np
import pytest
from whole import encode

from backend.errors import Unavailable
from backend.runtime.parallel.conditioner import check


@functools.cache
def one():
    return encode(0, 1, 1, {})


@pytest.mark.parametrize("loader", [False, True], ids=["sliced after loading", "cut by the loader"])
@pytest.mark.parametrize(("size", "encoders"), [(2, 1), (2, 2), (4, 2), (4, 4), (8, 8)])
def test_every_rank_gets_the_embeddings_of_one(teams, size, encoders, loader):
    expected, whole = one()
    answers = teams(size).run(encode, encoders, {"cut_by_loader": loader})
    for results, _ in answers:
        for mine, first in zip(results, answers[0][0], strict=True):
            assert np.array_equal(mine, first)
    furthest = max(np.abs(mine - alone).max() for mine, alone in zip(answers[0][0], expected, strict=True))
    # One encoder computes what one rank does; several add in another order.
    assert furthest == 0 if encoders == 1 else furthest <= 1e-5
    assert [held for _, held in answers] == [whole // encoders] * encoders + [0] * (size - encoders)


def test_ranks_without_a_conditioner_expect_the_type_it_computes_in(teams):
    """The model is made without weights there, in the library's default type."""
    expected, _ = encode(0, 1, 1, {"dtype": "bfloat16"})
    for results, _ in teams(2).run(encode, 1, {"dtype": "bfloat16"}):
        for mine, alone in zip(results, expected, strict=True):
            assert np.array_equal(mine, alone)


def test_heads_that_do_not_divide_are_refused():
    class Config:
        num_key_value_heads, intermediate_size = 8, 100

    with pytest.raises(Unavailable, match="conditioner_tensor_parallel=3: must divide the 8 key and value heads"):
        check(Config, 3)
    with pytest.raises(Unavailable, match="100 channels"):
        check(Config, 8)
    check(Config, 4)
