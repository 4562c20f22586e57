"""Links and routers on small tori: order, routes, rate, latency, and every fault of a wire."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from amaranth.sim import SimulatorContext

from golden.torus.route import wraps
from hdl.link.fabric import Fabric
from hdl.link.format import (
    CHECK_BITS,
    Direction,
    LinkConfig,
    flit_layout,
    frame_body,
    frame_check,
    frame_layout,
)
from hdl.link.receiver import LinkReceiver
from hdl.link.router import Router
from hdl.link.sender import LinkSender
from hdl.link.window import RateLimiter, RetryTimer
from sim.models.chip.torus import WireFaults
from sim.verilated.model import Model
from verif.hdl.link.torus import (
    PORTS,
    Packets,
    Torus,
    flits_by_channel,
    open_fabric,
)
from verif.hdl.simulation.simulator import fast_simulator, simulate

CONFIG = LinkConfig(payload_bytes=16, depth=128, retry_cycles=256)
HOP_CYCLES = 3
"""Cycles that a fabric needs to pass a flit on, from wire to wire."""
LINK_DIES = (CONFIG.retries + 3) * CONFIG.retry_cycles
"""Number of cycles after which an end of a link has found that the other one does not answer."""
X_PLUS, X_MINUS, Y_PLUS, Y_MINUS = Direction
FLIT = flit_layout(CONFIG).const({"tail": 1, "dx": 1}).as_value().value
"""A packet of one flit for the next chip in direction `X_PLUS`."""


@contextmanager
def torus(shape: tuple[int, int], latencies: object, seed: int) -> Iterator[Torus]:
    opened = Torus(CONFIG, shape, latencies, seed)
    try:
        yield opened
    finally:
        opened.close()


def one(source: int, dx: int, dy: int, flits: int = 1, count: int = 1) -> Packets:
    """``count`` equal packets of one source."""
    return Packets(*(np.full(count, value) for value in (source, dx, dy, flits)))


def every_wire(shape: tuple[int, int], faults: WireFaults) -> dict:
    return {(node, port): faults for node in range(shape[0] * shape[1]) for port in Direction}


@pytest.mark.parametrize(("shape", "offer", "accept"), [
    ((1, 2), 1.0, 1.0), ((2, 1), 0.5, 0.2), ((2, 2), 1.0, 0.6), ((3, 2), 1.0, 0.1),
    ((4, 4), 1.0, 0.9), ((5, 3), 0.1, 1.0)])
def test_packets_arrive_once_in_order_by_the_golden_ways(
        shape: tuple[int, int], offer: float, accept: float) -> None:
    rng = np.random.default_rng(shape)
    latencies = rng.integers(1, 9, (shape[0] * shape[1], PORTS))
    packets = Packets.random(rng, shape, 1500, 4)
    with torus(shape, latencies, 1) as fabrics:
        fabrics.run(packets, offer=offer, accept=accept).check()
        frames, flits = fabrics.sent()
        np.testing.assert_array_equal(flits, flits_by_channel(packets, shape))
        assert (frames >= flits.sum(axis=2)).all()
        assert not fabrics.down()


@pytest.mark.parametrize(("lose", "damage"), [(0.02, 0.0), (0.0, 0.02), (0.05, 0.05), (0.1, 0.1)])
def test_lost_and_damaged_frames_cost_cycles_only(lose: float, damage: float) -> None:
    shape = (3, 3)
    packets = Packets.random(np.random.default_rng(5), shape, 600, 4)
    with torus(shape, 4, 2) as fabrics:
        fabrics.faults(every_wire(shape, WireFaults(lose, damage)))
        fabrics.run(packets, accept=0.8).check()
        flits = fabrics.sent()[1]
        assert flits.sum() > flits_by_channel(packets, shape).sum()
        assert not fabrics.down()


def test_last_acknowledgement_that_is_lost_is_repeated() -> None:
    """If no other flit follows, the timer must notice the loss; then the link becomes idle."""
    with torus((2, 1), 3, 1) as fabrics:
        fabrics.faults({(1, X_MINUS): WireFaults(dead=(0, 200))})
        fabrics.run(one(0, 1, 0)).check()
        idle = Packets(*(np.zeros(0, int) for _ in range(4)))
        fabrics.run(idle, cycles=2 * CONFIG.retry_cycles)
        frames, flits = fabrics.sent()
        assert flits[0, X_PLUS].sum() == 2
        fabrics.run(idle, cycles=4 * CONFIG.retry_cycles)
        np.testing.assert_array_equal(fabrics.sent()[0], frames)
        assert not fabrics.down()


def test_wire_that_is_dead_for_a_while_costs_cycles_only() -> None:
    shape = (2, 2)
    packets = Packets.random(np.random.default_rng(6), shape, 800, 4)
    with torus(shape, 6, 3) as fabrics:
        fabrics.faults(every_wire(shape, WireFaults(dead=(150, 900))))
        delivery = fabrics.run(packets)
        delivery.check()
        assert delivery.cycles > 900
        assert not fabrics.down()


def test_wire_that_stays_dead_takes_its_link_down_and_no_other() -> None:
    """The wire dies inside packets. Flits before that are right; nothing waits for the others."""
    shape = (3, 3)
    dead = {(0, X_PLUS), (1, X_MINUS)}
    packets = Packets.random(np.random.default_rng(7), shape, 800, 4)
    with torus(shape, 6, 3) as fabrics:
        fabrics.faults({wire: WireFaults(dead=(100, 1 << 40)) for wire in dead})
        delivery = fabrics.run(packets, cycles=2 * LINK_DIES)
        delivery.check(complete=False, cut=True)
        assert 0 < len(delivery.records) < packets.flits.sum()
        assert fabrics.down() == dead
        assert delivery.injected == packets.flits.sum()
        assert not fabrics.busy()


def test_packet_that_a_dead_wire_cuts_is_ended_and_holds_no_channel() -> None:
    """Only one wire dies; the end that waits for the rest of the packet must notice it alone."""
    with torus((3, 1), 4, 1) as fabrics:
        fabrics.faults({(0, X_PLUS): WireFaults(dead=(30, 1 << 40))})
        delivery = fabrics.run(one(0, 2, 0, flits=40), cycles=2 * LINK_DIES)
        delivery.check(complete=False, cut=True)
        assert 2 < len(delivery.records) < 40
        assert fabrics.down() == {(0, X_PLUS), (1, X_MINUS)}
        assert delivery.injected == 40
        assert not fabrics.busy()
        fabrics.run(one(1, 1, 0, flits=3, count=5)).check()


def test_starved_credits_cost_cycles_only_while_the_other_end_answers() -> None:
    packets = one(0, 1, 0, flits=4, count=2 * CONFIG.depth)
    with torus((2, 1), 6, 1) as fabrics:
        delivery = fabrics.run(packets, closed=3 * LINK_DIES)
        delivery.check()
        assert delivery.cycles > 3 * LINK_DIES
        assert not fabrics.down()
    with torus((2, 1), 6, 1) as fabrics:
        fabrics.faults({(1, X_MINUS): WireFaults(dead=(200, 1 << 40))})
        delivery = fabrics.run(packets, cycles=2 * LINK_DIES)
        delivery.check(complete=False, cut=True)
        assert (0, X_PLUS) in fabrics.down()
        assert delivery.injected == packets.flits.sum()
        assert not fabrics.busy()


@pytest.mark.parametrize("ends", ["answered", "waiting"])
@pytest.mark.parametrize("passed", [1, 15, 16, 40])
def test_link_is_given_up_after_its_retries_counted_from_the_last_answer(ends: str,
                                                                         passed: int) -> None:
    """``passed`` cycles after the wait begins, an answer arrives, or no answer is expected."""
    config = LinkConfig(payload_bytes=4, depth=8, retry_cycles=16, retries=3)
    dut = RetryTimer(config)
    expired, dead = [], []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.waiting, 1)
        await ctx.tick().repeat(passed)
        signal = getattr(dut, ends)
        ctx.set(signal, ends == "answered")
        assert not ctx.get(dut.expired)
        await ctx.tick()
        ctx.set(signal, ends == "waiting")
        for cycle in range(1, 16 * 4 + 1):
            if ctx.get(dut.expired):
                expired.append(cycle)
            if ctx.get(dut.dead):
                dead.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert expired == [16, 32, 48, 64]
    assert dead == [64]


def test_link_is_stalled_from_its_last_credit_until_it_is_down() -> None:
    """The other end answers nothing, so it gives no credits back."""
    node = open_fabric(CONFIG)
    node.reset()
    node.poke("inject__0__payload", FLIT)
    node.poke("inject__0__valid", 1)
    sent = 0
    found: list[tuple[int, int, int]] = []
    for _ in range(LINK_DIES + 4 * CONFIG.depth):
        down = node.peek("down")
        if not found or found[-1][1:] != (node.peek("stalled"), down):
            found.append((sent, node.peek("stalled"), down))
        if down:
            break
        sent += node.peek("inject__0__ready")
        node.tick()
    node.close()
    link = 1 << X_PLUS
    assert found == [(0, 0, 0), (CONFIG.depth, link, 0), (CONFIG.depth, 0, link)]


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("count", [4, 2 * CONFIG.depth])
def test_reset_of_one_end_takes_the_link_down(end: int, count: int) -> None:
    """The end's sequence numbers begin again, maybe with one that the other end expects.

    If the link stayed up, the other end would take new flits for repetitions of those that it has
    received, or would notice nothing after a multiple of all numbers.
    """
    with torus((2, 1), 20, 1) as fabrics:
        fabrics.run(one(0, 1, 0, count=count)).check()
        idle = Packets(*(np.zeros(0, int) for _ in range(4)))
        fabrics.run(idle, cycles=200)
        fabrics.nodes[end].reset()
        fabrics.run(one(0, 1, 0, count=20), cycles=200)
        fabrics.run(idle, cycles=(CONFIG.retries + 3) * CONFIG.retry_cycles)
        assert (0, X_PLUS) in fabrics.down()


@pytest.mark.parametrize("latency", [1, 7])
def test_hop_takes_three_cycles(latency: int) -> None:
    times = []
    for hops in (1, 2, 3, 7):
        with torus((8, 1), latency, 1) as fabrics:
            delivery = fabrics.run(one(0, hops, 0))
            delivery.check()
            times.append(delivery.cycles)
    assert times[1] - times[0] == latency + HOP_CYCLES
    assert times[2] - times[1] == latency + HOP_CYCLES
    assert times[3] - times[2] == 4 * (latency + HOP_CYCLES)


@pytest.mark.parametrize("both", [False, True])
def test_link_carries_11_flits_in_16_cycles_over_64_cycles_of_wire(both: bool) -> None:
    packets = one(0, 1, 0, flits=8, count=300)
    if both:  # acknowledgements and credits travel with the flits of the other direction
        there = [np.concatenate(pair) for pair in zip(
            (packets.source, packets.dx, packets.dy, packets.flits),
            (packets.source + 1, -packets.dx, packets.dy, packets.flits), strict=True)]
        packets = Packets(*there)
    with torus((2, 1), 64, 1) as fabrics:
        delivery = fabrics.run(packets)
        delivery.check()
        flits = packets.flits.sum() // (1 + both)
        cycles = int(np.ptp(delivery.records["cycle"])) + 1
        assert cycles <= flits * 16 / 11 + 8
        frames = fabrics.sent()[0]
        assert frames[0, X_PLUS] <= delivery.cycles * 11 // 16 + 1


def test_all_ports_of_a_fabric_are_busy_at_once() -> None:
    """One chip sends to all of its neighbours and receives from all of them."""
    packets = Packets(*(np.concatenate([np.full(200, value) for value in values]) for values in (
        [0, 0, 0, 0, 1, 2, 3, 6], [1, -1, 0, 0, -1, 1, 0, 0], [0, 0, 1, -1, 0, 0, -1, 1],
        [4] * 8)))
    with torus((3, 3), 5, 1) as fabrics:
        delivery = fabrics.run(packets)
        delivery.check()
        assert delivery.cycles <= 800 * 16 / 11 + 40


def test_channels_take_turns_and_packets_do_not_starve() -> None:
    """Three packet streams meet at one link; each gets its share."""
    packets = Packets(*(np.concatenate([np.full(300, value) for value in values]) for values in (
        [0, 1, 2], [3, 2, 1], [0, 0, 0], [2, 2, 2])))
    with torus((6, 1), 2, 1) as fabrics:
        delivery = fabrics.run(packets, cycles=900)
        delivery.check(complete=False)
        source = np.repeat(packets.source, packets.flits)
        begin = np.repeat(np.arange(900), 2)
        shares = np.bincount(source[np.searchsorted(begin, delivery.flits[:, 0])])
        assert shares.min() > 0.2 * shares.sum()


def frame(**fields: int) -> int:
    """A frame that the golden model writes; fields of the flit begin with ``flit_``."""
    body = frame_body(CONFIG)
    flit = flit_layout(CONFIG)
    bits = 0
    for name, value in fields.items():
        if name.startswith("flit_"):
            field = flit[name.removeprefix("flit_")]
            offset = body["flit"].offset + field.offset
        else:
            field = body[name]
            offset = field.offset
        bits |= (value & (1 << field.width) - 1) << offset
    return bits | frame_check(CONFIG, bits) << frame_layout(CONFIG)["check"].offset


def sent_frame(port: Direction, node: Model) -> int:
    """Returns the body of the frame that a fabric sends; the checksum must be right."""
    layout = frame_layout(CONFIG)
    found = node.peek(f"tx_frame__{port}")
    body = found & (1 << frame_body(CONFIG).size) - 1
    assert found >> layout["check"].offset == frame_check(CONFIG, body)
    return body


def test_frames_have_the_checksum_of_zlib_both_ways() -> None:
    """Frames written in Python are accepted; those of the RTL have the checksum of Python's."""
    rng = np.random.default_rng(3)
    node = open_fabric(CONFIG)
    node.reset()
    offset = frame_body(CONFIG)["acknowledge"].offset
    for number in range(12):
        payload = int.from_bytes(rng.bytes(16), "little")
        node.poke("rx_frame__0", frame(carries=1, sequence=number, flit_tail=1,
                                       flit_payload=payload))
        node.poke("rx_valid__0", 1)
        node.poke("eject__0__ready", 1)
        node.tick()
        node.poke("rx_valid__0", 0)
        assert node.peek("eject__0__valid")
        layout = flit_layout(CONFIG)
        assert node.peek("eject__0__payload") == (
            1 << layout["tail"].offset | payload << layout["payload"].offset)
        answers = []
        for _ in range(6):
            node.tick()
            if node.peek("tx_valid__0"):
                answers.append(sent_frame(X_PLUS, node) >> offset & (1 << CONFIG.count_bits) - 1)
        assert answers[-1] == number + 1
    node.close()


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    good = frame(carries=1, sequence=0, flit_tail=1, flit_payload=0x1234)
    node = open_fabric(CONFIG)
    node.reset()
    node.poke("eject__2__ready", 1)
    for bit in range(frame_layout(CONFIG)["check"].offset + CHECK_BITS):
        node.poke("rx_frame__2", good ^ 1 << bit)
        node.poke("rx_valid__2", 1)
        node.tick()
        assert not node.peek("eject__2__valid"), bit
    node.poke("rx_frame__2", good)
    node.tick()
    assert node.peek("eject__2__valid")
    node.close()


