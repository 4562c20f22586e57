"""Machine code on virtual registers: operations, loops and branches.

A `MachineCode` is a tree: a block is a list of operations, loops and branches, executed in order.
Operations are those of `hdl.isa`. A register may be written more than once; most are not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hdl import isa
from hdl.config import Config
from hdl.isa import Kind, ScalarOp, Slot
from sim.asm.operands import Semaphore

__all__ = ["ALL_ONES", "WRITTEN", "ZERO", "Access", "Affine", "Block", "Branch", "Condition",
           "Fence", "Index", "IndexLike", "Line", "Loop", "LoopVariable", "MReg", "MachineCode",
           "Op", "Operand", "Register", "SReg", "Term", "VReg", "VmemBuffer", "operations",
           "scalar_operation"]


class Affine:
    """Arithmetic of what an index can hold: sums, differences, and products with integers."""

    __slots__ = ()

    def __add__(self, other: "IndexLike") -> "Index":
        return Index.of(self)._plus(Index.of(other), 1)

    def __radd__(self, other: "IndexLike") -> "Index":
        return self + other

    def __sub__(self, other: "IndexLike") -> "Index":
        return Index.of(self)._plus(Index.of(other), -1)

    def __rsub__(self, other: "IndexLike") -> "Index":
        return Index.of(other)._plus(Index.of(self), -1)

    def __mul__(self, factor: int) -> "Index":
        return Index(0)._plus(Index.of(self), int(factor))

    def __rmul__(self, factor: int) -> "Index":
        return self * factor


@dataclass(frozen=True, slots=True, eq=False)
class VReg:
    """A virtual vector register."""

    number: int

    def __str__(self) -> str:
        return f"%v{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class MReg:
    """A virtual mask register."""

    number: int

    def __str__(self) -> str:
        return f"%m{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class SReg(Affine):
    """A virtual scalar register."""

    number: int

    def __str__(self) -> str:
        return f"%s{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class LoopVariable(Affine):
    """Number of a loop's iteration, from 0."""

    number: int

    def __str__(self) -> str:
        return f"%i{self.number}"


ZERO = SReg(0)
"""The scalar register s0."""
ALL_ONES = MReg(0)
"""The mask register m0."""

Register: TypeAlias = VReg | MReg | SReg
Operand: TypeAlias = Register | Semaphore | int | str
"""A register, a semaphore, a word of 32 bits, or a label or other symbol."""
Term: TypeAlias = LoopVariable | SReg


@dataclass(frozen=True, slots=True)
class Index(Affine):
    """A constant plus terms times integers.

    Attributes
    ----------
    constant : int
    terms : mapping of LoopVariable or SReg to int
        No coefficient is 0.
    """

    constant: int
    terms: Mapping[Term, int] = field(default_factory=dict)

    @staticmethod
    def of(value: "IndexLike") -> "Index":
        """The index that equals ``value``.

        Raises
        ------
        TypeError
            If ``value`` is neither an integer, a loop variable, a scalar register nor an index.
        """
        if isinstance(value, Index):
            return value
        if isinstance(value, (LoopVariable, SReg)):
            return Index(0, {} if value is ZERO else {value: 1})
        if isinstance(value, Affine) or not hasattr(value, "__index__"):
            raise TypeError("index must be an integer, a loop variable, a scalar register or a "
                            f"sum of these, not {value!r}")
        return Index(value.__index__())

    def _plus(self, other: "Index", factor: int) -> "Index":
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = terms.get(term, 0) + factor * coefficient
        return Index(self.constant + factor * other.constant,
                     {term: value for term, value in terms.items() if value})

    def __str__(self) -> str:
        parts = [f"{term}" if value == 1 else f"{value} {term}"
                 for term, value in self.terms.items()]
        return " + ".join([*parts, *([str(self.constant)] if self.constant or not parts else [])])


IndexLike: TypeAlias = int | Affine


@dataclass(frozen=True)
class VmemBuffer:
    """Consecutive vectors of vector memory.

    Different buffers do not overlap, unless one encloses parts that have buffers of their own.

    Attributes
    ----------
    name : str
    address : int
        Of the first vector.
    vectors : int
    """

    name: str
    address: int
    vectors: int


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an operation: ``index`` within ``buffer``.

    ``buffer`` is None for scalar memory, and for a scalar result that equals the index.
    """

    buffer: VmemBuffer | None
    index: Index

    def replaced(self, registers: "Mapping[Register, Register]") -> "Access":
        """The access with other registers."""
        terms: dict[Term, int] = {}
        for term, factor in self.index.terms.items():
            other = registers.get(term, term) if isinstance(term, SReg) else term
            assert isinstance(other, (SReg, LoopVariable))
            terms[other] = factor
        return Access(self.buffer, Index(self.index.constant, terms))

    @property
    def address(self) -> Index:
        """The index plus the buffer's address."""
        return self.index + (0 if self.buffer is None else self.buffer.address)


