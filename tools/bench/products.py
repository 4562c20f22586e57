"""Utilization of both cores' arrays by `Device.matmul` in RTL; operands and results are in HBM."""

import ml_dtypes
import numpy as np
from tqdm import tqdm

from golden.mxu import matmul
from hdl.config import Config
from sim.compiler.dense.layers import Dense
from sim.compiler.dense.program import compile_layers
from sim.compiler.executable import Executable
from sim.compiler.program.compiled import compiled_of
from systolith import Device

__all__ = ["SIZES", "predicted", "product_figures"]

SIZES = {"gemm_1024": (1024, 1024, 1024, np.float32), "gemm_512": (512, 512, 512, np.float32),
         "gemm_128x1024x1024": (128, 1024, 1024, ml_dtypes.bfloat16),
         "gemm_128x1024x1024_f32": (128, 1024, 1024, np.float32),
         "gemm_49x4608x512": (49, 4608, 512, ml_dtypes.bfloat16),
         "gemm_49x4608x512_f32": (49, 4608, 512, np.float32)}
"""(rows of A, columns of A, columns of B, type of B) of each measured product A @ B, by name.

A is float32."""


def predicted(executable: Executable) -> int:
    """The compiler's prediction of an executable's cycles, on the core with the most cycles."""
    return max(sum(kernel.predicted for kernel in core.kernels)
               for core in compiled_of(executable).cores)


def product_figures(config: Config) -> dict[str, float]:
    """For each product, return the arrays' utilization, and the predicted and measured cycles.

    The utilization is the number of multiply-accumulate operations, divided by the number that all
    cells could execute from the programs' start to their end. Operations on padding are not
    counted.

    Raises
    ------
    RuntimeError
        If a bit differs from the golden model.
    """
    figures: dict[str, float] = {}
    rng = np.random.default_rng(2)
    with Device.open(config) as device:
        for name, (rows, depth, columns, dtype) in tqdm(SIZES.items(), "products", leave=False):
            a = rng.standard_normal((rows, depth)).astype(np.float32)
            b = rng.standard_normal((depth, columns)).astype(dtype)
            found = device.matmul(a, b)
            if not np.array_equal(found, matmul(a, b, config.array)):
                raise RuntimeError(f"results of {name} and of the golden model differ")
            cycles = max(counts["cycles"] for counts in device.last_run.values())
            cells = config.cores * config.array ** 2
            figures[name] = rows * depth * columns / cells / cycles
            figures[f"{name}_cycles"] = cycles
            figures[f"{name}_predicted_cycles"] = predicted(
                compile_layers(config, rows, depth, (Dense(b).kind,)).executable)
    return figures
