"""Benches of the cross-lane unit. All compare every result with the golden machine's, in order."""

from itertools import pairwise

import cocotb
from cocotb.handle import HierarchyObject

from hdl.isa import MiscOp
from verif.benches.crosslane import XluBench
from verif.hdl.xlu.xlu_bench import OPERATIONS, TREE, Op, limit

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")

MOVES = (MiscOp.ROTATE_LANES, MiscOp.BROADCAST_LANE)
TRANSPOSES = (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT)


@bench_test
async def random_operations(dut: HierarchyObject) -> None:
    """All operations in any order, few registers and many, while other registers change."""
    bench = await XluBench.started(dut)
    for registers in (3, 8, 32, 32):
        bench.gap, bench.change = bench.rng.choice(((0.0, 0.5), (0.3, 0.0), (0.8, 0.9)))
        bench.send(bench.random(150, registers=registers))
        await bench.drain()
    await bench.finish()
    assert bench.checked > 450


@bench_test
async def every_amount(dut: HierarchyObject) -> None:
    """Each operation with each of its amounts, from one register and back to it."""
    bench = await XluBench.started(dut)
    operations = [Op(op, d, 7, amount) for op in OPERATIONS for d in (7, 9)
                  for amount in range(limit(bench.config, op))]
    bench.send(operations)
    await bench.finish()
    assert bench.checked == sum(one.writes for one in operations)


@bench_test
@cocotb.parametrize(kind=["moves", "tree"])
async def full_rate(dut: HierarchyObject, kind: str) -> None:
    """Operations of one latency that wait for nothing: a row in every cycle."""
    bench = await XluBench.started(dut)
    await bench.drain()
    ops = {"moves": MOVES, "tree": TREE}[kind]
    first, count = len(bench.writes), 60
    sublanes = bench.config.sublanes
    # Of registers that no result before the last ones goes to.
    bench.send(Op(bench.rng.choice(ops), number % 16, 16 + number % 16, 0)
               for number in range(count))
    await bench.finish()
    assert {after - before for before, after in pairwise(bench.writes[first:])} == {sublanes}
    assert bench.checked == count


@bench_test
async def results_of_two_latencies(dut: HierarchyObject) -> None:
    """Sums among rotations, in every order of four: none overtakes another."""
    bench = await XluBench.started(dut)
    for pattern in range(16):
        bench.send(Op(TREE[place % 2] if pattern >> place & 1 else MOVES[place % 2],
                             4 * (pattern % 4) + place, 16 + (pattern + place) % 16, place % 2)
                   for place in range(4))
        if pattern % 3 == 0:
            await bench.drain()
    await bench.finish()
    assert bench.checked == 64


@bench_test
async def transposes(dut: HierarchyObject) -> None:
    """Whole tiles through the transposer, and columns right behind the rows that change them."""
    bench = await XluBench.started(dut)
    groups = bench.config.tile_vregs
    for _ in range(12):
        bench.send(Op(MiscOp.TRANSPOSE_IN, a=bench.rng.randrange(32), amount=group)
                   for group in range(groups))
        bench.send(Op(MiscOp.TRANSPOSE_OUT, d=group, amount=group)
                   for group in range(groups))
    bench.send(bench.random(100, TRANSPOSES))
    await bench.finish()
    assert bench.checked > 12 * groups + 25


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at every distance behind a start drops all that is under way."""
    bench = await XluBench.started(dut)
    for distance in range(1, 25):
        bench.send(bench.random(20))
        await bench.domain.cycles(distance + bench.config.tile_vregs)
        await bench.reset()
        bench.send(bench.random(6))
        await bench.drain()
    await bench.finish()
    assert bench.checked > 24 * 3
