"""The disassembler: bundles as text, the inverse of `sim.asm.text`.

Every bundle, legal or not, has a text that assembles to exactly its bits. Usually operations and
their operands are enough. The text also has everything else that the bits depend on. Fields that
the operation ignores follow the operands as ``field=value``, if they are not zero. Immediates that
the assembler would place elsewhere are ``imm0=value``. Slots that fault are ``illegal`` or
``conflict``, with all fields. Reserved bits are shown, too.
"""

from collections.abc import Mapping

import numpy as np

from hdl import isa
from hdl.encoding import unpack
from hdl.isa import Kind, Operand, Operation, Slot, Unit, VectorOp
from sim.asm.naming import default

__all__ = ["BANKS", "disassemble", "label_names", "operand_fault", "written_registers"]

BANKS = {
    Kind.SCALAR_OUT: ("s", isa.SCALAR_REGISTERS), Kind.SCALAR_IN: ("s", isa.SCALAR_REGISTERS),
    Kind.SCALAR_INOUT: ("s", isa.SCALAR_REGISTERS), Kind.VECTOR_OUT: ("v", isa.VECTOR_REGISTERS),
    Kind.VECTOR_IN: ("v", isa.VECTOR_REGISTERS), Kind.MASK_OUT: ("m", isa.MASKS),
    Kind.MASK_IN: ("m", isa.MASKS), Kind.SEMAPHORE: ("sem", isa.SEMAPHORES),
    Kind.IMMEDIATE: ("imm", isa.IMMEDIATES),
}
"""For each kind of operand whose field selects a register: prefix and number of the registers."""

_WRITTEN = (Kind.SCALAR_OUT, Kind.SCALAR_INOUT, Kind.VECTOR_OUT, Kind.MASK_OUT)


def label_names(labels: Mapping[str, int]) -> dict[int, str]:
    """Return the label of each address that has one; of several labels, the first."""
    names: dict[int, str] = {}
    for name, address in labels.items():
        names.setdefault(address, name)
    return names


def _source_fault(code: int) -> bool:
    return isa.FIRST_IMMEDIATE + isa.IMMEDIATES <= code < isa.INLINE_BASE + isa.INLINE_MIN


def operand_fault(operand: Operand, code: int) -> bool:
    """Return whether ``code`` is an illegal value of the operand's field."""
    if operand.kind is Kind.VECTOR_SOURCE and code & isa.VECTOR_FLAG:
        return code & ~isa.VECTOR_FLAG >= isa.VECTOR_REGISTERS
    if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE):
        return _source_fault(code)
    if operand.kind is Kind.MASK_OUT and code == 0:
        return True
    return code >= BANKS[operand.kind][1]


def written_registers(operation: Operation, fields: Mapping[str, int]) -> list[str]:
    """Return the names of the registers that ``operation`` writes, except s0."""
    names = [f"{BANKS[operand.kind][0]}{fields[operand.field]}"
             for operand in operation.operands if operand.kind in _WRITTEN]
    return [name for name in names if name != "s0"]


def disassemble(bundle: int, names: Mapping[int, str] | None = None) -> str:
    """Return the text of a bundle.

    Parameters
    ----------
    bundle : int
        The encoded bundle.
    names : mapping of int to str
        Labels by address, for the targets of branches.

    Raises
    ------
    ValueError
        If the bundle does not fit `hdl.isa.BUNDLE_BITS` bits.
    """
    slots, immediates, reserved = unpack(bundle)
    placed = _Text(immediates, names or {})
    items = placed.slots(slots)
    if not placed.natural:
        fixed = _Text(immediates, {}, fixed=True)
        items = [f"imm{number}={_integer(value)}"
                 for number, value in enumerate(immediates) if value] + fixed.slots(slots)
    if reserved:
        items.append(f"reserved={reserved:#x}")
    return f"{{ {' | '.join(items)} }}" if items else "{ }"


def _integer(value: int) -> str:
    """Return a word as integer text: decimal if its magnitude is small, else hexadecimal."""
    if value < 1 << 16:
        return str(value)
    if value >= (1 << 32) - (1 << 15):
        return str(value - (1 << 32))
    return f"{value:#010x}"


