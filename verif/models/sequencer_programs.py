"""Programs for tests of the sequencer: functions that encode bundles, and random bundles."""

import numpy as np

from hdl.config import Config
from hdl.encoding import pack, unpack
from hdl.isa import (
    OPERATIONS,
    SEMAPHORES,
    SLOTS,
    VECTOR_FLAG,
    Kind,
    LoadOp,
    MiscOp,
    ScalarOp,
    Slot,
    StoreOp,
    Unit,
    VectorOp,
    operation,
)
from verif.models.sequencer_oracle import Oracle, Parts

__all__ = ["CONFIG", "HALT", "SequencerPrograms", "bundle", "i", "s", "v"]

CONFIG = Config(array=4, sublanes=2, vmem_bytes=11 * 32, smem_words=13, imem_bundles=50)
"""A small configuration, whose sizes are not powers of two."""

HALT = pack({Slot.S1: {"op": ScalarOp.HALT.value}})


def s(op: LoadOp | MiscOp | ScalarOp | StoreOp, d: int = 0, a: int = 0, b: int = 0
      ) -> dict[str, int]:
    """Fields of an operation of a scalar slot or of the slots ld, st and misc."""
    return {"op": op.value, "d": d, "a": a, "b": b}


def v(op: VectorOp, d: int = 0, a: int = 0, b: int = VECTOR_FLAG, m: int = 0) -> dict[str, int]:
    """Fields of a vector operation."""
    return {"op": op.value, "d": d, "a": a, "b": b, "m": m}


def i(value: int) -> int:
    """Returns the code that stands for a small integer in the field of a scalar source."""
    assert -8 <= value <= 15
    return 48 + value


def bundle(imm: tuple[int, ...] = (), /, **slots: dict[str, int]) -> int:
    return pack({Slot(slot): fields for slot, fields in slots.items()}, imm)


class SequencerPrograms:
    """Random bundles and programs from the table of operations."""

    def __init__(self, rng: np.random.Generator, config: Config = CONFIG) -> None:
        self.rng = rng
        self.config = config

    def word(self) -> int:
        """A 32-bit word, often a corner case such as the largest integer."""
        if self.rng.random() < 0.5:
            return int(self.rng.choice([0, 1, 2, 31, 32, 33, 0x7FFF_FFFF, 0x8000_0000,
                                        0x8000_0001, 0xFFFF_FFFE, 0xFFFF_FFFF]))
        return int(self.rng.integers(1 << 32)) >> int(self.rng.integers(32))

    def fields(self, slot: Slot, code: int) -> dict[str, int]:
        """Random values of a slot's fields; those that the operation uses are legal."""
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
        return [entry.op.value for entry in OPERATIONS if slot in entry.slots and not entry.links
                and (not units or entry.unit in units)]

    def vector_bundle(self, use: float = 0.4) -> int:
        """Random vector, memory, array and cross-lane operations; addresses and indices in range.

        The bundle may have the fault CONFLICT, and may push or pop when the array does not permit
        it.
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
        """Random scalar operations and waits or signals, without branches and without a fault."""
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
        """Random scalar bundles with forward branches, counted loops, calls, and a final halt.

        Loops nest. No other operation writes the registers of loop counters and return addresses.
        """
        program: list[int] = []

        def emit(code: int, **slots: dict[str, int]) -> None:
            """Replaces some slots of the bundle ``code``, and appends the result to the program."""
            fields, imm, _ = unpack(code)
            program.append(pack({**fields, **{Slot(slot): own for slot, own in slots.items()}},
                                imm))

        def with_target(code: int, target: int, op: int) -> int:
            """The bundle ``code`` with a branch in slot s1; the first immediate is its target."""
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
