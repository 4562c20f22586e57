"""Benches of an `HbmPort` that moves random rows to and from memories of `cocotbext.axi`.

An `AxiChecker` watches the AXI port of every channel. The rows that are read, and the final
contents of memory, are compared with those that the bench expects.
"""

import logging
import random
from collections.abc import Callable

import cocotb
from cocotb.handle import HierarchyObject
from cocotbext.axi import AxiBus, AxiRam

from hdl.axi.interface import hbm_prefix, max_beats
from hdl.config import Config
from verif.benches.axi.channels import quicken
from verif.benches.axi.memory import BadMemory
from verif.benches.axi.pauses import Pauses
from verif.benches.axi.watch import AxiWatch, check_watched
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.benches.streams import StreamMonitor, StreamPins, StreamSink, StreamSource
from verif.models.in_order import InOrderChecker

bench_test = cocotb.test(timeout_time=1000, timeout_unit="us")

_CHANNELS = ("ar", "r", "aw", "w", "b")


class HbmBench:
    """The port, its memories, and the rows that are expected from it.

    A row is an integer with lane 0 in the lowest bits.

    Attributes
    ----------
    config : Config
    rng : random.Random
    rows : StreamMonitor
        Records the rows that were read.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.domain = ClockDomain(dut)
        self.domain.start()
        self._busy, self._discard = pin(dut, "busy"), pin(dut, "discard")
        self._discard.value = 0
        self._sources = {name: StreamSource(self.domain, StreamPins.of(dut, name), self.rng)
                         for name in ("hbm_read", "hbm_write", "hbm_write_rows")}
        self._sinks = [StreamSink(self.domain, StreamPins.of(dut, name), self.rng)
                       for name in ("hbm_rows", "hbm_write_done")]
        self._row_bits = 8 * self.config.row_bytes
        self.read_rows: InOrderChecker[tuple[int, int | None]] = InOrderChecker("row", str)
        self.done: InOrderChecker[int] = InOrderChecker("end of a burst")
        self.rows = StreamMonitor(self.domain, dut, "hbm_rows", self._on_row)
        StreamMonitor(self.domain, dut, "hbm_write_done", self.done.check)
        self.taken = StreamMonitor(self.domain, dut, "hbm_write_rows", lambda _: None)
        size = self.config.hbm_bytes // self.config.hbm_channels
        self.memories = [BadMemory(size) for _ in range(self.config.hbm_channels)]
        self.watches, self.rams = [], []
        for c, memory in enumerate(self.memories):
            prefix = hbm_prefix(0, c)
            self.watches.append(AxiWatch(self.domain, dut, prefix, self.config.channel_bytes,
                                         max_beats(self.config)))
            self.rams.append(AxiRam(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst,
                                    size=size, mem=memory))
            quicken(self.rams[-1].write_if, self.rams[-1].read_if, log=logging.ERROR)
        check_watched(dut, self.watches)
        self._pauses = Pauses(self.domain, self.rng)

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "HbmBench":
        """A bench after a reset of the port; memory's first and last 1024 rows are random."""
        bench = cls(dut)
        for start in (0, bench.config.hbm_rows - 1024):
            for row in range(start, start + 1024):
                bench.store(row, bench.random_row())
        await bench.domain.reset()
        return bench

    @property
    def middle(self) -> int:
        """Address of the first of memory's last 1024 rows: tests write only these rows."""
        return self.config.hbm_rows - 1024

    def random_row(self) -> int:
        return self.rng.getrandbits(self._row_bits)

    def store(self, row: int, value: int) -> None:
        """Puts a row into memory."""
        size = self.config.channel_bytes
        for memory, part in zip(self.memories, self._parts(value), strict=True):
            bytearray.__setitem__(memory, slice(row * size, (row + 1) * size), part)

    def stored(self, row: int) -> int:
        """The row's contents in memory, all channels together."""
        size = self.config.channel_bytes
        data = b"".join(bytes(bytearray.__getitem__(memory, slice(row * size, (row + 1) * size)))
                        for memory in self.memories)
        return int.from_bytes(data, "little")

    def _parts(self, value: int) -> list[bytes]:
        size = self.config.channel_bytes
        data = value.to_bytes(self.config.row_bytes, "little")
        return [data[start:start + size] for start in range(0, len(data), size)]

    def refuse(self, row: int) -> None:
        """Makes a random channel's memory refuse accesses to its part of a row."""
        memory = self.rng.choice(self.memories)
        memory.bad.add(row * self.config.channel_bytes
                       + self.rng.randrange(self.config.channel_bytes))

    def is_bad(self, row: int) -> bool:
        """Whether a channel refuses its part of a row."""
        size = self.config.channel_bytes
        return any(place // size == row for memory in self.memories for place in memory.bad)

    def set_pauses(self, choose: Callable[[str], float], gap: float = 0.0,
                   stall: float = 0.0) -> None:
        """Sets the probabilities of a pause in a cycle.

        ``choose`` returns that of the AXI channel with a given name. ``gap`` holds for the streams
        to the port, ``stall`` for those from the port.
        """
        for ram in self.rams:
            for name in _CHANNELS:
                side = ram.read_if if name in ("ar", "r") else ram.write_if
                self._pauses.set([getattr(side, f"{name}_channel")], choose(name))
        for source in self._sources.values():
            source.gap = gap
        for sink in self._sinks:
            sink.stall = stall

    def read(self, row: int, count: int) -> None:
        """Requests rows, and expects that the port returns memory's current contents."""
        self._sources["hbm_read"].send([self._burst(row, count)])
        for number in range(row, row + count):
            bad = self.is_bad(number)
            self.read_rows.expect((int(bad), None if bad else self.stored(number)))

    def write(self, row: int, count: int) -> dict[int, int]:
        """Writes random rows; returns the rows that memory must hold at the end."""
        rows = [self.random_row() for _ in range(count)]
        self._sources["hbm_write"].send([self._burst(row, count)])
        self._sources["hbm_write_rows"].send(rows)
        bad = [self.is_bad(number) for number in range(row, row + count)]
        self.done.expect(int(any(bad)))
        return {number: value for number, value, refused in
                zip(range(row, row + count), rows, bad, strict=True) if not refused}

    def _burst(self, row: int, count: int) -> int:
        return row | (count - 1) << (self.config.hbm_rows - 1).bit_length()

    def _on_row(self, payload: int) -> None:
        error = payload >> self._row_bits
        self.read_rows.check((error, None if error else payload))

    async def drain(self) -> None:
        """Waits until all requests are done."""
        while not (self.read_rows.empty and self.done.empty
                   and all(source.idle for source in self._sources.values())):
            await self.domain.edge
        await self.domain.cycles(2)
        assert not self._busy.value

    def compare(self, written: dict[int, int]) -> None:
        """Compares memory with what was written."""
        assert written
        for row, value in written.items():
            assert self.stored(row) == value, f"row {row}: {self.stored(row):#x}, not {value:#x}"

    def discard_all(self, discard: bool) -> None:
        """Sets whether the port discards the rows that it accepts from now on."""
        self._discard.value = int(discard)

    async def reset(self) -> None:
        """Resets port and memories while requests are under way."""
        for source in self._sources.values():
            source.clear()
        await self.domain.reset(4)
        self.read_rows.clear()
        self.done.clear()

    def finish(self) -> None:
        """Ends the test."""
        self.read_rows.finish()
        self.done.finish()
        for watch in self.watches:
            watch.finish()


@bench_test
async def random_traffic(dut: HierarchyObject) -> None:
    """Reads and writes of all lengths at once, with pauses of all channels and streams."""
    bench = await HbmBench.started(dut)
    for pause in (0.0, 0.1, 0.3, 0.6, 0.8):
        pauses = {name: bench.rng.choice((0.0, pause)) for name in _CHANNELS}
        bench.set_pauses(pauses.__getitem__, gap=pause / 2, stall=pause / 2)
        written: dict[int, int] = {}
        for _ in range(14):
            length = bench.rng.choice((1, 2, bench.rng.randint(1, 70)))
            bench.read(bench.rng.randint(0, 1024 - length), length)
            written |= bench.write(bench.middle + bench.rng.randint(0, 1024 - length), length)
        await bench.drain()
        bench.compare(written)
    bench.finish()


@bench_test
async def bursts_about_boundaries(dut: HierarchyObject) -> None:
    """Bursts that begin or end next to a boundary of 4 KiB, and the longest possible bursts."""
    bench = await HbmBench.started(dut)
    block = 4096 // bench.config.channel_bytes
    written: dict[int, int] = {}
    for start, length in ((block - 1, 1), (block - 1, 2), (block, 1), (block - 3, 9), (0, 256),
                          (block - 128, 256)):
        bench.read(start, length)
        written |= bench.write(bench.middle + start, length)
    written |= bench.write(bench.config.hbm_rows - 1, 1)
    await bench.drain()
    bench.compare(written)
    bench.finish()


@bench_test
async def full_rate(dut: HierarchyObject) -> None:
    """Without pauses of memory, the port reads a row and writes a row in each cycle."""
    bench = await HbmBench.started(dut)
    written: dict[int, int] = {}
    for start in range(0, 512, 256):
        bench.read(start + 3, 256)
        written |= bench.write(bench.middle + start + 5, 256)
    await bench.drain()
    for name, cycles in (("read", bench.rows.transfers), ("written", bench.taken.transfers)):
        rate = (len(cycles) - 1) / (cycles[-1] - cycles[0])
        cocotb.log.info("%d rows %s, %.3f a cycle", len(cycles), name, rate)
        assert len(cycles) == 512
        assert rate > 0.98, f"{rate:.3f} rows {name} a cycle"
    bench.compare(written)
    bench.finish()


@bench_test
async def refused_reads(dut: HierarchyObject) -> None:
    """A row is returned with an error if and only if a channel refuses its part of the row."""
    bench = await HbmBench.started(dut)
    bench.set_pauses(lambda _: 0.2, stall=0.1)
    for _ in range(12):
        bench.refuse(bench.rng.randrange(256))
    for _ in range(12):
        length = bench.rng.randint(1, 40)
        bench.read(bench.rng.randint(0, 256 - length), length)
    bench.write(bench.middle, 1)
    await bench.drain()
    bench.finish()


@bench_test
async def refused_writes(dut: HierarchyObject) -> None:
    """A write burst has an error if and only if a channel refuses one of its beats."""
    bench = await HbmBench.started(dut)
    bench.set_pauses(lambda _: 0.2, gap=0.1, stall=0.1)
    for _ in range(6):
        bench.refuse(bench.middle + bench.rng.randrange(256))
    written: dict[int, int] = {}
    for _ in range(20):
        length = bench.rng.randint(1, 30)
        written |= bench.write(bench.middle + bench.rng.randint(0, 256 - length), length)
    bench.read(0, 1)
    await bench.drain()
    bench.compare(written)
    bench.finish()


@bench_test
async def memory_that_takes_nothing(dut: HierarchyObject) -> None:
    """The port keeps what it offers to a memory unchanged until the memory is ready."""
    bench = await HbmBench.started(dut)
    bench.set_pauses(lambda name: 1.0 if name in ("ar", "aw", "w") else 0.0)
    bench.read(7, 30)
    written = bench.write(bench.middle + 9, 40)
    await bench.domain.cycles(80)
    for channel in range(bench.config.hbm_channels):
        for name in ("arvalid", "awvalid", "wvalid"):
            assert pin(dut, f"{hbm_prefix(0, channel)}_{name}").value, name
        assert not any(bench.watches[channel].checker.transfers.values())
    # Data first, addresses later: that is memory's choice.
    bench.set_pauses(lambda name: 1.0 if name in ("ar", "aw") else 0.0)
    await bench.domain.cycles(80)
    assert bench.watches[0].checker.transfers["w"]
    assert not bench.watches[0].checker.transfers["aw"]
    bench.set_pauses(lambda _: 0.0)
    await bench.drain()
    bench.compare(written)
    bench.finish()


@bench_test
async def rows_that_nobody_takes(dut: HierarchyObject) -> None:
    """The port takes from memory all rows that it requested, even if nobody takes them from it."""
    bench = await HbmBench.started(dut)
    bench.set_pauses(lambda _: 0.0, stall=1.0)
    written: dict[int, int] = {}
    # The first piece is short, so that the last that fits leaves some room.
    for start in range(0, 768, 256):
        bench.read(start + 5, 256)
        written |= bench.write(bench.middle + start, 20)
    await bench.domain.cycles(400)
    for watch in bench.watches:
        assert watch.checker.reads == 0
        assert watch.checker.transfers["r"] == 8 * max_beats(bench.config) - 5
    bench.set_pauses(lambda _: 0.0)
    await bench.drain()
    bench.compare(written)
    bench.finish()


@bench_test
async def discarded_rows(dut: HierarchyObject) -> None:
    """The port discards rows of a write: they do not change memory, but their burst still ends."""
    bench = await HbmBench.started(dut)
    before = {row: bench.stored(row) for row in range(bench.middle, bench.middle + 50)}
    bench.discard_all(True)
    bench.write(bench.middle, 50)
    await bench.drain()
    bench.compare(before)
    bench.discard_all(False)
    written = bench.write(bench.middle, 25)
    bench.read(0, 1)
    await bench.drain()
    bench.compare(before | written)
    bench.finish()


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """After a reset of port and memory at a random moment, all traffic is correct."""
    bench = await HbmBench.started(dut)
    for _ in range(4):
        bench.set_pauses(lambda _: 0.3, gap=0.2, stall=0.2)
        bench.read(0, 100)
        bench.write(bench.middle, 100)
        await bench.domain.cycles(bench.rng.randint(3, 120))
        await bench.reset()
        bench.read(100, 40)
        written = bench.write(bench.middle + 200, 40)
        await bench.drain()
        bench.compare(written)
    bench.finish()
