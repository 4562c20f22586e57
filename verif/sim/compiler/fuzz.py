"""Compares compiled random graphs with the interpreter: `make fuzz-compiler SEED= COUNT=`."""

import argparse
import sys
import traceback
from collections import Counter

from tqdm import tqdm

from sim.compiler.graph.interpret import interpret
from sim.compiler.program.driver import compile_graph
from sim.driver.device import Device
from verif.sim.compiler.random_graphs import differences, random_graph

__all__ = ["TOLERANCE", "compare", "main"]

TOLERANCE = 2e-5
"""Largest error of a sum, product or elementary function, relative to the largest number of its
result."""


def compare(seed: int, device: Device, operations: int = 6, *, large: bool = False,
            exchanges: bool = False) -> list[str]:
    """Compile and run a random graph; return where its results differ from the interpreter's.

    Parameters
    ----------
    seed : int
        Seed of the graph.
    device : Device
        The device that runs the program.
    operations : int
        Number of the graph's operations.
    large : bool
        Make values that can be larger than the vector memory of `tiny`.
    exchanges : bool
        Make a graph in which both cores exchange values.
    """
    random = random_graph(seed, operations, large=large, exchanges=exchanges)
    expected = interpret(random.graph, random.inputs, passes=True)
    executable = compile_graph(random.graph, device.config, name=f"seed {seed}")
    found = device.execute(executable, *random.inputs)
    return differences(random, found, expected, TOLERANCE)


def main(arguments: list[str] | None = None) -> int:
    """Run graphs of consecutive seeds; return how many have wrong results or raise an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="tiny")
    parser.add_argument("--backend", default="golden", choices=("golden", "rtl"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--operations", type=int, default=6)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--exchanges", action="store_true")
    options = parser.parse_args(arguments)
    failed: Counter[str] = Counter()
    with Device.open(options.config, options.backend) as device:
        seeds = range(options.seed, options.seed + options.count)
        for seed in tqdm(seeds, unit="graph", disable=None):
            try:
                texts = compare(seed, device, options.operations, large=options.large,
                                exchanges=options.exchanges)
            except MemoryError:
                # The chip is too small for one operation of this graph.
                failed["too large"] += 1
                continue
            except Exception as error:  # noqa: BLE001  (any error is a finding; go on)
                last = traceback.extract_tb(error.__traceback__)[-1]
                texts = [f"seed {seed}: {type(error).__name__}: {error} "
                         f"({last.filename.rpartition('/')[2]}:{last.lineno})"]
            if texts:
                tqdm.write(texts[0])
                failed["differ"] += 1
    agree = options.count - failed["differ"] - failed["too large"]
    tqdm.write(f"seeds {options.seed} to {options.seed + options.count - 1}: {agree} graphs agree, "
               f"{failed['too large']} are too large, {failed['differ']} differ or fail")
    return failed["differ"]


if __name__ == "__main__":
    sys.exit(bool(main()))
