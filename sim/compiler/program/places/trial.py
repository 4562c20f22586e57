"""Trial allocation: finds out which values must be evicted, on a copy of vector memory's map."""

from collections.abc import Callable, Iterable, Mapping, Set

from sim.compiler.graph.ir import Value
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.places.memory import VectorMemory
from sim.compiler.program.places.vectors import take
from sim.compiler.program.tilings import Tilings

__all__ = ["Trial"]


class Trial:
    """A copy of the map of vector memory, on which values are allocated as in `Places`.

    Parameters
    ----------
    memory : VectorMemory
        The map. Buffers that a transfer will free count as free.
    resident : mapping of Value to VmemBuffer
        Values in vector memory.
    pinned : set of Value
        Values in vector memory that are never evicted.
    tilings : dict of Value to Tiling
        Tilings of all values.
    is_home : callable
        Returns whether a given value has rows of HBM.

    Attributes
    ----------
    distance : callable
        Maps a value to the index of the next operation that uses it (`Upcoming.distance`).
    locked : set of Value
        Values that are not evicted, in addition to ``pinned``; the caller may change the set.
    evicted : list of Value
        Values that were evicted, in order.
    stuck : bool
        Whether an allocation failed because no value could be evicted.
    """

    def __init__(self, memory: VectorMemory, resident: Mapping[Value, VmemBuffer],
                 pinned: Set[Value], tilings: Tilings, is_home: Callable[[Value], bool]) -> None:
        self._free = memory.free.copy()
        for _, buffer in memory.leaving:
            self._free.give(buffer.address, buffer.vectors)
        self._resident = dict(resident)
        self._pinned = pinned
        self._tilings = tilings
        self._is_home = is_home
        self.distance: Callable[[Value], int] = lambda value: 0
        self.locked: set[Value] = set()
        self.evicted: list[Value] = []
        self.stuck = False

    def has(self, value: Value) -> bool:
        """Whether a value is in vector memory."""
        return value in self._resident

    def put(self, value: Value, first: int) -> None:
        """Put a value in free vectors, from address ``first`` on."""
        buffer = self._resident[value] = VmemBuffer("", first, self._tilings[value].vectors)
        self._free.reserve(first, buffer.vectors)

    def make(self, value: Value, *, loaded: bool = False) -> None:
        """Allocate a value's vectors; ``loaded`` tells whether the value is loaded from HBM."""
        first = self._allocate(self._tilings[value].vectors, loaded=loaded)
        if first is not None:
            self._resident[value] = VmemBuffer("", first, self._tilings[value].vectors)

    def inherit(self, value: Value, result: Value) -> None:
        """Let ``result`` take over the vectors of ``value``."""
        self._resident[result] = self._resident.pop(value)

    def scratch(self, vectors: int) -> None:
        """Allocate vectors and free them again; values evicted for them stay evicted."""
        first = self._allocate(vectors)
        if first is not None:
            self._free.give(first, vectors)

    def release(self, buffers: Iterable[VmemBuffer]) -> None:
        """Free buffers that hold no values."""
        for buffer in buffers:
            self._free.give(buffer.address, buffer.vectors)

    def drop(self, values: Iterable[Value]) -> None:
        """Free the vectors of values, except values that are pinned or not in vector memory."""
        for value in values:
            if value not in self._pinned and value in self._resident:
                buffer = self._resident.pop(value)
                self._free.give(buffer.address, buffer.vectors)

    def _allocate(self, vectors: int, *, loaded: bool = False) -> int | None:
        """Allocate vectors and return the first address; None if it is impossible (`stuck`).

        While there is no room, evict the value whose next use is the farthest. ``loaded`` tells
        whether the vectors are for a value loaded from HBM.
        """
        while not self.stuck:
            first = take(self._free, vectors, self._resident, self.distance,
                         self._is_home if loaded else None)
            if first is not None:
                return first
            movable = [value for value in self._resident
                       if value not in self.locked and value not in self._pinned]
            if not movable:
                self.stuck = True
                break
            self.evicted.append(max(movable, key=self.distance))
            self.drop(self.evicted[-1:])
        return None
