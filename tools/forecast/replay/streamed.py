"""Replays a sum that the compiler makes: when each of its ticks ends.

`sim.compiler.collectives.schedule` defines the ticks. The cores of a chip do the same work in
opposite directions, so the replay has one core, with a link along X and one along Y. What these
links transfer comes from the core's two quarters (`tools.forecast.replay.events`).

The model of the hardware has links, the time from one chip to the next, the cycles of a core's code
(`tools.forecast.replay.work`) and of the checks of descriptors, and the DMA engine that sends
pieces to the other core, a row a cycle. This engine waits while vector memory takes rows that links
bring.
"""

from functools import lru_cache

from hdl.config import Config
from hdl.dma.interface import CheckTimes
from sim.compiler.collectives.schedule import Event, Goes, Tick, ticks
from sim.compiler.collectives.shares import SumShares
from tools.forecast.replay.events import LinkReplay, Transfer, Waits
from tools.forecast.replay.work import tick_cycles
from tools.forecast.torus import LINK_RATE

__all__ = ["streamed"]


class _Replay(LinkReplay):
    """Replays a core; times count from the first tick."""

    def __init__(self, config: Config, shares: SumShares, latency: float) -> None:
        super().__init__()
        self._shares, self._latency = shares, latency
        self._work = tick_cycles(config, shares)
        # A bundle that starts a transfer waits until the descriptor has been checked.
        self._issue = CheckTimes.of(config).total()
        self._sublanes = config.sublanes
        self._vector = config.sublanes * config.row_bytes / LINK_RATE
        self._quarters = shares.quarters(0)
        self._moved = 0.0

    def cycles(self) -> float:
        """Return the cycles of all ticks."""
        self.run(self._core())
        return max(self.now, self._moved)

    def arrives(self, transfer: Transfer) -> None:
        if self._moved > self.now:
            self._moved += transfer.rows

    def _core(self) -> Waits:
        # The other core has sent its numbers for the first tick.
        pairs = [self._move(number, self._shares.pieces) for number in range(len(self._quarters))]
        for count, tick in ticks(self._quarters):
            for _ in range(count):
                yield from self._tick(tick, pairs)

    def _tick(self, tick: Tick, pairs: list[float]) -> Waits:
        """Replay a tick; ``pairs[q]`` is when the other core's numbers arrive for quarter q."""
        for number, event in tick.events:
            if event.goes and 0 in event.arrives:
                yield from self.wait(0, number, 0)
            if event.goes:
                yield pairs[number]
        for number in tick.pairs:
            pairs[number] = self._move(number, self._shares.pieces)
        share = self._work[tick] / (self._shares.pieces * len(tick.events))
        for _ in range(self._shares.pieces):
            for number, event in tick.events:
                yield from self._piece(number, event, share)
        for number, event in tick.events:
            if event.goes is Goes.FIRST:
                yield from self._send(number, 0, self._shares.pieces)

    def _piece(self, number: int, event: Event, cycles: float) -> Waits:
        """Replay the work of a tick on a piece of a quarter: ``cycles`` cycles, and transfers."""
        if event.goes is None:
            [axis] = event.arrives
            yield from self.wait(0, number, axis)
            yield self.now + cycles
            for further in event.on:
                yield from self._send(number, further, 1)
        else:
            if 1 in event.arrives:
                yield from self.wait(0, number, 1)
            yield self.now + cycles
            if event.goes is Goes.SECOND:
                yield from self._send(number, 1, 1)
            if event.goes is not Goes.COMPLETE:
                return
            for axis in (1, 0):
                if self._quarters[number].sides[axis] > 1:
                    yield from self._send(number, axis, 1)
        yield self.now + self._issue
        self._move(number, 1)

    def _move(self, number: int, pieces: int) -> float:
        """Send pieces of a quarter to the other core; return the time when they have arrived."""
        rows = pieces * self._quarters[number].size * self._sublanes
        self._moved = max(self._moved, self.now) + rows
        return self._moved

    def _send(self, number: int, axis: int, pieces: int) -> Waits:
        """Send pieces to the next chip along an axis of a quarter."""
        quarter = self._quarters[number]
        vectors = pieces * quarter.size
        yield self.now + self._issue
        # Both of a core's quarters bring as much, from one side each.
        yield from self.send(0, quarter.axes[axis], Transfer(
            number, axis, vectors * self._vector, self._latency, vectors * self._sublanes))


@lru_cache(4096)
def streamed(config: Config, shares: SumShares, latency: float) -> float:
    """Return the cycles of all ticks of a sum, from vector memory to vector memory.

    Parameters
    ----------
    config : Config
        Configuration of each chip, with links.
    shares : SumShares
        How the sum is divided.
    latency : float
        `tools.forecast.replay.rings.Times.latency`.
    """
    return _Replay(config, shares, latency).cycles()
