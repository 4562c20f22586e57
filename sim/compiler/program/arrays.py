"""Layouts of a compiled program's buffers in HBM."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype, shard, unshard, unsharded_shape
from sim.compiler.graph.ir import TensorType
from sim.compiler.tiling import Tiling, standard
from sim.compiler.words import from_words, to_words

__all__ = ["RawRows", "Ring", "ShardedArray", "TiledArray", "View", "tiled"]

Words = npt.NDArray[np.uint32]
View = tuple[tuple[str, tuple[int, ...]], ...]
"""Steps that the host applies to an array, in order, before it divides the array into vectors:
``("reshape", shape)`` or ``("transpose", permutation)``."""


def _viewed(array: npt.NDArray[Any], view: View) -> npt.NDArray[Any]:
    for kind, numbers in view:
        array = array.reshape(numbers) if kind == "reshape" else array.transpose(numbers)
    return array


def _shapes(shape: tuple[int, ...], view: View) -> list[tuple[int, ...]]:
    """Return the array's shape before each reshape or transpose of a view, and after the last."""
    shapes = [shape]
    for kind, numbers in view:
        shapes.append(numbers if kind == "reshape" else tuple(shapes[-1][i] for i in numbers))
    return shapes


@dataclass(frozen=True)
class TiledArray:
    """Layout of a host array in HBM: the rows of its vectors, in the standard tiling.

    Attributes
    ----------
    shape : tuple of int
        Shape of the host array; sizes may be 0.
    dtype : numpy.dtype
        Type of the array's elements; each element takes one word of HBM, or half of one if the
        tiling is packed.
    tiling : Tiling or None
        How the array, after the steps of ``view``, is divided into vectors; None if the array has
        no elements.
    view : View
        Reshapes and transposes that `pack` applies to the array before it tiles the array;
        `unpack` undoes them.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tiling: Tiling | None
    view: View = ()

    @property
    def rows(self) -> int:
        """Number of HBM rows that the array takes; 1 for an array without elements."""
        return 1 if self.tiling is None else self.tiling.vectors * self.tiling.sublanes

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write the array to ``memory``, shape (rows, lanes).

        Padding in ``memory`` keeps its value; in a packed tiling, it becomes 0.
        """
        if self.tiling is not None:
            self.tiling.write(to_words(np.asarray(_viewed(array, self.view), order="C")), memory)

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array with the elements that ``memory``, shape (rows, lanes), holds."""
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
    """Layout in HBM of a host array that is split between two cores.

    The rows of core 0's part come first, then those of core 1's part.

    Attributes
    ----------
    part : TiledArray
        Layout of each part; both parts have the same shape.
    dimension : int
        Dimension along which the array is split, or `sim.compiler.graph.ir.STACKED` if the host
        array has a first dimension of size 2, with one index for each core.
    """

    part: TiledArray
    dimension: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return unsharded_shape(self.part.shape, self.dimension)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array's elements."""
        return self.part.dtype

    @property
    def rows(self) -> int:
        """Number of HBM rows that both parts take together."""
        return 2 * self.part.rows

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write both parts to ``memory``, shape (rows, lanes)."""
        for part, rows in zip(shard(array, self.dimension), self._halves(memory), strict=True):
            self.part.pack(np.asarray(part, order="C"), rows)

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array, joined from both parts in ``memory``, shape (rows, lanes)."""
        return unshard([self.part.unpack(rows) for rows in self._halves(memory)], self.dimension)

    def _halves(self, memory: Words) -> tuple[Words, Words]:
        return memory[:self.part.rows], memory[self.part.rows:]


@dataclass(frozen=True)
class Ring:
    """Layout in HBM of an input in the infeed (`Queues`): *slots*, each with room for one batch.

    The rows of core 0's parts of all batches come first, then those of core 1's parts.

    Attributes
    ----------
    batch : TiledArray or ShardedArray
        Layout of a batch.
    slots : int
        Number of slots.
    lanes : int
        Number of words in a row.
    """

    batch: TiledArray | ShardedArray
    slots: int
    lanes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an array with one batch for each slot."""
        return (self.slots, *self.batch.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the batches' elements."""
        return self.batch.dtype

    @property
    def rows(self) -> int:
        """Number of HBM rows of all slots."""
        return self.slots * self.batch.rows

    def parts(self, batch: npt.NDArray[Any], slot: int) -> list[tuple[int, Words]]:
        """Return, for each core, the rows to write for a batch in slot ``slot``: (first, rows).

        ``first`` is the number of the first row, counted from the start of the buffer. ``rows`` is
        the core's part of the batch, shape (number of rows, lanes). Padding is 0.
        """
        rows = np.zeros((self.batch.rows, self.lanes), np.uint32)
        self.batch.pack(batch, rows)
        parts = np.split(rows, self._cores)
        return [((core * self.slots + slot) * len(part), part) for core, part in enumerate(parts)]

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write batch n of ``array`` to slot n of ``memory``, shape (rows, lanes), for all n."""
        for slot, batch in enumerate(array):
            for first, rows in self.parts(batch, slot):
                memory[first:first + len(rows)] = rows

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array with the batches that ``memory``, shape (rows, lanes), holds."""
        places = memory.reshape(self._cores, self.slots, -1, self.lanes)
        return np.stack([self.batch.unpack(places[:, slot].reshape(-1, self.lanes))
                         for slot in range(self.slots)])

    @property
    def _cores(self) -> int:
        return 2 if isinstance(self.batch, ShardedArray) else 1


@dataclass(frozen=True)
class RawRows:
    """Layout of an array of words that is copied to HBM unchanged, row by row.

    Attributes
    ----------
    rows : int
        Number of rows.
    lanes : int
        Words in each row.
    """

    rows: int
    lanes: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array: (rows, lanes)."""
        return self.rows, self.lanes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a word: uint32."""
        return np.dtype(np.uint32)

    def pack(self, array: Words, memory: Words) -> None:
        """Write ``array`` to ``memory``; both have shape (rows, lanes)."""
        memory[:] = array

    def unpack(self, memory: Words) -> Words:
        """Return a copy of ``memory``, shape (rows, lanes)."""
        return memory.copy()


def tiled(type: TensorType, config: Config, dimension: int | None = None, view: View = (),
          packed: bool = False) -> TiledArray | ShardedArray:
    """Return the layout of an input or output in HBM.

    Parameters
    ----------
    type : TensorType
        Type of the value on one core.
    config : Config
        The chip.
    dimension : int, optional
        How the host array is split between two cores (`ShardedArray.dimension`); None: it is not
        split.
    view : View
        Reshapes and transposes that the host applies to the array before it tiles the array.
    packed : bool
        Whether two bf16 numbers share a word.
    """
    empty = math.prod(type.shape) == 0
    tiling = None if empty else replace(standard(_shapes(type.shape, view)[-1], config),
                                        packed=packed)
    part = TiledArray(type.shape, array_dtype(type.dtype), tiling, view)
    return part if dimension is None else ShardedArray(part, dimension)
