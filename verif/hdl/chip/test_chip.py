"""The chip's arbiters and its reset, each alone; and the chip's legal configurations."""

from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.sim import SimulatorContext

from hdl.chip.arbiter import RequestArbiter, RoundRobin, SignalArbiter, VectorPort
from hdl.chip.chip import Chip
from hdl.chip.node import RESET_CYCLES, CoreNode, CoreReset
from hdl.config import Config
from hdl.tiles import VerilogLibrary
from hdl.verilog import Export, export
from tools import verilog
from verif.hdl.simulation.simulator import simulate

FIELDS = ("write", "space", "address", "data")
"""Fields of a request to a core."""


# --- turns

@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_each_has_a_turn_before_others_have_two(count: int, share: float) -> None:
    rng = np.random.default_rng([1, count, int(100 * share)])
    dut = RoundRobin(count)

    async def process(ctx: SimulatorContext) -> None:
        since = [0] * count  # turns of others while it waited
        turns = [0] * count
        for _ in range(400):
            wants = (rng.random(count) < share).tolist()
            ctx.set(dut.wants, sum(want << number for number, want in enumerate(wants)))
            choice = ctx.get(dut.choice)
            takes = bool(rng.random() < 0.7)
            ctx.set(dut.turn, int(takes))
            assert bool(choice) == any(wants)
            if choice:
                chosen = choice.bit_length() - 1
                assert choice == 1 << chosen
                assert wants[chosen]
                if takes:
                    turns[chosen] += 1
                    since = [since[number] + 1 if wants[number] and number != chosen else 0
                             for number in range(count)]
                    assert max(since) < count
            since = [turn if want else 0 for turn, want in zip(since, wants, strict=True)]
            await ctx.tick()
        assert min(turns) > 20

    simulate(dut, process)


@pytest.mark.parametrize("sources", [1, 2, 4])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_every_addition_reaches_the_semaphores_once(sources: int, share: float) -> None:
    """Additions that are withdrawn before they are taken do not reach a semaphore."""
    rng = np.random.default_rng([2, sources, int(100 * share)])
    dut = SignalArbiter(sources)

    async def process(ctx: SimulatorContext) -> None:
        offers: list[tuple[int, int] | None] = [None] * sources
        taken = None
        counts = [0] * sources
        withdrawn = waited = 0
        for _ in range(600):
            assert ctx.get(dut.signal.valid) == (taken is not None)
            if taken is not None:
                assert (ctx.get(dut.signal.index), ctx.get(dut.signal.amount)) == taken
            for number, source in enumerate(dut.source):
                if offers[number] is None:
                    if rng.random() < share:
                        offers[number] = int(rng.integers(16)), int(rng.integers(1 << 32))
                elif rng.random() < 0.1:
                    offers[number] = None
                    withdrawn += 1
                offer = offers[number]
                ctx.set(source.valid, int(offer is not None))
                if offer is not None:
                    ctx.set(source.payload.index, offer[0])
                    ctx.set(source.payload.amount, offer[1])
            ready = [bool(ctx.get(source.ready)) for source in dut.source]
            grants = [number for number in range(sources)
                      if ready[number] and offers[number] is not None]
            # One, if there is any.
            assert len(grants) == any(offer is not None for offer in offers)
            taken = offers[grants[0]] if grants else None
            for number in grants:
                counts[number] += 1
                offers[number] = None
            waited += sum(offer is not None for offer in offers)
            await ctx.tick()
        assert min(counts) > 40
        assert max(counts) - min(counts) <= (60 if share < 1 else 600 if sources == 1 else 30)
        assert sources == 1 or share < 0.5 or (waited > 100 and withdrawn > 10)

    simulate(dut, process)


