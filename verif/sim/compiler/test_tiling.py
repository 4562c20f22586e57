"""Tilings: packing, unpacking, and where elements lie."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hdl.config import PRESETS
from sim.compiler.tiling import Tiling, column, same_vectors, standard

TINY = PRESETS["tiny"]
LANES, SUBLANES = TINY.lanes, TINY.sublanes
SIZES = (1, 2, 3, LANES, LANES + 1, 2 * LANES + 3)
PADDING = 0xDEADBEEF


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.uint32).reshape(shape)


def tilings() -> list[Tiling]:
    generator = np.random.default_rng(3)
    found = [Tiling((), (), False, SUBLANES, LANES)]
    for rank in (1, 2, 3, 4):
        for order in itertools.permutations(range(rank)):
            for lanes in (False, True):
                shape = tuple(int(size) for size in generator.choice(SIZES, rank))
                found.append(Tiling(shape, order, lanes, SUBLANES, LANES))
    return found


def test_reshapes_that_move_nothing() -> None:
    """`same_vectors` is right for all pairs of shapes, and true for the expected ones."""
    shapes = [(2, 3, 4, 5), (6, 4, 5), (24, 5), (1, 6, 4, 5), (6, 4, 1, 5), (120,), (120, 1),
              (24 * SUBLANES, LANES), (4, 6 * SUBLANES, LANES), (8, 3 * SUBLANES, 1, LANES)]
    found = set()
    for one, two in itertools.permutations(shapes, 2):
        if np.prod(one) != np.prod(two):
            continue
        for make, other in itertools.product((standard, column), repeat=2):
            given, made = make(one, TINY), other(two, TINY)
            if same_vectors(given, made):
                found.add((one, two))
                first, second = (tiling.pack(numbered(tiling.shape), PADDING)
                                 for tiling in (given, made))
                assert np.array_equal(first, second)
    assert {((2, 3, 4, 5), (6, 4, 5)), ((6, 4, 5), (1, 6, 4, 5)),
            ((24 * SUBLANES, LANES), (4, 6 * SUBLANES, LANES))} <= found
    assert ((6, 4, 5), (24, 5)) not in found or 4 % SUBLANES == 0


@pytest.mark.parametrize("tiling", tilings(), ids=str)
def test_each_element_lies_where_the_tiling_says(tiling: Tiling) -> None:
    words = numbered(tiling.shape)
    vectors = tiling.pack(words, PADDING)
    assert vectors.shape == (tiling.vectors, SUBLANES, LANES)
    covered = np.zeros(vectors.shape, bool)
    for index in np.ndindex(tiling.shape):
        outer = 0
        for dimension in tiling.outer_dimensions:
            outer = outer * tiling.shape[dimension] + index[dimension]
        row = 0 if tiling.sublane_dimension is None else index[tiling.sublane_dimension]
        lane = 0 if tiling.lane_dimension is None else index[tiling.lane_dimension]
        number = tiling.vector(outer, lane // LANES, row // SUBLANES)
        sublanes = (slice(None) if tiling.sublane_dimension is None
                    else slice(row % SUBLANES, row % SUBLANES + 1))
        lanes = (slice(None) if tiling.lane_dimension is None
                 else slice(lane % LANES, lane % LANES + 1))
        assert np.all(vectors[number, sublanes, lanes] == words[index])
        covered[number, sublanes, lanes] = True
    assert np.all(vectors[~covered] == PADDING)


@pytest.mark.parametrize("tiling", [replace(tiling, packed=True) for tiling in tilings()
                                    if tiling.along_lanes and len(tiling.shape) > 1], ids=str)
def test_two_packed_tiles_share_a_vector(tiling: Tiling) -> None:
    """Each column of tiles begins with the low halves of a vector; padding is 0."""
    words = numbered(tiling.shape) + np.uint32(1) << np.uint32(16)
    halves = tiling.pack(words, PADDING).view(np.uint16).reshape(tiling.vectors, -1, 2)
    wide = tiling.widened.pack(words).reshape(-1, tiling.row_tiles, SUBLANES * LANES)
    assert tiling.vectors == len(wide) * -(-tiling.row_tiles // 2)
    for at, row in np.ndindex(wide.shape[:2]):
        number = tiling.vector(at // tiling.lane_tiles, at % tiling.lane_tiles, row)
        assert np.array_equal(halves[number, :, row % 2], wide[at, row] >> 16)
        if row % 2 == 0 and row + 1 == tiling.row_tiles:
            assert not halves[number, :, 1].any()
    assert np.array_equal(tiling.unpack(tiling.pack(words)), words)
    assert not same_vectors(tiling, tiling)


@pytest.mark.parametrize("tiling", tilings(), ids=str)
def test_unpack_inverts_pack(tiling: Tiling) -> None:
    words = numbered(tiling.shape)
    assert np.array_equal(tiling.unpack(tiling.pack(words, PADDING)), words)


def test_standard_and_column() -> None:
    wide = standard((5, 3, 9), TINY)
    assert (wide.outer, wide.row_tiles, wide.lane_tiles) == (5, 2, 3)
    assert (wide.sublane_dimension, wide.lane_dimension) == (1, 2)
    narrow = column((5, 3), TINY)
    assert (narrow.outer, narrow.row_tiles, narrow.lane_tiles) == (5, 2, 1)
    assert (narrow.sublane_dimension, narrow.lane_dimension) == (1, None)
    assert standard((), TINY).vectors == 1


@pytest.mark.parametrize(("arguments", "message"), [
    (((2, 3), (0, 0), True), r"order must be a permutation of the 2 dimensions, not \(0, 0\)"),
    (((2, 0), (0, 1), True), r"sizes must be positive, not \(2, 0\)"),
    (((), (), True), "along_lanes must be False for a value without dimensions"),
])
def test_wrong_arguments(arguments: tuple[tuple[int, ...], tuple[int, ...], bool],
                         message: str) -> None:
    shape, order, along_lanes = arguments
    with pytest.raises(ValueError, match=message):
        Tiling(shape, order, along_lanes, SUBLANES, LANES)


@pytest.mark.parametrize("tiling", [column((4, 3), TINY), standard((3,), TINY)], ids=str)
def test_a_packed_value_must_have_rows_and_columns(tiling: Tiling) -> None:
    with pytest.raises(ValueError, match="a packed value must have dimensions along the lanes and"):
        replace(tiling, packed=True)


def test_pack_names_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"words must be of shape \(2, 3\), not \(3, 2\)"):
        standard((2, 3), TINY).pack(numbered((3, 2)))
