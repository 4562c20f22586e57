"""The builder, through which kernels write machine code.

    b = Builder(config)
    with b.loop(vectors) as i:
        b.store(b.vector("fadd", b.load(x, i), 1.0), y, i)
    code = emit(b.finish(), config)
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np

from hdl import isa
from hdl.isa import Kind, Operation, Slot, Unit
from sim.asm.operands import Semaphore, word
from sim.compiler.machine.flow import Flow, ScalarValue
from sim.compiler.machine.ir import (
    ALL_ONES,
    ZERO,
    Access,
    Fence,
    Index,
    IndexLike,
    LoopVariable,
    MReg,
    Op,
    SReg,
    VmemBuffer,
    VReg,
)

__all__ = ["Builder", "ScalarValue", "VectorValue"]

VectorValue: TypeAlias = VReg | SReg | LoopVariable | Index | int | float
"""A source of a vector operation; a scalar is broadcast to all elements."""
_R = TypeVar("_R", VReg, MReg, SReg)


def _table(slot: Slot, *kinds: Kind) -> dict[str, Operation]:
    """Return, by name, the operations of a slot whose first operands are of the given kinds."""
    return {operation.name: operation for operation in isa.OPERATIONS
            if slot in operation.slots
            and tuple(operand.kind for operand in operation.operands[:len(kinds)]) == kinds}


_VECTOR = _table(Slot.V1, Kind.VECTOR_OUT)
_COMPARE = _table(Slot.V0, Kind.MASK_OUT, Kind.VECTOR_IN)
_MASK = _table(Slot.V0, Kind.MASK_OUT, Kind.MASK_IN)
_SCALAR = {name: operation for name, operation in _table(Slot.S0, Kind.SCALAR_OUT).items()
           if operation.unit is Unit.SCALAR}
_SMEM = {operation.name: operation for operation in isa.OPERATIONS if operation.unit is Unit.SMEM}
_PUSH = _table(Slot.PUSH)
_MISC = _table(Slot.MISC)
_CROSS = _table(Slot.MISC, Kind.VECTOR_OUT, Kind.VECTOR_IN)
_LOAD, _STORE, _POP = (
    next(operation for operation in isa.OPERATIONS if slot in operation.slots)
    for slot in (Slot.LOAD, Slot.STORE, Slot.POP))

_SWAPPED = {
    **{name: name for name in ("fadd", "fmul", "fmin", "fmax", "add", "and", "or", "xor", "feq",
                               "fne", "eq", "ne", "mul", "min", "max")},
    "flt": "fgt", "fgt": "flt", "fle": "fge", "fge": "fle",
    "lt": "gt", "gt": "lt", "le": "ge", "ge": "le",
}
"""For an operation, the one that gives the same result with its two operands exchanged."""


class Builder(Flow):
    """Writes machine code: a method appends an operation, whose result goes to ``into`` if given.

    Without ``into``, the result goes to a new register. All registers (vector, mask or scalar) are
    virtual. A scalar source is a scalar register, an integer, a float (meaning its 32 bits as
    fp32), or an index (meaning its value). ``name`` is an operation's name in the assembler.

    Parameters
    ----------
    config : Config

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    """

    all_ones = ALL_ONES
    """The mask m0."""
    zero = ZERO
    """The scalar register s0."""

    # Vectors and masks.

    def vector(self, name: str, *sources: VectorValue | MReg, into: VReg | None = None) -> VReg:
        """Append an operation of the vector slots that has a vector result.

        Parameters
        ----------
        name : str
            Name in the assembler: `fadd`, `select`, ...
        sources
            Vectors, or scalars, which are broadcast to all elements; the last source of `select` is
            a mask.
        into : VReg or None
            Register for the result; None for a new one.

        Raises
        ------
        TypeError, ValueError
            If there is no such operation, or a source is invalid.
        """
        operation = self._operation(name, _VECTOR, "vector operation")
        if name in _SWAPPED and len(sources) == 2 and not isinstance(sources[0], VReg):
            sources = sources[::-1]
        operands = self._sources(operation, sources)
        result = self._result(VReg, into)
        self._append(operation, result, *operands)
        return result

    def compare(self, name: str, a: VectorValue, b: VectorValue, *,
                into: MReg | None = None) -> MReg:
        """Compare two vectors element by element; ``name`` is `flt`, `eq`, `ltu`, ...

        Raises
        ------
        TypeError, ValueError
            If there is no such comparison, or a source is invalid.
        """
        self._operation(name, _COMPARE, "comparison")
        if name in _SWAPPED and not isinstance(a, VReg):
            name, a, b = _SWAPPED[name], b, a
        operands = self._sources(_COMPARE[name], (a, b))
        result = self._result(MReg, into)
        self._append(_COMPARE[name], result, *operands)
        return result

    def mask(self, name: str, a: MReg, b: MReg, *, into: MReg | None = None) -> MReg:
        """Append an operation on two masks; ``name`` is `mand`, `mor`, `mxor` or `mandn`.

        Raises
        ------
        TypeError, ValueError
            If there is no such operation, or a source is invalid.
        """
        operation = self._operation(name, _MASK, "mask operation")
        operands = self._sources(operation, (a, b))
        result = self._result(MReg, into)
        self._append(operation, result, *operands)
        return result

    def splat(self, value: VectorValue, *, into: VReg | None = None) -> VReg:
        """Return a vector all of whose elements are ``value``: the operation `move`."""
        return self.vector("move", value, into=into)

    # Scalars.

    def scalar(self, name: str, a: ScalarValue, b: ScalarValue, *,
               into: SReg | None = None) -> SReg:
        """Append an operation of the scalar unit; ``name`` is `add`, `mul`, `lt`, ...

        Raises
        ------
        TypeError, ValueError
            If there is no such operation, or a source is invalid.
        """
        operation = self._operation(name, _SCALAR, "scalar operation")
        first, second = self._source(a), self._source(b)
        if name in _SWAPPED and isinstance(first, int) and first:
            first, second = second, first
        register = self._register(first)
        result = self._result(SReg, into)
        self._append(operation, result, register, second)
        return result

    def value(self, index: ScalarValue, *, into: SReg | None = None) -> SReg:
        """Return a scalar register that holds the value of an index or a number."""
        if isinstance(index, (float, np.floating)):
            index = word(index)
        result = self._result(SReg, into)
        self._block.append(Op(_SCALAR["add"], (result, ZERO, 0), Access(None, Index.of(index))))
        return result

    def symbol(self, name: str) -> SReg:
        """Return a scalar register for the word of symbol ``name``, which linking fills in."""
        result = SReg(self._number())
        self._append(_SCALAR["add"], result, ZERO, name)
        return result

    def smem_load(self, address: IndexLike, *, into: SReg | None = None) -> SReg:
        """Load the word of scalar memory at ``address``."""
        result = self._result(SReg, into)
        self._block.append(Op(_SMEM["load"], (result, ZERO, 0), Access(None, Index.of(address))))
        return result

    def smem_store(self, value: ScalarValue, address: IndexLike) -> None:
        """Store the word ``value`` at ``address`` of scalar memory."""
        register = self._register(self._source(value))
        self._block.append(Op(_SMEM["store"], (register, ZERO, 0),
                              Access(None, Index.of(address))))

    # Variables.

    def variable(self, initial: VectorValue | MReg) -> Any:
        """Return a new register that holds ``initial`` and that `assign` may change.

        Its kind is that of ``initial``; a number or an index gets a vector register.
        """
        if isinstance(initial, SReg):
            return self.scalar_variable(initial)
        result = MReg(self._number()) if isinstance(initial, MReg) else VReg(self._number())
        self.assign(result, initial)
        return result

    def scalar_variable(self, initial: ScalarValue) -> SReg:
        """Return a new scalar register that holds ``initial`` and that `assign` may change."""
        return self.value(initial)

    def assign(self, variable: VReg | MReg | SReg, value: VectorValue | MReg) -> None:
        """Copy a value into a variable.

        Raises
        ------
        TypeError
            If the value is not of the variable's kind: vector, mask or scalar.
        """
        if isinstance(variable, MReg):
            if not isinstance(value, MReg):
                raise TypeError(f"value must be a mask, not {value!r}")
            self.mask("mand", value, ALL_ONES, into=variable)
        elif isinstance(value, MReg) or (isinstance(variable, SReg) and isinstance(value, VReg)):
            raise TypeError(f"value must be of the same kind as {variable}, not {value!r}")
        elif isinstance(variable, SReg):
            assert not isinstance(value, VReg)
            self.value(value, into=variable)
        else:
            self.vector("move", value, into=variable)

    # Vector memory.

    def load(self, buffer: VmemBuffer, index: IndexLike, *, into: VReg | None = None) -> VReg:
        """Load the vector at ``index`` of a buffer."""
        result = self._result(VReg, into)
        self._block.append(Op(_LOAD, (result, ZERO, 0), self._access(buffer, index)))
        return result

    def store(self, value: VectorValue, buffer: VmemBuffer, index: IndexLike,
              mask: MReg | None = None) -> None:
        """Store ``value`` in vector ``index`` of a buffer; a ``mask`` selects what is stored."""
        vector = self._vector_register(value)
        self._block.append(Op(_STORE, (vector, ZERO, 0, ALL_ONES if mask is None else mask),
                              self._access(buffer, index)))

    # Cross-lane unit and array.

    def cross(self, name: str, vector: VectorValue, amount: ScalarValue | None = None, *,
              into: VReg | None = None) -> VReg:
        """Append an operation of the cross-lane unit that has a vector source and a vector result.

        Parameters
        ----------
        name : str
            `rotate_lanes`, `rotate_sublanes`, `broadcast_lane` or `broadcast_sublane`, which need
            ``amount``; `sum_lanes` or `max_lanes`, which do not accept one.

        Raises
        ------
        TypeError, ValueError
            If there is no such operation, or a source is invalid.
        """
        operation = self._operation(name, _CROSS, "operation of the cross-lane unit")
        operands = self._sources(operation, (vector,) if amount is None else (vector, amount))
        result = self._result(VReg, into)
        self._append(operation, result, *operands)
        return result

    def transpose_in(self, vector: VectorValue, group: ScalarValue) -> None:
        """Write a vector's sublanes to rows of the transposer, from row ``group * sublanes`` on."""
        self._append(_MISC["transpose_in"], self._vector_register(vector), self._source(group))

    def transpose_out(self, group: ScalarValue, *, into: VReg | None = None) -> VReg:
        """Read ``sublanes`` columns of the transposer, from column ``group * sublanes`` on.

        They become rows (sublanes) of the vector.
        """
        result = self._result(VReg, into)
        self._append(_MISC["transpose_out"], result, self._source(group))
        return result

    def push(self, name: str, vector: VectorValue, *, fence: Fence | None = None) -> None:
        """Push a vector; ``name`` is `weights`, `weights_t`, `rows` or `rows_swap`.

        A ``fence`` on a push only marks the block as one that starts transfers: the scheduler then
        keeps each load close to the push of rows that follows it in the code.
        """
        operation = self._operation(name, _PUSH, "push")
        self._append(operation, self._vector_register(vector), fence=fence)

    def pop(self, *, into: VReg | None = None) -> VReg:
        """Pop the oldest vector of result rows from the array."""
        result = self._result(VReg, into)
        self._append(_POP, result)
        return result

    # Semaphores and transfers.

    def wait(self, semaphore: int, amount: ScalarValue, *, fence: Fence | None = None) -> None:
        """Wait until a semaphore is at least ``amount``, then subtract ``amount`` from it.

        The wait keeps its order relative to all accesses to memory or, if ``fence`` is given, only
        relative to those that the fence defines.
        """
        self._append(_MISC["wait"], Semaphore(semaphore), self._source(amount), fence=fence)

    def signal(self, semaphore: int, amount: ScalarValue) -> None:
        """Add ``amount`` to a semaphore."""
        self._append(_MISC["signal"], Semaphore(semaphore), self._source(amount))

    def signal_other(self, semaphore: int, amount: ScalarValue, *, fence: Fence | None = None
                     ) -> None:
        """Add ``amount`` to a semaphore of the other core.

        The signal keeps its order relative to all accesses to memory or, if ``fence`` is given,
        only relative to those that the fence defines.
        """
        self._append(_MISC["signal_other"], Semaphore(semaphore), self._source(amount),
                     fence=fence)

    def signal_remote(self, semaphore: int, core: ScalarValue, amount: ScalarValue) -> None:
        """Add ``amount`` to a semaphore of a core of another chip.

        ``core`` is a word of `hdl.dma.format.REMOTE_LAYOUT`, which names that core.
        """
        self._append(_MISC["signal_remote"], Semaphore(semaphore),
                     self._register(self._source(core)), self._source(amount))

    def dma(self, descriptor: ScalarValue | str, *, fence: Fence | None = None) -> None:
        """Start the transfer whose descriptor begins at address ``descriptor`` of scalar memory.

        The start keeps its order relative to all accesses to memory or, if ``fence`` is given, only
        relative to those that the fence defines. If ``descriptor`` is the name of a symbol, linking
        writes the address into the operation. The address cannot be kept in a register: code may be
        cut into segments between any bundles, and the address may differ between segments.
        """
        operand = descriptor if isinstance(descriptor, str) else self._source(descriptor)
        self._append(_MISC["dma"], operand, fence=fence)

    # Helpers.

    def _append(self, operation: Operation, *operands: Any, fence: Fence | None = None) -> None:
        self._block.append(Op(operation, operands, fence=fence))

    def _result(self, kind: type[_R], into: _R | None) -> _R:
        if into is None:
            return kind(self._number())
        if not isinstance(into, kind) or into is ZERO or into is ALL_ONES:
            raise TypeError(f"into must be a {kind.__name__} that can be written, not {into!r}")
        return into

    def _operation(self, name: str, table: dict[str, Operation], what: str) -> Operation:
        if name not in table:
            raise ValueError(f"{what} must be one of {', '.join(table)}, not {name!r}")
        return table[name]

    def _sources(self, operation: Operation, sources: tuple[Any, ...]) -> list[Any]:
        """Convert a vector operation's sources to the kinds of operands that it expects."""
        expected = operation.operands[1:]
        if len(sources) != len(expected):
            raise TypeError(f"{operation.name} must have {len(expected)} sources, "
                            f"not {len(sources)}")
        operands: list[Any] = []
        for operand, source in zip(expected, sources, strict=True):
            if operand.kind is Kind.MASK_IN:
                if not isinstance(source, MReg):
                    raise TypeError(f"{operation.name}: mask must be an MReg, not {source!r}")
                operands.append(source)
            elif operand.kind is Kind.VECTOR_IN:
                operands.append(self._vector_register(source))
            elif operand.kind is Kind.VECTOR_SOURCE and isinstance(source, VReg):
                operands.append(source)
            else:
                operands.append(self._source(source))
        return operands

    def _vector_register(self, value: Any) -> VReg:
        if isinstance(value, VReg):
            return value
        return self.vector("move", value)

    def _source(self, value: Any) -> SReg | int:
        """Convert a scalar operation's source to a register or a word; write code if needed."""
        if isinstance(value, SReg):
            return value
        if isinstance(value, (LoopVariable, Index)):
            return self.value(value)
        if isinstance(value, (VReg, MReg)):
            raise TypeError(f"source must be a scalar, not {value!r}")
        return word(value)

    def _register(self, source: SReg | int) -> SReg:
        if isinstance(source, SReg):
            return source
        return self.value(source) if source else ZERO

    def _access(self, buffer: VmemBuffer, index: IndexLike) -> Access:
        if not isinstance(buffer, VmemBuffer):
            raise TypeError(f"buffer must be a VmemBuffer, not {buffer!r}")
        access = Access(buffer, Index.of(index))
        for term in access.index.terms:
            if isinstance(term, LoopVariable) and term not in self._open:
                raise ValueError(f"index must use variables of open loops, not {access.index}: "
                                 f"the loop of {term} has ended")
        if not access.index.terms and not 0 <= access.index.constant < buffer.vectors:
            raise ValueError(f"index must be from 0 to {buffer.vectors - 1}, the last vector of "
                             f"buffer {buffer.name!r}, not {access.index.constant}")
        return access
