"""Random programs for a core: legal bundles of all slots, generated along the path of execution.

The generator runs a golden machine beside itself. A bundle is made up when execution first reaches
its address, so it can be made legal for the state at hand: addresses in range, pops only of results
that will come, semaphores that suffice. What a program does when it passes a bundle again, in a
loop, is then up to the machines, faults included.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.machine import Machine
from golden.stimulus import mac_operands
from hdl import isa
from hdl.config import Config
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
    Unit,
    VectorOp,
)

__all__ = ["Generator", "RandomProgram", "faulty_bundles", "fill_registers", "random_words",
           "schedule"]

STABLE = range(24, 30)
"""Scalar registers that programs do not write: small numbers, for addresses that stay legal."""
COUNTER = 31
"""Scalar register that counts the passes of a loop."""

_LEGAL: dict[Slot, list[Operation]] = {
    slot: [operation for operation in isa.OPERATIONS if slot in operation.slots
           # What reaches beyond the core is not for programs of a core by itself.
           and operation.unit not in (Unit.DMA, Unit.OTHER_CORE)]
    for slot in isa.SLOTS}
_BRANCHES = {ScalarOp.BEQ, ScalarOp.BNE, ScalarOp.BLT, ScalarOp.BGE, ScalarOp.BLTU, ScalarOp.BGEU}
_MASK32 = 0xFFFFFFFF


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
    bundles = [isa.pack({Slot.LOAD: {"op": LoadOp.LOAD, "d": number, "b": isa.FIRST_IMMEDIATE}},
                        (number % config.vmem_words,))
               for number in range(isa.VECTOR_REGISTERS)]
    bundles += [isa.pack({Slot.MISC: {"op": MiscOp.TRANSPOSE_IN, "a": group % isa.VECTOR_REGISTERS,
                                      "b": isa.FIRST_IMMEDIATE}}, (group,))
                for group in range(config.tile_vregs)]
    bundles += [isa.pack({Slot.V0: {"op": VectorOp.LT, "d": number, "a": number,
                                    "b": isa.VECTOR_FLAG | number + isa.MASKS}})
                for number in range(1, isa.MASKS)]
    return bundles


def faulty_bundles(config: Config) -> dict[Fault, int]:
    """A bundle for each fault that a single bundle can have after a reset.

    The one with ``Fault.SEMAPHORE`` needs the first semaphore to be at least 1. All would change a
    scalar register too.
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
                           (config.vmem_words,)),
        Fault.INDEX_RANGE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.ROTATE_LANES, "b": first}},
                            (config.lanes,)),
        Fault.WEIGHT_LOAD: ({Slot.S0: write, Slot.PUSH: {"op": PushOp.ROWS}}, ()),
        Fault.FIFO_UNDERFLOW: ({Slot.S0: write, Slot.POP: {"op": PopOp.POP}}, ()),
        Fault.SEMAPHORE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.SIGNAL, "b": first}},
                          (0xFFFFFFFF,)),
    }
    return {fault: isa.pack(slots, imm) for fault, (slots, imm) in bad.items()}


@dataclass(frozen=True)
class RandomProgram:
    """A program as it was generated.

    Attributes
    ----------
    bundles : tuple of int
        From address 0 on; those that were never reached are bundles of nothing.
    reached : int
        Bundles that were executed at least once.
    executed : int
        Bundles that were executed, with repetitions.
    """

    bundles: tuple[int, ...]
    reached: int
    executed: int


class _Draft:
    """A bundle in the making: fields by slot, immediates, and what is written already."""

    def __init__(self) -> None:
        self.fields: dict[Slot, dict[str, int]] = {}
        self.imm: list[int] = []
        self.written: set[tuple[str, int]] = set()

    def immediate(self, value: int) -> int | None:
        """The number of an immediate of that value; None if all are taken by others."""
        value &= _MASK32
        if value not in self.imm:
            if len(self.imm) == isa.IMMEDIATES:
                return None
            self.imm.append(value)
        return self.imm.index(value)

    def bundle(self) -> int:
        return isa.pack(self.fields, tuple(self.imm))


class _ImpossibleError(Exception):
    """No legal operand can be found for the operation at hand."""


