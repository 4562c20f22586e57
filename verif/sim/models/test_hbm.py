"""The memory model under random traffic, against an array, and with protocol violations."""

import ctypes
import pathlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.models.hbm import HBM_SOURCES, Hbm, HbmOptions, hbm_library
from sim.verilated.build import build_library, build_model
from sim.verilated.model import Model

OKAY, SLVERR, DECERR = 0, 2, 3
NOTHING_READ = 0xDB
BLOCK = 4096
LATENCY = 7


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(hbm_library()))


@dataclass
class Operation:
    """A burst: ``row`` of the channel, and for each beat its data and strobes (of a write)."""

    row: int
    beats: int
    data: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    strobes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    issued: int = -1
    seen: list = field(default_factory=list)


class Master:
    """A port with random bursts that records everything; valid and ready are random.

    A burst waits while another burst of any core writes the same block of memory, so that every
    read has one right answer.
    """

    def __init__(self, bench: "Bench", core: int, channel: int, rng: np.random.Generator,
                 density: float) -> None:
        self.bench, self.core, self.channel, self.rng = bench, core, channel, rng
        self.density = density
        self.pins = bench.hbm.bind(core, channel)
        self.id = core
        # Accepted without a response yet; to be requested; beats to be written.
        self.reads: deque[Operation] = deque()
        self.writes: deque[Operation] = deque()
        self.read_queue: deque[Operation] = deque()
        self.write_queue: deque[Operation] = deque()
        self.data_queue: deque[tuple[Operation, int]] = deque()
        self.done = {"read": 0, "write": 0, "errors": 0}

    def plan(self, write: bool) -> None:
        bench, rng = self.bench, self.rng
        block = int(rng.integers(bench.blocks))
        users = bench.users.setdefault((self.channel, block), {"read": 0, "write": 0})
        if users["write"] or (write and users["read"]):
            return
        users["write" if write else "read"] += 1
        room = BLOCK // bench.beat
        first = int(rng.integers(room))
        beats = int(rng.integers(1, min(256, room - first) + 1))
        if rng.random() < 0.3:
            beats = min(beats, 2)
        operation = Operation(block * room + first, beats)
        if write:
            operation.data = rng.integers(0, 256, (beats, bench.beat), dtype=np.uint8)
            operation.strobes = rng.integers(0, 2, (beats, bench.beat), dtype=np.uint8)
            operation.strobes[rng.random(beats) < 0.6] = 1
            self.write_queue.append(operation)
        else:
            self.read_queue.append(operation)

    def release(self, operation: Operation, kind: str) -> None:
        block = operation.row * self.bench.beat // BLOCK
        self.bench.users[self.channel, block][kind] -= 1

    def before(self) -> None:
        """Sets the pins of the port for this cycle."""
        pins, rng = self.pins, self.rng
        if self.bench.planning:
            for write, queue in ((False, self.read_queue), (True, self.write_queue)):
                if len(queue) < 3 and rng.random() < self.density:
                    self.plan(write)
        for prefix, queue in (("ar", self.read_queue), ("aw", self.write_queue)):
            if queue and not getattr(pins, f"{prefix}valid") and rng.random() < self.density:
                setattr(pins, f"{prefix}valid", 1)
                for name, value in (("addr", queue[0].row * self.bench.beat),
                                    ("len", queue[0].beats - 1), ("burst", 1), ("id", self.id),
                                    ("size", self.bench.beat.bit_length() - 1)):
                    setattr(pins, prefix + name, value)
        if self.data_queue and not pins.wvalid and rng.random() < self.density:
            operation, beat = self.data_queue[0]
            pins.wvalid = 1
            pins.wlast = beat == operation.beats - 1
            ctypes.memmove(pins.wdata, operation.data[beat].tobytes(), self.bench.beat)
            mask = np.packbits(operation.strobes[beat].astype(bool), bitorder="little").tobytes()
            ctypes.memmove(pins.wstrb, mask, len(mask))
        pins.rready = bool(rng.random() < self.density)
        pins.bready = bool(rng.random() < self.density)

    def after(self) -> None:
        """Records the handshakes of this cycle."""
        pins, bench = self.pins, self.bench
        if pins.arvalid and pins.arready:
            pins.arvalid = 0
            operation = self.read_queue.popleft()
            operation.issued = bench.cycle
            self.reads.append(operation)
        if pins.awvalid and pins.awready:
            pins.awvalid = 0
            operation = self.write_queue.popleft()
            self.writes.append(operation)
            self.data_queue += [(operation, beat) for beat in range(operation.beats)]
        if pins.wvalid and pins.wready:
            pins.wvalid = 0
            operation, beat = self.data_queue.popleft()
            operation.issued = bench.cycle
            bench.write(self.channel, operation.row + beat, operation.data[beat],
                        operation.strobes[beat])
            bench.moved[self.channel].append(bench.cycle)
        if pins.rvalid and pins.rready:
            self.take_beat()
        if pins.bvalid and pins.bready:
            operation = self.writes.popleft()
            assert bench.cycle - operation.issued >= bench.options.latency
            worst = max(bench.outcome(self.channel, operation.row + beat, "write")
                        for beat in range(operation.beats))
            assert (pins.bresp, pins.bid) == (worst, self.id)
            self.done["write"] += operation.beats
            self.done["errors"] += worst != OKAY
            self.release(operation, "write")

    def take_beat(self) -> None:
        pins, bench = self.pins, self.bench
        operation = self.reads[0]
        if not operation.seen:
            assert bench.cycle - operation.issued >= bench.options.latency
        beat = len(operation.seen)
        operation.seen.append(bench.cycle)
        response = bench.outcome(self.channel, operation.row + beat, "read")
        expected = np.full(bench.beat, NOTHING_READ, np.uint8) if response else \
            bench.place(self.channel, operation.row + beat)
        seen = np.frombuffer(bytes(pins.rdata)[:bench.beat], np.uint8)
        np.testing.assert_array_equal(seen, expected)
        last = beat == operation.beats - 1
        assert (pins.rresp, pins.rid, pins.rlast) == (response, self.id, last)
        self.done["errors"] += response != OKAY
        if last:
            self.reads.popleft()
            self.done["read"] += operation.beats
            self.release(operation, "read")

    @property
    def resting(self) -> bool:
        return not (self.reads or self.read_queue or self.writes or self.write_queue)


