"""Cycles of sums that the compiler makes over a torus, from HBM to HBM."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from hdl.config import Config
from sim.compiler.collectives.shares import SumShares
from sim.compiler.program.compiled import SumRecord
from sim.driver.pod import with_links
from tools.forecast.fit import non_negative
from tools.forecast.replay.streamed import streamed
from tools.forecast.samples import COMPILED, SumSample
from tools.forecast.torus import Shape

__all__ = ["SumModel", "streams"]


@dataclass(frozen=True)
class SumModel:
    """Parameters of compiled sums over a torus.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    latency : float
        Cycles from one chip to the next: that of `tools.forecast.replay.rings.Times`, not fitted.
    near_start, near : float
        Cycles of a sum over one chip, whose cores exchange parts and add them: those that do not
        depend on the arrays, and those for each row of an array.
    start, local : float
        Cycles of a sum over several chips, besides its ticks: those that depend neither on the
        arrays nor on the torus, and those for each row of an array.
    """

    config: Config
    latency: float
    near_start: float
    near: float
    start: float
    local: float

    def cycles(self, shape: Shape, sizes: Sequence[int]) -> float:
        """Return the cycles of a program that sums arrays of ``sizes`` bytes over all cores."""
        whole = SumRecord(_vectors(self.config, sizes), kernels=0, apart=False, leads=False)
        return self.ticks(shape, whole) + sum(factor * feature for factor, feature in zip(
            (self.near_start, self.near, self.start, self.local),
            _features(self.config, shape, sizes), strict=True))

    def ticks(self, shape: Shape, sums: SumRecord) -> float:
        """Return the cycles of the sum itself, between arrays in vector memory; 0 on one chip."""
        if math.prod(shape) == 1:
            return 0
        config = with_links(self.config)
        return streamed(config, _shares(config, shape, sums), self.latency)

    @classmethod
    def fitted(cls, config: Config, latency: float, samples: Iterable[SumSample]) -> "SumModel":
        """Fit the parameters to samples of kind `COMPILED`, by least squares of relative errors.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        used = [sample for sample in samples if sample.kind == COMPILED]
        ticks = cls(config, latency, 0, 0, 0, 0)
        return cls(config, latency, *non_negative(
            [_features(config, each.shape, each.sizes) for each in used],
            [each.cycles - ticks.cycles(each.shape, each.sizes) for each in used],
            [1 / each.cycles for each in used]))


def streams(config: Config, shape: Shape, sizes: Sequence[int]) -> bool:
    """Return whether the compiler streams the sum of these arrays over all cores of a torus.

    Vector memory must have room for the arrays and the workspace (`SumShares`). Otherwise the
    compiler uses exchanges, which take longer; `SumModel` does not predict their cycles.
    """
    shares = SumShares.of(with_links(config), shape, _vectors(config, sizes))
    return shares.vectors + shares.workspace <= config.vmem_vectors


@cache
def _shares(config: Config, shape: Shape, sums: SumRecord) -> SumShares:
    """Return how the compiler divides a sum; ``config`` has links."""
    if sums.apart:
        return SumShares.in_steps(config, shape, sums.vectors, sums.kernels)
    return SumShares.of(config, shape, sums.vectors)


def _vectors(config: Config, sizes: Sequence[int]) -> int:
    """Return the total number of vectors of arrays; each array is padded to whole vectors."""
    return sum(-(-size // (config.row_bytes * config.sublanes)) for size in sizes)


def _features(config: Config, shape: Shape, sizes: Sequence[int]
              ) -> tuple[float, float, float, float]:
    """Return the factors of `SumModel.near_start`, ``near``, ``start`` and ``local``."""
    rows = sum(sizes) / config.row_bytes
    return (1, rows, 0, 0) if math.prod(shape) == 1 else (0, 0, 1, rows)
