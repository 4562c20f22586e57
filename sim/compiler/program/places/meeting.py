"""The handshake before an exchange: no core sends before the destination's vectors are free.

Each core signals the core from which it receives, and waits for the signal of the core to which it
sends. Signals of different cores must not be mistaken for each other, because some cores may be
some exchanges ahead. So there is a semaphore for each neighbour that can signal: the other core of
the chip, the next chip along X, and the next one along Y. If an exchange moves values in any other
way, all devices meet in a barrier first, which uses the same semaphores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hdl.isa import Slot
from sim.asm.operands import s, sem
from sim.compiler.graph.torus import RINGS, Torus
from sim.compiler.program.code.reserved import FREE, FREE_X, FREE_Y
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Peer

__all__ = ["Meeting"]

_FREE = dict(zip(RINGS, (FREE, FREE_X, FREE_Y), strict=True))
"""The semaphore that the next core in a ring signals, by the kind of ring."""


@dataclass(frozen=True)
class Meeting:
    """The handshake of one device before an exchange.

    Attributes
    ----------
    torus : Torus
        The torus of chips.
    core : int
        Number of the device's core.
    ring : str or None
        The kind of ring along which the exchange moves values by one step, one of
        `sim.compiler.graph.torus.RINGS`; None if it moves them in another way.
    target : Peer or None
        The core to which the device sends; None if it takes part in the barrier only.
    """

    torus: Torus
    core: int
    ring: str | None
    target: Peer | None

    @classmethod
    def of(cls, torus: Torus, device: int, sources: Sequence[int]) -> "Meeting | None":
        """Return a device's handshake before an exchange.

        Parameters
        ----------
        torus : Torus
            The torus of chips.
        device : int
            Number of the device.
        sources : sequence of int
            For each device, the one from which it receives, as in the operation ``exchange``.

        Returns
        -------
        Meeting or None
            None if the device takes no part in the exchange, nor in a barrier before it.
        """
        ring, target = torus.ring(sources), list(sources).index(device)
        core, *_ = torus.place(device)
        if target == device:
            return None if ring else cls(torus, core, None, None)
        return cls(torus, core, ring, Peer(*torus.hops(device, target), torus.place(target)[0]))

    def write(self, stream: Stream) -> None:
        """Append the code of the handshake to ``stream``."""
        if self.ring is not None:
            self._step(stream, self.ring)
            return
        # Signals go round each ring until each device knows of all others.
        sides = 2, self.torus.width, self.torus.height
        for ring, side in zip(RINGS, sides, strict=True):
            for _ in range(side - 1):
                self._step(stream, ring)

    def _step(self, stream: Stream, ring: str) -> None:
        """Append code that signals the previous core in a ring, and waits for the next one.

        ``ring`` is the kind of ring, one of `RINGS`.
        """
        semaphore = _FREE[ring]
        if ring == "core":
            stream.bundle((Slot.MISC, "signal_other", (sem[semaphore], 1)))
        else:
            before = Peer(-(ring == "x"), -(ring == "y"), self.core)
            stream.bundle((Slot.S0, "add", (s[1], s[0], before.word)))
            stream.bundle((Slot.MISC, "signal_remote", (sem[semaphore], s[1], 1)))
        stream.wait(semaphore, 1)
