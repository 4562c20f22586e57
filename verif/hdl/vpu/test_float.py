"""fp32 sums, products and conversions in Verilog against the golden arithmetic."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from amaranth.lib import wiring
from numpy.typing import NDArray

from golden.numerics import F32_MIN_NORMAL, F32_NAN
from golden.vpu import evaluate
from hdl.isa import FLOAT_LATENCY, VectorOp
from hdl.mxu.mac import Compare
from hdl.vpu.float import STAGES, FloatAdd, FloatMultiply, IntToFloat
from sim.verilated.model import Model
from verif.hdl.vpu.units import (
    CORNERS,
    assert_same,
    corner_pairs,
    held,
    in_python,
    integer_pairs,
    model_of,
    number_pairs,
    through,
)

SEED = 20250311


@dataclass(frozen=True)
class Case:
    """An operation and the unit that computes it."""

    op: VectorOp
    make: Callable[[], wiring.Component]
    module: str
    output: str

    def operands(self, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> dict[str, np.ndarray]:
        if self.op is VectorOp.I2F:
            return {"a": a}
        sign = {} if self.op is VectorOp.FMUL else {
            "subtract": np.full(len(a), self.op is VectorOp.FSUB, np.uint8)}
        return {"a": a, "b": b, **sign}

    def random(self, rng: np.random.Generator,
               count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        pairs = integer_pairs if self.op is VectorOp.I2F else number_pairs
        return pairs(rng, count)


CASES = {case.op.name.lower(): case for case in (
    Case(VectorOp.FADD, FloatAdd, "vpu_float_add", "sum"),
    Case(VectorOp.FSUB, FloatAdd, "vpu_float_add", "sum"),
    Case(VectorOp.FMUL, FloatMultiply, "vpu_float_multiply", "product"),
    Case(VectorOp.I2F, IntToFloat, "vpu_int_to_float", "number"))}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def model(case: Case) -> Iterator[Model]:
    with model_of(case.module, case.make) as model:
        model.reset()
        yield model


def check(case: Case, model: Model, a: NDArray[np.uint32],
          b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    got = through(model, STAGES, case.operands(a, b), case.output)
    assert_same(case.op.name, SEED, got, evaluate(case.op, a, b), a=a, b=b)
    return got


def test_all_units_have_the_latency_of_float_operations(case: Case) -> None:
    # A cycle for the reads, and one for the write.
    assert case.make().latency == STAGES == FLOAT_LATENCY - 2


def test_corners(case: Case, model: Model) -> None:
    check(case, model, *corner_pairs())


def test_random_operands(case: Case, model: Model) -> None:
    got = check(case, model, *case.random(np.random.default_rng(SEED), 400_000))
    magnitude = got & 0x7FFFFFFF
    assert (magnitude == 0).any()
    if case.op is not VectorOp.I2F:
        assert (got == F32_NAN).any()
        assert (magnitude == F32_MIN_NORMAL).any()
        assert (magnitude == 0x7F7FFFFF).any()


def test_a_product_that_rounds_to_the_least_normal_number_is_kept() -> None:
    def scaled(integer: int, power: int) -> np.uint32:
        number = np.float32(integer * 2.0**power)
        assert float(number) == integer * 2.0**power
        return number.view(np.uint32)

    rows = [
        # (1 - 2**-24) * 2**-126 has 24 bits: less than 2**-126 as it is.
        (scaled(2**24 - 1, -24), scaled(1, -126), 0x00000000),
        # 2**25 - 1 = 31 * 601 * 1801: (1 - 2**-25) * 2**-126 is a tie that falls on 2**-126.
        (scaled(31, -75), scaled(601 * 1801, -76), 0x00800000),
        (scaled(31 * 601, -75), scaled(1801, -76), 0x00800000),
        # 2**26 - 3 = 37 * 1813753: just below that tie, and 2**26 - 1 = 8191 * 8193 just above.
        (scaled(37, -76), scaled(1813753, -76), 0x00000000),
        (scaled(8191, -76), scaled(8193, -76), 0x00800000),
    ]
    a, b, expected = (np.array(column, np.uint32) for column in zip(*rows, strict=True))
    with model_of("vpu_float_multiply", FloatMultiply) as model:
        got = through(model, STAGES, {"a": a, "b": b ^ 0x80000000}, "product")
    assert_same("FMUL", SEED, got, expected ^ np.uint32(0x80000000), a=a, b=b)


def test_stages_hold_unless_enabled_and_are_not_reset(case: Case, model: Model) -> None:
    rng = np.random.default_rng(SEED + 1)
    a, b = (words[rng.permutation(4500)[:3000]] for words in case.random(rng, 4500))
    enables = rng.integers(0, 1 << STAGES, len(a)).astype(np.uint8)
    expected, known = held(enables, evaluate(case.op, a, b), STAGES)
    got = model.run({**case.operands(a, b), "enable": enables,
                     "rst": rng.integers(0, 2, len(a)).astype(np.uint8)}, [case.output])
    assert_same(case.op.name, SEED + 1, got[case.output][known, 0], expected[known],
                a=a[known], b=b[known])
    # The second stage repeated some, and lost some.
    assert known.sum() > 2900
    assert len(np.unique(expected)) < len(a) * 0.6


def test_in_the_python_simulator(case: Case) -> None:
    rng = np.random.default_rng(SEED + 2)
    a, b = (words[rng.permutation(len(words))[:400]] for words in case.random(rng, 2000))
    enables = rng.choice(np.array([0, 1, 2, 3, 3, 3], np.uint8), len(a))
    expected, known = held(enables, evaluate(case.op, a, b), STAGES)
    got = in_python(case.make, {**case.operands(a, b), "enable": enables}, case.output)
    assert_same(case.op.name, SEED + 2, got[known], expected[known], a=a[known], b=b[known])


@pytest.mark.parametrize(("fraction", "error", "message"), [
    (0, ValueError, "fraction must be from 1 to 23, not 0"),
    (24, ValueError, "fraction must be from 1 to 23, not 24"),
    (True, TypeError, "fraction must be an integer, not True"),
    ("7", TypeError, "fraction must be an integer, not '7'"),
])
def test_comparison_of_impossible_fractions(fraction: Any, error: type[Exception],
                                            message: str) -> None:
    with pytest.raises(error, match=message):
        Compare(fraction)


def test_corners_have_every_kind() -> None:
    magnitude = CORNERS & 0x7FFFFFFF
    assert len(np.unique(CORNERS)) == len(CORNERS) > 40
    assert ((magnitude > 0) & (magnitude < F32_MIN_NORMAL)).any()
    assert (magnitude > 0x7F800000).any()
