"""Egress and ejection of packets, against models of vector memory and of the packets on links."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import data, wiring
from amaranth.sim import SimulatorContext

from hdl.config import Config
from hdl.dma.format import DmaSpace
from hdl.dma.interface import QUEUE_DEPTH
from hdl.link.egress import Departures, Egress
from hdl.link.eject import Arrivals, Ejection, PacketSink
from hdl.link.format import Direction, LinkConfig, flit_layout
from hdl.link.packet import buffer_rows, link_config, payload_layout
from verif.hdl.simulation.simulator import fast_simulator, simulate

CONFIG = Config.preset("tiny", link_bytes=8)
HERE = (3, 1)
"""Coordinates of the chip at which packets are ejected."""
_LIMIT = 20_000


def bits_of(layout: data.Layout, **values: Any) -> int:
    return int(layout.const(values).as_value().value)


def fields_of(layout: data.StructLayout, value: int) -> dict[str, Any]:
    """Unsigned values of the fields of a layout, by name; nested layouts as nested dicts."""
    found: dict[str, Any] = {}
    for name, place in layout:
        part = value >> place.offset & (1 << place.width) - 1
        found[name] = (fields_of(place.shape, part)
                       if isinstance(place.shape, data.StructLayout) else part)
    return found


def packet_flits(config: Config, header: dict[str, int], vector: np.ndarray | None, amount: int = 0,
                 hops: tuple[int, int] = (0, 0)) -> list[int]:
    """The flits of a packet: of a vector, shape (sublanes, lanes), or of a signal alone."""
    body = (vector.astype("<u4").tobytes() if vector is not None
            else amount.to_bytes(config.link_bytes, "little"))
    parts = [body[at:at + config.link_bytes] for at in range(0, len(body), config.link_bytes)]
    layout, payload = flit_layout(link_config(config)), payload_layout(config)
    return [bits_of(layout, tail=number == len(parts) - 1, dx=hops[0], dy=hops[1],
                    payload=bits_of(payload, data=int.from_bytes(part, "little"), header=header))
            for number, part in enumerate(parts)]


@dataclass
class Order:
    """A transfer of vectors from ``source`` to ``destination``, or a signal alone."""

    direction: Direction
    count: int = 0
    source: int = 0
    destination: int = 0
    stride: int = 0
    to: dict[str, int] = field(default_factory=dict)
    signal: int = 0
    signal_other: int = 0
    semaphore: int = 0
    signal_remote: int = 0
    remote_semaphore: int = 0
    amount: int = 0

    @staticmethod
    def random(rng: np.random.Generator, config: Config) -> "Order":
        direction = Direction(int(rng.integers(4)))
        dx = direction.step * int(rng.integers(1, 4)) if direction.is_x else 0
        dy = int(rng.integers(-3, 4)) if direction.is_x else direction.step * int(
            rng.integers(1, 4))
        count = 0 if rng.random() < 0.3 else int(rng.integers(1, 9))
        to = {"dx": dx, "dy": dy, **{name: int(rng.integers(32)) for name in "xy"},
              "core": int(rng.integers(2))}
        flags = {name: int(rng.integers(2)) for name in ("signal", "signal_other", "signal_remote")}
        return Order(direction, count, int(rng.integers(config.vmem_vectors - 8)),
                     int(rng.integers(128)), int(rng.integers(3, 9)), to, **flags,
                     semaphore=int(rng.integers(16)), remote_semaphore=int(rng.integers(16)),
                     amount=int(rng.integers(1 << 32)))

    def addresses(self) -> list[int]:
        """Addresses of the destination, in order; it has runs of two vectors."""
        return [self.destination + number // 2 * self.stride + number % 2
                for number in range(self.count)]

    def flits(self, config: Config, memory: np.ndarray) -> list[int]:
        header = {"semaphore": self.remote_semaphore,
                  **{name: self.to[name] for name in ("x", "y", "core")}}
        hops = (self.to["dx"], self.to["dy"])
        if not self.count:
            # The address of a signal alone does not matter: it is not compared.
            return packet_flits(config, header | {"signal": 1}, None, self.amount, hops)
        return [flit for number, address in enumerate(self.addresses())
                for flit in packet_flits(config, header | {
                    "vector": 1, "address": address,
                    "signal": self.signal_remote & (number == self.count - 1)},
                    memory[self.source + number], hops=hops)]

    def transfer(self, config: Config) -> dict[str, Any]:
        whole = {"space": DmaSpace.VMEM.value, "address": self.source, "blocks": self.count,
                 "run": (1 << 24) - 1}
        runs = whole | {"space": DmaSpace.REMOTE_VMEM.value, "address": self.destination, "run": 2,
                        "stride": self.stride}
        return {"source": whole, "destination": runs, "rows": self.count * config.sublanes,
                "remote": 1, "to": self.to, **{name: getattr(self, name) for name in (
                    "semaphore", "signal", "signal_other", "signal_remote", "remote_semaphore")}}


def run(component: wiring.Component, *processes: Any) -> None:
    simulator = fast_simulator(component)
    simulator.add_clock(1e-6)
    for process in processes:
        simulator.add_testbench(process)
    simulator.run()


class EgressBench:
    """An `Egress`, a model of its vector memory, and four links that take flits at random times."""

    def __init__(self, config: Config, seed: int, pace: float) -> None:
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.pace = pace
        self.dut = Egress(config)
        self.memory = self.rng.integers(
            1 << 32, size=(config.vmem_vectors, config.sublanes, config.lanes), dtype=np.uint32)
        self.flits: dict[Direction, list[int]] = {port: [] for port in Direction}
        self.signals: list[tuple[str, int]] = []
        self.reads = 0
        self.rows: deque[int] = deque()
        self.blocked: set[Direction] = set()
        self.unread = self.unsent = 0  # vectors and flits of the orders that have started
        self.cycles = 0

    async def cycle(self, ctx: SimulatorContext) -> None:
        """Drive all inputs but those of orders, sample, and run a cycle."""
        dut = self.dut
        hasty = self.rng.random(8) < self.pace
        ctx.set(dut.read.ready, int(hasty[0] and len(self.rows) < 4 * self.config.sublanes))
        ctx.set(dut.rows.valid, int(bool(self.rows) and hasty[1]))
        if self.rows:
            ctx.set(dut.rows.payload, self.rows[0])
        for port in Direction:
            ctx.set(dut.flit[port].ready, int(hasty[2 + port] and port not in self.blocked))
        for number, port in enumerate((dut.signal, dut.other_signal)):
            ctx.set(port.ready, int(hasty[6 + number]))
        waits = any(ctx.get(port.valid) and not ctx.get(port.ready)
                    for port in (dut.signal, dut.other_signal))
        assert ctx.get(dut.rows.ready) == (not waits), "a row waits for untaken signals only"
        incomplete = self.unread > 0 or bool(self.rows) or any(
            ctx.get(port.valid) for port in (dut.signal, dut.other_signal))
        assert ctx.get(dut.busy) or not incomplete
        assert ctx.get(dut.busy) or ctx.get(dut.full) or self.unsent <= 0
        if ctx.get(dut.read.valid) and ctx.get(dut.read.ready):
            vector = self.memory[ctx.get(dut.read.payload.address)]
            self.reads += 1
            self.unread -= 1
            self.rows.extend(int.from_bytes(row.astype("<u4").tobytes(), "little")
                             for row in vector)
        if ctx.get(dut.rows.valid) and ctx.get(dut.rows.ready):
            self.rows.popleft()
        for port in Direction:
            if ctx.get(dut.flit[port].valid) and ctx.get(dut.flit[port].ready):
                self.flits[port].append(ctx.get(dut.flit[port].payload.as_value()))
                self.unsent -= 1
        for name in ("signal", "other_signal"):
            port = getattr(dut, name)
            if ctx.get(port.valid) and ctx.get(port.ready):
                self.signals.append((name, ctx.get(port.payload)))
        self.cycles += 1
        assert self.cycles < _LIMIT
        await ctx.tick()

    async def start(self, ctx: SimulatorContext, order: Order) -> None:
        """Start an order as soon as its queue has room."""
        dut = self.dut
        if order.count:
            while not ctx.get(dut.room) >> order.direction & 1:
                await self.cycle(ctx)
            ctx.set(dut.transfer, order.transfer(self.config))
            ctx.set(dut.push, 1)
            await self.cycle(ctx)
            ctx.set(dut.push, 0)
            self.begun(order)
            return
        ctx.set(dut.addition.payload, {"to": order.to, "semaphore": order.remote_semaphore,
                                       "amount": order.amount})
        ctx.set(dut.addition.valid, 1)
        while not ctx.get(dut.addition.ready):
            await self.cycle(ctx)
        await self.cycle(ctx)
        ctx.set(dut.addition.valid, 0)
        self.begun(order)

    def begun(self, order: Order) -> None:
        self.unread += order.count
        self.unsent += len(order.flits(self.config, self.memory))

    async def finish(self, ctx: SimulatorContext) -> None:
        while ctx.get(self.dut.busy) or ctx.get(self.dut.full):
            await self.cycle(ctx)

    def comparable(self, flit: int) -> tuple[Any, ...]:
        found = fields_of(flit_layout(link_config(self.config)), flit)
        payload = fields_of(payload_layout(self.config), found.pop("payload"))
        if not payload["header"]["vector"]:
            payload["header"]["address"] = 0
        return found, payload

    def check(self, orders: list[Order]) -> None:
        """Checks all flits of each direction, in order, and the completion of each transfer."""
        for port in Direction:
            expected = [flit for order in orders if order.direction == port
                        for flit in order.flits(self.config, self.memory)]
            assert [self.comparable(flit) for flit in self.flits[port]] == [
                self.comparable(flit) for flit in expected]
        completed = sorted((name, order.semaphore) for order in orders if order.count
                           for name, wanted in (("signal", order.signal),
                                                ("other_signal", order.signal_other)) if wanted)
        assert sorted(self.signals) == completed


@pytest.mark.parametrize(("changes", "pace"), [
    ({"link_bytes": 8}, 0.6), ({"link_bytes": 16}, 1.0), ({"sublanes": 1, "link_bytes": 4}, 0.8)])
def test_egress_sends_all_vectors_and_signals_in_order(changes: dict[str, int],
                                                       pace: float) -> None:
    bench = EgressBench(Config.preset("tiny", **changes), 7, pace)
    orders = [Order.random(bench.rng, bench.config) for _ in range(50)]

    async def process(ctx: SimulatorContext) -> None:
        for order in orders:
            await bench.start(ctx, order)
        await bench.finish(ctx)

    run(bench.dut, process)
    bench.check(orders)
    assert sum(map(len, bench.flits.values())) > 200


def test_directions_do_not_hold_one_another_up() -> None:
    """If one direction is blocked and its queue is full, the others still send everything."""
    bench = EgressBench(CONFIG, 3, 1.0)
    ways = ((1, 0), (-1, 1), (0, 1), (0, -1))
    orders = [Order(port, 20, 5, 9, 2, {"dx": dx, "dy": dy, "x": 0, "y": 0, "core": 0}, signal=1,
                    semaphore=port) for port, (dx, dy) in zip(Direction, ways, strict=True)]
    blocked, *others = orders
    bench.blocked = {Direction.X_PLUS}

    async def process(ctx: SimulatorContext) -> None:
        for _ in range(QUEUE_DEPTH):
            await bench.start(ctx, blocked)
        begin = bench.cycles
        for order in others:
            await bench.start(ctx, order)
        while len(bench.signals) < len(others):
            await bench.cycle(ctx)
        # A vector is read every two cycles, for three directions in turn.
        assert bench.cycles - begin < 3 * 20 * CONFIG.sublanes + 30
        assert not bench.flits[Direction.X_PLUS]
        bench.blocked = set()
        await bench.finish(ctx)

    run(bench.dut, process)
    bench.check([blocked] * QUEUE_DEPTH + others)


@pytest.mark.parametrize("sublanes", [1, 2, 4, 8])
def test_as_many_vectors_are_read_for_a_direction_as_fit_in_its_buffer(sublanes: int) -> None:
    """While the link takes no flits, each of these vectors has a packet that waits."""
    config = replace(CONFIG, array=8, sublanes=sublanes, vmem_bytes=64 * 32 * sublanes)
    bench = EgressBench(config, 6, 1.0)
    order = Order(Direction.X_PLUS, 20, 5, 9, 2, {"dx": 1, "dy": 0, "x": 4, "y": 1, "core": 0})
    bench.blocked = {Direction.X_PLUS}

    async def process(ctx: SimulatorContext) -> None:
        await bench.start(ctx, order)
        for _ in range(200):
            await bench.cycle(ctx)
        assert bench.reads == buffer_rows(config) // sublanes
        bench.blocked = set()
        await bench.finish(ctx)

    run(bench.dut, process)
    bench.check([order])


def test_signals_leave_one_a_cycle() -> None:
    """Each is an entry of its own, which begins in the cycle in which the one before ends."""
    dut = Departures(CONFIG)
    left = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.entry.payload, {"transfer": {"to": {"dx": 1}}, "alone": 1, "amount": 3})
        ctx.set(dut.entry.valid, 1)
        ctx.set(dut.flit.ready, 1)
        for cycle in range(60):
            if ctx.get(dut.flit.valid):
                left.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert left == list(range(left[0], 60))
    assert left[0] < 10


def test_a_core_is_busy_until_its_last_transfer_has_completed() -> None:
    """A core is busy while the link takes no flits, and until each signal is accepted."""
    bench = EgressBench(CONFIG, 4, 0.4)
    to = {"dx": 1, "dy": 0, "x": 4, "y": 1, "core": 0}
    orders = [Order(Direction.X_PLUS, count, 5, 9, 2, to, signal=count % 2, signal_other=1)
              for count in (20, 1, 2, 1, 2, 1, 2)]
    bench.blocked = {Direction.X_PLUS}

    async def process(ctx: SimulatorContext) -> None:
        await bench.start(ctx, orders[0])
        for _ in range(80):
            await bench.cycle(ctx)
        assert bench.unread > 0  # so it was busy in each of these cycles
        assert not bench.flits[Direction.X_PLUS]
        bench.blocked = set()
        await bench.finish(ctx)
        for order in orders[1:]:
            await bench.start(ctx, order)
            await bench.finish(ctx)

    run(bench.dut, process)
    bench.check(orders)


def test_stop_drops_transfers_and_cuts_no_packet() -> None:
    bench = EgressBench(CONFIG, 5, 0.7)
    orders = [Order.random(bench.rng, CONFIG) for _ in range(60)]
    later = [Order.random(bench.rng, CONFIG) for _ in range(20)]

    async def process(ctx: SimulatorContext) -> None:
        for order in orders:
            await bench.start(ctx, order)
        ctx.set(bench.dut.stop, 1)
        await bench.cycle(ctx)
        bench.unread = bench.unsent = 0
        while ctx.get(bench.dut.busy):
            await bench.cycle(ctx)
        ctx.set(bench.dut.stop, 0)
        await bench.cycle(ctx)
        await bench.finish(ctx)
        for port in Direction:
            expected = [flit for order in orders if order.direction == port
                        for flit in order.flits(CONFIG, bench.memory)]
            found = bench.flits[port]
            assert len(found) < len(expected)
            assert [bench.comparable(flit) for flit in found] == [
                bench.comparable(flit) for flit in expected[:len(found)]]
            tail = flit_layout(link_config(CONFIG))["tail"].offset
            assert not found or found[-1] >> tail & 1, "a packet was cut"
            bench.flits[port] = []
        bench.signals = []
        bench.unread = bench.unsent = 0
        for order in later:
            await bench.start(ctx, order)
        await bench.finish(ctx)

    run(bench.dut, process)
    bench.check(later)


class Ejector(wiring.Component):
    """The ejection of a chip, and the arrivals of its two cores."""

    def __init__(self, config: Config) -> None:
        self.ejection = Ejection(config)
        self.arrivals = [Arrivals(config) for _ in range(config.cores)]
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ejection = self.ejection
        for number, (port, core) in enumerate(
                zip(self.ejection.core, self.arrivals, strict=True)):
            m.submodules[f"arrivals_{number}"] = core
            wiring.connect(m, port, core.source)
        return m


class EjectionBench:
    """An `Ejector`, its ports' flits, and models of the vector memories and semaphores.

    Attributes
    ----------
    writes : list
        Per core: each vector's address and rows, and each addition, in the order of their effect.
    wrong : int
        Cycles in which a packet was refused.
    offers : bool
        Whether flits are offered.
    """

    def __init__(self, config: Config, seed: int, pace: float,
                 here: tuple[int, int] = HERE) -> None:
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.pace = pace
        self.here = here
        self.dut = Ejector(config)
        self.queues: list[deque[int]] = [deque() for _ in Direction]
        self.writes: list[list[tuple[Any, ...]]] = [[] for _ in range(config.cores)]
        self.rows: list[list[int]] = [[] for _ in range(config.cores)]
        self.address = [0] * config.cores
        self.delay = [0] * config.cores
        self.wrong = 0
        self.offers = True
        self.cycles = 0

    def queue(self, port: Direction, core: int, address: int | None = None,
              signal: int | None = None, amount: int = 1, at: tuple[int, int] | None = None,
              ) -> tuple[Any, ...]:
        """Send a packet through a port; return the writes and additions that it must cause."""
        vector = None if address is None else self.rng.integers(
            1 << 32, size=(self.config.sublanes, self.config.lanes), dtype=np.uint32)
        x, y = at or self.here
        header = {"x": x, "y": y, "core": core, "vector": address is not None,
                  "address": address or 0, "signal": signal is not None, "semaphore": signal or 0}
        self.queues[port].extend(packet_flits(self.config, header, vector, amount))
        written = () if vector is None else ((address, vector.tobytes()),)
        return (*written, *(() if signal is None else ((signal, amount),)))

    async def run(self, ctx: SimulatorContext) -> None:
        """Run until all packets have had their effects; call `rest` at random times."""
        while any(self.queues):
            for _ in range(int(self.rng.integers(1, 40))):
                await self.cycle(ctx)
            await self.rest(ctx)

    async def rest(self, ctx: SimulatorContext) -> None:
        """Offer no flits until no packet is inside; check that nothing happens from then on."""
        ejection, arrivals = self.dut.ejection, self.dut.arrivals
        self.offers = False
        while (ctx.get(ejection.full) or any(ctx.get(core.busy) for core in arrivals)
               or any(len(rows) == self.config.sublanes for rows in self.rows)):
            await self.cycle(ctx)
        before = [len(writes) for writes in self.writes], [len(rows) for rows in self.rows]
        for _ in range(12):
            await self.cycle(ctx)
        assert before == ([len(writes) for writes in self.writes],
                          [len(rows) for rows in self.rows])
        self.offers = True

    async def cycle(self, ctx: SimulatorContext) -> None:
        ejection = self.dut.ejection
        ctx.set(ejection.x, self.here[0])
        ctx.set(ejection.y, self.here[1])
        hasty = self.rng.random((3, 4)) < self.pace
        for port, queue in enumerate(self.queues):
            ctx.set(ejection.flit[port].valid,
                    int(self.offers and bool(queue) and hasty[0, port]))
            if queue:
                ctx.set(ejection.flit[port].payload.as_value(), queue[0])
        for number, core in enumerate(self.dut.arrivals):
            complete = len(self.rows[number]) == self.config.sublanes
            ready = self.delay[number] == 0 if complete else bool(hasty[1, number])
            ctx.set(core.write.ready, int(ready))
            ctx.set(core.vector_busy, int(not ready))
            ctx.set(core.signal.ready, int(hasty[2, number]))
        for port, queue in enumerate(self.queues):
            if ctx.get(ejection.flit[port].valid) and ctx.get(ejection.flit[port].ready):
                queue.popleft()
        self.wrong += ctx.get(ejection.wrong)
        for number, core in enumerate(self.dut.arrivals):
            self.sample(ctx, number, core)
        self.cycles += 1
        assert self.cycles < _LIMIT
        await ctx.tick()

    def sample(self, ctx: SimulatorContext, number: int, core: Arrivals) -> None:
        rows, size = self.rows[number], self.config.row_bytes
        if len(rows) == self.config.sublanes:
            if self.delay[number]:
                self.delay[number] -= 1
            else:
                self.writes[number].append((
                    self.address[number], b"".join(row.to_bytes(size, "little") for row in rows)))
                rows.clear()
        if ctx.get(core.signal.valid) and ctx.get(core.signal.ready):
            payload = core.signal.payload
            self.writes[number].append((ctx.get(payload.index), ctx.get(payload.amount)))
        if ctx.get(core.write.valid) and ctx.get(core.write.ready):
            rows.append(ctx.get(core.write.payload.data))
            self.address[number] = ctx.get(core.write.payload.address)
            self.delay[number] = int(self.rng.integers(0, 4))


def vectors_before(effects: list[tuple[Any, ...]]) -> list[int]:
    """For each addition, the number of vectors that were written before it."""
    return [sum(isinstance(earlier[1], bytes) for earlier in effects[:place])
            for place, effect in enumerate(effects) if isinstance(effect[1], int)]


@pytest.mark.parametrize(("changes", "pace"), [
    ({"link_bytes": 8}, 0.7), ({"link_bytes": 16}, 1.0), ({"sublanes": 1, "link_bytes": 4}, 0.8)])
def test_packets_are_written_whole_before_their_signals(changes: dict[str, int],
                                                        pace: float) -> None:
    """The vectors of each port are written in order; the additions of each port, too."""
    bench = EjectionBench(Config.preset("tiny", **changes), 11, pace)
    rng = bench.rng
    expected: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for number in range(160):
        port, core = Direction(int(rng.integers(4))), int(rng.integers(2))
        kind = int(rng.integers(3))
        # Addresses and semaphores tell the port, so that effects can be sorted by port.
        address = None if kind == 0 else 64 * port + number % 64
        signal = None if kind == 1 else 4 * port + number % 4
        effects = bench.queue(port, core, address, signal,
                              1 if kind else int(rng.integers(1 << 32)))
        expected.setdefault((port, core), []).extend(effects)

    run(bench.dut, bench.run)
    assert bench.wrong == 0
    for (number, core), wanted in expected.items():
        found = [effect for effect in bench.writes[core]
                 if effect[0] // (64 if isinstance(effect[1], bytes) else 4) == number]
        assert len(found) == len(wanted)
        for form in (bytes, int):
            assert [effect for effect in found if isinstance(effect[1], form)] == [
                effect for effect in wanted if isinstance(effect[1], form)]
        # The vectors before an addition are written before it; those behind it may be, too.
        assert all(need <= done for need, done in zip(
            vectors_before(wanted), vectors_before(found), strict=True))


@pytest.mark.parametrize("case", ["x", "y", "core", "address", "short", "tail", "long", "cut",
                                  "cut at the last flit at (31,31)", "signal"])
def test_wrong_packet_is_dropped_with_a_fault(case: str) -> None:
    config, here = Config.preset("tiny", cores=1, link_bytes=8), HERE
    ends_in_last = case.startswith("cut at the last flit")
    if ends_in_last:  # where all fields of a header may be ones
        here = 31, 31
        config = replace(config, cores=2, vmem_bytes=65_536 * config.sublanes * config.row_bytes)
    bench = EjectionBench(config, 2, 0.8, here)
    port = Direction.Y_PLUS
    before = bench.queue(port, 0, 17, 3)
    at = {"x": (2, 1), "y": (3, 0)}.get(case)
    bench.queue(port, int(case == "core"), config.vmem_vectors if case == "address" else 5, 4,
                at=at)
    queue = bench.queues[port]
    flits = config.sublanes * config.row_bytes // config.link_bytes
    if case == "short":
        del queue[-2]  # its tail comes too early
    if case == "tail":
        for _ in range(flits - 1):  # it has no other flit
            del queue[-2]
    if case == "long":
        queue.insert(-1, queue[-2])
    if case.startswith("cut"):  # as `ChannelBuffer` ends a packet whose link dies inside of it
        for _ in range(1 if ends_in_last else flits // 2):
            queue.pop()
        queue.append((1 << flit_layout(link_config(config)).size) - 1)
    if case == "signal":  # its last flit claims to be a signal alone
        queue.pop()
        bench.queue(port, 0, None, 4)
    behind = bench.queue(port, 0, 6, 5)
    elsewhere = bench.queue(Direction.X_PLUS, 0, 8, 6)

    run(bench.dut, bench.run)
    assert bench.wrong == 1
    expected = [*before, *elsewhere, *behind]
    assert sorted(bench.writes[0], key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("sublanes", [1, 2, 4, 8])
def test_as_many_packets_wait_for_a_core_as_vectors_fit_in_the_buffer(sublanes: int) -> None:
    """Signals, which need no rows of the buffer; one more is on offer to the core."""
    config = replace(CONFIG, array=8, sublanes=sublanes, vmem_bytes=64 * 32 * sublanes)
    dut = PacketSink(config)
    accepted = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.flit.payload.tail, 1)
        ctx.set(dut.flit.valid, 1)
        for cycle in range(40):
            if ctx.get(dut.flit.ready):
                accepted.append(cycle)
            await ctx.tick()
        assert ctx.get(dut.full)
        assert ctx.get(dut.packet.valid)
        assert not ctx.get(dut.packet.payload.vector)

    simulate(dut, process)
    assert len(accepted) == buffer_rows(config) // sublanes + 1


def test_parameters_of_links() -> None:
    assert link_config(CONFIG) == LinkConfig(payload_bytes=8 + 5)
    with pytest.raises(ValueError, match="link_bytes must be at least 4, not 0"):
        link_config(Config.preset("tiny"))
    with pytest.raises(TypeError, match="config must be a Config, not 3"):
        link_config(3)  # type: ignore[arg-type]
