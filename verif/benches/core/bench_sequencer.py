"""Benches of the sequencer, with units that take time but compute nothing.

`SequencerChecker` compares every issue, in order, with the golden core's. After each program,
registers, memories and semaphores are compared with the golden core's.
"""

import random
from collections.abc import Sequence

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject

from hdl import isa
from hdl.config import Config
from hdl.core.interface import Space, descriptor_words
from hdl.encoding import bundle_words, pack
from hdl.isa import Fault, MiscOp, PushOp, ScalarOp, Slot, VectorOp
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.benches.core.host import ProgramPort, RequestPort
from verif.benches.core.sequencer import SequencerPins
from verif.models.sequencer import SequencerChecker, TracingCore, UnitTiming
from verif.system.programs.bundles import faulty_bundles
from verif.system.programs.generator import Generator
from verif.system.programs.operands import STABLE

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")

TIMINGS = (UnitTiming(), UnitTiming(late=9), UnitTiming(ready=0.4, free=0.4, slow=6),
           UnitTiming(late=11, ready=0.4, free=0.4, slow=6),
           UnitTiming(late=3, ready=0.7, free=0.5, slow=3), UnitTiming(late=2, urgent=0.5))
HALT = pack({Slot.S1: {"op": ScalarOp.HALT}})


def inline(value: int) -> int:
    """Returns the code that stands for a small integer in the field of a scalar source."""
    return isa.INLINE_BASE + value