class Bench:
    """A memory, its reference, and a master at each port."""

    def __init__(self, library: ctypes.CDLL, *, cores: int, channels: int, beat: int,
                 options: HbmOptions, seed: int, blocks: int = 6, density: float = 0.8) -> None:
        self.options, self.beat, self.channels, self.blocks = options, beat, channels, blocks
        self.row = channels * beat
        rng = np.random.default_rng(seed)
        size = blocks * BLOCK * channels
        # The last block does not exist.
        self.hbm = Hbm(library, cores, channels, beat, size - BLOCK * channels)
        self.hbm.configure(options)
        self.reference = rng.integers(0, 256, self.hbm.memory.size, dtype=np.uint8)
        self.hbm.memory[:] = self.reference
        self.failures: list[tuple[int, int, int, Sequence[str]]] = []
        self.users: dict[tuple[int, int], dict[str, int]] = {}
        self.moved: list[list[int]] = [[] for _ in range(channels)]
        self.cycle = 0
        self.planning = True
        self.masters = [Master(self, core, channel, rng, density)
                        for core in range(cores) for channel in range(channels)]

    def fail(self, address: int, count: int, response: int, kinds: Sequence[str]) -> None:
        self.failures.append((address, count, response, kinds))
        self.hbm.fail(address, count, response, reads="read" in kinds, writes="write" in kinds)

    def place(self, channel: int, row: int) -> NDArray[np.uint8]:
        at = row * self.row + channel * self.beat
        return self.reference[at:at + self.beat]

    def outcome(self, channel: int, row: int, kind: str) -> int:
        at = row * self.row + channel * self.beat
        if at >= len(self.reference):
            return DECERR
        return max((response for address, count, response, kinds in self.failures
                    if kind in kinds and at < address + count and address < at + self.beat),
                   default=OKAY)

    def write(self, channel: int, row: int, data: NDArray[np.uint8],
              strobes: NDArray[np.uint8]) -> None:
        if self.outcome(channel, row, "write") == OKAY:
            place = self.place(channel, row)
            place[:] = np.where(strobes, data, place)

    def shown(self) -> Any:
        """The memory's outputs at all ports, where they are valid."""
        result = []
        for master in self.masters:
            pins = master.pins
            result.append((pins.awready, pins.wready, pins.arready, pins.bvalid, pins.rvalid,
                           pins.bvalid and pins.bresp,
                           pins.rvalid and (pins.rlast, pins.rresp, bytes(pins.rdata))))
        return result

    def step(self) -> list[tuple[int | tuple[int, int, bytes], ...]]:
        for master in self.masters:
            master.before()
        self.hbm.sample()
        shown = self.shown()
        waiting = [(master.pins.rvalid and not master.pins.rready,
                    master.pins.bvalid and not master.pins.bready) for master in self.masters]
        for master in self.masters:
            if master.pins.rvalid and master.pins.rready:
                self.moved[master.channel].append(self.cycle)
            master.after()
        self.hbm.drive()
        self.cycle += 1
        for before, (read, response), after in zip(shown, waiting, self.shown(), strict=True):
            if read:
                assert (after[4], after[6]) == (before[4], before[6])
            if response:
                assert (after[3], after[5]) == (before[3], before[5])
        return shown

    def run(self, cycles: int) -> list[list[tuple[int | tuple[int, int, bytes], ...]]]:
        record = [self.step() for _ in range(cycles)]
        self.planning = False
        for _ in range(200_000):
            if all(master.resting for master in self.masters):
                break
            self.step()
        assert all(master.resting for master in self.masters)
        assert self.hbm.idle
        np.testing.assert_array_equal(self.hbm.memory, self.reference)
        counters = self.hbm.counters
        assert counters["cycles"] == self.cycle
        for kind in ("read", "write"):
            assert counters[f"{kind}_beats"] == sum(master.done[kind] for master in self.masters)
        assert sum(map(len, self.moved)) == counters["read_beats"] + counters["write_beats"]
        return record

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for master in self.masters:
            del master.pins
        self.hbm.close()


