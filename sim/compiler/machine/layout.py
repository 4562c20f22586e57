"""Layout of machine code: the scheduled bundles of all blocks, loops and branches, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from hdl.config import Config
from hdl.isa import ScalarOp
from sim.compiler.machine.ir import (
    ZERO,
    Block,
    Branch,
    Condition,
    Line,
    Loop,
    MachineCode,
    Op,
    SReg,
    scalar_operation,
)
from sim.compiler.machine.overlap import Usage, overlap
from sim.compiler.machine.schedule.pipeline import Pipeline
from sim.compiler.machine.schedule.resources import occupancy
from sim.compiler.machine.schedule.straight import schedule_block, single_writes

__all__ = ["Layout", "Loops", "Options", "lay_out"]

_BRANCHES = {"eq": ScalarOp.BEQ, "ne": ScalarOp.BNE, "lt": ScalarOp.BLT, "ge": ScalarOp.BGE,
             "ltu": ScalarOp.BLTU, "geu": ScalarOp.BGEU}
_ADD, _SUB, _AND, _SHR, _LOOP, _JUMP = map(scalar_operation, (
    ScalarOp.ADD, ScalarOp.SUB, ScalarOp.AND, ScalarOp.SHR, ScalarOp.LOOP, ScalarOp.JUMP))


@dataclass(frozen=True)
class Options:
    """Options of scheduling.

    Attributes
    ----------
    schedule : bool
        If False, each operation gets a bundle of its own, in the order of the code.
    pipeline : bool
        Whether iterations of innermost loops overlap.
    ahead : bool
        Whether operations may move in front of earlier operations of their block.
    constants : int
        Number of scalar registers that each nest of loops may use for constants.
    invariants : bool
        Whether operations whose result is the same in all iterations move out of loops.
    reduced : bool
        Whether loops advance addresses in registers of their own; otherwise, they advance only
        their variables, and each address is computed where it is used.
    crowded : bool
        Whether each block tries to use at most half of the registers.
    joined : bool
        Whether the code consists of several kernels (`sim.compiler.machine.join`).
    unrolled : int
        With ``joined``: maximum number of operations, in all iterations together, of a loop that is
        unrolled.
    lead : int or None
        How early a load may issue: at most this number of cycles before the latest cycle in which
        it delays nothing. None: no limit. Applies to straight code for which the number of results
        in the array is known.
    live : int or None
        Limit of the live vector registers in straight code, instead of that in
        `sim.compiler.machine.schedule.straight.PRESSURE`.
    """

    schedule: bool = True
    pipeline: bool = True
    ahead: bool = True
    constants: int = 12
    invariants: bool = True
    reduced: bool = True
    crowded: bool = False
    joined: bool = False
    unrolled: int = 0
    lead: int | None = None
    live: int | None = None


@dataclass(frozen=True)
class Loops:
    """The bundles of a loop: from number ``first`` to ``end - 1``.

    ``count`` is how often they are executed each time the code reaches the loop; None if that is
    known only at run time.
    ``unroll`` is the number of iterations of the original loop that one execution performs; 0 if
    the loop only executes the iterations that a pipelined loop leaves over.
    """

    first: int
    end: int
    count: int | None
    unroll: int = 1


@dataclass
class Layout:
    """Bundles in order, and the positions of labels, loops and atoms among them.

    An atom is a range of bundles in which code must not be cut (`sim.compiler.machine.emit.Code`).
    """

    code: MachineCode
    options: Options
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    atoms: list[tuple[int, int]] = field(default_factory=list)
    loops: list[Loops] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = count(self.code.registers + 1)
        self.depth = 0
        self.usage = Usage(self.code.body)
        self.outstanding: int | None = 0 if self.options.joined else None
        """Number of results that the array holds after the bundles so far, if known."""

    @property
    def config(self) -> Config:
        """Configuration of the chip."""
        return self.code.config

    def block(self, block: Block, last: Op | None = None) -> None:
        """Schedule and append a block; a branch ``last``, if given, is its last operation."""
        before: list[Op] = []
        for item in block:
            if isinstance(item, Op):
                before.append(item)
            elif isinstance(item, Branch):
                self._branch(item, before)
                before = []
            elif item.count == 1:
                if item.apart:
                    self.straight(before)
                    before = []
                joined, before = [*before, *item.body], []
                self.block(joined)
            else:
                self._loop(item, before)
                before = []
        self.straight(before, last)

    def straight(self, ops: Sequence[Op], last: Op | None = None) -> None:
        """Append operations without control flow, and the branch ``last``, if any, after them."""
        if self.options.schedule:
            if self.options.ahead:
                renamed = single_writes([*ops, *([last] if last is not None else [])], self.numbers)
                ops, last = renamed[:len(ops)], renamed[-1] if last is not None else None
            self.lines += schedule_block(ops, self.config, last, ahead=self.options.ahead,
                                         crowded=self.options.crowded,
                                         outstanding=None if self.depth else self.outstanding,
                                         lead=self.options.lead, live=self.options.live)
            self._count([*ops])
        else:
            self.lines += [[(op.operation.slots[0], op)]
                           for op in (*ops, *([last] if last is not None else []))]

    def _loop(self, loop: Loop, before: list[Op]) -> None:
        """Append the operations ``before``, which precede a loop, and then the loop."""
        pipeline = None
        if self.options.schedule and self.options.pipeline:
            pipeline = overlap(loop, self.config, self.usage, self.numbers)
        counter = self._scalar()
        if pipeline is None:
            if loop.count is not None:
                before.append(_set(counter, loop.count))
            self.straight(before)
            with_atom = len(self.lines)
            self._simple(loop, counter)
        elif isinstance(loop.count, int):
            with_atom = self._counted(pipeline, loop.count, counter, before)
        else:
            assert loop.count is not None
            with_atom = self._dynamic(loop, pipeline, counter, before)
        self._atom(with_atom)
        self._count([loop])

    def _count(self, block: Block) -> None:
        """Update `outstanding` for a block that has been appended."""
        if self.outstanding is not None and not self.depth:
            change = _results(block, self.config)
            self.outstanding = None if change is None else self.outstanding + change

    def _atom(self, first: int) -> None:
        if not self.depth and first < len(self.lines):
            self.atoms.append((first, len(self.lines)))

    def _simple(self, loop: Loop, counter: SReg, unroll: int = 1) -> None:
        """Append a loop whose iterations do not overlap.

        ``counter`` counts the iterations, unless the loop has a condition. ``unroll`` is that of
        `Loops`.
        """
        first = len(self.lines)
        start = self._label("loop")
        steps = [Op(_ADD, (register, register, step & 0xFFFFFFFF)) for register, step in loop.steps]
        last = Op(_LOOP, (counter, start))
        if loop.again is not None:
            last = _jump(loop.again, start)
        self.depth += 1
        self.block([*loop.body, *steps], last)
        self.depth -= 1
        self.loops.append(Loops(first, len(self.lines),
                                loop.count if isinstance(loop.count, int) else None, unroll))

    def _counted(self, pipeline: Pipeline, iterations: int, counter: SReg, before: list[Op]) -> int:
        """Append the operations ``before``, and a pipelined loop of ``iterations`` iterations.

        The register ``counter`` counts executions of the steady state. Returns the number of the
        loop's first bundle. A short loop becomes straight code, which may be cut anywhere; in
        this case, the number of the bundle after it is returned.
        """
        passes, rest = divmod(iterations - pipeline.lead, pipeline.unroll)
        if passes < 2:
            self.straight(before)
            self.lines += pipeline.flat(iterations)
            return len(self.lines)
        self.straight([*before, _set(counter, passes)])
        first = len(self.lines)
        self._looped(pipeline, pipeline.lead + rest, counter, passes)
        return first

    def _looped(self, pipeline: Pipeline, lead: int, counter: SReg, passes: int | None) -> None:
        label = self._name("steady")
        prologue, steady, epilogue = pipeline.looped(lead, counter, label)
        self.lines += prologue
        first = self.labels[label] = len(self.lines)
        self.lines += steady
        self.loops.append(Loops(first, len(self.lines), passes, pipeline.unroll))
        self.lines += epilogue

    def _dynamic(self, loop: Loop, pipeline: Pipeline, counter: SReg, before: list[Op]) -> int:
        """Append ``before``, and a pipelined loop whose number of iterations is known at run time.

        Iterations that the pipelined loop leaves over run first, without overlap. If there are too
        few iterations for the pipelined loop, all of them run that way. The register ``counter``
        counts executions of the steady state. Returns the number of the first bundle after
        ``before``.
        """
        assert isinstance(loop.count, SReg)
        least, unroll = pipeline.lead + pipeline.unroll, pipeline.unroll
        number, total, rest = (self._scalar() for _ in range(3))
        first_label, pipelined, end = map(self._name, ("some", "pipelined", "end"))
        self.straight([
            *before, _set(number, loop.count), Op(_SUB, (total, number, pipeline.lead)),
            Op(_AND, (rest, total, unroll - 1)),
            Op(_SHR, (counter, total, unroll.bit_length() - 1))])
        first = len(self.lines)
        self.straight([], _jump(Condition("ge", number, least), first_label))
        self.straight([_set(rest, number)])
        self.labels[first_label] = len(self.lines)
        self.straight([], _jump(Condition("eq", rest, 0), pipelined))
        self._simple(loop, rest, 0)
        self.labels[pipelined] = len(self.lines)
        self.straight([], _jump(Condition("lt", number, least), end))
        self._looped(pipeline, pipeline.lead, counter, None)
        self.labels[end] = len(self.lines)
        return first

    def _branch(self, branch: Branch, before: list[Op]) -> None:
        otherwise, end = self._name("else"), self._name("end")
        begin = len(self.lines)
        self.straight(before, _jump(branch.condition.inverse, otherwise))
        first = max(begin, len(self.lines) - 1)
        self.depth += 1
        self.block(branch.then, Op(_JUMP, (end,)) if branch.otherwise else None)
        self.labels[otherwise] = len(self.lines)
        self.block(branch.otherwise)
        self.labels[end] = len(self.lines)
        self.depth -= 1
        self._atom(first)
        self._count([branch])

    def _scalar(self) -> SReg:
        return SReg(next(self.numbers))

    def _name(self, stem: str) -> str:
        name = f"{stem}_{len(self.labels)}"
        self.labels[name] = -1
        return name

    def _label(self, stem: str) -> str:
        name = self._name(stem)
        self.labels[name] = len(self.lines)
        return name


def _results(block: Block, config: Config) -> int | None:
    """Return by how much a block changes the number of results that the array holds.

    Return None if the change depends on a condition, or on a number of iterations that is known
    only at run time.
    """
    total = 0
    for item in block:
        if isinstance(item, Op):
            use = occupancy(item, config)
            total += {"rows": 1, "pop": -1}.get(use[0], 0) if use is not None else 0
            continue
        if isinstance(item, Loop):
            change = _results(item.body, config)
            if change:
                change = change * item.count if isinstance(item.count, int) else None
        else:
            change = _results(item.then, config)
            if change != _results(item.otherwise, config):
                change = None
        if change is None:
            return None
        total += change
    return total


def lay_out(code: MachineCode, options: Options) -> Layout:
    """Schedule code as ``options`` say, and lay it out.

    `sim.compiler.machine.addresses.lower_addresses` must have lowered the indexes of the code.
    """
    layout = Layout(code, options)
    layout.block(code.body)
    return layout


def _set(register: SReg, value: SReg | int) -> Op:
    return Op(_ADD, (register, ZERO, value))


def _jump(condition: Condition, target: str) -> Op:
    return Op(scalar_operation(_BRANCHES[condition.name]), (condition.a, condition.b, target))