@pytest.mark.parametrize("seed", range(4))
def test_responses_go_to_who_asked_and_nobody_holds_up_another(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    dut = RequestArbiter(2)
    stuck = 7  # a request that the core does not take for long

    async def process(ctx: SimulatorContext) -> None:
        offers: list[tuple[int, int, int, int] | None] = [None] * 2
        answers: list[int | None] = [None, None]
        counts, since = [0, 0], [0, 0]
        given_up = 0
        for cycle in range(1500):
            data = int(rng.integers(1 << 32))
            for number, response in enumerate(dut.response):
                valid = answers[number] is not None
                ctx.set(dut.core_response.data, data)
                ctx.set(dut.core_response.error, data & 1)
                ctx.set(dut.core_response.valid, int(any(one is not None for one in answers)))
                assert ctx.get(response.valid) == valid
                if valid:
                    assert (ctx.get(response.data), ctx.get(response.error)) == (data, data & 1)
            answers = [None, None]
            for number, request in enumerate(dut.request):
                offer = offers[number]
                if offer is None and rng.random() < 0.8:
                    address = stuck if number == 0 and rng.random() < 0.2 else 100 + cycle % 900
                    offer = (int(rng.integers(2)), int(rng.integers(4)), address,
                             int(rng.integers(1 << 32)))
                elif offer is not None and number == 0 and rng.random() < 0.02:
                    offer = None
                    given_up += 1
                offers[number] = offer
                ctx.set(request.valid, int(offer is not None))
                for name, value in zip(FIELDS, offer or (0,) * 4, strict=True):
                    ctx.set(request.payload[name], value)
            core = dut.core_request
            seen = tuple(ctx.get(core.payload[name]) for name in FIELDS)
            assert ctx.get(core.valid) == any(offer is not None for offer in offers)
            accepts = seen[2] != stuck and rng.random() < 0.8
            ctx.set(core.ready, int(accepts))
            for number, request in enumerate(dut.request):
                offer = offers[number]
                if offer is not None and ctx.get(request.ready):
                    assert accepts
                    assert seen == offer
                    answers[number] = 1
                    offers[number] = None
                    counts[number] += 1
                    since[number] = 0
                elif offer is not None and offer[2] != stuck:
                    since[number] += 1
                    assert since[number] < 30, (
                        f"requester {number} has waited for {since[number]} cycles")
            assert sum(answer is not None for answer in answers) <= 1
            await ctx.tick()
        assert counts[0] > 50
        assert counts[1] > 400
        assert given_up > 2

    simulate(dut, process)


# --- vector memory

class Pins:
    """Ports of a design in simulation, each looked up once.

    A port is set only if its value changes: each time, the simulator settles the whole design.

    Parameters
    ----------
    ports : value-like
    """

    def __init__(self, *ports: Any) -> None:
        self._ports = [Value.cast(port) for port in ports]
        self._values: list[int | None] = [None] * len(ports)

    def set(self, ctx: SimulatorContext, *values: int) -> None:
        """Sets the first ports, in order, to these values."""
        for number, value in enumerate(values):
            if self._values[number] != value:
                self._values[number] = value
                ctx.set(self._ports[number], value)

    def get(self, ctx: SimulatorContext, number: int) -> int:
        """Value of a port."""
        value: int = ctx.get(self._ports[number])
        return value


@dataclass
class Client:
    """A client that reads and writes whole registers at random, row by row."""

    port: InitVar[VectorPort]
    number: int
    rng: np.random.Generator
    sublanes: int
    share: float
    reads: int = 0  # address of the next; it says which client it is too
    word: int = 0  # number of the register being written
    row: int = 0
    offers_read: bool = False
    offers_row: bool = False
    quiet: bool = False
    expected: deque = field(default_factory=deque)  # rows of reads; None: any
    got: int = 0

    def __post_init__(self, port: VectorPort) -> None:
        read, write, rows = port.read[self.number], port.write[self.number], port.rows[self.number]
        self._inputs = Pins(read.valid, read.payload.address, write.valid, write.payload.address,
                            write.payload.data, rows.ready)
        self._outputs = Pins(read.ready, write.ready, rows.valid, rows.payload)

    @property
    def address(self) -> int:
        return self.number << 12 | self.reads & 0xFFF

    @property
    def data(self) -> int:
        return self.number << 28 | (self.word & 0xFFFF) << 8 | self.row

    def drive(self, ctx: SimulatorContext, *, every: bool) -> None:
        self.offers_read |= not self.quiet and (every or self.rng.random() < self.share)
        # A vector that was begun is completed, even if nothing new begins.
        self.offers_row |= (self.row != 0 or not self.quiet) and (
            every or self.rng.random() < self.share)
        self.ready = every or self.rng.random() < self.share
        self._inputs.set(ctx, int(self.offers_read), self.address, int(self.offers_row),
                         self.number << 12 | self.word & 0xFFF, self.data, int(self.ready))

    def sample(self, ctx: SimulatorContext) -> None:
        read_ready, write_ready, valid, payload = range(4)
        n = self.number
        if self.ready and self._outputs.get(ctx, valid):
            assert self.expected, f"client {n} was given a row that it did not ask for"
            row = self.expected.popleft()
            assert row in (None, self._outputs.get(ctx, payload)), f"client {n}"
            self.got += 1
        if self.offers_read and self._outputs.get(ctx, read_ready):
            self.expected.extend(self.address << 4 | row for row in range(self.sublanes))
            self.reads += 1
            self.offers_read = False
        if self.offers_row and self._outputs.get(ctx, write_ready):
            self.row = (self.row + 1) % self.sublanes
            self.word += self.row == 0
            self.offers_row = False

    @property
    def at_rest(self) -> bool:
        return not (self.offers_read or self.offers_row or self.row or self.expected)


(HOST_ROWS_READY, HOST_READ_VALID, HOST_READ_ADDRESS, HOST_WRITE_VALID, HOST_WRITE_ADDRESS,
 HOST_WRITE_DATA, BUSY) = range(7)


@dataclass
class VectorUnit:
    """The core's side: it accepts at most two reads; it writes a register when all rows came."""

    port: InitVar[VectorPort]
    rng: np.random.Generator
    sublanes: int
    share: float
    reads: deque = field(default_factory=deque)
    left: int = 0  # rows of the first read
    entered: list = field(default_factory=list)
    words: list = field(default_factory=list)
    checked: int = 0  # of them

    def __post_init__(self, port: VectorPort) -> None:
        self._rows = Pins(port.host_rows.valid, port.host_rows.payload)
        self._ready = Pins(port.host_read.ready, port.host_write.ready)
        self._outputs = Pins(port.host_rows.ready, port.host_read.valid,
                             port.host_read.payload.address, port.host_write.valid,
                             port.host_write.payload.address, port.host_write.payload.data,
                             port.busy)

    def drive(self, ctx: SimulatorContext, *, every: bool) -> None:
        go = every or self.rng.random() < self.share
        valid = bool(self.reads)
        self._rows.set(ctx, int(valid), *(
            [self.reads[0] << 4 | self.sublanes - self.left] if valid else []))
        # The last row of a vector makes room for a read in the same cycle.
        leaves = valid and self._outputs.get(ctx, HOST_ROWS_READY)
        room = len(self.reads) - (leaves and self.left == 1) < 2
        complete = len(self.entered) == self.sublanes
        self.writes = complete and go
        self._taken = bool(room and go), self.writes or not complete
        self._ready.set(ctx, *map(int, self._taken))
        assert self._outputs.get(ctx, BUSY) == (complete and not self.writes)

    def sample(self, ctx: SimulatorContext) -> None:
        reads, writes = self._taken
        if self.writes:
            self.words.append(self.entered)
            self.entered = []
        if writes and self._outputs.get(ctx, HOST_WRITE_VALID):
            self.entered.append((self._outputs.get(ctx, HOST_WRITE_ADDRESS),
                                 self._outputs.get(ctx, HOST_WRITE_DATA)))
        leaves = bool(self.reads) and self._outputs.get(ctx, HOST_ROWS_READY)
        asked = reads and self._outputs.get(ctx, HOST_READ_VALID)
        if leaves:
            self.left -= 1
            if not self.left:
                self.reads.popleft()
                self.left = self.sublanes if self.reads else 0
        if asked:
            self.reads.append(self._outputs.get(ctx, HOST_READ_ADDRESS))
            self.left = self.left or self.sublanes

    def reset(self) -> None:
        self.reads.clear()
        self.left = 0
        self.entered = []

    def check_words(self) -> None:
        """Checks that each written vector has all rows of one client in order."""
        for word in self.words[self.checked:]:
            addresses = {address for address, _ in word}
            assert len(addresses) == 1
            assert [data & 0xFF for _, data in word] == list(range(self.sublanes))
            assert len({data >> 8 for _, data in word}) == 1
            assert word[0][1] >> 28 == addresses.pop() >> 12
        self.checked = len(self.words)


def config_with(sublanes: int) -> Config:
    return Config(array=2 * sublanes, sublanes=sublanes, vmem_bytes=8 * sublanes * sublanes * 8)


@pytest.mark.parametrize("sublanes", [1, 2, 4])
@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("clients", [1, 2])
def test_vector_registers_are_read_and_written_whole(sublanes: int, share: float,
                                                     clients: int) -> None:
    rng = np.random.default_rng([4, sublanes, int(100 * share), clients])
    dut = VectorPort(config_with(sublanes), clients)

    async def process(ctx: SimulatorContext) -> None:
        unit = VectorUnit(dut, rng, sublanes, share)
        users = [Client(dut, number, rng, sublanes, share) for number in range(clients)]
        cycles = 1200
        for cycle in range(cycles + 200):
            for user in users:
                user.quiet = cycle >= cycles
                user.drive(ctx, every=share == 1)
            unit.drive(ctx, every=share == 1)
            for user in users:
                user.sample(ctx)
            unit.sample(ctx)
            await ctx.tick()
        assert all(user.at_rest for user in users)
        unit.check_words()
        # All vectors of each client, in order.
        for user in users:
            own = [word[0][1] >> 8 & 0xFFFF for word in unit.words
                   if word[0][1] >> 28 == user.number]
            assert own == list(range(user.word))
        done = [user.word for user in users] + [user.reads for user in users]
        assert min(done) > 25
        if share == 1:
            # A row a cycle each way, in turn.
            assert sum(user.word for user in users) >= cycles // sublanes - 2
            assert sum(user.got for user in users) >= cycles - 4
            assert max(user.word for user in users) - min(user.word for user in users) <= 1
            assert max(user.reads for user in users) - min(user.reads for user in users) <= 1

    simulate(dut, process)


@pytest.mark.parametrize("sublanes", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_reset_of_the_core_hangs_no_client(sublanes: int, seed: int) -> None:
    """Rows that were requested come, with any contents; all later rows are right."""
    rng = np.random.default_rng([5, sublanes, seed])
    dut = VectorPort(config_with(sublanes), 2)

    async def process(ctx: SimulatorContext) -> None:
        unit = VectorUnit(dut, rng, sublanes, 0.6)
        users = [Client(dut, number, rng, sublanes, 0.6) for number in range(2)]
        voided = halves = lost = 0
        state, count = "work", 40
        for _ in range(3000):
            # The core's own engine is idle before the reset, the other's is not.
            users[0].quiet = state != "work"
            resets = state == "reset"
            ctx.set(dut.reset, int(resets))
            for user in users:
                user.drive(ctx, every=False)
            unit.drive(ctx, every=False)
            for user in users:
                user.sample(ctx)
            unit.sample(ctx)
            if resets:
                # Rows that the core had not returned have no meaning.
                own = users[1].expected
                voided += bool(own) and own[0] is not None
                halves += users[1].row != 0
                lost += bool(unit.entered)
                users[1].expected = deque([None] * len(own))
                unit.check_words()
                unit.reset()
            await ctx.tick()
            count -= 1
            if state == "work" and count <= 0:
                state = "quiet"
            elif state == "quiet" and users[0].at_rest:
                state, count = "reset", int(rng.integers(1, 6))
            elif state == "reset" and count <= 0:
                state, count = "work", int(rng.integers(1, 60))
        unit.check_words()
        # All but the register that a reset found, and the one under way at the end.
        assert sum(user.word for user in users) <= len(unit.words) + lost + 1
        assert voided > 10
        assert halves > 5 or sublanes == 1
        assert min(user.reads for user in users) > 100
        assert min(user.word for user in users) > 100

    simulate(dut, process)


# --- reset

def test_a_reset_waits_until_all_is_at_rest_and_lasts_some_cycles() -> None:
    rng = np.random.default_rng(6)
    dut = CoreReset()

    async def process(ctx: SimulatorContext) -> None:
        for _ in range(20):
            assert not ctx.get(dut.resetting)
            ctx.set(dut.at_rest, 1)  # as long as the engine does not know
            ctx.set(dut.request, 1)
            await ctx.tick()
            ctx.set(dut.request, 0)
            assert ctx.get(dut.resetting)
            await ctx.tick()
            ctx.set(dut.at_rest, 0)
            for _ in range(int(rng.integers(6, 60))):
                await ctx.tick()
                assert (ctx.get(dut.resetting), ctx.get(dut.reset)) == (1, 0)
                ctx.set(dut.request, int(rng.random() < 0.1))  # it is known
            ctx.set(dut.request, 0)
            ctx.set(dut.at_rest, 1)
            await ctx.tick()
            for _ in range(RESET_CYCLES):
                assert (ctx.get(dut.resetting), ctx.get(dut.reset)) == (1, 1)
                await ctx.tick()
            assert (ctx.get(dut.resetting), ctx.get(dut.reset)) == (0, 0)

    simulate(dut, process)


def test_a_reset_that_is_asked_for_during_another_is_done_too() -> None:
    dut = CoreReset()

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.at_rest, 1)
        for late in range(30):
            resets = 0
            for cycle in range(60):
                ctx.set(dut.request, int(cycle in (0, late)))
                if cycle - 1 in (0, late):
                    assert ctx.get(dut.resetting)
                resets += ctx.get(dut.reset) if cycle > late else 0
                await ctx.tick()
            assert resets >= RESET_CYCLES
            assert not ctx.get(dut.resetting)

    simulate(dut, process)


# --- legal configurations

@pytest.mark.parametrize("make", [Chip, CoreNode, export])
def test_chips_that_cannot_be_are_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        make("tiny")
    with pytest.raises(ValueError, match="array must be a power of two, not 6"):
        make(Config(array=6, sublanes=2, vmem_bytes=48 * 8, hbm_channels=1))
    with pytest.raises(ValueError, match="hbm_channels must not be 8"):
        make(Config.preset("tiny", hbm_channels=8))
    with pytest.raises(ValueError, match="hbm_channels must not be 2"):
        make(Config.preset("v2", hbm_channels=2))
    with pytest.raises(ValueError, match="issue_cycles must be 1 for a chip with links, not 3"):
        Chip(Config.preset("fpga", link_bytes=16))
    with pytest.raises(ValueError, match="status must be True with link_clock, not False"):
        Chip(Config.preset("tiny", link_bytes=16), link_clock=True)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None])