@pytest.mark.parametrize(("cores", "channels", "beat", "options"), [
    (1, 1, 4, {}),
    (2, 1, 8, {"stalls": 20_000}),
    (2, 4, 128, {}),
    (2, 2, 16, {"latency": 1, "outstanding": 1}),
    (1, 2, 64, {"beats": 1, "cycles": 3, "stalls": 3000}),
    (2, 2, 128, {"beats": 3, "cycles": 2, "latency": 60}),
])
def test_random_traffic_matches_an_array(library: ctypes.CDLL, cores: int, channels: int, beat: int,
                                         options: Any) -> None:
    options = HbmOptions(**{"latency": LATENCY, **options})
    with Bench(library, cores=cores, channels=channels, beat=beat, options=options,
               seed=beat) as bench:
        for address, response, kinds in ((5000, SLVERR, ("read", "write")),
                                         (9000, DECERR, ("read",)), (9100, SLVERR, ("write",))):
            bench.fail(address * channels, 60, response, kinds)
        bench.run(1500)
        for master in bench.masters:
            assert min(master.done.values()) > 0
        if options.beats:
            bandwidth_is_kept(bench)


def bandwidth_is_kept(bench: Bench) -> None:
    """Checks that no channel moves more beats in a span of cycles than its share and its credit."""
    rate = bench.options.beats / bench.options.cycles
    ports = len(bench.masters) // bench.channels
    for moved in bench.moved:
        times = np.array(moved)
        for span in (20, 100, 1000):
            most = max(np.searchsorted(times, times + span) - np.arange(len(times)))
            # Reads that were valid, and writes that were admitted, before the span.
            assert most <= span * rate + 2 * ports + rate + 1
        assert len(times) > 0.7 * rate * (times[-1] - times[0])


