"""Joins kernels between which no other code lies, so that they overlap.

While one kernel waits for its last results, the next one starts. For example, the array then
receives the next kernel's first weights, and independent reductions share the cross-lane unit.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from sim.compiler.graph.ir import Location
from sim.compiler.machine.emit import JOINED, Code, emit
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import MachineCode, operations
from sim.compiler.machine.join import join
from sim.compiler.machine.layout import Options
from sim.compiler.machine.loops import sizes
from sim.compiler.machine.registers.coloring import RegisterPressureError
from sim.compiler.machine.text import dump_kernel
from sim.compiler.passes import dump_folder
from sim.compiler.program.code.transfers import Rows, TransferWords
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.records import Records

__all__ = ["Joiner", "Part"]

_OPERATIONS = 1024
"""Maximum number of operations that kernels joined with one another have together."""
_CYCLES = 8192
"""A kernel of more predicted cycles is not joined: joining would save a small share of its time."""
_PRICE, _COMPACT_PRICE = 1, 4
"""Number of cycles that joining must save for each bundle that it adds to the code. A bundle that
does not fit instruction memory takes a cycle to load. The second number is for a program whose code
shall stay in instruction memory (`Context.compact`)."""
_LONG = 1024
"""A kernel with at least this number of predicted cycles is *long*: a loop takes most of them.

No other code overlaps with that loop. So if the registers do not suffice for all kernels together,
two groups may be faster. The first group ends with the long kernel; the second one has those after
it."""


@dataclass(frozen=True)
class Part:
    """A kernel that may be joined with others.

    Attributes
    ----------
    machine : MachineCode
        The kernel on virtual registers.
    code : Code
        Its code if it is not joined.
    symbols : mapping of str to Rows or TransferWords
        HBM rows and descriptors for the symbols in the code.
    record : KernelRecord
        What a report shows of the kernel.
    cycles : int
        Predicted cycles of the code, without those of transfers that it starts.
    """

    machine: MachineCode
    code: Code
    symbols: Mapping[str, Rows | TransferWords]
    record: KernelRecord
    cycles: int

    @property
    def may_join(self) -> bool:
        """Whether the kernel may be joined: it transfers no HBM rows itself and is not too long."""
        return (not any(isinstance(word, Rows) for word in self.symbols.values())
                and self.cycles <= _CYCLES and self.operations <= _OPERATIONS)

    @cached_property
    def operations(self) -> int:
        """Number of operations, those of loops counted once."""
        return sum(1 for _ in operations(self.machine.body))


class Joiner:
    """Appends kernels to the stream, joined where that is predicted to be faster.

    Parameters
    ----------
    context : Context
    records : Records
        Receives the records of kernels; kernels that are joined have one record together.

    Attributes
    ----------
    growth : int
        Number of bundles by which joined kernels are longer than separate ones so far.
    """

    def __init__(self, context: Context, records: Records) -> None:
        self._config = context.config
        self._stream = context.stream
        self._price = _COMPACT_PRICE if context.compact else _PRICE
        self._clock = context.places.memory.clock
        self._records = records
        self._parts: list[Part] = []
        self.growth = 0
        # The ways to schedule that are left for kernels like those tried before; none if it does
        # not pay to join them.
        self._tried: dict[tuple[object, ...], tuple[Options, ...]] = {}

    def add(self, part: Part) -> None:
        """Append a kernel; if it may be joined, its code is written when other code follows it."""
        if not part.may_join:
            self._write(part)
            return
        whole = part.operations + sum(other.operations for other in self._parts)
        if not self._stream.is_deferring or whole > _OPERATIONS:
            self._stream.defer(self._write_parts)
        self._parts.append(part)

    def _write_parts(self) -> None:
        parts, self._parts = self._parts, []
        separate = sum(part.cycles for part in parts)
        self.growth -= sum(len(part.code) for part in parts)
        for part in self._joined(parts):
            self._write(part)
            separate -= part.cycles
            self.growth += len(part.code)
        self._clock.run(-separate)

    def _write(self, part: Part) -> None:
        self._records.add(part.record, self._stream.here)
        self._stream.stamp()
        self._stream.kernel(part.code, part.symbols)

    def _joined(self, parts: Sequence[Part]) -> list[Part]:
        """Return what replaces consecutive parts: one kernel for all, or the kernels of two groups.

        The first group ends with the longest part, if that is long; else it is the first half of
        the parts. Each group may be divided in the same way.
        """
        if len(parts) < 2:
            return [*parts]
        joined = self._join(parts)
        longest = max(parts, key=lambda part: part.cycles)
        first = parts.index(longest) + 1
        if longest.cycles < _LONG or first == len(parts):
            if joined is not None:
                return [joined]
            first = len(parts) // 2
        split = [*self._joined(parts[:first]), *self._joined(parts[first:])]
        return split if joined is None or _cycles(split) < joined.cycles else [joined]

    def _join(self, parts: Sequence[Part]) -> Part | None:
        """Return one kernel that does the work of all parts; None if it is not faster.

        The cycles that are saved must pay for the growth of the code (`_price`). If they do not,
        the last of `_ways`, which unrolls the least, is tried instead.
        """
        alike = tuple((part.record.kind, part.cycles, len(part.code), part.operations)
                      for part in parts)
        # Kernels that differ only in their addresses have the same outcome, with few exceptions.
        ways = self._tried.get(alike)
        if ways == ():
            return None
        machine = join([part.machine for part in parts])
        ways, self._tried[alike] = ways or _ways(machine), ()
        whole, bundles = (sum(part.cycles for part in parts), sum(len(part.code) for part in parts))
        while ways:
            with suppress(RegisterPressureError):
                code = emit(machine, self._config, ladder=ways[:1])
                cycles = estimate(code)
                if whole - cycles > max(0, self._price * (len(code) - bundles)):
                    break
                ways = ways[-2:]
            ways = ways[1:]
        else:
            return None
        self._tried[alike] = ways
        records = [part.record for part in parts]
        kind = "+".join(dict.fromkeys(record.kind for record in records))
        if (folder := dump_folder()) is not None:
            dump_kernel(folder / "kernels", kind, machine, code)
        symbols = {name: word for part in parts for name, word in part.symbols.items()}
        return Part(machine, code, symbols, KernelRecord(
            kind, _location(records), len(code), cycles,
            sum(record.rows for record in records), sum(record.products for record in records),
            sum(record.vector_operations for record in records)), cycles)


def _ways(machine: MachineCode) -> tuple[Options, ...]:
    """Return those of `JOINED` that unroll fewer loops of ``machine`` than all before them."""
    found, loops = [JOINED[0]], sizes(machine.body)
    for options in JOINED[1:]:
        if any(options.unrolled < size <= found[-1].unrolled for size in loops):
            found.append(options)
    return tuple(found)


def _cycles(parts: Sequence[Part]) -> int:
    """Return the predicted cycles of parts that run one after the other, unjoined.

    Each begins with an empty bundle for the profiler (`Stream.stamp`).
    """
    return sum(part.cycles + 1 for part in parts)


def _location(records: Sequence[KernelRecord]) -> Location | None:
    """Return the source location for the record of joined kernels.

    Its file and line are those of the kernel with the most cycles; its name lists the lines of the
    other kernels.
    """
    longest = max(records, key=lambda record: record.cycles).location
    places = dict.fromkeys(f"{record.location.file}:{record.location.line}" for record in records
                           if record.location is not None and record.location.file)
    if longest is None or not longest.file or len(places) < 2:
        return longest
    del places[f"{longest.file}:{longest.line}"]
    return replace(longest, name=f"and {', '.join(places)}")
