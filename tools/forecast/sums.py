"""Cycles of sums that the compiler makes over a torus, from HBM to HBM."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from scipy.optimize import minimize_scalar

from hdl.config import Config
from sim.compiler.collectives.shares import SumShares
from sim.driver.pod import with_links
from tools.forecast.fit import non_negative
from tools.forecast.replay.streamed import streamed
from tools.forecast.samples import COMPILED, SumSample
from tools.forecast.torus import Shape

__all__ = ["SumModel", "streams"]

_PIECES = 0.0, 200.0
"""Bounds of the search for the cycles of a piece."""


@dataclass(frozen=True)
class SumModel:
    """Parameters of compiled sums over a torus.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    latency : float
        Cycles from one chip to the next: that of `tools.forecast.replay.rings.Times`, not fitted.
    start : float
        Cycles that every program takes, whatever its arrays and its torus.
    near : float
        Cycles for each row of an array in a sum over one chip, whose cores exchange parts and add
        them.
    local : float
        Cycles for each row of an array in a sum over several chips, before and after the ticks.
    piece : float
        Cycles that a core takes for a piece in a tick, besides those for the piece's vectors.
    """

    config: Config
    latency: float
    start: float
    near: float
    local: float
    piece: float

    def cycles(self, shape: Shape, sizes: Sequence[int]) -> float:
        """Return the cycles of a program that sums arrays of ``sizes`` bytes over all cores."""
        return self.ticks(shape, sizes) + sum(factor * feature for factor, feature in zip(
            (self.start, self.near, self.local), _features(self.config, shape, sizes),
            strict=True))

    def ticks(self, shape: Shape, sizes: Sequence[int]) -> float:
        """Return the cycles of the sum itself, between arrays in vector memory; 0 on one chip."""
        return _ticks(self.config, shape, sizes, self.latency, self.piece)

    @classmethod
    def fitted(cls, config: Config, latency: float, samples: Iterable[SumSample]) -> "SumModel":
        """Fit the parameters to samples of kind `COMPILED`, by least squares of relative errors.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        used = [sample for sample in samples if sample.kind == COMPILED]
        weights = [1 / each.cycles for each in used]
        rows = [_features(config, each.shape, each.sizes) for each in used]

        def model(piece: float) -> SumModel:
            rest = [each.cycles - _ticks(config, each.shape, each.sizes, latency, piece)
                    for each in used]
            start, near, local = non_negative(rows, rest, weights)
            return cls(config, latency, start, near, local, piece)

        def error(piece: float) -> float:
            found = model(float(piece))
            return sum((found.cycles(each.shape, each.sizes) / each.cycles - 1) ** 2
                       for each in used)

        return model(float(minimize_scalar(error, bounds=_PIECES, method="bounded",
                                           options={"xatol": 0.5}).x))


def streams(config: Config, shape: Shape, sizes: Sequence[int]) -> bool:
    """Return whether the compiler streams the sum of these arrays over all cores of a torus.

    Vector memory must have room for the arrays and the workspace (`SumShares`). Otherwise the
    compiler uses exchanges, which take longer; `SumModel` does not predict their cycles.
    """
    vectors, shares = _shares(config, shape, tuple(sizes))
    return vectors + shares.workspace <= config.vmem_vectors


def _features(config: Config, shape: Shape, sizes: Sequence[int]) -> tuple[float, float, float]:
    """Return the factors by which `SumModel.start`, ``near`` and ``local`` are multiplied."""
    alone, rows = math.prod(shape) == 1, sum(sizes) / config.row_bytes
    return 1, rows if alone else 0, 0 if alone else rows


def _ticks(config: Config, shape: Shape, sizes: Sequence[int], latency: float,
           piece: float) -> float:
    """Return the cycles of the ticks of a sum over several chips."""
    if math.prod(shape) == 1:
        return 0
    return streamed(config, _shares(config, shape, tuple(sizes))[1], latency, piece)


@cache
def _shares(config: Config, shape: Shape, sizes: tuple[int, ...]) -> tuple[int, SumShares]:
    """Return the total number of vectors of the arrays, and their division among the cores.

    Each array is padded to whole vectors. The division is the one that the compiler chooses.
    """
    vectors = sum(-(-size // (config.row_bytes * config.sublanes)) for size in sizes)
    return vectors, SumShares.of(with_links(config), shape, vectors)
