"""Benches that compare the core, with all its units and the host's ports, with the golden core.

After each program, all registers, memories and semaphores are compared with the golden core's. In
every cycle the counters must sum to the cycles.
"""

import random
from unittest.mock import patch

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.core.counters import COUNTERS
from hdl.core.interface import Space
from hdl.encoding import pack
from hdl.isa import Fault, LoadOp, MiscOp, ScalarOp, Slot, StoreOp, VectorOp
from hdl.vpu.interface import HostSpace
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from verif.benches.clocking import ClockDomain, config_argument, int_reader, pin
from verif.benches.core.host import ProgramPort, RequestPort, RowPort
from verif.sim.compiler.kernels.harness import build
from verif.sim.compiler.kernels.regions import apply
from verif.system.programs.bundles import faulty_bundles, fill_registers, random_words
from verif.system.programs.generator import Generator
from verif.system.programs.operands import STABLE

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")

HALT = pack({Slot.S1: {"op": ScalarOp.HALT}})
LIMIT = 20_000
"""Number of cycles within which every program here stops."""


class CoreBench:
    """A core, its host, and the golden core.

    Attributes
    ----------
    config : Config
    rng : random.Random
        Random numbers for the bench's decisions, seeded with the test's seed.
    golden : GoldenCore
        The golden core; `reset` makes a new one.
    generator : Generator
        Generates programs for the golden core.
    compared : int
        Number of states that were compared.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"),
                                    mac_latency=int(config_argument("mac_latency")))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self.compared = 0
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.program = ProgramPort(self.domain, dut)
        self.requests = RequestPort(self.domain, dut, self.config, self.rng)
        self.rows = RowPort(self.domain, dut, self.rng)
        self._idle, self._waiting, self._clear, self._cycles = (
            pin(dut, name) for name in ("idle", "waiting", "clear_counters", "cycles"))
        self._read_clear, self._read_cycles = int_reader(self._clear), int_reader(self._cycles)
        self._counters = {name: int_reader(pin(dut, name)) for name in COUNTERS}
        self._clear.value = 0
        self._expected: int | None = None
        self.domain.at_each_edge(self._count)

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "CoreBench":
        """A bench whose core has been reset and given random contents."""
        bench = cls(dut)
        await bench.reset()
        return bench

    async def reset(self) -> None:
        """Resets the core and fills all memories and registers anew."""
        await self.domain.reset()
        self.requests.clear()
        self.rows.clear()
        self.golden = golden = GoldenCore(self.config)
        self.generator = Generator(golden, self.numbers)
        self.program.set_watchdog(0)
        golden.vmem[:] = random_words(self.numbers, golden.vmem.shape)
        golden.smem[:] = random_words(self.numbers, golden.smem.shape)
        golden.semaphores[:] = self.numbers.integers(0, 1 << 16, isa.SEMAPHORES)
        self.requests.write(Space.SMEM, golden.smem)
        self.requests.write(Space.SEMAPHORE, golden.semaphores)
        self.write_words(0, golden.vmem)
        self.stabilise()
        self.load(*fill_registers(self.config), HALT)
        await self.run()

    def write_words(self, address: int, words: NDArray[np.uint32]) -> None:
        """Queues writes of vectors to vector memory."""
        for number, word in enumerate(words, address):
            self.rows.write(number, word)

    def stabilise(self) -> None:
        """Gives small numbers to the registers that programs use as addresses."""
        self.golden.scalars[STABLE.start:STABLE.stop] = self.numbers.integers(0, 8, len(STABLE))
        self.requests.write(Space.SCALAR, self.golden.scalars)

    def load(self, *bundles: int) -> None:
        """Loads a program, and executes it on the golden core until that stops or waits."""
        self.requests.load(bundles)
        self.golden.load_program(bundles)
        self.golden.start()
        self.golden.run(LIMIT)

    def new_program(self, length: int, fault: bool) -> None:
        """Generates a random program, executes it on the golden core, and loads it."""
        program = self.generator.program(length, fault=fault)
        unused = self.config.imem_bundles - len(program.bundles)
        self.requests.load([*program.bundles, *[0] * unused])

    async def ready(self) -> None:
        """Waits until the host's writes are done."""
        await self.requests.drain()
        await self.rows.drain()

    async def run(self) -> None:
        """Runs the loaded program until it stops by itself."""
        await self.ready()
        await self.program.start()
        await self.program.finish(LIMIT)

    async def compare(self) -> None:
        """Waits until the core is idle, and compares all its state."""
        golden = self.golden
        self.program.check(golden.pc, golden.fault)
        for _ in range(LIMIT):
            if self._idle.value:
                break
            await self.domain.edge
        assert self._idle.value, f"not idle {LIMIT} cycles after the program"
        self.requests.expect(Space.SCALAR, golden.scalars)
        self.requests.expect(Space.SMEM, golden.smem)
        self.requests.expect(Space.SEMAPHORE, golden.semaphores)
        for number, word in enumerate(golden.vectors):
            self.rows.expect(HostSpace.VREG, number, word)
        self.rows.expect_masks(golden.masks)
        for number, word in enumerate(golden.vmem):
            self.rows.expect(HostSpace.VMEM, number, word)
        await self.ready()
        self.requests.finish()
        self.rows.finish()
        self.compared += 1

    async def waits(self) -> None:
        """Waits until the program waits for a semaphore.

        Raises
        ------
        AssertionError
            If it does not.
        """
        for _ in range(LIMIT):
            if self._waiting.value:
                return
            await self.domain.edge
        raise AssertionError(f"the program waits for no semaphore, at bundle {self.program.pc}")

    async def clear_counters(self) -> None:
        """Clears the counters; returns in the first cycle in which they are zero."""
        self._clear.value = 1
        await self.domain.edge
        self._clear.value = 0
        await self.domain.edge

    def counters(self) -> dict[str, int]:
        """The counters, in the cycle that ends now."""
        return {name: read() for name, read in self._counters.items()}

    def _count(self) -> None:
        """Checks that the counters of causes sum to ``cycles``, which counts every cycle."""
        expected = self._expected
        if expected is not None:
            cycles, total = self._read_cycles(), sum(self.counters().values())
            assert cycles == total == expected, (
                f"{cycles} cycles counted, {total} by cause, of {expected}")
        if self.domain.resetting or self._read_clear():
            self._expected = 0
        elif expected is not None:
            self._expected = expected + 1


