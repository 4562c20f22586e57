"""Bench of the vector unit: its driver with an interlock, its chains, and the golden machine.

What issues is executed by the golden machine at once; the interlock sees to it that hardware cannot
tell the difference. It goes by what the unit says was written, and issues in the first cycle in
which it may, so that all results are used as early as possible.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import Kind, LoadOp, Operation, Slot, Unit, VectorOp
from hdl.vpu.interface import HostSpace
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.benches.core.host import RowPort
from verif.benches.ports import Ports
from verif.benches.rows import pack_row
from verif.system.programs import random_words

__all__ = ["CORE_WORDS", "OPERATIONS", "SOURCES", "Bundle", "VpuBench"]

CORE_WORDS = 32
"""Words of vector memory, from address 0 on, that loads and stores use."""
OPERATIONS = {slot: [operation for operation in isa.OPERATIONS if slot in operation.slots]
              for slot in (Slot.V0, Slot.V1, Slot.LOAD, Slot.STORE)}
_ISSUE = {Slot.V0: ("v0", "valid op d a b use_scalar scalar m"),
          Slot.V1: ("v1", "valid op d a b use_scalar scalar m"),
          Slot.LOAD: ("load", "valid d address"), Slot.STORE: ("store", "valid d address m")}
SOURCES = {slot: 1 + number for number, slot in enumerate(OPERATIONS)}
"""Scalar register of the golden machine that holds each slot's scalar operand."""


@dataclass(frozen=True)
class Write:
    """A register (``file`` v) or mask (m) to be written by ``port``, ``latency`` after issue."""

    file: str
    number: int
    port: str
    latency: int


class Bundle:
    """Operations that issue together.

    Parameters
    ----------
    fields : mapping of slot to fields
        As in a bundle of `hdl.isa`. A scalar operand is the slot's register of `SOURCES`.
    scalars : mapping of slot to int
        Values of the scalar operands: second operands of vector operations, and addresses.
    """

    def __init__(self, fields: dict[Slot, dict[str, int]], scalars: dict[Slot, int]) -> None:
        self.scalars = scalars
        self.code = pack(fields)
        self.ports: dict[Slot, dict[str, int]] = {}
        self.reads: set[tuple[str, int]] = set()
        self.writes: list[Write] = []
        for slot, own in fields.items():
            operation = isa.operation(slot, own["op"])
            assert operation is not None
            self._add(slot, operation, own)

    def _add(self, slot: Slot, operation: Operation, fields: dict[str, int]) -> None:
        values = {"valid": 1, "op": fields["op"]}
        if operation.unit is Unit.VMEM:
            values = {"valid": 1, "address": self.scalars[slot]}
        for operand in operation.operands:
            number, kind = fields.get(operand.field, 0), operand.kind
            if kind in (Kind.SCALAR_IN, Kind.SOURCE):
                continue
            if kind is Kind.VECTOR_SOURCE:
                values["use_scalar"] = int(not number & isa.VECTOR_FLAG)
                if values["use_scalar"]:
                    values["scalar"] = self.scalars[slot]
                    continue
                number ^= isa.VECTOR_FLAG
            values[operand.field] = number
            file = "m" if kind in (Kind.MASK_IN, Kind.MASK_OUT) else "v"
            if kind in (Kind.VECTOR_OUT, Kind.MASK_OUT):
                self.writes.append(Write(file, number, _ISSUE[slot][0],
                                         isa.LATENCIES[operation.unit]))
            else:
                self.reads.add((file, number))
        self.ports[slot] = values


