"""When each step of the programs of `systolith.AllReduce` ends.

All chips of a torus execute the same programs, and start in the same cycle. So what a core sends to
the next chip arrives when the same arrives from the chip before it: one chip is enough. The two
ways of a core have the same steps, on links of their own, so one way is enough, too; the core's
time for a step is that for both.

The steps are those of `sim.compiler.collectives.program`. The model of the hardware has:

- links, for which both cores take turns, and queues of transfers before them;
- the time from one chip to the next;
- DMA engines that load and store a row a cycle, and wait while vector memory takes what links
  bring, or gives what they send;
- the cycles of additions, of starts of transfers, and of other bundles.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from hdl.dma.interface import QUEUE_DEPTH, CheckTimes
from sim.compiler.collectives.plan import CORES, WAYS, RingPlan
from sim.compiler.collectives.program import AHEAD, BEHIND
from tools.forecast.torus import LINK_RATE

__all__ = ["Times", "replayed"]

_MEMORY = 60
"""Cycles from the last row of a load to the end of the wait for it."""
_ADD = 9
"""Cycles of a call of subroutine ``add``, besides two for each vector."""
_WAY, _SEND, _SPREAD = 3, 2, 8
_HBM, _BLOCK, _FOLLOW = 5, 10, 5
"""Bundles, a cycle each, without those that start transfers. For each way: of a step, of a send,
and of a send of a spread block. For both: of subroutine ``load`` or ``store``, of the end of a
block, and of subroutine ``follow``."""


@dataclass(frozen=True)
class Times:
    """The times that are not known from the design.

    Attributes
    ----------
    start : float
        Cycles from the start of the programs to the first load, and from the last store to the end.
    latency : float
        Cycles from the time when a link can send the next piece until the next chip can use this
        one: those of wire, routers and ejection, less those by which a short piece is faster than
        the link's average rate.
    transfer : float
        Cycles of a transfer from or to HBM, besides those of its rows.
    """

    start: float
    latency: float
    transfer: float


@dataclass(frozen=True)
class _Step:
    """What a core does with a piece of each way, in the order of the attributes.

    Attributes
    ----------
    loads : bool
        Start the load of a later piece, and wait for this one.
    waits : int or None
        Wait for a piece that arrives along this axis (0 is the core's first).
    adds : bool
        Add what has arrived.
    sends : tuple of int
        Send the piece along these axes.
    hops : int
        Number of chips that a piece passes until the next chip of the same rank has it.
    alone : bool
        Chips of other ranks send the piece, not this one.
    stores : bool
        Store the piece.
    follows : bool
        Call ``follow``, which stores a piece of segment 0.
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
    """Yield the steps of a round."""
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


@dataclass
class _Transfer:
    """A piece in the queue of a link: of which core, along which of its axes, after what delay."""

    core: int
    axis: int
    delay: float
    blocks: bool = False
    """Whether the core waits until the queue has room for this transfer."""


class _Replay:
    """A chip; times count from the first load of a round."""

    def __init__(self, plan: RingPlan, times: Times) -> None:
        self._plan, self._times = plan, times
        self._piece = plan.piece * plan.vector_bytes / LINK_RATE
        self._rows = len(WAYS) * plan.piece * plan.config.sublanes
        # A bundle that starts a transfer waits until the descriptor has been checked.
        self._issue = CheckTimes.of(plan.config).total() + 1
        self._now, self._count = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._cores = [self._core(core) for core in range(CORES)]
        self._loaded, self._stored = [0.0] * CORES, [0.0] * CORES
        # For each core and axis: the pieces that have arrived and have not been waited for.
        self._arrived = [[0, 0] for _ in range(CORES)]
        self._awaited: list[int | None] = [None] * CORES
        # For each link: a queue for each core; whether it is busy; whose turn it is.
        self._queues: list[list[list[_Transfer]]] = [[[] for _ in range(CORES)] for _ in range(2)]
        self._busy, self._turn = [False, False], [0, 0]

    def cycles(self) -> float:
        """Return the cycles of a round."""
        for core in range(CORES):
            self._resume(core)
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return max(self._now, *self._stored)

    def _at(self, time: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, act))

    def _resume(self, core: int) -> None:
        """Let a core go on until it waits: for a time, or until it is resumed."""
        until = next(self._cores[core], None)
        if until is not None:
            self._at(max(self._now, until), partial(self._resume, core))

    def _core(self, core: int) -> Iterator[float | None]:
        """Do the steps of a core; yield the time until which it waits, or None."""
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
                yield self._now + move
            if step.loads:
                yield loads[used]
                used += 1
            if step.waits is not None:
                yield from self._await(core, step.waits)
            additions = (step.adds + (step.loads and plan.arrays > 1)) * (2 * plan.piece + _ADD)
            yield self._now + additions + _WAY
            for axis in step.sends:
                yield self._now + _SEND + issue
                yield from self._send(core, axis, step)
            yield self._now + additions + _WAY + len(step.sends) * (_SEND + issue)
            if step.stores:
                self._moved(self._stored, core)
                yield self._now + move
            if step.follows:
                followed += 1
                if followed > early:
                    yield from self._await(core, 0)
                    self._moved(self._stored, core)
                    yield self._now + move + _FOLLOW

    def _moved(self, until: list[float], core: int) -> float:
        """Start transfers from or to HBM; return when they end."""
        until[core] = max(until[core], self._now) + self._plan.arrays * (
            self._rows + len(WAYS) * self._times.transfer)
        return until[core]

    def _await(self, core: int, axis: int) -> Iterator[None]:
        while not self._arrived[core][axis]:
            self._awaited[core] = axis
            yield None
        self._arrived[core][axis] -= 1

    def _arrive(self, core: int, axis: int) -> None:
        self._arrived[core][axis] += 1
        if self._loaded[core] > self._now:
            self._loaded[core] += self._rows
        if self._awaited[core] == axis:
            self._awaited[core] = None
            self._resume(core)

    def _send(self, core: int, axis: int, step: _Step) -> Iterator[None]:
        """Send a piece; wait until the link's queue has room for it."""
        latency, hops = self._times.latency, step.hops if axis else 1
        hop = latency + self._piece + _WAY + _SPREAD + self._issue
        if step.adds:
            hop += 2 * self._plan.piece + _ADD
        transfer = _Transfer(core, axis, latency + (hops - 1) * hop)
        if step.alone:
            self._at(self._now + self._piece + transfer.delay, partial(self._arrive, core, axis))
            return
        link = self._plan.axes(core)[axis]
        queue = self._queues[link][core]
        queue.append(transfer)
        self._serve(link)
        if len(queue) > QUEUE_DEPTH:
            transfer.blocks = True
            yield None

    def _serve(self, link: int) -> None:
        """Let a link begin to send the next piece, unless it is busy."""
        if self._busy[link]:
            return
        for core in (self._turn[link], 1 - self._turn[link]):
            queue = self._queues[link][core]
            if queue:
                transfer = queue.pop(0)
                self._busy[link], self._turn[link] = True, 1 - core
                if self._stored[core] > self._now:
                    self._stored[core] += self._rows
                self._at(self._now + self._piece, partial(self._served, link, transfer))
                if queue and queue[-1].blocks:
                    queue[-1].blocks = False
                    self._at(self._now, partial(self._resume, core))
                return

    def _served(self, link: int, transfer: _Transfer) -> None:
        self._busy[link] = False
        self._at(self._now + transfer.delay,
                 partial(self._arrive, transfer.core, transfer.axis))
        self._serve(link)


@lru_cache(4096)
def replayed(plan: RingPlan, times: Times) -> float:
    """Return the cycles of `systolith.AllReduce`, from HBM to HBM."""
    return times.start + plan.rounds * _Replay(plan, times).cycles()
