"""The golden core: every operation, every fault, and programs."""

import gc
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, cast

import numpy as np
import pytest

from golden.core import GoldenCore
from golden.dma import Descriptor
from golden.mxu import tile_matmul
from golden.vpu import compare, evaluate
from golden.xlu import max_lanes, sum_lanes
from hdl import isa
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace, pack_remote
from hdl.encoding import pack, unpack
from hdl.isa import (
    OPERATIONS,
    SLOTS,
    Fault,
    Kind,
    MiscOp,
    Operation,
    PushOp,
    ScalarOp,
    Slot,
    VectorOp,
)

SEED = 20240615
TINY = Config.preset("tiny")
ODD = Config(array=6, sublanes=3, vmem_bytes=72 * 7, smem_words=5, imem_bundles=9)
MASK32 = 0xFFFFFFFF

# Sources
I0, I1, I2 = isa.FIRST_IMMEDIATE, isa.FIRST_IMMEDIATE + 1, isa.FIRST_IMMEDIATE + 2


def inline(number: int) -> int:
    return isa.INLINE_BASE + number


def vector(number: int) -> int:
    return isa.VECTOR_FLAG | number


def do(slot: str, name: str, *operands: int) -> tuple[Slot, dict[str, int]]:
    """Return an operation of a slot; ``operands`` are in the order of the instruction set."""
    for operation in OPERATIONS:
        if slot in operation.slots and operation.name == name:
            assert len(operands) == len(operation.operands), name
            fields = {"op": operation.op.value}
            for operand, value in zip(operation.operands, operands, strict=True):
                fields[operand.field] = value
            return Slot(slot), fields
    raise AssertionError(name)


def bundle(*parts: tuple[Slot, dict[str, int]], imm: tuple[int, ...] = ()) -> int:
    slots = dict(parts)
    assert len(slots) == len(parts)
    return pack(slots, imm)


HALT = do("s1", "halt")


def random_golden(config: Config = TINY, seed: int = SEED) -> GoldenCore:
    """Return a core with random contents, active weights, another tile loaded, and two results."""
    rng = np.random.default_rng(seed)
    golden = GoldenCore(config)
    golden.scalars[1:] = rng.integers(0, 1 << 32, isa.SCALAR_REGISTERS - 1, np.uint32)
    golden.vectors[:] = rng.normal(size=golden.vectors.shape).astype(np.float32).view(np.uint32)
    golden.vectors[8:] = rng.integers(0, 1 << 32, golden.vectors[8:].shape, np.uint32)
    golden.masks[1:] = rng.integers(0, 2, golden.masks[1:].shape)
    golden.vmem[:] = rng.integers(0, 1 << 32, golden.vmem.shape, np.uint32)
    golden.smem[:] = rng.integers(0, 1 << 32, golden.smem.shape, np.uint32)
    golden.semaphores[:] = rng.integers(0, 1 << 16, isa.SEMAPHORES, np.uint32)
    golden.transposer[:] = rng.integers(0, 1 << 32, golden.transposer.shape, np.uint32)
    load = [bundle(do("push", "weights", number)) for number in range(config.tile_vregs)]
    rows = [bundle(do("push", "rows_swap", 3)), bundle(do("push", "rows", 4))]
    for one in [*load, *rows, *load]:
        assert execute(golden, one), golden.fault
    golden.stop()
    return golden


def execute(golden: GoldenCore, one: int, pc: int = 0) -> bool:
    """Execute one bundle at address ``pc``; return whether the core executed it."""
    golden.stop()
    golden.load_program([one], at=pc)
    golden.start(pc)
    return golden.step()


def everything(golden: GoldenCore) -> dict[str, Any]:
    """Return the core's whole state, including the parts that `read_state` omits."""
    state = golden.read_state()
    state["transposer"] = golden.transposer.copy()
    state["next_weights"] = golden.next_weights.view(np.uint16).copy()
    state["weights"] = golden.weights.view(np.uint16).copy()
    state["transposed"] = golden.transposed
    state["results"] = np.array(golden.results)
    state["waiting"] = golden.waiting
    return state


def changes(before: Mapping[str, Any], after: Mapping[str, Any],
            ignored: Sequence[str] = ()) -> set[tuple[int | str, ...]]:
    """Return the differences of two states, as tuples (name, index along the first axis)."""
    found: set[tuple] = set()
    for name in before.keys() - set(ignored):
        old, new = np.asarray(before[name]), np.asarray(after[name])
        if new.shape != old.shape:
            found.add((name, "shape"))
        elif new.ndim == 0:
            if new != old:
                found.add((name,))
        else:
            found |= {(name, int(place[0])) for place in np.argwhere(new != old)}
    return found


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


# State


def test_everything_is_zero_at_first_but_m0() -> None:
    golden = GoldenCore(ODD)
    state = everything(golden)
    assert state["scalars"].shape == (32,)
    assert state["vectors"].shape == (32, 3, 6)
    assert state["masks"].shape == (8, 3, 6)
    assert state["vmem"].shape == (7, 3, 6)
    assert state["smem"].shape == (5,)
    assert state["semaphores"].shape == (16,)
    assert golden.program == [0] * 9
    assert state.pop("masks").tolist() == [[[number == 0] * 6] * 3 for number in range(8)]
    assert not any(np.any(part) for part in state.values())
    assert golden.fault is Fault.NONE
    assert golden.config is ODD


def test_state_that_is_read_is_a_copy() -> None:
    golden = random_golden()
    state = golden.read_state()
    assert set(state) == {"scalars", "vectors", "masks", "vmem", "smem", "semaphores", "pc",
                          "running", "fault", "loaded", "active", "held"}
    assert set(state) - set(golden.read_state(array=False)) == {"loaded", "active", "held"}
    assert (state["loaded"], state["active"], state["held"]) == (TINY.tile_vregs, True, 2)
    before = everything(golden)
    for part in state.values():
        if isinstance(part, np.ndarray):
            part[...] = 1
    for result in golden.results:
        result[...] = 1
    assert not changes(before, everything(golden))


# Scalar operations


def shift_right(a: int, b: int) -> int:
    return a // 2**b if b < 64 else -1 if a < 0 else 0


SCALAR = {
    ScalarOp.ADD: lambda a, b: a + b,
    ScalarOp.SUB: lambda a, b: a - b,
    ScalarOp.MUL: lambda a, b: a * b,
    ScalarOp.AND: lambda a, b: a & b,
    ScalarOp.OR: lambda a, b: a | b,
    ScalarOp.XOR: lambda a, b: a ^ b,
    ScalarOp.SHL: lambda a, b: a * 2**b if b < 32 else 0,
    ScalarOp.SHR: shift_right,
    ScalarOp.SAR: lambda a, b: shift_right(signed(a), b),
    ScalarOp.EQ: lambda a, b: a == b,
    ScalarOp.NE: lambda a, b: a != b,
    ScalarOp.LT: lambda a, b: signed(a) < signed(b),
    ScalarOp.LTU: lambda a, b: a < b,
    ScalarOp.MIN: lambda a, b: b if signed(b) < signed(a) else a,
    ScalarOp.MAX: lambda a, b: b if signed(b) > signed(a) else a,
}
BRANCHES = {
    ScalarOp.BEQ: lambda a, b: a == b,
    ScalarOp.BNE: lambda a, b: a != b,
    ScalarOp.BLT: lambda a, b: signed(a) < signed(b),
    ScalarOp.BGE: lambda a, b: signed(a) >= signed(b),
    ScalarOp.BLTU: lambda a, b: a < b,
    ScalarOp.BGEU: lambda a, b: a >= b,
}
CORNERS = [0, 1, 2, 31, 32, 33, 1000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFE0, 0xFFFFFFFF]


def scalar_pairs() -> Iterator[Any]:
    rng = np.random.default_rng(SEED)
    yield from ((a, b) for a in CORNERS for b in CORNERS)
    yield from rng.integers(0, 1 << 32, (100, 2)).tolist()
    yield from ((int(a), int(b)) for a, b in zip(rng.integers(0, 1 << 32, 100),
                                                 rng.integers(0, 40, 100), strict=True))


