"""``make softmax``: a layer ``softmax(relu(x @ W + b))`` as one program on the chip in RTL.

`systolith.jit` compiles the layer for core 0. The golden model runs the same program; all bits of
the result, of vector memory, scalar memory, scalar registers and semaphores must be equal.
"""

import argparse
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.numerics import to_bf16
from hdl.config import PRESETS, Config
from sim.driver.device import Device
from sim.jit.function import jit
from sim.jit.program import CompiledProgram

__all__ = ["compile_layer", "main", "operands", "reference"]

SEED = 2017
DEPTH_TILES = 2
ROW_TILES = 6

Float32 = npt.NDArray[np.float32]


def operands(config: Config, rows: int, depth: int, seed: int = SEED
             ) -> tuple[Float32, Float32, Float32]:
    """Random x, W and b of shapes (rows, depth), (depth, lanes) and (lanes,).

    ``lanes`` is that of ``config``; ``seed`` seeds the random numbers.
    """
    rng = np.random.default_rng(seed)
    lanes = config.lanes
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = (rng.standard_normal((depth, lanes)) * np.sqrt(2 / depth)).astype(np.float32)
    return x, w, rng.standard_normal(lanes).astype(np.float32)


def reference(x: Float32, w: Float32, b: Float32) -> npt.NDArray[np.float64]:
    """Compute the layer in float64, with x and W first rounded to bfloat16 as in the array."""
    hidden = np.maximum(to_bf16(x).astype(np.float64) @ to_bf16(w).astype(np.float64) + b, 0)
    power = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def _layer(x: Any, w: Any, b: Any) -> Any:
    import jax

    return jax.nn.softmax(jax.nn.relu(x @ w + b))


def compile_layer(config: Config, x: Float32, w: Float32, b: Float32) -> CompiledProgram:
    """Compile the layer for operands of the shapes of ``x``, ``w`` and ``b``.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    return jit(_layer).compile(x, w, b, config=config)


def _state(device: Device) -> dict[str, npt.NDArray[np.uint32]]:
    """Read vector memory, scalar memory, scalar registers and semaphores of core 0, by name."""
    config = device.config
    return {"vector memory": device.read_vmem(0, 0, config.vmem_vectors),
            "scalar memory": device.read_smem(0, 0, config.smem_words),
            "scalar registers": device.read_scalars(0),
            "semaphores": device.read_semaphores(0)}


def _row(name: str, value: str, note: str = "") -> str:
    return f"  {name:24}{value:>12}  {note}".rstrip()


def _report(config: Config, rows: int, depth: int) -> tuple[str, bool]:
    """Run the layer, with x of shape (``rows``, ``depth``), in RTL and on the golden model.

    Return the report, and whether RTL and golden model agree.
    """
    arrays = operands(config, rows, depth)
    program = compile_layer(config, *arrays)
    with Device.open(config, backend="golden") as golden:
        [wanted] = program(*arrays, device=golden)
        expected = _state(golden)
    with Device.open(config) as device:
        with tqdm(desc="core in RTL", unit="cycle", leave=False) as bar:
            began = time.perf_counter()
            [found] = program(*arrays, device=device, progress=lambda: bar.update(
                device.counters(0)["cycles"] - bar.n))
            seconds = time.perf_counter() - began
        counters, total = device.last_run[0], device.counters(0)["cycles"]
        state = _state(device)
    output = np.array_equal(found.view(np.uint32), wanted.view(np.uint32))
    same = all(np.array_equal(state[part], expected[part]) for part in expected)
    cycles = counters["cycles"]
    error = np.abs(found - reference(*arrays)).max()
    ideal = rows * (depth // config.array)
    lines = [
        f"softmax(relu(x @ W + b)) on a {config.array}x{config.array} core in RTL: "
        f"{rows} rows, {depth} to {config.lanes}",
        _row("every bit as golden", "yes" if output else "NO"),
        _row("memories and registers", "yes" if same else "NO", "likewise"),
        _row("largest error", f"{error:.1e}", "against float64, of the same bfloat16 operands"),
        _row("cycles", f"{cycles:,}", "from HBM to HBM"),
        *(_row(name.removesuffix("_cycles").replace("_", " "), f"{count:,}",
               f"{100 * count / cycles:5.1f}%")
          for name, count in counters.items() if name != "cycles"),
        _row("rows into the array", f"{ideal:,}", "cycles at least"),
        _row("simulation speed", f"{total / seconds:,.0f}", "cycles/s"),
    ]
    return "\n".join(lines), output and same and sum(
        count for name, count in counters.items() if name != "cycles") == cycles


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make softmax", description=__doc__.splitlines()[0])
    parser.add_argument("config", choices=PRESETS, nargs="?", default="v2", help="preset")
    parser.add_argument("--depth", type=int, default=DEPTH_TILES,
                        help="columns of x, as a multiple of the array size; default: %(default)s")
    parser.add_argument("--rows", type=int, default=ROW_TILES,
                        help="rows of x, as a multiple of the array size; default: %(default)s")
    arguments = parser.parse_args()
    for name in ("depth", "rows"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    config = Config.preset(arguments.config)
    text, good = _report(config, arguments.rows * config.array, arguments.depth * config.array)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
