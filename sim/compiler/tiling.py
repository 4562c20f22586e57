"""Tilings: how a value's elements lie in vectors of vector memory and in rows of HBM.

A value is divided into *tiles* of sublanes x lanes elements, one vector each, over two of its
dimensions; all other dimensions are *outer*. For each outer index, vectors are numbered down a
column of tiles, then column by column.

In a *packed* tiling of bf16 numbers, two consecutive tiles of a column share a vector: the numbers
of the first tile are the low halves of the vector's words, those of the second tile the high
halves. If a column has an odd number of tiles, the high halves of its last vector are padding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config

__all__ = ["HIGH", "Tiling", "column", "same_vectors", "standard"]

Words = npt.NDArray[np.uint32]

HIGH = 0xFFFF_0000
"""Mask of the high half of a word: all bits of a bf16 number that is stored as fp32."""


@dataclass(frozen=True)
class Tiling:
    """How the elements of an array of shape ``shape`` lie in vectors.

    ``order`` lists the dimensions from major to minor. With ``along_lanes``, the last of them runs
    along the lanes and the one before it along the sublanes; a value of one dimension has no
    dimension along the sublanes. Without ``along_lanes``, the last dimension runs along the
    sublanes, and none along the lanes: a *column* tiling. A value without dimensions has neither.

    If no dimension runs along the lanes, all lanes of a vector are equal; if none runs along the
    sublanes, all sublanes are. So a scalar fills a whole vector. Elements of a vector beyond the
    size of a dimension are padding; their values are undefined.

    Attributes
    ----------
    shape : tuple of int
        Sizes of the dimensions, each 1 or more.
    order : tuple of int
        A permutation of the dimensions.
    along_lanes : bool
        Whether a dimension runs along the lanes; False for a value without dimensions.
    sublanes, lanes : int
        Shape of a vector.
    packed : bool
        Whether two tiles share a vector. The elements must be bf16 numbers, and dimensions must run
        along both lanes and sublanes.

    Raises
    ------
    ValueError
        If ``order`` is not a permutation, or a size is not positive. If ``along_lanes`` is True for
        a value without dimensions, or ``packed`` without dimensions along lanes and sublanes.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    along_lanes: bool
    sublanes: int
    lanes: int
    packed: bool = False

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.shape))):
            raise ValueError(f"order must be a permutation of the {len(self.shape)} dimensions, "
                             f"not {self.order!r}")
        if any(size < 1 for size in self.shape):
            raise ValueError(f"sizes must be positive, not {self.shape!r}")
        if self.along_lanes and not self.shape:
            raise ValueError("along_lanes must be False for a value without dimensions, not True")
        if self.packed and (self.lane_dimension is None or self.sublane_dimension is None):
            raise ValueError("a packed value must have dimensions along the lanes and the sublanes,"
                             f" not shape {self.shape!r} with along_lanes={self.along_lanes}")

    @property
    def lane_dimension(self) -> int | None:
        """The dimension along the lanes; None if there is none."""
        return self.order[-1] if self.along_lanes else None

    @property
    def sublane_dimension(self) -> int | None:
        """The dimension along the sublanes; None if there is none."""
        rest = self.order[:-1] if self.along_lanes else self.order
        return rest[-1] if rest else None

    @property
    def outer_dimensions(self) -> tuple[int, ...]:
        """Dimensions along neither lanes nor sublanes, from major to minor."""
        tiled = (self.lane_dimension, self.sublane_dimension)
        return tuple(dimension for dimension in self.order if dimension not in tiled)

    @property
    def columns(self) -> int:
        """Size of the dimension along the lanes; 1 if there is none."""
        return 1 if self.lane_dimension is None else self.shape[self.lane_dimension]

    @property
    def rows(self) -> int:
        """Size of the dimension along the sublanes; 1 if there is none."""
        return 1 if self.sublane_dimension is None else self.shape[self.sublane_dimension]

    @property
    def outer(self) -> int:
        """Number of combinations of indices of the outer dimensions."""
        return math.prod(self.shape[dimension] for dimension in self.outer_dimensions)

    @property
    def lane_tiles(self) -> int:
        """Number of tiles along the lanes."""
        return -(-self.columns // self.lanes)

    @property
    def row_tiles(self) -> int:
        """Number of tiles along the sublanes."""
        return -(-self.rows // self.sublanes)

    @property
    def column_vectors(self) -> int:
        """Number of vectors of a column of tiles: `row_tiles`, or half as many if packed."""
        return -(-self.row_tiles // 2) if self.packed else self.row_tiles

    @property
    def widened(self) -> "Tiling":
        """The same tiling without packing: each element has a word of its own."""
        return replace(self, packed=False) if self.packed else self

    @cached_property
    def vectors(self) -> int:
        """Number of vectors; each holds one tile, or up to two tiles if `packed`."""
        return self.outer * self.lane_tiles * self.column_vectors

    def vector(self, outer: int, lane_tile: int, row_tile: int) -> int:
        """Return the index, among the value's vectors, of the vector that holds a tile.

        ``outer`` is the combined index of the outer dimensions, ``lane_tile`` the number of the
        tile along the lanes, ``row_tile`` that along the sublanes. The index grows fastest with
        ``row_tile``, and slowest with ``outer``.
        """
        return ((outer * self.lane_tiles + lane_tile) * self.column_vectors
                + row_tile // (1 + self.packed))

    def pack(self, words: Words, padding: int = 0) -> Words:
        """Split an array of words into vectors.

        Parameters
        ----------
        words : array of uint32
            The value's elements, of ``shape``.
        padding : int
            Word that fills the padding.

        Returns
        -------
        array of uint32, shape (vectors, sublanes, lanes)
        """
        vectors = np.full((self.vectors, self.sublanes, self.lanes), padding, np.uint32)
        self.write(words, vectors)
        return vectors

    def write(self, words: Words, vectors: Words) -> None:
        """Write an array of words to the vectors that hold the value.

        Padding in ``vectors`` keeps its contents; with `packed`, it becomes 0.

        Parameters
        ----------
        words : array of uint32
            The value's elements, of ``shape``.
        vectors : array of uint32
            Contiguous; shape (vectors, sublanes, lanes), or (vectors * sublanes, lanes).
        """
        if words.shape != self.shape:
            raise ValueError(f"words must be of shape {self.shape!r}, not {words.shape!r}")
        if self.packed:
            tiles = self.widened.pack(words).reshape(
                -1, self.row_tiles, self.sublanes, self.lanes)
            stored = vectors.reshape(-1, self.column_vectors, self.sublanes, self.lanes)
            stored[:] = tiles[:, ::2] >> np.uint32(16)
            stored[:, :self.row_tiles // 2] |= tiles[:, 1::2] & np.uint32(HIGH)
            return
        high, wide, outer = self.sublanes, self.lanes, self.outer
        plain = words.transpose(self.order).reshape(outer, self.rows, self.columns)
        if self.sublane_dimension is None or self.lane_dimension is None:
            plain = np.broadcast_to(plain, (
                outer, high if self.sublane_dimension is None else self.rows,
                wide if self.lane_dimension is None else self.columns))
        tiles = vectors.reshape(outer, self.lane_tiles, self.row_tiles, high, wide)
        tiles = tiles.transpose(0, 2, 3, 1, 4)
        # All whole tiles are written at once, then the partial tiles at the edges.
        for row, rows, sublanes in _parts(plain.shape[1], high):
            for column, columns, lanes in _parts(plain.shape[2], wide):
                part = plain[:, row * high:row * high + rows * sublanes,
                             column * wide:column * wide + columns * lanes]
                tiles[:, row:row + rows, :sublanes, column:column + columns, :lanes] = (
                    part.reshape(outer, rows, sublanes, columns, lanes))

    def unpack(self, vectors: npt.NDArray[Any]) -> Words:
        """Reassemble a value from its vectors: the inverse of `pack`.

        Returns
        -------
        array of uint32, of ``shape``
        """
        tiles = np.asarray(vectors, np.uint32)
        if self.packed:
            stored = tiles.reshape(-1, self.column_vectors, 1, self.sublanes, self.lanes)
            tiles = np.concatenate([stored << np.uint32(16), stored & np.uint32(HIGH)], 2)
            tiles = tiles.reshape(len(stored), -1, self.sublanes, self.lanes)[:, :self.row_tiles]
        tiles = tiles.reshape(
            self.outer, self.lane_tiles, self.row_tiles, self.sublanes, self.lanes)
        full = tiles.transpose(0, 2, 3, 1, 4).reshape(
            self.outer, self.row_tiles * self.sublanes, self.lane_tiles * self.lanes)
        plain = full[:, :self.rows, :self.columns]
        ordered = plain.reshape([self.shape[dimension] for dimension in self.order])
        return np.array(ordered.transpose(np.argsort(self.order)), order="C")


def _parts(size: int, tile: int) -> list[tuple[int, int, int]]:
    """Divide ``size`` elements into whole tiles of ``tile`` elements and a remainder.

    Returns at most two triples, one for the whole tiles, one for the remainder: number of the first
    tile, number of tiles, number of elements in each of these tiles.
    """
    whole, rest = divmod(size, tile)
    return [(0, whole, tile)] * (whole > 0) + [(whole, 1, rest)] * (rest > 0)


def standard(shape: Sequence[int], config: Config) -> Tiling:
    """Return the tiling of inputs and outputs: dimensions in order, the last along the lanes."""
    order = tuple(range(len(shape)))
    return Tiling(tuple(shape), order, bool(order), config.sublanes, config.lanes)


def same_vectors(given: Tiling, made: Tiling) -> bool:
    """Return whether a reshape from tiling ``given`` to tiling ``made`` moves no element.

    If so, the value and its reshape can share their vectors.
    """
    if given.packed or made.packed:
        return False
    for tiling in (given, made):
        tiled = tiling.sublane_dimension, tiling.lane_dimension
        order = [d for d in tiling.order if tiling.shape[d] > 1 or d in tiled]
        if order != sorted(order):
            return False
    if given.along_lanes != made.along_lanes or (
            (given.sublane_dimension is None) != (made.sublane_dimension is None)):
        return False
    # In a single column of whole tiles, rows continue from one outer index to the next.
    whole = given.lane_tiles == 1 and not (given.rows % given.sublanes or made.rows % made.sublanes)
    return given.columns == made.columns and (given.rows == made.rows or whole)


def column(shape: Sequence[int], config: Config) -> Tiling:
    """Return the column tiling: dimensions in order, the last one along the sublanes.

    The result of a reduction along the lanes has this tiling.
    """
    return Tiling(tuple(shape), tuple(range(len(shape))), False, config.sublanes, config.lanes)
