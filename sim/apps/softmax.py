"""``make softmax``: a layer ``softmax(relu(x @ W + b))`` as one program on the core in RTL.

The host writes x, W and b to vector memory, starts the program
(`sim.compiler.handwritten.softmax`), and reads the result. The golden core runs the same
program, and every bit of both states must agree.
"""

import argparse
import sys
import time

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.core import GoldenCore
from golden.numerics import to_bf16
from hdl.config import PRESETS, Config
from sim.compiler.handwritten.softmax import SoftmaxLayer
from sim.models.core import CoreModel

__all__ = ["main", "operands", "reference"]

SEED = 2017
TILES = 2
CHUNKS = 3

Float32 = npt.NDArray[np.float32]


def operands(layer: SoftmaxLayer, seed: int = SEED) -> tuple[Float32, Float32, Float32]:
    """Draw random x, W and b."""
    rng = np.random.default_rng(seed)
    lanes = layer.config.lanes
    x = rng.standard_normal((layer.rows, layer.depth)).astype(np.float32)
    w = (rng.standard_normal((layer.depth, lanes)) * np.sqrt(2 / layer.depth)).astype(np.float32)
    return x, w, rng.standard_normal(lanes).astype(np.float32)


def reference(x: Float32, w: Float32, b: Float32) -> npt.NDArray[np.float64]:
    """Compute the layer in float64, with x and W rounded to bfloat16 as the array rounds them."""
    hidden = np.maximum(to_bf16(x).astype(np.float64) @ to_bf16(w).astype(np.float64) + b, 0)
    power = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def _row(name: str, value: str, note: str = "") -> str:
    return f"  {name:24}{value:>12}  {note}".rstrip()


def _report(layer: SoftmaxLayer, kernels: bool) -> tuple[str, bool]:
    """Run the layer on the core and the golden core; return the report and whether they agree."""
    config = layer.config
    program = layer.program()
    arrays = operands(layer)
    image = layer.image(*arrays)
    golden = GoldenCore(config)
    golden.vmem[:layer.vectors] = image.view(np.uint32)
    golden.load_program(program.bundles)
    golden.start()
    with tqdm(desc="golden core", unit="bundle", leave=False) as bar:
        while golden.running:
            bar.update(golden.run(100))
    with CoreModel(config, kernels=kernels) as core:
        core.write_vmem(0, image)
        with tqdm(desc="core in RTL", unit="cycle", leave=False) as bar:
            core.load_program(program.bundles)
            began = time.perf_counter()
            counters = core.run_program(progress=bar.update)
            seconds = time.perf_counter() - began
        vectors = core.read_vmem(layer.p_address, layer.chunks * layer.groups)
        state = core.read_state()
    expected = golden.read_state(array=False)
    output = np.array_equal(vectors, expected["vmem"][layer.p_address:layer.vectors])
    same = state.keys() == expected.keys() and all(
        np.array_equal(state[part], expected[part]) for part in expected)
    cycles = counters["cycles"]
    error = np.abs(layer.result(vectors) - reference(*arrays)).max()
    ideal = layer.rows * layer.tiles
    lines = [
        f"softmax(relu(x @ W + b)) on a {config.array}x{config.array} core in RTL: "
        f"{layer.rows} rows, {layer.depth} to {config.lanes}, {len(program)} bundles",
        _row("every bit as golden", "yes" if output else "NO"),
        _row("all other state too", "yes" if same else "NO"),
        _row("largest error", f"{error:.1e}", "against float64, of the same bfloat16 operands"),
        _row("cycles", f"{cycles:,}"),
        *(_row(name.removesuffix("_cycles").replace("_", " "), f"{count:,}",
               f"{100 * count / cycles:5.1f}%")
          for name, count in counters.items() if name != "cycles"),
        _row("rows into the array", f"{ideal:,}", "cycles at least"),
        _row("simulation speed", f"{cycles / seconds:,.0f}", "cycles/s"),
    ]
    return "\n".join(lines), output and same and sum(
        count for name, count in counters.items() if name != "cycles") == cycles


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make softmax", description=__doc__.splitlines()[0])
    parser.add_argument("config", choices=PRESETS, nargs="?", default="v2", help="preset")
    parser.add_argument("--tiles", type=int, default=TILES, help="weight tiles")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="chunks of the batch")
    parser.add_argument("--verilog", action="store_true",
                        help="simulate pure Verilog, without tile kernels (tiny, small)")
    arguments = parser.parse_args()
    layer = SoftmaxLayer(Config.preset(arguments.config), arguments.tiles, arguments.chunks)
    text, good = _report(layer, kernels=not arguments.verilog)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
