"""Random pauses of AXI channels."""

import random
from collections.abc import Iterable

from cocotbext.axi.stream import StreamPause

from verif.benches.clocking import ClockDomain

__all__ = ["Pauses"]


class Pauses:
    """Lets channels of cocotbext-axi pause in random cycles.

    One function decides for all channels. Each generator of cocotbext-axi would be a task of its
    own, and cocotb takes longer to resume a task than this for a cycle.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    rng : random.Random
        Decides in each cycle, unless the probability of a pause is 0 or 1.
    """

    def __init__(self, domain: ClockDomain, rng: random.Random) -> None:
        self._rng = rng
        self._random: dict[StreamPause, float] = {}
        domain.at_each_edge(self._cycle)

    def set(self, channels: Iterable[StreamPause], probability: float) -> None:
        """Set the probability with which each of some channels pauses in a cycle."""
        for channel in channels:
            self._random.pop(channel, None)
            channel.pause = probability == 1
            if 0 < probability < 1:
                self._random[channel] = probability

    def _cycle(self) -> None:
        draw = self._rng.random
        for channel, probability in self._random.items():
            channel.pause = draw() < probability