@pytest.mark.parametrize("op", SCALAR)
def test_scalar_operation(op: ScalarOp) -> None:
    golden = GoldenCore(TINY)
    for slot in ("s0", "s1"):
        one = bundle(do(slot, op.name.lower(), 3, 1, 2))
        other = bundle(do(slot, op.name.lower(), 1, 1, I1), imm=(5, 7))
        for a, b in scalar_pairs():
            golden.scalars[1:4] = a, b, 0x12345678
            assert execute(golden, one)
            expected = int(SCALAR[op](a, b)) & MASK32
            assert golden.scalars[:4].tolist() == [0, a, b, expected], (a, b)
            assert execute(golden, other)
            assert golden.scalars[1] == int(SCALAR[op](a, 7)) & MASK32, a


def test_scalar_sources() -> None:
    golden = GoldenCore(TINY)
    rng = np.random.default_rng(SEED)
    golden.scalars[1:] = rng.integers(0, 1 << 32, 31, np.uint32)
    old = golden.scalars.copy()
    imm = (0xDEADBEEF, 0, 0x80000001)
    expected = dict(enumerate(old.tolist())) | {32 + k: word for k, word in enumerate(imm)}
    expected |= {code: (code - 48) & MASK32 for code in range(40, 64)}
    for code, word in expected.items():
        golden.scalars[:] = old
        assert execute(golden, bundle(do("s0", "add", 9, 0, code), imm=imm))
        assert golden.scalars[9] == word, code
        assert execute(golden, bundle(do("v1", "move", 4, code), imm=imm))
        # s9, which the bundle before has written, may be the source.
        assert (golden.vectors[4] == word).all(), code


def test_s0_is_zero_whatever_is_written_to_it() -> None:
    golden = random_golden()
    for parts in ((do("s0", "add", 0, 1, 2),), (do("s0", "load", 0, 0, inline(1)),),
                  (do("s1", "call", 0, inline(3)),), (do("s1", "loop", 0, inline(3)),),
                  (do("misc", "read_semaphore", 0, 2),)):
        assert execute(golden, bundle(*parts))
        assert golden.scalars[0] == 0
    # Several slots may write s0 in one bundle.
    assert execute(golden, bundle(do("s0", "add", 0, 1, 2), do("s1", "add", 0, 1, 2),
                                   do("misc", "read_semaphore", 0, 2)))
    assert golden.scalars[0] == 0
    assert execute(golden, bundle(do("s0", "add", 5, 0, 0), do("v0", "move", 6, 0)))
    assert golden.scalars[5] == 0
    assert not golden.vectors[6].any()


def test_scalar_memory() -> None:
    golden = random_golden(ODD)
    word = 0xABCD0000
    for address in range(5):
        for offset, base in ((inline(0), address), (inline(-8), address + 8),
                             (inline(3), (address - 3) & MASK32), (7, (address - 9) & MASK32),
                             (I2, (address + 1) & MASK32)):
            golden.scalars[7] = 9
            word += 1
            golden.scalars[1:3] = base, word
            before = everything(golden)
            assert execute(golden, bundle(do("s0", "load", 3, 1, offset), imm=(0, 0, MASK32)))
            assert golden.scalars[3] == before["smem"][address]
            assert execute(golden, bundle(do("s0", "store", 2, 1, offset), imm=(0, 0, MASK32)))
            assert golden.smem[address] == word
            assert changes(before, everything(golden), ("scalars", "pc", "running")) == {
                ("smem", address)}


# Branches


@pytest.mark.parametrize("op", BRANCHES)
def test_conditional_branch(op: ScalarOp) -> None:
    golden = GoldenCore(TINY)
    for number in range(3):
        imm = tuple(17 if k == number else 200 + k for k in range(3))
        one = bundle(do("s1", op.name.lower(), 1, 2, number), imm=imm)
        for a, b in scalar_pairs():
            golden.scalars[1:3] = a, b
            assert execute(golden, one, pc=4)
            assert golden.pc == (17 if BRANCHES[op](a, b) else 5), (a, b)


def test_jump_call_loop_and_halt() -> None:
    golden = GoldenCore(TINY)
    golden.scalars[3] = 77
    assert execute(golden, bundle(do("s1", "jump", 3)), pc=9)
    assert golden.pc == 77
    assert execute(golden, bundle(do("s1", "call", 3, 3)), pc=9)
    # The target is read before the register is written.
    assert (golden.pc, golden.scalars[3]) == (77, 10)
    for count, taken, left in ((0, True, MASK32), (1, False, 0), (2, True, 1),
                               (0x80000000, True, 0x7FFFFFFF)):
        golden.scalars[4] = count
        assert execute(golden, bundle(do("s1", "loop", 4, I0), imm=(3,)), pc=20)
        assert (golden.pc, golden.scalars[4]) == (3 if taken else 21, left)
    assert execute(golden, bundle(do("s1", "loop", 0, inline(5))), pc=20)
    assert golden.pc == 5
    # The target may be the counter itself.
    golden.scalars[4] = 12
    assert execute(golden, bundle(do("s1", "loop", 4, 4)), pc=20)
    assert (golden.pc, golden.scalars[4]) == (12, 11)
    assert execute(golden, bundle(HALT, do("s0", "add", 5, 0, inline(6))), pc=30)
    assert (golden.pc, golden.running, golden.fault) == (30, False, Fault.NONE)
    assert golden.scalars[5] == 6
    assert not golden.step()
    assert golden.pc == 30


@pytest.mark.parametrize("config", [TINY, ODD])
def test_program_counter_beyond_the_memory(config: Config) -> None:
    last = config.imem_bundles - 1
    golden = GoldenCore(config)
    assert execute(golden, bundle(do("s0", "add", 1, 0, inline(3))), pc=last)
    assert (golden.pc, golden.running, golden.fault) == (last + 1, True, Fault.NONE)
    before = everything(golden)
    assert not golden.step()
    assert changes(before, everything(golden)) == {("running",), ("fault",)}
    assert (golden.pc, golden.fault) == (last + 1, Fault.PC_RANGE)
    for target in (config.imem_bundles, 1 << 20, MASK32):
        one = bundle(do("s1", "call", 2, I0), do("s0", "add", 3, 0, inline(1)), imm=(target,))
        golden.load_program([one])
        golden.start(0)
        assert golden.run(10) == 1
        assert (golden.pc, golden.running, golden.fault) == (target, False, Fault.PC_RANGE)
        assert golden.scalars[2:4].tolist() == [1, 1]
        golden.start(target)
        assert golden.fault is Fault.NONE
        assert golden.run(10) == 0
        assert (golden.pc, golden.running, golden.fault) == (target, False, Fault.PC_RANGE)
    golden.load_program([bundle(do("s1", "jump", I0), imm=(last,))])
    golden.load_program([bundle(HALT)], at=last)
    golden.start(0)
    assert golden.run(10) == 2
    assert (golden.pc, golden.fault) == (last, Fault.NONE)


# Vector operations


SPECIAL = (VectorOp.SELECT, VectorOp.LANE, VectorOp.SUBLANE)
VECTORS = [operation for operation in OPERATIONS if isinstance(operation.op, VectorOp)]


@pytest.mark.parametrize("config", [TINY, ODD])
@pytest.mark.parametrize("operation", VECTORS, ids=lambda one: one.name)
def test_vector_operation_reads_and_writes_the_registers_that_it_names(operation: Operation,
                                                                       config: Config) -> None:
    rng = np.random.default_rng(SEED)
    golden = random_golden(config)
    for slot in operation.slots:
        for code in (vector(5), vector(31), vector(6), 0, 3, I1, inline(-3)):
            for d in (5, 6, 2):
                before = everything(golden)
                number = int(rng.integers(1, 8))
                values = {"d": d, "a": 6, "b": code, "m": number}
                if "b" not in [one.field for one in operation.operands]:
                    values["b"] = 127
                if operation.operands[1:2] and operation.operands[1].kind is Kind.MASK_IN:
                    values |= {"a": d - 2, "b": number}
                one = pack({slot: {"op": operation.op.value, **values}}, (1, 0x3FC00000, 3))
                assert execute(golden, one), golden.fault
                vectors, masks = before["vectors"], before["masks"]
                file, expected = vector_result(operation, values, before)
                assert np.array_equal(getattr(golden, file)[d], expected), (slot, code, d)
                assert changes({"vectors": vectors, "masks": masks},
                               everything(golden)) <= {(file, d)}
                assert not changes(before, everything(golden),
                                   ("vectors", "masks", "pc", "running"))


