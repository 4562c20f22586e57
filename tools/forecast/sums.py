"""Cycles of sums that the compiler makes over a torus, from HBM to HBM."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hdl.config import Config
from sim.compiler.collectives.shares import SumShares
from sim.driver.pod import with_links
from tools.forecast.fit import non_negative
from tools.forecast.samples import COMPILED, SumSample
from tools.forecast.torus import LINK_RATE, Shape, steps

__all__ = ["SumModel", "streams", "sum_features"]

_PIECE, _VECTOR = 65, 3
"""Cycles of a core's code for a piece of a streamed sum, and for each vector of a piece."""


@dataclass(frozen=True)
class SumModel:
    """Parameters of compiled sums over a torus.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    start : float
        Cycles of a program that do not depend on anything.
    near : float
        Cycles of a sum over one chip for each row: the cores exchange parts and add them.
    local : float
        Cycles of a sum over several chips for each row of an array.
    link : float
        Cycles for each cycle that the busiest link needs; 1 is the link's rate. On large tori, the
        cores may need longer for the pieces of a sum.
    step : float
        Cycles of each step along a ring (`steps`).
    """

    config: Config
    start: float
    near: float
    local: float
    link: float
    step: float

    def cycles(self, shape: Shape, sizes: Sequence[int]) -> float:
        """Return the cycles of a sum of arrays of ``sizes`` bytes on each core."""
        return sum(getattr(self, name) * value
                   for name, value in sum_features(self.config, shape, sizes).items())

    @classmethod
    def fitted(cls, config: Config, samples: Iterable[SumSample]) -> "SumModel":
        """Fit the parameters to samples of kind `COMPILED`, by least squares of relative errors.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        used = [sample for sample in samples if sample.kind == COMPILED]
        found = non_negative(
            [[*sum_features(config, each.shape, each.sizes).values()] for each in used],
            [each.cycles for each in used], [1 / each.cycles for each in used])
        return cls(config, *found)


def streams(config: Config, shape: Shape, sizes: Sequence[int]) -> bool:
    """Return whether the compiler streams the sum of these arrays over all cores of a torus.

    Vector memory must have room for the arrays and the workspace (`SumShares`). Otherwise the
    compiler uses exchanges, which take longer, and which no parameters describe.
    """
    vectors, shares = _shares(config, shape, tuple(sizes))
    return vectors + shares.workspace <= config.vmem_vectors


def sum_features(config: Config, shape: Shape, sizes: Sequence[int]) -> Mapping[str, float]:
    """Return, by name, what each parameter of `SumModel` is multiplied by."""
    alone, rows = math.prod(shape) == 1, sum(sizes) / config.row_bytes
    return {"start": 1, "near": rows if alone else 0, "local": 0 if alone else rows,
            "link": 0 if alone else _carried(config, shape, sizes), "step": steps(shape)}


def _carried(config: Config, shape: Shape, sizes: Sequence[int]) -> float:
    """Return the cycles that the busiest link or, if it takes longer, a core needs for a sum.

    The compiler divides the arrays such that links along both axes have about equal loads. A core
    spends `_PIECE` cycles on each piece, and `_VECTOR` on each of its vectors.
    """
    shares = _shares(config, shape, tuple(sizes))[1]
    steps = shares.chips * shares.pieces
    return max(max(shares.loads()) * config.row_bytes * config.sublanes / LINK_RATE,
               steps * (_VECTOR * sum(shares.sizes) + len(shares.sizes) * _PIECE))


@cache
def _shares(config: Config, shape: Shape, sizes: tuple[int, ...]) -> tuple[int, SumShares]:
    """Return the total number of vectors of the arrays, and their division among the cores.

    Each array is padded to whole vectors. The division is the one that the compiler chooses.
    """
    vectors = sum(-(-size // (config.row_bytes * config.sublanes)) for size in sizes)
    return vectors, SumShares.of(with_links(config), shape, vectors)
