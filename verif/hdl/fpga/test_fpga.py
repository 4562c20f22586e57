"""The serial line, the board's clock, and arguments; `bench_serial` has the traffic."""

import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from amaranth.sim import Simulator, SimulatorContext

from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ, Board, pll_divisors
from hdl.fpga.bridge import SerialBridge
from hdl.fpga.executor import Executor
from hdl.fpga.host import SerialHost
from hdl.fpga.memory import BlockMemory
from hdl.fpga.protocol import CHECK_BYTES, Operation, Request
from hdl.fpga.system import SerialSystem
from hdl.fpga.uart import UartReceiver, UartTransmitter

FPGA = Config.preset("fpga")


def levels(line: Sequence[int], cycles: float) -> list[int]:
    """The line in each cycle, for bytes whose bits take a number of cycles that may be broken."""
    bits = [bit for byte in line for bit in (0, *(byte >> place & 1 for place in range(8)), 1)]
    return [bits[int(cycle / cycles)] for cycle in range(int(len(bits) * cycles))]


def receive(divisor: int, line: Sequence[int]) -> list[int | None]:
    """Bytes that a receiver finds on a line given by cycle; None: without a stop bit."""
    dut = UartReceiver(divisor)
    found: list[int | None] = []

    async def process(ctx: SimulatorContext) -> None:
        for level in [*line, *[1] * (divisor + 4)]:
            ctx.set(dut.line, level)
            await ctx.tick()
            if ctx.get(dut.valid):
                found.append(None if ctx.get(dut.error) else ctx.get(dut.data))

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    return found


@pytest.mark.parametrize(("divisor", "rate"), [
    (4, 0.98), (4, 0.995), (4, 1.0), (4, 1.02), (5, 0.98), (25, 1.0), (25, 0.96), (25, 1.04)])
def test_receiver_accepts_other_clocks(divisor: int, rate: float) -> None:
    sent = random.Random(divisor).randbytes(6) + b"\x00\xff\x55"
    assert receive(divisor, levels(sent, divisor * rate)) == list(sent)


def test_receiver_ignores_noise_and_waits_for_the_end_of_a_break() -> None:
    idle, short = [1] * 20, [0] * 3
    line = [*idle, *short, *idle, *levels(b"\xa5", 8), *[0] * 300, *idle, *levels(b"\x5a", 8)]
    assert receive(8, line) == [0xA5, None, 0x5A]


@pytest.mark.parametrize("divisor", [4, 7])
def test_transmitter_sends_bytes_without_pause(divisor: int) -> None:
    dut = UartTransmitter(divisor)
    sent = bytes([0x00, 0xA5, 0xFF, 0x01])
    line: list[int] = []

    async def process(ctx: SimulatorContext) -> None:
        waiting = list(sent)
        ctx.set(dut.input.valid, 1)
        for _ in range(10 * divisor * (len(sent) + 1)):
            ctx.set(dut.input.payload, waiting[0] if waiting else 0)
            ctx.set(dut.input.valid, bool(waiting))
            taken = waiting and ctx.get(dut.input.ready)
            line.append(ctx.get(dut.line))
            await ctx.tick()
            if taken:
                waiting.pop(0)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    idle = len(next(iter([list(run) for level, run in groupby(line) if level])))
    assert line[idle:idle + 10 * divisor * len(sent)] == levels(sent, divisor)


def test_requests_whose_checksums_are_equal_by_chance_are_executed() -> None:
    dut = Executor()
    requests = [Request(number, Operation.WRITE, 8, (10 + number,)) for number in (1, 2, 2, 1)]
    words: list[int] = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.access.done, 1)
        ctx.set(dut.response.ready, 1)
        ctx.set(dut.check, 0x12345678)
        for payload in (request.payload() for request in requests):
            ctx.set(dut.length, len(payload) + CHECK_BYTES)
            ctx.set(dut.received, 1)
            await ctx.tick()
            ctx.set(dut.received, 0)
            while ctx.get(dut.hold):
                if ctx.get(dut.access.valid):
                    words.append(ctx.get(dut.access.data))
                read, place = ctx.get(dut.read), ctx.get(dut.read_address)
                await ctx.tick()
                if read:
                    ctx.set(dut.read_data, payload[place])

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    assert words == [11, 12, 11]


@pytest.mark.parametrize("clock_hz", [3_125_000, 12_500_000, 20_000_000, 30_000_000, 40_000_000])
def test_pll_makes_the_clock_within_its_limits(clock_hz: int) -> None:
    reference, feedback, output = pll_divisors(clock_hz)
    assert CRYSTAL_HZ * feedback == clock_hz * reference
    assert CRYSTAL_HZ / reference >= 3_125_000
    assert 400e6 <= clock_hz * output <= 800e6
    assert output <= 128


@pytest.mark.parametrize(("make", "message"), [
    (lambda: UartReceiver(3), "divisor must be at least 4, not 3"),
    (lambda: UartTransmitter(3), "divisor must be at least 4, not 3"),
    (lambda: SerialBridge(3), "divisor must be at least 4, not 3"),
    (lambda: SerialHost(4, 32, 128), "address_bits must be from 2 to 31, not 32"),
    (lambda: BlockMemory(12, 16), "data_bits must be at least 32, not 16"),
    (lambda: BlockMemory(4, 128), "address_bits must be from 5 to 64, not 4"),
    (lambda: SerialSystem(Config.preset("fpga", cores=2), 4), "cores must be 1, not 2"),
    (lambda: SerialSystem(Config.preset("fpga", hbm_channels=2), 4), "channels must be 1, not 2"),
    (lambda: Board(FPGA, 26_000_000, 1_000_000), "clock_hz must be a multiple of 25000000 / n"),
    (lambda: Board(FPGA, 25_000_000, 3_000_000), "baud must divide the clock"),
    (lambda: Board(FPGA, 25_000_000, 12_500_000), "baud must divide the clock"),
])
def test_wrong_sizes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("make", "arguments"), [
    (SerialSystem, ("fpga", 4)), (SerialSystem, (FPGA, 4.0)), (BlockMemory, ("12", 32)),
    (Board, (FPGA, 25e6, 1_000_000)), (SerialHost, (4, 12, "128"))])
def test_wrong_types_are_refused(make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"must be a(n integer| Config), not "):
        make(*arguments)
