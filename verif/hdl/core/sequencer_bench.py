"""The sequencer between a host and units that are not there, but keep account of every access.

Registers hold tokens instead of values: the number of the write that a register had last. Each
unit reads and writes in the cycles in which the real one would, or in any others that its ports
allow. A read that does not find what the bundles before left there is an error.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hdl.config import Config
from hdl.core.interface import WAITS, Space
from hdl.core.scoreboard import VECTOR_LATENCIES
from hdl.core.sequencer import Sequencer
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import bundle_words, pack, unpack
from hdl.isa import (
    LOAD_LATENCY,
    OPERATIONS,
    SEMAPHORES,
    SLOTS,
    VECTOR_FLAG,
    Fault,
    Kind,
    LoadOp,
    MiscOp,
    PushOp,
    ScalarOp,
    Slot,
    StoreOp,
    Unit,
    VectorOp,
    operation,
)
from hdl.tiles import VerilogLibrary
from hdl.verilog import LINT_WAIVERS
from sim.verilated.build import build_model
from sim.verilated.model import Model
from verif.hdl.core.sequencer_oracle import WORD, Oracle, Parts, descriptor_fault

CONFIG = Config(array=4, sublanes=2, vmem_bytes=11 * 32, smem_words=13, imem_bundles=50)
"""Small, and with sizes that no power of two hides."""
WRITERS = ("v0", "v1", "load", "chain")
READERS = ("x", "w", "xlu")


def open_sequencer(config: Config = CONFIG, *, optimise: bool = False) -> Model:
    sources = VerilogLibrary().write("sequencer", lambda: Sequencer(config))
    return Model(build_model("sequencer", sources, waivers=LINT_WAIVERS, optimise=optimise))


def s(op, d=0, a=0, b=0) -> dict[str, int]:
    """Fields of a scalar operation; also those of loads, stores and miscellaneous operations."""
    return {"op": op.value, "d": d, "a": a, "b": b}


def v(op, d=0, a=0, b=VECTOR_FLAG, m=0) -> dict[str, int]:
    """Fields of a vector operation."""
    return {"op": op.value, "d": d, "a": a, "b": b, "m": m}


def i(value: int) -> int:
    """The source that is a small integer."""
    assert -8 <= value <= 15
    return 48 + value


def bundle(imm: tuple[int, ...] = (), /, **slots: dict[str, int]) -> int:
    return pack({Slot(slot): fields for slot, fields in slots.items()}, imm)


@dataclass
class UnitTiming:
    """How the units behave.

    ``late``: most cycles that a vector result comes later than it should; None: in its true cycle.
    ``ready``, ``free``: shares of cycles in which the other units take an operation, and would read
    its source in the next cycle. ``slow``: most cycles that a register waits to be read.
    ``urgent``: share of cycles in which the host needs a port of vector memory, each of the two.
    """

    late: int | None = None
    ready: float = 1.0
    free: float = 1.0
    slow: int = 0
    urgent: float = 0.0


@dataclass
class Units:
    """Vector unit, feeders, collector and cross-lane unit, as far as registers are concerned."""

    timing: UnitTiming
    rng: np.random.Generator
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
    tokens: int = 0
    checked: int = 0

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
            ready = not later and next(draws) < self.timing.ready
            free = ready and next(draws) < self.timing.free
            values[f"{reader}_ready"] = int(ready)
            values[f"{reader}_free"] = int(free)
        values["pop_ready"] = int(next(draws) < self.timing.ready)
        for port in ("read", "write"):
            values[f"urgent_{port}"] = int(next(draws) < self.timing.urgent)
        self.show(values)
        return values

    def show(self, values: Mapping[str, int]) -> None:
        """Keeps what the sequencer is told about the units, to be checked at an issue."""
        self.shown = {name: bool(value) for name, value in values.items()
                      if name.endswith(("ready", "free")) or name.startswith("urgent")}

    def issue(self, cycle: int, parts: Parts) -> None:
        """A bundle issues in this cycle: its reads and writes are planned."""
        assert not (Slot.LOAD in parts.operations and self.shown["urgent_read"])
        assert not (Slot.STORE in parts.operations and self.shown["urgent_write"])
        for slot, entry in parts.operations.items():
            vectors = parts.named(slot, Kind.VECTOR_IN, Kind.VECTOR_SOURCE)
            if slot in (Slot.PUSH, Slot.MISC):
                for register in vectors:
                    reader = ("xlu" if slot == Slot.MISC else "x"
                              if entry.op in (PushOp.ROWS, PushOp.ROWS_SWAP) else "w")
                    self._read_later(cycle, reader, register)
            else:
                for register in vectors:
                    self.reads[cycle + 1].append(
                        ("vector", register, self.wanted_vectors[register]))
            if slot == Slot.MISC and entry.unit == Unit.XLU:
                assert self.shown["xlu_ready"]
            if slot == Slot.POP:
                assert self.shown["pop_ready"]
            for mask in parts.named(slot, Kind.MASK_IN):
                self.reads[cycle + 1].append(("mask", mask, self.wanted_masks[mask]))
        for slot, entry in parts.operations.items():
            for register in parts.named(slot, Kind.VECTOR_OUT):
                self.tokens += 1
                self.wanted_vectors[register] = self.tokens
                self._write(cycle, slot, entry.unit, register, entry.op)
            for mask in parts.named(slot, Kind.MASK_OUT):
                self.tokens += 1
                self.wanted_masks[mask] = self.tokens
                self._plan(self.mask_writes[slot], cycle + VECTOR_LATENCIES[entry.unit], mask)

    def _read_later(self, cycle: int, reader: str, register: int) -> None:
        assert self.shown[f"{reader}_ready"]
        read = cycle + 1
        if not self.shown[f"{reader}_free"]:
            read += int(self.rng.integers(self.timing.slow + 1))
        self.pending[reader] = register, read
        self.reads[read].append(("vector", register, self.wanted_vectors[register]))

    def _write(self, cycle: int, slot: Slot, unit: Unit, register: int, op) -> None:
        if unit in VECTOR_LATENCIES:
            self._plan(self.writes[slot], cycle + VECTOR_LATENCIES[unit], register)
        elif unit == Unit.VMEM:
            self._plan(self.writes["load"], cycle + LOAD_LATENCY, register)
        else:
            # The cross-lane unit's result comes after its source was read, a pop's at any time.
            after = cycle
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
        """The cycle's reads, then its writes."""
        for kind, register, wanted in self.reads.pop(cycle, ()):
            found = (self.vectors if kind == "vector" else self.masks)[register]
            assert found == wanted, f"{kind} {register} in cycle {cycle}: {found}, not {wanted}"
            self.checked += 1
        for ports, registers in ((self.writes, self.vectors), (self.mask_writes, self.masks)):
            for port in ports.values():
                if cycle in port:
                    register, token = port.pop(cycle)
                    registers[register] = token

    @property
    def idle(self) -> bool:
        return not (any(self.writes.values()) or any(self.mask_writes.values()) or self.reads)


