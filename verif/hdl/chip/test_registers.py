"""The register map: table, page and hardware agree; accesses behave as docs/registers.md says."""

import itertools
import pathlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from amaranth.lib.wiring import PureInterface
from amaranth.sim import SimulatorContext

from hdl.axi.interface import Resp
from hdl.axi.lite import AxiLiteSlave
from hdl.chip.control import ControlSlave
from hdl.chip.registers import (
    CORE_PITCH,
    CORE_REGISTERS,
    COUNTER_REGISTERS,
    EVENTS,
    GLOBAL_REGISTERS,
    IDENTITY,
    LINK_REGISTERS,
    MAX_CORES,
    WAIT_CYCLES,
    Access,
    Field,
    Register,
    RegisterBlock,
    _table,
    address,
    chip_registers,
    parameters,
)
from hdl.config import PRESETS, Config
from hdl.core.counters import COUNTERS
from hdl.core.interface import Space
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.isa import BUNDLE_WORDS, Fault
from hdl.link.format import MAX_SIDE
from tools.docs import registers as register_doc
from verif.hdl.simulation.simulator import fast_simulator
from verif.models.axi import AxiChecker

TINY = Config.preset("tiny")
CONTROL = CORE_REGISTERS["CONTROL"]
STATUS = CORE_REGISTERS["STATUS"]


# The table


def test_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    page = register_doc.PATH.read_text(encoding="utf-8")
    monkeypatch.setattr(register_doc, "PATH", tmp_path / "registers.md")
    register_doc.main()
    assert register_doc.PATH.read_text(encoding="utf-8") == page, "run `make docs`"


def test_fields_take_and_give_values() -> None:
    register = CORE_REGISTERS["SEMAPHORE_ADD"]
    word = register.pack(AMOUNT=0x1234567, INDEX=0xA)
    assert word == 0xA1234567
    assert register.unpack(word) == {"AMOUNT": 0x1234567, "INDEX": 0xA}
    assert register["INDEX"].mask == 0xF0000000
    with pytest.raises(ValueError, match="INDEX must be from 0 to 15, not 16"):
        register.pack(INDEX=16)
    with pytest.raises(KeyError, match="SEMAPHORE_ADD has no field 'VALUE'"):
        register.pack(VALUE=1)
    assert GLOBAL_REGISTERS["ID"].mask == 0xFFFFFFFF


def test_addresses() -> None:
    assert address("ID") == 0
    assert address("STATUS", 1) == 2 * CORE_PITCH + 4
    assert len({address(name, core) for core in range(MAX_CORES) for name in CORE_REGISTERS}
               | {address(name) for name in GLOBAL_REGISTERS}) == (
                   MAX_CORES * len(CORE_REGISTERS) + len(GLOBAL_REGISTERS))
    with pytest.raises(KeyError):
        address("STATUS")
    with pytest.raises(ValueError, match="core must be from 0 to 1, not 2"):
        address("STATUS", 2)


@pytest.mark.parametrize("config", [*PRESETS.values(), Config.preset("tiny", link_bytes=8)])
def test_parameters_are_registers(config: Config) -> None:
    values, registers = parameters(config), chip_registers(config)
    assert set(values) == {name for name, register in registers.items()
                           if register.access is Access.RO and register.reset is None}
    assert values["HBM_BYTES_LO"] | values["HBM_BYTES_HI"] << 32 == config.hbm_bytes
    assert len({address(name) for name in registers}) == len(registers) == (
        len(GLOBAL_REGISTERS) + bool(config.link_bytes) * len(LINK_REGISTERS))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Field("F", 30, 3, ""),
     "field F must lie within bits 0 to 31, not have 3 bits from bit 30 on"),
    (lambda: Register("R", 6, Access.RW, ""), "offset of R must be a multiple of 4"),
    (lambda: Register("R", 0x1000, Access.RW, ""), "offset of R must be a multiple of 4 from 0 to"),
    (lambda: Register("R", 0, Access.RW, "", (Field("A", 0, 4, ""), Field("B", 3, 1, ""))),
     "fields of R must be in ascending order, without overlap; B overlaps or precedes"),
    (lambda: Register("R", 0, Access.RW, "", (Field("A", 0, 4, ""),), 16),
     "reset of R must be within its fields, not 0x10"),
    (lambda: _table([Register("R", 0, Access.RW, "")] * 2), "not 'R' again"),
    (lambda: _table([Register("R", 0, Access.RW, ""), Register("S", 0, Access.RW, "")]),
     "offset of S must be unique, not 0x0"),
    (lambda: RegisterBlock({}), "registers must contain at least one register"),
    (lambda: RegisterBlock({"R": Register("R", 0, Access.W1, "")}), "register R must act"),
    (lambda: AxiLiteSlave(2), "address_bits must be at least 3, not 2"),
])
def test_wrong_tables_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_control_slave_wants_a_config() -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 3"):
        ControlSlave(3)  # type: ignore[arg-type]


