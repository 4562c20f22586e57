"""The sequencer's surroundings, and the checks of what it issues.

`SequencerUnits` and `Outside` take the place of the units, of the DMA engine and of the other core.
`SequencerChecker` compares each issue with the bundle's fields. Where a golden core executes the
program, it also compares the order of the issues and the operands.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from golden.core import GoldenCore
from hdl import isa
from hdl.core.interface import WAITS
from hdl.core.scoreboard import VECTOR_LATENCIES
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import unpack
from hdl.isa import (
    LOAD_LATENCY,
    SEMAPHORES,
    VECTOR_FLAG,
    Fault,
    Kind,
    MiscOp,
    PushOp,
    Slot,
    Unit,
    VectorOp,
)
from hdl.vpu.interface import V1_DELAY
from hdl.vpu.random import IterativeRandom, Random
from verif.models.sequencer_oracle import Parts, descriptor_fault

__all__ = ["Issue", "Outside", "SequencerChecker", "SequencerUnits", "TracingCore", "UnitTiming"]

UNIT_PORTS = ("v0", "v1", "load", "store", "push_x", "push_w", "pop", "xlu")
WRITERS = ("v0", "v1", "load", "chain")
READERS = ("x", "w", "xlu")


@dataclass(frozen=True)
class Issue:
    """The issue of a bundle.

    Attributes
    ----------
    pc : int
        Address of the bundle.
    values : dict of str to int
        Expected values of the outputs to the units, without those that may have any value.
    """

    pc: int
    values: dict[str, int]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value:#x}" for name, value in self.values.items() if value)
        return f"bundle {self.pc}: {shown or 'nothing'}"


class _Reader:
    """Decodes the next bundle of a golden core, and reads its scalar sources from that core.

    Parameters
    ----------
    golden : GoldenCore
        A golden core in its state before it executes the bundle.
    """

    def __init__(self, golden: GoldenCore) -> None:
        self._scalars = golden.scalars
        self._pc = golden.pc
        slots, self._imm, _ = unpack(golden.program[golden.pc])
        self._values = {f"{port}__valid": 0 for port in UNIT_PORTS}
        for slot, fields in slots.items():
            operation = isa.operation(slot, fields["op"])
            if operation is not None and slot not in (Slot.S0, Slot.S1) and (
                    operation.unit is not Unit.SEMAPHORE):
                self._take(slot, operation, fields)

    def issue(self) -> Issue:
        return Issue(self._pc, self._values)

    def _source(self, code: int) -> int:
        if code < isa.SCALAR_REGISTERS:
            return int(self._scalars[code])
        if code < isa.FIRST_IMMEDIATE + isa.IMMEDIATES:
            return self._imm[code - isa.FIRST_IMMEDIATE]
        return code - isa.INLINE_BASE & 0xFFFFFFFF

    def _take(self, slot: Slot, operation: isa.Operation, fields: dict[str, int]) -> None:
        port = {Slot.LOAD: "load", Slot.STORE: "store", Slot.POP: "pop",
                Slot.MISC: "xlu"}.get(slot, str(slot))
        if slot is Slot.PUSH:
            port = "push_x" if operation.op in (PushOp.ROWS, PushOp.ROWS_SWAP) else "push_w"
        values = {"valid": 1}
        if slot in (Slot.V0, Slot.V1, Slot.MISC):
            values["op"] = fields["op"]
        if slot is Slot.PUSH:
            values["flag"] = operation.op in (PushOp.ROWS_SWAP, PushOp.WEIGHTS_T)
        if slot in (Slot.LOAD, Slot.STORE):
            values["address"] = (int(self._scalars[fields["a"]])
                                 + self._source(fields["b"])) & 0xFFFFFFFF
        for operand in operation.operands:
            number, kind = fields[operand.field], operand.kind
            name = "source" if slot is Slot.PUSH else operand.field
            if kind is Kind.SCALAR_IN:
                continue
            if kind is Kind.SOURCE:
                if slot is Slot.MISC:
                    values["amount"] = self._source(number)
                continue
            if kind is Kind.VECTOR_SOURCE:
                values["use_scalar"] = int(not number & isa.VECTOR_FLAG)
                if values["use_scalar"]:
                    values["scalar"] = self._source(number)
                    continue
                number ^= isa.VECTOR_FLAG
            values[name] = number
        for name, value in values.items():
            self._values[f"{port}__{name}"] = int(value)


class TracingCore(GoldenCore):
    """A golden core that records the bundles that it executes.

    Attributes
    ----------
    trace : list of Issue
    """

    trace: list[Issue]

    def _execute(self, max_bundles: int) -> int:
        """Executes bundles like `GoldenCore`, and records them."""
        if not hasattr(self, "trace"):
            self.trace = []
        for executed in range(max_bundles):
            issue = (_Reader(self).issue() if self.running and self.pc < len(self.program)
                     else None)
            if not super()._execute(1):
                return executed
            assert issue is not None
            self.trace.append(issue)
        return max_bundles


@dataclass
class UnitTiming:
    """Delays and readiness of the modelled units.

    Attributes
    ----------
    late : int or None
        Maximum number of cycles by which a result of the vector unit is late. None: every result
        comes in the same cycle as in the real unit.
    ready : float
        Share of cycles in which a feeder, the collector or the cross-lane unit accepts an
        operation.
    free : float
        How often a feeder or the cross-lane unit, when it accepts an operation, reads the source
        register in the next cycle: a share of the cycles in which it is ready.
    slow : int
        Maximum number of cycles by which it reads the register later than in the next cycle, in the
        other cycles in which it is ready.
    urgent : float
        Share of cycles in which the host needs the read port of vector memory; also the share in
        which it needs the write port.
    """

    late: int | None = None
    ready: float = 1.0
    free: float = 1.0
    slow: int = 0
    urgent: float = 0.0


@dataclass
class SequencerUnits:
    """A model of the units: when they read and write registers, but not what they compute.

    The units are the vector unit, feeders, collector and cross-lane unit. Registers hold tokens
    instead of values: a token is the number of the latest write to the register. Each unit reads
    and writes in the cycles in which the real unit would, or in other cycles that its ports allow.
    A read must find the token that the previous bundles left in the register.

    ``steady`` models the units of a core with ``issue_cycles`` = 3. There, a unit that is ready or
    free remains so until a bundle issues. Slot v1 is `V1_DELAY` cycles behind v0, both slots write
    through one port, and random numbers take more cycles.
    """

    timing: UnitTiming
    rng: np.random.Generator
    steady: bool = False
    vectors: list[int] = field(default_factory=lambda: [0] * 32)
    masks: list[int] = field(default_factory=lambda: [0] * 8)
    wanted_vectors: list[int] = field(default_factory=lambda: [0] * 32)
    wanted_masks: list[int] = field(default_factory=lambda: [0] * 8)
    writes: dict[str, dict[int, tuple[int, int]]] = field(
        default_factory=lambda: {port: {} for port in WRITERS})
    mask_writes: dict[str, dict[int, tuple[int, int]]] = field(
        default_factory=lambda: {"v0": {}, "v1": {}})
    reads: dict[int, list[tuple[str, int, int]]] = field(
        default_factory=lambda: defaultdict(list))
    pending: dict[str, tuple[int, int] | None] = field(
        default_factory=lambda: dict.fromkeys(READERS))
    shown: dict[str, bool] = field(default_factory=dict)
    held: dict[str, bool] = field(default_factory=dict)
    tokens: int = 0
    checked: int = 0
    random_until: int = 0

    def inputs(self, cycle: int) -> dict[str, int]:
        """Values of the sequencer's inputs in this cycle."""
        values = {}
        draws = iter(self.rng.random(18).tolist())
        for port in WRITERS:
            d = self.writes[port].get(cycle)
            values[f"written__{port}__valid"] = int(d is not None)
            values[f"written__{port}__d"] = d[0] if d else int(32 * next(draws))
        for port in ("v0", "v1"):
            d = self.mask_writes[port].get(cycle)
            values[f"mask_written__{port}__valid"] = int(d is not None)
            values[f"mask_written__{port}__d"] = d[0] if d else int(8 * next(draws))
        for reader in READERS:
            waiting = self.pending[reader]
            later = waiting is not None and waiting[1] > cycle
            values[f"{reader}_pending__valid"] = int(later)
            values[f"{reader}_pending__d"] = waiting[0] if waiting else int(32 * next(draws))
            ready = not later and (next(draws) < self.timing.ready
                                   or self.held.get(f"{reader}_ready", False))
            free = ready and (next(draws) < self.timing.free
                              or self.held.get(f"{reader}_free", False))
            values[f"{reader}_ready"] = int(ready)
            values[f"{reader}_free"] = int(free)
        values["pop_ready"] = int(next(draws) < self.timing.ready
                                  or self.held.get("pop_ready", False))
        for port in ("read", "write"):
            values[f"urgent_{port}"] = int(next(draws) < self.timing.urgent)
        self.show(values)
        return values

    def show(self, values: Mapping[str, int]) -> None:
        """Stores the inputs that say which units are ready, so that an issue can be checked."""
        self.shown = {name: bool(value) for name, value in values.items()
                      if name.endswith(("ready", "free")) or name.startswith("urgent")}
        self.held = self.shown if self.steady else {}

    def check_hazards(self, cycle: int, parts: Parts) -> None:
        """Checks that a bundle may issue in this cycle.

        Raises
        ------
        AssertionError
            If the bundle needs a register that awaits a write, overwrites one that is still to be
            read, or needs a unit that is not ready.
        """
        reads = {("v", d) for d in parts.all_named(Kind.VECTOR_IN, Kind.VECTOR_SOURCE)} | {
            ("m", d) for d in parts.all_named(Kind.MASK_IN)}
        writes = {("v", d) for d in parts.all_named(Kind.VECTOR_OUT)} | {
            ("m", d) for d in parts.all_named(Kind.MASK_OUT)}
        awaited = {(file, entry[0]) for file, ports in (("v", self.writes), ("m", self.mask_writes))
                   for port in ports.values() for due, entry in port.items() if due > cycle}
        early = sorted((reads | writes) & awaited)
        assert not early, f"cycle {cycle}: a bundle issues before {early} are written"
        unread = {("v", waiting[0]) for waiting in self.pending.values()
                  if waiting is not None and waiting[1] > cycle}
        overwritten = sorted(writes & unread)
        assert not overwritten, f"cycle {cycle}: a bundle overwrites {overwritten} before the read"
        for slot, port in ((Slot.LOAD, "read"), (Slot.STORE, "write")):
            assert not (slot in parts.operations and self.shown[f"urgent_{port}"]), (
                f"cycle {cycle}: a {slot} issues although the host needs the memory's port")
        assert Slot.POP not in parts.operations or self.shown["pop_ready"], (
            f"cycle {cycle}: a pop issues although none is ready")
        misc = parts.operations.get(Slot.MISC)
        assert misc is None or misc.unit != Unit.XLU or self.shown["xlu_ready"], (
            f"cycle {cycle}: a cross-lane operation issues although the unit is not ready")

    def issue(self, cycle: int, parts: Parts) -> None:
        """Checks that a bundle may issue in this cycle, and plans its reads and writes."""
        self.check_hazards(cycle, parts)
        self.held = {}
        for slot, entry in parts.operations.items():
            vectors = parts.named(slot, Kind.VECTOR_IN, Kind.VECTOR_SOURCE)
            if slot in (Slot.PUSH, Slot.MISC):
                for register in vectors:
                    reader = ("xlu" if slot == Slot.MISC else "x"
                              if entry.op in (PushOp.ROWS, PushOp.ROWS_SWAP) else "w")
                    self._read_later(cycle, reader, register, any(
                        register in parts.named(other, Kind.VECTOR_OUT)
                        for other in parts.operations if other is not slot))
            else:
                for register in vectors:
                    self.reads[cycle + 1 + self._behind(slot)].append(
                        ("vector", register, self.wanted_vectors[register]))
            for mask in parts.named(slot, Kind.MASK_IN):
                self.reads[cycle + 1 + self._behind(slot)].append(
                    ("mask", mask, self.wanted_masks[mask]))
            if entry.op is VectorOp.RANDOM and self.steady:
                assert cycle >= self.random_until, f"cycle {cycle}: random numbers are not ready"
                self.random_until = cycle + IterativeRandom.latency
        for slot, entry in parts.operations.items():
            for register in parts.named(slot, Kind.VECTOR_OUT):
                self.tokens += 1
                self.wanted_vectors[register] = self.tokens
                self._write(cycle, slot, entry.unit, register, entry.op)
            for mask in parts.named(slot, Kind.MASK_OUT):
                self.tokens += 1
                self.wanted_masks[mask] = self.tokens
                self._plan(self.mask_writes[slot],
                           cycle + VECTOR_LATENCIES[entry.unit] + self._behind(slot), mask)

    def _behind(self, slot: Slot) -> int:
        """Number of cycles by which a slot's operations execute later than those of other slots."""
        return V1_DELAY if self.steady and slot == Slot.V1 else 0

    def _read_later(self, cycle: int, reader: str, register: int, overwritten: bool) -> None:
        assert self.shown[f"{reader}_ready"], f"cycle {cycle}: {reader} is not ready"
        assert self.shown[f"{reader}_free"] or not overwritten, (
            f"cycle {cycle}: {reader} reads v{register} too late: the same bundle overwrites it")
        read = cycle + 1
        if not self.shown[f"{reader}_free"]:
            read += int(self.rng.integers(self.timing.slow + 1))
        self.pending[reader] = register, read
        self.reads[read].append(("vector", register, self.wanted_vectors[register]))

    def _write(self, cycle: int, slot: Slot, unit: Unit, register: int, op: IntEnum) -> None:
        if unit in VECTOR_LATENCIES:
            latency = VECTOR_LATENCIES[unit] + self._behind(slot)
            if self.steady and op is VectorOp.RANDOM:
                latency += IterativeRandom.latency - Random.latency
            other = self.writes["v1" if slot == Slot.V0 else "v0"] if self.steady else {}
            assert self.timing.late is not None or cycle + latency not in other, (
                f"v0 and v1 write in cycle {cycle + latency}")
            self._plan(self.writes[slot], cycle + latency, register)
        elif unit == Unit.VMEM:
            self._plan(self.writes["load"], cycle + LOAD_LATENCY, register)
        else:
            # The cross-lane unit's result comes after its source was read, a pop's at any time.
            after = cycle + self._behind(Slot.V1)
            if unit == Unit.XLU and (waiting := self.pending["xlu"]):
                after = max(after, waiting[1])
            late = 1 + int(self.rng.integers(1 + (self.timing.late or 0)))
            while after + late in self.writes["chain"]:
                late += 1
            self.writes["chain"][after + late] = register, self.tokens

    def _plan(self, port: dict[int, tuple[int, int]], cycle: int, register: int) -> None:
        if self.timing.late is None:
            assert cycle not in port, f"two writes through one port in cycle {cycle}"
        else:
            cycle += int(self.rng.integers(self.timing.late + 1))
            while cycle in port:
                cycle += 1
        port[cycle] = register, self.tokens

    def finish(self, cycle: int) -> None:
        """Performs the reads of this cycle, then the writes."""
        for kind, register, wanted in self.reads.pop(cycle, ()):
            found = (self.vectors if kind == "vector" else self.masks)[register]
            assert found == wanted, f"{kind} {register} in cycle {cycle}: {found}, not {wanted}"
            self.checked += 1
        for ports, registers in ((self.writes, self.vectors), (self.mask_writes, self.masks)):
            for port in ports.values():
                if cycle in port:
                    register, token = port.pop(cycle)
                    registers[register] = token

    def clear(self) -> None:
        """Forgets what is under way: the sequencer has been reset."""
        for ports in (self.writes, self.mask_writes):
            for port in ports.values():
                port.clear()
        self.reads.clear()
        self.pending.update(dict.fromkeys(READERS))
        self.random_until = 0
        self.wanted_vectors[:] = self.vectors
        self.wanted_masks[:] = self.masks

    def expect_all_written(self) -> None:
        """Checks that every register has the token of the last bundle that writes it."""
        for name, got, want in (("v", self.vectors, self.wanted_vectors),
                                ("m", self.masks, self.wanted_masks)):
            wrong = [f"{name}{number}" for number in range(len(want))
                     if got[number] != want[number]]
            assert not wrong, f"not written as often as asked for: {', '.join(wrong)}"

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (any(self.writes.values()) or any(self.mask_writes.values()) or self.reads)


