"""Performance counters of the cores, which count from the moment the device is opened."""

from collections.abc import Iterable

from hdl.config import Config
from hdl.core.counters import COUNTERS
from sim.driver.backend import Backend
from sim.driver.session import Session

__all__ = ["Counters"]

_NAMES = ("cycles", *COUNTERS)


class Counters(Session):
    """Part of `Device`: counters that a reset does not clear."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # For each core: its counts up to its last reset, which cleared the hardware's counters.
        self._before_reset = [dict.fromkeys(_NAMES, 0) for _ in range(config.cores)]

    def counters(self, core: int | None = None) -> dict[str, int]:
        """Return the performance counters, which count from the moment the device is opened.

        Parameters
        ----------
        core : int, optional
            Number of the core. If it is not given, the result is the sum over all cores. On a chip
            with two cores, each clock cycle counts twice, in ``cycles`` too. `Device.run` returns
            the duration of a run.

        Returns
        -------
        dict of str to int
            ``cycles`` counts all cycles. Each cycle also counts as the first of these that applies:
            ``mxu_active_cycles`` (an activation row entered the array); ``weight_load_cycles`` (a
            weight row did); ``vector_wait_cycles`` (a bundle waited for the vector unit),
            ``memory_wait_cycles`` (for memory), ``semaphore_wait_cycles`` (for a semaphore),
            ``instruction_wait_cycles`` (for its fetch); ``idle_cycles``. The golden backend has no
            clock: all are 0.

        Raises
        ------
        TypeError, ValueError
            If there is no such core.
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            cores = self._cores(core)
            for number in cores:
                backend.take_counters(number)
            counts = self._taken(backend, cores).values()
            return {name: sum(count[name] for count in counts) for name in _NAMES}

    def _taken(self, backend: Backend, cores: Iterable[int]) -> dict[int, dict[str, int]]:
        """Return each core's counts at its last snapshot; resets do not clear these counts."""
        result = {}
        for core in cores:
            taken, before = backend.taken_counters(core), self._before_reset[core]
            result[core] = {name: before[name] + taken[name] for name in _NAMES}
        return result
