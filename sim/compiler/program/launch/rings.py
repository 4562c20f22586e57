"""Writes exchanges with cores of other chips.

Along a ring, each core sends to the next chip and receives from the chip before it. As soon as a
core has started to send the value of one exchange, it prepares the next exchange over the same
link. It reserves vectors for the value that it will receive, and allows the chip before it to send
that value. So the permission usually arrives before it is needed. Exceptions are the first exchange
over a link in a program, and the first one after control flow.
"""

from collections.abc import Callable, Sequence
from functools import partial

from sim.compiler.graph.ir import Operation
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import EXCHANGED, LINKS, SENT
from sim.compiler.program.code.transfers import Peer, TransferWords, Vectors, send
from sim.compiler.program.context import Context
from sim.compiler.program.places.meeting import opposite
from sim.compiler.program.tilings import CONTROL

__all__ = ["RingExchanges"]


class RingExchanges:
    """Writes exchanges with cores of other chips.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._places = context.places
        # By the number of an exchange that the core before this one may start: where its value is
        # to arrive, and the number of the arrival of the same permission for this core.
        self._invited: dict[int, tuple[VmemBuffer, int]] = {}

    def target(self, operation: Operation) -> VmemBuffer:
        """Return the vectors into which an exchange receives.

        Raises
        ------
        VectorMemoryError
            If there is no room.
        """
        number = operation.attributes["number"]
        if number not in self._invited:
            return self._places.make(operation.result)
        buffer, _ = self._invited[number]
        self._places.put(operation.result, buffer)
        return buffer

    def send(self, operation: Operation, source: VmemBuffer, target: VmemBuffer
             ) -> Callable[[Peer], TransferWords]:
        """Write the code that starts to send ``source``, and to receive into ``target``.

        Other code does not overlap with the handshake. Return a function that makes the descriptor
        for a given receiver. The receiver's address of ``target`` is not in the descriptor yet.
        """
        number, meeting = operation.attributes["number"], operation.attributes["meeting"]
        memory, link = self._places.memory, meeting.link
        made = partial(send, self._context.config, Vectors(source.address), source.vectors)
        if link is None:
            meeting.write_barrier(self._context.stream, memory.links)
            words = partial(made, EXCHANGED, number)
            self._context.stream.start(words(meeting.target))
            return words
        memory.settle([source])
        if number in self._invited:
            _, permission = self._invited.pop(number)
        else:
            permission = memory.links.invite(link, meeting.core)
        memory.links.wait(link, permission)
        back = opposite(link)
        words = partial(made, SENT, number, remote_semaphore=LINKS[back])
        self._context.stream.start(words(meeting.target))
        memory.exchange_in_ring(source, target, back, memory.links.expect(back))
        return words

    def invite_next(self, operation: Operation, following: Sequence[Operation]) -> None:
        """Allocate a buffer for the next exchange over the link of exchange ``operation``.

        Write code that allows the previous chip on the ring to send to this buffer.

        The next exchange is looked for among the operations ``following``, up to the first control
        flow or sum over the pod; such a sum may need all of vector memory. All cores with the same
        number must allow the exchange at the same place of their programs. So code is written only
        if all of them take part in both exchanges.

        Raises
        ------
        VectorMemoryError
            If vector memory has no room for the buffer.
        """
        meeting = operation.attributes["meeting"]
        if meeting.link is None or not meeting.is_whole:
            return
        for later in following:
            if later.kind in CONTROL or later.kind == "pod_sum":
                return
            if later.kind != "exchange" or later.attributes["meeting"].link != meeting.link:
                continue
            if later.attributes["meeting"].is_whole:
                vectors = self._context.tilings[later.result].vectors
                buffer = self._places.allocate("received", vectors)
                permission = self._places.memory.links.invite(meeting.link, meeting.core)
                self._invited[later.attributes["number"]] = buffer, permission
            return
