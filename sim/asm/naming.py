"""Names of operations and operands in Python: the assembler's methods and parameters."""

import keyword

from hdl.isa import Kind, Operand, Operation, Unit

__all__ = ["default", "method_name", "parameter"]

_MEMORY = (Unit.SMEM, Unit.VMEM)


def method_name(operation: Operation) -> str:
    """Return the name of the operation's method: its own, or `and_` for `and`, a Python keyword."""
    return operation.name + "_" * keyword.iskeyword(operation.name)


def parameter(operation: Operation, operand: Operand) -> str:
    """Return the name of the operand's parameter: that of its field, unless another is clearer."""
    if operand.field == "m":
        return "mask"
    if operand.kind is Kind.IMMEDIATE:
        return "target"
    direct = all(other.kind is not Kind.IMMEDIATE for other in operation.operands)
    if operation.unit is Unit.BRANCH and direct and operand.field == "b":
        return "target"
    if operation.unit in _MEMORY:
        return {"d": "d", "a": "base", "b": "offset"}[operand.field]
    if operation.unit is Unit.DMA:
        return "descriptor"
    return operand.field


def default(operation: Operation, operand: Operand) -> int | None:
    """Return the default value of the operand's field, or None if the operand is not optional.

    The optional operands of an operation are its last ones.
    """
    if operation.unit in _MEMORY and operand.kind is Kind.SOURCE:
        return 0
    if operation.unit is Unit.VMEM and operand.kind is Kind.MASK_IN:
        return 0
    return None
