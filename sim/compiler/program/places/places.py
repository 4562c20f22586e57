"""Tracks where each value is while a program runs: in vector memory, in HBM, or both.

The *home* of a value is the rows of HBM that hold it, or the word of a constant whose elements are
all equal. A value in vector memory can be *evicted*: copied to its home, if it is not there yet,
and its vectors freed. In this package, a *buffer* without an adjective is a `VmemBuffer`:
consecutive vectors of vector memory.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.ir import Value
from sim.compiler.machine.ir import RangeAt, VmemBuffer
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import SCRATCH, Rows, Vectors
from sim.compiler.program.places.memory import VectorMemory
from sim.compiler.program.places.trial import Trial
from sim.compiler.program.places.vectors import take
from sim.compiler.program.tilings import Tilings

__all__ = ["Home", "Places", "Splat", "VectorMemoryError"]

Words = npt.NDArray[np.uint32]


class VectorMemoryError(MemoryError):
    """Raised if vector memory has too little room, even after all possible evictions."""


@dataclass(frozen=True)
class Splat:
    """Home of a constant whose words are all equal.

    The core fills vectors with the word, instead of loading them from HBM.
    """

    word: int


Home: TypeAlias = Rows | Splat


class Places:
    """Tracks the places of values, and writes the code that moves them.

    Parameters
    ----------
    stream : Stream
        Receives the code of transfers.
    config : Config
        The chip.
    tilings : dict of Value to Tiling
        The tiling of each value.

    Attributes
    ----------
    memory : VectorMemory
        Buffers in vector memory, and transfers.
    homes : dict of Value to Home
        The home of each value that has one.
    scratch_rows : int
        Number of rows reserved in the scratch buffer.
    owned : set of Value
        Values whose home may be overwritten after their last use.
    assigned : dict of Value to VmemBuffer
        Buffers in which values that do not exist yet must be computed.
    room : dict of Value to int
        For values that `extend` will extend: the number of vectors of the longer buffer.
    before : dict of Value to Value
        For values that a loop carries in vector memory, maps the next value to the current one.
    distance : callable
        Maps a value to the index of the next operation that uses it (`Upcoming.distance`).
    """

    def __init__(self, stream: Stream, config: Config, tilings: Tilings) -> None:
        self.memory = VectorMemory(stream, config)
        self._config = config
        self._tilings = tilings
        self.homes: dict[Value, Home] = {}
        self._resident: dict[Value, VmemBuffer] = {}
        self._locked: set[Value] = set()
        self._pinned: dict[Value, None] = {}  # In the order in which `restore` loads them.
        # Number of the last transfer that reads each buffer, and that writes each value's home.
        self._reading: dict[VmemBuffer, int] = {}
        self._stored: dict[Value, int] = {}
        self.scratch_rows = 0
        self.owned: set[Value] = set()
        self.assigned: dict[Value, VmemBuffer] = {}
        self.room: dict[Value, int] = {}
        self.before: dict[Value, Value] = {}
        self.distance: Callable[[Value], int] = lambda value: 0

    # ---- vector memory

    def allocate(self, name: str, vectors: int, *, loaded: bool = False) -> VmemBuffer:
        """Allocate consecutive vectors; if necessary, evict the values whose next use is latest.

        The buffer's name begins with ``name``. ``loaded`` says that the vectors will be loaded from
        HBM, not computed.

        Raises
        ------
        VectorMemoryError
            If there is no room.
        """
        while True:
            first = self._take(vectors, loaded=loaded)
            if first is not None:
                return self.memory.buffer(name, first, vectors)
            if self.memory.leaving:
                self.memory.wait(self.memory.leaving[0][0])
                continue
            if self.memory.exchanged:
                self.memory.wait_exchanges()
                continue
            fixed = self._locked | self._pinned.keys()
            movable = [value for value in self._resident if value not in fixed]
            if not movable:
                raise VectorMemoryError(
                    f"vector memory must have {vectors} consecutive free vectors; it has "
                    f"{self._config.vmem_vectors} vectors in all")
            self.evict(max(movable, key=self.distance))

    def _take(self, vectors: int, *, loaded: bool) -> int | None:
        """Allocate vectors in the smallest free run that is large enough; None if there is none.

        `sim.compiler.program.places.vectors.take` chooses at which end of the run the vectors lie;
        ``loaded`` tells whether they are for a value loaded from HBM.
        """
        return take(self.memory.free, vectors, self._resident, self.distance,
                    self.is_home if loaded else None)

    def is_home(self, value: Value) -> bool:
        """Return whether the home of a value is rows of HBM."""
        return isinstance(self.homes.get(value), Rows)

    def lock(self, values: Iterable[Value]) -> None:
        """Protect ``values``, and no others, from eviction until the next call."""
        self._locked = set(values)

    def make(self, value: Value) -> VmemBuffer:
        """Allocate the vectors of a value that is about to be computed.

        A value in `assigned` is pinned to its assigned buffer instead.
        """
        if value in self.assigned:
            self.pin(value, self.assigned[value])
            return self.assigned[value]
        vectors, room = self._tilings[value].vectors, self.room.get(value, 0)
        if vectors < room <= self.memory.free.largest:
            first = self.allocate("value", room).address
            self.memory.free.give(first + vectors, room - vectors)
            buffer = self.memory.buffer("value", first, vectors)
        else:
            buffer = self.allocate("value", vectors)
        self._resident[value] = buffer
        return buffer

    def unmake(self, value: Value) -> None:
        """Undo `make` for a value that has not been computed: free or unpin its vectors."""
        if value in self.assigned:
            self._pinned.pop(value, None)
            self._resident.pop(value, None)
        else:
            self.drop(value)

    def load(self, value: Value) -> VmemBuffer:
        """Return a value's buffer; start to load the value if it is not in vector memory.

        `VectorMemory.settle` waits for the load.
        """
        buffer = self._resident.get(value)
        if buffer is None:
            buffer = self._resident[value] = self.allocate(
                "value", self._tilings[value].vectors, loaded=True)
            self._fetch(value, buffer)
        return buffer

    def absent(self, value: Value) -> Rows | None:
        """Return the plain HBM rows (`Rows.is_plain`) of a value that is not in vector memory.

        Return None if it is in vector memory, or has no such rows. Otherwise, write code that waits
        until these rows are written.
        """
        home = self.homes.get(value)
        if value in self._resident or not isinstance(home, Rows) or not home.is_plain:
            return None
        self.wait_stored(value)
        return home

    def reserve_absent(self, value: Value) -> VmemBuffer:
        """Allocate the vectors of a value that is about to be loaded."""
        buffer = self._resident[value] = self.allocate(
            "value", self._tilings[value].vectors, loaded=True)
        return buffer

    def load_absent(self, value: Value) -> None:
        """Start to load a value whose vectors `reserve_absent` has allocated."""
        self._fetch(value, self._resident[value])

    def next_address(self, vectors: int) -> int:
        """Return the address at which `allocate` would place vectors that are to be loaded.

        Enough consecutive vectors must be free.
        """
        first = take(self.memory.free.copy(), vectors, self._resident, self.distance, self.is_home)
        assert first is not None
        return first

    def has_arrived(self, value: Value) -> bool:
        """Return whether a value is in vector memory, and no transfer still fills it."""
        buffer = self._resident.get(value)
        return buffer is not None and self.memory.has_arrived(buffer)

    def can_prefetch(self, value: Value) -> bool:
        """Return whether a value is complete in HBM and not in vector memory."""
        return (value not in self._resident and self.is_home(value)
                and self._stored.get(value, 0) <= self.memory.completed)

    def prefetch(self, value: Value, first: int) -> None:
        """Start to load a value into the vectors from address ``first`` on, which are free."""
        vectors = self._tilings[value].vectors
        self.memory.free.reserve(first, vectors)
        buffer = self._resident[value] = self.memory.buffer("value", first, vectors)
        self._fetch(value, buffer)

    def trial(self) -> Trial:
        """Return a copy of the map of vector memory, on which allocations can be tried."""
        return Trial(self.memory, self._resident, self._pinned.keys(), self._tilings, self.is_home)

    def _fetch(self, value: Value, buffer: VmemBuffer) -> VmemBuffer:
        home = self.homes[value]
        if isinstance(home, Splat):
            self.memory.fill(home.word, buffer)
        else:
            self.wait_stored(value)
            self.memory.load_rows(home, buffer)
        return buffer

    # ---- HBM

    def reserve(self, vectors: int) -> Rows:
        """Reserve rows for ``vectors`` vectors in the program's scratch buffer in HBM."""
        first = self.scratch_rows
        self.scratch_rows += vectors * self._config.sublanes
        return Rows(SCRATCH, first)

    def save(self, value: Value) -> None:
        """Start to copy a value to a new home in the scratch buffer in HBM, if it has no home."""
        if value not in self.homes:
            home = self.reserve(self._tilings[value].vectors)
            self._stored[value] = self.copy_to(value, home)
            self.homes[value] = home

    def rows(self, value: Value) -> Rows:
        """Return rows of HBM that hold a value; for a `Splat`, fill new rows with its word."""
        self.save(value)
        home = self.homes[value]
        if isinstance(home, Splat):
            home = self.reserve(self._tilings[value].vectors)
            self.copy_to(value, home)
        return home

    def wait_stored(self, value: Value) -> None:
        """Write code that waits until a value's home holds it."""
        self.memory.wait(self._stored.get(value, 0))

    def copy_to(self, value: Value, destination: Rows, part: range | RangeAt | None = None) -> int:
        """Start to copy a value to ``destination``, which has rows for all vectors of the value.

        If ``part`` is given, only these vectors are copied; their rows must be consecutive. Return
        the number of the last transfer.
        """
        home, vectors = self.homes.get(value), part or range(self._tilings[value].vectors)
        rows = len(vectors) * self._config.sublanes
        if isinstance(home, Rows) and value not in self._resident and part is None and not (
                home.levels and destination.levels):
            self.wait_stored(value)
            return self.memory.issue(home, destination, rows)
        if isinstance(home, Splat) and value not in self._resident and part is None:
            return _copy_splat(self, home.word, destination, rows, self._config.sublanes)
        buffer = self.load(value)
        # The buffer must not be read while a transfer still fills it.
        self.memory.settle([buffer])
        number = self.memory.issue(*_sides(
            buffer, destination, vectors, self._config.sublanes), rows)
        self._reading[buffer] = number
        return number

    def drop(self, value: Value) -> None:
        """Free a value's vectors without saving it; a pinned value keeps them."""
        if value in self._pinned:
            return
        buffer = self._resident.pop(value, None)
        if buffer is not None:
            self.memory.release(buffer, self._reading.pop(buffer, 0))

    def load_block(self, value: Value, rows: Rows, block: Value) -> None:
        """Allocate the vectors of ``block``, and start to load them.

        ``rows``, from which they are loaded, are a part of the home of ``value``.
        """
        self.wait_stored(value)
        self.memory.load_rows(rows, self.make(block))

    def copy_block(self, value: Value, rows: Rows, block: Value) -> None:
        """Start to copy ``rows``, a part of the home of ``value``, to a new home of ``block``."""
        self.wait_stored(value)
        home = self.reserve(self._tilings[block].vectors)
        self._stored[block] = self.memory.issue(
            rows, home, self._tilings[block].vectors * self._config.sublanes)
        self.homes[block] = home

    def store_block(self, block: Value, rows: Rows, result: Value, home: Rows) -> None:
        """Start to copy ``block`` to ``rows``, a part of ``home``, the new home of ``result``."""
        self._stored[result] = self.copy_to(block, rows)
        self.homes[result] = home
        self.owned.add(result)

    def copy_exactly(self, source: Rows, target: Rows, rows: int, result: Value,
                     home: Rows) -> None:
        """Start to copy ``rows`` rows from ``source`` to ``target``, a part of ``home``.

        ``home`` becomes the home of ``result``.
        """
        self._stored[result] = self.memory.issue(source, target, rows)
        self.homes[result] = home
        self.owned.add(result)

    def evict(self, value: Value) -> None:
        """Copy a value to its home, if it is not there, and free its vectors."""
        self.save(value)
        self.drop(value)

    def evict_all(self, needed: Callable[[Value], bool] = lambda value: True) -> None:
        """Free the vectors of all values that are not pinned, and wait for all transfers.

        Values for which ``needed`` is true are copied to their homes first.
        """
        self.lock(())
        for value in list(self._resident):
            if value in self._pinned:
                continue
            if needed(value):
                self.evict(value)
            else:
                self.drop(value)
        self.memory.wait_all()

    # ---- pinned values

    @property
    def pinned(self) -> dict[Value, VmemBuffer]:
        """Values that must stay in their buffers, with these buffers."""
        return {value: self._resident[value] for value in self._pinned}

    def pin(self, value: Value, buffer: VmemBuffer) -> None:
        """Record that a value is in a buffer, where it stays until `unpin`."""
        self._resident[value] = buffer
        self._pinned[value] = None

    def unpin(self, buffer: VmemBuffer) -> None:
        """Forget the value that is pinned to a buffer; the buffer stays allocated."""
        [value] = [value for value in self._pinned if self._resident[value] == buffer]
        del self._pinned[value]
        del self._resident[value]

    def inherit(self, value: Value, result: Value) -> None:
        """Give the buffer of a value that is not used again to a result.

        The code first waits for transfers that still read the buffer.
        """
        buffer = self._resident.pop(value)
        self.memory.wait(self._reading.pop(buffer, 0))
        self._resident[result] = buffer
        if value in self._pinned:
            del self._pinned[value]
            self._pinned[result] = None

    def rename(self, value: Value, result: Value) -> bool:
        """Give a value's buffer to a result with equal vectors; the value must not be used again.

        Return False, and change nothing, if the value is pinned or not in vector memory, or the
        result has an assigned buffer.
        """
        if value not in self._resident or value in self._pinned or result in self.assigned:
            return False
        self._resident[result] = self._resident.pop(value)
        return True

    def put(self, value: Value, buffer: VmemBuffer) -> None:
        """Record that a value is in a buffer, which is freed when the value is dropped."""
        self._resident[value] = buffer

    def take(self, value: Value) -> VmemBuffer | None:
        """Forget that a value is in its buffer; return the buffer, which stays allocated.

        None if the value is pinned or not in vector memory. All transfers must be complete.
        """
        return None if value in self._pinned else self._resident.pop(value, None)

    def extend(self, value: Value, vectors: int) -> VmemBuffer | None:
        """Forget a value; return a buffer that begins with its vectors, ``vectors`` in all.

        Return None, and change nothing, if the vectors behind it are not free, or if the value is
        pinned or not in vector memory. The code first waits for transfers that read the value.
        """
        buffer, free = self._resident.get(value), self.memory.free
        if buffer is None or value in self._pinned:
            return None
        first, rest = buffer.address + buffer.vectors, vectors - buffer.vectors
        if not any(start <= first and first + rest <= end for start, end in free.fitting(rest)):
            return None
        free.reserve(first, rest)
        del self._resident[value]
        self.memory.wait(self._reading.pop(buffer, 0))
        return self.memory.buffer("value", buffer.address, vectors)

    def buffer(self, value: Value) -> VmemBuffer | None:
        """Return the buffer of a value; None if the value is not in vector memory."""
        return self._resident.get(value)

    def load_to(self, value: Value, buffer: VmemBuffer) -> None:
        """Start to copy a value from its home to a buffer; its recorded buffer does not change."""
        self._fetch(value, buffer)

    def lift(self) -> dict[Value, VmemBuffer]:
        """Save all values and free all of vector memory; return the pinned values' buffers."""
        pinned = self.pinned
        self._pinned.clear()
        self.evict_all()
        return pinned

    def restore(self, pinned: dict[Value, VmemBuffer]) -> None:
        """Save all values; reload and pin those in ``pinned``, which `lift` returned."""
        self.evict_all()
        for value, buffer in pinned.items():
            self.memory.free.reserve(buffer.address, buffer.vectors)
            self.pin(value, buffer)
            self._fetch(value, buffer)
        self.memory.wait_all()
        self.memory.forget_arrivals()


