"""The cross-lane unit's surroundings and its expected results, cycle by cycle.

`XluChecker` takes the place of the vector unit. It holds the registers and the chain that the unit
reads, and compares every register that the unit writes with the golden core's. A scenario is a
generator that yields, for each cycle, the operation that the unit is offered in it.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import VECTOR_REGISTERS, MiscOp, Slot
from hdl.xlu.xlu import Xlu
from verif.system.programs.bundles import DRAWN, random_words

__all__ = ["MOVES", "OPERATIONS", "RESET", "TREE", "Op", "Outputs", "Scenario", "XluChecker",
           "config_of", "dependent_amounts", "drain", "every_amount", "every_distance_to_reset",
           "fill_tile", "floats", "full_rate", "limit", "random_traffic", "rows_then_columns",
           "run", "two_latencies", "wait"]

OPERATIONS = tuple(MiscOp(operation.op) for operation in isa.OPERATIONS
                   if operation.unit is isa.Unit.XLU)
TREE = (MiscOp.SUM_LANES, MiscOp.MAX_LANES)
MOVES = (MiscOp.ROTATE_LANES, MiscOp.BROADCAST_LANE)
"""Operations that read a register, have the rotator's latency, and return every row."""
PATIENCE = 1000
"""Largest number of cycles until the unit must be ready or idle."""


def config_of(array: int, sublanes: int) -> Config:
    return Config(array=array, sublanes=sublanes, vmem_bytes=8 * array * sublanes)


def limit(config: Config, op: MiscOp) -> int:
    """Legal amounts of an operation are less than this; 1 for an operation without an amount."""
    return isa.index_limits(config).get(op, 1)


@dataclass(frozen=True)
class Op:
    """An operation, as the sequencer issues it."""

    op: MiscOp
    d: int = 0
    a: int = 0
    amount: int = 0

    @property
    def reads(self) -> bool:
        return self.op is not MiscOp.TRANSPOSE_OUT

    @property
    def writes(self) -> bool:
        return self.op is not MiscOp.TRANSPOSE_IN


class Reset:
    """What a scenario yields in order to reset the unit."""


RESET = Reset()

Scenario = Generator[Op | Reset | None]
"""A generator that yields, for each cycle, the operation that is offered, None, or a reset.

Before each yield, `XluChecker.outputs` are the unit's outputs in the same cycle. The unit accepts
the operation if its outputs say that it is ready; otherwise the operation has no effect.
"""


@dataclass(frozen=True)
class Outputs:
    """The unit's outputs in a cycle. None of them depends on an input in the same cycle.

    Attributes
    ----------
    ready, free, busy : bool
    pending : int or None
        The register that a waiting operation has yet to read.
    load : int or None
        Register that the chain loads.
    shift : bool
        Whether the chain shifts.
    row : array of uint32 or None
        Row that the result chain takes.
    write : int or None
        Register that the result chain's rows are written to.
    """

    ready: bool
    free: bool
    busy: bool
    pending: int | None
    load: int | None
    shift: bool
    row: NDArray[np.uint32] | None
    write: int | None


