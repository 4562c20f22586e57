"""The vector unit's surroundings, its state and its outputs, cycle by cycle.

`VpuChecker` models the unit's state from the inputs of each cycle, and compares the outputs. Two
classes make these inputs. `VpuTraffic` makes random inputs, without two writes to one port or
register in a cycle. `BundleIssuer` issues bundles as early as hazards allow, and executes them on a
golden core.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden.core import GoldenCore
from golden.vpu import compare, evaluate
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import (
    LATENCIES,
    LOAD_LATENCY,
    OPERATIONS,
    Kind,
    LoadOp,
    Operation,
    Slot,
    Unit,
    VectorOp,
)
from verif.system.programs.bundles import endless_words

__all__ = [
    "CORE_VECTORS",
    "SLOT_OPERATIONS",
    "SOURCES",
    "VECTOR",
    "BundleIssuer",
    "ChainInput",
    "ChainWriteInput",
    "Cycle",
    "Load",
    "Store",
    "Vector",
    "VpuBundle",
    "VpuChecker",
    "VpuTraffic",
    "fill_bundles",
    "input_widths",
    "operands",
    "pins",
    "to_mask",
]

VECTOR = {operation.op: operation for operation in OPERATIONS
          if isinstance(operation.op, VectorOp)}
MASK_OPS = {VectorOp.MAND: lambda a, b: a & b, VectorOp.MOR: lambda a, b: a | b,
            VectorOp.MXOR: lambda a, b: a ^ b, VectorOp.MANDN: lambda a, b: a & ~b}


def to_mask(operation: Operation) -> bool:
    """Whether an operation writes a mask."""
    return any(operand.kind is Kind.MASK_OUT for operand in operation.operands)


@dataclass
class Vector:
    """An operation of a vector slot."""

    op: VectorOp
    d: int = 0
    a: int = 0
    b: int = 0
    m: int = 0
    scalar: int | None = None


@dataclass
class Load:
    """A vector load."""

    d: int
    address: int


@dataclass
class Store:
    """A vector store."""

    d: int
    address: int
    m: int = 0


@dataclass
class ChainInput:
    """Inputs, in one cycle, of a chain that sends the rows of a register."""

    load: int = 0
    source: int = 0
    shift: int = 0


@dataclass
class ChainWriteInput:
    """A register write from the pop chain or the result chain."""

    d: int
    from_xlu: int = 0


@dataclass
class Cycle:
    """The inputs of one cycle."""

    v0: Vector | None = None
    v1: Vector | None = None
    load: Load | None = None
    store: Store | None = None
    x: ChainInput = field(default_factory=ChainInput)
    w: ChainInput = field(default_factory=ChainInput)
    xlu: ChainInput = field(default_factory=ChainInput)
    pop: np.ndarray | None = None
    result: np.ndarray | None = None
    write: ChainWriteInput | None = None


class VpuChecker:
    """A model of the unit's state and outputs in each cycle, with the instruction set's latencies.

    Parameters
    ----------
    config : Config
    known : bool
        Whether all state is zero at first. Otherwise it is unknown: a chain's rows are not
        compared until the chain has been loaded.

    Attributes
    ----------
    vectors, masks, vmem : array
        Vector registers, mask registers and vector memory.
    written, rows : int
        Number of writes of registers and masks, and number of rows of chains, that were compared.
    """

    def __init__(self, config: Config, *, known: bool = True) -> None:
        self.written = self.rows = 0
        self._known = dict.fromkeys(("x", "w", "xlu"), known)
        shape = (config.sublanes, config.lanes)
        self.vectors = np.zeros((32, *shape), np.uint32)
        self.masks = np.zeros((8, *shape), bool)
        self.masks[0] = True
        self.vmem = np.zeros((config.vmem_vectors, *shape), np.uint32)
        self.chains = {name: np.zeros(shape, np.uint32)
                       for name in ("x", "w", "xlu", "pop", "result")}
        self._now = 0
        self._before = Cycle()
        self._later: dict[int, list] = defaultdict(list)

    def step(self, cycle: Cycle) -> dict[str, np.ndarray]:
        """Takes the inputs of a cycle; returns the outputs after the clock edge at its end.

        The inputs must still be applied then, because ``chain_write`` acts on an output without a
        register in between.
        """
        before, self._before = self._before, cycle
        now, self._now = self._now, self._now + 1
        for slot in ("v0", "v1"):
            operation = getattr(before, slot)
            if operation is not None:
                self._execute(slot, operation, now - 1)
        if before.store is not None:
            store = before.store
            data = self.vectors[store.d].copy()
            where = self.masks[store.m].copy()
            self._at(now + 1, "vmem", store.address, data, where)
        for _, _, d, value in [event for event in self._later[now] if event[1] == "read"]:
            self._at(now + 1, "load", d, self.vmem[value].copy())
        if cycle.load is not None:
            self._at(now + 2, "read", cycle.load.d, cycle.load.address)

        after = {name: chain.copy() for name, chain in self.chains.items()}
        for name in ("x", "w", "xlu"):
            control, chain = getattr(cycle, name), self.chains[name]
            if control.load:
                after[name] = self.vectors[control.source].copy()
                self._known[name] = True
            elif control.shift:
                entered = chain[0] if name == "xlu" else np.zeros_like(chain[0])
                after[name] = np.concatenate([chain[1:], entered[np.newaxis]])
        for name in ("pop", "result"):
            row = getattr(cycle, name)
            if row is not None:
                after[name] = np.concatenate([self.chains[name][1:], row[np.newaxis]])
        if cycle.write is not None:
            chain = self.chains["result" if cycle.write.from_xlu else "pop"]
            self.vectors[cycle.write.d] = chain
        self.chains = after
        for _, kind, *rest in self._later.pop(now, ()):
            if kind in ("v0", "v1", "load"):
                self.vectors[rest[0]] = rest[1]
            elif kind in ("mask v0", "mask v1"):
                self.masks[rest[0]] = rest[1]
            elif kind == "vmem":
                self.vmem[rest[0]][rest[2]] = rest[1][rest[2]]
        return self._outputs(cycle)

    def _at(self, time: int, kind: str, *rest: ArrayLike) -> None:
        self._later[time].append((time, kind, *rest))

    def compare(self, want: Mapping[str, np.ndarray], got: Callable[[str], Any],
                where: object) -> None:
        """Compares outputs with what `step` returned; ``got`` returns the output of a given name.

        Raises
        ------
        AssertionError
            If an output differs.
        """
        for name, value in want.items():
            found = np.asarray(got(name))
            wrong = found != value
            if wrong.any():
                lane = int(np.argwhere(wrong)[0][0])
                place = f" lane {lane}" if len(value) > 1 else ""
                raise AssertionError(f"{name}{place} after cycle {where} is {found[lane]:#x}, not "
                                     f"{int(value[lane]):#x}")
            self.written += int("written" in name and name.endswith("valid") and value[0])
            self.rows += int(name.endswith("_row"))

    def check_state(self, core: GoldenCore, addresses: Iterable[int]) -> None:
        """Compares the state with a golden core's; of memory, only the vectors at ``addresses``.

        Raises
        ------
        AssertionError
            If any state differs.
        """
        for file, mine, golden in (("v", self.vectors, core.vectors),
                                   ("m", self.masks, core.masks)):
            for number, (got, want) in enumerate(zip(mine, golden, strict=True)):
                assert np.array_equal(got, want), f"{file}{number} differs from the golden core's"
        for address in addresses:
            assert np.array_equal(self.vmem[address], core.vmem[address]), (
                f"vmem[{address}] differs from the golden core's")

    def _outputs(self, cycle: Cycle) -> dict[str, np.ndarray]:
        """The outputs of the cycle that begins now; ``cycle`` is the one before it."""
        events = self._later[self._now]
        outputs = {f"{name}_row": self.chains[name][0] for name in ("x", "w", "xlu")
                   if self._known[name]}
        outputs["written__chain__valid"] = np.array([cycle.write is not None], np.uint32)
        if cycle.write is not None:
            outputs["written__chain__d"] = np.array([cycle.write.d], np.uint32)
        for port in ("v0", "v1", "load"):
            d = [event[2] for event in events if event[1] == port]
            outputs[f"written__{port}__valid"] = np.array([len(d)], np.uint32)
            if d:
                outputs[f"written__{port}__d"] = np.array(d, np.uint32)
        for port in ("v0", "v1"):
            d = [event[2] for event in events if event[1] == f"mask {port}"]
            outputs[f"mask_written__{port}__valid"] = np.array([len(d)], np.uint32)
            if d:
                outputs[f"mask_written__{port}__d"] = np.array(d, np.uint32)
        pending = any(self._later.values()) or any(
            getattr(self._before, port) is not None for port in ("v0", "v1", "load", "store"))
        outputs["busy"] = np.array([pending], np.uint32)
        return outputs

    def _execute(self, slot: str, v: Vector, issued: int) -> None:
        operation = VECTOR[v.op]
        shape = self.vectors[0].shape
        a = self.vectors[v.a]
        b = self.vectors[v.b] if v.scalar is None else np.full(shape, v.scalar, np.uint32)
        due = issued + LATENCIES[operation.unit]
        if to_mask(operation):
            if v.op in MASK_OPS:
                value = MASK_OPS[v.op](self.masks[v.a % 8], self.masks[v.b % 8])
            else:
                value = compare(v.op, a, b)
            self._at(due, f"mask {slot}", v.d % 8, value)
            return
        if v.op is VectorOp.SELECT:
            value = np.where(self.masks[v.m], a, b)
        elif v.op is VectorOp.LANE:
            value = np.broadcast_to(np.arange(shape[1], dtype=np.uint32), shape)
        elif v.op is VectorOp.SUBLANE:
            value = np.broadcast_to(np.arange(shape[0], dtype=np.uint32)[:, np.newaxis], shape)
        else:
            value = evaluate(v.op, a, b)
        self._at(due, slot, v.d, value.copy())


def input_widths(config: Config) -> dict[str, dict[str, int]]:
    """For each port of the unit, the widths in bits of its inputs, except rows."""
    address = max(1, (config.vmem_vectors - 1).bit_length())
    vector = {"valid": 1, "op": 6, "d": 5, "a": 5, "b": 5, "use_scalar": 1, "scalar": 32, "m": 3}
    chain = {"load": 1, "source": 5, "shift": 1}
    return {
        "v0": vector, "v1": vector,
        "load": {"valid": 1, "d": 5, "address": address},
        "store": {"valid": 1, "d": 5, "address": address, "m": 3},
        **{f"{name}_chain": chain for name in ("x", "w", "xlu")},
        "pop_chain": {"shift": 1}, "result_chain": {"shift": 1},
        "chain_write": {"valid": 1, "d": 5, "from_xlu": 1},
    }


def pins(cycle: Cycle) -> dict[str, Any]:
    """The inputs that matter in this cycle, by name; all others may have any value.

    A row is an array with an element for each lane.
    """
    values: dict[str, Any] = {}
    for slot in ("v0", "v1"):
        v = getattr(cycle, slot)
        values[f"{slot}__valid"] = int(v is not None)
        if v is not None:
            values |= {f"{slot}__{name}": int(getattr(v, name))
                       for name in ("op", "d", "a", "b", "m")}
            values[f"{slot}__use_scalar"] = int(v.scalar is not None)
            if v.scalar is not None:
                values[f"{slot}__scalar"] = v.scalar
    for name, given in (("load", cycle.load), ("store", cycle.store),
                        ("chain_write", cycle.write)):
        values[f"{name}__valid"] = int(given is not None)
        if given is not None:
            values |= {f"{name}__{item.name}": getattr(given, item.name)
                       for item in fields(given)}
    for name in ("x", "w", "xlu"):
        control = getattr(cycle, name)
        values[f"{name}_chain__load"] = control.load
        values[f"{name}_chain__shift"] = control.shift
        if control.load:
            values[f"{name}_chain__source"] = control.source
    for name in ("pop", "result"):
        row = getattr(cycle, name)
        values[f"{name}_chain__shift"] = int(row is not None)
        if row is not None:
            values[f"{name}_chain__row"] = row
    return values


SPECIALS = np.array([
    0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
    0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 31, 32, 33, 0x4EFFFFFF,
    0x4F000000, 0xCF000000, 0xCF000001, 0x3F7FFFFF, 0x34000000, 0x40490FDB], np.uint32)


def operands(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Words of all kinds: random bits, numbers near one, small integers, special values."""
    kinds = rng.integers(0, 4, shape)
    near = rng.integers(0x3E000000, 0x41800000, shape, dtype=np.uint32) \
        | rng.integers(0, 2, shape, dtype=np.uint32) << np.uint32(31)
    return np.choose(kinds, [
        rng.integers(0, 1 << 32, shape, dtype=np.uint32), near,
        rng.integers(-40, 40, shape).astype(np.int32).view(np.uint32),
        SPECIALS[rng.integers(0, len(SPECIALS), shape)]]).astype(np.uint32)


