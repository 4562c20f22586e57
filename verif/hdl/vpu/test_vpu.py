"""The vector unit in pure Verilog: the golden model's bits, and the instruction set's latencies."""

import pathlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from amaranth.lib.wiring import Component
from amaranth.sim import SimulatorContext

from hdl.config import Config
from hdl.isa import LATENCIES, LOAD_LATENCY, Kind, Slot, Unit, VectorOp
from hdl.vpu.alu import VectorAlu
from hdl.vpu.control import HOST_PATIENCE
from hdl.vpu.element import VectorElement
from hdl.vpu.interface import HostSpace
from hdl.vpu.registers import MaskFile, RegisterFile
from hdl.vpu.vpu import Vpu
from sim.verilated.model import Model
from verif.hdl.simulation.simulator import simulate
from verif.hdl.vpu.verilated import VerilatedVpu, vpu_library
from verif.models.vpu import (
    CORE_VECTORS,
    VECTOR,
    BundleIssuer,
    ChainInput,
    ChainWriteInput,
    Cycle,
    Load,
    Store,
    Vector,
    VpuChecker,
    VpuTraffic,
    operands,
    to_mask,
)

CONFIG = Config.preset("tiny")
WORDS = 40
IDLE = [Cycle()]


@pytest.fixture(scope="module")
def library() -> pathlib.Path:
    return vpu_library(CONFIG, kernels=False)


@pytest.fixture
def bench(library: pathlib.Path) -> Iterator[VerilatedVpu]:
    """A unit with random registers, masks and vectors of memory."""
    with Model(library) as model:
        bench = VerilatedVpu(CONFIG, model)
        fill(bench, np.random.default_rng(5))
        yield bench


def fill(bench: VerilatedVpu, rng: np.random.Generator) -> None:
    config = bench.config
    bench.write({address: operands(rng, (config.sublanes, config.lanes))
                 for address in range(WORDS)})
    bench.run([Cycle(load=Load(number, number)) for number in range(32)])
    bench.run([Cycle(v0=Vector(VectorOp.LT, number, 2 * number, 2 * number + 1))
               for number in range(1, 8)])
    bench.check(range(WORDS))


def reader(kind: str, d: int) -> Cycle:
    """An operation that copies a register or a mask to v31."""
    if kind == "m":
        return Cycle(v0=Vector(VectorOp.SELECT, 31, 30, 29, d))
    return Cycle(v0=Vector(VectorOp.MOVE, 31, 0, d))


def invert(kind: str, d: int) -> Cycle:
    """An operation that inverts a register or a mask."""
    if kind == "m":
        return Cycle(v0=Vector(VectorOp.MXOR, d, d, 0))
    return Cycle(v0=Vector(VectorOp.XOR, d, d, scalar=0xFFFFFFFF))


def cases() -> list[tuple[str, VectorOp]]:
    return [(slot, VectorOp(operation.op)) for slot in ("v0", "v1") for operation in VECTOR.values()
            if Slot(slot) in operation.slots]


@pytest.mark.parametrize(("slot", "op"), cases())
def test_dependent_operation_at_the_latency_sees_the_new_value(bench: VerilatedVpu, slot: str,
                                                               op: VectorOp) -> None:
    operation = VECTOR[op]
    latency = LATENCIES[operation.unit]
    kind = "m" if to_mask(operation) else "v"
    d = 3
    file = bench.checker.masks if kind == "m" else bench.checker.vectors
    scalar = 0x3FC01234 if any(operand.kind is Kind.VECTOR_SOURCE
                               for operand in operation.operands) else None
    for given in dict.fromkeys([None, scalar]):
        for distance in (latency, latency - 1):
            issue = Cycle()
            setattr(issue, slot, Vector(op, d, 8, 9, 5, given))
            # All bits of the destination change, so the value read shows when.
            bench.run([issue, *IDLE * latency, invert(kind, d)])
            old = file[d].copy()
            bench.run([issue, *IDLE * (distance - 1), reader(kind, d)])
            assert np.array_equal(file[d], ~old)
            seen = file[d] if distance == latency else old
            want = np.where(seen, bench.checker.vectors[30], bench.checker.vectors[29]) \
                if kind == "m" else seen
            assert np.array_equal(bench.read(HostSpace.VREG, 31), want)


@pytest.mark.parametrize("distance", [LOAD_LATENCY, LOAD_LATENCY - 1])
def test_dependent_operation_after_a_load(bench: VerilatedVpu, distance: int) -> None:
    old, new = bench.checker.vectors[3].copy(), bench.checker.vmem[WORDS - 1].copy()
    assert not np.array_equal(old, new)
    bench.run([Cycle(load=Load(3, WORDS - 1)), *IDLE * (distance - 1), reader("v", 3)])
    assert np.array_equal(bench.read(HostSpace.VREG, 31),
                          new if distance == LOAD_LATENCY else old)