def test_frame_without_a_flit_tells_news_and_all_news_are_told() -> None:
    """A frame arrives while flits leave, which carry the news, or after the last flit has left."""
    node = open_fabric(CONFIG)
    layout = frame_body(CONFIG)
    node.poke("inject__0__payload", FLIT)
    empty = []
    for arrival in range(40):
        node.reset()
        node.poke("eject__0__ready", 1)
        node.poke("rx_frame__0", frame(carries=1, flit_tail=1))
        told = {"acknowledge": 0, "freed": 0, "known": 0}
        sent = 0
        for cycle in range(arrival + 30):
            node.poke("inject__0__valid", int(sent < 11))
            sent += sent < 11 and node.peek("inject__0__ready")
            node.poke("rx_valid__0", int(cycle == arrival))
            if node.peek("tx_valid__0"):
                body = sent_frame(X_PLUS, node)
                news = {name: body >> layout[name].offset & 1 for name in told}
                if not body >> layout["carries"].offset & 1:
                    assert news != told, f"an idle frame; a frame has arrived in cycle {arrival}"
                    empty.append(arrival)
                told = news
            node.tick()
        assert sent == 11
        assert told == {"acknowledge": 1, "freed": 1, "known": 1}, arrival
    node.close()
    assert set() < set(empty) < set(range(40))