# The hardware


@dataclass
class Answer:
    """Result of an access: its response, the word read, and the cycle of the response."""

    resp: int
    data: int = 0
    cycle: int = 0

    @property
    def refused(self) -> bool:
        return self.resp == Resp.SLVERR


SILENT = (0, 1, 0x5A5A5A5A)
"""No response; the other fields have no meaning."""


class Side:
    """A core's answers: words from a dictionary; additions and transfers as configured.

    Attributes
    ----------
    ready : bool
        Whether the core takes every offer at once.
    ready_after : int
        Unless ``ready``, the core takes an offer after it has been made for this number of cycles.
    delay : int
        Number of additional cycles before the answer to a request.
    pulsed : int
        Number of the cycle of the last pulse.
    """

    def __init__(self) -> None:
        self.words: dict[tuple[int, int], int] = {}
        self.requests: list[tuple[int, int, int, int]] = []
        self.additions: list[tuple[int, int]] = []
        self.transfers: list[int] = []
        self.pulses: list[str] = []
        self.ready = True
        self.ready_after = -1
        self.delay = 0
        self.pulsed = self._now = 0
        self._seen = 0
        self.fault = Fault.NONE
        self._responses: deque[tuple[int, int, int]] = deque()

    def cycle(self, ctx: SimulatorContext, core: PureInterface) -> None:
        response = self._responses.popleft() if self._responses else SILENT
        for name, value in zip(("valid", "error", "data"), response, strict=True):
            ctx.set(getattr(core.response, name), value)
        offers = [ctx.get(valid) for valid in (core.request.valid, core.signal.valid,
                                               core.host_valid)]
        takes = self.ready or (any(offers) and self._seen == self.ready_after)
        self._seen = self._seen + 1 if any(offers) else 0
        for ready in (core.request.ready, core.signal.ready, core.host_ready):
            ctx.set(ready, int(takes))
        ctx.set(core.host_fault, self.fault)
        if ctx.get(core.request.valid) and takes:
            request = ctx.get(core.request.payload)
            self.requests.append((request.write, request.space, request.address, request.data))
            key = request.space, request.address
            data = 0 if request.write else self.words.get(key, 0)
            self._responses.extend([SILENT] * self.delay)
            self._responses.append((1, int(key not in self.words), data))
            if request.write and key in self.words:
                self.words[key] = request.data
        if ctx.get(core.signal.valid) and takes:
            addition = ctx.get(core.signal.payload)
            self.additions.append((addition.index, addition.amount))
        if ctx.get(core.host_valid) and takes:
            self.transfers.append(ctx.get(core.host_descriptor))
        found = [name for name in ("start", "stop", "clear_counters", "reset_request")
                 if ctx.get(getattr(core, name))]
        self.pulses += found
        self._now += 1
        if found:
            self.pulsed = self._now


