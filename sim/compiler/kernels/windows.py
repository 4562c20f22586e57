"""Operations on windows: `reduce_window` and `select_and_scatter`.

A reduction over windows is computed one dimension at a time. Along outer dimensions, whole vectors
are combined. Along sublanes and lanes, the kernel computes windows of 2, 4, 8, ... elements at all
positions, each from two windows of half its size. A window of another size is combined from several
windows of these sizes. So a cumulative sum of n elements takes about log2(n) steps. Finally, the
kernel keeps the windows that the strides select.

`select_and_scatter` processes windows one by one in registers if they do not overlap and consist of
whole vectors; for this, `_tilings` makes the windows' dimensions outer. Otherwise, the kernel loops
over all windows once for each element of a window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.elementwise import emit_region
from sim.compiler.kernels.lowering import Choice, Lowering, Place, chooses, lowers
from sim.compiler.kernels.moving.block import nest, outer_strides
from sim.compiler.kernels.moving.copy import Axis, copy
from sim.compiler.kernels.moving.movement import fill
from sim.compiler.kernels.reduce import Reducer
from sim.compiler.machine import Index, VReg
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import Tiling, standard

__all__: list[str] = []

_TOGETHER = 8
"""Maximum number of elements of a window that is combined in registers."""
_MORE = 2
"""A tiling in which windows run along outer dimensions may have at most this many times the vectors
of the standard tiling."""


@dataclass(frozen=True)
class _Axis:
    """An outer dimension along which windows are reduced.

    Attributes
    ----------
    around : int
        Product of the sizes of all dimensions outside this one.
    inner : int
        Number of vectors at one index of this dimension.
    size, many : int
        Number of elements of the operand, and number of windows, along this dimension.
    stride : int
        Number of elements from the start of a window to the start of the next one.
    """

    around: int
    inner: int
    size: int
    many: int
    stride: int

    def span(self, shift: int) -> tuple[int, int, int]:
        """Find the windows whose element at one position lies in the operand, not in padding.

        At this position, window i has element i * stride + ``shift`` of the operand. ``shift`` is
        negative if window 0 has padding there, before the operand. Returns (shift, first, end): the
        windows are those from number ``first`` to ``end - 1``.
        """
        first = min(max(0, -(shift // self.stride)), self.many)
        last = min(self.many, (self.size - 1 - shift) // self.stride + 1)
        return shift, first, max(first, last)

    def source(self, a: IndexLike, i: IndexLike, v: IndexLike) -> Index:
        """Return the index of a vector in the operand's buffer.

        ``a``, below `around`, is the combined index of all dimensions outside this one; ``i`` is
        the index along this one; ``v``, below `inner`, selects one of the vectors at that index.
        """
        return Index.of(a) * (self.size * self.inner) + Index.of(i) * self.inner + v

    def target(self, a: IndexLike, i: IndexLike, v: IndexLike) -> Index:
        """Return the index of a vector in the result's buffer.

        ``a`` is the combined index of all dimensions outside this one, ``i`` the number of the
        window, and ``v``, below `inner`, selects one of the vectors of that window.
        """
        return Index.of(a) * (self.many * self.inner) + Index.of(i) * self.inner + v


@dataclass(frozen=True)
class _Windows:
    """Shape of an operand, and the windows over it.

    Attributes
    ----------
    shape : tuple of int
        Shape of the operand.
    result : tuple of int
        Number of windows in each dimension.
    sizes, strides, dilations, base : tuple of int
        For each dimension: the number of elements of a window; the distance between windows; the
        distance between elements of a window; the distance between elements of the operand (its
        dilation).
    padding : tuple of (int, int)
        Elements of padding before and after the operand, for each dimension.
    owned : bool
        Whether the operand lies in scratch of the kernel.
    """

    shape: tuple[int, ...]
    result: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    base: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    owned: bool = False

    def trivial(self, d: int) -> bool:
        """Whether, along dimension ``d``, each window is a single element of the operand."""
        return (self.sizes[d], self.strides[d], self.base[d], self.padding[d]) == (1, 1, 1, (0, 0))

    @property
    def apart(self) -> bool:
        """Whether windows have at most `_TOGETHER` elements, no padding, and do not overlap."""
        return math.prod(self.sizes) <= _TOGETHER and not any(map(any, self.padding)) and all(
            size <= step for size, step in zip(self.sizes, self.strides, strict=True))

    @property
    def covers(self) -> bool:
        """Whether each element of the operand is in a window; valid only if windows are `apart`."""
        return math.prod(self.result) * math.prod(self.sizes) == math.prod(self.shape)

    def after(self, d: int) -> "_Windows":
        """Return the windows that remain after the reduction along dimension ``d``."""
        def with_item(items: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
            return (*items[:d], item, *items[d + 1:])

        return replace(self, shape=with_item(self.shape, self.result[d]),
                       sizes=with_item(self.sizes, 1), strides=with_item(self.strides, 1),
                       dilations=with_item(self.dilations, 1),
                       padding=with_item(self.padding, (0, 0)), owned=True)

    @staticmethod
    def of(op: Operation, result: tuple[int, ...]) -> "_Windows":
        """Return the windows of an operation; ``result`` is their number in each dimension."""
        a, shape = op.attributes, op.operands[0].shape
        ones = (1,) * len(shape)
        return _Windows(shape, result, a["window_dimensions"], a["window_strides"],
                        a.get("window_dilations", ones), a.get("base_dilations", ones),
                        a["padding"])

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape of the operand with its dilation (`base`) and padding."""
        return tuple((size - 1) * step + 1 + low + high for size, step, (low, high)
                     in zip(self.shape, self.base, self.padding, strict=True))

    def pad(self, at: Lowering, source: Place, padded: Place) -> None:
        """Copy the operand's elements from ``source`` to their places in ``padded``.

        The shape of ``padded`` is ``self.padded``. Its other elements are not written.
        """
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
        """Copy one element of each window to ``result``.

        In each dimension, the element's index in ``padded`` is that of the window's first element
        plus ``offset``.
        """
        copy(at, padded, result, [Axis(size, d, d, self.strides[d])
                                  for d, size in enumerate(self.result)],
             (offset, [0] * len(offset)))

    def spread(self, at: Lowering, values: Place, padded: Place,
               offset: Sequence[IndexLike]) -> None:
        """Copy the value of each window in ``values`` to one element of ``padded``.

        In each dimension, the element's index in ``padded`` is that of the window's first element
        plus ``offset``.
        """
        copy(at, values, padded, [Axis(size, d, d, 1, self.strides[d])
                                  for d, size in enumerate(self.result)],
             ([0] * len(offset), offset))


