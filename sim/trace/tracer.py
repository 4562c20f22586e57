"""Traces of the chip for the viewer ui.perfetto.dev: what each unit did in each cycle.

docs/tracing.md explains the tracks.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.dma.format import DmaSpace
from hdl.isa import SEMAPHORES, MiscOp, Slot
from sim.trace.tracks import (
    SEMAPHORE_TRACK,
    SLOT_TRACKS,
    TRACK_PITCH,
    TRANSFER_TRACKS,
    CoreTracks,
    Event,
    Kind,
)
from sim.trace.writer import Place, TraceWriter

__all__ = ["Tracer"]

Words = npt.NDArray[np.uint32]

_HOST_TRACK = "semaphores"


class _Semaphore:
    """Models a semaphore as a queue of additions, to find the addition that ended a wait.

    A wait subtracts from the oldest additions first.
    """

    def __init__(self) -> None:
        self._units: deque[tuple[int, Place | None]] = deque()

    def set(self, amount: int, origin: Place | None) -> None:
        self._units.clear()
        self.add(amount, origin)

    def add(self, amount: int, origin: Place | None) -> None:
        if amount:
            self._units.append((amount, origin))

    def take(self, amount: int) -> Place | None:
        """Subtracts ``amount`` from additions; returns the place of the newest of these additions.

        None if there is no such addition, or if it has no place in the trace.
        """
        origin = None
        while amount and self._units:
            units, origin = self._units.popleft()
            if units > amount:
                self._units.appendleft((units - amount, origin))
            amount = max(0, amount - units)
        return origin


@dataclass
class _Transfer:
    """A transfer in a core's DMA engine.

    Attributes
    ----------
    begin : int
        Cycle in which it started.
    name, args : str, dict
        Name of its slice, and the names and values that the viewer shows for the slice.
    signals : (bool, bool)
        Whether it adds to a semaphore of this core when it ends, and whether to one of the other
        core.
    """

    begin: int
    name: str
    args: dict[str, Any]
    signals: tuple[bool, bool]


@dataclass
class _Side:
    """The state of a core's semaphores and DMA engine, derived from its events."""

    semaphores: list[_Semaphore] = field(
        default_factory=lambda: [_Semaphore() for _ in range(SEMAPHORES)])
    transfers: deque[_Transfer] = field(default_factory=deque)
    ended: int = 0
    signalled: list[Place | None] = field(default_factory=lambda: [None, None])
    """Places where two transfers of this core ended: the most recent one that signalled this core,
    and the most recent one that signalled the other core. None if there was no such transfer."""
    reset_until: int = 0

    def clear(self) -> None:
        """Forgets all transfers."""
        self.transfers.clear()
        self.ended = 0


