"""The core in RTL against the golden core: all units, the host's ports, faults."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.core.core import Core
from hdl.core.counters import COUNTERS
from hdl.encoding import pack, unpack
from hdl.isa import Fault, Slot
from hdl.vpu.interface import HostSpace
from sim.asm.assembler import Assembler, Program
from sim.asm.operands import m, s, sem, v
from sim.errors import CoreFaultError
from sim.models.core import CoreModel, Processor
from tools.bench.core import busy_program, scalar_program, vector_program
from verif.system.random_programs import run_flush

LIMIT = 20_000
MODELS = [("tiny", True), ("tiny", False), ("small", True),
          pytest.param(("small", False), marks=pytest.mark.slow)]
SMALL_MEMORY = 16 << 10
"""Bytes of vector memory of `small` in pure Verilog, where each test would take most of its time to
read all of it. The model with kernels has the whole memory, which is the same Verilog."""


@pytest.fixture(scope="module", params=MODELS,
                ids=lambda model: f"{model[0]}-{'kernels' if model[1] else 'verilog'}")
def core(request: pytest.FixtureRequest) -> Iterator[CoreModel]:
    name, kernels = request.param
    memory = {"vmem_bytes": SMALL_MEMORY} if (name, kernels) == ("small", False) else {}
    with CoreModel(Config.preset(name, **memory), kernels=kernels) as model:
        yield model


@pytest.fixture(scope="module")
def tiny() -> Iterator[CoreModel]:
    with CoreModel(Config.preset("tiny")) as model:
        yield model


def with_data(core: CoreModel, seed: int) -> GoldenCore:
    """Resets the core; returns a golden core with the same random memories."""
    rng = np.random.default_rng(seed)
    golden = GoldenCore(core.config)
    core.reset()
    floats = rng.standard_normal(golden.vmem.shape).astype(np.float32).view(np.uint32)
    words = rng.integers(0, 1 << 32, golden.vmem.shape, dtype=np.uint32)
    golden.vmem[:] = np.where(rng.random(golden.vmem.shape) < 0.9, floats, words)
    golden.smem[:] = rng.integers(0, 1 << 32, golden.smem.shape, dtype=np.uint32)
    golden.semaphores[:] = rng.integers(0, 100, isa.SEMAPHORES)
    golden.scalars[1:] = rng.integers(0, 16, isa.SCALAR_REGISTERS - 1)
    core.write_vmem(0, golden.vmem)
    core.write_smem(0, golden.smem)
    core.write_semaphores(golden.semaphores)
    core.write_scalars(golden.scalars)
    return golden


def assert_same(core: CoreModel, golden: GoldenCore) -> None:
    state, expected = core.read_state(), golden.read_state(array=False)
    assert state.keys() == expected.keys()
    for part, value in expected.items():
        wrong = np.argwhere(np.asarray(state[part]) != np.asarray(value))
        assert not len(wrong), f"{part} differs in {len(wrong)} places, first {wrong[0]}"


def run_both(core: CoreModel, golden: GoldenCore, asm: Assembler) -> dict[str, int]:
    """Runs the program and a halt on both cores to the end, and compares all state."""
    with asm.bundle() as b:
        b.s1.halt()
    bundles = asm.assemble().bundles
    processors: list[Processor] = [core, golden]
    for processor in processors:
        processor.load_program(bundles)
    core.clear_counters()
    for processor in processors:
        processor.start()
        processor.run(LIMIT)
    counters = core.counters()
    assert golden.fault == Fault.NONE
    assert golden.pc == len(bundles) - 1
    assert_same(core, golden)
    assert sum(counters[name] for name in COUNTERS) == counters["cycles"] > 0
    return counters


def load_registers(asm: Assembler, count: int = 8, first: int = 0) -> None:
    for number in range(count):
        with asm.bundle() as b:
            b.ld.load(v[number], s[0], first + number)


def test_scalar_operations_and_memory(core: CoreModel) -> None:
    golden = with_data(core, 1)
    asm = Assembler(core.config)
    for number, name in enumerate(("add", "sub", "mul", "and", "or", "xor", "shl", "shr", "sar",
                                   "eq", "ne", "lt", "ltu", "min", "max")):
        with asm.bundle() as b:
            b.operation("s0", name, s[10 + number], s[1 + number % 9], s[2 + number % 8])
            b.operation("s1", name, s[9], s[10 + number], -3)
        with asm.bundle() as b:
            b.s0.store(s[9], s[0], 40 + number)
    with asm.bundle() as b:
        b.s0.load(s[30], s[0], 41)
        b.s1.add(s[31], s[30], 1)
    with asm.bundle() as b:
        b.s0.store(s[30], s[1], 100)
        b.s1.add(s[0], s[30], 5)
    run_both(core, golden, asm)


def test_branches_take_no_cycle(core: CoreModel) -> None:
    golden = with_data(core, 2)
    asm = Assembler(core.config)
    with asm.bundle() as b:
        b.s0.add(s[1], s[0], 5)
        b.s1.add(s[2], s[0], 0)
    asm.label("loop")
    with asm.bundle() as b:
        b.s0.add(s[2], s[2], s[1])
        b.s1.loop(s[1], "loop")
    for name, taken in (("beq", False), ("bne", True), ("blt", False), ("bge", True),
                        ("bltu", False), ("bgeu", True)):
        with asm.bundle() as b:
            b.operation("s1", name, s[2], 3, f"after_{name}")
        with asm.bundle() as b:
            b.s0.add(s[3], s[3], 1 if taken else 2)
        asm.label(f"after_{name}")
    with asm.bundle() as b:
        b.s1.call(s[4], "sub")
    with asm.bundle() as b:
        b.s1.jump("end")
    asm.label("sub")
    with asm.bundle() as b:
        b.s0.add(s[5], s[4], 7)
        b.s1.jump(s[4])
    asm.label("end")
    counters = run_both(core, golden, asm)
    # 1 + 5 for the loop, 6 branches of which 3 fall through, 3 jumps, the halt; fetch and clear.
    assert counters["cycles"] <= 1 + 5 + 6 + 3 + 3 + 1 + 4


def test_vector_operations_in_both_slots(core: CoreModel) -> None:
    golden = with_data(core, 3)
    asm = Assembler(core.config)
    load_registers(asm)
    names = [op for op in isa.OPERATIONS if Slot.V1 in op.slots]
    for number, operation in enumerate(names):
        slots = [slot for slot in ("v0", "v1") if slot in operation.slots]
        with asm.bundle() as b:
            for offset, slot in enumerate(slots):
                operands: list[object] = []
                for operand in operation.operands:
                    index = (number + offset) % 7
                    operands.append({
                        isa.Kind.VECTOR_OUT: v[8 + (2 * number + offset) % 24],
                        isa.Kind.VECTOR_IN: v[index], isa.Kind.MASK_OUT: m[1 + index],
                        isa.Kind.MASK_IN: m[(index + 3) % 8],
                        isa.Kind.VECTOR_SOURCE: v[index + 1] if number % 3 else s[1 + index],
                    }[operand.kind])
                if offset and operation.operands[0].kind is isa.Kind.MASK_OUT:
                    operands[0] = m[1 + (number + 3) % 7]
                b.operation(slot, operation.name, *operands)
            b.st.store(v[8 + (2 * number) % 24], s[0], 20 + number % 50, m[number % 8])
    counters = run_both(core, golden, asm)
    assert counters["vector_wait_cycles"] > 0


def test_loads_and_stores_under_masks(core: CoreModel) -> None:
    golden = with_data(core, 4)
    asm = Assembler(core.config)
    load_registers(asm)
    with asm.bundle() as b:
        b.v0.flt(m[1], v[0], v[1])
    for number in range(8):
        with asm.bundle() as b:
            # The same address: the load gets the old vector.
            b.ld.load(v[10 + number], s[0], 30)
            b.st.store(v[number], s[0], 30, m[number % 2])
    with asm.bundle() as b:
        b.ld.load(v[20], s[0], 30)
    with asm.bundle() as b:
        b.st.store(v[20], s[0], core.config.vmem_vectors - 1)
    run_both(core, golden, asm)


def test_cross_lane_operations(core: CoreModel) -> None:
    config = core.config
    golden = with_data(core, 5)
    asm = Assembler(config)
    load_registers(asm)
    d = iter(range(8, 32))
    for amount in (0, 1, config.lanes - 1):
        with asm.bundle() as b:
            b.misc.rotate_lanes(v[next(d)], v[amount % 5], amount)
        with asm.bundle() as b:
            b.misc.broadcast_lane(v[next(d)], v[1 + amount % 5], amount)
    for amount in (0, config.sublanes - 1):
        with asm.bundle() as b:
            b.misc.rotate_sublanes(v[next(d)], v[2], amount)
        with asm.bundle() as b:
            b.misc.broadcast_sublane(v[next(d)], v[3], amount)
    for number in range(2):
        with asm.bundle() as b:
            b.misc.sum_lanes(v[next(d)], v[number])
        with asm.bundle() as b:
            b.misc.max_lanes(v[next(d)], v[4 + number])
    for group in range(config.tile_vregs):
        with asm.bundle() as b:
            b.misc.transpose_in(v[group], group)
    for group in reversed(range(config.tile_vregs)):
        with asm.bundle() as b:
            b.misc.transpose_out(v[next(d)], group)
    # A result is an operand of the next operation, and an operand is overwritten.
    with asm.bundle() as b:
        b.misc.sum_lanes(v[7], v[7])
    with asm.bundle() as b:
        b.misc.rotate_lanes(v[6], v[7], 1)
        b.ld.load(v[5], s[0], 60)
    run_both(core, golden, asm)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_products(core: CoreModel, transposed: bool) -> None:
    config = core.config
    golden = with_data(core, 6)
    asm = Assembler(config)
    load_registers(asm, 24)
    tile = config.tile_vregs
    for step in range(3):
        for group in range(tile):
            with asm.bundle() as b:
                push = b.push.weights_t if transposed and step != 1 else b.push.weights
                push(v[(5 * step + group) % 12])
        for group in range(4):
            with asm.bundle() as b:
                (b.push.rows if group else b.push.rows_swap)(v[12 + group])
                if step:
                    b.pop.pop(v[24 + group])
                    # The register that waits to be fed is written as soon as possible.
                    b.ld.load(v[12 + group], s[0], 70 + group)
        with asm.bundle() as b:
            b.st.store(v[25], s[0], 100 + step)
    for group in range(4):
        with asm.bundle() as b:
            b.pop.pop(v[28 + group])
    counters = run_both(core, golden, asm)
    assert counters["mxu_active_cycles"] == 12 * config.sublanes
    assert counters["weight_load_cycles"] > 0


def test_semaphores_of_the_program(core: CoreModel) -> None:
    golden = with_data(core, 7)
    asm = Assembler(core.config)
    with asm.bundle() as b:
        b.misc.signal(sem[3], 1000)
    with asm.bundle() as b:
        b.misc.wait(sem[3], 999)
        b.s0.add(s[5], s[5], 1)
    with asm.bundle() as b:
        b.misc.read_semaphore(s[6], sem[3])
    run_both(core, golden, asm)


@pytest.mark.parametrize("make", [busy_program, vector_program, scalar_program])
def test_busy_loops(make: Callable[[Config, int], Program]) -> None:
    with CoreModel(Config.preset("small")) as core:
        golden = with_data(core, 8)
        program = make(core.config, 3)
        golden.load_program(program.bundles)
        golden.start()
        golden.run(LIMIT)
        counters = core.run_program(program.bundles, max_cycles=LIMIT)
        assert_same(core, golden)
        if make is scalar_program:
            assert counters["mxu_active_cycles"] == counters["vector_wait_cycles"] == 0


def full_array(asm: Assembler, config: Config) -> None:
    for _ in range(config.tile_vregs):
        with asm.bundle() as b:
            b.push.weights(v[1])
    for number in range(config.result_vregs):
        with asm.bundle() as b:
            (b.push.rows if number else b.push.rows_swap)(v[2])


def busy_array(asm: Assembler, config: Config) -> None:
    """Adds bundles that leave results and a partial load in the array, and a transposed tile."""
    for _ in range(config.tile_vregs):
        with asm.bundle() as b:
            b.push.weights(v[1])
    for group in range(config.tile_vregs):
        with asm.bundle() as b:
            b.misc.transpose_in(v[1 + group], group)
            if group < 2:
                (b.push.rows if group else b.push.rows_swap)(v[2 + group])
    with asm.bundle() as b:
        b.push.weights(v[4])


def nothing(asm: Assembler, config: Config) -> None:
    """Adds no bundles: the array stays in its state after a reset."""


FAULTS = {
    "illegal operation": (Fault.ILLEGAL, None, lambda b, c: b.raw("misc", op=9)),
    "illegal source": (Fault.ILLEGAL, None, lambda b, c: b.raw("st", op=1, b=37)),
    "reserved bit": (Fault.ILLEGAL, None, lambda b, c: b.reserved(1)),
    "conflict": (Fault.CONFLICT, None, lambda b, c: b.raw("pop", op=1, d=9)),
    "scalar load": (Fault.SMEM_RANGE, None, lambda b, c: b.s0.load(s[20], s[0], c.smem_words)),
    "scalar store": (Fault.SMEM_RANGE, None, lambda b, c: b.s0.store(s[20], s[0], -1)),
    "vector store": (Fault.VMEM_RANGE, None, lambda b, c: b.st.store(v[1], s[0], c.vmem_vectors)),
    "lane": (Fault.INDEX_RANGE, None, lambda b, c: b.misc.rotate_lanes(v[20], v[1], c.lanes)),
    "group": (Fault.INDEX_RANGE, None, lambda b, c: b.misc.transpose_in(v[1], c.tile_vregs)),
    "rows before a swap": (Fault.WEIGHT_LOAD, nothing, lambda b, c: b.push.rows(v[1])),
    "swap before weights": (Fault.WEIGHT_LOAD, nothing, lambda b, c: b.push.rows_swap(v[1])),
    "too many rows": (Fault.FIFO_OVERFLOW, full_array, lambda b, c: b.push.rows(v[1])),
    "nothing to pop": (Fault.FIFO_UNDERFLOW, nothing, lambda b, c: b.pop.pop(v[20])),
    "semaphore": (Fault.SEMAPHORE, None, lambda b, c: b.misc.signal(sem[2], -1)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulting_bundle_changes_nothing(core: CoreModel, name: str) -> None:
    cause, before, bundle = FAULTS[name]
    rows = before is None and list(FAULTS).index(name) % 2
    golden = with_data(core, 9)
    golden.semaphores[2] = 1
    core.write_semaphores(golden.semaphores)
    asm = Assembler(core.config)
    load_registers(asm)
    (before or busy_array)(asm, core.config)
    with asm.bundle() as b:
        # All this is under way when the fault comes, and must end normally.
        b.v0.fadd(v[10], v[1], v[2])
        b.v1.exp2(v[11], v[3])
        b.misc.sum_lanes(v[12], v[4])
        b.st.store(v[5], s[0], 33)
    with asm.bundle() as b:
        bundle(b, core.config)
        # The bundle's other operations.
        b.v0.fadd(v[9], v[1], v[2])
        b.v1.flt(m[3], v[1], v[2])
        b.ld.load(v[14], s[0], 3)
        b.s1.add(s[7], s[0], 1)
    faulting = asm.here - 1
    with asm.bundle() as b:
        b.v0.lane(v[15])
        b.s1.halt()
    bundles = list(asm.assemble().bundles)
    # And operations whose effect no host sees, where the fault leaves the slot free.
    bundles[faulting] = with_operations(bundles[faulting], {
        Slot.PUSH: {"op": isa.PushOp.ROWS if rows else isa.PushOp.WEIGHTS, "a": 6},
        Slot.MISC: {"op": isa.MiscOp.TRANSPOSE_IN, "a": 7, "b": isa.INLINE_BASE},
        **({} if before is nothing else {Slot.POP: {"op": isa.PopOp.POP, "d": 13}})})
    golden.load_program(bundles)
    golden.start()
    golden.run(LIMIT)
    assert (golden.fault, golden.pc) == (cause, faulting)
    with pytest.raises(CoreFaultError) as caught:
        core.run_program(bundles, max_cycles=LIMIT)
    assert (caught.value.cause, caught.value.pc) == (cause, faulting)
    assert f"{cause.name} at bundle {faulting}: {{" in str(caught.value)
    assert_same(core, golden)
    # The core is as usable as before.
    for processor in (core, golden):
        processor.start(faulting + 1)
        processor.run(LIMIT)
    assert core.fault == Fault.NONE
    assert_same(core, golden)
    # Array and transposer are unchanged.
    wrong = run_flush(golden, core)
    assert not wrong, wrong


def with_operations(bundle: int, more: dict[Slot, dict[str, int]]) -> int:
    """The bundle with further operations in its empty slots."""
    slots, imm, reserved = unpack(bundle)
    free = {slot: fields for slot, fields in more.items() if not slots[slot]["op"]}
    position = isa.BUNDLE_BITS - 32 * isa.IMMEDIATES - isa.RESERVED_BITS
    return pack(slots | free, imm) | reserved << position


@pytest.mark.parametrize("pc", [1 << 20, 0xFFFFFFFF])
def test_start_outside_the_instruction_memory_faults(core: CoreModel, pc: int) -> None:
    golden = with_data(core, 10)
    for processor in (core, golden):
        processor.start(pc)
        processor.run(LIMIT)
    assert (core.fault, core.pc) == (Fault.PC_RANGE, pc)
    assert_same(core, golden)
    with pytest.raises(CoreFaultError, match="PC_RANGE at bundle"):
        core.run_program(pc=pc)


def test_running_past_the_last_bundle_faults(core: CoreModel) -> None:
    golden = with_data(core, 11)
    last = core.config.imem_bundles - 1
    for processor in (core, golden):
        processor.load_program([pack({Slot.S0: {"op": isa.ScalarOp.ADD, "d": 1, "a": 1,
                                                "b": isa.INLINE_BASE + 1}})], last)
        processor.start(last)
        processor.run(LIMIT)
    assert (core.fault, core.pc) == (Fault.PC_RANGE, last + 1)
    assert_same(core, golden)


def test_a_stopped_program_goes_on_where_it_was(core: CoreModel) -> None:
    rng = np.random.default_rng(12)
    golden = with_data(core, 12)
    program = busy_or_vector(core.config)
    golden.load_program(program)
    golden.start()
    golden.run(LIMIT)
    core.load_program(program)
    core.start()
    stops = 0
    while core.running:
        core.model.tick(int(rng.integers(0, 30)))
        if core.running:
            core.stop()
            assert not core.running
            core.run()
            assert core.fault == Fault.NONE
            core.read_vectors()
            core.start(core.pc)
            stops += 1
    core.run()
    assert stops > 5
    assert_same(core, golden)


def busy_or_vector(config: Config) -> tuple[int, ...]:
    make = busy_program if config.sublanes >= 4 else vector_program
    return make(config, 2).bundles


def test_core_and_golden_core_take_the_same_arguments(tiny: CoreModel) -> None:
    golden = with_data(tiny, 20)
    asm = Assembler(tiny.config)
    asm.label("loop")
    with asm.bundle() as b:
        b.s1.jump("loop")
    bundles: list[Any] = [1 << 200, np.int64(77), np.uint8(5)]
    one: Any = np.uint32(1)
    wrong: list[tuple[Any, type[Exception]]] = [
        (1.0, TypeError), (True, TypeError), (-1, ValueError)]
    for processor in (tiny, golden):
        processor.load_program(bundles)
        processor.load_program(asm.assemble(), one)
        for bundle, error in wrong:
            with pytest.raises(error):
                processor.load_program([bundle])
        processor.start(one)
        with pytest.raises(RuntimeError, match="a program is running, at bundle 1: stop it to"):
            processor.start()
        processor.stop()
        processor.stop()
    # The memory after a program is unchanged.
    assert tiny.read_program(0, 4) == [1 << 200, asm.assemble()[0], 5, 0] == golden.program[:4]
    assert_same(tiny, golden)


def test_a_wait_ends_by_a_signal(core: CoreModel) -> None:
    golden = with_data(core, 13)
    asm = Assembler(core.config)
    with asm.bundle() as b:
        b.misc.wait(sem[1], 500)
        b.s0.add(s[9], s[0], 77)
        b.s1.halt()
    for processor in (core, golden):
        processor.load_program(asm.assemble().bundles)
        processor.start()
        processor.run(1000)
        assert processor.running
        assert processor.waiting
        processor.signal(1, 300)
        processor.run(1000)
        assert processor.running
        processor.signal(1, 200)
        processor.run(1000)
        assert not processor.running
    assert_same(core, golden)
    assert core.counters()["semaphore_wait_cycles"] > 0
    with pytest.raises(RuntimeError, match="waits for a semaphore at bundle 0"):
        core.run_program()
    core.stop()


def test_a_signal_that_overflows_stops_the_core(core: CoreModel) -> None:
    golden = with_data(core, 14)
    asm = Assembler(core.config)
    asm.label("loop")
    with asm.bundle() as b:
        b.s1.jump("loop")
    for processor in (core, golden):
        processor.load_program(asm.assemble().bundles)
        processor.start()
        processor.signal(4, 0xFFFFFFFF)
        processor.run(1000)
    assert core.fault == Fault.SEMAPHORE
    assert_same(core, golden)


def test_the_first_fault_is_kept_until_the_next_start(core: CoreModel) -> None:
    golden = with_data(core, 19)
    illegal = pack({Slot.MISC: {"op": 9}})
    halt = pack({Slot.S1: {"op": isa.ScalarOp.HALT}})
    for processor in (core, golden):
        processor.load_program([illegal, halt])
        processor.start()
        processor.run(1000)
        processor.signal(4, 0xFFFFFFFF)
        assert (processor.fault, processor.pc, processor.running) == (Fault.ILLEGAL, 0, False)
    assert_same(core, golden)
    for processor in (core, golden):
        processor.start(1)
        processor.run(1000)
        assert processor.fault == Fault.NONE
        # A stopped core gets it, too.
        processor.signal(4, 0xFFFFFFFF)
        assert (processor.fault, processor.pc) == (Fault.SEMAPHORE, 1)
    assert_same(core, golden)


def test_the_watchdog_ends_a_wait(core: CoreModel) -> None:
    core.reset()
    core.write_semaphores(np.zeros(isa.SEMAPHORES, np.uint32))
    asm = Assembler(core.config)
    with asm.bundle() as b:
        b.s0.add(s[1], s[0], 3)
    with asm.bundle() as b:
        b.misc.wait(sem[0], 1)
        b.s0.add(s[1], s[0], 4)
    core.set_watchdog(100)
    with pytest.raises(CoreFaultError, match=r"WATCHDOG at bundle 1: .*wait"):
        core.run_program(asm.assemble().bundles, max_cycles=LIMIT)
    assert 100 <= core.counters()["cycles"] < 120
    assert core.read_scalars()[1] == 3


def test_a_program_that_does_not_end_is_said_to(core: CoreModel) -> None:
    core.reset()
    asm = Assembler(core.config)
    asm.label("loop")
    with asm.bundle() as b:
        b.s1.jump("loop")
    seen: list[int] = []
    with pytest.raises(TimeoutError, match="after 300 cycles: it is at bundle 0"):
        core.run_program(asm.assemble().bundles, max_cycles=300, progress=seen.append)
    assert sum(seen) == 300
    with pytest.raises(RuntimeError, match="bundle 0: stop it to access its smem"):
        core.read_smem(0, 1)
    with pytest.raises(RuntimeError, match="stop it to start"):
        core.start()
    # Vector memory can be read meanwhile.
    data = np.arange(core.read_vmem(0, 2).size, dtype=np.uint32).reshape(core.read_vmem(0, 2).shape)
    core.write_vmem(5, data)
    assert np.array_equal(core.read_vmem(5, 2), data)
    assert core.running
    core.stop()
    assert core.run() == 0
    assert (core.running, core.pc, core.fault) == (False, 0, Fault.NONE)


@pytest.mark.parametrize("kind", ["loads", "stores", "both"])
def test_host_moves_words_beside_a_program_that_uses_the_memory_in_every_cycle(core: CoreModel,
                                                                               kind: str) -> None:
    golden = with_data(core, 18)
    config = core.config
    asm = Assembler(config)
    asm.label("loop")
    for number in range(4):
        with asm.bundle() as b:
            if kind != "stores":
                b.ld.load(v[number], s[0], number)
            if kind != "loads":
                b.st.store(v[8 + number], s[0], 8 + number)
            if number == 3:
                b.s1.jump("loop")
    for processor in (core, golden):
        processor.load_program(asm.assemble().bundles)
        processor.start()
    core.model.tick(100)
    core.clear_counters()
    words = np.roll(golden.vmem, 1, axis=0)[16:48]
    core.write_vmem(30, words)
    golden.vmem[30:62] = words
    assert np.array_equal(core.read_vmem(16, 46), golden.vmem[16:62])
    counters = core.counters()
    assert core.running
    # A vector takes its rows, eight cycles of patience, and three that the program waits.
    assert counters["cycles"] <= (32 + 46) * (config.sublanes + 12) + 20
    assert counters["memory_wait_cycles"] <= 3 * (32 + 46)
    core.stop()
    core.run()
    golden.run(1000)
    golden.stop()
    state, expected = core.read_state(), golden.read_state()
    for part in ("vectors", "vmem"):
        assert np.array_equal(state[part], expected[part])


def test_after_a_transfer_that_did_not_end_there_is_no_other(tiny: CoreModel) -> None:
    tiny.reset()
    words = np.ones((2, *tiny.read_vmem(0, 1).shape[1:]), np.uint32)
    # A core in reset takes reads and returns nothing.
    tiny.model.poke("rst", 1)
    with pytest.raises(RuntimeError, match="a transfer by the host does not move"):
        tiny.read_vmem(0, 1)
    tiny.model.poke("rst", 0)
    for call in (lambda: tiny.read_vmem(0, 1), lambda: tiny.write_vmem(0, words),
                 lambda: tiny.read_smem(0, 1), lambda: tiny.load_program([0]), tiny.read_state):
        with pytest.raises(RuntimeError, match="an earlier access did not end: reset the model"):
            call()
    tiny.reset()
    tiny.write_vmem(0, words)
    assert np.array_equal(tiny.read_vmem(0, 2), words)


def test_host_reads_what_it_wrote(core: CoreModel) -> None:
    rng = np.random.default_rng(15)
    config = core.config
    core.reset()
    shape = (config.vmem_vectors, config.sublanes, config.lanes)
    assert not core.read_vmem(0, config.vmem_vectors).any()
    assert not core.read_vectors().any()
    assert core.read_masks()[0].all()
    assert not core.read_masks()[1:].any()
    vmem = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    smem = rng.integers(0, 1 << 32, config.smem_words, dtype=np.uint32)
    core.write_vmem(0, vmem)
    core.write_smem(0, smem)
    core.write_vmem(3, vmem[:2].view(np.float32))
    vmem[3:5] = vmem[:2]
    core.write_smem(7, smem[:5])
    smem[7:12] = smem[:5].copy()
    core.write_scalars(np.arange(100, 132))
    core.write_semaphores([5, 6], 3)
    bundles = [int(word) << 200 | 12345 for word in smem[:20]]
    core.load_program(bundles, 30)
    assert np.array_equal(core.read_vmem(0, len(vmem)), vmem)
    assert np.array_equal(core.read_smem(0, len(smem)), smem)
    assert np.array_equal(core.read_scalars(), [0, *range(101, 132)])
    assert list(core.read_semaphores()) == [0, 0, 0, 5, 6, *[0] * 11]
    assert core.read_program(29, 22) == [0, *bundles, 0]
    core.reset()
    assert not any(np.asarray(core.read_state()[part]).any()
                   for part in ("scalars", "vectors", "vmem", "smem", "semaphores"))
    assert core.counters()["cycles"] > 0


def test_counters_are_cleared_and_sum_to_the_cycles(tiny: CoreModel) -> None:
    tiny.reset()
    tiny.model.tick(100)
    assert tiny.counters()["cycles"] == tiny.counters()["idle_cycles"] == 100
    tiny.clear_counters()
    assert set(tiny.counters().values()) == {0}
    assert list(tiny.counters()) == ["cycles", *COUNTERS]
    assert len(COUNTERS) == 7


def test_wrong_arguments_are_refused(tiny: Any) -> None:
    words = np.zeros((1, 2, 4), np.uint32)
    for call, error, match in (
            (lambda: tiny.write_vmem(0, words.astype(np.int64)), TypeError, "not int64"),
            (lambda: tiny.write_vmem(0, [1]), TypeError, r"not \[1\]"),
            (lambda: tiny.write_vmem(0, words[0]), ValueError, r"not \(2, 4\)"),
            (lambda: tiny.write_vmem(256, words), ValueError, "from 256 to 256"),
            (lambda: tiny.write_vmem(-1, words), ValueError, "not -1"),
            (lambda: tiny.write_vmem(1.5, words), TypeError, "not 1.5"),
            (lambda: tiny.read_vmem(255, 2), ValueError, "from 255 to 256"),
            (lambda: tiny.read_vmem(0, 257), ValueError, "not 257"),
            (lambda: tiny.read_smem(256, 1), ValueError, "256"),
            (lambda: tiny.write_smem(0, [-1]), ValueError, "32 bits"),
            (lambda: tiny.write_smem(0, [1.5]), TypeError, "float64"),
            (lambda: tiny.write_smem(0, [[1]]), ValueError, "one dimension"),
            (lambda: tiny.write_scalars([0] * 33), ValueError, "32 words"),
            (lambda: tiny.write_semaphores([0], 16), ValueError, "16 words"),
            (lambda: tiny.load_program([1 << 288]), ValueError, "bundle must be"),
            (lambda: tiny.load_program(["x"]), TypeError, "not 'x'"),
            (lambda: tiny.load_program([0] * 513), ValueError, "512 bundles, not from 0 to 512"),
            (lambda: tiny.read_program(506, 7), ValueError, "512 bundles, not from 506 to 512"),
            (lambda: tiny.start(-1), ValueError, "not -1"),
            (lambda: tiny.start(None), TypeError, "not None"),
            (lambda: tiny.run(-1), ValueError, "not -1"),
            (lambda: tiny.signal(16), ValueError, "not 16"),
            (lambda: tiny.signal(0, 1 << 32), ValueError, "amount"),
            (lambda: tiny.set_watchdog(-1), ValueError, "not -1")):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        CoreModel("tiny")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        Core("tiny")  # type: ignore[arg-type]


def test_a_closed_core_says_so() -> None:
    core = CoreModel(Config.preset("tiny"))
    core.close()
    core.close()
    for call in (core.run, core.reset, core.read_state, core.counters):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.slow
# The cocotb bench of the core has depth 4, and random programs run on one of depth 5.
@pytest.mark.parametrize("changes", [
    {"array": 2, "sublanes": 1, "vmem_bytes": 2048},
    {"array": 3, "sublanes": 3, "vmem_bytes": 9216, "mac_latency": 1}],
    ids=lambda changes: f"{changes['array']}x{changes['sublanes']}")
def test_other_sizes(changes: Mapping[str, int]) -> None:
    config = dataclasses.replace(Config.preset("tiny"), **changes)
    with CoreModel(config) as core:
        test_matrix_products(core, True)
        test_cross_lane_operations(core)
        test_vector_operations_in_both_slots(core)
        test_a_stopped_program_goes_on_where_it_was(core)


def rows_pushed(asm: Assembler, config: Config) -> None:
    for group in range(config.tile_vregs):
        with asm.bundle() as b:
            b.push.weights(v[group])
    with asm.bundle() as b:
        b.push.rows_swap(v[5])


def rows_waiting(asm: Assembler, config: Config) -> None:
    rows_pushed(asm, config)
    for _ in range(config.array_latency + 4 * config.sublanes):
        with asm.bundle():
            pass


# Bundles before, the operation of the halting bundle, and the place of its result.
LATE = {
    "exp2": (None, lambda b: b.v1.exp2(v[20], v[1]), HostSpace.VREG, 20),
    "random": (None, lambda b: b.v1.random(v[20], v[1], v[2]), HostSpace.VREG, 20),
    "fadd": (None, lambda b: b.v0.fadd(v[20], v[1], v[2]), HostSpace.VREG, 20),
    "add": (None, lambda b: b.v0.add(v[20], v[1], v[2]), HostSpace.VREG, 20),
    "comparison": (None, lambda b: b.v0.ltu(m[3], v[1], v[2]), HostSpace.MASK, 0),
    "load": (None, lambda b: b.ld.load(v[20], s[0], 50), HostSpace.VREG, 20),
    "store": (None, lambda b: b.st.store(v[1], s[0], 60), HostSpace.VMEM, 60),
    "sum_lanes": (None, lambda b: b.misc.sum_lanes(v[20], v[1]), HostSpace.VREG, 20),
    "rotate_lanes": (None, lambda b: b.misc.rotate_lanes(v[20], v[1], 1), HostSpace.VREG, 20),
    "transpose_out": (None, lambda b: b.misc.transpose_out(v[20], 1), HostSpace.VREG, 20),
    "pop": (rows_waiting, lambda b: b.pop.pop(v[20]), HostSpace.VREG, 20),
    "pop of rows on their way": (rows_pushed, lambda b: b.pop.pop(v[20]), HostSpace.VREG, 20),
}


def rest(core: CoreModel, golden: GoldenCore, asm: Assembler) -> None:
    """Runs a program on both cores; on the core in RTL, only to its first idle cycle."""
    bundles = asm.assemble().bundles
    processors: list[Processor] = [core, golden]
    for processor in processors:
        processor.load_program(bundles)
        processor.start()
    golden.run(LIMIT)
    for _ in range(LIMIT):
        if core.model.peek("idle") and not core.model.peek("running"):
            return
        core.model.tick()
    raise AssertionError(f"not at rest after {LIMIT} cycles")


def read_at_once(core: CoreModel, space: HostSpace, address: int) -> np.ndarray:
    """Reads a vector with a request that the core accepts in the current cycle."""
    model, config = core.model, core.config
    model.poke("host_read__valid", 1)
    model.poke("host_read__payload", space | address << 2)
    model.poke("host_rows__ready", 1)
    assert model.peek("host_read__ready")
    rows: list[np.ndarray] = []
    for _ in range(100):
        if model.peek("host_rows__valid"):
            rows.append(model.peek_words("host_rows__payload"))
        model.tick()
        model.poke("host_read__valid", 0)
        if len(rows) == config.sublanes:
            return np.stack(rows)
    raise AssertionError(f"only {len(rows)} rows came")


@pytest.mark.parametrize("name", LATE)
def test_a_core_at_rest_has_written_everything(tiny: CoreModel, name: str) -> None:
    before, operation, space, address = LATE[name]
    golden = with_data(tiny, 16)
    asm = Assembler(tiny.config)
    load_registers(asm)
    with asm.bundle() as b:
        b.misc.transpose_in(v[1], 0)
    if before is not None:
        before(asm, tiny.config)
    with asm.bundle() as b:
        operation(b)
        b.s1.halt()
    rest(tiny, golden, asm)
    masks = sum(golden.masks[number].astype(np.uint32) << number for number in range(isa.MASKS))
    expected = {HostSpace.VREG: golden.vectors, HostSpace.VMEM: golden.vmem,
                HostSpace.MASK: np.array([masks])}[space][address]
    assert np.array_equal(read_at_once(tiny, space, address), expected)
    assert expected.any()
    assert_same(tiny, golden)


def test_a_core_at_rest_has_loaded_its_scalars(tiny: CoreModel) -> None:
    golden = with_data(tiny, 17)
    asm = Assembler(tiny.config)
    with asm.bundle() as b:
        b.s0.load(s[20], s[0], 70)
        b.s1.halt()
    rest(tiny, golden, asm)
    assert tiny.read_scalars()[20] == golden.smem[70]
    assert_same(tiny, golden)


def test_a_core_at_rest_has_fed_the_transposer(tiny: CoreModel) -> None:
    golden = with_data(tiny, 18)
    config = tiny.config
    asm = Assembler(config)
    load_registers(asm)
    for group in range(config.tile_vregs):
        with asm.bundle() as b:
            b.misc.transpose_in(v[group], group)
            if group == config.tile_vregs - 1:
                b.s1.halt()
    first = asm.here
    for group in range(config.tile_vregs):
        with asm.bundle() as b:
            b.misc.transpose_out(v[20 + group], group)
            if group == config.tile_vregs - 1:
                b.s1.halt()
    rest(tiny, golden, asm)
    for processor in (tiny, golden):
        processor.start(first)
        processor.run(LIMIT)
    assert_same(tiny, golden)


@pytest.fixture(scope="module")
def staged() -> Iterator[CoreModel]:
    with CoreModel(Config.preset("tiny", issue_cycles=3)) as model:
        yield model


@pytest.mark.parametrize("test", [
    test_scalar_operations_and_memory, test_vector_operations_in_both_slots,
    test_loads_and_stores_under_masks, test_cross_lane_operations, test_semaphores_of_the_program,
    test_a_stopped_program_goes_on_where_it_was, test_a_wait_ends_by_a_signal,
    test_host_reads_what_it_wrote, test_counters_are_cleared_and_sum_to_the_cycles,
    test_a_core_at_rest_has_loaded_its_scalars, test_a_core_at_rest_has_fed_the_transposer],
    ids=lambda test: test.__name__.removeprefix("test_"))
def test_in_three_stages(staged: CoreModel, test: Callable[[CoreModel], None]) -> None:
    """Tests of a core with ``issue_cycles`` 3."""
    test(staged)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_products_in_three_stages(staged: CoreModel, transposed: bool) -> None:
    test_matrix_products(staged, transposed)


@pytest.mark.parametrize("name", LATE)
def test_a_core_at_rest_has_written_everything_in_three_stages(staged: CoreModel,
                                                               name: str) -> None:
    test_a_core_at_rest_has_written_everything(staged, name)