class XluChecker:
    """The vector unit around the cross-lane unit, and the checks of what the unit does.

    Each result is written once to its register, with the golden core's bits. Results come in the
    order of issue, each in the cycle after exactly ``sublanes`` new rows. Each source is read once,
    in order, and is pending until then. If the unit is free when an operation issues, it reads the
    source in the next cycle. The unit is busy until the last write.

    An adapter calls `begin` with the outputs of each cycle, applies `row` and the operation that
    its scenario offers, and calls `end`.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    config : Config
    registers : array of uint32, shape (vector registers, sublanes, lanes)
        Contents of the vector registers. Other code may change them between cycles, except those
        in `kept`.
    outputs : Outputs
        The unit's outputs in the present cycle.
    cycle : int
        Number of the present cycle.
    issued, checked : int
        Number of operations issued, and number of results compared.
    written_at : list of int
        Cycles in which results were written.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._core = GoldenCore(config)
        self.registers = np.zeros_like(self._core.vectors)
        self._chain = np.zeros_like(self.registers[0])
        self.cycle = self.issued = self.checked = 0
        self.written_at: list[int] = []
        self.restart()

    def restart(self) -> None:
        """Forgets all operations: the unit has been reset. The transposer's tile is undefined."""
        self._results: deque[tuple[Op, NDArray[np.uint32]]] = deque()
        self._unread: deque[int] = deque()
        self._rows: list[NDArray[np.uint32]] = []
        self._fresh = True
        self._promised = False

    @property
    def row(self) -> NDArray[np.uint32]:
        """The chain's southmost row: the unit's input in this cycle."""
        return self._chain[0].copy()

    @property
    def awaited(self) -> set[int]:
        """Registers to which a result will still be written."""
        return {op.d for op, _ in self._results}

    @property
    def kept(self) -> set[int]:
        """Registers that other units must not write in this cycle: awaited or not yet read."""
        loaded = set() if self.outputs.load is None else {self.outputs.load}
        return self.awaited | set(self._unread) | loaded

    def may_issue(self, op: Op) -> bool:
        """Whether an operation has no hazard: the sequencer would issue it to a ready unit."""
        needed = self.awaited | set(self._unread)
        return not (op.reads and op.a in self.awaited) and not (op.writes and op.d in needed)

    def begin(self, outputs: Outputs) -> None:
        """Begins a cycle.

        Raises
        ------
        AssertionError
            If an output is wrong.
        """
        self.outputs = outputs
        if self._fresh:
            self._check(outputs.ready and outputs.free and not outputs.busy
                        and outputs.pending is None and outputs.load is None
                        and outputs.row is None and outputs.write is None,
                        f"not at rest after a reset: {outputs}")
            self._fresh = False
        self._check(not self._promised or outputs.load is not None,
                    "the unit was free, but does not read the register in the next cycle")
        if outputs.load is not None:
            self._check(bool(self._unread), f"v{outputs.load} is read, but no operation reads it")
            source = self._unread.popleft()
            self._check(outputs.load == source, f"v{outputs.load} is read, not v{source}")
        pending = self._unread[-1] if self._unread else None
        self._check(outputs.pending == pending, f"pending is {outputs.pending}, not {pending}")

    def end(self, op: Op | None) -> None:
        """Ends the cycle, in which ``op`` was offered.

        Raises
        ------
        AssertionError
            If an output is wrong.
        """
        outputs = self.outputs
        waiting = bool(self._results or self._unread)
        self._check(outputs.busy or not waiting, "idle before the last operation is done")
        if outputs.load is not None:
            self._chain = self.registers[outputs.load].copy()
        elif outputs.shift:
            self._chain = np.roll(self._chain, -1, axis=0)
        if outputs.write is not None:
            self._write(outputs.write)
        else:
            self._check(len(self._rows) < self.config.sublanes,
                        "all rows of a result have come, but it is not written")
        if outputs.row is not None:
            self._rows.append(outputs.row)
        self._promised = False
        if op is not None and outputs.ready:
            self._issue(op)
        self.cycle += 1

    def expect_done(self) -> None:
        """Checks that nothing is under way.

        Raises
        ------
        AssertionError
            If the unit is busy, or an operation is not done.
        """
        self._check(not self.outputs.busy, "the unit is busy")
        self._check(not self._results,
                    f"not written: {', '.join(str(op) for op, _ in self._results)}")
        self._check(not self._rows, f"{len(self._rows)} rows came that were not written")

    def finish(self) -> None:
        """Checks that nothing is under way, and that results were compared.

        Raises
        ------
        AssertionError
            If an operation is under way, or nothing was ever compared.
        """
        self.expect_done()
        self._check(self.checked > 0, "nothing was compared")

    def _check(self, holds: bool, message: str) -> None:
        assert holds, f"cycle {self.cycle}: {message}"

    def _issue(self, op: Op) -> None:
        core = self._core
        core.vectors[:] = self.registers
        # The amount is a source of the bundle: an immediate.
        core.load_program([pack({Slot.MISC: {
            "op": op.op, "d": op.d, "a": op.a, "b": isa.FIRST_IMMEDIATE}}, (op.amount,))])
        core.start()
        self._check(core.step(), f"{op} must be legal, not {core.fault!r}")
        core.stop()
        self.issued += 1
        if op.reads:
            self._unread.append(op.a)
            self._promised = self.outputs.free
        if op.writes:
            self._results.append((op, core.vectors[op.d].copy()))

    def _write(self, d: int) -> None:
        self._check(bool(self._results), f"v{d} is written, but no result is expected")
        op, want = self._results.popleft()
        self._check(d == op.d, f"v{d} is written by {op}")
        self._check(len(self._rows) == self.config.sublanes,
                    f"{op} is written after {len(self._rows)} rows, not {self.config.sublanes}")
        got = np.array(self._rows)
        wrong = np.argwhere(got != want)
        if len(wrong):
            sublane, lane = wrong[0]
            self._check(False, f"{op}: sublane {sublane}, lane {lane} is "
                               f"{got[sublane, lane]:08x}, not {want[sublane, lane]:08x}; "
                               f"{len(wrong)} elements differ")
        self.registers[d] = got
        self._rows.clear()
        self.checked += 1
        self.written_at.append(self.cycle)


