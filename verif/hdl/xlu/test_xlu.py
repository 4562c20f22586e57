"""The cross-lane unit against the golden model: bits, order, timing, outputs for the sequencer."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from amaranth.lib.wiring import Component

from hdl.config import Config
from hdl.isa import MiscOp
from hdl.xlu.reduce import Reduce
from hdl.xlu.rotate import Rotator
from hdl.xlu.xlu import Xlu
from sim.verilated.model import Model
from verif.hdl.xlu.verilated import VerilatedXlu, xlu_model
from verif.models.xlu import (
    OPERATIONS,
    TREE,
    Op,
    Outputs,
    XluChecker,
    config_of,
    dependent_amounts,
    drain,
    every_amount,
    every_distance_to_reset,
    fill_tile,
    floats,
    full_rate,
    random_traffic,
    rows_then_columns,
    two_latencies,
)

SIZES = ((2, 1), (4, 2), (6, 3), (8, 4))
"""Lanes and sublanes: the smallest, `tiny`, no powers of two, `small`."""
MORE_SIZES = ((2, 2), (3, 3), (5, 1), (8, 8), (12, 4), (17, 1))


@pytest.fixture(scope="module", params=[
    *SIZES, *(pytest.param(size, marks=pytest.mark.slow) for size in MORE_SIZES)],
    ids=lambda size: "x".join(map(str, size)))
def model(request: pytest.FixtureRequest) -> Iterator[tuple[Model, Config]]:
    config = config_of(*request.param)
    with xlu_model(config) as model:
        yield model, config


@pytest.fixture
def fresh(model: tuple[Model, Config]) -> VerilatedXlu:
    """The unit after a reset, with random registers and a transposer that was written."""
    unit = VerilatedXlu(*model)
    rng = np.random.default_rng([unit.checker.config.lanes, unit.checker.config.sublanes])
    unit.play(fill_tile(unit.checker, rng))
    return unit


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
def test_every_amount(fresh: VerilatedXlu, op: MiscOp) -> None:
    checker = fresh.checker
    ops = every_amount(checker, op)
    for one in ops:
        fresh.run(one)
    fresh.run(*ops)
    if op is MiscOp.TRANSPOSE_IN:
        assert checker.checked == 0
        ops = every_amount(checker, MiscOp.TRANSPOSE_OUT)
        fresh.run(*ops)
        assert checker.checked == len(ops)
    else:
        assert checker.checked == 2 * len(ops)


def test_every_amount_of_dependent_operations(fresh: VerilatedXlu) -> None:
    fresh.play(dependent_amounts(fresh.checker))


def test_transposed_tile(fresh: VerilatedXlu) -> None:
    config, registers = fresh.checker.config, fresh.checker.registers
    groups = min(config.tile_vregs, 16)
    fresh.run(*(Op(MiscOp.TRANSPOSE_IN, a=group, amount=group) for group in range(groups)),
              *(Op(MiscOp.TRANSPOSE_OUT, d=16 + group, amount=group) for group in range(groups)))
    rows = groups * config.sublanes
    before = registers[:groups].reshape(rows, config.lanes)
    after = registers[16:16 + groups].reshape(rows, config.lanes)
    assert np.array_equal(after[:, :rows], before[:, :rows].T)


def test_columns_follow_rows(fresh: VerilatedXlu) -> None:
    fresh.play(rows_then_columns(fresh.checker, np.random.default_rng(12)))


CORNERS = np.array([
    0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x80800000, 0x00800001, 0x3F800000, 0x3F800001,
    0xBF800000, 0x33800000, 0xB3000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x73000000, 0x7F800000, 0xFF800000,
    0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32)


@pytest.mark.parametrize("op", TREE, ids=lambda op: op.name)
def test_corners_in_every_pair_of_lanes(fresh: VerilatedXlu, op: MiscOp) -> None:
    """Lanes 0 and 1, or two random lanes, have corner values; the others are neutral."""
    rng = np.random.default_rng(20)
    lanes, sublanes = fresh.checker.config.lanes, fresh.checker.config.sublanes
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
        fresh.checker.registers[:len(part)] = part
        fresh.run(*(Op(op, d=16 + index, a=index) for index in range(len(part))))
    assert fresh.checker.checked == len(values)


@pytest.mark.parametrize("op", TREE, ids=lambda op: op.name)
def test_random_reductions(fresh: VerilatedXlu, op: MiscOp) -> None:
    rng = np.random.default_rng(int(op))
    for _ in range(40):
        fresh.checker.registers[:16] = floats(rng, *fresh.checker.registers[:16].shape)
        fresh.run(*(Op(op, d=16 + index, a=index) for index in range(16)))
    assert fresh.checker.checked == 640


def dropped(config: Config, op: Op) -> int:
    """Number of rows that an operation drops before its first slot."""
    if op.op is MiscOp.ROTATE_SUBLANES:
        return -op.amount % config.sublanes
    return op.amount if op.op is MiscOp.BROADCAST_SUBLANE else 0


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op is not MiscOp.TRANSPOSE_IN],
                         ids=lambda op: op.name)
def test_latency(fresh: VerilatedXlu, op: MiscOp) -> None:
    """Cycles from issue to write: 2, the dropped rows, the latency, and one for each row."""
    checker = fresh.checker
    unit = Xlu(checker.config)
    latency = unit.tree_latency if op in TREE else unit.latency
    for one in every_amount(checker, op):
        begin = checker.cycle
        fresh.run(one)
        assert checker.written_at[-1] - begin == \
            2 + dropped(checker.config, one) + latency + checker.config.sublanes, one


ROTATED = (MiscOp.ROTATE_LANES, MiscOp.BROADCAST_LANE, MiscOp.TRANSPOSE_OUT)


@pytest.mark.parametrize("ops", [ROTATED, TREE, *((op,) for op in (*ROTATED, *TREE))],
                         ids=lambda ops: "-".join(op.name for op in ops))
def test_operations_of_one_latency_take_a_cycle_a_sublane(fresh: VerilatedXlu,
                                                          ops: Sequence[MiscOp]) -> None:
    fresh.play(full_rate(fresh.checker, np.random.default_rng(5), ops))


def test_results_of_different_latency_follow_without_a_gap(fresh: VerilatedXlu) -> None:
    """A rotation after a sum waits only as long as needed; a sum after a rotation never waits."""
    fresh.play(two_latencies(fresh.checker))


def test_columns_wait_for_rows(fresh: VerilatedXlu) -> None:
    """A column is fetched as soon as all rows are written."""
    checker = fresh.checker
    unit = Xlu(checker.config)
    begin = checker.cycle
    fresh.run(Op(MiscOp.TRANSPOSE_IN, a=1), Op(MiscOp.TRANSPOSE_OUT, d=2))
    size = checker.config.sublanes
    # A row reaches the banks when others reach the result register; then it can be read.
    assert checker.written_at[-1] - begin == 2 + size + (unit.latency - 1) + unit.latency + size


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic(fresh: VerilatedXlu, seed: int) -> None:
    checker = fresh.checker
    before = checker.issued
    fresh.play(random_traffic(checker, np.random.default_rng(seed), 1500))
    fresh.play(drain(checker))
    assert checker.checked > 100
    assert checker.issued - before > checker.checked


@pytest.mark.parametrize("seed", range(3))
def test_reset_in_the_midst(fresh: VerilatedXlu, seed: int) -> None:
    rng = np.random.default_rng(seed)
    checker = fresh.checker
    for _ in range(12):
        fresh.play(random_traffic(checker, rng, int(rng.integers(1, 80))))
        fresh.reset()
        # Nothing that was in the unit comes out any more.
        for _ in range(rng.integers(60)):
            fresh.cycle()
        fresh.play(fill_tile(checker, rng))
    fresh.play(random_traffic(checker, rng, 100))
    fresh.play(drain(checker))
    assert checker.checked > 10


def test_reset_at_every_distance(fresh: VerilatedXlu) -> None:
    fresh.play(every_distance_to_reset(fresh.checker, np.random.default_rng(24)))


def test_source_is_pending_until_it_is_read(fresh: VerilatedXlu) -> None:
    """The second operation's register is held while the first is in the chain, and read once."""
    checker = fresh.checker
    size = checker.config.sublanes
    fresh.cycle(Op(MiscOp.ROTATE_LANES, d=16, a=1))
    assert checker.outputs.pending is None
    assert checker.outputs.load == 1
    assert checker.outputs.ready
    fresh.cycle(Op(MiscOp.ROTATE_LANES, d=17, a=2))
    checker.registers[1] ^= 0xFFFFFFFF
    for left in reversed(range(size)):
        assert checker.outputs.load == (None if left else 2)
        assert checker.outputs.pending == (2 if left else None)
        assert checker.outputs.ready == (left == 0)
        fresh.cycle()
    checker.registers[2] ^= 0xFFFFFFFF
    fresh.play(drain(checker))
    assert checker.checked == 2


