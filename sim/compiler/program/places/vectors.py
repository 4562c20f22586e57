"""Allocation of vector memory."""

from bisect import insort

__all__ = ["FreeVectors"]


class FreeVectors:
    """The free vectors of vector memory, as runs.

    Parameters
    ----------
    vectors : int
        Size of the memory.
    """

    def __init__(self, vectors: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, vectors)]

    @property
    def free(self) -> int:
        """Free vectors, in however many runs."""
        return sum(end - first for first, end in self._runs)

    def take(self, vectors: int, *, high: bool = False) -> int | None:
        """Allocate consecutive vectors from the smallest run that holds them; None if none does.

        With ``high``, take the highest vectors: what has a copy in HBM, and can be read again,
        is kept apart from what has none.
        """
        fitting = [(end - first, first, end) for first, end in self._runs
                   if end - first >= vectors]
        if not fitting:
            return None
        _, first, end = max(fitting, key=lambda run: run[1]) if high else min(fitting)
        self._runs.remove((first, end))
        if end - first > vectors:
            insort(self._runs, (first, end - vectors) if high else (first + vectors, end))
        return end - vectors if high else first

    def reserve(self, first: int, vectors: int) -> None:
        """Allocate these vectors, which are free."""
        [(start, end)] = [run for run in self._runs
                          if run[0] <= first and first + vectors <= run[1]]
        self._runs.remove((start, end))
        for run in ((start, first), (first + vectors, end)):
            if run[0] < run[1]:
                insort(self._runs, run)

    def give(self, first: int, vectors: int) -> None:
        """Free vectors."""
        insort(self._runs, (first, first + vectors))
        merged: list[tuple[int, int]] = []
        for run in self._runs:
            if merged and merged[-1][1] == run[0]:
                merged[-1] = (merged[-1][0], run[1])
            else:
                assert not merged or merged[-1][1] < run[0], "vectors must not be freed twice"
                merged.append(run)
        self._runs = merged
