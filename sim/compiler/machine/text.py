"""Text form of machine code and bundles, for dumps."""

import pathlib
from dataclasses import replace
from itertools import count

from sim.asm.assembler import Assembler
from sim.compiler.machine.emit import Code
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import Block, Condition, Loop, MachineCode, Op

__all__ = ["bundles_text", "code_text", "dump_kernel"]


def dump_kernel(folder: pathlib.Path, name: str, machine: MachineCode, code: Code) -> None:
    """Write a kernel's machine code and bundles to a new file, named after ``name``, in a folder.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = (f"# {name}: {len(code)} bundles, {estimate(code)} cycles\n\n{code_text(machine)}\n"
            f"{bundles_text(code)}")
    for number in count(sum(1 for _ in folder.iterdir())):
        try:
            with (folder / f"{number:03}-{name}.txt").open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        return


def code_text(code: MachineCode) -> str:
    """Format machine code on virtual registers, one operation a line; blocks are indented."""
    lines: list[str] = []
    _block(code.body, "", lines)
    return "".join(line + "\n" for line in lines)


def bundles_text(code: Code) -> str:
    """Format bundles in the assembler's text form, with addresses as comments.

    Symbols have no value before the program is linked: each is shown as 0, and a comment at the
    start lists the bundles that contain it.
    """
    symbols: dict[str, list[int]] = {}
    for number, operations in enumerate(code.bundles):
        for _, _, operands in operations:
            for operand in operands:
                if isinstance(operand, str) and operand not in code.labels:
                    symbols.setdefault(operand, []).append(number)
    asm = Assembler()
    replace(code, bundles=tuple(
        tuple((slot, name, tuple(0 if operand in symbols else operand for operand in operands))
              for slot, name, operands in operations)
        for operations in code.bundles)).write(asm)
    comments = (f"# Symbol {symbol} is 0 in bundle {', '.join(map(str, numbers))}.\n"
                for symbol, numbers in symbols.items())
    return "".join(comments) + asm.assemble().listing()


def _block(block: Block, indent: str, lines: list[str]) -> None:
    for item in block:
        if isinstance(item, Op):
            lines.append(indent + _operation(item))
        elif isinstance(item, Loop):
            steps = "".join(f", {register} += {step}" for register, step in item.steps)
            head = f"{item.variable} < {item.count}" if item.again is None else "always"
            lines.append(f"{indent}loop {head}{steps}:")
            _block(item.body, indent + "    ", lines)
            if item.again is not None:
                lines.append(f"{indent}again if {_condition(item.again)}")
        else:
            lines.append(f"{indent}if {_condition(item.condition)}:")
            _block(item.then, indent + "    ", lines)
            if item.otherwise:
                lines.append(f"{indent}else:")
                _block(item.otherwise, indent + "    ", lines)


def _condition(condition: Condition) -> str:
    return f"{condition.name} {condition.a}, {condition.b}"


def _operation(op: Op) -> str:
    text = f"{op.operation.slots[0]}.{op.name} " + ", ".join(map(str, op.operands))
    if op.access is None:
        return text
    place = "" if op.access.buffer is None else op.access.buffer.name
    return f"{text}  # {place}[{op.access.index}]"
