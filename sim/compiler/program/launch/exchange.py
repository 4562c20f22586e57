"""The code that starts an exchange between a chip's cores, at one or two places of the program."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import Fence, VmemBuffer
from sim.compiler.program.code.reserved import EXCHANGED_ALONE, FREE, SHARED
from sim.compiler.program.code.transfers import TransferWords, Vectors, send
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.control.halves import AHEAD, SUMMED, gaps, half
from sim.compiler.program.launch.joiner import Part
from sim.compiler.program.launch.kernel import emit_kernel
from sim.compiler.program.places.memory import Transferred, exchange_parts

__all__ = ["NearExchange", "common", "make_target", "near_exchange", "sends", "shared_value",
           "take_shared"]


@dataclass
class NearExchange:
    """An exchange between the cores of a chip.

    Attributes
    ----------
    config : Config
        The chip.
    operation : Operation
        The ``exchange``, as `sim.compiler.program.devices.for_device` makes it.
    parts : list of Transferred
        Its transfers, in order; both cores have the same ones.
    sends, receives : tuple of range
        Numbers of the vectors, within the parts, that this core sends, and of those that it
        receives. Both are all vectors, or each is one core's halves of the parts
        (`sim.compiler.program.control.halves`).
    target : VmemBuffer or None
        Buffer of the value that is received; None until it is allocated.
    symbols : dict of str to TransferWords
        Descriptors of the transfers that have been started, by the symbols in the code.
    """

    config: Config
    operation: Operation
    parts: list[Transferred]
    sends: tuple[range, ...]
    receives: tuple[range, ...]
    target: VmemBuffer | None = None
    symbols: dict[str, TransferWords] = field(default_factory=dict)
    _started: int = field(default=0, init=False)

    @property
    def amounts(self) -> dict[int, int]:
        """Number of transfers that each semaphore counts: those that are sent, and received."""
        moved = *self.sends, *self.receives
        found = Counter[int]()
        for semaphore, part in self.parts:
            found[semaphore] += len(common([part], moved))
        return found

    def start(self, builder: Builder, source: VmemBuffer, end: int) -> None:
        """Write code that starts all transfers before number ``end``, except those started already.

        ``source`` is the buffer of the value that is sent. Before the first transfer, each core
        signals that the vectors into which it receives are free, and then waits for the same signal
        from the other core. So no vectors in use are overwritten, and the cores cannot deadlock.
        """
        assert self.target is not None
        attributes, started, self._started = self.operation.attributes, self._started, end
        if not started:
            builder.signal_other(FREE, 1, fence=Fence((self.target,), paced=False))
            builder.wait(FREE, 1, fence=Fence(paced=False))
        for semaphore, part in ((semaphore, part) for semaphore, whole in self.parts[started:end]
                                for part in common([whole], self.sends)):
            symbol, sent = f"exchange{attributes['number']}from{part.start}", source.part(part)
            self.symbols[symbol] = send(
                self.config, Vectors(sent.address), sent.vectors, semaphore, attributes["number"],
                attributes["meeting"].target, part.start)
            builder.dma(symbol, fence=Fence((sent,), paced=False))

    def forget(self) -> None:
        """Return to the initial state: without a buffer, and without transfers that are started."""
        self.target, self._started = None, 0
        self.symbols.clear()


def common(some: Sequence[range], others: Sequence[range]) -> list[range]:
    """Intersect each range of ``some`` with each of ``others``; leave out empty intersections.

    All ranges have step 1.
    """
    return [found for one in some for other in others
            if (found := range(max(one.start, other.start), min(one.stop, other.stop)))]


def near_exchange(context: Context, operation: Operation, early: int = 0) -> NearExchange:
    """Return the transfers of an exchange between the cores of a chip.

    The first ``early`` vectors of the value to send are complete before the others.
    """
    meeting, halves = operation.attributes["meeting"], operation.attributes.get("halves")
    vectors = context.tilings[operation.result].vectors
    parts = exchange_parts(vectors, meeting.torus.chips, early)
    sends: tuple[range, ...] = (range(vectors),)
    receives = sends
    if halves == SUMMED:
        sends, receives = (tuple(half(part, core) for _, part in parts)
                           for core in (1 - meeting.core, meeting.core))
        context.needed.update(dict.fromkeys((operation.result, *operation.attributes["divided"]),
                                            receives))
    return NearExchange(context.config, operation, parts, sends, receives)


def make_target(context: Context, near: NearExchange) -> bool:
    """Allocate the vectors into which an exchange receives, if enough are free.

    Return whether they have been allocated.
    """
    places, result = context.places, near.operation.result
    if result in places.assigned or places.memory.free.smallest(
            context.tilings[result].vectors) is None:
        return False
    near.target = places.make(result)
    return True


def shared_value(context: Context, operation: Operation, buffer: VmemBuffer) -> NearExchange:
    """Return the exchange by which the cores share a value that is in ``buffer``, in place.

    It has two parts; of each, this core sends one range of vectors.
    """
    [value], whole = operation.operands, range(buffer.vectors)
    own = context.needed[value]
    semaphore = SHARED if operation.attributes["halves"] == AHEAD else EXCHANGED_ALONE
    return NearExchange(context.config, operation, [
        (semaphore, whole[:own[0].stop]), (semaphore, whole[own[0].stop:])],
        own, gaps(own, whole), buffer)


def take_shared(context: Context, near: NearExchange) -> None:
    """Let the result of an exchange made by `shared_value` take over the value's vectors.

    For a value that is shared `NOW`, record that the vectors are exchanged; the loop itself waits
    for those that are shared `AHEAD`.
    """
    operation, places = near.operation, context.places
    assert near.target is not None
    places.inherit(operation.operands[0], operation.result)
    if operation.attributes["halves"] == AHEAD:
        places.memory.settle([near.target])
    else:
        places.memory.exchange(near.target, near.target, near.parts, near.amounts)


def sends(near: NearExchange, source: VmemBuffer, end: int = 2) -> Part:
    """Make the code that starts those transfers of an exchange that have not been started.

    ``source`` is the buffer of the value that is sent. Parts from number ``end`` on are left out.
    """
    operation, builder = near.operation, Builder(near.config)
    started = set(near.symbols)
    near.start(builder, source, end)
    machine, code = emit_kernel(near.config, operation, builder, None)
    rows = sum(map(len, near.sends)) * near.config.sublanes
    symbols = {name: words for name, words in near.symbols.items() if name not in started}
    return Part(machine, code, symbols, KernelRecord(
        operation.kind, operation.location, len(code), rows, rows, 0, 0), estimate(code))
