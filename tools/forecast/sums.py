"""Cycles of sums over a torus, from HBM to HBM."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hdl.config import Config
from sim.compiler.collectives.plan import RingPlan
from sim.compiler.collectives.shares import SumShares
from sim.driver.pod import with_links
from tools.forecast.fit import non_negative
from tools.forecast.samples import COMPILED, LINKS, SumSample
from tools.forecast.torus import LINK_RATE, Shape, link_cycles, short_cycles, steps

__all__ = ["PARAMETERS", "SumModel", "streams", "sum_features"]

PARAMETERS = {
    COMPILED: ("start", "near", "local", "link", "step"),
    LINKS: ("start", "local", "link", "step", "latency"),
}
"""Parameters of `SumModel` that are fitted for each kind of sums; all others are 0."""
_PIECE, _VECTOR = 65, 3
"""Cycles of a core's code for a piece of a streamed sum, and for each vector of a piece."""
_LONGEST = 400
"""Largest latency of a step that a fit tries, in cycles."""


@dataclass(frozen=True)
class SumModel:
    """Parameters of sums over a torus.

    Attributes
    ----------
    kind : str
        `COMPILED` or `LINKS`.
    config : Config
        Configuration of each chip.
    start : float
        Cycles of a program that do not depend on anything.
    near : float
        Cycles of a compiled sum over one chip for each row: the cores exchange parts and add them.
    local : float
        Cycles of a sum over several chips for each row of an array if each core contributes one; if
        each chip contributes one, the rows cost nothing.
    link : float
        Cycles for each cycle that the busiest link needs (`link_cycles`); 1 is the link's rate. On
        large tori, the cores may need longer for the pieces of a compiled sum.
    step : float
        Cycles of each step along a ring (`steps`).
    latency : float
        Cycles that a step takes at least: wire, routers, ejection, and the program's wait for it
        (`short_cycles`).
    """

    kind: str
    config: Config
    start: float = 0
    near: float = 0
    local: float = 0
    link: float = 0
    step: float = 0
    latency: float = 0

    def cycles(self, shape: Shape, sizes: Sequence[int], contributions: int = 2) -> float:
        """Return the cycles of a sum; the parameters are those of `SumSample`."""
        features = sum_features(self.kind, self.config, shape, sizes, contributions)
        waits = sum(short_cycles(shape, size, self.latency)
                    for size in _sent(self.kind, self.config, shape, sizes)) if self.latency else 0
        return waits + sum(getattr(self, name) * value for name, value in features.items())

    @classmethod
    def fitted(cls, kind: str, config: Config, samples: Iterable[SumSample]) -> "SumModel":
        """Fit the parameters to the samples of this kind, by least squares of relative errors.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        used = [sample for sample in samples if sample.kind == kind]
        names = [name for name in PARAMETERS[kind] if name != "latency"]
        rows = [[sum_features(kind, config, each.shape, each.sizes, each.contributions)[name]
                 for name in names] for each in used]
        sent = [_sent(kind, config, each.shape, each.sizes) for each in used]
        best: tuple[float, SumModel] | None = None
        for latency in range(_LONGEST if "latency" in PARAMETERS[kind] else 1):
            waits = [sum(short_cycles(each.shape, size, latency) for size in sizes)
                     for each, sizes in zip(used, sent, strict=True)]
            found, error = non_negative(
                rows, [each.cycles - wait for each, wait in zip(used, waits, strict=True)],
                [1 / each.cycles for each in used])
            if best is None or error < best[0]:
                parameters: dict[str, Any] = dict(zip(names, found, strict=True))
                best = error, cls(kind, config, latency=latency, **parameters)
        assert best is not None
        return best[1]


def streams(config: Config, shape: Shape, sizes: Sequence[int]) -> bool:
    """Return whether the compiler streams the sum of these arrays over all cores of a torus.

    Vector memory must have room for the arrays and the workspace (`SumShares`). Otherwise the
    compiler uses exchanges, which take longer, and which no parameters describe.
    """
    vectors, shares = _shares(config, shape, tuple(sizes))
    return vectors + shares.workspace <= config.vmem_vectors


def sum_features(kind: str, config: Config, shape: Shape, sizes: Sequence[int],
                 contributions: int) -> Mapping[str, float]:
    """Return, by name, what each parameter of `SumModel` except ``latency`` is multiplied by."""
    alone = kind == COMPILED and math.prod(shape) == 1
    carried = (_carried(config, shape, sizes) if kind == COMPILED and not alone else
               sum(link_cycles(shape, size) for size in _sent(kind, config, shape, sizes)))
    rows = (contributions - 1) * sum(sizes) / config.row_bytes
    return {"start": 1, "near": rows if alone else 0, "local": 0 if alone else rows,
            "link": carried, "step": steps(shape)}


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


def _sent(kind: str, config: Config, shape: Shape, sizes: Sequence[int]) -> list[float]:
    """Return the number of bytes of each array; for `LINKS` on several chips, with its padding."""
    if kind == COMPILED or math.prod(shape) == 1:
        return [float(size) for size in sizes]
    return [float(RingPlan.of(with_links(config), shape, size).bytes) for size in sizes]
