"""The HBM port: rows in order and at full rate. A checker checks the rules of AXI4."""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, PureInterface
from amaranth.sim import SimulatorContext

from hdl.axi.fifo import Fifo
from hdl.axi.interface import (
    CONTROL_PREFIX,
    Axi4,
    Axi4Lite,
    Burst,
    Resp,
    channel_bits,
    connect_flat,
    flat_members,
    hbm_prefix,
    max_beats,
)
from hdl.axi.master import BURSTS, WRITES, BurstCutter, HbmPort
from hdl.config import PRESETS, Config
from hdl.tiles import port_widths
from verif.hdl.simulation.simulator import fast_simulator, simulate
from verif.models.axi import SIGNALS, SIGNALS_LITE, AxiChecker

TINY = Config.preset("tiny")
SMALL = Config.preset("small")
PATIENCE = 2000
"""Limit in cycles of a test's loop."""


# Names and widths


def test_ports_have_the_names_of_the_convention() -> None:
    class Top(wiring.Component):
        def __init__(self) -> None:
            super().__init__(flat_members({CONTROL_PREFIX: Axi4Lite(16).flip(),
                                           hbm_prefix(1, 3): Axi4(30, 1024)}))

        def elaborate(self, platform: object) -> Module:
            return Module()

    inputs, outputs = port_widths(Top(), In), port_widths(Top(), Out)
    assert inputs["s_axil_awaddr"] == 16
    assert outputs["s_axil_awready"] == 1
    assert outputs["m_axi_hbm13_awaddr"] == 30
    assert outputs["m_axi_hbm13_wstrb"] == 128
    assert inputs["m_axi_hbm13_rdata"] == 1024
    assert len(inputs) + len(outputs) == sum(
        len(payload) + 2 for channels in (SIGNALS, SIGNALS_LITE) for payload in channels.values())
    assert not [name for name in (*inputs, *outputs) if "__" in name]


def test_flat_ports_are_joined_with_those_inside() -> None:
    class Top(wiring.Component):
        def __init__(self) -> None:
            super().__init__(flat_members({"s_axil": Axi4Lite(16).flip(), "m": Axi4Lite(16)}))

        def elaborate(self, platform: object) -> Module:
            m = Module()
            inside = Axi4Lite(16).create(path=["inside"])
            connect_flat(m, self, "m", inside)
            connect_flat(m, self, "s_axil", wiring.flipped(inside))
            return m

    top = Top()

    async def process(ctx: SimulatorContext) -> None:
        outward, inward = port_widths(top, Out), port_widths(top, In)
        rng = random.Random(2)
        for name in inward:
            ctx.set(getattr(top, name), rng.getrandbits(32) & ((1 << inward[name]) - 1))
        for name in outward:
            prefix = "s_axil" if name.startswith("m_") else "m"
            twin = f"{prefix}_{name.split('_')[-1]}"
            assert ctx.get(getattr(top, name)) == ctx.get(getattr(top, twin)), name

    simulator = fast_simulator(top)
    simulator.add_testbench(process)
    simulator.run()


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Axi4(0, 32), "address_bits must be from 1 to 64, not 0"),
    (lambda: Axi4(32, 24), "data_bits must be a power of two from 8 to 1024, not 24"),
    (lambda: Axi4Lite(65), "address_bits must be from 1 to 64, not 65"),
    (lambda: HbmPort(Config.preset("tiny", hbm_channels=8)), "hbm_channels must not be 8"),
    (lambda: HbmPort(Config.preset("v2", hbm_channels=1)), "hbm_channels must not be 1"),
    (lambda: HbmPort(Config(array=6, sublanes=2, vmem_bytes=480, hbm_channels=1)),
     "hbm_channels must not be 1"),
    (lambda: Fifo(0, 4), "width must be at least 1, not 0"),
    (lambda: Fifo(4, 6), "depth must be a power of two of at least 2, not 6"),
])
def test_wrong_sizes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("make", "arguments"), [
    (HbmPort, ("v2",)), (BurstCutter, (4,)), (Axi4, ("32", 32)), (Axi4, (32, True))])
