"""Products and dense layers of random shapes on the chip in RTL, with random stalls of its memory,
compared in every bit with the golden arithmetic.
"""

import argparse
import sys
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.mxu import dense
from hdl.config import PRESETS
from sim.compiler.dense.layers import Dense
from sim.driver.device import Device
from sim.models.hbm import HbmOptions

__all__ = ["SPECIAL", "ProductOutcome", "compare_random", "random_layers", "random_operands"]

Array = npt.NDArray[np.float32]

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1e-20, -1e-20],
                   np.float32)
"""Special values that some matrices contain."""


@dataclass
class ProductOutcome:
    """What was compared.

    Attributes
    ----------
    products, chains : int
        Number of products, and number of pairs of dense layers.
    macs : int
        Multiply-accumulate operations of all of them, without padding.
    cores : set of int
        Each number of cores that a product used.
    """

    products: int = 0
    chains: int = 0
    macs: int = 0
    cores: set[int] = field(default_factory=set)


def random_operands(rng: np.random.Generator, rows: int, depth: int, columns: int,
                    transpose: bool) -> tuple[Array, Array]:
    """Random matrices of shape (rows, depth) and (depth, columns).

    With ``transpose``, the second one has shape (columns, depth). In a third of the matrices, some
    elements are special values. Both are float32, except that the second one is bfloat16 if the
    sum of the three sizes is odd.
    """
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transpose else (depth, columns)).astype(np.float32)
    for matrix in (a, b):
        if rng.integers(3) == 0:
            matrix.flat[rng.integers(0, matrix.size, 3)] = rng.choice(SPECIAL, 3)
    return a, b.astype(ml_dtypes.bfloat16) if (rows + depth + columns) % 2 else b


def random_layers(rng: np.random.Generator, array: int, count: int, most: int
                  ) -> tuple[Array, list[Dense], list[Array]]:
    """Returns the first layer's input, random dense layers, and the expected output of each layer.

    All sizes are less than ``most``.
    """
    rows, depth = (int(size) for size in rng.integers(1, most, 2))
    x = random_operands(rng, rows, depth, 1, False)[0]
    layers: list[Dense] = []
    results = [x]
    for _ in range(count):
        columns = int(rng.integers(1, most))
        transpose, biased, relu = (bool(flag) for flag in rng.integers(0, 2, 3))
        b = random_operands(rng, 1, results[-1].shape[1], columns, transpose)[1]
        bias = None
        if biased:
            bias = rng.standard_normal(columns).astype(np.float32)
            if rng.integers(3) == 0:
                bias[rng.integers(columns)] = rng.choice(SPECIAL)
        layers.append(Dense(b, bias, relu, transpose))
        results.append(dense(results[-1], b.T if transpose else b, array, bias, relu=relu))
    return x, layers, results[1:]


def _check(got: Array, want: Array, note: str) -> None:
    assert got.shape == want.shape, (note, got.shape, want.shape)
    wrong = np.argwhere(got.view(np.uint32) != want.view(np.uint32))
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(f"{note}: {len(wrong)} of {got.size} elements differ, the first at "
                             f"{at}: {got[at]!r}, not {want[at]!r}")


def compare_random(device: Device, products: int, chains: int, seed: int, *, most: int,
                   progress: bool = False) -> ProductOutcome:
    """Runs random products, and random pairs of dense layers, and compares every bit.

    Parameters
    ----------
    device : Device
        The device; its memory may stall.
    products, chains : int
        Number of products, and number of pairs of dense layers.
    seed : int
        Seed of all choices.
    most : int
        All sizes are from 1 to ``most - 1``.
    progress : bool
        Show a progress bar.

    Raises
    ------
    AssertionError
        If a bit differs; the message names the element and the seed and number of the case.
    """
    rng = np.random.default_rng([seed, 1])
    outcome = ProductOutcome()
    config = device.config
    for number in tqdm(range(products + chains), unit="case", disable=not progress, leave=False):
        if number < products:
            rows, depth, columns = (int(size) for size in rng.integers(1, most, 3))
            transpose = bool(rng.integers(2))
            a, b = random_operands(rng, rows, depth, columns, transpose)
            note = f"seed {seed}, product {number} ({rows}, {depth}, {columns}, {transpose})"
            _check(device.matmul(a, b, transpose_b=transpose),
                   dense(a, b.T if transpose else b, config.array), note)
            outcome.products += 1
            outcome.macs += rows * depth * columns
            outcome.cores.add(len(device.last_run))
            continue
        x, layers, results = random_layers(rng, config.array, 2, most)
        for index, (got, want) in enumerate(zip(device.dense(x, layers), results, strict=True)):
            _check(got, want, f"seed {seed}, chain {number - products}, layer {index}")
        outcome.chains += 1
        outcome.macs += sum(len(x) * layer.weights.size for layer in layers)
    return outcome


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", choices=PRESETS)
    parser.add_argument("--count", type=int, default=200,
                        help="products, and a quarter as many pairs of layers; default: "
                             "%(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of all; default: %(default)s")
    parser.add_argument("--most", type=int, default=0,
                        help="sizes are less than that; default: four arrays and one")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error(f"--count must be at least 1, not {options.count}")
    if options.most < 0 or options.most == 1:
        parser.error(f"--most must be at least 2, not {options.most}")
    stalls = HbmOptions(latency=23, stalls=25_000, seed=options.seed)
    with Device.open(options.config, memory=stalls) as device:
        try:
            outcome = compare_random(device, options.count, options.count // 4, options.seed,
                                     most=options.most or 4 * device.config.array + 2,
                                     progress=True)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
        cycles = device.counters(0)["cycles"]
    print(f"{options.config}, seed {options.seed}: {outcome.products} products and "
          f"{outcome.chains} pairs of dense layers of random shapes, memory stalling at random, "
          f"{outcome.macs:,} multiply-accumulates, {cycles:,} cycles: every bit as golden")
    return 0


if __name__ == "__main__":
    sys.exit(main())
