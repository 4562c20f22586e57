"""Scheduled code does the same as code in order, and reaches the expected intervals."""

import pathlib
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl.config import Config
from hdl.isa import Slot
from sim.asm.assembler import Assembler
from sim.asm.operands import Scalar
from sim.compiler.machine import Builder, VmemBuffer, emit
from sim.compiler.machine.addresses import lower_addresses
from sim.compiler.machine.ahead import weights_ahead
from sim.compiler.machine.emit import JOINED, LADDER
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import Fence, Loop, LoopVariable
from sim.compiler.machine.join import join
from sim.compiler.machine.loops import hoist
from sim.compiler.machine.overlap import Usage, overlap
from sim.compiler.machine.registers.coloring import RegisterPressureError
from sim.compiler.machine.registers.spill import spill
from sim.compiler.machine.text import bundles_text, code_text, dump_kernel
from sim.models.core.model import CoreModel
from verif.sim.compiler.kernels.harness import CONFIG as ROOMY
from verif.sim.compiler.machine.harness import run, stimulus
from verif.sim.compiler.machine.programs import Writer

TINY = Config.preset("tiny", imem_bundles=4096)
SMALL = Config.preset("small", imem_bundles=4096)


def check(config: Config, seed: int, size: int, *, flow: bool = True) -> None:
    code = Writer(config, seed, size, flow=flow).code()
    naive = run(emit(code, config, schedule=False))
    scheduled = run(emit(code, config))
    assert (naive.vmem == scheduled.vmem).all(), f"seed {seed}"
    assert (naive.smem == scheduled.smem).all(), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_code_is_unchanged(first: int) -> None:
    for seed in range(first, first + 20):
        check(TINY if seed % 3 else SMALL, seed, 10 + seed % 60, flow=seed % 2 == 0)


def test_joined_code_does_what_its_parts_do() -> None:
    """The parts use the same vectors in different buffers, as kernels do one after the other."""
    for seed in range(8):
        config = TINY if seed % 3 else SMALL
        parts = [Writer(config, seed + 1000 * at, 10 + seed, flow=seed % 2 == 0, first=at).code()
                 for at in (0, 7, 3)]
        core = GoldenCore(config)
        stimulus(core)
        for part in parts:
            run(emit(part, config, schedule=False), core)
        few = replace(LADDER[-1], joined=True)
        for options in JOINED[0], JOINED[-1]:
            joined = run(emit(join(parts), config, ladder=(options, few)))
            assert (core.vmem == joined.vmem).all(), f"seed {seed}"
            assert (core.smem == joined.smem).all(), f"seed {seed}"


def test_joined_code_compares_addresses() -> None:
    """A load, also one that moves out of a loop, follows a store to the same vector."""
    store, load, repeated = Builder(TINY), Builder(TINY), Builder(TINY)
    store.store(store.cross("sum_lanes", store.load(VmemBuffer("x", 0, 4), 1)),
                VmemBuffer("x", 0, 4), 3)
    load.store(load.load(VmemBuffer("y", 2, 4), 1), VmemBuffer("y", 2, 4), 2)
    with repeated.loop(30) as i:
        repeated.store(repeated.load(VmemBuffer("z", 3, 4), 0), VmemBuffer("w", 10, 40), i)
    code = join([part.finish() for part in (store, load, repeated)])
    joined = run(emit(code, TINY, ladder=JOINED))
    assert (joined.vmem[10:40] == joined.vmem[3]).all()
    assert (joined.vmem[4] == joined.vmem[3]).all()
    assert (joined.vmem == run(emit(code, TINY, schedule=False)).vmem).all()


def test_transfer_in_joined_code_follows_stores_to_its_vectors() -> None:
    """Joined code has one buffer for those that overlap; a fence names one of them."""
    other, b = Builder(TINY), Builder(TINY)
    other.store(other.load(VmemBuffer("x", 0, 4), 0), VmemBuffer("x", 0, 4), 2)
    result = VmemBuffer("y", 2, 4)
    b.store(b.cross("sum_lanes", b.load(VmemBuffer("z", 20, 1), 0)), result, 1)
    b.dma(0, fence=Fence(after=(result,)))
    code = emit(join([other.finish(), b.finish()]), TINY, ladder=JOINED)
    places = {name: max(at for at, bundle in enumerate(code.bundles)
                        if any(operation == name for _, operation, _ in bundle))
              for name in ("store", "dma")}
    assert places["store"] < places["dma"]