@dataclass(frozen=True)
class Fence:
    """Accesses that a transfer or a wait is ordered with, besides others and scalar memory.

    Attributes
    ----------
    after : tuple of VmemBuffer
        Accesses to these come before it, if they are in front of it.
    before : bool
        All accesses to vector memory behind it come after it.
    """

    after: tuple[VmemBuffer, ...] = ()
    before: bool = False


WRITTEN = (Kind.SCALAR_OUT, Kind.SCALAR_INOUT, Kind.VECTOR_OUT, Kind.MASK_OUT)
"""Kinds of operands that are written."""
_READ = (Kind.SCALAR_IN, Kind.SCALAR_INOUT, Kind.SOURCE, Kind.VECTOR_IN, Kind.VECTOR_SOURCE,
         Kind.MASK_IN)
_found: dict[int, tuple[tuple[int, ...], tuple[int, ...], isa.Operation]] = {}
"""By the identity of the operation, whose hash takes long."""


def _positions(operation: isa.Operation) -> tuple[tuple[int, ...], tuple[int, ...], isa.Operation]:
    """Positions of the operands that may be read, and of those that may be written."""
    found = _found.get(id(operation))
    if found is None:
        reads, writes = (tuple(position for position, operand in enumerate(operation.operands)
                               if operand.kind in kinds) for kinds in (_READ, WRITTEN))
        # The operation itself, so that no other one ever has its identity.
        found = _found[id(operation)] = reads, writes, operation
    return found


@dataclass(slots=True, eq=False)
class Op:
    """An operation with its operands in the order of the text form.

    Attributes
    ----------
    operation : hdl.isa.Operation
    operands : tuple
    access : Access or None
        If not None, the operands base and offset are to be replaced by the address.
    fence : Fence or None
        Of a transfer or a wait: what it is ordered with; None: all accesses to memory.
    """

    operation: isa.Operation
    operands: tuple[Operand, ...]
    access: Access | None = None
    fence: Fence | None = None

    @property
    def name(self) -> str:
        """Name in the text form."""
        return self.operation.name

    @property
    def writes(self) -> list[Register]:
        """Registers that it writes, s0 excluded."""
        return [value for position in _positions(self.operation)[1]
                if isinstance(value := self.operands[position], (VReg, MReg, SReg))
                and value is not ZERO]

    @property
    def reads(self) -> list[Register]:
        """Registers that it reads, s0 and m0 excluded."""
        return [value for position in _positions(self.operation)[0]
                if isinstance(value := self.operands[position], (VReg, MReg, SReg))
                and value is not ZERO and value is not ALL_ONES]

    def replaced(self, registers: Mapping[Register, Register]) -> "Op":
        """The operation with other registers."""
        return Op(self.operation,
                  tuple(registers.get(value, value) if isinstance(value, (VReg, MReg, SReg))
                        else value for value in self.operands),
                  None if self.access is None else self.access.replaced(registers), self.fence)


Line: TypeAlias = list[tuple[Slot, Op]]
"""A bundle of operations on virtual registers, with their slots."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a branch: `eq`, `ne`, `lt`, `ge`, `ltu` or `geu` of two scalars."""

    name: str
    a: SReg
    b: SReg | int

    @property
    def inverse(self) -> "Condition":
        """The condition that holds when this one does not."""
        pairs = {"eq": "ne", "lt": "ge", "ltu": "geu"}
        return Condition({**pairs, **{b: a for a, b in pairs.items()}}[self.name], self.a, self.b)


@dataclass(slots=True, eq=False)
class Loop:
    """A loop.

    Attributes
    ----------
    variable : LoopVariable
    count : int, SReg or None
        Number of iterations, at least 1; None: as long as ``again`` holds at their end.
    body : list
    again : Condition or None
    steps : list of (SReg, int)
        Registers that grow by a constant with each iteration; set by `addresses`.
    """

    variable: LoopVariable
    count: int | SReg | None
    body: "Block" = field(default_factory=list)
    again: Condition | None = None
    steps: list[tuple[SReg, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Branch:
    """Executes ``then`` if the condition holds, otherwise ``otherwise``."""

    condition: Condition
    then: "Block" = field(default_factory=list)
    otherwise: "Block" = field(default_factory=list)


Block: TypeAlias = "list[Op | Loop | Branch]"


@dataclass(slots=True, eq=False)
class MachineCode:
    """Code on virtual registers, from `Builder.finish`.

    Attributes
    ----------
    config : Config
    body : list
        Operations, loops and branches.
    registers : int
        Registers and loop variables so far; new ones have larger numbers.
    """

    config: Config
    body: Block
    registers: int


def scalar_operation(op: ScalarOp) -> isa.Operation:
    """The operation of the scalar slots with this code."""
    operation = isa.operation(Slot.S1, op) or isa.operation(Slot.S0, op)
    assert operation is not None
    return operation


def operations(block: Block) -> Iterator[Op]:
    """All operations of a block, those of loops and branches included."""
    for item in block:
        if isinstance(item, Op):
            yield item
        elif isinstance(item, Loop):
            yield from operations(item.body)
        else:
            yield from operations(item.then)
            yield from operations(item.otherwise)
