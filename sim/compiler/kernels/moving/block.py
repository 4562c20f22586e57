"""Affine copies of blocks: elements that lie along lanes or sublanes still do so after the copy.

A copy has axes: loops, each along one dimension of the source and one of the destination. At most
one axis runs along the lanes of both; this axis may instead repeat one element of the source along
the destination's lanes. The same holds for the sublanes. The elements along these two axes form a
block, which is moved by rotations. All other axes are loops around the block.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from sim.compiler.kernels.lowering import Place
from sim.compiler.kernels.moving.span import Loops, Position, Span
from sim.compiler.machine import Builder, Index, LoopVariable, MReg, VReg
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import Tiling

__all__ = ["Axis", "Combine", "coalesce", "copy_blocks", "nest", "outer_strides"]

_UNROLLED = 8
"""Maximum number of a block's tiles along the sublanes for which `_by_tiles` is used."""

Combine = Callable[[VReg, VReg], VReg]
"""Function from the destination's vector and the moved elements to the vector to be stored."""


@dataclass(frozen=True)
class Axis:
    """A dimension of the iteration space of a copy.

    Attributes
    ----------
    size : int
        Number of iterations.
    source, destination : int or None
        The dimension of the source, and that of the destination, along which the axis runs; None
        if there is none. If ``source`` is None, the axis repeats an element of the source.
    source_step, destination_step : int
        Elements by which each iteration advances along that dimension; may be negative.
    """

    size: int
    source: int | None
    destination: int | None
    source_step: int = 1
    destination_step: int = 1


def outer_strides(tiling: Tiling) -> dict[int, int]:
    """Return the distance, in vectors, between consecutive indices of each outer dimension."""
    stride = tiling.lane_tiles * tiling.row_tiles
    strides = {}
    for dimension in reversed(tiling.outer_dimensions):
        strides[dimension] = stride
        stride *= tiling.shape[dimension]
    return strides


@contextmanager
def nest(b: Builder, sizes: Sequence[int],
         counts: dict[LoopVariable, int]) -> Iterator[list[int | LoopVariable]]:
    """Open nested loops, one for each size in ``sizes``; the last one is the innermost.

    Yields the loops' variables. For a size of 1, no loop is opened, and the variable is 0. The
    number of iterations of each new loop is added to ``counts``.
    """
    with ExitStack() as stack:
        variables: list[int | LoopVariable] = []
        for size in sizes:
            if size == 1:
                variables.append(0)
                continue
            variable = stack.enter_context(b.loop(size))
            counts[variable] = size
            variables.append(variable)
        yield variables


