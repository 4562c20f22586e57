"""Layouts of a compiled program's buffers in HBM."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype, shard, unshard, unsharded_shape
from sim.compiler.graph.ir import TensorType
from sim.compiler.tiling import Tiling, standard
from sim.compiler.words import from_words, to_words

__all__ = ["RawRows", "ShardedArray", "TiledArray", "View", "tiled"]

Words = npt.NDArray[np.uint32]
View = tuple[tuple[str, tuple[int, ...]], ...]
"""Steps of the host before an array is cut into vectors: ``reshape``, with a shape, and
``transpose``, with a permutation."""


def _viewed(array: npt.NDArray[Any], view: View) -> npt.NDArray[Any]:
    for kind, numbers in view:
        array = array.reshape(numbers) if kind == "reshape" else array.transpose(numbers)
    return array


def _shapes(shape: tuple[int, ...], view: View) -> list[tuple[int, ...]]:
    """The shapes before each step of a view, and after the last."""
    shapes = [shape]
    for kind, numbers in view:
        shapes.append(numbers if kind == "reshape" else tuple(shapes[-1][i] for i in numbers))
    return shapes


@dataclass(frozen=True)
class TiledArray:
    """An array of the host as the rows of its vectors, in the standard tiling.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array; sizes may be 0.
    dtype : numpy.dtype
        Type of its elements; each takes a word of HBM.
    tiling : Tiling or None
        How it lies in vectors; None if it has no element.
    view : tuple
        What is done to it before.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tiling: Tiling | None
    view: View = ()

    @property
    def rows(self) -> int:
        """Rows of HBM that it takes; one, for an array without elements."""
        return 1 if self.tiling is None else self.tiling.vectors * self.tiling.sublanes

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write the array to ``memory``, shape (rows, lanes); its padding stays as it is."""
        if self.tiling is not None:
            self.tiling.write(to_words(np.asarray(_viewed(array, self.view), order="C")), memory)

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array of what ``memory``, shape (rows, lanes), holds."""
        if self.tiling is None:
            return np.empty(self.shape, self.dtype)
        array = from_words(self.tiling.unpack(memory), self.dtype)
        for (kind, numbers), shape in zip(self.view[::-1],
                                          _shapes(self.shape, self.view)[-2::-1], strict=True):
            array = (array.reshape(shape) if kind == "reshape"
                     else array.transpose(np.argsort(numbers)))
        return np.asarray(array, order="C")


@dataclass(frozen=True)
class ShardedArray:
    """An array of the host of which each of two cores has a part; that of core 0 comes first.

    Attributes
    ----------
    part : TiledArray
        Layout of either part.
    dimension : int
        Where the array is cut, as in `Sharding`.
    """

    part: TiledArray
    dimension: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return unsharded_shape(self.part.shape, self.dimension)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        return self.part.dtype

    @property
    def rows(self) -> int:
        """Rows of HBM that both parts take."""
        return 2 * self.part.rows

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write both parts to ``memory``, shape (rows, lanes)."""
        for part, rows in zip(shard(array, self.dimension), self._halves(memory), strict=True):
            self.part.pack(np.ascontiguousarray(part), rows)

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array of what ``memory``, shape (rows, lanes), holds."""
        return unshard([self.part.unpack(rows) for rows in self._halves(memory)], self.dimension)

    def _halves(self, memory: Words) -> tuple[Words, Words]:
        return memory[:self.part.rows], memory[self.part.rows:]


@dataclass(frozen=True)
class RawRows:
    """Rows of words, as they are.

    Attributes
    ----------
    rows : int
        Number of rows.
    lanes : int
        Words of each.
    """

    rows: int
    lanes: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array of words."""
        return self.rows, self.lanes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a word."""
        return np.dtype(np.uint32)

    def pack(self, array: Words, memory: Words) -> None:
        """Write the rows to ``memory``."""
        memory[:] = array

    def unpack(self, memory: Words) -> Words:
        """Return a copy of the rows in ``memory``."""
        return memory.copy()


def tiled(type: TensorType, config: Config, dimension: int | None = None, view: View = ()
          ) -> TiledArray | ShardedArray:
    """The layout of an input or output of a type; and of both cores', if it is cut."""
    empty = math.prod(type.shape) == 0
    part = TiledArray(type.shape, array_dtype(type.dtype),
                      None if empty else standard(_shapes(type.shape, view)[-1], config), view)
    return part if dimension is None else ShardedArray(part, dimension)