def test_loads_of_later_kernels_precede_a_transfer_in_joined_code() -> None:
    """The transfer waits for the store to its source, and the next kernel's load does not."""
    sent, source = Builder(TINY), VmemBuffer("sent", 2, 4)
    sent.store(sent.cross("sum_lanes", sent.load(source, 0)), source, 1)
    sent.dma(8, fence=Fence((source,), paced=False))
    later, other = Builder(TINY), VmemBuffer("other", 12, 4)
    later.store(later.cross("max_lanes", later.load(other, 1)), other, 3)
    code = emit(join([sent.finish(), later.finish()]), TINY, ladder=JOINED)
    at = {operands[2] if name in ("load", "store") else name: number
          for number, bundle in enumerate(code.bundles) for _, name, operands in bundle}
    assert at[13] < at[3] < at["dma"] < at[15]


@pytest.mark.parametrize("most", [2, 6])
def test_random_code_with_spilled_vectors_is_unchanged(most: int) -> None:
    sizes = []
    for seed in range(200, 208):
        spare: list[VmemBuffer] = []

        def allocate(vectors: int, spare: list[VmemBuffer] = spare) -> VmemBuffer:
            spare.append(VmemBuffer("spilled", TINY.vmem_vectors - vectors, vectors))
            return spare[0]

        code = Writer(TINY, seed, 20 + seed % 60, flow=seed % 2 == 0).code()
        naive = run(emit(code, TINY, schedule=False))
        spilled = run(emit(spill(code, most, allocate), TINY, ladder=LADDER[-2:]))
        [buffer] = spare
        assert (naive.vmem[:buffer.address] == spilled.vmem[:buffer.address]).all(), f"seed {seed}"
        assert (naive.smem == spilled.smem).all(), f"seed {seed}"
        sizes.append(buffer.vectors)
    assert max(sizes) > 10 - most


def test_joined_code_fills_the_latency_of_the_array() -> None:
    """Weights of a second product, and rotations, come before the pops of the first product."""
    def product(at: int) -> Builder:
        b = Builder(V2)
        for number in range(V2.tile_vregs):
            b.push("weights", b.load(X, at + number))
        b.push("rows_swap", b.load(Y, at))
        b.store(b.pop(), Z, at)
        return b

    rotations = Builder(V2)
    with rotations.loop(8) as i:
        rotations.store(rotations.cross("rotate_lanes", rotations.load(X, i), 3), Y, 100 + i)
    parts = [b.finish() for b in (product(0), rotations, product(20))]
    first, _, second = (estimate(emit(part, V2)) for part in parts)
    assert first == second
    joined = estimate(emit(join(parts), V2, ladder=JOINED))
    assert joined < first + second - V2.array


@pytest.mark.parametrize("last", [3, 8])
def test_rows_pass_pops_while_the_array_has_room(last: int) -> None:
    """A push that finds no room for its results would be a fault of the core."""
    b = Builder(ROOMY)
    assert ROOMY.result_vregs == 8
    for at, rows in enumerate((6, 8, last, 8)):
        for number in range(ROOMY.tile_vregs if at < 3 else 0):
            b.push("weights", b.load(X, at + number))
        for number in range(rows):
            b.push("rows" if number or at == 3 else "rows_swap", b.load(Y, number))
        for number in range(rows):
            b.store(b.pop(), Z, 8 * at + number)
    code = join([b.finish()] * 2)
    joined = emit(code, ROOMY, ladder=JOINED)
    assert (run(joined).vmem == run(emit(code, ROOMY, schedule=False)).vmem).all()
    names = [name for bundle in joined.bundles for _, name, _ in bundle]
    second = [at for at, name in enumerate(names) if name == "rows_swap"][1]
    assert names[:second].count("pop") < 6


