"""Emission: machine code becomes bundles of operations on physical registers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hdl.config import Config
from hdl.isa import ScalarOp, Slot
from sim.asm.assembler import Assembler
from sim.compiler.machine.addresses import lower_addresses, scalar_operation
from sim.compiler.machine.ir import (
    Block,
    Branch,
    Condition,
    Loop,
    MachineCode,
    MReg,
    Op,
    SReg,
    VReg,
)
from sim.compiler.machine.registers import Allocation, Line, allocate

__all__ = ["Code", "Loops", "emit"]


@dataclass(frozen=True)
class Loops:
    """Extent of a loop in the bundles: from ``first`` to before ``end``.

    ``count`` is its number of iterations, None if it is known at run time only.
    """

    first: int
    end: int
    count: int | None


@dataclass(frozen=True)
class Code:
    """Code on physical registers, without halt: it runs into the bundle behind its last.

    Attributes
    ----------
    config : Config
    bundles : tuple
        The bundles; each is a tuple of operations (slot, name, operands), as
        `sim.asm.assembler.Bundle.operation` takes them. A string among the operands is a label.
    labels : mapping of str to int
        Number of the bundle that each label is before; the end is ``len(bundles)``.
    atoms : tuple of (int, int)
        Bundles ``first`` to before ``end`` that loops or branches hold together: code can be cut
        anywhere else. In order, and disjoint.
    loops : tuple of Loops
        All loops.
    live : tuple of frozenset of int
        Scalar registers that are live before each bundle, and after the last.
    """

    config: Config
    bundles: tuple[tuple[tuple[Slot, str, tuple[Any, ...]], ...], ...]
    labels: Mapping[str, int]
    atoms: tuple[tuple[int, int], ...]
    loops: tuple[Loops, ...]
    live: tuple[frozenset[int], ...]

    def __len__(self) -> int:
        return len(self.bundles)

    def write(self, asm: Assembler, prefix: str = "") -> None:
        """Append all bundles to a program, with ``prefix`` before each label.

        Raises
        ------
        ValueError
            If a label is already defined, or the program gets too long.
        """
        names: dict[int, list[str]] = {}
        for name, at in self.labels.items():
            names.setdefault(at, []).append(prefix + name)
        for number, operations in enumerate(self.bundles):
            for name in names.get(number, ()):
                asm.label(name)
            with asm.bundle() as bundle:
                for slot, operation, operands in operations:
                    bundle.operation(slot, operation, *(
                        prefix + operand if isinstance(operand, str) else operand
                        for operand in operands))
        for name in names.get(len(self.bundles), ()):
            asm.label(name)


def emit(code: MachineCode, config: Config) -> Code:
    """Bundles for machine code.

    Raises
    ------
    ValueError
        If the code was built for another configuration.
    RegisterPressureError
        If the core has too few registers.
    """
    if code.config != config:
        raise ValueError(f"config must be {code.config!r}, for which the code was built, "
                         f"not {config!r}")
    layout = _Layout()
    layout.block(lower_addresses(code).body)
    allocation = allocate(layout.lines, layout.labels)
    return Code(config, tuple(_bundle(line, allocation) for line in layout.lines), layout.labels,
                tuple(layout.atoms), tuple(layout.loops), allocation.live)


def _bundle(line: Line, allocation: Allocation) -> tuple[tuple[Slot, str, tuple[Any, ...]], ...]:
    return tuple(
        (slot, op.name, tuple(
            allocation.physical[operand] if isinstance(operand, (VReg, MReg, SReg)) else operand
            for operand in op.operands))
        for slot, op in line.operations)


_BRANCHES = {"eq": ScalarOp.BEQ, "ne": ScalarOp.BNE, "lt": ScalarOp.BLT, "ge": ScalarOp.BGE,
             "ltu": ScalarOp.BLTU, "geu": ScalarOp.BGEU}


@dataclass
class _Layout:
    """Lines in order, and the places of labels, loops and atoms among them."""

    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    atoms: list[tuple[int, int]] = field(default_factory=list)
    loops: list[Loops] = field(default_factory=list)
    depth: int = 0

    def block(self, block: Block) -> None:
        """Append a block."""
        for item in block:
            if isinstance(item, Op):
                self._line(item)
                continue
            first = len(self.lines)
            self.depth += 1
            if isinstance(item, Loop):
                self._loop(item)
            else:
                self._branch(item)
            self.depth -= 1
            if not self.depth:
                self.atoms.append((first, len(self.lines)))

    def _loop(self, loop: Loop) -> None:
        first = len(self.lines)
        start = self._label("loop")
        self.block(loop.body)
        for register, step in loop.steps:
            self._line(Op(scalar_operation(ScalarOp.ADD),
                          (register, register, step & 0xFFFFFFFF)))
        if loop.counter is not None:
            self._line(Op(scalar_operation(ScalarOp.LOOP), (loop.counter, start)))
        else:
            assert loop.again is not None
            self._jump(loop.again, start)
        count = loop.count if isinstance(loop.count, int) else None
        self.loops.append(Loops(first, len(self.lines), count))

    def _branch(self, branch: Branch) -> None:
        otherwise, end = self._name("else"), self._name("end")
        self._jump(branch.condition.inverse, otherwise)
        self.block(branch.then)
        if branch.otherwise:
            self._line(Op(scalar_operation(ScalarOp.JUMP), (end,)))
        self.labels[otherwise] = len(self.lines)
        self.block(branch.otherwise)
        self.labels[end] = len(self.lines)

    def _jump(self, condition: Condition, target: str) -> None:
        a, b = condition.a, condition.b
        self._line(Op(scalar_operation(_BRANCHES[condition.name]), (a, b, target)))

    def _line(self, op: Op) -> None:
        self.lines.append(Line([(op.operation.slots[0], op)]))

    def _name(self, stem: str) -> str:
        name = f"{stem}_{len(self.labels)}"
        self.labels[name] = -1
        return name

    def _label(self, stem: str) -> str:
        name = self._name(stem)
        self.labels[name] = len(self.lines)
        return name