@bench_test
async def random_programs(dut: HierarchyObject) -> None:
    """Programs with all slots, branches, loops and faults; larger arrays run fewer programs."""
    bench = await CoreBench.started(dut)
    faults = set()
    count = 6 if bench.config.array == 4 else 3
    for number in range(count):
        bench.requests.source.gap = bench.rng.choice((0.0, 0.3))
        bench.stabilise()
        bench.new_program(80, fault=number % 2 > 0)
        await bench.run()
        await bench.compare()
        faults.add(bench.golden.fault)
    assert Fault.NONE in faults
    assert len(faults) > 1
    assert bench.compared == count


@bench_test
async def compiled_kernels(dut: HierarchyObject) -> None:
    """Compiled kernels, one of them of a product, leave the same state as in the golden core."""
    bench = await CoreBench.started(dut)
    lanes = bench.config.lanes
    rows, depth = 4 * lanes, 2 * lanes
    graph = Graph([Value(TensorType(shape, DType.F32))
                   for shape in ((rows, depth), (depth, lanes), (rows, lanes), ())])
    x, w, hidden, first = graph.inputs
    operations = [
        graph.add("dot_general", (x, w), hidden.type, {
            "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
            "precision_config": ("DEFAULT", "DEFAULT")}),
        graph.add("exponential", (hidden,), hidden.type),
        graph.add("transpose", (hidden,), TensorType((lanes, rows), DType.F32),
                  {"permutation": (1, 0)}),
        *(graph.add("reduce", (hidden, first), TensorType((rows,), DType.F32),
                    {"dimensions": (1,)}, (apply(kind, DType.F32),))
          for kind in ("add", "maximum"))]
    for operation in operations:
        kernel = build(operation, bench.config)
        arrays = [bench.numbers.standard_normal(value.shape).astype(np.float32)
                  for value in operation.operands]
        words, _ = kernel.memory(arrays)
        bench.golden.vmem[:] = words
        bench.write_words(0, words)
        with patch.object(bench.golden, "push_rows", wraps=bench.golden.push_rows) as pushes:
            bench.load(*kernel.bundles)
        await bench.ready()
        await bench.clear_counters()
        await bench.run()
        counters = bench.counters()
        assert counters["mxu_active_cycles"] == pushes.call_count * bench.config.sublanes
        await bench.compare()
        [result] = kernel.results(bench.golden.vmem)
        assert result.std() > 0
        if operation.kind == "dot_general":
            # Blocks of rows may overlap.
            needed = rows * depth // lanes
            assert needed <= counters["mxu_active_cycles"] <= needed * 5 // 4
            assert counters["weight_load_cycles"]
            assert np.allclose(result, arrays[0] @ arrays[1], atol=0.5)


