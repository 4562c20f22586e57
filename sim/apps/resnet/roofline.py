"""Compares the cycles of kernels with the limits of a core, in a table and in a picture.

In each cycle, the array executes at most array² multiply-accumulates, the vector unit two vector
operations, and memory moves one row. The picture is the roofline of S. Williams, A. Waterman and
D. Patterson (Roofline: an insightful visual performance model for multicore architectures,
Communications of the ACM, 2009).
"""

import pathlib
from dataclasses import dataclass

import matplotlib
import numpy as np

from hdl.config import Config
from sim.compiler.program.report import KernelCost, Report

__all__ = ["Limits", "draw", "table"]

_COLOURS = {"array": "#2f6fb0", "vector unit": "#2c8a72", "memory": "#b8405e"}


@dataclass(frozen=True)
class Limits:
    """Lower bounds of a kernel's cycles, one for each resource.

    Attributes
    ----------
    array, vector, memory : float
        Minimum number of cycles for the kernel's multiply-accumulates, for its vector operations,
        and for the HBM rows that its transfers move.
    """

    array: float
    vector: float
    memory: float

    @classmethod
    def of(cls, cost: KernelCost, config: Config) -> "Limits":
        """The limits for one run of a kernel with this cost."""
        kernel = cost.kernel
        return cls(kernel.products / config.array ** 2, kernel.vector_operations / 2,
                   float(kernel.rows))

    @property
    def name(self) -> str:
        """Name of the resource that limits the kernel: the one with the most cycles."""
        return max((self.array, "array"), (self.vector, "vector unit"),
                   (self.memory, "memory"))[1]


def table(report: Report) -> str:
    """Table of all kernels: limits, predicted and measured cycles, and the ratio limit / cycles.

    All figures are sums over the runs of a kernel. The ratio divides by the measured cycles, or by
    the predicted ones if none were measured. A kernel's ratio uses the larger of its limits for
    array and vector unit. Memory's limit is left out: the rows of a transfer are charged to the
    kernel that starts it, although many are moved while later kernels run. The last line, for the
    whole program, uses the largest of all three limits.
    """
    config = report.compiled.config
    lines = [f"{'kernel':>6}  {'operation':20}{'array':>12}{'vector':>12}{'memory':>12}"
             f"{'predicted':>12}{'measured':>12}{'reached':>9}"]
    total = [0.0] * 5
    for number, cost in enumerate(report.kernels, 1):
        limits, runs = Limits.of(cost, config), cost.runs or 1
        figures = [runs * limits.array, runs * limits.vector, runs * limits.memory,
                   float(runs * cost.kernel.predicted), float(cost.cycles or 0)]
        total = [a + b for a, b in zip(total, figures, strict=True)]
        lines.append(_line(f"{number}", cost.kernel.kind, figures, max(figures[:2])))
    lines.append(_line("", "all", total, max(total[:3])))
    return "\n".join(lines) + "\n"


def _line(number: str, kind: str, figures: list[float], limit: float) -> str:
    spent = figures[4] or figures[3]
    cells = [f"{value:12,.0f}" for value in figures]
    if not figures[4]:
        cells[4] = " " * 12
    return f"{number:>6}  {kind:20}{''.join(cells)}{limit / max(spent, 1):9.0%}"


def draw(report: Report, path: pathlib.Path) -> None:
    """Plot each kernel of ``report`` as a point in the roofline picture, written to ``path``.

    The vertical axis is multiply-accumulates per cycle, the horizontal one multiply-accumulates per
    HBM row. Cycles are measured or, for a kernel that was not measured, predicted. Kernels without
    multiply-accumulates, or without transfers, are left out.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    config = report.compiled.config
    peak = config.array ** 2
    figure, axes = pyplot.subplots(figsize=(8, 5))
    found = [(cost.kernel.products / cost.kernel.rows,
              cost.kernel.products * (cost.runs or 1) / (cost.cycles or cost.kernel.predicted),
              Limits.of(cost, config).name)
             for cost in report.kernels if cost.kernel.products and cost.kernel.rows]
    for name, colour in _COLOURS.items():
        part = [(x, y) for x, y, limit in found if limit == name]
        if part:
            axes.scatter([x for x, _ in part], [y for _, y in part], s=18, c=colour,
                         label=f"limited by {name}")
    span = np.geomspace(min([x for x, _, _ in found] + [1.0]) / 2,
                        max([x for x, _, _ in found] + [4.0 * peak]) * 2, 200)
    axes.plot(span, np.minimum(peak, span), c="#24292f", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="multiplications for each row moved",
             ylabel="multiplications in a cycle",
             title=f"{report.compiled.name}: kernels of a core")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
