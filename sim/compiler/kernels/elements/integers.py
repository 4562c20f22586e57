"""Arithmetic that the vector unit lacks, on 32-bit integers: products, quotients, bit counts.

Products of integers below 2**12 are exact in fp32, and so are sums below 2**24.
"""

from typing import Any

from sim.compiler.kernels.elements.expression import Elements, Source
from sim.compiler.words import signed

__all__ = ["count_leading_zeros", "divide_signed", "divide_unsigned", "maximum", "minimum",
           "multiply", "population_count", "sign_signed"]


def _digits(constant: int) -> list[tuple[int, int]]:
    """Decompose a constant into a sum of +-2**k, as pairs (sign, k); no two k are adjacent."""
    digits, k = [], 0
    rest = signed(constant)
    while rest and k < 32:
        if rest & 1:
            digit = 2 - (rest & 3)
            digits.append((digit, k))
            rest -= digit
        rest >>= 1
        k += 1
    return digits


def _pieces(e: Elements, x: Source) -> tuple[Any, Any, Any]:
    """Return bits 0 to 10, 11 to 21 and 22 to 31 of x, each as an fp32 number."""
    return (e("i2f", e("and", x, 0x7FF)), e("i2f", e("and", e("shr", x, 11), 0x7FF)),
            e("i2f", e("shr", x, 22)))


def multiply(e: Elements, a: Source, b: Source) -> Any:
    """a * b modulo 2**32.

    Operands are split into parts of 11 bits, a0 and b0 with the lowest bits. The result is
    a0 b0 + (a0 b1 + a1 b0) 2**11 + (a0 b2 + a1 b1 + a2 b0) 2**22. If one operand is a constant that
    is a sum of few +-2**k, the other one is shifted and added instead.
    """
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        digits = _digits(b & 0xFFFFFFFF)
        if len(digits) <= 7:
            return _shift_and_add(e, a, digits)
    a0, a1, a2 = _pieces(e, a)
    b0, b1, b2 = _pieces(e, b)
    low = e("fmul", a0, b0)
    middle = e("fadd", e("fmul", a0, b1), e("fmul", a1, b0))
    high = e("fadd", e("fadd", e("fmul", a0, b2), e("fmul", a2, b0)), e("fmul", a1, b1))
    return e("add", e("add", e("f2i", low), e("shl", e("f2i", middle), 11)),
             e("shl", e("f2i", high), 22))


def _shift_and_add(e: Elements, a: Source, digits: list[tuple[int, int]]) -> Any:
    total: Any = 0
    for digit, k in sorted(digits, key=lambda pair: -pair[0]):
        term = e("shl", a, k) if k else a
        if digit < 0:
            total = e("sub", total, term)
        else:
            total = term if isinstance(total, int) else e("add", total, term)
    return total


def _absolute(e: Elements, x: Source) -> tuple[Any, Any]:
    """Return the sign, as all ones for a negative number and 0 otherwise, and the magnitude."""
    negative = e("sar", x, 31)
    return negative, e("sub", e("xor", x, negative), negative)


def _quotient(e: Elements, a: Source, b: Source) -> tuple[Any, Any]:
    """Quotient and remainder of unsigned words with 0 <= a <= 2**31 and 1 <= b <= 2**31.

    Each of three iterations estimates 11 bits of the quotient, and subtracts b times the estimate,
    computed exactly, from ``a``. Estimates are rounded down, so ``a`` never becomes negative. If
    ``a`` is still at least b, the last step adds 1 to the quotient.
    """
    b_float = e("fabs", e("i2f", b))
    inverse = e("fmul", e("reciprocal", b_float), 1.0 - 2.0**-21)
    parts = (e("i2f", e("and", b, 0x7FF)), e("i2f", e("and", b, 0x003FF800)),
             e("fabs", e("i2f", e("and", b, 0xFFC00000))))
    quotient: Any = 0
    for _ in range(3):
        estimate = e("fmul", e("fabs", e("i2f", a)), inverse)
        count = e("f2i", e("and", estimate, 0xFFFFE000))
        factor = e("i2f", count)
        quotient = e("add", quotient, count) if not isinstance(quotient, int) else count
        for part in parts:
            a = e("sub", a, e("f2i", e("fmul", factor, part)))
    again = e("geu", a, b)
    return (e.select(again, e("add", quotient, 1), quotient),
            e.select(again, e("sub", a, b), a))