@pytest.mark.parametrize(("beats", "cycles"), [(0, 1), (4, 1), (1, 1), (2, 3), (1, 5)])
def test_saturated_ports_share_the_bandwidth(library: ctypes.CDLL, beats: int, cycles: int) -> None:
    total, cores = 3000, 2
    with Hbm(library, cores, 1, 64, 1 << 20) as hbm:
        hbm.configure(HbmOptions(beats=beats, cycles=cycles, latency=20))
        for core in range(cores):
            pins = hbm.bind(core, 0)
            pins.arsize = pins.awsize = 6
            pins.arburst = pins.awburst = pins.rready = pins.bready = 1
            pins.arvalid = pins.awvalid = pins.wvalid = pins.wlast = 1
            pins.arlen = 31
        hbm.run(100)
        before = hbm.counters
        hbm.run(total)
        after = hbm.counters
    reads, writes = ((after[name] - before[name]) / total for name in ("read_beats", "write_beats"))
    possible = min(2 * cores, beats / cycles if beats else 2 * cores)
    assert reads + writes == pytest.approx(possible, rel=0.02)
    assert min(reads, writes) > 0.3 * possible


def test_equal_seeds_give_equal_cycles_and_others_do_not(library: ctypes.CDLL) -> None:
    records = []
    for seed in (5, 5, 6):
        options = HbmOptions(latency=LATENCY, stalls=16_000, seed=seed)
        with Bench(library, cores=2, channels=2, beat=8, options=options, seed=1) as bench:
            records.append([bench.step() for _ in range(300)])
    assert records[0] == records[1]
    assert records[0] != records[2]


def test_first_beat_comes_after_the_latency(library: ctypes.CDLL) -> None:
    for latency in (1, 2, 40):
        with Hbm(library, 1, 1, 8, 4096) as hbm:
            hbm.configure(HbmOptions(latency=latency))
            pins = hbm.bind(0, 0)
            hbm.run(2)
            pins.arvalid, pins.arburst, pins.arsize, pins.rready = 1, 1, 3, 1
            hbm.run(1)
            pins.arvalid = 0
            cycles = 1
            while not pins.rvalid:
                hbm.run(1)
                cycles += 1
            assert cycles == latency


def test_library_is_built_once_and_its_errors_are_told(tmp_path: pathlib.Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path))
    good = {"a.cpp": '#include "a.hpp"\nextern "C" int systolith_one() { return ONE; }',
            "a.hpp": "#define ONE 1"}
    path = build_library("one", good)
    time = path.stat().st_mtime_ns
    assert build_library("one", good) == path
    assert path.stat().st_mtime_ns == time
    other = build_library("one", {**good, "a.hpp": "#define ONE 2"})
    assert other != path
    with pytest.raises(RuntimeError, match="g\\+\\+ failed"):
        build_library("one", {"a.cpp": "int"})
    with pytest.raises(ValueError, match=r"source must have a plain file name, not '../a.cpp'"):
        build_library("one", {"../a.cpp": ""})


def test_beat_that_waits_stays_when_memory_changes(library: ctypes.CDLL) -> None:
    with Hbm(library, 1, 1, 8, 4096) as hbm:
        hbm.configure(HbmOptions(latency=1))
        hbm.memory[:] = 3
        pins = hbm.bind(0, 0)
        hbm.run(2)
        pins.arvalid, pins.arlen, pins.arburst, pins.arsize = 1, 1, 1, 3
        hbm.run(1)
        pins.arvalid = 0
        assert pins.rvalid
        hbm.memory[:] = 4
        hbm.run(5)
        assert bytes(pins.rdata)[:8] == bytes([3] * 8)
        pins.rready = 1
        hbm.run(1)
        assert pins.rvalid
        assert bytes(pins.rdata)[:8] == bytes([4] * 8)


