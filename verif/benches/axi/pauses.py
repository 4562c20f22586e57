"""Random pauses of AXI channels."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["set_pauses"]


def set_pauses(channels: Iterable[Any], probability: float, rng: random.Random) -> None:
    """Set the probability with which each of some channels of cocotbext-axi pauses in a cycle.

    ``rng`` decides in each cycle, unless the probability is 0 or 1.
    """
    for channel in channels:
        channel.clear_pause_generator()
        channel.pause = probability == 1
        if 0 < probability < 1:
            channel.set_pause_generator(_pauses(probability, rng))


def _pauses(probability: float, rng: random.Random) -> Iterator[bool]:
    while True:
        yield rng.random() < probability
