"""Makes random arrays as arguments for JAX's functions."""

from typing import Any

import numpy as np

__all__ = ["SIDE", "Maker"]

SIDE = 6
"""Length of each dimension of most arrays."""


class Maker:
    """Makes random arrays with a default element type and a default shape.

    Parameters
    ----------
    kind : str
        Name of the default element type.
    shape : tuple of int
        Default shape, for arguments whose shape `tools.jax_table.tables` does not prescribe.
    """

    def __init__(self, kind: str, shape: tuple[int, ...]) -> None:
        self.kind, self.shape = kind, shape
        self._random = np.random.default_rng(SIDE)

    def array(self, *shape: int, kind: str | None = None) -> Any:
        """A random array; by default, ``shape`` and the element type ``kind`` are the maker's."""
        return self.of(shape or self.shape, kind)

    def of(self, shape: tuple[int, ...], kind: str | None = None) -> Any:
        """A random array of ``shape``, which may be (), and element type ``kind``."""
        kind = kind or self.kind
        if kind == "bool":
            return np.asarray(self._random.integers(0, 2, shape), bool)
        if kind in ("int32", "uint32"):
            return np.asarray(self._random.integers(0 if kind[0] == "u" else -9, 9, shape), kind)
        return np.asarray(self._random.normal(size=shape), kind)

    def index(self, *shape: int) -> Any:
        """Random integers that are valid indices of a dimension of length `SIDE`."""
        return np.asarray(self._random.integers(0, SIDE, shape), np.int32)

    def rising(self, *shape: int) -> Any:
        """Random numbers of shape ``shape``, in ascending order along the last dimension."""
        return np.sort(self.of(shape, "float32"))

    def positive(self, *shape: int) -> Any:
        """A random array of floats from 0.1 to 1.1."""
        return np.asarray(self._random.random(shape) + 0.1, np.float32)
