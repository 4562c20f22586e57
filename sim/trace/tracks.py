"""The tracks of a core, and the slices that its records put on them.

Each track of `CoreTracks` follows from the records of one core alone. Events that involve several
units, such as semaphores and transfers, are returned as `Event`\\ s for `sim.trace.tracer`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from amaranth.lib import data

from hdl.config import Config
from hdl.core.counters import COUNTERS
from hdl.core.interface import WAITS
from hdl.dma.interface import QUEUE_DEPTH
from hdl.isa import BUNDLE_BITS, OPERATIONS, SLOTS, Fault, MiscOp, Slot
from sim.asm.disassembler import disassemble
from sim.trace.probes import ADDERS, Values, read_probe, record_layout
from sim.trace.writer import TraceWriter

__all__ = ["CAUSES", "CYCLES", "PROGRAM", "SEMAPHORE_TRACK", "SLOT_TRACKS", "TRACKS",
           "TRACK_PITCH", "TRANSFER_TRACKS", "CoreTracks", "Event", "Kind"]

Words = npt.NDArray[np.uint32]
Bits = npt.NDArray[np.bool_]

CYCLES, PROGRAM, SEMAPHORE_TRACK = "cycles", "program", "semaphores"
_ROWS, _WEIGHTS, _RESULTS = "array: rows", "array: weights", "array: results"
_CROSS_LANE, _ROWS_IN, _ROWS_OUT = "cross-lane unit", "DMA: rows in", "DMA: rows out"
SLOT_TRACKS = {slot: f"slot {slot}" for slot in SLOTS}
TRANSFER_TRACKS = tuple(f"DMA: transfer {place}" for place in range(QUEUE_DEPTH))
TRACKS = (CYCLES, PROGRAM, SEMAPHORE_TRACK, _ROWS, _WEIGHTS, _RESULTS, _CROSS_LANE,
          *SLOT_TRACKS.values(), *TRANSFER_TRACKS, _ROWS_IN, _ROWS_OUT)
"""Tracks of a core, in the order in which they are shown."""
TRACK_PITCH = 100
"""Track ``i`` of process ``pid`` has the number ``pid * TRACK_PITCH + i``; a process of a trace is
a core or the host. So all tracks have different numbers, and none has the number of its process: a
viewer would take such a track for the main thread.
"""
CAUSES = tuple(counter.removesuffix("_cycles").replace("_", " ") for counter in COUNTERS)
"""Names of the causes to which cycles are charged, in the order of `COUNTERS`."""
_FIRST_WAIT = COUNTERS.index(f"{WAITS[0]}_wait_cycles")

_NOTHING = -1
"""Key of a cycle in which a track shows no slice."""
# Kinds of slices on the program's track, as their keys encode them: consecutive bundles, one bundle
# that is issued repeatedly, one bundle that is held (a kind for each cause).
_STRAIGHT, _AGAIN, _HELD = range(3)
_KINDS = _HELD + len(WAITS) + 1
_OFFSET = 1 << 32
"""Added to keys so that none is negative; it is larger than any address."""


class Kind(IntEnum):
    """Kinds of events, in the order in which the hardware performs them within a cycle.

    An addition to a semaphore is granted in one cycle, and takes place in the next cycle, after the
    operation of the bundle that issues in this next cycle.
    """

    GRANT = 0
    BUNDLE = 1
    WRITE = 2
    ADD = 3
    END = 4
    PUSH = 5
    CLEAR = 6
    RESET = 7


class Event(NamedTuple):
    """An event at a semaphore or in a transfer of a core.

    ``what`` holds further values, such as the semaphore's number; which ones depends on ``kind``.
    """

    cycle: int
    kind: Kind
    core: int
    what: Any


Detail = Callable[[int], Any]
Describe = Callable[[int, int, Any, Any], tuple[str, dict[str, Any] | None]]


@functools.lru_cache(maxsize=1 << 14)
def _text(bundle: int) -> str:
    return disassemble(bundle)


@functools.cache
def _operation_names(slot: Slot) -> dict[int, str]:
    return {operation.op.value: operation.name for operation in OPERATIONS
            if slot in operation.slots and operation.op.name != "NOP"}


class _Track:
    """A track that joins adjacent cycles with the same key to one slice.

    A *key* is a number that encodes what the track shows in a cycle.

    Parameters
    ----------
    writer : TraceWriter
        Receives the slices.
    pid, tid : int
        The track's process and number.
    describe : callable
        Returns a slice's name and arguments, given its key, its number of cycles, and the details
        of its first and its last cycle.
    """

    def __init__(self, writer: TraceWriter, pid: int, tid: int, describe: Describe) -> None:
        self._writer = writer
        self._pid, self._tid = pid, tid
        self._describe = describe
        self._key = _NOTHING
        self._begin = self._end = 0
        self._first: Any = None
        self._last: Any = None

    def feed(self, begins: Values, ends: Values, keys: Values, detail: Detail) -> None:
        """Adds spans of cycles; adjacent spans with equal keys become one slice.

        Span i lasts from cycle ``begins[i]`` up to, but not including, cycle ``ends[i]``, where the
        next span must begin. The first span of the next call must begin where the last one of this
        call ends. ``detail`` returns details of a span, given its number.
        """
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
        """Writes the open slice."""
        if self._key != _NOTHING:
            name, args = self._describe(self._key, self._end - self._begin, self._first, self._last)
            self._writer.slice(self._pid, self._tid, name, self._begin, self._end, args)
        self._key = _NOTHING


@dataclass(frozen=True)
class _Spans:
    """Spans of cycles, in each of which a core shows one record.

    Attributes
    ----------
    begins, ends : array of int64
        First cycle of each span, and first cycle after it.
    words : array of uint32, shape (spans, words)
        The records.
    layout : StructLayout
        Layout of the records.
    """

    begins: Values
    ends: Values
    words: Words
    layout: data.StructLayout

    def probe(self, *path: str) -> Values:
        """Values, one for each record, of the field at ``path`` (`read_probe`)."""
        return read_probe(self.layout, self.words, *path)

    @functools.cached_property
    def on(self) -> dict[str, Bits]:
        """For each one-bit field, by name, its values: one for each record."""
        return {name: self.probe(name).astype(bool) for name, member in self.layout
                if member.width == 1}

    @functools.cached_property
    def pc(self) -> Values:
        """Address of each record's bundle."""
        return self.probe("pc")

    @functools.cached_property
    def misc_op(self) -> Values:
        """Operation in slot misc of each record's bundle."""
        return self.probe("bundle", str(Slot.MISC), "op")

    @functools.cached_property
    def misc_index(self) -> Values:
        """Number of the semaphore on which slot misc of each record's bundle operates."""
        return self.probe("bundle", str(Slot.MISC), "d")

    @functools.cached_property
    def amount(self) -> Values:
        """Amount of each record's operation on a semaphore."""
        return self.probe("amount")

    @functools.cached_property
    def _bundle_offset(self) -> int:
        return int(self.layout["bundle"].offset)  # looked up once, because it takes a while

    def bundle(self, index: int) -> tuple[int, int]:
        """Address and encoding of the bundle in record number ``index``."""
        value = int.from_bytes(self.words[index].astype("<u4").tobytes(), "little")
        return (int(self.pc[index]),
                value >> self._bundle_offset & (1 << BUNDLE_BITS) - 1)


