"""Benches of the control slave between a master of `cocotbext.axi` and models of the cores.

An `AxiChecker` watches the port; all channels and the cores pause at random.
"""

import logging
import random

import cocotb
from cocotb.handle import HierarchyObject
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from hdl.axi.interface import CONTROL_PREFIX, Resp
from hdl.chip.registers import (
    CORE_REGISTERS,
    COUNTER_REGISTERS,
    EVENT_PITCH,
    GLOBAL_REGISTERS,
    IDENTITY,
    WAIT_CYCLES,
    Access,
    Register,
    address,
    parameters,
)
from hdl.config import Config
from hdl.core.counters import COUNTERS
from hdl.core.interface import REQUEST_ADDRESS_BITS, Space
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.isa import BUNDLE_WORDS, SCALAR_REGISTERS, SEMAPHORES, Fault
from verif.benches.axi.channels import quicken
from verif.benches.axi.pauses import Pauses
from verif.benches.axi.watch import AxiWatch, check_watched
from verif.benches.clocking import ClockDomain, Pin, config_argument, int_reader, pin

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")

_PULSES = ("start", "stop", "clear_counters", "reset_request")
_STATES = ("running", "waiting", "idle", "dma_busy", "resetting", "transfer_done",
           "transfer_failed", "fault", "pc")
_OFFERS = ("request", "signal", "host")


class CoreStub:
    """A core as the slave sees it: words, semaphores, transfers, counters.

    Attributes
    ----------
    words : dict of (space, address) to int
        All words of the core.
    pulses : list of str
        Commands, in order of arrival.
    additions : list of (index, amount)
    transfers : list of int
        Descriptors that the core has accepted.
    fault : Fault
        Fault of all later transfers.
    pause : float
        Probability that the core does not accept an offer in a cycle, 0 to 1.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, number: int,
                 config: Config, rng: random.Random) -> None:
        def port(name: str) -> Pin:
            return pin(dut, f"core__{number}__{name}")

        self.words: dict[tuple[int, int], int] = {
            (space, place): 0 for space, places in spaces(config).items() for place in places}
        self.pulses: list[str] = []
        self.additions: list[tuple[int, int]] = []
        self.transfers: list[int] = []
        self.fault = Fault.NONE
        self.pause = 0.0
        self._domain = domain
        self._rng = rng
        self._commands = {name: port(name) for name in _PULSES}
        self._states = {name: port(name) for name in _STATES}
        self._valid = {"request": port("request__valid"), "signal": port("signal__valid"),
                       "host": port("host_valid")}
        self._ready = {"request": port("request__ready"), "signal": port("signal__ready"),
                       "host": port("host_ready")}
        self._payload = {"request": port("request__payload"), "signal": port("signal__payload"),
                         "host": port("host_descriptor")}
        self._response = {name: port(f"response__{name}") for name in ("valid", "error", "data")}
        self._read_commands, self._read_valid, self._read_payload = (
            {name: int_reader(one) for name, one in ports.items()}
            for ports in (self._commands, self._valid, self._payload))
        self._host_fault = port("host_fault")
        self._counters = [port("cycles"), *(port(name) for name in COUNTERS)]
        self.counts = [0] * len(self._counters)
        self.outputs = {name: port(name) for name in ("start_pc", "watchdog")}
        self._respond(0, 0, 0)
        self.show(**dict.fromkeys(_STATES, 0))
        cocotb.start_soon(self._run())

    def show(self, **states: int) -> None:
        """Sets the core's state from now on."""
        for name, value in states.items():
            self._states[name].value = value

    def clear(self) -> None:
        """Forgets the commands, additions and transfers."""
        self.pulses.clear()
        self.additions.clear()
        self.transfers.clear()

    def _respond(self, valid: int, error: int, data: int) -> None:
        for name, value in (("valid", valid), ("error", error), ("data", data)):
            self._response[name].value = value

    async def _run(self) -> None:
        ready = dict.fromkeys(_OFFERS, False)
        while True:
            for name in _OFFERS:
                ready[name] = self._rng.random() >= self.pause
                self._ready[name].value = int(ready[name])
            self._host_fault.value = self.fault
            for counter, count in zip(self._counters, self.counts, strict=True):
                counter.value = count
            await self._domain.edge
            self._respond(0, 0, 0)
            # One cause has each cycle.
            self.counts[0] += 1
            self.counts[self._rng.randint(1, len(COUNTERS))] += 1
            if self._domain.resetting:
                continue
            self.pulses += [name for name, read in self._read_commands.items() if read()]
            taken = [name for name in _OFFERS if ready[name] and self._read_valid[name]()]
            for name in taken:
                getattr(self, f"_take_{name}")(self._read_payload[name]())

    def _take_request(self, payload: int) -> None:
        write, space = payload & 1, payload >> 1 & 3
        place = payload >> 3 & ((1 << REQUEST_ADDRESS_BITS) - 1)
        word = self.words.get((space, place))
        self._respond(1, int(word is None), 0 if write else word or 0)
        if write and word is not None:
            self.words[space, place] = payload >> 3 + REQUEST_ADDRESS_BITS

    def _take_signal(self, payload: int) -> None:
        self.additions.append((payload & 15, payload >> 4))

    def _take_host(self, payload: int) -> None:
        if self.fault == Fault.NONE:
            self.transfers.append(payload)


