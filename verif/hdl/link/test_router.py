"""The router chooses the golden model's links and channels, which are free of deadlock."""

from itertools import product
from typing import NamedTuple

import pytest
from amaranth.sim import SimulatorContext

from golden.torus.route import Hop, channel_graph, check_hops, route, wraps
from hdl.link.format import CHANNELS, MAX_SIDE, Direction, LinkConfig
from hdl.link.router import ChannelBuffer, Router
from verif.golden.torus.test_route import has_cycle
from verif.hdl.simulation.simulator import fast_simulator, simulate

CONFIG = LinkConfig(payload_bytes=1, depth=4)
_FAR = MAX_SIDE - 1


class Arrival(NamedTuple):
    """Where a packet is: at an injector if ``channel`` is None, or arrived at a port.

    ``dx`` and ``dy`` are the signs of the hops that remain; ``wrap`` tells whether the link by
    which the packet leaves crosses the dateline.
    """

    port: Direction
    channel: int | None
    dx: int
    dy: int
    wrap: bool


class Departure(NamedTuple):
    """By which link and channel a packet leaves; the channel is None if it is ejected."""

    port: Direction
    channel: int | None


def arrivals() -> list[tuple[Arrival, int, int]]:
    """All arrivals that a router distinguishes, with the least and the greatest numbers of hops."""
    found = []
    for port, channel, far, wrap in product(Direction, (None, 0, 1), (1, _FAR), (False, True)):
        step = port.step if channel is None else -port.step
        for along, across in product((0, 1), (-1, 0, 1)):
            if channel is None and not along:
                continue
            if port.is_x:
                dx, dy = step * along, across
            elif across == 0:
                dx, dy = 0, step * along
            else:
                continue
            found.append((Arrival(port, channel, dx, dy, wrap), far * dx, far * dy))
    return found


@pytest.fixture(scope="module")
def table() -> dict[Arrival, Departure]:
    """The routing function of the RTL: one flit is sent through a router for each case."""
    dut = Router(CONFIG)
    found: dict[Arrival, Departure] = {}

    def departures(ctx: SimulatorContext) -> list[tuple[Departure, int, int]]:
        leave = [(Departure(port, ctx.get(dut.to_channel[port])), ctx.get(dut.to_flit[port].dx),
                  ctx.get(dut.to_flit[port].dy)) for port in Direction if ctx.get(dut.send[port])]
        return leave + [(Departure(port, None), ctx.get(dut.eject[port].payload.dx),
                         ctx.get(dut.eject[port].payload.dy))
                        for port in Direction if ctx.get(dut.eject[port].valid)]

    async def process(ctx: SimulatorContext) -> None:
        for port in Direction:
            ctx.set(dut.room[port], (1 << CHANNELS) - 1)
            ctx.set(dut.eject[port].ready, 1)
        for arrival, dx, dy in arrivals():
            port, injected = arrival.port, arrival.channel is None
            flit = dut.inject[port].payload if injected else dut.from_flit[port]
            offer = dut.inject[port].valid if injected else dut.received[port]
            links = 15 * arrival.wrap
            if arrival in found:  # only the link by which the packet leaves matters
                here = 1 << found[arrival].port
                links = here if arrival.wrap else 15 ^ here
            ctx.set(dut.wraps, links)
            ctx.set(flit, {"tail": 1, "dx": dx, "dy": dy, "payload": 0})
            ctx.set(dut.from_channel[port], arrival.channel or 0)
            ctx.set(offer, 1)
            [(departure, dx_left, dy_left)] = departures(ctx)
            taken = 0 if departure.channel is None else departure.port.step
            assert (dx_left, dy_left) == (
                (dx - taken, dy) if departure.port.is_x else (dx, dy - taken)), arrival
            assert found.setdefault(arrival, departure) == departure
            await ctx.tick()
            ctx.set(offer, 0)
            assert not departures(ctx)

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()
    return found


def turns(arrival: Arrival, leaves: Departure) -> bool:
    """Whether a packet that arrived along X leaves along Y."""
    return (arrival.channel is not None and arrival.port.is_x
            and leaves.channel is not None and not leaves.port.is_x)


def sign(value: int) -> int:
    return (value > 0) - (value < 0)


