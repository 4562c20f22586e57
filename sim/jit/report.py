"""A table of what a compiled program does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.compiler.graph.ir import Location
from sim.compiler.program.compiled import Compiled, KernelRecord

__all__ = ["report"]

_HEADER = ("source", "operation", "kernels", "cycles", "of peak", "bytes moved")


_CORES = {1: "one core", 2: "two cores (kernels are those of core 0)"}


@dataclass
class _Line:
    kernels: int = 0
    cycles: int = 0
    products: int = 0
    rows: int = 0

    def add(self, kernel: KernelRecord) -> None:
        self.kernels += 1
        self.cycles += kernel.cycles
        self.products += kernel.products
        self.rows += kernel.rows


def report(compiled: Compiled, measured: Mapping[int, Mapping[str, int]] | None = None) -> str:
    """Write the table.

    Parameters
    ----------
    compiled : Compiled
        The program.
    measured : mapping, optional
        What each core's cycles were spent on in a run, as `Device.last_run` has it.

    Returns
    -------
    str
        Kernels of the same source line and kind share a line. Cycles are those predicted for one
        execution of each kernel: a kernel in a loop counts once. Ends with a newline.
    """
    config = compiled.config
    lines: dict[tuple[str, str], _Line] = {}
    total = _Line()
    for kernel in compiled.kernels:
        key = (_place(kernel.location), kernel.kind)
        lines.setdefault(key, _Line()).add(kernel)
        total.add(kernel)
    peak, row = config.lanes * config.lanes, config.row_bytes
    body = [(*key, *_numbers(line, peak, row)) for key, line in lines.items()]
    body.append(("total", "", *_numbers(total, peak, row)))
    text = [f"{compiled.name} for {_CORES[len(compiled.cores)]} of {config.lanes} lanes, "
            f"{config.sublanes} sublanes", *_table([_HEADER, *body])]
    for core, counts in sorted((measured or {}).items()):
        spent = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        text.append(f"last run, core {core}: {spent}")
    return "\n".join(text) + "\n"


def _place(location: Location | None) -> str:
    if location is None or not location.file:
        return location.name if location else ""
    return f"{location.file}:{location.line}"


def _numbers(line: _Line, peak: int, row: int) -> tuple[str, ...]:
    share = f"{line.products / (line.cycles * peak):.1%}" if line.products and line.cycles else ""
    return str(line.kernels), f"{line.cycles:,}", share, f"{line.rows * row:,}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) if index < 2 else cell.rjust(width)
                      for index, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in rows]