def test_wrong_types_are_refused(make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"must be a(n integer| Config), not "):
        make(*arguments)


@pytest.mark.parametrize("name", PRESETS)
def test_longest_burst_lies_between_boundaries(name: str) -> None:
    config = PRESETS[name]
    assert 4096 % (max_beats(config) * config.channel_bytes) == 0
    assert channel_bits(config) * config.hbm_channels == 32 * config.lanes


# The queue


@pytest.mark.parametrize(("depth", "offer", "take"), [
    (2, 0.5, 0.5), (4, 1, 0.4), (8, 0.3, 1), (4, 0.9, 0.9), (16, 1, 1)])
def test_queue_keeps_order_and_holds_what_it_says(depth: int, offer: float, take: float) -> None:
    rng = random.Random(f"queue {depth} {offer} {take}")
    dut = Fifo(13, depth)

    async def process(ctx: SimulatorContext) -> None:
        held: deque[int] = deque()
        entered: deque[int] = deque()
        offered = None
        most = taken = 0
        for cycle in range(600):
            if offered is None and rng.random() < offer:
                offered = rng.getrandbits(13)
            ctx.set(dut.input.valid, int(offered is not None))
            ctx.set(dut.input.payload, offered or 0)
            takes = rng.random() < take and not cycle % 200 < 3 * depth
            ctx.set(dut.output.ready, int(takes))
            ready = ctx.get(dut.input.ready)
            assert ready or len(held) >= depth
            # The first is on offer after two cycles, whether it is taken or not.
            valid = ctx.get(dut.output.valid)
            assert valid or not entered or cycle - entered[0] < 2
            if valid:
                assert held[0] == ctx.get(dut.output.payload)
                if takes:
                    held.popleft()
                    entered.popleft()
                    taken += 1
            if ready and offered is not None:
                held.append(offered)
                entered.append(cycle)
                offered = None
            most = max(most, len(held))
            assert len(held) <= depth + 1
            await ctx.tick()
        if offer == take == 1:
            assert taken >= 600 - 3 * 3 * depth - 9, "an entry a cycle"
        assert taken > 100
        assert offer < take or most == depth + 1

    simulate(dut, process)


# The cutter


@pytest.mark.parametrize("config", [TINY, SMALL], ids=["tiny", "small"])
def test_pieces_cover_each_burst_and_keep_within_bounds(config: Config) -> None:
    rng = random.Random(3)
    longest = max_beats(config)
    # Starts and ends on either side of each bound; then random ones.
    bursts = [(start, length) for start in (0, 1, longest - 1, longest, 4 * longest - 1)
              for length in (1, 2, longest - 1, longest, longest + 1, 256)]
    for _ in range(100):
        length = rng.randint(1, 256)
        bursts.append((rng.randint(0, config.hbm_rows - length), length))
    bursts.append((config.hbm_rows - 256, 256))
    dut = BurstCutter(config)

    async def process(ctx: SimulatorContext) -> None:
        pieces: list[tuple[int, int, int]] = []
        for start, length in bursts:
            ctx.set(dut.burst.valid, 1)
            ctx.set(dut.burst.payload.row, start)
            ctx.set(dut.burst.payload.more, length - 1)
            for _ in range(PATIENCE):
                ctx.set(dut.piece.ready, int(rng.random() < 0.8))
                taken = ctx.get(dut.burst.ready)
                await collect(ctx, pieces)
                if taken:
                    break
            else:
                raise AssertionError(f"the burst of {length} rows from {start} is not taken "
                                     f"within {PATIENCE} cycles")
        ctx.set(dut.burst.valid, 0)
        ctx.set(dut.piece.ready, 1)
        for _ in range(PATIENCE):
            if not ctx.get(dut.piece.valid):
                break
            await collect(ctx, pieces)
        else:
            raise AssertionError(f"pieces are still on offer after {PATIENCE} cycles")
        for start, length in bursts:
            at, last = start, 0
            while not last:
                assert pieces, f"no last piece of the burst of {length} rows from {start}"
                row, beats, last = pieces.pop(0)
                assert row == at
                assert beats <= longest
                assert row // longest == (row + beats - 1) // longest
                at += beats
            assert at == start + length
        assert not pieces

    async def collect(ctx: SimulatorContext, pieces: list[tuple[int, int, int]]) -> None:
        if ctx.get(dut.piece.valid) and ctx.get(dut.piece.ready):
            piece = dut.piece.payload
            pieces.append((ctx.get(piece.row), ctx.get(piece.more) + 1, ctx.get(piece.last)))
        await ctx.tick()

    simulate(dut, process)


