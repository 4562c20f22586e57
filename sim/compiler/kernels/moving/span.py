"""A block's extent along one tiled dimension: the tiles that it reads and writes, and its rotation.

A block is copied destination tile by destination tile. The block's position within the source's
tiles may differ from that within the destination's tiles. Then a destination tile takes its
elements from two adjacent source tiles: these are merged by a mask, and rotated into place.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.compiler.machine import Builder, Index, LoopVariable, MReg, SReg, VReg
from sim.compiler.machine.ir import IndexLike

__all__ = ["Counts", "Loops", "Position", "Span", "clamp", "divide",
           "source_of"]

Counts = Mapping[LoopVariable, int]
"""Number of iterations of each open loop."""
Loops = Mapping[int, LoopVariable]
"""The open loop of each axis, by the axis's number."""


@dataclass(frozen=True)
class Position:
    """A coordinate of a block's first element, as a function of the axes around the block.

    Attributes
    ----------
    start : Index
        The part that does not depend on an axis; may contain scalar registers.
    steps : mapping of int to int
        Coefficient of each axis, by its number.
    """

    start: Index
    steps: Mapping[int, int] = field(default_factory=dict)

    def alignment(self, unit: int) -> int:
        """Return the largest divisor of ``unit``, a tile's size, that divides all coordinates."""
        return math.gcd(unit, self.start.constant, *self.start.terms.values(),
                        *self.steps.values())

    def within(self, unit: int) -> int | None:
        """Return the position within a tile of ``unit`` elements; None if it is not constant."""
        factors = (*self.start.terms.values(), *self.steps.values())
        return None if any(factor % unit for factor in factors) else self.start.constant % unit

    def fits(self, length: int, unit: int) -> bool:
        """Whether ``length`` elements from this coordinate on always lie in one tile.

        A tile has ``unit`` elements.
        """
        within = self.within(unit)
        return (length <= self.alignment(unit)
                or (within is not None and within + length <= unit))

    def varies(self, unit: int) -> bool:
        """Whether the position within a tile of ``unit`` elements depends on any axis."""
        return any(step % unit for step in self.steps.values())

    def at(self, loops: Loops) -> Index:
        """Return the coordinate as a function of the variables of open loops.

        Axes without an open loop contribute nothing.
        """
        index = self.start
        for axis, step in self.steps.items():
            if axis in loops:
                index = index + loops[axis] * step
        return index

    def tiles(self, loops: Loops, unit: int) -> Index:
        """Return the number of tiles by which the loops have advanced the coordinate.

        ``loops`` has an open loop for each axis. The step along each axis must be a multiple of
        ``unit``, a tile's size.
        """
        index = Index(0)
        for axis, step in self.steps.items():
            index = index + loops[axis] * (step // unit)
        return index

    def minus(self, other: "Position") -> "Position":
        """Return this coordinate minus ``other``."""
        steps = dict(self.steps)
        for axis, step in other.steps.items():
            steps[axis] = steps.get(axis, 0) - step
        return Position(self.start - other.start, steps)


def divide(b: Builder, index: Index, unit: int) -> tuple[Index, Index]:
    """Divide a coordinate by ``unit``, a tile's size; return quotient and remainder (0 or more).

    Terms whose coefficient is a multiple of ``unit`` need no code.

    Raises
    ------
    ValueError
        If code is needed and ``unit`` is not a power of two.
    """
    whole = {term: factor // unit for term, factor in index.terms.items() if factor % unit == 0}
    rest = {term: factor for term, factor in index.terms.items() if factor % unit}
    if not rest:
        return (Index(0, whole) + index.constant // unit, Index(index.constant % unit))
    if unit & (unit - 1):
        raise ValueError(f"size of tiles must be a power of two, not {unit!r}, for positions "
                         "that are computed at run time")
    register = b.value(Index(index.constant, rest))
    quotient = b.scalar("sar", register, unit.bit_length() - 1)
    return Index(0, whole) + quotient, Index.of(b.scalar("and", register, unit - 1))


def clamp(b: Builder, index: Index, size: int, counts: Counts) -> Index:
    """Clamp an index to the range 0 to ``size`` - 1.

    ``counts`` has the number of iterations of each loop whose variable is a term of the index. Code
    is written only if the index may lie outside of the range in one of these iterations.
    """
    low = high = float(index.constant)
    for term, factor in index.terms.items():
        if isinstance(term, SReg) or term not in counts:
            low, high = -math.inf, math.inf
        else:
            low += min(0, factor * (counts[term] - 1))
            high += max(0, factor * (counts[term] - 1))
    if size == 1 and (low < 0 or high > 0):
        return Index(0)
    result: Index | SReg = index
    if low < 0:
        result = b.scalar("max", b.value(result), 0)
    if high >= size:
        result = b.scalar("min", b.value(result), size - 1)
    return Index.of(result)


def source_of(index: Index) -> Index | int:
    """Return an index as a scalar operand: if it has no terms, an integer, which needs no code."""
    return index if index.terms else index.constant


class Span:
    """A block's extent along the sublanes or the lanes.

    Parameters
    ----------
    b : Builder
    along : str
        ``lanes`` or ``sublanes``.
    length : int
        Elements of the block along this dimension.
    repeated : bool
        Whether all elements are copies of one element of the source.
    source, destination : Position or None
        Position of the first element. None if no dimension of the value runs along the lanes (or
        sublanes), so that all of them hold equal elements.
    sizes : tuple of int
        Sizes of the source's and of the destination's dimension.
    """

    def __init__(self, b: Builder, along: str, *, length: int, repeated: bool,
                 source: Position | None, destination: Position | None,
                 sizes: tuple[int, int]) -> None:
        self._b = b
        self._along = along
        self.unit = unit = b.config.lanes if along == "lanes" else b.config.sublanes
        self._length = length
        self._source = source
        self._destination = destination
        self._source_tiles = -(-sizes[0] // unit)
        self._size = sizes[1]
        self.moves = source is not None and destination is not None and not repeated
        """Whether elements are copied in order, perhaps to other positions within a tile."""
        self.broadcasts = source is not None and not self.moves
        """Whether one element of the source is copied to all elements of the destination."""
        self._single = destination is None or destination.fits(length, unit)
        self._fits = (self.moves and self._single and source is not None
                      and source.fits(length, unit))
        self._loops: Loops = {}
        self.coordinates: VReg | None = None
        """Vector of each element's lane or sublane; None if only whole tiles are copied."""

    @property
    def varies(self) -> bool:
        """Whether rotations or masks vary along an axis around the block."""
        return any(position is not None and position.varies(self.unit)
                   for position in (self._source, self._destination))

    @property
    def count(self) -> int:
        """Number of destination tiles that the block may touch."""
        if self._single or self._destination is None:
            return 1
        within = self._destination.within(self.unit)
        first = self.unit - 1 if within is None else within
        return -(-(first + self._length) // self.unit)

    @property
    def low(self) -> bool:
        """Whether a mask must protect elements of the destination that precede the block."""
        return self._destination is not None and self._destination.within(self.unit) != 0

    @property
    def high(self) -> bool:
        """Whether a mask must protect elements of the destination that follow the block."""
        position = self._destination
        if position is None:
            return False
        if position.within(self.unit) == 0 and self._length % self.unit == 0:
            return False
        fixed = not position.start.terms and not position.steps
        return not (fixed and position.start.constant + self._length == self._size)

    @property
    def plain(self) -> bool:
        """Whether whole tiles are copied to whole tiles."""
        if self.low or self.high or self.broadcasts:
            return False
        return not self.moves or (self._source is not None
                                  and self._source.within(self.unit) == 0)

    def prepare(self, loops: Loops) -> None:
        """Write the code that all tiles of the block share: distances of rotations, and masks.

        Parameters
        ----------
        loops : mapping of int to LoopVariable
            The open loop of each axis. Empty if the code comes before the loops, which is possible
            only if `varies` is False.
        """
        self._loops = loops
        self._at, self._within = Index(0), Index(0)
        if self._destination is not None:
            self._at, self._within = divide(self._b, self._destination.at(loops), self.unit)
        self._amount = Index(0)
        self._second: MReg | None = None
        self._from = Index(0)
        if self._source is not None:
            self._prepare_source(self._source, loops)
        self._mask = self._compare(Index(0)) if self.count == 1 else None

    def _prepare_source(self, source: Position, loops: Loops) -> None:
        b, unit = self._b, self.unit
        if not self.moves:
            self._from, self._amount = divide(b, source.at(loops), unit)
            return
        assert self._destination is not None
        distance = self._destination.minus(source).within(unit)
        start = source.at(loops)
        if not self._fits:
            start = start - self._within
        self._from, within = divide(b, start, unit)
        if distance is not None:
            self._amount = Index(distance)
        elif self._fits:
            self._amount = Index.of(b.scalar("and", b.value(self._within - within), unit - 1))
        else:
            self._amount = Index.of(b.scalar("and", b.value(0 - within), unit - 1))
        if not self._fits and self._known(self._amount) != 0:
            if distance is not None:
                within = Index(-distance % unit)
            self._second = b.compare("lt", self._vector, source_of(within))

    @staticmethod
    def _known(index: Index) -> int | None:
        return None if index.terms else index.constant

    def _compare(self, tile: IndexLike) -> MReg | None:
        """Return the mask of a destination tile's elements that are in the block; None for all."""
        first = self._within - Index.of(tile) * self.unit
        mask = None
        low, high = self.low, self.high
        if not first.terms:
            low, high = first.constant > 0, high and first.constant + self._length < self.unit
        if low:
            if high and self._single and self._length == 1:
                return self._b.compare("eq", self._vector, source_of(first))
            mask = self._b.compare("ge", self._vector, source_of(first))
        if high:
            upper = self._b.compare("lt", self._vector, source_of(first + self._length))
            mask = upper if mask is None else self._b.mask("mand", mask, upper)
        return mask

    @property
    def _vector(self) -> VReg:
        assert self.coordinates is not None
        return self.coordinates

    # The code for each tile; here, ``loops`` holds all axes.

    @property
    def first(self) -> tuple[Index, Index]:
        """Numbers of the block's first source tile and first destination tile.

        If `prepare` was called without loops, these are the tiles where all axes are at their
        start.
        """
        return self._from, self._at

    def destination_tile(self, loops: Loops, tile: IndexLike, counts: Counts) -> Index:
        """Return the number of a destination tile; ``tile`` is its number within the block.

        ``loops`` are the open loops, by axis, and ``counts`` their numbers of iterations.
        """
        index = self._at + tile
        if self._destination is None:
            return index
        if not self._loops:
            index = index + self._destination.tiles(loops, self.unit)
        if self._single or self._destination.within(self.unit) is not None:
            return index
        # For a tile beyond the block, the mask is empty, so nothing is stored: any tile will do.
        return clamp(self._b, index, -(-self._size // self.unit), counts)

    def source_tiles(self, loops: Loops, tile: IndexLike, counts: Counts) -> list[Index]:
        """Return the numbers of the one or two source tiles for a destination tile.

        ``tile`` is the number of the destination tile within the block. ``loops`` are the open
        loops, by axis, and ``counts`` their numbers of iterations.
        """
        if self._source is None:
            return [Index(0)]
        first = self._from if self.broadcasts else self._from + tile
        if not self._loops:
            first = first + self._source.tiles(loops, self.unit)
        if self._second is None:
            # Nothing is stored from a tile outside of the source: any tile can take its place.
            return [clamp(self._b, first, self._source_tiles, counts)
                    if self.moves and not self._fits else first]
        return [clamp(self._b, index, self._source_tiles, counts) for index in (first, first + 1)]

    def merge(self, vectors: list[VReg]) -> VReg:
        """Merge one or two vectors of source tiles into the elements of one destination tile."""
        if self._second is None:
            return vectors[0]
        return self._b.vector("select", vectors[1], vectors[0], self._second)

    def move(self, vector: VReg) -> VReg:
        """Return ``vector`` with its elements rotated or broadcast into place."""
        if self.broadcasts:
            return self._b.cross(f"broadcast_{self._along[:-1]}", vector,
                                 source_of(self._amount))
        if self._known(self._amount) == 0:
            return vector
        return self._b.cross(f"rotate_{self._along}", vector, source_of(self._amount))

    def mask(self, tile: IndexLike) -> MReg | None:
        """Return the mask of the elements to store in a destination tile; None for all.

        ``tile`` is the number of the tile within the block.
        """
        if self.count == 1:
            return self._mask
        return self._compare(tile)
