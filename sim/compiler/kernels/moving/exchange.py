"""Copies in which an outer dimension and the one along the sublanes change roles.

With S sublanes, a square is S vectors: the same tile at S consecutive indices of the outer
dimension. Sublane j of vector i becomes sublane i of vector j of the result. All elements with the
same d = i - j (modulo S) move by d sublanes, and no two of them are in the same sublane. So a first
merge collects the elements of equal d in one vector, and a rotation moves them. Then a second merge
distributes them to the vectors of the result. In a merge, sublane s of result n comes from vector
n + s or n - s (modulo S). A merge takes one step for each bit of s.
"""

import math
from collections.abc import Iterator, Sequence

from sim.compiler.kernels.lowering import Place
from sim.compiler.kernels.moving.block import Axis, coalesce, nest, outer_strides
from sim.compiler.machine import Builder, Index, MReg, VReg

__all__ = ["exchange_rows", "exchanged_rows"]


def exchanged_rows(source: Place, destination: Place, axes: Sequence[Axis]) -> Axis | None:
    """Return the axis of a copy that `exchange_rows` moves from an outer dimension to the sublanes.

    Return None if `exchange_rows` cannot do the copy, whose axes are ``axes``. It can if each axis
    copies a whole dimension to a whole dimension. In addition, the dimension along the lanes must
    stay there, and the one along the sublanes must become an outer one.
    """
    old, new = source.tiling, destination.tiling
    if any(axis.source is None or axis.destination is None
           or (axis.source_step, axis.destination_step) != (1, 1)
           or not axis.size == old.shape[axis.source] == new.shape[axis.destination]
           for axis in axes) or math.prod(old.shape) != math.prod(axis.size for axis in axes):
        return None
    to = {axis.source: axis for axis in axes}
    if len(to) != len(axes) or len({axis.destination for axis in axes}) != len(axes):
        return None
    lanes = to.pop(old.lane_dimension, None)
    if lanes is not None and lanes.destination != new.lane_dimension:
        return None
    if lanes is None and (new.columns > 1 or (old.lane_dimension is None) != (
            new.lane_dimension is None)):
        return None
    rows = to.get(old.sublane_dimension)
    found = next((axis for axis in axes if axis.destination == new.sublane_dimension), None)
    if found is None or rows is None or found is rows:
        return None
    return found


def exchange_rows(b: Builder, source: Place, destination: Place, axes: Sequence[Axis],
                  along: Axis) -> None:
    """Copy a value to a tiling in which a former outer dimension runs along the sublanes.

    Parameters
    ----------
    b : Builder
    source, destination : Place
    axes : sequence of Axis
        Axes of the copy.
    along : Axis
        The result of `exchanged_rows` for this copy.
    """
    old, new = source.tiling, destination.tiling
    before, after = outer_strides(old), outer_strides(new)
    rows = next(axis for axis in axes if axis.source == old.sublane_dimension)
    assert along.source is not None
    assert rows.destination is not None
    near, far = before[along.source], after[rows.destination]
    loops = [(old.lane_tiles, (old.row_tiles, new.row_tiles)),
             *((axis.size, (before[axis.source], after[axis.destination])) for axis in axes
               if axis not in (along, rows) and axis.source in before
               and axis.destination in after)]
    loops = coalesce(loops)
    high = b.config.sublanes
    masks = _masks(b)
    with nest(b, [count for count, _ in loops], {}) as places:
        start, end = Index(0), Index(0)
        for place, (_, strides) in zip(places, loops, strict=True):
            start, end = start + Index.of(place) * strides[0], end + Index.of(place) * strides[1]
        for first, many, taken in _parts(along.size, high):
            for top, deep, made in _parts(rows.size, high):
                with nest(b, [deep, many], {}) as (i, j):
                    row, column = Index.of(i) + top, Index.of(j) + first
                    at = start + row + column * (near * high)
                    vectors = [b.load(source.buffer, at + near * n) for n in range(taken)]
                    at = end + column + row * (far * high)
                    for n, vector in enumerate(_square(b, vectors, masks)[:made]):
                        b.store(vector, destination.buffer, at + far * n)


def _parts(size: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Split a dimension of ``size`` into whole tiles of ``high`` elements and a partial one.

    Yields a triple for the whole tiles, if there are any, and one for the partial tile, if there is
    one. A triple is (number of the first tile, number of tiles, number of elements in each of
    them).
    """
    whole, rest = divmod(size, high)
    if whole:
        yield 0, whole, high
    if rest:
        yield whole, 1, rest


def _masks(b: Builder) -> list[MReg]:
    """Return, for each bit of a sublane's number, the mask of the sublanes in which it is 1."""
    number = b.vector("sublane")
    return [b.compare("ne", b.vector("and", number, 1 << bit), 0)
            for bit in range(b.config.sublanes.bit_length() - 1)]


def _square(b: Builder, vectors: Sequence[VReg], masks: Sequence[MReg]) -> list[VReg]:
    """Exchange vectors and sublanes: sublane s of result n is sublane n of vector s.

    ``masks`` has, for each bit of a sublane's number, the mask of the sublanes in which it is 1.
    There are as many results as sublanes. If there are fewer vectors, the last sublanes of the
    results are padding.
    """
    high = b.config.sublanes
    # Missing vectors become padding: any vector will do.
    merged = _merge(b, [vectors[min(n, len(vectors) - 1)] for n in range(high)], masks)
    rotated = [merged[0], *(b.cross("rotate_sublanes", merged[n], n) for n in range(1, high))]
    return _merge(b, [rotated[-n % high] for n in range(high)], masks, -1)


def _merge(b: Builder, vectors: list[VReg], masks: Sequence[MReg], sign: int = 1) -> list[VReg]:
    """Merge S vectors to S vectors, where S is the number of sublanes.

    Sublane s of result n is sublane s of vector n + ``sign`` * s, modulo S. ``masks`` has, for each
    bit of a sublane's number, the mask of the sublanes in which it is 1.
    """
    for bit, mask in enumerate(masks):
        vectors = [_selected(b, vectors[(n + sign * (1 << bit)) % len(vectors)], vector, mask)
                   for n, vector in enumerate(vectors)]
    return vectors


def _selected(b: Builder, one: VReg, other: VReg, mask: MReg) -> VReg:
    return other if one is other else b.vector("select", one, other, mask)
