"""What a sum over a torus of chips needs at least: bytes on links, steps along rings.

An all-reduce on a ring of n moves 2 (n - 1) / n of the array over each link, in 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
On a torus, one ring after the other does so with what the rings before it have left. The division
is that of `sim.compiler.collectives.plan`: of four quarters, two take X first and two take Y first,
and the two go round the rings in opposite directions.
"""

import math

from hdl.link.format import MAX_SIDE, LinkConfig
from sim.compiler.graph.torus import CORES

__all__ = ["CORES", "LINK_RATE", "MOST_CORES", "link_cycles", "shape_of",
           "short_cycles", "steps"]

MOST_CORES = CORES * MAX_SIDE ** 2
_LINK = LinkConfig()
LINK_RATE = _LINK.payload_bytes * _LINK.rate_flits / _LINK.rate_cycles
"""Bytes that a link moves in a cycle at most, in each direction."""
_QUARTERS = 4

Shape = tuple[int, int]


def shape_of(cores: int) -> Shape:
    """Return the chips along X and along Y of a torus with ``cores`` cores.

    It is a square or, if there is none, twice as long along X. A single core has a chip as well.

    Raises
    ------
    ValueError
        If ``cores`` is not a power of two from 1 to `MOST_CORES`.
    """
    if cores not in range(1, MOST_CORES + 1) or cores & (cores - 1):
        raise ValueError(f"cores must be a power of two from 1 to {MOST_CORES}, not {cores!r}")
    doublings = max(0, cores.bit_length() - CORES)
    return 1 << (doublings + 1) // 2, 1 << doublings // 2


def link_cycles(shape: Shape, size: float) -> float:
    """Return the cycles in which the busiest links can carry a sum of ``size`` bytes a chip.

    An axis with n chips carries 2 (n - 1) / n of two amounts: the quarters that take it first, and
    1 / m of the other quarters, which the other axis, with m chips, has left. On a square, both
    axes have the same load, and this is the bound 2 (1 - 1 / P) ``size`` / (4 `LINK_RATE`) for P
    chips.
    """
    quarter = size / _QUARTERS
    return max(2 * quarter * (side - 1) / side * (1 + 1 / other)
               for side, other in (shape, shape[::-1])) / LINK_RATE


def steps(shape: Shape) -> int:
    """Return the number of steps along rings, one after the other, in which data reach all chips.

    They are 2 (n - 1) along each axis with n chips.
    """
    return sum(2 * (side - 1) for side in shape)


def short_cycles(shape: Shape, size: float, latency: float) -> float:
    """Return the cycles in which links wait because the next data to send have not arrived.

    A step sends a segment of a quarter, and takes ``latency`` cycles at least; a longer segment
    hides it. Along the first axis, with n chips, a segment is 1 / n of the quarter; along the
    second one, with m chips, 1 / (n m). The order of the axes that waits longer counts.
    """
    quarter = size / _QUARTERS / LINK_RATE
    chips = math.prod(shape)
    return max(2 * (first - 1) * max(0.0, latency - quarter / first)
               + 2 * (second - 1) * max(0.0, latency - quarter / chips)
               for first, second in (shape, shape[::-1]))
