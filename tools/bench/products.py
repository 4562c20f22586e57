"""How busy matrix products keep the arrays of both cores: from memory to memory, in RTL."""

import numpy as np
from tqdm import tqdm

from golden.mxu import matmul
from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import DType, Graph, Sharding, TensorType, Value
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from systolith import Device

__all__ = ["SIZES", "on_both_cores", "predicted", "product_figures"]

SIZES = {"gemm_1024": (1024, 1024, 1024), "gemm_512": (512, 512, 512),
         "gemm_128x1024x1024": (128, 1024, 1024), "gemm_49x4608x512": (49, 4608, 512)}
"""Rows, depth and columns of the products that are measured."""


def on_both_cores(rows: int, depth: int, columns: int, config: Config) -> Executable:
    """A product of float32 matrices, of which each core computes half of the rows or the columns.

    Of the two, the one with fewer predicted cycles.

    Raises
    ------
    ValueError
        If rows and columns are both odd.
    """
    found = []
    for sharding, part_rows, part_columns, whole in (
            (Sharding((0, None), (0,)), rows // 2, columns, rows),
            (Sharding((None, 1), (1,)), rows, columns // 2, columns)):
        if whole % 2:
            continue
        graph = Graph([Value(TensorType(shape, DType.F32))
                       for shape in ((part_rows, depth), (depth, part_columns))],
                      name="product", sharding=sharding)
        graph.outputs = [graph.add(
            "dot_general", graph.inputs, TensorType((part_rows, part_columns), DType.F32), {
                "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
                "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
                "precision_config": ("DEFAULT", "DEFAULT")}).result]
        found.append(compile_graph(graph, config))
    if not found:
        raise ValueError(f"rows or columns must be even, not {rows!r} and {columns!r}")
    return min(found, key=predicted)


def predicted(executable: Executable) -> int:
    """Predicted cycles of a program, on the core that takes longest."""
    return max(sum(kernel.cycles for kernel in core.kernels)
               for core in compiled_of(executable).cores)


def product_figures(config: Config) -> dict[str, float]:
    """For each product its share of the arrays' peak, and predicted and measured cycles.

    All cycles count, from the start of the programs to their end; of the multiplications, only
    those that were asked for.

    Raises
    ------
    RuntimeError
        If a bit differs from golden.
    """
    figures: dict[str, float] = {}
    rng = np.random.default_rng(2)
    with Device.open(config) as device:
        for name, (rows, depth, columns) in tqdm(SIZES.items(), "products", leave=False):
            executable = on_both_cores(rows, depth, columns, config)
            a = rng.standard_normal((rows, depth)).astype(np.float32)
            b = rng.standard_normal((depth, columns)).astype(np.float32)
            [found] = device.execute(executable, a, b)
            if not np.array_equal(found, matmul(a, b, config.array)):
                raise RuntimeError(f"{name} and golden model differ")
            cycles = max(counts["cycles"] for counts in device.last_run.values())
            cells = config.cores * config.array ** 2
            figures[name] = rows * depth * columns / cells / cycles
            figures[f"{name}_cycles"] = cycles
            figures[f"{name}_predicted_cycles"] = predicted(executable)
    return figures
