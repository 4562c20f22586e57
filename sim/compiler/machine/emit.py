"""Emission: machine code becomes bundles of operations on physical registers."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.assembler import Assembler
from sim.compiler.machine import overlap
from sim.compiler.machine.addresses import lower_addresses
from sim.compiler.machine.ahead import weights_ahead
from sim.compiler.machine.ir import (
    Line,
    MachineCode,
    MReg,
    SReg,
    VmemBuffer,
    VReg,
)
from sim.compiler.machine.join import by_address
from sim.compiler.machine.layout import Loops, Options, lay_out
from sim.compiler.machine.loops import hoist, unroll
from sim.compiler.machine.registers.coloring import Allocation, RegisterPressureError
from sim.compiler.machine.registers.coloring import allocate as assign
from sim.compiler.machine.registers.spill import spill
from sim.compiler.machine.reuse.content import Content
from sim.compiler.machine.schedule import straight

__all__ = ["JOINED", "LADDER", "Code", "Loops", "emit", "forget"]


@dataclass(frozen=True)
class Code:
    """Code on physical registers; it does not halt, but continues with the bundle that follows it.

    Attributes
    ----------
    config : Config
    bundles : tuple
        The bundles; each is a tuple of operations (slot, name, operands), the arguments of
        `sim.asm.assembler.Bundle.operation`. A string among the operands is a label.
    labels : mapping of str to int
        For each label, the number of the bundle that it precedes; ``len(bundles)`` at the end.
    atoms : tuple of (int, int)
        Ranges of bundles, (first, end), in which code must not be cut, because a loop or a branch
        spans them; ``end`` is exclusive. The ranges are in order and disjoint.
    loops : tuple of Loops
        All loops.
    live : tuple of frozenset of int
        Numbers of the scalar registers that are live before each bundle, and after the last.
    cycles : dict of int to int
        Results of `sim.compiler.machine.estimate.estimate` so far, by its parameter ``unknown``.
        Code that differs only in addresses has the same dictionary.
    """

    config: Config
    bundles: tuple[tuple[tuple[Slot, str, tuple[Any, ...]], ...], ...]
    labels: Mapping[str, int]
    atoms: tuple[tuple[int, int], ...]
    loops: tuple[Loops, ...]
    live: tuple[frozenset[int], ...]
    cycles: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.bundles)

    def write(self, asm: Assembler, prefix: str = "") -> None:
        """Append all bundles to a program, with ``prefix`` before each label.

        Raises
        ------
        ValueError
            If a label is already defined, or the program does not fit instruction memory.
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


LADDER = (
    Options(),
    Options(constants=4, invariants=False),
    Options(constants=0, invariants=False, crowded=True),
    Options(constants=0, invariants=False, crowded=True, pipeline=False),
    Options(constants=0, invariants=False, crowded=True, pipeline=False, reduced=False),
    Options(constants=0, invariants=False, pipeline=False, ahead=False),
    Options(constants=0, invariants=False, pipeline=False, ahead=False, reduced=False))
"""Options of scheduling, in the order in which they are tried. Each entry needs fewer registers
than the one before it."""
JOINED = tuple(Options(joined=True, unrolled=most, lead=64, live=30)
               for most in (256, 192, 160, 128, 48))
"""Options to try, in order, for code of several kernels (`sim.compiler.machine.join.join`)."""


_EMITTED: dict[Hashable, "_Emitted | RegisterPressureError"] = {}
"""What `emit` has made, code or an error, by the content of the machine code and the options.

Both cores run the same kernels, and many kernels differ only in the addresses of their buffers. The
errors were never raised: a traceback would keep all objects of the failed attempts in memory."""


_SPILLED = LADDER[-3:]
"""Options to try, in order, for code that keeps some vector registers in vector memory."""
_FEWER = 24, 16, 8
"""How many vector registers may be live at once in code that keeps the others in vector memory:
limits to try, in order. All are below the number of registers, because a schedule needs a few more.
"""