def test_rows_stay_behind_pops_after_an_unknown_number_of_pushes() -> None:
    b = Builder(ROOMY)
    for number in range(ROOMY.tile_vregs):
        b.push("weights", b.load(X, number))
    b.push("rows_swap", b.load(Y, 0))
    with b.loop(b.scalar("add", b.smem_load(0), 5)):
        b.push("rows", b.load(Y, 1))
    for number in range(6):
        b.store(b.pop(), Z, number)
    for _ in range(4):
        b.push("rows", b.load(Y, 2))
    for number in range(4):
        b.store(b.pop(), Z, 10 + number)
    code = b.finish()
    cores = []
    for options in {"schedule": False}, {"ladder": JOINED}:
        core = GoldenCore(ROOMY)
        stimulus(core)
        core.smem[0] = 0
        cores.append(run(emit(code, ROOMY, **options), core))
    assert (cores[0].vmem == cores[1].vmem).all()


def test_accesses_to_separate_buffers_are_not_ordered_in_joined_code() -> None:
    """A third buffer overlaps both buffers; the store's index is known only at run time."""
    b, first, second = Builder(TINY), VmemBuffer("first", 0, 4), VmemBuffer("second", 4, 4)
    both = VmemBuffer("both", 0, 8)
    b.store(b.load(both, 0), both, 1)
    index = b.scalar("and", b.smem_load(0), 3)
    b.store(b.cross("sum_lanes", b.load(first, 2)), first, index)
    b.store(b.load(second, 1), second, 2)
    b.store(b.load(first, 1), first, 3)
    code = emit(b.finish(), TINY, ladder=JOINED)
    assert (run(code).vmem == run(emit(b.finish(), TINY, schedule=False)).vmem).all()
    stores = [operands[2] for bundle in code.bundles for _, name, operands in bundle
              if name == "store"]
    assert stores == [1, 6, 0, 3]


@pytest.mark.parametrize("lead", [16, None])
def test_loads_wait_until_they_are_urgent(lead: int | None) -> None:
    """The last loads are needed only at the end of a long chain of sums."""
    b = Builder(V2)
    total = b.load(X, 0)
    for _ in range(10):
        total = b.cross("sum_lanes", total)
    for number in range(20):
        b.store(b.vector("fadd", total, b.load(Y, number)), Z, number)
    code = emit(b.finish(), V2, ladder=(replace(JOINED[0], lead=lead),))
    loads = [at for at, bundle in enumerate(code.bundles)
             for _, name, _ in bundle if name == "load"]
    sums = [at for at, bundle in enumerate(code.bundles)
            for _, name, _ in bundle if name == "sum_lanes"]
    assert sum(at < sums[5] for at in loads) == (1 if lead else 21)


def product_loop_product(config: Config, depends: str) -> list[Builder]:
    """Return three kernels: a product, a loop, and a product whose weights may depend on the loop.

    ``depends`` says what the second product's weights are: ``nothing`` that the loop changes,
    vectors that the loop stores (``memory``), or the sum that it computes (``register``).
    """
    product, loop, second = (Builder(config) for _ in range(3))
    for number in range(config.tile_vregs):
        product.push("weights", product.load(X, number))
    product.push("rows_swap", product.load(Y, 0))
    product.store(product.pop(), Z, 0)
    last = loop if depends == "register" else second
    total = loop.variable(0)
    with loop.loop(40) as i:
        value = loop.load(Z, 0)
        loop.store(loop.vector("fadd", value, loop.load(X, i)), Y, i + 40)
        loop.vector("fadd", total, value, into=total)
    for number in range(config.tile_vregs):
        weights = total if depends == "register" else last.load(
            Y if depends == "memory" else X, 40 + number)
        last.push("weights", last.vector("fadd", weights, weights))
    second.push("rows_swap", second.load(Y, 40))
    second.store(second.pop(), Z, 1)
    return [product, loop, second]


@pytest.mark.parametrize("nested", [False, True])
def test_weights_stay_behind_a_loop_that_advances_their_address(nested: bool) -> None:
    b = Builder(ROOMY)
    address = b.scalar_variable(0)
    with b.loop(4) as i:
        b.store(b.load(X, i), Z, i)
    b.push("weights", b.load(X, address))
    code = b.finish()
    at = next(at for at, item in enumerate(code.body) if isinstance(item, Loop))
    loop = code.body[at]
    assert isinstance(loop, Loop)
    inner = Loop(loop.variable, 4, loop.body, steps=[(address, 1)])
    code.body[at] = Loop(LoopVariable(99), 2, [inner]) if nested else inner
    assert [type(item) for item in weights_ahead(code).body] == [type(item) for item in code.body]


