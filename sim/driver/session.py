"""The open connection to a backend, and argument checks that all parts of a device share."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hdl.checks import integer
from hdl.config import Config
from sim.closing import Closeable
from sim.driver.backend import Backend

__all__ = ["Session"]


class Session(Closeable):
    """Base class of all parts of a `Device`: lets one thread at a time use the backend.

    `Device` sets ``_backend``; `close` sets it to None. `Device` also sets ``_chip``: the
    coordinates of its chip in a pod, or None without a pod.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._backend: Backend | None = None
        self._chip: tuple[int, int] | None = None
        # Seconds, for limits of waits; equal on all ranks that simulate a pod.
        self.clock: Callable[[], float] = time.monotonic

    @property
    def config(self) -> Config:
        """The device's parameters."""
        return self._config

    def close(self) -> None:
        """End the simulation, or the connection to the board. Closing twice does nothing."""
        with self._lock:
            if self._backend is not None:
                self._backend.close()
                self._backend = None

    @contextmanager
    def _open(self) -> Iterator[Backend]:
        """Return a context in which this thread alone uses the backend."""
        with self._lock:
            if self._backend is None:
                raise RuntimeError("device is closed")
            yield self._backend

    def _core(self, core: int) -> int:
        """Check a core's number, and return it as an integer."""
        return integer("core", core, 0, self._config.cores - 1)

    def _cores(self, core: int | None) -> Sequence[int]:
        """Check a core's number, and return it as a sequence; return all cores if it is None."""
        return range(self._config.cores) if core is None else [self._core(core)]

    @staticmethod
    def _first(unit: str, where: str, size: int, at: int, count: int) -> int:
        """Check that ``count`` units, the first at address ``at``, fit in ``size``; return ``at``.

        ``unit`` and ``where`` are the names of the units and of the memory, for the message.
        """
        first = integer("at", at, 0, size)
        if first + integer("count", count, 0, size) > size:
            raise ValueError(f"{unit} must lie within {size} {unit} of {where}, not take "
                             f"{count} from address {first} on")
        return first

    @staticmethod
    def _require_stopped(backend: Backend, core: int) -> None:
        """Raise an error if a core is running."""
        state = backend.state(core)
        if state.running:
            raise RuntimeError(f"a program is running on core {core}, at bundle {state.pc}: wait "
                               "for its end, or stop it")
