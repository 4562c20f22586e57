"""The vector unit's operations on numpy arrays, bit for bit.

This module specifies hdl/vpu, and executes what `hdl/isa.py` and `docs/numerics.md` define.
Operands and results are arrays of uint32: the bit patterns of a vector register, for numbers of
every type. `evaluate` executes operations that write a vector register, and `compare` those that
write a mask; both apply to each element separately.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden import transcendental
from golden.numerics import F32_NAN, add_f32, flushed, to_bf16
from golden.transcendental import Function
from hdl.checks import instance, integer
from hdl.isa import VectorOp

__all__ = ["SHIFTS", "binary", "compare", "comparison", "evaluate", "fmax", "fmin", "fmul", "shift",
           "threefry2x32", "unary"]

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]
_Bits = NDArray[np.bool_]
_Function = TypeVar("_Function", bound=Callable[..., _Words])

# Arrays, because numpy would convert a Python number to an array in each call.
_SIGN = np.array(0x80000000, np.uint32)
_MAGNITUDE = np.array(0x7FFFFFFF, np.uint32)
_ZERO = np.array(0, np.uint32)
_WIDTH = np.array(32, np.uint32)

# Exact products below this one round to less than 2**-126; this one is a tie and rounds up.
_LEAST_KEPT = (1 - 2.0**-25) * 2.0**-126

_PARITY = 0x1BD11BDA
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 20


def _checked(name: str, value: ArrayLike | None) -> _Words:
    array = np.asarray(cast(ArrayLike, value))
    if array.dtype != np.uint32:
        raise TypeError(f"{name} must be an array of uint32, not of {array.dtype}")
    return array


def evaluate(op: VectorOp, a: ArrayLike, b: ArrayLike | None = None) -> NDArray[np.uint32]:
    """Return the result of ``op``, an operation that writes a vector register.

    Parameters
    ----------
    op : VectorOp
        An operation whose result depends only on the elements of a and b. `SELECT`, `LANE`,
        `SUBLANE` and operations that write a mask are excluded.
    a, b : array of uint32, shapes that broadcast
        `MOVE` ignores a. Unary operations ignore b, which may be omitted then.

    Returns
    -------
    array of uint32
        A new array, of the broadcast shape of the operation's operands.

    Raises
    ------
    TypeError
        If ``op`` is not a `VectorOp`, or an operand is of another type or absent.
    ValueError
        If the operation is excluded, or the shapes do not broadcast.
    """
    instance("op", op, VectorOp)
    if op in _UNARY:
        return np.asarray(unary(op)(_checked("a", a)))
    function = binary(op)
    b = _checked("b", b)
    # What `MOVE` ignores may be of any type.
    return np.asarray(function(b if op is VectorOp.MOVE else _checked("a", a), b))


def unary(op: VectorOp) -> Callable[[_Words], _Words]:
    """Return the function that computes an operation of one operand.

    The function takes an array of uint32, and does not check it.

    Raises
    ------
    ValueError
        If ``op`` is not an operation of one operand.
    """
    return _function(_UNARY, op)


def binary(op: VectorOp) -> Callable[[_Words, _Words], _Words]:
    """Return the function that computes an operation of two operands, as `unary` does for one."""
    return _function(_BINARY, op)


def _function(functions: Mapping[VectorOp, _Function], op: VectorOp) -> _Function:
    if op not in functions:
        raise ValueError("op must be an operation of elements that writes a vector register, "
                         f"not {op!r}")
    return functions[op]


def compare(op: VectorOp, a: ArrayLike, b: ArrayLike) -> _Bits:
    """Return the result of ``op``, a comparison, which writes a mask.

    Parameters
    ----------
    op : VectorOp
        `FEQ` to `FGE`, or `EQ` to `GEU`.
    a, b : array of uint32, shapes that broadcast

    Returns
    -------
    array of bool, the broadcast shape

    Raises
    ------
    TypeError
        If ``op`` is not a `VectorOp`, or an operand is of another type.
    ValueError
        If the operation is not one of these, or the shapes do not broadcast.
    """
    instance("op", op, VectorOp)
    return np.asarray(comparison(op)(_checked("a", a), _checked("b", b)))


def comparison(op: VectorOp) -> Callable[[_Words, _Words], _Bits]:
    """Return the function that computes a comparison.

    The function takes arrays of uint32, and does not check them.

    Raises
    ------
    ValueError
        If ``op`` is not a comparison.
    """
    if op not in _COMPARE:
        raise ValueError(f"op must be a comparison, not {op!r}")
    return _COMPARE[op]


# fp32


def _number(u: _Words) -> NDArray[np.float32]:
    """Return the fp32 numbers with patterns ``u``, each subnormal as the zero of its sign."""
    return flushed(u.view(np.float32))


def _pattern(y: NDArray[np.float32]) -> _Words:
    """Replace NaNs of ``y``, which has no subnormals, by `F32_NAN`; return the bit patterns."""
    u, nan = y.view(np.uint32), np.isnan(y)
    if np.count_nonzero(nan):
        u[nan] = F32_NAN
    return u


def _fadd(a: _Words, b: _Words) -> _Words:
    return add_f32(a.view(np.float32), b.view(np.float32)).view(np.uint32)


def fmul(a: _Words, b: _Words) -> _Words:
    """Return the product of fp32 numbers, rounded once.

    A float64 holds the product of two 24-bit significands exactly, for all exponents. Its
    conversion to float32 is the only rounding, and is correct from 2**-126 on. A smaller product
    would be rounded to a multiple of 2**-149. So its exact value decides the result: 2**-126 if it
    is at least the midpoint between 2**-126 and the next smaller number with 24 significant bits,
    otherwise zero.

    Parameters
    ----------
    a, b : array of uint32, shapes that broadcast

    Returns
    -------
    array of uint32, the broadcast shape
    """
    with np.errstate(all="ignore"):
        # Signalling NaNs and infinity times zero are valid operands.
        exact = np.asarray(_number(a).astype(np.float64) * _number(b))
        # The product with zero is the zero of the factor's sign.
        small = np.abs(exact) < _LEAST_KEPT
        if np.count_nonzero(small):
            exact[small] *= 0.0
        return _pattern(exact.astype(np.float32))


def fmax(a: _Words, b: _Words) -> _Words:
    """Return the larger of two fp32 numbers; +0 is larger than -0; NaN if either is NaN.

    The maximum is commutative and associative in every bit.

    Parameters
    ----------
    a, b : array of uint32, shapes that broadcast

    Returns
    -------
    array of uint32, the broadcast shape
    """
    # If the maximum is a zero, no operand is positive: it is -0 only if both have the sign bit.
    return _extreme(np.maximum, np.bitwise_and, a, b)


def fmin(a: _Words, b: _Words) -> _Words:
    """Return the smaller of two fp32 numbers; -0 is smaller than +0; NaN if either is NaN.

    Parameters
    ----------
    a, b : array of uint32, shapes that broadcast

    Returns
    -------
    array of uint32, the broadcast shape
    """
    # If the minimum is a zero, no operand is negative but -0: it is -0 if either has the sign bit.
    return _extreme(np.minimum, np.bitwise_or, a, b)


def _extreme(choose: np.ufunc, sign: np.ufunc, a: _Words, b: _Words) -> _Words:
    """Return the larger or the smaller of fp32 numbers: ``choose`` is `np.maximum` or `np.minimum`.

    If a result is zero, ``sign`` computes its sign bit from those of the operands.
    """
    with np.errstate(all="ignore"):
        x, y = _number(a), _number(b)
        chosen = np.asarray(choose(x, y))
        zeros = chosen == 0
        if np.count_nonzero(zeros):
            signs = sign(x.view(np.uint32), y.view(np.uint32)) & _SIGN
            chosen.view(np.uint32)[zeros] = np.asarray(signs)[zeros]
        return _pattern(chosen)


def _fabs(a: _Words) -> _Words:
    with np.errstate(all="ignore"):
        return _pattern(np.asarray(np.abs(_number(a))))


def _fneg(a: _Words) -> _Words:
    with np.errstate(all="ignore"):
        return _pattern(np.asarray(np.negative(_number(a))))


def _f2i(a: _Words) -> _Words:
    with np.errstate(all="ignore"):
        # The bounds of the range and all fp32 numbers are exact in float64.
        x = a.view(np.float32).astype(np.float64)
        np.minimum(x, 2.0**31 - 1, out=x)
        np.maximum(x, -(2.0**31), out=x)
        x[np.isnan(x)] = 0.0
        # Truncates.
        return x.astype(np.int32).view(np.uint32)


def _i2f(a: _Words) -> _Words:
    return a.view(np.int32).astype(np.float32).view(np.uint32)


def _bf16(a: _Words) -> _Words:
    # Exact: neither subnormals nor other NaN patterns are left.
    return to_bf16(a.view(np.float32)).astype(np.float32).view(np.uint32)


def _transcendental(function: Function) -> Callable[[_Words], _Words]:
    return lambda a: transcendental.evaluate(function, a.view(np.float32)).view(np.uint32)


# Integers; numpy's wrap.


def _shl(a: _Words, b: _Words) -> _Words:
    # In numpy, shifts by the width or more are undefined.
    return np.where(b < _WIDTH, a << (b & 31), _ZERO)


def _shr(a: _Words, b: _Words) -> _Words:
    return np.where(b < _WIDTH, a >> (b & 31), _ZERO)


def _sar(a: _Words, b: _Words) -> _Words:
    return (a.view(np.int32) >> np.minimum(b, 31).astype(np.int32)).view(np.uint32)


def shift(op: VectorOp, amount: int) -> Callable[[_Words], _Words]:
    """Return the function that shifts an array of uint32 by ``amount`` bits, from 0 to 2**32 - 1.

    Raises
    ------
    ValueError
        If the operation is not a shift.
    """
    if op not in SHIFTS:
        raise ValueError(f"op must be a shift, not {op!r}")
    if op is VectorOp.SAR:
        limited = np.array(min(amount, 31), np.int32)
        return lambda a: (a.view(np.int32) >> limited).view(np.uint32)
    if amount >= _WIDTH:
        return np.zeros_like
    distance = np.array(amount, np.uint32)
    if op is VectorOp.SHL:
        return lambda a: a << distance
    return lambda a: a >> distance


# Random words


def threefry2x32(counter: tuple[ArrayLike, ArrayLike], key: tuple[ArrayLike, ArrayLike],
                 rounds: int = _ROUNDS) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return words of Threefry-2x32 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, 2011).

    Parameters
    ----------
    counter, key : pairs of arrays of uint32
        The first and the second word of the counter, and those of the key. All four arrays have
        shapes that broadcast.
    rounds : int
        Number of rounds, 0 or more; the vector unit has 20.

    Returns
    -------
    two arrays of uint32, the broadcast shape
        The first and the second word.

    Raises
    ------
    TypeError
        If an array is of another type, or ``rounds`` is not an integer.
    ValueError
        If ``rounds`` is negative, or the shapes do not broadcast.
    """
    integer("rounds", rounds, 0)
    c0, c1 = (_checked(f"counter[{i}]", word) for i, word in enumerate(counter))
    k0, k1 = (_checked(f"key[{i}]", word) for i, word in enumerate(key))
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    shape = np.broadcast_shapes(c0.shape, c1.shape, k0.shape, k1.shape)
    x0 = np.zeros(shape or 1, np.uint32)
    x1 = np.zeros_like(x0)
    x0 += c0
    x0 += k0
    x1 += c1
    x1 += k1
    for number in range(rounds):
        rotation = np.uint32(_ROTATIONS[number % len(_ROTATIONS)])
        x0 += x1
        x1 = (x1 << rotation) | (x1 >> (np.uint32(32) - rotation))
        x1 ^= x0
        if number % 4 == 3:
            injection = number // 4 + 1
            x0 += keys[injection % 3]
            x1 += keys[(injection + 1) % 3]
            x1 += np.uint32(injection)
    return x0.reshape(shape), x1.reshape(shape)


