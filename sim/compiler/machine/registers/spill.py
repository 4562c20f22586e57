"""Spilling: vector registers that do not fit the core's registers are kept in vector memory.

Such a register is stored after each operation that writes it, and loaded to a new register before
each operation that reads it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from hdl import isa
from hdl.isa import Slot
from sim.compiler.machine.ir import (
    ALL_ONES,
    ZERO,
    Access,
    Block,
    Branch,
    Index,
    Loop,
    MachineCode,
    Op,
    Register,
    VmemBuffer,
    VReg,
)

__all__ = ["spill"]

_LOAD, _STORE = (next(operation for operation in isa.OPERATIONS if slot in operation.slots)
                 for slot in (Slot.LOAD, Slot.STORE))
_SHORT = 2
"""A register that lives for at most this many operations stays: spilling would not free it."""
_ITERATIONS = 8
"""Assumed number of iterations of a loop: an access in the loop counts as this many accesses."""


def spill(code: MachineCode, most: int, allocate: Callable[[int], VmemBuffer]) -> MachineCode:
    """Return the code, with registers spilled so that about ``most`` vector registers suffice.

    Parameters
    ----------
    code : MachineCode
        Code as it comes from the builder; it is not changed.
    most : int
        Number of vector registers to aim for. Operands of single operations may need a few more.
    allocate : callable
        Allocates a buffer for a number of vectors, to which registers are spilled.
    """
    lives = dict[VReg, _Life]()
    for _ in _note(code.body, lives, count(), 1):
        pass
    chosen = _choose(lives, most)
    buffer = allocate(max(len(chosen), 1))
    numbers = count(code.registers + 1)
    body = _rewrite(code.body, {register: Access(buffer, Index(number))
                                for number, register in enumerate(chosen)}, numbers)
    return MachineCode(code.config, body, next(numbers))


@dataclass
class _Life:
    """Life of a register: from operation ``first`` to operation ``last``.

    ``cost`` is the estimated number of its accesses.
    """

    first: int
    last: int
    cost: int = 0

    @property
    def value(self) -> float:
        """Cost of spilling the register, divided by the number of operations for which it lives."""
        return self.cost / (self.last - self.first)


def _note(block: Block, lives: dict[VReg, _Life], positions: "count[int]",
          weight: int) -> Iterator[VReg]:
    """Record the lives of all registers of a block; yield the registers that it accesses.

    A register that is accessed in a loop and elsewhere lives in all of the loop. ``positions``
    numbers the operations, and the start and end of each loop; each access costs ``weight``.
    """
    for item in block:
        if isinstance(item, Op):
            at = next(positions)
            for register in (*item.reads, *item.writes):
                if isinstance(register, VReg):
                    life = lives.setdefault(register, _Life(at, at))
                    life.last, life.cost = at, life.cost + weight
                    yield register
        elif isinstance(item, Loop):
            first, before = next(positions), set(lives)
            used = set(_note(item.body, lives, positions, weight * _ITERATIONS))
            last = next(positions)
            # A register that a later operation reads, or an earlier iteration wrote, lives on.
            carried = _carried(item.body)
            for register in used:
                if register in before or register in carried:
                    lives[register].first = min(lives[register].first, first)
                    lives[register].last = last
            yield from used
        else:
            for part in (item.then, item.otherwise):
                yield from _note(part, lives, positions, weight)


def _carried(block: Block) -> set[VReg]:
    """Return the registers that a block may read before it writes them."""
    written, found = set[VReg](), set[VReg]()
    for item in block:
        if isinstance(item, Op):
            found.update(register for register in item.reads
                         if isinstance(register, VReg) and register not in written)
            written.update(register for register in item.writes if isinstance(register, VReg))
        else:
            parts = [item.body] if isinstance(item, Loop) else [item.then, item.otherwise]
            for part in parts:
                found |= _carried(part) - written
    return found


def _choose(lives: Mapping[VReg, _Life], most: int) -> list[VReg]:
    """Choose registers to spill, in order to limit the number of live ones to ``most``."""
    chosen, living = list[VReg](), list[VReg]()
    for register in sorted(lives, key=lambda register: lives[register].first):
        now = lives[register].first
        living = [other for other in living if lives[other].last > now]
        living.append(register)
        able = [other for other in living if lives[other].last - lives[other].first > _SHORT]
        if len(living) > most and able:
            least = min(able, key=lambda other: lives[other].value)
            chosen.append(least)
            living.remove(least)
    return chosen


def _rewrite(block: Block, homes: Mapping[VReg, Access], numbers: "count[int]") -> Block:
    """Return a copy of a block that loads and stores the registers in ``homes``.

    ``homes`` maps a register to the vector to which it is spilled; ``numbers`` yields the numbers
    of new registers.
    """
    found: Block = []
    for item in block:
        if isinstance(item, Loop):
            found.append(Loop(item.variable, item.count, _rewrite(item.body, homes, numbers),
                              item.again, item.steps))
        elif isinstance(item, Branch):
            found.append(Branch(item.condition, _rewrite(item.then, homes, numbers),
                                _rewrite(item.otherwise, homes, numbers)))
        else:
            touched = [register for register in dict.fromkeys((*item.reads, *item.writes))
                       if isinstance(register, VReg) and register in homes]
            new: dict[Register, Register] = {register: VReg(next(numbers))
                                             for register in touched}
            found += [Op(_LOAD, (new[register], ZERO, 0), homes[register])
                      for register in touched if register in item.reads]
            found.append(item.replaced(new) if new else item)
            found += [Op(_STORE, (new[register], ZERO, 0, ALL_ONES), homes[register])
                      for register in touched if register in item.writes]
    return found
