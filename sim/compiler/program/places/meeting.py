"""The handshake before an exchange: no core sends before the destination's vectors are free.

Each core signals the core from which it receives, and waits for the signal of the core to which it
sends. Some cores may be several exchanges ahead of others, but signals of different cores must not
be mistaken for each other. So there is a semaphore for each neighbour that can signal: the other
core of the chip, and the next chip each way along X and along Y. If an exchange moves values in any
other way, all devices meet in a barrier first, which uses the same semaphores.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hdl.isa import Slot
from sim.asm.operands import s, sem
from sim.compiler.graph.torus import RINGS, Torus
from sim.compiler.program.code.reserved import FREE, LINKS
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Peer

__all__ = ["DeviceSum", "Link", "Links", "Meeting", "opposite"]

Link = tuple[str, int]
"""A link of a chip: the kind of ring, and the way round it to the next chip (1 or -1)."""


def opposite(link: Link) -> Link:
    """Return the link of the same ring that leads the other way."""
    kind, way = link
    return kind, -way


class Links:
    """Arrivals at a core over its chip's links, from cores of the same number on the next chips.

    Each arrival adds 1 to its link's semaphore. These cores execute the same handshakes and
    exchanges along rings, in the same order. All that a core sends one way round a ring arrives in
    order. So the number of an arrival, counted from 1 for each link, tells what has arrived.

    Parameters
    ----------
    stream : Stream
        Receives the code.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._coming: Counter[Link] = Counter()
        self._seen: Counter[Link] = Counter()

    def invite(self, link: Link, core: int) -> int:
        """Write code that permits the previous chip on the ring to send a value to this core.

        The value travels in the direction of ``link``. ``core`` is the number of this core. The
        next chip, to which ``link`` leads, executes the same code, which permits this core to send.
        Return the number of the arrival that is the next chip's permission.
        """
        self._stream.bundle((Slot.S0, "add", (s[1], s[0], peer(opposite(link), core).word)))
        self._stream.bundle((Slot.MISC, "signal_remote", (sem[LINKS[link]], s[1], 1)))
        return self.expect(link)

    def expect(self, link: Link) -> int:
        """Count one more arrival over ``link``, and return its number.

        Call this once for each arrival, in their order.
        """
        self._coming[link] += 1
        return self._coming[link]

    def wait(self, link: Link, number: int) -> None:
        """Write code that waits for an arrival, and for all earlier ones over this link."""
        if number > self._seen[link]:
            self._stream.wait(LINKS[link], number - self._seen[link])
            self._seen[link] = number

    def wait_all(self) -> None:
        """Write code that waits for all arrivals that `expect` has counted, over all links."""
        for link, number in self._coming.items():
            self.wait(link, number)


def peer(link: Link, core: int) -> Peer:
    """Return the `Peer` for core ``core`` of the chip to which a link leads."""
    kind, way = link
    return Peer(way * (kind == "x"), way * (kind == "y"), core)


@dataclass(frozen=True)
class DeviceSum:
    """A device's part in a sum over all devices of a pod.

    Attributes
    ----------
    torus : Torus
        The torus of chips.
    core : int
        Number of the device's core.
    number : int
        Number of the sum, the same on all devices.
    """

    torus: Torus
    core: int
    number: int


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
    way : int
        1, or -1 if values move backward along rings.
    is_whole : bool
        Whether all cores with the device's core number take part in the exchange.
    """

    torus: Torus
    core: int
    ring: str | None
    target: Peer | None
    way: int = 1
    is_whole: bool = False

    @classmethod
    def of(cls, torus: Torus, device: int, sources: Sequence[int], way: int) -> "Meeting | None":
        """Return a device's handshake before an exchange.

        Parameters
        ----------
        torus : Torus
            The torus of chips.
        device : int
            Number of the device.
        sources : sequence of int
            For each device, the one from which it receives, as in the operation ``exchange``.
        way : int
            1, or -1 if the exchange moves values backward along rings.

        Returns
        -------
        Meeting or None
            None if the device takes no part in the exchange, nor in a barrier before it.
        """
        ring, target = torus.ring(sources, way), list(sources).index(device)
        core, *_ = torus.place(device)
        if target == device:
            return None if ring else cls(torus, core, None, None)
        if ring in (None, "core"):
            return cls(torus, core, ring, Peer(*torus.hops(device, target),
                                               torus.place(target)[0]))
        whole = all(other != source for other, source in enumerate(sources)
                    if torus.place(other)[0] == core)
        return cls(torus, core, ring, peer((ring, way), core), way, whole)

    @property
    def link(self) -> Link | None:
        """The link over which the device sends, if the exchange is along rings of chips."""
        return None if self.ring in (None, "core") else (self.ring, self.way)

    def write_barrier(self, stream: Stream, links: Links) -> None:
        """Append the code of the barrier: signals go round each ring until all devices have met."""
        sides = 2, self.torus.width, self.torus.height
        for ring, side in zip(RINGS, sides, strict=True):
            for _ in range(side - 1):
                if ring == "core":
                    stream.bundle((Slot.MISC, "signal_other", (sem[FREE], 1)))
                    stream.wait(FREE, 1)
                else:
                    links.wait((ring, 1), links.invite((ring, 1), self.core))