def _random(a: _Words, b: _Words) -> _Words:
    zero = np.zeros((), np.uint32)
    return threefry2x32((a, zero), (b, zero))[0]


_UNARY: dict[VectorOp, Callable[[_Words], _Words]] = {
    VectorOp.FABS: _fabs,
    VectorOp.FNEG: _fneg,
    VectorOp.F2I: _f2i,
    VectorOp.I2F: _i2f,
    VectorOp.BF16: _bf16,
    VectorOp.RECIPROCAL: _transcendental(Function.RECIPROCAL),
    VectorOp.RSQRT: _transcendental(Function.RSQRT),
    VectorOp.EXP2: _transcendental(Function.EXP2),
    VectorOp.LOG2: _transcendental(Function.LOG2),
    VectorOp.TANH: _transcendental(Function.TANH),
}

_BINARY: dict[VectorOp, Callable[[_Words, _Words], _Words]] = {
    VectorOp.MOVE: lambda a, b: b.copy(),
    VectorOp.FADD: _fadd,
    # All NaN results have one pattern, so the sign of b may change even if b is NaN.
    VectorOp.FSUB: lambda a, b: _fadd(a, b ^ _SIGN),
    VectorOp.FMUL: fmul,
    VectorOp.FMIN: fmin,
    VectorOp.FMAX: fmax,
    VectorOp.ADD: np.add,
    VectorOp.SUB: np.subtract,
    VectorOp.AND: np.bitwise_and,
    VectorOp.OR: np.bitwise_or,
    VectorOp.XOR: np.bitwise_xor,
    VectorOp.SHL: _shl,
    VectorOp.SHR: _shr,
    VectorOp.SAR: _sar,
    VectorOp.RANDOM: _random,
}

