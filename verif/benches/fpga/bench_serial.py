"""Benches of a `SerialHost` that connects a serial line, registers and an AXI master.

Each response is compared with that of the golden bridge, byte by byte, and so are the registers and
the memory at the end. An `AxiChecker` watches the port of registers.
"""

import logging
import random
import struct
from collections.abc import Iterable

import cocotb
from cocotb.handle import HierarchyObject
from cocotbext.axi import AxiBurstType, AxiBus, AxiLiteBus, AxiLiteRam, AxiMaster

from golden.fpga.bridge import GoldenBridge
from hdl.axi.interface import CONTROL_ADDRESS_BITS, Resp
from hdl.fpga.protocol import FLAG, MAX_WORDS, MEMORY_BASE, Operation, Request, frame
from verif.benches.axi.channels import quicken
from verif.benches.axi.memory import BadMemory
from verif.benches.axi.pauses import Pauses
from verif.benches.axi.watch import AxiWatch
from verif.benches.clocking import ClockDomain, pin, reader
from verif.benches.fpga.line import Line
from verif.benches.fpga.tops import DIVISOR, MEMORY_BITS

bench_test = cocotb.test(timeout_time=10, timeout_unit="ms")

_REGISTERS = 1 << CONTROL_ADDRESS_BITS
_MEMORY = 1 << MEMORY_BITS
_BYTE = 10 * DIVISOR
_RATES = (0.98, 1.0, 1.02)
"""Bit rates at which the bench sends, relative to the design's rate."""
_BAD = 0x400
"""Address of a register that refuses all accesses."""


class _Model:
    """Registers and memory as the golden bridge sees them."""

    def __init__(self) -> None:
        self.registers = bytearray(_REGISTERS)
        self.memory = bytearray(_MEMORY)
        self.resets = 0

    def _find(self, address: int) -> tuple[bytearray, int] | None:
        if address < _REGISTERS and address != _BAD:
            return self.registers, address
        if MEMORY_BASE <= address < MEMORY_BASE + _MEMORY:
            return self.memory, address - MEMORY_BASE
        return None

    def read(self, address: int) -> int | None:
        found = self._find(address)
        return None if found is None else struct.unpack_from("<I", *found)[0]

    def write(self, address: int, word: int) -> bool:
        found = self._find(address)
        if found is not None:
            struct.pack_into("<I", *found, word)
        return found is not None

    def reset(self) -> None:
        self.resets += 1


