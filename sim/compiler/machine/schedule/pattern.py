"""Patterns: what the schedule of operations depends on, without the names of their registers.

Many loops and blocks occur several times: in a kernel and in those with which it is joined, and at
different addresses. Their operations have the same pattern, hence the same dependences and the same
schedule.
"""

from collections.abc import Hashable, Iterable, Sequence

from sim.compiler.machine.ir import Access, LoopVariable, MReg, Register, SReg, VmemBuffer, VReg
from sim.compiler.machine.schedule.resources import Node

__all__ = ["Pattern"]

_KINDS: dict[type, int] = {VReg: 0, MReg: 1, SReg: 2, LoopVariable: 3}


class Pattern:
    """Pattern of operations.

    Registers, immediates and buffers are numbered in the order of their first use. Vectors that
    operations may access have addresses relative to those of vectors that they overlap, and indexes
    are relative to the first one of the same buffer.

    Parameters
    ----------
    nodes : sequence of Node

    Attributes
    ----------
    key : hashable
        Equal for operations with the same pattern.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._numbers: dict[Register | LoopVariable, int] = {}
        self._constants: dict[int | str, int] = {}
        # For each buffer, its number, and the constant of its first index.
        self._buffers: dict[VmemBuffer | None, tuple[int, int]] = {}
        # The number of each range of vectors (address, size).
        self._ranges: dict[tuple[int, int], int] = {}
        found: list[Hashable] = []
        for node in nodes:
            op = node.op
            found += id(op.operation), node.latency, node.busy
            found.append(tuple([self._number(register) for register in node.reads]))
            found += [self._number(register) for register in node.writes]
            if node.constants:
                found.append(frozenset([self._constants.setdefault(word, len(self._constants))
                                        for word in node.constants]))
            if op.access is not None:
                found.append(self._access(op.access))
            if op.fence is not None:
                found.append((op.fence.before, op.fence.paced,
                              *(self._range(buffer.address, buffer.vectors)
                                for buffer in op.fence.after)))
        self.key: Hashable = tuple(found), self._places()

    def numbers(self, registers: Iterable[Register | LoopVariable]) -> frozenset[int]:
        """Return the numbers of those of ``registers`` that the operations use."""
        return frozenset(self._numbers[register] for register in registers
                         if register in self._numbers)

    def _number(self, register: Register | LoopVariable) -> int:
        number = self._numbers.get(register)
        if number is None:
            number = self._numbers[register] = len(self._numbers) << 2 | _KINDS[type(register)]
        return number

    def _range(self, address: int, vectors: int) -> int:
        return self._ranges.setdefault((address, vectors), len(self._ranges))

    def _access(self, access: Access) -> Hashable:
        """Return what stands for an access."""
        buffer, index = access.buffer, access.index
        number, first = self._buffers.setdefault(buffer, (len(self._buffers), index.constant))
        place = -1
        if buffer is not None and index.terms:
            extent = access.extent or buffer
            place = self._range(extent.address, extent.vectors)
        elif buffer is not None:
            place = self._range(buffer.address + index.constant, 1)
        return number, index.constant - first, place, frozenset([
            (self._number(term), factor) for term, factor in index.terms.items()])

    def _places(self) -> Hashable:
        """Return the place of each range: its first vector, and its address relative to that one's.

        The first vector is the number of the first range of those that overlap, also indirectly.
        """
        places: dict[int, tuple[int, int, int]] = {}
        group = first = end = 0
        for (address, vectors), number in sorted(self._ranges.items()):
            if not places or address >= end:
                group, first, end = number, address, address
            places[number] = group, address - first, vectors
            end = max(end, address + vectors)
        return tuple(places[number] for number in range(len(places)))