class VpuTraffic:
    """Random inputs; never do two operations write one port or one register in the same cycle."""

    def __init__(self, config: Config, rng: np.random.Generator, density: float,
                 addresses: int) -> None:
        self._config = config
        self._rng = rng
        self._density = density
        self._addresses = addresses
        self._ports: set[tuple[int, str]] = set()
        self._registers: set[tuple[int, str, int]] = set()
        self._now = 0

    def _flip(self) -> bool:
        return bool(self._rng.random() < self._density)

    def _pick(self, count: int) -> int:
        return int(self._rng.integers(count))

    def _claim(self, due: int, port: str, kind: str, d: int) -> bool:
        if (due, port) in self._ports or (due, kind, d) in self._registers:
            return False
        self._ports.add((due, port))
        self._registers.add((due, kind, d))
        return True

    def _vector(self, slot: str) -> Vector | None:
        choices = [op for op, operation in VECTOR.items() if Slot(slot) in operation.slots]
        op = choices[self._pick(len(choices))]
        operation = VECTOR[op]
        v = Vector(op, self._pick(32), self._pick(32), self._pick(32), self._pick(8))
        if self._pick(3) == 0:
            v = replace(v, scalar=int(operands(self._rng, (1,))[0]))
        kind = "m" if to_mask(operation) else "v"
        if kind == "m":
            v = replace(v, d=1 + v.d % 7)
        return v if self._claim(self._now + LATENCIES[operation.unit], slot, kind, v.d) else None

    def cycle(self) -> Cycle:
        """Returns the inputs of the next cycle."""
        rng, config = self._rng, self._config
        cycle = Cycle()
        for slot in ("v0", "v1"):
            if self._flip():
                setattr(cycle, slot, self._vector(slot))
        if self._flip():
            load = Load(self._pick(32), self._pick(self._addresses))
            if self._claim(self._now + LOAD_LATENCY, "load", "v", load.d):
                cycle.load = load
        if self._flip():
            cycle.store = Store(self._pick(32), self._pick(self._addresses), self._pick(8))
        for name in ("x", "w", "xlu"):
            setattr(cycle, name, ChainInput(int(rng.random() < 0.2 * self._density), self._pick(32),
                                       int(self._flip())))
        for name in ("pop", "result"):
            if self._flip():
                setattr(cycle, name, operands(rng, (config.lanes,)))
        if self._flip():
            write = ChainWriteInput(self._pick(32), self._pick(2))
            if self._claim(self._now, "chain", "v", write.d):
                cycle.write = write
        self._now += 1
        return cycle


