"""Shapes of tori, and what a sum over one needs at least: bytes on links, steps along rings.

An all-reduce on a ring of n moves 2 (n - 1) / n of the array over each link, in 2 (n - 1) steps
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
On a torus, one ring after the other does so with what the rings before it have left. The division
is that of `sim.compiler.collectives.plan`: of four quarters, two take X first and two take Y first,
and the two go round the rings in opposite directions.
"""

from hdl.link.format import MAX_SIDE, LinkConfig
from sim.compiler.graph.torus import CORES

__all__ = ["CORES", "LINK_RATE", "MOST_CORES", "Shape", "shape_of", "steps"]

MOST_CORES = CORES * MAX_SIDE ** 2
_LINK = LinkConfig()
LINK_RATE = _LINK.payload_bytes * _LINK.rate_flits / _LINK.rate_cycles
"""Bytes that a link moves in a cycle at most, in each direction."""

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


def steps(shape: Shape) -> int:
    """Return the number of steps along rings, one after the other, in which data reach all chips.

    They are 2 (n - 1) along each axis with n chips.
    """
    return sum(2 * (side - 1) for side in shape)