# The port


@dataclass
class Channel:
    """Memory behind one AXI channel of the port.

    Attributes
    ----------
    latency : int
        Cycles until the answer: after the address of a read, or after the last data of a write.
    ready : float
        Probability in a cycle that an offer is taken, and that an offer is made.
    bad : set of int
        Addresses of beats that are refused.
    """

    checker: AxiChecker
    size: int
    beat: int
    rng: random.Random
    latency: int = 1
    ready: float = 1.0
    bad: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.memory = bytearray(self.rng.randbytes(self.size))
        self._now = 0
        self._reads: deque[tuple[int, int, bool]] = deque()
        self._addresses: deque[tuple[int, int]] = deque()
        self._data: deque[tuple[bytes, int, int]] = deque()
        self._answers: deque[tuple[int, int]] = deque()
        self._failed = False
        self._beats = 0
        self._drives = dict.fromkeys(("bvalid", "bresp", "rvalid", "rdata", "rresp", "rlast"), 0)

    def drive(self, ctx: SimulatorContext, axi: PureInterface) -> None:
        for name in ("awready", "wready", "arready"):
            ctx.set(getattr(axi, name), int(self.rng.random() < self.ready))
        drives = self._drives
        if not drives["bvalid"] and self._answers and self._answers[0][0] <= self._now and (
                self.rng.random() < self.ready):
            drives |= {"bvalid": 1, "bresp": self._answers[0][1]}
        if not drives["rvalid"] and self._reads and self._reads[0][0] <= self._now and (
                self.rng.random() < self.ready):
            _, address, last = self._reads[0]
            data = int.from_bytes(self.memory[address:address + self.beat], "little")
            drives |= {"rvalid": 1, "rlast": int(last), "rdata": data,
                       "rresp": Resp.DECERR if address in self.bad else Resp.OKAY}
        for name, value in drives.items():
            ctx.set(getattr(axi, name), value)

    def observe(self, ctx: SimulatorContext, axi: PureInterface) -> None:
        pins = {name: ctx.get(getattr(axi, name)) for name in axi.signature.members}
        self.checker.cycle(pins)
        if pins["rvalid"] and pins["rready"]:
            self._reads.popleft()
            self._drives["rvalid"] = 0
        if pins["bvalid"] and pins["bready"]:
            self._answers.popleft()
            self._drives["bvalid"] = 0
        if pins["arvalid"] and pins["arready"]:
            for beat in range(pins["arlen"] + 1):
                self._reads.append((self._now + self.latency, pins["araddr"] + beat * self.beat,
                                    beat == pins["arlen"]))
        if pins["awvalid"] and pins["awready"]:
            self._addresses.append((pins["awaddr"], pins["awlen"]))
        if pins["wvalid"] and pins["wready"]:
            self._data.append((pins["wdata"].to_bytes(self.beat, "little"), pins["wstrb"],
                               pins["wlast"]))
        while self._addresses and self._data:
            self._write(*self._data.popleft())
        self._now += 1

    def _write(self, data: bytes, strobes: int, last: int) -> None:
        at = self._addresses[0][0] + self._beats * self.beat
        for byte in range(self.beat):
            if strobes >> byte & 1 and at not in self.bad:
                self.memory[at + byte] = data[byte]
        self._failed |= at in self.bad
        self._beats += 1
        if last:
            self._addresses.popleft()
            self._answers.append((self._now + self.latency,
                                  Resp.SLVERR if self._failed else Resp.OKAY))
            self._failed, self._beats = False, 0


