"""Replays links, and the cores that wait for them, as a sequence of events.

All chips of a torus execute the same programs, and start in the same cycle. In the cycle in which
a chip's transfer reaches the next chip, an equal transfer reaches this chip from the previous one.
So the replay has one chip only. Links forward and backward are symmetric, so it has one direction
only, too.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from hdl.dma.interface import QUEUE_DEPTH

__all__ = ["LinkReplay", "Transfer", "Waits"]

Waits = Iterator[float | None]
"""The work of a core: yields the time until which the core waits, or None if it waits for an event.
"""
_SOURCES = 2


@dataclass
class Transfer:
    """What a source sends over a link. A source is a core, or one of a core's quarters.

    Attributes
    ----------
    source : int
        Number of the source, 0 or 1, and of its queue before the link.
    axis : int
        Axis along which the transfer arrives: 0 for the first axis of the source, 1 for its second.
    cycles : float
        Cycles for which the link is busy.
    delay : float
        Cycles from the link's last busy cycle until the transfer has arrived.
    rows : int
        Rows of vector memory that are moved by this transfer, and by any transfer that it stands
        for, such as that in the other direction round a ring.
    core : int
        Core that waits until the queue has room for the transfer; -1 if no core waits.
    """

    source: int
    axis: int
    cycles: float
    delay: float
    rows: int
    core: int = -1


class LinkReplay:
    """A link along X and one along Y, each with a queue for each of two sources."""

    def __init__(self) -> None:
        self.now = 0.0
        self._cores: list[Waits] = []
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        # For each source and axis: what has arrived and has not been waited for, and who waits.
        self._arrived = [[0, 0] for _ in range(_SOURCES)]
        self._waiting: dict[tuple[int, int], int] = {}
        self._queues: list[list[list[Transfer]]] = [[[] for _ in range(_SOURCES)] for _ in range(2)]
        self._busy, self._turn = [False, False], [0, 0]

    def run(self, *cores: Waits) -> None:
        """Let cores run to their ends."""
        self._cores += cores
        for core in range(len(cores)):
            self._resume(core)
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def arrives(self, transfer: Transfer) -> None:
        """Called when a transfer arrives; subclasses may override it."""

    def leaves(self, transfer: Transfer) -> None:
        """Called when a link begins to send a transfer; subclasses may override it."""

    def wait(self, core: int, source: int, axis: int) -> Iterator[None]:
        """Let a core wait for the next transfer of ``source`` that arrives along ``axis``."""
        while not self._arrived[source][axis]:
            self._waiting[source, axis] = core
            yield None
        self._arrived[source][axis] -= 1

    def send(self, core: int, link: int, transfer: Transfer) -> Iterator[None]:
        """Let a core put a transfer into a link's queue; the core waits until there is room."""
        queue = self._queues[link][transfer.source]
        queue.append(transfer)
        self._serve(link)
        if len(queue) > QUEUE_DEPTH:
            transfer.core = core
            yield None

    def send_alone(self, transfer: Transfer) -> None:
        """Let a transfer from another chip arrive; this chip does not send the same one itself.

        Elsewhere, all chips send alike, so one replayed transfer stands for the one that leaves and
        for the one that arrives. The transfer here only arrives, and occupies no replayed link.
        """
        self._at(self.now + transfer.cycles + transfer.delay, partial(self._arrive, transfer))

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, act))

    def _resume(self, core: int) -> None:
        """Let a core go on until it waits."""
        until = next(self._cores[core], None)
        if until is not None:
            self._at(max(self.now, until), partial(self._resume, core))

    def _arrive(self, transfer: Transfer) -> None:
        self._arrived[transfer.source][transfer.axis] += 1
        self.arrives(transfer)
        core = self._waiting.pop((transfer.source, transfer.axis), None)
        if core is not None:
            self._resume(core)

    def _serve(self, link: int) -> None:
        """Let a link send the next transfer, unless it is busy. Sources take turns."""
        if self._busy[link]:
            return
        for source in (self._turn[link], 1 - self._turn[link]):
            queue = self._queues[link][source]
            if queue:
                transfer = queue.pop(0)
                self._busy[link], self._turn[link] = True, 1 - source
                self.leaves(transfer)
                self._at(self.now + transfer.cycles, partial(self._served, link, transfer))
                if queue and queue[-1].core >= 0:
                    self._at(self.now, partial(self._resume, queue[-1].core))
                    queue[-1].core = -1
                return

    def _served(self, link: int, transfer: Transfer) -> None:
        self._busy[link] = False
        self._at(self.now + transfer.delay, partial(self._arrive, transfer))
        self._serve(link)
