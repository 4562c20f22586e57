"""The cross-lane unit against the golden model: bits, order, timing, and what it lets others do."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from hdl.config import Config
from hdl.isa import VECTOR_REGISTERS, MiscOp
from hdl.xlu.reduce import Reduce
from hdl.xlu.rotate import Rotator
from hdl.xlu.xlu import Xlu
from verif.hdl.xlu.xlu_bench import (
    OPERATIONS,
    TREE,
    Bench,
    Op,
    config_of,
    floats,
    limit,
    xlu_model,
)

SIZES = ((2, 1), (4, 2), (6, 3), (8, 4))
"""Lanes and sublanes: the least, `tiny`, no powers of two, `small`."""
MORE_SIZES = ((2, 2), (3, 3), (5, 1), (8, 8), (12, 6), (17, 1))


@pytest.fixture(scope="module", params=[
    *SIZES, *(pytest.param(size, marks=pytest.mark.slow) for size in MORE_SIZES)],
    ids=lambda size: "x".join(map(str, size)))
def bench(request) -> Iterator[Bench]:
    config = config_of(*request.param)
    with xlu_model(config) as model:
        yield Bench(model, config)


@pytest.fixture
def fresh(bench) -> Bench:
    """The bench after a reset, with random registers and a transposer that was written."""
    bench.restart()
    fill_tile(bench, np.random.default_rng(list(bench.tile.shape)))
    return bench


def fill_tile(bench: Bench, rng: np.random.Generator) -> None:
    bench.registers[:] = floats(rng, *bench.registers.shape)
    for group in range(bench.config.tile_vregs):
        bench.run(Op(MiscOp.TRANSPOSE_IN, a=group % VECTOR_REGISTERS, amount=group))


def every(config: Config, op: MiscOp) -> list[Op]:
    """The operation with every amount, from and to changing registers."""
    return [Op(op, d=16 + amount % 16, a=amount % 16, amount=amount)
            for amount in range(limit(config, op))]


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
def test_every_amount(fresh, op):
    ops = every(fresh.config, op)
    for one in ops:
        fresh.run(one)
    fresh.run(*ops)
    if op is MiscOp.TRANSPOSE_IN:
        ops = every(fresh.config, MiscOp.TRANSPOSE_OUT)
        fresh.checked = 0
        fresh.run(*ops)
        assert fresh.checked == len(ops)
    else:
        assert fresh.checked == 2 * len(ops)


def test_transposed_tile(fresh):
    size, sublanes = fresh.config.lanes, fresh.config.sublanes
    groups = min(fresh.config.tile_vregs, 16)
    fresh.run(*(Op(MiscOp.TRANSPOSE_IN, a=group, amount=group) for group in range(groups)),
              *(Op(MiscOp.TRANSPOSE_OUT, d=16 + group, amount=group) for group in range(groups)))
    rows = groups * sublanes
    before = fresh.registers[:groups].reshape(rows, size)
    after = fresh.registers[16:16 + groups].reshape(rows, size)
    assert np.array_equal(after[:, :rows], before[:, :rows].T)


CORNERS = np.array([
    0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x80800000, 0x00800001, 0x3F800000, 0x3F800001,
    0xBF800000, 0x33800000, 0xB3000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x73000000, 0x7F800000, 0xFF800000,
    0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32)


@pytest.mark.parametrize("op", TREE, ids=lambda op: op.name)
def test_corners_in_every_pair_of_lanes(fresh, op):
    """Each pair of corners in lanes 0 and 1, -0 or minus infinity elsewhere; random lanes too."""
    rng = np.random.default_rng(20)
    lanes, sublanes = fresh.config.lanes, fresh.config.sublanes
    pairs = np.array(list(itertools.product(CORNERS, CORNERS)), np.uint32)
    pairs = np.resize(pairs, (-(-len(pairs) // sublanes) * sublanes, 2))
    rows = np.full((len(pairs), lanes), 0x80000000 if op is MiscOp.SUM_LANES else 0xFF800000,
                   np.uint32)
    for row, pair in zip(rows, pairs, strict=True):
        row[rng.choice(lanes, 2, replace=False)] = pair
    rows[:, :2] = np.where(np.arange(len(rows))[:, np.newaxis] % 2, rows[:, :2], pairs)
    values = rows.reshape(-1, sublanes, lanes)
    for begin in range(0, len(values), 16):
        part = values[begin:begin + 16]
        fresh.registers[:len(part)] = part
        fresh.run(*(Op(op, d=16 + index, a=index) for index in range(len(part))))
    assert fresh.checked == len(values)


@pytest.mark.parametrize("op", TREE, ids=lambda op: op.name)
def test_random_reductions(fresh, op):
    rng = np.random.default_rng(int(op))
    for _ in range(40):
        fresh.registers[:16] = floats(rng, *fresh.registers[:16].shape)
        fresh.run(*(Op(op, d=16 + index, a=index) for index in range(16)))
    assert fresh.checked == 640


def dropped(config: Config, op: Op) -> int:
    """Rows that an operation drops before its first slot."""
    if op.op is MiscOp.ROTATE_SUBLANES:
        return -op.amount % config.sublanes
    return op.amount if op.op is MiscOp.BROADCAST_SUBLANE else 0


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op is not MiscOp.TRANSPOSE_IN],
                         ids=lambda op: op.name)
def test_latency(fresh, op):
    """Issue, load, first slot, S rows ``latency`` cycles later, write."""
    unit = Xlu(fresh.config)
    latency = unit.tree_latency if op in TREE else unit.latency
    for one in every(fresh.config, op):
        begin = fresh.cycle
        fresh.run(one)
        assert fresh.written_at[-1] - begin == \
            2 + dropped(fresh.config, one) + latency + fresh.config.sublanes, one


ROTATED = (MiscOp.ROTATE_LANES, MiscOp.BROADCAST_LANE, MiscOp.TRANSPOSE_OUT)


@pytest.mark.parametrize("ops", [ROTATED, TREE, *((op,) for op in (*ROTATED, *TREE))],
                         ids=lambda ops: "-".join(op.name for op in ops))
def test_operations_of_one_latency_take_a_cycle_a_sublane(fresh, ops):
    rng = np.random.default_rng(5)
    chosen = [Op(op, d=16 + index % 16, a=index % 16,
                 amount=int(rng.integers(limit(fresh.config, op))))
              for index, op in enumerate(rng.choice(np.array(ops, object), 40))]
    fresh.run(*chosen)
    assert fresh.checked == 40
    assert set(np.diff(fresh.written_at)) == {fresh.config.sublanes}


def test_results_of_different_latency_follow_without_a_gap(fresh):
    """A rotation after a sum waits no longer than needed; a sum after a rotation not at all."""
    unit = Xlu(fresh.config)
    lead = unit.tree_latency - unit.latency
    assert lead > 0
    rotate = Op(MiscOp.ROTATE_LANES, d=16, a=1, amount=1)
    total = Op(MiscOp.SUM_LANES, d=17, a=2)
    fresh.run(total, rotate, total, rotate, rotate)
    size = fresh.config.sublanes
    assert np.diff(fresh.written_at).tolist() == [size, size + lead, size, size]


def test_columns_wait_for_rows(fresh):
    """A column is fetched once all rows are written, and no later."""
    unit = Xlu(fresh.config)
    begin = fresh.cycle
    fresh.run(Op(MiscOp.TRANSPOSE_IN, a=1), Op(MiscOp.TRANSPOSE_OUT, d=2))
    size = fresh.config.sublanes
    # A row reaches the banks as late as others the result register; then it can be read.
    assert fresh.written_at[-1] - begin == 2 + size + (unit.latency - 1) + unit.latency + size


class Traffic:
    """Random operations, as many as the unit takes, with what other units may do meanwhile.

    Like the sequencer, it holds an operation back while a result is missing that it reads or
    overwrites, and while its result's register is pending. Registers that are neither are
    overwritten at any time, sources as soon as they are pending no longer.
    """

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.rng = np.random.default_rng(seed)
        self.issued = 0
        self.sources: list[int] = []

    def op(self, kinds: tuple[MiscOp, ...]) -> Op:
        rng = self.rng
        op = kinds[rng.integers(len(kinds))]
        registers = int(rng.choice([4, VECTOR_REGISTERS]))
        return Op(op, int(rng.integers(registers)), int(rng.integers(registers)),
                  int(rng.integers(limit(self.bench.config, op))))

    def run(self, cycles: int) -> None:
        rng = self.rng
        kinds, density = OPERATIONS, 1.0
        for cycle in range(cycles):
            if cycle % 50 == 0:
                count = int(rng.integers(1, len(OPERATIONS) + 1))
                kinds = tuple(OPERATIONS[index] for index in
                              rng.choice(len(OPERATIONS), count, replace=False))
                density = rng.choice([0.1, 0.7, 1.0])
            self._cycle(self.op(kinds), bool(rng.random() < density))

    def _cycle(self, op: Op, wanted: bool) -> None:
        bench, rng = self.bench, self.rng
        seen = bench.look()
        missing = {other.d for other, _ in bench.expected}
        if seen.pending is not None:
            assert seen.pending == self.sources[-1]
        kept = {*missing, seen.pending}
        possible = not (op.reads and op.a in missing) and not (op.writes and op.d in kept)
        promised = False
        if wanted and possible and seen.ready:
            bench.issue(op)
            self.issued += 1
            self.sources.append(op.a)
            promised = seen.free and op.reads
            kept |= {op.a, op.d}
        elif wanted and not seen.ready:
            # What is offered while the unit is not ready does not exist.
            bench.model.poke("start__op", int(op.op))
            bench.model.poke("start__valid", 1)
        bench.end()
        for source in {*self.sources[-3:], int(rng.integers(VECTOR_REGISTERS))} - kept:
            if rng.random() < 0.5:
                bench.registers[source] = floats(rng, *bench.chain.shape)
        assert not promised or bench.look().load, f"cycle {bench.cycle}: promised to be read by now"


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic(fresh, seed):
    traffic = Traffic(fresh, seed)
    traffic.run(1500)
    fresh.drain()
    assert fresh.checked > 100
    assert traffic.issued > fresh.checked


@pytest.mark.parametrize("seed", range(3))
def test_reset_in_the_midst(fresh, seed):
    rng = np.random.default_rng(seed)
    checked = 0
    for _ in range(12):
        Traffic(fresh, int(rng.integers(1 << 30))).run(int(rng.integers(1, 80)))
        checked += fresh.checked
        fresh.restart()
        seen = fresh.look()
        assert seen.ready
        assert seen.free
        assert not seen.busy
        assert seen.pending is None
        # Nothing that was in the unit comes out any more.
        for _ in range(rng.integers(60)):
            fresh.end()
        fill_tile(fresh, rng)
    Traffic(fresh, seed).run(100)
    fresh.drain()
    assert checked > 10


def test_source_is_pending_until_it_is_read(fresh):
    """The second operation's register is held while the first is in the chain, and read once."""
    size = fresh.config.sublanes
    fresh.issue(Op(MiscOp.ROTATE_LANES, d=16, a=1))
    fresh.end()
    first = fresh.look()
    assert first.pending is None
    assert first.load
    assert first.ready
    fresh.issue(Op(MiscOp.ROTATE_LANES, d=17, a=2))
    fresh.end()
    fresh.registers[1] ^= 0xFFFFFFFF
    for left in reversed(range(size)):
        seen = fresh.look()
        assert seen.load == (left == 0)
        assert seen.pending == (2 if left else None)
        assert seen.ready == (left == 0)
        fresh.end()
    fresh.registers[2] ^= 0xFFFFFFFF
    fresh.drain()
    assert fresh.checked == 2


def test_nothing_is_pending_without_a_source(fresh):
    fresh.issue(Op(MiscOp.TRANSPOSE_IN, a=1))
    fresh.end()
    fresh.issue(Op(MiscOp.TRANSPOSE_OUT, d=5, a=3))
    fresh.end()
    for _ in range(100):
        seen = fresh.look()
        assert seen.pending is None
        assert not seen.load
        if not seen.busy:
            break
        fresh.end()
    fresh.drain()
    assert fresh.checked == 1


@pytest.mark.parametrize("component", [Xlu, Rotator, Reduce])
def test_config_is_checked(component):
    with pytest.raises(TypeError, match=r"config must be a Config, not 4"):
        component(4)
