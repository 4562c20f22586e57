"""Interface and code that the golden core and the simulated core share."""

from collections.abc import Sequence
from typing import Any, Protocol

from hdl.isa import Fault

__all__ = ["Processor"]


class Processor(Protocol):
    """Executes programs: the golden `GoldenCore` or the simulated `CoreModel`.

    Both accept the same arguments, and reject wrong ones with a `TypeError` or a `ValueError`. A
    program that runs until it halts, faults or waits leaves the same state in both; so do host
    calls while no program is running. The two differ as follows:

    * `run` counts executed bundles in the golden core, cycles in the simulated one. At its limit
      the golden core returns; the simulated core raises a `TimeoutError`.
    * At a given call, the two cores have executed different numbers of bundles of a running
      program. So an event in the middle of a program (`stop`, a `signal` that overflows) takes
      effect at different bundles.
    * While a program runs, the simulated core rejects `load_program` with a `RuntimeError`.
    * `read_state` of the golden core also returns the counts by which it checks the array's rules,
      unless ``array`` is False. `read_state` of the simulated core returns the state of the current
      cycle: work that a stopped program began is complete only after `run`.
    * Only the simulated core has a watchdog, counters and `reset`.
    """

    def load_program(self, bundles: Sequence[int], at: int = 0) -> None:
        """Writes bundles to the instruction memory from address ``at`` on; other bundles remain."""

    def start(self, pc: int = 0) -> None:
        """Starts the core at bundle ``pc``; raises a `RuntimeError` if a program is running."""

    def run(self, limit: int, /) -> int:
        """Runs until the program stops or waits for a semaphore.

        ``limit`` is the maximum number of bundles (golden core) or cycles (simulated core).
        """

    def read_state(self) -> dict[str, Any]:
        """Returns all state that programs can read, by name."""

    @property
    def pc(self) -> int:
        """Address of the next bundle, or of the bundle that halted or faulted."""

    @property
    def running(self) -> bool:
        """Whether a program is running."""

    @property
    def fault(self) -> Fault:
        """The fault that stopped the core, or `Fault.NONE`."""