class RtlRoute:
    """The route of a packet through routers in RTL; called like `golden.torus.route.route`."""

    def __init__(self, table: dict[Arrival, Departure]) -> None:
        # By all but ``wrap``: where a packet leaves if the link does not wrap, and if it does.
        self._choices = {arrival[:-1]: (leaves, table[arrival._replace(wrap=True)])
                         for arrival, leaves in table.items() if not arrival.wrap}

    def __call__(self, x: int, y: int, dx: int, dy: int, shape: tuple[int, int]) -> list[Hop]:
        check_hops(dx, dy, shape)
        way: list[Hop] = []
        port = Direction(2 * (dx == 0) + ((dx or dy) < 0))
        channel = None
        while True:
            signs = sign(dx), sign(dy)
            (leaves, channel), wrapped = self._choices[port, channel, *signs]
            if channel is None:
                return way
            if wraps(x, y, leaves, shape):
                assert wrapped.port == leaves
                channel = wrapped.channel
                assert channel is not None
            way.append(Hop(x, y, leaves, channel))
            port = leaves.opposite
            if leaves.is_x:
                x, dx = (x + leaves.step) % shape[0], dx - leaves.step
            else:
                y, dy = (y + leaves.step) % shape[1], dy - leaves.step


def test_routers_take_the_golden_way(table: dict[Arrival, Departure]) -> None:
    assert len(table) == len(arrivals()) // 2
    rtl = RtlRoute(table)
    for shape in ((4, 3), (2, 5), (1, 6)):
        for x, y, dx, dy in product(*map(range, shape), *(range(1 - n, n) for n in shape)):
            if dx or dy:
                assert rtl(x, y, dx, dy, shape) == route(x, y, dx, dy, shape)


def test_no_cycle_of_waiting_channels_in_any_shape_up_to_16_by_16(
        table: dict[Arrival, Departure]) -> None:
    """No channel of the RTL's routes waits for itself, in tori of any shape up to 16 x 16.

    A router without a dateline has a cycle, and so has one that turns on channel 1.
    """
    rtl = RtlRoute(table)
    for columns, rows in product(range(1, 17), repeat=2):
        assert not has_cycle(channel_graph((columns, rows), rtl)), (columns, rows)
    broken = RtlRoute({arrival: table[arrival._replace(wrap=False)] for arrival in table})
    assert has_cycle(channel_graph((4, 4), broken))
    broken = RtlRoute({arrival: leaves._replace(channel=1) if turns(arrival, leaves) else leaves
                       for arrival, leaves in table.items()})
    assert has_cycle(channel_graph((4, 4), broken))


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("tails", [(), (1,), (0,), (0, 1), (1, 0)])
def test_a_dead_link_ends_the_packet_that_it_cut_with_one_tail_and_no_other(
        tails: tuple[int, ...], patience: int) -> None:
    """Flits arrive, of which ``tails`` says whether they are tails; then the link is down.

    A flit leaves after it was on offer for ``patience`` cycles. When no flit arrives, the lines
    carry a tail if the last flit was none, or else no tail.
    """
    dut = ChannelBuffer(CONFIG)
    flits = [{"tail": tail, "dx": number, "dy": 1 - number, "payload": number}
             for number, tail in enumerate(tails)]
    cut = bool(tails) and not tails[-1]
    expected = flits + [{**flit, "tail": 1, "payload": 0xFF} for flit in flits[-1:] if cut]
    left = []

    async def process(ctx: SimulatorContext) -> None:
        waited = 0
        for cycle in range(30):
            arrives = cycle < len(flits)
            ctx.set(dut.arrives, arrives)
            ctx.set(dut.flit, flits[cycle] if arrives else {"tail": cut, "dx": -1, "dy": -1})
            ctx.set(dut.down, cycle >= len(flits) + 2)
            ctx.set(dut.output.ready, waited == patience)
            offered = ctx.get(dut.output.valid)
            if offered and waited == patience:
                flit = ctx.get(dut.output.payload)
                left.append({name: flit[name] for name in ("tail", "dx", "dy", "payload")})
            waited = waited + 1 if offered and waited < patience else 0
            await ctx.tick()

    simulate(dut, process)
    assert left == expected