class PortBench:
    """An `HbmPort`, its memory, and the rows written and read.

    Attributes
    ----------
    rows : list of (cycle, row, error)
        The rows read.
    done : list of (cycle, error)
        Ends of writes.
    gap, stall : float
        Probabilities of a cycle in which the streams offer nothing, or take nothing.
    discard : set of int
        Numbers of the sent rows that are discarded.
    """

    def __init__(self, config: Config, seed: object, **memory: Any) -> None:
        self.rng = random.Random(f"{seed}")
        self.config = config
        self.dut = HbmPort(config)
        size = config.hbm_bytes // config.hbm_channels
        beat = config.channel_bytes
        self.channels = [
            Channel(AxiChecker(hbm_prefix(0, c), beat, max_beats(config)), size, beat, self.rng,
                    **memory) for c in range(config.hbm_channels)]
        self.rows: list[tuple[int, bytes, int]] = []
        self.done: list[tuple[int, int]] = []
        self.taken: list[int] = []
        self.gap = self.stall = 0.0
        self.discard: set[int] = set()
        self.now = 0
        self._queues: dict[str, deque] = {
            name: deque() for name in ("hbm_read", "hbm_write", "hbm_write_rows")}
        self._offered = dict.fromkeys(self._queues, False)

    def read(self, row: int, count: int) -> None:
        self._queues["hbm_read"].append({"row": row, "more": count - 1})

    def write(self, row: int, rows: list[bytes]) -> None:
        self._queues["hbm_write"].append({"row": row, "more": len(rows) - 1})
        self._queues["hbm_write_rows"].extend(int.from_bytes(data, "little") for data in rows)

    def random_rows(self, count: int) -> list[bytes]:
        return [self.rng.randbytes(self.config.row_bytes) for _ in range(count)]

    def stored(self, row: int) -> bytes:
        at = row * self.config.channel_bytes
        return b"".join(channel.memory[at:at + channel.beat] for channel in self.channels)

    async def cycle(self, ctx: SimulatorContext) -> None:
        dut = self.dut
        for name, queue in self._queues.items():
            port = getattr(dut, name)
            if queue and not self._offered[name] and self.rng.random() >= self.gap:
                self._offered[name] = True
                ctx.set(port.payload, queue[0])
            ctx.set(port.valid, int(self._offered[name]))
        ctx.set(dut.discard, int(len(self.taken) in self.discard))
        for name in ("hbm_rows", "hbm_write_done"):
            ctx.set(getattr(dut, name).ready, int(self.rng.random() >= self.stall))
        for channel, axi in zip(self.channels, dut.axi, strict=True):
            channel.drive(ctx, axi)
        for channel, axi in zip(self.channels, dut.axi, strict=True):
            channel.observe(ctx, axi)
        for name, queue in self._queues.items():
            if self._offered[name] and ctx.get(getattr(dut, name).ready):
                queue.popleft()
                self._offered[name] = False
                if name == "hbm_write_rows":
                    self.taken.append(self.now)
        if ctx.get(dut.hbm_rows.valid) and ctx.get(dut.hbm_rows.ready):
            row = ctx.get(dut.hbm_rows.payload)
            self.rows.append((self.now, row.data.to_bytes(self.config.row_bytes, "little"),
                              row.error))
        if ctx.get(dut.hbm_write_done.valid) and ctx.get(dut.hbm_write_done.ready):
            self.done.append((self.now, ctx.get(dut.hbm_write_done.payload.error)))
        self.now += 1
        await ctx.tick()

    async def drain(self, ctx: SimulatorContext, limit: int = 20000) -> None:
        end = self.now + limit
        while any(self._queues.values()) or ctx.get(self.dut.busy):
            assert self.now < end, "the port is still busy"
            await self.cycle(ctx)

    def finish(self) -> None:
        for channel in self.channels:
            channel.checker.finish()


CONFIGS = {"tiny": TINY, "small": SMALL, "four": Config.preset("tiny", hbm_channels=4)}


