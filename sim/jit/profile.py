"""What the chip did while some code ran: `profile`."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sim.compiler.executable import Executable
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report, longest_wait
from sim.driver.execution import OBSERVERS
from sim.jit.report import aligned, report

__all__ = ["Profile", "ProgramRuns", "profile"]


@dataclass(eq=False)
class ProgramRuns:
    """All runs of a program while a profile was taken.

    Attributes
    ----------
    executable : Executable
        The program.
    runs : int
        How often it ran.
    seconds : float
        Time of the runs on the host, the simulation included.
    counts : mapping of str to int
        Cycles of all runs, and what they were spent on, as `Device.counters` names them: in each
        run, those of the core that took longest. All 0 on the golden backend, which counts none.
    """

    executable: Executable
    runs: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def cycles(self) -> int:
        """Cycles of all runs; 0 on the golden backend."""
        return self.counts["cycles"]

    def report(self) -> str:
        """The program's kernels by source line, with predicted cycles, as a table.

        Raises
        ------
        ValueError
            If the program was not compiled from a graph.
        """
        return report(Report.predicted(compiled_of(self.executable)))


class Profile:
    """The programs that ran, in the order of their first runs; `str` makes a table."""

    def __init__(self) -> None:
        self._programs: dict[int, ProgramRuns] = {}
        # Devices of several threads may end a run at once.
        self._lock = threading.Lock()

    @property
    def programs(self) -> tuple[ProgramRuns, ...]:
        """The programs."""
        return tuple(self._programs.values())

    @property
    def cycles(self) -> int:
        """Cycles of all programs; 0 on the golden backend."""
        return sum(program.cycles for program in self.programs)

    def _note(self, executable: Executable, counts: Mapping[int, Mapping[str, int]],
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
    """Note all programs that devices of this process run.

        with systolith.profile() as profile:
            step(weights, batch)
        print(profile)

    It notes programs of `systolith.jit`, `CompiledProgram`, `Device.matmul`, `Device.dense`,
    `Device.execute` and `Device.run_placed`, and those that JAX runs on the chip. At its start it
    waits for calls that JAX has begun, and at its end for those within.

    Yields
    ------
    Profile
        The programs, with their cycles.
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
    """Wait for all that JAX has asked of the chip: its jobs are done in order."""
    platform = sys.modules.get("sim.pjrt.platform")
    if platform is not None and platform.is_open():
        import jax

        jax.block_until_ready(jax.device_put(0, jax.devices("systolith")[0]))
