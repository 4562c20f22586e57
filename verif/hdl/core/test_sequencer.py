"""The sequencer: programs execute bundle by bundle, whatever the units' timing."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from amaranth.sim._async import SimulatorContext

from golden.core import GoldenCore
from hdl.config import Config
from hdl.core import scoreboard
from hdl.core.interface import Space, write_words
from hdl.core.scalar import ScalarAlu
from hdl.core.scoreboard import SharedPorts, WritePort
from hdl.core.sequencer import Sequencer
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import pack, unpack
from hdl.isa import (
    BUNDLE_BITS,
    FLOAT_LATENCY,
    LOAD_LATENCY,
    OPERATIONS,
    SIMPLE_LATENCY,
    SLOTS,
    TRANSCENDENTAL_LATENCY,
    VECTOR_FLAG,
    Fault,
    LoadOp,
    MiscOp,
    PopOp,
    PushOp,
    ScalarOp,
    Slot,
    StoreOp,
    Unit,
    VectorOp,
)
from hdl.vpu.interface import V1_DELAY
from sim.verilated.model import Model
from verif.hdl.core.verilated import VerilatedSequencer, open_sequencer
from verif.hdl.simulation.simulator import fast_simulator
from verif.models.sequencer import SequencerUnits, TracingCore, UnitTiming
from verif.models.sequencer_oracle import SCALAR, WORD, Oracle, Parts, descriptor_fault
from verif.models.sequencer_programs import CONFIG, HALT, SequencerPrograms, bundle, i, s, v
from verif.system.programs.generator import Generator
from verif.system.programs.operands import STABLE

TIMINGS = {
    "exact": UnitTiming(),
    "late": UnitTiming(late=9),
    "mixed": UnitTiming(late=4, ready=0.6, free=0.5, slow=9),
    "slow": UnitTiming(late=15, ready=0.3, free=0.3, slow=25),
    "host": UnitTiming(urgent=0.5),
}
TINY = Config.preset("tiny")
STAGED = replace(TINY, issue_cycles=3)
WIDE = replace(CONFIG, array=16, vmem_bytes=11 * 128, smem_words=61)
"""A configuration in which scalar memory has a bank for each word of a descriptor."""
WAIT_LIMIT = 5000


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_sequencer() as model:
        yield model


def random_oracle(programs: SequencerPrograms) -> Oracle:
    """An oracle with random scalars, memory and semaphores."""
    oracle = Oracle(CONFIG)
    oracle.scalars[1:] = [programs.word() for _ in range(31)]
    oracle.smem = [programs.word() for _ in oracle.smem]
    oracle.semaphores = [int(n) for n in programs.rng.integers(0, 12, 16)]
    return oracle


def issue_cycles(model: Model, *bundles: int, timing: UnitTiming | None = None,
                 config: Config = CONFIG) -> list[int]:
    """Cycles in which the bundles and a final halt issue, relative to the first."""
    bench = VerilatedSequencer(model, config, timing)
    bench.load([*bundles, HALT])
    assert bench.run() == list(range(len(bundles) + 1))
    first = bench.checker.issued[0][0]
    return [cycle - first for cycle, _ in bench.checker.issued]


# --- programs of a golden core


@pytest.fixture(scope="module")
def tiny_model() -> Iterator[Model]:
    with open_sequencer(TINY) as model:
        yield model


def set_golden_state(bench: VerilatedSequencer, core: TracingCore, rng: np.random.Generator
                     ) -> None:
    """Gives the sequencer the golden core's state, with small numbers in stable registers."""
    core.scalars[STABLE.start:STABLE.stop] = rng.integers(0, 8, len(STABLE))
    bench.write_all({(space, address): int(word) for space, words in golden_spaces(core)
                     for address, word in enumerate(words)})


def golden_spaces(core: TracingCore) -> tuple[tuple[Space, np.ndarray], ...]:
    return ((Space.SCALAR, core.scalars), (Space.SMEM, core.smem),
            (Space.SEMAPHORE, core.semaphores))


@pytest.mark.parametrize("timing", TIMINGS)
def test_issues_and_state_are_those_of_the_golden_core(tiny_model: Model, timing: str) -> None:
    """Each issue is compared, with all its operands, for all slots, branches and faults."""
    compare_with_golden(tiny_model, TINY, timing)


STAGED_OPERATIONS = (
    ("v0", VectorOp.ADD, SIMPLE_LATENCY), ("v0", VectorOp.FADD, FLOAT_LATENCY),
    ("v1", VectorOp.ADD, SIMPLE_LATENCY + V1_DELAY),
    ("v1", VectorOp.FADD, FLOAT_LATENCY + V1_DELAY),
    ("v1", VectorOp.TANH, TRANSCENDENTAL_LATENCY + V1_DELAY),
    ("v1", VectorOp.RANDOM, TRANSCENDENTAL_LATENCY + V1_DELAY + 2))
"""For ``issue_cycles`` = 3: an operation of each unit and slot, and its latency in cycles."""

STAGED_DISTANCES = (
    (3, 0, bundle(s0=s(ScalarOp.ADD, 1, 1, i(1)))),
    (3, bundle(s0=s(ScalarOp.ADD, 1, 1, i(1))), bundle(s1=s(ScalarOp.ADD, 2, 1, i(1)))),
    # Scalar registers that are written one cycle after the issue.
    (4, bundle(s0=s(ScalarOp.LOAD, 2, 0, i(3))), 0),
    (4, bundle(misc=s(MiscOp.READ_SEMAPHORE, 2, 1)), bundle(s1=s(ScalarOp.ADD, 3, 2, i(1)))),
    # The examination learns of a write one cycle before the issue; v1 is two cycles behind v0.
    *((1 + latency, bundle(**{slot: v(op, 1, 2)}), bundle(v0=v(VectorOp.ADD, 5, 1)))
      for slot, op, latency in STAGED_OPERATIONS),
    (1 + LOAD_LATENCY, bundle(ld=s(LoadOp.LOAD, 1)), bundle(v0=v(VectorOp.ADD, 5, 1))),
    # Results of both slots share a write port.
    (3, bundle(v1=v(VectorOp.ADD, 1, 2)), bundle(v0=v(VectorOp.ADD, 5, 6))),
    (4, bundle(v1=v(VectorOp.FADD, 1, 2)), bundle(v0=v(VectorOp.ADD, 5, 6))),
    (3, bundle(v1=v(VectorOp.TANH, 1, 2)), bundle(v1=v(VectorOp.FADD, 5, 6))),
    (4, bundle(v1=v(VectorOp.TANH, 1, 2)), bundle(v1=v(VectorOp.ADD, 5, 6))),
    # A random number uses its unit for six cycles.
    (6, bundle(v1=v(VectorOp.RANDOM, 1, 2)), bundle(v1=v(VectorOp.RANDOM, 5, 6))),
)
"""For ``issue_cycles`` = 3: the cycles between the issues of two bundles, and the two bundles."""


@pytest.fixture(scope="module")
def staged_model() -> Iterator[Model]:
    with open_sequencer(STAGED) as model:
        yield model


@pytest.mark.parametrize("timing", TIMINGS)
def test_issues_in_three_stages_are_those_of_the_golden_core(staged_model: Model,
                                                             timing: str) -> None:
    compare_with_golden(staged_model, STAGED, timing)


@pytest.mark.parametrize(("distance", "first", "second"), STAGED_DISTANCES)
def test_in_three_stages_bundles_issue_at_the_least_distance(staged_model: Model, distance: int,
                                                             first: int, second: int) -> None:
    found = issue_cycles(staged_model, 0, first, second, config=STAGED)
    assert found == [0, 3, 3 + distance, 6 + distance]


def test_in_three_stages_an_operation_waits_a_cycle_if_two_results_would_meet(
        staged_model: Model) -> None:
    """Results of both slots share a write port. A random number also waits for its unit."""
    waited = 0
    for (slot, op, latency), (later_slot, later_op, later_latency), between in itertools.product(
            STAGED_OPERATIONS, STAGED_OPERATIONS, range(3)):
        distance = 3 * (1 + between)
        if op == later_op == VectorOp.RANDOM:
            distance = max(distance, 6)
        meets = distance + later_latency == latency
        waited += meets
        code, later = bundle(**{slot: v(op, 1, 2)}), bundle(**{later_slot: v(later_op, 5, 6)})
        found = issue_cycles(staged_model, 0, code, *[0] * between, later, config=STAGED)
        assert found[2 + between] - found[1] == distance + meets, (op, later_op, between)
    assert waited == 3


def compare_with_golden(model: Model, config: Config, timing: str) -> None:
    rng = np.random.default_rng(len(timing))
    core = TracingCore(config)
    for words, high in ((core.scalars[1:], 1 << 32), (core.smem, 1 << 32),
                        (core.semaphores, 1 << 16)):
        words[:] = rng.integers(0, high, words.shape, dtype=np.uint32)
    generator = Generator(core, rng)
    bench = VerilatedSequencer(model, config, TIMINGS[timing], seed=3)
    issues = 0
    for number in range(4):
        set_golden_state(bench, core, rng)
        core.trace = []
        program = generator.program(60, fault=number % 2 > 0)
        bench.load([*program.bundles, *[0] * (config.imem_bundles - len(program.bundles))])
        bench.checker.expect(core.trace)
        issues += len(core.trace)
        bench.run(limit=1000 + 100 * len(core.trace))
        assert (bench.peek("pc"), bench.peek("fault")) == (core.pc, core.fault)
        for space, words in golden_spaces(core):
            for address, word in enumerate(words):
                got = bench.read(space, address)
                assert got == word, f"{space.name} {address} is {got:#x}, not {word:#x}"
    assert bench.checker.checked == issues > 100


