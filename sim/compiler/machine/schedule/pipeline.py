"""Software pipelines: bundles of a loop's overlapping iterations.

A pipelined loop is a prologue, in which the first iterations start; a *steady state*, the bundles
that are repeated, in which iterations start and end; and an epilogue, in which the last ones end.
In a modulo schedule of interval I, iteration j executes the operation of cycle t in cycle I j + t.

A register that is read more than I cycles after it is written would be overwritten by the next
iteration before that read. So the steady state contains several iterations (``unroll``), which take
registers in turn (modulo variable expansion). Registers that the loop advances by constants
(``steps``) are advanced once in the steady state, and the offsets of operations make up the
difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hdl import isa
from hdl.isa import ScalarOp, Slot
from sim.compiler.machine.ir import Line, MReg, Op, Register, SReg, VReg, scalar_operation
from sim.compiler.machine.schedule.dependences import Graph, lifetimes
from sim.compiler.machine.schedule.modulo import Modulo
from sim.compiler.machine.schedule.resources import follows, is_inline

__all__ = ["Pipeline", "plan_pipeline"]

_WORD = 0xFFFFFFFF
_ADD, _LOOP = scalar_operation(ScalarOp.ADD), scalar_operation(ScalarOp.LOOP)


@dataclass
class Pipeline:
    """Plan for writing a modulo schedule as bundles.

    Attributes
    ----------
    graph : Graph
    schedule : Modulo
        Slot and time of each operation.
    unroll : int
        Number of iterations in the steady state.
    copies : mapping
        For each register that overlapping iterations cannot share: the registers that iterations
        use in turn.
    steps : sequence of (SReg, int)
        Registers that the loop advances, and by how much.
    ends : mapping
        For each register that the loop writes, the cycles of its write and of its last read.
    """

    graph: Graph
    schedule: Modulo
    unroll: int
    copies: Mapping[Register, Sequence[Register]]
    steps: Sequence[tuple[SReg, int]]
    ends: Mapping[Register, tuple[int, int]]

    def __post_init__(self) -> None:
        self._steps = dict(self.steps)
        self._rows: list[list[int]] = [[] for _ in range(self.schedule.interval)]
        for number, time in enumerate(self.schedule.times):
            self._rows[time % self.schedule.interval].append(number)

    @property
    def lead(self) -> int:
        """Number of iterations that must start before the steady state."""
        return self.schedule.stages - 1

    def flat(self, count: int) -> list[Line]:
        """Return the bundles of all ``count`` iterations, without a loop."""
        end = (count - 1) * self.schedule.interval + max(self.schedule.times) + 1
        return _filled(self._lines(0, end, count, lambda iteration, *_: iteration))

    def looped(self, first: int, counter: SReg, label: str) \
            -> tuple[list[Line], list[Line], list[Line]]:
        """Return the bundles of the prologue, the steady state and the epilogue.

        Parameters
        ----------
        first : int
            Number of iterations that start in the prologue, at least `lead`.
        counter : SReg
            Register with the number of executions of the steady state, at least 1.
        label : str
            Label of the steady state.
        """
        interval, unroll = self.schedule.interval, self.unroll
        low, high = first * interval, (first + unroll) * interval
        prologue = self._lines(0, low, first, lambda iteration, *_: iteration)
        found, extra = self._advance(high - low)
        advanced = {register: row for row, _, register in found}

        def distance(iteration: int, register: SReg, cycle: int) -> int:
            return iteration - unroll * (cycle - low > advanced.get(register, -1))

        steady = self._lines(low, high, first + unroll, distance)
        for row, slot, register in found:
            steady[row].append((slot, self._step(register)))
        steady[-1].append((Slot.S1, Op(_LOOP, (counter, label))))
        last = high - interval + max(self.schedule.times) + 1
        epilogue = self._lines(high, last, first + unroll, lambda iteration, *_: iteration - unroll)
        return _filled(prologue), _filled([*extra, *steady]), _filled(epilogue)

    def _lines(self, start: int, end: int, iterations: int,
               distance: Callable[[int, SReg, int], int]) -> list[Line]:
        """Return the bundles from cycle ``start`` to ``end``, exclusive; some may be empty.

        They contain the operations of the first ``iterations`` iterations. When iteration i
        executes an operation, a register of `steps` may have its value of another iteration, j.
        ``distance(i, register, cycle)`` returns i - j.
        """
        lines: list[Line] = []
        schedule = self.schedule
        for cycle in range(start, end):
            line: Line = []
            for number in self._rows[cycle % schedule.interval]:
                iteration = (cycle - schedule.times[number]) // schedule.interval
                if 0 <= iteration < iterations:
                    line.append((schedule.slots[number],
                                 self._operation(number, iteration, cycle, distance)))
            lines.append(line)
        return lines

    def _operation(self, number: int, iteration: int, cycle: int,
                   distance: Callable[[int, SReg, int], int]) -> Op:
        """Return operation ``number`` of the graph, as iteration ``iteration`` executes it.

        ``cycle`` is the cycle of this execution. Registers in `copies` are replaced by those of the
        iteration. A register of `steps` may have its value of another iteration (``distance``, as
        in `_lines`); the operation's offset makes up for that.
        """
        op = self.graph.nodes[number].op
        operands = list(op.operands)
        for position, operand in enumerate(operands):
            if isinstance(operand, (VReg, MReg, SReg)) and operand in self.copies:
                copies = self.copies[operand]
                operands[position] = copies[iteration % len(copies)]
        register = follows(op, self._steps)
        if register is not None:
            offset = op.operands[2]
            assert isinstance(offset, int)
            behind = distance(iteration, register, cycle)
            operands[2] = (offset + self._steps[register] * behind) & _WORD
        return Op(op.operation, tuple(operands), op.access)

    def _step(self, register: SReg) -> Op:
        """Return the operation by which each execution of the steady state advances a register."""
        return Op(_ADD, (register, register, self._steps[register] * self.unroll & _WORD))

    def _advance(self, rows: int) -> tuple[list[tuple[int, Slot, SReg]], list[Line]]:
        """Find slots for the operations that advance the registers of `steps`.

        ``rows`` is the number of bundles of the steady state. Returns (number of the bundle, slot,
        register) for each operation that fits a free slot of the steady state. Also returns extra
        bundles with the other operations; each execution of the steady state must begin with them.
        """
        interval = self.schedule.interval
        free: list[tuple[int, Slot]] = []
        room: dict[int, int] = {}
        for row in range(rows):
            members = self._rows[row % interval]
            used = {self.schedule.slots[number] for number in members}
            constants: set[int | str] = set()
            for number in members:
                constants |= self.graph.nodes[number].constants
            if row == rows - 1:
                used.add(Slot.S1)
                constants.add("loop")
            room[row] = isa.IMMEDIATES - len(constants)
            free += [(row, slot) for slot in (Slot.S0, Slot.S1) if slot not in used]
        found: list[tuple[int, Slot, SReg]] = []
        rest: list[SReg] = []
        for register, step in self._steps.items():
            needed = not is_inline(step * self.unroll & _WORD)
            spot = next((spot for spot in free if room[spot[0]] >= needed), None)
            if spot is None:
                rest.append(register)
                continue
            free.remove(spot)
            room[spot[0]] -= needed
            found.append((*spot, register))
        return found, [[(slot, self._step(register))
                         for slot, register in zip((Slot.S0, Slot.S1), rest[at:at + 2],
                                                   strict=False)]
                        for at in range(0, len(rest), 2)]


def _filled(lines: list[Line]) -> list[Line]:
    """Return the lines that are not empty."""
    return [line for line in lines if line]


def plan_pipeline(graph: Graph, schedule: Modulo, steps: Sequence[tuple[SReg, int]],
                  kept: set[Register], new: Callable[[type[Register]], Register], *,
                  power: bool) -> Pipeline:
    """Choose the number of iterations in the steady state, and the registers they use in turn.

    Parameters
    ----------
    graph : Graph
        Dependences of the loop's body.
    schedule : Modulo
        Slot and time of each operation.
    steps : sequence of (SReg, int)
        Registers that the loop advances, and by how much.
    kept : set of Register
        Registers that must be the same in all iterations.
    new : callable
        Returns a new register of the given class.
    power : bool
        Whether the number of iterations in the steady state must be a power of two.
    """
    ends = lifetimes(graph.nodes, schedule.times, schedule.interval)
    needed = {register: -(-(end - start) // schedule.interval)
              for register, (start, end) in ends.items()
              if register not in kept and end - start > schedule.interval}
    most = max(needed.values(), default=1)
    choices = [1 << (most - 1).bit_length()] if power else range(most, most + 4)
    unroll = min(choices, key=lambda unroll: (sum(
        _divisor(unroll, count) for count in needed.values()), unroll))
    copies = {register: [register] + [new(type(register))
                                      for _ in range(_divisor(unroll, count) - 1)]
              for register, count in needed.items()}
    return Pipeline(graph, schedule, unroll, copies, steps, ends)


def _divisor(number: int, least: int) -> int:
    """Return the smallest divisor of ``number`` that is at least ``least``."""
    return next(divisor for divisor in range(least, number + 1) if number % divisor == 0)