def test_a_repeated_frame_is_acknowledged_again() -> None:
    """The other end repeats what it sent if the frame that acknowledged it was lost."""
    node = open_fabric(CONFIG)
    node.reset()
    node.poke("eject__0__ready", 1)
    node.poke("rx_frame__0", frame(carries=1, flit_tail=1))
    acknowledge = frame_body(CONFIG)["acknowledge"].offset
    for arrival in range(3):
        sent = []
        for cycle in range(40):
            node.poke("rx_valid__0", int(not cycle))
            if node.peek("tx_valid__0"):
                sent.append(sent_frame(X_PLUS, node) >> acknowledge & 1)
            node.tick()
        assert sent, f"no frame after arrival {arrival}"
        assert sent[-1] == 1
    assert not node.peek("down")
    node.close()


def test_frames_say_whether_the_other_end_has_been_heard_and_a_reset_is_noticed() -> None:
    """Frames are ``known`` once this end has heard a frame.

    They are ``fresh`` until the other end says that it has heard this one.
    """
    node = open_fabric(CONFIG)
    node.reset()
    layout = frame_body(CONFIG)
    acknowledge = layout["acknowledge"].offset
    node.poke("inject__0__payload", FLIT)

    def hear(*, valid: int = 1, damage: int = 0, **fields: int) -> tuple[int, int]:
        """Gives a frame; returns ``known`` and ``fresh`` of the next frame with a flit."""
        node.poke("rx_frame__0", frame(**fields) ^ damage << acknowledge)
        node.poke("rx_valid__0", valid)
        node.tick()
        node.poke("rx_valid__0", 0)
        node.tick(20)
        node.poke("inject__0__valid", 1)
        node.tick()
        node.poke("inject__0__valid", 0)
        for _ in range(20):
            if node.peek("tx_valid__0"):
                break
            node.tick()
        else:
            raise AssertionError("no frame is sent")
        body = sent_frame(X_PLUS, node)
        assert body >> layout["carries"].offset & 1
        known, fresh = (body >> layout[name].offset & 1 for name in ("known", "fresh"))
        return known, fresh

    # Frames that are damaged, or not there, say nothing.
    for unheard in ({"valid": 0}, {"damage": 1}):
        assert hear(**unheard, known=1, fresh=0) == (0, 1), unheard
    assert hear(known=0, fresh=1) == (1, 1)
    assert hear(known=1, fresh=1) == (1, 0)
    assert hear(known=1, fresh=1) == (1, 0)
    assert hear(known=1, fresh=0) == (1, 0)
    assert node.peek("down") == 0
    # The other end was reset.
    node.poke("rx_frame__0", frame(known=0, fresh=1))
    node.poke("rx_valid__0", 1)
    node.tick(3)
    assert node.peek("down") == 1 << X_PLUS
    node.close()