def emit(code: MachineCode, config: Config, *, schedule: bool = True,
         ladder: Sequence[Options] = LADDER,
         allocate: Callable[[int], VmemBuffer] | None = None) -> Code:
    """Translate machine code to bundles.

    Code that equals earlier code, such as that of the other core, is not translated again, until
    `forget` is called. Nor is code that differs from earlier code only in the addresses of its
    buffers, if they only change offsets (`sim.compiler.machine.reuse.content`).

    Parameters
    ----------
    code : MachineCode
    config : Config
        The chip for which the code was built.
    schedule : bool
        If False, each operation gets a bundle of its own, in the order of the code.
    ladder : sequence of Options
        Ways to schedule; the first one for which the core has enough registers is used.
    allocate : callable, optional
        Allocates a buffer of a given number of vectors. It holds vector registers for which the
        core has no room (`sim.compiler.machine.registers.spill`). May be called several times.

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
    ways = tuple(ladder) if schedule else (Options(schedule=False),)
    content = Content(code)
    key = content.key, ways
    found = _EMITTED.get(key)
    if found is None:
        found = _EMITTED[key] = _emitted(code, ways, content.buffers)
    if isinstance(found, _Emitted):
        return found.at(list(content.buffers))
    if allocate is None or found.kind is not VReg:
        raise RegisterPressureError(found.kind, found.live)
    return _with_spills(code, config, allocate, found)


def _with_spills(code: MachineCode, config: Config, allocate: Callable[[int], VmemBuffer],
                 error: RegisterPressureError) -> Code:
    """Translate code that needs too many registers; keep some of its vectors in vector memory.

    ``allocate`` returns a buffer for a number of vectors. If all attempts fail, the
    `RegisterPressureError` of the last one is raised; ``error`` is that of the attempts without
    spilling.
    """
    failed = error.kind, error.live
    for most in _FEWER:
        try:
            return emit(spill(code, most, allocate), config, ladder=_SPILLED)
        except RegisterPressureError as failure:
            failed = failure.kind, failure.live
    raise RegisterPressureError(*failed)


def forget() -> None:
    """Free what `emit` and its stages have kept; `compile_graph` calls this at its end."""
    _EMITTED.clear()
    overlap.forget()
    straight.forget()


@dataclass(frozen=True)
class _Emitted:
    """Code that `emit` has emitted.

    Attributes
    ----------
    code : Code
    buffers : list of VmemBuffer
        The buffers of the code.
    places : mapping of int to list of (int, int)
        For each bundle that accesses buffers, pairs: the number of an operation in it, and the
        number of the buffer that the operation accesses.
    """

    code: Code
    buffers: Sequence[VmemBuffer]
    places: Mapping[int, Sequence[tuple[int, int]]]

    def at(self, buffers: Sequence[VmemBuffer]) -> Code:
        """Return the code for other buffers, which correspond to `buffers` one by one."""
        moves = [new.address - old.address
                 for new, old in zip(buffers, self.buffers, strict=True)]
        if not any(moves):
            return self.code
        bundles = list(self.code.bundles)
        for number, places in self.places.items():
            operations = list(bundles[number])
            for place, buffer in places:
                slot, name, (value, base, offset, *rest) = operations[place]
                operations[place] = slot, name, (
                    value, base, offset + moves[buffer] & 0xFFFFFFFF, *rest)
            bundles[number] = tuple(operations)
        return replace(self.code, bundles=tuple(bundles))


def _emitted(code: MachineCode, ladder: Sequence[Options], buffers: Mapping[VmemBuffer, int]
             ) -> _Emitted | RegisterPressureError:
    """Emit code, or return the error of the last attempt; ``buffers`` numbers the buffers."""
    for options in ladder:
        try:
            layout = lay_out(_prepared(code, options), options)
            allocation = assign(layout.lines, layout.labels)
        except RegisterPressureError as failure:
            error = RegisterPressureError(failure.kind, failure.live)
            continue
        places: dict[int, list[tuple[int, int]]] = {}
        for number, line in enumerate(layout.lines):
            for place, (_, op) in enumerate(line):
                if op.access is not None and op.access.buffer is not None:
                    buffer = op.access.extent or op.access.buffer
                    places.setdefault(number, []).append((place, buffers[buffer]))
        return _Emitted(Code(
            code.config, tuple(_bundle(line, allocation) for line in layout.lines),
            layout.labels, tuple(layout.atoms), tuple(layout.loops), allocation.live),
            list(buffers), places)
    return error


def _prepared(code: MachineCode, options: Options) -> MachineCode:
    """Return the code with its loops transformed as ``options`` say, and its indexes lowered."""
    if not options.schedule:
        return lower_addresses(code)
    if options.pipeline:
        code = unroll(code, joined=options.unrolled if options.joined else None)
    lowered = lower_addresses(code, reduced=options.reduced)
    code = hoist(lowered, constants=options.constants, invariants=options.invariants)
    return by_address(weights_ahead(code)) if options.joined else code


def _bundle(line: Line, allocation: Allocation) -> tuple[tuple[Slot, str, tuple[Any, ...]], ...]:
    physical = allocation.physical
    return tuple([
        (slot, op.name, tuple([
            physical[operand] if isinstance(operand, (VReg, MReg, SReg)) else operand
            for operand in op.operands]))
        for slot, op in line])
