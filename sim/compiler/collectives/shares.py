"""How the sum of values in vector memory, over all cores of a pod, is divided between the cores.

The terms are those of `sim.compiler.collectives.plan`. A sum has a *workspace* in vector memory of
each core, which begins with the half that core 0 reduces, followed by that of core 1. Together, the
halves hold all vectors of the values, one value after the other, and then padding. Halves have the
same size, so both cores have the same work. A half has two quarters: the first is reduced along X
first, the second along Y first. The first quarter of core 0 and the second one of core 1 go round
the rings forward, the other two backward. So each core sends the pieces of one quarter forward and
those of its other quarter backward, and each link carries pieces of both cores.

A quarter has a segment for each chip along its first axis. A segment has a block for each chip
along its second axis. All blocks have the same number of pieces, but pieces of the two quarters may
have different sizes: on tori that are not square, this balances links along X and along Y.
"""

from dataclasses import dataclass
from functools import cache, cached_property

from hdl.config import Config
from hdl.link.format import LinkConfig
from sim.compiler.collectives.plan import CORES, WAYS

__all__ = ["Quarter", "SumShares"]

_MOST_PIECE, _MOST_APART = 16, 32
"""Maximum number of vectors in a piece; the second one if the sum is divided into steps."""
_STEP, _LATENCY = 65, 300
"""Estimates in cycles. `_STEP`: a core's time for a piece, besides 3 for each vector of the piece.
`_LATENCY`: time from when a piece is ready to be sent until the next chip can use it."""
_WORK, _FILL = (1 / 5, 2 / 5), (1, 1 / 2)
"""Estimates: for what share of the cores' time for all pieces, and of a link's time for the largest
piece, the links wait. The second numbers are for a sum that is divided into steps."""
_LINK = LinkConfig()