def test_nothing_is_pending_without_a_source(fresh: VerilatedXlu) -> None:
    checker = fresh.checker
    fresh.cycle(Op(MiscOp.TRANSPOSE_IN, a=1))
    fresh.cycle(Op(MiscOp.TRANSPOSE_OUT, d=5, a=3))
    for _ in range(100):
        assert checker.outputs.pending is None
        assert checker.outputs.load is None
        if not checker.outputs.busy:
            break
        fresh.cycle()
    fresh.play(drain(checker))
    assert checker.checked == 1


class TestChecker:
    """The checker finds faults in made-up outputs of a unit."""

    REST = Outputs(ready=True, free=True, busy=False, pending=None, load=None, shift=False,
                   row=None, write=None)
    ROTATE = Op(MiscOp.ROTATE_LANES, d=3, a=1)

    @pytest.fixture
    def checker(self) -> XluChecker:
        checker = XluChecker(config_of(4, 2))
        checker.begin(self.REST)
        return checker

    def issue(self, checker: XluChecker) -> Outputs:
        """Issues an operation; returns correct outputs for the next cycle."""
        checker.end(self.ROTATE)
        return replace(self.REST, busy=True, load=1)

    def test_not_at_rest_after_reset(self) -> None:
        with pytest.raises(AssertionError, match="not at rest after a reset"):
            XluChecker(config_of(4, 2)).begin(replace(self.REST, busy=True))

    @pytest.mark.parametrize(("change", "message"), [
        ({"load": None, "pending": 1}, "does not read the register in the next cycle"),
        ({"load": 2}, "v2 is read, not v1"),
        ({"pending": 1}, "pending is 1, not None"),
    ])
    def test_wrong_source(self, checker: XluChecker, change: dict[str, Any], message: str) -> None:
        outputs = self.issue(checker)
        with pytest.raises(AssertionError, match=message):
            checker.begin(replace(outputs, **change))

    def test_read_without_an_operation(self, checker: XluChecker) -> None:
        checker.end(None)
        with pytest.raises(AssertionError, match="v1 is read, but no operation reads it"):
            checker.begin(replace(self.REST, load=1))

    def test_idle_too_early(self, checker: XluChecker) -> None:
        checker.begin(replace(self.issue(checker), busy=False))
        with pytest.raises(AssertionError, match="idle before the last operation is done"):
            checker.end(None)

    @pytest.mark.parametrize(("rows", "d", "value", "message"), [
        (2, 4, 0, "v4 is written by Op"),
        (1, 3, 0, "is written after 1 rows, not 2"),
        (2, 3, 5, "sublane 0, lane 0 is 00000005, not 00000000; 8 elements differ"),
        (2, None, 0, "all rows of a result have come, but it is not written"),
        (2, 3, 0, None),
    ])
    def test_wrong_write(self, checker: XluChecker, rows: int, d: int, value: int,
                         message: str) -> None:
        busy = replace(self.issue(checker), load=None)
        row = np.full(4, value, np.uint32)
        steps = [replace(busy, load=1), *[replace(busy, row=row)] * rows, replace(busy, write=d)]

        def play() -> None:
            for outputs in steps:
                checker.begin(outputs)
                checker.end(None)
        if message is None:
            play()
            checker.begin(self.REST)
            checker.finish()
        else:
            with pytest.raises(AssertionError, match=message):
                play()

    def test_write_without_an_operation(self, checker: XluChecker) -> None:
        checker.end(None)
        checker.begin(replace(self.REST, write=3))
        with pytest.raises(AssertionError, match="v3 is written, but no result is expected"):
            checker.end(None)

    def test_finish(self, checker: XluChecker) -> None:
        with pytest.raises(AssertionError, match="nothing was compared"):
            checker.finish()
        checker.begin(self.issue(checker))
        with pytest.raises(AssertionError, match="the unit is busy"):
            checker.finish()


@pytest.mark.parametrize("component", [Xlu, Rotator, Reduce])
def test_config_is_checked(component: type[Component]) -> None:
    with pytest.raises(TypeError, match=r"config must be a Config, not 4"):
        component(4)
