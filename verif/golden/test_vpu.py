"""The golden vector unit against Python integers and exact rational numbers."""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from golden import transcendental
from golden.vpu import compare, evaluate, threefry2x32
from hdl.isa import OPERATIONS, Kind, VectorOp
from verif.golden import oracle
from verif.golden.oracle import F32

SEED = 20240613

FLOATS = [
    sign | magnitude for sign in (0, 0x80000000) for magnitude in (
        0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF,
        0x01000000, 0x1F800000, 0x20000000, 0x33800000, 0x3EFFFFFF, 0x3F000000, 0x3F000001,
        0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3F820200, 0x3FFFFFFF, 0x4B000000, 0x4B7FFFFF,
        0x4B800000, 0x4EFFFFFF, 0x4F000000, 0x4F000001, 0x4F800000, 0x5F800000, 0x7F000000,
        0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000,
        0x7FFFFFFF)]
INTEGERS = [0, 1, 2, 15, 30, 31, 32, 33, 63, 64, 255, 256, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000,
            0x1000001, 0x1000002, 0x1000003, 0x3FFFFFFF, 0x40000000, 0x55555555, 0x7FFFFFBF,
            0x7FFFFFC0, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0x80000002, 0x80000040,
            0xAAAAAAAA, 0xFEFFFFFF, 0xFF000000, 0xFFFF0000, 0xFFFFFFE0, 0xFFFFFFFE, 0xFFFFFFFF]


def words(patterns: Sequence[int | tuple[int, int]]) -> NDArray[np.uint32]:
    return np.array(patterns, np.uint32)


def assert_words(got: np.ndarray, expected: ArrayLike, *operands: ArrayLike) -> None:
    """Check that all words are equal; a failure shows the first operands that differ."""
    got, expected = np.ravel(got), np.ravel(expected)
    assert got.shape == expected.shape
    assert got.size > 0
    wrong = np.flatnonzero(got != expected)
    if wrong.size:
        first = wrong[0]
        shown = ", ".join(f"{int(np.ravel(operand)[first]):08x}" for operand in operands)
        pytest.fail(f"seed {SEED}: {wrong.size} of {got.size} differ; operands ({shown}) give "
                    f"{int(got[first]):x}, not {int(expected[first]):x}")


def pairs(corners: Sequence[int],
          count: int = 3_000) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return pairs of operands: of corners, of random words, of both, and nearly equal ones."""
    rng = np.random.default_rng(SEED)
    a, b = words(list(product(corners, corners))).T
    u, v = rng.integers(0, 1 << 32, (2, count), np.uint32)
    c = rng.choice(words(corners), count)
    near = u + rng.integers(-2, 3, count).astype(np.uint32)
    return np.concatenate([a, u, u, c, u, u]), np.concatenate([b, v, c, v, near, u ^ (1 << 31)])


def singles(corners: Sequence[int], count: int = 50_000) -> NDArray[np.uint32]:
    rng = np.random.default_rng(SEED)
    return np.concatenate([words(corners), rng.integers(0, 1 << 32, count, np.uint32)])


def signed(word: int) -> int:
    return int.from_bytes(int(word).to_bytes(4, "little"), "little", signed=True)


# The text


def examples(pattern: str) -> list[tuple[str, str, str]]:
    """Return the rows of the vector unit's worked examples that match a regular expression."""
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    body = text[text.index("## 11. The vector unit: fp32"):text.index("## 12. ")]
    rows = re.findall(rf"^\| {pattern}", body, re.MULTILINE)
    assert len(rows) >= 10
    return rows


CELL = r"`([0-9A-F]{8})`[^|]*\| "


def test_worked_examples_of_the_product_hold() -> None:
    for row in examples(3 * CELL):
        a, b, expected = (int(cell, 16) for cell in row)
        assert_words(evaluate(VectorOp.FMUL, words([a]), words([b])), [expected], [a], [b])
        assert_words(evaluate(VectorOp.FMUL, words([b]), words([a])), [expected], [b], [a])
        assert multiply(a, b)[0] == expected


