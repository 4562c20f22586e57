"""``make bench``: simulation speed, links, products, training, ResNet-50, and size on an FPGA.

Prints a table and writes the same figures to ``build/bench.json``. Because timings vary between
runs, each speed is the median of several runs, and models that are compared run alternately. Models
are compiled for this machine, except those of figures with ``avx2`` in their name. These are
compiled with ``-march=haswell``, because many processors have AVX2 but no AVX-512.
"""

import argparse
import json
import sys
from collections.abc import Callable

from tqdm import tqdm

from hdl.config import Config
from sim.verilated.toolchain import build_folder
from tools.bench.array import array_figures
from tools.bench.cell import ecp5_cell, xc7_cell
from tools.bench.chip import chip_figures
from tools.bench.core import core_figures
from tools.bench.fpga import ecp5_chip, fpga_figures
from tools.bench.links import link_figures
from tools.bench.machine import processor
from tools.bench.products import product_figures
from tools.bench.reduce import reduce_figures
from tools.bench.resnet import resnet_figures
from tools.bench.training import cores_figures, transformer_figures

__all__ = ["main"]

DEPTHS = range(1, 7)


def _cells() -> dict[str, float]:
    """Measure the size and clock frequency of the MAC cell at each pipeline depth."""
    figures: dict[str, float] = {}
    for depth in tqdm(DEPTHS, "cell", unit="depth", leave=False):
        for name, value in ecp5_cell(Config(mac_latency=depth)).items():
            figures[f"cell_l{depth}_{name}"] = value
    figures["cell_l2_xc7_lc"] = xc7_cell(Config(mac_latency=2))["lc"]
    return figures


def _tiny_chip() -> dict[str, float]:
    """Measure the size of the whole `tiny` chip on an ECP5. Yosys needs about 12 minutes."""
    return {f"tiny_chip_ecp5_{name}": count
            for name, count in ecp5_chip(Config.preset("tiny")).items()}


_PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "array": lambda: array_figures(Config.preset("v2")),
    "core": lambda: core_figures(Config.preset("v2")),
    "chip": lambda: chip_figures(Config.preset("v2")),
    "links": lambda: link_figures("v2"),
    "reduce": lambda: reduce_figures("v2"),
    "products": lambda: product_figures(Config.preset("v2")),
    "resnet50": lambda: resnet_figures(Config.preset("v2")),
    "cores": lambda: cores_figures(Config.preset("v2")),
    "transformer": lambda: transformer_figures(Config.preset("v2")),
    "cell": _cells, "ecp5": _tiny_chip,
    "fpga": fpga_figures}


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=_PARTS,
                        help="measure only this part, and keep the figures of the others")
    only = parser.parse_args().only
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    figures: dict[str, float] = json.loads(path.read_text()) if only and path.is_file() else {}
    for part, measure in _PARTS.items():
        if only in (None, part):
            figures |= measure()
            # Written after each part, so that an interrupted run keeps its figures.
            path.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"on: {processor()}, one thread except for the chip\n")
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:14,.{1 if value >= 10 else 3}f}")
    print(f"\nfigures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