def divide_signed(e: Elements, a: Source, b: Source) -> tuple[Any, Any]:
    """Quotient and remainder of signed integers.

    The quotient is rounded toward zero; the remainder has the sign of ``a``. Division by 0 gives
    -1 and ``a``; the least integer divided by -1 gives itself and 0.
    """
    a_sign, a_magnitude = _absolute(e, a)
    b_sign, b_magnitude = _absolute(e, b)
    quotient, rest = _quotient(e, a_magnitude, b_magnitude)
    negative = e("xor", a_sign, b_sign)
    quotient = e("sub", e("xor", quotient, negative), negative)
    rest = e("sub", e("xor", rest, a_sign), a_sign)
    zero = e("eq", b, 0)
    return e.select(zero, -1, quotient), e.select(zero, a, rest)


def divide_unsigned(e: Elements, a: Source, b: Source) -> tuple[Any, Any]:
    """Quotient and remainder of unsigned integers; division by 0 gives all ones and ``a``.

    Half of ``a`` is divided first, because it is not negative as a signed integer. Then the
    quotient's last bit is computed.
    """
    if isinstance(b, int) and b & (b - 1) == 0 and b:
        return e("shr", a, b.bit_length() - 1), e("and", a, b - 1)
    half, rest = _quotient(e, e("shr", a, 1), b)
    rest = e("or", e("add", rest, rest), e("and", a, 1))
    again = e("geu", rest, b)
    quotient = e("add", half, half)
    quotient = e.select(again, e("add", quotient, 1), quotient)
    rest = e.select(again, e("sub", rest, b), rest)
    # For a divisor of 2**31 or more, the quotient is 0 or 1.
    big, fits = e("lt", b, 0), e("geu", a, b)
    quotient = e.select(big, e.select(fits, 1, 0), quotient)
    rest = e.select(big, e.select(fits, e("sub", a, b), a), rest)
    zero = e("eq", b, 0)
    return e.select(zero, -1, quotient), e.select(zero, a, rest)


def maximum(e: Elements, a: Source, b: Source, *, signed: bool) -> Any:
    """The larger of two integers, compared as signed or as unsigned ones."""
    return e.select(e("ge" if signed else "geu", a, b), a, b)


def minimum(e: Elements, a: Source, b: Source, *, signed: bool) -> Any:
    """The smaller of two integers, compared as signed or as unsigned ones."""
    return e.select(e("lt" if signed else "ltu", a, b), a, b)


def sign_signed(e: Elements, x: Source) -> Any:
    """The sign of a signed integer: -1, 0 or 1."""
    return e("or", e("sar", x, 31), e("shr", e("sub", 0, x), 31))


def population_count(e: Elements, x: Source) -> Any:
    """The number of set bits, by sums of adjacent bit fields."""
    x = e("sub", x, e("and", e("shr", x, 1), 0x55555555))
    x = e("add", e("and", x, 0x33333333), e("and", e("shr", x, 2), 0x33333333))
    x = e("and", e("add", x, e("shr", x, 4)), 0x0F0F0F0F)
    x = e("add", x, e("shr", x, 8))
    return e("and", e("add", x, e("shr", x, 16)), 0x3F)


def count_leading_zeros(e: Elements, x: Source) -> Any:
    """The number of zeros above the highest set bit, from the exponent of the integer as fp32.

    Each set bit directly below another set bit is cleared first, so that rounding to fp32 does not
    change the exponent.
    """
    cleared = e("xor", x, e("and", x, e("shr", x, 1)))
    count = e("sub", 158, e("shr", e("i2f", cleared), 23))
    count = e.select(e("eq", x, 0), 32, count)
    return e.select(e("lt", x, 0), 0, count)

