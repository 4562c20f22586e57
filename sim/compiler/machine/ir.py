"""Machine code on virtual registers: operations, loops and branches.

A `MachineCode` is a tree: a block is a list of operations, loops and branches, executed in order.
Operations are those of `hdl.isa`. A register (vector, mask or scalar) may be written several times,
but most are written once.
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
           "Op", "Operand", "RangeAt", "Register", "SReg", "Term", "VReg", "VmemBuffer",
           "operations", "scalar_operation"]


class Affine:
    """Base class of indexes and their terms; defines addition, subtraction and multiplication.

    The result of such an operation is an `Index`. Factors are integers.
    """

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
    """The number of a loop's current iteration, from 0."""

    number: int

    def __str__(self) -> str:
        return f"%i{self.number}"


ZERO = SReg(0)
"""The scalar register s0."""
ALL_ONES = MReg(0)
"""The mask register m0."""

Register: TypeAlias = VReg | MReg | SReg
Operand: TypeAlias = Register | Semaphore | int | str
"""A register, a semaphore, a word of 32 bits, or the name of a label or other symbol."""
Term: TypeAlias = LoopVariable | SReg


@dataclass(frozen=True, slots=True)
class Index(Affine):
    """A constant plus a sum of terms, each times an integer.

    Attributes
    ----------
    constant : int
    terms : mapping of LoopVariable or SReg to int
        The coefficient of each term, never 0.
    """

    constant: int
    terms: Mapping[Term, int] = field(default_factory=dict)

    @staticmethod
    def of(value: "IndexLike") -> "Index":
        """Return the index that equals ``value``.

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
    """A range of consecutive vectors of vector memory.

    Buffers do not overlap, except that a buffer may contain others, which are parts of it.

    Attributes
    ----------
    name : str
    address : int
        Address of the first vector.
    vectors : int
        Number of vectors.
    """

    name: str
    address: int
    vectors: int

    def part(self, numbers: range) -> "VmemBuffer":
        """Return the buffer of the vectors with these numbers, counted from 0."""
        return VmemBuffer(self.name, self.address + numbers.start, len(numbers))

    def overlaps(self, other: "VmemBuffer") -> bool:
        """Return whether the buffers have vectors in common."""
        return (self.address < other.address + other.vectors
                and other.address < self.address + self.vectors)


@dataclass(frozen=True)
class RangeAt:
    """Consecutive vectors of a value; words of scalar memory tell which.

    Attributes
    ----------
    first : int
        Address of a word with the number of the first vector.
    fewer : int
        Address of a word that is added to ``most``, modulo 2**32. The result is the number of
        vectors, at least 1.
    most : int
        Maximum number of vectors.
    """

    first: int
    fewer: int
    most: int

    def __len__(self) -> int:
        """Return the maximum number of vectors."""
        return self.most


@dataclass(frozen=True, slots=True)
class Access:
    """The address that an operation accesses: ``index`` within ``buffer``.

    ``buffer`` is None for an access to scalar memory, and for an operation that computes the index
    as its scalar result. The address lies in ``extent``, a part of the buffer, if that is given.
    """

    buffer: VmemBuffer | None
    index: Index
    extent: VmemBuffer | None = None

    def replaced(self, registers: "Mapping[Register, Register]") -> "Access":
        """Return the access with the keys of ``registers`` replaced by their values."""
        terms: dict[Term, int] = {}
        for term, factor in self.index.terms.items():
            other = registers.get(term, term) if isinstance(term, SReg) else term
            assert isinstance(other, (SReg, LoopVariable))
            terms[other] = factor
        return Access(self.buffer, Index(self.index.constant, terms), self.extent)

    @property
    def address(self) -> Index:
        """The index plus the address of the buffer."""
        return self.index + (0 if self.buffer is None else self.buffer.address)

    @property
    def vectors(self) -> VmemBuffer:
        """The vectors that may be accessed, for an access to vector memory."""
        assert self.buffer is not None
        if self.index.terms:
            return self.extent or self.buffer
        return VmemBuffer(self.buffer.name, self.buffer.address + self.index.constant, 1)


@dataclass(frozen=True)
class Fence:
    """The accesses to vector memory with which a transfer or a wait is ordered.

    A transfer or wait is always ordered with other ones, and with accesses to scalar memory.

    Attributes
    ----------
    after : tuple of VmemBuffer
        Buffers; earlier accesses to their vectors, also through other buffers, happen before the
        transfer or wait.
    before : bool
        Whether all later accesses to vector memory happen after the transfer or wait.
    paced : bool
        Whether the block that contains the operation is scheduled so that the array does not wait
        for the core (`sim.compiler.machine.schedule.dependences.block_graph`).
    """

    after: tuple[VmemBuffer, ...] = ()
    before: bool = False
    paced: bool = True

    def follows(self, access: Access) -> bool:
        """Whether the transfer or wait must stay after ``access``, which precedes it in code."""
        return any(access.vectors.overlaps(buffer) for buffer in self.after)


WRITTEN = (Kind.SCALAR_OUT, Kind.SCALAR_INOUT, Kind.VECTOR_OUT, Kind.MASK_OUT)
"""Kinds of operands that an operation writes."""
_READ = (Kind.SCALAR_IN, Kind.SCALAR_INOUT, Kind.SOURCE, Kind.VECTOR_IN, Kind.VECTOR_SOURCE,
         Kind.MASK_IN)


def _positions(operation: isa.Operation, kinds: tuple[Kind, ...]) -> tuple[int, ...]:
    return tuple(position for position, operand in enumerate(operation.operands)
                 if operand.kind in kinds)


_SHAPES = {id(operation): (operation.name, _positions(operation, _READ),
                           _positions(operation, WRITTEN)) for operation in isa.OPERATIONS}
"""For each operation, by its identity: its name, and the positions of the operands that it may read
and of those that it may write."""


@dataclass(slots=True, eq=False)
class Op:
    """An operation with its operands in the order of the text form; it never changes.

    Attributes
    ----------
    operation : hdl.isa.Operation
        One of `hdl.isa.OPERATIONS`.
    operands : tuple
    access : Access or None
        The address, if the operation has one. From it, `sim.compiler.machine.addresses` sets the
        operands base and offset.
    fence : Fence or None
        For a transfer or a wait: the accesses it is ordered with; None means all accesses to
        memory.
    """

    operation: isa.Operation
    operands: tuple[Operand, ...]
    access: Access | None = None
    fence: Fence | None = None
    _reads: tuple[Register, ...] | None = field(default=None, init=False, repr=False)
    _writes: tuple[Register, ...] | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the operation in the text form."""
        return _SHAPES[id(self.operation)][0]

    @property
    def writes(self) -> tuple[Register, ...]:
        """Registers that the operation writes, except s0."""
        if self._writes is None:
            operands = self.operands
            self._writes = tuple([
                value for position in _SHAPES[id(self.operation)][2]
                if isinstance(value := operands[position], (VReg, MReg, SReg))
                and value is not ZERO])
        return self._writes

    @property
    def reads(self) -> tuple[Register, ...]:
        """Registers that the operation reads, except s0 and m0."""
        if self._reads is None:
            operands = self.operands
            self._reads = tuple([
                value for position in _SHAPES[id(self.operation)][1]
                if isinstance(value := operands[position], (VReg, MReg, SReg))
                and value is not ZERO and value is not ALL_ONES])
        return self._reads

    def replaced(self, registers: Mapping[Register, Register]) -> "Op":
        """Return the operation with the keys of ``registers`` replaced by their values."""
        return Op(self.operation,
                  tuple(registers.get(value, value) if isinstance(value, (VReg, MReg, SReg))
                        else value for value in self.operands),
                  None if self.access is None else self.access.replaced(registers), self.fence)