PUSH_ROWS = {"op": PushOp.ROWS, "a": 1}
WRITE_V1 = bundle(v0=v(VectorOp.LANE, 1))


@pytest.mark.parametrize(("codes", "timing", "message"), [
    ([WRITE_V1, bundle(v1=v(VectorOp.MOVE, 2, b=VECTOR_FLAG + 1))], UnitTiming(),
     r"issues before \[\('v', 1\)\] are written"),
    ([WRITE_V1, bundle(ld=s(LoadOp.LOAD, 1))], UnitTiming(),
     r"issues before \[\('v', 1\)\] are written"),
    ([bundle(push=PUSH_ROWS), 0, WRITE_V1], UnitTiming(free=0.0, slow=30),
     r"overwrites \[\('v', 1\)\] before the read"),
    ([bundle(push=PUSH_ROWS, v0=v(VectorOp.LANE, 1))], UnitTiming(free=0.0),
     "x reads v1 too late"),
    ([bundle(push=PUSH_ROWS)], UnitTiming(ready=0.0), "x is not ready"),
    ([bundle(misc=s(MiscOp.SUM_LANES, 2, 1))], UnitTiming(ready=0.0),
     "although the unit is not ready"),
    ([bundle(pop={"op": PopOp.POP, "d": 1})], UnitTiming(ready=0.0), "although none is ready"),
    ([bundle(ld=s(LoadOp.LOAD, 1))], UnitTiming(urgent=1.0), "a ld issues although the host"),
    ([bundle(st=s(StoreOp.STORE, 1))], UnitTiming(urgent=1.0), "a st issues although the host"),
])
def test_the_units_find_a_bundle_that_issues_too_early(
        codes: list[int], timing: UnitTiming, message: str) -> None:
    units = SequencerUnits(timing, np.random.default_rng(2))
    last = len(codes) - 1
    for cycle, code in enumerate(codes):
        units.inputs(cycle)
        if cycle < last:
            units.issue(cycle, Parts.of(code))
            units.finish(cycle)
    with pytest.raises(AssertionError, match=message):
        units.issue(last, Parts.of(codes[last]))


# --- scalar operations

CORNERS = (0, 1, 2, 30, 31, 32, 33, 63, 64, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0x8000_0001,
           0xFFFF_FFDF, 0xFFFF_FFFF)


def test_scalar_operations_give_what_the_oracle_says() -> None:
    rng = np.random.default_rng(1)
    pairs = [*itertools.product(CORNERS, CORNERS),
             *((int(a), int(b)) for a, b in rng.integers(0, 1 << 32, (300, 2))),
             *((int(a), int(b)) for a, b in zip(rng.integers(0, 1 << 32, 100),
                                                rng.integers(0, 40, 100), strict=True))]
    alu = ScalarAlu()
    assert set(SCALAR) == {entry.op for entry in OPERATIONS if entry.unit == Unit.SCALAR}

    async def process(ctx: SimulatorContext) -> None:
        for op, compute in SCALAR.items():
            ctx.set(alu.op, op.value)
            for a, b in pairs:
                ctx.set(alu.a, a)
                ctx.set(alu.b, b)
                assert ctx.get(alu.result) == int(compute(a, b)) & WORD, (op, hex(a), hex(b))

    simulator = fast_simulator(alu)
    simulator.add_testbench(process)
    simulator.run()


def run_with_signals(bench: VerilatedSequencer, oracle: Oracle, program: list[int]) -> list[int]:
    """Runs a program on sequencer and oracle; signals each semaphore that it waits for."""
    executed = oracle.run(program, WAIT_LIMIT)
    assert len(executed) < WAIT_LIMIT
    before = len(bench.checker.issued)
    bench.start()
    for _ in range(WAIT_LIMIT):
        if bench.peek("waiting_semaphore"):
            assert not oracle.halted
            assert oracle.fault == Fault.NONE
            parts = Parts.of(program[oracle.pc])
            index = parts.fields[Slot.MISC]["d"]
            bench.poke("signal__index", index)
            bench.poke("signal__amount", 5)
            bench.poke("signal__valid", 1)
            bench.cycle()
            bench.poke("signal__valid", 0)
            oracle.semaphores[index] += 5
            executed += oracle.run(program, WAIT_LIMIT)
        elif bench.peek("running"):
            bench.cycle()
        else:
            break
    bench.finish()
    assert oracle.halted or oracle.fault != Fault.NONE
    assert [pc for _, pc in bench.checker.issued[before:]] == executed
    return executed


@pytest.mark.parametrize("seed", range(20))
def test_random_scalar_programs_end_in_the_oracle_s_state(model: Model, seed: int) -> None:
    programs = SequencerPrograms(np.random.default_rng([2, seed]))
    program = programs.scalar_program(45)
    oracle = random_oracle(programs)
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    executed = run_with_signals(bench, oracle, program)
    assert len(executed) > 1
    bench.check_state(oracle)


@pytest.mark.parametrize("seed", range(40))
def test_random_scalar_programs_do_the_same_on_the_golden_core(seed: int) -> None:
    programs = SequencerPrograms(np.random.default_rng([3, seed]))
    program = programs.scalar_program(45)
    oracle = random_oracle(programs)
    oracle.semaphores = [1000] * 16  # no wait
    golden = GoldenCore(CONFIG)
    golden.load_program(program)
    golden.scalars[:] = oracle.scalars
    golden.smem[:] = oracle.smem
    golden.semaphores[:] = oracle.semaphores
    golden.start(0)
    executed = oracle.run(program, WAIT_LIMIT)
    assert golden.run(WAIT_LIMIT) == len(executed)
    assert golden.scalars.tolist() == oracle.scalars
    assert golden.smem.tolist() == oracle.smem
    assert golden.semaphores.tolist() == oracle.semaphores
    assert (golden.pc, golden.fault) == (oracle.pc, oracle.fault)


def test_calls_return_and_loops_count(model: Model) -> None:
    program = [
        bundle(s0=s(ScalarOp.ADD, 1, 0, i(5))),
        bundle((7,), s0=s(ScalarOp.ADD, 2, 2, i(1)), s1=s(ScalarOp.CALL, 9, b=32)),
        bundle(s1=s(ScalarOp.LOOP, 1, b=i(1))),
        bundle((3, 0, WORD), s0=s(ScalarOp.EQ, 6, 3, i(0)), s1=s(ScalarOp.LOOP, 0, b=i(5))),
        HALT,
        HALT,
        HALT,
        bundle(s0=s(ScalarOp.ADD, 3, 3, 2), s1=s(ScalarOp.JUMP, b=9)),
    ]
    bench = VerilatedSequencer(model)
    bench.load(program)
    oracle = Oracle(CONFIG)
    bench.set_state(oracle)
    executed = bench.run()
    assert executed == [0, *[1, 7, 2] * 5, 3, 5]
    assert oracle.run(program, 100) == executed
    assert oracle.scalars[1:4] == [0, 5, 15]
    bench.check_state(oracle)
    # In successive cycles: neither calls nor returns nor loops cost a cycle.
    cycles = [cycle for cycle, _ in bench.checker.issued]
    assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))


def test_a_start_costs_one_cycle_for_the_first_bundle(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([HALT])
    begin = model.cycle
    bench.run()
    assert bench.checker.issued == [(begin + 2, 0)]
    assert bench.checker.waits == {"vector": 0, "memory": 0, "semaphore": 0, "instruction": 1}


def test_a_scalar_load_sees_the_store_before_and_makes_its_reader_wait_a_cycle(
        model: Model) -> None:
    store = bundle((1234,), s0=s(ScalarOp.STORE, 1, 0, i(3)))
    load = bundle(s0=s(ScalarOp.LOAD, 2, 0, i(3)))
    use = bundle(s1=s(ScalarOp.ADD, 3, 2, i(1)))
    other = bundle(s1=s(ScalarOp.ADD, 4, 1, i(1)))
    again = bundle(s0=s(ScalarOp.ADD, 2, 0, i(1)))
    nothing = bundle(s0=s(ScalarOp.LOAD, 0, 0, i(3)))
    assert issue_cycles(model, store, load, use) == [0, 1, 3, 4]
    assert issue_cycles(model, store, load, other, use) == [0, 1, 2, 3, 4]
    # The load must not overwrite what a later bundle wrote.
    assert issue_cycles(model, load, again, use) == [0, 2, 3, 4]
    assert issue_cycles(model, nothing, bundle(s0=s(ScalarOp.ADD, 1, 0, 0))) == [0, 1, 2]
    bench = VerilatedSequencer(model)
    bench.load([bundle((1234,), s0=s(ScalarOp.ADD, 1, 0, 32)), store, load, use,
                bundle(s0=s(ScalarOp.LOAD, 5, 0, i(3)), s1=s(ScalarOp.HALT))])
    oracle = random_oracle(SequencerPrograms(np.random.default_rng(4)))
    bench.set_state(oracle)
    bench.run()
    # Also the load of the last bundle arrives.
    assert [bench.read(Space.SCALAR, n) for n in (0, 2, 3, 5)] == [0, 1234, 1235, 1234]


# --- order and hazards

@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(4))
def test_every_register_is_read_and_written_in_the_order_of_the_bundles(model: Model, timing: str,
                                                                        seed: int) -> None:
    rng = np.random.default_rng([5, seed])
    for use in (0.2, 0.5):
        program = SequencerPrograms(rng).sound_vector_program(CONFIG.imem_bundles - 1, use)
        # Each program assumes an empty array.
        bench = VerilatedSequencer(model, timing=TIMINGS[timing], seed=seed)
        bench.load(program)
        assert bench.run(limit=20_000) == list(range(len(program)))
        assert bench.checker.units.checked > 20
        assert bench.peek("pc") == len(program) - 1
        assert bench.peek("fault") == Fault.NONE