def floats(rng: np.random.Generator, *shape: int) -> NDArray[np.uint32]:
    """Operands for every kind of sum: close to each other, far apart, cancelling, or special."""
    near = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    any_ = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    special = rng.choice(np.array([
        0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x3F800000, 0xBF800000, 0x33800000],
        np.uint32), shape)
    # Some registers have neither a NaN nor an infinity.
    share = rng.choice([0.0, 0.02, 0.5], (*shape[:-2], 1, 1))
    kind = rng.random(shape)
    return np.where(kind < share, special,
                    np.where(rng.random((*shape[:-1], 1)) < 0.3, any_, near))


def random_contents(rng: np.random.Generator, *shape: int) -> Iterator[NDArray[np.uint32]]:
    """Yields random contents of registers without end.

    They are `floats` and, in some registers, other words: integers and corner cases of the adder.
    """
    while True:
        mixed = rng.random((DRAWN, 1, 1)) < 0.3
        yield from np.where(mixed, random_words(rng, (DRAWN, *shape)), floats(rng, DRAWN, *shape))


# Scenarios


def wait(checker: XluChecker, until: Callable[[], bool], what: str) -> Scenario:
    """Offers no operation until a condition holds."""
    for _ in range(PATIENCE):
        if until():
            return
        yield None
    raise AssertionError(f"cycle {checker.cycle}: waited {PATIENCE} cycles for {what}")


def drain(checker: XluChecker) -> Scenario:
    """Waits until the unit is idle; all results have been written then."""
    yield from wait(checker, lambda: not checker.outputs.busy, "the unit to be idle")
    checker.expect_done()


def issue(checker: XluChecker, op: Op) -> Scenario:
    """Issues an operation as soon as there is no hazard and the unit is ready."""
    yield from wait(checker, lambda: checker.outputs.ready and checker.may_issue(op),
                    f"{op} to issue")
    yield op


def run(checker: XluChecker, ops: Iterable[Op]) -> Scenario:
    """Issues operations in order, each as soon as possible, and waits until the unit is idle."""
    for op in ops:
        yield from issue(checker, op)
    yield from drain(checker)


def fill_tile(checker: XluChecker, rng: np.random.Generator) -> Scenario:
    """Gives random contents to all registers and to every row of the transposer's tile."""
    contents = random_contents(rng, *checker.registers.shape[1:])
    for register in checker.registers:
        register[:] = next(contents)
    yield from run(checker, [Op(MiscOp.TRANSPOSE_IN, a=group % VECTOR_REGISTERS, amount=group)
                             for group in range(checker.config.tile_vregs)])


def every_amount(checker: XluChecker, op: MiscOp) -> list[Op]:
    """One operation with each of its amounts; the source and the destination vary."""
    return [Op(op, d=16 + amount % 16, a=amount % 16, amount=amount)
            for amount in range(limit(checker.config, op))]


def dependent_amounts(checker: XluChecker) -> Scenario:
    """Each operation with each of its amounts, from a register to itself and to another one."""
    before = checker.checked
    ops = [Op(op, d, 7, amount) for op in OPERATIONS for d in (7, 9)
           for amount in range(limit(checker.config, op))]
    yield from run(checker, ops)
    assert checker.checked - before == sum(op.writes for op in ops)


def full_rate(checker: XluChecker, rng: np.random.Generator, kinds: Sequence[MiscOp],
              count: int = 60) -> Scenario:
    """Operations of equal latency and without hazards produce a row in every cycle."""
    first = len(checker.written_at)
    yield from run(checker, [Op(kinds[index], 16 + number % 16, number % 16,
                                int(rng.integers(limit(checker.config, kinds[index]))))
                             for number, index in enumerate(rng.integers(len(kinds), size=count))])
    written = checker.written_at[first:]
    assert len(written) == count
    intervals = set(np.diff(written).tolist())
    assert intervals == {checker.config.sublanes}, f"cycles between writes: {intervals}"


