"""The golden arithmetic against exact rational numbers, and against the text's examples."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from golden.numerics import (
    BF16_INF,
    BF16_NAN,
    F32_INF,
    F32_MIN_NORMAL,
    F32_NAN,
    add_f32,
    bf16_product,
    bits,
    canonical,
    flush,
    from_bits,
    mac,
    to_bf16,
    to_f32,
)
from golden.stimulus import MAC_CLASSES, mac_operands
from verif.golden import oracle

SEED = 20240611

F32_CORNERS = [
    sign | magnitude for sign in (0, 0x80000000) for magnitude in (
        0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000,
        0x33800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3F820200, 0x4B800000, 0x72FFFFFF,
        0x73000000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000,
        0x7FFFFFFF)]
BF16_CORNERS = [
    sign | magnitude for sign in (0, 0x8000) for magnitude in (
        0x0000, 0x0001, 0x007F, 0x0080, 0x00FF, 0x1FFF, 0x2000, 0x3F7F, 0x3F80, 0x3F81, 0x5EFF,
        0x5F80, 0x5FFF, 0x7F00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF)]


def f32(patterns: ArrayLike) -> NDArray[np.float32]:
    return from_bits(np.array(patterns, np.uint32))


def b16(patterns: ArrayLike) -> np.ndarray:
    return from_bits(np.array(patterns, np.uint16))


def assert_bits(got: np.ndarray, expected: ArrayLike, *operands: ArrayLike) -> None:
    """Check that all patterns are equal; a failure shows the first operands that differ."""
    got, expected = bits(got).ravel(), np.asarray(expected).ravel()
    assert got.shape == expected.shape
    assert got.size > 0
    wrong = np.flatnonzero(got != expected)
    if wrong.size:
        first = wrong[0]
        shown = ", ".join(f"{int(np.ravel(operand)[first]):x}" for operand in operands)
        pytest.fail(f"{wrong.size} of {got.size} differ; operands ({shown}) give {got[first]:x}, "
                    f"not {expected[first]:x}")


# The text


def examples(section: int) -> list[list[int]]:
    """Return the patterns in each row of a section's worked examples."""
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    body = re.search(rf"^## {section}\. .*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    rows = []
    for line in body[0].splitlines():
        cells = [re.match(r"\s*`([0-9A-F]{8}|[0-9A-F]{4})`", cell) for cell in line.split("|")[1:]]
        row = [int(cell[1], 16) for cell in cells if cell]
        if line.startswith("| `") and len(row) > 1:
            rows.append(row)
    assert len(rows) >= 5
    return rows


def test_worked_examples_of_the_conversion_hold() -> None:
    for x, y in examples(3):
        assert_bits(to_bf16(f32([x])), [y], [x])
        assert oracle.convert(x) == y


def test_worked_examples_of_the_product_hold() -> None:
    for x, w, y in examples(4):
        assert_bits(bf16_product(b16([x]), b16([w])), [y], [x], [w])
        assert oracle.multiply(x, w)[0] == y


def test_worked_examples_of_the_sum_hold() -> None:
    for a, b, y in examples(5):
        assert_bits(add_f32(f32([a]), f32([b])), [y], [a], [b])
        assert_bits(add_f32(f32([b]), f32([a])), [y], [b], [a])
        assert oracle.add(a, b).pattern == y


def test_worked_examples_of_the_mac_hold() -> None:
    for acc, x, w, y in examples(6):
        assert_bits(mac(f32([acc]), b16([x]), b16([w])), [y], [acc], [x], [w])
        assert oracle.mac(acc, x, w).pattern == y


def test_flush_is_judged_after_rounding_with_unbounded_exponent() -> None:
    # No operation of the array gets so close, so this checks only the oracle against the text.
    least = oracle.Fraction(2) ** -126
    below = oracle.Fraction(1, 1 << 25)
    assert oracle.F32.deliver(least * (1 - 2 * below)) == (0x00000000, "exact flush")
    assert oracle.F32.deliver(least * (1 - below)) == (0x00800000, "tie up")
    assert oracle.F32.deliver(-least * (1 - 2 * below)) == (0x80000000, "exact flush")


# Corners and random operands against the oracle


def test_conversion_matches_oracle() -> None:
    rng = np.random.default_rng(SEED)
    x = np.concatenate([np.array(F32_CORNERS, np.uint32),
                        rng.integers(0, 1 << 32, 20_000, np.uint32),
                        rng.integers(0, 1 << 16, 2_000, np.uint32) << 16 | 0x8000])
    assert_bits(to_bf16(from_bits(x)), [oracle.convert(int(one)) for one in x], x)


def test_widening_matches_oracle_on_every_pattern() -> None:
    x = np.arange(1 << 16, dtype=np.uint16)
    assert_bits(to_f32(from_bits(x)), [oracle.widen(int(one)) for one in x], x)


def test_product_matches_oracle_on_corners() -> None:
    x, w = np.array(list(product(BF16_CORNERS, BF16_CORNERS)), np.uint16).T
    expected = [oracle.multiply(int(one), int(other))[0] for one, other in zip(x, w, strict=True)]
    assert_bits(bf16_product(from_bits(x), from_bits(w)), expected, x, w)


def test_sum_matches_oracle_on_corners() -> None:
    a, b = np.array(list(product(F32_CORNERS, F32_CORNERS)), np.uint32).T
    expected = [oracle.add(int(one), int(other)).pattern for one, other in zip(a, b, strict=True)]
    assert_bits(add_f32(from_bits(a), from_bits(b)), expected, a, b)


def test_sum_of_large_and_subnormal_numbers_matches_oracle() -> None:
    """Alone, because the golden model flushes less if no sum in an array is small."""
    # Around 2**-99, even and odd: a subnormal number must not decide a tie.
    large = [power + step for power in range(0x0C800000, 0x0F800000, 0x00800000)
             for step in (-2, -1, 0, 1, 2)]
    small = [0x00000001, 0x003FFFFF, 0x00400000, 0x007FFFFF, 0x00800000]
    signs = 0, 0x80000000
    for pair in [*product(large, small), *product(F32_CORNERS, F32_CORNERS)]:
        for a, b in product(*([pattern ^ sign for sign in signs] for pattern in pair)):
            assert_bits(add_f32(f32([a]), f32([b])), [oracle.add(a, b).pattern], a, b)
            assert_bits(add_f32(f32([b]), f32([a])), [oracle.add(b, a).pattern], b, a)


def test_mac_matches_oracle_on_corners() -> None:
    cases = list(product(F32_CORNERS, BF16_CORNERS, BF16_CORNERS))
    acc, x, w = np.array(cases, np.uint32).T
    x, w = x.astype(np.uint16), w.astype(np.uint16)
    expected = [oracle.mac(*case).pattern for case in cases]
    assert_bits(mac(from_bits(acc), from_bits(x), from_bits(w)), expected, acc, x, w)


def test_mac_matches_oracle_on_random_operands_of_every_class() -> None:
    acc, x, w = mac_operands(np.random.default_rng(SEED), 4_000 * len(MAC_CLASSES))
    triples = list(zip(acc.tolist(), x.tolist(), w.tolist(), strict=True))
    sums = [oracle.mac(*triple) for triple in triples]
    expected = np.array([one.pattern for one in sums], np.uint32)
    assert_bits(mac(from_bits(acc), from_bits(x), from_bits(w)), expected, acc, x, w)
    products = [oracle.multiply(one, other) for _, one, other in triples]
    pattern = np.array([one for one, _ in products], np.uint32)
    assert_bits(bf16_product(from_bits(x), from_bits(w)), pattern, x, w)

    # Everything that the text distinguishes did occur.
    seen = Counter(f"product {how}" for _, how in products)
    seen += Counter(f"sum {one.how}" for one in sums)
    for how in ("product nan operand", "product 0 * inf", "product infinite", "product zero",
                "product exact", "product exact flush", "product exact infinity",
                "sum nan operand", "sum inf - inf", "sum infinite", "sum zeros", "sum cancelled",
                "sum exact", "sum down", "sum up", "sum tie down", "sum tie up", "sum exact flush",
                "sum up infinity", "sum tie up infinity"):
        assert seen[how] >= 20, how
    assert "product up" not in seen
    assert "sum up flush" not in seen
    assert {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, F32_NAN} <= set(expected.tolist())

    field_acc, field_product = (acc >> 23) & 0xFF, (pattern >> 23) & 0xFF
    normal = (field_acc > 0) & (field_acc < 255) & (field_product > 0) & (field_product < 255)
    distance = field_acc.astype(int) - field_product
    opposite = ((acc ^ pattern) >> 31).astype(bool)
    for effective in (opposite, ~opposite):
        assert set(range(-40, 41)) <= set(distance[normal & effective].tolist())
    inexact = np.array(["exact" not in one.how for one in sums])
    tie = np.array(["tie" in one.how for one in sums])
    assert set(range(-23, 0)) <= set(distance[normal & tie].tolist())
    assert set(range(9, 25)) <= set(distance[normal & tie].tolist())
    assert set(range(-40, 41)) - set(range(9)) <= set(distance[normal & inexact].tolist())
    # Bits by which a difference is shifted left to be normalized.
    field_sum = (expected >> 23) & 0xFF
    lost = np.maximum(field_acc, field_product).astype(int) - field_sum
    assert set(range(24)) <= set(lost[normal & opposite & (field_sum > 0)].tolist())
    for pattern_in, nan, infinity in ((acc, 23, F32_INF), (x, 7, BF16_INF), (w, 7, BF16_INF)):
        field, fraction = (pattern_in >> nan) & 0xFF, pattern_in & ((1 << nan) - 1)
        sign = pattern_in >> (nan + 8)
        for negative in (0, 1):
            assert ((field == 0) & (fraction > 0) & (sign == negative)).sum() >= 20
            assert ((field == 0) & (fraction == 0) & (sign == negative)).sum() >= 20
            assert ((field == 255) & (fraction > 0) & (sign == negative)).sum() >= 20
            assert (pattern_in == infinity | negative << (nan + 8)).sum() >= 20


# The conversion on every pattern


def assert_conversion_of_upper_halves(first: int, last: int, lower: NDArray[np.uint32]) -> None:
    """Check the conversion for all upper halves in a range, and for the given lower halves.

    ``lower`` is sorted, and has 0x0000 and 0x8000 among its values.
    """
    upper = np.arange(first, last, dtype=np.uint32)[:, None]
    x = upper << 16 | lower
    got = bits(to_bf16(from_bits(x)))
    field, fraction = (upper[:, 0] >> 7) & 0xFF, upper[:, 0] & 0x7F
    # Of the type of `lower`, which would be converted as a whole otherwise.
    tie, above = np.searchsorted(lower, np.array([0x8000, 0x8001], lower.dtype))
    half = upper.astype(np.uint16)
    expected = np.empty_like(got)
    expected[:, :tie] = half
    expected[:, tie:above] = half + half % 2
    expected[:, above:] = half + 1
    expected[field == 0] = half[field == 0] & 0x8000
    expected[field == 255] = BF16_NAN
    infinite = (field == 255) & (fraction == 0)
    expected[infinite, 0] = half[infinite, 0]
    if not np.array_equal(got, expected):
        assert_bits(from_bits(got), expected, x)


def test_conversion_of_every_upper_half_at_the_edges_of_the_lower() -> None:
    lower = np.array([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    assert_conversion_of_upper_halves(0, 1 << 16, lower)


@pytest.mark.slow
def test_conversion_of_every_pattern() -> None:
    lower = np.arange(1 << 16, dtype=np.uint32)
    for upper in range(1 << 16):
        assert_conversion_of_upper_halves(upper, upper + 1, lower)


# Properties


def test_padding_product_is_neutral_for_every_result() -> None:
    rng = np.random.default_rng(SEED)
    s = np.concatenate([np.array(F32_CORNERS, np.uint32), np.arange(1 << 16, dtype=np.uint32) << 16,
                        rng.integers(0, 1 << 32, 1 << 16, np.uint32)])
    # All patterns that results can have: canonical, and flushed.
    s = bits(canonical(flush(from_bits(s))))
    assert {0x00000000, 0x80000000, F32_INF, F32_NAN} <= set(s.tolist())
    x, w = b16([0x0000]), b16([0x8000])
    assert_bits(mac(from_bits(s), x, w), s, s)
    # With a weight of +0, the product is not neutral: it turns -0 into +0, and only that.
    changed = bits(mac(from_bits(s), x, b16([0x0000]))) != s
    assert set(s[changed].tolist()) == {0x80000000}


def test_bf16_survives_the_way_to_fp32_and_back() -> None:
    x = np.arange(1 << 16, dtype=np.uint16)
    kept = ((x >> 7) & 0xFF != 0) & ((x & 0x7FFF) <= BF16_INF)
    assert_bits(to_bf16(to_f32(from_bits(x[kept]))), x[kept], x[kept])


def test_flush_and_canonical_change_nothing_else() -> None:
    rng = np.random.default_rng(SEED)
    x = np.concatenate([np.array(F32_CORNERS, np.uint32),
                        rng.integers(0, 1 << 32, 10_000, np.uint32),
                        rng.integers(0, 1 << 24, 1_000, np.uint32)])
    magnitude = x & 0x7FFFFFFF
    assert_bits(flush(from_bits(x)), np.where(magnitude < F32_MIN_NORMAL, x & 0x80000000, x), x)
    assert_bits(canonical(from_bits(x)), np.where(magnitude > F32_INF, F32_NAN, x), x)


def test_shapes_broadcast_and_operands_stay() -> None:
    acc = f32(np.full((3, 1, 2), 0x00000001))
    x, w = b16(np.full((4, 1), 0x0001)), b16(np.full(2, 0x7F81))
    before = [bits(operand).copy() for operand in (acc, x, w)]
    assert mac(acc, x, w).shape == (3, 4, 2)
    assert bf16_product(x, w).shape == (4, 2)
    assert add_f32(acc, acc[0]).shape == (3, 1, 2)
    assert to_bf16(acc).shape == (3, 1, 2)
    assert to_f32(x).shape == (4, 1)
    for operand, old in zip((acc, x, w), before, strict=True):
        assert np.array_equal(bits(operand), old)


def test_scalars_views_and_empty_arrays_are_arrays_too() -> None:
    assert bits(to_bf16(np.float32("nan"))) == BF16_NAN
    assert bits(to_f32(ml_dtypes.bfloat16(1.5))) == 0x3FC00000
    assert mac(np.float32(1), ml_dtypes.bfloat16(2), ml_dtypes.bfloat16(3)) == 7
    x = f32(np.arange(24).reshape(4, 6) << 27)
    assert_bits(to_bf16(x[::2, ::-3]), bits(to_bf16(x))[::2, ::-3])
    assert_bits(to_bf16(x.T), bits(to_bf16(x)).T)
    empty = np.zeros((0, 3), np.float32)
    assert to_bf16(empty).shape == to_f32(to_bf16(empty)).shape == (0, 3)
    assert add_f32(empty, empty).shape == (0, 3)


def test_no_warning_escapes_whatever_the_caller_asked_for() -> None:
    acc, x, w = mac_operands(np.random.default_rng(SEED), 3_000)
    with np.errstate(all="raise"):
        quiet = mac(from_bits(acc), from_bits(x), from_bits(w))
        to_f32(to_bf16(from_bits(acc)))
        assert set(np.geterr().values()) == {"raise"}
        # The same operands one by one, for which numpy computes with scalars.
        for one in range(0, 3_000, 7):
            got = mac(from_bits(acc[one]), from_bits(x[one]), from_bits(w[one]))
            assert bits(got) == bits(quiet)[one]
            to_bf16(from_bits(acc[one]))


def test_bits_and_from_bits_are_views_of_each_other() -> None:
    for dtype in (np.uint16, np.uint32):
        patterns = np.array([[1, 0xFFFF]], dtype)
        assert np.shares_memory(bits(from_bits(patterns)), patterns)
        assert np.array_equal(bits(from_bits(patterns)), patterns)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: to_bf16(np.zeros(2)), "x must be an array of float32, not of float64"),
    (lambda: to_bf16(1.0), "x must be an array of float32, not of float64"),
    (lambda: to_f32(np.zeros(2, np.float16)), "x must be an array of bfloat16, not of float16"),
    (lambda: bf16_product(b16([0]), f32([0])), "w must be an array of bfloat16, not of float32"),
    (lambda: add_f32(f32([0]), [1, 2]), "b must be an array of float32, not of int64"),
    (lambda: mac(b16([0]), b16([0]), b16([0])), "acc must be an array of float32, not of bfloat16"),
    (lambda: mac(f32([0]), np.zeros(1, np.uint16), b16([0])), "x must be .* not of uint16"),
    (lambda: flush(np.zeros(1, ">f4")), "a must be an array of float32, not of >f4"),
    (lambda: canonical(b16([0])), "a must be an array of float32, not of bfloat16"),
    (lambda: bits(np.zeros(1)), "a must be an array of float32 or bfloat16, not of float64"),
    (lambda: from_bits(np.zeros(1, np.int32)), "a must be an array of uint32 or uint16, not of"),
])
def test_wrong_types_are_refused(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        add_f32(f32([0, 0]), f32([0, 0, 0]))


# Stimulus


def test_mac_operands_are_reproducible_and_of_the_count_asked_for() -> None:
    for count in (0, 1, len(MAC_CLASSES), 1_000, 70_001):
        first = mac_operands(np.random.default_rng(SEED), count)
        again = mac_operands(np.random.default_rng(SEED), count)
        assert [part.dtype for part in first] == [np.uint32, np.uint16, np.uint16]
        for part in range(3):
            assert first[part].shape == (count,)
            assert np.array_equal(first[part], again[part])
    other = mac_operands(np.random.default_rng(SEED + 1), 70_001)
    for part in range(3):
        assert np.mean(first[part] != other[part]) > 0.5


def test_classes_of_mac_operands_keep_their_period_and_their_promise() -> None:
    count = 4_500 * len(MAC_CLASSES)
    acc, x, w = mac_operands(np.random.default_rng(SEED), count)
    p = bf16_product(from_bits(x), from_bits(w))
    s = mac(from_bits(acc), from_bits(x), from_bits(w))
    assert len(MAC_CLASSES) % 2 == 1

    def of(name: str, what: np.ndarray) -> np.ndarray:
        return what[MAC_CLASSES.index(name)::len(MAC_CLASSES)]

    assert (of("zeros", p) == 0).all()
    assert (of("cancelled", bits(s)) == 0).all()
    lost = of("nearly_cancelled", s) / of("nearly_cancelled", p)
    assert (np.abs(lost) < 0.5).mean() > 0.9
    assert 0.2 < (of("subnormals", x) & 0x7F80 == 0).mean() < 0.8
    assert 0.1 < (of("small_products", p) == 0).mean() < 0.9
    assert (of("small_products", x) & 0x7F80 != 0).all()
    assert 0.1 < (of("small_sums", s) == 0).mean() < 0.9
    assert (of("small_sums", p) != 0).all()
    assert 0.1 < np.isinf(of("large_products", p)).mean() < 0.9
    assert 0.1 < np.isinf(of("large_sums", s)).mean() < 0.9
    assert np.isfinite(of("large_sums", p)).all()
    assert np.isnan(of("specials", s)).mean() > 0.2


@pytest.mark.parametrize(("rng", "count", "error", "message"), [
    (7, 1, TypeError, "rng must be a numpy.random.Generator, not 7"),
    (np.random.default_rng(0), 1.5, TypeError, "count must be an integer, not 1.5"),
    (np.random.default_rng(0), True, TypeError, "count must be an integer, not True"),
    (np.random.default_rng(0), -1, ValueError, "count must be at least 0, not -1"),
])
def test_wrong_arguments_of_mac_operands_are_refused(rng: Any, count: Any, error: type[Exception],
                                                     message: str) -> None:
    with pytest.raises(error, match=message):
        mac_operands(rng, count)