def spaces(config: Config) -> dict[Space, list[int]]:
    """Addresses of all words that the host can reach."""
    return {
        Space.IMEM: [16 * bundle + word for bundle in range(config.imem_bundles)
                     for word in range(BUNDLE_WORDS)],
        Space.SMEM: list(range(config.smem_words)),
        Space.SCALAR: list(range(SCALAR_REGISTERS)),
        Space.SEMAPHORE: list(range(SEMAPHORES)),
    }


class ControlBench:
    """The slave, its master, and its cores.

    Attributes
    ----------
    config : Config
    rng : random.Random
    cores : list of CoreStub
    accesses : int
        Number of responses that were compared.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.cores = [CoreStub(self.domain, dut, k, self.config, self.rng)
                      for k in range(self.config.cores)]
        self._watch = AxiWatch(self.domain, dut, CONTROL_PREFIX, 4, 0)
        check_watched(dut, [self._watch])
        self._pauses = Pauses(self.domain, self.rng)
        self._master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, CONTROL_PREFIX), dut.clk, dut.rst)
        quicken(self._master.write_if, self._master.read_if, log=logging.WARNING)
        self._interrupt = pin(dut, "interrupt")
        self.accesses = 0

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "ControlBench":
        """A bench whose slave has been reset."""
        bench = cls(dut)
        await bench.domain.reset()
        return bench

    def set_pauses(self, probability: float) -> None:
        """Sets the probability of a pause of each channel, and of the cores."""
        write, read = self._master.write_if, self._master.read_if
        self._pauses.set((write.aw_channel, write.w_channel, write.b_channel, read.ar_channel,
                          read.r_channel), probability)
        for core in self.cores:
            core.pause = probability

    async def write(self, where: int, data: int, *, refused: bool = False) -> None:
        """Writes a word; checks the response."""
        answer = await self._master.write(where, data.to_bytes(4, "little"))
        assert answer.resp == (Resp.SLVERR if refused else Resp.OKAY), (
            f"write of {data:#x} to {where:#x}: {answer.resp!r}")
        self.accesses += 1

    async def write_bytes(self, where: int, data: bytes) -> None:
        """Writes some bytes of a word; the write must be refused."""
        answer = await self._master.write(where, data)
        assert answer.resp == Resp.SLVERR, f"write of {len(data)} bytes to {where:#x}"
        self.accesses += 1

    async def read(self, where: int, *, refused: bool = False) -> int:
        """Reads a word; checks the value and the response."""
        answer = await self._master.read(where, 4)
        assert answer.resp == (Resp.SLVERR if refused else Resp.OKAY), (
            f"read of {where:#x}: {answer.resp!r}")
        data = int.from_bytes(answer.data, "little")
        assert not refused or data == 0
        self.accesses += 1
        return data

    async def put(self, name: str, data: int, core: int | None = None, *,
                  refused: bool = False) -> None:
        """Writes a register."""
        await self.write(address(name, core), data, refused=refused)

    async def get(self, name: str, core: int | None = None) -> int:
        """Reads a register."""
        return await self.read(address(name, core))

    async def point(self, core: int, space: Space, place: int) -> None:
        """Sets ACCESS_ADDRESS."""
        register = CORE_REGISTERS["ACCESS_ADDRESS"]
        await self.put("ACCESS_ADDRESS", register.pack(SPACE=space, ADDRESS=place), core)

    async def line(self) -> bool:
        """The interrupt line, after all events so far have reached it."""
        await self.domain.cycles(3)
        return bool(self._interrupt.value)

    @property
    def registers(self) -> list[tuple[int | None, Register]]:
        """All registers with their cores."""
        return [*((None, register) for register in GLOBAL_REGISTERS.values()),
                *((core, register) for core in range(self.config.cores)
                  for register in CORE_REGISTERS.values())]

    async def reset(self) -> None:
        """Resets slave and master."""
        await self.domain.reset(4)
        for core in self.cores:
            core.clear()

    def finish(self, accesses: int) -> None:
        """Ends the test: checks that there were enough accesses, and that all got responses."""
        checker = self._watch.checker
        checker.finish()
        assert self.accesses >= accesses
        assert checker.transfers["b"] + checker.transfers["r"] >= self.accesses


@bench_test
async def which_chip_it_is(dut: HierarchyObject) -> None:
    """Identification registers are right, and all registers start with their reset values."""
    bench = await ControlBench.started(dut)
    values = parameters(bench.config)
    for core, register in bench.registers:
        if register.readable and register.name not in ("ACCESS_DATA", "CYCLES_LO"):
            wanted = values.get(register.name, register.reset or 0)
            assert await bench.get(register.name, core) == wanted, register.name
    assert await bench.get("ID") == IDENTITY
    await bench.put("ID", ~IDENTITY & 0xFFFFFFFF, refused=True)
    assert await bench.get("ID") == IDENTITY
    bench.finish(62)


@bench_test
async def random_accesses(dut: HierarchyObject) -> None:
    """Legal and illegal accesses to any register and address, against a model."""
    bench = await ControlBench.started(dut)
    rng = bench.rng
    kept = {address(register.name, core): (register, 0) for core, register in bench.registers
            if register.access is Access.RW and register.name != "ACCESS_DATA"}
    taken = {address(register.name, core) for core, register in bench.registers}
    written = [address(register.name, core) for core, register in bench.registers
               if not register.writable]
    for pause in (0.0, 0.3, 0.7):
        bench.set_pauses(pause)
        for _ in range(90):
            where = rng.choice(list(kept))
            register, value = kept[where]
            match rng.randrange(8):
                case 0 | 1:
                    value = rng.getrandbits(32) & register.mask
                    await bench.write(where, value)
                    kept[where] = register, value
                case 2 | 3:
                    assert await bench.read(where) == value, register.name
                case 4:
                    count, start = rng.choice(((1, 0), (1, 3), (2, 0), (2, 2), (3, 1), (3, 0)))
                    await bench.write_bytes(where + start, rng.randbytes(count))
                case 5:
                    await bench.write(rng.choice(written), rng.getrandbits(32), refused=True)
                case 6 if register.mask != 0xFFFFFFFF:
                    await bench.write(where, value | rng.choice(
                        [1 << bit for bit in range(32) if not register.mask >> bit & 1]),
                        refused=True)
                case _:
                    nowhere = 4 * rng.randrange(1 << 14)
                    if nowhere not in taken:
                        await bench.write(nowhere, rng.getrandbits(32), refused=True)
                        await bench.read(nowhere, refused=True)
    for where, (register, value) in kept.items():
        assert await bench.read(where) == value, register.name
    assert not any(core.pulses or core.additions or core.transfers for core in bench.cores)
    bench.finish(200)


@bench_test
async def reads_beside_writes(dut: HierarchyObject) -> None:
    """Two threads of accesses at once, each to its own core's registers."""
    bench = await ControlBench.started(dut)
    bench.set_pauses(0.2)

    async def use(core: int, name: str) -> None:
        for _ in range(60):
            value = bench.rng.getrandbits(32)
            await bench.put(name, value, core)
            assert await bench.get(name, core) == value

    tasks = [cocotb.start_soon(use(core, name)) for core in range(bench.config.cores)
             for name in ("START_PC", "WATCHDOG")]
    for task in tasks:
        await task
    bench.finish(480)