# Bundles


CORE_VECTORS = 32
"""Number of vectors of vector memory, from address 0 on, that loads and stores use."""
SLOT_OPERATIONS = {slot: [operation for operation in OPERATIONS if slot in operation.slots]
                   for slot in (Slot.V0, Slot.V1, Slot.LOAD, Slot.STORE)}
SOURCES = {slot: 1 + number for number, slot in enumerate(SLOT_OPERATIONS)}
"""Scalar register of the golden core that holds each slot's scalar operand."""


@dataclass(frozen=True)
class Result:
    """A register that ``port`` writes ``latency`` cycles after issue; ``file`` is "v" or "m"."""

    file: str
    number: int
    port: str
    latency: int


class VpuBundle:
    """Operations that issue together.

    Parameters
    ----------
    slots : mapping of slot to fields
        Fields as in a bundle of `hdl.isa`. A field that selects a scalar register has the number
        that `SOURCES` has for the slot.
    scalars : mapping of slot to int
        Values of the scalar operands: second operands of vector operations, and addresses.
    """

    def __init__(self, slots: Mapping[Slot, dict[str, int]], scalars: dict[Slot, int]) -> None:
        self.scalars = scalars
        self.code = pack(slots)
        self.values: dict[Slot, dict[str, int]] = {}
        self.reads: set[tuple[str, int]] = set()
        self.results: list[Result] = []
        for slot, own in slots.items():
            operation = isa.operation(slot, own["op"])
            assert operation is not None
            self._add(slot, operation, own)

    def _add(self, slot: Slot, operation: Operation, own: dict[str, int]) -> None:
        values = {"op": own["op"]}
        if operation.unit is Unit.VMEM:
            values = {"address": self.scalars[slot]}
        for operand in operation.operands:
            number, kind = own.get(operand.field, 0), operand.kind
            if kind in (Kind.SCALAR_IN, Kind.SOURCE):
                continue
            if kind is Kind.VECTOR_SOURCE:
                if not number & isa.VECTOR_FLAG:
                    values["scalar"] = self.scalars[slot]
                    continue
                number ^= isa.VECTOR_FLAG
            values[operand.field] = number
            file = "m" if kind in (Kind.MASK_IN, Kind.MASK_OUT) else "v"
            if kind in (Kind.VECTOR_OUT, Kind.MASK_OUT):
                self.results.append(Result(file, number, slot.value, LATENCIES[operation.unit]))
            else:
                self.reads.add((file, number))
        self.values[slot] = values

    def cycle(self, rng: random.Random) -> Cycle:
        """The unit's inputs when the bundle issues. Fields that no operand uses are random."""
        cycle = Cycle()
        for slot, values in self.values.items():
            if slot is Slot.LOAD:
                cycle.load = Load(**values)
            elif slot is Slot.STORE:
                cycle.store = Store(**values)
            else:
                noise = {name: rng.getrandbits(width)
                         for name, width in (("d", 5), ("a", 5), ("b", 5), ("m", 3))}
                v = Vector(VectorOp(values["op"]), **noise | {
                    name: value for name, value in values.items() if name != "op"})
                setattr(cycle, slot.value, v)
        return cycle