@pytest.mark.parametrize("depends", ["nothing", "memory", "register"])
def test_weights_enter_the_array_before_a_loop_on_which_they_do_not_depend(depends: str) -> None:
    code = join([b.finish() for b in product_loop_product(ROOMY, depends)])
    assert (run(emit(code, ROOMY, ladder=JOINED)).vmem
            == run(emit(code, ROOMY, schedule=False)).vmem).all()
    parts = [b.finish() for b in product_loop_product(V2, depends)]
    saved = (sum(estimate(emit(part, V2)) for part in parts)
             - estimate(emit(join(parts), V2, ladder=JOINED)))
    # A tile of weights takes a cycle a row.
    assert (saved > V2.array) == (depends == "nothing")


def test_equal_code_is_emitted_once() -> None:
    for seed in range(10):
        one, same, other = (Writer(TINY, seed + more, 40).code() for more in (0, 0, 10))
        code = emit(one, TINY)
        assert emit(same, TINY) is code
        assert emit(other, TINY).bundles != code.bundles
        assert emit(same, TINY, ladder=LADDER[1:]) is not code


V2 = Config.preset("v2")
X, Y, Z = (VmemBuffer(name, 512 * number, 512) for number, name in enumerate("xyz"))


def unary(b: Builder) -> None:
    with b.loop(512) as i:
        b.store(b.vector("fneg", b.load(X, i)), Z, i)


def constant(b: Builder) -> None:
    with b.loop(512) as i:
        b.store(b.vector("fmul", b.load(X, i), 1.7), Z, i)


def binary(b: Builder) -> None:
    with b.loop(512) as i:
        b.store(b.vector("fadd", b.load(X, i), b.load(Y, i)), Z, i)


def in_place(b: Builder) -> None:
    with b.loop(512) as i:
        b.store(b.vector("fadd", b.vector("fmul", b.load(X, i), 2.5), b.load(Y, i)), Y, i)


def polynomial(b: Builder) -> None:
    with b.loop(512) as i:
        x, y = b.load(X, i), b.splat(0.123)
        for k in range(12):
            y = b.vector("fadd", b.vector("fmul", y, x), 0.1 * k + 0.01)
        b.store(y, Z, i)


def total(b: Builder) -> None:
    """A sum: each addition waits for the one before."""
    t = b.variable(0.0)
    with b.loop(512) as i:
        b.vector("fadd", t, b.load(X, i), into=t)
    b.store(t, Z, 0)


def sums(b: Builder) -> None:
    with b.loop(512) as i:
        b.store(b.cross("sum_lanes", b.load(X, i)), Z, i)


def recurrence(b: Builder) -> None:
    """Through memory: each iteration loads what the one before stored."""
    with b.loop(511) as i:
        b.store(b.vector("add", b.load(X, i), 1), X, i + 1)


@pytest.mark.parametrize(("write", "interval", "unroll"), [
    (unary, 1, None), (constant, 1, None), (binary, 2, None), (in_place, 2, None),
    (polynomial, 13, None), (sums, 8, None), (total, 4, 1), (recurrence, 7, 1),
])
def test_initiation_interval(write: Callable[[Builder], None], interval: int,
                             unroll: int | None) -> None:
    b = Builder(V2)
    write(b)
    code = hoist(lower_addresses(b.finish()), constants=12, invariants=True)
    [loop] = [item for item in code.body if isinstance(item, Loop)]
    pipeline = overlap(loop, V2, Usage(code.body), count(code.registers))
    assert pipeline is not None
    assert pipeline.schedule.interval == interval
    assert unroll is None or pipeline.unroll == unroll


