"""The serial line, the board's clock, and arguments; `bench_serial` has the traffic."""

import random
import struct
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from amaranth.sim import SimulatorContext

from hdl.config import Config
from hdl.fpga import bridge as bridge_module
from hdl.fpga.board import CRYSTAL_HZ, Board, pll_divisors
from hdl.fpga.bridge import SerialBridge
from hdl.fpga.executor import Executor
from hdl.fpga.host import SerialHost
from hdl.fpga.memory import BlockMemory
from hdl.fpga.protocol import (
    CHECK_BYTES,
    MAX_WORDS,
    VERSION,
    Operation,
    Request,
    Response,
    Status,
)
from hdl.fpga.system import SerialSystem
from hdl.fpga.uart import UartReceiver, UartTransmitter
from verif.hdl.simulation.simulator import fast_simulator, simulate
from verif.hdl.stubs import stub_out

FPGA = Config.preset("fpga")


def levels(line: Sequence[int], cycles: float) -> list[int]:
    """The line's level in each cycle for some bytes; ``cycles`` for a bit need not be integer."""
    bits = [bit for byte in line for bit in (0, *(byte >> place & 1 for place in range(8)), 1)]
    return [bits[int(cycle / cycles)] for cycle in range(int(len(bits) * cycles))]


def receive(divisor: int, line: Sequence[int]) -> list[int | None]:
    """Bytes that a receiver finds in a line's levels by cycle; None: a byte without a stop bit."""
    dut = UartReceiver(divisor)
    found: list[int | None] = []

    async def process(ctx: SimulatorContext) -> None:
        for level in [*line, *[1] * (divisor + 4)]:
            ctx.set(dut.line, level)
            await ctx.tick()
            if ctx.get(dut.valid):
                found.append(None if ctx.get(dut.error) else ctx.get(dut.data))

    simulator = fast_simulator(dut)
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

    simulator = fast_simulator(dut)
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

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    assert words == [11, 12, 11]


def execute(payload: bytes,
            refused: int = -1) -> tuple[Response, list[tuple[int, int | None]], int]:
    """Executes a request; returns response, accesses (address, written data or None), reset cycles.

    A word that is read is its address. The access to the address ``refused`` fails.
    """
    dut = Executor()
    accesses: list[tuple[int, int | None]] = []
    sent: list[int] = []
    resets = 0

    async def process(ctx: SimulatorContext) -> None:
        nonlocal resets
        ctx.set(dut.access.done, 1)
        ctx.set(dut.response.ready, 1)
        ctx.set(dut.length, len(payload) + CHECK_BYTES)
        ctx.set(dut.received, 1)
        await ctx.tick()
        ctx.set(dut.received, 0)
        while ctx.get(dut.hold):
            at = ctx.get(dut.access.address)
            ctx.set(dut.access.value, at)
            ctx.set(dut.access.error, at == refused)
            if ctx.get(dut.access.valid):
                accesses.append((at, ctx.get(dut.access.data) if ctx.get(dut.access.write)
                                 else None))
            if ctx.get(dut.response.valid):
                sent.append(ctx.get(dut.response.payload.data))
            resets += ctx.get(dut.reset)
            read, place = ctx.get(dut.read), ctx.get(dut.read_address)
            await ctx.tick()
            if read and place < len(payload):
                ctx.set(dut.read_data, payload[place])

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    return Response.parse(bytes(sent)), accesses, resets


@pytest.mark.parametrize(("operation", "count", "step"), [
    (Operation.READ, 1, 4), (Operation.READ, MAX_WORDS, 4), (Operation.READ_FIXED, 3, 0)])
def test_executor_reads_as_many_words_as_requested(operation: Operation, count: int,
                                                   step: int) -> None:
    places = [0x124 + step * number for number in range(count)]
    response, accesses, _ = execute(Request(9, operation, 0x124, count=count).payload())
    assert response == Response(9, Status.OKAY, count, tuple(places))
    assert accesses == [(place, None) for place in places]