@bench_test
async def words(dut: HierarchyObject) -> None:
    """Programs and data go to the cores and come back; accesses beyond the spaces are refused."""
    bench = await ControlBench.started(dut)
    for pause in (0.0, 0.4):
        bench.set_pauses(pause)
        for space, places in spaces(bench.config).items():
            core = bench.rng.randrange(bench.config.cores)
            model = bench.cores[core]
            start = bench.rng.randrange(max(1, len(places) - 20))
            some = places[start:start + 20]
            values = [bench.rng.getrandbits(32) for _ in some]
            await bench.point(core, space, some[0])
            for value in values:
                await bench.put("ACCESS_DATA", value, core)
            assert [model.words[space, place] for place in some] == values
            await bench.point(core, space, some[0])
            for value in values:
                assert await bench.get("ACCESS_DATA", core) == value
            await bench.point(core, space, places[-1] + 1)
            before = dict(model.words)
            where = address("ACCESS_DATA", core)
            await bench.read(where, refused=True)
            await bench.write(where, 1, refused=True)
            assert model.words == before
    bench.finish(200)


@bench_test
async def words_beside_a_program(dut: HierarchyObject) -> None:
    """While a core runs, accesses that need a stopped core are refused.

    While it is in reset, all accesses to its memories are refused.
    """
    bench = await ControlBench.started(dut)
    bench.set_pauses(0.3)
    model, where = bench.cores[-1], address("ACCESS_DATA", bench.config.cores - 1)
    allowed = {(Space.IMEM, True), (Space.SMEM, True), (Space.SMEM, False),
               (Space.SEMAPHORE, False)}
    for state in ("running", "resetting"):
        model.show(**{state: 1})
        for space in Space:
            for write in (True, False):
                await bench.point(bench.config.cores - 1, space, 3)
                model.words[space, 3] = 77
                done = state == "running" and (space, write) in allowed
                if write:
                    await bench.write(where, 88, refused=not done)
                    assert model.words[space, 3] == (88 if done else 77)
                else:
                    assert await bench.read(where, refused=not done) == (77 if done else 0)
        model.show(**{state: 0})
    bench.finish(32)