class SequencerBench:
    """A sequencer between host and units, and the golden core.

    Attributes
    ----------
    config : Config
    rng : random.Random
        Random numbers for the bench's decisions, seeded with the test's seed.
    golden : TracingCore
        The golden core; `reset` makes a new one.
    checker : SequencerChecker
    generator : Generator
        Generates programs for the golden core.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.checker = SequencerChecker(cocotb.RANDOM_SEED,
                                        together=descriptor_words(self.config))
        self.program = ProgramPort(self.domain, dut)
        self.requests = RequestPort(self.domain, dut, self.config, self.rng)
        SequencerPins(self.domain, dut, self.checker)
        self._busy = pin(dut, "busy")

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "SequencerBench":
        """A bench whose sequencer has been reset and given random contents."""
        bench = cls(dut)
        await bench.reset()
        return bench

    async def reset(self) -> None:
        """Resets the sequencer and fills all memories anew."""
        self.requests.source.clear()
        await self.domain.reset()
        self.requests.clear()
        self.checker.drop_expected()
        self.golden = TracingCore(self.config)
        self.generator = Generator(self.golden, self.numbers)
        self.program.set_watchdog(0)
        for words, high in ((self.golden.scalars[1:], 1 << 32), (self.golden.smem, 1 << 32),
                            (self.golden.semaphores, 1 << 16)):
            words[:] = self.numbers.integers(0, high, words.shape, dtype=np.uint32)
        self.stabilise()
        self.requests.write(Space.SMEM, self.golden.smem)
        self.requests.write(Space.SEMAPHORE, self.golden.semaphores)

    def stabilise(self) -> None:
        """Gives small numbers to the registers that programs use as addresses."""
        self.golden.scalars[STABLE.start:STABLE.stop] = self.numbers.integers(0, 8, len(STABLE))
        self.requests.write(Space.SCALAR, self.golden.scalars)

    def new_program(self, length: int, fault: bool) -> None:
        """Loads a random program that the golden core has executed, and expects its issues."""
        self.golden.trace = []
        program = self.generator.program(length, fault=fault)
        self._load([*program.bundles,
                    *[0] * (self.config.imem_bundles - len(program.bundles))])

    def load(self, *bundles: int) -> None:
        """Loads a given program, and executes it on the golden core until that stops or waits."""
        self.golden.trace = []
        self.golden.load_program(bundles)
        self.golden.start()
        self.golden.run(1000)
        self._load(bundles)

    def _load(self, bundles: Sequence[int]) -> None:
        """Loads bundles that the golden core has executed; the sequencer must issue the same."""
        self.requests.load(bundles)
        self.checker.program |= dict(enumerate(bundles))
        self.checker.expect(self.golden.trace)

    async def run(self) -> None:
        """Runs the loaded program to its end, and compares."""
        await self.requests.drain()
        await self.program.start()
        await self.program.finish(self.limit)
        await self.compare()

    @property
    def limit(self) -> int:
        """Number of cycles within which a program must have stopped."""
        return 1000 + 100 * len(self.golden.trace)

    async def compare(self) -> None:
        """Waits until the units are idle, then compares all state."""
        self.program.check(self.golden.pc, self.golden.fault)
        while not self.checker.units.idle:
            await self.domain.edge
        await self.domain.cycles(2)
        assert not self._busy.value, "the sequencer is busy although nothing is under way"
        self.requests.expect(Space.SCALAR, self.golden.scalars)
        self.requests.expect(Space.SMEM, self.golden.smem)
        self.requests.expect(Space.SEMAPHORE, self.golden.semaphores)
        await self.requests.drain()
        self.checker.expect_done()

    def finish(self, issues: int) -> None:
        """Ends the test: checks that enough issues were compared."""
        self.checker.expect_done()
        self.requests.finish()
        checked = self.checker.checked
        assert checked >= issues, f"{checked} issues were compared, not {issues}"


@bench_test
async def random_programs(dut: HierarchyObject) -> None:
    """Programs with all slots, branches, loops and faults; some units are late or not ready."""
    bench = await SequencerBench.started(dut)
    faults = set()
    for number in range(12):
        bench.checker.units.timing = TIMINGS[number % len(TIMINGS)]
        bench.requests.source.gap = bench.rng.choice((0.0, 0.3))
        bench.stabilise()
        bench.new_program(90, fault=number % 3 > 0)
        await bench.run()
        faults.add(bench.golden.fault)
    assert Fault.NONE in faults
    assert len(faults) >= 3
    bench.finish(400)


@bench_test
async def every_fault(dut: HierarchyObject) -> None:
    """A bundle with a fault, whichever it is, has no effect, and the program stops at it."""
    bench = await SequencerBench.started(dut)
    config = bench.config
    bench.golden.semaphores[0] = 1
    bench.requests.write(Space.SEMAPHORE, [1])
    before = pack({Slot.S0: {"op": ScalarOp.ADD, "d": 1, "a": 1, "b": inline(1)},
                   Slot.V1: {"op": VectorOp.EXP2, "d": 1, "a": 2}})
    bad = faulty_bundles(config)
    for fault, bundle in bad.items():
        # The bundle after it must not issue.
        bench.load(before, before, bundle, before, HALT)
        # The jump is executed; the missing bundle at its target has the fault.
        pc = config.imem_bundles if fault is Fault.PC_RANGE else 2
        assert (bench.golden.fault, bench.golden.pc) == (fault, pc)
        await bench.run()
    push = [pack({Slot.PUSH: {"op": op, "a": 4}}) for op in (PushOp.WEIGHTS, PushOp.ROWS_SWAP,
                                                             PushOp.ROWS)]
    bench.load(*[push[0]] * config.tile_vregs, push[1], *[push[2]] * config.result_vregs, HALT)
    assert bench.golden.fault is Fault.FIFO_OVERFLOW
    await bench.run()
    bench.finish(2 * len(bad) + 1 + config.tile_vregs + config.result_vregs)


@bench_test
async def semaphores_hold_a_bundle(dut: HierarchyObject) -> None:
    """The host's signals end waits, and the semaphores have the right counts at the end."""
    bench = await SequencerBench.started(dut)
    amounts = [bench.rng.randint(1, 15) for _ in range(40)]
    waits = [pack({Slot.MISC: {"op": MiscOp.WAIT, "d": number % isa.SEMAPHORES,
                               "b": inline(amount)},
                   Slot.S0: {"op": ScalarOp.ADD, "d": 1, "a": 1, "b": inline(1)}})
             for number, amount in enumerate(amounts)]
    bench.golden.semaphores[:] = 0
    bench.requests.write(Space.SEMAPHORE, bench.golden.semaphores)
    await bench.requests.drain()
    # The golden core gets each amount at once: how the host divides it must not matter.
    for number, amount in enumerate(amounts):
        bench.golden.signal(number % isa.SEMAPHORES, amount)
    bench.load(*waits, HALT)
    await bench.requests.drain()
    await bench.program.start()
    for number, amount in enumerate(amounts):
        await bench.domain.cycles(bench.rng.randint(1, 8))
        assert bench.program.running
        assert bench.program.pc == number, f"bundle {bench.program.pc} is at issue, not {number}"
        first = bench.rng.randint(0, amount)
        for part in (first, amount - first):
            await bench.program.signal(number % isa.SEMAPHORES, part)
        await bench.domain.cycles(2)
    await bench.program.finish(10)
    await bench.compare()
    assert bench.checker.waits["semaphore"] > len(amounts)
    bench.finish(len(amounts) + 1)