def test_large_memory_takes_no_space_until_written(library: ctypes.CDLL) -> None:
    with Hbm(library, 2, 4, 128, 1 << 36) as hbm:
        memory = hbm.memory
        memory[(1 << 36) - 1] = 7
        assert not memory[1 << 35]
        assert memory[(1 << 36) - 1] == 7


def test_reset_forgets_bursts_but_not_memory(library: ctypes.CDLL) -> None:
    with Hbm(library, 1, 1, 8, 4096) as hbm:
        hbm.configure(HbmOptions(latency=30))
        pins = hbm.bind(0, 0)
        hbm.memory[:] = 3
        hbm.run(2)
        pins.arvalid, pins.arburst, pins.arsize, pins.rready = 1, 1, 3, 1
        hbm.run(1)
        assert not hbm.idle
        pins.arvalid = 0
        hbm.reset()
        assert hbm.idle
        assert [pins.arready, pins.awready, pins.wready, pins.rvalid, pins.bvalid] == [0] * 5
        for _ in range(100):
            hbm.run(1)
            assert not pins.rvalid
        assert (hbm.memory == 3).all()


GOOD = {"awvalid": 1, "awaddr": 64, "awlen": 3, "awsize": 3, "awburst": 1}
WRITE = {"wvalid": 1}


@pytest.mark.parametrize(("script", "message"), [
    ([{**GOOD, "awburst": 0}], "AWBURST must be 1 (INCR), not 0"),
    ([{**GOOD, "awburst": 2}], "AWBURST must be 1 (INCR), not 2"),
    ([{**GOOD, "awsize": 2}], "AWSIZE must be 3, not 2"),
    ([{**GOOD, "awaddr": 4}], "AWADDR must be a multiple of 8, not 4"),
    ([{**GOOD, "awaddr": 4080}],
     "AW burst of 4 beats at address 4080 must not cross a boundary of 4096 bytes"),
    ([{"arvalid": 1, "arburst": 1, "arsize": 3, "araddr": 8184, "arlen": 1}],
     "AR burst of 2 beats at address 8184 must not cross"),
    ([{"arvalid": 1, "arburst": 1, "arsize": 4}], "ARSIZE must be 3, not 4"),
    # With at most one burst in flight, a second one waits.
    ([GOOD, GOOD, {**GOOD, "awlen": 2}], "AW must not change until it is taken"),
    ([GOOD, GOOD, {**GOOD, "awaddr": 128}], "AW must not change until it is taken"),
    ([GOOD, GOOD, {"awvalid": 0}], "AWVALID must stay until it is taken"),
    ([{"wvalid": 1}, {"wvalid": 0}], "WVALID must stay until it is taken"),
    ([{"wvalid": 1}, {"wvalid": 1, "wlast": 1}], "W must not change until it is taken"),
    ([{"wvalid": 1}, {"wvalid": 1, "wdata": 5}], "W must not change until it is taken"),
    ([{"wvalid": 1}, {"wvalid": 1, "wstrb": 5}], "W must not change until it is taken"),
    ([GOOD, {"awvalid": 0, **WRITE}, WRITE, {**WRITE, "wlast": 1}],
     "WLAST must not be set, 1 beats before the last of its burst"),
    ([GOOD, {"awvalid": 0, **WRITE}, WRITE, WRITE, WRITE],
     "WLAST must be set in the last beat of a burst"),
])
def test_violation_names_channel_cycle_and_rule(library: ctypes.CDLL,
                                                script: Sequence[dict[str, int]],
                                                message: str) -> None:
    with Hbm(library, 2, 3, 8, 3 << 16) as hbm:
        hbm.configure(HbmOptions(outstanding=1, latency=100))
        pins = hbm.bind(1, 2)
        hbm.run(3)
        for number, values in enumerate(script, 1):
            for name, value in values.items():
                if name in ("wdata", "wstrb"):
                    getattr(pins, name)[0] = value
                else:
                    setattr(pins, name, value)
            if number < len(script):
                hbm.run(1)
        with pytest.raises(RuntimeError) as raised:
            hbm.sample()
        assert str(raised.value).startswith("memory channel 2 of core 1, cycle ")
        assert f"cycle {3 + len(script) - 1}: {message}" in str(raised.value)


