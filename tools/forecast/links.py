"""Cycles of `systolith.AllReduce`, from HBM to HBM."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
from scipy.optimize import least_squares

from hdl.config import Config
from sim.compiler.collectives.plan import RingPlan
from sim.driver.pod import with_links
from tools.forecast.replay.rings import Times, replayed
from tools.forecast.samples import LINKS, SumSample
from tools.forecast.torus import Shape

__all__ = ["LinkModel", "parts"]

_FIRST = Times(start=200, latency=80, transfer=2)
"""Times with which the search for the fitted ones begins."""


@dataclass(frozen=True)
class LinkModel:
    """Model of the cycles of `systolith.AllReduce`: the replay of its programs with fitted times.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    times : Times
    """

    config: Config
    times: Times

    def cycles(self, shape: Shape, size: int, contributions: int = 1) -> float:
        """Return the cycles of a sum: each chip has ``contributions`` arrays of ``size`` bytes.

        If vector memory has no room for the blocks of the whole array, the array's `parts` are
        summed one after the other.
        """
        number, plan = parts(self.config, shape, size, contributions)
        return number * replayed(plan, self.times)

    @classmethod
    def fitted(cls, config: Config, samples: Iterable[SumSample]) -> "LinkModel":
        """Fit the times to samples of kind `LINKS`, by least squares of relative errors.

        Raises
        ------
        ValueError
            If there are fewer samples than times.
        """
        used = [sample for sample in samples if sample.kind == LINKS]
        first = astuple(_FIRST)
        if len(used) < len(first):
            raise ValueError(f"number of AllReduce samples must be at least {len(first)}, "
                             f"not {len(used)}")

        def errors(times: Iterable[float]) -> list[float]:
            model = cls(config, Times(*map(float, times)))
            return [model.cycles(each.shape, each.sizes[0], each.contributions) / each.cycles - 1
                    for each in used]

        # A step of 1% is much longer than the distances at which the order of events changes.
        found = least_squares(errors, first, bounds=(0, np.inf), x_scale=first, diff_step=1e-2,
                              ftol=1e-3, xtol=1e-3)
        return cls(config, Times(*map(float, found.x)))


@cache
def parts(config: Config, shape: Shape, size: int, contributions: int) -> tuple[int, RingPlan]:
    """Return the number of equal parts in which an array must be summed, and the plan of a part.

    If vector memory is too small for the blocks of the whole array, the array is summed in parts.
    Their number is a power of two. An array or a part with many vectors has a block for each chip;
    one with few vectors is spread, and has fewer blocks (`sim.compiler.collectives.plan`).

    Raises
    ------
    MemoryError
        If vector memory is too small even for parts of one byte.
    """
    number = 1
    while True:
        try:
            return number, RingPlan.of(with_links(config), shape, -(-size // number),
                                       contributions)
        except MemoryError:
            if number >= size:
                raise
            number *= 2
