"""Random programs for a core: legal bundles, generated along the path of execution."""

from collections.abc import Iterable
from dataclasses import dataclass

from hdl import isa
from hdl.encoding import pack, unpack
from hdl.isa import MiscOp, Operation, ScalarOp, Slot, Unit
from verif.system.programs.draft import Draft
from verif.system.programs.faults import ANY_TIME, FaultChoice
from verif.system.programs.operands import COUNTER, Registers

__all__ = ["Generator", "RandomProgram"]


@dataclass(frozen=True)
class RandomProgram:
    """A generated program.

    Attributes
    ----------
    bundles : tuple of int
        The program from address 0 on; bundles that execution never reached are empty.
    reached : int
        Number of bundles that were executed at least once.
    executed : int
        Number of executed bundles, repetitions included.
    operations : frozenset of Operation
        Operations that were executed.
    signals : tuple of (index, amount)
        Semaphores, and amounts that the host must add to them: a pair each time the program waits.
    """

    bundles: tuple[int, ...]
    reached: int
    executed: int
    operations: frozenset[Operation]
    signals: tuple[tuple[int, int], ...]


class Generator(FaultChoice):
    """Generates random programs for a golden core, and executes them on it.

    Parameters
    ----------
    golden : GoldenCore
        The golden core, whose state carries over from program to program.
    rng : numpy Generator
        Source of all choices.
    signals : bool
        Whether programs may wait for higher values than the semaphores have. The host must then
        add the amounts in `RandomProgram.signals` to the semaphores.
    """

    def program(self, length: int, *, fault: bool, busy_halt: bool = False) -> RandomProgram:
        """A program of ``length`` bundles, which the golden core executes until it stops.

        Parameters
        ----------
        length : int
            Number of bundles, from 2 to the size of instruction memory.
        fault : bool
            Whether the program ends with a bundle that has a fault, instead of a halt.
        busy_halt : bool
            Whether the bundle with the halt may have other operations, too. Then the core must not
            be started again at this bundle, since it would execute these operations twice.
        """
        if not 2 <= length <= self._config.imem_bundles:
            raise ValueError(f"length must be from 2 to {self._config.imem_bundles}, not {length}")
        golden, rng = self._golden, self._rng
        self._begin(length)
        self._registers = Registers(rng, few=self._chance(0.5))
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
            draft = Draft()
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

    def _signal(self, bundle: int) -> tuple[int, int]:
        """Adds enough or too little to the semaphore for which the bundle waits."""
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
        draft = Draft()
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
        return self._faulty(self._pick(ANY_TIME))

    def _nearly_legal(self) -> int:
        """A last bundle with random values in some fields, which may cause any fault or none.

        After a bundle without a fault, the core executes the empty bundles that follow the program,
        or leaves instruction memory.
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
        draft = Draft()
        if pc < self._tail:
            self._handle_loop(draft, pc)
        else:
            self._approach(draft)
        return self._filled(draft, pc, self._pick((0.15, 0.5, 0.9)))

    def _handle_loop(self, draft: Draft, pc: int) -> None:
        """Sometimes begins a loop: sets its counter; some bundles later, branches to its start."""
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

    def _go_back(self, draft: Draft, target: int) -> None:
        """Adds a branch back that is taken a few times: a `loop`, or a subtraction and a branch."""
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


def _operations(bundles: Iterable[int]) -> frozenset[Operation]:
    found = set()
    for bundle in bundles:
        for slot, fields in unpack(bundle)[0].items():
            operation = isa.operation(slot, fields["op"])
            if operation is not None:
                found.add(operation)
    return frozenset(found)