def _sides(buffer: VmemBuffer, destination: Rows, vectors: range | RangeAt, sublanes: int
           ) -> tuple[Vectors, Rows]:
    """Return the sides of a transfer that copies some vectors of a buffer to their rows of HBM.

    ``destination`` has rows for all vectors of the buffer. Vectors have ``sublanes`` rows.
    """
    if isinstance(vectors, RangeAt):
        return (Vectors(buffer.address, ((vectors.first, 1),), vectors.fewer),
                destination.moved(0, (vectors.first, sublanes)))
    return (Vectors(buffer.address + vectors.start),
            destination.moved(vectors.start * sublanes))


def _copy_splat(places: Places, word: int, destination: Rows, rows: int, sublanes: int) -> int:
    """Start to fill ``destination``, which has ``rows`` rows of HBM, with ``word``.

    Return the number of the last transfer. The source is a buffer, as large as can be allocated,
    whose elements are all ``word``. Vectors have ``sublanes`` rows.
    """
    vectors = rows // sublanes
    while (buffer := _allocate_some(places, "splat", vectors)) is None:
        vectors = -(-vectors // 2)
    places.memory.fill(word, buffer)
    number = 0
    for part, count in _pieces(destination, rows, vectors * sublanes):
        number = places.memory.issue(Vectors(buffer.address), part, count)
    places.memory.give(buffer, number)
    return number


def _allocate_some(places: Places, name: str, vectors: int) -> VmemBuffer | None:
    """Allocate as `Places.allocate` does.

    If there is no room, return None; for a single vector, raise the error.
    """
    try:
        return places.allocate(name, vectors)
    except VectorMemoryError:
        if vectors == 1:
            raise
        return None


def _pieces(rows: Rows, count: int, most: int) -> Iterator[tuple[Rows, int]]:
    """Divide ``count`` rows into pieces of at most ``most`` rows; yield each, and its row count.

    If there are several pieces, the rows of each are consecutive.
    """
    if most >= count:
        yield rows, count
        return
    size = rows.run or count
    for part in _runs(rows):
        for first in range(0, size, most):
            yield part.moved(first), min(most, size - first)


def _runs(rows: Rows) -> list[Rows]:
    """Return each run of consecutive rows as `Rows` of its own."""
    if not rows.levels:
        return [replace(rows, run=0)]
    count, stride = rows.levels[0]
    return [part for number in range(count) for part in _runs(rows.inner.moved(number * stride))]
