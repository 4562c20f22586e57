"""Reshape: the same elements in the same row-major order, with other dimensions."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.lowering import Choice, Lowering, Place, chooses, lowers
from sim.compiler.kernels.moving.copy import Axis, copy
from sim.compiler.tiling import Tiling, standard

__all__ = ["reshape", "reshape_axes"]


def reshape_axes(old: Sequence[int], new: Sequence[int]) -> list[Axis] | None:
    """Return the axes of the copy that reshapes a value from shape ``old`` to shape ``new``.

    In both shapes, the size of each dimension is the product of the sizes of consecutive axes.
    Return None if there are no such axes.
    """
    axes: list[Axis] = []
    sides = [list(old), list(new)]
    steps = [1, 1]
    while True:
        for number, side in enumerate(sides):
            while side and side[-1] == 1:
                side.pop()
                steps[number] = 1
        if not sides[0] or not sides[1]:
            return axes[::-1]
        size = min(sides[0][-1], sides[1][-1])
        if sides[0][-1] % size or sides[1][-1] % size:
            return None
        axes.append(Axis(size, len(sides[0]) - 1, len(sides[1]) - 1, *steps))
        for number, side in enumerate(sides):
            side[-1] //= size
            steps[number] *= size


def _between(old: Sequence[int], new: Sequence[int], lanes: int) -> tuple[int, ...]:
    """Return an intermediate shape for a reshape from shape ``old`` to shape ``new``.

    If possible, its last dimension has at least ``lanes`` elements.
    """
    total = math.prod(old)
    inner = math.gcd(_inner(old, lanes), _inner(new, lanes))
    return (total // inner, inner) if inner >= lanes else (total,)


def _inner(shape: Sequence[int], lanes: int) -> int:
    """Multiply the sizes in ``shape``, the last one first, until the product reaches ``lanes``.

    Return the product; it is less than ``lanes`` if ``shape`` has fewer elements.
    """
    product = 1
    for size in reversed(shape):
        product *= size
        if product >= lanes:
            break
    return product


def reshape(at: Lowering, source: Place, destination: Place) -> None:
    """Copy a value to a place of another shape, in row-major order.

    If `reshape_axes` finds no axes, the value is first copied to an intermediate shape of one or
    two dimensions.
    """
    shapes = source.tiling.shape, destination.tiling.shape
    axes = reshape_axes(*shapes)
    if axes is not None:
        copy(at, source, destination, axes)
        return
    shape = _between(*shapes, at.config.lanes)
    if reshape_axes(shapes[0], shape) is None or reshape_axes(shape, shapes[1]) is None:
        shape = (math.prod(shape),)
    tiling = standard(shape, at.config)
    between = Place(at.scratch(tiling.vectors), tiling)
    reshape(at, source, between)
    reshape(at, between, destination)


@chooses("reshape")
def _tilings(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose the tilings of a reshape; the operand keeps its tiling.

    If only dimensions of size 1 are added or removed, the result's tiling leaves vectors as they
    are. Its dimensions of size 1 come first, and the others follow in the order of the operand's
    tiling. Otherwise, the result has the standard tiling.
    """
    [old], shape = operands, op.result.shape
    wide = [d for d, size in enumerate(shape) if size > 1]
    before = [d for d, size in enumerate(old.shape) if size > 1]
    tiled = {old.lane_dimension, old.sublane_dimension} - {None}
    result = standard(shape, config)
    if [shape[d] for d in wide] == [old.shape[d] for d in before] and tiled <= set(before):
        ones = [d for d in range(len(shape)) if d not in wide]
        order = ones + [wide[before.index(d)] for d in old.order if d in before]
        result = replace(old, shape=shape, order=tuple(order), along_lanes=old.along_lanes)
    return Choice(operands, (result,))


@lowers("reshape")
def _reshape(op: Operation, at: Lowering) -> None:
    reshape(at, at.place(op.operands[0]), at.place(op.result))