class _Chain:
    """A chain of rows out of a register: its model and its ports.

    Parameters
    ----------
    dut : HierarchyObject
        The vector unit.
    name : str
        ``x``, ``w`` or ``xlu``, which recirculates.
    """

    def __init__(self, dut: HierarchyObject, name: str) -> None:
        self._ports = Ports(dut, f"{name}_chain", ("load", "source", "shift"))
        self._row = pin(dut, f"{name}_row")
        self._name = name
        self.clear()

    def clear(self) -> None:
        self._ports.zero()
        # None is a row that nobody knows.
        self._rows: deque[int | None] = deque([None])
        self._loaded: list[int] | None = None
        self._shift = False
        self.checked = 0

    def drive(self, source: int | None, word: NDArray[np.uint32], shift: bool) -> None:
        """For this cycle: load ``source``, which holds ``word``, unless that is None; or shift."""
        self._loaded = None if source is None else [pack_row(row) for row in word]
        self._shift = shift
        self._ports.drive(load=int(source is not None), shift=int(shift))
        if source is not None:
            self._ports.drive(source=source)

    def end_cycle(self) -> None:
        """Compares the southmost row, and does what was driven."""
        want = self._rows[0]
        if want is not None:
            got = int(self._row.value)
            assert got == want, f"{self._name}_row is {got:x}, not {want:x}"
            self.checked += 1
        if self._loaded is not None:
            self._rows = deque(self._loaded)
        elif self._shift:
            row = self._rows.popleft()
            self._rows.append(row if self._name == "xlu" else None)


