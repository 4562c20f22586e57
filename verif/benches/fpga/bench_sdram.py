"""Benches of an `SdramController` between a master of `cocotbext.axi` and a golden SDRAM.

The golden SDRAM checks each command. An `AxiChecker` watches the port in tests whose bursts consist
of whole beats, as the chip's bursts do. At the end, the master reads all that was written, and the
bench compares it with a dictionary of the bytes written.
"""

import logging
import random

import cocotb
from cocotb.handle import HierarchyObject
from cocotbext.axi import AxiBurstType, AxiBus, AxiMaster

from golden.fpga.sdram import Edge, GoldenSdram
from hdl.axi.interface import Resp
from verif.benches.axi.channels import quicken
from verif.benches.axi.pauses import Pauses
from verif.benches.axi.watch import AxiWatch
from verif.benches.clocking import ClockDomain, int_reader, pin
from verif.benches.fpga.tops import SDRAM_BITS, START_US, TIMING

bench_test = cocotb.test(timeout_time=2, timeout_unit="ms")

_SIZE = 1 << SDRAM_BITS
_BEAT = 16
_PERIOD_PS = 10**12 // TIMING.clock_hz


class SdramBench:
    """The controller, what surrounds it, and the expected contents of the memory.

    Attributes
    ----------
    memory : dict of int to int
        Bytes that were written, by address.
    sdram : GoldenSdram
    """

    def __init__(self, dut: HierarchyObject, watched: bool) -> None:
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.sdram = GoldenSdram(_PERIOD_PS, START_US)
        self.memory: dict[int, int] = {}
        self._pins = [int_reader(pin(dut, f"pins__{name}")) for name in (
            "command", "bank", "address", "mask", "data", "enable", "drive")]
        self._data_in = pin(dut, "pins__data_in")
        self._word: int | None = None
        self._reset_chip = pin(dut, "reset_chip")
        self._access = {name: pin(dut, f"access__{name}")
                        for name in ("valid", "write", "address", "data", "done", "error", "value")}
        for level in (self._reset_chip, self._data_in, self._access["valid"]):
            level.value = 0
        self.master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.reset_master)
        self.write_channels = [self.master.write_if.aw_channel, self.master.write_if.w_channel,
                               self.master.write_if.b_channel]
        self.read_channels = [self.master.read_if.ar_channel, self.master.read_if.r_channel]
        self._pauses = Pauses(self.domain, self.rng)
        quicken(self.master.write_if, self.master.read_if, log=logging.ERROR)
        self._watches = [AxiWatch(self.domain, dut, "s_axi", _BEAT, 256)] if watched else []
        self._step = _BEAT if watched else 1

    @classmethod
    async def started(cls, dut: HierarchyObject, *, watched: bool = True) -> "SdramBench":
        """A bench after a reset of the design; from then on, the SDRAM checks the commands."""
        bench = cls(dut, watched)
        await bench.domain.reset()
        bench.domain.at_each_edge(bench._pads)
        return bench

    def _pads(self) -> None:
        """Models one cycle of the pads' registers and of the SDRAM, whose clock rises in it."""
        command, bank, address, mask, data, enable, drive = (read() for read in self._pins)
        self._data_in.value = self.rng.getrandbits(16) if self._word is None else self._word
        self._word, rule = self.sdram.edge(
            Edge(command, bank, address, mask, data if drive else None, enable))
        assert not rule, f"the SDRAM's rule {rule.name} is violated"

    def set_pauses(self, probability: float) -> None:
        """Set the probability of a pause in all channels."""
        self._pauses.set((*self.write_channels, *self.read_channels), probability)

    async def write(self, address: int, data: bytes) -> None:
        """Write bytes at any address."""
        self.memory.update(enumerate(data, address))
        assert (await self.master.write(address, data, awid=0)).resp == Resp.OKAY

    async def read(self, address: int, length: int) -> None:
        """Read bytes at any address; check those that have been written before."""
        found = await self.master.read(address, length, arid=0)
        assert found.resp == Resp.OKAY
        for place, byte in enumerate(found.data, address):
            assert byte == self.memory.get(place, byte), f"byte {place:#x} is {byte:#x}"

    async def word(self, address: int, value: int | None = None) -> None:
        """Write a word through the port for words; if ``value`` is None, read and compare it."""
        pins = self._access
        pins["write"].value, pins["address"].value = int(value is not None), address
        pins["data"].value, pins["valid"].value = value or 0, 1
        await self.domain.edge
        while not int(pins["done"].value):
            await self.domain.edge
        found, error = int(pins["value"].value), int(pins["error"].value)
        pins["valid"].value = 0
        assert not error
        if value is not None:
            self.memory.update(enumerate(value.to_bytes(4, "little"), address))
        else:
            for place, byte in enumerate(found.to_bytes(4, "little"), address):
                assert byte == self.memory.get(place, byte), f"byte {place:#x} is {byte:#x}"

    async def reset_chip(self) -> None:
        """Reset the slave and the master for some cycles."""
        self._reset_chip.value = 1
        await self.domain.cycles(3)
        self._reset_chip.value = 0
        await self.domain.cycles(1)

    def ask(self, valid: int) -> None:
        """Request a read through the port for words; if ``valid`` is 0, withdraw the request."""
        self._access["valid"].value, self._access["write"].value = valid, 0

    async def bursts(self, count: int, longest: int = 300) -> None:
        """Write and read random parts of the memory's lower half."""
        for _ in range(count):
            step = self._step
            length = step * self.rng.randint(1, longest // step)
            # Often at the end of a row, which has 1 KiB.
            address = step * self.rng.choice((
                self.rng.randrange((_SIZE // 2 - length) // step),
                (1024 * self.rng.randrange(1, 15) - 64) // step))
            await self.write(address, self.rng.randbytes(length))
            await self.read(max(0, address - 2 * step), length)

    async def finish(self) -> None:
        """Compare all that was written."""
        self.set_pauses(0)
        assert self.memory
        for address in sorted({place // 256 for place in self.memory}):
            await self.read(256 * address, 256)
        for watch in self._watches:
            watch.finish()


@bench_test
async def random_bursts(dut: HierarchyObject) -> None:
    """Bursts of all lengths and alignments, with pauses."""
    bench = await SdramBench.started(dut, watched=False)
    for probability in (0, 0.3, 0.8):
        bench.set_pauses(probability)
        await bench.bursts(8)
    await bench.finish()


@bench_test
async def bursts_and_words(dut: HierarchyObject) -> None:
    """Words of the upper half of the memory, while bursts write and read the lower half."""
    bench = await SdramBench.started(dut)
    task = cocotb.start_soon(bench.bursts(12))
    for _ in range(60):
        address = _SIZE // 2 + 4 * bench.rng.choice((0, 1, 2, 3, 700, bench.rng.randrange(2000)))
        await bench.word(address, bench.rng.choice((None, bench.rng.getrandbits(32))))
        await bench.domain.cycles(bench.rng.randint(1, 30))
    await task
    await bench.finish()


@bench_test
async def reads_and_writes_at_once(dut: HierarchyObject) -> None:
    """A burst of reads waits while one of writes is under way, and the other way round."""
    bench = await SdramBench.started(dut)
    await bench.write(0, bench.rng.randbytes(2048))

    async def writes() -> None:
        for address in range(4096, 8192, 512):
            await bench.write(address, bench.rng.randbytes(512))

    task = cocotb.start_soon(writes())
    for address in range(0, 2048, 256):
        await bench.read(address, 256)
    await task
    await bench.finish()


@bench_test
async def longest_bursts_at_full_rate(dut: HierarchyObject) -> None:
    """A burst of 256 beats takes little more than eight cycles a beat: one for each 16-bit word."""
    bench = await SdramBench.started(dut)
    await bench.write(0, bytes(16))  # waits for the start
    for write in (True, False):
        before = bench.domain.now
        if write:
            await bench.write(4096, bench.rng.randbytes(4096))
        else:
            await bench.read(4096, 4096)
        cycles = bench.domain.now - before
        assert 256 * 8 < cycles < 256 * 8 * 1.12, f"4 KiB took {cycles} cycles"
    await bench.finish()


@bench_test
async def stalls_do_not_delay_refreshes(dut: HierarchyObject) -> None:
    """Refreshes go on while the master takes no data, and while it sends none."""
    bench = await SdramBench.started(dut)
    await bench.write(0, bench.rng.randbytes(1024))
    for channel, step in ((bench.read_channels[1], bench.read(0, 1024)),
                          (bench.write_channels[1], bench.write(64, bench.rng.randbytes(1024)))):
        task = cocotb.start_soon(step)
        await bench.domain.cycles(40)
        channel.pause = True
        before = bench.sdram.counts["refresh"]
        await bench.domain.cycles(6 * TIMING.refresh_cycles)
        assert bench.sdram.counts["refresh"] - before in (5, 6, 7)
        channel.pause = False
        await task
    await bench.finish()


@bench_test
async def bursts_of_other_types(dut: HierarchyObject) -> None:
    """Bursts that are not of type INCR and full width get SLVERR, and write nothing."""
    bench = await SdramBench.started(dut, watched=False)
    await bench.write(0, bench.rng.randbytes(256))
    for options in ({"burst": AxiBurstType.FIXED}, {"burst": AxiBurstType.WRAP}, {"size": 0}):
        written = await bench.master.write(64, bytes([1] * 4), **options)
        read = await bench.master.read(64, 4, **options)
        assert (written.resp, read.resp) == (Resp.SLVERR, Resp.SLVERR)
    await bench.finish()


@bench_test
async def reset_of_the_chip_keeps_the_contents(dut: HierarchyObject) -> None:
    """When the slave is reset at any time, the controller still refreshes and ends its beats."""
    bench = await SdramBench.started(dut, watched=False)
    words = list(range(0, 2048, 68))
    for address in words:
        await bench.word(address, bench.rng.getrandbits(32))
    for number in range(12):
        # A read of which no one takes the answer.
        bench.ask(1)
        await bench.domain.cycles(1 + 2 * number)
        reset = cocotb.start_soon(bench.reset_chip())
        bench.ask(0)
        await reset
        await bench.word(bench.rng.choice(words))
    await bench.finish()


@bench_test
async def reset_of_the_chip_in_a_burst(dut: HierarchyObject) -> None:
    """When slave and master are reset, exactly the beats that the slave took are written."""
    bench = await SdramBench.started(dut, watched=False)
    await bench.write(0, bench.rng.randbytes(2048))
    valid, ready = (int_reader(pin(dut, f"s_axi_w{name}")) for name in ("valid", "ready"))
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += valid() & ready()

    bench.domain.at_each_edge(count)
    partial = set()
    for number in range(32):
        bench.set_pauses(0.3 * (number % 2))
        # Half of the bursts cross from one row of 1 KiB to the next.
        address = bench.rng.choice((16 * bench.rng.randrange(48), 1024 - 16 * number))
        data = bench.rng.randbytes(256)
        taken = 0
        burst = cocotb.start_soon(bench.master.write(address, data, awid=0))
        await bench.domain.cycles(2 + 5 * number)
        await bench.reset_chip()
        await burst
        bench.memory.update(enumerate(data[:16 * taken], address))
        partial.add(taken)
        burst = cocotb.start_soon(bench.master.read(address, 256, arid=0))
        await bench.domain.cycles(bench.rng.randint(1, 160))
        await bench.reset_chip()
        await burst
        await bench.read(max(0, address - 16), 288)
    assert len(partial) > 8
    await bench.finish()
