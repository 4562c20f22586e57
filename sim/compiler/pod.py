"""Executables of pods: one for each chip, and how host arrays are divided between the devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.torus import CORES, Division, Torus

__all__ = ["PodArray", "PodExecutable"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PodArray:
    """An input or output of a pod's executable.

    Attributes
    ----------
    name : str
        Name of the buffer that holds it on each chip.
    shape : tuple of int
        Shape of the host's array.
    dtype : numpy.dtype
        Type of its elements.
    division : Division or None
        How it is divided between the devices; None if all have the whole array.
    stacked : bool
        Whether the cores of a chip have different parts. A chip's buffer then holds both.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    division: Division | None
    stacked: bool

    def chip(self, array: Array, chip: int) -> Array:
        """Return the part of the host's array that chip number ``chip`` has.

        The shape is that of the buffer's layout: with `stacked`, the first dimension has one index
        for each core.
        """
        if self.division is None:
            return array
        parts = [self.division.part(array, CORES * chip + core) for core in range(CORES)]
        return np.stack(parts) if self.stacked else parts[0]

    def join(self, chips: Sequence[Array]) -> Array:
        """Join the parts of all chips into the host's array: the inverse of `chip`."""
        if self.division is None:
            return chips[0]
        return self.division.join([array[core] if self.stacked else array
                                   for array in chips for core in range(CORES)])


@dataclass(frozen=True, eq=False)
class PodExecutable:
    """Executables for all chips of a pod, which together compute the outputs from the inputs.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    name : str
        Name of the computation, for messages.
    torus : Torus
        Size of the torus.
    chips : tuple of Executable
        The executable of each chip, in the order of the chips' numbers
        (`sim.compiler.graph.torus`).
    inputs, outputs : tuple of PodArray
        The arrays that the host passes, and those that a run returns, in order.
    """

    config: Config
    name: str
    torus: Torus
    chips: tuple[Executable, ...]
    inputs: tuple[PodArray, ...]
    outputs: tuple[PodArray, ...]
