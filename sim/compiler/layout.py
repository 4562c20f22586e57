"""Layouts: how arrays of the host lie in rows of HBM."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["NEGATIVE_ZERO", "TAIL_VECTORS", "ColumnOperands", "Layout", "Panels"]

Float32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

NEGATIVE_ZERO = -0.0
"""Padding of weights, and the bias of a layer without one: adding it changes no sum."""
TAIL_VECTORS = 2
"""Vectors of `ColumnOperands` for a column tile: the bias, and the mask of columns to keep."""
_ALL_ONES = 0xFFFFFFFF


class Layout(Protocol):
    """Packs an array of the host into rows of HBM, and unpacks it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the host's array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""

    @property
    def rows(self) -> int:
        """Rows of HBM that it takes."""

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write the array and its padding to ``memory``, shape (rows, lanes)."""

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array of what ``memory``, shape (rows, lanes), holds."""


@dataclass(frozen=True)
class Panels:
    """A float32 matrix as panels: tiles of ``lanes`` columns, each with all its rows in sequence.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns of the matrix.
    panels : tuple of int
        Number of panels, rows of each, and lanes. A row of a panel is a row of HBM.
    padding : float
        What fills the panels where the matrix has no element.
    """

    shape: tuple[int, int]
    panels: tuple[int, int, int]
    padding: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the matrix's elements."""
        return np.dtype(np.float32)

    @property
    def rows(self) -> int:
        """Rows of HBM that the panels take."""
        return self.panels[0] * self.panels[1]

    def pack(self, array: Float32, memory: Words) -> None:
        """Write the matrix and its padding to ``memory``, shape (rows, lanes)."""
        places = memory.reshape(self.panels).view(np.float32)
        high, lanes = array.shape[0], self.panels[2]
        places[:, high:] = self.padding
        for number, panel in enumerate(places):
            part = array[:, number * lanes:(number + 1) * lanes]
            panel[:high, :part.shape[1]] = part
            panel[:high, part.shape[1]:] = self.padding

    def unpack(self, memory: Words) -> Float32:
        """Return the matrix that ``memory``, shape (rows, lanes), holds."""
        rows, columns = self.shape
        wide = memory.reshape(self.panels)[:, :rows].swapaxes(0, 1)
        # A plain view would change with HBM.
        return wide.reshape(rows, -1)[:, :columns].copy().view(np.float32)


@dataclass(frozen=True)
class ColumnOperands:
    """An epilogue's operands: for each column a bias in float32, and a mask that clears padding.

    A column tile has `TAIL_VECTORS` vectors, with equal sublanes.

    Attributes
    ----------
    columns : int
        Columns of the product.
    tiles : int
        Column tiles.
    sublanes, lanes : int
        Shape of a vector.
    zero_pads : bool
        The mask clears the columns beyond ``columns``.
    """

    columns: int
    tiles: int
    sublanes: int
    lanes: int
    zero_pads: bool

    @property
    def shape(self) -> tuple[int]:
        """Shape of the bias."""
        return (self.columns,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the bias."""
        return np.dtype(np.float32)

    @property
    def rows(self) -> int:
        """Rows of HBM that the operands take."""
        return self.tiles * TAIL_VECTORS * self.sublanes

    def pack(self, array: Float32, memory: Words) -> None:
        """Write the bias and the mask to ``memory``, shape (rows, lanes)."""
        width = self.tiles * self.lanes
        bias = np.zeros(width, np.float32)
        bias[:self.columns] = array
        keep = np.full(width, _ALL_ONES, np.uint32)
        if self.zero_pads:
            keep[self.columns:] = 0
        words = np.stack([bias.view(np.uint32), keep])
        self._places(memory)[:] = words.reshape(TAIL_VECTORS, self.tiles, 1,
                                                self.lanes).swapaxes(0, 1)

    def unpack(self, memory: Words) -> Float32:
        """Return the bias that ``memory``, shape (rows, lanes), holds."""
        bias = self._places(memory)[:, 0, 0].copy()
        return bias.reshape(-1)[:self.columns].view(np.float32)

    def _places(self, memory: Words) -> Words:
        return memory.reshape(self.tiles, TAIL_VECTORS, self.sublanes, self.lanes)