def _tiled(shape: tuple[int, ...], like: Tiling) -> Tiling:
    return Tiling(shape, like.order, like.along_lanes, like.sublanes, like.lanes)


def _space(at: Lowering, shape: tuple[int, ...], like: Tiling) -> Place:
    """Allocate scratch for a value of shape ``shape``, with dimensions in the order of ``like``."""
    tiling = _tiled(shape, like)
    return Place(at.scratch(tiling.vectors), tiling)


@chooses("reduce_window", "select_and_scatter")
def _tilings(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose standard tilings, or tilings that have the strided dimensions before all others.

    Strided dimensions come first if the last dimension, which runs along the lanes of a standard
    tiling, is strided. A stride along the lanes is slow, because elements move one lane at a time.
    Strided dimensions also come first if a `select_and_scatter` can then process its windows as
    whole vectors (`_scatters_vectors`). A dimension counts as strided if its stride, or the
    operand's dilation in it, is not 1.
    """
    rank = len(op.operands[0].shape)
    a = op.attributes
    moving = [d for d in range(rank) if a["window_strides"][d] > 1
              or a.get("base_dilations", (1,) * rank)[d] > 1]
    order = tuple(range(rank))
    outer = (*moving, *(d for d in range(rank) if d not in moving))
    if rank and (rank - 1 in moving or (
            op.kind == "select_and_scatter" and _scatters_vectors(op, outer, config))):
        order = outer

    def tiling(shape: tuple[int, ...]) -> Tiling:
        plain = standard(shape, config)
        return plain if len(shape) < rank else _tiled(
            shape, Tiling(shape, order, bool(order), config.sublanes, config.lanes))

    return Choice(tuple(tiling(value.shape) for value in op.operands),
                  tuple(tiling(value.shape) for value in op.results))


@lowers("reduce_window")
def _reduce_window(op: Operation, at: Lowering) -> None:
    _Reduction(op, at).write()


class _Reduction:
    """Writes a reduction over windows, of several operands at once."""

    def __init__(self, op: Operation, at: Lowering) -> None:
        self._at, self._b = at, at.builder
        count = len(op.results)
        self._places = [at.place(value) for value in op.operands[:count]]
        self._results = [at.place(value) for value in op.results]
        self._windows = _Windows.of(op, op.results[0].shape)
        self._reducer = Reducer(op, at)
        self._spare: list[Place] = []
        """Scratch buffers that hold no values and can be used again."""
        self._weight = 1
        """Number of elements of the original operand that each current element combines."""

    def write(self) -> None:
        """Write the code.

        It reduces along the outer dimensions first, so fewer elements remain for the others.
        """
        like = self._places[0].tiling
        for d in outer_strides(like):
            if self._windows.base[d] == 1 and not self._windows.trivial(d):
                self._outer(d)
        windows = self._windows
        if not all(windows.trivial(d) for d in range(len(windows.shape))):
            self._pad()
            for d, size in enumerate(windows.sizes):
                self._along(d, size, windows.dilations[d])
        for place, result in zip(self._places, self._results, strict=True):
            windows.corners(self._at, place, result, [0] * len(windows.shape))
        b = self._b
        with b.loop(self._results[0].tiling.vectors) as i:
            loaded = [b.load(result.buffer, i) for result in self._results]
            combined = self._reducer.finish(loaded)
            for result, vector in zip(self._results, combined, strict=True):
                b.store(vector, result.buffer, i)

    def _space(self, tiling: Tiling, least: int = 1) -> list[Place]:
        """Return a place of tiling ``tiling`` in scratch for each operand.

        Buffers of `_spare` are used first. A new buffer has at least ``least`` vectors, so that it
        is large enough for later uses.
        """
        found = []
        for _ in self._places:
            spare = next((place for place in self._spare
                          if place.buffer.vectors >= tiling.vectors), None)
            if spare is not None:
                self._spare.remove(spare)
            buffer = spare.buffer if spare is not None else self._at.scratch(
                max(least, tiling.vectors))
            found.append(Place(buffer, tiling))
        return found

    def _outer(self, d: int) -> None:
        """Reduce the windows along the outer dimension ``d``, by whole vectors."""
        w = self._windows
        old = self._places[0].tiling
        new = _tiled(tuple(w.result[i] if i == d else size
                           for i, size in enumerate(w.shape)), old)
        inner, size, step = outer_strides(old)[d], w.shape[d], w.strides[d]
        axis = _Axis(old.vectors // (inner * size), inner, size, w.result[d], step)
        totals = self._space(new, _tiled(w.after(d).padded, old).vectors)
        spans = [axis.span(t * w.dilations[d] - w.padding[d][0]) for t in range(w.sizes[d])]
        first, last = max(span[1] for span in spans), min(span[2] for span in spans)
        if w.sizes[d] > _TOGETHER or first >= last:
            first = last = axis.many
        else:
            self._inside(axis, totals, spans, first, last)
        padding = self._padding()
        for begin, end in ((0, first), (last, axis.many)):
            if begin < end:
                self._border(axis, totals, spans, (begin, end), padding)
        self._spare += self._places if self._windows.owned else []
        self._places = totals
        self._windows = w.after(d)
        self._weight *= w.sizes[d]

    def _inside(self, axis: "_Axis", totals: Sequence[Place],
                spans: Sequence[tuple[int, int, int]], first: int, last: int) -> None:
        """Reduce windows ``first`` to ``last - 1``, which have no padding, along ``axis``.

        ``spans`` has `_Axis.span` for each element of a window; ``totals`` receives the results.
        """
        b = self._b
        with nest(b, [axis.around, last - first, axis.inner], {}) as (a, i, v):
            vectors = self._reducer.neutral
            for shift, _, _ in spans:
                at = axis.source(a, Index.of(i) * axis.stride + (first * axis.stride + shift), v)
                vectors = self._reducer(vectors,
                                        [b.load(place.buffer, at) for place in self._places])
            for place, vector in zip(totals, vectors, strict=True):
                b.store(vector, place.buffer, axis.target(a, Index.of(i) + first, v))

    def _border(self, axis: "_Axis", totals: Sequence[Place],
                spans: Sequence[tuple[int, int, int]], part: tuple[int, int],
                padding: list[VReg]) -> None:
        """Reduce windows ``part[0]`` to ``part[1] - 1``, which may contain padding, along ``axis``.

        For each element of a window, a loop combines that element of all these windows with
        ``totals``. ``spans`` has `_Axis.span` for each element of a window. ``padding`` has the
        vectors that are combined in place of padding.
        """
        b, (begin, end) = self._b, part
        with nest(b, [axis.around, end - begin, axis.inner], {}) as (a, i, v):
            for place, vector in zip(totals, self._reducer.neutral, strict=True):
                b.store(vector, place.buffer, axis.target(a, Index.of(i) + begin, v))
        for shift, first, last in spans:
            for start, stop in ((0, first), (first, last), (last, axis.many)):
                left, right = max(start, begin), min(stop, end)
                if left >= right:
                    continue
                with nest(b, [axis.around, right - left, axis.inner], {}) as (a, i, v):
                    terms = padding
                    if (start, stop) == (first, last):
                        at = axis.source(
                            a, Index.of(i) * axis.stride + (left * axis.stride + shift), v)
                        terms = [b.load(place.buffer, at) for place in self._places]
                    self._add(totals, axis.target(a, Index.of(i) + left, v), terms)

    def _add(self, totals: Sequence[Place], index: IndexLike, terms: Sequence[VReg]) -> None:
        loaded = [self._b.load(place.buffer, index) for place in totals]
        for place, vector in zip(totals, self._reducer(loaded, terms), strict=True):
            self._b.store(vector, place.buffer, index)

    def _pad(self) -> None:
        """Copy the operands to scratch, with their padding."""
        windows, at = self._windows, self._at
        padded = self._space(_tiled(windows.padded, self._places[0].tiling))
        if windows.padded != windows.shape or any(low for low, _ in windows.padding):
            padding = self._padding()
            with self._b.loop(padded[0].tiling.vectors) as i:
                for place, vector in zip(padded, padding, strict=True):
                    self._b.store(vector, place.buffer, i)
        for place, source in zip(padded, self._places, strict=True):
            windows.pad(at, source, place)
        self._spare += self._places if windows.owned else []
        self._places = padded

    def _padding(self) -> list[VReg]:
        """Return a vector for each operand, whose elements stand for elements of the padding.

        By now, each element of an operand combines `_weight` of its original elements. So an
        element of the padding combines `_weight` initial values.
        """
        b, initial = self._b, self._reducer.initial
        if self._weight == 1:
            return initial
        total = [b.variable(vector) for vector in initial]
        with b.loop(self._weight - 1):
            for variable, vector in zip(total, self._reducer(total, initial), strict=True):
                b.assign(variable, vector)
        return total

    def _along(self, dimension: int, size: int, dilation: int) -> None:
        """Replace each element by the reduction of the window that starts at it.

        Along ``dimension``, a window has ``size`` elements, ``dilation`` indices apart. If some of
        them lie outside of the operand, the result is undefined.
        """
        length = 1
        if self._reducer.kind in ("maximum", "minimum", "and", "or"):
            # Combining an element twice has no effect, so the two windows may overlap.
            while length < size:
                more = min(length, size - length)
                self._combine(self._places, dimension, more * dilation)
                length += more
            return
        total: list[Place] | None = None
        covered = 0
        while True:
            if size & length:
                if total is not None:
                    self._combine(total, dimension, covered * dilation)
                elif size == length:
                    return
                else:
                    total = self._copied()
                covered += length
            if covered == size:
                assert total is not None
                self._spare += self._places
                self._places = total
                return
            self._combine(self._places, dimension, length * dilation)
            length *= 2

    def _copied(self) -> list[Place]:
        b, tiling = self._b, self._places[0].tiling
        copies = self._space(tiling)
        with b.loop(tiling.vectors) as i:
            for place, new in zip(self._places, copies, strict=True):
                b.store(b.load(place.buffer, i), new.buffer, i)
        return copies

    def _combine(self, totals: list[Place], dimension: int, distance: int) -> None:
        """Combine each element of ``totals`` with an element of the arrays in `_places`.

        That element is ``distance`` indices further along ``dimension``. Where it does not exist,
        the result may have any value.
        """
        b, places, tiling = self._b, self._places, self._places[0].tiling
        if distance >= tiling.shape[dimension]:
            return
        strides = outer_strides(tiling)
        ahead = distance * strides[dimension] if dimension in strides else 0
        moved: list[Place] = []
        if dimension not in strides:
            moved = self._space(tiling)
            starts = [distance if d == dimension else 0 for d in range(len(tiling.shape))]
            for place, other in zip(places, moved, strict=True):
                copy(self._at, place, other, [
                    Axis(size - start, d, d) for d, (size, start)
                    in enumerate(zip(tiling.shape, starts, strict=True))],
                    (starts, [0] * len(starts)))
            places = moved
        with b.loop(tiling.vectors - ahead) as i:
            self._add(totals, i, [b.load(place.buffer, i + ahead) for place in places])
        self._spare += moved


def _scatters_vectors(op: Operation, order: tuple[int, ...], config: Config) -> bool:
    """Return whether a ``select_and_scatter`` can process its windows as whole vectors.

    It can if the windows are `_Windows.apart`, and consist of whole vectors in the tiling whose
    dimensions have the order ``order``. This tiling must have at most `_MORE` times as many vectors
    as the standard tiling.
    """
    shape = op.operands[0].shape
    tiling = Tiling(shape, order, True, config.sublanes, config.lanes)
    windows = _Windows.of(op, op.operands[1].shape)
    return (windows.apart and tiling.vectors <= _MORE * standard(shape, config).vectors
            and _along_outer(windows, tiling))


def _along_outer(windows: _Windows, tiling: Tiling) -> bool:
    return all(windows.trivial(d) or d in tiling.outer_dimensions
               for d in range(len(windows.shape)))


@lowers("select_and_scatter")
def _select_and_scatter(op: Operation, at: Lowering) -> None:
    source, result = at.place(op.operands[1]), at.place(op.result)
    windows = _Windows.of(op, op.operands[1].shape)
    if windows.apart and _along_outer(windows, source.tiling):
        _scatter_vectors(op, at, windows)
        return
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


def _scatter_vectors(op: Operation, at: Lowering, windows: _Windows) -> None:
    """Write a ``select_and_scatter`` whose windows do not overlap, and consist of whole vectors."""
    b = at.builder
    operand, source, initial = map(at.place, op.operands)
    result = at.place(op.result)
    if not windows.covers:
        fill(at, result, op.operands[2])
    outer = source.tiling.outer_dimensions
    old, new = outer_strides(operand.tiling), outer_strides(source.tiling)
    shifts = [sum(place * old[d] for d, place in zip(outer, places, strict=True))
              for places in np.ndindex(*(windows.sizes[d] for d in outer))]
    empty = b.load(initial.buffer, 0)
    inner = source.tiling.lane_tiles * source.tiling.row_tiles
    with nest(b, [*(windows.result[d] for d in outer), inner], {}) as (*places, vector):
        first, window = Index.of(vector), Index.of(vector)
        for d, place in zip(outer, places, strict=True):
            first = first + Index.of(place) * (windows.strides[d] * old[d])
            window = window + Index.of(place) * new[d]
        best, chosen = b.load(operand.buffer, first), None
        for number, shift in enumerate(shifts[1:], 1):
            value = b.load(operand.buffer, first + shift)
            [stays] = emit_region(b, op.regions[0], [best, value])
            mask = b.compare("ne", stays, 0)
            best = b.vector("select", best, value, mask)
            chosen = b.vector("select", 0 if chosen is None else chosen, number, mask)
        [sum_] = emit_region(b, op.regions[1], [empty, b.load(source.buffer, window)])
        for number, shift in enumerate(shifts):
            kept = sum_ if chosen is None else b.vector(
                "select", sum_, empty, b.compare("eq", chosen, number))
            b.store(kept, result.buffer, first + shift)


def _number(sizes: Sequence[int], offset: Sequence[IndexLike]) -> Index:
    """Return the number of an element within its window, from 1, in row-major order.

    ``sizes`` is the window's shape; ``offset`` has the element's indices within the window.
    """
    number = Index(0)
    for size, part in zip(sizes, offset, strict=True):
        number = number * size + part
    return number + 1


def _choose(op: Operation, at: Lowering, windows: _Windows, tiling: Tiling) -> Place:
    """Write code that finds the element that each window selects.

    Returns the result's place in scratch, of tiling ``tiling``. For each window, the result has the
    number of the element within the window, from 1 in row-major order, or 0 if the window selects
    no element.
    """
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
    """Write code that marks each element of the padded operand: 1 in the operand, 0 in padding.

    Returns the place of the marks in scratch, with the order of dimensions of ``tiling``.
    """
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
