"""Random bundles with faults."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from golden.core import GoldenCore
from hdl import isa
from hdl.encoding import pack, unpack
from hdl.isa import Fault, Kind, MiscOp, Operation, PopOp, PushOp, ScalarOp, Slot
from verif.system.programs.draft import Draft, ImpossibleError
from verif.system.programs.operands import BRANCHES, LEGAL, STABLE, OperandChoice

__all__ = ["ANY_TIME", "BUNDLE_FAULTS", "FaultChoice"]

BUNDLE_FAULTS = tuple(fault for fault in Fault if Fault.NONE < fault <= Fault.SEMAPHORE)
"""Faults that a bundle causes without the host, the watchdog or a transfer."""
ANY_TIME = (Fault.ILLEGAL, Fault.CONFLICT, Fault.PC_RANGE, Fault.SMEM_RANGE, Fault.VMEM_RANGE,
             Fault.INDEX_RANGE, Fault.WEIGHT_LOAD)
"""Faults that are possible in every state of the core."""
_FILES = {"s": Kind.SCALAR_OUT, "v": Kind.VECTOR_OUT, "m": Kind.MASK_OUT}
_WRITERS: dict[str, list[tuple[Slot, Operation]]] = {
    file: [(slot, operation) for slot in isa.SLOTS for operation in LEGAL[slot]
           if kind in [operand.kind for operand in operation.operands]]
    for file, kind in _FILES.items()}
"""By kind of register (scalar, vector, mask), the operations that write one."""
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
"""By kind of operand, illegal values that the operand's field can hold."""


class FaultChoice(OperandChoice):
    """Chooses faults, and makes bundles that have them; has the parameters of `OperandChoice`."""

    def __init__(self, golden: GoldenCore, rng: np.random.Generator, *,
                 signals: bool = False) -> None:
        super().__init__(golden, rng, signals=signals)
        self._deck: list[Fault] = []

    def _choose_fault(self) -> None:
        """Chooses the final fault, and the bundle from which on the program prepares for it."""
        if not self._deck:
            self._deck = [BUNDLE_FAULTS[number]
                          for number in self._rng.permutation(len(BUNDLE_FAULTS))]
        self._kind = self._deck.pop()
        config = self._config
        way = {Fault.FIFO_OVERFLOW: config.tile_vregs + config.result_vregs + 1,
               Fault.FIFO_UNDERFLOW: config.result_vregs}.get(self._kind, 0)
        self._tail -= min(way, self._length // 2)

    def _approach(self, draft: Draft) -> None:
        """Adds a push or pop that leads towards a state in which the chosen fault is possible."""
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
        """Whether a bundle can cause the fault in the golden core's present state."""
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
        """A bundle that has the fault, sometimes others of lower priority, and few empty slots."""
        spoilers: dict[Fault, Callable[[Draft], None]] = {
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
        draft = Draft()
        for kind in kinds:
            # Of a conflict between unsuitable operations, or where the slots are taken, another
            # attempt may succeed.
            for _ in range(50):
                attempt = draft.copy()
                try:
                    spoilers.get(kind, lambda draft: None)(attempt)
                except ImpossibleError:
                    continue
                draft = attempt
                break
            else:
                assert kind is not fault, f"no bundle with {fault.name} can be made"
        bundle = self._filled(draft, self._length - 1, 0.9)
        return self._make_illegal(bundle) if fault is Fault.ILLEGAL else bundle

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

    def _conflict(self, draft: Draft) -> None:
        """Adds two operations that write the same register."""
        file = self._pick("svm")
        number = int(self._rng.integers(1, {"s": STABLE.start, "v": isa.VECTOR_REGISTERS,
                                            "m": isa.MASKS}[file]))
        writers = _WRITERS[file]
        for slot in self._rng.permutation(np.array(sorted({slot for slot, _ in writers}),
                                                   object))[:2]:
            operation = self._pick([operation for place, operation in writers if place == slot])
            fields = self._operands(draft, operation, self._length - 1)
            draft.put(Slot(slot), operation.op, **fields | {"d": number})

    def _leave(self, draft: Draft) -> None:
        """Adds a taken branch to a target beyond the end of instruction memory."""
        op = self._pick((ScalarOp.JUMP, ScalarOp.CALL, ScalarOp.LOOP, *BRANCHES))
        target = draft.source(self._beyond(self._config.imem_bundles))
        if op in BRANCHES:
            always, _ = BRANCHES[op]
            draft.put(Slot.S1, op, b=isa.INLINE_BASE + always, d=target - isa.FIRST_IMMEDIATE)
        elif op == ScalarOp.CALL:
            draft.put(Slot.S1, op, b=target, d=self._operand_of(draft, Kind.SCALAR_OUT))
        else:
            draft.put(Slot.S1, op, b=target)

    def _far_address(self, fault: Fault, draft: Draft) -> None:
        """Adds a load or store at an address beyond the end of its memory."""
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

    def _far_index(self, draft: Draft) -> None:
        """Adds an operation of the cross-lane unit with an illegal index."""
        operation = self._pick([operation for operation in isa.OPERATIONS
                                if Fault.INDEX_RANGE in operation.faults])
        draft.put(Slot.MISC, operation.op, **self._operands(draft, operation, self._length - 1)
                  | {"b": draft.source(self._beyond(self._limits[MiscOp(operation.op)]))})

    def _misuse_array(self, fault: Fault, draft: Draft) -> None:
        """Adds a push or pop that the array's state forbids."""
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

    def _overflow_semaphore(self, draft: Draft) -> None:
        semaphores = self._golden.semaphores
        index = int(self._pick(np.flatnonzero(semaphores)))
        least = (1 << 32) - int(semaphores[index])
        amount = least if self._chance(0.5) else int(self._rng.integers(least, 1 << 32))
        draft.put(Slot.MISC, MiscOp.SIGNAL, d=index, b=draft.source(amount))