def test_load_after_a_store_reads_the_new_word_and_beside_it_the_old(bench: VerilatedVpu) -> None:
    old = bench.checker.vmem[7].copy()
    stored = bench.checker.vectors[4].copy()
    mask = bench.checker.masks[2].copy()
    assert mask.any()
    assert not mask.all()
    bench.run([Cycle(load=Load(20, 7), store=Store(4, 7, 2)), Cycle(load=Load(21, 7))])
    assert np.array_equal(bench.read(HostSpace.VREG, 20), old)
    assert np.array_equal(bench.read(HostSpace.VREG, 21), np.where(mask, stored, old))
    assert np.array_equal(bench.read(HostSpace.VMEM, 7), np.where(mask, stored, old))


def test_lanes_and_sublanes_are_numbered(bench: VerilatedVpu) -> None:
    bench.run([Cycle(v0=Vector(VectorOp.LANE, 1), v1=Vector(VectorOp.SUBLANE, 2))])
    lane, sublane = bench.read(HostSpace.VREG, 1), bench.read(HostSpace.VREG, 2)
    for row in range(CONFIG.sublanes):
        assert lane[row].tolist() == list(range(CONFIG.lanes))
        assert sublane[row].tolist() == [row] * CONFIG.lanes


def test_chains_move_sublane_0_first(bench: VerilatedVpu) -> None:
    """Rows that leave a register and enter another, one a cycle, copy the register."""
    model, checker = bench.model, bench.checker
    register = checker.vectors[6].copy()
    bench.run([Cycle(x=ChainInput(1, 6))], drain=False)
    rows = []
    for _ in range(CONFIG.sublanes):
        rows.append(model.peek_words("x_row"))
        bench.run([Cycle(x=ChainInput(shift=1), pop=rows[-1], result=rows[-1])], drain=False)
    assert np.array_equal(np.array(rows), register)
    bench.run([Cycle(write=ChainWriteInput(20, 0)), Cycle(write=ChainWriteInput(21, 1))])
    for number in (20, 21):
        assert np.array_equal(bench.read(HostSpace.VREG, number), register)


def test_xlu_chain_recirculates(bench: VerilatedVpu) -> None:
    register = bench.checker.vectors[6].copy()
    bench.run([Cycle(xlu=ChainInput(1, 6))], drain=False)
    for step in range(2 * CONFIG.sublanes):
        assert np.array_equal(bench.model.peek_words("xlu_row"), register[step % CONFIG.sublanes])
        bench.run([Cycle(xlu=ChainInput(shift=1))], drain=False)


def test_chain_may_shift_while_it_is_written(bench: VerilatedVpu) -> None:
    rng = np.random.default_rng(3)
    rows = operands(rng, (3 * CONFIG.sublanes, CONFIG.lanes))
    cycles = [Cycle(pop=row) for row in rows]
    for word in range(2):
        cycles[(word + 1) * CONFIG.sublanes].write = ChainWriteInput(10 + word)
    bench.run([*cycles, Cycle(write=ChainWriteInput(12))])
    for word in range(3):
        assert np.array_equal(bench.read(HostSpace.VREG, 10 + word),
                              rows[word * CONFIG.sublanes:(word + 1) * CONFIG.sublanes])


def test_m0_stays_all_ones(bench: VerilatedVpu) -> None:
    bench.run([Cycle(v0=Vector(VectorOp.MXOR, 4, 0, 0))])
    assert not bench.checker.masks[4].any()
    bench.check([])


@pytest.mark.parametrize("density", [0.3, 0.95])
def test_random_traffic_gives_the_golden_state_in_every_cycle(bench: VerilatedVpu,
                                                              density: float) -> None:
    traffic = VpuTraffic(CONFIG, np.random.default_rng([11, int(100 * density)]), density, WORDS)
    bench.run([traffic.cycle() for _ in range(1500)])
    bench.check(range(WORDS))


def test_reset_forgets_what_is_in_flight(bench: VerilatedVpu) -> None:
    model = bench.model
    before = bench.checker.vectors.copy()
    bench.run([Cycle(v0=Vector(VectorOp.FADD, 3, 8, 9), v1=Vector(VectorOp.TANH, 4, 8),
                     load=Load(5, 9), store=Store(6, 9))], drain=False)
    assert model.peek("busy")
    model.reset(1)
    assert not model.peek("busy")
    for _ in range(10):
        assert not any(model.peek(f"written__{port}__valid") for port in ("v0", "v1", "load"))
        model.tick()
    for number in (3, 4, 5):
        assert np.array_equal(bench.read(HostSpace.VREG, number), before[number])