MASTER = """
module hbm_master(
  input clk, input rst,
  output m_axi_hbm00_awid, output [31:0] m_axi_hbm00_awaddr, output [7:0] m_axi_hbm00_awlen,
  output [2:0] m_axi_hbm00_awsize, output [1:0] m_axi_hbm00_awburst, output m_axi_hbm00_awvalid,
  input m_axi_hbm00_awready,
  output [DATA-1:0] m_axi_hbm00_wdata, output [DATA/8-1:0] m_axi_hbm00_wstrb,
  output m_axi_hbm00_wlast, output m_axi_hbm00_wvalid, input m_axi_hbm00_wready,
  input m_axi_hbm00_bid, input [1:0] m_axi_hbm00_bresp, input m_axi_hbm00_bvalid,
  output m_axi_hbm00_bready,
  output m_axi_hbm00_arid, output [31:0] m_axi_hbm00_araddr, output [7:0] m_axi_hbm00_arlen,
  output [2:0] m_axi_hbm00_arsize, output [1:0] m_axi_hbm00_arburst, output m_axi_hbm00_arvalid,
  input m_axi_hbm00_arready,
  input m_axi_hbm00_rid, input [DATA-1:0] m_axi_hbm00_rdata, input [1:0] m_axi_hbm00_rresp,
  input m_axi_hbm00_rlast, input m_axi_hbm00_rvalid, output m_axi_hbm00_rready,
  output reg done, output reg bad, output reg [7:0] beats);
  // Writes four beats, reads them back, compares; valid depends on ready only by what was taken.
  reg asked, asked_read;
  reg [2:0] sent, written;
  wire [2:0] size = 3'd SIZE;
  assign {m_axi_hbm00_awid, m_axi_hbm00_arid} = 2'b01;
  assign {m_axi_hbm00_awaddr, m_axi_hbm00_araddr} = {2{32'd256}};
  assign {m_axi_hbm00_awlen, m_axi_hbm00_arlen} = {2{8'd3}};
  assign {m_axi_hbm00_awsize, m_axi_hbm00_arsize} = {2{size}};
  assign {m_axi_hbm00_awburst, m_axi_hbm00_arburst} = 4'b0101;
  assign m_axi_hbm00_awvalid = !rst && !asked;
  assign m_axi_hbm00_wvalid = !rst && sent < 4;
  assign m_axi_hbm00_wlast = sent == 3;
  assign m_axi_hbm00_wstrb = ~0;
  assign m_axi_hbm00_wdata = {DATA/32{32'h9e3779b9 + {29'd0, sent}}};
  assign m_axi_hbm00_bready = 1;
  assign m_axi_hbm00_arvalid = written[0] && !asked_read;
  // A function of an input in the same cycle.
  assign m_axi_hbm00_rready = m_axi_hbm00_rvalid && !rst;
  always @(posedge clk) if (rst) begin
    {asked, asked_read, sent, written, done, bad, beats} <= 0;
  end else begin
    if (m_axi_hbm00_awready) asked <= 1;
    if (m_axi_hbm00_wvalid && m_axi_hbm00_wready) sent <= sent + 1;
    if (m_axi_hbm00_bvalid) written <= written + 1;
    if (m_axi_hbm00_bvalid && (m_axi_hbm00_bresp != 0 || m_axi_hbm00_bid)) bad <= 1;
    if (m_axi_hbm00_arvalid && m_axi_hbm00_arready) asked_read <= 1;
    if (m_axi_hbm00_rvalid) begin
      beats <= beats + 1;
      if (m_axi_hbm00_rdata != {DATA/32{32'h9e3779b9 + {24'd0, beats}}}) bad <= 1;
      if (m_axi_hbm00_rresp != 0 || !m_axi_hbm00_rid) bad <= 1;
      if (m_axi_hbm00_rlast != (beats == 3)) bad <= 1;
      if (m_axi_hbm00_rlast) done <= 1;
    end
  end
endmodule
"""
DRIVER = """
#include "model.hpp"
#include "hbm.hpp"
SYSTOLITH_EXPORT int systolith_test_run(systolith::Model* model, systolith::Hbm* hbm,
                                        uint64_t cycles) {
    return model->guard([&] {
        hbm->bind(0, 0, SYSTOLITH_AXI_PINS(model->top, m_axi_hbm00));
        for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
            model->fall();
            hbm->sample();
            model->rise();
            hbm->drive();
        }
    });
}
"""


