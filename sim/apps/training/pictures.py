"""Pictures of a training: the loss, and the cycles of a step by cause."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.compiler.program.report import KernelCost, Report

__all__ = ["draw_cycles", "draw_loss"]

_CAUSES = {"mxu_active_cycles": ("rows enter the array", "#2a6f97"),
           "weight_load_cycles": ("weights enter the array", "#61a5c2"),
           "vector_wait_cycles": ("waits for the vector unit", "#bc6c25"),
           "memory_wait_cycles": ("waits for vector memory", "#dda15e"),
           "semaphore_wait_cycles": ("waits for transfers", "#9d4edd"),
           "instruction_wait_cycles": ("waits for code", "#d00000"),
           "idle_cycles": ("other operations", "#adb5bd")}


def draw_loss(losses: npt.NDArray[np.float32], title: str, path: pathlib.Path) -> None:
    """Draw the loss of each step, and a running mean, to the file ``path``."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axis.semilogy(np.arange(1, len(losses) + 1), losses, color="#a9c6d8", linewidth=1,
                  label="each step")
    width = max(1, min(16, len(losses) // 4))
    mean = np.convolve(losses, np.full(width, 1 / width), "valid")
    axis.semilogy(np.arange(width, len(losses) + 1), mean, color="#013a63",
                  label=f"mean of {width} steps")
    axis.set(xlabel="step", ylabel="loss", title=title)
    axis.grid(visible=True, which="both", alpha=0.2)
    axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_cycles(report: Report, title: str, path: pathlib.Path) -> None:
    """Draw a step's kernels on a time line, coloured by the causes of their cycles, to ``path``.

    A second plot in the same file shows the products under a roofline.
    """
    pyplot = _pyplot()
    figure, (line, roof) = pyplot.subplots(2, 1, figsize=(11, 7), layout="constrained",
                                           height_ratios=(1, 1.3))
    _time_line(line, [cost for cost in report.kernels if cost.cycles])
    line.set_title(title)
    _roofline(roof, report)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _time_line(axis: Any, kernels: Sequence[KernelCost]) -> None:
    """Draw a bar for each kernel from start to end, with a section for each cause of its cycles."""
    start, shown = 0, set[str]()
    for number, cost in enumerate(kernels):
        left, cycles = start, cost.cycles or 0
        for name, (label, color) in _CAUSES.items():
            if cost.counts[name]:
                axis.barh(number % 2, cost.counts[name], left=left, height=0.9, color=color,
                          label=None if name in shown else label)
                shown.add(name)
                left += cost.counts[name]
        if cycles > 0.04 * sum(cost.cycles or 0 for cost in kernels):
            axis.text(start + cycles / 2, number % 2, re.sub("[_+]", "\n", cost.kernel.kind),
                      ha="center", va="center", fontsize=7)
        start += cycles
    axis.set(xlabel="cycle", yticks=[], xlim=(0, start))
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=4, fontsize=8)


def _roofline(axis: Any, report: Report) -> None:
    """Plot multiplications per cycle against those per byte of HBM traffic, for each product."""
    config = report.compiled.config
    peak, bandwidth = config.array ** 2, config.row_bytes
    points = [(cost.kernel.kind, cost.kernel.products, cost.kernel.rows * config.row_bytes,
               cost.cycles or 0) for cost in report.kernels if cost.kernel.products]
    points.append(("whole step", *(sum(column) for column in zip(*(
        (cost.kernel.products, cost.kernel.rows * config.row_bytes, cost.cycles or 0)
        for cost in report.kernels), strict=True))))
    reach = [max(products / max(moved, config.row_bytes), 1) for _, products, moved, _ in points]
    x = np.geomspace(0.3, 3 * max(*reach, peak / bandwidth), 200)
    axis.loglog(x, np.minimum(peak, bandwidth * x), color="black")
    for (kind, products, _, cycles), at in zip(points, reach, strict=True):
        if cycles:
            axis.loglog(at, products / cycles, "o", markersize=9 if kind == "whole step" else 5,
                        color="#d00000" if kind == "whole step" else "#2a6f97")
            axis.annotate(f" {kind}: {products / cycles / peak:.1%}", (at, products / cycles),
                          fontsize=7)
    axis.set(xlabel="multiplications for each byte that moves from or to HBM",
             ylabel="multiplications a cycle", ylim=(1, 2 * peak),
             title=f"Roofline of one core: {peak:,} multiplications and {bandwidth} bytes a cycle")
    axis.grid(visible=True, which="both", alpha=0.2)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
