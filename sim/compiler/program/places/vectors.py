"""Allocator of vector memory."""

from bisect import insort

__all__ = ["FreeVectors"]


class FreeVectors:
    """The free vectors of vector memory, as a list of consecutive runs.

    Parameters
    ----------
    vectors : int
        Size of vector memory, in vectors; initially all are free.
    """

    def __init__(self, vectors: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, vectors)]

    @property
    def free(self) -> int:
        """Total number of free vectors, in all runs."""
        return sum(end - first for first, end in self._runs)

    def smallest(self, vectors: int) -> tuple[int, int] | None:
        """Return the smallest run of at least ``vectors`` vectors as (first, end), or None."""
        fitting = [(end - first, first, end) for first, end in self._runs
                   if end - first >= vectors]
        return min(fitting)[1:] if fitting else None

    def take(self, vectors: int) -> int | None:
        """Allocate consecutive vectors at the start of the smallest run that is large enough.

        Return the first vector's address; None if no run is large enough.
        """
        run = self.smallest(vectors)
        if run is None:
            return None
        self.reserve(run[0], vectors)
        return run[0]

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