class Tracer:
    """Writes the events of a chip to a trace, from the records of its cores.

    Parameters
    ----------
    writer : TraceWriter
        The trace.
    config : Config
        Parameters of the chip.
    pid : int
        Number of the process of core 0 in the trace. The other cores and then the host have the
        numbers after it.
    chip : str
        Begins the names of these processes.
    """

    def __init__(self, writer: TraceWriter, config: Config, pid: int = 1, chip: str = "") -> None:
        self._config = config
        self._writer = writer
        self._host = pid + config.cores
        self._cores = [CoreTracks(writer, config, core, pid + core, chip)
                       for core in range(config.cores)]
        self._sides = [_Side() for _ in self._cores]
        self._later: list[Event] = []
        self._writer.process(self._host, f"{chip}host")
        self._host_tid = self._host * TRACK_PITCH
        self._writer.track(self._host, self._host_tid, _HOST_TRACK)
        self._now = 0

    def feed(self, records: Sequence[Words], now: int) -> None:
        """Adds the cycles before ``now`` to the trace.

        Parameters
        ----------
        records : sequence of array of uint32, shape (records, 2 + words)
            Records of each core since the last call. Each is the number of a cycle (two words, the
            low one first) and the fields of `sim.trace.probes.record_layout` from that cycle on.
        now : int
            The number of the next cycle.
        """
        events = list(self._later)
        for tracks, table in zip(self._cores, records, strict=True):
            cycles = table[:, 0].astype(np.int64) | table[:, 1].astype(np.int64) << 32
            events += tracks.feed(cycles, table[:, 2:], now)
        # A heap, because events cause others. Only resets of a core can have the same cycle and
        # kind; their numbers differ, so that heapq never compares the events themselves.
        heap = [(event.cycle, event.kind, event.core, number, event)
                for number, event in enumerate(events)]
        heapq.heapify(heap)
        self._later = []
        count = len(events)
        while heap:
            event = heapq.heappop(heap)[-1]
            if event.cycle >= now:
                self._later.append(event)
                continue
            for caused in self._follow(event):
                heapq.heappush(heap, (caused.cycle, caused.kind, caused.core, count, caused))
                count += 1
        self._now = now

    def close(self) -> None:
        """Writes what has not ended; closing twice does nothing."""
        for core in self._cores:
            core.close()
        for number, side in enumerate(self._sides):
            while side.transfers:
                self._end_transfer(number, self._now, "continues after the trace")

    def _follow(self, event: Event) -> list[Event]:
        """Updates the state by an event, and writes the slices and arrows that show the event.

        Returns the events that this event causes.
        """
        cycle, kind, core, what = event
        side = self._sides[core]
        if kind is Kind.GRANT:
            adder, index, amount = what
            origin = self._origin(cycle, core, adder, index, amount)
            return [Event(cycle + 1, Kind.ADD, core, (index, amount, origin))]
        if kind is Kind.BUNDLE:
            self._execute(cycle, core, *what)
        elif kind is Kind.WRITE:
            index, value = what
            side.semaphores[index].set(
                value, self._host_acts(cycle, f"core {core} semaphore {index} = {value}"))
        elif kind is Kind.ADD:
            index, amount, origin = what
            if cycle >= side.reset_until:
                side.semaphores[index].add(amount, origin)
        elif kind is Kind.PUSH:
            side.transfers.append(self._transfer(cycle, what))
        elif kind is Kind.END and side.transfers:
            self._end_transfer(core, cycle + 1)
        elif kind in (Kind.CLEAR, Kind.RESET):
            while side.transfers:
                self._end_transfer(core, cycle + 1, "given up")
            side.clear()
            if kind is Kind.RESET:
                side.reset_until = what
                side.semaphores = _Side().semaphores
        return []

    def _execute(self, cycle: int, core: int, code: MiscOp, index: int, amount: int) -> None:
        """Follows the operation ``code``, a `signal` or `wait`, that a core executes in ``cycle``.

        It adds or subtracts ``amount`` at the core's own semaphore ``index``.
        """
        tracks, semaphore = self._cores[core], self._sides[core].semaphores[index]
        if code is MiscOp.SIGNAL:
            semaphore.add(amount, Place(tracks.pid, tracks.tids[SLOT_TRACKS[Slot.MISC]], cycle))
            return
        origin = semaphore.take(amount)
        if origin is not None:
            self._writer.arrow(f"semaphore {index}", origin,
                               Place(tracks.pid, tracks.tids[SEMAPHORE_TRACK], cycle))

    def _origin(self, cycle: int, core: int, adder: str, index: int, amount: int
                ) -> Place | None:
        """Place where the arrow for an addition to a semaphore begins.

        ``adder``, one of `sim.trace.probes.ADDERS`, is the source of the addition; in ``cycle``, it
        adds ``amount`` to semaphore ``index`` of ``core``. None if no slice shows the source.
        """
        other = len(self._cores) - 1 - core
        if adder == "host":
            return self._host_acts(cycle, f"core {core} semaphore {index} + {amount}")
        if adder == "other_program":
            peer = self._cores[other]
            return Place(peer.pid, peer.tids[SLOT_TRACKS[Slot.MISC]], cycle)
        if adder == "engine":
            return self._sides[core].signalled[0]
        return self._sides[other].signalled[1] if adder == "other_engine" else None

    def _host_acts(self, cycle: int, what: str) -> Place:
        self._writer.slice(self._host, self._host_tid, what, cycle, cycle + 1)
        return Place(self._host, self._host_tid, cycle)

    def _transfer(self, cycle: int, parts: dict[tuple[str, ...], int]) -> _Transfer:
        spaces = []
        args: dict[str, Any] = {}
        for name in ("source", "destination"):
            space, address = DmaSpace(parts[name, "space"]), parts[name, "address"]
            spaces.append(space.name)
            # The engine counts rows where programs count bytes.
            args[name] = address * (self._config.row_bytes if space is DmaSpace.HBM else 1)
        rows = parts["rows",]
        own, other = bool(parts["signal",]), bool(parts["signal_other",])
        args |= {"rows": rows, "started by": "host" if parts["from_host",] else "program"}
        if own or other:
            args["adds to"] = " and ".join(
                f"semaphore {parts['semaphore',]} of {whose}" for whose, wanted in (
                    ("this core", own), ("the other core", other)) if wanted)
        return _Transfer(cycle, f"{spaces[0]} to {spaces[1]}, {rows} rows", args, (own, other))

    def _end_transfer(self, core: int, end: int, how: str = "") -> None:
        """Writes the slice of a core's oldest transfer, up to, but not including, cycle ``end``.

        If the transfer did not complete, the viewer shows the text ``how``: how it ended.
        """
        side, tracks = self._sides[core], self._cores[core]
        transfer = side.transfers.popleft()
        tid = tracks.tids[TRANSFER_TRACKS[side.ended % len(TRANSFER_TRACKS)]]
        side.ended += 1
        args = transfer.args | ({"ended": how} if how else {})
        self._writer.slice(tracks.pid, tid, transfer.name, transfer.begin, end, args)
        for number, signals in enumerate(transfer.signals):
            if signals and not how:
                side.signalled[number] = Place(tracks.pid, tid, end - 1)