# Bundles in the order of a program


def issue(bench: VerilatedVpu, issuer: BundleIssuer) -> None:
    """Runs an issuer's bundles; its golden core must have the unit's state at the end."""
    bench.issue(issuer)
    bench.run(IDLE)
    bench.check(range(CORE_VECTORS))
    bench.checker.check_state(issuer.core, range(WORDS))


@pytest.fixture
def issuer(bench: VerilatedVpu) -> BundleIssuer:
    """An issuer whose golden core has the unit's state."""
    issuer = BundleIssuer(CONFIG, 31)
    for name in ("vectors", "masks", "vmem"):
        getattr(issuer.core, name)[:] = getattr(bench.checker, name)
    return issuer


def test_every_operation_of_a_bundle(bench: VerilatedVpu, issuer: BundleIssuer) -> None:
    issuer.send(issuer.every_operation())
    issue(bench, issuer)
    assert bench.checker.written >= 3 * 85


@pytest.mark.parametrize(("registers", "density"), [(4, 0.7), (10, 0.4), (32, 0.3), (32, 0.9)])
def test_random_bundles_give_the_state_of_the_golden_core(bench: VerilatedVpu, issuer: BundleIssuer,
                                                          registers: int, density: float) -> None:
    for gap, busy in ((0.0, 0.0), (0.3, 0.2), (0.0, 0.6), (0.0, 1.0)):
        issuer.gap, issuer.chains_busy = gap, busy
        issuer.send(issuer.random_bundle(registers, density) for _ in range(60))
        issue(bench, issuer)
    assert len(issuer.issued) == 240
    assert bench.checker.rows > 600


def test_loads_and_stores_of_a_bundle_keep_their_order(bench: VerilatedVpu,
                                                       issuer: BundleIssuer) -> None:
    issuer.send(issuer.random_bundle(32, 0.9, (Slot.LOAD, Slot.STORE), vectors=3)
                for _ in range(150))
    issue(bench, issuer)



# The host's port


def row_write(address: int, row: np.ndarray) -> int:
    """Payload of the host's write of a row."""
    return address | int.from_bytes(row.tobytes(), "little") << 16


