"""Allocator of vector memory."""

from bisect import insort
from collections.abc import Callable, Mapping

from sim.compiler.graph.ir import Value
from sim.compiler.machine.ir import VmemBuffer

__all__ = ["FreeVectors", "take"]


class FreeVectors:
    """The free vectors of vector memory, as a list of consecutive runs.

    Parameters
    ----------
    vectors : int
        Size of vector memory, in vectors; initially all are free.

    Attributes
    ----------
    size : int
        Size of vector memory, in vectors.
    """

    def __init__(self, vectors: int) -> None:
        self.size = vectors
        self._runs: list[tuple[int, int]] = [(0, vectors)]

    def copy(self) -> "FreeVectors":
        """Return a copy that changes independently."""
        made = FreeVectors(self.size)
        made._runs = list(self._runs)
        return made

    @property
    def free(self) -> int:
        """Total number of free vectors, in all runs."""
        return sum(end - first for first, end in self._runs)

    def smallest(self, vectors: int) -> tuple[int, int] | None:
        """Return the smallest run of at least ``vectors`` vectors; None if there is none.

        A run is (first, end), without ``end``.
        """
        fitting = [(end - first, first, end) for first, end in self._runs
                   if end - first >= vectors]
        return min(fitting)[1:] if fitting else None

    @property
    def largest(self) -> int:
        """Number of vectors of the largest free run."""
        return max((end - first for first, end in self._runs), default=0)

    def fitting(self, vectors: int) -> list[tuple[int, int]]:
        """Return all runs of at least ``vectors`` vectors, the smallest first.

        A run is (first, end), without ``end``.
        """
        return sorted((run for run in self._runs if run[1] - run[0] >= vectors),
                      key=lambda run: (run[1] - run[0], run))

    def reserve(self, first: int, vectors: int) -> None:
        """Allocate ``vectors`` vectors from address ``first`` on; all of them must be free."""
        [(start, end)] = [run for run in self._runs
                          if run[0] <= first and first + vectors <= run[1]]
        self._runs.remove((start, end))
        for run in ((start, first), (first + vectors, end)):
            if run[0] < run[1]:
                insort(self._runs, run)

    def give(self, first: int, vectors: int) -> None:
        """Free ``vectors`` vectors from address ``first`` on."""
        insort(self._runs, (first, first + vectors))
        merged: list[tuple[int, int]] = []
        for run in self._runs:
            if merged and merged[-1][1] == run[0]:
                merged[-1] = (merged[-1][0], run[1])
            else:
                assert not merged or merged[-1][1] < run[0], "vectors must not be freed twice"
                merged.append(run)
        self._runs = merged


def take(free: FreeVectors, vectors: int, buffers: Mapping[Value, VmemBuffer],
         distance: Callable[[Value], int], is_home: Callable[[Value], bool] | None = None
         ) -> int | None:
    """Allocate vectors in the smallest free run that is large enough; None if there is none.

    The vectors take one end of the run: the end next to the buffer whose value is used later. The
    rest of the run then grows when the buffer at its other end is freed. If both values are used
    equally late, vectors to be loaded from HBM take the high end, and other vectors the low end.
    There is an exception: vectors that are not to be loaded, and fill more than a quarter of vector
    memory, always take the end of the run that is nearer to an end of vector memory.

    Parameters
    ----------
    free : FreeVectors
        The free vectors, from which the allocated ones are removed.
    vectors : int
        Number of vectors to allocate.
    buffers : mapping of Value to VmemBuffer
        Values in vector memory.
    distance : callable
        Maps a value to the index of the next operation that uses it (`Upcoming.distance`).
    is_home : callable, optional
        Returns whether a given value has rows of HBM; passed only for vectors that are to be
        loaded. The buffer of a value without such rows then counts as never freed.
    """
    run = free.smallest(vectors)
    if run is None:
        return None
    below = above = float("inf")
    for value, buffer in buffers.items():
        if is_home is not None and not is_home(value):
            continue
        if buffer.address + buffer.vectors == run[0]:
            below = distance(value)
        elif buffer.address == run[1]:
            above = distance(value)
    low = below > above if is_home is not None else below >= above
    if is_home is None and 4 * vectors > free.size:
        # A large value leaves the longest free run if it lies near an end of vector memory.
        low = run[0] <= free.size - run[1]
    first = run[0] if low else run[1] - vectors
    free.reserve(first, vectors)
    return first
