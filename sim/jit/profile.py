"""`profile`: records the programs that run on the chip while some code is executed."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sim.compiler.executable import Executable
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report, longest_wait
from sim.driver.execution import OBSERVERS
from sim.jit.report import aligned, report

__all__ = ["Profile", "ProgramRuns", "profile"]


@dataclass(eq=False)
class ProgramRuns:
    """All runs of one program during a profile.

    Attributes
    ----------
    executable : Executable
        The program; for a program of a pod, that of its first chip.
    runs : int
        Number of runs.
    seconds : float
        Wall-clock time of all runs on the host, including the simulation.
    counts : mapping of str to int
        ``cycles`` and the other counters of `Device.counters`: those of the slowest core of each
        run, summed over all runs. Empty or 0 on the golden backend, which does not count cycles.
    """

    executable: Executable
    runs: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def cycles(self) -> int:
        """Total cycles of all runs; 0 on the golden backend."""
        return self.counts["cycles"]

    def report(self) -> str:
        """Return a table of the program's kernels by source line, with predicted cycles.

        Raises
        ------
        TypeError
            If the program was not compiled from a graph.
        """
        return report(Report.predicted(compiled_of(self.executable)))


class Profile:
    """The programs that ran during a profile; ``str(profile)`` is a table."""

    def __init__(self) -> None:
        self._programs: dict[int, ProgramRuns] = {}
        # Runs on devices of several threads may end at the same time.
        self._lock = threading.Lock()

    @property
    def programs(self) -> tuple[ProgramRuns, ...]:
        """The programs that ran, in the order of their first runs."""
        return tuple(self._programs.values())

    @property
    def cycles(self) -> int:
        """Total cycles of all programs; 0 on the golden backend."""
        return sum(program.cycles for program in self.programs)

    def _note(self, executable: Executable, counts: Mapping[Any, Mapping[str, int]],
              seconds: float) -> None:
        longest = max(counts.values(), key=lambda core: core["cycles"], default={})
        with self._lock:
            program = self._programs.setdefault(id(executable), ProgramRuns(executable))
            program.runs += 1
            program.seconds += seconds
            program.counts.update(longest)

    def __str__(self) -> str:
        programs = self.programs
        total = (sum(program.runs for program in programs),
                 sum(program.seconds for program in programs),
                 sum((program.counts for program in programs), Counter[str]()))
        rows = [("program", "runs", "cycles", "a run", "array busy", "seconds", "waits for"),
                *(_row(program.executable.name, program.runs, program.seconds, program.counts)
                  for program in programs),
                _row("total", *total)]
        return "\n".join(aligned(rows, ("program", "waits for"))) + "\n"


def _row(name: str, runs: int, seconds: float, counts: Mapping[str, int]) -> tuple[str, ...]:
    cycles = counts.get("cycles", 0)
    if not cycles:
        return (name, f"{runs:,}", "", "", "", f"{seconds:.2f}", "")
    return (name, f"{runs:,}", f"{cycles:,}", f"{cycles // runs:,}",
            f"{counts['mxu_active_cycles'] / cycles:.1%}", f"{seconds:.2f}", longest_wait(counts))


@contextmanager
def profile() -> Iterator[Profile]:
    """Record all programs that devices of this process run within a ``with`` block.

        with systolith.profile() as profile:
            step(weights, batch)
        print(profile)

    The profile records programs of `systolith.jit`, `CompiledProgram`, `Device.matmul`,
    `Device.dense`, `Device.execute`, `Device.run_placed` and `Pod.execute`, and those that JAX runs
    on the chip. JAX runs programs asynchronously. So ``profile`` waits at the start of the block
    for earlier calls of JAX, and at its end for the calls that were made within the block.

    Yields
    ------
    Profile
        The programs that ran, with their cycles.
    """
    result = Profile()
    _wait_for_jax()
    OBSERVERS.append(result._note)
    try:
        yield result
        _wait_for_jax()
    finally:
        OBSERVERS.remove(result._note)


def _wait_for_jax() -> None:
    """Wait for all jobs that JAX has enqueued on the chip; they are done in order."""
    platform = sys.modules.get("sim.pjrt.platform")
    if platform is not None and platform.is_open():
        import jax

        jax.block_until_ready(jax.device_put(0, jax.devices("systolith")[0]))
