"""Writes sim/asm/slots.py: the assembler's methods, one for each operation of `hdl.isa`.

Because the methods are generated, editors and type checkers know their names, operands and
meanings.
"""

import pathlib
import re
import textwrap
from collections.abc import Iterator

from hdl.isa import OPERATIONS, Kind, Operation, Slot
from sim.asm.naming import default, method_name, parameter

__all__ = ["CLASSES", "PATH", "source"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "sim" / "asm" / "slots.py"
"""Path of the generated file."""

CLASSES: dict[str, tuple[str, tuple[Slot, ...], str]] = {
    "ScalarMethods": ("SlotMethods", (Slot.S0, Slot.S1), "Operations of both scalar slots."),
    "Scalar0Methods": ("ScalarMethods", (Slot.S0,),
                       "Operations of slot s0, which accesses scalar memory."),
    "Scalar1Methods": ("ScalarMethods", (Slot.S1,), "Operations of slot s1, which branches."),
    "Vector0Methods": ("SlotMethods", (Slot.V0, Slot.V1), "Operations of both vector slots."),
    "Vector1Methods": ("Vector0Methods", (Slot.V1,),
                       "Operations of slot v1, which has the transcendental unit."),
    "LoadMethods": ("SlotMethods", (Slot.LOAD,), "Operations of slot ld: vector loads."),
    "StoreMethods": ("SlotMethods", (Slot.STORE,), "Operations of slot st: vector stores."),
    "PushMethods": ("SlotMethods", (Slot.PUSH,), "Operations of slot push: vectors to the array."),
    "PopMethods": ("SlotMethods", (Slot.POP,), "Operations of slot pop: results of the array."),
    "MiscMethods": ("SlotMethods", (Slot.MISC,),
                    """Operations of slot misc: cross-lane unit, semaphores, and transfers.

    An operand beyond the limit that the operation states, such as b < lanes, is a fault
    (INDEX_RANGE); so is a ``signal`` that would raise a semaphore above 2**32 - 1 (SEMAPHORE).
    """),
}
"""For each class of `sim.asm.slots`, by name: base class, slots, docstring. The class has a method
for each operation that exactly these slots have."""

_TYPES = {
    Kind.SCALAR_OUT: "Scalar", Kind.SCALAR_IN: "Scalar", Kind.SCALAR_INOUT: "Scalar",
    Kind.SOURCE: "Source", Kind.VECTOR_OUT: "Vector", Kind.VECTOR_IN: "Vector",
    Kind.VECTOR_SOURCE: "VectorSource", Kind.MASK_OUT: "Mask", Kind.MASK_IN: "Mask",
    Kind.SEMAPHORE: "Semaphore", Kind.IMMEDIATE: "Target",
}


def _method(operation: Operation) -> Iterator[str]:
    parameters = ["self"]
    for operand in operation.operands:
        text = f"{parameter(operation, operand)}: {_TYPES[operand.kind]}"
        if default(operation, operand) is not None:
            text += " = m[0]" if operand.kind is Kind.MASK_IN else " = 0"
        parameters.append(text)
    names = [parameter(operation, operand) for operand in operation.operands]
    yield from textwrap.wrap(
        f"def {method_name(operation)}({', '.join(parameters)}) -> None:", 100,
        initial_indent=" " * 4, subsequent_indent=" " * 12)
    meaning = operation.semantics.replace("imm[d]", "target")
    for operand, name in zip(operation.operands, names, strict=True):
        if name != "target" or operand.field == "b":
            meaning = re.sub(rf"\b{operand.field}\b", name, meaning)
    doc = textwrap.wrap(f'"""{meaning}', 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    if len(doc) == 1 and len(doc[0]) <= 97:
        yield doc[0] + '"""'
    else:
        yield from doc
        yield " " * 8 + '"""'
    enum = type(operation.op).__name__
    yield f"        self._put({', '.join([f'{enum}.{operation.op.name}', *names])})"


def source() -> str:
    """The Python source of `sim.asm.slots`."""
    enums = sorted({type(operation.op).__name__ for operation in OPERATIONS})
    lines = [
        '"""The assembler\'s slots: classes whose methods are the operations of `hdl.isa`.',
        "",
        "Written by `tools.docs.slots` from `hdl.isa.OPERATIONS`; do not edit.",
        '"""',
        "",
        f"from hdl.isa import {', '.join(enums)}",
        "from sim.asm.operands import (",
        *(f"    {name}," for name in sorted({*_TYPES.values(), "SlotMethods"})),
        "    m,",
        ")",
        "",
        "__all__ = [", *(f'    "{name}",' for name in sorted(CLASSES)), "]",
    ]
    for name, (base, slots, meaning) in CLASSES.items():
        lines += ["", "", f"class {name}({base}):", f'    """{meaning}"""']
        for operation in OPERATIONS:
            if operation.slots == slots:
                lines += ["", *_method(operation)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the source to `PATH`."""
    PATH.write_text(source(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
