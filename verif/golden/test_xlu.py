"""The golden cross-lane unit against loops over single elements and exact rational numbers."""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.xlu import (
    broadcast_lane,
    broadcast_sublane,
    max_lanes,
    rotate_lanes,
    rotate_sublanes,
    sum_lanes,
    transpose_in,
    transpose_out,
)
from verif.golden import oracle

SEED = 20240614

SHAPES = [(1, 2), (2, 4), (1, 3), (3, 6), (4, 8), (5, 5), (8, 128), (7, 77)]

SPECIALS = np.array([
    0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800001, 0x3F800000, 0xBF800000,
    0x33800000, 0x4B800000, 0xCB800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001,
    0xFFC00001], np.uint32)


def registers(shape: tuple[int, int], seed: int = SEED) -> list[NDArray[np.uint32]]:
    """Return test registers: random patterns, numbers that cancel, specials, and mixtures."""
    rng = np.random.default_rng(seed)
    any_pattern = rng.integers(0, 1 << 32, shape, np.uint32)
    near = rng.normal(size=shape).astype(np.float32).view(np.uint32)
    tiny = rng.integers(0, 1 << 25, shape, np.uint32) | rng.integers(0, 2, shape, np.uint32) << 31
    special = rng.choice(SPECIALS, shape)
    finite = rng.choice(SPECIALS[:11], shape)
    zeros = rng.choice(SPECIALS[:4], shape)
    spiked = near.copy()
    spiked[:, rng.integers(shape[1])] = rng.choice(SPECIALS, shape[0])
    return [any_pattern, near, tiny, special, finite, zeros, spiked,
            np.full(shape, 0x80000000, np.uint32), np.full(shape, 0x80000001, np.uint32),
            np.full(shape, 0xFF800000, np.uint32)]


def show(seed: object, a: np.ndarray) -> str:
    return f"seed {seed}, operand {[[hex(x) for x in row] for row in a.tolist()]}"


@pytest.mark.parametrize("shape", SHAPES)
def test_lanes_and_sublanes_move_where_the_text_says(shape: tuple[int, int]) -> None:
    sublanes, lanes = shape
    a = np.random.default_rng(SEED).integers(0, 1 << 32, shape, np.uint32)
    before = a.copy()
    for b in range(lanes):
        rotated, copied = rotate_lanes(a, b), broadcast_lane(a, b)
        assert rotated.shape == copied.shape == shape
        for s in range(sublanes):
            for lane in range(lanes):
                assert rotated[s, (lane + b) % lanes] == a[s, lane]
                assert copied[s, lane] == a[s, b]
    for b in range(sublanes):
        rotated, copied = rotate_sublanes(a, b), broadcast_sublane(a, b)
        assert rotated.shape == copied.shape == shape
        for s in range(sublanes):
            assert np.array_equal(rotated[(s + b) % sublanes], a[s])
            assert np.array_equal(copied[s], a[b])
    assert np.array_equal(a, before)


def tree_sum(patterns: Sequence[int]) -> int:
    """Sum by recursion over the halves of the lanes, padded with -0 to a power of two."""
    def total(first: int, count: int) -> int:
        if count == 1:
            return patterns[first] if first < len(patterns) else 0x80000000
        half = count // 2
        return oracle.add(total(first, half), total(first + half, half)).pattern

    count = 1
    while count < len(patterns):
        count *= 2
    return total(0, count)


@pytest.mark.parametrize("shape", SHAPES)
def test_sum_of_lanes_is_that_of_the_tree(shape: tuple[int, int]) -> None:
    for a in registers(shape):
        got = sum_lanes(a)
        assert got.shape == shape
        assert got.dtype == np.uint32
        for s, row in enumerate(a.tolist()):
            assert set(got[s].tolist()) == {tree_sum(row)}, show(SEED, a)


def test_order_of_the_sum_is_part_of_the_result() -> None:
    big, one, minus = 0x4B800000, 0x3F800000, 0xCB800000  # 2**24, 1, -2**24
    for row, expected in (((big, one, minus, 0), 0), ((big, minus, one, 0), one),
                          ((big, one, one, minus), one), ((big, 0, minus, one), one),
                          ((one, one, big, minus), 0x40000000)):
        assert set(sum_lanes(np.array([row], np.uint32))[0].tolist()) == {expected}, row


@pytest.mark.parametrize("lanes", [3, 5, 6, 7, 127])
def test_padding_of_the_sum_keeps_minus_zero(lanes: int) -> None:
    a = np.full((1, lanes), 0x80000000, np.uint32)
    assert set(sum_lanes(a)[0].tolist()) == {0x80000000}