@pytest.mark.parametrize("data", [32, 64, 1024])
def test_verilated_master_is_bound_by_its_ports(data: int) -> None:
    text = MASTER.replace("DATA", str(data)).replace("SIZE", str(data.bit_length() - 4))
    path = build_model("hbm_master", {"hbm_master": text}, optimise=None,
                       cpp={"driver.cpp": DRIVER, **HBM_SOURCES})
    with Model(path) as model, Hbm(model.library, 1, 1, data // 8, 1 << 16) as hbm:
        hbm.configure(HbmOptions(latency=5, stalls=20_000))
        run = model.library.systolith_test_run
        run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        model.reset()
        model.check(run(model.handle, hbm.handle, 300))
        assert [model.peek(name) for name in ("done", "bad", "beats")] == [1, 0, 4]
        assert hbm.memory[256:256 + data // 2].view(np.uint32).tolist() == [
            0x9E3779B9 + beat for beat in range(4) for _ in range(data // 32)]
        assert hbm.counters["write_beats"] == 4


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 1, 8, 4096), "there must be at least one port"),
    ((1, 1, 12, 4096), "channel_bytes must be a power of two from 4 to 128, not 12"),
    ((1, 1, 256, 4096), "channel_bytes must be a power of two from 4 to 128, not 256"),
    ((1, 3, 8, 4096), "bytes must be a multiple of a row, not 4096"),
    ((1, 1, 8, 1 << 60), "no memory of 1152921504606846976 bytes"),
])
def test_wrong_memory_is_named(library: ctypes.CDLL, arguments: tuple[int, int, int, int],
                               message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hbm(library, *arguments)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"latency": 0}, ValueError, "latency must be from 1 to"),
    ({"stalls": 65536}, ValueError, "stalls must be from 0 to 65535, not 65536"),
    ({"cycles": 0}, ValueError, "cycles must be from 1 to"),
    ({"beats": 0.5}, TypeError, "beats must be an integer, not 0.5"),
])
def test_wrong_option_is_named(options: dict[str, Any], error: type[Exception],
                               message: str) -> None:
    with pytest.raises(error, match=message):
        HbmOptions(**options)


def test_wrong_port_and_closed_memory_are_named(library: ctypes.CDLL) -> None:
    hbm = Hbm(library, 2, 3, 8, 3 << 12)
    with pytest.raises(RuntimeError, match="there is no channel 3 of core 0"):
        hbm.bind(0, 3)
    with pytest.raises(ValueError, match=r"response must be 2 \(SLVERR\) or 3 \(DECERR\), not 1"):
        hbm.fail(0, 8, 1)
    hbm.close()
    with pytest.raises(RuntimeError, match="the memory is closed"):
        hbm.sample()