@bench_test
async def every_fault(dut: HierarchyObject) -> None:
    """A bundle with a fault, whichever it is, changes nothing; operations under way still end."""
    bench = await CoreBench.started(dut)
    bench.golden.semaphores[0] = 1
    bench.requests.write(Space.SEMAPHORE, [1])
    under_way = pack({Slot.V0: {"op": VectorOp.FADD, "d": 5, "a": 6, "b": isa.VECTOR_FLAG | 7},
                      Slot.V1: {"op": VectorOp.TANH, "d": 8, "a": 9},
                      Slot.MISC: {"op": MiscOp.SUM_LANES, "d": 10, "a": 11},
                      Slot.STORE: {"op": StoreOp.STORE, "d": 12}})
    bad = faulty_bundles(bench.config)
    for fault, bundle in bad.items():
        bench.load(under_way, bundle, under_way, HALT)
        assert bench.golden.fault is fault
        await bench.run()
        await bench.compare()
    assert bench.compared == len(bad)


@bench_test
async def stops_and_goes_on(dut: HierarchyObject) -> None:
    """Programs have the golden core's results even if the host stops and restarts them."""
    bench = await CoreBench.started(dut)
    stops = 0
    for _ in range(3):
        bench.stabilise()
        bench.new_program(80, fault=False)
        await bench.ready()
        await bench.program.start()
        while True:
            await bench.domain.cycles(bench.rng.randint(1, 60))
            if not bench.program.running:
                break
            await bench.program.stop()
            stops += 1
            await bench.domain.cycles(bench.rng.randint(1, 5))
            # It may have stopped at its last bundle, a halt, which is then executed again.
            await bench.program.start(bench.program.pc)
        await bench.compare()
    assert stops >= 6


@bench_test
async def host_hands_over_words(dut: HierarchyObject) -> None:
    """The host writes vectors while a program runs; a semaphore counts them."""
    bench = await CoreBench.started(dut)
    config, count, first = bench.config, 8, bench.config.vmem_vectors - 16
    bench.golden.semaphores[3] = 0
    bench.requests.write(Space.SEMAPHORE, [0], at=3)
    words = random_words(bench.numbers, bench.golden.vmem[:count].shape)
    # s1 counts the words. Each is loaded, doubled, and stored behind them.
    bench.golden.scalars[1:3] = count, first
    bench.requests.write(Space.SCALAR, (count, first), at=1)
    one = isa.INLINE_BASE + 1
    program = [
        pack({Slot.MISC: {"op": MiscOp.WAIT, "d": 3, "b": one}}),
        pack({Slot.LOAD: {"op": LoadOp.LOAD, "d": 1, "a": 2, "b": 0}}),
        pack({Slot.V0: {"op": VectorOp.FADD, "d": 2, "a": 1, "b": isa.VECTOR_FLAG | 1},
              Slot.S0: {"op": ScalarOp.ADD, "d": 2, "a": 2, "b": one}}),
        pack({Slot.STORE: {"op": StoreOp.STORE, "d": 2, "a": 2,
                           "b": isa.INLINE_BASE + count - 1},
              Slot.S1: {"op": ScalarOp.LOOP, "d": 1, "b": isa.FIRST_IMMEDIATE}}, (0,)),
        HALT]
    # The golden core gets all words at once.
    bench.golden.vmem[first:first + count] = words
    bench.golden.signal(3, count)
    bench.load(*program)
    await bench.ready()
    await bench.program.start()
    for number, word in enumerate(words):
        bench.rows.writes.gap = bench.rng.choice((0.0, 0.5))
        bench.rows.write(first + number, word)
        bench.rows.look(HostSpace.VREG, 2, config.sublanes)
        await bench.rows.drain()
        await bench.waits()
        await bench.program.signal(3, 1)
    await bench.program.finish(LIMIT)
    await bench.compare()
    assert bench.rows.looked == count * config.sublanes


