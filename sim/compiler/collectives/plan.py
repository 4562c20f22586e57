"""How an all-reduce over a torus divides its array, and where each core keeps the parts.

An array is summed in *rounds*, each of which fits vector memory. A round has two *halves*: core 0
reduces the first along X and then along Y, core 1 the second along Y and then along X. A half has
two *quarters*, which go round the rings in opposite directions. So all four links are busy. Along
the first axis, a quarter has a *segment* for each chip of the ring; along the second axis, a
segment has a *block* for each chip. A block is sent in *pieces*, each of which is a transfer.

A quarter goes through four phases, as in any all-reduce on rings:

1. Scatter along the first axis: segments travel round the ring, and each chip adds its own.
2. Scatter along the second axis: the blocks of the segment that is complete along the first axis
   travel round the ring, and each chip adds its own. Afterwards, each chip has the sum of one block
   over all chips.
3. Gather along the second axis: the complete blocks travel on, until each chip of the ring has all.
4. Gather along the first axis: the complete segments travel on, until each chip has all.

In vector memory, segments and blocks are numbered by their distance from the chip's own place. On
a chip with coordinate c in a ring of n chips, segment t of a quarter that travels forward is
segment c - t modulo n of the array; of one that travels backward, segment c + t modulo n. So the
program is the same on all chips; only addresses in HBM depend on the chip's coordinates. Segment 0
leaves first, and segment n - 1 becomes complete.

If an array has fewer vectors than there are blocks, blocks are *spread*: along the second axis, a
segment has a block for every g-th chip only, and g is the *spread*. The blocks of a segment then
have the distances r, r + g, r + 2 g, ... from a chip. Here r is the chip's *rank*: c modulo g in a
quarter that travels forward, -c modulo g in one that travels backward. The block at distance 0
leaves first; only chips of rank 0 have it. The block at distance n - 1 becomes complete; only chips
of rank g - 1 have it.
"""

import math
from dataclasses import dataclass

from hdl.checks import instance, integer
from hdl.config import Config
from hdl.link.format import MAX_SIDE

__all__ = ["CORES", "WAYS", "RingPlan"]

CORES = 2
"""Number of cores of a chip; each core has a half of a round."""
WAYS = 1, -1
"""Directions of the two quarters of a half, as signed hops to the next chip: forward, backward."""
_MOST_PIECE = 8
"""Maximum number of vectors in a piece."""
_PIECES = 8
"""Minimum number of pieces in a block if its pieces have more than two vectors."""


@dataclass(frozen=True)
class RingPlan:
    """How an all-reduce divides its array; the module's docstring defines the terms.

    Attributes
    ----------
    config : Config
        Configuration of each chip.
    shape : tuple of int
        Chips along X and along Y.
    arrays : int
        Number of arrays on each chip, 1 or 2. All arrays of all chips are added; the sum is stored
        once for each array.
    rounds : int
        Number of rounds.
    block : int
        Vectors of a block.
    piece : int
        Vectors of a piece; divides ``block``.
    spread : int
        Along the second axis, a segment has a block for every ``spread``-th chip.
    """

    config: Config
    shape: tuple[int, int]
    arrays: int
    rounds: int
    block: int
    piece: int
    spread: int = 1

    @classmethod
    def of(cls, config: Config, shape: tuple[int, int], size: int, arrays: int = 1) -> "RingPlan":
        """Plan the sum of arrays of ``size`` bytes.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range, the chips have one core or no
            links, there is one chip only, or HBM has more than 2**32 bytes.
        MemoryError
            If vector memory is too small for one vector in each block.
        """
        instance("config", config, Config)
        width, height = (integer("side of the torus", side, 1, MAX_SIDE) for side in shape)
        integer("size", size, 1)
        integer("arrays", arrays, 1, CORES)
        if config.cores != CORES or not config.link_bytes:
            raise ValueError("chips must have two cores and links, not "
                             f"cores={config.cores} and link_bytes={config.link_bytes}")
        if width * height == 1:
            raise ValueError("shape must have at least two chips, not (1, 1)")
        if config.hbm_bytes > 1 << 32:
            raise ValueError(f"hbm_bytes must be at most 2**32, not {config.hbm_bytes!r}")
        vectors = -(-size // (config.row_bytes * config.sublanes))
        spread = _spread(width, height, vectors)
        places = width * height // spread
        # A block needs room for itself, for what arrives while it is reduced, and for the second
        # array.
        most = config.vmem_vectors // ((2 + (arrays - 1)) * len(WAYS) * places)
        if not most:
            least = (2 + 2 * arrays) * places
            raise MemoryError(f"vector memory must have at least {least} vectors, "
                              f"not {config.vmem_vectors}")
        whole = CORES * len(WAYS) * places
        rounds = -(-vectors // (whole * most))
        block = -(-vectors // (whole * rounds))
        piece = _piece(block)
        block = min(-(-block // piece) * piece, most // piece * piece)
        rounds = -(-vectors // (whole * block))
        return cls(config, (width, height), arrays, rounds, block, piece, spread)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector."""
        return self.config.row_bytes * self.config.sublanes

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.shape[0] * self.shape[1]

    @property
    def quarter(self) -> int:
        """Number of vectors in a quarter of a round."""
        return self.chips // self.spread * self.block

    @property
    def bytes(self) -> int:
        """Bytes of an array with its padding: a whole number of rounds."""
        return self.rounds * self.round_bytes

    @property
    def round_bytes(self) -> int:
        """Bytes of a round."""
        return CORES * len(WAYS) * self.quarter * self.vector_bytes

    def axes(self, core: int) -> tuple[int, int]:
        """Return the first and the second axis, 0 for X and 1 for Y, along which a core reduces.

        The first axis has at least two chips; the second may have only one.
        """
        first = core if self.shape[core] > 1 else 1 - core
        return first, 1 - first

    def sides(self, core: int) -> tuple[int, int]:
        """Return the numbers of chips along the two axes of a core, in the order of `axes`."""
        first, second = self.axes(core)
        return self.shape[first], self.shape[second]

    def blocks(self, core: int) -> int:
        """Return the number of blocks in a segment of core number ``core``."""
        return self.sides(core)[1] // self.spread

    def rank(self, core: int, place: tuple[int, int], way: int) -> int:
        """Return a chip's rank (see the module) in one quarter of core number ``core``.

        ``place`` has the chip's coordinates (x, y); ``way`` is the quarter's direction, 1 or -1.
        """
        return way * place[self.axes(core)[1]] % self.spread


def _spread(width: int, height: int, vectors: int) -> int:
    """Return by how much to spread the blocks of an array of ``vectors`` vectors.

    This is the largest common divisor of the torus's sides that leaves at least one block for each
    vector of the array; 1 if there is no such divisor.
    """
    most = CORES * len(WAYS) * width * height / vectors
    return max(spread for spread in range(1, math.gcd(width, height) + 1)
               if spread == 1 or (spread <= most and not (width % spread or height % spread)))


def _piece(block: int) -> int:
    """Return the number of vectors of a piece, for a block of ``block`` vectors.

    The number need not divide ``block``: then `RingPlan.of` changes the block's size to a multiple
    of the number.
    """
    piece = 1
    while piece < _MOST_PIECE and (piece < min(2, block) or piece * _PIECES * 2 <= block):
        piece *= 2
    return piece
