"""What a sequencer issues: the golden order of it, its monitor, and units that take their time.

The units compute nothing. They say at random times that a register was written or is still to be
read, and the monitor checks that no bundle issues too early, and that each is the one, with all its
operands, that the golden machine executes next.
"""

import random
from collections import deque
from dataclasses import dataclass

import cocotb
from cocotb.handle import HierarchyObject

from golden.core import GoldenCore
from hdl import isa
from hdl.encoding import unpack
from hdl.isa import Kind, PushOp, Slot, Unit
from verif.benches.clocking import ClockDomain, pin
from verif.benches.ports import Ports
from verif.models.scoreboard import Scoreboard

__all__ = ["Issue", "IssueMonitor", "TracingMachine", "UnitTiming", "Units"]

_PORTS = ("v0", "v1", "load", "store", "push_x", "push_w", "pop", "xlu")
_WRITE_PORTS = ("v0", "v1", "load", "chain")
_READERS = ("x", "w", "xlu")


@dataclass(frozen=True)
class Write:
    """A register or mask that an issued operation is to write.

    ``file`` is ``v`` or ``m``; ``port`` the write port; ``latency`` the true one, if it is fixed.
    """

    file: str
    number: int
    port: str
    latency: int | None


@dataclass(frozen=True)
class Issue:
    """A bundle at issue.

    Attributes
    ----------
    pc : int
    values : dict of str to int
        What the outputs to the units must be, those that mean something.
    reads : frozenset of (str, int)
        Vector registers and masks, as ``("v", number)`` and ``("m", number)``.
    writes : tuple of Write
    sources : tuple of (str, int, bool)
        Readers that take a register later, which, and whether another slot overwrites it.
    """

    pc: int
    values: dict[str, int]
    reads: frozenset[tuple[str, int]]
    writes: tuple[Write, ...]
    sources: tuple[tuple[str, int, bool], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value:#x}" for name, value in self.values.items() if value)
        return f"bundle {self.pc}: {shown or 'nothing'}"


class _Reader:
    """Takes a bundle apart, with the values that its scalar sources have before it.

    Parameters
    ----------
    machine : GoldenCore
        In the state before the bundle.
    """

    def __init__(self, machine: GoldenCore) -> None:
        self._scalars = machine.scalars
        self._pc = machine.pc
        slots, self._imm, _ = unpack(machine.program[machine.pc])
        self._values = {f"{port}__valid": 0 for port in _PORTS}
        self._reads: set[tuple[str, int]] = set()
        self._writes: list[tuple[Slot, Write]] = []
        self._sources: list[tuple[Slot, str, int]] = []
        for slot, fields in slots.items():
            operation = isa.operation(slot, fields["op"])
            if operation is not None and slot not in (Slot.S0, Slot.S1) and (
                    operation.unit is not Unit.SEMAPHORE):
                self._take(slot, operation, fields)

    def issue(self) -> Issue:
        sources = tuple(
            (reader, number, any(slot is not own and (write.file, write.number) == ("v", number)
                                 for own, write in self._writes))
            for slot, reader, number in self._sources)
        return Issue(self._pc, self._values, frozenset(self._reads),
                     tuple(write for _, write in self._writes), sources)

    def _source(self, code: int) -> int:
        if code < isa.SCALAR_REGISTERS:
            return int(self._scalars[code])
        if code < isa.FIRST_IMMEDIATE + isa.IMMEDIATES:
            return self._imm[code - isa.FIRST_IMMEDIATE]
        return code - isa.INLINE_BASE & 0xFFFFFFFF

    def _take(self, slot: Slot, operation: isa.Operation, fields: dict[str, int]) -> None:
        port = {Slot.LOAD: "load", Slot.STORE: "store", Slot.POP: "pop",
                Slot.MISC: "xlu"}.get(slot, str(slot))
        reader = "xlu"
        if slot is Slot.PUSH:
            reader = "x" if operation.op in (PushOp.ROWS, PushOp.ROWS_SWAP) else "w"
            port = f"push_{reader}"
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
            if kind in (Kind.VECTOR_OUT, Kind.MASK_OUT):
                write_port = port if port in _WRITE_PORTS else "chain"
                self._writes.append((slot, Write("v" if kind is Kind.VECTOR_OUT else "m", number,
                                                 write_port, isa.LATENCIES.get(operation.unit))))
            elif kind is Kind.MASK_IN:
                self._reads.add(("m", number))
            else:
                self._reads.add(("v", number))
                if slot in (Slot.PUSH, Slot.MISC):
                    self._sources.append((slot, reader, number))
        for name, value in values.items():
            self._values[f"{port}__{name}"] = int(value)


class TracingMachine(GoldenCore):
    """A golden machine that keeps account of the bundles that it executes.

    Attributes
    ----------
    trace : list of Issue
    """

    trace: list[Issue]

    def step(self) -> bool:
        """As `GoldenCore.step`."""
        if not hasattr(self, "trace"):
            self.trace = []
        issue = (_Reader(self).issue() if self.running and self.pc < len(self.program)
                 else None)
        executed = super().step()
        if executed:
            assert issue is not None
            self.trace.append(issue)
        return executed


@dataclass(frozen=True)
class UnitTiming:
    """How the units behave.

    Attributes
    ----------
    late : int
        Most cycles by which a vector result is late; pops and cross-lane results are anyway.
    ready, free : float
        Probabilities of a unit to take an operation, and to read its source at once.
    slow : int
        Most cycles for which a register waits to be read.
    urgent : float
        Probability that the host needs a port of vector memory, for each of the two.
    """

    late: int = 0
    ready: float = 1.0
    free: float = 1.0
    slow: int = 0
    urgent: float = 0.0


class Units:
    """Vector unit, feeders, collector and cross-lane unit, by what the sequencer sees of them.

    Parameters
    ----------
    dut : HierarchyObject
        The sequencer.
    rng : random.Random
        Decides about times.

    Attributes
    ----------
    timing : UnitTiming
    """

    def __init__(self, dut: HierarchyObject, rng: random.Random) -> None:
        self.timing = UnitTiming()
        self._rng = rng
        self._written = {port: Ports(dut, f"written__{port}", ("valid", "d"))
                         for port in _WRITE_PORTS}
        self._mask_written = {port: Ports(dut, f"mask_written__{port}", ("valid", "d"))
                              for port in ("v0", "v1")}
        self._pending_ports = {reader: Ports(dut, f"{reader}_pending", ("valid", "d"))
                               for reader in _READERS}
        self._ready_pins = {name: pin(dut, name) for name in (
            "x_ready", "w_ready", "xlu_ready", "x_free", "w_free", "xlu_free", "pop_ready",
            "urgent_read", "urgent_write")}
        self._shown: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forgets what is under way: a reset."""
        self._due: dict[tuple[str, str], list[tuple[int, int]]] = {
            **{("v", port): [] for port in _WRITE_PORTS},
            **{("m", port): [] for port in ("v0", "v1")}}
        self._waiting: dict[str, tuple[int, int]] = {}
        self.outstanding: set[tuple[str, int]] = set()
        self._accepted: dict[str, tuple[bool, bool]] = dict.fromkeys(_READERS, (False, False))
        self._show(0)

    @property
    def idle(self) -> bool:
        """Whether nothing is outstanding."""
        return not self.outstanding and not self._waiting

    def check(self, issue: Issue) -> None:
        """Whether the bundle may issue in the cycle that ends now.

        Raises
        ------
        AssertionError
            If it needs something that is outstanding, or a unit that is not ready.
        """
        written = {(write.file, write.number) for write in issue.writes}
        early = (issue.reads | written) & self.outstanding
        assert not early, f"{issue}: issued before {sorted(early)} were written"
        pending = {("v", number) for number, _ in self._waiting.values()}
        assert not written & pending, f"{issue}: overwrites what is still to be read"
        for reader, _, overwritten in issue.sources:
            ready, free = self._accepted[reader]
            assert ready, f"{issue}: {reader} was not ready"
            assert free or not overwritten, f"{issue}: {reader} would read too late"
        if issue.values["pop__valid"]:
            assert self._shown["pop_ready"], f"{issue}: no pop was possible"
        for port, access in (("load", "read"), ("store", "write")):
            assert not (issue.values[f"{port}__valid"] and self._shown[f"urgent_{access}"]), (
                f"{issue}: a {port} when the memory's port was the host's")

    def cycle(self, now: int, issue: Issue | None) -> None:
        """What the units say in the cycle after ``now``, in which a bundle may have issued."""
        rng = self._rng
        if issue is not None:
            for write in issue.writes:
                self.outstanding.add((write.file, write.number))
                delay = rng.randint(2, 12) if write.latency is None else (
                    write.latency + rng.randint(0, self.timing.late))
                self._due[write.file, write.port].append((now + delay, write.number))
            for reader, number, overwritten in issue.sources:
                wait = 0 if overwritten else rng.randint(0, self.timing.slow)
                if wait:
                    self._waiting[reader] = number, now + 1 + wait
        self._show(now + 1)

    def _show(self, now: int) -> None:
        rng = self._rng
        for (file, port), queue in self._due.items():
            ports = self._written if file == "v" else self._mask_written
            ripe = [entry for entry in queue if entry[0] <= now]
            if ripe:
                entry = min(ripe) if self.timing.late == 0 else rng.choice(ripe)
                queue.remove(entry)
                self.outstanding.remove((file, entry[1]))
                ports[port].drive(valid=1, d=entry[1])
            else:
                ports[port].drive(valid=0)
        values = {"pop_ready": int(rng.random() < self.timing.ready),
                  "urgent_read": int(rng.random() < self.timing.urgent),
                  "urgent_write": int(rng.random() < self.timing.urgent)}
        for reader in _READERS:
            number, until = self._waiting.get(reader, (0, 0))
            if until <= now:
                self._waiting.pop(reader, None)
            later = reader in self._waiting
            self._pending_ports[reader].drive(valid=int(later), d=number)
            ready = not later and rng.random() < self.timing.ready
            free = ready and rng.random() < self.timing.free
            self._accepted[reader] = ready, free
            values |= {f"{reader}_ready": int(ready), f"{reader}_free": int(free)}
        for name, value in values.items():
            if self._shown.get(name) != value:
                self._ready_pins[name].value = value
        self._shown = values


class IssueMonitor:
    """Watches what a sequencer issues, compares it with the golden order, and drives the units.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The sequencer.
    units : Units
        What it issues to.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, units: Units) -> None:
        self._domain = domain
        self._dut = dut
        self._units = units
        self._issue, self._pc, self._running = (pin(dut, name) for name in (
            "issue", "pc", "running"))
        self._valid = [pin(dut, f"{port}__valid") for port in _PORTS]
        self._waits = [pin(dut, f"waiting_{wait}")
                       for wait in ("vector", "memory", "semaphore", "instruction")]
        self._golden: deque[Issue] = deque()
        self._issues: Scoreboard[dict[str, int]] = Scoreboard("issue", str)
        self.waited = [0] * len(self._waits)
        cocotb.start_soon(self._run())

    @property
    def checked(self) -> int:
        """Bundles compared."""
        return self._issues.checked

    @property
    def empty(self) -> bool:
        """Whether all expected bundles have issued."""
        return not self._golden

    def expect(self, issues: list[Issue]) -> None:
        """The bundles to come, in order."""
        self._golden.extend(issues)

    def clear(self) -> None:
        """Forgets what is to come: a reset."""
        self._golden.clear()

    def finish(self) -> None:
        """Checks that all bundles issued, and that there were any."""
        assert not self._golden, f"{len(self._golden)} bundles did not issue: {self._golden[0]}"
        self._issues.finish()

    async def _run(self) -> None:
        while True:
            await self._domain.edge
            if self._domain.resetting:
                self._units.clear()
                continue
            issue = None
            waits = [int(one.value) for one in self._waits]
            self.waited = [total + one for total, one in zip(self.waited, waits, strict=True)]
            issued = int(self._issue.value)
            assert sum(waits) + issued <= int(self._running.value), "waits and issues at once"
            if issued:
                issue = self._compare()
                self._units.check(issue)
            else:
                assert not any(one.value for one in self._valid), "an operation without an issue"
            self._units.cycle(self._domain.now, issue)

    def _compare(self) -> Issue:
        assert self._golden, f"bundle {int(self._pc.value)} issued, but none is expected"
        issue = self._golden.popleft()
        self._issues.expect({"pc": issue.pc, **issue.values})
        self._issues.check({"pc": int(self._pc.value),
                            **{name: int(pin(self._dut, name).value) for name in issue.values}})
        return issue