def vector_result(operation: Operation, values: Mapping[str, int],
                  before: Mapping[str, Any]) -> Any:
    """Return the register file that a vector operation writes, and the value that it writes."""
    op, vectors, masks = operation.op, before["vectors"], before["masks"]
    assert isinstance(op, VectorOp)
    shape = vectors.shape[1:]
    a, code, m = vectors[values["a"]], values["b"], masks[values["m"]]
    bits = {VectorOp.MAND: lambda x, y: x and y, VectorOp.MOR: lambda x, y: x or y,
            VectorOp.MXOR: lambda x, y: x != y, VectorOp.MANDN: lambda x, y: x and not y}
    if op in bits:
        pairs = zip(masks[values["a"]].ravel(), masks[code].ravel(), strict=True)
        return "masks", np.reshape([bool(bits[op](x, y)) for x, y in pairs], shape)
    sources = {0: 0, 3: before["scalars"][3], I1: 0x3FC00000, inline(-3): (1 << 32) - 3}
    b = vectors[code & 31] if code in (vector(5), vector(6), vector(31)) else np.full(
        shape, sources.get(code, 0), np.uint32)
    if operation.operands[0].kind is Kind.MASK_OUT:
        return "masks", compare(op, a, b)
    if op is VectorOp.SELECT:
        return "vectors", [[x if z else y for x, y, z in zip(*rows, strict=True)]
                           for rows in zip(a, b, m, strict=True)]
    if op is VectorOp.LANE:
        return "vectors", [list(range(shape[1]))] * shape[0]
    if op is VectorOp.SUBLANE:
        return "vectors", [[number] * shape[1] for number in range(shape[0])]
    return "vectors", evaluate(op, a, b)


def test_mask_operations_with_m0() -> None:
    golden = random_golden()
    masks = golden.masks.copy()
    assert execute(golden, bundle(do("v0", "mxor", 3, 0, 4), do("v1", "mxor", 5, 6, 0)))
    assert np.array_equal(golden.masks[3], ~masks[4])
    assert np.array_equal(golden.masks[5], ~masks[6])
    assert execute(golden, bundle(do("v0", "mandn", 3, 0, 4), do("v1", "mand", 5, 0, 0)))
    assert np.array_equal(golden.masks[3], ~masks[4])
    assert golden.masks[5].all()


@pytest.mark.parametrize("config", [TINY, ODD])
def test_vector_memory(config: Config) -> None:
    golden = random_golden(config)
    words = config.vmem_vectors
    for address in (0, 1, words - 1):
        for base, offset in ((address, inline(0)), ((address - 15) & MASK32, inline(15)),
                             (address + 8, inline(-8)), ((address - 5) & MASK32, I0)):
            golden.scalars[1] = base
            before = everything(golden)
            assert execute(golden, bundle(do("ld", "load", 9, 1, offset), imm=(5,)))
            assert np.array_equal(golden.vectors[9], before["vmem"][address])
            assert changes(before, everything(golden), ("pc", "running")) <= {("vectors", 9)}
            for m in (0, 3):
                before = everything(golden)
                golden.vectors[10] += 1
                assert execute(golden, bundle(do("st", "store", 10, 1, offset, m), imm=(5,)))
                expected = before["vmem"][address].copy()
                for place in np.argwhere(golden.masks[m]):
                    expected[tuple(place)] = golden.vectors[10][tuple(place)]
                assert np.array_equal(golden.vmem[address], expected)
                assert changes(before, everything(golden), ("pc", "running")) == {
                    ("vmem", address), ("vectors", 10)}


# One bundle


def test_all_operations_of_a_bundle_read_before_any_writes() -> None:
    golden = random_golden()
    old = everything(golden)
    assert execute(golden, bundle(
        do("s0", "add", 1, 2, 0), do("s1", "add", 2, 1, 0),
        do("v0", "move", 8, vector(9)), do("v1", "move", 9, vector(8)),
        do("ld", "load", 10, 0, inline(4)), do("st", "store", 10, 0, inline(4), 0),
        do("push", "rows", 11), do("pop", "pop", 11),
        do("misc", "rotate_lanes", 12, 8, inline(1))))
    assert golden.scalars[1:3].tolist() == old["scalars"][[2, 1]].tolist()
    assert np.array_equal(golden.vectors[8], old["vectors"][9])
    assert np.array_equal(golden.vectors[9], old["vectors"][8])
    assert np.array_equal(golden.vectors[10], old["vmem"][4])
    assert np.array_equal(golden.vmem[4], old["vectors"][10])
    assert np.array_equal(golden.vectors[11], old["results"][0])
    assert np.array_equal(golden.vectors[12], np.roll(old["vectors"][8], 1, axis=1))
    assert golden.held == 2
    pushed = tile_matmul(old["vectors"][11].view(np.float32), golden.weights).view(np.uint32)
    assert np.array_equal(golden.results[1], pushed)
    # Operations read registers that other operations of the same bundle write.
    golden.vectors[20] = golden.vectors[21] + 1
    old = everything(golden)
    assert execute(golden, bundle(
        do("s0", "add", 5, 0, inline(3)), do("s1", "loop", 6, 5),
        do("v0", "move", 20, 5), do("v1", "eq", 2, 20, vector(21)),
        do("ld", "load", 21, 0, inline(1)), do("st", "store", 20, 0, inline(1), 2),
        do("misc", "transpose_in", 20, inline(1))))
    assert golden.pc == old["scalars"][5]
    assert (golden.vectors[20] == old["scalars"][5]).all()
    assert not golden.masks[2].any()
    assert np.array_equal(golden.vectors[21], old["vmem"][1])
    assert np.array_equal(golden.vmem[1], np.where(old["masks"][2], old["vectors"][20],
                                                    old["vmem"][1]))
    assert np.array_equal(golden.transposer[2:4], old["vectors"][20])


def test_an_empty_bundle_goes_to_the_next() -> None:
    golden = random_golden()
    before = everything(golden)
    golden.load_program([0] * TINY.imem_bundles)
    golden.start(3)
    assert golden.run(20) == 20
    assert changes(before, everything(golden)) == {("pc",), ("running",)}
    assert golden.pc == 23


def touched(operation: Operation, fields: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return the registers and semaphores that an operation may change, by its operands' kinds."""
    files = {Kind.SCALAR_OUT: "scalars", Kind.SCALAR_INOUT: "scalars", Kind.VECTOR_OUT: "vectors",
             Kind.MASK_OUT: "masks"}
    places = {(files[operand.kind], fields[operand.field]) for operand in operation.operands
              if operand.kind in files}
    if operation.op in (MiscOp.WAIT, MiscOp.SIGNAL) and isinstance(operation.op, MiscOp):
        places.add(("semaphores", fields["d"]))
    return places


LINKED = Config.preset("tiny", link_bytes=8)
LEGAL = {Kind.SOURCE: inline(1), Kind.VECTOR_SOURCE: vector(7), Kind.MASK_OUT: 5, Kind.MASK_IN: 6,
         Kind.SEMAPHORE: 11, Kind.IMMEDIATE: 1, Kind.SCALAR_OUT: 12, Kind.SCALAR_IN: 0,
         Kind.SCALAR_INOUT: 13, Kind.VECTOR_OUT: 14, Kind.VECTOR_IN: 15}
CASES = [(slot, operation) for operation in OPERATIONS for slot in operation.slots]


CHIP = 16
"""Scalar register that names a core of another chip."""


def legal_fields(operation: Operation) -> dict[str, int]:
    """Return legal values of the operands' fields."""
    fields = {operand.field: LEGAL[operand.kind] for operand in operation.operands}
    return fields | ({"a": CHIP} if operation.unit is isa.Unit.LINKS else {})


def ready_for(operation: Operation) -> GoldenCore:
    """Return a core on which the operation has no fault if its operands are those of `LEGAL`."""
    golden = random_golden(LINKED if operation.links else TINY)
    if operation.op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T) and isinstance(operation.op, PushOp):
        golden.loaded = 0
    if operation.unit is isa.Unit.OTHER_CORE:
        golden.connect(GoldenCore(golden.config, golden.hbm))
    if operation.unit is isa.Unit.LINKS:
        golden.torus = 3, 4
        golden.scalars[CHIP] = pack_remote(-2, 3, 1)
    if operation.unit is isa.Unit.DMA:
        # To HBM, so that nothing changes here.
        transfer = Descriptor(DmaSpace.VMEM, DmaSpace.HBM, 4, source_address=3)
        golden.smem[1:1 + DESCRIPTOR_WORDS] = transfer.pack()
    return golden