@pytest.mark.parametrize("fields", [
    {"acknowledge": 1}, {"freed": 1}, {"freed": 1 << CONFIG.count_bits}])
def test_answer_to_what_was_not_sent_takes_the_link_down(fields: dict[str, int]) -> None:
    node = open_fabric(CONFIG)
    node.reset()
    node.poke("rx_valid__3", 1)
    node.poke("rx_frame__3", frame())
    node.tick(3)
    assert node.peek("down") == 0
    node.poke("rx_frame__3", frame(**fields))
    node.tick(3)
    assert node.peek("down") == 1 << Y_MINUS
    node.close()


@pytest.mark.parametrize(("flits", "cycles"), [(11, 16), (1, 1), (1, 3), (7, 8)])
def test_rate_is_limited_in_every_window(flits: int, cycles: int) -> None:
    dut = RateLimiter(LinkConfig(rate_flits=flits, rate_cycles=cycles))
    used: list[int] = []
    rng = np.random.default_rng(flits)
    wanted = [1] * 200 + (rng.random(600) < 0.6).astype(int).tolist() + [0] * 50 + [1] * 100

    async def process(ctx: SimulatorContext) -> None:
        for want in wanted:
            use = want & ctx.get(dut.free)
            ctx.set(dut.use, use)
            used.append(use)
            await ctx.tick()

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    total = np.concatenate([[0], np.cumsum(used)])
    for window in range(1, 120):
        most = (total[window:] - total[:-window]).max()
        assert most <= (window * flits - 1) // cycles + 1
    assert total[200] >= 200 * flits // cycles


