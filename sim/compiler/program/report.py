"""Reports of the cost of each kernel of a program, predicted and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hdl.core.counters import COUNTERS
from sim.compiler.program.compiled import Compiled, KernelRecord

__all__ = ["UNCOUNTED", "KernelCost", "Report", "longest_wait"]

UNCOUNTED = "the golden backend counts no cycles"
"""Explains in a report why a run on the golden backend has no cycles."""

_WAITS = {name: name.removesuffix("_cycles").replace("_", " ") for name in COUNTERS
          if name.endswith("wait_cycles")}


def longest_wait(counts: Mapping[str, int]) -> str:
    """Return the name of the longest wait, for example ``"memory wait"``.

    Parameters
    ----------
    counts : mapping of str to int
        ``cycles`` and the counters of `COUNTERS`; empty if nothing was measured.

    Returns
    -------
    str
        Empty if the longest wait is less than a fifth of the cycles.
    """
    cycles = counts.get("cycles", 0)
    if not cycles:
        return ""
    longest = max(_WAITS, key=lambda name: counts[name])
    return _WAITS[longest] if 5 * counts[longest] >= cycles else ""


@dataclass(frozen=True)
class KernelCost:
    """Predicted and measured cost of one kernel.

    Attributes
    ----------
    kernel : KernelRecord
        The kernel, with its predicted cost.
    runs : int or None
        How often the kernel ran; None if that was not measured.
    counts : mapping of str to int
        ``cycles`` and the causes in `COUNTERS`, summed over all runs. A run lasts from
        the kernel's start to the start of the next kernel, so it includes the transfers between
        them.
    """

    kernel: KernelRecord
    runs: int | None
    counts: Mapping[str, int]

    @property
    def cycles(self) -> int | None:
        """Measured cycles of all runs; None without a measurement or on the golden backend."""
        return self.counts.get("cycles") or None

    @property
    def wait(self) -> str:
        """Name of the kernel's longest wait, as `longest_wait` returns it; may be empty."""
        return longest_wait(self.counts)


@dataclass(frozen=True)
class Report:
    """Costs of a program's kernels, in the order of its code; ``str(report)`` is a table.

    Attributes
    ----------
    compiled : Compiled
        The program.
    kernels : tuple of KernelCost
        Costs of the program's kernels.
    """

    compiled: Compiled
    kernels: tuple[KernelCost, ...]

    @classmethod
    def predicted(cls, compiled: Compiled) -> "Report":
        """Make a report that contains predictions only."""
        return cls(compiled, tuple(KernelCost(kernel, None, {}) for kernel in compiled.kernels))

    @classmethod
    def measured(cls, compiled: Compiled,
                 spans: Sequence[tuple[int, Mapping[str, int]]]) -> "Report":
        """Make a report from the measurements of one run.

        Parameters
        ----------
        compiled : Compiled
            The program.
        spans : sequence of (int, mapping of str to int)
            For each execution of a kernel, in order: the kernel's number, counted from 1, and the
            counters of that execution.
        """
        runs = [0] * len(compiled.kernels)
        counts = [dict.fromkeys(("cycles", *COUNTERS), 0) for _ in runs]
        for number, span in spans:
            runs[number - 1] += 1
            for name, amount in span.items():
                counts[number - 1][name] += amount
        return cls(compiled, tuple(map(KernelCost, compiled.kernels, runs, counts)))

    @property
    def cycles(self) -> int | None:
        """Sum of the measured cycles of all kernels; None if none was measured."""
        measured = [kernel.cycles for kernel in self.kernels if kernel.cycles is not None]
        return sum(measured) if measured else None

    def share(self, cost: KernelCost) -> float | None:
        """Return the fraction of the array's peak that the kernel of ``cost`` reaches.

        This is the number of multiplications that the operation requires, divided by the number
        that the array can do in the kernel's cycles. The cycles are measured ones if the kernel was
        run, else predicted ones. None if the operation has no multiplications in the array, or no
        cycles are known.
        """
        cycles = cost.cycles if cost.runs is not None else cost.kernel.predicted
        if not cost.kernel.products or not cycles:
            return None
        peak = self.compiled.config.array ** 2 * cycles
        return cost.kernel.products * (cost.runs or 1) / peak

    def __str__(self) -> str:
        row_bytes = self.compiled.config.row_bytes
        lines = [("operation", "where", "predicted", "measured", "runs", "of peak", "bytes moved",
                  "waits for")]
        for cost in self.kernels:
            kernel, share = cost.kernel, self.share(cost)
            place = kernel.location
            where = f"{place.file}:{place.line}" if place and place.file else ""
            lines.append((
                kernel.kind, where, f"{kernel.predicted * (cost.runs or 1):,}",
                "" if cost.cycles is None else f"{cost.cycles:,}",
                "" if cost.runs is None else f"{cost.runs}",
                "" if share is None else f"{share:.1%}", f"{kernel.rows * row_bytes:,}", cost.wait))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = "\n".join("  ".join(
            cell.rjust(width) if 2 <= column < 7 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines)
        total = f"{self.compiled.name}: {len(self.kernels)} kernels, {self._total()}"
        return f"{total}\n{text}\n"

    def _total(self) -> str:
        predicted = sum(cost.kernel.predicted * (1 if cost.runs is None else cost.runs)
                        for cost in self.kernels)
        measured = ""
        if self.cycles is not None:
            measured = f", {self.cycles:,} measured"
        elif any(cost.runs for cost in self.kernels):
            measured = f", none measured ({UNCOUNTED})"
        return (f"{predicted:,} cycles predicted{measured}, "
                f"{self.compiled.overlays.segments} segments of code")
