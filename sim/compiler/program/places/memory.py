"""Vector memory while a program runs: buffers, and transfers from and to them.

Transfers run at the same time as kernels. All transfers signal one semaphore and complete in order,
so waiting for one transfer also waits for all earlier ones.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import s, sem, v
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.code.reserved import (
    EXCHANGED,
    EXCHANGED_ALONE,
    EXCHANGED_PARTS,
    MOVED,
    SENT,
)
from sim.compiler.program.code.reuse import Read
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Rows, Vectors, transfer
from sim.compiler.program.places.clock import Clock, Event
from sim.compiler.program.places.meeting import Link, Links
from sim.compiler.program.places.vectors import FreeVectors

__all__ = ["Transferred", "VectorMemory", "exchange_parts"]

Transferred = tuple[int, range]
"""A transfer of an exchange: the semaphore that counts it, and the numbers of its vectors."""

_DIVIDED = 32
"""An exchange of at least this number of vectors, between the cores of a chip, has two parts."""


def exchange_parts(vectors: int, chips: int, early: int = 0) -> list[Transferred]:
    """Divide an exchange between the cores of a chip into its transfers.

    An exchange of few vectors has one transfer, any other has two. If half of the vectors or more
    can be sent early, the first transfer moves exactly these. Otherwise, the first transfer moves
    three quarters of all vectors. During the second transfer, an elementwise kernel can work on the
    vectors of the first one. In the time in which such a kernel computes about three vectors, the
    transfer, which the kernel slows down, moves one.

    Parameters
    ----------
    vectors : int
        Number of vectors that are exchanged.
    chips : int
        Number of chips that the program is for. The semaphore of an exchange that has only one
        transfer depends on it.
    early : int
        Number of vectors, from the first one on, that are complete before the others.

    Returns
    -------
    list of Transferred
        One or two transfers.
    """
    if vectors < _DIVIDED:
        return [(EXCHANGED_ALONE if chips == 1 else EXCHANGED, range(vectors))]
    first = early if 2 * early >= vectors else vectors - vectors // 4
    return [*zip(EXCHANGED_PARTS, (range(first), range(first, vectors)), strict=True)]


class VectorMemory:
    """Manages buffers in vector memory; writes the code that starts transfers and waits for them.

    Transfers are numbered from 1, in the order in which they start.

    Parameters
    ----------
    stream : Stream
        Receives the code.
    config : Config
        The chip.

    Attributes
    ----------
    free : FreeVectors
        The vectors that belong to no buffer.
    completed : int
        Highest number of a transfer that the code has waited for.
    leaving : list of (int, VmemBuffer)
        Buffers that become free when a transfer completes, each with the transfer's number, in
        ascending order.
    exchanged : list of VmemBuffer
        Buffers that become free when the code has waited for the exchanges that use them.
    links : Links
        What arrives over the links.
    moved_rows : int
        Number of rows that the transfers written so far move.
    reads : list of Read
        Transfers from HBM that the code has waited for.
    clock : Clock
        Predicts when transfers complete.
    reloads : int
        Number of calls of `forget_arrivals`: how often the pinned values were saved and reloaded.
    events : list of Event
        Starts of transfers from and to HBM, and waits for them, in the order of the code.
    """

    def __init__(self, stream: Stream, config: Config) -> None:
        self.stream = stream
        self._config = config
        self.free = FreeVectors(config.vmem_vectors)
        self._issued = self.completed = 0
        self._arriving: dict[VmemBuffer, int] = {}
        self.leaving: list[tuple[int, VmemBuffer]] = []
        # Buffers of exchanges that the code has not waited for, each with the transfers of its
        # parts, in order; and the amounts to wait for, by semaphore.
        self._exchanging: dict[VmemBuffer, tuple[Transferred, ...]] = {}
        self._amounts: dict[int, int] = {}
        self.exchanged: list[VmemBuffer] = []
        # Exchanges along rings of chips: buffers that are being sent, and those that are being
        # filled, each with the link and the number of the arrival there.
        self._leaving: set[VmemBuffer] = set()
        self._coming: dict[VmemBuffer, tuple[Link, int]] = {}
        self.links = Links(stream)
        self._numbers = count()
        # Transfers from HBM that the code has not waited for: number, first bundle, end.
        self._reading: deque[tuple[int, int, int]] = deque()
        self.reads: list[Read] = []
        # Loads that an iteration of a loop waits for late: buffers, until the code has waited.
        self._late: set[VmemBuffer] = set()
        self._late_loads: list[tuple[int, int]] = []
        self._late_amount = self._late_semaphore = 0
        self._levels = ScalarMemory(config).levels
        self.moved_rows = self.reloads = 0
        self.clock = Clock(config)
        self.events: list[Event] = []

    def buffer(self, name: str, first: int, vectors: int) -> VmemBuffer:
        """Make a buffer of ``vectors`` allocated vectors, from address ``first`` on.

        Its name is ``name`` and a number.
        """
        return VmemBuffer(f"{name}{next(self._numbers)}", first, vectors)

    # ---- transfers

    def issue(self, source: Any, destination: Any, rows: int) -> int:
        """Write code that starts to copy ``rows`` rows; return the number of the last transfer.

        This is the number with which `wait` waits for all rows; transfers are numbered from 1, in
        the order in which they start. ``source`` and ``destination`` are `Rows`, `Vectors` or
        `sim.compiler.program.code.transfers.Words`.
        """
        first = self.stream.here
        started = self.start_transfer(source, destination, rows, MOVED)
        self.clock.start(rows, started)
        self.events.append(Event(self.stream.here, rows, started))
        self._issued += started
        if isinstance(source, Rows):
            self._reading.append((self._issued, first, self.stream.here))
        return self._issued

    def start_transfer(self, source: Any, destination: Any, rows: int, semaphore: int) -> int:
        """Write code that starts to copy ``rows`` rows; return how many transfers that takes.

        ``source`` and ``destination`` are `Rows`, `Vectors` or `Words`. Each transfer adds 1 to
        semaphore ``semaphore`` when it completes.
        """
        self.moved_rows += rows
        return self._start(source, destination, rows, semaphore, 0)

    def _start(self, source: Any, destination: Any, rows: int, semaphore: int, depth: int) -> int:
        """Write loops over all `Rows.levels` but the innermost; their body is one transfer.

        The parameters are those of `start_transfer`; ``depth`` is the number of loops that are
        already open. Returns how many transfers these loops start.
        """
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
        """Write code that waits for transfer ``number`` and all earlier ones."""
        if number > self.completed:
            self.stream.wait(MOVED, number - self.completed)
            while self._reading and self._reading[0][0] <= number:
                _, first, end = self._reading.popleft()
                self.reads.append(Read(first, end, self.stream.here))
            self.clock.wait(number)
            self.events.append(Event(self.stream.here, number=number))
            self.completed = number
            for last, buffer in self.leaving:
                if last <= number:
                    self.free.give(buffer.address, buffer.vectors)
            self.leaving = [entry for entry in self.leaving if entry[0] > number]

    def wait_all(self) -> None:
        """Write code that waits for all transfers and exchanges."""
        self.wait(self._issued)
        self.wait_exchanges()

    def exchange(self, source: VmemBuffer, target: VmemBuffer, parts: Sequence[Transferred],
                 amounts: Mapping[int, int]) -> None:
        """Record that the following code exchanges buffers with another core.

        That code starts to send the ``parts`` of ``source``, and to receive those of ``target``;
        earlier code may have started the transfers of the first part. ``amounts`` has the number of
        transfers that add to each part's semaphore, in both directions together. This method itself
        only writes code that waits for the transfers that fill ``source``.
        """
        self.settle([source])
        self._exchanging.update(dict.fromkeys((source, target), tuple(parts)))
        for semaphore, amount in amounts.items():
            self._amounts[semaphore] = self._amounts.get(semaphore, 0) + amount

    def wait_exchanges(self, semaphores: Iterable[int] | None = None) -> None:
        """Write code that waits for the exchanges that ``semaphores`` count; by default for all."""
        if semaphores is None:
            self.links.wait_all()
            self._coming.clear()
        for semaphore in sorted(self._amounts if semaphores is None else semaphores):
            self.stream.wait(semaphore, self._amounts.pop(semaphore))
        if SENT not in self._amounts:
            self._leaving.clear()
        self._exchanging = {buffer: left for buffer, parts in self._exchanging.items() if (
            left := tuple(part for part in parts if part[0] in self._amounts))}
        for buffer in self.exchanged:
            if not self._is_busy(buffer):
                self.free.give(buffer.address, buffer.vectors)
        self.exchanged = [buffer for buffer in self.exchanged if self._is_busy(buffer)]

    def exchange_in_ring(self, source: VmemBuffer, target: VmemBuffer, link: Link, number: int
                         ) -> None:
        """Record that the code has started to send ``source`` along a ring of chips.

        ``target`` is full after arrival ``number`` over ``link``.
        """
        self._leaving.add(source)
        self._amounts[SENT] = self._amounts.get(SENT, 0) + 1
        self._coming[target] = link, number

    def is_leaving(self, buffer: VmemBuffer | None) -> bool:
        """Return whether a buffer is being sent along a ring of chips: it may only be read."""
        return buffer in self._leaving

    def _is_busy(self, buffer: VmemBuffer) -> bool:
        """Return whether a buffer is used by an exchange for which the code has not waited yet."""
        return buffer in self._exchanging or buffer in self._leaving or buffer in self._coming

    def parts(self, buffer: VmemBuffer) -> list[range]:
        """Return the vectors of the two parts of an exchange that sends or fills a buffer.

        The list is empty if there is no such exchange, or if the code has waited for a part.
        """
        parts = self._exchanging.get(buffer, ())
        return [part for _, part in parts] if len(parts) > 1 else []

    def settle(self, buffers: Iterable[VmemBuffer], *, first: bool = False) -> None:
        """Write code that waits until the transfers that fill these buffers are complete.

        With ``first``, the code does not wait for the second parts of exchanges in two parts.
        """
        buffers, parts = list(buffers), 1 if first else None
        if not self._late.isdisjoint(buffers):
            self._wait_late()
        semaphores = {semaphore for buffer in buffers
                      for semaphore, _ in self._exchanging.get(buffer, ())[:parts]}
        if semaphores:
            self.wait_exchanges(semaphores)
        for buffer in buffers:
            if buffer in self._coming:
                self.links.wait(*self._coming.pop(buffer))
        self.wait(max((self._arriving.pop(buffer, 0) for buffer in buffers), default=0))

    # ---- buffers

    def load_rows(self, source: Rows, buffer: VmemBuffer) -> None:
        """Write code that starts to copy the HBM rows ``source`` to a buffer of the same size."""
        rows = buffer.vectors * self._config.sublanes
        self._arriving[buffer] = self.issue(source, Vectors(buffer.address), rows)

    def load_late(self, source: Rows, buffer: VmemBuffer, semaphore: int) -> None:
        """Write code, before a loop, that starts to load a buffer which an iteration needs late.

        Where `settle` first needs such a buffer in the loop's body, all iterations wait for all
        these loads: each leaves in ``semaphore``, which counts them, what it has found there. The
        body must not branch; after the loop, `finish_late` has to follow.
        """
        first, rows = self.stream.here, buffer.vectors * self._config.sublanes
        self._late_amount += self.start_transfer(source, Vectors(buffer.address), rows, semaphore)
        self._late_semaphore = semaphore
        self._late.add(buffer)
        self._late_loads.append((first, self.stream.here))

    def _wait_late(self) -> None:
        self._late.clear()
        self.stream.wait(self._late_semaphore, self._late_amount)
        self.stream.bundle((Slot.MISC, "signal", (sem[self._late_semaphore], self._late_amount)))

    def finish_late(self) -> None:
        """Write code, after a loop, that takes from the semaphore what the last iteration left."""
        if self._late_loads:
            self.stream.wait(self._late_semaphore, self._late_amount)
            self.reads += [Read(*load, self.stream.here) for load in self._late_loads]
            self._late_loads, self._late_amount = [], 0
            self._late.clear()

    def fill(self, word: int, buffer: VmemBuffer) -> None:
        """Write code that stores ``word`` in all elements of a buffer."""
        stream, again = self.stream, self.stream.label("fill")
        stream.bundle((Slot.V0, "move", (v[0], word)),
                      (Slot.S0, "add", (s[1], s[0], buffer.address)),
                      (Slot.S1, "add", (s[2], s[0], buffer.vectors)))
        stream.bind(again)
        stream.bundle((Slot.STORE, "store", (v[0], s[1], 0)),
                      (Slot.S0, "add", (s[1], s[1], 1)), (Slot.S1, "loop", (s[2], again)))

    def release(self, buffer: VmemBuffer, after: int = 0) -> None:
        """Free a buffer when the transfer that fills it, and transfer ``after``, are complete."""
        self.give(buffer, max(after, self._arriving.pop(buffer, 0)))

    def give(self, buffer: VmemBuffer, after: int) -> None:
        """Free a buffer that no transfer fills, when transfer number ``after`` is complete."""
        if self._is_busy(buffer):
            self.wait(after)
            self.exchanged.append(buffer)
        elif after > self.completed:
            self.leaving.append((after, buffer))
            self.leaving.sort(key=lambda entry: entry[0])
        else:
            self.free.give(buffer.address, buffer.vectors)

    @property
    def free_vectors(self) -> int:
        """Number of vectors that are free now; those still in use by transfers do not count."""
        return self.free.free

    def has_arrived(self, buffer: VmemBuffer) -> bool:
        """Return whether the code has waited for the transfer or exchange that fills a buffer."""
        return (self._arriving.get(buffer, 0) <= self.completed and buffer not in self._late
                and buffer not in self._exchanging and buffer not in self._coming)

    def forget_arrivals(self) -> None:
        """Forget which transfers fill buffers; the code must have waited for all of them."""
        self._arriving.clear()
        self.reloads += 1