@pytest.mark.parametrize("make", [Fabric, Router, LinkSender, LinkReceiver])
def test_config_must_be_a_link_config(make: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="config must be a LinkConfig, not 5"):
        make(5)


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"payload_bytes": 0}, ValueError, "payload_bytes must be from 1 to 1024, not 0"),
    ({"depth": 48}, ValueError, "depth must be a power of two, not 48"),
    ({"rate_flits": 17}, ValueError, r"rate_flits must be at most rate_cycles \(16\), not 17"),
    ({"retries": 2.0}, TypeError, "retries must be an integer, not 2.0"),
    ({"retry_cycles": 15}, ValueError, "retry_cycles must be from 16 to 65536, not 15"),
    ({"retry_cycles": 32, "rate_flits": 2, "rate_cycles": 64}, ValueError,
     "retry_cycles must be more than the 32 cycles from one frame to the next, not 32"),
])
def test_bad_parameters_are_refused(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LinkConfig(**changes)


def test_straps_tell_the_dateline() -> None:
    """The straps of a chip in the middle are 0, those of a corner have two bits."""
    def straps(x: int, y: int) -> int:
        return sum(wraps(x, y, port, (3, 3)) << port for port in Direction)

    assert (straps(1, 1), straps(0, 0), straps(2, 2)) == (0, 0b1010, 0b0101)