class RegistersBench:
    """A control slave, the host's side of it, and a `Side` for each core."""

    def __init__(self, config: Config = TINY) -> None:
        self.config = config
        self.dut = ControlSlave(config)
        self.sides = [Side() for _ in range(config.cores)]
        axi = self.dut.axi
        self.pins = {name: getattr(axi, name) for name in axi.signature.members}
        self.checker = AxiChecker("s_axil", 4, 0)
        self.now = 0

    async def cycle(self, ctx: SimulatorContext) -> dict[str, int]:
        """Runs a cycle; returns the port's signals."""
        for side, core in zip(self.sides, self.dut.core, strict=True):
            side.cycle(ctx, core)
        pins = {name: ctx.get(pin) for name, pin in self.pins.items()}
        self.checker.cycle(pins)
        self.now += 1
        await ctx.tick()
        return pins

    async def write(self, ctx: SimulatorContext, where: int, data: int, strobes: int = 15, *,
                    aw: int = 0, w: int = 0, b: int = 0) -> Answer:
        """Writes a word; ``aw``, ``w`` and ``b`` delay address, data and readiness, in cycles."""
        axi = self.dut.axi
        start = self.now
        waiting = {"aw", "w"}
        ctx.set(axi.awaddr, where)
        ctx.set(axi.wdata, data)
        ctx.set(axi.wstrb, strobes)
        while self.now < start + 3000:
            ctx.set(axi.awvalid, int("aw" in waiting and self.now - start >= aw))
            ctx.set(axi.wvalid, int("w" in waiting and self.now - start >= w))
            ctx.set(axi.bready, int(self.now - start >= b))
            pins = await self.cycle(ctx)
            waiting -= {channel for channel in ("aw", "w")
                        if pins[f"{channel}valid"] and pins[f"{channel}ready"]}
            if pins["bvalid"] and pins["bready"]:
                ctx.set(axi.bready, 0)
                return Answer(pins["bresp"], cycle=self.now)
        raise AssertionError(f"the write of {where:#x} was not answered")

    async def read(self, ctx: SimulatorContext, where: int, *, r: int = 0) -> Answer:
        axi = self.dut.axi
        start = self.now
        waiting = True
        ctx.set(axi.araddr, where)
        while self.now < start + 3000:
            ctx.set(axi.arvalid, int(waiting))
            ctx.set(axi.rready, int(self.now - start >= r))
            pins = await self.cycle(ctx)
            waiting &= not pins["arready"]
            if pins["rvalid"] and pins["rready"]:
                ctx.set(axi.rready, 0)
                assert pins["rresp"] == Resp.OKAY or not pins["rdata"]
                return Answer(pins["rresp"], pins["rdata"], self.now)
        raise AssertionError(f"the read of {where:#x} was not answered")

    async def put(self, ctx: SimulatorContext, name: str, data: int,
                  core: int | None = None) -> None:
        """A write that must succeed."""
        answer = await self.write(ctx, address(name, core), data)
        assert answer.resp == Resp.OKAY, name

    async def get(self, ctx: SimulatorContext, name: str, core: int | None = None) -> int:
        """A read that must succeed."""
        answer = await self.read(ctx, address(name, core))
        assert answer.resp == Resp.OKAY, name
        return answer.data

    def run(self, process: Callable[[SimulatorContext], Awaitable[None]]) -> None:
        async def whole(ctx: SimulatorContext) -> None:
            await process(ctx)
            self.checker.finish()

        simulator = fast_simulator(self.dut)
        simulator.add_clock(1e-6)
        simulator.add_testbench(whole)
        simulator.run()


@pytest.mark.parametrize("name", ["tiny", "v2"])
def test_constants_say_which_chip_it_is(name: str) -> None:
    bench = RegistersBench(PRESETS[name])

    async def process(ctx: SimulatorContext) -> None:
        for register, value in parameters(bench.config).items():
            assert await bench.get(ctx, register) == value, register
        assert await bench.get(ctx, "ID") == IDENTITY
        version = GLOBAL_REGISTERS["VERSION"].unpack(await bench.get(ctx, "VERSION"))
        assert version == {"MAJOR": 0, "MINOR": 1, "PATCH": 0}

    bench.run(process)


def all_registers(config: Config) -> Iterator[tuple[int | None, Register]]:
    """All pairs (core or None, register)."""
    yield from ((None, register) for register in GLOBAL_REGISTERS.values())
    for core in range(config.cores):
        yield from ((core, register) for register in CORE_REGISTERS.values())


@pytest.mark.slow
def test_each_access_that_is_not_allowed_is_refused_without_effect() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        for core, register in all_registers(bench.config):
            where = address(register.name, core)
            before = await bench.read(ctx, where)
            assert before.refused == (not register.readable or register.name == "ACCESS_DATA")
            if before.refused:
                assert before.data == 0
            if register.reset is not None and register.readable:
                assert before.data == register.reset, register.name
            # In part; where nothing may be written; bits that belong to nothing.
            for strobes in (1, 2, 4, 8, 3, 12, 7, 14):
                assert (await bench.write(ctx, where, 0xFFFFFFFF, strobes)).refused
            if not register.writable:
                assert (await bench.write(ctx, where, register.reset or 0)).refused
            wrong = register.mask ^ 0xFFFFFFFF
            for bit in (bit for bit in range(32) if wrong >> bit & 1):
                assert (await bench.write(ctx, where, 1 << bit)).refused, register.name
            assert (await bench.write(ctx, where, 0xFFFFFFFF, 0)).resp == Resp.OKAY
            after = await bench.read(ctx, where)
            assert (after.resp, after.data) == (before.resp, before.data), register.name
        for side in bench.sides:
            assert not side.pulses
            assert not side.additions
            assert not side.transfers
            assert all(not write for write, *_ in side.requests)

    bench.run(process)


