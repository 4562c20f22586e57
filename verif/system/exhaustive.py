"""``make exhaustive``: compares the cell in pure RTL with the golden model, operand by operand.

The command multiplies all 2^32 pairs of bfloat16 values; the partial sum is -0, which does not
change a product. In addition, it checks 10^9 sums whose operands `golden.stimulus` draws at random
from classes such as cancelling or special values. It takes minutes; docs/verification.md has the
result of the last run.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from golden.numerics import bf16_product, bits, from_bits, mac
from golden.stimulus import mac_operands
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.cell import MacCell
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.model import Model
from sim.verilated.toolchain import build_folder

__all__ = ["VerilatedCell", "cell_digest", "main"]

WEIGHTS = 1 << 16
SUMS = 10**9
SUMS_PER_TASK = 1 << 20
SEED = 20
NEGATIVE_ZERO = 0x8000_0000


def _cell_verilog(config: Config) -> dict[str, str]:
    return VerilogLibrary().write("mac_cell", lambda: MacCell(config))


def cell_digest(config: Config) -> str:
    """Digest of the cell's Verilog, which tells which design a run has checked."""
    text = "".join(_cell_verilog(config).values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class VerilatedCell:
    """One cell in pure RTL.

    Parameters
    ----------
    config : Config
        ``mac_latency`` sets the cell's depth.
    """

    def __init__(self, config: Config) -> None:
        cell = MacCell(config)
        # As many cycles as `p` comes after `x`.
        self._acc_delay = cell.latency - config.row_skew
        self._latency = cell.latency
        self._model = Model(build_model("mac_cell", _cell_verilog(config), waivers=LINT_WAIVERS))
        self._model.reset()

    def products(self, weight: int, x: np.ndarray) -> np.ndarray:
        """Bits of x * weight for each bfloat16 pattern in ``x``; takes one cycle a product."""
        model = self._model
        model.poke("p", NEGATIVE_ZERO)
        model.poke("x_valid", 0)
        model.poke("w_north", weight)
        model.poke("w_north_valid", 1)
        model.tick()
        model.poke("w_north_valid", 0)
        model.poke("swap", 1)
        model.tick()
        model.poke("swap", 0)
        model.poke("x_valid", 1)
        after = self._latency - 1
        stream = np.concatenate([x, np.zeros(after, np.uint16)])
        return model.run({"x": stream}, ["p_south"])["p_south"][after:, 0]

    def sums(self, acc: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Bits of acc + x * w for arrays of patterns; takes two cycles a sum."""
        count = len(acc)
        cycles = 2 * (count + 1) + self._latency

        def column(dtype: type, start: int, values: np.ndarray | int) -> np.ndarray:
            """An input in each cycle: ``values`` in every second cycle from ``start``, else 0."""
            rows: np.ndarray = np.zeros(cycles, dtype)
            rows[start:start + 2 * count:2] = values
            return rows

        # Operand i: weight in cycle 2 i, swap in 2 i + 1, activation in 2 i + 2.
        out = self._model.run({
            "w_north": column(np.uint16, 0, w), "w_north_valid": column(np.uint8, 0, 1),
            "swap": column(np.uint8, 1, 1),
            "x": column(np.uint16, 2, x), "x_valid": column(np.uint8, 2, 1),
            "p": column(np.uint32, 2 + self._acc_delay, acc),
        }, ["p_south"])["p_south"][:, 0]
        return out[self._latency + 1:][:2 * count:2]


@dataclass(frozen=True)
class _Task:
    kind: str
    number: int


_worker: VerilatedCell


def _start(config: Config) -> None:
    global _worker  # noqa: PLW0603  one model a process, made once
    _worker = VerilatedCell(config)


def _mismatches(want: np.ndarray, got: np.ndarray, *operands: np.ndarray) -> list[list[str]]:
    bad = np.flatnonzero(want != got)[:3]
    return [[f"{int(column[i]):#x}" for column in (*operands, want, got)] for i in bad]


def _run(task: _Task) -> tuple[_Task, int, list[list[str]]]:
    """Checks one task; returns the task, its number of operands, and its first mismatches."""
    if task.kind == "products":
        x = np.arange(1 << 16, dtype=np.uint16)
        weight = np.full_like(x, task.number)
        want = bits(bf16_product(from_bits(x), from_bits(weight)))
        got = _worker.products(task.number, x)
        return task, len(x), _mismatches(want, got, x, weight)
    acc, x, w = mac_operands(np.random.default_rng([SEED, task.number]), SUMS_PER_TASK)
    want = bits(mac(from_bits(acc), from_bits(x), from_bits(w)))
    return task, len(acc), _mismatches(want, _worker.sums(acc, x, w), acc, x, w)


def _tasks(weights: int, sums: int) -> Iterator[_Task]:
    # Spread over all exponents and signs when not all weights are asked for.
    yield from (_Task("products", i * WEIGHTS // weights) for i in range(weights))
    yield from (_Task("sums", i) for i in range(-(-sums // SUMS_PER_TASK)))


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make exhaustive", description=__doc__.splitlines()[0])
    parser.add_argument("--mac-latency", type=int, default=2, help="depth of the cell, 1 to 6")
    parser.add_argument("--weights", type=int, default=WEIGHTS,
                        help="weights to multiply with all activations")
    parser.add_argument("--sums", type=int, default=SUMS, help="sums to draw")
    arguments = parser.parse_args()
    config = Config(mac_latency=arguments.mac_latency)
    VerilatedCell(config)  # built once, before the workers start
    tasks = list(_tasks(arguments.weights, arguments.sums))
    checked = {"products": 0, "sums": 0}
    bad: list[list[str]] = []
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), _start, (config,)) as pool:
        for task, count, mismatches in tqdm(pool.imap_unordered(_run, tasks), total=len(tasks)):
            checked[task.kind] += count
            bad += mismatches
    seconds = round(time.monotonic() - started)
    result = {"mac_latency": config.mac_latency, "cell": cell_digest(config), **checked,
              "mismatches": len(bad), "seconds": seconds}
    build_folder().mkdir(parents=True, exist_ok=True)
    (build_folder() / "exhaustive.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{checked['products']:,} products and {checked['sums']:,} sums in {seconds} s: "
          f"{'MISMATCHES' if bad else 'every bit as golden'}")
    for row in bad[:20]:
        print("  operands, wanted, got:", *row, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