@bench_test
async def stops_and_goes_on(dut: HierarchyObject) -> None:
    """Programs have the golden core's results even if the host stops and restarts them."""
    bench = await SequencerBench.started(dut)
    stops = 0
    for number in range(4):
        bench.checker.units.timing = TIMINGS[-1 - number % len(TIMINGS)]
        bench.stabilise()
        bench.new_program(90, fault=False)
        await bench.requests.drain()
        await bench.program.start()
        while True:
            await bench.domain.cycles(bench.rng.randint(1, 30))
            if not bench.program.running:
                break
            await bench.program.stop()
            assert not bench.program.running
            if not bench.checker.golden and not bench.golden.fault:
                break
            stops += 1
            await bench.domain.cycles(bench.rng.randint(1, 5))
            await bench.program.start(bench.program.pc)
        await bench.compare()
    assert stops >= 10
    bench.finish(100)


@bench_test
async def watchdog(dut: HierarchyObject) -> None:
    """An endless wait becomes a fault right after the watchdog's number of cycles."""
    bench = await SequencerBench.started(dut)
    bench.golden.semaphores[5] = 0
    bench.requests.write(Space.SEMAPHORE, [0], at=5)
    wait = pack({Slot.MISC: {"op": MiscOp.WAIT, "d": 5, "b": inline(1)}})
    for limit in (1, 2, 7, 50):
        bench.golden.stop()
        bench.load(*[0] * 5, wait, HALT)
        assert bench.golden.waiting
        bench.program.set_watchdog(limit)
        await bench.requests.drain()
        before = bench.checker.waits["semaphore"]
        await bench.program.start()
        await bench.program.finish(100)
        bench.program.check(5, Fault.WATCHDOG)
        # The bundle could still have issued in the last of these cycles.
        assert bench.checker.waits["semaphore"] - before == limit + 1
    bench.finish(20)


@bench_test
async def host_accesses(dut: HierarchyObject) -> None:
    """Every word has its own address; accesses past a memory's end fail and change nothing."""
    bench = await SequencerBench.started(dut)
    config, numbers = bench.config, bench.numbers
    spaces = {Space.SMEM: bench.golden.smem, Space.SCALAR: bench.golden.scalars,
              Space.SEMAPHORE: bench.golden.semaphores}
    bundles = [int.from_bytes(numbers.bytes(4 * isa.BUNDLE_WORDS), "little") for _ in range(30)]
    places = bench.rng.sample(range(config.imem_bundles), len(bundles))
    bench.requests.source.gap = 0.2
    for place, bundle in zip(places, bundles, strict=True):
        bench.requests.load([bundle], place)
    for space, words in spaces.items():
        for beyond in (len(words), len(words) + 1, (1 << 20) - 1):
            bench.requests.send(True, space, beyond, 0xDEADBEEF, error=True)
            bench.requests.send(False, space, beyond, error=True)
        bench.requests.expect(space, words)
    bench.requests.send(True, Space.IMEM, config.imem_bundles * 16, error=True)
    bench.requests.send(True, Space.IMEM, isa.BUNDLE_WORDS, error=True)
    await bench.requests.drain()
    for place, bundle in zip(places, bundles, strict=True):
        bench.requests.expect(Space.IMEM, bundle_words(bundle), place * 16)
    await bench.requests.drain()
    bench.requests.finish()
    assert bench.requests.checked >= 30 * 2 * isa.BUNDLE_WORDS + config.smem_words


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at a random moment of a program stops everything; later results are correct."""
    bench = await SequencerBench.started(dut)
    for number in range(3):
        bench.checker.units.timing = TIMINGS[number]
        bench.new_program(60, fault=False)
        await bench.requests.drain()
        await bench.program.start()
        await bench.domain.cycles(bench.rng.randint(1, 40))
        await bench.reset()
        bench.new_program(30, fault=False)
        await bench.run()
    bench.finish(60)
