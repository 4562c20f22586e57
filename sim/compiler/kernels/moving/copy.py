"""The affine copy: moves elements from one tiling to another, along axes."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sim.compiler.kernels.lowering import Lowering, Meanwhile, Place
from sim.compiler.kernels.moving.block import Axis, Combine, copy_blocks
from sim.compiler.kernels.moving.exchange import exchange_rows, exchanged_rows
from sim.compiler.kernels.moving.transposer import swap_tiled
from sim.compiler.machine import MReg
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import Tiling

__all__ = ["Axis", "copy", "prepared", "relayout"]

Starts = tuple[Sequence[IndexLike], Sequence[IndexLike]]


def copy(at: Lowering, source: Place, destination: Place, axes: Sequence[Axis],
         starts: Starts | None = None, *, combine: Combine | None = None,
         mask: MReg | None = None, meanwhile: Meanwhile | None = None) -> None:
    """Copy elements along axes.

    The element of iteration (i, j, ...) has an index in each dimension of the source and of the
    destination: ``start + i * step + ...``, summed over the axes along that dimension. No element
    is written twice. Elements of the destination that are not written keep their values; the
    destination's padding may change.

    All loads and stores are of whole vectors. The cross-lane unit's transposer exchanges lanes and
    sublanes. The first of these methods that covers the copy is used:

    - If the source is strided or reversed along the lanes, and not along the sublanes, it goes
      through the transposer, is copied, and goes back through the transposer.
    - If only lanes and sublanes are exchanged, the source goes through the transposer.
    - If an outer dimension is exchanged with the one along the sublanes, and otherwise only the
      order of outer dimensions changes, `exchange_rows` copies.
    - Otherwise, blocks are copied, and rotated along sublanes or lanes if their position within
      tiles changes. If the dimension that moves to the destination's lanes does not run along the
      source's lanes, the source goes through the transposer first. Elements that do not form blocks
      move one lane at a time.

    Parameters
    ----------
    at : Lowering
        Receives the code, and knows where the values lie.
    source, destination : Place
    axes : sequence of Axis
        The iteration space. Along a dimension without an axis, the copy stays at the start.
    starts : pair of sequences
        The first element's coordinates (as `Index`) in source and destination; all zero if None.
    combine : callable or None
        Function from the destination's vector and the moved elements to the vector that is stored.
    mask : MReg or None
        The elements that may be stored, the same in each vector of the destination; all if None.
    meanwhile : callable or None
        Chooses where other code runs, if only lanes and sublanes are exchanged.
    """
    axes = [axis for axis in axes if axis.size > 1]
    if combine is None and mask is None and _steps_along_lanes(source, destination, axes):
        new = destination.tiling
        turned = _tiling(new, new.outer_dimensions, new.lane_dimension, new.sublane_dimension)
        place = Place(at.scratch(turned.vectors), turned)
        old = source.tiling
        copy(at, _swapped(at, source, old.sublane_dimension, old.lane_dimension), place, axes,
             starts)
        swap_tiled(at.builder, place, destination)
        return
    if starts is None and combine is None and mask is None:
        after = _turned(source.tiling, destination.tiling, axes)
        if after is not None:
            swap_tiled(at.builder, source, Place(destination.buffer, after), meanwhile)
            return
        along = exchanged_rows(source, destination, axes)
        if along is not None:
            exchange_rows(at.builder, source, destination, axes, along)
            return
    source = prepared(at, source, destination.tiling, axes)
    copy_blocks(at.builder, source, destination, axes, starts, combine=combine, mask=mask)


def relayout(at: Lowering, source: Place, destination: Place,
             meanwhile: Meanwhile | None = None) -> None:
    """Copy a value to another tiling; ``meanwhile`` is the parameter of `copy`."""
    copy(at, source, destination,
         [Axis(size, d, d) for d, size in enumerate(source.tiling.shape)], meanwhile=meanwhile)


def _turned(old: Tiling, new: Tiling, axes: Sequence[Axis]) -> Tiling | None:
    """Return ``old`` with lanes and sublanes exchanged, if this exchange does the whole copy.

    ``old`` is the source's tiling, ``new`` the destination's, and ``axes`` are those of the copy.
    The source then has the same vectors in the returned tiling as the destination has in ``new``.
    Return None if the exchange does not do the whole copy.
    """
    to: dict[int, int] = {}
    for axis in axes:
        if (axis.source is None or axis.destination is None
                or (axis.source_step, axis.destination_step) != (1, 1)
                or not axis.size == old.shape[axis.source] == new.shape[axis.destination]):
            return None
        to[axis.source] = axis.destination
    tiled = old.sublane_dimension, old.lane_dimension
    if (len(to) != len(axes) or any(d not in to for d in tiled)
            or math.prod(old.shape) != math.prod(axis.size for axis in axes)
            or [to.get(d) for d in tiled if d is not None] != [
                new.lane_dimension, new.sublane_dimension]):
        return None
    turned = _tiling(old, old.outer_dimensions, old.lane_dimension, old.sublane_dimension)
    order = [to[d] for d in turned.order if d in to]
    return turned if order == [d for d in new.order if new.shape[d] > 1] else None


def _steps_along_lanes(source: Place, destination: Place, axes: Sequence[Axis]) -> bool:
    """Return whether a copy is strided or reversed along lanes, and neither along sublanes.

    ``axes`` are those of the copy. Return False also if the copy does not move lanes to lanes and
    sublanes to sublanes, or does not write all elements of the destination.
    """
    old, new = source.tiling, destination.tiling
    if old.sublane_dimension is None or new.sublane_dimension is None:
        return False
    lane = _longest(axes, "destination", new.lane_dimension)
    row = _longest(axes, "destination", new.sublane_dimension)
    return (lane is not None and lane.source == old.lane_dimension
            and lane.source is not None and lane.source_step != 1
            and row is not None and row.source == old.sublane_dimension and row.source_step == 1
            and all(axis.destination_step == 1 for axis in axes)
            and math.prod(axis.size for axis in axes) == math.prod(new.shape))


def prepared(at: Lowering, source: Place, new: Tiling, axes: Sequence[Axis]) -> Place:
    """Copy the source, if necessary, to a tiling from which blocks can be copied.

    In that tiling, the dimension that the copy moves to the destination's lanes already runs along
    the lanes. ``axes`` are the axes of the copy, and ``new`` is the destination's tiling. Returns
    the place to copy from: ``source`` itself if it has such a tiling, or if none exists.
    """
    old = source.tiling
    lane = _longest(axes, "destination", new.lane_dimension)
    row = _longest(axes, "destination", new.sublane_dimension)
    if lane is not None and lane.source is not None:
        if lane.source == old.lane_dimension or abs(lane.source_step) != 1:
            return source
        if old.lane_dimension is None and lane.source != old.sublane_dimension:
            # Every lane already holds the element.
            return source
        if old.lane_dimension is not None:
            other: int | None = old.lane_dimension
        else:
            rest = [d for d in old.order if d != lane.source]
            other = row.source if row is not None and row.source in rest else (
                rest[-1] if rest else None)
        return _swapped(at, source, lane.source, other)
    if row is not None and row.source is not None and row.source == old.lane_dimension:
        return _swapped(at, source, old.sublane_dimension, row.source)
    return source


def _longest(axes: Sequence[Axis], side: str, dimension: int | None) -> Axis | None:
    """Return the longest axis with a step of 1 or -1 along ``dimension``; None if there is none.

    ``side``, which is ``source`` or ``destination``, says which of them has this dimension.
    """
    found = [axis for axis in axes if dimension is not None and getattr(axis, side) == dimension
             and abs(getattr(axis, f"{side}_step")) == 1]
    return max(found, key=lambda axis: axis.size, default=None)


def _swapped(at: Lowering, source: Place, lane: int | None, row: int | None) -> Place:
    """Copy a value, through the transposer, to scratch; return its place there.

    In its new tiling, dimension ``lane`` runs along the lanes, and dimension ``row`` along the
    sublanes.
    """
    old = source.tiling
    outer = tuple(d for d in old.order if d not in (lane, row))
    before = _tiling(old, outer, lane, row)
    if before != old:
        place = Place(at.scratch(before.vectors), before)
        relayout(at, source, place)
        source = place
    after = _tiling(old, outer, row, lane)
    place = Place(at.scratch(after.vectors), after)
    swap_tiled(at.builder, source, place)
    return place


def _tiling(old: Tiling, outer: tuple[int, ...], row: int | None, lane: int | None) -> Tiling:
    """Return ``old`` with its dimensions in another order.

    ``row`` runs along the sublanes and ``lane`` along the lanes; ``outer`` are the outer
    dimensions, from major to minor.
    """
    order = outer + tuple(d for d in (row, lane) if d is not None)
    return replace(old, order=order, along_lanes=lane is not None)
