"""Random programs for a core: legal bundles of all slots, generated along the path of execution.

The generator runs a golden core. A bundle is generated when execution first reaches its address, so
it is legal in that state: addresses in range, pops only of results under way, large enough
semaphores. When a loop executes a bundle again, anything may happen, faults included.

A program ends with a halt, or with a bundle that has a fault; the faults take turns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from golden.core import GoldenCore
from golden.stimulus import mac_operands
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack, unpack
from hdl.isa import (
    Fault,
    Kind,
    LoadOp,
    MiscOp,
    Operation,
    PopOp,
    PushOp,
    ScalarOp,
    Slot,
    StoreOp,
    Unit,
    VectorOp,
)

__all__ = ["BUNDLE_FAULTS", "Generator", "RandomProgram", "faulty_bundles", "fill_registers",
           "flush", "random_words", "schedule"]

STABLE = range(24, 30)
"""Scalar registers that programs do not write: small numbers, for addresses that stay legal."""
COUNTER = 31
"""Scalar register that counts the passes of a loop."""

_LEGAL: dict[Slot, list[Operation]] = {
    slot: [operation for operation in isa.OPERATIONS if slot in operation.slots
           # Programs of a single core do not reach beyond it.
           and operation.unit not in (Unit.DMA, Unit.OTHER_CORE)]
    for slot in isa.SLOTS}
_MASK32 = 0xFFFFFFFF

BUNDLE_FAULTS = tuple(fault for fault in Fault if Fault.NONE < fault <= Fault.SEMAPHORE)
"""Faults that a bundle alone can cause."""
_ANY_TIME = (Fault.ILLEGAL, Fault.CONFLICT, Fault.PC_RANGE, Fault.SMEM_RANGE, Fault.VMEM_RANGE,
             Fault.INDEX_RANGE, Fault.WEIGHT_LOAD)
"""Faults that some bundle has in every state."""

_BRANCHES: dict[ScalarOp, tuple[int, int]] = {
    ScalarOp.BEQ: (0, 1), ScalarOp.BNE: (1, 0), ScalarOp.BLT: (1, -1), ScalarOp.BGE: (0, 1),
    ScalarOp.BLTU: (1, 0), ScalarOp.BGEU: (0, 1)}
"""Conditional branches; with s0 as a, a value of b with which each is taken, and one with which it
is not."""

_FILES = {"s": Kind.SCALAR_OUT, "v": Kind.VECTOR_OUT, "m": Kind.MASK_OUT}
_WRITERS: dict[str, list[tuple[Slot, Operation]]] = {
    file: [(slot, operation) for slot in isa.SLOTS for operation in _LEGAL[slot]
           if kind in [operand.kind for operand in operation.operands]]
    for file, kind in _FILES.items()}
"""Operations that write a register of each file."""

_SOURCES_BEYOND = range(isa.FIRST_IMMEDIATE + isa.IMMEDIATES, isa.INLINE_BASE + isa.INLINE_MIN)
_BEYOND: dict[Kind, Sequence[int]] = {
    Kind.SOURCE: _SOURCES_BEYOND,
    Kind.VECTOR_SOURCE: [*_SOURCES_BEYOND,
                         *range(isa.VECTOR_FLAG + isa.VECTOR_REGISTERS, 2 * isa.VECTOR_FLAG)],
    Kind.MASK_OUT: [0, *range(isa.MASKS, 1 << 7)],
    Kind.MASK_IN: range(isa.MASKS, 1 << 7),
    Kind.SEMAPHORE: range(isa.SEMAPHORES, 1 << 7),
    Kind.IMMEDIATE: range(isa.IMMEDIATES, 1 << 7),
}
"""Illegal values of operands that fit their fields."""
_WAIT_IN_LOOPS = 1 << 12
"""A loop whose waits take `isa.INLINE_MAX` each does not exhaust a semaphore of this value."""


def random_words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """uint32 words: a mix of float operands that meet the adder's corners, integers, any bits."""
    count = int(np.prod(shape))
    kind = rng.integers(0, 4, count)
    floats = mac_operands(rng, count)[0].view(np.uint32)
    any_bits = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    near_one = rng.standard_normal(count).astype(np.float32).view(np.uint32)
    small = rng.integers(-40, 40, count).astype(np.int32).view(np.uint32)
    return np.select([kind == 0, kind == 1, kind == 2], [floats, any_bits, near_one],
                     small).astype(np.uint32).reshape(shape)


def fill_registers(config: Config) -> list[int]:
    """Bundles that give registers, masks and transposer values from the first words of memory."""
    bundles = [pack({Slot.LOAD: {"op": LoadOp.LOAD, "d": number, "b": isa.FIRST_IMMEDIATE}},
                    (number % config.vmem_vectors,))
               for number in range(isa.VECTOR_REGISTERS)]
    bundles += [pack({Slot.MISC: {"op": MiscOp.TRANSPOSE_IN, "a": group % isa.VECTOR_REGISTERS,
                                  "b": isa.FIRST_IMMEDIATE}}, (group,))
                for group in range(config.tile_vregs)]
    bundles += [pack({Slot.V0: {"op": VectorOp.LT, "d": number, "a": number,
                                "b": isa.VECTOR_FLAG | number + isa.MASKS}})
                for number in range(1, isa.MASKS)]
    return bundles