def _where(condition: Bits, key: Values | int = 0) -> Values:
    return np.where(condition, key, _NOTHING)


def _no_detail(index: int) -> None:
    return None


class CoreTracks:
    """Writes the tracks of a core that depend only on the records of this core.

    Parameters
    ----------
    writer : TraceWriter
        Receives the slices.
    config : Config
        Parameters of the chip.
    number : int
        Number of the core.
    pid : int
        Number of the core's process in the trace.
    chip : str
        Begins the name of this process.
    """

    def __init__(self, writer: TraceWriter, config: Config, number: int, pid: int,
                 chip: str = "") -> None:
        self.pid = pid
        self._layout = record_layout(config)
        self._writer = writer
        self._number = number
        self._until = 0
        self._last: Words | None = None
        self._swaps = self._waits = 0
        self._fault = 0
        self.tids = {name: pid * TRACK_PITCH + number for number, name in enumerate(TRACKS)}
        writer.process(pid, f"{chip}core {number}")
        for name, tid in self.tids.items():
            writer.track(pid, tid, name)
        describe: dict[str, Describe] = {
            CYCLES: _describe_cycles, PROGRAM: _describe_program,
            SEMAPHORE_TRACK: lambda key, cycles, first, last: (
                f"wait for {first[0]}", {"amount": first[1], "bundle": first[2]}),
            _ROWS: lambda key, cycles, first, last: (
                "rows, new weights" if first else "rows", {"rows": cycles}),
            _WEIGHTS: lambda key, cycles, first, last: (
                "columns" if first else "rows", {"rows": cycles}),
            _CROSS_LANE: lambda key, cycles, first, last: ("busy", None),
            **dict.fromkeys((_RESULTS, _ROWS_IN, _ROWS_OUT), _describe_rows),
            **{name: _describe_slot(slot) for slot, name in SLOT_TRACKS.items()}}
        self._tracks = {name: _Track(writer, pid, self.tids[name], text)
                        for name, text in describe.items()}

    def feed(self, cycles: Values, words: Words, now: int) -> list[Event]:
        """Adds the cycles before ``now``.

        Parameters
        ----------
        cycles : array of int64
            First cycle of each record since the last call.
        words : array of uint32, shape (records, words)
            The records.
        now : int
            Number of the next cycle.

        Returns
        -------
        list of Event
            Events of these cycles at the semaphores and transfers of the core.
        """
        if self._last is not None and (not len(cycles) or cycles[0] > self._until):
            cycles = np.concatenate([[self._until], cycles])
            words = np.concatenate([self._last[np.newaxis], words])
        if not len(cycles) or now <= int(cycles[0]):
            return []
        self._until, self._last = now, words[-1].copy()
        spans = _Spans(cycles, np.append(cycles[1:], now), words, self._layout)
        self._feed_program(spans)
        self._feed_units(spans)
        self._feed_waits(spans)
        self._mark_faults(spans)
        return self._events(spans)

    def close(self) -> None:
        """Writes all open slices."""
        for track in self._tracks.values():
            track.close()

    def _feed(self, spans: _Spans, name: str, keys: Values, detail: Detail = _no_detail) -> None:
        self._tracks[name].feed(spans.begins, spans.ends, keys, detail)

    def _feed_program(self, spans: _Spans) -> None:
        """Adds slices to the tracks that show the bundle at issue and the cause of each cycle."""
        on = spans.on
        self._feed(spans, CYCLES, _where(~on["reset"], _causes(spans)), spans.bundle)
        self._feed(spans, PROGRAM, _where(on["valid"] & ~on["reset"], _steps(spans)), spans.bundle)
        for slot, name in SLOT_TRACKS.items():
            codes = spans.probe("bundle", str(slot), "op")
            known = np.isin(codes, list(_operation_names(slot)))
            self._feed(spans, name, _where(on["issue"] & known, codes))

    def _feed_units(self, spans: _Spans) -> None:
        """Adds slices to the tracks of the array, the cross-lane unit and the DMA engine's rows."""
        on = spans.on
        swaps = on["x_accepted"] & on["swap"]
        self._feed(spans, _ROWS, _where(on["x_accepted"], self._swaps + np.cumsum(swaps)),
                   lambda index: bool(swaps[index]))
        self._swaps += int(swaps.sum())
        self._feed(spans, _WEIGHTS, _where(on["w_accepted"]),
                   lambda index: bool(on["transpose"][index]))
        for name, probed in ((_RESULTS, "result"), (_CROSS_LANE, "cross_lane"),
                             (_ROWS_IN, "row_in"), (_ROWS_OUT, "row_out")):
            self._feed(spans, name, _where(on[probed]))

    def _feed_waits(self, spans: _Spans) -> None:
        """Adds the waits for semaphores to their track."""
        on = spans.on
        waits = on["valid"] & (spans.misc_op == MiscOp.WAIT.value)
        passed = waits & on["issue"]
        # A wait ends in the cycle in which it issues. A later wait, even of the same bundle, gets a
        # slice of its own.
        self._feed(spans, SEMAPHORE_TRACK,
                   _where(waits & (on["issue"] | on["waiting_semaphore"]),
                          self._waits + np.cumsum(passed) - passed),
                   lambda i: (f"semaphore {spans.misc_index[i]}", int(spans.amount[i]),
                              _text(spans.bundle(i)[1])))
        self._waits += int(passed.sum())

    def _mark_faults(self, spans: _Spans) -> None:
        faults = spans.probe("fault")
        for index in np.flatnonzero(np.diff(faults, prepend=self._fault)):
            if faults[index]:
                self._writer.mark(self.pid, self.tids[PROGRAM],
                                  f"fault {Fault(int(faults[index])).name}",
                                  int(spans.begins[index]), {"at": int(spans.pc[index])})
        self._fault = int(faults[-1])

    def _events(self, spans: _Spans) -> list[Event]:
        """Returns the events of semaphores and transfers in these records."""
        on, probe = spans.on, spans.probe
        events: list[Event] = []

        def happen(when: Bits, kind: Kind, what: Callable[[int], Any]) -> None:
            for index in np.flatnonzero(when).tolist():
                events.extend(
                    Event(cycle, kind, self._number, what(index))
                    for cycle in range(int(spans.begins[index]), int(spans.ends[index])))

        op, index, amount = spans.misc_op, spans.misc_index, spans.amount
        happen(on["issue"] & np.isin(op, (MiscOp.WAIT.value, MiscOp.SIGNAL.value)), Kind.BUNDLE,
               lambda i: (MiscOp(int(op[i])), int(index[i]), int(amount[i])))
        written, value = probe("write_index"), probe("write_value")
        happen(on["write"], Kind.WRITE, lambda i: (int(written[i]), int(value[i])))
        added, by = probe("addition", "index"), probe("addition", "amount")
        grants = {adder: on[f"grant_{adder}"] for adder in ADDERS if f"grant_{adder}" in on}
        happen(np.any(list(grants.values()), axis=0), Kind.GRANT, lambda i: (
            next(adder for adder, granted in grants.items() if granted[i]),
            int(added[i]), int(by[i])))
        happen(on["end"], Kind.END, lambda i: None)
        parts = {path: probe("transfer", *path) for path in (
            ("source", "space"), ("source", "address"), ("destination", "space"),
            ("destination", "address"), ("rows",), ("semaphore",), ("signal",), ("signal_other",),
            ("from_host",))}
        happen(on["push"], Kind.PUSH,
               lambda i: {path: int(part[i]) for path, part in parts.items()})
        happen(on["clear"], Kind.CLEAR, lambda i: None)
        for number in np.flatnonzero(on["reset"]).tolist():
            events.append(Event(int(spans.begins[number]), Kind.RESET, self._number,
                                int(spans.ends[number])))
        return events


