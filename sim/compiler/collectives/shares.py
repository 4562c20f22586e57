"""How the sum of values in vector memory, over all cores of a pod, is divided between the cores.

The terms are those of `sim.compiler.collectives.plan`. A sum has a *workspace* in vector memory of
each core, which begins with the half of core 0, followed by that of core 1. Together, the halves
hold all vectors of the values, one value after the other, and then padding. Each half has two
quarters; a quarter has a segment for each chip along the core's first axis, a segment has a block
for each chip along the second axis, and a block has the same number of pieces on both cores. But
pieces of the two cores may have different sizes: on tori that are not square, this balances links
along X and along Y, and the accesses of transfers to the vector memories of both cores.
"""

from dataclasses import dataclass
from functools import cached_property

from hdl.config import Config
from hdl.link.format import LinkConfig
from sim.compiler.collectives.plan import CORES, WAYS

__all__ = ["SumShares"]

_MOST_PIECE = 16
"""Maximum number of vectors in a piece."""
_STEP, _LATENCY = 65, 300
"""Estimated cycles that a core needs for a piece in addition to those for its vectors; and cycles
from the time when a piece is ready to be sent until the next chip can use it."""


@dataclass(frozen=True)
class SumShares:
    """The division of a sum; the module's docstring defines the terms.

    Attributes
    ----------
    shape : tuple of int
        Chips along X and along Y.
    vectors : int
        Number of vectors of all values.
    pieces : int
        Number of pieces of a block.
    sizes : tuple of int
        Number of vectors in a piece of core 0, and of core 1.
    """

    shape: tuple[int, int]
    vectors: int
    pieces: int
    sizes: tuple[int, int]

    @classmethod
    def of(cls, config: Config, shape: tuple[int, int], vectors: int) -> "SumShares":
        """Choose the division that is estimated to take the fewest cycles.

        ``vectors`` is the number of vectors of all values, at least 1. The torus has at least two
        chips, whose links have rate ``config.link_bytes``.
        """
        found = set[SumShares]()
        for first in range(1, _MOST_PIECE + 1):
            for second in range(1, _MOST_PIECE + 1):
                unit = CORES * shape[0] * shape[1] * (first + second)
                found.add(cls(shape, vectors, -(-vectors // unit), (first, second)))
        return min(found, key=lambda shares: (shares.cycles(config), shares.padded, shares.sizes))

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.shape[0] * self.shape[1]

    def axes(self, core: int) -> tuple[int, int]:
        """Return the first and the second axis of a core: 0 for X, 1 for Y.

        There are at least two chips along the first axis.
        """
        first = core if self.shape[core] > 1 else 1 - core
        return first, 1 - first

    def sides(self, core: int) -> tuple[int, int]:
        """Return the numbers of chips along the two axes of a core, in the order of `axes`."""
        first, second = self.axes(core)
        return self.shape[first], self.shape[second]

    def block(self, core: int) -> int:
        """Return the number of vectors in a block of core number ``core``."""
        return self.pieces * self.sizes[core]

    def quarter(self, core: int) -> int:
        """Return the number of vectors in a quarter of core number ``core``."""
        return self.chips * self.block(core)

    def half(self, core: int) -> int:
        """Return the number of vectors in the half of a core."""
        return len(WAYS) * self.quarter(core)

    def start(self, core: int) -> int:
        """Return the first vector, in the workspace, of a core's half."""
        return core * self.half(0)

    @cached_property
    def padded(self) -> int:
        """Number of vectors of both halves, including their padding."""
        return self.half(0) + self.half(1)

    def buffers(self, core: int) -> tuple[range, range, range, range]:
        """Return the parts of a core's workspace.

        They are: both halves; the other core's numbers for this core's half; the pieces that arrive
        along the first axis; and those that arrive along the second one. In each of the last three,
        the vectors of the forward way come first.
        """
        first, second = self.sides(core)
        block, found, end = self.block(core), [], 0
        for size in (self.padded, self.half(core), len(WAYS) * (first - 1) * second * block,
                     len(WAYS) * (second - 1) * block):
            found.append(range(end, end + size))
            end += size
        one, two, three, four = found
        return one, two, three, four

    def workspace(self, core: int) -> int:
        """Return the number of vectors of a core's workspace."""
        return self.buffers(core)[-1].stop

    def cycles(self, config: Config) -> float:
        """Estimate the cycles of the sum."""
        link = LinkConfig()
        vector = config.sublanes * config.row_bytes * link.rate_cycles / (
            link.rate_flits * config.link_bytes)
        loads, ports = [0.0, 0.0], 0.0
        for core in range(CORES):
            (one, two), (first, second) = self.axes(core), self.sides(core)
            loads[one] += 2 * (first - 1) / first * self.quarter(core)
            loads[two] += 2 * (second - 1) / second * self.quarter(core) / first
            # Vector memory takes a row a cycle of the other core's numbers, and of what arrives.
            arrived = 1 + (first - 1) / first + (second - 1) / second / first
            ports = max(ports, 2 * self.half(core) * arrived * config.sublanes)
        biggest = max(self.sizes)
        steps = self.chips * self.pieces * len(WAYS)
        core_cycles = steps * (3 * biggest + _STEP)
        hops = 2 * (sum(self.shape) - 2)
        return (max(max(loads) * vector, ports, core_cycles) + self.padded
                + hops * max(0, _LATENCY + biggest * vector - biggest * self.pieces * vector)
                + 4 * (biggest * vector + _LATENCY))
