"""Tilings: how a value's elements lie in vectors of vector memory and in rows of HBM.

A value is cut into tiles of sublanes x lanes elements, one vector each, over two of its dimensions;
all other dimensions are *outer*. The tiles of an outer index follow each other down the rows of a
column of tiles, then column by column.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config

__all__ = ["Tiling", "column", "standard"]

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Tiling:
    """How a value of a shape lies in vectors.

    ``order`` names the dimensions from major to minor. With ``along_lanes`` its last dimension
    runs along the lanes and the one before it along the sublanes; a value of one dimension has no
    dimension along the sublanes. Without ``along_lanes`` the last dimension runs along the
    sublanes, and none along the lanes: a *column* tiling. A value without dimensions has neither.

    Where no dimension runs along the lanes, all lanes of a vector are equal; where none runs along
    the sublanes, all sublanes are. So a scalar fills a whole vector. The elements of a vector
    beyond the dimension's size, its padding, are undefined.

    Attributes
    ----------
    shape : tuple of int
        Sizes of the dimensions, each 1 or more.
    order : tuple of int
        A permutation of the dimensions.
    along_lanes : bool
        A dimension runs along the lanes; False for a value without dimensions.
    sublanes, lanes : int
        Shape of a vector.

    Raises
    ------
    ValueError
        If ``order`` is not a permutation, a size is not positive, or a value without dimensions is
        to run along the lanes.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    along_lanes: bool
    sublanes: int
    lanes: int

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.shape))):
            raise ValueError(f"order must be a permutation of {len(self.shape)} dimensions, "
                             f"not {self.order!r}")
        if any(size < 1 for size in self.shape):
            raise ValueError(f"sizes must be positive, not {self.shape!r}")
        if self.along_lanes and not self.shape:
            raise ValueError("a value without dimensions must not run along the lanes")

    @property
    def lane_dimension(self) -> int | None:
        """The dimension along the lanes, or None."""
        return self.order[-1] if self.along_lanes else None

    @property
    def sublane_dimension(self) -> int | None:
        """The dimension along the sublanes, or None."""
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
        """Number of outer indices."""
        return math.prod(self.shape[dimension] for dimension in self.outer_dimensions)

    @property
    def lane_tiles(self) -> int:
        """Tiles along the lanes."""
        return -(-self.columns // self.lanes)

    @property
    def row_tiles(self) -> int:
        """Tiles along the sublanes."""
        return -(-self.rows // self.sublanes)

    @cached_property
    def vectors(self) -> int:
        """Number of vectors; vector (outer index, lane tile, row tile) in this order."""
        return self.outer * self.lane_tiles * self.row_tiles

    def vector(self, outer: int, lane_tile: int, row_tile: int) -> int:
        """Number of a vector."""
        return (outer * self.lane_tiles + lane_tile) * self.row_tiles + row_tile

    def pack(self, words: Words, padding: int = 0) -> Words:
        """Cut an array of words into vectors.

        Parameters
        ----------
        words : array of uint32
            The value; of ``shape``.
        padding : int
            What fills the padding.

        Returns
        -------
        array of uint32, shape (vectors, sublanes, lanes)
        """
        vectors = np.full((self.vectors, self.sublanes, self.lanes), padding, np.uint32)
        self.write(words, vectors)
        return vectors

    def write(self, words: Words, vectors: Words) -> None:
        """Write an array of words to its vectors; padding keeps what it holds.

        Parameters
        ----------
        words : array of uint32
            The value; of ``shape``.
        vectors : array of uint32
            Contiguous; shape (vectors, sublanes, lanes), or that of its rows.
        """
        if words.shape != self.shape:
            raise ValueError(f"words must be of shape {self.shape!r}, not {words.shape!r}")
        high, wide, outer = self.sublanes, self.lanes, self.outer
        plain = words.transpose(self.order).reshape(outer, self.rows, self.columns)
        if self.sublane_dimension is None or self.lane_dimension is None:
            plain = np.broadcast_to(plain, (
                outer, high if self.sublane_dimension is None else self.rows,
                wide if self.lane_dimension is None else self.columns))
        tiles = vectors.reshape(outer, self.lane_tiles, self.row_tiles, high, wide)
        tiles = tiles.transpose(0, 2, 3, 1, 4)
        # Whole tiles at once, then the partial ones at the edges.
        for row, rows, sublanes in _parts(plain.shape[1], high):
            for column, columns, lanes in _parts(plain.shape[2], wide):
                part = plain[:, row * high:row * high + rows * sublanes,
                             column * wide:column * wide + columns * lanes]
                tiles[:, row:row + rows, :sublanes, column:column + columns, :lanes] = (
                    part.reshape(outer, rows, sublanes, columns, lanes))

    def unpack(self, vectors: npt.NDArray[Any]) -> Words:
        """Put the vectors of a value together again: the inverse of `pack`.

        Returns
        -------
        array of uint32, of ``shape``
        """
        tiles = np.asarray(vectors, np.uint32).reshape(
            self.outer, self.lane_tiles, self.row_tiles, self.sublanes, self.lanes)
        full = tiles.transpose(0, 2, 3, 1, 4).reshape(
            self.outer, self.row_tiles * self.sublanes, self.lane_tiles * self.lanes)
        plain = full[:, :self.rows, :self.columns]
        ordered = plain.reshape([self.shape[dimension] for dimension in self.order])
        return np.array(ordered.transpose(np.argsort(self.order)), order="C")


def _parts(size: int, tile: int) -> list[tuple[int, int, int]]:
    """First tile, number of tiles and elements of each: of the whole tiles, and of the rest."""
    whole, rest = divmod(size, tile)
    return [(0, whole, tile)] * (whole > 0) + [(whole, 1, rest)] * (rest > 0)


def standard(shape: Sequence[int], config: Config) -> Tiling:
    """The tiling of inputs and outputs: dimensions in order, the last one along the lanes."""
    order = tuple(range(len(shape)))
    return Tiling(tuple(shape), order, bool(order), config.sublanes, config.lanes)


def column(shape: Sequence[int], config: Config) -> Tiling:
    """The tiling of a reduction along lanes: dimensions in order, the last along the sublanes."""
    return Tiling(tuple(shape), tuple(range(len(shape))), False, config.sublanes, config.lanes)