class Generator:
    """Makes random programs for a machine, and executes them on it.

    Parameters
    ----------
    machine : Machine
        The golden machine, whose state carries over from program to program.
    rng : numpy Generator
        Source of all choices.
    """

    def __init__(self, machine: Machine, rng: np.random.Generator) -> None:
        self._machine = machine
        self._config: Config = machine.config
        self._rng = rng
        self._words = random_words(rng, (4096,))
        self._loop: int | None = None
        self._loop_end = -1
        self._risky = False
        self._length = 0

    def program(self, length: int, *, fault: bool) -> RandomProgram:
        """A program of ``length`` bundles, executed on the machine until it stops.

        Parameters
        ----------
        length : int
            Addresses 0 to ``length - 1`` are used; at least 2, at most what the memory has.
        fault : bool
            End with a bundle of random bits, which nearly always faults, rather than with a halt.
        """
        if not 2 <= length <= self._config.imem_bundles:
            raise ValueError(f"length must be from 2 to {self._config.imem_bundles}, not {length}")
        machine = self._machine
        self._length = length
        self._loop = None
        self._loop_end = -1
        code: dict[int, int] = {}
        machine.load_program([0] * self._config.imem_bundles)
        machine.start(0)
        executed = 0
        while machine.running:
            pc = machine.pc
            if pc not in code and pc < length:
                code[pc] = self._last(fault) if pc == length - 1 else self._bundle(pc)
                machine.load_program([code[pc]], at=pc)
            machine.step()
            executed += 1
            if executed > 50 * length:
                raise RuntimeError(f"a program of {length} bundles does not come to an end")
        return RandomProgram(tuple(code.get(pc, 0) for pc in range(length)), len(code), executed)

    def sequence(self, length: int) -> list[int]:
        """Bundles of one operation each, without branches, executed on the machine; no halt."""
        machine = self._machine
        self._loop = None
        self._loop_end = -1
        bundles: list[int] = []
        while len(bundles) < length:
            draft = _Draft()
            slot = self._pick(list(isa.SLOTS))
            self._fill(draft, slot, 0)
            operation = isa.operation(slot, draft.fields.get(slot, {}).get("op", 0))
            if operation is None or operation.unit is Unit.BRANCH:
                continue
            bundles.append(draft.bundle())
            machine.load_program([bundles[-1]])
            machine.start(0)
            machine.step()
            machine.stop()
            if machine.fault or machine.waiting:
                raise RuntimeError(f"operation {operation.name} could not be executed: "
                                   f"{machine.fault!r}")
        return bundles

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, choices: Sequence[Any] | np.ndarray) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _last(self, fault: bool) -> int:
        if not fault:
            return isa.pack({Slot.S1: {"op": ScalarOp.HALT}})
        if self._chance(0.2):
            return int.from_bytes(self._rng.bytes(isa.BUNDLE_BITS // 8), "little")
        # Nearly legal: any fault may come of it. If none does, the program runs out of the memory.
        slots, imm, _ = isa.unpack(self._bundle(self._length - 1))
        slots[Slot.S1] = {}
        if slots[Slot.MISC]["op"] == MiscOp.WAIT:
            slots[Slot.MISC] = {}
        for _ in range(int(self._rng.integers(1, 4))):
            slot = self._pick([slot for slot in slots if slot not in (Slot.S1, Slot.MISC)])
            field = self._pick(list(isa.SLOTS[slot]))
            slots[slot][field] = int(self._rng.integers(1 << isa.SLOTS[slot][field]))
        misc = slots[Slot.MISC]
        misc["b"] = int(self._rng.integers(1 << isa.SOURCE_BITS))
        return isa.pack(slots, imm)

    def _bundle(self, pc: int) -> int:
        draft = _Draft()
        self._handle_loop(draft, pc)
        density = self._pick((0.15, 0.5, 0.9))
        for slot in self._rng.permutation(np.array(list(isa.SLOTS), object)):
            if slot not in draft.fields and self._chance(density):
                self._fill(draft, slot, pc)
        return draft.bundle()

    def _fill(self, draft: _Draft, slot: Slot, pc: int) -> None:
        """Puts some operation into a slot, or leaves it empty if it does not find a legal one."""
        for _ in range(4):
            operation = self._pick(_LEGAL[slot])
            attempt = _Draft()
            attempt.fields = {used: dict(fields) for used, fields in draft.fields.items()}
            attempt.imm = list(draft.imm)
            attempt.written = set(draft.written)
            try:
                attempt.fields[slot] = {"op": operation.op} | self._operands(
                    attempt, operation, pc)
            except _ImpossibleError:
                continue
            draft.fields, draft.imm, draft.written = (
                attempt.fields, attempt.imm, attempt.written)
            return

    def _handle_loop(self, draft: _Draft, pc: int) -> None:
        """Now and then, sets the loop counter; some bundles later, goes back."""
        if self._loop is None:
            if pc > self._loop_end and self._chance(0.05):
                draft.fields[Slot.S0] = {
                    "op": ScalarOp.ADD, "d": self._write(draft, "s", COUNTER), "a": 0,
                    "b": isa.INLINE_BASE + int(self._rng.integers(2, 5))}
                self._loop = pc + 1
                self._risky = self._chance(0.1)
        elif pc >= self._loop and self._chance(0.15):
            number = draft.immediate(self._loop)
            assert number is not None
            draft.fields[Slot.S1] = {"op": ScalarOp.LOOP, "d": self._write(draft, "s", COUNTER),
                                     "b": isa.FIRST_IMMEDIATE + number}
            self._loop, self._loop_end = None, pc

    def _repeats(self) -> bool:
        """Whether what is made now may be executed again, in another state."""
        return self._loop is not None or self._machine.pc <= self._loop_end

    # Operands --------------------------------------------------------------------------------

    def _operands(self, draft: _Draft, operation: Operation, pc: int) -> dict[str, int]:
        if operation.unit is Unit.BRANCH:
            return self._branch(draft, operation, pc)
        if operation.unit in (Unit.SMEM, Unit.VMEM):
            return self._memory(draft, operation)
        if operation.unit is Unit.MXU:
            self._check_array(operation)
        fields: dict[str, int] = {}
        for operand in operation.operands:
            fields[operand.field] = self._operand(draft, operation, operand.kind)
        return fields

    def _operand(self, draft: _Draft, operation: Operation, kind: Kind) -> int:
        rng = self._rng
        if kind is Kind.SCALAR_OUT:
            return self._write(draft, "s", self._pick(range(STABLE.start)))
        if kind is Kind.SCALAR_IN:
            return int(rng.integers(isa.SCALAR_REGISTERS))
        if kind is Kind.SOURCE:
            return self._source(draft, operation)
        if kind is Kind.VECTOR_OUT:
            return self._write(draft, "v", int(rng.integers(isa.VECTOR_REGISTERS)))
        if kind is Kind.VECTOR_IN:
            return int(rng.integers(isa.VECTOR_REGISTERS))
        if kind is Kind.VECTOR_SOURCE:
            if self._chance(0.7):
                return isa.VECTOR_FLAG | int(rng.integers(isa.VECTOR_REGISTERS))
            return self._any_source(draft)
        if kind is Kind.MASK_OUT:
            return self._write(draft, "m", int(rng.integers(1, isa.MASKS)))
        if kind is Kind.MASK_IN:
            return int(rng.integers(isa.MASKS))
        if kind is Kind.SEMAPHORE:
            return int(rng.integers(isa.SEMAPHORES))
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
            return int(self._rng.integers(isa.SCALAR_REGISTERS))
        if choice < 0.6:
            return isa.INLINE_BASE + int(self._rng.integers(isa.INLINE_MIN, isa.INLINE_MAX + 1))
        number = draft.immediate(int(self._pick(self._words)))
        return (isa.INLINE_BASE if number is None else isa.FIRST_IMMEDIATE + number)

    def _source_of(self, draft: _Draft, value: int) -> int:
        """A scalar source of that value, now and whenever the bundle is executed again."""
        ways: list[Callable[[], int | None]] = []
        signed = value - (1 << 32) if value >> 31 else value
        if isa.INLINE_MIN <= signed <= isa.INLINE_MAX:
            ways.append(lambda: isa.INLINE_BASE + signed)
        same = [number for number in (0, *STABLE) if int(self._machine.scalars[number]) == value]
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

    def _source(self, draft: _Draft, operation: Operation) -> int:
        limits = {
            MiscOp.ROTATE_LANES: self._config.lanes, MiscOp.BROADCAST_LANE: self._config.lanes,
            MiscOp.ROTATE_SUBLANES: self._config.sublanes,
            MiscOp.BROADCAST_SUBLANE: self._config.sublanes,
            MiscOp.TRANSPOSE_IN: self._config.tile_vregs,
            MiscOp.TRANSPOSE_OUT: self._config.tile_vregs,
        }
        if operation.unit is Unit.XLU:
            return self._source_of(draft, int(self._rng.integers(limits[MiscOp(operation.op)])))
        if operation.unit is Unit.SEMAPHORE:
            if operation.op == MiscOp.WAIT:
                # In a loop a later pass might wait for ever.
                if self._repeats():
                    raise _ImpossibleError
                least = int(self._machine.semaphores.min())
                return self._source_of(draft, int(self._rng.integers(least + 1)))
            return self._source_of(draft, int(self._rng.integers(1 << 12)))
        return self._any_source(draft)

    def _memory(self, draft: _Draft, operation: Operation) -> dict[str, int]:
        """A load or store: base in some register, and an offset that makes the sum legal."""
        words = (self._config.smem_words if operation.unit is Unit.SMEM
                 else self._config.vmem_words)
        # A few addresses only, so that loads meet stores.
        address = int(self._rng.integers(min(words, 12))) if self._chance(0.7) else int(
            self._rng.integers(words))
        registers: Iterable[int] = (0, *STABLE)
        if not self._repeats() and self._chance(0.3):
            registers = range(isa.SCALAR_REGISTERS)
        base = self._pick(list(registers))
        fields = {"a": base,
                  "b": self._source_of(draft, address - int(self._machine.scalars[base])
                                       & _MASK32)}
        for operand in operation.operands:
            if operand.field not in fields:
                fields[operand.field] = self._operand(draft, operation, operand.kind)
        return fields

    def _check_array(self, operation: Operation) -> None:
        """Refuses what would fault now; in a loop that may still happen later."""
        machine = self._machine
        if self._repeats() and not self._risky:
            raise _ImpossibleError
        full = machine.loaded == self._config.tile_vregs
        held = machine.held
        op = operation.op
        if operation.slots == (Slot.POP,):
            legal = held > 0
        elif op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T):
            legal = not full and (machine.loaded == 0
                                  or machine.transposed == (op == PushOp.WEIGHTS_T))
        else:
            legal = held < self._config.result_vregs and (
                full if op == PushOp.ROWS_SWAP else machine.active)
        if not legal:
            raise _ImpossibleError

    def _branch(self, draft: _Draft, operation: Operation, pc: int) -> dict[str, int]:
        """Branches go forward, some bundles far; loops go back a few times."""
        op = operation.op
        if op in (ScalarOp.HALT, ScalarOp.LOOP):
            raise _ImpossibleError
        target = min(pc + 1 + int(self._rng.integers(4)), self._length - 1)
        fields: dict[str, int] = {}
        if op in _BRANCHES:
            number = draft.immediate(target)
            if number is None:
                raise _ImpossibleError
            fields = {"a": int(self._rng.integers(isa.SCALAR_REGISTERS)),
                      "b": self._any_source(draft), "d": number}
        else:
            fields["b"] = self._source_of(draft, target)
            if op == ScalarOp.CALL:
                fields["d"] = self._operand(draft, operation, Kind.SCALAR_OUT)
        return fields


# Schedules -------------------------------------------------------------------------------------


@dataclass
class _Resource:
    """The last bundle that wrote something, and the last that read it."""

    written: int = -1
    read: int = -1


@dataclass(frozen=True)
class _Step:
    """One operation of a sequence: its fields, with immediates by value, and what it touches."""

    operation: Operation
    fields: dict[str, int]
    imm: tuple[int, ...]
    reads: frozenset
    writes: frozenset


def _step(bundle: int) -> _Step:
    """The only operation of a bundle."""
    slots, imm, _ = isa.unpack(bundle)
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
    """Packs a sequence of operations into bundles, in some order that means the same.

    Parameters
    ----------
    bundles : sequence of int
        One operation each, no branches.
    config : Config
        For the results that the array holds.
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
    """Puts a step into the first draft from ``earliest`` on that has room, and returns which."""
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