VECTOR_ADD = bundle(v0=v(VectorOp.ADD, 1, 2))
LATENCIES = {
    "simple": (VECTOR_ADD, SIMPLE_LATENCY),
    "float": (bundle(v1=v(VectorOp.FMUL, 1, 2)), FLOAT_LATENCY),
    "transcendental": (bundle(v1=v(VectorOp.TANH, 1, 2)), TRANSCENDENTAL_LATENCY),
    "load": (bundle(ld=s(LoadOp.LOAD, 1)), LOAD_LATENCY),
}


@pytest.mark.parametrize("kind", LATENCIES)
def test_a_dependent_bundle_issues_after_the_latency_and_others_at_once(model: Model,
                                                                        kind: str) -> None:
    first, latency = LATENCIES[kind]
    free = bundle(v0=v(VectorOp.LANE, 9))
    for dependent in (bundle(v0=v(VectorOp.ADD, 5, 1)), bundle(v0=v(VectorOp.MOVE, 5, b=64 + 1)),
                      bundle(v0=v(VectorOp.LANE, 1)), bundle(st={"op": 1, "d": 1}),
                      bundle(misc=s(MiscOp.SUM_LANES, 6, 1)), bundle(ld=s(LoadOp.LOAD, 1))):
        assert issue_cycles(model, first, dependent) == [0, latency, latency + 1]
        assert issue_cycles(model, first, 0, dependent) == [0, 1, latency, latency + 1]
    assert issue_cycles(model, first, bundle(ld=s(LoadOp.LOAD, 9)), 0)[:3] == [0, 1, 2]
    if kind != "float":
        assert issue_cycles(model, first, free)[:2] == [0, 1]


def test_a_mask_makes_its_readers_wait(model: Model) -> None:
    compare = bundle(v0=v(VectorOp.EQ, 3, 1))
    select = bundle(v1=v(VectorOp.SELECT, 5, 6, m=3))
    other = bundle(v1=v(VectorOp.SELECT, 5, 6, m=2))
    logic = bundle(v1=v(VectorOp.MAND, 4, 3, b=0))
    store = bundle(st={"op": 1, "d": 9, "m": 3})
    for reader in (select, logic, store):
        assert issue_cycles(model, compare, reader)[:2] == [0, SIMPLE_LATENCY]
    assert issue_cycles(model, compare, other)[:2] == [0, 1]


def test_results_of_one_slot_never_meet_at_its_write_port(model: Model) -> None:
    slow, middle, quick = (bundle(v1=v(op, d, 9)) for op, d in (
        (VectorOp.TANH, 1), (VectorOp.FADD, 2), (VectorOp.ADD, 3)))
    quick_0 = bundle(v0=v(VectorOp.ADD, 4, 9))
    assert issue_cycles(model, middle, quick)[:2] == [0, 2]
    assert issue_cycles(model, middle, quick_0)[:2] == [0, 1]
    assert issue_cycles(model, quick, middle)[:2] == [0, 1]
    assert issue_cycles(model, slow, 0, middle)[:3] == [0, 1, 3]
    assert issue_cycles(model, slow, 0, 0, quick)[:4] == [0, 1, 2, 4]
    assert issue_cycles(model, slow, middle, 0, quick)[:4] == [0, 1, 2, 4]


def ready_units(bench: VerilatedSequencer, **values: int) -> None:
    """Makes all units ready and idle, except for the given ports."""
    fixed = {f"{unit}_{port}": 1 for unit in ("x", "w", "pop", "xlu") for port in ("ready", "free")}
    fixed = {name: value for name, value in fixed.items() if name != "pop_free"} | values
    inputs = bench.checker.units.inputs

    def given(cycle: int) -> dict[str, int]:
        found = inputs(cycle) | fixed
        bench.checker.units.show(found)
        return found

    bench.checker.units.inputs = given  # type: ignore[method-assign]


ARRAY = [*(bundle(push={"op": PushOp.WEIGHTS, "a": 20}),) * CONFIG.tile_vregs,
         bundle(push={"op": PushOp.ROWS_SWAP, "a": 21})]
"""Bundles after which rows can be pushed, and results can be popped."""


@pytest.mark.parametrize(("code", "port"), [
    (bundle(push={"op": PushOp.ROWS, "a": 1}), "x_ready"),
    (bundle(push={"op": PushOp.WEIGHTS, "a": 1}), "w_ready"),
    (bundle(pop={"op": PopOp.POP, "d": 1}), "pop_ready"),
    (bundle(misc=s(MiscOp.SUM_LANES, 2, 1)), "xlu_ready"),
    (bundle(push={"op": PushOp.ROWS, "a": 1}, v0=v(VectorOp.LANE, 1)), "x_free"),
    (bundle(push={"op": PushOp.ROWS, "a": 1}, misc=s(MiscOp.TRANSPOSE_OUT, 1, b=i(0))), "x_free"),
    (bundle(push={"op": PushOp.WEIGHTS_T, "a": 1}, ld=s(LoadOp.LOAD, 1)), "w_free"),
    (bundle(push={"op": PushOp.WEIGHTS_T, "a": 1}, pop={"op": PopOp.POP, "d": 1}), "w_free"),
    (bundle(misc=s(MiscOp.SUM_LANES, 2, 1), v1=v(VectorOp.LANE, 1)), "xlu_free"),
])
def test_a_bundle_waits_for_the_port_of_the_unit_that_it_needs_and_no_other(model: Model, code: int,
                                                                            port: str) -> None:
    bench = VerilatedSequencer(model)
    bench.load([*ARRAY, code, HALT])
    ready_units(bench)
    bench.start()
    for _ in range(len(ARRAY) + 1):
        bench.cycle()
    ready_units(bench, **{port: 0})
    for _ in range(20):
        bench.cycle()
        assert bench.peek("running")
    assert bench.checker.issued[-1][1] == len(ARRAY) - 1
    assert bench.checker.waits["vector"] == 20
    others = {name: 0 for name in ("x_ready", "w_ready", "pop_ready", "xlu_ready", "x_free",
                                   "w_free", "xlu_free")
              if name != port and not (name == "pop_ready" and Slot.POP in Parts.of(
                  code).operations)
              and not (name == "xlu_ready" and Slot.MISC in Parts.of(code).operations)}
    needed = {port.replace("free", "ready"): 1, port: 1}
    ready_units(bench, **others | needed)
    bench.cycle()
    assert bench.checker.issued[-1][1] == len(ARRAY)


LOAD, STORE = bundle(ld=s(LoadOp.LOAD, 1)), bundle(st={"op": 1, "d": 2})


@pytest.mark.parametrize(("code", "port"), [
    (LOAD, "read"), (STORE, "write"), (bundle(ld=s(LoadOp.LOAD, 1), st={"op": 1, "d": 2}), "read")])
def test_a_bundle_leaves_the_host_the_port_of_memory_that_is_urgent(model: Model, code: int,
                                                                    port: str) -> None:
    bench = VerilatedSequencer(model)
    bench.load([VECTOR_ADD, code, HALT])
    ready_units(bench, **{f"urgent_{port}": 1})
    bench.start()
    for _ in range(10):
        bench.cycle()
    # An operation that needs no memory is not held up.
    assert [pc for _, pc in bench.checker.issued] == [0]
    assert (bench.checker.waits["memory"], bench.checker.waits["vector"]) == (8, 0)
    other = {"read": "write", "write": "read"}[port]
    ready_units(bench, **{f"urgent_{port}": 0,
                          f"urgent_{other}": int(code in (LOAD, STORE))})
    bench.cycle()
    assert [pc for _, pc in bench.checker.issued] == [0, 1]


