"""Where values are while a program runs: in vector memory, in HBM, or both.

A value in vector memory can be *evicted*: copied to its home in HBM, if it is not there yet, and
its vectors freed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import Scalar, s
from sim.compiler.graph.ir import Value
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import SCRATCH, Rows, Vectors, scalar_words
from sim.compiler.program.places.memory import VectorMemory
from sim.compiler.program.tilings import Tilings

__all__ = ["Home", "Places", "Splat", "VectorMemoryError"]

Words = npt.NDArray[np.uint32]


class VectorMemoryError(MemoryError):
    """Vector memory has no room, even without the values that can be evicted."""


@dataclass(frozen=True)
class Splat:
    """The home of a constant whose words are all equal: it is written, not loaded."""

    word: int


Home: TypeAlias = Rows | Splat


class Places:
    """Places of values, and what moves them.

    Parameters
    ----------
    stream : Stream
        Takes the code of transfers.
    config : Config
        The chip.
    tilings : dict of Value to Tiling
        Tilings of all values.

    Attributes
    ----------
    memory : VectorMemory
        The buffers of values, and the transfers.
    """

    def __init__(self, stream: Stream, config: Config, tilings: Tilings) -> None:
        self.memory = VectorMemory(stream, config)
        self._config = config
        self._tilings = tilings
        self.homes: dict[Value, Home] = {}
        self._resident: dict[Value, VmemBuffer] = {}
        self._locked: set[Value] = set()
        # Values with a fixed place while a loop runs.
        self._pinned: set[Value] = set()
        # The last transfers that read buffers, and that write homes.
        self._reading: dict[VmemBuffer, int] = {}
        self._stored: dict[Value, int] = {}
        self.scratch_rows = 0
        # Values whose homes hold nothing else.
        self.owned: set[Value] = set()
        # Where values are to be made that do not exist yet.
        self.assigned: dict[Value, VmemBuffer] = {}
        # For the next value of each that a loop carries in vector memory, the one before.
        self.before: dict[Value, Value] = {}
        self.distance: Callable[[Value], int] = lambda value: 0

    # ---- vector memory

    def allocate(self, name: str, vectors: int, *, loaded: bool = False) -> VmemBuffer:
        """Allocate vectors, evicting values that are used last.

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
            fixed = self._locked | self._pinned
            movable = [value for value in self._resident if value not in fixed]
            if not movable:
                raise VectorMemoryError(
                    f"vector memory must have {vectors} free vectors in one piece, of "
                    f"{self._config.vmem_vectors}")
            self.evict(max(movable, key=self.distance))

    def _take(self, vectors: int, *, loaded: bool) -> int | None:
        """Allocate vectors next to what stays longer.

        Then a run of free vectors grows when its other neighbour is freed. What is read from HBM
        lies above what is computed, as far as possible.
        """
        run = self.memory.free.smallest(vectors)
        if run is None:
            return None
        below = above = float("inf")
        for value, buffer in self._resident.items():
            if loaded and not isinstance(self.homes.get(value), Rows):
                continue
            if buffer.address + buffer.vectors == run[0]:
                below = self.distance(value)
            elif buffer.address == run[1]:
                above = self.distance(value)
        low = below > above if loaded else below >= above
        if not loaded and 4 * vectors > self._config.vmem_vectors:
            # A large value leaves the most room at an end of the memory.
            low = run[0] <= self._config.vmem_vectors - run[1]
        first = run[0] if low else run[1] - vectors
        self.memory.free.reserve(first, vectors)
        return first

    def lock(self, values: Iterable[Value]) -> None:
        """Keep these values, and no others, from being evicted."""
        self._locked = set(values)

    def make(self, value: Value) -> VmemBuffer:
        """Allocate the vectors of a value that is about to be computed.

        An `assigned` value is pinned there.
        """
        if value in self.assigned:
            self.pin(value, self.assigned[value])
            return self.assigned[value]
        buffer = self._resident[value] = self.allocate("value", self._tilings[value].vectors)
        return buffer

    def unmake(self, value: Value) -> None:
        """Undo `make`, for a value that has not been computed."""
        if value in self.assigned:
            self._pinned.discard(value)
            self._resident.pop(value, None)
        else:
            self.drop(value)

    def load(self, value: Value) -> VmemBuffer:
        """Bring a value to vector memory, if it is not there; `settle` waits for it."""
        buffer = self._resident.get(value)
        if buffer is None:
            buffer = self._resident[value] = self.allocate(
                "value", self._tilings[value].vectors, loaded=True)
            self._fetch(value, buffer)
        return buffer

    def absent(self, value: Value) -> Rows | None:
        """Where a value lies in HBM, if it does in plain rows and not in vector memory."""
        home = self.homes.get(value)
        if value in self._resident or not isinstance(home, Rows) or not home.is_plain:
            return None
        self.memory.wait(self._stored.get(value, 0))
        return home

    def reserve_absent(self, value: Value) -> VmemBuffer:
        """Allocate the vectors of a value that is about to be loaded."""
        buffer = self._resident[value] = self.allocate(
            "value", self._tilings[value].vectors, loaded=True)
        return buffer

    def load_absent(self, value: Value) -> None:
        """Load a value whose vectors `reserve_absent` has allocated."""
        self._fetch(value, self._resident[value])

    def prefetch(self, value: Value) -> bool:
        """Start to load a value if that is possible; whether there was room."""
        home = self.homes.get(value)
        if (value in self._resident or not isinstance(home, Rows)
                or self._stored.get(value, 0) > self.memory.completed):
            return True
        vectors = self._tilings[value].vectors
        first = self._take(vectors, loaded=True)
        if first is None:
            return False
        buffer = self.memory.buffer("value", first, vectors)
        self._resident[value] = buffer
        self._fetch(value, buffer)
        return True

    def _fetch(self, value: Value, buffer: VmemBuffer) -> VmemBuffer:
        home = self.homes[value]
        if isinstance(home, Splat):
            self.memory.fill(home.word, buffer)
        else:
            self.memory.wait(self._stored.get(value, 0))
            self.memory.load_rows(home, buffer)
        return buffer

    # ---- HBM

    def reserve(self, vectors: int) -> Rows:
        """Reserve the rows of a number of vectors in the scratch buffer."""
        first = self.scratch_rows
        self.scratch_rows += vectors * self._config.sublanes
        return Rows(SCRATCH, first)

    def save(self, value: Value) -> None:
        """Give a value a home, if it has none."""
        if value not in self.homes:
            home = self.reserve(self._tilings[value].vectors)
            self._stored[value] = self.copy_to(value, home)
            self.homes[value] = home

    def rows(self, value: Value) -> Rows:
        """Rows that hold a value; those of a splat are written."""
        self.save(value)
        home = self.homes[value]
        if isinstance(home, Splat):
            home = self.reserve(self._tilings[value].vectors)
            self.copy_to(value, home)
        return home

    def copy_to(self, value: Value, destination: Rows) -> int:
        """Start to copy a value to rows of HBM; return the transfer's number."""
        rows = self._tilings[value].vectors * self._config.sublanes
        home = self.homes.get(value)
        if isinstance(home, Rows) and value not in self._resident and not (
                home.levels and destination.levels):
            self.memory.wait(self._stored.get(value, 0))
            return self.memory.issue(home, destination, rows)
        if isinstance(home, Splat) and value not in self._resident:
            return self._copy_splat(home.word, destination, rows)
        buffer = self.load(value)
        # It may still arrive: then it must not be read yet.
        self.memory.settle([buffer])
        number = self.memory.issue(Vectors(buffer.address), destination, rows)
        self._reading[buffer] = number
        return number

    def _copy_splat(self, word: int, destination: Rows, rows: int) -> int:
        """Start to fill rows of HBM with a word, from as many vectors as there are."""
        sublanes = self._config.sublanes
        vectors = rows // sublanes
        while (buffer := self._allocate_some("splat", vectors)) is None:
            vectors = -(-vectors // 2)
        self.memory.fill(word, buffer)
        step, number = vectors * sublanes, 0
        if step >= rows:
            number = self.memory.issue(Vectors(buffer.address), destination, rows)
        else:
            for part in _runs(destination):
                size = destination.run or rows
                for first in range(0, size, step):
                    number = self.memory.issue(Vectors(buffer.address), part.moved(first),
                                         min(step, size - first))
        self.memory.give(buffer, number)
        return number

    def _allocate_some(self, name: str, vectors: int) -> VmemBuffer | None:
        """Allocate vectors; None if there is no room, but may be for fewer."""
        try:
            return self.allocate(name, vectors)
        except VectorMemoryError:
            if vectors == 1:
                raise
            return None

    def drop(self, value: Value) -> None:
        """Forget that a value is in vector memory, if it is; those that are pinned stay."""
        if value in self._pinned:
            return
        buffer = self._resident.pop(value, None)
        if buffer is not None:
            self.memory.release(buffer, self._reading.pop(buffer, 0))

    def load_block(self, value: Value, rows: Rows, block: Value) -> None:
        """Start to copy rows of a value's home to vector memory, as another value."""
        self.memory.wait(self._stored.get(value, 0))
        self.memory.load_rows(rows, self.make(block))

    def copy_block(self, value: Value, rows: Rows, block: Value) -> None:
        """Start to copy rows of a value's home to rows of HBM, as another value."""
        self.memory.wait(self._stored.get(value, 0))
        home = self.reserve(self._tilings[block].vectors)
        self._stored[block] = self.memory.issue(
            rows, home, self._tilings[block].vectors * self._config.sublanes)
        self.homes[block] = home

    def store_block(self, block: Value, rows: Rows, result: Value, home: Rows) -> None:
        """Start to copy a value to rows of a home, which becomes a result's own."""
        self._stored[result] = self.copy_to(block, rows)
        self.homes[result] = home
        self.owned.add(result)

    def copy_exactly(self, source: Rows, target: Rows, rows: int, result: Value,
                     home: Rows) -> None:
        """Start to copy rows of HBM to rows of a home, which becomes a result's own."""
        self._stored[result] = self.memory.issue(source, target, rows)
        self.homes[result] = home
        self.owned.add(result)

    def evict(self, value: Value) -> None:
        """Save a value and free its vectors."""
        self.save(value)
        self.drop(value)

    def evict_all(self, needed: Callable[[Value], bool] = lambda value: True) -> None:
        """Save all values in vector memory that are needed; wait, and free what is not pinned."""
        self.lock(())
        for value in list(self._resident):
            if value in self._pinned:
                continue
            if needed(value):
                self.evict(value)
            else:
                self.drop(value)
        self.memory.wait_all()

    # ---- fixed places

    @property
    def pinned(self) -> dict[Value, VmemBuffer]:
        """The values that stay where they are in vector memory."""
        return {value: self._resident[value] for value in self._pinned}

    def pin(self, value: Value, buffer: VmemBuffer) -> None:
        """Say that a value lies in a buffer, and stays there until `unpin`."""
        self._resident[value] = buffer
        self._pinned.add(value)

    def unpin(self, buffer: VmemBuffer) -> None:
        """Forget the value that lies in a buffer, without freeing its vectors."""
        [value] = [value for value in self._pinned if self._resident[value] == buffer]
        self._pinned.remove(value)
        del self._resident[value]

    def inherit(self, value: Value, result: Value) -> None:
        """Give the buffer of a value that is not used again to a result; wait until it is free."""
        buffer = self._resident.pop(value)
        self.memory.wait(self._reading.pop(buffer, 0))
        self._resident[result] = buffer
        if value in self._pinned:
            self._pinned.remove(value)
            self._pinned.add(result)

    def put(self, value: Value, buffer: VmemBuffer) -> None:
        """Say that a value lies in a buffer, which belongs to it from now on."""
        self._resident[value] = buffer

    def take(self, value: Value) -> VmemBuffer | None:
        """Take its buffer from a value, after all transfers; None if it has none of its own."""
        return None if value in self._pinned else self._resident.pop(value, None)

    def buffer(self, value: Value) -> VmemBuffer | None:
        """Where a value lies in vector memory, if it does."""
        return self._resident.get(value)

    def load_to(self, value: Value, buffer: VmemBuffer) -> None:
        """Copy a value that has a home to a buffer, without a change of its place."""
        self._fetch(value, buffer)

    def lift(self) -> dict[Value, VmemBuffer]:
        """Save all values and free all of vector memory; return what was pinned, and where."""
        pinned = self.pinned
        self._pinned.clear()
        self.evict_all()
        return pinned

    def restore(self, pinned: dict[Value, VmemBuffer]) -> None:
        """Save all values, and bring those that `lift` returned back to their places."""
        self.evict_all()
        for value, buffer in pinned.items():
            self.memory.free.reserve(buffer.address, buffer.vectors)
            self.pin(value, buffer)
            self._fetch(value, buffer)
        self.memory.wait_all()
        self.memory.forget_arrivals()

    # ---- scalars

    def read_scalar(self, value: Value, register: Scalar, window: int) -> None:
        """Write code that copies a value of one element to a scalar register."""
        home = self.homes.get(value)
        if isinstance(home, Splat):
            self.memory.stream.bundle((Slot.S0, "add", (register, s[0], home.word)))
        else:
            self.copy_scalars([value], window)
            self.memory.stream.bundle((Slot.S0, "load", (register, s[0], window)))

    def copy_scalars(self, values: Sequence[Value], window: int) -> None:
        """Write code that copies the first row of values to rows of scalar memory, and waits.

        A transfer from vector memory copies a whole vector. The rows behind the first one belong to
        the next values, or to the kernel (`ScalarMemory.reads`).
        """
        last = 0
        for row, value in enumerate(values):
            place = scalar_words(window + row * self._config.lanes)
            buffer = self._resident.get(value)
            if buffer is None or not self.memory.has_arrived(buffer):
                home = self.homes[value]
                assert isinstance(home, Rows), "constants are not read"
                self.memory.wait(self._stored.get(value, 0))
                last = self.memory.issue(home, place, 1)
            else:
                self.memory.settle([buffer])  # it may be part of an exchange
                last = self.memory.issue(Vectors(buffer.address), place, self._config.sublanes)
        self.memory.wait(last)


def _runs(rows: Rows) -> list[Rows]:
    """Each run by itself."""
    if not rows.levels:
        return [replace(rows, run=0)]
    count, stride = rows.levels[0]
    return [part for number in range(count) for part in _runs(rows.inner.moved(number * stride))]
