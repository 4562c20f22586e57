"""Constants in HBM; they are the first rows of the buffer that holds the code."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.program.code.transfers import CODE, Rows

__all__ = ["Constants"]

Words = npt.NDArray[np.uint32]


class Constants:
    """Collects the rows of constants; equal constants share rows.

    Constants that differ between the devices for which a program is planned have rows of their own.

    Parameters
    ----------
    config : Config
        The chip.
    """

    def __init__(self, config: Config) -> None:
        self._lanes = config.lanes
        self._parts: list[Words] = []
        self._places: dict[bytes, int] = {}
        self._next = 0
        # For each part that differs between devices, its number and the words of all devices.
        self._differing: dict[int, Words] = {}

    def words(self, device: int = 0) -> Words:
        """Return all constants of a device, shape (rows, lanes)."""
        parts = [self._differing[number][device] if number in self._differing else part
                 for number, part in enumerate(self._parts)]
        return np.concatenate([np.empty((0, self._lanes), np.uint32), *parts])

    def rows(self, vectors: Words) -> Rows:
        """Add constant vectors, shape (vectors, sublanes, lanes); return their rows of HBM."""
        key = vectors.tobytes()
        if key not in self._places:
            self._places[key] = self._add(vectors)
        return Rows(CODE, self._places[key])

    def differing(self, vectors: Words) -> Rows:
        """Add constant vectors of each device, shape (devices, vectors, sublanes, lanes).

        Return the rows of HBM in which every device has its own vectors.
        """
        self._differing[len(self._parts)] = vectors.reshape(len(vectors), -1, self._lanes)
        return Rows(CODE, self._add(vectors[0]))

    def differ(self, rows: Rows, device: int, words: Sequence[int]) -> None:
        """Set the first words of ``rows``, a result of `differing`, for one device."""
        [number] = [number for number, part in self._differing.items()
                    if sum(map(len, self._parts[:number])) == rows.first]
        self._differing[number][device].reshape(-1)[:len(words)] = words

    def _add(self, vectors: Words) -> int:
        """Append vectors; return the number of their first row."""
        first = self._next
        self._parts.append(vectors.reshape(-1, self._lanes))
        self._next += len(self._parts[-1])
        return first