@bench_test
async def commands(dut: HierarchyObject) -> None:
    """Each command is one pulse to the addressed core; an illegal start is refused."""
    bench = await ControlBench.started(dut)
    bench.set_pauses(0.3)
    for _ in range(40):
        core = bench.rng.randrange(bench.config.cores)
        model = bench.cores[core]
        bits = bench.rng.randrange(16)
        running, resetting = bench.rng.random() < 0.3, bench.rng.random() < 0.2
        model.show(running=running, resetting=resetting)
        refused = bool(bits & 1 and (bits & 0b1010 or running or resetting))
        await bench.put("CONTROL", bits, core, refused=refused)
        wanted = [] if refused else [name for bit, name in enumerate(_PULSES) if bits >> bit & 1]
        assert model.pulses == wanted
        model.clear()
    values = {name: bench.rng.getrandbits(32) for name in ("start_pc", "watchdog")}
    for name, value in values.items():
        await bench.put(name.upper(), value, 0)
        assert bench.cores[0].outputs[name].value == value
    assert not any(core.pulses for core in bench.cores)
    bench.finish(42)


@bench_test
async def additions_and_transfers(dut: HierarchyObject) -> None:
    """Each addition and each transfer reaches its core once; a descriptor's fault comes back."""
    bench = await ControlBench.started(dut)
    rng = bench.rng
    addition = CORE_REGISTERS["SEMAPHORE_ADD"]
    for pause in (0.0, 0.6):
        bench.set_pauses(pause)
        for _ in range(6):
            core = rng.randrange(bench.config.cores)
            model = bench.cores[core]
            index, amount = rng.randrange(SEMAPHORES), rng.getrandbits(28)
            await bench.put("SEMAPHORE_ADD", addition.pack(INDEX=index, AMOUNT=amount), core)
            assert model.additions.pop() == (index, amount)
            descriptor = rng.getrandbits(32 * DESCRIPTOR_WORDS)
            for word in range(DESCRIPTOR_WORDS):
                await bench.put(f"DMA_DESCRIPTOR_{word}", descriptor >> 32 * word & 0xFFFFFFFF,
                                core)
            model.fault = rng.choice((Fault.NONE, Fault.DMA_RANGE, Fault.DMA_ALIGNMENT))
            await bench.domain.cycles(2)
            await bench.put("DMA_START", 1, core, refused=model.fault != Fault.NONE)
            assert await bench.get("DMA_FAULT", core) == model.fault
            assert model.transfers == ([] if model.fault else [descriptor])
            model.clear()
    assert not any(core.additions or core.transfers for core in bench.cores)
    bench.finish(12 * (DESCRIPTOR_WORDS + 3))