def test_worked_examples_of_operations_of_one_hold() -> None:
    seen = set()
    for name, *row in examples(r"`([a-z0-9]+)` \| " + 2 * CELL):
        op = VectorOp[name.upper()]
        a, expected = (int(cell, 16) for cell in row)
        assert_words(evaluate(op, words([a])), [expected], [a])
        assert UNARY[op][0](a) == expected
        seen.add(op)
    assert seen == set(UNARY)


# The oracle for fp32


def value(pattern: int) -> Fraction | None:
    """Convert a pattern to a number that can be compared; None for NaN."""
    kind, sign, magnitude = F32.read(pattern)
    if kind == "nan":
        return None
    magnitude = Fraction(2) ** 200 if kind == "infinite" else magnitude
    return -magnitude if sign else magnitude


def multiply(a: int, b: int) -> tuple[int, str]:
    """Multiply two fp32 patterns; return the pattern, and how it was obtained."""
    kind_a, sign_a, magnitude_a = F32.read(a)
    kind_b, sign_b, magnitude_b = F32.read(b)
    kinds = {kind_a, kind_b}
    if "nan" in kinds or kinds == {"zero", "infinite"}:
        return F32.nan, "nan"
    if "infinite" in kinds:
        return F32.infinity(sign_a ^ sign_b), "infinite"
    if "zero" in kinds:
        return F32.zero(sign_a ^ sign_b), "zero"
    return F32.deliver(magnitude_a * magnitude_b * (-1) ** (sign_a ^ sign_b))


def extreme(a: int, b: int, largest: bool) -> int:
    """Return the larger or smaller pattern; of zeros, +0 is the larger one."""
    if value(a) is None or value(b) is None:
        return F32.nan
    def key(pattern: int) -> tuple[Any, int]:
        return value(pattern), 1 - (pattern >> 31)
    chosen = max(a, b, key=key) if largest else min(a, b, key=key)
    return F32.zero(chosen >> 31) if value(chosen) == 0 else chosen


FLOAT_BINARY = {
    VectorOp.FADD: lambda a, b: oracle.add(a, b).pattern,
    VectorOp.FSUB: lambda a, b: oracle.add(a, b ^ 0x80000000).pattern,
    VectorOp.FMUL: lambda a, b: multiply(a, b)[0],
    VectorOp.FMIN: lambda a, b: extreme(a, b, False),
    VectorOp.FMAX: lambda a, b: extreme(a, b, True),
}


