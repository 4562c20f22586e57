"""Conversions between element types, and rounding to formats of fewer bits.

Every element is a word of 32 bits. A bf16 number is held as the fp32 number of the same value, and
an integer is extended to 32 bits. A predicate is a mask.
"""

from typing import Any

from sim.compiler.graph.ir import DType
from sim.compiler.kernels.elements.expression import Elements, Source
from sim.compiler.kernels.elements.floats import EXPONENT, MAGNITUDE, SIGN

__all__ = ["bitcast", "convert", "reduce_precision", "rounded", "unsigned_to_float"]


def rounded(e: Elements, x: Source, dtype: DType) -> Any:
    """Round an fp32 number to a number of type ``dtype``, F32 or BF16."""
    return e("bf16", x) if dtype is DType.BF16 else x


def convert(e: Elements, x: Source, source: DType, target: DType) -> Any:
    """Convert x from element type ``source`` to ``target``, like StableHLO's `convert`.

    A float becomes an integer by rounding toward zero, and saturates; NaN becomes 0.
    """
    if source is target:
        return x
    if source is DType.PRED:
        return e.select(x, 1.0 if target.is_float else 1, 0)
    if target is DType.PRED:
        return e("fne" if source.is_float else "ne", x, 0)
    if source.is_float:
        return rounded(e, x, target) if target.is_float else _float_to_integer(e, x, target)
    if target.is_float:
        number = unsigned_to_float(e, x) if source is DType.U32 else e("i2f", x)
        return rounded(e, number, target)
    return _wrapped(e, x, target)


def unsigned_to_float(e: Elements, x: Source) -> Any:
    """Convert an unsigned integer to the nearest fp32 number.

    An integer of 2**31 or more is halved, converted and doubled.
    """
    half = e("i2f", e("or", e("shr", x, 1), e("and", x, 1)))
    return e.select(e("lt", x, 0), e("fadd", half, half), e("i2f", x))


def _float_to_integer(e: Elements, x: Source, target: DType) -> Any:
    if target is DType.S32:
        return e("f2i", x)
    if target is DType.U32:
        x = e("fmax", x, 0.0)
        above = e("xor", e("f2i", e("fsub", x, 2.0**31)), SIGN)
        return e.select(e("fge", x, 2.0**31), above, e("f2i", x))
    low = -(1 << target.bits - 1) if target.is_signed else 0
    high = low + (1 << target.bits) - 1
    return e("f2i", e("fmin", e("fmax", x, float(low)), float(high)))


def _wrapped(e: Elements, x: Source, target: DType) -> Any:
    """Keep the lowest bits of an integer, as many as ``target`` has, and extend them to a word."""
    unused = 32 - target.bits
    if not unused:
        return x
    if target.is_signed:
        return e("sar", e("shl", x, unused), unused)
    return e("and", x, (1 << target.bits) - 1)


def bitcast(e: Elements, x: Source, source: DType, target: DType) -> Any:
    """Reinterpret the bits of x in a type of the same width, like StableHLO's `bitcast_convert`."""
    if source is target or source is DType.PRED or target is DType.PRED or source.bits == 32:
        return x
    if source is DType.BF16:
        return e("sar" if target.is_signed else "shr", x, 16)
    if target is DType.BF16:
        return e("shl", x, 16)
    return _wrapped(e, x, target)


def reduce_precision(e: Elements, x: Source, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round x to a floating-point format, and return the result as an fp32 number.

    The format has ``exponent_bits`` and ``mantissa_bits``. Rounding is to nearest, ties to even.
    Results that overflow the format become infinite; subnormal results become zeros.
    """
    if (exponent_bits, mantissa_bits) == (8, 7):
        return e("bf16", x)
    drop = max(23 - mantissa_bits, 0)
    number = x
    if drop:
        last = e("and", e("shr", x, drop), 1)
        number = e("add", e("add", x, last), (1 << drop - 1) - 1)
        number = e("and", number, -1 << drop)
    if exponent_bits < 8:
        bias = (1 << exponent_bits - 1) - 1
        magnitude, negative = e("and", number, MAGNITUDE), e("and", number, SIGN)
        infinite = e("or", negative, EXPONENT)
        number = e.select(e("ge", magnitude, bias + 1 + 127 << 23), infinite, number)
        number = e.select(e("lt", magnitude, 1 - bias + 127 << 23), negative, number)
    # Infinity and NaN stay as they are; subnormal numbers become zeros.
    special = e("ge", e("and", x, MAGNITUDE), EXPONENT)
    return e("fmul", e.select(special, x, number), 1.0)