@bench_test
async def cores_that_take_nothing(dut: HierarchyObject) -> None:
    """Cores that accept nothing do not hang the host; an abandoned access has no effect later."""
    bench = await ControlBench.started(dut)
    model = bench.cores[0]
    model.pause = 1.0
    before = dict(model.words)
    for name in ("ACCESS_DATA", "SEMAPHORE_ADD", "DMA_START"):
        start = bench.domain.now
        await bench.put(name, 1, 0, refused=True)
        assert WAIT_CYCLES <= bench.domain.now - start < WAIT_CYCLES + 20
    assert await bench.get("DMA_FAULT", 0) == CORE_REGISTERS["DMA_FAULT"].pack(BUSY=1)
    model.pause = 0.0
    await bench.domain.cycles(10)
    assert not model.additions
    assert not model.transfers
    assert model.words == before
    await bench.put("SEMAPHORE_ADD", 5, 0)
    assert model.additions == [(0, 5)]
    bench.finish(5)


@bench_test
async def interrupts(dut: HierarchyObject) -> None:
    """Random events, enables and clears, against a model of both registers."""
    bench = await ControlBench.started(dut)
    bench.set_pauses(0.1)
    mask = GLOBAL_REGISTERS["INTERRUPT_STATUS"].mask
    status = enable = 0
    fault = [0] * bench.config.cores
    lines = set()
    for _ in range(60):
        core = bench.rng.randrange(bench.config.cores)
        model = bench.cores[core]
        match bench.rng.randrange(7):
            case 0:
                model.show(running=1)
                await bench.domain.cycles(2)
                model.show(running=0)
                status |= 1 << EVENT_PITCH * core
            case 1:
                fault[core] = fault[core] % 12 + 1
                model.show(fault=fault[core])
                status |= 2 << EVENT_PITCH * core
            case 2:
                model.show(transfer_done=1)
                await bench.domain.cycles(1)
                model.show(transfer_done=0)
                status |= 4 << EVENT_PITCH * core
            case 3:
                model.show(transfer_done=1, transfer_failed=1)
                await bench.domain.cycles(1)
                model.show(transfer_done=0, transfer_failed=0)
                status |= 0xC << EVENT_PITCH * core
            case 4:
                enable = bench.rng.getrandbits(32) & mask
                await bench.put("INTERRUPT_ENABLE", enable)
            case _:
                bits = bench.rng.getrandbits(32) & mask
                await bench.put("INTERRUPT_STATUS", bits)
                status &= ~bits
        assert await bench.line() == bool(status & enable)
        assert await bench.get("INTERRUPT_STATUS") == status
        lines.add(bool(status & enable))
    assert len(lines) == 2
    bench.finish(60)


@bench_test
async def counters(dut: HierarchyObject) -> None:
    """Counters that are read while they count all belong to one cycle, and sum to the cycles."""
    bench = await ControlBench.started(dut)
    bench.set_pauses(0.2)
    start = (1 << 32) - 200
    for core, model in enumerate(bench.cores):
        model.counts = [start, 0, start, *[0] * (len(COUNTERS) - 2)]
        last = start
        for _ in range(5):
            await bench.domain.cycles(2)
            words = {}
            for name in COUNTER_REGISTERS:
                for half in ("LO", "HI"):
                    words[name, half] = await bench.get(f"{name}_{half}", core)
            cycles, *causes = (words[name, "LO"] | words[name, "HI"] << 32
                               for name in COUNTER_REGISTERS)
            assert cycles == sum(causes)
            assert last < cycles <= model.counts[0]
            last = cycles
        assert last > 1 << 32
    bench.finish(10 * 16)


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """After a reset at any moment of an access, the registers have their reset values, and work."""
    bench = await ControlBench.started(dut)
    for _ in range(12):
        bench.set_pauses(0.3)
        await bench.put("WATCHDOG", 5, 1)
        write = cocotb.start_soon(bench.put("START_PC", 9, 1))
        read = cocotb.start_soon(bench.get("STATUS", 0))
        await bench.domain.cycles(bench.rng.randint(1, 9))
        for task in (write, read):
            if not task.done():
                task.cancel()
        await bench.reset()
        assert await bench.get("WATCHDOG", 1) == 0
        assert await bench.get("START_PC", 1) == 0
        await bench.put("START_PC", 11, 1)
        assert await bench.get("START_PC", 1) == 11
    bench.finish(48)