Line: TypeAlias = list[tuple[Slot, Op]]
"""The operations of one bundle on virtual registers, with their slots."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a branch: `eq`, `ne`, `lt`, `ge`, `ltu` or `geu` of two scalars."""

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
    """A loop, as an item of a block.

    Attributes
    ----------
    variable : LoopVariable
    count : int, SReg or None
        Number of iterations, at least 1; None if the loop repeats while ``again`` holds.
    body : list
        Operations, loops and branches.
    again : Condition or None
        Condition that is tested at the end of each iteration; if it holds, another iteration
        follows. None if ``count`` is given.
    steps : list of (SReg, int)
        Registers to which each iteration adds a constant; set by `sim.compiler.machine.addresses`.
    apart : bool
        For a loop of one iteration: whether its operations are scheduled apart from earlier ones.
    """

    variable: LoopVariable
    count: int | SReg | None
    body: "Block" = field(default_factory=list)
    again: Condition | None = None
    steps: list[tuple[SReg, int]] = field(default_factory=list)
    apart: bool = False


@dataclass(slots=True, eq=False)
class Branch:
    """A branch: executes ``then`` if the condition holds, and ``otherwise`` if it does not."""

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
        Largest number of a register or loop variable; new ones get larger numbers.
    """

    config: Config
    body: Block
    registers: int


def scalar_operation(op: ScalarOp) -> isa.Operation:
    """Return the operation of the scalar slots that has this operation code."""
    operation = isa.operation(Slot.S1, op) or isa.operation(Slot.S0, op)
    assert operation is not None
    return operation


def operations(block: Block) -> Iterator[Op]:
    """Yield all operations of a block, including those in loops and branches."""
    for item in block:
        if isinstance(item, Op):
            yield item
        elif isinstance(item, Loop):
            yield from operations(item.body)
        else:
            yield from operations(item.then)
            yield from operations(item.otherwise)