class _Block:
    """Writes the copy of a block, and the loops around it."""

    def __init__(self, b: Builder, source: Place, destination: Place, axes: Sequence[Axis],
                 starts: tuple[Sequence[IndexLike], Sequence[IndexLike]]) -> None:
        self.b = b
        self.source, self.destination = source, destination
        self.starts = starts
        self.axes = dict(enumerate(axis for axis in axes if axis.size > 1))
        self.lane = self._choose("lane_dimension", None)
        self.row = self._choose("sublane_dimension", self.lane)
        self.around = [number for number in self.axes if number not in (self.lane, self.row)]
        self.lanes = self._span("lanes", "lane_dimension", self.lane)
        self.rows = self._span("sublanes", "sublane_dimension", self.row)
        self.counts: dict[LoopVariable, int] = {}

    def _choose(self, along: str, taken: int | None) -> int | None:
        """Return the number of the longest axis that can form the block along a tiled dimension.

        ``along`` is ``lane_dimension`` or ``sublane_dimension``; ``taken`` is the number of an axis
        that is already chosen for the other dimension. None if no axis is suitable.
        """
        source = getattr(self.source.tiling, along)
        destination = getattr(self.destination.tiling, along)
        found = [number for number, axis in self.axes.items()
                 if number != taken and axis.destination is not None
                 and axis.destination == destination and axis.destination_step == 1
                 and (axis.source is None or (axis.source == source and axis.source_step == 1))]
        return max(found, key=lambda number: self.axes[number].size, default=None)

    def position(self, side: int, dimension: int | None) -> Position | None:
        """Return the coordinate of the block's first element along ``dimension``.

        ``side`` is 0 for a dimension of the source, and 1 for one of the destination. None if
        ``dimension`` is None.
        """
        if dimension is None:
            return None
        steps: dict[int, int] = {}
        for number in self.around:
            axis = self.axes[number]
            if (axis.source, axis.destination)[side] == dimension:
                steps[number] = (axis.source_step, axis.destination_step)[side]
        return Position(Index.of(self.starts[side][dimension]), steps)

    def _span(self, along: str, dimension: str, number: int | None) -> Span:
        dimensions = [getattr(place.tiling, dimension) for place in (self.source, self.destination)]
        sizes = [place.tiling.shape[d] if d is not None else 1
                 for place, d in zip((self.source, self.destination), dimensions, strict=True)]
        axis = None if number is None else self.axes[number]
        return Span(self.b, along, length=1 if axis is None else axis.size,
                    repeated=axis is not None and axis.source is None,
                    source=self.position(0, dimensions[0]),
                    destination=self.position(1, dimensions[1]), sizes=(sizes[0], sizes[1]))

    def base(self, side: int, loops: Loops) -> Index:
        """Return the index, in a buffer, of the first vector with the block's outer indices.

        ``side`` is 0 for the source's buffer and 1 for the destination's. An axis that has an open
        loop in ``loops`` is at the iteration of that loop; any other axis is at its start.
        """
        index = Index(0)
        tiling = (self.source, self.destination)[side].tiling
        for dimension, stride in outer_strides(tiling).items():
            position = self.position(side, dimension)
            assert position is not None
            index = index + position.at(loops) * stride
        return index

    def stride(self, side: int, number: int) -> int:
        """Return the number of vectors by which an iteration of axis ``number`` advances.

        ``side`` is 0 for the source and 1 for the destination. A step along a tiled dimension must
        be a whole number of tiles.
        """
        axis = self.axes[number]
        tiling = (self.source, self.destination)[side].tiling
        dimension = (axis.source, axis.destination)[side]
        step = (axis.source_step, axis.destination_step)[side]
        if dimension is None:
            return 0
        if dimension == tiling.lane_dimension:
            return step // tiling.lanes * tiling.row_tiles
        if dimension == tiling.sublane_dimension:
            return step // tiling.sublanes
        return step * outer_strides(tiling)[dimension]

    def with_constant_sublane(self) -> Iterator["_Block"]:
        """Yield copies that together do this copy; in each, all blocks start at the same sublane.

        With S sublanes, an iteration of an axis around the block may advance the block by a number
        of elements that is not a multiple of S. Then the sublane at which the block begins repeats
        after p iterations. The copy is divided into p copies: copy i has the axis's iterations i,
        i + p, i + 2p and so on. The copy is yielded undivided if there would be more than S copies,
        or if the lane at which the block begins varies too.
        """
        self._join()
        unit = self.b.config.sublanes
        periods = {number: period for number in self.around
                   if (period := self._period(self.axes[number], unit)) > 1}
        if self.lanes.varies or not periods or math.prod(periods.values()) > unit:
            yield self
            return
        for firsts in itertools.product(*map(range, periods.values())):
            axes, starts = dict(self.axes), tuple(map(list, self.starts))
            for (number, period), first in zip(periods.items(), firsts, strict=True):
                axis = axes[number]
                axes[number] = replace(axis, size=-(-(axis.size - first) // period),
                                       source_step=axis.source_step * period,
                                       destination_step=axis.destination_step * period)
                for side, dimension, step in ((0, axis.source, axis.source_step),
                                              (1, axis.destination, axis.destination_step)):
                    if dimension is not None:
                        starts[side][dimension] = Index.of(starts[side][dimension]) + first * step
            if all(axis.size > 0 for axis in axes.values()):
                yield _Block(self.b, self.source, self.destination, list(axes.values()),
                             (starts[0], starts[1]))

    def _join(self) -> None:
        """Merge pairs of axes around the block whose two loops can be one.

        Two loops can be one if, for both source and destination, an iteration of the outer axis
        advances as far as all iterations of the inner axis together.
        """
        for outer, inner in itertools.permutations(self.around, 2):
            if all(self._continues(side, outer, inner) for side in (0, 1)):
                size = self.axes.pop(outer).size
                self.axes[inner] = replace(self.axes[inner], size=size * self.axes[inner].size)
                self.around.remove(outer)
                self.lanes = self._span("lanes", "lane_dimension", self.lane)
                self.rows = self._span("sublanes", "sublane_dimension", self.row)
                self._join()
                return

    def _continues(self, side: int, outer: int, inner: int) -> bool:
        """Return whether a step of ``outer`` advances as far as all iterations of ``inner``.

        ``outer`` and ``inner`` are numbers of axes; ``side`` is 0 for the source and 1 for the
        destination. Return False unless the axes run along the same dimension, or both along outer
        dimensions.
        """
        (first, step), (second, small) = (
            ((axis.source, axis.source_step), (axis.destination, axis.destination_step))[side]
            for axis in (self.axes[outer], self.axes[inner]))
        strides = outer_strides((self.source, self.destination)[side].tiling)
        if first != second and first in strides and second in strides:
            step, small = step * strides[first], small * strides[second]
        elif first != second:
            return False
        return first is None or step == small * self.axes[inner].size

    def _period(self, axis: Axis, unit: int) -> int:
        """Return the number of iterations of an axis after which the block's first sublane repeats.

        ``unit`` is the number of sublanes.
        """
        steps = [step for dimension, step, tiling in (
            (axis.source, axis.source_step, self.source.tiling),
            (axis.destination, axis.destination_step, self.destination.tiling))
            if dimension is not None and dimension == tiling.sublane_dimension]
        return unit // math.gcd(unit, *steps)

    def run(self, combine: Combine | None, mask: MReg | None) -> None:
        """Write the code of the copy.

        ``combine`` maps the destination's vector and the moved elements to the vector to be stored;
        if it is None, the moved elements are stored. ``mask`` selects the elements of each vector
        that may be stored; None allows all.
        """
        if self.lanes.plain and self.rows.plain and mask is None:
            self._whole(combine)
        else:
            self._moved(combine, mask)

    def _whole(self, combine: Combine | None) -> None:
        """Copy whole vectors, with as few loops as possible.

        ``combine``, if given, maps the old vector and the moved elements to the vector to store.
        """
        tilings = (self.source.tiling, self.destination.tiling)
        loops = [(self.axes[number].size, (self.stride(0, number), self.stride(1, number)))
                 for number in self.around]
        for span, units in ((self.lanes, [tiling.row_tiles for tiling in tilings]),
                            (self.rows, [1, 1])):
            span.prepare({})
            loops.append((span.count, (units[0] if span.moves else 0, units[1])))
        loops = coalesce(loops)
        first = [self.base(side, {}) + self.lanes.first[side] * tilings[side].row_tiles
                 + self.rows.first[side] for side in (0, 1)]
        with nest(self.b, [size for size, _ in loops], self.counts) as variables:
            for variable, (_, strides) in zip(variables, loops, strict=True):
                first = [index + Index.of(variable) * stride
                         for index, stride in zip(first, strides, strict=True)]
            self._store(self.b.load(self.source.buffer, first[0]), first[1], None, combine)

    def _store(self, vector: VReg, index: IndexLike, mask: MReg | None,
               combine: Combine | None) -> None:
        if combine is not None:
            vector = combine(self.b.load(self.destination.buffer, index), vector)
        self.b.store(vector, self.destination.buffer, index, mask)

    def _moved(self, combine: Combine | None, mask: MReg | None) -> None:
        """Copy blocks that are masked, or whose elements move to other lanes or sublanes.

        ``combine``, if given, maps the old vector and the moved elements to the vector to store.
        Only elements in ``mask`` are stored.
        """
        spans = (self.lanes, self.rows)
        for span, name in zip(spans, ("lane", "sublane"), strict=True):
            if not span.plain:
                span.coordinates = self.b.vector(name)
            if not span.varies:
                span.prepare({})
        vary = any(span.varies for span in spans)
        late = [number for number in self.around
                if self.axes[number].source is None and not vary]
        early = [number for number in self.around if number not in late]
        if (early and not late and not vary and self.lanes.plain and self.rows.moves
                and self.rows.count <= _UNROLLED):
            self._by_tiles(early, combine, mask)
            return
        with self._open(early) as loops:
            for span in spans:
                if span.varies:
                    span.prepare(loops)
            with nest(self.b, [span.count if span.moves else 1 for span in spans],
                      self.counts) as tiles:
                vector = self._value(loops, tiles)
                with self._open(late) as inner, \
                     nest(self.b, [1 if span.moves else span.count for span in spans],
                          self.counts) as others:
                    places = [tile if span.moves else other for span, tile, other
                              in zip(spans, tiles, others, strict=True)]
                    self._put(vector, {**loops, **inner}, places, (combine, mask))

    def _by_tiles(self, around: list[int], combine: Combine | None, mask: MReg | None) -> None:
        """Copy the first tile of every block, then the second tile of every block, and so on.

        The inner loop is over the blocks: it is long, and each mask is computed only once, before
        this loop. A block's tiles are numbered along the sublanes. ``around`` are the numbers of
        the axes that enumerate the blocks.
        ``combine``, if given, maps the old vector and the moved elements to the vector to store.
        Only elements in ``mask`` are stored.
        """
        for tile in range(self.rows.count):
            part = self.rows.mask(tile)
            if part is not None and mask is not None:
                part = self.b.mask("mand", mask, part)
            with self._open(around) as loops, nest(
                    self.b, [self.lanes.count if self.lanes.moves else 1], self.counts) as [lane]:
                index = (self.base(1, loops)
                         + self.lanes.destination_tile(loops, lane, self.counts)
                         * self.destination.tiling.row_tiles
                         + self.rows.destination_tile(loops, tile, self.counts))
                self._store(self._value(loops, (lane, tile)), index,
                            mask if part is None else part, combine)

    @contextmanager
    def _open(self, numbers: Sequence[int]) -> Iterator[dict[int, LoopVariable]]:
        with nest(self.b, [self.axes[number].size for number in numbers],
                  self.counts) as variables:
            yield {number: variable for number, variable in zip(numbers, variables, strict=True)
                   if not isinstance(variable, int)}

    def _value(self, loops: Loops, tiles: Sequence[IndexLike]) -> VReg:
        """Load the elements of one destination tile, and move them into place.

        ``loops`` are the open loops, by axis; ``tiles`` has the tile's number along the lanes and
        along the sublanes.
        """
        base, tiling = self.base(0, loops), self.source.tiling
        rows = self.rows.source_tiles(loops, tiles[1], self.counts)
        lanes = self.lanes.source_tiles(loops, tiles[0], self.counts)
        vector = self.rows.merge([
            self.lanes.merge([self.b.load(self.source.buffer, base + lane * tiling.row_tiles + row)
                              for lane in lanes])
            for row in rows])
        return self.rows.move(self.lanes.move(vector))

    def _put(self, vector: VReg, loops: Loops, tiles: Sequence[IndexLike],
             how: tuple[Combine | None, MReg | None]) -> None:
        lane = self.lanes.destination_tile(loops, tiles[0], self.counts)
        row = self.rows.destination_tile(loops, tiles[1], self.counts)
        index = self.base(1, loops) + lane * self.destination.tiling.row_tiles + row
        mask = how[1]
        for part in (self.lanes.mask(tiles[0]), self.rows.mask(tiles[1])):
            if part is not None:
                mask = part if mask is None else self.b.mask("mand", mask, part)
        self._store(vector, index, mask, how[0])


def coalesce(loops: Sequence[tuple[int, tuple[int, int]]]) -> list[tuple[int, tuple[int, int]]]:
    """Order loops by decreasing stride of the destination, and merge adjacent loops.

    Two loops become one if one iteration of the outer loop advances as far as all iterations of
    the inner loop together, for both source and destination. A loop is (number of iterations,
    (stride of the source, stride of the destination)), with strides in vectors.
    """
    merged: list[tuple[int, tuple[int, int]]] = []
    for count, strides in sorted(loops, key=lambda loop: -abs(loop[1][1])):
        if count == 1:
            continue
        if merged and merged[-1][1] == (strides[0] * count, strides[1] * count):
            merged[-1] = (merged[-1][0] * count, strides)
        else:
            merged.append((count, strides))
    return merged


def copy_blocks(b: Builder, source: Place, destination: Place, axes: Sequence[Axis],
                starts: tuple[Sequence[IndexLike], Sequence[IndexLike]] | None = None, *,
                combine: Combine | None = None, mask: MReg | None = None) -> None:
    """Copy elements along axes, block by block.

    Blocks are rotated along sublanes or lanes if their position within tiles changes. The
    parameters are those of `sim.compiler.kernels.moving.copy.copy`.
    """
    if starts is None:
        starts = ([0] * len(source.tiling.shape), [0] * len(destination.tiling.shape))
    block = _Block(b, source, destination, axes, starts)
    for part in block.with_constant_sublane():
        part.run(combine, mask)
