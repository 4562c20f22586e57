"""Cycles of a core's own work in a sum that the compiler makes: those of the compiler's code."""

from collections.abc import Mapping
from functools import lru_cache

from hdl.config import Config
from sim.compiler.collectives.schedule import Tick, ticks
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import Form, Semaphores, StreamedSum, image_words
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.estimate import estimate

__all__ = ["tick_cycles"]

_ROOM = 1 << 16
"""Number of words of scalar memory; no image needs as many."""
_SEMAPHORES = Semaphores({(axis, way): 1 for axis in "xy" for way in (1, -1)}, 2, 3, 4, 5)
"""The numbers of the semaphores do not matter."""


@lru_cache(4096)
def tick_cycles(config: Config, shares: SumShares) -> Mapping[Tick, int]:
    """Return the cycles of a core's code for each tick, if the core waits for nothing.

    Starts of transfers take no time here. The code is that of a sum in steps
    (`sim.compiler.collectives.streamed.StreamedSum.steps`).

    Parameters
    ----------
    config : Config
        Configuration of each chip, with links.
    shares : SumShares
        How the sum is divided.
    """
    words = image_words(shares, _ROOM, Form.STEPS)
    code = StreamedSum(Builder(config), shares, 0, VmemBuffer("sum", 0, shares.workspace),
                       range(words), _SEMAPHORES, Form.STEPS)
    first, *steps, _ = code.steps([VmemBuffer("sum", 0, shares.vectors)])
    code.write_steps(Builder(config), [first])
    own = (tick for count, tick in ticks(shares.quarters(0)) for _ in range(count))
    found = dict[Tick, int]()
    for tick, step in zip(own, steps, strict=True):
        b = Builder(config)
        code.write_steps(b, [step])
        if tick not in found:
            found[tick] = estimate(emit(b.finish(), config))
    return found
