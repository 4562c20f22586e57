"""Source, sink and monitor of a stream: ports ``valid``, ``ready`` and ``payload``.

A payload is transferred at each clock edge at which ``valid`` and ``ready`` are set. Once set,
``valid`` stays, and the payload with it, until the transfer.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, Pin, int_reader, pin

__all__ = ["StreamMonitor", "StreamPins", "StreamSink", "StreamSource"]


@dataclass(frozen=True)
class StreamPins:
    """The three ports of a stream."""

    valid: Pin
    ready: Pin
    payload: Pin

    @classmethod
    def of(cls, dut: HierarchyObject, name: str) -> "StreamPins":
        """The ports of the design's stream ``name``."""
        return cls(*(pin(dut, f"{name}__{part}") for part in ("valid", "ready", "payload")))


class StreamSource:
    """Feeds a stream of the design with payloads, in order and with random gaps.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    pins : StreamPins
        An input stream.
    rng : random.Random
        Decides on the gaps.

    Attributes
    ----------
    gap : float
        Probability of a cycle without an offer where one could be made, 0 to less than 1.
    """

    def __init__(self, domain: ClockDomain, pins: StreamPins, rng: random.Random) -> None:
        self.gap = 0.0
        self._pins = pins
        self._read_ready = int_reader(pins.ready)
        self._rng = rng
        self._queue: deque[int] = deque()
        self._offered = False
        pins.valid.value = 0
        domain.at_each_edge(self._cycle)

    @property
    def idle(self) -> bool:
        """Whether all payloads have been transferred."""
        return not self._queue

    def send(self, payloads: Iterable[int]) -> None:
        """Queues payloads."""
        self._queue.extend(payloads)

    def clear(self) -> None:
        """Drops all payloads that have not been transferred, even the one on offer.

        Only for a reset.
        """
        self._queue.clear()
        self._offered = False
        self._pins.valid.value = 0

    def _cycle(self) -> None:
        was_offered = self._offered
        if was_offered:
            if not self._read_ready():
                return
            self._queue.popleft()
            self._offered = False
        if self._queue and self._rng.random() >= self.gap:
            self._pins.payload.value = self._queue[0]
            self._offered = True
        if self._offered != was_offered:
            self._pins.valid.value = int(self._offered)


class StreamSink:
    """Takes from a stream of the design, with random back-pressure.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    pins : StreamPins
        An output stream.
    rng : random.Random
        Decides on the back-pressure.

    Attributes
    ----------
    stall : float
        Probability of a cycle without ``ready``, 0 to 1.
    """

    def __init__(self, domain: ClockDomain, pins: StreamPins, rng: random.Random) -> None:
        self.stall = 0.0
        self._pins = pins
        self._rng = rng
        self._ready = False
        pins.ready.value = 0
        domain.at_each_edge(self._cycle)

    def _cycle(self) -> None:
        ready = self._rng.random() >= self.stall
        if ready != self._ready:
            self._pins.ready.value = int(ready)
            self._ready = ready


class StreamMonitor:
    """Reports a stream's transfers and checks that an offer stays until it is taken.

    Parameters
    ----------
    domain : ClockDomain
        The clock. An edge that resets the design transfers nothing, and may end an offer.
    dut : HierarchyObject
        The design.
    name : str
        Which stream.
    on_transfer : callable
        Called with each payload transferred.

    Attributes
    ----------
    transfers : list of int
        Cycle of each transfer, as ``domain.now`` counts cycles.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, name: str,
                 on_transfer: Callable[[int], None]) -> None:
        self.transfers: list[int] = []
        self._domain = domain
        pins = StreamPins.of(dut, name)
        self._read_valid, self._read_ready, self._read_payload = (
            int_reader(pin) for pin in (pins.valid, pins.ready, pins.payload))
        self._name = name
        self._on_transfer = on_transfer
        self._waiting: int | None = None
        domain.at_each_edge(self._cycle)

    def _cycle(self) -> None:
        waiting, self._waiting = self._waiting, None
        if self._domain.resetting:
            return
        if not self._read_valid():
            assert waiting is None, f"{self._name}: the offer of {waiting:#x} was withdrawn"
            return
        payload = self._read_payload()
        assert waiting is None or payload == waiting, (
            f"{self._name}: the payload on offer became {payload:#x}, it was {waiting:#x}")
        if self._read_ready():
            self.transfers.append(self._domain.now)
            self._on_transfer(payload)
        else:
            self._waiting = payload