def test_iterations_of_a_short_loop_wait_together() -> None:
    """A second sum along the sublanes costs less than half of its rotations: they overlap."""
    def cycles(vectors: int) -> int:
        b = Builder(V2)
        with b.loop(vectors) as i:
            total = b.load(X, i)
            for distance in (4, 2, 1):
                total = b.vector("fadd", total, b.cross("rotate_sublanes", total, distance))
            b.store(total, Z, i)
        return estimate(emit(b.finish(), V2))

    rotations = sum(2 * V2.sublanes - distance for distance in (4, 2, 1))
    assert cycles(2) - cycles(1) < rotations / 2


@pytest.mark.parametrize("seed", range(300, 330))
def test_schedules_respect_resources(seed: int) -> None:
    """Slots, and register numbers: the assembler refuses what does not exist."""
    code = emit(Writer(TINY, seed, 60).code(), TINY)
    assert sum(map(len, code.bundles)) > len(code)
    for operations in code.bundles:
        assert operations
        assert len({slot for slot, _, _ in operations}) == len(operations)
        for _, _, operands in operations:
            assert all(operand.number < 28 for operand in operands if isinstance(operand, Scalar))
    for first, end in code.atoms:
        assert 0 <= first < end <= len(code)
    assert all(not first < at < end for first, end in code.atoms for at, _ in code.atoms
               if at != first)


@pytest.mark.slow
def test_rtl_agrees_and_takes_the_estimated_cycles() -> None:
    config = ROOMY
    with CoreModel(config) as core:
        for write in (unary, constant, binary, in_place, polynomial, total, sums, recurrence):
            b = Builder(config)
            write(b)
            code = emit(b.finish(), config)
            golden = run(code)
            start = GoldenCore(config)
            stimulus(start)
            core.write_vmem(0, start.vmem)
            asm = Assembler(config)
            code.write(asm)
            with asm.bundle() as bundle:
                bundle.s1.halt()
            counters = core.run_program(asm.assemble().bundles)
            assert (core.read_vmem(0, config.vmem_vectors) == golden.vmem).all(), write.__name__
            cycles = estimate(code)
            assert abs(cycles - counters["cycles"]) <= 0.15 * counters["cycles"], write.__name__


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 412))
def test_random_code_on_the_rtl(seed: int) -> None:
    config = ROOMY
    code = emit(Writer(config, seed, 60).code(), config)
    golden = run(code)
    start = GoldenCore(config)
    stimulus(start)
    with CoreModel(config) as core:
        core.write_vmem(0, start.vmem)
        core.write_smem(0, start.smem)
        asm = Assembler(config)
        code.write(asm)
        with asm.bundle() as bundle:
            bundle.s1.halt()
        core.run_program(asm.assemble().bundles)
        assert (core.read_vmem(0, config.vmem_vectors) == golden.vmem).all()
        assert (core.read_smem(0, config.smem_words) == golden.smem).all()


def test_text_shows_loops_and_bundles() -> None:
    b = Builder(V2)
    binary(b)
    code = b.finish()
    text = code_text(code)
    assert "loop %i1 < 512:" in text
    assert "ld.load %v2, %s0, 0  # x[%i1]" in text
    listing = bundles_text(emit(code, V2))
    assert "steady_0:" in listing
    assert "s1.loop" in listing


def test_text_shows_symbols_that_are_not_linked_yet() -> None:
    b = Builder(V2)
    b.smem_store(b.symbol("row"), 0)
    code = emit(b.finish(), V2)
    [holder] = [number for number, operations in enumerate(code.bundles)
                if any("row" in operands for _, _, operands in operations)]
    assert bundles_text(code).startswith(f"# Symbol row is 0 in bundle {holder}.\n")


def test_dumps_do_not_replace_each_other(tmp_path: pathlib.Path) -> None:
    b = Builder(V2)
    unary(b)
    machine = b.finish()
    code = emit(machine, V2)
    for _ in range(2):
        dump_kernel(tmp_path / "kernels", "negate", machine, code)
    first, second = sorted((tmp_path / "kernels").iterdir())
    assert (first.name, second.name) == ("000-negate.txt", "001-negate.txt")
    assert first.read_text(encoding="utf-8").startswith("# negate: 18 bundles, 519 cycles")


