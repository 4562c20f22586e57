"""The code that starts an exchange between a chip's cores, at one or two places of the program."""

from dataclasses import dataclass, field

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Fence, VmemBuffer
from sim.compiler.program.code.reserved import FREE
from sim.compiler.program.code.transfers import TransferWords, Vectors, send
from sim.compiler.program.places.memory import Transferred

__all__ = ["NearExchange"]


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
    target : VmemBuffer or None
        Buffer of the value that is received; None until it is allocated.
    symbols : dict of str to TransferWords
        Descriptors of the transfers that have been started, by the symbols in the code.
    """

    config: Config
    operation: Operation
    parts: list[Transferred]
    target: VmemBuffer | None = None
    symbols: dict[str, TransferWords] = field(default_factory=dict)

    def start(self, builder: Builder, source: VmemBuffer, end: int) -> None:
        """Write code that starts all transfers before number ``end``, except those started already.

        ``source`` is the buffer of the value that is sent. Before the first transfer, each core
        signals that the vectors into which it receives are free, and then waits for the same signal
        from the other core. So no vectors in use are overwritten, and the cores cannot deadlock.
        """
        assert self.target is not None
        attributes, started = self.operation.attributes, len(self.symbols)
        if not started:
            builder.signal_other(FREE, 1, fence=Fence((self.target,), paced=False))
            builder.wait(FREE, 1, fence=Fence(paced=False))
        for semaphore, part in self.parts[started:end]:
            symbol, sent = f"exchange{attributes['number']}from{part.start}", source.part(part)
            self.symbols[symbol] = send(
                self.config, Vectors(sent.address), sent.vectors, semaphore, attributes["number"],
                attributes["meeting"].target, part.start)
            builder.dma(symbol, fence=Fence((sent,), paced=False))

    def forget(self) -> None:
        """Return to the initial state: without a buffer, and without transfers that are started."""
        self.target = None
        self.symbols.clear()