@pytest.mark.parametrize(("slot", "operation"), CASES, ids=lambda one: getattr(one, "name", one))
def test_operation_changes_what_its_operands_say_and_unused_fields_do_nothing(
        slot: Slot, operation: Operation) -> None:
    rng = np.random.default_rng(SEED)
    named = legal_fields(operation)
    outcomes: list[dict[str, Any]] = []
    for _ in range(6):
        fields = {name: int(rng.integers(1 << width)) for name, width in SLOTS[slot].items()}
        if not outcomes:
            fields = dict.fromkeys(SLOTS[slot], 0)
        fields |= named | {"op": operation.op.value}
        golden = ready_for(operation)
        before = everything(golden)
        assert execute(golden, pack({slot: fields}, (1, 2, 3))), (fields, golden.fault)
        after = everything(golden)
        ignored = ["pc", "running"]
        if isinstance(operation.op, PushOp | isa.PopOp):
            ignored += ["loaded", "held", "transposed", "weights", "next_weights", "results"]
        if operation.op is MiscOp.TRANSPOSE_IN:
            ignored.append("transposer")
        if operation.op is isa.StoreOp.STORE:
            assert changes({"vmem": before["vmem"]}, after) == {("vmem", 1)}
            ignored.append("vmem")
        if operation.op is ScalarOp.STORE:
            assert changes({"smem": before["smem"]}, after) == {("smem", 1)}
            ignored.append("smem")
        assert changes(before, after, ignored) <= touched(operation, fields)
        outcomes.append(after)
    for other in outcomes[1:]:
        assert not changes(outcomes[0], other)


# Faults

# Operations of other slots, which must have no effect.
BYSTANDERS = (do("s0", "add", 30, 0, inline(1)), do("s1", "jump", inline(9)),
              do("v0", "move", 30, inline(1)), do("v1", "mxor", 7, 7, 0),
              do("ld", "load", 29, 0, inline(0)), do("st", "store", 28, 0, inline(2), 0),
              do("push", "rows", 1), do("pop", "pop", 27),
              do("misc", "signal", 3, inline(1)))


def assert_fault(golden: GoldenCore, one: int, fault: Fault, pc: int = 0) -> None:
    golden.stop()
    golden.load_program([one], at=pc)
    golden.start(pc)
    before = everything(golden)
    assert not golden.step()
    assert golden.fault is fault
    assert type(golden.fault) is Fault
    assert changes(before, everything(golden)) == {("running",), ("fault",)}
    assert not golden.step()
    assert golden.run(5) == 0
    assert golden.pc == pc


def with_valid_operations(part: tuple[Slot, dict[str, int]]) -> int:
    """Return a bundle with this operation in its slot, and `BYSTANDERS` in the other slots."""
    parts = dict(BYSTANDERS)
    parts[part[0]] = part[1]
    return pack(parts, (0, 0, 0))


def test_bystanders_do_happen_without_a_fault() -> None:
    golden = random_golden()
    before = everything(golden)
    assert execute(golden, bundle(*BYSTANDERS)), golden.fault
    assert changes(before, everything(golden)) >= {
        ("scalars", 30), ("pc",), ("vectors", 30), ("masks", 7), ("vectors", 29), ("vmem", 2),
        ("vectors", 27), ("semaphores", 3), ("results", 0)}


@pytest.mark.parametrize("slot", list(SLOTS))
def test_operation_codes_that_a_slot_does_not_have(slot: Slot) -> None:
    known = {operation.op.value for operation in OPERATIONS if slot in operation.slots}
    golden = random_golden()
    unknown = set(range(1, 1 << SLOTS[slot]["op"])) - known
    if slot is not Slot.POP:
        assert unknown
    for code in unknown:
        assert_fault(golden, with_valid_operations((slot, {"op": code})), Fault.ILLEGAL)


ILLEGAL = {
    Kind.SOURCE: range(35, 40),
    Kind.VECTOR_SOURCE: [*range(35, 40), *range(96, 128)],
    Kind.MASK_OUT: [0, *range(8, 32)],
    Kind.MASK_IN: range(8, 128),
    Kind.SEMAPHORE: range(16, 32),
    Kind.IMMEDIATE: range(3, 32),
}


@pytest.mark.parametrize(("slot", "operation"), CASES, ids=lambda one: getattr(one, "name", one))
def test_operands_that_do_not_exist(slot: Slot, operation: Operation) -> None:
    golden = ready_for(operation)
    legal = legal_fields(operation)
    for operand in operation.operands:
        for value in range(1 << SLOTS[slot][operand.field]):
            fields = legal | {"op": operation.op.value, operand.field: value}
            if value in ILLEGAL.get(operand.kind, ()):
                assert_fault(golden, with_valid_operations((slot, fields)), Fault.ILLEGAL)
    assert execute(golden, pack({slot: legal | {"op": operation.op.value}}, (1, 2, 3)))


def test_reserved_bits() -> None:
    position = sum(sum(fields.values()) for fields in SLOTS.values())
    golden = random_golden()
    assert isa.RESERVED_BITS > 0
    for bit in range(isa.RESERVED_BITS):
        assert_fault(golden, bundle(*BYSTANDERS) | 1 << position + bit, Fault.ILLEGAL)
    assert execute(golden, bundle(*BYSTANDERS))


SCALAR_WRITERS = (do("s0", "add", 9, 1, 2), do("s0", "load", 9, 0, inline(0)),
                  do("s1", "add", 9, 1, 2), do("s1", "call", 9, 1), do("s1", "loop", 9, 1),
                  do("misc", "read_semaphore", 9, 3))
VECTOR_WRITERS = (do("v0", "fadd", 9, 1, vector(2)), do("v1", "tanh", 9, 1),
                  do("v0", "lane", 9), do("ld", "load", 9, 0, inline(0)), do("pop", "pop", 9),
                  do("misc", "sum_lanes", 9, 1), do("misc", "transpose_out", 9, inline(0)))
MASK_WRITERS = (do("v0", "feq", 3, 1, vector(2)), do("v1", "mand", 3, 1, 2),
                do("v0", "mor", 3, 1, 2), do("v1", "geu", 3, 1, inline(2)))


@pytest.mark.parametrize("writers", [SCALAR_WRITERS, VECTOR_WRITERS, MASK_WRITERS])
def test_two_operations_that_write_the_same_register(
        writers: Sequence[tuple[Slot, dict[str, int]]]) -> None:
    golden = random_golden()
    tried = 0
    for one, other in combinations(writers, 2):
        if one[0] == other[0]:
            continue
        tried += 1
        assert_fault(golden, bundle(one, other), Fault.CONFLICT)
        elsewhere = other[0], other[1] | {"d": other[1]["d"] - 1}
        assert execute(random_golden(), bundle(one, elsewhere)), (one, other)
    assert tried >= 4


def test_files_do_not_conflict_with_each_other() -> None:
    assert execute(random_golden(), bundle(
        do("s0", "add", 5, 1, 2), do("v0", "eq", 5, 1, vector(2)), do("v1", "move", 5, inline(1)),
        do("st", "store", 5, 0, inline(5), 5), do("push", "rows", 5),
        do("misc", "signal", 5, inline(1))))
    # A store's source is in field d, too, but is not written.
    assert execute(random_golden(), bundle(
        do("s0", "store", 5, 0, inline(2)), do("s1", "add", 5, 5, inline(2)),
        do("v1", "move", 5, inline(1)), do("st", "store", 5, 0, inline(5), 5)))