def _float(value: int) -> str:
    """Return a word as fp32 text if that reproduces its bits, otherwise as its bit pattern."""
    number = np.uint32(value).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(number) and np.float32(float(repr(float(str(number))))).view(
                np.uint32) == value:
            return f"{float(str(number))!r}f"
    return f"0f{value:08X}"


class _Text:
    """Makes the texts of a bundle's slots.

    An operand that uses an immediate is written as the immediate's value. `natural` tells whether
    the assembler, given these texts, would place each value in the same immediate as the bundle.
    With ``fixed``, the immediate's name, such as ``imm2``, is written instead of its value.

    Parameters
    ----------
    immediates : tuple of int
        Values of the bundle's immediates.
    names : mapping of int to str
        Labels by address, for the targets of branches.
    fixed : bool
        Whether to write names of immediates.
    """

    def __init__(self, immediates: tuple[int, ...], names: Mapping[int, str],
                 fixed: bool = False) -> None:
        self._immediates = immediates
        self._names = names
        self._fixed = fixed
        self._keys: list[int | str] = []
        self._in_order = True

    @property
    def natural(self) -> bool:
        return self._in_order and not any(self._immediates[len(self._keys):])

    def slots(self, slots: Mapping[Slot, Mapping[str, int]]) -> list[str]:
        items = []
        written: set[str] = set()
        for slot, fields in slots.items():
            if any(fields.values()):
                items.append(f"{slot}.{self._slot(slot, fields, written)}")
        return items

    def _slot(self, slot: Slot, fields: Mapping[str, int], written: set[str]) -> str:
        operation = isa.operation(slot, fields["op"])
        if operation is None:
            if fields["op"]:
                return _raw("illegal", fields)
            return _words("nop", [f"{name}={fields[name]}" for name in fields if fields[name]])
        if any(operand_fault(operand, fields[operand.field]) for operand in operation.operands):
            return _raw("illegal", fields)
        registers = written_registers(operation, fields)
        if not written.isdisjoint(registers):
            return _raw("conflict", fields)
        written.update(registers)
        operands = list(operation.operands)
        ignored = set(fields) - {"op"} - {operand.field for operand in operands}
        while operands and fields[operands[-1].field] == _default_code(operation, operands[-1]):
            operands.pop()
        words = [self._operand(operation, operand, fields[operand.field]) for operand in operands]
        words += [f"{name}={fields[name]}" for name in fields if name in ignored and fields[name]]
        return _words(operation.name, words)

    def _operand(self, operation: Operation, operand: Operand, code: int) -> str:
        branch = operation.unit is Unit.BRANCH
        if operand.kind is Kind.IMMEDIATE:
            return self._immediate(code, label=branch)
        if operand.kind not in (Kind.SOURCE, Kind.VECTOR_SOURCE):
            return f"{BANKS[operand.kind][0]}{code}"
        if code & isa.VECTOR_FLAG:
            return f"v{code & ~isa.VECTOR_FLAG}"
        if code < isa.FIRST_IMMEDIATE:
            return f"s{code}"
        if code >= isa.INLINE_BASE + isa.INLINE_MIN:
            return str(code - isa.INLINE_BASE)
        number = code - isa.FIRST_IMMEDIATE
        jump = branch and not any(other.kind is Kind.IMMEDIATE for other in operation.operands)
        real = isinstance(operation.op, VectorOp) and operation.name.startswith("f")
        return self._immediate(number, label=jump, source=True, real=real)

    def _immediate(self, number: int, label: bool, source: bool = False, real: bool = False) -> str:
        if self._fixed:
            return f"imm{number}"
        value = self._immediates[number]
        name = self._names.get(value) if label else None
        key = value if name is None else name
        if key not in self._keys:
            self._keys.append(key)
        short = (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
        inline = source and name is None and isa.INLINE_MIN <= short <= isa.INLINE_MAX
        if inline or self._keys.index(key) != number:
            self._in_order = False
        if name is not None:
            return name
        return _float(value) if real else _integer(value)


def _default_code(operation: Operation, operand: Operand) -> int | None:
    value = default(operation, operand)
    if value is not None and operand.kind is Kind.SOURCE:
        return isa.INLINE_BASE + value
    return value


def _words(name: str, operands: list[str]) -> str:
    return f"{name} {', '.join(operands)}" if operands else name


def _raw(name: str, fields: Mapping[str, int]) -> str:
    return _words(name, [f"{field}={value}" for field, value in fields.items()])
