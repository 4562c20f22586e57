"""Moves the records of a traced chip from its C++ code (sim/models/cpp/chip.cpp) to a trace."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from sim.trace.probes import port
from sim.trace.tracer import Tracer
from sim.verilated.model import Model

__all__ = ["Recording"]

RECORDED_WORDS = 1 << 19
"""Threshold for `Recording.drain`, in words of a core's records."""


class Recording:
    """Feeds a chip's records to a `Tracer`.

    A separate thread does this, so that Ctrl-C cannot leave the trace half written.

    Parameters
    ----------
    model : Model
        The verilated chip.
    chip : int
        Address of the chip's C++ object, a ``Chip`` of chip.cpp.
    cores : int
        Number of cores.
    tracer : Tracer
        Receives the records. `close` closes it.
    """

    def __init__(self, model: Model, chip: int, cores: int, tracer: Tracer) -> None:
        self._model = model
        self._chip = chip
        self._cores = range(cores)
        self._tracer = tracer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        for name, arguments in (
                ("records", (pointer, pointer, u32, ctypes.POINTER(ctypes.POINTER(u32)),
                             ctypes.POINTER(ctypes.c_uint64))),
                ("forget", (pointer, pointer, u32))):
            function = getattr(model.library, f"systolith_chip_{name}")
            function.restype = ctypes.c_int
            function.argtypes = arguments

    def drain(self) -> None:
        """Moves the records to the trace if a core has more than `RECORDED_WORDS` words of them.

        The chip must not run meanwhile.
        """
        if any(self._words(core)[1] > RECORDED_WORDS for core in self._cores):
            self._finish(self._move)

    def close(self) -> None:
        """Moves the remaining records, and completes the trace."""
        try:
            self._finish(self._move)
        finally:
            self._finish(self._tracer.close)
            self._thread.shutdown()

    def _finish(self, step: Callable[[], None]) -> None:
        """Runs ``step`` to its end in the separate thread; Ctrl-C takes effect only afterwards."""
        try:
            future = self._thread.submit(step)
        except RuntimeError:
            # Python is exiting: it starts no more threads, and Ctrl-C can no longer do harm.
            step()
            return
        interrupt: KeyboardInterrupt | None = None
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt as raised:
                interrupt = raised
        if interrupt is not None:
            raise interrupt
        future.result()

    def _words(self, core: int) -> tuple[Any, int]:
        """Pointer to the records of core number ``core`` in the C++ object, and number of words."""
        words, count = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_uint64()
        self._model.check(self._model.library.systolith_chip_records(
            self._model.handle, self._chip, core, words, count))
        return words, count.value

    def _move(self) -> None:
        tables = []
        for core in self._cores:
            words, count = self._words(core)
            width = 2 + self._model.ports[port(core)].words
            table = np.ctypeslib.as_array(words, (count,)).copy() if count else np.zeros(
                0, np.uint32)
            tables.append(table.reshape(-1, width))
            self._model.check(self._model.library.systolith_chip_forget(
                self._model.handle, self._chip, core))
        self._tracer.feed(tables, self._model.cycle)
