"""Exchanges a value's two tiled dimensions in the transposer, by squares of lanes x lanes."""

from sim.compiler.kernels.lowering import Place
from sim.compiler.kernels.moving.block import nest
from sim.compiler.machine import Builder, Index
from sim.compiler.machine.ir import LoopVariable

__all__ = ["swap_tiled"]


def swap_tiled(b: Builder, source: Place, destination: Place) -> None:
    """Copy a value to the tiling with lanes and sublanes exchanged.

    The dimension along the source's lanes runs along the destination's sublanes, and vice versa; if
    either is missing in the source, its counterpart is missing in the destination. The outer
    dimensions are the same, in the same order. Each vector takes two operations of the cross-lane
    unit.

    Parameters
    ----------
    b : Builder
    source, destination : Place
        Places of the same shape.

    Raises
    ------
    ValueError
        If the destination's tiling is not that of the source with its tiled dimensions exchanged.
    """
    old, new = source.tiling, destination.tiling
    if (old.lane_dimension, old.sublane_dimension) != (new.sublane_dimension, new.lane_dimension) \
            or old.outer_dimensions != new.outer_dimensions or old.shape != new.shape:
        raise ValueError(f"destination must be {old!r} with its two tiled dimensions exchanged, "
                         f"not {new!r}")
    counts: dict[LoopVariable, int] = {}
    with nest(b, [old.outer], counts) as (outer,):
        _squares(b, source, destination, outer, counts)


def _squares(b: Builder, source: Place, destination: Place, outer: int | LoopVariable,
             counts: dict[LoopVariable, int]) -> None:
    """Transpose all squares at ``outer``, the combined index of the outer dimensions.

    ``counts`` has the number of iterations of each open loop; the squares' loops are added to it.
    Whole squares are transposed in loops, partial ones one by one.
    """
    square = b.config.lanes // b.config.sublanes
    down, across = _pieces(source.tiling.row_tiles, square), _pieces(destination.tiling.row_tiles,
                                                                     square)
    # Without a dimension along the sublanes, the square's rows are all the same.
    repeated = source.tiling.sublane_dimension is None
    # Without a dimension along the lanes, the square's columns are all the same.
    narrow = source.tiling.lane_dimension is None
    for first_down, number_down, high in down:
        for first_across, number_across, wide in across:
            with nest(b, [number_down, number_across], counts) as (i, j):
                row, column = Index.of(i) + first_down, Index.of(j) + first_across
                base = Index.of(outer) * (source.tiling.lane_tiles * source.tiling.row_tiles) + (
                    column * source.tiling.row_tiles + row * square)
                with nest(b, [square if repeated else high], counts) as (k,):
                    vector = b.load(source.buffer, base if repeated else base + k)
                    b.transpose_in(vector, k)
                new = destination.tiling
                base = Index.of(outer) * (new.lane_tiles * new.row_tiles) + (
                    row * new.row_tiles + column * square)
                with nest(b, [1 if narrow else wide], counts) as (k,):
                    b.store(b.transpose_out(k), destination.buffer, base + k)


def _pieces(tiles: int, square: int) -> list[tuple[int, int, int]]:
    """Divide ``tiles`` row tiles into squares of ``square`` row tiles; the last may be partial.

    Returns a list of (first row tile, number of squares, row tiles in each square).
    """
    full, rest = divmod(tiles, square)
    return ([(0, full, square)] if full else []) + ([(full, 1, rest)] if rest else [])
