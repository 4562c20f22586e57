"""Traces of the chip: what each unit did in each cycle, for ui.perfetto.dev.

docs/tracing.md says what the tracks mean.
"""

import functools
import heapq
import json
import os
import pathlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.core.counters import COUNTERS
from hdl.core.interface import WAITS
from hdl.dma.format import DmaSpace
from hdl.dma.interface import QUEUE_DEPTH
from hdl.isa import BUNDLE_BITS, OPERATIONS, SEMAPHORES, SLOTS, Fault, MiscOp, Slot
from sim.asm.disassembler import disassemble
from sim.trace.probes import ADDERS, Values, read_probe, record_layout

__all__ = ["CAUSES", "CYCLES", "PROGRAM", "TRACKS", "Tracer", "trace_paths"]

Words = npt.NDArray[np.uint32]

_NOTHING = -1
"""Key of a cycle in which a track is empty."""
CYCLES, PROGRAM = "cycles", "program"
_ROWS, _WEIGHTS, _RESULTS = "array: rows", "array: weights", "array: results"
_CROSS_LANE, _ROWS_IN, _ROWS_OUT = "cross-lane unit", "DMA: rows in", "DMA: rows out"
_WAITS = "semaphores"
_SLOT_TRACKS = {slot: f"slot {slot}" for slot in SLOTS}
_PLACES = tuple(f"DMA: transfer {place}" for place in range(QUEUE_DEPTH))
TRACKS = (CYCLES, PROGRAM, _WAITS, _ROWS, _WEIGHTS, _RESULTS, _CROSS_LANE,
           *_SLOT_TRACKS.values(), *_PLACES, _ROWS_IN, _ROWS_OUT)
"""Tracks of a core, in the order in which they are shown."""
_HOST_TRACK = "semaphores"
_PITCH = 100
"""Between the numbers of the first tracks of two processes: no two tracks have one number, and none
has that of its process, which viewers would take for its main thread."""
CAUSES = tuple(counter.removesuffix("_cycles").replace("_", " ") for counter in COUNTERS)
_FIRST_WAIT = COUNTERS.index(f"{WAITS[0]}_wait_cycles")
_MIDDLE = 0.5
"""Where in its cycle an arrow begins or ends, so that it is within a slice."""
_TIME = "1 us is 1 clock cycle, counted from the first one of the simulation"


