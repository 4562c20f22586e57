"""Chooses where code is split into segments.

A cut inside a loop means that both segments are loaded in each iteration. So a cut is placed where
it separates the fewest branches from their targets; if several places are equally good, at the last
one within reach.
"""

import numpy as np
import numpy.typing as npt

from sim.compiler.program.code.stream import Linear

_NEVER = 1 << 30
__all__ = ["crossings", "cuts"]

Integers = npt.NDArray[np.int64]


def crossings(linear: Linear) -> Integers:
    """For each bundle, count the branches that a cut before it would separate from their targets.

    Returns
    -------
    array of int64, shape (bundles + 1,)
        A forward branch to the bundle itself does not count: without the branch, execution also
        runs on to this bundle, and so leaves the segment. Where a cut is not allowed, inside
        `Linear.together`, the count is ``2**30``.
    """
    length = len(linear.words)
    steps = np.zeros(length + 2, np.int64)
    source, target = linear.branches[:, 0], linear.branches[:, 2]
    # A cut at `at` separates source and target if first <= at < end.
    first, end = np.minimum(source, target) + 1, np.maximum(source, target)
    end = end + (target <= source)
    np.add.at(steps, first, 1)
    np.add.at(steps, np.maximum(end, first), -1)
    found = np.cumsum(steps)[:length + 1]
    for start, stop in linear.together:
        found[start + 1:stop] = _NEVER
    return found


_SHORT = 4
"""In `Linear.fine`, a segment has at most ``1 / _SHORT`` of the preferred maximum of bundles."""


def cuts(linear: Linear, soft: int, hard: int, descriptors: int) -> list[int]:
    """Choose where to cut; return the index of the first bundle of each segment.

    Parameters
    ----------
    linear : Linear
        The code.
    soft : int
        Preferred maximum of bundles in a segment: instruction memory then has room for the next
        segment as well.
    hard : int
        Maximum of bundles in a segment.
    descriptors : int
        Maximum of different descriptors that a segment may use.

    Raises
    ------
    MemoryError
        If a bundle alone needs more than ``descriptors`` descriptors.
    """
    length = len(linear.words)
    cost = crossings(linear)
    reach = _reach(linear, descriptors)
    found, at = [0], 0
    while True:
        most = int(reach[at])
        if most == at < length:
            needed = len(np.unique(linear.transfers[linear.transfers[:, 0] == at, 2]))
            raise MemoryError(f"a bundle must use at most {descriptors} descriptors, not {needed}")
        near, far = min(_near(linear, at, soft), most), min(at + hard, most)
        if near == length or (at == 0 and far == length):
            return found
        window = cost[at + 1:near + 1]
        least = window.min()
        beyond = np.flatnonzero(cost[near + 1:far + 1] < least)
        if beyond.size:
            at = near + 1 + int(beyond[0])
        else:
            at += 1 + int(np.flatnonzero(window == least)[-1])
        if at == length:
            return found
        found.append(at)


def _near(linear: Linear, first: int, soft: int) -> int:
    """Return where a segment that begins at bundle ``first`` should end at the latest."""
    short, end = max(soft // _SHORT, 1), first + soft
    for start, stop in linear.fine:
        if stop > first:
            end = min(end, max(first, start) + short)
    for begin in linear.begins:
        # The segment before is not too short, because the next one is loaded while it runs.
        if first < begin < end + short:
            end = begin
    for begin, stop in linear.gaps:
        if first < begin and stop < end + short and end < len(linear.words):
            end = stop
    return end


def _reach(linear: Linear, descriptors: int) -> Integers:
    """Return, for each bundle, the furthest end of a segment that begins there.

    A segment up to that end, which is exclusive, uses at most ``descriptors`` descriptors.
    """
    length = len(linear.words)
    order = np.argsort(linear.transfers[:, 0], kind="stable")
    bundles, numbers = linear.transfers[order, 0], linear.transfers[order, 2]
    reach = np.full(length + 1, length, np.int64)
    # Two pointers: `end` is the first transfer that a segment from transfer `start` cannot include.
    counts: dict[int, int] = {}
    end = 0
    for start in range(len(bundles)):
        while end < len(bundles) and (int(numbers[end]) in counts or len(counts) < descriptors):
            counts[int(numbers[end])] = counts.get(int(numbers[end]), 0) + 1
            end += 1
        if end < len(bundles):
            previous = int(bundles[start - 1]) if start else -1
            reach[previous + 1:int(bundles[start]) + 1] = bundles[end]
        number = int(numbers[start])
        counts[number] -= 1
        if not counts[number]:
            del counts[number]
    return reach