def at_fault(name: str,
             config: Config = TINY) -> tuple[GoldenCore, tuple[Slot, dict[str, int]], Fault]:
    """Return a core, an operation that raises a fault on it, and that fault."""
    golden = random_golden(config)
    golden.scalars[1:4] = 0xFFFFFFF0, config.vmem_vectors, config.smem_words
    golden.semaphores[4] = 0xFFFFFFFE
    lanes, sublanes, groups = config.lanes, config.sublanes, config.tile_vregs
    fault, _, which = name.partition(" ")
    operations = {
        "smem_range load": do("s0", "load", 5, 3, inline(0)),
        "smem_range store": do("s0", "store", 5, 3, inline(0)),
        "smem_range negative": do("s0", "load", 5, 0, inline(-1)),
        "vmem_range load": do("ld", "load", 5, 2, inline(0)),
        "vmem_range store": do("st", "store", 5, 2, inline(0), 1),
        "vmem_range negative": do("st", "store", 5, 0, inline(-1), 1),
        "index_range rotate_lanes": do("misc", "rotate_lanes", 5, 6, inline(lanes)),
        "index_range rotate_sublanes": do("misc", "rotate_sublanes", 5, 6, inline(sublanes)),
        "index_range broadcast_lane": do("misc", "broadcast_lane", 5, 6, inline(lanes)),
        "index_range broadcast_sublane": do("misc", "broadcast_sublane", 5, 6, inline(sublanes)),
        "index_range transpose_in": do("misc", "transpose_in", 6, inline(groups)),
        "index_range transpose_out": do("misc", "transpose_out", 5, inline(groups)),
        "index_range negative": do("misc", "rotate_lanes", 5, 6, inline(-1)),
        "weight_load complete": do("push", "weights", 6),
        "weight_load complete_t": do("push", "weights_t", 6),
        "weight_load mixed": do("push", "weights", 6),
        "weight_load mixed_t": do("push", "weights_t", 6),
        "weight_load swap": do("push", "rows_swap", 6),
        "weight_load swap_none": do("push", "rows_swap", 6),
        "weight_load inactive": do("push", "rows", 6),
        "fifo_overflow rows": do("push", "rows", 6),
        "fifo_overflow with_swap": do("push", "rows_swap", 6),
        "fifo_underflow": do("pop", "pop", 6),
        "semaphore": do("misc", "signal", 4, inline(2)),
        "semaphore large": do("misc", "signal", 4, 1),
    }
    if which in ("mixed", "mixed_t", "swap", "swap_none"):
        golden.loaded = 0 if which == "swap_none" else 1
        golden.transposed = which == "mixed"
    elif which == "inactive":
        golden.active = False
    elif fault == "fifo_overflow":
        while golden.held < config.result_vregs:
            assert execute(golden, bundle(do("push", "rows", 7)))
    elif fault == "fifo_underflow":
        while golden.held:
            assert execute(golden, bundle(do("pop", "pop", 7)))
    return golden, operations[name], Fault[fault.upper()]


FAULTS = ["smem_range load", "smem_range store", "smem_range negative", "vmem_range load",
          "vmem_range store", "vmem_range negative", "index_range rotate_lanes",
          "index_range rotate_sublanes", "index_range broadcast_lane",
          "index_range broadcast_sublane", "index_range transpose_in",
          "index_range transpose_out", "index_range negative", "weight_load complete",
          "weight_load complete_t", "weight_load mixed", "weight_load mixed_t",
          "weight_load swap", "weight_load swap_none", "weight_load inactive",
          "fifo_overflow rows", "fifo_overflow with_swap", "fifo_underflow", "semaphore",
          "semaphore large"]


@pytest.mark.parametrize("config", [TINY, ODD])
@pytest.mark.parametrize("name", FAULTS)
def test_fault_stops_the_core_and_changes_nothing_else(name: str, config: Config) -> None:
    golden, part, fault = at_fault(name, config)
    others = {"push": "fifo_overflow" in name or "weight_load" in name,
              "pop": fault is Fault.FIFO_UNDERFLOW}
    # The operation has the fault alone, and among valid operations.
    assert_fault(golden, bundle(part), fault, pc=5)
    parts = dict(BYSTANDERS)
    if any(others.values()):
        del parts[Slot.PUSH]
        del parts[Slot.POP]
    parts[part[0]] = part[1]
    assert_fault(golden, pack(parts), fault, pc=5)
    # The core can run again after the fault.
    golden.load_program([bundle(do("s0", "add", 8, 0, inline(7)))], at=6)
    golden.start(6)
    assert golden.fault is Fault.NONE
    assert golden.step()
    assert golden.scalars[8] == 7


def test_limits_themselves_are_no_faults() -> None:
    config = ODD
    golden = random_golden(config)
    golden.scalars[1:4] = 0, config.vmem_vectors - 1, config.smem_words - 1
    golden.semaphores[4] = 0xFFFFFFFE
    for one in (do("s0", "load", 5, 3, inline(0)), do("ld", "load", 5, 2, inline(0)),
                do("misc", "rotate_lanes", 5, 6, inline(5)),
                do("misc", "rotate_sublanes", 5, 6, inline(2)),
                do("misc", "broadcast_lane", 5, 6, inline(5)),
                do("misc", "broadcast_sublane", 5, 6, inline(2)),
                do("misc", "transpose_in", 5, inline(1)),
                do("misc", "transpose_out", 5, inline(1)),
                do("misc", "signal", 4, inline(1))):
        assert execute(golden, bundle(one)), one
    assert golden.semaphores[4] == 0xFFFFFFFF


def test_the_least_fault_counts() -> None:
    golden = random_golden()
    golden.semaphores[4] = 0xFFFFFFFF
    while golden.held:
        assert execute(golden, bundle(do("pop", "pop", 7)))
    parts = {
        Fault.SMEM_RANGE: do("s0", "load", 5, 0, inline(-1)),
        Fault.VMEM_RANGE: do("st", "store", 5, 0, inline(-1), 1),
        Fault.INDEX_RANGE: do("misc", "rotate_lanes", 6, 6, inline(-1)),
        Fault.WEIGHT_LOAD: do("push", "weights", 6),
        Fault.FIFO_UNDERFLOW: do("pop", "pop", 7),
    }
    for count in range(1, len(parts) + 1):
        for chosen in combinations(parts, count):
            one = bundle(*(parts[fault] for fault in chosen))
            assert_fault(golden, one, min(chosen))
            # CONFLICT and ILLEGAL take precedence over all of these faults.
            assert_fault(golden, bundle(
                *(parts[fault] for fault in chosen), do("v0", "move", 9, inline(1)),
                do("v1", "move", 9, inline(1))), Fault.CONFLICT)
            assert_fault(golden, bundle(
                *(parts[fault] for fault in chosen), do("v0", "move", 9, inline(1)),
                do("v1", "move", 9, 36)), Fault.ILLEGAL)
    parts[Fault.SEMAPHORE] = do("misc", "signal", 4, inline(1))
    assert_fault(golden, bundle(parts[Fault.SEMAPHORE], parts[Fault.FIFO_UNDERFLOW]),
                 Fault.FIFO_UNDERFLOW)
    assert_fault(golden, bundle(parts[Fault.SEMAPHORE]), Fault.SEMAPHORE)
    # A push can have two faults.
    golden = random_golden()
    while golden.held < TINY.result_vregs:
        assert execute(golden, bundle(do("push", "rows", 7)))
    golden.loaded = 1
    assert_fault(golden, bundle(do("push", "rows_swap", 6)), Fault.WEIGHT_LOAD)
    assert_fault(golden, bundle(do("push", "rows", 6)), Fault.FIFO_OVERFLOW)
    # Push and pop of one bundle do not make room for each other.
    assert_fault(golden, bundle(do("push", "rows", 6), do("pop", "pop", 5)), Fault.FIFO_OVERFLOW)
    while golden.held:
        assert execute(golden, bundle(do("pop", "pop", 7)))
    assert_fault(golden, bundle(do("push", "rows", 6), do("pop", "pop", 5)), Fault.FIFO_UNDERFLOW)


# Semaphores