def faulty_bundles(config: Config) -> dict[Fault, int]:
    """A bundle for each fault that a single bundle can have after a reset.

    The bundle with ``Fault.SEMAPHORE`` needs a first semaphore of at least 1. Each bundle would
    also change a scalar register.
    """
    write = {"op": ScalarOp.ADD, "d": 3, "b": isa.INLINE_BASE + 7}
    first = isa.FIRST_IMMEDIATE
    bad: dict[Fault, tuple[dict[Slot, dict[str, int]], tuple[int, ...]]] = {
        Fault.ILLEGAL: ({Slot.S0: write, Slot.V0: {"op": 63}}, ()),
        Fault.CONFLICT: ({Slot.S0: write, Slot.S1: write}, ()),
        Fault.PC_RANGE: ({Slot.S0: write, Slot.S1: {"op": ScalarOp.JUMP, "b": first}},
                         (config.imem_bundles,)),
        Fault.SMEM_RANGE: ({Slot.S0: {"op": ScalarOp.LOAD, "d": 3, "b": first}},
                           (config.smem_words,)),
        Fault.VMEM_RANGE: ({Slot.S0: write, Slot.LOAD: {"op": LoadOp.LOAD, "b": first}},
                           (config.vmem_vectors,)),
        Fault.INDEX_RANGE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.ROTATE_LANES, "b": first}},
                            (config.lanes,)),
        Fault.WEIGHT_LOAD: ({Slot.S0: write, Slot.PUSH: {"op": PushOp.ROWS}}, ()),
        Fault.FIFO_UNDERFLOW: ({Slot.S0: write, Slot.POP: {"op": PopOp.POP}}, ()),
        Fault.SEMAPHORE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.SIGNAL, "b": first}},
                          (0xFFFFFFFF,)),
    }
    return {fault: pack(slots, imm) for fault, (slots, imm) in bad.items()}


def flush(golden: GoldenCore) -> list[int]:
    """Bundles that copy to vector memory what no host can read: results, the transposer, both
    weight tiles; and, by their faults, the counts of the array's rules.

    They are legal only in the state of ``golden``, and do not halt.
    """
    config = golden.config
    stored = 0
    bundles: list[int] = []

    def add(slot: Slot, imm: tuple[int, ...] = (), **fields: int) -> None:
        bundles.append(pack({slot: fields}, imm))

    def store(register: int) -> None:
        nonlocal stored
        add(Slot.STORE, (stored % config.vmem_vectors,), op=StoreOp.STORE, d=register,
            b=isa.FIRST_IMMEDIATE)
        stored += 1

    def pop(register: int) -> None:
        add(Slot.POP, op=PopOp.POP, d=register)
        store(register)

    def rows(first: PushOp) -> None:
        """The product of each row of the identity: the active weights."""
        for group in range(config.tile_vregs):
            add(Slot.V0, op=VectorOp.LANE, d=1)
            add(Slot.V0, op=VectorOp.SUBLANE, d=2)
            add(Slot.V0, (group * config.sublanes,), op=VectorOp.ADD, d=2, a=2,
                b=isa.FIRST_IMMEDIATE)
            add(Slot.V0, op=VectorOp.EQ, d=1, a=1, b=isa.VECTOR_FLAG | 2)
            add(Slot.V0, (0x3F800000,), op=VectorOp.MOVE, d=3, b=isa.FIRST_IMMEDIATE)
            add(Slot.V0, op=VectorOp.SELECT, d=3, a=3, b=0, m=1)
            add(Slot.PUSH, op=PushOp.ROWS if group else first, a=3)
            pop(group % 2 * 10 + 4)

    for number in range(golden.held):
        pop(number % isa.VECTOR_REGISTERS)
    for group in range(config.tile_vregs):
        add(Slot.MISC, (group,), op=MiscOp.TRANSPOSE_OUT, d=group % isa.VECTOR_REGISTERS,
            b=isa.FIRST_IMMEDIATE)
        store(group % isa.VECTOR_REGISTERS)
    if golden.active:
        rows(PushOp.ROWS)
    op = PushOp.WEIGHTS_T if golden.transposed else PushOp.WEIGHTS
    for group in range(golden.loaded, config.tile_vregs):
        add(Slot.PUSH, op=op, a=group % isa.VECTOR_REGISTERS)
    rows(PushOp.ROWS_SWAP)
    return bundles


@dataclass(frozen=True)
class RandomProgram:
    """A generated program.

    Attributes
    ----------
    bundles : tuple of int
        From address 0 on; bundles that were never reached are empty.
    reached : int
        Number of bundles executed at least once.
    executed : int
        Number of bundles executed, with repetitions.
    operations : frozenset of Operation
        Operations executed.
    signals : tuple of index and amount
        Signals that the host must send, one each time the program waits.
    """

    bundles: tuple[int, ...]
    reached: int
    executed: int
    operations: frozenset[Operation]
    signals: tuple[tuple[int, int], ...]


class _Draft:
    """A bundle under construction: fields by slot, immediates, registers written."""

    def __init__(self) -> None:
        self.fields: dict[Slot, dict[str, int]] = {}
        self.imm: list[int] = []
        self.written: set[tuple[str, int]] = set()

    def immediate(self, value: int) -> int | None:
        """The number of an immediate with that value; None if no immediate is free."""
        value &= _MASK32
        if value not in self.imm:
            if len(self.imm) == isa.IMMEDIATES:
                return None
            self.imm.append(value)
        return self.imm.index(value)

    def source(self, value: int) -> int:
        """A source that is an immediate of that value."""
        number = self.immediate(value)
        if number is None:
            raise _ImpossibleError
        return isa.FIRST_IMMEDIATE + number

    def put(self, slot: Slot, operation: int, **fields: int) -> None:
        """Fills a slot, which must be free."""
        if slot in self.fields:
            raise _ImpossibleError
        self.fields[slot] = {"op": operation, **fields}

    def copy(self) -> "_Draft":
        other = _Draft()
        other.fields = {slot: dict(fields) for slot, fields in self.fields.items()}
        other.imm = list(self.imm)
        other.written = set(self.written)
        return other

    def bundle(self) -> int:
        return pack(self.fields, tuple(self.imm))


