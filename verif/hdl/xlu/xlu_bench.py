"""The cross-lane unit between models of the vector unit's chains and of its registers."""

import collections
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from golden import xlu as golden
from hdl import isa
from hdl.config import Config
from hdl.isa import VECTOR_REGISTERS, MiscOp
from hdl.verilog import LINT_WAIVERS
from hdl.xlu.reduce import reduce_nodes
from hdl.xlu.transpose import transpose_banks
from hdl.xlu.xlu import Xlu
from sim.models.kernels import with_kernels
from sim.verilated.build import build_model
from sim.verilated.model import Model

OPERATIONS = tuple(MiscOp(operation.op) for operation in isa.OPERATIONS
                   if operation.unit is isa.Unit.XLU)
TREE = (MiscOp.SUM_LANES, MiscOp.MAX_LANES)


def config_of(array: int, sublanes: int) -> Config:
    return Config(array=array, sublanes=sublanes, vmem_bytes=8 * array * sublanes)


def xlu_model(config: Config, *, kernels: bool = False) -> Model:
    """The unit in pure Verilog, or its tree and banks by tile kernels."""
    grids = (reduce_nodes(config), transpose_banks(config)) if kernels else ()
    sources = with_kernels("xlu", lambda: Xlu(config), grids)
    return Model(build_model("xlu", sources["verilog"], cpp=sources["cpp"], waivers=LINT_WAIVERS,
                             optimise=kernels))


def limit(config: Config, op: MiscOp) -> int:
    """The amounts of an operation are less than this; those that have none get 0."""
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


@dataclass(frozen=True)
class Seen:
    """What the unit's outputs say in a cycle, before its end."""

    ready: bool
    free: bool
    busy: bool
    pending: int | None
    load: bool
    write: int | None