def test_numbers_of_clients_are_checked(value: Any) -> None:
    kind = ValueError if type(value) is int else TypeError
    for make in (RoundRobin, SignalArbiter, RequestArbiter,
                 lambda clients: VectorPort(config_with(2), clients)):
        with pytest.raises(kind, match=f"not {value!r}"):
            make(value)


@pytest.mark.parametrize(("config", "channels"), [
    (Config.preset("tiny"), 2), (Config.preset("small"), 4), (Config.preset("v2"), 8),
    (Config.preset("tiny", cores=1), 1)], ids=["tiny", "small", "v2", "one"])
def test_pins_have_the_names_of_the_convention(config: Config, channels: int) -> None:
    chip = Chip(config)
    chip._MustUse__used = True
    ports = {"_".join(map(str, path)): member for path, member, _ in chip.signature.flatten(chip)}
    assert sum(name.endswith("_awaddr") for name in ports) == channels + 1
    assert {"interrupt", "s_axil_awaddr", "s_axil_rdata", "m_axi_hbm00_awaddr"} <= set(ports)
    assert (f"m_axi_hbm1{config.hbm_channels - 1}_rdata" in ports) == (config.cores == 2)
    assert all(name == "interrupt" or name.startswith(("s_axil_", "m_axi_hbm")) for name in ports)
    assert ports["m_axi_hbm00_wdata"].shape == 8 * config.channel_bytes


@pytest.mark.slow
def test_a_chip_of_one_core_is_clean_too() -> None:
    config = Config.preset("tiny", cores=1)
    library = VerilogLibrary()
    sources = library.write("chip", lambda: Chip(config))
    complaints = [text for _, text in verilog.lint(Export(config, sources, library.modules))
                  if text]
    assert complaints == []
    assert "guest__read__valid" not in library.modules["core_node"].inputs