def test_waiting_holds_the_whole_bundle() -> None:
    golden = random_golden()
    golden.semaphores[:] = 0
    parts = dict(BYSTANDERS)
    parts[Slot.MISC] = do("misc", "wait", 3, I0)[1]
    golden.load_program([pack(parts, (5,))])
    golden.start(0)
    before = everything(golden)
    assert golden.run(10) == 0
    assert golden.waiting
    assert golden.running
    assert changes(before, everything(golden)) == {("waiting",)}
    golden.signal(3, 4)
    golden.signal(2, 100)
    assert golden.run(10) == 0
    assert golden.semaphores[3] == 4
    golden.signal(3)
    assert golden.step()
    assert not golden.waiting
    assert golden.semaphores.tolist() == [0, 0, 100, *[0] * 13]
    assert golden.pc == 9
    assert golden.scalars[30] == 1


def test_waits_compare_without_sign_and_subtract() -> None:
    golden = GoldenCore(TINY)
    for count, least, goes in ((0, 0, True), (5, 5, True), (4, 5, False), (0x80000000, 1, True),
                               (1, 0x80000000, False), (MASK32, MASK32, True), (7, 3, True)):
        golden.semaphores[15] = count
        golden.scalars[1] = least
        assert execute(golden, bundle(do("misc", "wait", 15, 1))) is goes
        assert golden.semaphores[15] == (count - least if goes else count)


def test_a_fault_of_a_waiting_bundle_is_a_fault() -> None:
    golden = random_golden()
    golden.semaphores[3] = 0
    wait = do("misc", "wait", 3, inline(1))
    assert_fault(golden, bundle(wait, do("ld", "load", 5, 0, inline(-1))), Fault.VMEM_RANGE)
    # Without a fault, the core waits, and then gets one from a signal of the host.
    assert not execute(golden, bundle(wait))
    assert golden.waiting
    golden.semaphores[2] = MASK32
    before = everything(golden)
    golden.signal(2, 1)
    assert (golden.fault, golden.running, golden.waiting) == (Fault.SEMAPHORE, False, False)
    assert changes(before, everything(golden)) == {("fault",), ("running",), ("waiting",)}


def test_the_first_fault_is_kept_until_the_next_start() -> None:
    golden = random_golden()
    golden.semaphores[2] = MASK32
    assert_fault(golden, bundle(do("ld", "load", 5, 0, inline(-1))), Fault.VMEM_RANGE)
    before = everything(golden)
    golden.signal(2, 1)
    assert not changes(before, everything(golden))
    golden.load_program([0])
    golden.start(0)
    golden.stop()
    assert golden.fault is Fault.NONE
    # A core that the host has stopped has no fault yet.
    golden.signal(2, 1)
    assert (golden.fault, golden.pc) == (Fault.SEMAPHORE, 0)
    assert golden.semaphores[2] == MASK32


def test_reading_and_signalling_semaphores() -> None:
    golden = random_golden()
    for number in range(16):
        old = int(golden.semaphores[number])
        assert execute(golden, bundle(do("misc", "signal", number, 5)))\
            is (old + int(golden.scalars[5]) <= MASK32)
        golden.scalars[5] = number + 1
        now = int(golden.semaphores[number])
        assert execute(golden, bundle(do("misc", "signal", number, 5)))
        assert golden.semaphores[number] == now + number + 1
        assert execute(golden, bundle(do("misc", "read_semaphore", 6, number)))
        assert golden.scalars[6] == now + number + 1


def test_stopping_and_going_on() -> None:
    golden = GoldenCore(TINY)
    golden.load_program([bundle(do("s0", "add", 1, 1, inline(1)))] * 5 + [bundle(HALT)])
    golden.start(0)
    assert golden.run(2) == 2
    with pytest.raises(RuntimeError, match="a program is running, at bundle 2: stop it"):
        golden.start(5)
    assert golden.pc == 2
    golden.stop()
    assert (golden.running, golden.pc, golden.fault) == (False, 2, Fault.NONE)
    assert golden.run(100) == 0
    golden.start(golden.pc)
    assert golden.run(100) == 4
    assert (golden.running, golden.pc, golden.scalars[1]) == (False, 5, 5)


def test_a_watchdog_from_outside_stops_a_program_that_waits() -> None:
    golden = GoldenCore(TINY)
    golden.load_program([bundle(do("misc", "wait", 3, inline(1))), bundle(HALT)])
    golden.start(0)
    assert golden.run(9) == 0
    before = everything(golden)
    golden.stop(Fault.WATCHDOG)
    assert (golden.fault, golden.pc) == (Fault.WATCHDOG, 0)
    assert changes(before, everything(golden)) == {("fault",), ("running",), ("waiting",)}
    with pytest.raises(TypeError, match="fault must be a Fault, not 11"):
        golden.stop(cast(Any, 11))
    golden.signal(3)
    golden.start(0)
    assert golden.run(9) == 2
    assert golden.fault is Fault.NONE


# Programs


def test_program_sums_the_scalar_memory() -> None:
    golden = random_golden()
    program = [
        bundle(do("s0", "add", 1, 0, I0), do("s1", "add", 2, 0, inline(0)), imm=(256,)),
        bundle(do("s0", "add", 3, 0, inline(0)), do("v0", "lane", 1), do("v1", "sublane", 2)),
        bundle(do("s0", "load", 4, 3, inline(0)), do("s1", "add", 3, 3, inline(1))),
        bundle(do("s0", "add", 2, 2, 4), do("s1", "loop", 1, inline(2)),
               do("v0", "add", 1, 1, vector(2))),
        bundle(do("s0", "store", 2, 0, inline(7)), HALT)]
    total = int(golden.smem.sum(dtype=np.uint64)) & MASK32
    golden.load_program(program)
    golden.start(0)
    assert golden.run(10_000) == 2 + 2 * 256 + 1
    assert not golden.running
    assert (golden.pc, golden.fault) == (4, Fault.NONE)
    assert golden.smem[7] == total
    assert golden.scalars[1] == 0
    assert golden.vectors[1].tolist() == [[lane + 256 * s for lane in range(4)] for s in range(2)]


def test_program_calls_and_returns() -> None:
    golden = GoldenCore(TINY)
    program = [bundle(do("s1", "call", 31, I0), imm=(100,)),
               bundle(do("s1", "call", 31, I0), do("s0", "add", 1, 1, 1), imm=(100,)),
               bundle(HALT)]
    # Fibonacci numbers by recursion through a stack in scalar memory.
    routine = [bundle(do("s0", "add", 1, 1, inline(3))), bundle(do("s1", "jump", 31))]
    golden.load_program(program)
    golden.load_program(routine, at=100)
    golden.start(0)
    assert golden.run(100) == 7
    assert (golden.pc, golden.running) == (2, False)
    assert golden.scalars[1] == (0 + 3) * 2 + 3
    assert golden.scalars[31] == 2


def recursive_program() -> tuple[int, list[int]]:
    """Return the start address and bundles of a program for s1 = fib(s1).

    s2 is the stack pointer, and s31 holds the return address.
    """
    fib, base = 10, 17
    return fib, [
        bundle(do("s1", "blt", 1, inline(2), 0), do("s0", "add", 2, 2, inline(3)), imm=(base,)),
        bundle(do("s0", "store", 31, 2, inline(-1))),
        bundle(do("s0", "store", 1, 2, inline(-2)), do("s1", "add", 3, 0, inline(-1))),
        bundle(do("s0", "add", 1, 1, inline(-1)), do("s1", "call", 31, I0), imm=(fib,)),
        bundle(do("s0", "load", 3, 2, inline(-2)), do("s1", "add", 4, 1, inline(0))),
        bundle(do("s0", "store", 4, 2, inline(-3)), do("s1", "add", 1, 3, inline(-2))),
        bundle(do("s1", "jump", I0), imm=(19,)),
        bundle(do("s0", "add", 2, 2, inline(-3)), do("s1", "jump", 31)),
        0,
        bundle(do("s1", "call", 31, I0), imm=(fib,)),
        bundle(do("s0", "load", 4, 2, inline(-3))),
        bundle(do("s0", "load", 31, 2, inline(-1)), do("s1", "add", 1, 1, 4)),
        bundle(do("s0", "add", 2, 2, inline(-3)), do("s1", "jump", 31))]


