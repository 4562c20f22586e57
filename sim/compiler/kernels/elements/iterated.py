"""Elementwise operations that repeat a sequence: the fp32 remainder, and integer powers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sim.compiler.graph.ir import DType, Operation
from sim.compiler.kernels.elements import integers
from sim.compiler.kernels.elements.elementary import ROUND
from sim.compiler.kernels.elements.expression import Elements
from sim.compiler.kernels.elements.floats import EXPONENT, MAGNITUDE, SIGN, split

__all__ = ["Stage", "Step", "stages"]

Step = Callable[[Elements, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Stage:
    """A sequence of operations on state values, executed once or repeated.

    Attributes
    ----------
    step : callable
        Function from the old state values to the new ones. If the stage is repeated, it must
        return as many values as it gets.
    count : int
        Number of executions.
    changed : int
        Number of state values that a repeated stage changes; they precede all others.
    """

    step: Step
    count: int = 1
    changed: int = 0


def stages(operation: Operation) -> list[Stage] | None:
    """Return the stages that compute an operation's result; None if it needs no stages."""
    dtype = operation.operands[0].dtype if operation.operands else None
    if operation.kind == "remainder" and dtype in (DType.F32, DType.BF16):
        return _remainder()
    if operation.kind == "power" and dtype is not None and dtype.is_integer:
        return _power(dtype.is_signed)
    return None


# The remainder.

_PASSES = 13
"""Iterations for a quotient up to 2**128: each but the last gives 10 bits of the quotient."""


def _remainder() -> list[Stage]:
    """Return the stages that compute x - y trunc(x / y).

    The result is exact. If the operands are bf16 numbers, so is the result.

    Signs are ignored until the end. As in long division, each iteration computes some bits of the
    quotient, and subtracts their product with y, which is exact. The last bits of the quotient are
    rounded to nearest, so the difference is exact and at most y / 2 in magnitude. If the difference
    is negative, y is added at the end. There are two sequences of iterations: the first one
    multiplies a small y by 2**126, so that no quotient overflows; the second one uses y itself.
    """
    return [Stage(_remainder_start), Stage(_subtract_multiple, _PASSES, 1),
            Stage(_remainder_middle), Stage(_subtract_multiple, _PASSES, 1),
            Stage(_remainder_end)]


def _divisor(e: Elements, b: Any) -> tuple[Any, ...]:
    """Return the reciprocal of b, and b in two parts of 12 significant bits."""
    return (e("reciprocal", b), *split(e, b))


def _remainder_start(e: Elements, state: Sequence[Any]) -> Sequence[Any]:
    x, y = state
    a, b = e("fabs", x), e("fabs", y)
    scale = e.select(e("fge", b, 2.0**64), 2.0**-64, 1.0)
    a, b = e("fmul", a, scale), e("fmul", b, scale)
    # A product that is rounded up must not overflow.
    large = e("fge", a, 2.0**100)
    scale = e.select(large, 2.0**-4, 1.0)
    multiple = e("fmul", e.select(e("flt", b, 1.0), e("fmul", b, 2.0**126), b), scale)
    return (e("fmul", a, scale), *_divisor(e, multiple), e.select(large, 2.0**4, 1.0), b, x, y)


def _subtract_multiple(e: Elements, state: Sequence[Any]) -> Sequence[Any]:
    a, inverse, high, low, *rest = state
    estimate = e("fmul", a, inverse)
    whole = e("fsub", e("fadd", estimate, ROUND), ROUND)
    few = e("lt", e("and", estimate, MAGNITUDE), 2.0**11)
    quotient = e.select(few, whole, e("and", estimate, 0xFFFFE000))
    a = e("fsub", e("fsub", a, e("fmul", quotient, high)), e("fmul", quotient, low))
    return (a, inverse, high, low, *rest)


def _remainder_middle(e: Elements, state: Sequence[Any]) -> Sequence[Any]:
    a, _, _, _, scale, b, x, y = state
    a = e("fmul", a, scale)
    scale = e.select(e("flt", b, 2.0**-60), 2.0**60, 1.0)
    a, b = e("fmul", a, scale), e("fmul", b, scale)
    return (a, *_divisor(e, b), b, x, y)


def _remainder_end(e: Elements, state: Sequence[Any]) -> Sequence[Any]:
    a, _, _, _, b, x, y = state
    a = e.select(e("flt", a, 0.0), e("fadd", a, b), a)
    divisor = e("fabs", y)
    scale = e.select(e("flt", divisor, 2.0**-60), 2.0**-60, 1.0)
    scale = e.select(e("fge", divisor, 2.0**64), 2.0**64, scale)
    result = e("or", e("fmul", a, scale), e("and", x, SIGN))
    result = e.select(e("flt", e("fabs", x), divisor), e("fmul", x, 1.0), result)
    invalid = e.mask("mor", e("ge", e("and", x, MAGNITUDE), EXPONENT), e("feq", y, 0.0))
    invalid = e.mask("mor", invalid, e("fne", y, y))
    return [e.select(invalid, float("nan"), result)]


# Powers of integers.


def _power(signed: bool) -> list[Stage]:
    """Return the stages that compute x**y modulo 2**32 by repeated squaring.

    If the integers are ``signed`` and y < 0, the result is 1 / x**-y rounded toward zero.
    """
    return [Stage(lambda e, state: (1, state[0], state[1], *state)),
            Stage(_square_and_multiply, 32, 3),
            Stage(lambda e, state: [_signed_power(e, state) if signed else state[0]])]


def _square_and_multiply(e: Elements, state: Sequence[Any]) -> Sequence[Any]:
    result, factor, exponent, *rest = state
    odd = e("ne", e("and", exponent, 1), 0)
    result = e.select(odd, integers.multiply(e, result, factor), result)
    return (result, integers.multiply(e, factor, factor), e("shr", exponent, 1), *rest)


def _signed_power(e: Elements, state: Sequence[Any]) -> Any:
    result, _, _, x, y = state
    # For x = 1 and x = -1, x**y equals x**-y.
    units = e("ltu", e("add", x, 1), 3)
    units = e.mask("mandn", units, e("eq", x, 0))
    inverse = e.select(units, result, 0)
    return e.select(e("lt", y, 0), inverse, result)


