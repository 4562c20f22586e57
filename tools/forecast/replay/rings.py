"""Replays `systolith.AllReduce`: when each step of its programs ends.

A core sends pieces in two ways: forward and backward round the rings. Both ways have the same
steps, each on its own links, so the replay has the links of one way
(`tools.forecast.replay.events`). The time that a core takes for a step includes both ways.

The steps are those of `sim.compiler.collectives.program`. The model of the hardware has:

- links, for which both cores take turns, and queues of transfers before them;
- the time from one chip to the next;
- DMA engines that load and store a row a cycle, and wait while vector memory takes rows that links
  bring, or gives rows that links send;
- the cycles of additions, of starts of transfers, and of other bundles.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from hdl.dma.interface import CheckTimes
from sim.compiler.collectives.plan import CORES, WAYS, RingPlan
from sim.compiler.collectives.program import AHEAD, BEHIND
from tools.forecast.replay.events import LinkReplay, Transfer, Waits
from tools.forecast.torus import LINK_RATE

__all__ = ["Times", "replayed"]

_MEMORY = 60
"""Cycles from the last row of a load to the time when the core has noticed that the load ended."""
_ADD = 9
"""Cycles of a call of subroutine ``add``, besides two for each vector."""
_WAY, _SEND, _SPREAD = 3, 2, 8
_HBM, _BLOCK, _FOLLOW = 5, 10, 5
"""Numbers of bundles, a cycle each, without those that start transfers.

