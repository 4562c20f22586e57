"""The vector unit cycle by cycle: random traffic, what the golden model makes of it, and models."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np

from golden.vpu import compare, evaluate
from hdl.config import Config
from hdl.isa import (
    LATENCIES,
    LOAD_LATENCY,
    OPERATIONS,
    TRANSCENDENTAL_LATENCY,
    Kind,
    Operation,
    Slot,
    VectorOp,
)
from hdl.verilog import LINT_WAIVERS
from hdl.vpu.element import vpu_grid
from hdl.vpu.interface import HostSpace
from hdl.vpu.vpu import Vpu
from sim.models.kernels import BLOCK_WAIVERS, with_kernels
from sim.verilated.build import build_model
from sim.verilated.model import Model

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
class Chain:
    """What a chain of rows out of a register does."""

    load: int = 0
    source: int = 0
    shift: int = 0


@dataclass
class Write:
    """A write from the pop chain or the result chain."""

    d: int
    from_xlu: int = 0


@dataclass
class Cycle:
    """The inputs of one cycle."""

    v0: Vector | None = None
    v1: Vector | None = None
    load: Load | None = None
    store: Store | None = None
    x: Chain = field(default_factory=Chain)
    w: Chain = field(default_factory=Chain)
    xlu: Chain = field(default_factory=Chain)
    pop: np.ndarray | None = None
    result: np.ndarray | None = None
    write: Write | None = None


class Golden:
    """The unit's state, by cycles: reads, latencies and writes as the ISA's latencies have them."""

    def __init__(self, config: Config) -> None:
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
        """One clock edge; the registered outputs after it."""
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
        return self._outputs()

    def _at(self, time: int, kind: str, *rest) -> None:
        self._later[time].append((time, kind, *rest))

    def _outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the cycle that begins."""
        events = self._later[self._now]
        outputs = {f"{name}_row": self.chains[name][0] for name in ("x", "w", "xlu")}
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


def inputs_of(config: Config, cycles: Sequence[Cycle]) -> dict[str, np.ndarray]:
    """The ports' values, a row of words for each cycle. Fields of what is not valid are random."""
    rng = np.random.default_rng(len(cycles))
    count = len(cycles)
    address = max(1, (config.vmem_vectors - 1).bit_length())
    widths = {"d": 5, "a": 5, "b": 5, "op": 6, "m": 3, "use_scalar": 1, "scalar": 32,
              "address": address, "source": 5, "from_xlu": 1}
    inputs: dict[str, np.ndarray] = {}

    def port(name: str, member: str) -> np.ndarray:
        key = f"{name}__{member}"
        if key not in inputs:
            width = widths.get(member, 1)
            values = np.zeros(count, np.uint32) if member in ("valid", "load", "shift") else \
                rng.integers(0, 1 << width, count, dtype=np.uint32)
            inputs[key] = values
        return inputs[key]

    for name, members in (("v0", "valid op d a b use_scalar scalar m"),
                          ("v1", "valid op d a b use_scalar scalar m"),
                          ("load", "valid d address"), ("store", "valid d address m"),
                          ("x_chain", "load source shift"), ("w_chain", "load source shift"),
                          ("xlu_chain", "load source shift"), ("pop_chain", "shift"),
                          ("result_chain", "shift"), ("chain_write", "valid d from_xlu")):
        for member in members.split():
            port(name, member)
    rows = {name: rng.integers(0, 1 << 32, (count, config.lanes), dtype=np.uint32)
            for name in ("pop", "result")}
    for t, cycle in enumerate(cycles):
        for slot in ("v0", "v1"):
            v = getattr(cycle, slot)
            if v is not None:
                values = {"valid": 1, "op": v.op, "d": v.d, "a": v.a, "b": v.b, "m": v.m,
                          "use_scalar": v.scalar is not None}
                if v.scalar is not None:
                    values["scalar"] = v.scalar
                for member, value in values.items():
                    inputs[f"{slot}__{member}"][t] = value
        for name, given in (("load", cycle.load), ("store", cycle.store),
                            ("chain_write", cycle.write)):
            if given is not None:
                inputs[f"{name}__valid"][t] = 1
                for item in fields(given):
                    inputs[f"{name}__{item.name}"][t] = getattr(given, item.name)
        for name in ("x", "w", "xlu"):
            control = getattr(cycle, name)
            inputs[f"{name}_chain__load"][t] = control.load
            inputs[f"{name}_chain__shift"][t] = control.shift
            if control.load:
                inputs[f"{name}_chain__source"][t] = control.source
        for name in ("pop", "result"):
            row = getattr(cycle, name)
            if row is not None:
                inputs[f"{name}_chain__shift"][t] = 1
                rows[name][t] = row
    return inputs | {f"{name}_chain__row": words for name, words in rows.items()}