class _ImpossibleError(Exception):
    """No suitable operand exists for the operation."""


class _Registers:
    """The registers that a program uses: all, or so few that nearly every bundle has a hazard."""

    def __init__(self, rng: np.random.Generator, few: bool) -> None:
        def some(numbers: range, count: int) -> list[int]:
            return sorted(rng.choice(numbers, count, replace=False).tolist()) if few else list(
                numbers)

        self.vectors = some(range(isa.VECTOR_REGISTERS), int(rng.integers(3, 6)))
        self.masks = some(range(1, isa.MASKS), 2)
        self.scalars_out = some(range(STABLE.start), 4)
        self.scalars_in = self.scalars_out if few else list(range(isa.SCALAR_REGISTERS))


class Generator:
    """Generates random programs for a golden core, and executes them on it.

    Parameters
    ----------
    golden : GoldenCore
        The golden core, whose state carries over from program to program.
    rng : numpy Generator
        Source of all choices.
    signals : bool
        Whether programs may wait for more than the semaphores have: the host must then send the
        program's ``signals``.
    """

    def __init__(self, golden: GoldenCore, rng: np.random.Generator, *,
                 signals: bool = False) -> None:
        self._golden = golden
        self._config: Config = golden.config
        self._limits = isa.index_limits(golden.config)
        self._rng = rng
        self._host_signals = signals
        self._words = random_words(rng, (4096,))
        self._registers = _Registers(rng, few=False)
        self._semaphores = list(range(isa.SEMAPHORES))
        self._deck: list[Fault] = []
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Forgets the program before."""
        self._length = length
        self._tail = length - 1
        self._kind = Fault.NONE
        self._loop: int | None = None
        self._loop_end = -1
        self._passes = 0
        self._risky = False

    def program(self, length: int, *, fault: bool, busy_halt: bool = False) -> RandomProgram:
        """A program of ``length`` bundles, which the golden core executes until it stops.

        Parameters
        ----------
        length : int
            Uses addresses 0 to ``length - 1``; from 2 to the size of the memory.
        fault : bool
            Ends with a bundle that has a fault, not with a halt.
        busy_halt : bool
            The halting bundle has other operations, too, so it must not be executed twice.
        """
        if not 2 <= length <= self._config.imem_bundles:
            raise ValueError(f"length must be from 2 to {self._config.imem_bundles}, not {length}")
        golden, rng = self._golden, self._rng
        self._begin(length)
        self._registers = _Registers(rng, few=self._chance(0.5))
        self._semaphores = rng.permutation(isa.SEMAPHORES)[:int(rng.integers(4, 16))].tolist()
        if fault:
            self._choose_fault()
        code: dict[int, int] = {}
        done: set[int] = set()
        signals: list[tuple[int, int]] = []
        golden.load_program([0] * self._config.imem_bundles)
        golden.start(0)
        executed = 0
        while golden.running:
            pc = golden.pc
            if pc not in code and pc < length:
                code[pc] = self._last(fault, busy_halt) if pc == length - 1 else self._bundle(pc)
                golden.load_program([code[pc]], at=pc)
            if golden.step() and pc < length:
                done.add(pc)
            if golden.waiting:
                if not self._host_signals:
                    raise RuntimeError(f"a program waits at bundle {pc}, and nobody signals")
                signals.append(self._signal(code[pc]))
            executed += 1
            if executed > 50 * length:
                raise RuntimeError(f"a program of {length} bundles does not end")
        if self._kind and golden.fault is not self._kind:
            self._deck.insert(0, self._kind)
        return RandomProgram(tuple(code.get(pc, 0) for pc in range(length)), len(code), executed,
                             _operations(code[pc] for pc in done), tuple(signals))

    def sequence(self, length: int) -> list[int]:
        """Bundles of one operation each, without branches or halts, executed on the golden core."""
        golden = self._golden
        self._begin(0)
        bundles: list[int] = []
        while len(bundles) < length:
            draft = _Draft()
            slot = self._pick(list(isa.SLOTS))
            self._fill(draft, slot, 0)
            operation = isa.operation(slot, draft.fields.get(slot, {}).get("op", 0))
            if operation is None or operation.unit is Unit.BRANCH:
                continue
            bundles.append(draft.bundle())
            golden.load_program([bundles[-1]])
            golden.start(0)
            golden.step()
            golden.stop()
            if golden.fault or golden.waiting:
                raise RuntimeError(f"operation {operation.name} could not be executed: "
                                   f"{golden.fault!r}")
        return bundles

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, choices: Sequence[Any] | np.ndarray) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _signal(self, bundle: int) -> tuple[int, int]:
        """Signals the semaphore that the bundle waits for: enough, or not yet."""
        golden = self._golden
        slots, imm, _ = unpack(bundle)
        index, source = slots[Slot.MISC]["d"], slots[Slot.MISC]["b"]
        if source < isa.SCALAR_REGISTERS:
            wanted = int(golden.scalars[source])
        elif source < isa.INLINE_BASE + isa.INLINE_MIN:
            wanted = imm[source - isa.FIRST_IMMEDIATE]
        else:
            wanted = source - isa.INLINE_BASE
        amount = wanted - int(golden.semaphores[index])
        if self._chance(0.5):
            amount = int(self._rng.integers(1, amount + 1)) if self._chance(0.5) else (
                amount + int(self._rng.integers(100)))
        golden.signal(index, amount)
        return index, amount

    def _last(self, fault: bool, busy_halt: bool) -> int:
        self._loop = None
        draft = _Draft()
        if not fault:
            draft.put(Slot.S1, ScalarOp.HALT)
            if busy_halt and self._chance(0.7):
                return self._filled(draft, self._length - 1, 0.9)
            return draft.bundle()
        choice = self._rng.random()
        if choice < 0.05:
            return int.from_bytes(self._rng.bytes(isa.BUNDLE_BITS // 8), "little")
        if choice < 0.15:
            return self._nearly_legal()
        if self._possible(self._kind):
            return self._faulty(self._kind)
        return self._faulty(self._pick(_ANY_TIME))

    def _nearly_legal(self) -> int:
        """Any fault may follow. Otherwise the program runs out of the memory, or continues in empty
        bundles.
        """
        slots, imm, _ = unpack(self._bundle(self._length - 1))
        slots[Slot.S1] = {}
        if slots[Slot.MISC]["op"] == MiscOp.WAIT:
            slots[Slot.MISC] = {}
        for _ in range(int(self._rng.integers(1, 4))):
            slot = self._pick([slot for slot in slots if slot not in (Slot.S1, Slot.MISC)])
            field = self._pick(list(isa.SLOTS[slot]))
            slots[slot][field] = int(self._rng.integers(1 << isa.SLOTS[slot][field]))
        misc = slots[Slot.MISC]
        misc["b"] = int(self._rng.integers(1 << isa.SOURCE_BITS))
        return pack(slots, imm)

    def _bundle(self, pc: int) -> int:
        draft = _Draft()
        if pc < self._tail:
            self._handle_loop(draft, pc)
        else:
            self._approach(draft)
        return self._filled(draft, pc, self._pick((0.15, 0.5, 0.9)))

    def _filled(self, draft: _Draft, pc: int, density: float) -> int:
        """The draft as a bundle, with operations in about so much of what was free."""
        for slot in self._rng.permutation(np.array(list(isa.SLOTS), object)):
            if slot not in draft.fields and self._chance(density):
                self._fill(draft, slot, pc)
        return draft.bundle()

    def _fill(self, draft: _Draft, slot: Slot, pc: int) -> None:
        """Puts an operation into a slot; leaves it empty if no legal one is found."""
        for _ in range(4):
            operation = self._pick(_LEGAL[slot])
            attempt = draft.copy()
            try:
                attempt.put(slot, operation.op, **self._operands(attempt, operation, pc))
            except _ImpossibleError:
                continue
            draft.fields, draft.imm, draft.written = (
                attempt.fields, attempt.imm, attempt.written)
            return

    # Loops -----------------------------------------------------------------------------------

    def _handle_loop(self, draft: _Draft, pc: int) -> None:
        """Sets the loop counter at times, and goes back some bundles later."""
        if self._loop is None:
            if pc > self._loop_end and self._chance(0.05):
                self._passes = int(self._rng.integers(2, 5))
                draft.put(Slot.S0, ScalarOp.ADD, d=self._write(draft, "s", COUNTER),
                          b=isa.INLINE_BASE + self._passes)
                self._loop = pc + 1
                self._risky = self._chance(0.03)
        elif pc >= self._loop and self._chance(0.15):
            self._go_back(draft, self._loop)
            self._loop, self._loop_end = None, pc

    def _go_back(self, draft: _Draft, target: int) -> None:
        """A branch that is taken a few times, by its own count or by one in the other slot."""
        source = draft.source(target)
        if self._chance(0.5):
            draft.put(Slot.S1, ScalarOp.LOOP, d=self._write(draft, "s", COUNTER), b=source)
            return
        draft.put(Slot.S0, ScalarOp.ADD, d=self._write(draft, "s", COUNTER), a=COUNTER,
                  b=isa.INLINE_BASE - 1)
        # The counter before the subtraction.
        op, a, b = self._pick((
            (ScalarOp.BEQ, COUNTER, isa.INLINE_BASE + self._passes),
            (ScalarOp.BNE, COUNTER, isa.INLINE_BASE + 1),
            (ScalarOp.BLT, 0, COUNTER),
            (ScalarOp.BGE, COUNTER, isa.INLINE_BASE + 2),
            (ScalarOp.BLTU, 0, COUNTER),
            (ScalarOp.BGEU, COUNTER, isa.INLINE_BASE + 2)))
        draft.put(Slot.S1, op, a=a, b=b, d=source - isa.FIRST_IMMEDIATE)

    def _repeats(self) -> bool:
        """Whether the bundle may be executed again, in another state."""
        return self._loop is not None or self._golden.pc <= self._loop_end

    # Operands --------------------------------------------------------------------------------

    def _operands(self, draft: _Draft, operation: Operation, pc: int) -> dict[str, int]:
        if operation.unit is Unit.BRANCH:
            return self._branch(draft, operation, pc)
        if operation.unit in (Unit.SMEM, Unit.VMEM):
            return self._memory(draft, operation)
        if operation.unit is Unit.SEMAPHORE and operation.op == MiscOp.WAIT:
            return self._wait(draft)
        if operation.unit is Unit.MXU:
            self._check_array(operation)
        fields: dict[str, int] = {}
        for operand in operation.operands:
            fields[operand.field] = self._operand(draft, operation, operand.kind)
        return fields

    def _operand(self, draft: _Draft, operation: Operation, kind: Kind) -> int:
        if kind is Kind.SCALAR_OUT:
            return self._write(draft, "s", self._pick(self._registers.scalars_out))
        if kind is Kind.SCALAR_IN:
            return int(self._pick(self._registers.scalars_in))
        if kind is Kind.SOURCE:
            return self._source(draft, operation)
        if kind is Kind.VECTOR_OUT:
            return self._write(draft, "v", self._pick(self._registers.vectors))
        if kind is Kind.VECTOR_IN:
            return int(self._pick(self._registers.vectors))
        if kind is Kind.VECTOR_SOURCE:
            if self._chance(0.7):
                return isa.VECTOR_FLAG | int(self._pick(self._registers.vectors))
            return self._any_source(draft)
        if kind is Kind.MASK_OUT:
            return self._write(draft, "m", self._pick(self._registers.masks))
        if kind is Kind.MASK_IN:
            return int(self._pick([0, *self._registers.masks]))
        if kind is Kind.SEMAPHORE:
            return int(self._pick(self._semaphores))
        raise AssertionError(f"no way to choose {kind}")

    def _write(self, draft: _Draft, file: str, number: int) -> int:
        if (file, number) in draft.written:
            raise _ImpossibleError
        if (file, number) != ("s", 0):
            draft.written.add((file, number))
        return number

    def _any_source(self, draft: _Draft) -> int:
        """A scalar source of any value."""
        choice = self._rng.random()
        if choice < 0.4:
            return int(self._pick(self._registers.scalars_in))
        if choice < 0.6:
            return isa.INLINE_BASE + int(self._rng.integers(isa.INLINE_MIN, isa.INLINE_MAX + 1))
        number = draft.immediate(int(self._pick(self._words)))
        return (isa.INLINE_BASE if number is None else isa.FIRST_IMMEDIATE + number)

    def _source_of(self, draft: _Draft, value: int) -> int:
        """A scalar source with that value whenever the bundle is executed."""
        ways: list[Callable[[], int | None]] = []
        signed = value - (1 << 32) if value >> 31 else value
        if isa.INLINE_MIN <= signed <= isa.INLINE_MAX:
            ways.append(lambda: isa.INLINE_BASE + signed)
        same = [number for number in (0, *STABLE) if int(self._golden.scalars[number]) == value]
        if same:
            ways.append(lambda: self._pick(same))

        def immediate() -> int | None:
            number = draft.immediate(value)
            return None if number is None else isa.FIRST_IMMEDIATE + number

        ways.append(immediate)
        source = self._pick(ways)()
        if source is None:
            raise _ImpossibleError
        return source

    def _wait(self, draft: _Draft) -> dict[str, int]:
        """A wait that ends by itself, or by a signal of the host."""
        index = int(self._pick(self._semaphores))
        value = int(self._golden.semaphores[index])
        if self._host_signals and self._chance(0.3):
            wanted = value + int(self._rng.integers(1, 1000))
        elif not self._repeats():
            wanted = int(self._rng.integers(min(value, _WAIT_IN_LOOPS) + 1))
        elif value >= _WAIT_IN_LOOPS:
            wanted = int(self._rng.integers(isa.INLINE_MAX + 1))
        else:
            raise _ImpossibleError
        return {"d": index, "b": self._source_of(draft, wanted)}

    def _source(self, draft: _Draft, operation: Operation) -> int:
        if operation.unit is Unit.XLU:
            limit = self._limits[MiscOp(operation.op)]
            return self._source_of(draft, int(self._rng.integers(limit)))
        if operation.unit is Unit.SEMAPHORE:
            return self._source_of(draft, int(self._rng.integers(1 << 12)))
        return self._any_source(draft)

    def _memory(self, draft: _Draft, operation: Operation) -> dict[str, int]:
        """A load or store with a base register and an offset whose sum is legal."""
        words = (self._config.smem_words if operation.unit is Unit.SMEM
                 else self._config.vmem_vectors)
        # A few addresses only, so that loads meet stores.
        address = int(self._rng.integers(min(words, 12))) if self._chance(0.7) else int(
            self._rng.integers(words))
        registers: Iterable[int] = (0, *STABLE)
        if not self._repeats() and self._chance(0.3):
            registers = range(isa.SCALAR_REGISTERS)
        base = self._pick(list(registers))
        fields = {"a": base,
                  "b": self._source_of(draft, address - int(self._golden.scalars[base])
                                       & _MASK32)}
        for operand in operation.operands:
            if operand.field not in fields:
                fields[operand.field] = self._operand(draft, operation, operand.kind)
        return fields

    def _check_array(self, operation: Operation) -> None:
        """Refuses operations that would fault now, though they may still do so later in a loop.

        On the way to a fault, refuses operations that lead away from it.
        """
        golden = self._golden
        if self._repeats() and not self._risky:
            raise _ImpossibleError
        full = golden.loaded == self._config.tile_vregs
        held = golden.held
        op = operation.op
        if operation.slots == (Slot.POP,):
            legal = held > 0
        elif op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T):
            legal = not full and (golden.loaded == 0
                                  or golden.transposed == (op == PushOp.WEIGHTS_T))
        else:
            legal = held < self._config.result_vregs and (
                full if op == PushOp.ROWS_SWAP else golden.active)
        rows = op in (PushOp.ROWS, PushOp.ROWS_SWAP) and operation.slots == (Slot.PUSH,)
        away = golden.pc >= self._tail and (
            (self._kind is Fault.FIFO_OVERFLOW and operation.slots == (Slot.POP,))
            or (self._kind is Fault.FIFO_UNDERFLOW and rows))
        if away or not legal:
            raise _ImpossibleError

    def _branch(self, draft: _Draft, operation: Operation, pc: int) -> dict[str, int]:
        """Branches go forward, some bundles far; loops go back a few times."""
        op = operation.op
        if op in (ScalarOp.HALT, ScalarOp.LOOP) or pc >= self._tail:
            raise _ImpossibleError
        target = min(pc + 1 + int(self._rng.integers(4)), self._length - 1)
        fields: dict[str, int] = {}
        if op in _BRANCHES:
            if self._chance(0.1):
                # It is not taken, so any target will do.
                number = draft.source(self._beyond(self._config.imem_bundles))
                _, never = _BRANCHES[ScalarOp(op)]
                return {"b": isa.INLINE_BASE + never, "d": number - isa.FIRST_IMMEDIATE}
            number = draft.source(target)
            fields = {"a": self._pick(self._registers.scalars_in), "b": self._any_source(draft),
                      "d": number - isa.FIRST_IMMEDIATE}
        else:
            fields["b"] = self._source_of(draft, target)
            if op == ScalarOp.CALL:
                fields["d"] = self._operand(draft, operation, Kind.SCALAR_OUT)
        return fields

    # Faults ----------------------------------------------------------------------------------

    def _choose_fault(self) -> None:
        """Chooses the fault at the end, and the point from which the program must head for it."""
        if not self._deck:
            self._deck = [BUNDLE_FAULTS[number]
                          for number in self._rng.permutation(len(BUNDLE_FAULTS))]
        self._kind = self._deck.pop()
        config = self._config
        way = {Fault.FIFO_OVERFLOW: config.tile_vregs + config.result_vregs + 1,
               Fault.FIFO_UNDERFLOW: config.result_vregs}.get(self._kind, 0)
        self._tail -= min(way, self._length // 2)

    def _approach(self, draft: _Draft) -> None:
        """A push or pop towards a state in which the chosen fault is possible."""
        self._loop = None
        golden = self._golden
        if self._kind is Fault.FIFO_UNDERFLOW and golden.held:
            draft.put(Slot.POP, PopOp.POP, d=self._operand_of(draft, Kind.VECTOR_OUT))
        if self._kind is Fault.FIFO_OVERFLOW and golden.held < self._config.result_vregs:
            if golden.loaded == self._config.tile_vregs:
                op = PushOp.ROWS_SWAP
            elif golden.active:
                op = PushOp.ROWS
            else:
                op = PushOp.WEIGHTS_T if golden.transposed else PushOp.WEIGHTS
            draft.put(Slot.PUSH, op, a=self._operand_of(draft, Kind.VECTOR_IN))

    def _possible(self, fault: Fault) -> bool:
        """Whether some bundle has that fault in the golden core's state."""
        golden, config = self._golden, self._config
        if fault is Fault.FIFO_OVERFLOW:
            return golden.held == config.result_vregs and (
                golden.active or golden.loaded == config.tile_vregs)
        if fault is Fault.FIFO_UNDERFLOW:
            return golden.held == 0
        if fault is Fault.SEMAPHORE:
            return bool(golden.semaphores.any())
        return True

    def _faulty(self, fault: Fault) -> int:
        """A full bundle with that fault, and at times also with one of lower priority."""
        spoilers: dict[Fault, Callable[[_Draft], None]] = {
            Fault.CONFLICT: self._conflict,
            Fault.PC_RANGE: self._leave,
            Fault.SMEM_RANGE: partial(self._far_address, Fault.SMEM_RANGE),
            Fault.VMEM_RANGE: partial(self._far_address, Fault.VMEM_RANGE),
            Fault.INDEX_RANGE: self._far_index,
            Fault.WEIGHT_LOAD: partial(self._misuse_array, Fault.WEIGHT_LOAD),
            Fault.FIFO_OVERFLOW: partial(self._misuse_array, Fault.FIFO_OVERFLOW),
            Fault.FIFO_UNDERFLOW: partial(self._misuse_array, Fault.FIFO_UNDERFLOW),
            Fault.SEMAPHORE: self._overflow_semaphore,
        }
        kinds = [fault]
        if fault is not Fault.PC_RANGE and self._chance(0.25):
            kinds += [later for later in BUNDLE_FAULTS
                      if later > fault and later is not Fault.PC_RANGE and self._possible(later)
                      and self._chance(0.3)]
        draft = _Draft()
        for kind in kinds:
            # Of a conflict between unsuitable operations, or where the slots are taken, another
            # attempt may succeed.
            for _ in range(50):
                attempt = draft.copy()
                try:
                    spoilers.get(kind, lambda draft: None)(attempt)
                except _ImpossibleError:
                    continue
                draft = attempt
                break
            else:
                assert kind is not fault, f"no bundle with {fault.name} can be made"
        bundle = self._filled(draft, self._length - 1, 0.9)
        return self._make_illegal(bundle) if fault is Fault.ILLEGAL else bundle

    def _beyond(self, limit: int) -> int:
        """A word that is at least the limit, though its low bits may be less."""
        if self._chance(0.6):
            return (1 << int(self._rng.integers(limit.bit_length(), 32))) + int(
                self._rng.integers(limit))
        return int(self._pick((limit, limit + int(self._rng.integers(16)), _MASK32,
                               int(self._rng.integers(limit, 1 << 32)))))

    def _make_illegal(self, bundle: int) -> int:
        slots, imm, _ = unpack(bundle)
        faults: list[tuple[Slot, str, list[int]]] = []
        for slot, widths in isa.SLOTS.items():
            codes = [code for code in range(1, 1 << widths["op"])
                     if isa.operation(slot, code) is None]
            operation = isa.operation(slot, slots[slot]["op"])
            operands = operation.operands if operation else ()
            faults += [(slot, "op", codes),
                       *((slot, operand.field,
                          [value for value in _BEYOND.get(operand.kind, ())
                           if value < 1 << widths[operand.field]]) for operand in operands)]
        if self._chance(0.1):
            reserved = 1 << int(self._rng.integers(isa.RESERVED_BITS))
            return bundle | reserved << isa.BUNDLE_BITS - 32 * isa.IMMEDIATES - isa.RESERVED_BITS
        slot, field, values = self._pick([fault for fault in faults if fault[2]])
        slots[slot][field] = int(self._pick(values))
        return pack(slots, imm)

    def _conflict(self, draft: _Draft) -> None:
        """Two operations that write one register."""
        file = self._pick("svm")
        number = int(self._rng.integers(1, {"s": STABLE.start, "v": isa.VECTOR_REGISTERS,
                                            "m": isa.MASKS}[file]))
        writers = _WRITERS[file]
        for slot in self._rng.permutation(np.array(sorted({slot for slot, _ in writers}),
                                                   object))[:2]:
            operation = self._pick([operation for place, operation in writers if place == slot])
            fields = self._operands(draft, operation, self._length - 1)
            draft.put(Slot(slot), operation.op, **fields | {"d": number})

    def _leave(self, draft: _Draft) -> None:
        """A taken branch to a target beyond the instruction memory."""
        op = self._pick((ScalarOp.JUMP, ScalarOp.CALL, ScalarOp.LOOP, *_BRANCHES))
        target = draft.source(self._beyond(self._config.imem_bundles))
        if op in _BRANCHES:
            always, _ = _BRANCHES[op]
            draft.put(Slot.S1, op, b=isa.INLINE_BASE + always, d=target - isa.FIRST_IMMEDIATE)
        elif op == ScalarOp.CALL:
            draft.put(Slot.S1, op, b=target, d=self._operand_of(draft, Kind.SCALAR_OUT))
        else:
            draft.put(Slot.S1, op, b=target)

    def _far_address(self, fault: Fault, draft: _Draft) -> None:
        """A load or store beyond the memory."""
        operation = self._pick([operation for operation in isa.OPERATIONS
                                if fault in operation.faults])
        size = (self._config.smem_words if fault is Fault.SMEM_RANGE else self._config.vmem_vectors)
        base = self._pick((0, *STABLE))
        offset = self._beyond(size) - int(self._golden.scalars[base])
        fields = {"a": base, "b": draft.source(offset)}
        for operand in operation.operands:
            if operand.field not in fields:
                fields[operand.field] = self._operand(draft, operation, operand.kind)
        draft.put(operation.slots[0], operation.op, **fields)

    def _far_index(self, draft: _Draft) -> None:
        """An operation of the cross-lane unit with an illegal index."""
        operation = self._pick([operation for operation in isa.OPERATIONS
                                if Fault.INDEX_RANGE in operation.faults])
        draft.put(Slot.MISC, operation.op, **self._operands(draft, operation, self._length - 1)
                  | {"b": draft.source(self._beyond(self._limits[MiscOp(operation.op)]))})

    def _misuse_array(self, fault: Fault, draft: _Draft) -> None:
        """A push or pop that the array's state forbids."""
        golden = self._golden
        full = golden.loaded == self._config.tile_vregs
        if fault is Fault.FIFO_UNDERFLOW:
            draft.put(Slot.POP, PopOp.POP, d=self._operand_of(draft, Kind.VECTOR_OUT))
            return
        wrong: list[PushOp] = []
        if fault is Fault.FIFO_OVERFLOW:
            wrong += [PushOp.ROWS] if golden.active else []
            wrong += [PushOp.ROWS_SWAP] if full else []
        else:
            wrong += [] if golden.active else [PushOp.ROWS]
            wrong += [PushOp.WEIGHTS, PushOp.WEIGHTS_T] if full else [PushOp.ROWS_SWAP]
            if golden.loaded and not full:
                wrong.append(PushOp.WEIGHTS if golden.transposed else PushOp.WEIGHTS_T)
        draft.put(Slot.PUSH, self._pick(wrong), a=self._operand_of(draft, Kind.VECTOR_IN))

    def _overflow_semaphore(self, draft: _Draft) -> None:
        semaphores = self._golden.semaphores
        index = int(self._pick(np.flatnonzero(semaphores)))
        least = (1 << 32) - int(semaphores[index])
        amount = least if self._chance(0.5) else int(self._rng.integers(least, 1 << 32))
        draft.put(Slot.MISC, MiscOp.SIGNAL, d=index, b=draft.source(amount))

    def _operand_of(self, draft: _Draft, kind: Kind) -> int:
        """An operand that does not depend on the operation."""
        return self._operand(draft, isa.OPERATIONS[0], kind)