@pytest.mark.parametrize("op", FLOAT_BINARY)
def test_floating_point_operation_of_two(op: VectorOp) -> None:
    a, b = pairs(FLOATS, 2_000)
    expected = [FLOAT_BINARY[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(evaluate(op, a, b), words(expected), a, b)


def near_pattern(exponent: int, significand: int) -> int:
    return (exponent + 127) << 23 | significand - (1 << 23)


def small_products(count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return factors whose product is within a few binades of 2**-126.

    In many pairs, the product is close to a power of two.
    """
    rng = np.random.default_rng(SEED)
    exponent = rng.integers(-124, 0, count)
    other = rng.integers(-129, -124, count) - exponent
    other = np.clip(other, -126, 127)
    close = rng.random(count) < 0.6
    significand = rng.integers(1 << 23, 1 << 24, count)
    # The second significand brings the product near to a power of two.
    match = np.clip((1 << 47) // significand + rng.integers(-2, 3, count), 1 << 23, (1 << 24) - 1)
    second = np.where(close, match, rng.integers(1 << 23, 1 << 24, count))
    signs = rng.integers(0, 2, (2, count)) << 31
    a = (exponent + 127) << 23 | significand - (1 << 23) | signs[0]
    b = (other + 127) << 23 | second - (1 << 23) | signs[1]
    return a.astype(np.uint32), b.astype(np.uint32)


def test_underflow_of_products_is_judged_after_rounding() -> None:
    a, b = small_products(15_000)
    results = [multiply(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(evaluate(VectorOp.FMUL, a, b), words([one for one, _ in results]), a, b)
    hows = [how for _, how in results]
    for how in ("down flush", "up flush", "down", "up"):
        assert hows.count(how) >= 5, how
    # Products below 2**-126 that round up to it: underflow is judged after rounding.
    rounded_to_least = sum(
        (one & 0x7FFFFFFF) == 0x00800000 and how == "up" for one, how in results)
    assert rounded_to_least >= 5


def test_products_at_the_very_edge_of_underflow() -> None:
    # 18631 * 1801 = 2**25 - 1, so this is the tie (1 - 2**-25) * 2**-126.
    left, right = 18631 << 9, 1801 << 13
    full = (1 << 24) - 1
    for exponent in range(-100, -20):
        # Products of significands in [1, 2) of the two halves.
        other = -127 - exponent
        tie = near_pattern(exponent, left), near_pattern(other, right)
        assert multiply(*tie) == (0x00800000, "tie up")
        exact = near_pattern(exponent, full), near_pattern(other, 1 << 23)
        assert multiply(*exact) == (0x00000000, "exact flush")
        below = near_pattern(exponent, left - 1), near_pattern(other, right)
        assert multiply(*below)[0] == 0
        above = near_pattern(exponent, left + 1), near_pattern(other, right)
        assert multiply(*above)[0] == 0x00800001
        for (x, y), expected in ((tie, 0x00800000), (exact, 0), (below, 0), (above, 0x00800001)):
            for sign in (0, 0x80000000):
                assert evaluate(VectorOp.FMUL, words([x | sign]), words([y])) == [expected | sign]
                assert evaluate(VectorOp.FMUL, words([y]), words([x | sign])) == [expected | sign]


def test_products_at_overflow() -> None:
    rng = np.random.default_rng(SEED)
    a = rng.integers(0x5F000000, 0x60800000, 6_000, np.uint32)
    # The product is near 2**128.
    b = (np.float32(2.0**127) / a.view(np.float32) * np.float32(2)).view(np.uint32)
    b += rng.integers(-2, 3, b.size).astype(np.uint32)
    results = [multiply(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(evaluate(VectorOp.FMUL, a, b), words([one for one, _ in results]), a, b)
    hows = [how for _, how in results]
    assert hows.count("up infinity") >= 20
    assert hows.count("down") >= 20


FLOAT_COMPARE = {
    VectorOp.FEQ: lambda x, y: x == y,
    VectorOp.FNE: lambda x, y: x != y,
    VectorOp.FLT: lambda x, y: x < y,
    VectorOp.FLE: lambda x, y: x <= y,
    VectorOp.FGT: lambda x, y: x > y,
    VectorOp.FGE: lambda x, y: x >= y,
}


@pytest.mark.parametrize("op", FLOAT_COMPARE)
def test_floating_point_comparison(op: VectorOp) -> None:
    a, b = pairs(FLOATS, 1_500)

    def expected(a: int, b: int) -> bool:
        x, y = value(a), value(b)
        return op is VectorOp.FNE if x is None or y is None else FLOAT_COMPARE[op](x, y)

    result = compare(op, a, b)
    assert result.dtype == np.bool_
    wanted = [expected(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(result, wanted, a, b)
    assert {True, False} == set(result.tolist())


def absolute(x: int) -> int:
    kind, _, _ = F32.read(x)
    return {"nan": F32.nan, "zero": 0}.get(kind, x & 0x7FFFFFFF)


def negative(x: int) -> int:
    kind, sign, _ = F32.read(x)
    return {"nan": F32.nan, "zero": F32.zero(1 - sign)}.get(kind, x ^ 0x80000000)


def to_integer(x: int) -> int:
    number = value(x)
    if number is None:
        return 0
    return max(-(1 << 31), min((1 << 31) - 1, math.trunc(number))) & 0xFFFFFFFF


def from_integer(x: int) -> int:
    return F32.deliver(Fraction(signed(x)))[0] if x else 0


UNARY = {
    VectorOp.FABS: (absolute, FLOATS),
    VectorOp.FNEG: (negative, FLOATS),
    VectorOp.F2I: (to_integer, FLOATS),
    VectorOp.I2F: (from_integer, INTEGERS),
    VectorOp.BF16: (lambda x: oracle.widen(oracle.convert(x)), FLOATS),
}


@pytest.mark.parametrize("op", UNARY)
def test_operation_of_one(op: VectorOp) -> None:
    function, corners = UNARY[op]
    rng = np.random.default_rng(SEED)
    a = np.concatenate([singles(corners, 4_000), words(FLOATS), words(INTEGERS)])
    # Floats of all magnitudes that integers have, and integers of all lengths.
    sized = rng.integers(0x3F000000, 0x50000000, 3_000, np.uint32)
    short = rng.integers(0, 1 << 32, 3_000, np.uint32) >> rng.integers(0, 32, 3_000, np.uint32)
    a = np.concatenate([a, sized, sized | 1 << 31, short, (0 - short).astype(np.uint32)])
    assert_words(evaluate(op, a), words([function(x) for x in a.tolist()]), a)


def test_integers_become_floats_by_ties_to_even() -> None:
    for base in (1 << 24, 1 << 25, 1 << 30):
        step = base >> 24
        a = np.arange(base - 8 * step, base + 64 * step, max(step // 4, 1), dtype=np.uint32)
        for x in (a, (0 - a).astype(np.uint32)):
            assert_words(evaluate(VectorOp.I2F, x), [from_integer(int(one)) for one in x], x)


INTEGER_BINARY = {
    VectorOp.ADD: lambda a, b: a + b,
    VectorOp.SUB: lambda a, b: a - b,
    VectorOp.AND: lambda a, b: a & b,
    VectorOp.OR: lambda a, b: a | b,
    VectorOp.XOR: lambda a, b: a ^ b,
    VectorOp.SHL: lambda a, b: a * 2**b if b < 32 else 0,
    VectorOp.SHR: lambda a, b: a // 2**b if b < 32 else 0,
    VectorOp.SAR: lambda a, b: signed(a) // 2**min(b, 31),
}


@pytest.mark.parametrize("op", INTEGER_BINARY)
def test_integer_operation_of_two(op: VectorOp) -> None:
    a, b = pairs(INTEGERS)
    if op in (VectorOp.SHL, VectorOp.SHR, VectorOp.SAR):
        every = np.repeat(np.arange(40, dtype=np.uint32), len(INTEGERS))
        b = np.concatenate([np.where(np.arange(b.size) % 3, b % 40, b), every])
        a = np.concatenate([a, np.tile(words(INTEGERS), 40)])
    expected = [INTEGER_BINARY[op](x, y) & 0xFFFFFFFF
                for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(evaluate(op, a, b), words(expected), a, b)


INTEGER_COMPARE = {
    VectorOp.EQ: lambda a, b: a == b,
    VectorOp.NE: lambda a, b: a != b,
    VectorOp.LT: lambda a, b: signed(a) < signed(b),
    VectorOp.LE: lambda a, b: signed(a) <= signed(b),
    VectorOp.GT: lambda a, b: signed(a) > signed(b),
    VectorOp.GE: lambda a, b: signed(a) >= signed(b),
    VectorOp.LTU: lambda a, b: a < b,
    VectorOp.GEU: lambda a, b: a >= b,
}


@pytest.mark.parametrize("op", INTEGER_COMPARE)
def test_integer_comparison(op: VectorOp) -> None:
    a, b = pairs(INTEGERS)
    expected = [INTEGER_COMPARE[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    result = compare(op, a, b)
    assert result.dtype == np.bool_
    assert_words(result, expected, a, b)
    assert {True, False} == set(result.tolist())


def test_move_copies_any_pattern() -> None:
    b = singles(FLOATS + INTEGERS)
    result = evaluate(VectorOp.MOVE, words([0]), b)
    assert_words(result, b, b)
    assert not np.shares_memory(result, b)
    assert_words(evaluate(VectorOp.MOVE, b, words([7])), [7])


# Random words


@pytest.mark.parametrize(("counter", "key", "expected"), [
    # The known answers that Random123 publishes for threefry2x32 with 20 rounds.
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
])
def test_threefry_gives_its_known_answers(counter: tuple[int, int], key: tuple[int, int],
                                          expected: tuple[int, int]) -> None:
    got = threefry2x32((words([counter[0]]), words([counter[1]])),
                       (words([key[0]]), words([key[1]])))
    assert tuple(int(word[0]) for word in got) == expected
    if counter[1] == key[1] == 0:
        assert evaluate(VectorOp.RANDOM, words([counter[0]]), words([key[0]])) == [expected[0]]


def threefry(counter: tuple[int, int], key: tuple[int, int], rounds: int = 20) -> tuple[int, int]:
    """Compute Threefry-2x32 on Python integers, round by round."""
    mask = 0xFFFFFFFF
    schedule = [*key, 0x1BD11BDA ^ key[0] ^ key[1]]
    x, y = (counter[0] + key[0]) & mask, (counter[1] + key[1]) & mask
    for block in range(rounds // 4):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x = (x + y) & mask
            y = ((y << rotation | y >> 32 - rotation) & mask) ^ x
        x = (x + schedule[(block + 1) % 3]) & mask
        y = (y + schedule[(block + 2) % 3] + block + 1) & mask
    return x, y


def test_random_is_the_first_word_of_the_generator() -> None:
    a, b = pairs(INTEGERS, 1_500)
    expected = [threefry((x, 0), (y, 0))[0] for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_words(evaluate(VectorOp.RANDOM, a, b), words(expected), a, b)
    c, d = a[::-1].copy(), b[::-1].copy()
    got = threefry2x32((a, c), (b, d), 8)
    for number in range(0, a.size, 50):
        one = threefry((int(a[number]), int(c[number])), (int(b[number]), int(d[number])), 8)
        assert (int(got[0][number]), int(got[1][number])) == one


def test_random_words_of_a_key_differ() -> None:
    counter = np.arange(1 << 16, dtype=np.uint32)
    one, other = (evaluate(VectorOp.RANDOM, counter, words([key])) for key in (1, 2))
    assert abs(np.unpackbits(one.view(np.uint8)).mean() - 0.5) < 0.002
    # Among 2**16 random words, the expected number of repetitions is 0.5.
    assert np.unique(one).size > counter.size - 12
    assert (one == other).sum() < 3


# Transcendental functions: each operation computes the right one. Other tests check the bits.


@pytest.mark.parametrize(("op", "function", "named", "low", "high"), [
    (VectorOp.RECIPROCAL, lambda x: 1 / x, transcendental.reciprocal, -20, 20),
    (VectorOp.RSQRT, lambda x: 1 / np.sqrt(x), transcendental.rsqrt, 1e-3, 20),
    (VectorOp.EXP2, np.exp2, transcendental.exp2, -20, 20),
    (VectorOp.LOG2, np.log2, transcendental.log2, 1e-3, 20),
    (VectorOp.TANH, np.tanh, transcendental.tanh, -5, 5),
])
def test_transcendental_operation_is_that_function(op: VectorOp, function: Callable[..., Any],
                                                   named: Callable[..., Any], low: float,
                                                   high: int) -> None:
    x = np.random.default_rng(SEED).uniform(low, high, 2_000).astype(np.float32)
    got = evaluate(op, x.view(np.uint32))
    truth = function(x.astype(np.float64))
    error = np.abs(got.view(np.float32) - truth) / np.spacing(np.abs(truth).astype(np.float32))
    assert error.max() < 8
    for a in (x.view(np.uint32), singles(FLOATS, 2_000)):
        assert_words(evaluate(op, a), named(a.view(np.float32)).view(np.uint32), a)


# All operations


def operations(*kinds: Kind) -> list[VectorOp]:
    return [operation.op for operation in OPERATIONS if isinstance(operation.op, VectorOp)
            and operation.operands[0].kind in kinds
            and operation.op not in (VectorOp.SELECT, VectorOp.LANE, VectorOp.SUBLANE)
            and not any(operand.kind is Kind.MASK_IN for operand in operation.operands)]


def test_every_operation_of_elements_has_an_oracle() -> None:
    assert set(operations(Kind.VECTOR_OUT)) == {
        *FLOAT_BINARY, *UNARY, *INTEGER_BINARY, VectorOp.MOVE, VectorOp.RANDOM,
        VectorOp.RECIPROCAL, VectorOp.RSQRT, VectorOp.EXP2, VectorOp.LOG2, VectorOp.TANH}
    assert set(operations(Kind.MASK_OUT)) == {*FLOAT_COMPARE, *INTEGER_COMPARE}


def test_shapes_broadcast_and_operands_stay() -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.integers(0, 1 << 32, (2, 3, 5), np.uint32)
    before = a.copy(), b.copy()
    with np.errstate(all="raise"):
        for op in operations(Kind.VECTOR_OUT, Kind.MASK_OUT):
            function = evaluate if op in operations(Kind.VECTOR_OUT) else compare
            full = function(op, a, b)
            assert full.shape == a.shape, op
            assert full.dtype == (np.uint32 if function is evaluate else np.bool_), op
            assert not np.shares_memory(full, a), op
            assert not np.shares_memory(full, b), op
            # One element as an array without axes, and one broadcast against all others.
            single = function(op, a[1, 2], b[1, 2])
            assert isinstance(single, np.ndarray), op
            assert single.shape == (), op
            assert single == full[1, 2], op
            spread = function(op, a, b[1:2, 2:3])
            assert np.broadcast_to(spread, a.shape)[1, 2] == full[1, 2], op
            assert function(op, a[:, ::2], b[:, ::2]).tolist() == full[:, ::2].tolist(), op
            assert function(op, a[:0], b[:0]).shape == (0, 5), op
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])


A = np.zeros(2, np.uint32)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: evaluate(cast(Any, 5), A, A), TypeError, "op must be a VectorOp, not 5"),
    (lambda: compare(cast(Any, "feq"), A, A), TypeError, "op must be a VectorOp, not 'feq'"),
    (lambda: evaluate(VectorOp.FEQ, A, A), ValueError,
     "op must be an operation of elements that writes a vector register, not <VectorOp.FEQ: 12>"),
    (lambda: evaluate(VectorOp.SELECT, A, A), ValueError, "not <VectorOp.SELECT: 2>"),
    (lambda: evaluate(VectorOp.NOP, A, A), ValueError, "not <VectorOp.NOP: 0>"),
    (lambda: compare(VectorOp.FADD, A, A), ValueError,
     "op must be a comparison, not <VectorOp.FADD: 5>"),
    (lambda: compare(VectorOp.MAND, A, A), ValueError, "not <VectorOp.MAND: 37>"),
    (lambda: evaluate(VectorOp.FADD, A, A.view(np.float32)), TypeError,
     "b must be an array of uint32, not of float32"),
    (lambda: evaluate(VectorOp.FABS, [1, 2]), TypeError,
     "a must be an array of uint32, not of int64"),
    (lambda: evaluate(VectorOp.FADD, A), TypeError, "b must be an array of uint32, not of object"),
    (lambda: compare(VectorOp.EQ, A.astype(np.uint64), A), TypeError, "not of uint64"),
    (lambda: evaluate(VectorOp.ADD, A, words([1, 2, 3])), ValueError, "broadcast"),
    (lambda: compare(VectorOp.LT, A, words([1, 2, 3])), ValueError, "broadcast"),
    (lambda: threefry2x32((A, A), (A, [1])), TypeError, "key[1] must be an array of uint32"),
    (lambda: threefry2x32((A, A), (A, A), cast(Any, 1.5)), TypeError,
     "rounds must be an integer, not 1.5"),
    (lambda: threefry2x32((A, A), (A, A), -1), ValueError, "rounds must be at least 0, not -1"),
])
def test_wrong_arguments_are_refused(call: Callable[..., Any], error: type[Exception],
                                     message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()