@pytest.mark.slow
@pytest.mark.parametrize("mood", [(1.0, 0.0, 1), (0.5, 0.3, 3), (0.8, 0.0, 30)])
@pytest.mark.parametrize("name", CONFIGS)
def test_random_bursts_move_the_rows_that_they_name(name: str,
                                                    mood: tuple[float, float, int]) -> None:
    """Reads and writes different halves of memory at once; then reads what was written."""
    ready, pause, latency = mood
    bench = PortBench(CONFIGS[name], f"rows {name} {mood}", latency=latency, ready=ready)
    config = bench.config
    middle = config.hbm_rows // 2

    async def process(ctx: SimulatorContext) -> None:
        bench.gap = bench.stall = pause
        rng = bench.rng
        wanted: list[int] = []
        written: dict[int, bytes] = {}
        lengths = [256 if latency == 1 else 20, 1, 2, max_beats(config),
                   *(rng.randint(1, 60) for _ in range(5))]
        for length in lengths:
            row = rng.randint(0, middle - length)
            bench.read(row, length)
            wanted.extend(range(row, row + length))
            row = rng.randint(middle, config.hbm_rows - length)
            rows = bench.random_rows(length)
            bench.write(row, rows)
            written |= dict(zip(range(row, row + length), rows, strict=True))
        written[config.hbm_rows - 1] = bench.rng.randbytes(config.row_bytes)
        bench.write(config.hbm_rows - 1, [written[config.hbm_rows - 1]])
        await bench.drain(ctx)
        assert [(row, error) for _, row, error in bench.rows] == [
            (bench.stored(row), 0) for row in wanted]
        assert [error for _, error in bench.done] == [0] * (len(lengths) + 1)
        for row, data in written.items():
            assert bench.stored(row) == data, f"row {row}"
        bench.finish()

    simulate(bench.dut, process)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_row_a_cycle_both_ways_at_once_over_a_long_latency(name: str) -> None:
    config = CONFIGS[name]
    bench = PortBench(config, "rate", latency=(BURSTS - 1) * max_beats(config) - 4)

    async def process(ctx: SimulatorContext) -> None:
        count, middle = 512, config.hbm_rows // 2
        data = bench.random_rows(256)
        for start in range(0, count, 256):
            bench.read(start + 5, 256)
            bench.write(middle + start + 3, data)
        await bench.drain(ctx)
        read = [cycle for cycle, _, _ in bench.rows]
        assert len(read) == len(bench.taken) == count
        # One row for each cycle, except while the first are on their way.
        assert read[-1] - read[0] == count - 1
        assert bench.taken[-1] - bench.taken[0] == count - 1
        assert bench.taken[0] < 10
        for channel in bench.channels:
            assert channel.checker.most_reads >= BURSTS
            assert channel.checker.most_writes >= BURSTS
        bench.finish()

    simulate(bench.dut, process)


def test_full_width() -> None:
    """The port has the channels of `v2`, with less memory behind them."""
    bench = PortBench(Config.preset("v2", hbm_bytes=4 << 20), "v2", latency=20, ready=0.9)

    async def process(ctx: SimulatorContext) -> None:
        bench.read(30, 70)
        data = bench.random_rows(70)
        bench.write(5000, data)
        await bench.drain(ctx)
        assert [row for _, row, _ in bench.rows] == [bench.stored(row) for row in range(30, 100)]
        assert [bench.stored(row) for row in range(5000, 5070)] == data
        # 30 and 31, 32 to 63, 64 to 95, 96 to 99.
        assert bench.channels[0].checker.most_reads == 4
        bench.finish()

    simulate(bench.dut, process)


@pytest.mark.parametrize("latency", [4, 90])
def test_bursts_of_one_row_each_go_at_full_rate(latency: int) -> None:
    bench = PortBench(SMALL, "single", latency=latency)

    async def process(ctx: SimulatorContext) -> None:
        count = 120
        written = {}
        for number in range(count):
            bench.read(7 * number, 1)
            written[40000 + 3 * number] = row = bench.rng.randbytes(SMALL.row_bytes)
            bench.write(40000 + 3 * number, [row])
        await bench.drain(ctx)
        assert bench.rows[-1][0] - bench.rows[0][0] == count - 1
        assert [row for _, row, _ in bench.rows] == [bench.stored(7 * number)
                                                     for number in range(count)]
        assert {row: bench.stored(row) for row in written} == written
        # Each write has an answer to wait for, and that many can wait.
        assert len(bench.done) == count
        most = max(channel.checker.most_writes for channel in bench.channels)
        if latency == 4:
            assert bench.done[-1][0] - bench.done[0][0] == count - 1
        else:
            assert most == WRITES
        bench.finish()

    simulate(bench.dut, process)