def test_an_operation_may_overwrite_its_own_source_in_the_cross_lane_unit(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([bundle(misc=s(MiscOp.SUM_LANES, 1, 1)), HALT])
    ready_units(bench, xlu_free=0)
    assert bench.run() == [0, 1]


@pytest.mark.parametrize("reader", ["x", "w", "xlu"])
def test_a_register_that_is_still_to_be_read_is_not_written(model: Model, reader: str) -> None:
    for code in (bundle(v0=v(VectorOp.LANE, 7)), bundle(ld=s(LoadOp.LOAD, 7)),
                 bundle(misc=s(MiscOp.TRANSPOSE_OUT, 7, b=i(0)))):
        bench = VerilatedSequencer(model)
        bench.load([bundle(v0=v(VectorOp.ADD, 8, 7)), code, HALT])
        ready_units(bench, **{f"{reader}_pending__valid": 1, f"{reader}_pending__d": 7})
        bench.start()
        for _ in range(20):
            bench.cycle()
        assert [pc for _, pc in bench.checker.issued] == [0]
        ready_units(bench, **{f"{reader}_pending__valid": 1, f"{reader}_pending__d": 6})
        bench.cycle()
        assert [pc for _, pc in bench.checker.issued] == [0, 1]


def test_what_a_cycle_waits_for(model: Model) -> None:
    def waits(*bundles: int, timing: UnitTiming | None = None) -> dict[str, int]:
        bench = VerilatedSequencer(model, timing=timing)
        bench.load([*bundles, HALT])
        bench.run()
        return {wait: count for wait, count in bench.checker.waits.items() if wait != "instruction"}

    reader = bundle(v1=v(VectorOp.ADD, 5, 1))
    assert waits(VECTOR_ADD, reader) == {"vector": 2, "memory": 0, "semaphore": 0}
    assert waits(bundle(ld=s(LoadOp.LOAD, 1)), reader) == {
        "vector": 0, "memory": 2, "semaphore": 0}
    assert waits(bundle(s0=s(ScalarOp.LOAD, 1)), bundle(s0=s(ScalarOp.ADD, 2, 1))) == {
        "vector": 0, "memory": 1, "semaphore": 0}


# --- faults

def expect_fault(model: Model, fault: Fault, code: int, before: tuple[int, ...] = (),
                 seed: int = 0) -> None:
    """Checks that the bundle after ``before`` has this fault and changes nothing."""
    programs = SequencerPrograms(np.random.default_rng([6, seed]))
    oracle = random_oracle(programs)
    oracle.scalars[1:4] = [WORD, 1 << 31, 100]
    oracle.semaphores[5] = WORD
    bench = VerilatedSequencer(model)
    program = [*before, code, HALT]
    bench.load(program)
    bench.set_state(oracle)
    executed = bench.run()
    assert oracle.run(program, 100) == executed == list(range(len(before)))
    assert oracle.fault == fault
    assert oracle.pc == len(before)
    bench.check_state(oracle)


EFFECT = {"v0": v(VectorOp.LANE, 30), "st": {"op": 1, "d": 31},
          "s1": s(ScalarOp.ADD, 31, 0, i(7))}
"""Legal operations in a bundle with a fault, which must not be executed either."""
FULL = (*ARRAY, *(bundle(push={"op": PushOp.ROWS, "a": 1}),) * (CONFIG.result_vregs - 1))


@pytest.mark.parametrize(("fault", "slots", "before"), [
    (Fault.ILLEGAL, {"s0": {"op": 63}}, ()),
    (Fault.ILLEGAL, {"s0": s(ScalarOp.HALT)}, ()),
    (Fault.ILLEGAL, {"s1": s(ScalarOp.LOAD)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.TANH, 1)}, ()),
    (Fault.ILLEGAL, {"ld": {"op": 3}}, ()),
    (Fault.ILLEGAL, {"push": {"op": 5}}, ()),
    (Fault.ILLEGAL, {"misc": {"op": 9}}, ()),
    *((Fault.ILLEGAL, {"s0": s(ScalarOp.ADD, 1, 2, code)}, ()) for code in range(35, 40)),
    (Fault.ILLEGAL, {"v1": v(VectorOp.ADD, 1, 2, 39)}, ()),
    (Fault.ILLEGAL, {"v1": v(VectorOp.ADD, 1, 2, VECTOR_FLAG + 32)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.EQ, 0, 2)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.EQ, 8, 2)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.MAND, 1, 8, 0)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.MAND, 1, 0, 8)}, ()),
    (Fault.ILLEGAL, {"v0": v(VectorOp.MAND, 1, 0, VECTOR_FLAG)}, ()),
    (Fault.ILLEGAL, {"misc": s(MiscOp.WAIT, 16, 0, i(0))}, ()),
    (Fault.ILLEGAL, {"misc": s(MiscOp.READ_SEMAPHORE, 1, 16)}, ()),
    (Fault.ILLEGAL, {"s1": s(ScalarOp.BEQ, 3, 0, i(1))}, ()),
    (Fault.CONFLICT, {"s0": s(ScalarOp.ADD, 31)}, ()),
    (Fault.CONFLICT, {"s1": s(ScalarOp.CALL, 6, b=i(1)), "s0": s(ScalarOp.LOAD, 6)}, ()),
    (Fault.CONFLICT, {"s1": s(ScalarOp.LOOP, 6, b=i(1)),
                      "misc": s(MiscOp.READ_SEMAPHORE, 6)}, ()),
    (Fault.CONFLICT, {"v1": v(VectorOp.TANH, 30, 1)}, ()),
    (Fault.CONFLICT, {"ld": s(LoadOp.LOAD, 30)}, ()),
    (Fault.CONFLICT, {"pop": {"op": 1, "d": 30}}, (*ARRAY,)),
    (Fault.CONFLICT, {"misc": s(MiscOp.SUM_LANES, 30, 1)}, ()),
    (Fault.CONFLICT, {"pop": {"op": 1, "d": 2}, "ld": s(LoadOp.LOAD, 2)}, (*ARRAY,)),
    (Fault.CONFLICT, {"v0": v(VectorOp.EQ, 7, 1), "v1": v(VectorOp.MOR, 7, 1, 2)}, ()),
    (Fault.SMEM_RANGE, {"s0": s(ScalarOp.LOAD, 6, 0, i(13))}, ()),
    (Fault.SMEM_RANGE, {"s0": s(ScalarOp.STORE, 6, 0, i(-1))}, ()),
    (Fault.SMEM_RANGE, {"s0": s(ScalarOp.LOAD, 6, 2, i(0))}, ()),
    (Fault.VMEM_RANGE, {"ld": s(LoadOp.LOAD, 6, 0, i(11))}, ()),
    (Fault.VMEM_RANGE, {"ld": s(LoadOp.LOAD, 6, 3, i(0))}, ()),
    (Fault.VMEM_RANGE, {"st": {"op": 1, "d": 6, "a": 1, "b": i(0)}}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.ROTATE_LANES, 6, 7, i(4))}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.BROADCAST_LANE, 6, 7, i(-1))}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.ROTATE_SUBLANES, 6, 7, i(2))}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.BROADCAST_SUBLANE, 6, 7, i(2))}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.TRANSPOSE_IN, 6, 7, i(2))}, ()),
    (Fault.INDEX_RANGE, {"misc": s(MiscOp.TRANSPOSE_OUT, 6, 7, 2)}, ()),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.ROWS}}, ()),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.ROWS_SWAP}}, ()),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.ROWS}}, ARRAY[:2]),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.WEIGHTS}}, ARRAY[:2]),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.WEIGHTS_T}}, ARRAY[:1]),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.ROWS_SWAP}}, (*ARRAY, ARRAY[0])),
    (Fault.WEIGHT_LOAD, {"push": {"op": PushOp.ROWS_SWAP}}, FULL),
    (Fault.FIFO_OVERFLOW, {"push": {"op": PushOp.ROWS}}, FULL),
    (Fault.FIFO_OVERFLOW, {"push": {"op": PushOp.ROWS}, "pop": {"op": PopOp.POP}}, FULL),
    (Fault.FIFO_UNDERFLOW, {"pop": {"op": PopOp.POP}}, ()),
    (Fault.FIFO_UNDERFLOW, {"pop": {"op": PopOp.POP}, "push": {"op": PushOp.ROWS}},
     (*ARRAY, bundle(pop={"op": PopOp.POP, "d": 1}))),
    (Fault.SEMAPHORE, {"misc": s(MiscOp.SIGNAL, 5, 0, i(1))}, ()),
    (Fault.SEMAPHORE, {"misc": s(MiscOp.SIGNAL, 5, 0, 1)}, ()),
])
def test_a_faulting_bundle_changes_nothing(model: Model, fault: Fault, slots: dict[str, Any],
                                           before: Sequence[int]) -> None:
    expect_fault(model, fault, bundle(**EFFECT | slots), tuple(before))


def test_reserved_bits_are_illegal_one_by_one(model: Model) -> None:
    reserved = BUNDLE_BITS - 96 - sum(sum(fields.values()) for fields in SLOTS.values())
    for bit in range(BUNDLE_BITS - 96 - reserved, BUNDLE_BITS - 96):
        expect_fault(model, Fault.ILLEGAL, bundle(**EFFECT) | 1 << bit)