def test_addresses_without_a_register_are_refused() -> None:
    bench = RegistersBench(Config.preset("tiny", cores=1))
    taken = {address(register.name, core) for core, register in all_registers(bench.config)}

    async def process(ctx: SimulatorContext) -> None:
        rng = random.Random(4)
        near = {where + step for where in taken for step in (4, CORE_PITCH, 2 * CORE_PITCH)}
        far = {4 * rng.randrange(1 << 14) for _ in range(60)}
        ends = {0x0FFC, 0x1FFC, 0x2FFC, 0xFFFC, 0x8000, 0xF000}
        places = sorted((near | far | ends) - taken)
        assert len(places) > 150
        for where in places:
            assert (await bench.write(ctx, where, 1)).refused, hex(where)
            answer = await bench.read(ctx, where)
            assert answer.refused, hex(where)
            assert answer.data == 0
        assert not bench.sides[0].pulses

    bench.run(process)


def test_registers_hold_what_is_written() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        rng = random.Random(5)
        kept = [(core, register) for core, register in all_registers(bench.config)
                if register.access is Access.RW and register.name != "ACCESS_DATA"]
        assert len(kept) == 1 + 2 * (3 + DESCRIPTOR_WORDS)
        for _ in range(3):
            values = [rng.getrandbits(32) & register.mask for _, register in kept]
            for (core, register), value in zip(kept, values, strict=True):
                await bench.put(ctx, register.name, value, core)
            for (core, register), value in zip(kept, values, strict=True):
                assert await bench.get(ctx, register.name, core) == value, register.name
            # The two low bits of an address do not count.
            core, register = kept[-1]
            answer = await bench.read(ctx, address(register.name, core) + 3)
            assert answer.data == values[-1]
            for (core, register), value in zip(kept, values, strict=True):
                if register.name in ("START_PC", "WATCHDOG"):
                    port = bench.dut.core[core]
                    assert ctx.get(getattr(port, register.name.lower())) == value

    bench.run(process)


@pytest.mark.parametrize("delays", [(0, 0, 0), (0, 7, 0), (7, 0, 0), (3, 2, 15), (0, 0, 15),
                                    (9, 9, 9)])
def test_address_data_and_response_come_in_any_order(delays: tuple[int, int, int]) -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        aw, w, b = delays
        for number in range(8):
            answer = await bench.write(ctx, address("START_PC", 1), 77 + number, aw=aw, w=w, b=b)
            assert answer.resp == Resp.OKAY
            answer = await bench.read(ctx, address("START_PC", 1), r=b)
            assert answer.data == 77 + number

    bench.run(process)


def test_accesses_follow_each_other_though_answers_wait() -> None:
    """The host sends requests ahead, and rarely takes an answer."""
    bench = RegistersBench()
    rng = random.Random(10)
    names = ["START_PC", "PC", "WATCHDOG", "CONTROL", "DMA_DESCRIPTOR_3"]

    async def process(ctx: SimulatorContext) -> None:
        axi = bench.dut.axi
        registers = [CORE_REGISTERS[rng.choice(names)] for _ in range(40)]
        where = [address(register.name, 0) for register in registers]
        kept = dict.fromkeys(names, 0)
        for write in (True, False):
            values = [2 * number + 2 for number in range(40)]
            left = {"aw": 0, "w": 0} if write else {"ar": 0}
            answer = "b" if write else "r"
            answers: list[tuple[int, int]] = []
            while len(answers) < 40:
                for channel, number in left.items():
                    ctx.set(getattr(axi, f"{channel}valid"), int(number < 40))
                    if number < 40 and channel != "w":
                        ctx.set(getattr(axi, f"{channel}addr"), where[number])
                ctx.set(axi.wdata, values[min(left.get("w", 0), 39)])
                ctx.set(axi.wstrb, 15)
                ctx.set(getattr(axi, f"{answer}ready"), int(rng.random() < 0.15))
                pins = await bench.cycle(ctx)
                for channel in left:
                    left[channel] += pins[f"{channel}valid"] and pins[f"{channel}ready"]
                if pins[f"{answer}valid"] and pins[f"{answer}ready"]:
                    answers.append((pins[f"{answer}resp"], pins["rdata"] if not write else 0))
                assert bench.now < 6000
            ctx.set(getattr(axi, f"{answer}ready"), 0)
            wanted = []
            for register, value in zip(registers, values, strict=True):
                # Values are even, and so no command is START.
                if write:
                    kept[register.name] = value if register.access is Access.RW else 0
                    fits = register.writable and not value & ~register.mask
                    wanted.append((Resp.OKAY if fits else Resp.SLVERR, 0))
                else:
                    wanted.append((Resp.OKAY if register.readable else Resp.SLVERR,
                                   kept[register.name]))
            assert answers == wanted

    bench.run(process)


