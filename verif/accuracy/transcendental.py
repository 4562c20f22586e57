"""Errors of the transcendental functions over all operands.

``python -m verif.accuracy.transcendental`` takes some minutes, and prints a line for each function.

The reference is numpy's float64, whose own error is about 2**-28 of an fp32 ulp. Errors are in ulps
of the exact result: an ulp is the distance between neighbouring fp32 numbers at its exponent.
`SWEEPS` lists the operands, and says why they cover all cases.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.transcendental import Function, evaluate

__all__ = ["SWEEPS", "TRUTH", "Measured", "Sweep", "errors", "measure"]

_BLOCK = 1 << 18
_BINADE = 1 << 23
_BIAS = 127
_MIN_EXPONENT = -126

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Operands of a function: all fp32 numbers whose exponents are in a range.

    Attributes
    ----------
    first, last : int
        Least and greatest exponent of two.
    negative : bool
        Whether operands below zero are included.
    rest : str
        The reason why the other operands need no measurement.
    """

    first: int
    last: int
    negative: bool
    rest: str

    def operands(self) -> Iterator[NDArray[np.uint32]]:
        """Yields the operands' bit patterns in blocks; for each sign, magnitudes rise."""
        for sign in (0, 1 << 31) if self.negative else (0,):
            start, end = ((exponent + _BIAS) * _BINADE for exponent in (self.first, self.last + 1))
            for block in range(start, end, _BLOCK):
                yield np.arange(block, block + _BLOCK, dtype=np.uint32) | np.uint32(sign)


SWEEPS = {
    Function.RECIPROCAL: Sweep(
        0, 0, False, "the result's fraction depends on the operand's fraction alone; the result's "
        "exponent is a constant less the operand's; both have the same sign"),
    Function.RSQRT: Sweep(
        0, 1, False, "the result's fraction depends on the operand's fraction and on whether the "
        "operand's exponent is even"),
    Function.EXP2: Sweep(
        -27, 7, True, "below 2**-27 the result is 1, and the exact value within 2**-26 of 1; "
        "from 2**8 on the result is infinite or zero"),
    Function.LOG2: Sweep(
        -17, 16, False, "outside of this range the error before rounding is the same, to 2**-31 of "
        "the result's integer part, but an ulp is larger"),
    Function.TANH: Sweep(
        -13, 3, False, "operand and result have the same sign; below 2**-13 the result is the "
        "operand, with a relative error of at most 2**-27; from 16 on the result is 1"),
}
"""For each function, the operands at which its error is measured."""

TRUTH: dict[Function, Callable[[Doubles], Doubles]] = {
    Function.RECIPROCAL: lambda x: 1 / x,
    Function.RSQRT: lambda x: 1 / np.sqrt(x),
    Function.EXP2: np.exp2,
    Function.LOG2: np.log2,
    Function.TANH: np.tanh,
}
"""The functions in float64."""


@dataclass
class Measured:
    """Result of a sweep.

    Attributes
    ----------
    operands : int
        Number of operands.
    worst : float
        Largest error in ulps.
    at : int
        Bit pattern of an operand at which the largest error occurs.
    nearest : int
        Number of results with an error of at most half an ulp.
    reversals : int
        Number of pairs of neighbouring operands whose results are in the wrong order.
    """

    operands: int = 0
    worst: float = 0.0
    at: int = 0
    nearest: int = 0
    reversals: int = 0


def errors(function: Function, operands: NDArray[np.uint32],
           results: NDArray[np.float32]) -> Doubles:
    """Errors of results in ulps: the result minus the exact result.

    Where the exact result rounds to infinity, or is so small that it becomes zero, the error is 0
    if the result is that infinity or zero, and otherwise infinite.
    """
    y = results.astype(np.float64)
    with np.errstate(all="ignore"):
        truth = TRUTH[function](operands.view(np.float32).astype(np.float64))
        ulp = np.ldexp(1.0, np.maximum(np.frexp(truth)[1], -200) - 24)
        error = (y - truth) / ulp
        # Rounded as if the exponent had no bounds, then judged.
        rounded = np.abs(np.rint(truth / ulp) * ulp)
        expected = np.where(rounded < 1, 0.0, np.inf) * np.sign(truth)
    outside = (rounded >= 2.0**128) | (rounded < 2.0**_MIN_EXPONENT) | (truth == 0)
    error[outside] = np.where(y[outside] == expected[outside], 0.0, np.inf)
    return np.asarray(error)


def measure(function: Function, sweep: Sweep) -> Measured:
    """Measures the errors of a function at all operands of a sweep."""
    found = Measured()
    falls = function in (Function.RECIPROCAL, Function.RSQRT)
    first = (sweep.first + _BIAS) * _BINADE
    last = np.float32(0)
    for operands in sweep.operands():
        y = evaluate(function, operands.view(np.float32))
        magnitude = np.abs(errors(function, operands, y))
        worst = int(np.argmax(magnitude))
        if magnitude[worst] > found.worst:
            found.worst, found.at = float(magnitude[worst]), int(operands[worst])
        found.operands += operands.size
        found.nearest += int(np.count_nonzero(magnitude <= 0.5))
        # Magnitudes rise from block to block of one sign.
        if operands[0] & 0x7FFFFFFF != first:
            y = np.concatenate([[last], y])
        last = y[-1]
        below, above = (y[1:], y[:-1]) if falls != bool(operands[0] >> 31) else (y[:-1], y[1:])
        found.reversals += int(np.count_nonzero(below > above))
    return found


def main() -> None:
    """Prints a line per function."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true",
                        help="sweep every binade of log2 too (some minutes)")
    everything = parser.parse_args().all
    print(f"{'function':12}{'operands':>12}{'worst error':>14}{'at':>10}{'nearest':>10}  monotonic")
    for function, sweep in SWEEPS.items():
        if everything and function is Function.LOG2:
            found = measure(function, Sweep(_MIN_EXPONENT, _BIAS, False, "nothing is left"))
        else:
            found = measure(function, sweep)
        monotonic = "yes" if not found.reversals else f"no, {found.reversals} reversals"
        print(f"{function.name.lower():12}{found.operands:12}{found.worst:10.4f} ulp"
              f"  {found.at:08X}{found.nearest / found.operands:10.2%}  {monotonic}", flush=True)


if __name__ == "__main__":
    main()
