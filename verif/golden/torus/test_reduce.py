"""The order of additions of an all-reduce."""

import re

import numpy as np
import pytest

from golden.torus.reduce import all_reduced


def test_additions_follow_the_rings() -> None:
    """On a ring of three chips, the sum of part s begins with chip s, in both directions."""
    big = np.float32(2 ** 24)
    values = np.zeros((3, 1, 12), np.float32)
    # Lost in a sum that has become big, but not if the ones are added first.
    values[:, 0] = np.array([big, 1, 1], np.float32)[:, None]
    sums = all_reduced(values.view(np.uint32), 1).view(np.float32).reshape(2, 2, 3)
    forward = [(big + np.float32(1)) + np.float32(1), big + np.float32(2),
               (np.float32(1) + big) + np.float32(1)]
    backward = [forward[0], (np.float32(1) + big) + np.float32(1), big + np.float32(2)]
    for half in sums:
        np.testing.assert_array_equal(half, [forward, backward])


@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (3, 2), (4, 4)])
def test_exact_sums_do_not_depend_on_the_order(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    words = 2 * 4 * shape[0] * shape[1] * 3
    values = rng.integers(-99, 99, (*shape, words)).astype(np.float32)
    sums = all_reduced(values.view(np.uint32), 3)
    np.testing.assert_array_equal(sums.view(np.float32), values.sum((0, 1)))


def test_parts_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("whole rounds of 16 words, not 17 words")):
        all_reduced(np.zeros((2, 2, 17), np.uint32), 1)
