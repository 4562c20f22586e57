"""Benches of the chip through its pins alone: AXI4-Lite, AXI4 memories, interrupt line.

The host transfers programs and data to the chip. After each run, the state of both cores and all of
memory are compared with the golden chip. An `AxiChecker` watches every port.
"""

from collections.abc import Sequence

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject

from hdl import isa
from hdl.axi.interface import max_beats
from hdl.chip.registers import CORE_REGISTERS, COUNTER_REGISTERS, IDENTITY, parameters
from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.isa import Fault
from sim.asm.descriptor import Place, descriptor, hbm, imem, masks, other_vmem, smem, vmem, vreg
from sim.asm.operands import sem, v
from sim.asm.text import assemble
from verif.benches.chip.chip import WORDS, ChipBench, Events
from verif.system.programs.bundles import random_words
from verif.system.programs.streams import STREAM_ROWS, STREAMS, streaming

bench_test = cocotb.test(timeout_time=10_000, timeout_unit="us")

TRANSFERS = 10
"""Number of transfers of each core while both cores contend."""
PITCH = DESCRIPTOR_WORDS


def bundles(config: Config, text: str) -> tuple[int, ...]:
    return assemble(text, config).bundles


async def put_descriptors(bench: ChipBench, core: int, made: Sequence[tuple[int, ...]]) -> None:
    """Puts descriptors into scalar memory, from word 0 on."""
    words = np.array([word for one in made for word in one], np.uint32)
    rows = np.zeros((-(-len(words) // bench.config.lanes), bench.config.lanes), np.uint32)
    rows.reshape(-1)[:len(words)] = words
    await bench.upload(core, rows, smem(0))


def exchange(config: Config) -> str:
    """Program that multiplies two tiles, and adds its product to the other core's product."""
    tile = config.tile_vregs
    w, x, own, other, total = (tile * number for number in range(5))

    def each(line: str) -> str:
        return "\n".join(line.format(r=1 + i, w=w + i, x=x + i, own=own + i, other=other + i,
                                     total=total + i, q=10 + i) for i in range(tile))

    return "\n".join((
        "{ misc.dma 0 } { misc.dma 10 } { misc.wait sem0, 2 }",
        each("{{ ld.load v{r}, s0, {w} }}"), each("{{ push.weights v{r} }}"),
        each("{{ ld.load v{r}, s0, {x} }}"),
        "{ push.rows_swap v1 }", *(f"{{ push.rows v{1 + i} }}" for i in range(1, tile)),
        each("{{ pop.pop v{q} }}"), each("{{ st.store v{q}, s0, {own} }}"),
        "{ misc.signal_other sem1, 1 } { misc.wait sem1, 1 } { misc.dma 20 } { misc.wait sem2, 1 }",
        each("{{ ld.load v{r}, s0, {other} }}"), each("{{ v0.fadd v{q}, v{q}, v{r} }}"),
        each("{{ st.store v{q}, s0, {total} }}"),
        # Each tells the other, which may then end.
        "{ misc.dma 30 } { misc.wait sem3, 2 | s1.halt }"))


async def prepare_exchange(bench: ChipBench) -> list[int]:
    """Loads `exchange` and its operands on both cores; returns the results' addresses."""
    config = bench.config
    tile, rows = config.tile_vregs, config.array
    results = []
    for core in bench.cores:
        operands = bench.numbers.standard_normal((2, rows, config.lanes), np.float32)
        w, x = (bench.place(one.view(np.uint32)) for one in operands)
        results.append(bench.allocate(rows))
        await put_descriptors(bench, core, (
            descriptor(config, hbm(w), vmem(0), rows=rows, semaphore=sem[0]),
            descriptor(config, hbm(x), vmem(tile), rows=rows, semaphore=sem[0]),
            descriptor(config, other_vmem(2 * tile), vmem(3 * tile), rows=rows, semaphore=sem[2]),
            descriptor(config, vmem(4 * tile), hbm(results[-1]), rows=rows, semaphore=sem[3],
                       other_semaphore=sem[3])))
        await bench.load(core, bundles(config, exchange(config)))
    return results


async def run_exchange(bench: ChipBench) -> None:
    """Runs the program of `exchange` on both cores, and compares everything."""
    results = await prepare_exchange(bench)
    await bench.run()
    await bench.compare()
    first, second = (bench.stored()[where // bench.config.row_bytes:][:bench.config.array]
                     for where in results)
    # a + b = b + a, so both have the same sums.
    assert (first == second).all()
    assert first.view(np.float32).std() > 0


class Contention:
    """Programs that load and store while both DMA engines use both vector memories.

    In each vector memory, transfers read vectors 0 to 63 and write later ones. No two transfers
    write the same vector. The program uses only the last 32 of the first `WORDS` vectors.

    Parameters
    ----------
    bench : ChipBench
    together : bool
        Whether the cores signal each other, and so end together.
    """

    def __init__(self, bench: ChipBench, *, together: bool) -> None:
        self._bench = bench
        self._together = together
        self.own: list[list[tuple[int, int]]] = [[] for _ in bench.cores]
        """For each core, ranges of rows of HBM (first, count): its transfers write them, and read
        nothing from the other core's memories."""

    async def load(self) -> None:
        """Loads both programs."""
        bench = self._bench
        made = [[self._descriptor(core, number) for number in range(TRANSFERS)]
                for core in bench.cores]
        self._others = [sum(bool(one[0] >> 13 & 1) for one in made[1 - core])
                        for core in bench.cores]
        for core in bench.cores:
            await put_descriptors(bench, core, made[core])
            await bench.load(core, bundles(bench.config, self._text(core)))

    def _text(self, core: int) -> str:
        last = WORDS - 32
        signals = TRANSFERS + (self._others[core] if self._together else 0)
        lines = [
            f"{{ s0.add s1, s0, {TRANSFERS} | s1.add s2, s0, 0 }}",
            "again:",
            f"{{ misc.dma s2 | s0.add s2, s2, {PITCH} | ld.load v5, s0, {last} "
            f"| st.store v6, s0, {last + 2} }}",
            "{ s0.add s3, s0, 6 }",
            f"inner: {{ ld.load v6, s0, {last + 1} | st.store v5, s0, {last + 3} "
            "| s1.loop s3, inner }",
            "{ misc.signal_other sem9, 3 }" if self._together else "{ }",
            "{ s1.loop s1, again }",
            f"{{ misc.wait sem4, {signals} }}"]
        if self._together:
            lines.append("{ misc.signal_other sem5, 1 } { misc.wait sem5, 1 }")
        return "\n".join([*lines, "{ s1.halt }"])

    def _descriptor(self, core: int, number: int) -> tuple[int, ...]:
        bench = self._bench
        config, rng = bench.config, bench.rng
        words = rng.randint(1, 8)
        rows = words * config.sublanes
        small = number % 5 == 4
        if small:  # scalar memory is small, and goes slowly
            words, rows = 1, config.sublanes
        # The first two write and read the other's memory; what the others do is left to chance.
        source_space, space = (("hbm", "other_vmem"), ("other_vmem", "hbm"))[number] if (
            number < 2) else (rng.choice(("smem", "vreg", "masks") if small
                                         else ("hbm", "vmem", "other_vmem")), "")
        runs = rng.choice(({}, {"run": 1, "stride": rng.randint(1, 2)}))
        source = {
            "hbm": lambda: hbm(bench.place(random_words(bench.numbers, (rows, config.lanes)))),
            "vmem": lambda: vmem(rng.randrange(40), **runs),
            "other_vmem": lambda: other_vmem(rng.randrange(40), **runs),
            "smem": lambda: smem(rng.randrange(TRANSFERS * PITCH)),
            "vreg": lambda: vreg(v[rng.randrange(10, 31)]),
            "masks": masks,
        }[source_space]()
        slot = 64 + 8 * number
        spaces = ["hbm", "vmem", "other_vmem"]
        if source.space is DmaSpace.HBM:
            spaces += ["imem", "smem"] if number % 2 else ["vmem", "other_vmem"]
        space = space or rng.choice(spaces)
        if space == "smem":
            rows = 1
        destination: Place = {
            "hbm": lambda: self._result(core, rows, source),
            "vmem": lambda: vmem(slot),
            "other_vmem": lambda: other_vmem(slot + 8 * TRANSFERS),
            "imem": lambda: imem(50 + 20 * number),
            "smem": lambda: smem(TRANSFERS * PITCH + config.lanes * number),
        }[space]()
        other = sem[4] if self._together and rng.random() < 0.4 else None
        return descriptor(config, source, destination, rows=rows, semaphore=sem[4],
                          other_semaphore=other)

    def _result(self, core: int, rows: int, source: Place) -> Place:
        where = self._bench.allocate(rows)
        if source.space is not DmaSpace.OTHER_VMEM:
            self.own[core].append((where // self._bench.config.row_bytes, rows))
        return hbm(where)

    def check_own(self, core: int) -> None:
        """Checks the rows of HBM that a core wrote and that do not depend on the other core."""
        memory = self._bench.stored()
        for first, rows in self.own[core]:
            assert (memory[first:first + rows] == self._bench.golden.hbm[first:first + rows]).all()


@bench_test
async def which_chip_it_is(dut: HierarchyObject) -> None:
    """After a reset the cores are stopped and idle, and the host reaches their memories."""
    bench = await ChipBench.started(dut)
    assert await bench.get("ID") == IDENTITY
    for name, value in parameters(bench.config).items():
        assert await bench.get(name) == value, name
    for core in bench.cores:
        assert await bench.status(core) == {
            "RUNNING": 0, "WAITING": 0, "IDLE": 1, "DMA_BUSY": 0, "RESETTING": 0, "FAULT": 0}
        words = [bench.rng.getrandbits(32) for _ in range(2 * isa.BUNDLE_WORDS)]
        await bench.write_words(core, Space.IMEM, words, 3 << 4)
        assert await bench.read_words(core, Space.IMEM, len(words), 3 << 4) == words
        await bench.point(core, Space.SMEM, bench.config.smem_words)
        await bench.get("ACCESS_DATA", core, refused=True)
    await bench.compare()
    bench.finished()


@bench_test
async def two_cores_multiply_and_exchange(dut: HierarchyObject) -> None:
    """Cores load tiles, exchange products and store sums, at several speeds of memory."""
    bench = await ChipBench.started(dut)
    pauses = 0.3, 0.0, 0.7
    for pause in pauses:
        bench.set_pauses(pause)
        await bench.command(0, "CLEAR_COUNTERS")
        await run_exchange(bench)
        # All values come from the moment at which the first is read.
        counts = {name: await bench.get(f"{name}_LO", 0) | await bench.get(f"{name}_HI", 0) << 32
                  for name in COUNTER_REGISTERS}
        assert counts["CYCLES"] == sum(counts.values()) - counts["CYCLES"]
        assert counts["MXU_ACTIVE_CYCLES"] == bench.config.array
        assert counts["SEMAPHORE_WAIT_CYCLES"] > 0
    assert bench.compared == len(pauses)
    bench.finished()


@bench_test
async def cores_contend(dut: HierarchyObject) -> None:
    """Programs, both engines and the host use all memories at once; nothing is lost or mixed."""
    bench = await ChipBench.started(dut, whole=True)
    speeds = (0.4, True), (0.0, False), (0.2, True)
    for pause, shared in speeds:
        contention = Contention(bench, together=True)
        await contention.load()
        bench.set_pauses(pause, shared=shared)
        await bench.start(*bench.cores)
        for number in range(6):
            core = number % 2
            amount = bench.rng.randrange(1000)
            await bench.add(core, 9, amount)
            at = bench.rng.randrange(TRANSFERS * PITCH)
            golden = bench.golden.cores[core]
            assert await bench.read_words(core, Space.SMEM, 2, at) == golden.smem[
                at:at + 2].tolist()
        await bench.finish()
        assert not any(golden.running for golden in bench.golden.cores)
        await bench.compare()
    assert bench.compared == len(speeds)
    bench.finished()


class Pace:
    """Counts the beats that each core's ports read or wrote, cycle by cycle.

    Parameters
    ----------
    bench : ChipBench
    channel : str
        "r" or "w".
    """

    def __init__(self, bench: ChipBench, channel: str) -> None:
        self._bench = bench
        self._channel = channel
        self._beats: list[list[int]] = []
        self._task = cocotb.start_soon(self._run())

    async def _run(self) -> None:
        bench = self._bench
        while True:
            self._beats.append([bench.port(core).transfers[self._channel] for core in bench.cores])
            await bench.domain.edge

    def check(self) -> None:
        """Checks that both cores moved about the same number of beats, and neither waited long.

        Only the time in which both cores had beats left counts. A vector memory serves the cores in
        turn, and the HBM here gives both the same number of beats in the long run. A port requests
        its next burst when its buffer has room. Until then, a burst of its own and a burst of the
        other core may be served. The limit of a wait is twice the beats of these two bursts.
        """
        self._task.cancel()
        moved = np.diff(np.array(self._beats), axis=0)
        cycles = [np.flatnonzero(one) for one in moved.T]
        first, last = max(one[0] for one in cycles), min(one[-1] for one in cycles)
        cycles = [one[(one >= first) & (one <= last)] for one in cycles]
        beats = [len(one) for one in cycles]
        waits = [int(np.diff(one).max()) for one in cycles]
        cocotb.log.info("beats of %s: %s, longest waits %s", self._channel, beats, waits)
        assert min(beats) > 0.8 * STREAMS * STREAM_ROWS, beats
        assert max(waits) <= 4 * max_beats(self._bench.config), waits


async def stream(bench: ChipBench, victim: int, *, reads: bool) -> None:
    """Both engines move rows between HBM and the victim's vector memory, which its program uses."""
    config = bench.config
    rows = STREAM_ROWS
    for core in bench.cores:
        outside = [hbm(bench.place(random_words(bench.numbers, (rows, config.lanes))) if reads
                       else bench.allocate(rows)) for _ in range(STREAMS)]
        text, made = streaming(config, core, victim, outside, WORDS - 32, reads=reads)
        await put_descriptors(bench, core, made)
        await bench.load(core, bundles(config, text))
    pace = Pace(bench, "r" if reads else "w")
    await bench.run()
    pace.check()


@bench_test
async def neither_core_starves(dut: HierarchyObject) -> None:
    """Both cores saturate one vector memory, or HBM that serves a random core in each cycle."""
    bench = await ChipBench.started(dut)
    for victim, shared in ((0, True), (0, False), (1, False)):
        bench.set_pauses(0.3 if shared else 0.0, shared=shared)
        # What is read goes back to memory, where it is compared.
        await stream(bench, victim, reads=True)
        await stream(bench, victim, reads=False)
        bench.compare_memory()
    await bench.compare()
    bench.finished()


@bench_test
async def descriptors_with_faults(dut: HierarchyObject) -> None:
    """A wrong descriptor of a program stops the core at its bundle; one of the host is refused."""
    bench = await ChipBench.started(dut)
    config = bench.config
    good = descriptor(config, hbm(0), vmem(3), rows=config.sublanes, semaphore=sem[1])
    bad = {
        Fault.DMA_DESCRIPTOR: (good[0] | 1 << 20, *good[1:]),
        Fault.DMA_ALIGNMENT: (*good[:2], config.row_bytes // 2, *good[3:]),
        Fault.DMA_RANGE: (*good[:6], config.vmem_vectors, *good[7:]),
    }
    await bench.put("INTERRUPT_ENABLE", Events.of(1, Events.FAULT))
    for fault, words in bad.items():
        await bench.transfer(0, words, fault=fault)
        await put_descriptors(bench, 1, (good, words))
        await bench.load(1, bundles(config, "{ misc.dma 0 } { misc.wait sem1, 1 } "
                                    f"{{ misc.dma {PITCH} | s0.add s4, s0, 77 }} {{ s1.halt }}"))
        assert not await bench.line()
        await bench.start(1)
        await bench.finish()
        assert (await bench.status(1))["FAULT"] == fault
        assert await bench.line()
        await bench.put("INTERRUPT_STATUS", Events.of(1, Events.FAULT))
        await bench.compare()
    assert bench.compared == len(bad)
    bench.finished()


@bench_test
async def refused_by_memory(dut: HierarchyObject) -> None:
    """Memory refuses a transfer: the transfer signals nothing, its core stops, all else goes on."""
    bench = await ChipBench.started(dut, 0.2)
    config = bench.config
    rows = 4 * config.sublanes
    await bench.put("INTERRUPT_ENABLE", Events.of(0, Events.FAULT))
    for reads in (True, False):
        where = bench.allocate(rows)
        bench.refuse(where + bench.rng.randrange(rows) * config.row_bytes)
        sides = (hbm(where), vmem(3)) if reads else (vmem(3), hbm(where))
        words = descriptor(config, *sides, rows=rows, semaphore=sem[1], other_semaphore=sem[1])
        # Of a program: it stops where it waits.
        await put_descriptors(bench, 0, (words,))
        await bench.load(0, bundles(config, "{ misc.dma 0 } { misc.wait sem1, 1 } { s1.halt }"))
        for from_host in (False, True):
            if from_host:
                await bench.transfer(0, words, golden=False)
            else:
                await bench.command(0, "START")
            status = await bench.until(0, FAULT=Fault.BUS_ERROR, DMA_BUSY=0)
            assert not status["RUNNING"]
            if not from_host:
                assert await bench.get("PC", 0) == 1
            assert await bench.line()
            for core in bench.cores:
                assert await bench.read_words(core, Space.SEMAPHORE, 2) == [0, 0]
            # A start clears the fault.
            await bench.load(0, bundles(config, "{ s1.halt }"))
            await bench.command(0, "START")
            await bench.until(0, RUNNING=0, FAULT=0)
            await bench.put("INTERRUPT_STATUS", 0x707)
            assert not await bench.line()
            await bench.load(0, bundles(config, "{ misc.dma 0 } { misc.wait sem1, 1 } { s1.halt }"))
    await bench.fill()
    await run_exchange(bench)
    bench.finished()


@bench_test
async def waits_that_end_otherwise(dut: HierarchyObject) -> None:
    """Waits end by the watchdog, the host's signal, a stop, or an overflow by the other core."""
    bench = await ChipBench.started(dut)
    config = bench.config
    text = "{ misc.wait sem2, 5 } { s0.add s4, s0, 9 | s1.halt }"
    for core in bench.cores:
        await bench.load(core, bundles(config, text))
    await bench.put("WATCHDOG", 200, 0)
    await bench.start(*bench.cores)
    await bench.until(0, FAULT=Fault.WATCHDOG, RUNNING=0)
    await bench.until(1, FAULT=0, RUNNING=1, WAITING=1)
    bench.golden.run(100)
    assert all(golden.waiting for golden in bench.golden.cores)
    await bench.put("WATCHDOG", 0, 0)
    bench.golden.cores[0].stop()
    await bench.start(0)
    for core in bench.cores:
        await bench.add(core, 2, 5)
    await bench.finish()
    await bench.compare()
    # A program that is stopped goes on as if it had not been.
    await bench.start(1)
    await bench.until(1, WAITING=1)
    await bench.command(1, "STOP")
    await bench.until(1, RUNNING=0)
    await bench.add(1, 2, 5)
    await bench.command(1, "START")
    await bench.finish()
    await bench.compare()
    await bench.write_words(1, Space.SEMAPHORE, [0xFFFF_FFF0], 7)
    bench.golden.cores[1].semaphores[7] = 0xFFFF_FFF0
    await bench.load(0, bundles(config, "{ misc.signal_other sem7, 0xF } "
                                "{ misc.signal_other sem7, 1 } { s1.halt }"))
    await bench.start(0)
    await bench.finish()
    await bench.until(1, FAULT=Fault.SEMAPHORE)
    await bench.compare()
    assert bench.compared == 3
    bench.finished()


@bench_test
async def interrupt_and_poll(dut: HierarchyObject) -> None:
    """Each event sets its bit once, and also the interrupt line if the event is enabled."""
    bench = await ChipBench.started(dut)
    config = bench.config
    rows = 6 * config.sublanes
    for core in bench.cores:
        await bench.load(core, bundles(config, "{ s1.halt }"))
    await bench.put("INTERRUPT_STATUS", 0x707)
    assert await bench.get("INTERRUPT_STATUS") == 0
    for core in bench.cores:
        source = hbm(bench.place(random_words(bench.numbers, (rows, config.lanes))))
        for event in (Events.TRANSFER_DONE, Events.STOPPED):
            for enabled in (False, True):
                await bench.put("INTERRUPT_ENABLE", Events.of(core, event) if enabled
                                else Events.of(core, 7 & ~event) | Events.of(1 - core, 7))
                if event == Events.STOPPED:
                    await bench.start(core)
                    await bench.finish()
                else:
                    await bench.copy(core, source, vmem(9), rows)
                assert await bench.line() == enabled
                assert await bench.get("INTERRUPT_STATUS") == Events.of(core, event)
                await bench.put("INTERRUPT_STATUS", Events.of(core, event))
                assert not await bench.line()
    # A transfer of a program is none of the host's.
    await put_descriptors(bench, 0, (
        descriptor(config, vmem(9), vmem(1), rows=rows, semaphore=sem[8]),))
    await bench.load(0, bundles(config, "{ misc.dma 0 } { misc.wait sem8, 1 } { s1.halt }"))
    await bench.put("INTERRUPT_STATUS", 0x707)
    await bench.start(0)
    await bench.finish()
    assert await bench.get("INTERRUPT_STATUS") == Events.of(0, Events.STOPPED)
    await bench.compare()
    bench.finished()


@bench_test
async def reset_of_one_core(dut: HierarchyObject) -> None:
    """After a reset of one core at any moment, the other core goes on, and both work."""
    bench = await ChipBench.started(dut)
    busy, count = 0, 6
    for number in range(count):
        victim = number % 2
        bench.set_pauses(bench.rng.choice((0.0, 0.3)))
        contention = Contention(bench, together=False)
        await contention.load()
        await bench.start(*bench.cores)
        await bench.domain.cycles(bench.rng.randint(0, 250))
        busy += (await bench.status(victim))["RUNNING"]
        await bench.command(victim, "RESET")
        status = await bench.until(victim, RESETTING=0)
        assert status == {"RUNNING": 0, "WAITING": 0, "IDLE": 1, "DMA_BUSY": 0, "RESETTING": 0,
                          "FAULT": 0}
        assert await bench.get("PC", victim) == 0
        # No other signals are left over than those of the core that goes on.
        assert await bench.read_words(victim, Space.SEMAPHORE, isa.SEMAPHORES) == [
            0] * isa.SEMAPHORES
        survivor = 1 - victim
        await bench.until(survivor, RUNNING=0, DMA_BUSY=0, FAULT=0)
        bench.golden.run(100_000)
        contention.check_own(survivor)
        await bench.fill()
        await run_exchange(bench)
    assert busy >= count // 2
    assert bench.compared == count
    bench.finished()


@bench_test
async def reset_waits_for_memory(dut: HierarchyObject) -> None:
    """A core in reset accepts nothing until memory has answered; then its reset is complete."""
    bench = await ChipBench.started(dut)
    config = bench.config
    rows = 20 * config.sublanes
    control = CORE_REGISTERS["CONTROL"]
    for victims in ((0,), (1,), (0, 1)):
        for core in victims:
            bench.stall_reads(core, True)
            source = hbm(bench.place(random_words(bench.numbers, (rows, config.lanes))))
            for slot in range(3):
                await bench.transfer(core, descriptor(config, source, vmem(20 * slot), rows=rows),
                                     golden=False)
            await bench.add(core, 3, 7)
        for core in victims:
            await bench.command(core, "RESET")
        for core in victims:
            for _ in range(3):
                assert (await bench.status(core))["RESETTING"]
                await bench.command(core, "START", refused=True)
                await bench.put("SEMAPHORE_ADD", 1, core, refused=True)
                await bench.put("DMA_START", 1, core, refused=True)
                assert await bench.get("DMA_FAULT", core) == CORE_REGISTERS["DMA_FAULT"].pack(
                    BUSY=1)
                await bench.get("ACCESS_DATA", core, refused=True)
            # Once more, meanwhile: nothing more happens.
            await bench.put("CONTROL", control.pack(RESET=1, CLEAR_COUNTERS=1), core)
            bench.stall_reads(core, False)
        for core in victims:
            assert not (await bench.until(core, RESETTING=0))["DMA_BUSY"]
            assert await bench.read_words(core, Space.SEMAPHORE, 4) == [0] * 4
        await bench.fill()
        await run_exchange(bench)
    assert bench.compared == 3
    bench.finished()


@bench_test
async def reset_of_the_chip(dut: HierarchyObject) -> None:
    """After a reset of chip and memory at any moment, everything starts anew."""
    bench = await ChipBench.started(dut)
    count = 3
    for _ in range(count):
        await Contention(bench, together=True).load()
        bench.set_pauses(0.2)
        await bench.start(*bench.cores)
        await bench.domain.cycles(bench.rng.randint(10, 800))
        await bench.reset()
        for core in bench.cores:
            status = await bench.status(core)
            assert not any(status[name] for name in ("RUNNING", "DMA_BUSY", "FAULT"))
            assert await bench.get("START_PC", core) == 0
        await bench.fill()
        await run_exchange(bench)
    assert bench.compared == count
    bench.finished()
