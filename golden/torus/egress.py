"""What leaves a core for other chips: packets of remote transfers, and remote signals.

Specifies the egress queues of hdl/link, as far as programs can observe them: which packets keep
their order, and when a transfer has left. docs/links.md has the rules.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["Egress", "Packet"]


@dataclass(frozen=True)
class Packet:
    """The unit that a core sends to another chip: a vector, a signal, or both in this order.

    Attributes
    ----------
    x, y : int
        Coordinates of the chip to which the packet goes.
    core : int
        The core of that chip.
    address : int
        Number of the vector in that core's vector memory; 0 if ``data`` is None.
    data : array of uint32, shape (sublanes, lanes), or None
        The vector.
    semaphore, amount : int
        The semaphore of that core to which ``amount`` is added; an ``amount`` of 0 is no signal.
    """

    x: int
    y: int
    core: int
    address: int
    data: NDArray[Any] | None
    semaphore: int
    amount: int


@dataclass
class _Departure:
    """A transfer or a signal of which at least one packet has not left the core.

    ``moves`` holds, for each vector that has not left, its address here and at the destination. The
    other attributes are arguments of `Egress.put`.
    """

    moves: deque[tuple[int, int]]
    semaphore: int
    amount: int
    left: Callable[[], None]


def _nothing() -> None:
    pass


class Egress:
    """Remote transfers and signals that have not left a core yet.

    A *way* leads to one core. It is named by a word of `hdl.dma.format.REMOTE_LAYOUT`: the hops
    along X and Y, and the core. Packets that take one way keep their order; packets that take
    different ways may leave, and arrive, in any order. A vector is read from vector memory when
    its packet leaves.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[_Departure]] = {}

    @property
    def ways(self) -> list[int]:
        """The ways by which a transfer or a signal has yet to leave, in the order of first use."""
        return list(self._queues)

    def put(self, way: int, moves: Iterable[tuple[int, int]], semaphore: int, amount: int,
            left: Callable[[], None] = _nothing) -> None:
        """Add a transfer or a signal.

        Parameters
        ----------
        way : int
            A way that `golden.dma.check_remote` accepts.
        moves : iterable of (int, int)
            For each vector, its number in this core's vector memory, and in that of the other core.
            Empty: a signal alone.
        semaphore, amount : int
            The other core's semaphore to which ``amount`` is added after the last vector.
        left : callable
            Called when the last packet of the transfer, or the signal, has left.
        """
        self._queues.setdefault(way, deque()).append(
            _Departure(deque(moves), semaphore, amount, left))

    def take(self, way: int, vmem: NDArray[Any], x: int, y: int) -> Packet:
        """Remove the next packet that leaves by ``way``, which is one of `ways`, and return it.

        Parameters
        ----------
        way : int
        vmem : array of uint32, shape (vmem_vectors, sublanes, lanes)
            The core's vector memory.
        x, y : int
            Coordinates of the chip to which the way leads.
        """
        queue = self._queues[way]
        first = queue[0]
        address, data = 0, None
        if first.moves:
            source, address = first.moves.popleft()
            data = vmem[source].copy()
        last = not first.moves
        packet = Packet(x, y, way >> 16, address, data, first.semaphore if last else 0,
                        first.amount if last else 0)
        if last:
            queue.popleft()
            if not queue:
                del self._queues[way]
            first.left()
        return packet

    def clear(self) -> None:
        """Drop all transfers and signals that have not left."""
        self._queues.clear()