def _operations(bundles: Iterable[int]) -> frozenset[Operation]:
    found = set()
    for bundle in bundles:
        for slot, fields in unpack(bundle)[0].items():
            operation = isa.operation(slot, fields["op"])
            if operation is not None:
                found.add(operation)
    return frozenset(found)


# Schedules -------------------------------------------------------------------------------------


@dataclass
class _Resource:
    """The last bundle that wrote a resource, and the last that read it."""

    written: int = -1
    read: int = -1


@dataclass(frozen=True)
class _Step:
    """One operation of a sequence: its fields, with immediates by value, and its resources."""

    operation: Operation
    fields: dict[str, int]
    imm: tuple[int, ...]
    reads: frozenset
    writes: frozenset


def _step(bundle: int) -> _Step:
    """The only operation of a bundle."""
    slots, imm, _ = unpack(bundle)
    [(slot, fields)] = [(slot, fields) for slot, fields in slots.items() if fields["op"]]
    operation = isa.operation(slot, fields["op"])
    assert operation is not None
    reads: set = set()
    writes: set = set()
    for operand in operation.operands:
        value, kind = fields[operand.field], operand.kind
        file = {"s": "s", "v": "v", "m": "m"}.get(kind.name[0].lower(), "")
        if kind is Kind.SOURCE:
            reads.add(("s", value))
        elif kind is Kind.VECTOR_SOURCE:
            flagged = value & isa.VECTOR_FLAG
            reads.add(("v", value ^ isa.VECTOR_FLAG) if flagged else ("s", value))
        elif kind in (Kind.SCALAR_OUT, Kind.VECTOR_OUT, Kind.MASK_OUT):
            writes.add((file, value))
        elif kind in (Kind.SCALAR_IN, Kind.VECTOR_IN, Kind.MASK_IN):
            reads.add((file, value))
        elif kind is Kind.SEMAPHORE:
            writes.add(("semaphores",))
        else:
            raise ValueError(f"an operation to be scheduled must be no branch, not "
                             f"{operation.name}")
    if operation.unit in (Unit.SMEM, Unit.VMEM):
        store = operation.name == "store"
        (writes if store else reads).add((operation.unit,))
    elif operation.unit is Unit.MXU:
        writes.add((slot,))
    elif operation.op in (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT) and slot is Slot.MISC:
        (writes if operation.op == MiscOp.TRANSPOSE_IN else reads).add(("transposer",))
    return _Step(operation, fields, imm, frozenset(reads), frozenset(writes - {("s", 0)}))