@bench_test
async def host_beside_a_busy_memory(dut: HierarchyObject) -> None:
    """A program that loads and stores in each cycle blocks neither the host nor itself."""
    bench = await CoreBench.started(dut)
    config, rounds = bench.config, 400
    bench.golden.scalars[1] = rounds
    bench.requests.write(Space.SCALAR, [rounds], at=1)
    body: list[dict[Slot, dict[str, int]]] = [
        {Slot.LOAD: {"op": LoadOp.LOAD, "d": number, "b": isa.INLINE_BASE + number},
         Slot.STORE: {"op": StoreOp.STORE, "d": 8 + number, "b": isa.INLINE_BASE + 8 + number}}
        for number in range(4)]
    body[-1][Slot.S1] = {"op": ScalarOp.LOOP, "d": 1, "b": isa.FIRST_IMMEDIATE}
    words = random_words(bench.numbers, bench.golden.vmem[16:].shape)
    bench.load(*map(pack, body), HALT)
    await bench.ready()
    await bench.clear_counters()
    await bench.program.start()
    for first in (16, 20, 24):
        for number in range(first, first + 4):
            bench.golden.vmem[number] = words[number]
            bench.rows.write(number, words[number])
        await bench.rows.drain()
        # Words written just now and words from before, while others are written.
        for number in range(first - 2, first + 4):
            if number >= 16:
                bench.rows.expect(HostSpace.VMEM, number, words[number])
            bench.rows.write(number + 100, words[number])
            bench.golden.vmem[number + 100] = words[number]
        await bench.rows.drain()
    assert bench.program.running
    await bench.program.finish(LIMIT)
    counters = bench.counters()
    # Each word costs the program some cycles, most are its own.
    assert counters["memory_wait_cycles"] > 0
    assert counters["memory_wait_cycles"] < 4 * rounds < sum(counters.values())
    assert config.sublanes * 16 <= bench.rows.checked
    await bench.compare()


@bench_test
async def watchdog(dut: HierarchyObject) -> None:
    """An endless wait becomes a fault; after a signal, the bundle can be executed."""
    bench = await CoreBench.started(dut)
    bench.golden.semaphores[5] = 0
    bench.requests.write(Space.SEMAPHORE, [0], at=5)
    bench.program.set_watchdog(25)
    bench.load(0, pack({Slot.MISC: {"op": MiscOp.WAIT, "d": 5, "b": isa.INLINE_BASE + 2},
                        Slot.S0: {"op": ScalarOp.ADD, "d": 1, "b": isa.INLINE_BASE + 9}}), HALT)
    assert bench.golden.waiting
    await bench.run()
    bench.program.check(1, Fault.WATCHDOG)
    bench.golden.signal(5, 2)
    await bench.program.signal(5, 2)
    bench.golden.run(LIMIT)
    await bench.program.start(1)
    await bench.program.finish(10)
    await bench.compare()


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at a random moment of a program stops everything; later results are correct."""
    bench = await CoreBench.started(dut)
    for _ in range(2):
        bench.new_program(80, fault=False)
        await bench.ready()
        await bench.program.start()
        await bench.domain.cycles(bench.rng.randint(1, 80))
        await bench.reset()
        bench.stabilise()
        bench.new_program(60, fault=False)
        await bench.run()
        await bench.compare()
    assert bench.compared == 2