def test_program_recurses_through_a_stack() -> None:
    fib, routine = recursive_program()
    golden = GoldenCore(TINY)
    golden.load_program([bundle(do("s0", "add", 1, 0, inline(10)), do("s1", "call", 31, I0),
                                 imm=(fib,)), bundle(HALT)])
    golden.load_program(routine, at=fib)
    golden.start(0)
    executed = golden.run(100_000)
    assert (golden.pc, golden.fault) == (1, Fault.NONE)
    assert golden.scalars[1] == 55
    assert golden.scalars[2] == 0
    assert executed > 1_000


def load_weights(config: Config, first: int, kind: str = "weights") -> list[int]:
    return [bundle(do("push", kind, first + number)) for number in range(config.tile_vregs)]


@pytest.mark.parametrize("config", [TINY, ODD, Config.preset("small")])
@pytest.mark.parametrize("kind", ["weights", "weights_t"])
def test_program_multiplies_matrices(config: Config, kind: str) -> None:
    rng = np.random.default_rng(SEED)
    golden = GoldenCore(config)
    lanes, sublanes, groups = config.lanes, config.sublanes, config.tile_vregs
    first, second = rng.normal(size=(2, lanes, lanes)).astype(np.float32)
    x = rng.normal(size=(5, sublanes, lanes)).astype(np.float32)
    shape = golden.vectors[:groups].shape
    for number, weights in enumerate((first, second)):
        straight = weights if kind == "weights" else weights.T
        golden.vectors[groups * number:groups * (number + 1)] = np.ascontiguousarray(
            straight).view(np.uint32).reshape(shape)
    golden.vectors[20:25] = x.view(np.uint32)
    # The second tile loads while the first one computes, and swaps with the third rows.
    program = [
        *load_weights(config, 0, kind),
        bundle(do("push", "rows_swap", 20)),
        *load_weights(config, groups, kind),
        bundle(do("push", "rows", 21)),
        bundle(do("push", "rows_swap", 22), do("pop", "pop", 10)),
        # Registers whose rows have been pushed can be overwritten.
        bundle(do("v0", "move", 22, inline(0)), do("v1", "move", 0, inline(0))),
        bundle(do("push", "rows", 23), do("pop", "pop", 11)),
        bundle(do("pop", "pop", 12)), bundle(do("pop", "pop", 13)), bundle(HALT)]
    executed = 0
    for start in range(0, len(program), config.imem_bundles - 1):
        part = program[start:start + config.imem_bundles - 1]
        golden.load_program([*part, bundle(HALT)])
        golden.start(0)
        executed += golden.run(100)
        assert (golden.running, golden.fault) == (False, Fault.NONE)
    assert executed >= len(program)
    results = golden.vectors[10:14].view(np.float32)
    for number in range(4):
        expected = tile_matmul(x[number], first if number < 2 else second)
        assert np.array_equal(results[number].view(np.uint32), expected.view(np.uint32)), number
        truth = x[number].astype(float) @ (first if number < 2 else second).astype(float)
        assert np.allclose(results[number], truth, atol=0.1 * lanes**0.5)
    assert (golden.held, golden.loaded, golden.active) == (0, 0, True)


def test_array_holds_as_many_results_as_the_configuration_says() -> None:
    golden = random_golden()
    rng = np.random.default_rng(SEED)
    pushed = [tile_matmul(golden.vectors[number].view(np.float32), golden.weights)
              for number in (3, 4)]
    while golden.held < TINY.result_vregs:
        number = int(rng.integers(32))
        pushed.append(tile_matmul(golden.vectors[number].view(np.float32), golden.weights))
        assert execute(golden, bundle(do("push", "rows", number)))
    assert len(pushed) == TINY.result_vregs == 8
    assert not execute(golden, bundle(do("push", "rows", 0)))
    for expected in pushed:
        assert execute(golden, bundle(do("pop", "pop", 5)))
        assert np.array_equal(golden.vectors[5], expected.view(np.uint32))
    assert not execute(golden, bundle(do("pop", "pop", 5)))


def test_loads_of_weights_start_anew_after_each_swap() -> None:
    golden = random_golden()
    assert golden.loaded == TINY.tile_vregs == 2
    assert execute(golden, bundle(do("push", "rows_swap", 1)))
    for kind in ("weights_t", "weights"):
        for one in load_weights(TINY, 9, kind):
            assert execute(golden, one)
        assert golden.transposed is (kind == "weights_t")
        assert_fault(golden, bundle(do("push", kind, 1)), Fault.WEIGHT_LOAD)
        assert execute(golden, bundle(do("push", "rows_swap", 2)))
        assert_fault(golden, bundle(do("push", "rows_swap", 2)), Fault.WEIGHT_LOAD)
        tile = golden.vectors[9:11].reshape(4, 4).view(np.float32)
        tile = tile.T if kind == "weights_t" else tile
        expected = tile_matmul(golden.vectors[2].view(np.float32), np.ascontiguousarray(tile))
        assert np.array_equal(golden.results[-1], expected.view(np.uint32))


def test_rows_keep_the_weights_that_were_active_when_they_were_pushed() -> None:
    golden = random_golden()
    while golden.held:
        assert execute(golden, bundle(do("pop", "pop", 5)))
    expected = []
    # Nothing is popped until rows of three tiles are in flight.
    for tile in range(3):
        if tile:
            for load in load_weights(TINY, 2 * tile):
                assert execute(golden, load)
        assert execute(golden, bundle(do("push", "rows_swap", 6)))
        assert execute(golden, bundle(do("push", "rows", 7)))
        weights = golden.vectors[2 * tile:2 * tile + 2].reshape(4, 4).view(np.float32)
        expected += [tile_matmul(golden.vectors[number].view(np.float32), weights)
                     for number in (6, 7)]
    expected = [one.view(np.uint32) for one in expected]
    assert len({one.tobytes() for one in expected}) == 6
    for one in expected:
        assert execute(golden, bundle(do("pop", "pop", 5)))
        assert np.array_equal(golden.vectors[5], one)


def test_rows_before_the_first_swap_are_a_fault_even_with_weights_loaded() -> None:
    golden = GoldenCore(TINY)
    assert_fault(golden, bundle(do("push", "rows", 1)), Fault.WEIGHT_LOAD)
    for one in load_weights(TINY, 0):
        assert execute(golden, one)
    assert_fault(golden, bundle(do("push", "rows", 1)), Fault.WEIGHT_LOAD)
    assert execute(golden, bundle(do("push", "rows_swap", 1)))
    assert execute(golden, bundle(do("push", "rows", 1)))


@pytest.mark.parametrize("config", [TINY, ODD])
def test_program_transposes_a_tile(config: Config) -> None:
    golden = random_golden(config)
    groups = config.tile_vregs
    matrix = golden.vectors[8:8 + groups].reshape(config.lanes, config.lanes).copy()
    for group in reversed(range(groups)):
        assert execute(golden, bundle(do("misc", "transpose_in", 8 + group, inline(group))))
    for group in range(groups):
        assert execute(golden, bundle(do("misc", "transpose_out", 20 + group, inline(group))))
    got = golden.vectors[20:20 + groups].reshape(config.lanes, config.lanes)
    assert got.tolist() == [list(column) for column in zip(*matrix.tolist(), strict=True)]