@pytest.mark.slow
def test_channels_of_different_speed_are_rejoined() -> None:
    bench = PortBench(CONFIGS["four"], "speeds")

    async def process(ctx: SimulatorContext) -> None:
        for number, channel in enumerate(bench.channels):
            channel.latency = (3, 40, 11, 90)[number]
            channel.ready = (1.0, 0.9, 0.5, 0.8)[number]
        wanted: list[int] = []
        for _ in range(6):
            row = bench.rng.randint(0, 1000)
            bench.read(row, 50)
            wanted.extend(range(row, row + 50))
        await bench.drain(ctx)
        assert [row for _, row, _ in bench.rows] == [bench.stored(row) for row in wanted]
        # The fast one was not held up by the slow ones.
        bench.finish()

    simulate(bench.dut, process)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_errors_are_those_of_the_rows_and_bursts_that_memory_refuses(seed: int) -> None:
    bench = PortBench(SMALL, f"errors {seed}", latency=5, ready=0.8)
    config = bench.config
    middle = config.hbm_rows // 2

    async def process(ctx: SimulatorContext) -> None:
        bench.stall = 0.2
        bad: set[int] = set()
        for channel in bench.channels:
            rows = {base + bench.rng.randrange(400) for base in (0, middle) for _ in range(6)}
            channel.bad = {row * channel.beat for row in rows}
            bad |= rows
        wanted: list[bool] = []
        ends: list[bool] = []
        for _ in range(25):
            length = bench.rng.randint(1, 50)
            row = bench.rng.randint(0, 400 - length)
            bench.read(row, length)
            wanted.extend(row in bad for row in range(row, row + length))
            row += middle
            bench.write(row, bench.random_rows(length))
            ends.append(any(row in bad for row in range(row, row + length)))
        await bench.drain(ctx)
        assert [bool(error) for _, _, error in bench.rows] == wanted
        assert [bool(error) for _, error in bench.done] == ends
        assert 0 < sum(wanted) < len(wanted)
        assert 0 < sum(ends) < len(ends)
        bench.finish()

    simulate(bench.dut, process)


def test_discarded_rows_are_not_written() -> None:
    bench = PortBench(SMALL, "discard", latency=3, ready=0.7)

    async def process(ctx: SimulatorContext) -> None:
        before = [bench.stored(row) for row in range(100, 140)]
        data = bench.random_rows(40)
        bench.discard = {0, 3, *range(10, 30), 39}
        bench.write(100, data)
        await bench.drain(ctx)
        for number in range(40):
            wanted = before if number in bench.discard else data
            assert bench.stored(100 + number) == wanted[number], number
        assert [error for _, error in bench.done] == [0]
        bench.finish()

    simulate(bench.dut, process)


@pytest.mark.slow
def test_memory_is_not_blocked_by_rows_that_nobody_takes() -> None:
    """The port takes from memory all rows that it requested, even if nobody takes them from it."""
    bench = PortBench(SMALL, "blocked", latency=2)

    async def process(ctx: SimulatorContext) -> None:
        bench.stall = 1.0
        # The first piece is short, so that the last that fits leaves some room.
        for start in range(4):
            bench.read(256 * start + 5, 256)
        for _ in range(600):
            await bench.cycle(ctx)
        for channel in bench.channels:
            assert channel.checker.reads == 0
            assert channel.checker.transfers["r"] == BURSTS * max_beats(SMALL) - 5
        # A burst that lacks a row of data does not begin.
        bench.stall = 0.0
        bench._queues["hbm_write"].append({"row": 0, "more": 15})
        bench._queues["hbm_write_rows"].extend(range(15))
        for _ in range(100):
            await bench.cycle(ctx)
        assert all(channel.checker.writes == 0 for channel in bench.channels)
        assert ctx.get(bench.dut.busy)
        bench._queues["hbm_write_rows"].append(15)
        await bench.drain(ctx)
        assert len(bench.rows) == 1024
        bench.finish()

    simulate(bench.dut, process)