def vpu_library(config: Config, *, kernels: bool):
    """The unit's model, its grid by a kernel or all of it in pure Verilog."""
    grid = vpu_grid(config)
    sources = with_kernels("vpu", partial(Vpu, config), [grid] if kernels else [])
    return build_model("vpu", sources["verilog"], cpp=sources["cpp"], optimise=kernels,
                       hierarchical=[] if kernels else [grid.tile_module],
                       waivers=LINT_WAIVERS + ("" if kernels else BLOCK_WAIVERS))


class Bench:
    """A model of the unit beside the golden state."""

    def __init__(self, config: Config, model: Model) -> None:
        self.config = config
        self.model = model
        model.reset()
        self.golden = Golden(config)

    def run(self, cycles: Sequence[Cycle], *, drain: bool = True) -> None:
        """Runs cycles on both sides, and some more until nothing is in flight.

        Raises
        ------
        AssertionError
            If an output differs in any cycle.
        """
        cycles = [*cycles, *[Cycle()] * (TRANSCENDENTAL_LATENCY + 1 if drain else 0)]
        want = [self.golden.step(cycle) for cycle in cycles]
        names = sorted({name for outputs in want for name in outputs})
        inputs = inputs_of(self.config, cycles)
        got = self.model.run(inputs, names)
        for name in inputs:
            if name.endswith(("valid", "load", "shift")):
                self.model.poke(name, 0)
        for t, outputs in enumerate(want):
            for name, value in outputs.items():
                assert np.array_equal(got[name][t], value), \
                    f"{name} after cycle {t}: {got[name][t]} is not {value}"

    def write(self, words: Mapping[int, np.ndarray]) -> None:
        """Writes words of vector memory through the host's port, while the core is idle."""
        rows = [(address, row) for address, word in words.items() for row in word]
        inputs = {
            "host_write__valid": np.ones(len(rows), np.uint32),
            "host_write__payload": np.array(
                [[address | int(row[0]) << 16 & 0xFFFF0000,
                  *(int(row[i]) >> 16 | (int(row[i + 1]) << 16 & 0xFFFF0000
                                         if i + 1 < len(row) else 0)
                    for i in range(len(row)))] for address, row in rows], np.uint32)}
        ready = self.model.run(inputs, ["host_write__ready"])["host_write__ready"]
        assert ready.all()
        self.model.poke("host_write__valid", 0)
        self.model.tick(2)
        assert not self.model.peek("host_busy")
        for address, word in words.items():
            self.golden.vmem[address] = word

    def read(self, space: HostSpace, address: int) -> np.ndarray:
        """A word, by its rows, through the host's port."""
        self.model.poke("host_read__payload", int(space) | address << 2)
        self.model.poke("host_read__valid", 1)
        self.model.poke("host_rows__ready", 1)
        rows = []
        for _ in range(100):
            accepted = self.model.peek("host_read__ready")
            if self.model.peek("host_rows__valid"):
                rows.append(self.model.peek_words("host_rows__payload"))
            self.model.tick()
            if accepted:
                self.model.poke("host_read__valid", 0)
            if len(rows) == self.config.sublanes:
                return np.array(rows)
        raise AssertionError("no rows came")

    def check(self, addresses: Sequence[int]) -> None:
        """Compares all registers and masks, and some words of memory."""
        for number in range(32):
            got = self.read(HostSpace.VREG, number)
            assert np.array_equal(got, self.golden.vectors[number]), f"v{number}"
        masks = self.read(HostSpace.MASK, 0)
        for number in range(8):
            assert np.array_equal(masks >> number & 1, self.golden.masks[number]), f"m{number}"
        assert not (masks >> 8).any()
        for address in addresses:
            got = self.read(HostSpace.VMEM, address)
            assert np.array_equal(got, self.golden.vmem[address]), f"vmem[{address}]"


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


class Traffic:
    """Random cycles that respect what the sequencer keeps apart, and nothing else."""

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
        """The next cycle."""
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
            setattr(cycle, name, Chain(int(rng.random() < 0.2 * self._density), self._pick(32),
                                       int(self._flip())))
        for name in ("pop", "result"):
            if self._flip():
                setattr(cycle, name, operands(rng, (config.lanes,)))
        if self._flip():
            write = Write(self._pick(32), self._pick(2))
            if self._claim(self._now, "chain", "v", write.d):
                cycle.write = write
        self._now += 1
        return cycle
