"""Machine code and bundles as text, for dumps."""

from sim.asm.assembler import Assembler
from sim.compiler.machine.emit import Code
from sim.compiler.machine.ir import Block, Condition, Loop, MachineCode, Op

__all__ = ["bundles_text", "code_text"]


def code_text(code: MachineCode) -> str:
    """Machine code on virtual registers, an operation a line; loops and branches are indented."""
    lines: list[str] = []
    _block(code.body, "", lines)
    return "".join(line + "\n" for line in lines)


def bundles_text(code: Code) -> str:
    """Bundles in the assembler's text form, with addresses as comments."""
    asm = Assembler()
    code.write(asm)
    return asm.assemble().listing()


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