def test_offers_do_not_wait_for_ready() -> None:
    bench = PortBench(SMALL, "offers", ready=0.0)

    async def process(ctx: SimulatorContext) -> None:
        bench.read(0, 4)
        bench.write(9, bench.random_rows(4))
        for _ in range(20):
            await bench.cycle(ctx)
        for axi in bench.dut.axi:
            for name in ("arvalid", "awvalid", "wvalid"):
                assert ctx.get(getattr(axi, name)), name
        for channel in bench.channels:
            channel.ready = 1.0
        await bench.drain(ctx)
        bench.finish()

    simulate(bench.dut, process)


# The checker can fail

QUIET: dict[str, int | None] = {
    **{f"{channel}{end}": 0 for channel in SIGNALS for end in ("valid", "ready")},
    **{name: 0 for names in SIGNALS.values() for name in names},
}
AW: dict[str, int | None] = {"awvalid": 1, "awready": 1, "awaddr": 0xFE0, "awlen": 1, "awsize": 4,
                             "awburst": Burst.INCR}
AR: dict[str, int | None] = {f"ar{name[2:]}": value for name, value in AW.items()}
W: dict[str, int | None] = {"wvalid": 1, "wready": 1, "wdata": 5, "wstrb": 0xFFFF, "wlast": 0}
LAST: dict[str, int | None] = {**W, "wlast": 1}
B: dict[str, int | None] = {"bvalid": 1, "bready": 1}
R: dict[str, int | None] = {"rvalid": 1, "rready": 1, "rdata": 7}
R_LAST: dict[str, int | None] = {**R, "rlast": 1}


def held(offer: dict[str, Any], channel: str) -> dict[str, Any]:
    return {**offer, f"{channel}ready": 0}


def watch(*cycles: Mapping[str, Any], resets: Sequence[int] = ()) -> AxiChecker:
    checker = AxiChecker("port", 16, 16)
    for number, cycle in enumerate(cycles):
        checker.cycle({**QUIET, **cycle}, resetting=number in resets)
    return checker


@pytest.mark.parametrize("cycles", [
    (AW, W, LAST, B), ({**AW, **W}, LAST, B), (held(AW, "aw"), {**held(AW, "aw"), **W},
                                               {**held(AW, "aw"), **LAST}, AW, B),
    (AW, W, {**AW, "awlen": 0}, LAST, LAST, B, B), (AR, R, R_LAST),
    (AR, AR, R, R_LAST, held(R, "r"), R, R_LAST),
    ({**AW, "awlen": 15, "awaddr": 0xF00}, *[W] * 15, LAST, {**B, "bresp": Resp.SLVERR}),
])
def test_checker_accepts_right_traffic(cycles: Sequence[dict[str, int | Burst]]) -> None:
    checker = watch(*cycles)
    checker.finish()
    assert checker.reads == checker.writes == 0


