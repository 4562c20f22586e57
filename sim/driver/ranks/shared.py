"""The backend of a chip of a pod that several ranks simulate."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.driver.backend import Backend, rtl_backend
from sim.errors import CoreState
from sim.models.chip import ChipModel, Until
from sim.models.chip.torus import ChipTorus

__all__ = ["SharedBackend"]

Words = npt.NDArray[np.uint32]


class SharedBackend:
    """A chip in RTL that one of several ranks simulates.

    All ranks call the same methods in the same order, and get the same results. The rank that
    simulates the chip makes the accesses; meanwhile the other ranks run their chips.

    Parameters
    ----------
    torus : ChipTorus
        The chips of the pod, which several ranks simulate.
    place : tuple of int
        The chip's coordinates.
    """

    def __init__(self, torus: ChipTorus, place: tuple[int, int]) -> None:
        self._torus = torus
        self._number = torus.number(place)
        self._own: Backend | None = None

        def make() -> None:
            self._own = rtl_backend(torus[place])

        torus.lead(self._number, make)

    @property
    def config(self) -> Config:
        return self._torus.config

    @property
    def model(self) -> ChipModel | None:
        return None

    @property
    def steps(self) -> int:
        return self._torus.cycle

    def read_hbm(self, at: int, count: int) -> Words:
        return self._lead(lambda own: own.read_hbm(at, count))

    def write_hbm(self, at: int, count: int, *,
                  keep: bool = False) -> AbstractContextManager[Words]:
        kept = self.read_hbm(at, count) if keep else None
        if self._own is not None:
            return self._own.write_hbm(at, count, keep=keep)
        return nullcontext(np.empty((count, self.config.lanes), np.uint32)
                           if kept is None else kept)

    def load(self, programs: Mapping[int, Sequence[int]], at: int) -> None:
        self._lead(lambda own: own.load(programs, at))

    def bundle(self, core: int, address: int) -> int | None:
        return self._lead(lambda own: own.bundle(core, address))

    def start(self, core: int, pc: int) -> None:
        self._lead(lambda own: own.start(core, pc))

    def stop(self, core: int) -> None:
        self._lead(lambda own: own.stop(core))

    def reset(self, core: int) -> None:
        self._lead(lambda own: own.reset(core))

    def reset_all(self) -> None:
        self._lead(lambda own: own.reset_all())

    def advance(self, steps: int, interrupt: bool) -> bool:
        until = Until.INTERRUPT if interrupt else Until.REST
        try:
            self._torus.run(steps, until=until, chip=self._number)
        except TimeoutError:
            return False
        return not (self._lead(lambda own: own.clear_events()) and interrupt)

    def state(self, core: int) -> CoreState:
        return self._lead(lambda own: own.state(core))

    def set_watchdog(self, core: int, cycles: int) -> None:
        self._lead(lambda own: own.set_watchdog(core, cycles))

    def signal(self, core: int, semaphore: int, amount: int) -> None:
        self._lead(lambda own: own.signal(core, semaphore, amount))

    def read_semaphores(self, core: int) -> Words:
        return self._lead(lambda own: own.read_semaphores(core))

    def read_scalars(self, core: int) -> Words:
        return self._lead(lambda own: own.read_scalars(core))

    def write_scalars(self, core: int, at: int, words: Words) -> None:
        self._lead(lambda own: own.write_scalars(core, at, words))

    def read_smem(self, core: int, at: int, count: int) -> Words:
        return self._lead(lambda own: own.read_smem(core, at, count))

    def write_smem(self, core: int, at: int, words: Words) -> None:
        self._lead(lambda own: own.write_smem(core, at, words))

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        return self._lead(lambda own: own.read_vmem(core, at, count))

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        self._lead(lambda own: own.write_vmem(core, at, vectors))

    def take_counters(self, core: int) -> None:
        self._lead(lambda own: own.take_counters(core))

    def taken_counters(self, core: int) -> dict[str, int]:
        return self._lead(lambda own: own.taken_counters(core))

    def close(self) -> None:
        pass

    def _lead(self, action: Callable[[Any], Any]) -> Any:
        """Call ``action`` with the chip's backend on the rank that simulates the chip.

        Return the result on all ranks.
        """
        return self._torus.lead(self._number, lambda: action(self._own))
