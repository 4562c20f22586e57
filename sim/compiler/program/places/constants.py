"""Constants in HBM; they are the first rows of the buffer that holds the code."""

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.program.code.transfers import CODE, Rows

__all__ = ["Constants"]

Words = npt.NDArray[np.uint32]


class Constants:
    """Collects the rows of constants; equal constants share rows.

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

    @property
    def words(self) -> Words:
        """All constants, shape (rows, lanes)."""
        return np.concatenate([np.empty((0, self._lanes), np.uint32), *self._parts])

    def rows(self, vectors: Words) -> Rows:
        """Add constant vectors, shape (vectors, sublanes, lanes); return their rows of HBM."""
        key = vectors.tobytes()
        if key not in self._places:
            rows = vectors.reshape(-1, self._lanes)
            self._parts.append(rows)
            self._places[key] = self._next
            self._next += len(rows)
        return Rows(CODE, self._places[key])