@pytest.mark.parametrize(("cycles", "message"), [
    ([{"awvalid": None}], "awvalid is unknown"),
    ([AR, {**R, "rready": None}], "rready is unknown"),
    ([{**AW, "awaddr": None}], "awaddr on offer is unknown"),
    ([held(AR, "ar"), {}], "arvalid fell before arready rose"),
    ([held(AW, "aw"), {**AW, "awaddr": 0x100}], "awaddr on offer became 256, it was 4064"),
    ([AW, held(W, "w"), {**W, "wdata": 6}], "wdata on offer became 6, it was 5"),
    ([AW, held(W, "w"), LAST], "wlast on offer became 1, it was 0"),
    ([AR, held(R, "r"), {**R, "rdata": 8}], "rdata on offer became 8, it was 7"),
    ([{**AW, "awburst": Burst.WRAP}], "awburst is 2, not INCR"),
    ([{**AR, "arsize": 3}], "arsize is 3: not the width of 16 bytes"),
    ([{**AR, "araddr": 0xFE8}], "araddr 0xfe8 is no multiple of 16 bytes"),
    ([{**AW, "awlen": 16, "awaddr": 0}], "awlen is 16: more than 16 beats"),
    ([{**AW, "awlen": 2}], "aw: 48 bytes at 0xfe0 cross a boundary of 4 KiB"),
    ([{**AR, "arlen": 15, "araddr": 0xF10}], "ar: 256 bytes at 0xf10 cross a boundary"),
    ([{**AR, "arid": 1}], "arid is 1, not 0"),
    ([W], "data are on offer before their address"),
    ([AW, W, LAST, W], "data are on offer before their address"),
    ([AW, LAST], "a burst of 2 beats was given 1"),
    ([AW, W, W], "beat 2 of 2 has no wlast"),
    ([held(AW, "aw"), {**held(AW, "aw"), **W}, {**held(AW, "aw"), **W}, AW],
     "2 beats without wlast for a burst of 2"),
    ([held(AW, "aw"), {**held(AW, "aw"), **LAST}, AW], "a burst of 2 beats was given 1"),
    ([B], "no burst awaits a response"),
    ([AW, W, B], "no burst awaits a response"),
    ([AW, W, {**LAST, **B}], "no burst awaits a response"),
    ([AW, W, LAST, B, B], "no burst awaits a response"),
    ([AW, W, LAST, {**B, "bresp": Resp.EXOKAY}], "bresp is EXOKAY"),
    ([AW, W, LAST, {**B, "bid": 1}], "bid is not 0"),
    ([R], "no burst was asked for"),
    ([{**AR, **R}], "no burst was asked for"),
    ([AR, R_LAST], "rlast is 1 at beat 1 of 2"),
    ([AR, R, R], "rlast is 0 at beat 2 of 2"),
    ([AR, R, R_LAST, R], "no burst was asked for"),
])
def test_checker_refuses_wrong_traffic(cycles: Sequence[dict[str, Any]], message: str) -> None:
    with pytest.raises(AssertionError, match=f"port, cycle {len(cycles)}: .*{message}"):
        watch(*cycles)


@pytest.mark.parametrize(("cycles", "message"), [
    ([], "nothing was transferred"),
    ([{}], "nothing was transferred"),
    ([AR], "1 bursts of reads did not end"),
    ([AR, R], "1 bursts of reads did not end"),
    ([AW], "1 bursts of writes did not end"),
    ([AW, W], "1 bursts of writes did not end"),
    ([AW, W, LAST], "1 bursts of writes did not end"),
    ([held(AR, "ar")], "ar: an offer was not taken"),
])
def test_checker_ends_only_when_all_has_ended(cycles: Sequence[dict[str, int | Burst]],
                                              message: str) -> None:
    checker = watch(*cycles)
    with pytest.raises(AssertionError, match=message):
        checker.finish()


def test_checker_wants_silence_in_reset() -> None:
    # Bursts under way are forgotten, and the master has a cycle to see the reset.
    watch(AR, held(AW, "aw"), held(AW, "aw"), {}, {}, AR, R, R_LAST, resets=(2, 3)).finish()
    for channel, offer in (("aw", AW), ("ar", AR), ("w", W)):
        with pytest.raises(AssertionError, match=f"{channel}valid is set in reset"):
            watch({}, offer, resets=(0, 1))


def test_checker_knows_lite() -> None:
    quiet: dict[str, int | None] = {
        **{f"{channel}{end}": 0 for channel in SIGNALS_LITE for end in ("valid", "ready")},
        **{name: 0 for names in SIGNALS_LITE.values() for name in names}}

    def watch_lite(*cycles: Mapping[str, int | None]) -> AxiChecker:
        checker = AxiChecker("lite", 4, 0)
        for cycle in cycles:
            checker.cycle({**quiet, **cycle})
        return checker

    data = {"wvalid": 1, "wready": 1}
    address = {"awvalid": 1, "awready": 1}
    watch_lite(data, address, B, {"arvalid": 1, "arready": 1}, R).finish()
    for wrong in ([data, B], [address, B], [{**data, **address}, B, B], [R]):
        with pytest.raises(AssertionError, match="no burst"):
            watch_lite(*wrong)