class Bench:
    """Issues operations and checks every write against the golden model.

    Each cycle does what `Vpu` does with the chains; ``registers`` may be changed between cycles. A
    result must be written in the order of issue, to the right register, with the right bits, from
    exactly S new rows.
    """

    def __init__(self, model: Model, config: Config) -> None:
        self.config = config
        self.model = model
        shape = (config.sublanes, config.lanes)
        self.registers = np.zeros((VECTOR_REGISTERS, *shape), np.uint32)
        self.tile = np.zeros((config.lanes, config.lanes), np.uint32)
        self.chain = np.zeros(shape, np.uint32)
        self.results = np.zeros(shape, np.uint32)
        self.restart()

    def restart(self) -> None:
        """Resets the unit; what was in it is lost, and the transposer's tile has to be written."""
        self.model.reset()
        self.expected: collections.deque[tuple[Op, np.ndarray]] = collections.deque()
        self.cycle = 0
        self.issued = 0
        self.rows = 0
        self.checked = 0
        self.written_at: list[int] = []

    def golden(self, op: Op) -> np.ndarray | None:
        """The operation's result, if it has one, from the registers as they are."""
        a = self.registers[op.a]
        match op.op:
            case MiscOp.TRANSPOSE_IN:
                golden.transpose_in(self.tile, a, op.amount)
                return None
            case MiscOp.TRANSPOSE_OUT:
                return golden.transpose_out(self.tile, op.amount, self.config.sublanes)
            case MiscOp.SUM_LANES:
                return golden.sum_lanes(a)
            case MiscOp.MAX_LANES:
                return golden.max_lanes(a)
        function: Callable[[np.ndarray, int], np.ndarray] = {
            MiscOp.ROTATE_LANES: golden.rotate_lanes,
            MiscOp.ROTATE_SUBLANES: golden.rotate_sublanes,
            MiscOp.BROADCAST_LANE: golden.broadcast_lane,
            MiscOp.BROADCAST_SUBLANE: golden.broadcast_sublane,
        }[op.op]
        return function(a, op.amount)

    def look(self) -> Seen:
        """Outputs in this cycle; none depends on an input in this cycle."""
        peek = self.model.peek
        return Seen(
            bool(peek("ready")), bool(peek("free")), bool(peek("busy")),
            peek("pending__d") if peek("pending__valid") else None, bool(peek("chain__load")),
            peek("write__d") if peek("write__valid") else None)

    def issue(self, op: Op) -> None:
        """Issues an operation in this cycle, which must be `Seen.ready`."""
        for name in ("op", "d", "a", "amount"):
            self.model.poke(f"start__{name}", int(getattr(op, name)))
        self.model.poke("start__valid", 1)
        result = self.golden(op)
        if result is not None:
            self.expected.append((op, result.copy()))
            self.issued = 1

    def end(self) -> None:
        """Ends the cycle."""
        model, peek = self.model, self.model.peek
        model.poke("row", self.chain[0].copy())
        load, shift = peek("chain__load"), peek("chain__shift")
        source = peek("chain__source")
        if peek("write__valid"):
            self._write(peek("write__d"))
        elif self.rows == self.config.sublanes:
            raise AssertionError(f"cycle {self.cycle}: a whole register of rows is not written")
        if peek("result__shift"):
            row = model.peek_words("result__row")
            self.results = np.concatenate([self.results[1:], row[np.newaxis]])
            self.rows += 1
        # An operation that is issued in this cycle makes the unit busy in the next.
        assert peek("busy") or len(self.expected) == self.issued, \
            f"cycle {self.cycle}: idle before the last write"
        self.issued = 0
        if load:
            self.chain = self.registers[source].copy()
        elif shift:
            self.chain = np.roll(self.chain, -1, axis=0)
        model.tick()
        model.poke("start__valid", 0)
        self.cycle += 1

    def _write(self, d: int) -> None:
        assert self.expected, f"cycle {self.cycle}: a write of v{d} that nothing asked for"
        op, want = self.expected.popleft()
        assert d == op.d, f"cycle {self.cycle}: v{d} written by {op}"
        assert self.rows == self.config.sublanes, \
            f"cycle {self.cycle}: {self.rows} rows of {op} when it is written"
        wrong = np.argwhere(self.results != want)
        assert not len(wrong), (f"cycle {self.cycle}: {op}: sublane, lane {wrong[0].tolist()}: "
                                f"{self.results[tuple(wrong[0])]:08x}, not "
                                f"{want[tuple(wrong[0])]:08x}; {len(wrong)} words differ")
        self.registers[d] = self.results
        self.rows = 0
        self.checked += 1
        self.written_at.append(self.cycle)

    def drain(self, cycles: int = 1000) -> None:
        """Runs until the unit is idle; all results must have come then."""
        for _ in range(cycles):
            if not self.look().busy:
                break
            self.end()
        else:
            raise AssertionError(f"still busy after {cycles} cycles")
        assert not self.expected
        assert not self.rows

    def run(self, *ops: Op) -> None:
        """Issues operations as soon as the unit takes them, whatever their registers; and drains.

        The operations should not depend on each other.
        """
        for op in ops:
            for _ in range(1000):
                if self.look().ready:
                    break
                self.end()
            else:
                raise AssertionError(f"never ready for {op}")
            self.issue(op)
            self.end()
        self.drain()


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Words that make every kind of sum: near each other, far apart, cancelling, or special."""
    near = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    any_ = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    special = rng.choice(np.array([
        0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x3F800000, 0xBF800000, 0x33800000],
        np.uint32), shape)
    # Registers without a NaN or infinity are left, too.
    share = rng.choice([0.0, 0.02, 0.5], (*shape[:-2], 1, 1))
    kind = rng.random(shape)
    return np.where(kind < share, special,
                    np.where(rng.random((*shape[:-1], 1)) < 0.3, any_, near))


__all__ = ["OPERATIONS", "TREE", "Bench", "Op", "Seen", "config_of", "floats", "limit",
           "xlu_model"]
