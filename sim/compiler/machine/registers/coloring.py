"""Register allocation: physical vector, mask and scalar registers for virtual ones, by coloring.

The allocator works on bundles in their final order. Two registers interfere if one is written in a
bundle after which the other is live. A bundle reads before it writes. So its result can go to a
register whose present value no later bundle reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from hdl import isa
from hdl.isa import Slot, Unit
from sim.asm.operands import m, s, v
from sim.compiler.machine.ir import ALL_ONES, ZERO, Line, MReg, Register, SReg, VReg

__all__ = ["COLORS", "Allocation", "RegisterPressureError", "allocate", "successors"]

RESERVED_SCALARS = 4
"""Number of scalar registers, the last ones, that are reserved for the program around kernels."""

COLORS: dict[type[Any], range] = {
    VReg: range(isa.VECTOR_REGISTERS),
    MReg: range(1, isa.MASKS),
    SReg: range(1, isa.SCALAR_REGISTERS - RESERVED_SCALARS),
}
"""Numbers of the physical registers of each kind that can be assigned."""
_BANKS: dict[type[Any], Any] = {VReg: v, MReg: m, SReg: s}
_NOUNS: dict[type[Any], str] = {VReg: "vector", MReg: "mask", SReg: "scalar"}
_ENDS = ("jump", "halt")
_COPIES = {"move", "add", "mand"}
_LATE = (8, 5, 3, 1)
"""For how many bundles after a push the pushed physical register should not be written.

