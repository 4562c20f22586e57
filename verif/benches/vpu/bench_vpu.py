"""Benches of the vector unit.

Each compares in every cycle which registers are written and the rows at the ends of the chains, and
in the end all registers, masks and the memory in use with the golden machine's.
"""

from itertools import pairwise

import cocotb
from cocotb.handle import HierarchyObject

from hdl import isa
from hdl.isa import LoadOp, Slot, StoreOp, VectorOp
from hdl.vpu.interface import HostSpace
from verif.benches.vpu.vpu import CORE_WORDS, OPERATIONS, SOURCES, Bundle, VpuBench
from verif.system.programs import random_words

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")


def finish(bench: VpuBench, writes: int) -> None:
    """All that was read back was right, and so many writes before came in their cycle."""
    assert bench.written >= writes
    words = isa.VECTOR_REGISTERS + 1 + CORE_WORDS + len(bench.host_words)
    assert bench.rows.checked >= words * bench.config.sublanes


@bench_test
async def every_operation(dut: HierarchyObject) -> None:
    """Each operation in each slot, with vector and scalar operands of all kinds."""
    bench = await VpuBench.started(dut)
    for slot, operations in OPERATIONS.items():
        for operation in operations * 3:
            made = bench.operation(slot, operation)
            assert made is not None
            bench.send([Bundle({slot: made[0]}, {slot: made[1]})])
    await bench.compare()
    finish(bench, 3 * 85)


@bench_test
async def random_bundles(dut: HierarchyObject) -> None:
    """All slots; few registers, so that everything depends on everything, and many."""
    bench = await VpuBench.started(dut)
    for registers, density in ((4, 0.7), (10, 0.4), (32, 0.3), (32, 0.9)):
        bench.gap = bench.rng.choice((0.0, 0.3))
        bench.send(bench.random_bundle(registers, density) for _ in range(80))
        await bench.drain()
    await bench.compare()
    finish(bench, 400)


@bench_test
async def random_chains(dut: HierarchyObject) -> None:
    """Rows on all chains, and registers written from them, among bundles."""
    bench = await VpuBench.started(dut)
    for busy in (0.2, 0.6, 1.0):
        bench.chains_busy = busy
        bench.send(bench.random_bundle(32, 0.4) for _ in range(60))
        await bench.drain()
    rows = bench.chain_rows
    await bench.compare()
    assert rows > 200
    finish(bench, 250)


@bench_test
async def host_beside_the_core(dut: HierarchyObject) -> None:
    """The host writes and reads memory while loads and stores have its ports first."""
    bench = await VpuBench.started(dut)
    rng, rows = bench.rng, bench.rows
    rows.sink.stall, rows.reads.gap, rows.writes.gap = 0.3, 0.3, 0.3
    before = rows.checked
    bench.send(bench.random_bundle(32, 0.7) for _ in range(150))
    for _ in range(10):
        words = rng.sample(bench.host_words, 8)
        for address in words[:4]:
            bench.machine.vmem[address] = random_words(bench.numbers, bench.machine.vmem[0].shape)
            rows.write(address, bench.machine.vmem[address])
        for address in words[4:]:
            rows.expect(HostSpace.VMEM, address, bench.machine.vmem[address])
            # Words that the core uses have no certain value now, but must come all the same.
            rows.look(HostSpace(rng.randrange(3)), rng.randrange(CORE_WORDS),
                      bench.config.sublanes)
        await rows.drain()
    assert rows.checked - before == 40 * bench.config.sublanes == rows.looked
    await bench.compare()
    finish(bench, 250)


@bench_test
async def host_gets_its_turn(dut: HierarchyObject) -> None:
    """A load and a store in each cycle hold up neither reads nor writes of the host for ever."""
    bench = await VpuBench.started(dut)
    rows, machine, count = bench.rows, bench.machine, 1500
    before = rows.checked
    for number in range(count):
        fields = {Slot.LOAD: {"op": LoadOp.LOAD, "d": number % 16, "b": SOURCES[Slot.LOAD]},
                  Slot.STORE: {"op": StoreOp.STORE, "d": 16 + number % 16,
                               "b": SOURCES[Slot.STORE]}}
        bench.send([Bundle(fields, dict.fromkeys(fields, number % CORE_WORDS))])
    first = len(bench.issued)
    for address in bench.host_words:
        machine.vmem[address] = random_words(bench.numbers, machine.vmem[0].shape)
        rows.write(address, machine.vmem[address])
    await rows.drain()
    for address in bench.host_words:
        rows.expect(HostSpace.VMEM, address, machine.vmem[address])
    await rows.drain()
    assert rows.checked - before == len(bench.host_words) * bench.config.sublanes
    # All the time the core wanted the memory, and had it for the most part.
    issued = bench.issued[first:]
    assert len(issued) < count
    assert bench.held > 0
    assert 2 * len(issued) > issued[-1] - issued[0]
    await bench.compare()
    finish(bench, count)


@bench_test
async def memory_in_order(dut: HierarchyObject) -> None:
    """Loads and stores of the same words in one bundle and in successive ones, under masks."""
    bench = await VpuBench.started(dut)
    for _ in range(150):
        bundle = bench.random_bundle(32, 0.9, (Slot.LOAD, Slot.STORE))
        for ports in bundle.ports.values():
            ports["address"] %= 3
        for slot in bundle.scalars:
            bundle.scalars[slot] %= 3
        bench.send([bundle])
    await bench.compare()
    finish(bench, 100)


@bench_test
async def latencies(dut: HierarchyObject) -> None:
    """A result can be used exactly as many cycles after its operation as the ISA says."""
    bench = await VpuBench.started(dut)
    for op, latency in ((VectorOp.ADD, isa.SIMPLE_LATENCY), (VectorOp.FMUL, isa.FLOAT_LATENCY),
                        (VectorOp.I2F, isa.FLOAT_LATENCY),
                        (VectorOp.TANH, isa.TRANSCENDENTAL_LATENCY),
                        (VectorOp.RANDOM, isa.TRANSCENDENTAL_LATENCY)):
        first = len(bench.issued)
        fields = {"op": op, "d": 5, "a": 5, "b": isa.VECTOR_FLAG | 5}
        bench.send(Bundle({Slot.V1: fields}, {}) for _ in range(8))
        await bench.drain()
        steps = {after - before for before, after in pairwise(bench.issued[first:])}
        assert steps == {latency}, f"{op.name} can be used after {steps} cycles, not {latency}"
    await bench.compare()
    finish(bench, 40)


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset drops all that is under way; what issues then is right."""
    bench = await VpuBench.started(dut)
    for distance in (1, 2, 5, 11):
        bench.chains_busy = 0.5
        bench.send(bench.random_bundle(32, 0.9) for _ in range(30))
        bench.rows.write(0, bench.machine.vmem[0])
        await bench.domain.cycles(10 + distance)
        await bench.reset()
        bench.send(bench.random_bundle(32, 0.9) for _ in range(10))
        await bench.drain()
    await bench.compare()
    finish(bench, 100)