def trace_paths(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """The files of a trace: of the units, and of the waveforms.

    Parameters
    ----------
    path : path
        What their names begin with; ``.json`` or ``.vcd`` at its end does not belong to it.

    Raises
    ------
    TypeError
        If it is no path.
    ValueError
        If it has no name.
    FileNotFoundError
        If there is no such folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"trace must be a path, not {path!r}")
    base = pathlib.Path(os.fsdecode(path))
    if base.suffix in (".json", ".vcd"):
        base = base.with_suffix("")
    if not base.name or base.is_dir():
        raise ValueError(f"trace must be the beginning of files' names, not {str(path)!r}")
    if not base.parent.is_dir():
        raise FileNotFoundError(f"trace must lie in a folder that exists, not {str(base.parent)!r}")
    return base.with_name(f"{base.name}.json"), base.with_name(f"{base.name}.vcd")


@functools.lru_cache(maxsize=1 << 14)
def _text(bundle: int) -> str:
    return disassemble(bundle)


@functools.cache
def _operation_names(slot: Slot) -> dict[int, str]:
    return {operation.op.value: operation.name for operation in OPERATIONS
            if slot in operation.slots and operation.op.name != "NOP"}


class _Writer:
    """Writes events to a file as they come.

    The format is that of Chrome's trace events, an object of JSON.
    """

    def __init__(self, path: pathlib.Path, config: Config) -> None:
        self._file = path.open("w")
        self._flows = 0
        parameters = {"array": config.array, "sublanes": config.sublanes, "cores": config.cores}
        self._file.write(f'{{"displayTimeUnit": "ns",\n'
                         f'"otherData": {json.dumps({"time": _TIME, **parameters})},\n'
                         f'"traceEvents": [')
        self._between = "\n"

    def event(self, kind: str, pid: int, **members: Any) -> None:
        self._file.write(self._between + json.dumps({"ph": kind, "pid": pid, **members},
                                                    separators=(",", ":")))
        self._between = ",\n"

    def track(self, pid: int, tid: int, name: str) -> None:
        self.event("M", pid, tid=tid, name="thread_name", args={"name": name})
        self.event("M", pid, tid=tid, name="thread_sort_index", args={"sort_index": tid})

    def process(self, pid: int, name: str) -> None:
        self.event("M", pid, name="process_name", args={"name": name})
        self.event("M", pid, name="process_sort_index", args={"sort_index": pid})

    def slice(self, pid: int, tid: int, name: str, begin: int, end: int,
              args: dict[str, Any] | None = None) -> None:
        self.event("X", pid, tid=tid, name=name, ts=begin, dur=end - begin,
                   **({"args": args} if args else {}))

    def mark(self, pid: int, tid: int, name: str, at: int, args: dict[str, Any]) -> None:
        self.event("i", pid, tid=tid, name=name, ts=at, s="t", args=args)

    def arrow(self, name: str, start: "_Place", end: "_Place") -> None:
        self._flows += 1
        common = {"cat": "semaphore", "name": name, "id": self._flows}
        self.event("s", start.pid, tid=start.tid, ts=start.cycle + _MIDDLE, **common)
        self.event("f", end.pid, tid=end.tid, ts=end.cycle + _MIDDLE, bp="e", **common)

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.write("\n]}\n")
            finally:
                self._file.close()


@dataclass(frozen=True)
class _Place:
    """A cycle on a track."""

    pid: int
    tid: int
    cycle: int


_Event = tuple[int, int, int, Any]
"""Cycle, order in it, core, and what happens."""
Detail = Callable[[int], Any]
Describe = Callable[[int, int, Any, Any], tuple[str, dict[str, Any] | None]]


class _Track:
    """Makes a slice of adjoining cycles of one key.

    Parameters
    ----------
    writer : _Writer
    pid, tid : int
        Whose.
    describe : callable
        Name and arguments of a slice, of its key, its cycles, and what `feed` was told of its first
        and of its last cycle.
    """

    def __init__(self, writer: _Writer, pid: int, tid: int, describe: Describe) -> None:
        self._writer = writer
        self._pid, self._tid = pid, tid
        self._describe = describe
        self._key = _NOTHING
        self._begin = self._end = 0
        self._first: Any = None
        self._last: Any = None

    def feed(self, begins: Values, ends: Values, keys: Values, detail: Detail) -> None:
        """Goes on by spans of cycles with a key each, which adjoin each other and the last ones."""
        bounds = (np.flatnonzero(np.diff(keys)) + 1).tolist()
        for start, stop in zip([0, *bounds], [*bounds, len(keys)], strict=True):
            key = int(keys[start])
            if key != self._key:
                self.close()
                self._key, self._begin = key, int(begins[start])
                if key != _NOTHING:
                    self._first = detail(start)
            self._end = int(ends[stop - 1])
            if key != _NOTHING:
                self._last = detail(stop - 1)

    def close(self) -> None:
        """Writes the slice that is open."""
        if self._key != _NOTHING:
            name, args = self._describe(self._key, self._end - self._begin, self._first, self._last)
            self._writer.slice(self._pid, self._tid, name, self._begin, self._end, args)
        self._key = _NOTHING


class _Semaphore:
    """Knows which addition made a wait possible: units are used up in the order they came in."""

    def __init__(self) -> None:
        self._units: deque[tuple[int, _Place | None]] = deque()

    def set(self, amount: int, origin: _Place | None) -> None:
        self._units.clear()
        self.add(amount, origin)

    def add(self, amount: int, origin: _Place | None) -> None:
        if amount:
            self._units.append((amount, origin))

    def take(self, amount: int) -> _Place | None:
        """Where the last of so many units came from."""
        origin = None
        while amount and self._units:
            units, origin = self._units.popleft()
            if units > amount:
                self._units.appendleft((units - amount, origin))
            amount = max(0, amount - units)
        return origin


@dataclass
class _Transfer:
    begin: int
    name: str
    args: dict[str, Any]
    signals: tuple[bool, bool]  # this core's semaphore, the other's


@dataclass
class _Side:
    """What is known of a core while its events are followed."""

    semaphores: list[_Semaphore] = field(
        default_factory=lambda: [_Semaphore() for _ in range(SEMAPHORES)])
    transfers: deque[_Transfer] = field(default_factory=deque)
    ended: int = 0
    signalled: list[_Place | None] = field(default_factory=lambda: [None, None])
    """End of the last transfer that signals here, and there."""
    reset_until: int = 0

    def clear(self) -> None:
        self.transfers.clear()
        self.ended = 0


# Order of what happens in one cycle. An addition is granted a cycle before it is made, and the
# bundle's own operation goes first then.
_GRANT, _BUNDLE, _WRITE, _ADD, _END, _PUSH, _CLEAR, _RESET = range(8)


class _Core:
    """The tracks of a core that show what it does in each cycle by itself."""

    def __init__(self, writer: _Writer, config: Config, number: int, pid: int) -> None:
        self.pid = pid
        self._layout = record_layout(config)
        # Looked up once, because it takes a while.
        self._bundle_offset = self._layout["bundle"].offset
        self._writer = writer
        self._number = number
        self._until = 0
        self._last: Words | None = None
        self._swaps = self._waits = 0
        self._fault = 0
        self.tids = {name: pid * _PITCH + number for number, name in enumerate(TRACKS)}
        writer.process(pid, f"core {number}")
        for name, tid in self.tids.items():
            writer.track(pid, tid, name)
        describe: dict[str, Describe] = {
            CYCLES: self._describe_cycles, PROGRAM: self._describe_program,
            _WAITS: lambda key, cycles, first, last: (
                f"wait for {first[0]}", {"amount": first[1], "bundle": first[2]}),
            _ROWS: lambda key, cycles, first, last: (
                "rows, new weights" if first else "rows", {"rows": cycles}),
            _WEIGHTS: lambda key, cycles, first, last: (
                "columns" if first else "rows", {"rows": cycles}),
            _CROSS_LANE: lambda key, cycles, first, last: ("busy", None),
            **dict.fromkeys((_RESULTS, _ROWS_IN, _ROWS_OUT), self._describe_rows),
            **{name: self._describe_slot(slot) for slot, name in _SLOT_TRACKS.items()}}
        self._tracks = {name: _Track(writer, pid, self.tids[name], text)
                        for name, text in describe.items()}

    @staticmethod
    def _describe_rows(key: int, cycles: int, first: Any, last: Any) -> tuple[str, dict[str, Any]]:
        return "rows", {"rows": cycles}

    @staticmethod
    def _describe_slot(slot: Slot) -> Describe:
        names = _operation_names(slot)
        return lambda key, cycles, first, last: (names.get(key, f"operation {key}"), None)

    @staticmethod
    def _describe_cycles(key: int, cycles: int, first: tuple[int, int], last: Any
                         ) -> tuple[str, dict[str, Any] | None]:
        cause = key % len(CAUSES)
        if not _FIRST_WAIT <= cause < _FIRST_WAIT + len(WAITS):
            return CAUSES[cause], None
        return CAUSES[cause], {"at": first[0], "bundle": _text(first[1])}

    @staticmethod
    def _describe_program(key: int, cycles: int, first: tuple[int, int], last: tuple[int, int]
                          ) -> tuple[str, dict[str, Any]]:
        (begin, bundle), (end, other) = first, last
        if key % _KINDS >= _HELD:
            wait = key % _KINDS - _HELD
            what = f"waits for {WAITS[wait]}" if wait < len(WAITS) else "cannot issue"
            return f"{begin} {what}", {"bundle": _text(bundle)}
        if begin == end:
            return f"{begin}", {"bundle": _text(bundle)}
        return f"{begin} to {end}", {"first": _text(bundle), "last": _text(other)}

    def feed(self, cycles: Values, words: Words, now: int) -> list[_Event]:
        """Goes on to cycle ``now``, with the records since the last time; returns the events."""
        if self._last is not None and (not len(cycles) or cycles[0] > self._until):
            cycles = np.concatenate([[self._until], cycles])
            words = np.concatenate([self._last[np.newaxis], words])
        if not len(cycles) or now <= int(cycles[0]):
            return []
        begins, ends = cycles, np.append(cycles[1:], now)
        self._until, self._last = now, words[-1].copy()
        probe = functools.partial(read_probe, self._layout, words)
        on = {name: probe(name).astype(bool) for name, member in self._layout if member.width == 1}
        pc, op = probe("pc"), probe("bundle", str(Slot.MISC), "op")

        def where(condition: npt.NDArray[np.bool_], key: Values | int = 0) -> Values:
            return np.where(condition, key, _NOTHING)

        def at(index: int) -> tuple[int, int]:
            return int(pc[index]), self._bundle(words[index])

        def nothing(index: int) -> None:
            return None

        def feed(name: str, keys: Values, detail: Detail = nothing) -> None:
            self._tracks[name].feed(begins, ends, keys, detail)

        feed(CYCLES, where(~on["reset"], self._causes(on, pc)), at)
        feed(PROGRAM, where(on["valid"] & ~on["reset"], self._steps(on, begins, ends, pc)), at)
        swaps = on["x_accepted"] & on["swap"]
        feed(_ROWS, where(on["x_accepted"], self._swaps + np.cumsum(swaps)),
             lambda index: bool(swaps[index]))
        self._swaps += int(swaps.sum())
        feed(_WEIGHTS, where(on["w_accepted"]), lambda index: bool(on["transpose"][index]))
        for name, probed in ((_RESULTS, "result"), (_CROSS_LANE, "cross_lane"),
                             (_ROWS_IN, "row_in"), (_ROWS_OUT, "row_out")):
            feed(name, where(on[probed]))
        for slot, name in _SLOT_TRACKS.items():
            codes = probe("bundle", str(slot), "op")
            known = np.isin(codes, list(_operation_names(slot)))
            feed(name, where(on["issue"] & known, codes))

        index, amount = probe("bundle", str(Slot.MISC), "d"), probe("amount")
        waits = on["valid"] & (op == MiscOp.WAIT.value)
        passed = waits & on["issue"]
        # A wait lasts until it has issued; the next one is another, wherever it is.
        feed(_WAITS, where(waits & (on["issue"] | on["waiting_semaphore"]),
                           self._waits + np.cumsum(passed) - passed),
             lambda i: (f"semaphore {index[i]}", int(amount[i]), _text(at(i)[1])))
        self._waits += int(passed.sum())
        self._mark_faults(begins, probe("fault"), pc)
        return self._events(on, begins, ends, probe, op)

    def close(self) -> None:
        for track in self._tracks.values():
            track.close()

    def _bundle(self, record: Words) -> int:
        value = int.from_bytes(record.astype("<u4").tobytes(), "little")
        return value >> self._bundle_offset & (1 << BUNDLE_BITS) - 1

    @staticmethod
    def _causes(on: dict[str, npt.NDArray[np.bool_]], pc: Values) -> Values:
        """What each cycle is charged to, as `hdl.core.counters` does; waits, of each bundle."""
        names = ("x_accepted", "w_accepted", *(f"waiting_{wait}" for wait in WAITS))
        cause = np.select([on[name] for name in names], range(len(names)), len(names))
        of_bundle = (cause >= _FIRST_WAIT) & (cause < len(names))
        return cause + len(CAUSES) * np.where(of_bundle, pc, 0)

    @staticmethod
    def _steps(on: dict[str, npt.NDArray[np.bool_]], begins: Values, ends: Values,
               pc: Values) -> Values:
        """Keys of the program's slices: straight through bundles, one again and again, held up."""
        alone = ends - begins > 1
        wait = np.select([on[f"waiting_{wait}"] for wait in WAITS], range(len(WAITS)), len(WAITS))
        return np.where(
            on["issue"],
            # In straight code the address grows with the cycle.
            np.where(alone, _KINDS * pc + _AGAIN, _KINDS * (begins - pc + _OFFSET) + _STRAIGHT),
            _KINDS * pc + _HELD + wait)

    def _mark_faults(self, begins: Values, faults: Values, pc: Values) -> None:
        for index in np.flatnonzero(np.diff(faults, prepend=self._fault)):
            if faults[index]:
                self._writer.mark(self.pid, self.tids[PROGRAM],
                                  f"fault {Fault(int(faults[index])).name}", int(begins[index]),
                                  {"at": int(pc[index])})
        self._fault = int(faults[-1])

    def _events(self, on: dict[str, npt.NDArray[np.bool_]], begins: Values, ends: Values,
                probe: Callable[..., Values], op: Values) -> list[_Event]:
        """What has to do with semaphores and transfers: cycle, order, core, and what it is."""
        core = self._number
        events: list[_Event] = []

        def happen(when: npt.NDArray[np.bool_], order: int, what: Callable[[int], Any]) -> None:
            for index in np.flatnonzero(when).tolist():
                events.extend((cycle, order, core, what(index))
                              for cycle in range(int(begins[index]), int(ends[index])))

        index, amount = probe("bundle", str(Slot.MISC), "d"), probe("amount")
        happen(on["issue"] & np.isin(op, (MiscOp.WAIT.value, MiscOp.SIGNAL.value)), _BUNDLE,
               lambda i: (MiscOp(int(op[i])), int(index[i]), int(amount[i])))
        written, value = probe("write_index"), probe("write_value")
        happen(on["write"], _WRITE, lambda i: (int(written[i]), int(value[i])))
        added, by = probe("addition", "index"), probe("addition", "amount")
        grants = {adder: on[f"grant_{adder}"] for adder in ADDERS if f"grant_{adder}" in on}
        happen(np.any(list(grants.values()), axis=0), _GRANT, lambda i: (
            next(adder for adder, granted in grants.items() if granted[i]),
            int(added[i]), int(by[i])))
        happen(on["end"], _END, lambda i: None)
        parts = {path: probe("transfer", *path) for path in (
            ("source", "space"), ("source", "address"), ("destination", "space"),
            ("destination", "address"), ("rows",), ("semaphore",), ("signal",), ("signal_other",),
            ("from_host",))}
        happen(on["push"], _PUSH, lambda i: {path: int(part[i]) for path, part in parts.items()})
        happen(on["clear"], _CLEAR, lambda i: None)
        for number in np.flatnonzero(on["reset"]).tolist():
            events.append((int(begins[number]), _RESET, core, int(ends[number])))
        return events


_STRAIGHT, _AGAIN, _HELD = range(3)
_KINDS = _HELD + len(WAITS) + 1
_OFFSET = 1 << 32
"""More than any address, so that no key is negative."""


class Tracer:
    """Makes a trace of what was recorded of a chip.

    Parameters
    ----------
    path : path
        The file to write.
    config : Config
        Of the chip.

    Raises
    ------
    OSError
        If the file cannot be written.
    """

    def __init__(self, path: pathlib.Path, config: Config) -> None:
        self._config = config
        self._writer = _Writer(path, config)
        self._host = config.cores + 1
        self._cores = [_Core(self._writer, config, core, core + 1) for core in range(config.cores)]
        self._sides = [_Side() for _ in self._cores]
        self._later: list[_Event] = []
        self._writer.process(self._host, "host")
        self._host_tid = self._host * _PITCH
        self._writer.track(self._host, self._host_tid, _HOST_TRACK)
        self._now = 0

    def feed(self, records: Sequence[Words], now: int) -> None:
        """Goes on to cycle ``now``.

        Parameters
        ----------
        records : sequence of array of uint32, shape (records, 2 + words)
            Of each core, since the last time: the number of a cycle, low word first, and what was
            shown (`sim.trace.probes.record_layout`) from that cycle on, to the next record.
        now : int
            The number of the next cycle.
        """
        events: list[_Event] = list(self._later)
        for tracks, table in zip(self._cores, records, strict=True):
            cycles = table[:, 0].astype(np.int64) | table[:, 1].astype(np.int64) << 32
            events += tracks.feed(cycles, table[:, 2:], now)
        # A heap, because some of them cause others. Equal times and orders of one core do not
        # happen but for a reset; the number keeps the comparison off the rest.
        heap = [(cycle, order, core, number, what)
                for number, (cycle, order, core, what) in enumerate(events)]
        heapq.heapify(heap)
        self._later = []
        while heap:
            cycle, order, core, number, what = heapq.heappop(heap)
            if cycle >= now:
                self._later.append((cycle, order, core, what))
                continue
            for extra in self._follow(cycle, order, core, what):
                number = len(events)
                events.append(extra)
                heapq.heappush(heap, (extra[0], extra[1], extra[2], number, extra[3]))
        self._now = now

    def close(self) -> None:
        """Completes the file; closing twice does nothing."""
        try:
            for core in self._cores:
                core.close()
            for number, side in enumerate(self._sides):
                while side.transfers:
                    self._end_transfer(number, self._now, "goes on behind the trace")
        finally:
            self._sides = [_Side() for _ in self._cores]
            self._writer.close()

    def _follow(self, cycle: int, order: int, core: int, what: Any) -> list[_Event]:
        """Follows an event; returns those that it causes."""
        side, pid, tids = self._sides[core], self._cores[core].pid, self._cores[core].tids
        if order == _GRANT:
            adder, index, amount = what
            return [(cycle + 1, _ADD, core, (index, amount,
                                             self._origin(cycle, core, adder, index, amount)))]
        if order == _BUNDLE:
            code, index, amount = what
            semaphore = side.semaphores[index]
            if code is MiscOp.SIGNAL:
                semaphore.add(amount, _Place(pid, tids[_SLOT_TRACKS[Slot.MISC]], cycle))
            else:
                origin = semaphore.take(amount)
                if origin is not None:
                    self._writer.arrow(f"semaphore {index}", origin,
                                       _Place(pid, tids[_WAITS], cycle))
        elif order == _WRITE:
            index, value = what
            side.semaphores[index].set(
                value, self._host_acts(cycle, f"core {core} semaphore {index} = {value}"))
        elif order == _ADD:
            index, amount, origin = what
            if cycle >= side.reset_until:
                side.semaphores[index].add(amount, origin)
        elif order == _PUSH:
            side.transfers.append(self._transfer(cycle, what))
        elif order == _END and side.transfers:
            self._end_transfer(core, cycle + 1)
        elif order in (_CLEAR, _RESET):
            while side.transfers:
                self._end_transfer(core, cycle + 1, "given up")
            side.clear()
            if order == _RESET:
                side.reset_until = what
                side.semaphores = _Side().semaphores
        return []

    def _origin(self, cycle: int, core: int, adder: str, index: int, amount: int
                ) -> _Place | None:
        """Where an addition from outside the core's program came from."""
        other = len(self._cores) - 1 - core
        if adder == "host":
            return self._host_acts(cycle, f"core {core} semaphore {index} + {amount}")
        if adder == "other_program":
            peer = self._cores[other]
            return _Place(peer.pid, peer.tids[_SLOT_TRACKS[Slot.MISC]], cycle)
        if adder == "engine":
            return self._sides[core].signalled[0]
        return self._sides[other].signalled[1]

    def _host_acts(self, cycle: int, what: str) -> _Place:
        self._writer.slice(self._host, self._host_tid, what, cycle, cycle + 1)
        return _Place(self._host, self._host_tid, cycle)

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
        """The oldest transfer of a core's engine ends before cycle ``end``."""
        side, tracks = self._sides[core], self._cores[core]
        transfer = side.transfers.popleft()
        tid = tracks.tids[_PLACES[side.ended % QUEUE_DEPTH]]
        side.ended += 1
        args = transfer.args | ({"ended": how} if how else {})
        self._writer.slice(tracks.pid, tid, transfer.name, transfer.begin, end, args)
        for number, signals in enumerate(transfer.signals):
            if signals and not how:
                side.signalled[number] = _Place(tracks.pid, tid, end - 1)