@dataclass
class Outside:
    """The DMA engine and the other core, which accept descriptors and signals at random times.

    ``together`` is the number of a descriptor's words that the engine reads in one cycle, as
    `descriptor_words` returns it.
    """

    rng: np.random.Generator
    pace: float = 1.0
    together: int = 1
    address: int | None = None
    reading: int | None = None
    words: list[int] = field(default_factory=list)
    ready: bool = False
    taking: bool = False
    transfers: list[tuple[int, ...]] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)

    def inputs(self) -> dict[str, int]:
        """Values of the sequencer's inputs in this cycle."""
        values = {f"dma__{name}": int(self.rng.integers(limit)) for name, limit in (
            ("read_address", 1 << 16), ("fault", 16))}
        wanted = len(self.words) + (0 if self.reading is None else self.together)
        read = self.address is not None and not self.ready and wanted < DESCRIPTOR_WORDS and (
            self.rng.random() < self.pace)
        if self.ready:
            values["dma__fault"] = descriptor_fault(self.words).value
        if read:
            assert self.address is not None
            values["dma__read_address"] = self.address + wanted
        self._reads = wanted if read else None
        self.taking = self.rng.random() < self.pace
        return values | {"dma__read": int(read), "dma__ready": int(self.ready),
                         "other_signal__ready": int(self.taking)}

    def finish(self, peek: Callable[[str], int]) -> None:
        """Processes the outputs of the cycle, after its inputs have been set."""
        if self.reading is not None:
            data = peek("dma__data")
            self.words += [data >> 32 * number & 0xFFFF_FFFF for number in range(self.together)]
        self.reading = self._reads
        valid, taken = peek("dma__valid"), peek("dma__taken")
        if taken:
            assert valid, "a descriptor is taken that was not offered"
            assert self.ready, "a descriptor is taken before the engine is ready"
            fault = descriptor_fault(self.words)
            assert fault == Fault.NONE, f"a descriptor with {fault!r} is taken: {self.words}"
            self.transfers.append(tuple(self.words))
        if not valid or taken:
            self.address, self.reading, self.words, self.ready = None, None, [], False
        else:
            address = peek("dma__address")
            assert self.address in (None, address), (
                f"the descriptor's address on offer became {address}, it was {self.address}")
            self.address = address
            self.ready |= len(self.words) == DESCRIPTOR_WORDS and self.rng.random() < self.pace
        if peek("other_signal__valid") and self.taking:
            payload = peek("other_signal__payload")
            self.signals.append((payload % SEMAPHORES, payload // SEMAPHORES))


class SequencerChecker:
    """The surroundings of the sequencer, and the checks of what it issues.

    In each cycle of a running program, the sequencer issues a bundle, reports one reason to wait,
    or does neither; it never does two of these. While no program runs, it does neither. The outputs
    at an issue equal the bundle's fields; without an issue, no operation is valid. No bundle issues
    before its operands are available (`SequencerUnits`).

    An adapter applies `inputs` and then calls `end` in each cycle.

    Parameters
    ----------
    seed : int
    timing : UnitTiming, optional
    steady : bool
        See `SequencerUnits`; true if the sequencer's ``issue_cycles`` is 3.
    together : int
        Number of a descriptor's words that the engine reads in one cycle (`descriptor_words`).

    Attributes
    ----------
    units : SequencerUnits
    outside : Outside
    program : dict of int to int
        Bundles by address; addresses without one hold an empty bundle.
    issued : list of (int, int)
        Cycle and address of each issue.
    waits : dict of str to int
        Number of cycles in which the sequencer waited, by reason.
    golden : deque of Issue
        Expected issues, if `expect` was called; they are compared in order.
    checked : int
        Number of issues that were compared with golden ones.
    """

    def __init__(self, seed: int = 0, timing: UnitTiming | None = None,
                 steady: bool = False, together: int = 1) -> None:
        self.units = SequencerUnits(timing or UnitTiming(), np.random.default_rng(seed), steady)
        self.outside = Outside(np.random.default_rng([seed, 1]), self.units.timing.ready, together)
        self.program: dict[int, int] = {}
        self.issued: list[tuple[int, int]] = []
        self.waits = dict.fromkeys(WAITS, 0)
        self.golden: deque[Issue] | None = None
        self.checked = 0

    def restart(self) -> None:
        """Forgets what is under way: the sequencer has been reset."""
        self.units.clear()
        self.outside = Outside(self.outside.rng, self.outside.pace, self.outside.together)

    def drop_expected(self) -> None:
        """Forgets the expected issues: a reset has ended the program."""
        if self.golden is not None:
            self.golden.clear()

    def expect(self, issues: Iterable[Issue]) -> None:
        """Adds the issues of a golden core: from now on each issue must be the next of them."""
        if self.golden is None:
            self.golden = deque()
        self.golden.extend(issues)

    def expect_done(self) -> None:
        """Checks that all expected issues have come, and that all registers were written.

        Raises
        ------
        AssertionError
            If an expected issue or a write is missing.
        """
        self.units.expect_all_written()
        if self.golden is not None:
            assert not self.golden, (
                f"{len(self.golden)} bundles did not issue; the first is {self.golden[0]}")

    def inputs(self, cycle: int) -> dict[str, int]:
        """The sequencer's inputs in this cycle, except those of the host."""
        return self.units.inputs(cycle) | self.outside.inputs()

    def end(self, cycle: int, peek: Callable[[str], int]) -> None:
        """Ends a cycle, and checks its outputs; ``peek`` returns the output with a given name.

        Raises
        ------
        AssertionError
            If an output is wrong.
        """
        waits = [wait for wait in WAITS if peek(f"waiting_{wait}")]
        for wait in waits:
            self.waits[wait] += 1
        issue, running = peek("issue"), peek("running")
        assert len(waits) + issue <= running, (
            f"cycle {cycle}, pc {peek('pc')}: running is {running}, issue is {issue}, waits are "
            f"{waits}; only one issue or one wait is allowed, and only while a program runs")
        if issue:
            self._issue(cycle, peek)
        else:
            for port in UNIT_PORTS:
                assert not peek(f"{port}__valid"), (
                    f"cycle {cycle}: {port} is valid, but no bundle issues")
            assert not peek("dma__taken"), (
                f"cycle {cycle}: a transfer starts, but no bundle issues")
        self.units.finish(cycle)
        self.outside.finish(peek)

    def _issue(self, cycle: int, peek: Callable[[str], int]) -> None:
        pc = peek("pc")
        if self.golden is not None:
            assert self.golden, f"cycle {cycle}: bundle {pc} issues, but none is expected"
            want = self.golden.popleft()
            assert pc == want.pc, f"cycle {cycle}: bundle {pc} issues, not {want}"
            for name, value in want.values.items():
                assert peek(name) == value, (
                    f"cycle {cycle}: {name} is {peek(name):#x}, not {value:#x}; {want}")
            self.checked += 1
        parts = Parts.of(self.program.get(pc, 0))
        self.issued.append((cycle, pc))
        self._check_ports(parts, peek)
        self.units.issue(cycle, parts)

    def _check_ports(self, parts: Parts, peek: Callable[[str], int]) -> None:
        """Compares the outputs to the units with the bundle's fields."""
        def expect(name: str, want: int) -> None:
            assert peek(name) == want, f"{name} is {peek(name)}, not {int(want)}"

        def check(port: str, slot: Slot, valid: bool, *names: str) -> None:
            expect(f"{port}__valid", valid)
            for name in names if valid else ():
                expect(f"{port}__{name}", parts.fields[slot][name])

        entries = parts.operations
        for slot in (Slot.V0, Slot.V1):
            check(slot, slot, slot in entries, "op", "d", "a", "m")
            for register in parts.named(slot, Kind.VECTOR_SOURCE):
                expect(f"{slot}__b", register)
                expect(f"{slot}__use_scalar", 0)
            if slot in entries and parts.fields[slot]["b"] < VECTOR_FLAG and any(
                    operand.kind == Kind.VECTOR_SOURCE for operand in entries[slot].operands):
                expect(f"{slot}__use_scalar", 1)
            if slot in entries and any(operand.kind == Kind.MASK_IN and operand.field == "b"
                                       for operand in entries[slot].operands):
                expect(f"{slot}__b", parts.fields[slot]["b"])
        check("load", Slot.LOAD, Slot.LOAD in entries, "d")
        check("store", Slot.STORE, Slot.STORE in entries, "d", "m")
        push = entries[Slot.PUSH].op if Slot.PUSH in entries else None
        check("push_x", Slot.PUSH, push in (PushOp.ROWS, PushOp.ROWS_SWAP))
        check("push_w", Slot.PUSH, push in (PushOp.WEIGHTS, PushOp.WEIGHTS_T))
        if push:
            port = "push_x" if peek("push_x__valid") else "push_w"
            expect(f"{port}__source", parts.fields[Slot.PUSH]["a"])
            expect(f"{port}__flag", push in (PushOp.ROWS_SWAP, PushOp.WEIGHTS_T))
        check("pop", Slot.POP, Slot.POP in entries, "d")
        misc = entries.get(Slot.MISC)
        expect("dma__taken", misc is not None and misc.op == MiscOp.DMA)
        expect("other_signal__valid", misc is not None and misc.op == MiscOp.SIGNAL_OTHER)
        check("xlu", Slot.MISC, misc is not None and misc.unit == Unit.XLU, "op", "d", "a")
