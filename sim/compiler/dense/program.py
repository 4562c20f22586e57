"""Dense layers as an executable: its arrays, and how the cores share the work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.dense.graph import Division, layers_graph
from sim.compiler.dense.layers import Dense, LayerKind
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import DType
from sim.compiler.program.cache import compile_cached
from sim.compiler.program.places.places import VectorMemoryError

__all__ = ["DenseProgram", "compile_layers", "divisions"]

Float32 = npt.NDArray[np.float32]
Matrix = npt.NDArray[Any]
"""An array of float32 or bfloat16."""

_EXCHANGE_CYCLES = 200
"""Approximate cycles of an exchange between the cores, in addition to one for each row sent."""


@dataclass(frozen=True)
class DenseProgram:
    """Compiled dense layers.

    If the cores share an odd number of rows or columns, it is padded to an even number.

    Attributes
    ----------
    executable : Executable
        The compiled graph.
    division : Division
        How the cores share the work.
    rows : int
        Rows of the input and of all results.
    kinds : tuple of LayerKind
        Kinds of the layers.
    """

    executable: Executable
    division: Division
    rows: int
    kinds: tuple[LayerKind, ...]

    def arrays(self, x: Matrix, layers: Sequence[Dense]) -> list[Matrix]:
        """Return the executable's inputs: ``x``, as float32, then each layer's weights and bias."""
        # Signalling NaNs and subnormals pass unchanged: the hardware decides what becomes of them.
        wide = x.astype(np.float32)
        found = [_even(wide, 0) if self.division is Division.ROWS else wide]
        for layer in layers:
            for array, along in ((layer.weights, 0 if layer.transpose else 1), (layer.bias, 0)):
                if array is not None:
                    found.append(_even(array, along) if self.division is Division.COLUMNS
                                 else array)
        return found

    def results(self, outputs: Sequence[Float32]) -> list[Float32]:
        """Return the layers' results: the executable's outputs ``outputs`` without padding."""
        return [output if output.shape == (self.rows, kind.columns)
                else output[:self.rows, :kind.columns].copy()
                for output, kind in zip(outputs, self.kinds, strict=True)]


def _even(array: Matrix, along: int) -> Matrix:
    """Pad an array with zeros to an even size in dimension ``along``."""
    if array.shape[along] % 2 == 0:
        return array
    return np.pad(array, [(0, int(number == along)) for number in range(array.ndim)])


@lru_cache(maxsize=32)
def compile_layers(config: Config, rows: int, depth: int, kinds: tuple[LayerKind, ...]
                   ) -> DenseProgram:
    """Compile dense layers; each layer's input is the result of the layer before.

    Recent results are cached. Equal arguments then give the same object, whose programs a device
    need not load again.

    Parameters
    ----------
    config : Config
        Configuration of the chip.
    rows, depth : int
        Shape of the first layer's input, 1 or more.
    kinds : tuple of LayerKind
        Kinds of the layers.

    Raises
    ------
    MemoryError
        If the chip's memories are too small for the code, or for the smallest blocks.
    """
    shapes, inner = [], depth
    for kind in kinds:
        shapes.append(f"({rows}, {inner}) and ({inner}, {kind.columns})")
        inner = kind.columns
    name = " and ".join(f"a product of {shape}" for shape in shapes)
    failure: MemoryError | None = None
    try:
        for division in divisions(config, rows, depth, kinds):
            try:
                executable = compile_cached(layers_graph(rows, depth, kinds, division), config,
                                            name=name)
            except MemoryError as error:
                # Vector memory may have no room for the halves that the cores exchange.
                failure = failure or error
                continue
            array_rows = _array_rows(config, rows, depth, kinds)
            return DenseProgram(replace(executable, array_rows=array_rows), division, rows, kinds)
        assert failure is not None
        raise _named(name, config, failure) from failure
    finally:
        # Its traceback refers to this frame, and so to all objects of the attempt.
        failure = None


def _named(name: str, config: Config, failure: MemoryError) -> MemoryError:
    """Return ``failure`` with a message that contains ``name``, the description of the layers."""
    if isinstance(failure, VectorMemoryError):
        return MemoryError(f"{name} must fit vector memory, which has {config.vmem_vectors} "
                           "vectors: choose a chip with more vector memory")
    return MemoryError(str(failure) if name in str(failure) else f"{name}: {failure}")


def divisions(config: Config, rows: int, depth: int, kinds: Sequence[LayerKind]
              ) -> list[Division]:
    """Return the ways in which the cores can share layers, with the fewest estimated cycles first.

    ``rows`` and ``depth`` are the shape of the first layer's input, and ``kinds`` the kinds of the
    layers. If estimates are equal, `Division.COLUMNS` comes before `Division.ROWS`: a product of
    1024 x 1024 x 1024 then takes 0.8% fewer cycles at `v2`.
    """
    ways = [Division.NONE]
    if config.cores > 1:
        if rows > 1:
            ways.insert(0, Division.ROWS)
        if all(kind.columns > 1 for kind in kinds):
            ways.insert(0, Division.COLUMNS)
    return sorted(ways, key=lambda way: _cycles(config, rows, depth, kinds, way))


def _cycles(config: Config, rows: int, depth: int, kinds: Sequence[LayerKind],
            division: Division) -> int:
    """Estimate a core's cycles: one for each row that its array processes or that it transfers.

    ``rows`` and ``depth`` are the shape of the first layer's input; ``kinds`` are the kinds of the
    layers, which the cores share as ``division`` says.
    """
    by_columns = division is Division.COLUMNS
    height = ceil(rows / 2) if division is Division.ROWS else rows
    total = height * ceil(depth / config.lanes)
    for number, kind in enumerate(kinds):
        columns = ceil(kind.columns / 2) if by_columns else kind.columns
        tiles = ceil(depth / config.array), ceil(columns / config.array)
        total += tiles[0] * tiles[1] * max(height, config.array + 1)
        total += ceil(depth / (1 + (kind.dtype is DType.BF16))) * tiles[1] + height * tiles[1]
        if by_columns and number + 1 < len(kinds):
            total += _EXCHANGE_CYCLES + height * tiles[1]
        depth = kind.columns
    return total


def _array_rows(config: Config, rows: int, depth: int, kinds: Sequence[LayerKind]) -> int:
    """Estimate how many rows the arrays of all cores process, as a measure of a run's progress.

    ``rows`` and ``depth`` are the shape of the first layer's input, and ``kinds`` the kinds of the
    layers.
    """
    total, height = 0, ceil(rows / config.sublanes) * config.sublanes
    for kind in kinds:
        total += height * ceil(depth / config.array) * ceil(kind.columns / config.array)
        depth = kind.columns
    return total
