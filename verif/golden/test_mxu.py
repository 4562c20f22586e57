"""The golden matrix product: its order, its padding, its fast path, and its accuracy."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from golden import mxu
from golden.mxu import column_sum, matmul, tile_matmul
from golden.numerics import F32_NAN, add_f32, bf16, bits, from_bits, mac, to_bf16, to_f32
from verif.golden import oracle

SEED = 20240612


def b16(patterns: ArrayLike) -> np.ndarray:
    return from_bits(np.array(patterns, np.uint16))


def scaled(rng: np.random.Generator, exponents: tuple[int, int],
           shape: int | tuple[int, int]) -> np.ndarray:
    """Return random normal bf16 numbers whose exponents are in an inclusive range."""
    field = rng.integers(exponents[0] + 127, exponents[1] + 128, shape)
    return b16(field << 7 | rng.integers(0, 1 << 7, shape) | rng.integers(0, 2, shape) << 15)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return to_bf16(rng.standard_normal(shape, np.float32))


def sparse(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = normal(rng, shape)
    x[rng.random(shape) < 0.5] = rng.choice(b16([0x0000, 0x8000]))
    return x


def tiny(rng: np.random.Generator, shape: int | tuple[int, int]) -> np.ndarray:
    return scaled(rng, (-66, -58), shape)


def wide(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return scaled(rng, (-126, 127), shape)


def tiny_step(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return a matrix of ordinary numbers with one row and one column of tiny numbers."""
    x = normal(rng, shape)
    x[:, shape[1] // 2] = tiny(rng, shape[0])
    x[shape[0] // 3] = tiny(rng, shape[1])
    return x


def any_pattern(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return b16(rng.integers(0, 1 << 16, shape))


def few_specials(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = normal(rng, shape)
    special = rng.random(shape) < 0.02
    x[special] = rng.choice(b16([0x7F80, 0xFF80, 0x7F81, 0xFFC1, 0x0001, 0x807F, 0x0000, 0x8000]),
                            int(special.sum()))
    return x


KINDS = [normal, sparse, tiny, wide, tiny_step, any_pattern, few_specials]


def assert_same(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape
    wrong = np.argwhere(bits(got) != bits(expected))
    if wrong.size:
        at = tuple(wrong[0])
        pytest.fail(f"{len(wrong)} of {got.size} differ; at {at} {bits(got)[at]:x}, "
                    f"not {bits(expected)[at]:x}")


def columns(x: np.ndarray, w: np.ndarray) -> NDArray[np.float32]:
    """Compute the tile product by its definition: the sum of each column."""
    return column_sum(x[:, None, :], w.T[None])


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the shape of each array in which the tile product flushes subnormal numbers."""
    calls = []
    original = mxu._flush_in_place

    def counted(a: NDArray[np.float32], scratch: NDArray[np.float32]) -> None:
        calls.append(a.shape)
        original(a, scratch)

    monkeypatch.setattr(mxu, "_flush_in_place", counted)
    return calls


# A column, and a tile


@pytest.mark.parametrize("kind", KINDS)
def test_column_and_tile_match_the_oracle(kind: Callable[..., Any]) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(3):
        x, w = kind(rng, (4, 19)), kind(rng, (19, 6))
        expected = from_bits(np.array([
            [oracle.column(bits(row).tolist(), bits(column).tolist()) for column in w.T]
            for row in x], np.uint32))
        assert_same(columns(x, w), expected)
        assert_same(tile_matmul(x, w), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "k", "n"), [
    (1, 1, 1), (1, 128, 128), (128, 128, 1), (5, 40, 70), (70, 40, 5), (300, 9, 130),
    (3, 7, 2_500), (2_500, 7, 3), (1_100, 4, 1_030)])
def test_tile_is_the_column_sums_bit_for_bit(kind: Callable[..., Any], m: int, k: int,
                                             n: int) -> None:
    rng = np.random.default_rng(SEED)
    x, w = kind(rng, (m, k)), kind(rng, (k, n))
    assert_same(tile_matmul(x, w), columns(x, w))


@pytest.mark.parametrize("kind", KINDS)
def test_fast_and_slow_path_agree(kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
                                  flushes: Sequence[Any]) -> None:
    rng = np.random.default_rng(SEED)
    k = 33
    x, w = kind(rng, (40, k)), kind(rng, (k, 50))
    chosen = tile_matmul(x, w)
    taken = len(flushes)
    monkeypatch.setattr(mxu, "_exponents", lambda steps: np.zeros(len(steps), np.int64))
    slow = tile_matmul(x, w)
    assert len(flushes) - taken == 2 * k
    assert_same(chosen, slow)
    if kind in (normal, sparse):
        assert taken == 0
    if kind in (tiny, tiny_step, wide):
        assert taken > 0


def test_fast_path_ends_exactly_where_a_sum_can_be_subnormal(flushes: list[Any]) -> None:
    # (1 + 2**-7)**2 - (1 + 2**-6) is 2**-14, one quantum; a third product follows.
    for exponent, passes in ((-112, 0), (-113, 3)):
        x, w = np.float32(2.0 ** (exponent // 2)), np.float32(2.0 ** (exponent - exponent // 2))
        left = to_bf16(np.array([[1 + 2**-7, -(1 + 2**-6), -(1 + 2**-7)]], np.float32) * x)
        right = to_bf16(np.array([[1 + 2**-7], [1], [1 + 2**-7]], np.float32) * w)
        flushes.clear()
        assert_same(tile_matmul(left, right), columns(left, right))
        assert len(flushes) == passes
        two = tile_matmul(left[:, :2], right[:2])
        assert two[0, 0] == (0 if passes else 2.0**-126)


def test_flush_passes_are_taken_only_from_the_first_small_step_on(flushes: Sequence[Any]) -> None:
    x, w = np.ones((2, 5), np.float32), np.ones((5, 3), np.float32)
    w[3] = 2.0**-113
    tile_matmul(x, w)
    assert len(flushes) == 2  # the sums of steps 3 and 4; the product is a normal number


def test_one_block_with_small_numbers_does_not_slow_the_others(flushes: Sequence[Any]) -> None:
    rng = np.random.default_rng(SEED)
    x, w = normal(rng, (1_024, 2)), normal(rng, (2, 1_024))
    x[-1] = tiny(rng, 2)
    w[:, 0] = tiny(rng, 2)
    assert_same(tile_matmul(x, w), columns(x, w))
    assert 0 < len(flushes) <= 4
    assert len(set(flushes)) == 1


def test_order_is_part_of_the_result() -> None:
    x = np.array([2.0**24, 1, -(2.0**24)], np.float32)
    w = np.ones((3, 1), np.float32)
    assert tile_matmul(x[None], w)[0, 0] == 0
    assert tile_matmul(x[None, [0, 2, 1]], w)[0, 0] == 1
    rng = np.random.default_rng(SEED)
    x, w = normal(rng, (16, 64)), normal(rng, (64, 16))
    reverse = tile_matmul(x[:, ::-1], w[::-1])
    assert (bits(tile_matmul(x, w)) != bits(reverse)).any()
    assert_same(reverse, columns(x[:, ::-1], w[::-1]))


def test_rows_and_columns_do_not_see_each_other() -> None:
    rng = np.random.default_rng(SEED)
    x, w = few_specials(rng, (37, 20)), few_specials(rng, (20, 41))
    whole = tile_matmul(x, w)
    assert np.isnan(whole).any()
    assert np.isfinite(whole).any()
    for m, n in ((0, 0), (36, 40), (17, 3)):
        assert_same(tile_matmul(x[m:m + 1], w[:, n:n + 1]), whole[m:m + 1, n:n + 1])
    assert_same(tile_matmul(w.T, x.T), whole.T)


def test_every_nan_is_the_one_pattern() -> None:
    rng = np.random.default_rng(SEED)
    result = tile_matmul(any_pattern(rng, (30, 8)), any_pattern(rng, (8, 30)))
    assert np.isnan(result).any()
    assert set(bits(result)[np.isnan(result)].tolist()) == {F32_NAN}


# Padding


@pytest.mark.parametrize("kind", KINDS)
def test_padding_a_short_column_changes_nothing(kind: Callable[..., Any]) -> None:
    rng = np.random.default_rng(SEED)
    m, k, n, rows = 20, 5, 30, 16
    x, w = kind(rng, (m, k)), kind(rng, (k, n))
    x_padded, w_padded = np.zeros((m, rows), bf16), np.full((rows, n), -0.0, bf16)
    x_padded[:, :k], w_padded[:k] = x, w
    assert_same(tile_matmul(x_padded, w_padded), tile_matmul(x, w))
    assert_same(columns(x_padded, w_padded), tile_matmul(x, w))


def test_a_partial_sum_can_be_minus_zero_and_padding_keeps_it() -> None:
    x = b16([[0x2000, 0xA001]])  # 2**-63, and -(1 + 2**-7) times that
    w = b16([[0x2000], [0x2000]])
    assert bits(tile_matmul(x, w))[0, 0] == 0x80000000
    plus, minus = b16([[0x0000]]), b16([[0x8000]])
    assert bits(tile_matmul(np.hstack([x, plus]), np.vstack([w, minus])))[0, 0] == 0x80000000
    assert bits(tile_matmul(np.hstack([x, plus]), np.vstack([w, plus])))[0, 0] == 0x00000000
    assert bits(tile_matmul(np.hstack([x, b16([[0xBF80]])]), np.vstack([w, minus])))[0, 0] == 0


# The matrix product over tiles


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "array"), [(3, 4), (4, 4), (5, 4), (24, 8), (29, 8), (7, 1)])
def test_matmul_adds_tiles_in_order(kind: Callable[..., Any], k: int, array: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = kind(rng, (6, k)), kind(rng, (k, 9))
    total = columns(a[:, :array], b[:array])
    for first in range(array, k, array):
        part = slice(first, first + array)
        total = add_f32(total, columns(a[:, part], b[part]))
    assert_same(matmul(a, b, array), total)


def test_matmul_depends_on_the_array_and_on_the_order_of_tiles() -> None:
    rng = np.random.default_rng(SEED)
    a, b = normal(rng, (16, 64)), normal(rng, (64, 16))
    assert (bits(matmul(a, b, 8)) != bits(matmul(a, b, 64))).any()
    assert (bits(matmul(a, b, 8)) != bits(matmul(np.roll(a, 8, 1), np.roll(b, 8, 0), 8))).any()
    assert_same(matmul(a, b, 64), tile_matmul(a, b))
    assert_same(matmul(a, b, 1 << 40), tile_matmul(a, b))


def test_a_first_tile_of_minus_zero_is_kept() -> None:
    x, w = b16([[0x2000, 0xA001]]), b16([[0x2000], [0x2000]])
    assert bits(matmul(x, w, 2))[0, 0] == 0x80000000
    assert bits(matmul(np.hstack([x, x]), np.vstack([w, w]), 2))[0, 0] == 0x80000000
    # One row a tile: the sum between tiles is flushed as well.
    assert bits(matmul(x, w, 1))[0, 0] == 0x80000000


def test_no_steps_give_plus_zero_and_no_rows_or_columns_nothing() -> None:
    for product in (tile_matmul, lambda x, w: matmul(x, w, 4)):
        none = product(np.zeros((3, 0), np.float32), np.zeros((0, 5), bf16))
        assert_same(none, np.zeros((3, 5), np.float32))
        for m, k, n in ((0, 6, 5), (3, 6, 0), (0, 6, 0), (0, 0, 0)):
            empty = product(np.ones((m, k), np.float32), np.ones((k, n), np.float32))
            assert_same(empty, np.zeros((m, n), np.float32))
    assert_same(column_sum(np.zeros((2, 0), bf16), np.zeros(0, bf16)), np.zeros(2, np.float32))


# The edge


def test_the_edge_rounds_fp32_and_takes_bf16_as_it_is() -> None:
    rng = np.random.default_rng(SEED)
    a = from_bits(rng.integers(0, 1 << 32, (12, 10), np.uint32))
    b = rng.standard_normal((10, 14), np.float32)
    expected = matmul(to_bf16(a), to_bf16(b), 4)
    for left, right in ((a, b), (to_bf16(a), b), (a, to_bf16(b))):
        assert_same(matmul(left, right, 4), expected)
        assert_same(tile_matmul(left, right), tile_matmul(to_bf16(a), to_bf16(b)))
        assert_same(columns(left, right), tile_matmul(to_bf16(a), to_bf16(b)))
    one = np.ones((1, 1), np.float32)
    # 1 + 2**-8 is a tie that rounds to 1; without rounding, the product would be larger.
    assert tile_matmul(np.full((1, 1), 1 + 2**-8, np.float32), one)[0, 0] == 1
    assert tile_matmul(np.full((1, 1), 1 + 2**-7, np.float32), one)[0, 0] == 1 + 2**-7


def test_operands_of_any_layout_are_read_and_not_written() -> None:
    rng = np.random.default_rng(SEED)
    a, b = few_specials(rng, (9, 12)), few_specials(rng, (12, 11))
    before = bits(a).copy(), bits(b).copy()
    expected = matmul(a, b, 4)
    assert_same(matmul(np.asfortranarray(a), np.asfortranarray(b), 4), expected)
    assert_same(matmul(np.repeat(a, 2, 1)[:, ::2], b[::-1][::-1], 4), expected)
    assert np.array_equal(bits(a), before[0])
    assert np.array_equal(bits(b), before[1])


def test_column_sum_broadcasts_and_repeats_mac() -> None:
    rng = np.random.default_rng(SEED)
    x, w = normal(rng, (2, 1, 3, 6)), normal(rng, (5, 1, 6))
    total = np.zeros((2, 5, 3), np.float32)
    for k in range(6):
        total = mac(total, x[..., k], w[..., k])
    assert_same(column_sum(x, w), total)


def test_no_warning_escapes_whatever_the_caller_asked_for() -> None:
    rng = np.random.default_rng(SEED)
    for kind in KINDS:
        a, b = kind(rng, (8, 12)), kind(rng, (12, 8))
        with np.errstate(all="raise"):
            matmul(a, b, 4)
            columns(a, b)


# Truth


@pytest.mark.parametrize("kind", [normal, sparse, tiny])
@pytest.mark.parametrize(("k", "array"), [(128, 128), (500, 128), (1_000, 8)])
def test_error_is_within_the_bound_of_the_text(kind: Callable[..., Any], k: int,
                                               array: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = kind(rng, (24, k)), kind(rng, (k, 24))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    depth = min(k, array) - 1 + -(-k // array) - 1
    growth = (1 + 2.0**-24) ** depth
    # The products are exact in float64; its own sum is off by at most k units of 2**-53.
    bound = (growth - 1 + k * 2.0**-53) * (np.abs(a64) @ np.abs(b64)) + 2 * k * growth * 2.0**-126
    error = np.abs(matmul(a, b, array) - a64 @ b64)
    assert (error <= bound).all()
    assert error.max() > 0


def test_error_of_the_edge_is_within_the_bound_of_the_text() -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.standard_normal((30, 128), np.float32), rng.standard_normal((128, 30), np.float32)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    edge = np.abs(to_f32(to_bf16(a)).astype(np.float64) @ to_f32(to_bf16(b)) - a64 @ b64)
    assert (edge <= (2.0**-7 + 2.0**-16 + 128 * 2.0**-53) * (np.abs(a64) @ np.abs(b64))).all()
    error = np.abs(matmul(a, b, 128) - a64 @ b64)
    assert error.max() > 100 * np.abs(matmul(a, b, 128) - to_f32(to_bf16(a)).astype(np.float64)
                                      @ to_f32(to_bf16(b))).max()


# Arguments

F32 = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: tile_matmul(F32.astype(np.float64), F32.T), TypeError,
     "x must be an array of float32 or bfloat16, not of float64"),
    (lambda: tile_matmul(F32, F32.T.astype(np.int32)), TypeError,
     "w must be an array of float32 or bfloat16, not of int32"),
    (lambda: tile_matmul(F32, [[1.0]] * 3), TypeError, "w must be an array .* not of float64"),
    (lambda: tile_matmul(F32[0], F32.T), ValueError, r"x must be a matrix, not of shape \(3,\)"),
    (lambda: tile_matmul(F32, F32[None]), ValueError,
     r"w must be a matrix, not of shape \(1, 2, 3\)"),
    (lambda: tile_matmul(F32, F32), ValueError,
     "w must have as many rows as x has columns, 3, not 2"),
    (lambda: matmul(F32, F32, 4), ValueError,
     "b must have as many rows as a has columns, 3, not 2"),
    (lambda: matmul(F32.astype(np.float16), F32.T, 4), TypeError, "a must be .* not of float16"),
    (lambda: matmul(F32, F32.T, 0), ValueError, "array must be at least 1, not 0"),
    (lambda: matmul(F32, F32.T, 4.0),  # type: ignore[arg-type]
     TypeError, "array must be an integer, not 4.0"),
    (lambda: matmul(F32, F32.T, True), TypeError, "array must be an integer, not True"),
    (lambda: column_sum(F32, F32[:, :2]), ValueError,
     "w must have a last axis as long as that of x, 3, not 2"),
    (lambda: column_sum(np.float32(1), F32), ValueError,
     r"x must have at least one axis, not shape \(\)"),
    (lambda: column_sum(F32, ml_dtypes.bfloat16(1)), ValueError,
     r"w must have at least one axis, not shape \(\)"),
    (lambda: column_sum(F32, np.zeros((3, 3), np.float32)), ValueError, "broadcast"),
])
def test_wrong_arguments_are_refused(call: Callable[..., Any], error: type[Exception],
                                     message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_dense_layer_adds_its_bias_last_and_then_rectifies() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((5, 9), np.float32)
    w = rng.standard_normal((9, 6), np.float32)
    bias = rng.standard_normal(6, np.float32)
    product = matmul(x, w, 4)
    biased = add_f32(product, np.broadcast_to(bias, product.shape))
    assert_same(mxu.dense(x, w, 4), product)
    assert_same(mxu.dense(x, w, 4, bias), biased)
    rectified = mxu.dense(x, w, 4, bias, relu=True)
    assert (biased < 0).any()
    assert_same(rectified, np.maximum(biased, np.float32(0)))
    # NaN stays; -0.0 becomes +0.0.
    x[0, 0], x[1], w[:, 0] = np.nan, 0.0, -1.0
    corner = mxu.dense(x, w, 4, np.full(6, -0.0, np.float32), relu=True)
    assert (bits(corner[0]) == F32_NAN).all()
    assert not bits(corner[1]).any()
    with pytest.raises(ValueError, match=r"bias must be float32 of shape \(6,\), not float32 of"):
        mxu.dense(x, w, 4, bias[:5])
