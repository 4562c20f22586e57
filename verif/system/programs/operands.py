"""Random operations for bundles, legal in the state of a golden core."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.isa import Fault, Kind, MiscOp, Operation, PushOp, ScalarOp, Slot, Unit
from verif.system.programs.bundles import random_words
from verif.system.programs.draft import MASK32, Draft, ImpossibleError

__all__ = ["BRANCHES", "COUNTER", "LEGAL", "STABLE", "OperandChoice", "Registers"]

STABLE = range(24, 30)
"""Scalar registers that programs do not write. They hold small numbers, so that addresses that are
computed from them stay legal."""
COUNTER = 31
"""Scalar register that counts the iterations of a loop."""
LEGAL: dict[Slot, list[Operation]] = {
    slot: [operation for operation in isa.OPERATIONS if slot in operation.slots
           # Programs of a single core do not reach beyond it.
           and operation.unit not in (Unit.DMA, Unit.OTHER_CORE, Unit.LINKS)]
    for slot in isa.SLOTS}
BRANCHES: dict[ScalarOp, tuple[int, int]] = {
    ScalarOp.BEQ: (0, 1), ScalarOp.BNE: (1, 0), ScalarOp.BLT: (1, -1), ScalarOp.BGE: (0, 1),
    ScalarOp.BLTU: (1, 0), ScalarOp.BGEU: (0, 1)}
"""For each conditional branch with s0 as operand a: a value of b with which the branch is taken,
and one with which it is not."""
_WAIT_IN_LOOPS = 1 << 12
"""A semaphore of this value lasts for a loop, if each wait subtracts at most `isa.INLINE_MAX`."""


class Registers:
    """The registers that a program uses: all, or so few that nearly every bundle has a hazard."""

    def __init__(self, rng: np.random.Generator, few: bool) -> None:
        def some(numbers: range, count: int) -> list[int]:
            return sorted(rng.choice(numbers, count, replace=False).tolist()) if few else list(
                numbers)

        self.vectors = some(range(isa.VECTOR_REGISTERS), int(rng.integers(3, 6)))
        self.masks = some(range(1, isa.MASKS), 2)
        self.scalars_out = some(range(STABLE.start), 4)
        self.scalars_in = self.scalars_out if few else list(range(isa.SCALAR_REGISTERS))


class OperandChoice:
    """Chooses random operations and operands that are legal in the golden core's state.

    Parameters
    ----------
    golden : GoldenCore
        The golden core that executes the bundles.
    rng : numpy Generator
        Source of all choices.
    signals : bool
        Whether programs may wait for higher values than the semaphores have.
    """

    def __init__(self, golden: GoldenCore, rng: np.random.Generator, *,
                 signals: bool = False) -> None:
        self._golden = golden
        self._config: Config = golden.config
        self._limits = isa.index_limits(golden.config)
        self._rng = rng
        self._host_signals = signals
        self._words = random_words(rng, (4096,))
        self._registers = Registers(rng, few=False)
        self._semaphores = list(range(isa.SEMAPHORES))
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Starts a program of ``length`` bundles; forgets the previous one."""
        self._length = length
        self._tail = length - 1
        self._kind = Fault.NONE
        self._loop: int | None = None
        self._loop_end = -1
        self._passes = 0
        self._risky = False

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _pick(self, choices: Sequence[Any] | np.ndarray) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _filled(self, draft: Draft, pc: int, density: float) -> int:
        """Fills each free slot of the draft with probability ``density``; returns the bundle."""
        for slot in self._rng.permutation(np.array(list(isa.SLOTS), object)):
            if slot not in draft.fields and self._chance(density):
                self._fill(draft, slot, pc)
        return draft.bundle()

    def _fill(self, draft: Draft, slot: Slot, pc: int) -> None:
        """Puts an operation into a slot; leaves it empty if no legal one is found."""
        for _ in range(4):
            operation = self._pick(LEGAL[slot])
            attempt = draft.copy()
            try:
                attempt.put(slot, operation.op, **self._operands(attempt, operation, pc))
            except ImpossibleError:
                continue
            draft.fields, draft.imm, draft.written = (
                attempt.fields, attempt.imm, attempt.written)
            return

    def _repeats(self) -> bool:
        """Whether the bundle lies in a loop, which can execute it again in another state."""
        return self._loop is not None or self._golden.pc <= self._loop_end

    def _operands(self, draft: Draft, operation: Operation, pc: int) -> dict[str, int]:
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

    def _operand(self, draft: Draft, operation: Operation, kind: Kind) -> int:
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

    def _operand_of(self, draft: Draft, kind: Kind) -> int:
        """A random operand of any ``kind`` except `Kind.SOURCE`, which depends on the operation."""
        return self._operand(draft, isa.OPERATIONS[0], kind)

    def _write(self, draft: Draft, file: str, number: int) -> int:
        if (file, number) in draft.written:
            raise ImpossibleError
        if (file, number) != ("s", 0):
            draft.written.add((file, number))
        return number

    def _any_source(self, draft: Draft) -> int:
        """The code of a scalar source with any value."""
        choice = self._rng.random()
        if choice < 0.4:
            return int(self._pick(self._registers.scalars_in))
        if choice < 0.6:
            return isa.INLINE_BASE + int(self._rng.integers(isa.INLINE_MIN, isa.INLINE_MAX + 1))
        number = draft.immediate(int(self._pick(self._words)))
        return (isa.INLINE_BASE if number is None else isa.FIRST_IMMEDIATE + number)

    def _source_of(self, draft: Draft, value: int) -> int:
        """The code of a scalar source that has this value in each execution of the bundle."""
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
            raise ImpossibleError
        return source

    def _wait(self, draft: Draft) -> dict[str, int]:
        """Operands of a wait that ends: the semaphore has the value, or the host signals it."""
        index = int(self._pick(self._semaphores))
        value = int(self._golden.semaphores[index])
        if self._host_signals and self._chance(0.3):
            wanted = value + int(self._rng.integers(1, 1000))
        elif not self._repeats():
            wanted = int(self._rng.integers(min(value, _WAIT_IN_LOOPS) + 1))
        elif value >= _WAIT_IN_LOOPS:
            wanted = int(self._rng.integers(isa.INLINE_MAX + 1))
        else:
            raise ImpossibleError
        return {"d": index, "b": self._source_of(draft, wanted)}

    def _source(self, draft: Draft, operation: Operation) -> int:
        if operation.unit is Unit.XLU:
            limit = self._limits[MiscOp(operation.op)]
            return self._source_of(draft, int(self._rng.integers(limit)))
        if operation.unit is Unit.SEMAPHORE:
            return self._source_of(draft, int(self._rng.integers(1 << 12)))
        return self._any_source(draft)

    def _memory(self, draft: Draft, operation: Operation) -> dict[str, int]:
        """Operands of a load or store: a base register and an offset whose sum is legal."""
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
                                       & MASK32)}
        for operand in operation.operands:
            if operand.field not in fields:
                fields[operand.field] = self._operand(draft, operation, operand.kind)
        return fields

    def _check_array(self, operation: Operation) -> None:
        """Refuses a push or pop that would have a fault in the present state of the array.

        Near the end of a program with a final fault, also refuses operations that would make this
        fault impossible. In a loop, pushes and pops are refused, except in a few risky loops,
        whose later iterations may have a fault.
        """
        golden = self._golden
        if self._repeats() and not self._risky:
            raise ImpossibleError
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
            raise ImpossibleError

    def _branch(self, draft: Draft, operation: Operation, pc: int) -> dict[str, int]:
        """Operands of a branch that goes a few bundles forward, or is never taken."""
        op = operation.op
        if op in (ScalarOp.HALT, ScalarOp.LOOP) or pc >= self._tail:
            raise ImpossibleError
        target = min(pc + 1 + int(self._rng.integers(4)), self._length - 1)
        fields: dict[str, int] = {}
        if op in BRANCHES:
            if self._chance(0.1):
                # It is not taken, so any target will do.
                number = draft.source(self._beyond(self._config.imem_bundles))
                _, never = BRANCHES[ScalarOp(op)]
                return {"b": isa.INLINE_BASE + never, "d": number - isa.FIRST_IMMEDIATE}
            number = draft.source(target)
            fields = {"a": self._pick(self._registers.scalars_in), "b": self._any_source(draft),
                      "d": number - isa.FIRST_IMMEDIATE}
        else:
            fields["b"] = self._source_of(draft, target)
            if op == ScalarOp.CALL:
                fields["d"] = self._operand(draft, operation, Kind.SCALAR_OUT)
        return fields

    def _beyond(self, limit: int) -> int:
        """A random word that is at least the limit, often one whose low bits are below the limit.

        Hardware that ignored the high bits would accept such a word.
        """
        if self._chance(0.6):
            return (1 << int(self._rng.integers(limit.bit_length(), 32))) + int(
                self._rng.integers(limit))
        return int(self._pick((limit, limit + int(self._rng.integers(16)), MASK32,
                               int(self._rng.integers(limit, 1 << 32)))))
