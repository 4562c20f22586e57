"""Interpreter rules for elementwise operations.

Integers of n bits are exact modulo 2^n. A float32 result is computed in float64 and rounded once;
for ``add``, ``subtract``, ``multiply``, ``divide`` and ``sqrt``, this is the correctly rounded
result. A bfloat16 result is the float32 result of the same operands, rounded to bfloat16. Subnormal
numbers are kept here; the device reads and writes them as zeros.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import DType, Operation
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__ = ["ELEMENTWISE", "reduce_precision", "round_to", "total_order"]


def round_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 values to float32, then to ``dtype``; both to nearest, ties to even."""
    return np.asarray(values).astype(np.float32).astype(dtype)


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"


def _floats(function: Callable[..., Array], *operands: Array) -> Array:
    wide = [operand.astype(np.float64) for operand in operands]
    return round_to(function(*wide), operands[0].dtype)


def _divide_integers(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the quotient, rounded toward zero, and the remainder, with the dividend's sign.

    Division by zero gives a quotient with all bits set and the dividend as remainder.
    """
    wide_a, wide_b = (np.asarray(x, dtype=object) for x in np.broadcast_arrays(a, b))
    if a.dtype.itemsize < 8:
        wide_a, wide_b = (np.asarray(x, dtype=np.int64) for x in np.broadcast_arrays(a, b))
    safe = np.where(wide_b == 0, 1, wide_b)
    quotient = abs(wide_a) // abs(safe) * np.where((wide_a < 0) != (safe < 0), -1, 1)
    remainder = wide_a - quotient * safe
    mask = (1 << 8 * a.dtype.itemsize) - 1
    return (_wrap(np.where(wide_b == 0, mask, quotient), a.dtype),
            _wrap(np.where(wide_b == 0, wide_a, remainder), a.dtype))


def _wrap(values: Array, dtype: np.dtype[Any]) -> Array:
    """Reduce integers modulo 2^n to the integer type ``dtype``, which has n bits."""
    bits = 8 * dtype.itemsize
    unsigned = np.asarray(values) & ((1 << bits) - 1)
    return unsigned.astype(f"u{dtype.itemsize}").view(dtype)


def _power_integers(base: Array, exponent: Array) -> Array:
    base, exponent = np.broadcast_arrays(base, exponent)
    result, factor, left = np.ones_like(base), base.copy(), exponent.copy()
    while np.any(left > 0):
        result = np.where((left > 0) & (left & 1 == 1), result * factor, result)
        factor, left = factor * factor, left >> 1
    if base.dtype.kind == "i":
        # 1 and -1 have inverses; that of any other number rounds to zero.
        odd = exponent & 1 == 1
        inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
        result = np.where(exponent < 0, inverse.astype(base.dtype), result)
    return result


def _extremum(a: Array, b: Array, *, greatest: bool) -> Array:
    if not _is_float(a):
        return np.maximum(a, b) if greatest else np.minimum(a, b)
    # -0 counts as less than +0; if an operand is NaN, so is the result.
    larger = (a > b) | ((a == b) & np.signbit(b))
    picked = np.where(larger == greatest, a, b)
    return np.where(np.isnan(a), a, np.where(np.isnan(b), b, picked))


def _shift(a: Array, b: Array, function: Callable[..., Array]) -> Array:
    bits = 8 * a.dtype.itemsize
    unsigned = a.view(f"u{a.dtype.itemsize}") if function is np.right_shift else a
    amount = b.view(f"u{b.dtype.itemsize}")
    shifted = function(unsigned, np.minimum(amount, bits - 1).astype(unsigned.dtype))
    return np.where(amount >= bits, np.zeros_like(shifted), shifted).astype(a.dtype)


def _shift_arithmetic(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    amount = np.minimum(b.view(f"u{b.dtype.itemsize}"), bits - 1)
    signed = a.view(f"i{a.dtype.itemsize}")
    return (signed >> amount.astype(signed.dtype)).view(a.dtype)


def _count_leading_zeros(a: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    left = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    count = np.full(a.shape, bits, a.dtype)
    for bit in range(bits):
        count = np.where(left >> np.uint64(bit) & np.uint64(1) == 1,
                         np.asarray(bits - 1 - bit, a.dtype), count)
    return count


def _cbrt(x: Array) -> Array:
    return np.cbrt(x)


def _rsqrt(x: Array) -> Array:
    # The result for -0 is +inf (docs/transcendentals.md).
    return 1.0 / np.sqrt(np.where(x == 0, 0.0, x))


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x) | (x == 0), x, np.sign(x))


def _round_away(x: Array) -> Array:
    return np.copysign(np.where(np.abs(x) < 2.0 ** 52, np.floor(np.abs(x) + 0.5), np.abs(x)), x)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "cbrt": _cbrt, "ceil": np.ceil, "cosine": np.cos, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "floor": np.floor, "log": np.log, "log_plus_one": np.log1p,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)), "round_nearest_afz": _round_away,
    "round_nearest_even": np.rint, "rsqrt": _rsqrt, "sine": np.sin,
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "power": np.power, "remainder": np.fmod, "atan2": np.arctan2,
}
_INTEGER_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "divide": lambda a, b: _divide_integers(a, b)[0],
    "remainder": lambda a, b: _divide_integers(a, b)[1], "power": _power_integers,
}
_PREDICATE_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.logical_or, "multiply": np.logical_and,
}
_BITWISE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}
_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}


@evaluates(*_UNARY)
def _unary(operation: Operation, operands: list[Array], context: Context) -> Array:
    return _floats(_UNARY[operation.kind], operands[0])


@evaluates(*_BINARY)
def _binary(operation: Operation, operands: list[Array], context: Context) -> Array:
    if _is_float(operands[0]):
        return _floats(_BINARY[operation.kind], *operands)
    table = _PREDICATE_BINARY if operands[0].dtype == np.bool_ else _INTEGER_BINARY
    return np.asarray(table[operation.kind](*operands))


@evaluates(*_BITWISE)
def _bitwise(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(_BITWISE[operation.kind](*operands))


@evaluates("not")
def _not(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(np.bitwise_not(operands[0]))


@evaluates("maximum", "minimum")
def _max_min(operation: Operation, operands: list[Array], context: Context) -> Array:
    return _extremum(*operands, greatest=operation.kind == "maximum")


@evaluates("negate")
def _negate(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(np.negative(operands[0]))


@evaluates("abs")
def _abs(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(np.abs(operands[0]))


@evaluates("sign")
def _signs(operation: Operation, operands: list[Array], context: Context) -> Array:
    [x] = operands
    return _floats(_sign, x) if _is_float(x) else np.asarray(np.sign(x))


@evaluates("is_finite")
def _is_finite(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(np.isfinite(operands[0].astype(np.float32)))


@evaluates("count_leading_zeros")
def _clz(operation: Operation, operands: list[Array], context: Context) -> Array:
    return _count_leading_zeros(operands[0])


@evaluates("popcnt")
def _popcnt(operation: Operation, operands: list[Array], context: Context) -> Array:
    [x] = operands
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}")).astype(x.dtype)


@evaluates("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shifts(operation: Operation, operands: list[Array], context: Context) -> Array:
    a, b = np.broadcast_arrays(*operands)
    a, b = np.ascontiguousarray(a).reshape(a.shape), np.ascontiguousarray(b).reshape(b.shape)
    if operation.kind == "shift_right_arithmetic":
        return _shift_arithmetic(a, b)
    return _shift(a, b, np.left_shift if operation.kind == "shift_left" else np.right_shift)


def total_order(x: Array) -> Array:
    """Map floats to integers that have the total order of IEEE 754.

    The order is -NaN < -inf < ... < -0 < +0 < ... < +inf < +NaN.
    """
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, ~bits ^ np.iinfo(bits.dtype).min, bits)


@evaluates("compare")
def _compare(operation: Operation, operands: list[Array], context: Context) -> Array:
    if operation.attributes.get("compare_type") == "TOTALORDER":
        operands = [total_order(operand) for operand in operands]
    return np.asarray(_COMPARISONS[operation.attributes["comparison_direction"]](*operands))


@evaluates("select")
def _select(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.where(*operands)


@evaluates("clamp")
def _clamp(operation: Operation, operands: list[Array], context: Context) -> Array:
    low, x, high = operands
    return _extremum(_extremum(x, low, greatest=True), high, greatest=False)


@evaluates("convert")
def _convert(operation: Operation, operands: list[Array], context: Context) -> Array:
    [x] = operands
    target = operation.result.dtype
    dtype = array_dtype(target)
    if target is DType.PRED:
        return np.asarray(x != 0)
    if target.is_float:
        # Integers of up to 64 bits must not pass through float64, which would round them first.
        return (x.astype(np.float32) if x.dtype.kind in "iu" else x.astype(np.float64)
                .astype(np.float32)).astype(dtype)
    if not _is_float(x):
        return x.astype(dtype)
    # Numbers out of range become the type's least or greatest integer, and NaN becomes 0.
    info = np.iinfo(dtype)
    wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = np.clip(wide, float(info.min), np.nextafter(float(info.max) + 1, 0)
                     if dtype.itemsize == 8 else float(info.max))
    result = inside.astype(dtype)
    return np.where(wide >= float(info.max), info.max, result).astype(dtype)


@evaluates("bitcast_convert")
def _bitcast_convert(operation: Operation, operands: list[Array], context: Context) -> Array:
    [x] = operands
    dtype = array_dtype(operation.result.dtype)
    x = np.ascontiguousarray(x).reshape(x.shape)
    if dtype.itemsize == x.dtype.itemsize:
        return x.view(dtype)
    if dtype.itemsize < x.dtype.itemsize:
        return x[..., None].view(dtype)
    return x.view(dtype)[..., 0]


@evaluates("reduce_precision")
def _reduce_precision(operation: Operation, operands: list[Array], context: Context) -> Array:
    return reduce_precision(operands[0], operation.attributes["exponent_bits"],
                            operation.attributes["mantissa_bits"])


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round floats to a narrower format without subnormal numbers, and convert them back.

    Numbers are rounded to nearest, ties to even.

    Parameters
    ----------
    x : array
        Floating-point numbers.
    exponent_bits, mantissa_bits : int
        Widths of the format's exponent field and of its fraction.

    Returns
    -------
    array
        The rounded numbers, in the type of ``x``. Numbers that overflow the format become infinite,
        those that underflow become zero.
    """
    wide = x.astype(np.float32)
    bits = np.ascontiguousarray(wide).reshape(wide.shape).view(np.uint32).astype(np.uint64)
    if mantissa_bits < 23:
        drop = np.uint64(23 - mantissa_bits)
        last = bits >> drop & np.uint64(1)
        bits = bits + (np.uint64(1) << (drop - np.uint64(1))) - np.uint64(1) + last
        bits = bits >> drop << drop
    rounded = bits.astype(np.uint32).view(np.float32)
    if exponent_bits < 8:
        bias = (1 << exponent_bits - 1) - 1
        magnitude = np.abs(rounded.astype(np.float64))
        rounded = np.where(magnitude >= 2.0 ** (bias + 1), np.copysign(np.inf, rounded), rounded)
        rounded = np.where(magnitude < 2.0 ** (1 - bias), np.copysign(0.0, rounded), rounded)
    return np.where(np.isfinite(wide), rounded, wide).astype(x.dtype)


@evaluates("optimization_barrier")
def _barrier(operation: Operation, operands: list[Array], context: Context) -> Sequence[Array]:
    return operands


@evaluates("map")
def _map(operation: Operation, operands: list[Array], context: Context) -> Array:
    return context.apply(operation.regions[0], operands)[0]


ELEMENTWISE = frozenset({
    *_UNARY, *_BINARY, *_BITWISE, "not", "maximum", "minimum", "negate", "abs", "sign",
    "is_finite", "count_leading_zeros", "popcnt", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "compare", "select", "clamp", "convert", "bitcast_convert",
    "reduce_precision"})
"""Kinds of operations for which each element of the result depends only on the same element of each
operand. ``select`` and ``clamp`` also accept scalars in place of some operands."""