class VpuBench:
    """A vector unit with its interlock, chains, host, and golden machine.

    Attributes
    ----------
    config : Config
    rng : random.Random
        Of the bench's decisions, seeded with the test's seed.
    rows : RowPort
        The host.
    machine : GoldenCore
    gap : float
        Probability of a cycle in which no bundle is tried.
    held : int
        Cycles in which a bundle was held up because the memory's port was the host's.
    chains_busy : float
        How much happens on the chains, 0 to 1.
    issued : list of int
        Cycles of issue.
    written : int
        Writes of registers and masks that came in their cycle.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self.gap = self.chains_busy = 0.0
        self.issued: list[int] = []
        self.written = self.held = 0
        self.domain = ClockDomain(dut)
        self._issue = {slot: Ports(dut, name, members.split())
                       for slot, (name, members) in _ISSUE.items()}
        self._written = {("v", port): Ports(dut, f"written__{port}", ("valid", "d"))
                         for port in ("v0", "v1", "load", "chain")}
        self._written |= {("m", port): Ports(dut, f"mask_written__{port}", ("valid", "d"))
                          for port in ("v0", "v1")}
        self._chains = [_Chain(dut, name) for name in ("x", "w", "xlu")]
        self._entries = [Ports(dut, f"{name}_chain", ("shift", "row"))
                         for name in ("pop", "result")]
        self._chain_write = Ports(dut, "chain_write", ("valid", "d", "from_xlu"))
        self._busy_pin = pin(dut, "busy")
        self._urgent = {Slot.LOAD: pin(dut, "urgent_read"), Slot.STORE: pin(dut, "urgent_write")}
        for ports in (*self._issue.values(), *self._entries, self._chain_write):
            ports.zero()
        self._clear()
        self.domain.start()
        self.rows = RowPort(self.domain, dut, self.rng)
        cocotb.start_soon(self._drive())
        cocotb.start_soon(self._monitor())

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "VpuBench":
        """A bench whose unit has been reset and given random contents."""
        bench = cls(dut)
        await bench.reset()
        return bench

    def _clear(self) -> None:
        self.machine = GoldenCore(self.config)
        self._queue: deque[Bundle] = deque()
        self._outstanding: set[tuple[str, int]] = set()
        self._due: dict[int, dict[tuple[str, str], int]] = {}
        self._entered: list[deque[NDArray[np.uint32]]] = [
            deque(maxlen=self.config.sublanes) for _ in self._entries]
        self._entering: list[NDArray[np.uint32] | None] = [None] * len(self._entries)
        for chain in self._chains:
            chain.clear()

    @property
    def chain_rows(self) -> int:
        """Rows of chains compared since the last reset."""
        return sum(chain.checked for chain in self._chains)

    # What to do

    def send(self, bundles: Iterable[Bundle]) -> None:
        """Queues bundles."""
        self._queue.extend(bundles)

    def operation(self, slot: Slot, operation: Operation, registers: int = 32,
                  taken: set[tuple[str, int]] | None = None) -> tuple[dict[str, int], int] | None:
        """Random fields and scalar operand; None if it would write what is ``taken``."""
        rng = self.rng
        fields = {"op": int(operation.op)}
        scalar = int(random_words(self.numbers, (1,))[0])
        if operation.unit is Unit.VMEM:
            scalar = rng.randrange(CORE_WORDS)
            fields["b"] = SOURCES[slot]
        taken = set() if taken is None else taken
        for operand in operation.operands:
            number = rng.randrange(registers)
            if operand.kind is Kind.VECTOR_SOURCE:
                number = isa.VECTOR_FLAG | number if rng.random() < 0.7 else SOURCES[slot]
            elif operand.kind is Kind.MASK_IN:
                number %= isa.MASKS
            elif operand.kind is Kind.MASK_OUT:
                number = 1 + number % (isa.MASKS - 1)
            elif operand.kind in (Kind.SCALAR_IN, Kind.SOURCE):
                continue
            if operand.kind in (Kind.VECTOR_OUT, Kind.MASK_OUT):
                name = ("v" if operand.kind is Kind.VECTOR_OUT else "m", number)
                if name in taken:
                    return None
                taken.add(name)
            fields[operand.field] = number
        return fields, scalar

    def random_bundle(self, registers: int = 32, density: float = 0.6,
                      slots: Iterable[Slot] = tuple(OPERATIONS)) -> Bundle:
        """A bundle of random operations."""
        fields: dict[Slot, dict[str, int]] = {}
        scalars: dict[Slot, int] = {}
        taken: set[tuple[str, int]] = set()
        for slot in slots:
            if self.rng.random() < density:
                made = self.operation(slot, self.rng.choice(OPERATIONS[slot]), registers, taken)
                if made is not None:
                    fields[slot], scalars[slot] = made
        return Bundle(fields, scalars)

    async def reset(self) -> None:
        """Resets the unit; memory, registers and masks get new random contents."""
        self._queue.clear()
        self.gap = self.chains_busy = 0.0
        self.rows.reads.clear()
        self.rows.writes.clear()
        await self.domain.reset()
        self.rows.clear()
        self._clear()
        words = [*range(CORE_WORDS), *self.host_words]
        for address in words:
            self.machine.vmem[address] = random_words(self.numbers, self.machine.vmem[0].shape)
            self.rows.write(address, self.machine.vmem[address])
        await self.rows.drain()
        for number in range(isa.VECTOR_REGISTERS):
            self.send([Bundle({Slot.LOAD: {"op": LoadOp.LOAD, "d": number,
                                           "b": SOURCES[Slot.LOAD]}},
                              {Slot.LOAD: number % CORE_WORDS})])
        for number in range(1, isa.MASKS):
            self.send([Bundle({Slot.V0: {"op": VectorOp.LT, "d": number, "a": number,
                                         "b": isa.VECTOR_FLAG | number + isa.MASKS}}, {})])
        await self.drain()

    @property
    def host_words(self) -> range:
        """Words of vector memory that only the host uses."""
        return range(self.config.vmem_vectors - 8, self.config.vmem_vectors)

    async def drain(self) -> None:
        """Waits until all that was sent has issued and written."""
        while self._queue or self._outstanding or self._due:
            await self.domain.edge
        await self.domain.cycles(3)
        assert not self._busy_pin.value, "busy, but nothing is outstanding"

    async def compare(self) -> None:
        """Reads all registers and masks, and the memory that is used, and compares them."""
        await self.drain()
        self.chains_busy = 0.0
        await self.domain.cycles(2)
        for number, word in enumerate(self.machine.vectors):
            self.rows.expect(HostSpace.VREG, number, word)
        self.rows.expect_masks(self.machine.masks)
        for address in (*range(CORE_WORDS), *self.host_words):
            self.rows.expect(HostSpace.VMEM, address, self.machine.vmem[address])
        await self.rows.drain()
        self.rows.finish()

    # What happens in each cycle

    async def _drive(self) -> None:
        while True:
            await self.domain.middle
            if self.domain.resetting:
                self._quiet()
                continue
            before = set(self._outstanding)
            for (file, port), ports in self._written.items():
                if port != "chain" and ports["valid"]:
                    self._outstanding.discard((file, ports["d"]))
            self._drive_chains(before)
            self._drive_issue()

    def _quiet(self) -> None:
        for ports in (*self._issue.values(), self._chain_write):
            ports.drive(valid=0)
        for ports in self._entries:
            ports.drive(shift=0)

    def _drive_chains(self, outstanding: set[tuple[str, int]]) -> None:
        """Registers outstanding at the cycle's begin cannot be read by a chain, or written."""
        rng, busy = self.rng, self.chains_busy
        for chain in self._chains:
            source: int | None = rng.randrange(isa.VECTOR_REGISTERS)
            if ("v", source) in outstanding or rng.random() >= 0.25 * busy:
                source = None
            word = self.machine.vectors[source or 0]
            chain.drive(source, word, rng.random() < busy)
        from_xlu, d = rng.randrange(2), rng.randrange(isa.VECTOR_REGISTERS)
        full = len(self._entered[from_xlu]) == self.config.sublanes
        writes = full and rng.random() < 0.3 * busy and ("v", d) not in outstanding
        self._chain_write.drive(valid=int(writes))
        if writes:
            self._chain_write.drive(d=d, from_xlu=from_xlu)
            self.machine.vectors[d] = np.array(self._entered[from_xlu])
            self._due.setdefault(self.domain.now, {})["v", "chain"] = d
        for number, ports in enumerate(self._entries):
            row = random_words(self.numbers, (self.config.lanes,)) if rng.random() < busy else None
            self._entering[number] = row
            ports.drive(shift=int(row is not None))
            if row is not None:
                ports.drive(row=pack_row(row))

    def _drive_issue(self) -> None:
        now = self.domain.now
        bundle = None
        if self._queue and self.rng.random() >= self.gap and self._may_issue(self._queue[0], now):
            bundle = self._queue.popleft()
            self._execute(bundle, now)
        for slot, ports in self._issue.items():
            values = {"valid": 0} if bundle is None else bundle.ports.get(slot, {"valid": 0})
            if values["valid"]:
                # What no operand needs must not matter.
                noise = {name: self.rng.getrandbits(width) for name, width in (
                    ("a", 5), ("b", 5), ("d", 5), ("m", 3), ("scalar", 32), ("use_scalar", 1))
                    if name in _ISSUE[slot][1].split()}
                values = noise | values
            ports.drive(**values)

    def _may_issue(self, bundle: Bundle, now: int) -> bool:
        if any(slot in bundle.ports and urgent.value for slot, urgent in self._urgent.items()):
            self.held += 1
            return False
        needs = bundle.reads | {(write.file, write.number) for write in bundle.writes}
        # A slot has one port for registers and masks.
        return not needs & self._outstanding and not any(
            (file, write.port) in self._due.get(now + write.latency, {})
            for write in bundle.writes for file in "vm")

    def _execute(self, bundle: Bundle, now: int) -> None:
        machine = self.machine
        for slot, value in bundle.scalars.items():
            machine.scalars[SOURCES[slot]] = value
        machine.load_program([bundle.code])
        machine.start()
        assert machine.step(), f"{bundle.ports} must be legal, not {machine.fault!r}"
        machine.stop()
        self.issued.append(now)
        for write in bundle.writes:
            self._outstanding.add((write.file, write.number))
            self._due.setdefault(now + write.latency, {})[write.file, write.port] = write.number

    async def _monitor(self) -> None:
        while True:
            await self.domain.edge
            if self.domain.resetting:
                continue
            cycle = self.domain.now - 1
            got = {name: ports["d"] for name, ports in self._written.items() if ports["valid"]}
            want = self._due.pop(cycle, {})
            assert got == want, f"written in cycle {cycle}: {got}, not {want}"
            self.written += len(want)
            for chain in self._chains:
                chain.end_cycle()
            for entered, row in zip(self._entered, self._entering, strict=True):
                if row is not None:
                    entered.append(row)