def _causes(spans: _Spans) -> Values:
    """Key of each span on the track of causes.

    The key encodes the cause to which its cycles are charged, as in `hdl.core.counters`; for a
    wait, also the address of the bundle that is held.
    """
    names = ("x_accepted", "w_accepted", *(f"waiting_{wait}" for wait in WAITS))
    cause = np.select([spans.on[name] for name in names], range(len(names)), len(names))
    of_bundle = (cause >= _FIRST_WAIT) & (cause < len(names))
    return cause + len(CAUSES) * np.where(of_bundle, spans.pc, 0)


def _steps(spans: _Spans) -> Values:
    """Key of each span on the program's track.

    Adjacent spans with equal keys become one slice. A slice shows bundles that issue at successive
    addresses, one bundle that issues repeatedly, or one bundle that is held for one reason.
    """
    on, pc = spans.on, spans.pc
    alone = spans.ends - spans.begins > 1
    wait = np.select([on[f"waiting_{wait}"] for wait in WAITS], range(len(WAITS)), len(WAITS))
    return np.where(
        on["issue"],
        # In straight code the address grows with the cycle.
        np.where(alone, _KINDS * pc + _AGAIN, _KINDS * (spans.begins - pc + _OFFSET) + _STRAIGHT),
        _KINDS * pc + _HELD + wait)


def _describe_rows(key: int, cycles: int, first: Any, last: Any) -> tuple[str, dict[str, Any]]:
    return "rows", {"rows": cycles}


def _describe_slot(slot: Slot) -> Describe:
    names = _operation_names(slot)
    return lambda key, cycles, first, last: (names.get(key, f"operation {key}"), None)


def _describe_cycles(key: int, cycles: int, first: tuple[int, int], last: Any
                     ) -> tuple[str, dict[str, Any] | None]:
    cause = key % len(CAUSES)
    if not _FIRST_WAIT <= cause < _FIRST_WAIT + len(WAITS):
        return CAUSES[cause], None
    return CAUSES[cause], {"at": first[0], "bundle": _text(first[1])}


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