def test_the_least_fault_counts(model: Model) -> None:
    faulty: dict[Fault, dict[str, dict[str, int]]] = {
        Fault.ILLEGAL: {"v1": v(VectorOp.ADD, 1, 2, 39)},
        Fault.CONFLICT: {"v0": v(VectorOp.LANE, 9), "ld": s(LoadOp.LOAD, 9, 1)},
        Fault.SMEM_RANGE: {"s0": s(ScalarOp.LOAD, 6, 0, i(14))},
        Fault.VMEM_RANGE: {"ld": s(LoadOp.LOAD, 9, 1), "st": {"op": 1, "a": 2}},
        Fault.INDEX_RANGE: {"misc": s(MiscOp.ROTATE_LANES, 6, 7, i(4))},
        Fault.WEIGHT_LOAD: {"push": {"op": PushOp.ROWS_SWAP}},
        Fault.FIFO_UNDERFLOW: {"pop": {"op": PopOp.POP, "d": 2}},
    }
    for number, fault in enumerate(faulty):
        slots: dict[str, dict[str, int]] = {}
        for later in reversed(list(faulty)[number:]):
            slots |= faulty[later]
        expect_fault(model, fault, bundle(**slots))
    beyond = s(MiscOp.SIGNAL, 5, 0, i(1))
    for fault, before, code in (
            (Fault.WEIGHT_LOAD, FULL, bundle(push={"op": PushOp.ROWS_SWAP}, misc=beyond)),
            (Fault.FIFO_OVERFLOW, FULL, bundle(push={"op": PushOp.ROWS}, misc=beyond)),
            (Fault.FIFO_UNDERFLOW, (), bundle(pop={"op": PopOp.POP, "d": 2}, misc=beyond))):
        expect_fault(model, fault, code, before)


def test_unused_fields_are_ignored(model: Model) -> None:
    """Fields that an operation does not use may hold any bits."""
    rng = np.random.default_rng(7)
    programs = SequencerPrograms(rng)
    for slot in SLOTS:
        codes = programs.codes(slot)
        program = []
        for code in [0, *codes][:CONFIG.imem_bundles - 1]:
            fields = programs.fields(slot, code) if code else {
                name: int(rng.integers(1 << width)) for name, width in SLOTS[slot].items()}
            program.append(pack({slot: fields | {"op": code}}))
        for code in program:
            assert not Parts.of(code).illegal
        bench = VerilatedSequencer(model)
        for code in program:
            bench.load([code, *[HALT] * 15])
            bench.start()
            for _ in range(4):
                bench.cycle()
            assert bench.peek("fault") not in (Fault.ILLEGAL, Fault.CONFLICT), unpack(code)
            bench.poke("stop", 1)
            bench.cycle()
            bench.poke("stop", 0)


@pytest.mark.slow
def test_random_bundles_have_the_faults_that_they_have(model: Model) -> None:
    rng = np.random.default_rng(8)
    programs = SequencerPrograms(rng)
    found = dict.fromkeys(Fault, 0)
    for case in range(400):
        oracle = random_oracle(programs)
        oracle.semaphores[0:8] = [WORD - int(n) for n in rng.integers(0, 6, 8)]
        before = [ARRAY[:n] for n in range(len(ARRAY) + 1)] + [list(FULL)]
        program = list(before[rng.integers(len(before))])
        for _ in range(2):
            fields = {slot: programs.fields(slot, int(rng.choice(programs.codes(slot))))
                      for slot in SLOTS if rng.random() < rng.choice([0.3, 0.9])}
            for own in fields.values():
                if "b" in own and rng.random() < 0.7:  # addresses and indices within range
                    own |= {"a": 0, "b": i(int(rng.integers(0, 3)))}
                if rng.random() < 0.03:
                    own[str(rng.choice(list(own)))] = 3
            if Slot.MISC in fields and rng.random() < 0.5:
                fields[Slot.MISC] = s(MiscOp.SIGNAL, int(rng.integers(8)), 0, i(3))
            for slot, widths in SLOTS.items():
                if slot in fields:
                    fields[slot] = {name: value % (1 << widths[name])
                                    for name, value in fields[slot].items()}
            program.append(pack(fields, tuple(programs.word() for _ in range(3))))
        program += [HALT] * (CONFIG.imem_bundles - len(program))
        trial = Oracle(CONFIG, list(oracle.scalars), list(oracle.smem), list(oracle.semaphores))
        executed = trial.run(program, 200)
        if len(executed) == 200 or not (trial.halted or trial.fault):
            continue  # an endless loop, or a wait
        bench = VerilatedSequencer(model, timing=TIMINGS["mixed"], seed=case)
        bench.load(program)
        bench.set_state(oracle)
        assert bench.run() == executed, case
        bench.check_state(trial)
        found[trial.fault] += 1
    for fault in list(Fault)[:Fault.SEMAPHORE + 1]:
        assert found[fault] >= 3, found


def test_a_fault_waits_until_its_operands_are_final(model: Model) -> None:
    """The address register awaits a load; its old value would be an illegal address."""
    oracle = Oracle(CONFIG)
    oracle.scalars[6] = WORD
    oracle.smem[3] = 4
    program = [bundle(s0=s(ScalarOp.LOAD, 6, 0, i(3))), bundle(s0=s(ScalarOp.LOAD, 7, 6, i(0))),
               HALT]
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == [0, 1, 2] == oracle.run(program, 10)
    bench.check_state(oracle)


@pytest.mark.parametrize("target", [CONFIG.imem_bundles, 63, 64, 1 << 16, WORD])
def test_a_program_counter_out_of_range_is_reported_as_it_is(model: Model, target: int) -> None:
    oracle = random_oracle(SequencerPrograms(np.random.default_rng(9)))
    program = [bundle((target,), s0=s(ScalarOp.ADD, 1, 0, i(3)), s1=s(ScalarOp.CALL, 2, b=32)),
               HALT]
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == [0] == oracle.run(program, 10)
    assert (oracle.fault, oracle.pc) == (Fault.PC_RANGE, target)
    bench.check_state(oracle)
    assert bench.run(target) == []
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.PC_RANGE, target)


def test_falling_off_the_end_is_out_of_range(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([0], CONFIG.imem_bundles - 1)
    assert bench.run(CONFIG.imem_bundles - 1) == [CONFIG.imem_bundles - 1]
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.PC_RANGE, CONFIG.imem_bundles)


def test_a_start_clears_the_fault(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([pack({Slot.S0: {"op": 63}}), HALT])
    assert bench.run() == []
    assert bench.peek("fault") == Fault.ILLEGAL
    assert bench.run(1) == [1]
    assert bench.peek("fault") == Fault.NONE


def test_the_halting_bundle_is_executed_whole(model: Model) -> None:
    bench = VerilatedSequencer(model)
    oracle = Oracle(CONFIG)
    program = [0, bundle(s0=s(ScalarOp.ADD, 4, 0, i(9)), s1=s(ScalarOp.HALT),
                         v0=v(VectorOp.LANE, 3), misc=s(MiscOp.SIGNAL, 2, 0, i(5)))]
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == [0, 1] == oracle.run(program, 10)
    assert bench.checker.units.vectors[3]
    bench.check_state(oracle)
    assert oracle.pc == 1


# --- semaphores

def signal(bench: VerilatedSequencer, index: int, amount: int) -> None:
    bench.poke("signal__valid", 1)
    bench.poke("signal__index", index)
    bench.poke("signal__amount", amount)
    bench.cycle()
    bench.poke("signal__valid", 0)


def test_a_wait_holds_its_whole_bundle_until_the_semaphore_is_high_enough(model: Model) -> None:
    bench = VerilatedSequencer(model)
    program = [bundle(misc=s(MiscOp.WAIT, 3, 0, i(5)), s0=s(ScalarOp.ADD, 1, 1, i(1)),
                      v0=v(VectorOp.LANE, 3)), HALT]
    bench.load(program)
    bench.write(Space.SCALAR, 1, 0)
    bench.start()
    for total in range(1, 5):
        signal(bench, 3, 1)
        signal(bench, 2, 9)
        for _ in range(5):
            bench.cycle()
        assert bench.checker.issued == [], total
    bench.checker.waits["semaphore"] = 0
    signal(bench, 3, 3)
    begin = model.cycle
    bench.finish()
    assert bench.checker.issued == [(begin, 0), (begin + 1, 1)]
    assert bench.checker.waits["semaphore"] == 1
    assert bench.read(Space.SEMAPHORE, 3) == 2
    assert bench.read(Space.SEMAPHORE, 2) == 36
    assert bench.read(Space.SCALAR, 1) == 1


@pytest.mark.parametrize(("op", "same", "left"), [
    (MiscOp.WAIT, True, 2**32 - 4), (MiscOp.WAIT, False, WORD - 5),
    (MiscOp.SIGNAL, True, 12), (MiscOp.SIGNAL, False, 10)])
def test_a_signal_from_outside_and_the_bundle_s_both_count(model: Model, op: MiscOp, same: bool,
                                                           left: int) -> None:
    """This also holds where the signal would overflow if the bundle did not subtract first."""
    bench = VerilatedSequencer(model)
    bench.load([bundle(misc=s(op, 3, 0, i(5))), HALT])
    bench.write(Space.SEMAPHORE, 3, WORD if op == MiscOp.WAIT else 5)
    bench.start()
    bench.cycle()
    begin = model.cycle
    signal(bench, 3 if same else 4, 2)
    bench.finish()
    assert bench.checker.issued[0] == (begin, 0)
    assert bench.peek("fault") == Fault.NONE
    assert bench.read(Space.SEMAPHORE, 3) == left
    assert bench.read(Space.SEMAPHORE, 4) == (0 if same else 2)


def test_a_signal_from_outside_that_is_too_much_stops_the_core(model: Model) -> None:
    bench = VerilatedSequencer(model)
    program = [bundle(s0=s(ScalarOp.ADD, 1, 1, i(1)), s1=s(ScalarOp.JUMP, b=i(0)))]
    bench.load(program)
    for index in (1, 2):
        bench.write(Space.SEMAPHORE, index, WORD - 5)
    bench.write(Space.SCALAR, 1, 0)
    bench.start()
    for _ in range(7):
        bench.cycle()
    signal(bench, 2, 6)
    assert not bench.peek("running")
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.SEMAPHORE, 0)
    assert bench.read(Space.SEMAPHORE, 2) == WORD - 5
    assert bench.read(Space.SCALAR, 1) == len(bench.checker.issued) == 7
    # Also while nothing runs, and a start clears it.
    bench.start()
    bench.poke("stop", 1)
    bench.cycle()
    bench.poke("stop", 0)
    assert bench.peek("fault") == Fault.NONE
    signal(bench, 2, 5)
    assert bench.peek("fault") == Fault.NONE
    signal(bench, 2, 1)
    assert bench.peek("fault") == Fault.SEMAPHORE
    assert bench.read(Space.SEMAPHORE, 2) == WORD