def test_reads_and_writes_take_turns() -> None:
    """Continuous writes do not block reads, and continuous reads do not block writes."""
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        axi = bench.dut.axi
        ctx.set(axi.awaddr, address("WATCHDOG", 0))
        ctx.set(axi.araddr, address("WATCHDOG", 0))
        ctx.set(axi.wstrb, 15)
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
            ctx.set(getattr(axi, name), 1)
        offers = {"aw", "w", "ar"}
        for cycle in range(220):
            pins = await bench.cycle(ctx)
            for channel in [name for name in offers if cycle >= 200 and pins[f"{name}ready"]]:
                offers.remove(channel)
                ctx.set(getattr(axi, f"{channel}valid"), 0)
        counts = bench.checker.transfers
        assert abs(counts["b"] - counts["r"]) <= 1
        assert counts["r"] > 30

    bench.run(process)


def test_commands_are_pulses_of_one_cycle() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side, port = bench.sides[1], bench.dut.core[1]
        names = {"START": "start", "STOP": "stop", "CLEAR_COUNTERS": "clear_counters",
                 "RESET": "reset_request"}
        for field, pulse in names.items():
            await bench.put(ctx, "CONTROL", CONTROL.pack(**{field: 1}), 1)
            assert side.pulses == [pulse]
            side.pulses.clear()
        await bench.put(ctx, "CONTROL", CONTROL.pack(STOP=1, CLEAR_COUNTERS=1, RESET=1), 1)
        assert side.pulses == ["stop", "clear_counters", "reset_request"]
        side.pulses.clear()
        await bench.put(ctx, "CONTROL", 0, 1)

        async def refused(**fields: int) -> None:
            answer = await bench.write(ctx, address("CONTROL", 1), CONTROL.pack(**fields))
            assert answer.refused, fields

        await refused(START=1, STOP=1)
        await refused(START=1, RESET=1, CLEAR_COUNTERS=1)
        for state in (port.running, port.resetting):
            ctx.set(state, 1)
            await refused(START=1)
            await refused(START=1, CLEAR_COUNTERS=1)
            assert not side.pulses
            await bench.put(ctx, "CONTROL", CONTROL.pack(STOP=1), 1)
            assert side.pulses == ["stop"]
            side.pulses.clear()
            ctx.set(state, 0)
        assert not bench.sides[0].pulses

    bench.run(process)


def test_cores_of_a_chip_with_links_start_in_the_same_cycle() -> None:
    bench = RegistersBench(Config.preset("tiny", link_bytes=8))

    async def process(ctx: SimulatorContext) -> None:
        for cores in (1, 2, 3, 0):
            await bench.put(ctx, "START", cores)
            assert [side.pulses for side in bench.sides] == [
                ["start"] if cores >> core & 1 else [] for core in range(2)]
            assert len({side.pulsed for side in bench.sides if side.pulses}) <= 1
            for side in bench.sides:
                side.pulses.clear()
        for core, port in enumerate(bench.dut.core):
            for state in (port.running, port.resetting):
                ctx.set(state, 1)
                for cores in (1, 2, 3):
                    answer = await bench.write(ctx, address("START"), cores)
                    assert answer.refused == bool(cores >> core & 1)
                    assert [bool(side.pulses) for side in bench.sides] == [
                        not answer.refused and bool(cores >> number & 1) for number in range(2)]
                    for side in bench.sides:
                        side.pulses.clear()
                ctx.set(state, 0)

    bench.run(process)


def test_a_torus_without_the_chip_and_a_position_outside_the_torus_are_refused() -> None:
    """Both registers, at and around each limit, in each coordinate."""
    bench = RegistersBench(Config.preset("tiny", link_bytes=8))
    torus, position = LINK_REGISTERS["TORUS"], LINK_REGISTERS["POSITION"]
    refused = []

    async def check(ctx: SimulatorContext, name: str, word: int, legal: bool, kept: int) -> int:
        """Writes a word; returns what the register holds then."""
        answer = await bench.write(ctx, address(name), word)
        assert answer.refused != legal, (name, hex(word))
        kept = word if legal else kept
        assert await bench.get(ctx, name) == kept, (name, hex(word))
        refused.append(answer.refused)
        return kept

    async def process(ctx: SimulatorContext) -> None:
        for column, row in ((0, 0), (4, 0), (0, 4), (MAX_SIDE - 1, MAX_SIDE - 1)):
            kept = torus.pack(WIDTH=MAX_SIDE, HEIGHT=MAX_SIDE)
            await bench.put(ctx, "TORUS", kept)
            await bench.put(ctx, "POSITION", position.pack(X=column, Y=row))
            # The low bits alone of the last two are legal.
            widths, heights = ((at, at + 1, MAX_SIDE, MAX_SIDE + 1, 2 * MAX_SIDE + at + 1,
                                4 * MAX_SIDE + at + 1) for at in (column, row))
            for width, height in itertools.product(widths, heights):
                legal = column < width <= MAX_SIDE and row < height <= MAX_SIDE
                kept = await check(ctx, "TORUS", torus.pack(WIDTH=width, HEIGHT=height), legal,
                                   kept)
        for width, height in ((MAX_SIDE, MAX_SIDE), (1, 5), (5, 1), (31, 2)):
            kept = 0
            await bench.put(ctx, "POSITION", kept)
            await bench.put(ctx, "TORUS", torus.pack(WIDTH=width, HEIGHT=height))
            columns, rows = ((0, side - 1, side, MAX_SIDE, 2 * MAX_SIDE, 4 * MAX_SIDE)
                             for side in (width, height))
            for column, row in itertools.product(columns, rows):
                kept = await check(ctx, "POSITION", position.pack(X=column, Y=row),
                                   column < width and row < height, kept)

    bench.run(process)
    assert set(refused) == {False, True}


