"""Errors of the compiler's elementary functions, and their costs in operations.

``python -m verif.accuracy.elementwise`` takes some minutes, and prints a row of docs/accuracy.md
for each function. It evaluates the machine code of a function with the golden vector unit, and
compares the results with numpy's float64. Errors are in ulps of the exact result.

Functions of one operand are evaluated at evenly spaced operands of every binade and at corner
values. Functions of two operands are evaluated at random pairs of three kinds: any two patterns,
two numbers of moderate size, and, for powers, pairs whose result is in range.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.elements.expression import Elements, evaluate
from sim.compiler.kernels.elements.table import expand
from sim.compiler.kernels.elements.writing import needed

__all__ = ["FUNCTIONS", "Function", "Measured", "cost", "measure", "operands"]

Doubles = NDArray[np.float64]
Words = NDArray[np.uint32]
_BLOCK = 1 << 17
_LEAST, _LARGEST = 2.0**-126, 2.0**128 - 2.0**104
CORNERS = np.array([
    0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x3F800000, 0xBF800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC00000, 0x40000000,
    0x3F000000, 0xBF000000, 0x3EFFFFFF, 0x4B000000, 0x4AFFFFFF, 0x4F000000, 0xCF000000, 0x42B17217,
    0x42B17218, 0xC2AEAC4F, 0x3F800001, 0x3F7FFFFF, 0xBF7FFFFF, 0x40400000, 0xC0400000], np.uint32)
"""Bit patterns that every function is evaluated at; if it has two operands, all their pairs."""


@dataclass(frozen=True)
class Function:
    """How to judge a function of the compiler.

    Attributes
    ----------
    truth : callable
        The float64 function whose results count as exact.
    operands : int
        Number of operands.
    bound : float
        The error that docs/accuracy.md states, in ulps.
    dtype : DType
        Type of operands and result. Errors of a bf16 function are in ulps of bf16.
    """

    truth: Callable[..., Doubles]
    bound: float
    operands: int = 1
    dtype: DType = DType.F32


FUNCTIONS: Mapping[str, Function] = {
    "exponential": Function(np.exp, 1.2),
    "exponential_minus_one": Function(np.expm1, 3.0),
    "log": Function(np.log, 1.5),
    "log_plus_one": Function(np.log1p, 2.0),
    "logistic": Function(lambda x: 1 / (1 + np.exp(-x)), 3.0),
    "tanh": Function(np.tanh, 1.0),
    "sqrt": Function(np.sqrt, 0.51),
    "rsqrt": Function(lambda x: 1 / np.sqrt(np.where(x == 0, 0, x)), 0.7),
    "cbrt": Function(np.cbrt, 1.1),
    "sine": Function(np.sin, 3.0),
    "cosine": Function(np.cos, 3.0),
    "tan": Function(np.tan, 5.0),
    "divide": Function(np.divide, 3.0, 2),
    "power": Function(np.power, 1.2, 2),
    "atan2": Function(np.arctan2, 4.0, 2),
}
"""The measured functions, by the kinds of their operations in a graph."""


@dataclass
class Measured:
    """Result of a measurement.

    Attributes
    ----------
    operands : int
        Number of operands, or of pairs.
    worst : float
        Largest error in ulps.
    at : tuple of int
        Bit patterns of the operands, one for each, at which the largest error occurs.
    nearest : int
        Number of results with an error of at most half an ulp.
    """

    operands: int = 0
    worst: float = 0.0
    at: tuple[int, ...] = ()
    nearest: int = 0


def _expansion(kind: str, function: Function) -> tuple[Elements, list[Any], Any]:
    e = Elements()
    values = [Value(TensorType((), function.dtype)) for _ in range(function.operands + 1)]
    inputs = [e.input() for _ in range(function.operands)]
    operation = Operation(kind, tuple(values[1:]), (values[0],))
    return e, inputs, expand(e, operation, inputs)


def cost(kind: str) -> int:
    """Number of operations that the vector unit executes for each vector of results."""
    e, _, output = _expansion(kind, FUNCTIONS[kind])
    return len(needed(e, [output]))


def operands(kind: str, points: int, seed: int = 1) -> Iterator[list[Words]]:
    """Yields the operands at which a function is evaluated, in blocks of bit patterns.

    Parameters
    ----------
    kind : str
    points : int
        Number of operands for each binade and sign. For functions of two operands, the number of
        pairs is 500 times this.
    seed : int
        Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    if FUNCTIONS[kind].operands == 1:
        yield [CORNERS]
        step = (1 << 23) // points
        for sign in (0, 1 << 31):
            for first in range(1, 255, max(1, _BLOCK // points)):
                binades = np.arange(first, min(first + max(1, _BLOCK // points), 255))
                fractions = np.arange(points) * step + rng.integers(0, step, points)
                yield [((binades[:, None] << 23) + fractions + sign).ravel().astype(np.uint32)]
        return
    yield [words.ravel() for words in np.meshgrid(CORNERS, CORNERS)]
    for start in range(0, 500 * points, _BLOCK):
        count = min(_BLOCK, 500 * points - start)
        yield [rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
               for _ in range(2)]
        yield [rng.standard_normal(count).astype(np.float32).view(np.uint32) for _ in range(2)]
        base = np.exp(rng.uniform(-1, 1, count) ** 3 * 87).astype(np.float32)
        with np.errstate(all="ignore"):
            exponent = rng.uniform(-89, 89, count) / np.log(base.astype(np.float64))
        if kind == "power":
            yield [base.view(np.uint32), exponent.astype(np.float32).view(np.uint32)]


def measure(kind: str, points: int, seed: int = 1) -> Measured:
    """Measure the error of a function; the parameters are those of `operands`.

    An infinite error means that a result is wrong in kind: a NaN, an infinity, a zero or a zero's
    sign is missing or unexpected.
    """
    function, found = FUNCTIONS[kind], Measured()
    e, inputs, output = _expansion(kind, function)
    for block in operands(kind, points, seed):
        result = evaluate(e, dict(zip(inputs, block, strict=True)), output)
        error = _errors(function, block, np.ascontiguousarray(result).view(np.float32))
        found.operands += error.size
        found.nearest += int(np.count_nonzero(error <= 0.5))
        worst = int(np.argmax(error))
        if error[worst] > found.worst:
            found.worst = float(error[worst])
            found.at = tuple(int(words[worst]) for words in block)
    return found


def _flushed(words: Words) -> Doubles:
    number = words.view(np.float32).astype(np.float64)
    return np.where(np.abs(number) < _LEAST, np.copysign(0.0, number), number)


def _errors(function: Function, block: list[Words], result: NDArray[np.float32]) -> Doubles:
    got = result.astype(np.float64)
    with np.errstate(all="ignore"):
        truth = function.truth(*(_flushed(words) for words in block))
        magnitude = np.abs(truth)
        ulp = np.exp2(np.floor(np.log2(np.clip(magnitude, _LEAST, _LARGEST))) - 23)
        error = np.abs(got - truth) / ulp
        # At the ends of the range, a result may be on the other side of the end.
        bound = function.bound * ulp
        flushed = (magnitude < _LEAST + bound) & (np.abs(got) <= _LEAST + bound)
        overflown = (magnitude > _LARGEST - bound) & (np.abs(got) >= _LARGEST - bound)
    same = (got == truth) & (np.signbit(got) == np.signbit(truth))
    fine = (np.isnan(got) & np.isnan(truth)) | same | (
        (flushed | overflown) & (np.signbit(got) == np.signbit(truth)))
    wrong = np.isnan(error) | ((got == truth) & ~same)
    return np.where(fine, 0.0, np.where(wrong, np.inf, error))


def main() -> None:
    """Print the rows of the table in docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *FUNCTIONS], help="functions; all if none")
    parser.add_argument("--points", type=int, default=1 << 15, help="operands for each binade")
    arguments = parser.parse_args()
    for kind in arguments.kinds or FUNCTIONS:
        found = measure(kind, arguments.points)
        at = ", ".join(f"`{word:08X}`" for word in found.at)
        print(f"| `{kind}` | {cost(kind)} | {found.operands:,} | {found.worst:.3f} | {at} | "
              f"{100 * found.nearest / found.operands:.1f} % | {FUNCTIONS[kind].bound} |",
              flush=True)


if __name__ == "__main__":
    main()