SHIFTS = frozenset((VectorOp.SHL, VectorOp.SHR, VectorOp.SAR))
"""Operations for which `shift` returns a function."""


def _of_floats(compare: np.ufunc) -> Callable[[_Words, _Words], _Bits]:
    def function(a: _Words, b: _Words) -> _Bits:
        with np.errstate(all="ignore"):
            return compare(_number(a), _number(b))

    return function


def _of_signed(compare: np.ufunc) -> Callable[[_Words, _Words], _Bits]:
    return lambda a, b: compare(a.view(np.int32), b.view(np.int32))


_COMPARE: dict[VectorOp, Callable[[_Words, _Words], _Bits]] = {
    VectorOp.FEQ: _of_floats(np.equal),
    VectorOp.FNE: _of_floats(np.not_equal),
    VectorOp.FLT: _of_floats(np.less),
    VectorOp.FLE: _of_floats(np.less_equal),
    VectorOp.FGT: _of_floats(np.greater),
    VectorOp.FGE: _of_floats(np.greater_equal),
    VectorOp.EQ: np.equal,
    VectorOp.NE: np.not_equal,
    VectorOp.LT: _of_signed(np.less),
    VectorOp.LE: _of_signed(np.less_equal),
    VectorOp.GT: _of_signed(np.greater),
    VectorOp.GE: _of_signed(np.greater_equal),
    VectorOp.LTU: np.less,
    VectorOp.GEU: np.greater_equal,
}
