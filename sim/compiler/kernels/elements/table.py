"""The table that maps kinds of elementwise operations to sequences of vector operations."""

from collections.abc import Callable, Sequence
from typing import Any

from sim.compiler.graph.ir import DType, Operation
from sim.compiler.kernels.elements import (
    conversions,
    elementary,
    floats,
    integers,
    trigonometric,
)
from sim.compiler.kernels.elements.expression import Elements

__all__ = ["KINDS", "expand"]

Expansion = Callable[[Elements, Operation, Sequence[Any]], Any]
_TABLE: dict[str, Expansion] = {}


def expand(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    """Record the vector operations that compute an elementwise operation; return the result.

    Parameters
    ----------
    e : Elements
        Recorder of the vector operations.
    operation : Operation
        An operation whose kind is in `KINDS`.
    operands : sequence
        A node or a word for each operand; for a predicate, a mask node, or 0 or 1.
    """
    return _TABLE[operation.kind](e, operation, operands)


def _expands(*kinds: str) -> Callable[[Expansion], Expansion]:
    def register(function: Expansion) -> Expansion:
        for kind in kinds:
            _TABLE[kind] = function
        return function

    return register


_FLOAT_UNARY: dict[str, Callable[..., Any]] = {
    "abs": lambda e, x: e("fabs", x),
    "negate": lambda e, x: e("fneg", x),
    "rsqrt": lambda e, x: e("rsqrt", x),
    "tanh": lambda e, x: e("tanh", x),
    "sign": floats.sign, "floor": floats.floor, "ceil": floats.ceil,
    "round_nearest_even": floats.round_nearest_even,
    "round_nearest_afz": floats.round_nearest_afz,
    "sqrt": floats.square_root, "cbrt": elementary.cube_root,
    "exponential": elementary.exponential,
    "exponential_minus_one": elementary.exponential_minus_one,
    "log": elementary.log, "log_plus_one": elementary.log_plus_one,
    "logistic": elementary.logistic,
    "sine": trigonometric.sine, "cosine": trigonometric.cosine, "tan": trigonometric.tangent,
}
_EXACT = frozenset(("abs", "negate", "sign", "floor", "ceil", "round_nearest_even",
                    "round_nearest_afz", "maximum", "minimum"))
"""Kinds whose results are bf16 numbers if their operands are: they need no rounding."""
_BF16_UNARY: dict[str, Callable[..., Any]] = {
    "exponential": elementary.rough_exponential, "logistic": elementary.rough_logistic}
_INTEGER_UNARY: dict[str, Callable[..., Any]] = {
    "negate": lambda e, x: e("sub", 0, x),
    "popcnt": integers.population_count,
    "count_leading_zeros": integers.count_leading_zeros,
}


def _rounded(e: Elements, operation: Operation, x: Any) -> Any:
    """Round an fp32 result to the type of the operation's result."""
    dtype = operation.result.dtype
    return x if operation.kind in _EXACT else conversions.rounded(e, x, dtype)


@_expands(*_FLOAT_UNARY, "popcnt", "count_leading_zeros")
def _unary(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    [x], dtype = operands, operation.operands[0].dtype
    if dtype is DType.BF16 and operation.kind in _BF16_UNARY:
        return e("bf16", _BF16_UNARY[operation.kind](e, x))
    if dtype.is_float:
        return _rounded(e, operation, _FLOAT_UNARY[operation.kind](e, x))
    if operation.kind == "abs":
        negative = e("sar", x, 31)
        return e("sub", e("xor", x, negative), negative) if dtype.is_signed else x
    if operation.kind == "sign":
        return integers.sign_signed(e, x) if dtype.is_signed else e.select(e("ne", x, 0), 1, 0)
    return _INTEGER_UNARY[operation.kind](e, x)


_FLOAT_BINARY: dict[str, Callable[..., Any]] = {
    "add": lambda e, a, b: e("fadd", a, b),
    "subtract": lambda e, a, b: e("fsub", a, b),
    "multiply": lambda e, a, b: e("fmul", a, b),
    "maximum": lambda e, a, b: e("fmax", a, b),
    "minimum": lambda e, a, b: e("fmin", a, b),
    "divide": floats.divide, "power": elementary.power, "atan2": trigonometric.atan2,
}
_BITS = {"and": "and", "or": "or", "xor": "xor", "add": "add", "subtract": "sub",
         "shift_left": "shl", "shift_right_logical": "shr", "shift_right_arithmetic": "sar"}
_MASKS = {"and": "mand", "multiply": "mand", "minimum": "mand", "or": "mor", "add": "mor",
          "maximum": "mor", "xor": "mxor"}


@_expands(*_FLOAT_BINARY, *_BITS, "remainder")
def _binary(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    [a, b], dtype, kind = operands, operation.operands[0].dtype, operation.kind
    if dtype is DType.PRED:
        return e.mask(_MASKS[kind], a, b)
    if kind == "divide" and dtype is DType.BF16:
        return e("bf16", floats.rough_quotient(e, a, b))
    if dtype.is_float:
        return _rounded(e, operation, _FLOAT_BINARY[kind](e, a, b))
    if kind in _BITS:
        return e(_BITS[kind], a, b)
    if kind == "multiply":
        return integers.multiply(e, a, b)
    if kind in ("maximum", "minimum"):
        choose = integers.maximum if kind == "maximum" else integers.minimum
        return choose(e, a, b, signed=dtype.is_signed)
    divide = integers.divide_signed if dtype.is_signed else integers.divide_unsigned
    return divide(e, a, b)[kind == "remainder"]


@_expands("not")
def _not(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    if operation.operands[0].dtype is DType.PRED:
        return e.invert(operands[0])
    return e("xor", operands[0], -1)


@_expands("is_finite")
def _is_finite(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    return e("lt", e("and", operands[0], floats.MAGNITUDE), floats.EXPONENT)


_SIGNED = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
_MIRRORED = {"GT": "LT", "LE": "GE"}


@_expands("compare")
def _compare(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    [a, b], dtype = operands, operation.operands[0].dtype
    direction = operation.attributes["comparison_direction"]
    if dtype is DType.PRED:
        return _compare_masks(e, direction, a, b)
    if dtype.is_float and operation.attributes.get("compare_type") == "TOTALORDER":
        a, b = (e("xor", x, e("shr", e("sar", x, 31), 1)) for x in (a, b))
        return e(_SIGNED[direction], a, b)
    if dtype.is_float:
        return e("f" + _SIGNED[direction], a, b)
    if dtype.is_signed or direction in ("EQ", "NE"):
        return e(_SIGNED[direction], a, b)
    if direction in _MIRRORED:
        a, b, direction = b, a, _MIRRORED[direction]
    return e(_SIGNED[direction] + "u", a, b)


def _compare_masks(e: Elements, direction: str, a: Any, b: Any) -> Any:
    if direction in ("EQ", "NE"):
        differs = e.mask("mxor", a, b)
        return differs if direction == "NE" else e.invert(differs)
    if direction in ("GT", "LE"):
        a, b = b, a
    less = e.mask("mandn", b, a)
    return less if direction in ("LT", "GT") else e.invert(less)


@_expands("select")
def _select(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    which, a, b = operands
    if operation.result.dtype is DType.PRED:
        return e.mask("mor", e.mask("mand", a, which), e.mask("mandn", b, which))
    return e.select(which, a, b)


@_expands("clamp")
def _clamp(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    low, x, high = operands
    dtype = operation.result.dtype
    if dtype.is_float:
        return e("fmin", e("fmax", x, low), high)
    if dtype is DType.PRED:
        return e.mask("mand", e.mask("mor", x, low), high)
    larger = integers.maximum(e, x, low, signed=dtype.is_signed)
    return integers.minimum(e, larger, high, signed=dtype.is_signed)


@_expands("convert")
def _convert(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    return conversions.convert(e, operands[0], operation.operands[0].dtype, operation.result.dtype)


@_expands("bitcast_convert")
def _bitcast(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    return conversions.bitcast(e, operands[0], operation.operands[0].dtype, operation.result.dtype)


@_expands("reduce_precision")
def _reduce_precision(e: Elements, operation: Operation, operands: Sequence[Any]) -> Any:
    return conversions.reduce_precision(e, operands[0], operation.attributes["exponent_bits"],
                                        operation.attributes["mantissa_bits"])


KINDS = frozenset(_TABLE)
"""Kinds of operations in the table."""