@pytest.mark.parametrize("level", range(len(LADDER)))
def test_every_way_to_schedule_is_right(level: int) -> None:
    """Those with fewer registers are used for large code only; here they are forced."""
    for seed in range(500 + 10 * level, 510 + 10 * level):
        code = Writer(TINY, seed, 40).code()
        naive = run(emit(code, TINY, schedule=False))
        scheduled = run(emit(code, TINY, ladder=LADDER[level:]))
        assert (naive.vmem == scheduled.vmem).all(), f"seed {seed}"
        assert (naive.smem == scheduled.smem).all(), f"seed {seed}"


def test_many_addresses_fit_the_scalar_registers() -> None:
    """Each of 30 accesses advances differently, so that not all have a register of their own."""
    b = Builder(SMALL)
    with b.loop(2) as i, b.loop(2) as j:
        value = b.load(VmemBuffer("x", 0, 400), i + j)
        for number in range(30):
            b.store(b.vector("add", value, number), VmemBuffer("x", 0, 400),
                    i * (number + 1) + 3 * number * j + 40)
            with b.when("eq", b.value(j), 1):
                b.smem_store(number, 0)
    code = b.finish()
    assert (run(emit(code, SMALL)).vmem == run(emit(code, SMALL, ladder=LADDER[-1:])).vmem).all()


def test_pushed_registers_are_overwritten_late() -> None:
    """The array takes a row a cycle: an earlier bundle that overwrites the register is held."""
    b = Builder(V2)
    with b.loop(20) as step:
        for number in range(16):
            vector = b.load(X, step + number)
            b.push("rows", vector)
            b.push("weights", b.vector("fadd", vector, b.load(Y, step + number)))
    bundles, checked = emit(b.finish(), V2).bundles, 0
    for at, bundle in enumerate(bundles):
        for [register] in (operands for slot, _, operands in bundle if slot is Slot.PUSH):
            written = [operands[0] for later in bundles[at:at + 8] for slot, name, operands in later
                       if slot in (Slot.V0, Slot.V1, Slot.LOAD)]
            assert register not in written
            checked += 1
    assert checked == 32


def test_too_many_live_vectors_are_refused() -> None:
    b = Builder(SMALL)
    values = [b.load(VmemBuffer("x", 0, 40), number) for number in range(33)]
    with b.when("eq", b.smem_load(0), 1):
        for number, value in enumerate(values):
            b.store(value, VmemBuffer("y", 40, 40), number)
    code = b.finish()
    with pytest.raises(RegisterPressureError, match="vector registers must be at most 32, not 33"):
        emit(code, SMALL)
    # With room in vector memory, some are spilled.
    spilled: list[VmemBuffer] = []

    def allocate(vectors: int) -> VmemBuffer:
        spilled.append(VmemBuffer("spilled", 100, vectors))
        return spilled[-1]

    core = GoldenCore(SMALL)
    stimulus(core)
    core.smem[0] = 1
    loaded = core.vmem[:33].copy()
    run(emit(code, SMALL, allocate=allocate), core)
    assert (core.vmem[40:73] == loaded).all()
    assert len(spilled) == 1
    assert 1 <= spilled[0].vectors <= 20


def test_sums_in_spilled_vectors() -> None:
    """Variables that loops change are loaded and stored in each iteration."""
    x, y = VmemBuffer("x", 0, 60), VmemBuffer("y", 60, 40)
    b = Builder(SMALL)
    sums = [b.variable(b.load(x, number)) for number in range(40)]
    with b.loop(3), b.loop(5) as step:
        for number, value in enumerate(sums):
            b.assign(value, b.vector("add", value, b.load(x, step + number)))
    for number, value in enumerate(sums):
        b.store(value, y, number)
    core = GoldenCore(SMALL)
    stimulus(core)
    loaded = core.vmem[:60].copy()
    code = b.finish()
    with pytest.raises(RegisterPressureError):
        emit(code, SMALL)
    run(emit(code, SMALL, allocate=lambda vectors: VmemBuffer("spilled", 100, vectors)), core)
    for number in range(40):
        added = loaded[number:number + 5].sum(axis=0, dtype=np.uint32)
        assert (core.vmem[60 + number] == loaded[number] + 3 * added).all()