@dataclass
class Outside:
    """What starts transfers and takes signals to the other core, at its own pace."""

    rng: np.random.Generator
    pace: float = 1.0
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
        wanted = len(self.words) + (self.reading is not None)
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
        """Looks at the outputs of the cycle, after its inputs have been set."""
        if self.reading is not None:
            self.words.append(peek("dma__data"))
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


class Bench:
    """A host of the sequencer, and the units."""

    def __init__(self, model: Model, config: Config = CONFIG, timing: UnitTiming | None = None,
                 seed: int = 0) -> None:
        self.model = model
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.units = Units(timing or UnitTiming(), self.rng)
        self.outside = Outside(np.random.default_rng([seed, 1]), self.units.timing.ready)
        self.issued: list[tuple[int, int]] = []
        self.waits = dict.fromkeys(WAITS, 0)
        self.program: dict[int, int] = {}
        self._poked: dict[str, int] = {}
        model.reset()
        for name, port in model.ports.items():
            if port.is_input and name not in ("clk", "rst"):
                self.poke(name, 0)

    def poke(self, name: str, value: int) -> None:
        if self._poked.get(name) != value:
            self.model.poke(name, value)
            self._poked[name] = value

    def peek(self, name: str) -> int:
        return self.model.peek(name)

    def cycle(self) -> None:
        """One clock cycle, with all that the units do in it."""
        now = self.model.cycle
        for name, value in self.units.inputs(now).items():
            self.poke(name, value)
        for name, value in self.outside.inputs().items():
            self.poke(name, value)
        waits = [wait for wait in WAITS if self.peek(f"waiting_{wait}")]
        for wait in waits:
            self.waits[wait] += 1
        issue = self.peek("issue")
        running = self.peek("running")
        assert len(waits) + issue <= running, (
            f"cycle {now}, pc {self.peek('pc')}: running is {running}, issue is {issue}, and it "
            f"waits for {waits}: a cycle of a program has one of these reasons")
        if issue:
            pc = self.peek("pc")
            parts = Parts.of(self.program.get(pc, 0))
            self.issued.append((now, pc))
            self._check_ports(parts)
            self.units.issue(now, parts)
        else:
            for port in ("v0", "v1", "load", "store", "push_x", "push_w", "pop", "xlu"):
                assert not self.peek(f"{port}__valid"), (
                    f"cycle {now}: {port} is valid, but no bundle issues")
            assert not self.peek("dma__taken"), (
                f"cycle {now}: a transfer starts, but no bundle issues")
        self.units.finish(now)
        self.outside.finish(self.peek)
        self.model.tick()

    def _check_ports(self, parts: Parts) -> None:
        """What goes to the units is what the bundle says."""
        def check(port: str, slot: Slot, valid: bool, *names: str) -> None:
            assert self.peek(f"{port}__valid") == valid, port
            for name in names if valid else ():
                own = parts.fields[slot][name]
                assert self.peek(f"{port}__{name}") == own, (port, name)

        entries = parts.operations
        for slot in (Slot.V0, Slot.V1):
            check(slot, slot, slot in entries, "op", "d", "a", "m")
            for register in parts.named(slot, Kind.VECTOR_SOURCE):
                assert self.peek(f"{slot}__b") == register
                assert not self.peek(f"{slot}__use_scalar")
            if slot in entries and parts.fields[slot]["b"] < VECTOR_FLAG and any(
                    operand.kind == Kind.VECTOR_SOURCE for operand in entries[slot].operands):
                assert self.peek(f"{slot}__use_scalar")
            if slot in entries and any(operand.kind == Kind.MASK_IN and operand.field == "b"
                                       for operand in entries[slot].operands):
                assert self.peek(f"{slot}__b") == parts.fields[slot]["b"]
        check("load", Slot.LOAD, Slot.LOAD in entries, "d")
        check("store", Slot.STORE, Slot.STORE in entries, "d", "m")
        push = entries[Slot.PUSH].op if Slot.PUSH in entries else None
        check("push_x", Slot.PUSH, push in (PushOp.ROWS, PushOp.ROWS_SWAP))
        check("push_w", Slot.PUSH, push in (PushOp.WEIGHTS, PushOp.WEIGHTS_T))
        if push:
            port = "push_x" if self.peek("push_x__valid") else "push_w"
            assert self.peek(f"{port}__source") == parts.fields[Slot.PUSH]["a"]
            assert self.peek(f"{port}__flag") == (push in (PushOp.ROWS_SWAP, PushOp.WEIGHTS_T))
        check("pop", Slot.POP, Slot.POP in entries, "d")
        misc = entries.get(Slot.MISC)
        assert self.peek("dma__taken") == (misc is not None and misc.op == MiscOp.DMA)
        assert self.peek("other_signal__valid") == (
            misc is not None and misc.op == MiscOp.SIGNAL_OTHER)
        check("xlu", Slot.MISC, misc is not None and misc.unit == Unit.XLU, "op", "d", "a")

    def request(self, write: bool, space: Space, address: int, data: int = 0) -> tuple[int, bool]:
        """A request by the host: data of the response, and whether it is an error."""
        payload = self.model.ports["request__payload"]
        assert payload.width == 1 + 2 + 20 + 32
        self.poke("request__payload", write | space.value << 1 | address << 3 | data << 23)
        self.poke("request__valid", 1)
        for _ in range(10):
            ready = self.peek("request__ready")
            self.cycle()
            if ready:
                break
        else:
            raise AssertionError("the request was not accepted")
        self.poke("request__valid", 0)
        assert self.peek("response__valid")
        return self.peek("response__data"), bool(self.peek("response__error"))

    def write(self, space: Space, address: int, data: int) -> None:
        _, error = self.request(True, space, address, data)
        assert not error, f"the write of {space.name} {address} is answered with an error"

    def read(self, space: Space, address: int) -> int:
        data, error = self.request(False, space, address)
        assert not error, f"the read of {space.name} {address} is answered with an error"
        return data

    def write_all(self, values: Mapping[tuple[Space, int], int]) -> None:
        """Many writes, one a cycle; quickly, if nothing else goes on."""
        if self.peek("running") or not self.units.idle:
            for (space, address), value in values.items():
                self.write(space, address, value)
            return
        for name, value in self.units.inputs(self.model.cycle).items():
            self.poke(name, 0 if name.endswith("valid") else value)
        payloads = np.array([(payload & WORD, payload >> 32) for payload in (
            1 | space.value << 1 | address << 3 | value << 23
            for (space, address), value in values.items())], np.uint32)
        self.poke("request__valid", 1)
        got = self.model.run({"request__payload": payloads},
                             ["response__valid", "response__error"])
        places = list(values)
        for missing in np.flatnonzero(~got["response__valid"].astype(bool)):
            raise AssertionError(f"the write of {places[missing]} is not answered")
        for refused in np.flatnonzero(got["response__error"]):
            raise AssertionError(f"the write of {places[refused]} is answered with an error")
        self._poked.pop("request__payload", None)
        self.poke("request__valid", 0)

    def load(self, program: Sequence[int], at: int = 0) -> None:
        self.program |= {at + number: code for number, code in enumerate(program)}
        self.write_all({(Space.IMEM, (at + number) * 16 + word): value
                        for number, code in enumerate(program)
                        for word, value in enumerate(bundle_words(code))})

    def set_state(self, oracle: Oracle) -> None:
        self.write_all({(space, address): value for space, values in self._spaces(oracle)
                        for address, value in enumerate(values)})

    def check_state(self, oracle: Oracle) -> None:
        """Everything is as the oracle has it."""
        for space, values in self._spaces(oracle):
            found = [self.read(space, address) for address in range(len(values))]
            for address, (got, want) in enumerate(zip(found, values, strict=True)):
                assert got == want, f"{space.name} {address} is {got:#x}, not {want:#x}"
        for what, done, wanted in (
                ("transfers", self.outside.transfers, oracle.transfers),
                ("signals to the other core", self.outside.signals, oracle.signals)):
            assert done == wanted, f"{what} are {done}, not {wanted}"
        got_pc, got_fault = self.peek("pc"), Fault(self.peek("fault"))
        assert got_pc == oracle.pc, f"pc is {got_pc}, not {oracle.pc}"
        assert got_fault == oracle.fault, f"fault is {got_fault!r}, not {oracle.fault!r}"

    @staticmethod
    def _spaces(oracle: Oracle) -> tuple[tuple[Space, list[int]], ...]:
        assert len(oracle.semaphores) == SEMAPHORES
        return ((Space.SMEM, oracle.smem), (Space.SCALAR, oracle.scalars),
                (Space.SEMAPHORE, oracle.semaphores))

    def start(self, pc: int = 0) -> None:
        self.poke("start", 1)
        self.poke("start_pc", pc)
        self.cycle()
        self.poke("start", 0)

    def run(self, pc: int = 0, limit: int = 2000) -> list[int]:
        """Runs until the core stops and the units are idle; addresses of executed bundles."""
        before = len(self.issued)
        self.start(pc)
        self.finish(limit)
        return [pc for _, pc in self.issued[before:]]

    def finish(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.peek("running") and self.units.idle:
                break
            self.cycle()
        else:
            raise AssertionError(f"still running at {self.peek('pc')}")
        self.cycle()  # a scalar load of the last bundle
        assert not self.peek("busy"), "the sequencer is busy although nothing is under way"
        for name, got, want in (("v", self.units.vectors, self.units.wanted_vectors),
                                ("m", self.units.masks, self.units.wanted_masks)):
            wrong = [f"{name}{number}" for number in range(len(want))
                     if got[number] != want[number]]
            assert not wrong, f"written too seldom or too often: {', '.join(wrong)}"


class Programs:
    """Random bundles and programs, out of the table of operations."""

    def __init__(self, rng: np.random.Generator, config: Config = CONFIG) -> None:
        self.rng = rng
        self.config = config

    def word(self) -> int:
        """A 32-bit word, often at the end of some range."""
        if self.rng.random() < 0.5:
            return int(self.rng.choice([0, 1, 2, 31, 32, 33, 0x7FFF_FFFF, 0x8000_0000,
                                        0x8000_0001, 0xFFFF_FFFE, 0xFFFF_FFFF]))
        return int(self.rng.integers(1 << 32)) >> int(self.rng.integers(32))

    def fields(self, slot: Slot, code: int) -> dict[str, int]:
        """Random fields, of which those that are operands are legal."""
        values = {name: int(self.rng.integers(1 << width)) for name, width in SLOTS[slot].items()}
        values["op"] = code
        entry = next(entry for entry in OPERATIONS if slot in entry.slots and entry.op == code)
        for operand in entry.operands:
            if operand.kind == Kind.SOURCE:
                value = self.source()
            elif operand.kind == Kind.VECTOR_SOURCE:
                value = (VECTOR_FLAG + int(self.rng.integers(8)) if self.rng.random() < 0.7
                         else self.source())
            elif operand.kind == Kind.MASK_IN:
                value = int(self.rng.integers(8))
            elif operand.kind == Kind.MASK_OUT:
                value = int(self.rng.integers(1, 8))
            elif operand.kind == Kind.SEMAPHORE:
                value = int(self.rng.integers(SEMAPHORES))
            elif operand.kind == Kind.IMMEDIATE:
                value = int(self.rng.integers(3))
            else:  # few registers: many dependences
                value = int(self.rng.integers(8))
            values[operand.field] = value
        return values

    def source(self) -> int:
        return int(self.rng.choice([*range(8), *range(32, 35), *range(40, 64)]))

    def codes(self, slot: Slot, *units: Unit) -> list[int]:
        return [entry.op.value for entry in OPERATIONS if slot in entry.slots
                and (not units or entry.unit in units)]

    def vector_bundle(self, use: float = 0.4) -> int:
        """Vector, memory, array and cross-lane operations; addresses and indices in range.

        May conflict, and breaks the array's rules.
        """
        chosen: dict[Slot, dict[str, int]] = {}
        for slot in (Slot.V0, Slot.V1, Slot.LOAD, Slot.STORE, Slot.PUSH, Slot.POP, Slot.MISC):
            if self.rng.random() < use:
                codes = self.codes(slot, *([Unit.XLU] if slot == Slot.MISC else []))
                chosen[slot] = self.fields(slot, int(self.rng.choice(codes)))
                if slot in (Slot.LOAD, Slot.STORE):
                    chosen[slot] |= {"a": 0, "b": i(int(self.rng.integers(11)))}
                if slot == Slot.MISC:
                    chosen[slot] |= {"b": i(int(self.rng.integers(2)))}
        return pack(chosen, tuple(self.word() for _ in range(3)))

    def scalar_bundle(self) -> int:
        """Scalar operations without branches, and semaphores; no conflict, addresses in range."""
        while True:
            chosen: dict[Slot, dict[str, int]] = {}
            imm = tuple(self.word() for _ in range(3))
            for slot, some in ((Slot.S0, (Unit.SCALAR, Unit.SMEM)), (Slot.S1, (Unit.SCALAR,)),
                               (Slot.MISC, (Unit.SEMAPHORE,))):
                if self.rng.random() < 0.6:
                    chosen[slot] = self.fields(slot, int(self.rng.choice(self.codes(slot, *some))))
            if chosen.get(Slot.S0, {}).get("op") in self.codes(Slot.S0, Unit.SMEM):
                if self.rng.random() < 0.5:
                    chosen[Slot.S0] |= {"a": 0, "b": 34}
                    imm = (*imm[:2], int(self.rng.integers(self.config.smem_words)))
                else:
                    chosen[Slot.S0] |= {"a": 0, "b": i(int(self.rng.integers(13)))}
            if Slot.MISC in chosen:
                chosen[Slot.MISC]["b"] = i(int(self.rng.integers(6)))
            code = pack(chosen, imm)
            parts = Parts.of(code)
            written = [d for d in parts.all_named(Kind.SCALAR_OUT) if d]
            if len(set(written)) == len(written):
                return code

    def scalar_program(self, length: int) -> list[int]:
        """Random scalar bundles with branches forward, counted loops, calls, and a halt.

        Loops nest; their counters and the links of calls are registers that nothing else writes.
        """
        program: list[int] = []

        def emit(code: int, **slots: dict[str, int]) -> None:
            """Appends the bundle with some slots replaced, and its third immediate kept."""
            fields, imm, _ = unpack(code)
            program.append(pack({**fields, **{Slot(slot): own for slot, own in slots.items()}},
                                imm))

        def with_target(code: int, target: int, op: int) -> int:
            """The bundle with a branch in slot s1 and its target as the first immediate."""
            fields, imm, _ = unpack(code)
            own = self.fields(Slot.S1, op)
            entry = operation(Slot.S1, op)
            assert entry is not None
            conditional = any(operand.kind == Kind.IMMEDIATE for operand in entry.operands)
            own |= {"d": 0} if conditional else {"b": 32}
            if op == ScalarOp.CALL:
                own["d"] = int(self.rng.integers(9, 12))
            if op == ScalarOp.LOOP:
                own["d"] = 0
            return pack({**fields, Slot.S1: own}, (target, *imm[1:]))

        def body(size: int, depth: int) -> None:
            end = len(program) + size
            places = []
            branches = []
            while (left := end - len(program)) > 0:
                places.append(len(program))
                draw = self.rng.random()
                if draw < 0.25:
                    branches.append(len(program))
                    program.append(self.scalar_bundle())
                elif draw < 0.4 and left >= 4 and depth < 2:
                    counter = 12 + depth
                    emit(self.scalar_bundle(),
                         s0=s(ScalarOp.ADD, counter, 0, i(int(self.rng.integers(1, 5)))))
                    start = len(program)
                    body(int(self.rng.integers(1, left - 2)), depth + 1)
                    fields, imm, _ = unpack(self.scalar_bundle())
                    program.append(pack({**fields, Slot.S1: s(ScalarOp.LOOP, counter, b=32)},
                                        (start, *imm[1:])))
                else:
                    program.append(self.scalar_bundle())
            # Not into a loop, whose counter would have no value.
            for branch in branches:
                target = int(self.rng.choice([*(n for n in places if n > branch), end]))
                op = int(self.rng.choice([op for op in self.codes(Slot.S1, Unit.BRANCH)
                                          if op != ScalarOp.HALT]))
                program[branch] = with_target(program[branch], target, op)

        body(length, 0)
        program.append(HALT)
        return program

    def sound_vector_program(self, length: int, use: float = 0.4) -> list[int]:
        """Random vector bundles without faults, and a halt."""
        oracle = Oracle(self.config)
        program: list[int] = []
        while len(program) < length:
            code = self.vector_bundle(use)
            parts = Parts.of(code)
            if not oracle.find_fault(parts):
                oracle.execute(parts)
                program.append(code)
        program.append(HALT)
        return program


HALT = pack({Slot.S1: {"op": 41}})
__all__ = [
    "CONFIG",
    "HALT",
    "Bench",
    "LoadOp",
    "MiscOp",
    "Programs",
    "StoreOp",
    "UnitTiming",
    "VectorOp",
    "bundle",
    "i",
    "open_sequencer",
    "s",
    "v",
]
