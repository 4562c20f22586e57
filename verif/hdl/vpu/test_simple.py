"""The vector unit's operations of one cycle in Verilog against the golden ones."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.vpu import compare, evaluate
from hdl.isa import OPERATIONS, SIMPLE_LATENCY, Kind, Unit, VectorOp
from hdl.vpu.simple import STAGES, Simple
from sim.verilated.model import Model
from verif.hdl.vpu.units import (
    CORNERS,
    assert_same,
    corner_pairs,
    in_python,
    integer_pairs,
    model_of,
    number_pairs,
)

SEED = 20250313
SIMPLE = {operation.op: operation for operation in OPERATIONS
          if isinstance(operation.op, VectorOp) and operation.unit is Unit.SIMPLE}
MASKS: dict[VectorOp, Callable[..., np.ndarray]] = {
    VectorOp.MAND: np.logical_and, VectorOp.MOR: np.logical_or, VectorOp.MXOR: np.logical_xor,
    VectorOp.MANDN: lambda p, q: p & ~q}


def writes_mask(op: VectorOp) -> bool:
    return any(operand.kind is Kind.MASK_OUT for operand in SIMPLE[op].operands)


def expected(op: VectorOp, a: NDArray[np.uint32], b: NDArray[np.uint32], p: NDArray[np.uint8],
             q: NDArray[np.uint8], lane: NDArray[np.uint8],
             sublane: NDArray[np.uint8]) -> NDArray[np.uint32]:
    match op:
        case VectorOp.SELECT:
            return np.where(p, a, b)
        case VectorOp.LANE:
            return lane.astype(np.uint32)
        case VectorOp.SUBLANE:
            return sublane.astype(np.uint32)
        case _ if op in MASKS:
            return MASKS[op](p != 0, q != 0).astype(np.uint32)
        case _ if writes_mask(op):
            return compare(op, a, b).astype(np.uint32)
        case _:
            return evaluate(op, a, b)


def inputs(rng: np.random.Generator, a: NDArray[np.uint32],
           b: NDArray[np.uint32]) -> dict[str, np.ndarray]:
    count = len(a)
    return {"a": a, "b": b,
            "p": rng.integers(0, 2, count).astype(np.uint8),
            "q": rng.integers(0, 2, count).astype(np.uint8),
            "lane": rng.integers(0, 256, count).astype(np.uint8),
            "sublane": rng.integers(0, 8, count).astype(np.uint8)}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with model_of("vpu_simple", Simple) as model:
        model.reset()
        yield model


@pytest.fixture(params=SIMPLE, ids=lambda op: op.name.lower())
def op(request: pytest.FixtureRequest) -> VectorOp:
    return request.param


def check(model: Model, op: VectorOp, a: NDArray[np.uint32],
          b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    driven = inputs(np.random.default_rng(SEED), a, b)
    output = "flag" if writes_mask(op) else "result"
    model.poke("enable", 1)
    model.poke("op", op.value)
    got = model.run(driven, [output])[output][:, 0]
    assert_same(op.name, SEED, got, expected(op, **driven), **driven)
    return got


def test_all_operations_are_there() -> None:
    assert len(SIMPLE) == 36
    # A cycle for the reads, and one for the write.
    assert Simple().latency == STAGES == SIMPLE_LATENCY - 2


def test_corners(model: Model, op: VectorOp) -> None:
    got = check(model, op, *corner_pairs())
    assert len(np.unique(got)) > 1


def test_random_operands(model: Model, op: VectorOp) -> None:
    rng = np.random.default_rng(SEED)
    for pairs in (integer_pairs(rng, 60_000), number_pairs(rng, 60_000)):
        got = check(model, op, *pairs)
        assert len(np.unique(got)) > 1


def test_numbers_beside_each_other(model: Model, op: VectorOp) -> None:
    # Operands that comparisons must tell apart: other sign, neighbours, equal.
    rng = np.random.default_rng(SEED + 1)
    a = np.concatenate([CORNERS, rng.integers(0, 1 << 32, 5000, np.uint32)])
    a, change = (words.ravel() for words in np.meshgrid(
        a, np.array([0, 1, 0x80000000, 0x80000001, 0xFFFFFFFF], np.uint32)))
    check(model, op, a, a ^ change)
    check(model, op, a, a + change)


def test_conversion_to_integers_around_every_power_of_two(model: Model) -> None:
    powers = (np.arange(120, 165, dtype=np.uint32) << 23)[:, np.newaxis]
    rng = np.random.default_rng(SEED + 2)
    near = np.concatenate([powers + np.arange(-3, 4), powers + rng.integers(0, 1 << 23, (45, 50))],
                          axis=1).astype(np.uint32).ravel()
    a = np.concatenate([near, near | 0x80000000])
    got = check(model, VectorOp.F2I, a, np.zeros_like(a))
    assert {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF} <= set(got.tolist())


def test_shifts_by_every_distance(model: Model) -> None:
    a, b = (words.ravel() for words in np.meshgrid(
        CORNERS, np.concatenate([np.arange(0, 70), 1 << np.arange(6, 32)]).astype(np.uint32)))
    for op in (VectorOp.SHL, VectorOp.SHR, VectorOp.SAR):
        check(model, op, a, b)


def mixed(seed: int, count: int) -> tuple[
        dict[str, np.ndarray], dict[str, NDArray[np.uint32]], dict[str, NDArray[np.bool_]]]:
    """Inputs with operations in random order, not always enabled; expected outputs by cycle."""
    rng = np.random.default_rng(seed)
    a, b = (words[rng.permutation(len(words))[:count]] for words in number_pairs(rng, 2 * count))
    driven = inputs(rng, a, b)
    ops = rng.choice([op.value for op in SIMPLE], count).astype(np.uint8)
    enables = (rng.random(count) < 0.6).astype(np.uint8)
    held = {"result": np.zeros(count, np.uint32), "flag": np.zeros(count, np.uint32)}
    known = {name: np.zeros(count, bool) for name in held}
    latest = {}
    for cycle in np.arange(count):
        if enables[cycle]:
            op = VectorOp(int(ops[cycle]))
            one = {name: words[cycle:cycle + 1] for name, words in driven.items()}
            latest["flag" if writes_mask(op) else "result"] = expected(op, **one)[0]
        for name, value in latest.items():
            held[name][cycle], known[name][cycle] = value, True
    return {**driven, "op": ops, "enable": enables}, held, known


def test_outputs_hold_unless_written_and_are_not_reset(model: Model) -> None:
    driven, held, known = mixed(SEED + 3, 4000)
    reset = np.random.default_rng(SEED + 3).integers(0, 2, 4000).astype(np.uint8)
    got = model.run({**driven, "rst": reset}, list(held))
    for name, words in held.items():
        where = known[name]
        assert where.sum() > 3900
        assert_same(name, SEED + 3, got[name][where, 0], words[where], op=driven["op"][where],
                    a=driven["a"][where], b=driven["b"][where])


def test_in_the_python_simulator() -> None:
    driven, held, known = mixed(SEED + 4, 500)
    for name, words in held.items():
        where = known[name]
        assert where.sum() > 450
        got = in_python(Simple, driven, name)
        assert_same(name, SEED + 4, got[where], words[where], op=driven["op"][where],
                    a=driven["a"][where], b=driven["b"][where])