@pytest.mark.parametrize(("operation", "step"), [(Operation.WRITE, 4), (Operation.WRITE_FIXED, 0)])
def test_executor_writes_all_words(operation: Operation, step: int) -> None:
    words = (0x89ABCDEF, 1, 0xFFFFFFFE)
    response, accesses, _ = execute(Request(3, operation, 0x40, words).payload())
    assert response == Response(3, Status.OKAY, 3)
    assert accesses == [(0x40 + step * number, word) for number, word in enumerate(words)]


def test_executor_ends_at_the_first_refused_word() -> None:
    response, accesses, _ = execute(Request(5, Operation.READ, 0x20, count=9).payload(), 0x28)
    assert response == Response(5, Status.REFUSED, 2, (0x20, 0x24))
    assert accesses == [(0x20, None), (0x24, None), (0x28, None)]


def test_executor_identifies_itself_and_resets_the_chip() -> None:
    assert execute(Request(1, Operation.IDENTIFY).payload()) == (
        Response(1, Status.OKAY, 1, (VERSION,)), [], 0)
    response, accesses, resets = execute(Request(2, Operation.RESET).payload())
    assert (response, accesses) == (Response(2, Status.OKAY, 0), [])
    assert resets == 16


@pytest.mark.parametrize(("operation", "count", "address", "words"), [
    (Operation.READ, 0, 0, 0), (Operation.READ, MAX_WORDS + 1, 0, 0), (Operation.READ, 1, 2, 0),
    (Operation.READ, 1, 0, 1), (Operation.READ_FIXED, 1, 1, 0), (Operation.WRITE, 2, 0, 1),
    (Operation.WRITE, 1, 0, 2), (Operation.WRITE, 0, 0, 0), (Operation.WRITE_FIXED, 1, 3, 1),
    (Operation.IDENTIFY, 1, 0, 0), (Operation.IDENTIFY, 0, 0, 1), (Operation.RESET, 1, 0, 0),
    (Operation.RESET, 0, 0, 1), (6, 1, 0, 0)])
def test_executor_does_nothing_for_a_malformed_request(operation: int, count: int, address: int,
                                                       words: int) -> None:
    payload = struct.pack("<BBHI", 7, operation, count, address) + bytes(4 * words)
    assert execute(payload) == (Response(7, Status.MALFORMED, 0), [], 0)


def test_requests_are_refused_exactly_while_the_executor_uses_the_buffer(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte of a request may arrive in the first cycle in which the buffer is free."""
    placed = stub_out(monkeypatch, bridge_module, "FrameReceiver", "FrameSender", "Executor")
    dut = SerialBridge(4)

    async def process(ctx: SimulatorContext) -> None:
        [receiver], [executor] = placed["FrameReceiver"], placed["Executor"]
        for value in (1, 0, 1):
            ctx.set(executor.hold, value)
            assert ctx.get(receiver.hold) == value
            await ctx.tick()

    simulate(dut, process)


@pytest.mark.parametrize(("valid", "write", "ready"), [
    (0, 0, (1, 1)), (0, 1, (1, 1)), (1, 0, (1, 0)), (1, 1, (0, 1))])
def test_an_access_of_the_host_delays_only_bursts_of_its_own_direction(
        valid: int, write: int, ready: tuple[int, int]) -> None:
    memory = BlockMemory(12, 32)

    async def process(ctx: Any) -> None:
        ctx.set(memory.access.valid, valid)
        ctx.set(memory.access.write, write)
        assert (ctx.get(memory.axi.awready), ctx.get(memory.axi.arready)) == ready

    simulate(memory, process)


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
    (lambda: Board(FPGA, 25_000_000, 3_000_000), "baud must be within 2% of 25000000 / n"),
    (lambda: Board(FPGA, 25_000_000, 12_500_000), "baud must be within 2% of 25000000 / n"),
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
