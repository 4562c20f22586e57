"""Where code is cut into segments.

A cut inside a loop costs a load of both parts in each iteration, so a cut goes where the fewest
branches cross it, and among such places as far as the segment reaches.
"""

import numpy as np
import numpy.typing as npt

from sim.compiler.program.code.stream import Linear

_NEVER = 1 << 30
__all__ = ["crossings", "cuts"]

Integers = npt.NDArray[np.int64]


def crossings(linear: Linear) -> Integers:
    """Number of branches that a cut before each bundle would separate from their targets.

    Returns
    -------
    array, shape (bundles + 1,)
        A forward branch to the bundle behind the cut does not count: it leaves the segment anyway.
        A cut where none may be counts as very many.
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


def cuts(linear: Linear, soft: int, hard: int, descriptors: int) -> list[int]:
    """First bundles of all segments.

    Parameters
    ----------
    linear : Linear
        The code.
    soft : int
        Bundles of a segment that leaves room for the next one.
    hard : int
        Most bundles of a segment.
    descriptors : int
        Most descriptors that a segment may use.
    """
    length = len(linear.words)
    cost = crossings(linear)
    reach = _reach(linear, descriptors)
    found, at = [0], 0
    while True:
        most = int(reach[at])
        near, far = min(at + soft, most), min(at + hard, most)
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


def _reach(linear: Linear, descriptors: int) -> Integers:
    """For each bundle, where a segment that begins there must end, to use few descriptors."""
    length = len(linear.words)
    order = np.argsort(linear.transfers[:, 0], kind="stable")
    bundles, numbers = linear.transfers[order, 0], linear.transfers[order, 2]
    reach = np.full(length + 1, length, np.int64)
    # With two pointers: `end` is the first transfer that a segment from `start` cannot include.
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
