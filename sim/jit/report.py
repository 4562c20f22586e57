"""Table of the kernels of a compiled program, by source line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim.compiler.graph.ir import Location
from sim.compiler.program.report import UNCOUNTED, KernelCost, Report, longest_wait

__all__ = ["aligned", "report"]

_CORES = {1: "one core", 2: "two cores (kernels are those of core 0)"}


@dataclass
class _Line:
    """Sums over the kernels of one source line and kind, and over all their runs.

    Attributes
    ----------
    kernels, runs : int
        Number of kernels, and of their runs.
    predicted, products, rows : int
        Predicted cycles, multiplications, and HBM rows moved to or from vector memory.
    counts : Counter
        Measured cycles of each cause; under the key ``cycles``, their total.
    """

    kernels: int = 0
    runs: int = 0
    predicted: int = 0
    products: int = 0
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, cost: KernelCost) -> None:
        """Add a kernel's cost for each of its runs; if runs were not counted, for one run."""
        runs = 1 if cost.runs is None else cost.runs
        self.kernels += 1
        self.runs += runs
        self.predicted += cost.kernel.predicted * runs
        self.products += cost.kernel.products * runs
        self.rows += cost.kernel.rows * runs
        self.counts.update(cost.counts)


def report(costs: Report, last_run: Mapping[int, Mapping[str, int]] | None = None) -> str:
    """Return the table of a program's kernels.

    Parameters
    ----------
    costs : Report
        Predicted or measured costs of the program's kernels.
    last_run : mapping of int to mapping, optional
        Counters of each core in the last run, as in `Device.last_run`.

    Returns
    -------
    str
        The table; it ends with a newline. Kernels of the same source line and kind share a line.
        Numbers are sums over all runs of these kernels if runs were counted; otherwise each kernel
        is counted once, even in a loop. The fraction of the array's peak is computed from measured
        cycles, or from predicted ones if none were measured.
    """
    compiled, config = costs.compiled, costs.compiled.config
    lines: dict[tuple[str, str], _Line] = {}
    total = _Line()
    for cost in costs.kernels:
        key = (_place(cost.kernel.location), cost.kernel.kind)
        lines.setdefault(key, _Line()).add(cost)
        total.add(cost)
    table = [("source", "operation", "kernels", "runs", "predicted", "measured", "of peak",
              "bytes moved", "waits for")]
    for (place, kind), line in (*lines.items(), (("total", ""), total)):
        cycles = line.counts["cycles"]
        peak = config.array ** 2 * (cycles or line.predicted)
        table.append((
            place, kind, f"{line.kernels:,}", f"{line.runs:,}", f"{line.predicted:,}",
            f"{cycles:,}", f"{line.products / peak:.1%}" if line.products and peak else "",
            f"{line.rows * config.row_bytes:,}", longest_wait(line.counts)))
    counted = any(cost.runs is not None for cost in costs.kernels)
    shown = {"runs": counted, "measured": bool(total.counts["cycles"]),
             "waits for": bool(total.counts["cycles"])}
    columns = [number for number, name in enumerate(table[0]) if shown.get(name, True)]
    text = [f"{compiled.name} for {_CORES[len(compiled.cores)]} of {config.lanes} lanes, "
            f"{config.sublanes} sublanes",
            *aligned([[row[number] for number in columns] for row in table],
                     ("source", "operation", "waits for"))]
    if counted and total.runs and not shown["measured"]:
        text.append(f"no measured cycles: {UNCOUNTED}")
    for core, counts in sorted((last_run or {}).items()):
        spent = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        if not counts["cycles"]:
            spent = UNCOUNTED
        text.append(f"last run, core {core}: {spent}")
    return "\n".join(text) + "\n"


def _place(location: Location | None) -> str:
    if location is None or not location.file:
        return location.name if location else ""
    return f"{location.file}:{location.line}"


def aligned(rows: Sequence[Sequence[str]], texts: Sequence[str]) -> list[str]:
    """Align the columns of a table; return its lines.

    The first row holds the columns' names. Columns named in ``texts`` are aligned left, all other
    columns right.
    """
    left = {number for number, name in enumerate(rows[0]) if name in texts}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) if number in left else cell.rjust(width)
                      for number, (cell, width) in enumerate(zip(row, widths, strict=True))
                      ).rstrip() for row in rows]
