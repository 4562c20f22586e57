"""Exchanges a value's two tiled dimensions in the cross-lane unit's transposer.

The transposer exchanges the rows and columns of squares of lanes x lanes elements.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sim.compiler.kernels.lowering import Meanwhile, Place
from sim.compiler.kernels.moving.block import nest
from sim.compiler.machine import Builder, Index
from sim.compiler.machine.ir import LoopVariable

__all__ = ["swap_tiled"]

_VECTOR_CYCLES = 16
"""Cycles that the cross-lane unit needs for a vector."""


def swap_tiled(b: Builder, source: Place, destination: Place,
               meanwhile: Meanwhile | None = None) -> None:
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
    meanwhile : callable, optional
        Chooses the squares before which other code is written, and writes it (`Meanwhile`).

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
        _squares(b, (source, destination), outer, counts, meanwhile if old.outer == 1 else None)


def _squares(b: Builder, places: tuple[Place, Place], outer: int | LoopVariable,
             counts: dict[LoopVariable, int], meanwhile: Meanwhile | None) -> None:
    """Transpose all squares at ``outer``, the combined index of the outer dimensions.

    ``places`` are the source and the destination. ``counts`` has the number of iterations of each
    open loop; the squares' loops are added to it. Whole squares are transposed in loops, partial
    ones one by one. ``meanwhile``, if given, chooses the squares before which other code is
    written.
    """
    square = b.config.lanes // b.config.sublanes
    down, across = (_pieces(place.tiling.row_tiles, square) for place in places)
    for first_down, number_down, high in down:
        for first_across, number_across, wide in across:
            others = {} if meanwhile is None or {high, wide} != {square} else meanwhile(
                number_down * number_across, square * _VECTOR_CYCLES)
            for rows, columns in _parts(number_down, number_across, [*others]):
                others.get(rows.start * number_across + columns.start, lambda: None)()
                with nest(b, [len(rows), len(columns)], counts) as (i, j):
                    _square(b, places, (outer, Index.of(i) + (first_down + rows.start),
                                        Index.of(j) + (first_across + columns.start)),
                            (high, wide), counts)


def _parts(down: int, across: int, cuts: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Divide ``down`` rows of ``across`` squares into parts; yield each part's rows and columns.

    Squares are numbered row by row. A part begins at each square whose number is in ``cuts``.
    """
    if not cuts:
        yield range(down), range(across)
        return
    for row in range(down):
        inside = [cut - row * across for cut in cuts if cut // across == row]
        for begin, end in pairwise(sorted({0, *inside, across})):
            yield range(row, row + 1), range(begin, end)


def _square(b: Builder, places: tuple[Place, Place],
            at: tuple[int | LoopVariable, Index, Index], sizes: tuple[int, int],
            counts: dict[LoopVariable, int]) -> None:
    """Transpose a square, or a partial one.

    ``at`` has the combined index of the outer dimensions, and the row and the column of the square
    in the source. ``sizes`` tells how many row tiles the square has in the source and how many in
    the destination.
    The other parameters are those of `_squares`.
    """
    source, destination = places
    (outer, row, column), (high, wide) = at, sizes
    old, new, square = source.tiling, destination.tiling, b.config.lanes // b.config.sublanes
    # Without a dimension along the sublanes, the square's rows are all the same.
    repeated = old.sublane_dimension is None
    base = Index.of(outer) * (old.lane_tiles * old.row_tiles) + (
        column * old.row_tiles + row * square)
    with nest(b, [square if repeated else high], counts) as (k,):
        vector = b.load(source.buffer, base if repeated else base + k)
        b.transpose_in(vector, k)
    base = Index.of(outer) * (new.lane_tiles * new.row_tiles) + (
        row * new.row_tiles + column * square)
    # Without a dimension along the lanes, the square's columns are all the same.
    with nest(b, [1 if old.lane_dimension is None else wide], counts) as (k,):
        b.store(b.transpose_out(k), destination.buffer, base + k)


def _pieces(tiles: int, square: int) -> list[tuple[int, int, int]]:
    """Divide ``tiles`` row tiles into squares of ``square`` row tiles; the last may be partial.

    Returns a list of (first row tile, number of squares, row tiles in each square).
    """
    full, rest = divmod(tiles, square)
    return ([(0, full, square)] if full else []) + ([(full, 1, rest)] if rest else [])
