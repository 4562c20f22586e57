"""Shapes of tori, and the rate of their links."""

from hdl.link.format import MAX_SIDE, LinkConfig
from sim.compiler.graph.torus import CORES

__all__ = ["CORES", "LINK_RATE", "MOST_CORES", "Shape", "shape_of"]

MOST_CORES = CORES * MAX_SIDE ** 2
_LINK = LinkConfig()
LINK_RATE = _LINK.payload_bytes * _LINK.rate_flits / _LINK.rate_cycles
"""Bytes that a link moves in a cycle at most, in each direction."""

Shape = tuple[int, int]


def shape_of(cores: int) -> Shape:
    """Return the chips along X and along Y of a torus with ``cores`` cores.

    It is a square or, if there is none, twice as long along X. A single core needs a chip, as two
    cores do.

    Raises
    ------
    ValueError
        If ``cores`` is not a power of two from 1 to `MOST_CORES`.
    """
    if cores not in range(1, MOST_CORES + 1) or cores & (cores - 1):
        raise ValueError(f"cores must be a power of two from 1 to {MOST_CORES}, not {cores!r}")
    doublings = max(0, cores.bit_length() - CORES)
    return 1 << (doublings + 1) // 2, 1 << doublings // 2