class BundleIssuer:
    """Issues bundles to the unit as an interlock permits; a golden core executes each at its issue.

    The interlock waits until the unit has written the registers that a bundle needs. It issues the
    bundle in the next possible cycle, so that results are used as early as possible. Meanwhile, the
    inputs of the chains are random.

    Parameters
    ----------
    config : Config
    seed : int

    Attributes
    ----------
    core : GoldenCore
        Its vectors, masks and vector memory equal the unit's when no write is outstanding.
    rng, numbers : random.Random, np.random.Generator
        Random numbers for decisions and for data.
    gap : float
        Probability that no bundle may issue in a cycle.
    chains_busy : float
        Probability that a chain shifts in a cycle. The probabilities that a chain loads a vector
        register or is written to one are fixed fractions of it.
    issued : list of int
        The cycle of each issue.
    held : int
        Number of cycles in which a bundle was held because the host had the memory's port.
    """

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self._scalars = endless_words(self.numbers)
        self._rows = endless_words(self.numbers, config.lanes)
        self.issued: list[int] = []
        self.held = 0
        self._now = 0
        self.restart()

    def restart(self) -> None:
        """Drops all bundles: the unit has been reset."""
        self.core = GoldenCore(self.config)
        self.gap = self.chains_busy = 0.0
        self._queue: deque[VpuBundle] = deque()
        self._outstanding: set[tuple[str, int]] = set()
        self._due: dict[int, set[str]] = {}
        self._entered: dict[str, deque[NDArray[np.uint32]]] = {
            name: deque(maxlen=self.config.sublanes) for name in ("pop", "result")}

    @property
    def queued(self) -> int:
        """Number of bundles that have not issued."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether all bundles have issued and written their results."""
        return not (self._queue or self._outstanding or self._due)

    def send(self, bundles: Iterable[VpuBundle]) -> None:
        """Queues bundles."""
        self._queue.extend(bundles)

    def operation(self, slot: Slot, operation: Operation, registers: int = 32,
                  taken: set[tuple[str, int]] | None = None) -> tuple[dict[str, int], int] | None:
        """Random fields and scalar operand of an operation.

        Returns None if the operation would write one of the registers ``taken``; otherwise adds
        its results to ``taken``.
        """
        rng = self.rng
        chosen = {"op": int(operation.op)}
        scalar = int(next(self._scalars))
        if operation.unit is Unit.VMEM:
            scalar = rng.randrange(CORE_VECTORS)
            chosen["b"] = SOURCES[slot]
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
            chosen[operand.field] = number
        return chosen, scalar

    def random_bundle(self, registers: int = 32, density: float = 0.6,
                      slots: Iterable[Slot] = tuple(SLOT_OPERATIONS),
                      vectors: int = CORE_VECTORS) -> VpuBundle:
        """A bundle of random operations; addresses in vector memory are less than ``vectors``."""
        chosen: dict[Slot, dict[str, int]] = {}
        scalars: dict[Slot, int] = {}
        taken: set[tuple[str, int]] = set()
        for slot in slots:
            if self.rng.random() < density:
                made = self.operation(slot, self.rng.choice(SLOT_OPERATIONS[slot]), registers,
                                      taken)
                if made is not None:
                    chosen[slot], scalars[slot] = made
                    if slot in (Slot.LOAD, Slot.STORE):
                        scalars[slot] %= vectors
        return VpuBundle(chosen, scalars)

    def every_operation(self) -> list[VpuBundle]:
        """Each operation in each slot, three times, with operands of all kinds."""
        bundles = []
        for slot, operations in SLOT_OPERATIONS.items():
            for operation in operations * 3:
                made = self.operation(slot, operation)
                assert made is not None
                bundles.append(VpuBundle({slot: made[0]}, {slot: made[1]}))
        return bundles

    def next(self, written: set[tuple[str, int]], urgent: set[Slot]) -> Cycle:
        """The inputs of the next cycle.

        Parameters
        ----------
        written : set of (str, int)
            Vector registers ("v") and mask registers ("m") that vector slots or loads write in this
            cycle.
        urgent : set of Slot
            Slots whose port of vector memory the host uses in this cycle.
        """
        before = set(self._outstanding)
        self._outstanding -= written
        cycle = self._issue(urgent)
        self._drive_chains(cycle, before)
        if self._executed is not None:
            self._execute(self._executed)
        self._due.pop(self._now, None)
        self._now += 1
        return cycle

    def _issue(self, urgent: set[Slot]) -> Cycle:
        self._executed = None
        if self._queue and self.rng.random() >= self.gap and self._may_issue(self._queue[0],
                                                                             urgent):
            self._executed = self._queue.popleft()
            return self._executed.cycle(self.rng)
        return Cycle()

    def _may_issue(self, bundle: VpuBundle, urgent: set[Slot]) -> bool:
        if urgent & bundle.values.keys():
            self.held += 1
            return False
        needs = bundle.reads | {(result.file, result.number) for result in bundle.results}
        # A slot has one port for registers and masks.
        return not needs & self._outstanding and not any(
            result.port in self._due.get(self._now + result.latency, ())
            for result in bundle.results)

    def _drive_chains(self, cycle: Cycle, outstanding: set[tuple[str, int]]) -> None:
        """Chooses the inputs of the chains, which must not read or write outstanding registers."""
        rng, busy, core = self.rng, self.chains_busy, self.core
        for name in ("x", "w", "xlu"):
            source = rng.randrange(isa.VECTOR_REGISTERS)
            load = ("v", source) not in outstanding and rng.random() < 0.25 * busy
            setattr(cycle, name, ChainInput(int(load), source, int(rng.random() < busy)))
        from_xlu, d = rng.randrange(2), rng.randrange(isa.VECTOR_REGISTERS)
        entered = self._entered["result" if from_xlu else "pop"]
        if (len(entered) == self.config.sublanes and rng.random() < 0.3 * busy
                and ("v", d) not in outstanding):
            cycle.write = ChainWriteInput(d, from_xlu)
            core.vectors[d] = np.array(entered)
        for name, rows in self._entered.items():
            if rng.random() < busy:
                row = next(self._rows)
                setattr(cycle, name, row)
                rows.append(row)

    def _execute(self, bundle: VpuBundle) -> None:
        core = self.core
        for slot, value in bundle.scalars.items():
            core.scalars[SOURCES[slot]] = value
        core.load_program([bundle.code])
        core.start()
        assert core.step(), f"{bundle.values} must be legal, not {core.fault!r}"
        core.stop()
        self.issued.append(self._now)
        for result in bundle.results:
            self._outstanding.add((result.file, result.number))
            self._due.setdefault(self._now + result.latency, set()).add(result.port)


def fill_bundles() -> list[VpuBundle]:
    """Bundles that fill all registers from vector memory, and all masks by comparisons."""
    return [
        *(VpuBundle({Slot.LOAD: {"op": LoadOp.LOAD, "d": number, "b": SOURCES[Slot.LOAD]}},
                 {Slot.LOAD: number % CORE_VECTORS}) for number in range(isa.VECTOR_REGISTERS)),
        *(VpuBundle({Slot.V0: {"op": VectorOp.LT, "d": number, "a": number,
                            "b": isa.VECTOR_FLAG | number + isa.MASKS}}, {})
          for number in range(1, isa.MASKS))]