def host_traffic(bench: VerilatedVpu, cycles: int, core: list[Cycle], ready: float, valid: float,
                 rng: np.random.Generator) -> int:
    """Writes and reads vectors above ``WORDS`` while the core works; returns the number read."""
    model, config = bench.model, bench.config
    words = {WORDS + i: operands(rng, (config.sublanes, config.lanes)) for i in range(60)}
    to_write = [(address, s) for address in words for s in range(config.sublanes)]
    written = 0
    asked: list[int] = []
    rows: list[np.ndarray] = []
    accepted = 0
    for t in range(cycles):
        bench_inputs = core[t] if t < len(core) else Cycle()
        complete = written // config.sublanes
        write = written < len(to_write) and rng.random() < valid
        model.poke("host_write__valid", int(write))
        if write:
            address, sublane = to_write[written]
            row = words[address][sublane]
            # Only the last row's address counts.
            shown = address if sublane == config.sublanes - 1 else int(rng.integers(1 << 16))
            model.poke("host_write__payload", row_write(shown, row))
        read = complete > 0 and rng.random() < valid
        # The latest vector must be visible, too.
        address = WORDS + complete - 1 if rng.random() < 0.5 else WORDS + int(rng.integers(
            max(complete, 1)))
        model.poke("host_read__valid", int(read))
        model.poke("host_read__payload", int(HostSpace.VMEM) | address << 2)
        take = rng.random() < ready
        model.poke("host_rows__ready", int(take))
        if write and model.peek("host_write__ready"):
            written += 1
        if read and model.peek("host_read__ready"):
            asked.append(address)
        if take and model.peek("host_rows__valid"):
            rows.append(model.peek_words("host_rows__payload"))
            accepted += 1
        bench.run([bench_inputs], drain=False)
    model.poke("host_read__valid", 0)
    model.poke("host_rows__ready", 1)
    for _ in range(100):
        # The rest of a vector that was begun.
        write = written % config.sublanes != 0
        model.poke("host_write__valid", int(write))
        if write:
            address, sublane = to_write[written]
            model.poke("host_write__payload", row_write(address, words[address][sublane]))
            written += model.peek("host_write__ready")
        if model.peek("host_rows__valid"):
            rows.append(model.peek_words("host_rows__payload"))
        bench.run(IDLE, drain=False)
    assert not model.peek("host_busy")
    want = [row for address in asked for row in words[address]]
    assert len(rows) == len(want)
    assert np.array_equal(np.array(rows), np.array(want))
    for address in list(words)[:written // config.sublanes]:
        bench.checker.vmem[address] = words[address]
    bench.run(IDLE)
    bench.check([*range(WORDS), *list(words)[:written // config.sublanes]])
    return len(asked)


@pytest.mark.parametrize(("density", "ready", "valid"),
                         [(0.0, 1.0, 1.0), (0.5, 1.0, 1.0), (0.6, 0.5, 0.5), (0.8, 0.9, 0.9)])
def test_host_reads_and_writes_beside_the_core(bench: VerilatedVpu, density: float, ready: float,
                                               valid: float) -> None:
    rng = np.random.default_rng([17, int(10 * density), int(10 * ready)])
    traffic = VpuTraffic(CONFIG, rng, density, WORDS)
    core = [traffic.cycle() for _ in range(250)]
    assert host_traffic(bench, 300, core, ready, valid, rng) > 20


def test_host_gets_its_turn_at_a_memory_that_is_used_in_every_cycle(bench: VerilatedVpu) -> None:
    model, sublanes = bench.model, CONFIG.sublanes
    rng = np.random.default_rng(19)
    words = operands(rng, (30, sublanes, CONFIG.lanes))
    bench.write({WORDS + number: word for number, word in enumerate(words)})
    new = operands(rng, (30, sublanes, CONFIG.lanes))
    rows: list[np.ndarray] = []
    came: list[int] = []
    written: list[int] = []
    asked = 0
    held = {"urgent_read": 0, "urgent_write": 0}
    model.poke("host_rows__ready", 1)
    for t in range(400):
        word, row = divmod(len(written), sublanes)
        model.poke("host_write__valid", int(word < len(new)))
        model.poke("host_write__payload", row_write(WORDS + 100 + word, new[word % 30][row]))
        model.poke("host_read__valid", int(asked < len(words)))
        model.poke("host_read__payload", int(HostSpace.VMEM) | WORDS + asked << 2)
        if model.peek("host_rows__valid"):
            rows.append(model.peek_words("host_rows__payload"))
            came.append(t)
        asked += model.peek("host_read__ready") and asked < len(words)
        if word < len(new) and model.peek("host_write__ready"):
            written.append(t)
        core = Cycle(load=Load(t % 16, t % WORDS), store=Store(16 + t % 16, t % WORDS))
        for name, slot in (("urgent_read", "load"), ("urgent_write", "store")):
            if model.peek(name):
                setattr(core, slot, None)
                held[name] += 1
        bench.run([core], drain=False)
    assert np.array_equal(np.array(rows), words.reshape(-1, CONFIG.lanes))
    # A vector waits for its patience, and for three cycles in which the core yields the port.
    for name, times in (("urgent_read", came), ("urgent_write", written)):
        assert len(times) == 30 * sublanes
        assert max(np.diff(times)) <= sublanes + HOST_PATIENCE + 4
        assert held[name] <= 3 * 30
    for number, word in enumerate(new):
        bench.checker.vmem[WORDS + 100 + number] = word
    bench.run(IDLE)
    bench.check([*range(2 * WORDS), *range(WORDS + 100, WORDS + 130)])


def test_a_read_comes_between_writes_of_a_row_in_every_cycle() -> None:
    """With one sublane, each row is a vector; a read waits until a vector has been written."""
    config = Config(array=2, sublanes=1, vmem_bytes=2048)
    with Model(vpu_library(config, kernels=False)) as model:
        bench = VerilatedVpu(config, model)
        words = operands(np.random.default_rng(23), (4, 1, config.lanes))
        bench.write(dict(enumerate(words)))
        model.poke("host_write__valid", 1)
        model.poke("host_write__payload", 100)
        model.poke("host_read__valid", 1)
        model.poke("host_rows__ready", 1)
        rows = []
        for t in range(100):
            model.poke("host_read__payload", int(HostSpace.VMEM) | t % 4 << 2)
            asked = model.peek("host_read__ready")
            if model.peek("host_rows__valid"):
                rows.append(model.peek_words("host_rows__payload"))
            bench.run([Cycle(load=None if model.peek("urgent_read") else Load(t % 32, t % 4))],
                      drain=False)
            if asked:
                model.poke("host_read__valid", 0)
        assert len(rows) == 1
        assert np.array_equal(rows[0], words[0][0])


def test_a_host_that_takes_no_rows_holds_up_nothing(bench: VerilatedVpu) -> None:
    model = bench.model
    model.poke("host_rows__ready", 0)
    model.poke("host_read__valid", 1)
    model.poke("host_read__payload", int(HostSpace.VMEM) | 5 << 2)
    bench.run(IDLE * 20, drain=False)
    assert not model.peek("host_read__ready")
    for number in range(60):
        assert not model.peek("urgent_read")
        bench.run([Cycle(load=Load(number % 16, number % WORDS))], drain=False)
    model.poke("host_read__valid", 0)
    model.poke("host_rows__ready", 1)
    bench.run(IDLE * 20)
    bench.check(range(WORDS))


@pytest.mark.parametrize("space", [HostSpace.VMEM, HostSpace.VREG])
def test_host_reads_a_row_a_cycle(bench: VerilatedVpu, space: HostSpace) -> None:
    model = bench.model
    count = 20
    model.poke("host_rows__ready", 1)
    model.poke("host_read__valid", 1)
    valid, rows, asked = [], [], 0
    for _ in range(count * CONFIG.sublanes + 6):
        model.poke("host_read__payload", int(space) | asked << 2)
        accepted = model.peek("host_read__ready")
        valid.append(model.peek("host_rows__valid"))
        if valid[-1]:
            rows.append(model.peek_words("host_rows__payload"))
        model.tick()
        asked += accepted
        model.poke("host_read__valid", int(asked < count))
    first = valid.index(1)
    assert all(valid[first:first + count * CONFIG.sublanes])
    source = bench.checker.vmem if space is HostSpace.VMEM else bench.checker.vectors
    assert np.array_equal(np.array(rows), source[:count].reshape(-1, CONFIG.lanes))


def test_the_checker_finds_a_wrong_output() -> None:
    checker = VpuChecker(CONFIG)
    checker.step(Cycle(v0=Vector(VectorOp.LANE, 3), x=ChainInput(load=1, source=2)))
    want = checker.step(Cycle())
    right = {name: value.copy() for name, value in want.items()}
    assert right["busy"].all()
    checker.compare(want, right.__getitem__, 1)
    assert checker.rows == 3
    for name in right:
        wrong = {**right, name: right[name] ^ 1}
        with pytest.raises(AssertionError, match=f"{name}.* after cycle 1 is 0x"):
            checker.compare(want, wrong.__getitem__, 1)


@pytest.mark.parametrize("component", [Vpu, VectorElement])
def test_wrong_configuration_is_refused(component: type[Component]) -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        component("tiny")
    with pytest.raises(ValueError, match=r"vmem_bytes must be .* bytes of a vector .*, not 32"):
        component(Config(array=4, sublanes=2, vmem_bytes=32))


def test_the_vector_unit_is_reading_in_the_cycles_in_which_v0_or_v1_reads() -> None:
    """With ``issue_cycles`` 3: v0 in the cycle after issue, v1 two cycles later."""
    dut = Vpu(replace(Config(array=4, sublanes=1, vmem_bytes=16 * 8), issue_cycles=3))
    issued = {"v0": (0, 3, 9, 12), "v1": (3, 6, 15)}
    seen = []

    async def process(ctx: SimulatorContext) -> None:
        for slot in issued:
            ctx.set(getattr(dut, slot).op, VectorOp.ADD)
        for cycle in range(24):
            for slot, cycles in issued.items():
                ctx.set(getattr(dut, slot).valid, cycle in cycles)
            if ctx.get(dut.reading):
                seen.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert seen == sorted({1, 4, 10, 13} | {6, 9, 18})


@pytest.mark.parametrize("unit", [Unit.SIMPLE, Unit.VMEM])
def test_v1_must_read_before_its_bundle_writes(monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    config = Config.preset("fpga")
    Vpu(config).elaborate(None)
    monkeypatch.setitem(LATENCIES, unit, 2)
    with pytest.raises(ValueError, match="V1_DELAY must be less than 2, the least latency in "
                                         "LATENCIES, not 2"):
        Vpu(config).elaborate(None)


@pytest.mark.parametrize("component", [RegisterFile, MaskFile])
def test_wrong_numbers_of_ports_are_refused(component: type[Component]) -> None:
    with pytest.raises(TypeError, match="reads must be an integer, not '2'"):
        component("2", 1)
    with pytest.raises(ValueError, match="writes must be at least 1, not 0"):
        component(1, 0)


def test_alu_needs_a_truth_value() -> None:
    with pytest.raises(TypeError, match="transcendental must be a bool, not 1"):
        VectorAlu(1)  # type: ignore[arg-type]
