"""Drives a chip's pins, as its host and its memory, and compares the chip with the golden chip."""

import logging
import random
from collections.abc import Iterable, Sequence
from itertools import chain

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from cocotb.task import Task
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam
from cocotbext.axi.stream import StreamPause
from numpy.typing import NDArray

from golden.chip import GoldenChip
from golden.dma import Descriptor
from hdl import isa
from hdl.axi.interface import CONTROL_PREFIX, Resp, hbm_prefix, max_beats
from hdl.chip.registers import CORE_REGISTERS, EVENT_PITCH, EVENTS, address
from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import pack
from hdl.isa import Fault
from sim.asm.assembler import Program
from sim.asm.descriptor import Place, descriptor, hbm, imem, masks, smem, vmem, vreg
from sim.asm.operands import v
from verif.benches.axi.channels import quicken
from verif.benches.axi.memory import BadMemory
from verif.benches.axi.watch import AxiWatch, check_watched
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.models.axi import AxiChecker
from verif.system.programs.bundles import fill_registers, random_words

__all__ = ["WORDS", "ChipBench", "Events"]

WORDS = 256
"""Number of vectors of vector memory that tests use: all that `tiny` has."""
_LIMIT = 20_000
_BUNDLES = 100_000
_HALT = pack({isa.Slot.S1: {"op": isa.ScalarOp.HALT}})
_SEMAPHORE_ADD = CORE_REGISTERS["SEMAPHORE_ADD"]


class Events:
    """Masks of events in the interrupt registers: attributes for core 0, `of` for other cores."""

    STOPPED, FAULT, TRANSFER_DONE, TRANSFER_FAILED = (1 << bit for bit in range(len(EVENTS)))

    @staticmethod
    def of(core: int, events: int) -> int:
        """Shifts the bits of core 0's events to those of another core."""
        return events << EVENT_PITCH * core


