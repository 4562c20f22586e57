"""The cross-lane unit's operations on numpy arrays, bit for bit.

This module specifies hdl/xlu, and executes what `hdl/isa.py` and `docs/numerics.md` define. A
vector register is an array of uint32, shape (sublanes, lanes): the argument ``a`` and, if not
otherwise stated, the result. All functions raise TypeError for an argument of another type, and
ValueError for one of another shape or out of range. For an index out of range, a core would stop
with a fault.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden.vpu import evaluate, fmax
from hdl.checks import integer
from hdl.isa import VectorOp

__all__ = ["broadcast_lane", "broadcast_sublane", "max_lanes", "rotate_lanes", "rotate_sublanes",
           "sum_lanes", "transpose_in", "transpose_out"]

_MINUS_ZERO = 0x80000000

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]


def _register(value: ArrayLike) -> _Words:
    array = np.asarray(value)
    if array.dtype != np.uint32:
        raise TypeError(f"a must be an array of uint32, not of {array.dtype}")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"a must have shape (sublanes, lanes), not {array.shape!r}")
    return array


@cache
def _sources(size: int, distance: int) -> NDArray[np.intp]:
    """Return, for each of ``size`` lanes or sublanes, the number of the one that moves there."""
    # Several times as fast as `np.roll`, for vectors of a small core.
    return np.roll(np.arange(size), distance)


def rotate_lanes(a: ArrayLike, distance: int) -> NDArray[np.uint32]:
    """Move lane l to lane (l + distance) mod lanes; ``distance`` is less than lanes."""
    a = _register(a)
    integer("distance", distance, 0, a.shape[1] - 1)
    return a.take(_sources(a.shape[1], distance), 1)


def rotate_sublanes(a: ArrayLike, distance: int) -> NDArray[np.uint32]:
    """Move sublane s to sublane (s + distance) mod sublanes; ``distance`` is less than sublanes."""
    a = _register(a)
    integer("distance", distance, 0, a.shape[0] - 1)
    return a.take(_sources(a.shape[0], distance), 0)


def broadcast_lane(a: ArrayLike, lane: int) -> NDArray[np.uint32]:
    """Copy lane ``lane`` to all lanes."""
    a = _register(a)
    integer("lane", lane, 0, a.shape[1] - 1)
    return np.repeat(a[:, lane:lane + 1], a.shape[1], axis=1)


def broadcast_sublane(a: ArrayLike, sublane: int) -> NDArray[np.uint32]:
    """Copy sublane ``sublane`` to all sublanes."""
    a = _register(a)
    integer("sublane", sublane, 0, a.shape[0] - 1)
    return np.repeat(a[sublane:sublane + 1], a.shape[0], axis=0)


def sum_lanes(a: ArrayLike) -> NDArray[np.uint32]:
    """Return, in every lane, the fp32 sum over all lanes of the same sublane.

    The order is that of a binary tree: lanes 0 and 1, 2 and 3, and so on are added, then
    neighbouring sums, until one is left. The lanes are padded with -0 to a power of two, which does
    not affect the sum.

    ``a`` must have 2 lanes or more.
    """
    a = _register(a)
    sublanes, lanes = a.shape
    if lanes < 2:
        raise ValueError(f"a must have at least 2 lanes, not shape {a.shape!r}")
    level: _Words = np.full((sublanes, 1 << (lanes - 1).bit_length()), _MINUS_ZERO, np.uint32)
    level[:, :lanes] = a
    while level.shape[1] > 1:
        level = evaluate(VectorOp.FADD, level[:, 0::2], level[:, 1::2])
    return np.repeat(level, lanes, axis=1)


def max_lanes(a: ArrayLike) -> NDArray[np.uint32]:
    """Return, in every lane, the largest fp32 number of the same sublane; NaN if any lane has NaN.

    The maximum is commutative and associative in every bit, so the order does not matter.

    ``a`` must have 2 lanes or more.
    """
    a = _register(a)
    lanes = a.shape[1]
    if lanes < 2:
        raise ValueError(f"a must have at least 2 lanes, not shape {a.shape!r}")
    level = a
    while level.shape[1] > 1:
        half = level.shape[1] // 2
        # With an odd count, one element is compared twice, which does no harm.
        level = fmax(level[:, :level.shape[1] - half], level[:, half:])
    return np.repeat(level, lanes, axis=1)


def _check_tile(tile: object) -> None:
    if not isinstance(tile, np.ndarray) or tile.dtype != np.uint32:
        kind = getattr(tile, "dtype", type(tile).__name__)
        raise TypeError(f"tile must be an array of uint32, not of {kind}")
    if tile.ndim != 2 or tile.shape[0] != tile.shape[1]:
        raise ValueError(f"tile must have shape (lanes, lanes), not {tile.shape!r}")


def transpose_in(tile: NDArray[np.uint32], a: ArrayLike, group: int) -> None:
    """Write vector register ``a`` into the transposer's tile, from row ``group * sublanes`` on.

    Parameters
    ----------
    tile : array of uint32, shape (lanes, lanes)
        Changed in place.
    a : array of uint32, shape (sublanes, lanes)
    group : int
        Less than lanes / sublanes.
    """
    _check_tile(tile)
    a = _register(a)
    sublanes, lanes = a.shape
    if lanes != tile.shape[1]:
        raise ValueError(f"a must have {tile.shape[1]} lanes, not shape {a.shape!r}")
    integer("group", group, 0, lanes // sublanes - 1)
    tile[group * sublanes:(group + 1) * sublanes] = a


def transpose_out(tile: NDArray[np.uint32], group: int, sublanes: int) -> NDArray[np.uint32]:
    """Return the register whose sublanes are the tile's columns from ``group * sublanes`` on.

    Parameters
    ----------
    tile : array of uint32, shape (lanes, lanes)
    group : int
        Less than lanes / sublanes.
    sublanes : int
        From 1 to lanes.

    Returns
    -------
    array of uint32, shape (sublanes, lanes)
    """
    _check_tile(tile)
    lanes = tile.shape[0]
    integer("sublanes", sublanes, 1, lanes)
    integer("group", group, 0, lanes // sublanes - 1)
    return tile[:, group * sublanes:(group + 1) * sublanes].T.copy()