@dataclass(frozen=True)
class Quarter:
    """A quarter of a sum.

    Attributes
    ----------
    start : int
        Its first vector in the workspace.
    way : int
        Direction in which it goes round the rings, 1 or -1.
    axes : tuple of int
        First and second axis: 0 for X, 1 for Y.
    sides : tuple of int
        Numbers of chips along these axes; the first is at least 2.
    pieces, size : int
        Number of pieces of a block, and number of vectors in a piece.
    """

    start: int
    way: int
    axes: tuple[int, int]
    sides: tuple[int, int]
    pieces: int
    size: int

    @property
    def block(self) -> int:
        """Number of vectors in a block."""
        return self.pieces * self.size

    @property
    def segment(self) -> int:
        """Number of vectors in a segment."""
        return self.sides[1] * self.block

    @property
    def vectors(self) -> int:
        """Number of vectors."""
        return self.sides[0] * self.segment

    @property
    def arrivals(self) -> tuple[int, int]:
        """Numbers of vectors that arrive to be added: along the first and along the second axis."""
        first, second = self.sides
        return (first - 1) * self.segment, (second - 1) * self.block


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
        Number of vectors in a piece of the first and of the second quarter of each half.
    """

    shape: tuple[int, int]
    vectors: int
    pieces: int
    sizes: tuple[int, int]

    @classmethod
    def of(cls, config: Config, shape: tuple[int, int], vectors: int, *, few: bool = False,
           apart: bool = False) -> "SumShares":
        """Choose the division that is estimated to take the fewest cycles.

        ``vectors`` is the number of vectors of all values, at least 1. The torus has at least two
        chips, whose links have rate ``config.link_bytes``. With ``few``, blocks have as few pieces
        as possible: cores execute fewer operations, but pieces reach the next chip later. With
        ``apart``, the sum is divided into steps.
        """
        most = _MOST_APART if few or apart else _MOST_PIECE
        return _best(config, shape, vectors, few, apart, most)

    @classmethod
    def in_steps(cls, config: Config, shape: tuple[int, int], vectors: int, kernels: float
                 ) -> "SumShares":
        """Choose the division of a sum in steps, between which kernels of ``kernels`` cycles run.

        If the kernels take longer than the sum, blocks have as few pieces as possible. The other
        parameters are those of `of`.
        """
        few = cls.of(config, shape, vectors, few=True)
        if few.cycles(config) <= kernels:
            return few
        return cls.of(config, shape, vectors, apart=True)

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.shape[0] * self.shape[1]

    def quarters(self, core: int) -> tuple[Quarter, Quarter]:
        """Return the quarters of the half that core number ``core`` reduces."""
        start, made = self.start(core), list[Quarter]()
        for number, size in enumerate(self.sizes):
            # There are at least two chips along the first axis.
            one = number if self.shape[number] > 1 else 1 - number
            made.append(Quarter(start, WAYS[core ^ number], (one, 1 - one),
                                (self.shape[one], self.shape[1 - one]), self.pieces, size))
            start += made[-1].vectors
        return made[0], made[1]

    @property
    def half(self) -> int:
        """Number of vectors in the half of a core."""
        return self.chips * self.pieces * sum(self.sizes)

    def start(self, core: int) -> int:
        """Return the place of a core's half in the workspace."""
        return core * self.half

    @property
    def padded(self) -> int:
        """Number of vectors of both halves, including their padding."""
        return CORES * self.half

    @cached_property
    def buffers(self) -> tuple[range, range, tuple[range, ...]]:
        """Parts of a core's workspace.

        They are: both halves; the other core's numbers for this core's half; and, for each of this
        core's quarters, the pieces that arrive along the first axis, and those that arrive along
        the second one.
        """
        found, end = list[range](), 0
        for size in (self.padded, self.half,
                     *(size for quarter in self.quarters(0) for size in quarter.arrivals)):
            found.append(range(end, end + size))
            end += size
        return found[0], found[1], tuple(found[2:])

    @property
    def workspace(self) -> int:
        """Number of vectors of a core's workspace."""
        return self.buffers[-1][-1].stop

    def loads(self) -> tuple[int, int]:
        """Return how many vectors a link carries: each link along X, and each link along Y."""
        loads = [0, 0]
        # A link carries the pieces of each number of quarter, from one core or the other.
        for quarter in self.quarters(0):
            for axis, vectors in zip(quarter.axes, quarter.arrivals, strict=True):
                loads[axis] += 2 * vectors
        return loads[0], loads[1]

    def cycles(self, config: Config, *, apart: bool = False) -> float:
        """Estimate the cycles of the sum; with ``apart``, it is divided into steps."""
        vector = config.sublanes * config.row_bytes * _LINK.rate_cycles / (
            _LINK.rate_flits * config.link_bytes)
        # Vector memory takes a row a cycle of the other core's numbers, and of what arrives.
        loads = self.loads()
        ports = (2 * self.half + sum(loads)) * config.sublanes
        steps = self.chips * self.pieces * (3 * sum(self.sizes) + len(WAYS) * _STEP)
        hops, biggest = 2 * (sum(self.shape) - 2), max(self.sizes)
        return (max(max(loads) * vector, ports, steps) + steps * _WORK[apart] + self.padded
                + hops * max(0, _LATENCY + biggest * vector - biggest * self.pieces * vector)
                + biggest * vector * _FILL[apart] + 4 * _LATENCY)


@cache
def _best(config: Config, shape: tuple[int, int], vectors: int, few: bool, apart: bool, most: int
          ) -> SumShares:
    """Return the result of `SumShares.of`, whose pieces have at most ``most`` vectors.

    Calls are cached, because compilers repeat them.
    """
    found = set[SumShares]()
    for first in range(1, most + 1):
        for second in range(1, most + 1):
            unit = CORES * shape[0] * shape[1] * (first + second)
            found.add(SumShares(shape, vectors, -(-vectors // unit), (first, second)))
    return min(found, key=lambda shares: (
        few and shares.pieces, shares.cycles(config, apart=apart), shares.padded, shares.sizes))
