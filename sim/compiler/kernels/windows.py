"""Operations on windows: `reduce_window` and `select_and_scatter`.

A reduction over windows goes dimension by dimension. Windows of 2, 4, 8, ... elements are combined
from two halves, and others from these, at all positions: so a cumulative sum takes as many steps as
the logarithm of its length. Strides are taken last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.elementwise import emit_region
from sim.compiler.kernels.lowering import Choice, Lowering, Place, chooses, lowers
from sim.compiler.kernels.moving.block import nest, outer_strides
from sim.compiler.kernels.moving.copy import Axis, copy
from sim.compiler.kernels.moving.movement import fill
from sim.compiler.kernels.reduce import Reducer
from sim.compiler.machine import Index
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import Tiling, standard

__all__: list[str] = []


@dataclass(frozen=True)
class _Windows:
    """Windows over a shape.

    Attributes
    ----------
    shape : tuple of int
        Of the operand.
    result : tuple of int
        Number of windows in each dimension.
    sizes, strides, dilations, base : tuple of int
        Of windows, between windows, between elements of a window, between elements of the operand.
    padding : tuple of (int, int)
        Before and behind the operand.
    """

    shape: tuple[int, ...]
    result: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @staticmethod
    def of(op: Operation, result: tuple[int, ...]) -> "_Windows":
        """The windows of an operation with so many windows."""
        a, shape = op.attributes, op.operands[0].shape
        ones = (1,) * len(shape)
        return _Windows(shape, result, a["window_dimensions"], a["window_strides"],
                        a.get("window_dilations", ones), a.get("base_dilations", ones),
                        a["padding"])

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape of the operand with its padding."""
        return tuple((size - 1) * step + 1 + low + high for size, step, (low, high)
                     in zip(self.shape, self.base, self.padding, strict=True))

    def pad(self, at: Lowering, source: Place, padded: Place) -> None:
        """Copy the operand into its place between the padding."""
        axes, starts, ends = [], [], []
        for d, (size, step, (low, _), whole) in enumerate(zip(
                self.shape, self.base, self.padding, self.padded, strict=True)):
            first, last = max(0, -(low // step)), min(size, -((low - whole) // step))
            if first >= last:
                return
            axes.append(Axis(last - first, d, d, 1, step))
            starts.append(first)
            ends.append(low + first * step)
        copy(at, source, padded, axes, (starts, ends))

    def corners(self, at: Lowering, padded: Place, result: Place,
                offset: Sequence[IndexLike]) -> None:
        """Copy the element at ``offset`` of each window."""
        copy(at, padded, result, [Axis(size, d, d, self.strides[d])
                                  for d, size in enumerate(self.result)],
             (offset, [0] * len(offset)))

    def spread(self, at: Lowering, values: Place, padded: Place,
               offset: Sequence[IndexLike]) -> None:
        """Copy values to the element at ``offset`` of each window: the inverse of `corners`."""
        copy(at, values, padded, [Axis(size, d, d, 1, self.strides[d])
                                  for d, size in enumerate(self.result)],
             ([0] * len(offset), offset))


def _tiled(shape: tuple[int, ...], like: Tiling) -> Tiling:
    return Tiling(shape, like.order, like.along_lanes, like.sublanes, like.lanes)


def _space(at: Lowering, shape: tuple[int, ...], like: Tiling) -> Place:
    """Scratch for a value of another shape, with the same order of dimensions."""
    tiling = _tiled(shape, like)
    return Place(at.scratch(tiling.vectors), tiling)


@chooses("reduce_window", "select_and_scatter")
def _tilings(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Standard, but no strides along the lanes: a stride moves one lane at a time."""
    rank = len(op.operands[0].shape)
    a = op.attributes
    moving = [d for d in range(rank) if a["window_strides"][d] > 1
              or a.get("base_dilations", (1,) * rank)[d] > 1]
    order = tuple(range(rank))
    if rank and rank - 1 in moving:
        order = (*moving, *(d for d in range(rank) if d not in moving))

    def tiling(shape: tuple[int, ...]) -> Tiling:
        plain = standard(shape, config)
        return plain if len(shape) < rank else _tiled(
            shape, Tiling(shape, order, bool(order), config.sublanes, config.lanes))

    return Choice(tuple(tiling(value.shape) for value in op.operands),
                  tuple(tiling(value.shape) for value in op.results))


@lowers("reduce_window")
def _reduce_window(op: Operation, at: Lowering) -> None:
    b, count = at.builder, len(op.results)
    windows = _Windows.of(op, op.results[0].shape)
    like = at.place(op.operands[0]).tiling
    places = []
    for number in range(count):
        place = _space(at, windows.padded, like)
        if any(pad != (0, 0) for pad in windows.padding) or any(
                step > 1 for step in windows.base):
            fill(at, place, op.operands[count + number])
        windows.pad(at, at.place(op.operands[number]), place)
        places.append(place)
    reducer = Reducer(op, at)
    for d, size in enumerate(windows.sizes):
        places = _along(at, reducer, places, d, size, windows.dilations[d])
    results = [at.place(value) for value in op.results]
    for place, result in zip(places, results, strict=True):
        windows.corners(at, place, result, [0] * len(windows.shape))
    with b.loop(results[0].tiling.vectors) as i:
        loaded = [b.load(result.buffer, i) for result in results]
        for result, vector in zip(results, reducer(reducer.initial, loaded), strict=True):
            b.store(vector, result.buffer, i)


def _along(at: Lowering, reducer: Reducer, places: list[Place], dimension: int, size: int,
           dilation: int) -> list[Place]:
    """Combine windows of ``size`` elements along a dimension, at all positions.

    Positions whose window does not fit hold anything. The places given are overwritten.
    """
    total: list[Place] | None = None
    length, covered = 1, 0
    while True:
        if size & length:
            if total is not None:
                _combine(at, reducer, total, places, dimension, covered * dilation)
            elif size == length:
                return places
            else:
                total = [_copied(at, place) for place in places]
            covered += length
        if covered == size:
            assert total is not None
            return total
        _combine(at, reducer, places, places, dimension, length * dilation)
        length *= 2


def _copied(at: Lowering, place: Place) -> Place:
    other = Place(at.scratch(place.tiling.vectors), place.tiling)
    with at.builder.loop(place.tiling.vectors) as i:
        at.builder.store(at.builder.load(place.buffer, i), other.buffer, i)
    return other


def _combine(at: Lowering, reducer: Reducer, totals: list[Place], places: list[Place],
             dimension: int, distance: int) -> None:
    """Combine each element of totals with the one of places that is ``distance`` behind it."""
    tiling = places[0].tiling
    if distance >= tiling.shape[dimension]:
        return
    strides = outer_strides(tiling)
    ahead = distance * strides[dimension] if dimension in strides else 0
    if dimension not in strides:
        moved = []
        for place in places:
            other = Place(at.scratch(tiling.vectors), tiling)
            copy(at, place, other, [
                Axis(size - distance if d == dimension else size, d, d)
                for d, size in enumerate(tiling.shape)],
                ([distance if d == dimension else 0 for d in range(len(tiling.shape))],
                 [0] * len(tiling.shape)))
            moved.append(other)
        places = moved
    b = at.builder
    with b.loop(tiling.vectors - ahead) as i:
        combined = reducer([b.load(place.buffer, i) for place in totals],
                           [b.load(place.buffer, i + ahead) for place in places])
        for place, vector in zip(totals, combined, strict=True):
            b.store(vector, place.buffer, i)


@lowers("select_and_scatter")
def _select_and_scatter(op: Operation, at: Lowering) -> None:
    source, result = at.place(op.operands[1]), at.place(op.result)
    windows = _Windows.of(op, op.operands[1].shape)
    chosen = _choose(op, at, windows, source.tiling)
    b, rank = at.builder, len(windows.shape)
    padded = _space(at, windows.padded, source.tiling)
    fill(at, padded, op.operands[2])
    old = Place(at.scratch(source.tiling.vectors), source.tiling)
    with nest(b, windows.sizes, {}) as offset:
        windows.corners(at, padded, old, offset)
        number = _number(windows.sizes, offset)
        with b.loop(source.tiling.vectors) as i:
            before = b.load(old.buffer, i)
            [after] = emit_region(b, op.regions[1], [before, b.load(source.buffer, i)])
            mask = b.compare("eq", b.load(chosen.buffer, i), number)
            b.store(b.vector("select", after, before, mask), old.buffer, i)
        windows.spread(at, old, padded, offset)
    copy(at, padded, result, [Axis(size, d, d) for d, size in enumerate(windows.shape)],
         ([low for low, _ in windows.padding], [0] * rank))


def _number(sizes: Sequence[int], offset: Sequence[IndexLike]) -> Index:
    """Number of an element of a window, from 1; in row-major order."""
    number = Index(0)
    for size, part in zip(sizes, offset, strict=True):
        number = number * size + part
    return number + 1


def _choose(op: Operation, at: Lowering, windows: _Windows, tiling: Tiling) -> Place:
    """The number of the element that each window selects; 0 if it has none."""
    b = at.builder
    padded = _space(at, windows.padded, tiling)
    windows.pad(at, at.place(op.operands[0]), padded)
    best, chosen, value = (Place(at.scratch(tiling.vectors), tiling) for _ in range(3))
    inside = _inside(at, windows, tiling) if any(
        pad != (0, 0) for pad in windows.padding) else None
    here = Place(at.scratch(tiling.vectors), tiling) if inside is not None else None
    with b.loop(tiling.vectors) as i:
        b.store(0, chosen.buffer, i)
        b.store(0, best.buffer, i)
    with nest(b, windows.sizes, {}) as offset:
        windows.corners(at, padded, value, offset)
        if inside is not None and here is not None:
            windows.corners(at, inside, here, offset)
        number = _number(windows.sizes, offset)
        with b.loop(tiling.vectors) as i:
            old, new, which = (b.load(place.buffer, i) for place in (best, value, chosen))
            [stays] = emit_region(b, op.regions[0], [old, new])
            mask = b.mask("mand", b.compare("ne", stays, 0), b.compare("ne", which, 0))
            if here is not None:
                mask = b.mask("mor", mask, b.compare("eq", b.load(here.buffer, i), 0))
            b.store(b.vector("select", old, new, mask), best.buffer, i)
            b.store(b.vector("select", which, number, mask), chosen.buffer, i)
    return chosen


def _inside(at: Lowering, windows: _Windows, tiling: Tiling) -> Place:
    """1 for elements of the padded operand that are not padding, otherwise 0."""
    b = at.builder
    place = _space(at, windows.padded, tiling)
    with b.loop(place.tiling.vectors) as i:
        b.store(0, place.buffer, i)
    scalar = standard((), at.config)
    one = Place(at.constant(np.ones((1, tiling.sublanes, tiling.lanes), np.uint32)), scalar)
    first = [max(0, low) for low, _ in windows.padding]
    last = [min(whole, low + size) for whole, (low, _), size
            in zip(windows.padded, windows.padding, windows.shape, strict=True)]
    if all(a < z for a, z in zip(first, last, strict=True)):
        copy(at, one, place, [Axis(z - a, None, d) for d, (a, z)
                              in enumerate(zip(first, last, strict=True))], ([], first))
    return place
