"""Interface and code that the golden core and the simulated core share."""

from collections.abc import Sequence
from typing import Any, Protocol

from hdl.isa import Fault

__all__ = ["Processor"]


class Processor(Protocol):
    """Executes programs: the golden `GoldenCore` or the simulated `CoreModel`.

    Both take the same arguments, and reject wrong ones with a `TypeError` or a `ValueError`. A
    program that runs until it halts, faults or waits leaves the same state in both; so do calls
    between such programs. They differ as follows:

    * `run` counts executed bundles in the golden core, cycles in the simulated one. At its limit
      the golden core returns; the simulated core raises a `TimeoutError`.
    * By a given call the simulated core has executed more or fewer bundles than the golden one, so
      an event in the middle of a program (`stop`, a `signal` that overflows) meets a different
      bundle.
    * While a program runs, the simulated core rejects `load_program` with a `RuntimeError`.
    * The golden core's `read_state` also has the state that checks the array's rules, unless told
      otherwise. The simulated core's shows the present: only after `run` is everything complete
      that a stopped program began.
    * Only the simulated core has a watchdog, counters and `reset`.
    """

    def load_program(self, bundles: Sequence[int], at: int = 0) -> None:
        """Writes bundles to the instruction memory from address ``at`` on; the rest stays."""

    def start(self, pc: int = 0) -> None:
        """Starts at a bundle; raises a `RuntimeError` if a program runs."""

    def run(self, limit: int, /) -> int:
        """Runs until the program stops or waits for a semaphore."""

    def read_state(self) -> dict[str, Any]:
        """Everything that a program can see."""

    @property
    def pc(self) -> int:
        """The program counter."""

    @property
    def running(self) -> bool:
        """Whether a program runs."""

    @property
    def fault(self) -> Fault:
        """The fault that stopped the core."""
