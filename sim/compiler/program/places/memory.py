"""Vector memory while a program runs: its buffers, and the transfers from and to them.

Transfers run while kernels do; all of them signal one semaphore, and since they complete in order,
waiting for one is waiting for all before it.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import s, sem, v
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.code.reserved import EXCHANGED, FREE, MOVED
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Rows, Vectors, send, transfer
from sim.compiler.program.places.vectors import FreeVectors

__all__ = ["VectorMemory"]


class VectorMemory:
    """Buffers in vector memory; writes the code of transfers, and of waits for them.

    Parameters
    ----------
    stream : Stream
        Takes the code.
    config : Config
        The chip.

    Attributes
    ----------
    free : FreeVectors
        The vectors that are in no buffer.
    completed : int
        Transfers are numbered from 1; those up to this one have been waited for.
    leaving : list of (int, VmemBuffer)
        Buffers that are free after a transfer, with its number, in order.
    exchanged : list of VmemBuffer
        Buffers that are free after all exchanges.
    moved_rows : int
        Rows that all transfers move.
    """

    def __init__(self, stream: Stream, config: Config) -> None:
        self.stream = stream
        self._config = config
        self.free = FreeVectors(config.vmem_vectors)
        self._issued = self.completed = 0
        self._arriving: dict[VmemBuffer, int] = {}
        self.leaving: list[tuple[int, VmemBuffer]] = []
        # Buffers of exchanges that have not been waited for.
        self._exchanging: set[VmemBuffer] = set()
        self.exchanged: list[VmemBuffer] = []
        self._exchanges = 0
        self._numbers = count()
        self._levels = ScalarMemory(config).levels
        self.moved_rows = 0

    def buffer(self, name: str, first: int, vectors: int) -> VmemBuffer:
        """Name vectors that have been allocated."""
        return VmemBuffer(f"{name}{next(self._numbers)}", first, vectors)

    # ---- transfers

    def issue(self, source: Any, destination: Any, rows: int) -> int:
        """Start to copy rows; return the number of the last transfer."""
        self._issued += self.start_transfer(source, destination, rows, MOVED)
        return self._issued

    def start_transfer(self, source: Any, destination: Any, rows: int, semaphore: int) -> int:
        """Start transfers that copy rows; return how often they signal the semaphore."""
        self.moved_rows += rows
        return self._start(source, destination, rows, semaphore, 0)

    def _start(self, source: Any, destination: Any, rows: int, semaphore: int, depth: int) -> int:
        """Start the transfers of a level of runs within others: a loop, but for the innermost."""
        levels = max((side.levels for side in (source, destination) if isinstance(side, Rows)),
                     key=len, default=())
        if len(levels) < 2:
            self.stream.start(transfer(self._config, source, destination, rows, semaphore))
            return 1
        stream, again = self.stream, self.stream.label("runs")
        counter, count = self._levels[depth], levels[0][0]
        rows //= count

        def inner(side: Any) -> Any:
            if not isinstance(side, Rows):
                return replace(side, terms=(*side.terms, (counter, rows // self._config.sublanes)))
            if not side.levels:
                return side.moved(0, (counter, rows))
            assert side.levels[0][0] == count, (source, destination)
            return side.inner.moved(0, (counter, side.levels[0][1]))

        stream.bundle((Slot.S0, "store", (s[0], s[0], counter)))
        stream.bind(again)
        started = self._start(inner(source), inner(destination), rows, semaphore, depth + 1)
        stream.bundle((Slot.S0, "load", (s[1], s[0], counter)))
        stream.bundle((Slot.S0, "add", (s[1], s[1], 1)))
        stream.bundle((Slot.S0, "store", (s[1], s[0], counter)))
        stream.branch("blt", 1, count, again)
        return count * started

    def wait(self, number: int) -> None:
        """Write code that waits for a transfer and all before it."""
        if number > self.completed:
            self.stream.wait(MOVED, number - self.completed)
            self.completed = number
            for last, buffer in self.leaving:
                if last <= number:
                    self.free.give(buffer.address, buffer.vectors)
            self.leaving = [entry for entry in self.leaving if entry[0] > number]

    def wait_all(self) -> None:
        """Write code that waits for all transfers and exchanges."""
        self.wait(self._issued)
        self.wait_exchanges()

    def exchange(self, source: VmemBuffer, target: VmemBuffer, number: int) -> None:
        """Start to send a buffer to the other core, and to receive another one.

        Each core says that the vectors for what it receives are free, and then waits for that of
        the other one. So nothing is written that is in use, and no core waits for what comes later.

        Parameters
        ----------
        source, target : VmemBuffer
            What is sent, and where what is received goes.
        number : int
            Number of the exchange.
        """
        self.settle([source])
        stream = self.stream
        stream.bundle((Slot.MISC, "signal_other", (sem[FREE], 1)))
        stream.wait(FREE, 1)
        stream.start(send(self._config, Vectors(source.address), source.vectors, EXCHANGED, number))
        self._exchanging |= {source, target}
        self._exchanges += 1

    def wait_exchanges(self) -> None:
        """Write code that waits for all exchanges: two transfers each."""
        if self._exchanges:
            self.stream.wait(EXCHANGED, 2 * self._exchanges)
            for buffer in self.exchanged:
                self.free.give(buffer.address, buffer.vectors)
            self._exchanges, self.exchanged = 0, []
            self._exchanging.clear()

    def settle(self, buffers: Iterable[VmemBuffer]) -> None:
        """Write code that waits until these buffers have arrived."""
        buffers = list(buffers)
        if not self._exchanging.isdisjoint(buffers):
            self.wait_exchanges()
        self.wait(max((self._arriving.pop(buffer, 0) for buffer in buffers), default=0))

    # ---- buffers

    def load_rows(self, source: Rows, buffer: VmemBuffer) -> None:
        """Start to copy rows of HBM to a buffer."""
        rows = buffer.vectors * self._config.sublanes
        self._arriving[buffer] = self.issue(source, Vectors(buffer.address), rows)

    def fill(self, word: int, buffer: VmemBuffer) -> None:
        """Write code that stores a word everywhere in a buffer."""
        stream, again = self.stream, self.stream.label("fill")
        stream.bundle((Slot.V0, "move", (v[0], word)),
                      (Slot.S0, "add", (s[1], s[0], buffer.address)),
                      (Slot.S1, "add", (s[2], s[0], buffer.vectors)))
        stream.bind(again)
        stream.bundle((Slot.STORE, "store", (v[0], s[1], 0)),
                      (Slot.S0, "add", (s[1], s[1], 1)), (Slot.S1, "loop", (s[2], again)))

    def release(self, buffer: VmemBuffer, after: int = 0) -> None:
        """Free vectors; they are reused when they have arrived, and a transfer is complete."""
        self.give(buffer, max(after, self._arriving.pop(buffer, 0)))

    def give(self, buffer: VmemBuffer, after: int) -> None:
        """Free the vectors of a buffer that nothing fills, after a transfer."""
        if buffer in self._exchanging:
            self.wait(after)
            self.exchanged.append(buffer)
        elif after > self.completed:
            self.leaving.append((after, buffer))
            self.leaving.sort(key=lambda entry: entry[0])
        else:
            self.free.give(buffer.address, buffer.vectors)

    @property
    def free_vectors(self) -> int:
        """Vectors that are neither used nor about to be free."""
        return self.free.free

    def has_arrived(self, buffer: VmemBuffer) -> bool:
        """Whether what fills a buffer has been waited for."""
        return self._arriving.get(buffer, 0) <= self.completed

    def forget_arrivals(self) -> None:
        """Forget which transfers fill which buffers, once all are complete."""
        self._arriving.clear()
