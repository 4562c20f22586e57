"""Benches that drive the vector unit's pins: bundles of `verif.models.vpu`, accesses of the host.

Each bench compares all outputs in every cycle with `VpuChecker`. At the end, it compares all
registers and masks, and the memory in use, with the checker and with the golden core.
"""

from itertools import pairwise

import cocotb
from cocotb.handle import HierarchyObject

from hdl import isa
from hdl.isa import LoadOp, Slot, StoreOp, VectorOp
from hdl.vpu.interface import HostSpace
from verif.benches.vpu.vpu import VpuBench
from verif.models.vpu import CORE_VECTORS, SOURCES, ChainInput, Cycle, VpuBundle, VpuTraffic
from verif.system.programs.bundles import random_words

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")


@bench_test
async def every_operation(dut: HierarchyObject) -> None:
    """Each operation in each slot, with vector and scalar operands of all kinds."""
    bench = await VpuBench.started(dut)
    bench.issuer.send(bench.issuer.every_operation())
    await bench.compare()
    bench.finish(3 * 85)


@bench_test
async def random_bundles(dut: HierarchyObject) -> None:
    """Bundles in all slots: with few registers, so that all depend on each other, and with many."""
    bench = await VpuBench.started(dut)
    issuer = bench.issuer
    for registers, density in ((4, 0.7), (10, 0.4), (32, 0.3), (32, 0.9)):
        issuer.gap = issuer.rng.choice((0.0, 0.3))
        issuer.send(issuer.random_bundle(registers, density) for _ in range(80))
        await bench.drain()
    await bench.compare()
    bench.finish(400)


@bench_test
async def random_chains(dut: HierarchyObject) -> None:
    """While bundles execute, chains carry rows, and registers are written from the chains."""
    bench = await VpuBench.started(dut)
    issuer = bench.issuer
    for busy in (0.2, 0.6, 1.0):
        issuer.chains_busy = busy
        issuer.send(issuer.random_bundle(32, 0.4) for _ in range(60))
        await bench.drain()
    await bench.compare()
    bench.finish(250, rows=200)


@bench_test
async def random_cycles(dut: HierarchyObject) -> None:
    """Operations in any cycle, even where the sequencer's interlock would keep them apart."""
    bench = await VpuBench.started(dut)
    sublanes, lanes = bench.checker.vectors[0].shape
    rows = [random_words(bench.issuer.numbers, (lanes,)) for _ in range(sublanes)]
    load = ChainInput(load=1)
    await bench.play(Cycle(x=load, w=load, xlu=load, pop=row, result=row) for row in rows)
    for density in (0.3, 0.95):
        traffic = VpuTraffic(bench.config, bench.issuer.numbers, density, CORE_VECTORS)
        await bench.play([traffic.cycle() for _ in range(400)])
    await bench.compare(bundles=False)
    bench.finish(400, rows=2000)


@bench_test
async def host_beside_the_core(dut: HierarchyObject) -> None:
    """The host accesses vector memory; loads and stores have priority at the memory's ports."""
    bench = await VpuBench.started(dut)
    issuer, rows = bench.issuer, bench.rows
    rows.sink.stall, rows.reads.gap, rows.writes.gap = 0.3, 0.3, 0.3
    before = rows.checked
    issuer.send(issuer.random_bundle(32, 0.7) for _ in range(150))
    for _ in range(10):
        addresses = issuer.rng.sample(bench.host_vectors, 8)
        for address in addresses[:4]:
            bench.write(address)
        for address in addresses[4:]:
            rows.expect(HostSpace.VMEM, address, bench.checker.vmem[address])
            # The values of what the core uses are uncertain now, but the rows must come.
            rows.look(HostSpace(issuer.rng.randrange(3)), issuer.rng.randrange(CORE_VECTORS),
                      bench.config.sublanes)
        await rows.drain()
    assert rows.checked - before == 40 * bench.config.sublanes == rows.looked
    await bench.compare()
    bench.finish(250)


@bench_test
async def host_gets_its_turn(dut: HierarchyObject) -> None:
    """Even a load and a store in each cycle do not block the host's reads and writes for ever."""
    bench = await VpuBench.started(dut)
    issuer, rows, count = bench.issuer, bench.rows, 1500
    before = rows.checked
    for number in range(count):
        slots = {Slot.LOAD: {"op": LoadOp.LOAD, "d": number % 16, "b": SOURCES[Slot.LOAD]},
                 Slot.STORE: {"op": StoreOp.STORE, "d": 16 + number % 16,
                              "b": SOURCES[Slot.STORE]}}
        issuer.send([VpuBundle(slots, dict.fromkeys(slots, number % CORE_VECTORS))])
    first = len(issuer.issued)
    for address in bench.host_vectors:
        bench.write(address)
    await rows.drain()
    for address in bench.host_vectors:
        rows.expect(HostSpace.VMEM, address, bench.checker.vmem[address])
    await rows.drain()
    assert rows.checked - before == len(bench.host_vectors) * bench.config.sublanes
    # All the time the core wanted the memory, and had it for the most part.
    issued = issuer.issued[first:]
    assert len(issued) < count
    assert issuer.held > 0
    assert 2 * len(issued) > issued[-1] - issued[0]
    await bench.compare()
    bench.finish(count)


@bench_test
async def memory_in_order(dut: HierarchyObject) -> None:
    """Loads and stores of the same vectors in one bundle and in successive ones, under masks."""
    bench = await VpuBench.started(dut)
    bench.issuer.send(bench.issuer.random_bundle(32, 0.9, (Slot.LOAD, Slot.STORE), vectors=3)
                      for _ in range(150))
    await bench.compare()
    bench.finish(100)


@bench_test
async def latencies(dut: HierarchyObject) -> None:
    """A result can be used exactly as many cycles after its operation as the ISA says."""
    bench = await VpuBench.started(dut)
    issuer = bench.issuer
    for op, latency in ((VectorOp.ADD, isa.SIMPLE_LATENCY), (VectorOp.FMUL, isa.FLOAT_LATENCY),
                        (VectorOp.I2F, isa.FLOAT_LATENCY),
                        (VectorOp.TANH, isa.TRANSCENDENTAL_LATENCY),
                        (VectorOp.RANDOM, isa.TRANSCENDENTAL_LATENCY)):
        first = len(issuer.issued)
        fields = {"op": op, "d": 5, "a": 5, "b": isa.VECTOR_FLAG | 5}
        issuer.send(VpuBundle({Slot.V1: fields}, {}) for _ in range(8))
        await bench.drain()
        steps = {after - before for before, after in pairwise(issuer.issued[first:])}
        assert steps == {latency}, f"{op.name} can be used after {steps} cycles, not {latency}"
    await bench.compare()
    bench.finish(40)


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset drops everything under way; later bundles have correct results."""
    bench = await VpuBench.started(dut)
    for distance in (1, 2, 5, 11):
        bench.issuer.chains_busy = 0.5
        bench.issuer.send(bench.issuer.random_bundle(32, 0.9) for _ in range(30))
        bench.write(bench.host_vectors[0])
        await bench.domain.cycles(10 + distance)
        await bench.reset()
        bench.issuer.send(bench.issuer.random_bundle(32, 0.9) for _ in range(10))
        await bench.drain()
    await bench.compare()
    bench.finish(100)