def test_core_that_does_not_exist_is_not_started() -> None:
    bench = RegistersBench(Config.preset("tiny", link_bytes=8, cores=1))

    async def process(ctx: SimulatorContext) -> None:
        assert (await bench.write(ctx, address("START"), 3)).refused
        assert not bench.sides[0].pulses
        await bench.put(ctx, "START", 1)
        assert bench.sides[0].pulses == ["start"]

    bench.run(process)


def test_status_shows_the_core() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        port = bench.dut.core[0]
        rng = random.Random(6)
        for _ in range(12):
            wanted = {name: rng.getrandbits(1) for name in
                      ("RUNNING", "WAITING", "IDLE", "DMA_BUSY", "RESETTING")}
            wanted["FAULT"] = rng.randrange(Fault.LINK)  # no links
            for name, value in wanted.items():
                ctx.set(getattr(port, name.lower()), value)
            pc = rng.getrandbits(32)
            ctx.set(port.pc, pc)
            assert STATUS.unpack(await bench.get(ctx, "STATUS", 0)) == wanted
            assert await bench.get(ctx, "PC", 0) == pc
            assert await bench.get(ctx, "STATUS", 1) == 0

    bench.run(process)


def test_counters_are_taken_at_one_moment() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        rng = random.Random(7)
        port = bench.dut.core[1]
        signals = [port.cycles, *(getattr(port, counter) for counter in COUNTERS)]
        assert len(signals) == len(COUNTER_REGISTERS)
        for _ in range(3):
            taken = [rng.getrandbits(48) for _ in signals]
            for signal, value in zip(signals, taken, strict=True):
                ctx.set(signal, value)
            low = await bench.get(ctx, "CYCLES_LO", 1)
            for signal in signals:
                ctx.set(signal, rng.getrandbits(48))
            shown = [low | await bench.get(ctx, "CYCLES_HI", 1) << 32]
            for name in COUNTER_REGISTERS[1:]:
                shown.append(await bench.get(ctx, f"{name}_LO", 1)
                             | await bench.get(ctx, f"{name}_HI", 1) << 32)
            assert shown == taken
            assert await bench.get(ctx, "CYCLES_HI", 0) == 0

    bench.run(process)


def access_word(space: int, where: int) -> int:
    return CORE_REGISTERS["ACCESS_ADDRESS"].pack(SPACE=space, ADDRESS=where)


def test_words_go_to_the_core_and_addresses_go_on() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        rng = random.Random(8)
        for space, places in {
            Space.SMEM: [5, 6, 7], Space.SCALAR: [30, 31], Space.SEMAPHORE: [0, 1],
            Space.IMEM: [16 * bundle + word for bundle in (3, 4) for word in range(BUNDLE_WORDS)],
        }.items():
            values = [rng.getrandbits(32) for _ in places]
            side.words = {(space, place): 0 for place in places}
            side.requests.clear()
            await bench.put(ctx, "ACCESS_ADDRESS", access_word(space, places[0]), 0)
            for value in values:
                await bench.put(ctx, "ACCESS_DATA", value, 0)
            assert side.requests == [(1, space, place, value)
                                     for place, value in zip(places, values, strict=True)]
            await bench.put(ctx, "ACCESS_ADDRESS", access_word(space, places[0]), 0)
            assert [await bench.get(ctx, "ACCESS_DATA", 0) for _ in places] == values
            # Beyond them no word exists, and the address stays.
            beyond = await bench.get(ctx, "ACCESS_ADDRESS", 0)
            for _ in range(2):
                assert (await bench.read(ctx, address("ACCESS_DATA", 0))).refused
                assert (await bench.write(ctx, address("ACCESS_DATA", 0), 1)).refused
            assert await bench.get(ctx, "ACCESS_ADDRESS", 0) == beyond

    bench.run(process)