def two_latencies(checker: XluChecker) -> Scenario:
    """In any sequence of four sums and rotations, none overtakes another, and none is late."""
    unit = Xlu(checker.config)
    sublanes, lead = checker.config.sublanes, unit.tree_latency - unit.latency
    assert lead > 0, "a sum must take longer than a rotation"
    for begin in range(0, 16, 3):
        patterns = range(begin, min(begin + 3, 16))
        trees = [bool(pattern >> place & 1) for pattern in patterns for place in range(4)]
        first = len(checker.written_at)
        yield from run(checker, [Op((TREE if tree else MOVES)[place % 2], place, 16 + place,
                                    0 if tree else place % 2)
                                 for place, tree in enumerate(trees)])
        # A rotation waits for the sum before it, to stay behind it; a sum never waits.
        want = [sublanes + lead * (not before and after) for before, after in pairwise(trees)]
        got = np.diff(checker.written_at[first:]).tolist()
        assert got == want, f"trees {trees}: cycles between writes are {got}, not {want}"


def rows_then_columns(checker: XluChecker, rng: np.random.Generator) -> Scenario:
    """Transposes whole tiles; then mixes writes of rows with reads of columns, at random."""
    groups = checker.config.tile_vregs
    before = checker.checked
    for _ in range(12):
        yield from run(checker, [
            *(Op(MiscOp.TRANSPOSE_IN, a=int(rng.integers(VECTOR_REGISTERS)), amount=group)
              for group in range(groups)),
            *(Op(MiscOp.TRANSPOSE_OUT, d=group % VECTOR_REGISTERS, amount=group)
              for group in range(groups))])
    assert checker.checked - before == 12 * groups
    kinds = (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT)
    yield from run(checker, [random_op(checker, rng, kinds) for _ in range(100)])


def random_op(checker: XluChecker, rng: np.random.Generator, kinds: Sequence[MiscOp] = OPERATIONS,
              registers: int = VECTOR_REGISTERS) -> Op:
    op = kinds[int(rng.integers(len(kinds)))]
    return Op(op, int(rng.integers(registers)), int(rng.integers(registers)),
              int(rng.integers(limit(checker.config, op))))


def random_traffic(checker: XluChecker, rng: np.random.Generator, cycles: int) -> Scenario:
    """Random operations, as many as the unit accepts, while other units change the registers.

    Like the sequencer, the scenario offers an operation to a ready unit only when the operation's
    registers are free: no write to any of them is outstanding, and no read of the result register
    is outstanding. For 50 cycles at a time, the scenario offers each operation until the operation
    issues; for the next 50, it may instead offer a new one in each cycle. At any time, it
    overwrites registers that the unit no longer needs, most often the sources of the last
    operations.
    """
    sources: deque[int] = deque(maxlen=3)
    contents = random_contents(rng, *checker.registers.shape[1:])
    kinds: Sequence[MiscOp] = OPERATIONS
    registers, density, change, insists = VECTOR_REGISTERS, 1.0, 0.5, False
    op: Op | None = None
    for cycle in range(cycles):
        if cycle % 50 == 0:
            chosen = rng.choice(len(OPERATIONS), int(rng.integers(1, len(OPERATIONS) + 1)),
                                replace=False)
            kinds = [OPERATIONS[index] for index in chosen]
            registers = int(rng.choice([3, 4, 8, VECTOR_REGISTERS, VECTOR_REGISTERS]))
            density = float(rng.choice([0.1, 0.7, 1.0]))
            change = float(rng.choice([0.0, 0.5, 0.9]))
            insists = bool(rng.random() < 0.5)
            op = None
        if op is None or not insists:
            op = random_op(checker, rng, kinds, registers)
        ready = checker.outputs.ready
        # What is offered while the unit is not ready has no effect.
        offered = rng.random() < density and (not ready or checker.may_issue(op))
        yield op if offered else None
        if offered and ready:
            sources.append(op.a)
            op = None
        for register in {*sources, int(rng.integers(VECTOR_REGISTERS))} - checker.kept:
            if rng.random() < change:
                checker.registers[register] = next(contents)


def every_distance_to_reset(checker: XluChecker, rng: np.random.Generator) -> Scenario:
    """A reset at every distance from the last start drops everything under way."""
    before = checker.checked
    for distance in range(1, 25):
        yield from random_traffic(checker, rng, 20)
        for _ in range(distance):
            yield None
        yield RESET
        # Nothing that was in the unit comes out any more.
        for _ in range(int(rng.integers(60))):
            yield None
        yield from fill_tile(checker, rng)
        yield from run(checker, [random_op(checker, rng) for _ in range(6)])
    assert checker.checked - before > 24 * 3
