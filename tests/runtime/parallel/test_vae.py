"""Tiles over ranks: the bits of one rank, whether there are more tiles than ranks or fewer."""

import functools

import numpy as np
import pytest
from whole import decode

# Latents a side and the tiles they make, for tiles of 16 with an overlap of at least 4 (256 px and 64 px).
SIZES = {(8, 8): 1, (8, 20): 2, (10, 32): 3, (20, 32): 6, (30, 40): 9}


@functools.cache
def one():
    return decode(0, 1, tuple(SIZES))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_any_number_of_tiles(teams, size):
    expected, counts = one()
    assert counts == list(SIZES.values())
    answers = teams(size).run(decode, tuple(SIZES))
    for mine, alone in zip(answers[0][0], expected, strict=True):
        assert mine.shape == alone.shape
        assert np.array_equal(mine, alone)
    for number, tiles in enumerate(SIZES.values()):
        decoded = [counts[number] for _, counts in answers]
        # A rank without one of its own decodes one more; nobody decodes more than its even share, rounded up.
        assert max(decoded) == -(-tiles // size)
        assert min(decoded) >= 1
        assert sum(decoded) == max(tiles, size)