For each way: `_WAY` in a step, and `_SEND` in a send, or `_SPREAD` instead in a send of a spread
block. For both ways together: `_HBM` in subroutine ``load`` or ``store``, `_BLOCK` at the end of a
block, `_FOLLOW` in subroutine ``follow``.
"""


@dataclass(frozen=True)
class Times:
    """The times that are not known from the design.

    Attributes
    ----------
    start : float
        Cycles from the start of the programs to the first load, plus those from the last store to
        the end of the programs.
    latency : float
        Cycles from the time when a link has sent a piece until the next chip can use this piece.
        They are the cycles of wire, routers and ejection, minus the cycles that a link saves by
        sending a short piece faster than at its average rate.
    transfer : float
        Cycles of a transfer from or to HBM, besides those of its rows.
    """

    start: float
    latency: float
    transfer: float


@dataclass(frozen=True)
class _Step:
    """A step: what a core does with two pieces, one for each way round the rings.

    It does what the attributes say, in their order. In their texts, "piece" stands for both pieces.

    Attributes
    ----------
    loads : bool
        Start to load a later piece, and wait until this piece is loaded.
    waits : int or None
        Wait for a piece that arrives along this axis (0 is the core's first).
    adds : bool
        Add what has arrived.
    sends : tuple of int
        Send the piece along these axes.
    hops : int
        Number of chips that a piece passes until the next chip of the same rank has it.
    alone : bool
        Only chips of another rank send in this step: a piece arrives at the replayed chip, but
        does not use its links.
    stores : bool
        Store the piece.
    follows : bool
        Call the program's subroutine ``follow``, which stores a piece of segment 0.
    """

    loads: bool = False
    waits: int | None = None
    adds: bool = False
    sends: tuple[int, ...] = ()
    hops: int = 1
    alone: bool = False
    stores: bool = False
    follows: bool = False


def _steps(plan: RingPlan, core: int) -> Iterator[_Step]:
    """Yield the steps of ``core`` in a round."""
    (first, second), blocks = plan.sides(core), plan.blocks(core)
    block = plan.block // plan.piece
    segment = blocks * block
    early = min(BEHIND, segment)
    last = _Step(sends=(0,), stores=True, follows=True)
    parts: list[tuple[int, _Step]] = [
        (segment, _Step(loads=True, sends=(0,))),
        (segment * (first - 2), _Step(loads=True, waits=0, adds=True, sends=(0,)))]
    if second == 1:
        parts += [(block, _Step(loads=True, waits=0, adds=True)), (block, last)]
    else:
        # Chips whose ranks differ do a step at different times. The first chip of a group of
        # `spread` chips sends, and the others follow; a core waits for its forward way before it
        # goes on with the backward one, on which ranks have the opposite order. So a group takes
        # 2 * spread - 2 hops, the first time one less. The last group in phase 3 needs fewer:
        # chips of the greatest rank do not wait.
        spread = plan.spread
        hops, ends = max(1, 2 * spread - 2), max(1, spread - 1, 2 * spread - 6)
        begins = _Step(loads=True, waits=0, adds=True, sends=(1,), hops=max(1, hops - 1),
                       alone=spread > 1)
        across = _Step(waits=1, adds=True, sends=(1,), hops=hops)
        again = replace(last, waits=1, sends=(1, 0), hops=hops)
        parts += [(block, begins), (segment - block, _Step(loads=True, waits=0, adds=True))]
        if spread == 1:
            parts += [(segment - block, across), (segment - 2 * block, again),
                      (block, replace(last, waits=1)), (block, last)]
        else:
            parts += [(segment - block, across),
                      (block, replace(across, hops=hops if blocks > 1 else ends)),
                      (segment - 2 * block, again),
                      (block if blocks > 1 else 0, replace(again, hops=ends)),
                      (block, replace(last, waits=1))]
    if first == 2:
        parts.append((early, _Step(follows=True)))
    else:
        on = _Step(waits=0, sends=(0,), stores=True)
        parts += [(segment - early, _Step(sends=(0,))), (segment * (first - 3) + early, on),
                  (segment, replace(on, sends=()))]
    for count, step in parts:
        for _ in range(count):
            yield step


class _Replay(LinkReplay):
    """Replays a round on both cores of a chip; times count from the round's first load.

    A transfer's ``source``, which selects its queue before a link, is the number of its core.
    """

    def __init__(self, plan: RingPlan, times: Times) -> None:
        super().__init__()
        self._plan, self._times = plan, times
        self._piece = plan.piece * plan.vector_bytes / LINK_RATE
        self._rows = len(WAYS) * plan.piece * plan.config.sublanes
        # A bundle that starts a transfer waits until the descriptor has been checked.
        self._issue = CheckTimes.of(plan.config).total() + 1
        self._loaded, self._stored = [0.0] * CORES, [0.0] * CORES

    def cycles(self) -> float:
        """Return the cycles of a round."""
        self.run(*(self._core(core) for core in range(CORES)))
        return max(self.now, *self._stored)

    def arrives(self, transfer: Transfer) -> None:
        if self._loaded[transfer.source] > self.now:
            self._loaded[transfer.source] += transfer.rows

    def leaves(self, transfer: Transfer) -> None:
        if self._stored[transfer.source] > self.now:
            self._stored[transfer.source] += transfer.rows

    def _core(self, core: int) -> Waits:
        """Replay the steps of a core."""
        plan, issue = self._plan, self._issue
        move = (_HBM + _BLOCK * plan.piece / plan.block
                + len(WAYS) * (plan.arrays * (_SEND + 1 + issue) - 1))
        loads = [0.0] * (plan.quarter // plan.piece)
        started = used = followed = 0
        early = min(BEHIND, plan.blocks(core) * plan.block // plan.piece)
        for step in _steps(plan, core):
            while step.loads and started < min(used + AHEAD + 1, len(loads)):
                loads[started] = self._moved(self._loaded, core) + _MEMORY
                started += 1
                yield self.now + move
            if step.loads:
                yield loads[used]
                used += 1
            if step.waits is not None:
                yield from self.wait(core, core, step.waits)
            additions = (step.adds + (step.loads and plan.arrays > 1)) * (2 * plan.piece + _ADD)
            yield self.now + additions + _WAY
            for axis in step.sends:
                yield self.now + _SEND + issue
                yield from self._send(core, axis, step)
            yield self.now + additions + _WAY + len(step.sends) * (_SEND + issue)
            if step.stores:
                self._moved(self._stored, core)
                yield self.now + move
            if step.follows:
                followed += 1
                if followed > early:
                    yield from self.wait(core, core, 0)
                    self._moved(self._stored, core)
                    yield self.now + move + _FOLLOW

    def _moved(self, until: list[float], core: int) -> float:
        """Start a core's transfers from or to HBM; return the time at which they end."""
        until[core] = max(until[core], self.now) + self._plan.arrays * (
            self._rows + len(WAYS) * self._times.transfer)
        return until[core]

    def _send(self, core: int, axis: int, step: _Step) -> Iterator[None]:
        """Send a piece; wait until the link's queue has room for it."""
        latency, hops = self._times.latency, step.hops if axis else 1
        hop = latency + self._piece + _WAY + _SPREAD + self._issue
        if step.adds:
            hop += 2 * self._plan.piece + _ADD
        transfer = Transfer(core, axis, self._piece, latency + (hops - 1) * hop, self._rows)
        if step.alone:
            self.send_alone(transfer)
        else:
            yield from self.send(core, self._plan.axes(core)[axis], transfer)


@lru_cache(4096)
def replayed(plan: RingPlan, times: Times) -> float:
    """Return the cycles of `systolith.AllReduce`, from HBM to HBM."""
    return times.start + plan.rounds * _Replay(plan, times).cycles()