def test_a_fault_goes_before_a_wait(model: Model) -> None:
    expect_fault(model, Fault.FIFO_UNDERFLOW, bundle(
        misc=s(MiscOp.WAIT, 3, 0, 1), pop={"op": PopOp.POP, "d": 1}))


# --- starting and stopping

@pytest.mark.parametrize("limit", [1, 2, 7, 30])
def test_the_watchdog_stops_a_core_that_issues_nothing_for_so_long(model: Model,
                                                                   limit: int) -> None:
    bench = VerilatedSequencer(model)
    bench.load([0, 0, bundle(misc=s(MiscOp.WAIT, 3, 0, i(5))), HALT])
    bench.poke("watchdog", limit)
    bench.start()
    while bench.peek("running"):
        bench.cycle()
        assert model.cycle < bench.checker.issued[-1][0] + 100 if bench.checker.issued else True
    assert [pc for _, pc in bench.checker.issued] == [0, 1]
    assert model.cycle - 1 - bench.checker.issued[-1][0] == limit + 1
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.WATCHDOG, 2)


def test_the_watchdog_counts_anew_with_every_issue_and_may_be_off(model: Model) -> None:
    slow = bundle(v1=v(VectorOp.TANH, 1, 1))
    bench = VerilatedSequencer(model)
    bench.load([slow] * 5 + [HALT])
    bench.poke("watchdog", TRANSCENDENTAL_LATENCY - 1)
    assert bench.run() == list(range(6))
    assert bench.peek("fault") == Fault.NONE
    bench.poke("watchdog", TRANSCENDENTAL_LATENCY - 2)
    assert bench.run() == [0]
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.WATCHDOG, 1)
    bench.poke("watchdog", 0)
    bench.load([bundle(misc=s(MiscOp.WAIT, 3, 0, i(5))), HALT])
    bench.start()
    for _ in range(300):
        bench.cycle()
    assert bench.peek("running")
    signal(bench, 3, 5)
    bench.finish()
    assert bench.peek("fault") == Fault.NONE


@pytest.mark.parametrize("seed", range(8))
def test_stops_and_starts_at_any_time_change_nothing(model: Model, seed: int) -> None:
    rng = np.random.default_rng([10, seed])
    programs = SequencerPrograms(rng)
    scalar, vector = programs.scalar_program(48), programs.sound_vector_program(48)
    oracle = random_oracle(programs)
    oracle.semaphores = [1000] * 16
    stops = 0
    for program in (scalar, vector):
        bench = VerilatedSequencer(model, timing=TIMINGS["mixed"], seed=seed)
        bench.load(program)
        bench.set_state(oracle)
        oracle.pc, oracle.halted = 0, False
        bench.start()
        for _ in range(20_000):
            stop = int(rng.random() < 0.2)
            bench.poke("stop", stop)
            bench.cycle()
            bench.poke("stop", 0)
            if not bench.peek("running"):
                if bench.checker.program[bench.peek("pc")] == HALT and (
                        bench.checker.issued and bench.checker.issued[-1][1] == bench.peek("pc")):
                    break
                assert stop
                stops += 1
                for _ in range(int(rng.integers(4))):
                    bench.cycle()
                bench.start(bench.peek("pc"))
        bench.finish()
        assert [pc for _, pc in bench.checker.issued] == oracle.run(program, WAIT_LIMIT)
        bench.check_state(oracle)
    assert stops > 3


