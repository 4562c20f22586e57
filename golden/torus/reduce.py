"""The sum over all chips of a torus, with the order of additions of `sim.compiler.collectives`."""

import numpy as np
from numpy.typing import NDArray

from golden.vpu import evaluate
from hdl.isa import VectorOp

__all__ = ["all_reduced", "pod_sum"]

Words = NDArray[np.uint32]


def all_reduced(values: Words, block: int, spread: int = 1) -> Words:
    """Return the sums over all chips, which all chips get.

    Parameters
    ----------
    values : array of uint32, shape (width, height, words)
        Patterns of the fp32 numbers of each chip. ``words`` is a multiple of the words of a round,
        4 * block * width * height / spread.
    block : int
        Words of a block.
    spread : int
        Along the second axis of a half (see *Returns*), only every ``spread``-th chip has blocks.
        ``spread`` divides the number of chips along the second axis of each half.

    Returns
    -------
    array of uint32, shape (words,)
        The sums. The words are divided into rounds. A round has two halves: the first is summed
        along X first and then along Y, the second along Y first and then along X. (If the torus has
        one chip along X or along Y, that axis is the second one of both halves.) A half has two
        quarters; the first is summed round the rings in ascending order of coordinates, the second
        in descending order. A quarter has a block for each pair of a coordinate s on the first axis
        and a multiple t of ``spread`` on the second, in the order of (s, t). The block's sum begins
        at s along the first axis, and at t along the second.

    Raises
    ------
    ValueError
        If the words are not a whole number of rounds.
    """
    width, height, words = values.shape
    parts = width * height // spread
    if words % (4 * parts * block):
        raise ValueError(f"values must have whole rounds of {4 * parts * block} words, "
                         f"not {words} words")
    rounds = values.reshape(width, height, -1, 2, 2 * parts * block)
    return np.stack([_half(rounds[:, :, :, half], half, block, spread) for half in range(2)],
                    1).reshape(-1)


def pod_sum(values: Words, blocks: tuple[int, int]) -> Words:
    """Return the sums over all cores of a torus, which all cores get.

    Parameters
    ----------
    values : array of uint32, shape (width, height, 2, words)
        Patterns of the fp32 numbers of both cores of each chip.
    blocks : tuple of int
        Words of a block in the first and in the second quarter of each half. A quarter has a block
        for each chip. Zeros pad ``words`` to the size of two halves.

    Returns
    -------
    array of uint32, shape (words,)
        The sums. The numbers of the two cores of a chip are added first. Then the first quarter of
        a half is summed along X first, the second one along Y first, with the order of blocks and
        of additions in `all_reduced`. The first quarter of the first half and the second quarter of
        the second half are summed in ascending order of coordinates, the other two in descending
        order.
    """
    width, height, _, words = values.shape
    sizes = [width * height * block for block in blocks]
    padded = np.zeros((width, height, 2 * sum(sizes)), np.uint32)
    padded[:, :, :words] = evaluate(VectorOp.FADD, values[:, :, 0], values[:, :, 1])
    sums, start = [], 0
    for way in (1, -1):
        for number, (size, block) in enumerate(zip(sizes, blocks, strict=True)):
            part = padded[:, :, None, start:start + size]
            sums.append(_quarter(part, number, way * (-1) ** number, block, 1).reshape(-1))
            start += size
    return np.concatenate(sums)[:words]


def _half(values: Words, half: int, block: int, spread: int) -> Words:
    """Return the sums of one half of each round, shape (rounds, words).

    ``values``, shape (width, height, rounds, words), has only the words of this half. ``half`` is 0
    for the first half, 1 for the second. ``block`` and ``spread`` are those of `all_reduced`.
    """
    forward, backward = np.split(values, 2, 3)
    return np.concatenate([_quarter(forward, half, 1, block, spread),
                           _quarter(backward, half, -1, block, spread)], 1)


def _quarter(values: Words, axis: int, way: int, block: int, spread: int) -> Words:
    """Return the sums of one quarter of each round, shape (rounds, words).

    ``values``, shape (width, height, rounds, words), has only the words of this quarter. They are
    summed along X first if ``axis`` is 0, and along Y first if it is 1; but an axis with a single
    chip comes second. ``way`` is 1 if the quarter is summed in ascending order of coordinates, else
    -1. ``block`` and ``spread`` are those of `all_reduced`.
    """
    width, height, count, words = values.shape
    along_x = (height == 1) if axis else (width > 1)
    grid = values.swapaxes(0, 1) if along_x else values
    second, first = grid.shape[:2]
    part = grid.reshape(second, first, count, first, second // spread, block)
    # part[c2, c1, round, s1, s2] is block (s1, s2) of chip (c1, c2).
    sums = np.empty(part.shape[2:], np.uint32)
    for s1 in range(first):
        lines = _ring(part[:, :, :, s1].swapaxes(0, 1), s1, way)
        for s2 in range(second // spread):
            sums[:, s1, s2] = _ring(lines[:, :, s2], s2 * spread, way)
    return sums.reshape(count, words)


def _ring(values: Words, start: int, way: int) -> Words:
    """Add the elements of ``values`` along the first axis, round the ring from ``start`` on.

    After element ``start``, indices ascend if ``way`` is 1, and descend if it is -1.
    """
    count = len(values)
    total = values[start]
    for step in range(1, count):
        total = evaluate(VectorOp.FADD, values[(start + way * step) % count], total)
    return total