class ChipBench:
    """The chip, its host, its memories, and the golden chip.

    Whatever the host writes, starts and transfers on the chip is done to the golden chip, too.

    Attributes
    ----------
    config : Config
    rng, numbers : random.Random, numpy.random.Generator
        Random numbers for the bench's decisions and for its data, seeded with the test's seed.
    domain : ClockDomain
    golden : GoldenChip
    memories : list of BadMemory
        A memory for each channel; all cores share them.
    rams : list of list of AxiRam
        The memory models, by core and channel.
    compared : int
        Number of states that were compared.
    words : int
        Number of vectors of vector memory that are filled and compared.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self.compared = 0
        self.words = config.vmem_vectors
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.cores = range(config.cores)
        self._interrupt = pin(dut, "interrupt")
        self._control = AxiWatch(self.domain, dut, CONTROL_PREFIX, 4, 0)
        self._master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, CONTROL_PREFIX), dut.clk, dut.rst)
        self.memories = [BadMemory(config.hbm_bytes // config.hbm_channels)
                         for _ in range(config.hbm_channels)]
        self.watches: list[AxiWatch] = []
        self.rams: list[list[AxiRam]] = []
        sides = [self._master.write_if, self._master.read_if]
        self._channels: list[StreamPause] = [
            self._master.write_if.aw_channel, self._master.write_if.w_channel,
            self._master.write_if.b_channel, self._master.read_if.ar_channel,
            self._master.read_if.r_channel]
        self._data: list[list[tuple[StreamPause, StreamPause]]] = [[] for _ in self.memories]
        """By channel of memory and core: data of reads and of writes."""
        for core in self.cores:
            self.rams.append([])
            for channel, memory in enumerate(self.memories):
                prefix = hbm_prefix(core, channel)
                self.watches.append(AxiWatch(self.domain, dut, prefix, config.channel_bytes,
                                             max_beats(config)))
                ram = AxiRam(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst,
                             size=len(memory), mem=memory)
                self.rams[-1].append(ram)
                sides += [ram.write_if, ram.read_if]
                self._channels += [ram.write_if.aw_channel, ram.write_if.b_channel,
                                   ram.read_if.ar_channel]
                self._data[channel].append((ram.read_if.r_channel, ram.write_if.w_channel))
        quicken(*sides, log=logging.CRITICAL)
        check_watched(dut, [self._control, *self.watches])
        self._pauses: Task[None] | None = None
        self._descriptors: dict[int, list[int | None]] = {}

    @classmethod
    async def started(cls, dut: HierarchyObject, pause: float = 0.0, *,
                      whole: bool = False) -> "ChipBench":
        """A bench after a reset of the chip; the chip and `golden` have the same random state.

        Of vector memory, only the first `WORDS` vectors are filled and compared, unless ``whole``
        is set, because filling and comparing them takes most of a bench's time.
        """
        bench = cls(dut)
        if not whole:
            bench.words = min(WORDS, bench.words)
        await bench.domain.reset()
        await bench.fill()
        bench.set_pauses(pause)
        return bench

    async def reset(self) -> None:
        """Resets chip, host and memories."""
        await self.domain.reset(4)
        self._descriptors.clear()

    async def fill(self) -> None:
        """Gives both chips the same state, and ends the pauses of all channels."""
        config = self.config
        self.set_pauses(0.0)
        self.golden = GoldenChip(config)
        self._next_row = 0
        self._descriptors = {core: [None] * DESCRIPTOR_WORDS for core in self.cores}
        for memory in self.memories:
            memory.bad.clear()
            bytearray.__setitem__(memory, slice(0, len(memory)), bytes(len(memory)))
        await self.put("INTERRUPT_STATUS", sum(Events.of(core, 7) for core in self.cores))
        program = Program((*fill_registers(config), _HALT), {}).rows(config)
        # Vector memory takes longest, of all cores at once; meanwhile the host writes words.
        for core in self.cores:
            for destination, rows in ((imem(0), program),
                                      (smem(0), self._words(config.smem_words // config.lanes)),
                                      (vmem(0), self._words(self.words * config.sublanes))):
                await self.begin(core, hbm(self.place(rows)), destination, len(rows))
        for core in self.cores:
            scalars = self.golden.cores[core].scalars
            scalars[1:] = self.numbers.integers(0, 1 << 32, len(scalars) - 1, np.uint32)
            await self.write_words(core, Space.SCALAR, scalars[1:], 1)
            await self.write_words(core, Space.SEMAPHORE, [0] * isa.SEMAPHORES)
        await self.rest()
        await self.run()

    def _words(self, rows: int) -> NDArray[np.uint32]:
        return random_words(self.numbers, (rows, self.config.lanes))

    # --- memory

    def allocate(self, rows: int) -> int:
        """Allocates rows of HBM; returns their address."""
        first = self._next_row
        self._next_row += rows
        assert self._next_row <= self.config.hbm_rows
        return first * self.config.row_bytes

    def place(self, rows: NDArray[np.uint32]) -> int:
        """Puts rows into memory; returns their address."""
        where = self.allocate(len(rows))
        first = where // self.config.row_bytes
        self.golden.hbm[first:first + len(rows)] = rows
        size = self.config.channel_bytes
        parts = rows.astype("<u4").view(np.uint8).reshape(len(rows), -1, size)
        for channel, memory in enumerate(self.memories):
            bytearray.__setitem__(memory, slice(first * size, (first + len(rows)) * size),
                                  parts[:, channel].tobytes())
        return where

    def stored(self) -> NDArray[np.uint32]:
        """Contents of memory, an array of shape (hbm_rows, lanes)."""
        parts = [np.frombuffer(memory, "<u4").reshape(self.config.hbm_rows, -1)
                 for memory in self.memories]
        return np.concatenate(parts, axis=1)

    def refuse(self, where: int) -> None:
        """Makes a random memory channel refuse the row at an address."""
        memory = self.rng.choice(self.memories)
        memory.bad.add(where // self.config.row_bytes * self.config.channel_bytes)

    def set_pauses(self, probability: float, *, shared: bool = False) -> None:
        """Sets the probability of a pause of each channel of every port.

        If memory is ``shared``, each of its channels moves data of at most one core in a cycle; the
        core is drawn at random. Otherwise, a channel can move data of all cores at once.
        """
        if self._pauses is not None:
            self._pauses.cancel()
            self._pauses = None
        for channel in chain(self._channels, *chain(*self._data)):
            channel.pause = False
        if probability or shared:
            self._pauses = cocotb.start_soon(self._pause(probability, shared))

    async def _pause(self, probability: float, shared: bool) -> None:
        # One task for all: cocotb takes longer to resume one than this for a cycle.
        rng = self.rng
        while True:
            for channel in self._channels:
                channel.pause = rng.random() < probability
            for cores in self._data:
                turn = rng.randrange(len(cores)) if rng.random() >= probability else None
                for core, channels in enumerate(cores):
                    for channel in channels:
                        channel.pause = (core != turn if shared
                                         else rng.random() < probability)
            await self.domain.edge

    def stall_reads(self, core: int, stalled: bool) -> None:
        """Stops or resumes memory's answers to a core's reads.

        Random pauses (`set_pauses`) must be off: they would end the stop.
        """
        for ram in self.rams[core]:
            ram.read_if.r_channel.pause = stalled

    # --- registers

    async def put(self, name: str, data: int, core: int | None = None, *,
                  refused: bool = False) -> None:
        """Writes a register; asserts that the chip accepts it, or refuses it if ``refused``."""
        answer = await self._master.write(address(name, core), data.to_bytes(4, "little"))
        assert answer.resp == (Resp.SLVERR if refused else Resp.OKAY), (
            f"write of {data:#x} to {name} of core {core}: {answer.resp!r}")

    async def get(self, name: str, core: int | None = None, *, refused: bool = False) -> int:
        """Reads a register; asserts that the chip accepts it, or refuses it if ``refused``."""
        answer = await self._master.read(address(name, core), 4)
        assert answer.resp == (Resp.SLVERR if refused else Resp.OKAY), (
            f"read of {name} of core {core}: {answer.resp!r}")
        return int.from_bytes(answer.data, "little")

    async def command(self, core: int, *names: str, refused: bool = False) -> None:
        """Gives commands to a core, all in one write of CONTROL."""
        control = CORE_REGISTERS["CONTROL"]
        await self.put("CONTROL", control.pack(**dict.fromkeys(names, 1)), core, refused=refused)

    async def status(self, core: int) -> dict[str, int]:
        """Fields of STATUS."""
        return CORE_REGISTERS["STATUS"].unpack(await self.get("STATUS", core))

    async def until(self, core: int, **fields: int) -> dict[str, int]:
        """Polls STATUS until its fields have these values.

        Raises
        ------
        AssertionError
            If the fields do not have these values after many cycles.
        """
        start = self.domain.now
        while True:
            status = await self.status(core)
            if all(status[name] == value for name, value in fields.items()):
                return status
            assert self.domain.now < start + _LIMIT, f"core {core}: {status}, wanted {fields}"

    async def line(self) -> bool:
        """The level of the interrupt line, after all events so far have reached it."""
        await self.domain.cycles(3)
        return bool(self._interrupt.value)

    async def point(self, core: int, space: Space, place: int) -> None:
        """Sets ACCESS_ADDRESS."""
        await self.put("ACCESS_ADDRESS", CORE_REGISTERS["ACCESS_ADDRESS"].pack(
            SPACE=space, ADDRESS=place), core)

    async def write_words(self, core: int, space: Space, words: Iterable[int],
                          at: int = 0) -> None:
        """Writes successive words of the simulated chip, not of the golden one."""
        await self.point(core, space, at)
        for word in words:
            await self.put("ACCESS_DATA", int(word), core)

    async def read_words(self, core: int, space: Space, count: int, at: int = 0) -> list[int]:
        """Reads successive words."""
        await self.point(core, space, at)
        return [await self.get("ACCESS_DATA", core) for _ in range(count)]

    async def add(self, core: int, semaphore: int, amount: int) -> None:
        """Adds to a semaphore."""
        await self.put("SEMAPHORE_ADD", _SEMAPHORE_ADD.pack(INDEX=semaphore, AMOUNT=amount), core)
        self.golden.cores[core].signal(semaphore, amount)

    # --- transfers and programs

    async def transfer(self, core: int, words: Sequence[int], *, fault: Fault = Fault.NONE,
                       golden: bool = True) -> None:
        """Starts a transfer; with a ``fault``, checks that the chip refuses it for this fault."""
        for number, word in enumerate(words):
            if self._descriptors[core][number] != word:
                await self.put(f"DMA_DESCRIPTOR_{number}", word, core)
                self._descriptors[core][number] = word
        await self.put("DMA_START", 1, core, refused=fault is not Fault.NONE)
        assert await self.get("DMA_FAULT", core) == fault
        if golden:
            assert self.golden.cores[core].transfer(Descriptor.unpack(words)) is fault

    async def begin(self, core: int, source: Place, destination: Place, rows: int) -> None:
        """Starts a transfer of rows."""
        await self.transfer(core, descriptor(self.config, source, destination, rows=rows))

    async def rest(self) -> None:
        """Waits until no transfer is under way."""
        for core in self.cores:
            await self.until(core, DMA_BUSY=0)

    async def copy(self, core: int, source: Place, destination: Place, rows: int) -> None:
        """Transfers rows and waits for the end."""
        await self.begin(core, source, destination, rows)
        await self.until(core, DMA_BUSY=0)

    async def upload(self, core: int, rows: NDArray[np.uint32], destination: Place) -> None:
        """Puts rows into HBM, and transfers them from there to a memory of a core."""
        await self.copy(core, hbm(self.place(rows)), destination, len(rows))

    async def load(self, core: int, bundles: Sequence[int]) -> None:
        """Puts a program into instruction memory."""
        program = Program(tuple(bundles), {})
        await self.upload(core, program.rows(self.config), imem(0))

    async def start(self, *cores: int, pc: int = 0) -> None:
        """Starts programs."""
        for core in cores:
            await self.put("START_PC", pc, core)
            self.golden.cores[core].start(pc)
        for core in cores:
            await self.command(core, "START")

    async def finish(self) -> None:
        """Waits until all programs that stop on the golden chip, and all transfers, have ended.

        A program that the golden chip leaves waiting for a semaphore must wait here, too.
        """
        self.golden.run(_BUNDLES)
        for core in self.cores:
            golden = self.golden.cores[core]
            if golden.running:
                assert golden.waiting
                await self.until(core, RUNNING=1, WAITING=1, DMA_BUSY=0)
            else:
                await self.until(core, RUNNING=0, IDLE=1, DMA_BUSY=0)

    async def run(self, *, pc: int = 0) -> None:
        """Runs the programs of all cores to their end."""
        await self.start(*self.cores, pc=pc)
        await self.finish()

    async def compare(self) -> None:
        """Compares all state with the golden chip's, after a copy of the cores' memories to HBM.

        From then on, the ports have no pauses (`set_pauses`).

        Raises
        ------
        AssertionError
            If any state differs.
        """
        config = self.config
        self.set_pauses(0.0)
        for core in self.cores:
            golden = self.golden.cores[core]
            status = await self.status(core)
            assert (status["RUNNING"], status["FAULT"]) == (golden.running, golden.fault), (
                f"core {core}: {status}")
            registers = config.sublanes * isa.VECTOR_REGISTERS
            for source, rows in ((vmem(0), self.words * config.sublanes),
                                 (vreg(v[0]), registers), (masks(), config.sublanes),
                                 (smem(0), config.smem_words // config.lanes)):
                await self.begin(core, source, hbm(self.allocate(rows)), rows)
        # Words are read while the transfers are under way.
        for core in self.cores:
            golden = self.golden.cores[core]
            assert await self.get("PC", core) == golden.pc
            for space, expected in ((Space.SCALAR, golden.scalars),
                                    (Space.SEMAPHORE, golden.semaphores)):
                if space is Space.SEMAPHORE or not golden.running:
                    got = await self.read_words(core, space, len(expected))
                    assert got == expected.tolist(), f"core {core}, {space.name}"
        await self.rest()
        self.compare_memory()
        self.compared += 1

    def compare_memory(self) -> None:
        """Compares all of HBM with the golden chip's."""
        differ = self.stored() != self.golden.hbm
        if differ.any():
            wrong = np.argwhere(differ)
            raise AssertionError(f"{len(wrong)} words differ, the first at {wrong[0].tolist()}")

    def port(self, core: int, channel: int = 0) -> AxiChecker:
        """The `AxiChecker` of a core's port to one channel of memory."""
        return self.watches[core * self.config.hbm_channels + channel].checker

    def finished(self) -> None:
        """Ends the test: every port must be idle, and every channel must have carried something."""
        for watch in (self._control, *self.watches):
            watch.finish()
