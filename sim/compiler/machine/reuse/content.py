"""The content of machine code: what emission depends on, without the addresses of its buffers.

The same kernel is often emitted for buffers at other addresses. Most of these differ only in the
offsets of loads and stores. There are two other differences that addresses can make:

- Accesses may be to the same vector. So the content has the addresses of buffers whose accesses may
  meet, relative to each other.
- An offset may need an immediate, and may share it with an equal word. So the content has a
  buffer's address if an access to it may have an offset that equals another word of the code, or
  that needs no immediate.

Offsets from registers that a pipelined loop advances are left out of this: each is scheduled as if
it needed an immediate of its own (`sim.compiler.machine.schedule.resources.Node`).
"""

from collections.abc import Hashable, Iterator, Sequence

from hdl import isa
from hdl.config import Config
from sim.asm.operands import Semaphore
from sim.compiler.machine.ir import (
    Access,
    Block,
    Condition,
    Loop,
    LoopVariable,
    MachineCode,
    MReg,
    Op,
    Operand,
    SReg,
    Term,
    VmemBuffer,
    VReg,
)
from sim.compiler.machine.loops import MOST_ITERATIONS

__all__ = ["Content"]

_FIRST: dict[type, int] = {VReg: 1 << 40, MReg: 2 << 40, SReg: 3 << 40, LoopVariable: 4 << 40,
                           Semaphore: 5 << 40}
"""What is added to the numbers of registers, loop variables and semaphores, to tell them from each
other and from words."""


class Content:
    """Content of machine code.

    Parameters
    ----------
    code : MachineCode

    Attributes
    ----------
    key : hashable
        Equal for codes of which one becomes the other if its buffers are moved, and for which
        emission gives the same bundles but for the offsets of loads and stores.
    buffers : dict of VmemBuffer to int
        The code's buffers, numbered in the order of their first use.
    """

    def __init__(self, code: MachineCode) -> None:
        self.buffers: dict[VmemBuffer, int] = {}
        self._config: Config = code.config
        self._items: list[Hashable] = []
        # Numbers of buffers by identity, because equality is slow to test.
        self._known: dict[int, int] = {}
        # For each buffer, the least and the greatest constant of an index.
        self._reach: list[tuple[int, int]] = []
        # For each loop variable, its value in the last copy of a loop's body that is unrolled.
        self._last: dict[Term, int] = {}
        # Words of the code: numbers up to ``_most``, a set, and ranges from a number to another.
        self._most = isa.INLINE_MAX
        self._words: set[int] = set()
        self._ranges: list[tuple[int, int]] = []
        self._block(code.body)
        self.key: Hashable = (code.config, code.registers, tuple(self._items),
                              tuple(sorted(self._groups())))

    def _block(self, block: Block) -> None:
        """Add the items of a block."""
        items = self._items
        for item in block:
            if isinstance(item, Op):
                items.append(id(item.operation))
                items += map(self._operand, item.operands)
                if item.access is not None:
                    items.append(self._access(item.access))
                if item.fence is not None:
                    items.append((tuple(map(self._number, item.fence.after)), item.fence.before,
                                  item.fence.paced))
            elif isinstance(item, Loop):
                self._loop(item)
            else:
                self._condition(item.condition)
                self._block(item.then)
                items.append("else")
                self._block(item.otherwise)
                items.append("end")

    def _loop(self, loop: Loop) -> None:
        count = loop.count
        self._items += ["loop", self._operand(loop.variable), self._operand(count), loop.apart,
                        *((self._operand(register), step) for register, step in loop.steps)]
        if isinstance(count, int):
            # A counter starts with this number or a smaller one.
            self._most = max(self._most, count)
            self._last[loop.variable] = count - 1 if count <= MOST_ITERATIONS else 0
        else:
            # Such a loop is compared with the number of iterations that overlap.
            self._most = max(self._most, self._config.imem_bundles)
        if loop.again is not None:
            self._condition(loop.again)
        self._block(loop.body)
        self._items.append("end")

    def _condition(self, condition: Condition) -> None:
        self._items += [condition.name, self._operand(condition.a), self._operand(condition.b)]

    def _operand(self, operand: Operand | LoopVariable | None) -> Hashable:
        """Return what stands for an operand; note the word if it is one."""
        if isinstance(operand, int):
            self._words.add(operand)
        elif operand is not None and not isinstance(operand, str):
            return _FIRST[type(operand)] + operand.number
        return operand

    def _number(self, buffer: VmemBuffer) -> int:
        """Return the number of a buffer."""
        number = self._known.get(id(buffer))
        if number is None:
            number = self._known[id(buffer)] = self.buffers.setdefault(buffer, len(self.buffers))
            if number == len(self._reach):
                self._reach.append((0, buffer.vectors - 1))
        return number

    def _access(self, access: Access) -> Hashable:
        """Return what stands for an access, and note its offsets in all copies of a loop's body."""
        low = high = access.index.constant
        terms: list[int] = []
        for term, factor in access.index.terms.items():
            self._words.add(factor & 0xFFFFFFFF)
            span = factor * self._last.get(term, 0)
            low, high = low + min(span, 0), high + max(span, 0)
            terms += _FIRST[type(term)] + term.number, factor
        if access.buffer is None:
            # Words are numbers modulo 2**32.
            self._ranges.append((low, high) if -(1 << 31) <= low <= high < 1 << 32 else (
                0, 1 << 32))
            return None, access.index.constant, *terms
        number = self._number(access.buffer)
        extent = number if access.extent is None else self._number(access.extent)
        least, most = self._reach[number]
        if low < least or high > most:
            self._reach[number] = min(low, least), max(high, most)
        return number, extent, access.index.constant, *terms

    def _groups(self) -> Iterator[tuple[int, ...]]:
        """Yield the groups of buffers whose accesses may meet; each begins with another number.

        For each buffer of a group, there are its number, its address relative to the group's, and
        its size. The group's address follows if it matters.
        """
        buffers = list(self.buffers)
        group: list[int] = []
        first = end = 0
        for low, high, number in sorted((
                buffer.address + self._reach[number][0], buffer.address + self._reach[number][1],
                number) for number, buffer in enumerate(buffers)):
            if group and low > end:
                yield self._group(buffers, sorted(group), first, end)
                group = []
            if not group:
                first = end = low
            group.append(number)
            end = max(end, high)
        if group:
            yield self._group(buffers, sorted(group), first, end)

    def _group(self, buffers: Sequence[VmemBuffer], numbers: Sequence[int], first: int, end: int
               ) -> tuple[int, ...]:
        """Return what stands for a group of buffers with accesses from ``first`` to ``end``."""
        found: list[int] = []
        for number in numbers:
            found += number, buffers[number].address - first, buffers[number].vectors
        # Numbers from 2**31 on are negative words, some of which need no immediate.
        if not self._most < first <= end < 1 << 31 or any(
                first <= word <= end for word in self._words) or any(
                first <= high and low <= end for low, high in self._ranges):
            found.append(first)
        return tuple(found)