def largest(patterns: Sequence[int]) -> int:
    """Return the maximum, computed from the numbers that the patterns represent."""
    best = None
    for pattern in patterns:
        kind, sign, magnitude = oracle.F32.read(pattern)
        if kind == "nan":
            return oracle.F32.nan
        rank = {"zero": 0, "finite": 1, "infinite": 2}[kind]
        # Zeros of both signs differ by the sign alone.
        key = (-rank, -magnitude, 0) if sign else (rank, magnitude, 1)
        value = oracle.F32.zero(sign) if kind == "zero" else pattern
        if best is None or key > best[0]:
            best = key, value
    assert best is not None
    return best[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_maximum_of_lanes(shape: tuple[int, int]) -> None:
    for a in registers(shape):
        got = max_lanes(a)
        assert got.shape == shape
        assert got.dtype == np.uint32
        for s, row in enumerate(a.tolist()):
            assert set(got[s].tolist()) == {largest(row)}, show(SEED, a)


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_maximum_finds_every_lane(lanes: int) -> None:
    for lane in range(lanes):
        a = np.full((1, lanes), 0x3F800000, np.uint32)
        for special in (0x7F800000, 0x7F800001, 0x3F800001):
            a[0, lane] = special
            assert max_lanes(a)[0, 0] == (0x7FC00000 if special == 0x7F800001 else special)


@pytest.mark.parametrize(("sublanes", "lanes"), [(1, 2), (2, 4), (4, 8), (8, 128), (3, 9)])
def test_transposer_turns_rows_into_columns(sublanes: int, lanes: int) -> None:
    rng = np.random.default_rng(SEED)
    matrix = rng.integers(0, 1 << 32, (lanes, lanes), np.uint32)
    tile = np.zeros((lanes, lanes), np.uint32)
    groups = lanes // sublanes
    for group in rng.permutation(groups).tolist():
        transpose_in(tile, matrix[group * sublanes:(group + 1) * sublanes], group)
    assert np.array_equal(tile, matrix)
    for group in range(groups):
        out = transpose_out(tile, group, sublanes)
        assert out.shape == (sublanes, lanes)
        for s in range(sublanes):
            assert [int(out[s, r]) for r in range(lanes)] == \
                [int(matrix[r, group * sublanes + s]) for r in range(lanes)]
        out[:] = 0
    assert np.array_equal(tile, matrix)
    # Replacing one group leaves the other rows unchanged.
    transpose_in(tile, np.zeros((sublanes, lanes), np.uint32), groups - 1)
    assert not tile[lanes - sublanes:].any()
    assert np.array_equal(tile[:lanes - sublanes], matrix[:lanes - sublanes])


A = np.zeros((2, 4), np.uint32)
TILE = np.zeros((4, 4), np.uint32)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: rotate_lanes(A, 4), ValueError, "distance must be from 0 to 3, not 4"),
    (lambda: rotate_lanes(A, -1), ValueError, "distance must be from 0 to 3, not -1"),
    (lambda: rotate_lanes(A, cast(Any, 1.0)), TypeError, "distance must be an integer, not 1.0"),
    (lambda: rotate_sublanes(A, 2), ValueError, "distance must be from 0 to 1, not 2"),
    (lambda: broadcast_lane(A, 4), ValueError, "lane must be from 0 to 3, not 4"),
    (lambda: broadcast_sublane(A, 2), ValueError, "sublane must be from 0 to 1, not 2"),
    (lambda: broadcast_sublane(A, True), TypeError, "sublane must be an integer, not True"),
    (lambda: rotate_lanes(A.view(np.float32), 0), TypeError,
     "a must be an array of uint32, not of float32"),
    (lambda: sum_lanes(A[0]), ValueError, "a must have shape (sublanes, lanes), not (4,)"),
    (lambda: sum_lanes(A[:, :1]), ValueError, "a must have at least 2 lanes, not shape (2, 1)"),
    (lambda: max_lanes(A[:, :1]), ValueError, "a must have at least 2 lanes, not shape (2, 1)"),
    (lambda: max_lanes(A[:0]), ValueError, "a must have shape (sublanes, lanes), not (0, 4)"),
    (lambda: transpose_in(TILE, A, 2), ValueError, "group must be from 0 to 1, not 2"),
    (lambda: transpose_in(TILE, A[:, :2], 0), ValueError,
     "a must have 4 lanes, not shape (2, 2)"),
    (lambda: transpose_in(cast(Any, [[0]]), A, 0), TypeError,
     "tile must be an array of uint32, not of list"),
    (lambda: transpose_in(A, A, 0), ValueError,
     "tile must have shape (lanes, lanes), not (2, 4)"),
    (lambda: transpose_out(TILE, 2, 2), ValueError, "group must be from 0 to 1, not 2"),
    (lambda: transpose_out(TILE, 0, 0), ValueError, "sublanes must be from 1 to 4, not 0"),
    (lambda: transpose_out(TILE, 0, cast(Any, "2")), TypeError,
     "sublanes must be an integer, not '2'"),
])
def test_wrong_arguments_are_refused(call: Callable[..., Any], error: type[Exception],
                                     message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