class HostBench:
    """The serial host, its surroundings, and the golden bridge."""

    def __init__(self, dut: HierarchyObject) -> None:
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.line = Line(self.domain, dut, DIVISOR)
        self.model = _Model()
        self.golden = GoldenBridge(self.model)
        self._registers = BadMemory(_REGISTERS)
        self._registers.bad.add(_BAD)
        slave = AxiLiteRam(AxiLiteBus.from_prefix(dut, "m_axil"), dut.clk, dut.rst,
                           size=_REGISTERS, mem=self._registers)
        self.master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        self._channels = [slave.write_if.aw_channel, slave.write_if.w_channel,
                          slave.write_if.b_channel, slave.read_if.ar_channel,
                          slave.read_if.r_channel, self.master.write_if.aw_channel,
                          self.master.write_if.w_channel, self.master.write_if.b_channel,
                          self.master.read_if.ar_channel, self.master.read_if.r_channel]
        for side in (slave, self.master):
            quicken(side.write_if, side.read_if, log=logging.ERROR)
        self._pauses = Pauses(self.domain, self.rng)
        self.watch = AxiWatch(self.domain, dut, "m_axil", 4, 0)
        self._reset_chip = reader(pin(dut, "reset_chip"))
        self._was_reset = False
        self.resets = 0
        self.compared = 0
        self.domain.at_each_edge(self._count_resets)

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "HostBench":
        """A bench whose host has been reset, and whose memory is cleared."""
        bench = cls(dut)
        await bench.domain.reset()
        # What the line did before the reset may pass for a byte.
        await bench.domain.cycles(2 * _BYTE)
        bench.line.received.clear()
        await bench.master.write(0, bytes(_MEMORY))
        return bench

    def set_pauses(self, probability: float) -> None:
        """Sets the probability of a pause in all channels of AXI."""
        self._pauses.set(self._channels, probability)

    def _count_resets(self) -> None:
        now = self._reset_chip() == "1"
        self.resets += now and not self._was_reset
        self._was_reset = now

    async def exchange(self, line: Iterable[int | None], rate: float = 1.0) -> None:
        """Sends bytes, at a rate relative to the design's; compares the response with the golden
        bridge's.
        """
        line = list(line)
        expected = b"".join(map(self.golden.receive, line))
        await self.line.send(line, DIVISOR / rate)
        await self.compare(expected)

    async def compare(self, expected: bytes) -> None:
        """Waits for bytes, and checks that no others follow."""
        quiet = 0
        while len(self.line.received) < len(expected) or quiet < 4:
            before = len(self.line.received)
            await self.domain.cycles(_BYTE)
            quiet = quiet + 1 if len(self.line.received) == before else 0
            assert quiet < 400, f"{len(self.line.received)} bytes came, not {len(expected)}"
        assert bytes(self.line.received) == expected
        self.line.received.clear()
        self.compared += len(expected)

    def random_request(self, number: int, longest: int) -> Request:
        """A request for registers or memory; its addresses may lie beyond the end of either."""
        rng = self.rng
        operation = rng.choice([Operation.READ, Operation.WRITE, Operation.READ_FIXED,
                                Operation.WRITE_FIXED])
        base, size = rng.choice([(0, _REGISTERS), (MEMORY_BASE, _MEMORY)])
        address = base + rng.choice([4 * rng.randrange(size // 4), size - 8, _BAD - 4])
        count = rng.randint(1, longest)
        if operation in (Operation.READ, Operation.READ_FIXED):
            return Request(number, operation, address, count=count)
        special = [FLAG * 0x01010101, 0x7D7D7D7D, rng.getrandbits(32)]
        return Request(number, operation, address,
                       tuple(rng.choice([*special, rng.getrandbits(32)]) for _ in range(count)))

    async def finish(self) -> None:
        """Ends the test: checks that registers and memory equal those of the model."""
        self.set_pauses(0)
        assert self.compared > 0
        found = await self.master.read(0, _MEMORY)
        assert found.data == self.model.memory
        assert bytearray.__eq__(self._registers, self.model.registers)
        assert self.resets == self.model.resets


@bench_test
async def random_requests(dut: HierarchyObject) -> None:
    """Requests of all kinds, of registers and memory, with pauses, from fast and slow hosts."""
    bench = await HostBench.started(dut)
    for number in range(40):
        bench.set_pauses(bench.rng.choice((0, 0.3, 0.8)))
        await bench.exchange(frame(bench.random_request(number, 6).payload()),
                             bench.rng.choice(_RATES))
    await bench.finish()
    bench.watch.finish()


@bench_test
async def longest_requests(dut: HierarchyObject) -> None:
    """The longest write; the longest read, sent twice; a frame that is longer than any request."""
    bench = await HostBench.started(dut)
    words = tuple(bench.rng.getrandbits(32) for _ in range(MAX_WORDS))
    await bench.exchange(frame(Request(1, Operation.WRITE, MEMORY_BASE + 64, words).payload()),
                         max(_RATES))
    read = frame(Request(2, Operation.READ, MEMORY_BASE + 64, count=MAX_WORDS).payload())
    await bench.exchange(read)
    await bench.exchange(read)
    await bench.exchange([FLAG, *bytes(1100), FLAG])
    await bench.finish()


@bench_test
async def malformed_requests(dut: HierarchyObject) -> None:
    """Requests that are malformed or of an unknown kind are answered, and change nothing."""
    bench = await HostBench.started(dut)
    for operation, count, address, words in (
            (6, 0, 0, 0), (255, 1, 0, 0), (1, 0, 0, 0), (1, 257, 0, 0), (3, 1, 2, 0), (1, 1, 0, 1),
            (2, 1, 0, 0), (2, 1, 1, 1), (4, 2, 0, 1), (2, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1),
            (5, 1, 0, 0), (5, 0, 0, 1), (4, 0x101, 0, 1)):
        await bench.exchange(frame(struct.pack("<BBHI", 7, operation, count, address)
                                   + bytes(4 * words)))
    assert bench.model.resets == 0
    await bench.finish()


@bench_test
async def repeated_requests(dut: HierarchyObject) -> None:
    """A request that equals the one before is answered again, but not executed."""
    bench = await HostBench.started(dut)
    for request in (Request(1, Operation.WRITE_FIXED, 8, (1, 2)), Request(2, Operation.RESET),
                    Request(3, Operation.READ, MEMORY_BASE, count=3),
                    Request(3, Operation.READ, _BAD, count=3),
                    Request(4, Operation.IDENTIFY)):
        for _ in range(3):
            await bench.exchange(frame(request.payload()))
        # Repeated while its response is sent: dropped.
        line = frame(Request(9, request.operation, request.address, request.words,
                             request.count).payload())
        expected = b"".join(map(bench.golden.receive, line))
        await bench.line.send(line[:-1])
        await bench.line.send([FLAG, *line[1:5]])
        await bench.compare(expected)
        await bench.exchange([*map(int, line[5:])])
    await bench.exchange(frame(Request(5, Operation.WRITE, 8, (3,)).payload()))
    await bench.finish()


@bench_test
async def damaged_lines(dut: HierarchyObject) -> None:
    """After lost, inserted or changed bytes and stop bits, the next request is executed."""
    bench = await HostBench.started(dut)
    for number in range(24):
        line: list[int | None] = list(frame(bench.random_request(number, 2).payload()))
        place = bench.rng.randrange(1, len(line) - 1)
        damage = number % 4
        if damage == 0:
            del line[place:]
        elif damage == 1:
            line[place] = None
        elif damage == 2:
            line.insert(place, bench.rng.choice((0x7D, 0, FLAG)))
        else:
            line[place] = (line[place] or 0) ^ 1 << bench.rng.randrange(8)
        await bench.exchange(line)
        await bench.exchange([FLAG, *frame(Request(number, Operation.IDENTIFY).payload())])
    assert bench.golden.dropped >= 20
    await bench.finish()


@bench_test
async def pulled_cable_and_wrong_rates(dut: HierarchyObject) -> None:
    """After breaks, noise and bytes at other rates, a request at the right rate is executed."""
    bench = await HostBench.started(dut)
    request = bench.random_request(0, 6)
    for number, divisor in enumerate((2, 3, 6, 8, 13, 40)):
        line = frame(Request(number, Operation.WRITE, MEMORY_BASE, (number, 1, 2)).payload())
        await bench.line.send(line, divisor)
        await bench.line.level(1, 12 * max(divisor, DIVISOR))
        assert not bench.line.received
        await bench.line.send(line[:7])
        await bench.line.level(0, 100 * DIVISOR)
        await bench.line.level(1, DIVISOR)
        for _ in range(20):
            await bench.line.level(bench.rng.randrange(2), bench.rng.randint(1, 9))
        await bench.line.level(1, 12 * DIVISOR)
        await bench.line.send([FLAG])
        assert not bench.line.received
        request = bench.random_request(number, 6)
        await bench.exchange(frame(request.payload()))
    await bench.finish()


@bench_test
async def bursts_and_words(dut: HierarchyObject) -> None:
    """Bursts of the master, with strobes, while words of the same memory are accessed."""
    bench = await HostBench.started(dut)
    half = _MEMORY // 2
    bench.set_pauses(0.3)

    async def bursts() -> None:
        for _ in range(20):
            length = bench.rng.randint(1, 100)
            address = half + bench.rng.randrange(half - length)
            data = bench.rng.randbytes(length)
            await bench.master.write(address, data)
            bench.model.memory[address:address + length] = data
            assert (await bench.master.read(address, length)).data == data

    task = cocotb.start_soon(bursts())
    for number in range(6):
        address = MEMORY_BASE + 4 * bench.rng.randrange(half // 4 - 8)
        words = tuple(bench.rng.getrandbits(32) for _ in range(4))
        await bench.exchange(frame(Request(number, Operation.WRITE, address, words).payload()))
        await bench.exchange(frame(Request(number, Operation.READ, address, count=6).payload()))
    await task
    await bench.finish()


@bench_test
async def bursts_of_other_types(dut: HierarchyObject) -> None:
    """Bursts that are not of type INCR and full width get SLVERR, and write nothing."""
    bench = await HostBench.started(dut)
    for options in ({"burst": AxiBurstType.FIXED}, {"burst": AxiBurstType.WRAP}, {"size": 0}):
        written = await bench.master.write(64, bytes([1] * 4), **options)
        read = await bench.master.read(64, 4, **options)
        assert (written.resp, read.resp) == (Resp.SLVERR, Resp.SLVERR)
    bench.compared += 1
    await bench.finish()