@pytest.mark.parametrize("config", [TINY, ODD])
def test_cross_lane_operations(config: Config) -> None:
    golden = random_golden(config)
    sublanes, lanes = config.sublanes, config.lanes
    a = golden.vectors[9].copy()
    for b in range(lanes):
        golden.scalars[1] = b
        assert execute(golden, bundle(do("misc", "rotate_lanes", 5, 9, 1)))
        assert execute(golden, bundle(do("misc", "broadcast_lane", 6, 9, 1)))
        for lane in range(lanes):
            assert np.array_equal(golden.vectors[5][:, (lane + b) % lanes], a[:, lane])
            assert np.array_equal(golden.vectors[6][:, lane], a[:, b])
    for b in range(sublanes):
        assert execute(golden, bundle(do("misc", "rotate_sublanes", 5, 9, inline(b))))
        assert execute(golden, bundle(do("misc", "broadcast_sublane", 6, 9, inline(b))))
        for s in range(sublanes):
            assert np.array_equal(golden.vectors[5][(s + b) % sublanes], a[s])
            assert np.array_equal(golden.vectors[6][s], a[b])
    for register in (2, 9):
        assert execute(golden, bundle(do("misc", "sum_lanes", 5, register)))
        assert execute(golden, bundle(do("misc", "max_lanes", 6, register)))
        assert np.array_equal(golden.vectors[5], sum_lanes(golden.vectors[register]))
        assert np.array_equal(golden.vectors[6], max_lanes(golden.vectors[register]))
    numbers = golden.vectors[2].view(np.float32)
    assert execute(golden, bundle(do("misc", "sum_lanes", 5, 2), do("s0", "add", 1, 0, 0)))
    assert np.allclose(golden.vectors[5].view(np.float32), numbers.sum(1, keepdims=True),
                       atol=1e-5)


# Random bundles


def random_bundle(rng: np.random.Generator) -> int:
    """Return a bundle with mostly valid operations in some slots, and random unused fields."""
    slots = {}
    for slot, widths in SLOTS.items():
        if rng.random() < 0.5:
            continue
        choice: list[Operation] = [one for one in OPERATIONS if slot in one.slots]
        operation = choice[rng.integers(len(choice))]
        fields = {name: int(rng.integers(1 << width)) for name, width in widths.items()}
        fields["op"] = operation.op.value
        for operand in operation.operands:
            if rng.random() < 0.02:
                continue
            if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE) and rng.random() < 0.8:
                fields[operand.field] = inline(int(rng.integers(0, 3)))
            elif operand.kind in ILLEGAL:
                while fields[operand.field] in ILLEGAL[operand.kind]:
                    fields[operand.field] = int(rng.integers(1 << widths[operand.field]))
            elif operand.kind is Kind.SCALAR_IN:
                fields[operand.field] = int(rng.integers(0, 3))
        slots[slot] = fields
    return pack(slots, tuple(int(word) for word in rng.integers(0, 40, isa.IMMEDIATES)))


def written_by(one: int) -> set[tuple[str, ...] | tuple[str, int]]:
    """Return what state a bundle may change, according to its fields."""
    slots, _, _ = unpack(one)
    places: set[tuple[str, ...] | tuple[str, int]] = {("pc",), ("running",)}
    for slot, fields in slots.items():
        operation = isa.operation(slot, fields["op"])
        if operation is not None:
            places |= touched(operation, fields)
    return places


@pytest.mark.parametrize("config", [TINY, ODD])
def test_random_bundles_change_what_they_name_or_nothing(config: Config) -> None:
    rng = np.random.default_rng(SEED)
    golden = random_golden(config)
    golden.scalars[1:3] = 0, 1
    outcomes = dict.fromkeys(Fault, 0)
    for count in range(1_500):
        one = random_bundle(rng)
        before = golden.read_state(array=False)
        state = everything(golden) if count % 4 == 0 else None
        if execute(golden, one):
            changed = changes(before, golden.read_state(array=False), ("vmem", "smem", "fault"))
            assert changed <= written_by(one), (SEED, count, hex(one))
        elif not golden.waiting:
            assert not golden.running
            assert golden.fault is not Fault.NONE
            unchanged = state or before
            after = everything(golden) if state else golden.read_state(array=False)
            assert changes(unchanged, after, ("pc", "running", "fault", "waiting")) == set(), (
                SEED, count, hex(one))
        outcomes[golden.fault] += 1
        if count % 10 == 0:
            golden = random_golden(config, SEED + count)
            golden.scalars[1:3] = 0, 1
    assert outcomes[Fault.NONE] > 100
    for fault in (Fault.ILLEGAL, Fault.CONFLICT, Fault.WEIGHT_LOAD):
        assert outcomes[fault] > 10, fault


def test_bundles_of_random_bits_never_raise() -> None:
    rng = np.random.default_rng(SEED)
    golden = random_golden()
    for _ in range(500):
        one = int.from_bytes(rng.bytes(isa.BUNDLE_BITS // 8), "little")
        keep = int.from_bytes(rng.bytes(isa.BUNDLE_BITS // 8), "little")
        execute(golden, one)
        execute(golden, one & keep & ~(0xFFFF << 150))


def test_a_bundle_means_the_same_whenever_it_is_executed_again() -> None:
    rng = np.random.default_rng(SEED)
    bundles = [random_bundle(rng) for _ in range(TINY.imem_bundles)]
    order = rng.integers(0, len(bundles), 600).tolist()
    kept = random_golden()
    kept.scalars[1:3] = 0, 1
    fresh = random_golden()
    fresh.scalars[1:3] = 0, 1
    for number in order:
        for golden in (kept, fresh):
            golden.stop()
            golden.load_program(bundles)
            golden.start(number)
        # The fresh core decodes every bundle anew.
        fresh.forget_bundles()
        assert kept.step() == fresh.step()
        assert kept.fault is fresh.fault
    assert not changes(everything(kept), everything(fresh))
    assert len(kept._cache) > 100


def test_a_core_without_decoded_bundles_is_freed_at_once() -> None:
    """No collection of garbage is needed if the core is not connected to another one."""
    golden = random_golden()
    core = weakref.ref(golden)
    golden.forget_bundles()
    gc.disable()
    try:
        del golden
        assert core() is None
    finally:
        gc.enable()


def test_decoded_bundles_do_not_pile_up() -> None:
    golden = GoldenCore(TINY)
    for word in range(2_500):
        assert execute(golden, bundle(do("s0", "add", 1, 0, I0), imm=(word,)))
        assert golden.scalars[1] == word
    assert len(golden._cache) <= 1024


# Arguments


def test_programs_are_loaded_where_they_are_wanted() -> None:
    golden = GoldenCore(ODD)
    golden.load_program([1, 2, 3], at=6)
    assert golden.program == [0, 0, 0, 0, 0, 0, 1, 2, 3]
    golden.load_program(iter([9]))
    golden.load_program([], at=9)
    assert golden.program == [9, 0, 0, 0, 0, 0, 1, 2, 3]


MACHINE = GoldenCore(TINY)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: GoldenCore(cast(Any, "tiny")), TypeError, "config must be a Config, not 'tiny'"),
    (lambda: MACHINE.load_program([0, cast(Any, "nop")]), TypeError,
     "bundle 1 must be an integer, not 'nop'"),
    (lambda: MACHINE.load_program([1 << 288]), ValueError, "bundle 0 must fit 288 bits, not 0x1"),
    (lambda: MACHINE.load_program([-1]), ValueError, "bundle 0 must fit 288 bits, not -0x1"),
    (lambda: MACHINE.load_program([0, 0], at=511), ValueError,
     "bundles must lie within 512 bundles of instruction memory, not take 2 from "
     "address 511 on"),
    (lambda: MACHINE.load_program([], at=513), ValueError, "at must be from 0 to 512, not 513"),
    (lambda: MACHINE.load_program([], at=cast(Any, 1.0)), TypeError,
     "at must be an integer, not 1.0"),
    (lambda: MACHINE.start(-1), ValueError, "pc must be from 0 to 4294967295, not -1"),
    (lambda: MACHINE.start(1 << 32), ValueError, "pc must be from 0 to 4294967295"),
    (lambda: MACHINE.start(cast(Any, None)), TypeError, "pc must be an integer, not None"),
    (lambda: MACHINE.signal(16), ValueError, "index must be from 0 to 15, not 16"),
    (lambda: MACHINE.signal(0, -1), ValueError, "amount must be from 0 to 4294967295, not -1"),
    (lambda: MACHINE.signal(cast(Any, "0")), TypeError, "index must be an integer, not '0'"),
    (lambda: MACHINE.run(-1), ValueError, "max_bundles must be at least 0, not -1"),
    (lambda: MACHINE.run(cast(Any, 1.5)), TypeError, "max_bundles must be an integer, not 1.5"),
    (lambda: MACHINE.run(True), TypeError, "max_bundles must be an integer, not True"),
])
def test_wrong_arguments_are_refused(call: Callable[..., Any], error: type[Exception],
                                     message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
