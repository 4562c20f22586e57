"""``make roofline``: compares each kernel of ResNet-50 with the limits of a core.

The command writes a table of all kernels, and a picture, to ``build/``
(`sim.apps.resnet.roofline`). The kernels run on one core; cycles are measured in RTL or, with
``--predicted``, predicted by the compiler.
"""

import argparse
import sys

import jax
import numpy as np

from hdl.config import PRESETS, Config
from sim.apps.resnet.__main__ import IMAGES, SIDE, arguments, compile_forward
from sim.apps.resnet.roofline import draw, table
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report
from sim.driver.device import Device
from sim.verilated.toolchain import build_folder

__all__ = ["main"]

def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="make roofline", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", choices=sorted(PRESETS), default="v2")
    parser.add_argument("--side", type=int, default=SIDE, help="height and width of the images")
    parser.add_argument("--predicted", action="store_true", help="do not measure cycles")
    options = parser.parse_args()
    config = Config.preset(options.config)
    values = arguments(1, options.side, IMAGES)
    executable = compile_forward(config, values, 1)
    if options.predicted:
        report = Report.predicted(compiled_of(executable))
    else:
        with Device.open(config) as device:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
            _, report = device.profile(executable, *leaves)
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    text = table(report)
    (folder / "roofline.txt").write_text(text, encoding="utf-8")
    draw(report, folder / "roofline.svg")
    print(text)
    print(f"table: {folder / 'roofline.txt'}\npicture: {folder / 'roofline.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