Coloring uses the largest of these numbers with which it succeeds."""


class RegisterPressureError(Exception):
    """The core has too few registers of a kind: vector, mask or scalar.

    Attributes
    ----------
    kind : type
        `VReg`, `MReg` or `SReg`.
    live : int
        Largest number of registers of this kind that are live at once.
    """

    def __init__(self, kind: type[Any], live: int) -> None:
        noun, most = f"{_NOUNS[kind]} registers", len(COLORS[kind])
        super().__init__(f"{noun} must be at most {most}, not {live}" if live > most else
                         f"{most} {noun} do not suffice, although at most {live} are live at once")
        self.kind, self.live = kind, live


@dataclass(frozen=True)
class Allocation:
    """Physical registers of all virtual ones, and the scalar registers live between bundles.

    Attributes
    ----------
    physical : mapping of Register to sim.asm register
    live : tuple of frozenset of int
        Numbers of the physical scalar registers live before each bundle, and after the last one.
    """

    physical: Mapping[Register, Any]
    live: tuple[frozenset[int], ...]


def successors(lines: Sequence[Line], labels: Mapping[str, int], number: int) -> list[int]:
    """Return the numbers of the bundles that can follow bundle ``number``.

    ``labels`` maps each label to a bundle's number. The number ``len(lines)`` stands for the end.
    """
    found = [number + 1]
    for _, op in lines[number]:
        if op.operation.unit is Unit.BRANCH:
            if op.name in _ENDS:
                found.remove(number + 1)
            found += [labels[operand] for operand in op.operands if isinstance(operand, str)]
    return found


def allocate(lines: Sequence[Line], labels: Mapping[str, int]) -> Allocation:
    """Assign a physical register to each virtual one.

    ``lines`` are the bundles of the code. ``labels`` maps each label to a bundle's number.

    Raises
    ------
    RegisterPressureError
        If more registers of a kind are live at once than the core has.
    """
    graph = _Interference(lines, labels)
    physical: dict[Register, Any] = {ZERO: s[0], ALL_ONES: m[0]}
    for kind in COLORS:
        for register, number in graph.color(kind).items():
            physical[register] = _BANKS[kind][number]
    scalars = graph.set_of(SReg)
    sets = {live: frozenset(physical[register].number for register in graph.registers_of(live))
            for live in {live & scalars for live in graph.live}}
    return Allocation(physical, tuple(sets[live & scalars] for live in graph.live))


def _bits(word: int) -> list[int]:
    """Return the positions of the bits of ``word`` that are 1, in ascending order."""
    found = []
    while word:
        low = word & -word
        found.append(low.bit_length() - 1)
        word ^= low
    return found


class _Interference:
    """Liveness and interference of registers; sets of registers are bit masks."""

    def __init__(self, lines: Sequence[Line], labels: Mapping[str, int]) -> None:
        self._number: dict[Register, int] = {}
        self._registers: list[Register] = []
        self._partners: dict[int, set[int]] = {}
        reads, writes = [], []
        for line in lines:
            read = written = 0
            for _, op in line:
                for register in op.reads:
                    read |= 1 << self._id(register)
            for _, op in line:
                for register in op.writes:
                    written |= 1 << self._id(register)
            reads.append(read)
            writes.append(written)
        self._note_copies(lines)
        follow = [successors(lines, labels, number) for number in range(len(lines))]
        self.live = self._liveness(reads, writes, follow)
        self._writes, self._follow = writes, follow
        self._pushes = [(number, self._id(register)) for number, line in enumerate(lines)
                        for slot, op in line if slot is Slot.PUSH for register in op.reads]

    def registers_of(self, word: int) -> list[Register]:
        """Return the registers of a set: register n is in it if bit n of ``word`` is 1."""
        return [self._registers[bit] for bit in _bits(word)]

    def set_of(self, kind: type[Any]) -> int:
        """Return the set of all registers of class ``kind``."""
        return sum(1 << number for number, register in enumerate(self._registers)
                   if isinstance(register, kind))

    def color(self, kind: type[Any]) -> dict[Register, int]:
        """Return a physical register's number for each virtual register of class ``kind``."""
        members = [number for number, register in enumerate(self._registers)
                   if isinstance(register, kind)]
        everything = self.set_of(kind)
        pressure = max([(live & everything).bit_count() for live in self.live])
        if pressure > len(COLORS[kind]):
            # All of these registers interfere with each other.
            raise RegisterPressureError(kind, pressure)
        colors = None
        if kind is VReg:
            colors = next((found for bundles in (*_LATE, 0) if (found := self._greedy(
                members, COLORS[kind], spread=True, also=self._late(bundles))) is not None), None)
        if colors is None:
            colors = self._greedy(members, COLORS[kind])
        if colors is None:
            colors = self._greedy(self._smallest_last(members), COLORS[kind])
        if colors is None:
            raise RegisterPressureError(kind, pressure)
        return {self._registers[number]: color for number, color in colors.items()}

    def _id(self, register: Register) -> int:
        number = self._number.get(register)
        if number is None:
            number = self._number[register] = len(self._registers)
            self._registers.append(register)
        return number

    def _note_copies(self, lines: Sequence[Line]) -> None:
        """Record source and result of each copy in ``lines``: they share a register if possible."""
        for line in lines:
            for _, op in line:
                if op.name in _COPIES and len(op.reads) == 1 and len(op.writes) == 1:
                    a, b = self._id(op.reads[0]), self._id(op.writes[0])
                    self._partners.setdefault(a, set()).add(b)
                    self._partners.setdefault(b, set()).add(a)

    @staticmethod
    def _liveness(reads: list[int], writes: list[int], follow: list[list[int]]) -> list[int]:
        """Compute the sets of registers that are live before each bundle, and after the last.

        A set is an integer: register n is in it if bit n is 1. ``reads`` and ``writes`` have the
        set that each bundle reads and the set that it writes. ``follow`` has, for each bundle, the
        numbers of the bundles that can follow it.
        """
        live = [0] * (len(reads) + 1)
        changed = True
        while changed:
            changed = False
            for number in reversed(range(len(reads))):
                after = 0
                for successor in follow[number]:
                    after |= live[successor]
                before = reads[number] | after & ~writes[number]
                if before != live[number]:
                    live[number], changed = before, True
        return live

    @cached_property
    def _edges(self) -> list[int]:
        """For each register, the set of those of its kind with which it interferes."""
        kinds = {kind: self.set_of(kind) for kind in COLORS}
        own = [kinds[type(register)] for register in self._registers]
        edges = [0] * len(self._registers)
        for number, written in enumerate(self._writes):
            if written:
                after = written
                for successor in self._follow[number]:
                    after |= self.live[successor]
                for bit in _bits(written):
                    edges[bit] |= after & own[bit]
        for first in range(len(edges)):
            bit = 1 << first
            edges[first] &= ~bit
            for second in _bits(edges[first]):
                edges[second] |= bit
        # A register that is read before it is written is live from the start.
        for first in _bits(self.live[0]):
            edges[first] |= self.live[0] & own[first] & ~(1 << first)
        return edges

    def _late(self, bundles: int) -> dict[int, int]:
        """Find pairs of registers of which one is pushed, and the other is written soon after.

        The array reads a pushed register row by row, and a bundle that overwrites the register
        meanwhile must wait. So a virtual register that is written in the bundle of the push, or in
        the next ``bundles`` - 1 bundles, should not get the pushed register's physical register.
        Returns, for each virtual register, the set of those from which it should differ.
        """
        late: dict[int, int] = {}
        for number, pushed in self._pushes if bundles else ():
            written, at = 0, {number}
            for _ in range(bundles):
                for line in at:
                    written |= self._writes[line]
                at = {after for line in at for after in self._follow[line]
                      if after < len(self._writes)}
            written &= ~(1 << pushed)
            late[pushed] = late.get(pushed, 0) | written
            for other in _bits(written):
                late[other] = late.get(other, 0) | 1 << pushed
        return late

    def _greedy(self, members: Sequence[int], colors: range, *, spread: bool = False,
                also: Mapping[int, int] = MappingProxyType({})) -> dict[int, int] | None:
        """Assign a color to each register, in the order of ``members``.

        Return None if no color is left for a register. A color is the number of a physical
        register. With ``spread``, the color that has been unused for longest is preferred. The
        reason: a unit that reads a register row by row delays a bundle that overwrites the register
        too early. ``also`` has, for each register, the set of further registers from which it must
        differ.
        """
        chosen: dict[int, int] = {}
        holders = dict.fromkeys(colors, 0)
        order = list(colors)
        for number in members:
            edges = self._edges[number] | also.get(number, 0)
            free = [color for color in order if not edges & holders[color]]
            if not free:
                return None
            wanted = [chosen[partner] for partner in self._partners.get(number, ())
                      if chosen.get(partner) in free]
            color = wanted[0] if wanted else free[0]
            chosen[number] = color
            holders[color] |= 1 << number
            if spread:
                order.remove(color)
                order.append(color)
        return chosen

    def _smallest_last(self, members: Sequence[int]) -> list[int]:
        """Order the registers ``members`` so that those that are easiest to color are last.

        These are the registers that interfere with the fewest others.
        """
        remaining = sum(1 << number for number in members)
        degree = {number: (self._edges[number] & remaining).bit_count() for number in members}
        order = []
        while degree:
            least = min(degree, key=degree.__getitem__)
            order.append(least)
            del degree[least]
            remaining &= ~(1 << least)
            for neighbour in _bits(self._edges[least] & remaining):
                degree[neighbour] -= 1
        return order[::-1]