def test_a_request_is_made_once_however_late_its_answer() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        side.words = {(Space.SMEM, place): 0 for place in (5, 6)}
        for delay in (1, 2, 9):
            side.delay = delay
            for write in (1, 0):
                side.requests.clear()
                await bench.put(ctx, "ACCESS_ADDRESS", access_word(Space.SMEM, 5), 0)
                for value in (delay, delay + 1):
                    if write:
                        await bench.put(ctx, "ACCESS_DATA", value, 0)
                    else:
                        assert await bench.get(ctx, "ACCESS_DATA", 0) == value
                assert [request[:3] for request in side.requests] == [
                    (write, Space.SMEM, place) for place in (5, 6)]

    bench.run(process)


def test_address_beyond_all_spaces_does_not_wrap() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        last = (1 << 20) - 8
        side.words = {(Space.IMEM, last): 9, (Space.IMEM, 0): 1}
        await bench.put(ctx, "ACCESS_ADDRESS", access_word(Space.IMEM, last), 0)
        assert await bench.get(ctx, "ACCESS_DATA", 0) == 9
        assert await bench.get(ctx, "ACCESS_ADDRESS", 0) == access_word(Space.IMEM, 1 << 20)
        side.requests.clear()
        assert (await bench.read(ctx, address("ACCESS_DATA", 0))).refused
        assert not side.requests

    bench.run(process)


def test_beside_a_program_only_what_can_be_done_is() -> None:
    bench = RegistersBench()
    allowed = {(Space.IMEM, 1), (Space.SMEM, 0), (Space.SMEM, 1), (Space.SEMAPHORE, 0)}

    async def process(ctx: SimulatorContext) -> None:
        side, port = bench.sides[1], bench.dut.core[1]
        for state in (port.running, port.resetting):
            ctx.set(state, 1)
            for space in Space:
                for write in (0, 1):
                    side.words = {(space, 2): 11}
                    side.requests.clear()
                    await bench.put(ctx, "ACCESS_ADDRESS", access_word(space, 2), 1)
                    where = address("ACCESS_DATA", 1)
                    answer = await (bench.write(ctx, where, 4) if write else bench.read(ctx, where))
                    done = state is port.running and (space, write) in allowed
                    assert answer.refused != done, (space, write)
                    assert len(side.requests) == done
                    after = await bench.get(ctx, "ACCESS_ADDRESS", 1)
                    assert after == access_word(space, 2 + done)
            ctx.set(state, 0)

    bench.run(process)


def test_additions_go_to_the_core() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        register = CORE_REGISTERS["SEMAPHORE_ADD"]
        for index, amount in ((0, 1), (15, (1 << 28) - 1), (7, 0)):
            await bench.put(ctx, "SEMAPHORE_ADD", register.pack(INDEX=index, AMOUNT=amount), 0)
        assert bench.sides[0].additions == [(0, 1), (15, (1 << 28) - 1), (7, 0)]
        ctx.set(bench.dut.core[0].resetting, 1)
        assert (await bench.write(ctx, address("SEMAPHORE_ADD", 0), 1)).refused
        assert len(bench.sides[0].additions) == 3

    bench.run(process)


def test_transfers_are_started_or_refused_with_the_reason() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[1]
        rng = random.Random(9)
        words = [rng.getrandbits(32) for _ in range(DESCRIPTOR_WORDS)]
        for number, word in enumerate(words):
            await bench.put(ctx, f"DMA_DESCRIPTOR_{number}", word, 1)
        await bench.put(ctx, "DMA_START", 0, 1)
        assert not side.transfers
        await bench.put(ctx, "DMA_START", 1, 1)
        assert side.transfers == [sum(word << 32 * k for k, word in enumerate(words))]
        assert await bench.get(ctx, "DMA_FAULT", 1) == 0
        side.fault = Fault.BUS_ERROR
        assert (await bench.write(ctx, address("DMA_START", 1), 1)).refused
        assert await bench.get(ctx, "DMA_FAULT", 1) == Fault.BUS_ERROR
        side.fault = Fault.NONE
        await bench.put(ctx, "DMA_START", 1, 1)
        assert await bench.get(ctx, "DMA_FAULT", 1) == 0
        side.transfers.clear()
        ctx.set(bench.dut.core[1].resetting, 1)
        assert (await bench.write(ctx, address("DMA_START", 1), 1)).refused
        assert await bench.get(ctx, "DMA_FAULT", 1) == CORE_REGISTERS["DMA_FAULT"].pack(BUSY=1)
        assert not side.transfers

    bench.run(process)