def schedule(bundles: Sequence[int], config: Config, rng: np.random.Generator,
             slack: float) -> list[int]:
    """Packs a sequence of operations into bundles, in an equivalent order.

    Parameters
    ----------
    bundles : sequence of int
        One operation each, no branches.
    config : Config
        Determines how many results the array holds.
    rng : numpy Generator
        Chooses slots and delays.
    slack : float
        Probability of putting an operation a bundle later than necessary.

    Returns
    -------
    list of int
        Bundles; some may be empty.
    """
    drafts: list[_Draft] = []
    resources: dict = {}
    pushed: list[int] = []
    popped: list[int] = []
    for step in map(_step, bundles):
        earliest = 0
        for name in step.reads | step.writes:
            earliest = max(earliest, resources.setdefault(name, _Resource()).written + 1)
        for name in step.writes:
            earliest = max(earliest, resources[name].read)
        rows = step.operation.op in (PushOp.ROWS, PushOp.ROWS_SWAP) and (
            step.operation.slots == (Slot.PUSH,))
        if rows and len(pushed) >= config.result_vregs:
            earliest = max(earliest, popped[len(pushed) - config.result_vregs] + 1)
        if step.operation.slots == (Slot.POP,):
            earliest = max(earliest, pushed[len(popped)] + 1)
        while rng.random() < slack:
            earliest += 1
        place = _place(drafts, step, earliest, rng)
        for name in step.reads:
            resources[name].read = max(resources[name].read, place)
        for name in step.writes:
            resources[name].written = place
        if rows:
            pushed.append(place)
        if step.operation.slots == (Slot.POP,):
            popped.append(place)
    return [draft.bundle() for draft in drafts]


def _place(drafts: list[_Draft], step: _Step, earliest: int, rng: np.random.Generator) -> int:
    """Puts a step into the first draft with room from ``earliest`` on; returns its index."""
    place = earliest
    while True:
        while len(drafts) <= place:
            drafts.append(_Draft())
        draft = drafts[place]
        free = [slot for slot in step.operation.slots if slot not in draft.fields]
        renumbered = dict(step.fields)
        attempt = list(draft.imm)
        fits = bool(free)
        for operand in step.operation.operands:
            number = step.fields[operand.field] - isa.FIRST_IMMEDIATE
            if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE) and 0 <= number < isa.IMMEDIATES:
                wanted = draft.immediate(step.imm[number])
                if wanted is None:
                    fits = False
                    break
                renumbered[operand.field] = isa.FIRST_IMMEDIATE + wanted
        if fits:
            draft.fields[free[int(rng.integers(len(free)))]] = renumbered
            return place
        draft.imm = attempt
        place += 1