def test_a_start_is_ignored_while_running_and_a_stop_while_not(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([0] * 10 + [HALT])
    bench.poke("stop", 1)
    bench.cycle()
    bench.start()
    assert bench.peek("running")
    bench.poke("stop", 0)
    bench.cycle()
    bench.start(5)
    bench.finish()
    assert [pc for _, pc in bench.checker.issued] == list(range(11))


def test_a_reset_in_the_midst_forgets_what_is_outstanding(model: Model) -> None:
    rng = np.random.default_rng(11)
    for seed in range(10):
        programs = SequencerPrograms(rng)
        bench = VerilatedSequencer(model, timing=TIMINGS["slow"], seed=seed)
        bench.load(programs.sound_vector_program(40))
        bench.start()
        for _ in range(int(rng.integers(20, 80))):
            bench.cycle()
        # Benches begin with a reset.
        bench = VerilatedSequencer(model)
        assert [bench.peek(name) for name in ("running", "fault", "pc", "busy")] == [0] * 4
        assert [bench.read(Space.SEMAPHORE, n) for n in range(16)] == [0] * 16
        bench.load([bundle(v0=v(VectorOp.ADD, 1, 2)), *ARRAY,
                    bundle(pop={"op": PopOp.POP, "d": 1}), HALT])
        assert bench.run() == list(range(len(ARRAY) + 3))


# --- the host's port

def test_the_host_reads_back_what_it_wrote(model: Model) -> None:
    rng = np.random.default_rng(12)
    bench = VerilatedSequencer(model)
    sizes = {Space.SMEM: 13, Space.SCALAR: 32, Space.SEMAPHORE: 16}
    places = [(space, address) for space, size in sizes.items() for address in range(size)]
    places += [(Space.IMEM, 16 * number + word) for number in (0, 1, 31, 49) for word in range(9)]
    values = {place: int(rng.integers(1 << 32)) for place in places}
    values[Space.SCALAR, 0] = 0
    for space, address in places:
        bench.write(space, address, values[space, address] or 77)
    for index in rng.permutation(len(places)):
        assert bench.read(*places[index]) == values[places[index]], places[index]


def test_addresses_that_do_not_exist_are_errors_and_change_nothing(model: Model) -> None:
    bench = VerilatedSequencer(model)
    oracle = random_oracle(SequencerPrograms(np.random.default_rng(13)))
    bench.set_state(oracle)
    bench.load([HALT] * CONFIG.imem_bundles)
    wrong = [(Space.SMEM, 13), (Space.SMEM, 16), (Space.SMEM, 1 << 19), (Space.SCALAR, 32),
             (Space.SCALAR, 64), (Space.SEMAPHORE, 16), (Space.SEMAPHORE, 1 << 12),
             *((Space.IMEM, word) for word in range(9, 16)), (Space.IMEM, 50 * 16),
             (Space.IMEM, 64 * 16), (Space.IMEM, (1 << 20) - 16)]
    for space, address in wrong:
        for write in (False, True):
            assert bench.request(write, space, address, 0x55AA55AA) == (0, True), (space, address)
    bench.check_state(oracle)
    assert all(bench.read(Space.IMEM, 16 * n + w) == HALT >> 32 * w & WORD
               for n in range(CONFIG.imem_bundles) for w in range(9))


def test_what_the_host_reaches_while_a_program_runs(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([bundle(s1=s(ScalarOp.JUMP, b=i(0))), 0])
    bench.start()
    bench.cycle()
    for space, write in itertools.product(Space, (0, 1)):
        reached = (space == Space.SMEM or (space == Space.IMEM and write)
                   or (space == Space.SEMAPHORE and not write))
        bench.poke("request__payload", write | space.value << 1 | (
            16 if space == Space.IMEM else 3) << 3)
        bench.poke("request__valid", 1)
        assert bench.peek("request__ready") == reached
        for _ in range(3):
            bench.cycle()
            assert bench.peek("response__valid") == reached
        bench.poke("request__valid", 0)
        bench.cycle()
    # A new second bundle, then a new first one, one word after the other.
    bench.load([HALT], 1)
    bench.load([bundle(s1=s(ScalarOp.JUMP, b=i(1)))], 0)
    bench.finish()
    assert bench.peek("pc") == 1
    assert bench.peek("fault") == Fault.NONE


@pytest.mark.parametrize("seed", range(3))
def test_requests_for_scalar_memory_and_a_program_s_loads_and_stores_all_take_place(
        model: Model, seed: int) -> None:
    """The program accesses the first eight words, the host the others; each reads what it wrote."""
    rng = np.random.default_rng([14, seed])
    program = []
    for number in range(40):
        own = s(ScalarOp.STORE if rng.random() < 0.4 else ScalarOp.LOAD,
                int(rng.integers(1, 8)), 0, i(int(rng.integers(8))))
        program.append(bundle(**{
            "s1": s(ScalarOp.ADD, 8 + number % 8, int(rng.integers(8)), i(3)),
            **({"s0": own} if rng.random() < 0.8 else {})}))
    program.append(bundle(s0=s(ScalarOp.LOAD, 1, 0, i(2)), s1=s(ScalarOp.HALT)))
    oracle = random_oracle(SequencerPrograms(rng))
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    bench.start()
    done = waited = 0
    pending = None
    while bench.peek("running"):
        if pending is None and rng.random() < 0.7:
            write, address = int(rng.integers(2)), int(rng.integers(8, 13))
            value = int(rng.integers(1 << 32))
            pending = write, address, value
            bench.poke("request__payload", write | 1 << 1 | address << 3 | value << 23)
        bench.poke("request__valid", pending is not None)
        accepted = pending is not None and bench.peek("request__ready")
        bench.cycle()
        bench.poke("request__valid", 0)
        assert bench.peek("response__valid") == accepted
        if accepted:
            assert pending is not None
            write, address, value = pending
            expected = 0 if write else oracle.smem[address]
            assert (bench.peek("response__data"), bench.peek("response__error")) == (expected, 0)
            if write:
                oracle.smem[address] = value
            pending = None
            done += 1
        elif pending is not None:
            waited += 1
    bench.finish()
    assert done > 10
    assert waited > 5
    assert [pc for _, pc in bench.checker.issued] == oracle.run(program, 100)
    bench.check_state(oracle)


def transfer_write(rng: np.random.Generator) -> tuple[Space, int, list[int]]:
    """A write of a transfer: to bundles 45 to 49, or to five words of scalar memory."""
    together, to = write_words(CONFIG), Space(int(rng.integers(2)))
    return to, (int(rng.integers(45 * 16 // together, 50 * 16 // together)) * together
                if to == Space.IMEM else int(rng.integers(4, 6))), [
        int(number) for number in rng.integers(1 << 32, size=together)]


@pytest.mark.parametrize("seed", range(3))
def test_words_of_transfers_requests_and_a_program_s_stores_are_all_written(model: Model,
                                                                            seed: int) -> None:
    """In scalar memory, the program writes four words, transfers five, and the host the rest."""
    rng = np.random.default_rng([18, seed])
    program = [bundle(s0=s(ScalarOp.STORE, int(rng.integers(1, 8)), 0, i(int(rng.integers(4)))))
               if rng.random() < 0.3 else 0 for _ in range(41)]
    program += [bundle(s1=s(ScalarOp.LOOP, 20, 0, i(0))), HALT]
    oracle = random_oracle(SequencerPrograms(rng))
    oracle.scalars[20] = 4
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    words = {16 * number + word: int(rng.integers(1 << 32))
             for number in range(43, 50) for word in range(9)}
    bench.write_all({(Space.IMEM, address): value for address, value in words.items()})
    smem = list(oracle.smem)
    waited = dict.fromkeys(Space, 0)
    done = dict.fromkeys(Space, 0)
    write: tuple[Space, int, list[int]] | None = None
    bench.start()
    while bench.peek("running"):
        space, value = Space(int(rng.integers(2))), int(rng.integers(1 << 32))
        asks = rng.random() < 0.5
        address = int(rng.choice([k for k in words if k < 16 * 45]) if space == Space.IMEM
                      else rng.integers(9, 13))
        bench.poke("request__payload", 1 | space.value << 1 | address << 3 | value << 23)
        bench.poke("request__valid", asks)
        if write is None and rng.random() < 0.8:
            write = transfer_write(rng)
            bench.poke("word_write__payload", write[0].value | write[1] << 2 | sum(
                number << 22 + 32 * k for k, number in enumerate(write[2])))
        bench.poke("word_write__valid", write is not None)
        accepted = asks and bench.peek("request__ready")
        taken = write is not None and bench.peek("word_write__ready")
        if write is not None and write[0] == Space.IMEM:
            assert taken == (not (accepted and space == Space.IMEM))
        bench.cycle()
        if accepted:
            (words if space == Space.IMEM else smem)[address] = value
        if write is not None and taken:
            for k, number in enumerate(write[2], write[1]):
                if write[0] == Space.SMEM:
                    smem[k] = number
                elif k % 16 < 9:
                    words[k] = number
            done[write[0]] += 1
            write = None
        elif write is not None:
            waited[write[0]] += 1
    bench.poke("request__valid", 0)
    bench.poke("word_write__valid", 0)
    bench.finish()
    for space in (Space.SMEM, Space.IMEM):
        assert waited[space] > 5
        assert done[space] > 20
    assert [pc for _, pc in bench.checker.issued] == oracle.run(program, 200)
    oracle.smem[4:] = smem[4:]
    bench.check_state(oracle)
    assert {address: bench.read(Space.IMEM, address) for address in words} == words


# --- transfers and the other core

GOOD = (0,) * DESCRIPTOR_WORDS


def with_descriptor(oracle: Oracle, words: tuple[int, ...], at: int = 0) -> None:
    oracle.smem[at:at + len(words)] = list(words)


def test_a_transfer_waits_for_its_descriptor_and_the_cycles_are_memory_s(model: Model) -> None:
    bench = VerilatedSequencer(model)
    program = [bundle(misc=s(MiscOp.DMA, b=i(2)), s0=s(ScalarOp.LOAD, 1, 0, i(3)),
                      v0=v(VectorOp.LANE, 3)), HALT]
    oracle = random_oracle(SequencerPrograms(np.random.default_rng(15)))
    with_descriptor(oracle, tuple(range(10)), 2)
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == [0, 1] == oracle.run(program, 10)
    assert oracle.transfers == [tuple(range(10))]
    # Ten reads, the last word a cycle later, and the check of their sum.
    assert bench.checker.waits == {"vector": 0, "memory": 12, "semaphore": 0, "instruction": 1}
    bench.check_state(oracle)


def test_a_descriptor_is_read_while_its_bundle_waits_for_something_else(model: Model) -> None:
    bench = VerilatedSequencer(model)
    program = [bundle(v1=v(VectorOp.TANH, 1, 1)),
               bundle(misc=s(MiscOp.DMA, b=i(2)), v0=v(VectorOp.ADD, 2, 1)), HALT]
    bench.load(program)
    oracle = Oracle(CONFIG)
    bench.set_state(oracle)
    assert bench.run() == [0, 1, 2]
    assert bench.checker.waits["vector"] == TRANSCENDENTAL_LATENCY - 1
    assert bench.checker.waits["memory"] == 12 - (TRANSCENDENTAL_LATENCY - 1)
    assert bench.checker.outside.transfers == [GOOD]


def test_the_address_of_a_descriptor_may_have_just_been_loaded(model: Model) -> None:
    """Before the load ends, the register holds the address of a descriptor with a fault."""
    bench = VerilatedSequencer(model)
    oracle = Oracle(CONFIG)
    oracle.smem[:] = [2, *(0,) * 10, 2, 0]
    oracle.scalars[1] = 0
    program = [bundle(s0=s(ScalarOp.LOAD, 1, 0, i(11))), bundle(misc=s(MiscOp.DMA, b=1)), HALT]
    bench.load(program)
    bench.set_state(oracle)
    oracle.smem[11] = 1
    bench.write(Space.SMEM, 11, 1)
    assert bench.run() == oracle.run(program, 10)
    bench.check_state(oracle)
    assert bench.peek("fault") == oracle.fault


@pytest.mark.parametrize("number", range(1, 5))
def test_a_transfer_with_a_fault_changes_nothing(model: Model, number: int) -> None:
    words = (*GOOD[:-1], number)
    fault = descriptor_fault(words)
    oracle = random_oracle(SequencerPrograms(np.random.default_rng(16)))
    with_descriptor(oracle, words, 3)
    bench = VerilatedSequencer(model, timing=TIMINGS["mixed"])
    program = [bundle(**EFFECT, misc=s(MiscOp.DMA, b=i(3))), HALT]
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == oracle.run(program, 10) == ([0, 1] if fault == Fault.NONE else [])
    assert oracle.fault == fault
    bench.check_state(oracle)


@pytest.mark.parametrize("address", [i(4), i(12), i(13), i(-1), 1, 2])
def test_a_descriptor_must_lie_in_scalar_memory(model: Model, address: int) -> None:
    expect_fault(model, Fault.SMEM_RANGE, bundle(**EFFECT, misc=s(MiscOp.DMA, b=address)))


def test_other_faults_go_before_those_of_a_descriptor(model: Model) -> None:
    for fault, slots in ((Fault.CONFLICT, {"s0": s(ScalarOp.ADD, 31)}),
                         (Fault.VMEM_RANGE, {"ld": s(LoadOp.LOAD, 6, 0, i(11))}),
                         (Fault.FIFO_UNDERFLOW, {"pop": {"op": 1, "d": 2}})):
        oracle = Oracle(CONFIG)
        with_descriptor(oracle, (*GOOD[:-1], 2))
        bench = VerilatedSequencer(model)
        program = [bundle(**EFFECT | slots, misc=s(MiscOp.DMA, b=i(0))), HALT]
        bench.load(program)
        bench.set_state(oracle)
        assert bench.run() == []
        assert bench.peek("fault") == fault


def test_a_store_of_the_same_bundle_does_not_reach_the_descriptor(model: Model) -> None:
    oracle = Oracle(CONFIG)
    oracle.scalars[1] = 77
    program = [bundle(misc=s(MiscOp.DMA, b=i(1)), s0=s(ScalarOp.STORE, 1, 0, i(4))),
               bundle(s0=s(ScalarOp.STORE, 0, 0, i(4))),
               bundle(s0=s(ScalarOp.STORE, 1, 0, i(5)), s1=s(ScalarOp.ADD, 1, 0, i(-2))),
               bundle(s0=s(ScalarOp.STORE, 1, 0, i(5))),
               bundle(misc=s(MiscOp.DMA, b=i(1))), HALT]
    bench = VerilatedSequencer(model)
    bench.load(program)
    bench.set_state(oracle)
    assert bench.run() == oracle.run(program, 10)
    bench.check_state(oracle)
    assert bench.checker.outside.transfers[0] == GOOD


@pytest.mark.parametrize("timing", ["exact", "mixed"])
def test_all_banks_of_scalar_memory_give_a_descriptor_at_any_address(timing: str) -> None:
    """Bundles load and store words of descriptors before, while and after these are read."""
    places = WIDE.smem_words - DESCRIPTOR_WORDS + 1
    programs = SequencerPrograms(np.random.default_rng(18))
    oracle = Oracle(WIDE)
    oracle.smem = [5 * int(word) for word in programs.rng.integers(0, 1 << 29, len(oracle.smem))]
    oracle.scalars[1:6] = [0, 5 * 77, 0, 5 * 99, places]
    program = [bundle(misc=s(MiscOp.DMA, b=1), s0=s(ScalarOp.LOAD, 3, 1, i(9))),
               bundle(misc=s(MiscOp.DMA, b=1), s0=s(ScalarOp.STORE, 2, 1, i(0))),
               bundle(s0=s(ScalarOp.STORE, 4, 1, i(9))),
               bundle(misc=s(MiscOp.DMA, b=1), s0=s(ScalarOp.STORE, 3, 1, i(9))),
               bundle(s0=s(ScalarOp.ADD, 1, 1, i(1)), s1=s(ScalarOp.LOOP, 5, b=i(0))), HALT]
    with open_sequencer(WIDE) as model:
        bench = VerilatedSequencer(model, WIDE, TIMINGS[timing], seed=4)
        bench.load(program)
        bench.set_state(oracle)
        assert bench.run(limit=20_000) == oracle.run(program, 1000)
        assert oracle.halted
        assert len(oracle.transfers) == 3 * places
        bench.check_state(oracle)
        if timing == "exact":  # Each read takes three cycles, and the load that lands takes one.
            assert bench.checker.waits["memory"] == (3 * 3 + 1) * places


def test_a_transfer_that_finds_no_room_can_be_stopped_and_has_a_watchdog(model: Model) -> None:
    bench = VerilatedSequencer(model)
    oracle = Oracle(CONFIG)
    program = [bundle(s0=s(ScalarOp.ADD, 1, 0, i(5))), bundle(misc=s(MiscOp.DMA, b=i(0))), HALT]
    bench.load(program)
    bench.set_state(oracle)
    bench.checker.outside.pace = 0
    bench.poke("watchdog", 30)
    assert bench.run() == [0]
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.WATCHDOG, 1)
    bench.poke("watchdog", 0)
    bench.start(1)
    for _ in range(50):
        bench.cycle()
    assert bench.peek("dma__valid")
    bench.poke("stop", 1)
    bench.cycle()
    bench.poke("stop", 0)
    assert not bench.peek("dma__valid")
    assert bench.peek("pc") == 1
    bench.checker.outside.pace = 1
    assert bench.run(1) == [1, 2]
    assert bench.checker.outside.transfers == [GOOD]


@pytest.mark.parametrize("seed", range(6))
def test_random_transfers_and_signals_to_the_other_core(model: Model, seed: int) -> None:
    rng = np.random.default_rng([17, seed])
    programs = SequencerPrograms(rng)
    program = []
    for _ in range(CONFIG.imem_bundles - 1):
        slots = {"s1": s(ScalarOp.ADD, int(rng.integers(1, 8)), int(rng.integers(8)),
                         i(int(rng.integers(4))))}
        if rng.random() < 0.5:
            slots["s0"] = s(ScalarOp.STORE if rng.random() < 0.5 else ScalarOp.LOAD,
                            int(rng.integers(8, 12)), 0, i(int(rng.integers(13))))
        if rng.random() < 0.3:
            slots["v1"] = v(VectorOp.TANH, int(rng.integers(4)), int(rng.integers(4)))
        draw = rng.random()
        if draw < 0.4:
            slots["misc"] = s(MiscOp.DMA, b=i(int(rng.integers(4))))
        elif draw < 0.7:
            slots["misc"] = s(MiscOp.SIGNAL_OTHER, int(rng.integers(16)), 0, programs.source())
        program.append(bundle(tuple(programs.word() for _ in range(3)), **slots))
    program.append(HALT)
    oracle = random_oracle(programs)
    oracle.smem[:] = [5 * int(n) for n in rng.integers(0, 1000, 13)]
    oracle.scalars[8:12] = [5, 10, 15, 20 + (seed % 2)]  # at odd seeds, some descriptor has a fault
    timing = TIMINGS[("exact", "mixed", "slow")[seed % 3]]
    bench = VerilatedSequencer(model, timing=timing, seed=seed)
    bench.load(program)
    bench.set_state(oracle)
    executed = oracle.run(program, 100)
    assert bench.run(limit=20_000) == executed
    bench.check_state(oracle)
    assert oracle.halted or oracle.fault >= Fault.DMA_DESCRIPTOR
    assert seed % 2 or len(oracle.transfers) > 8
    assert seed % 2 or len(oracle.signals) > 5


def test_a_signal_to_another_core_that_there_is_not_is_illegal() -> None:
    model = open_sequencer(replace(CONFIG, cores=1))
    for op, fault in ((MiscOp.SIGNAL_OTHER, Fault.ILLEGAL), (MiscOp.SIGNAL, Fault.NONE)):
        bench = VerilatedSequencer(model, replace(CONFIG, cores=1))
        bench.load([bundle(misc=s(op, 3, 0, i(1))), HALT])
        assert bench.run() == ([] if fault else [0, 1])
        assert bench.peek("fault") == fault


def test_a_refused_transfer_stops_the_core(model: Model) -> None:
    bench = VerilatedSequencer(model)
    bench.load([bundle(s0=s(ScalarOp.ADD, 1, 1, i(1)), s1=s(ScalarOp.JUMP, b=i(0)))])
    bench.write(Space.SCALAR, 1, 0)
    bench.start()
    for _ in range(7):
        bench.cycle()
    bench.poke("bus_error", 1)
    bench.cycle()
    bench.poke("bus_error", 0)
    assert not bench.peek("running")
    assert (bench.peek("fault"), bench.peek("pc")) == (Fault.BUS_ERROR, 0)
    assert bench.read(Space.SCALAR, 1) == len(bench.checker.issued) == 7
    # A start clears it; it may also come while nothing runs.
    bench.start()
    bench.cycle()
    bench.poke("stop", 1)
    bench.cycle()
    bench.poke("stop", 0)
    assert bench.peek("fault") == Fault.NONE
    bench.poke("bus_error", 1)
    bench.cycle()
    assert bench.peek("fault") == Fault.BUS_ERROR


def test_a_config_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 'v2'"):
        Sequencer("v2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slot must be a vector slot, not"):
        WritePort(Slot.S0)


@pytest.mark.parametrize(("delay", "cycles"), [(0, 3), (1, 4)])
def test_shared_ports_need_different_cycles_for_the_writes_of_a_bundle(
        monkeypatch: pytest.MonkeyPatch, delay: int, cycles: int) -> None:
    SharedPorts().elaborate(None)
    monkeypatch.setattr(scoreboard, "V1_DELAY", delay)
    with pytest.raises(ValueError, match=f"write in different cycles, not both {cycles} cycles "
                                         f"after issue; V1_DELAY is {delay}"):
        SharedPorts().elaborate(None)


def test_operation_codes_of_the_slots_with_one_operation() -> None:
    """The sequencer's code contains the codes of these operations as constants."""
    assert [entry.op for entry in OPERATIONS if Slot.STORE in entry.slots] == [StoreOp.STORE]
    assert [entry.op for entry in OPERATIONS if Slot.LOAD in entry.slots] == [LoadOp.LOAD]
    assert [entry.op for entry in OPERATIONS if Slot.POP in entry.slots] == [PopOp.POP]