@pytest.mark.slow
def test_core_that_takes_nothing_does_not_hang_the_host() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        side.words = {(Space.IMEM, 0): 5}
        side.ready = False
        for name in ("ACCESS_DATA", "SEMAPHORE_ADD", "DMA_START"):
            start = bench.now
            assert (await bench.write(ctx, address(name, 0), 1)).refused
            assert WAIT_CYCLES <= bench.now - start < WAIT_CYCLES + 10
            # What is not allowed does not wait for the core.
            start = bench.now
            assert (await bench.write(ctx, address(name, 0), 1, 7)).refused
            if not CORE_REGISTERS[name].readable:
                assert (await bench.read(ctx, address(name, 0))).refused
            assert bench.now - start < 30
        assert await bench.get(ctx, "DMA_FAULT", 0) == CORE_REGISTERS["DMA_FAULT"].pack(BUSY=1)
        # The other core answers for itself, also after the wait is over.
        await bench.put(ctx, "SEMAPHORE_ADD", 3, 1)
        side.ready = True
        for _ in range(10):
            await bench.cycle(ctx)
        assert not side.requests
        assert not side.additions
        assert not side.transfers
        assert await bench.get(ctx, "ACCESS_ADDRESS", 0) == 0
        assert await bench.get(ctx, "ACCESS_DATA", 0) == 5

    bench.run(process)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ACCESS_DATA", "SEMAPHORE_ADD", "DMA_START"])
def test_offer_that_is_given_up_was_not_taken(name: str) -> None:
    """A core can take an offer in the offer's last cycle, but not in the cycle after it."""
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        side.words = {(Space.IMEM, 0): 5}
        side.ready = False
        for after, done in ((WAIT_CYCLES - 2, True), (WAIT_CYCLES - 1, False)):
            side.ready_after = after
            answer = await bench.write(ctx, address(name, 0), 1)
            assert answer.refused != done
            assert len(side.requests) + len(side.additions) + len(side.transfers) == done
            for taken in (side.requests, side.additions, side.transfers):
                taken.clear()

    bench.run(process)


def test_interrupts_are_kept_until_cleared_and_shown_if_enabled() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        dut = bench.dut
        status = GLOBAL_REGISTERS["INTERRUPT_STATUS"]

        async def line() -> int:
            for _ in range(3):
                await bench.cycle(ctx)
            return ctx.get(dut.interrupt)

        def what(word: int) -> set[str]:
            return {name for name, value in status.unpack(word).items() if value}

        for core in range(2):
            port = dut.core[core]
            names = [f"CORE{core}_{event}" for event in EVENTS]
            causes: list[tuple[Any, list[int]]] = [
                (port.running, [1, 0]), (port.fault, [Fault.ILLEGAL]),
                (port.transfer_done, [1, 0]), (port.transfer_failed, [1, 0])]
            for name, (signal, values) in zip(names, causes, strict=True):
                assert what(await bench.get(ctx, "INTERRUPT_STATUS")) == set()
                for value in values:
                    ctx.set(signal, value)
                    await bench.cycle(ctx)
                assert what(await bench.get(ctx, "INTERRUPT_STATUS")) == {name}
                assert not await line()
                await bench.put(ctx, "INTERRUPT_ENABLE", status.mask ^ status[name].mask)
                assert not await line()
                await bench.put(ctx, "INTERRUPT_ENABLE", status[name].mask)
                assert await line()
                # Zeros and other bits clear nothing.
                await bench.put(ctx, "INTERRUPT_STATUS", status.mask ^ status[name].mask)
                assert await line()
                await bench.put(ctx, "INTERRUPT_STATUS", status[name].mask)
                assert not await line()
                await bench.put(ctx, "INTERRUPT_ENABLE", 0)
            # A fault is an event, not a state; another one is another event.
            ctx.set(port.fault, Fault.WATCHDOG)
            await bench.cycle(ctx)
            assert what(await bench.get(ctx, "INTERRUPT_STATUS")) == {f"CORE{core}_FAULT"}
            await bench.put(ctx, "INTERRUPT_STATUS", status.mask)
            ctx.set(port.fault, Fault.NONE)

    bench.run(process)


def test_event_in_the_cycle_of_its_clearing_is_kept() -> None:
    bench = RegistersBench()

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(bench.dut.core[0].transfer_done, 1)
        await bench.put(ctx, "INTERRUPT_STATUS", 0x707)
        ctx.set(bench.dut.core[0].transfer_done, 0)
        assert await bench.get(ctx, "INTERRUPT_STATUS") == 4

    bench.run(process)
