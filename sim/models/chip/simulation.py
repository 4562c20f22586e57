"""A verilated chip and its memory: creation, clock, visible state and end."""

import atexit
import ctypes
import os
import pathlib
import threading
import weakref
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from golden.dma import allocate_hbm
from hdl.checks import integer
from hdl.chip.registers import CORE_REGISTERS
from hdl.config import Config
from hdl.isa import Fault
from sim.closing import Closeable
from sim.models.chip.library import chip_library
from sim.models.hbm import Hbm, HbmOptions
from sim.trace.recording import Recorded, Recording, one_chip
from sim.trace.writer import TraceWriter, trace_paths
from sim.verilated.model import Model

__all__ = ["NO_LIMIT", "ChipSimulation", "Progress", "Run", "Together", "Until", "Words",
           "close_trace", "open_trace"]

NO_LIMIT = 1 << 62
"""A number of cycles that no run reaches."""
_PATIENCE = 1 << 20
"""Maximum number of cycles of a core's reset, and of a wait for room in a transfer queue."""
_RETRY_CYCLES = 64
_STATUS = CORE_REGISTERS["STATUS"]
_FLAGS = ("running", "waiting", "idle", "dma_busy", "resetting")

Words = npt.NDArray[np.uint32]
Progress = Callable[[int], object]


class Until(StrEnum):
    """Event that ends `ChipModel.run` before its limit.

    ``REST``: no transfer is under way, and every core is stopped or waits for a semaphore that only
    the host can still change. ``INTERRUPT``: the same, or the interrupt line is set. ``NEVER``: no
    event.
    """

    REST = "rest"
    INTERRUPT = "interrupt"
    NEVER = "never"


class Run(ctypes.Structure):
    """Limit, progress and end of a run of the chip; mirrors ``Run`` in chip.cpp."""

    _fields_ = (("limit", ctypes.c_uint64), ("done", ctypes.c_uint64),
                *((name, ctypes.c_uint32) for name in (
                    *_FLAGS, "until_rest", "until_interrupt", "watched", "still", "ended",
                    "interrupt")))


class Together(Protocol):
    """Interface of the torus whose chips all run whenever one of them does (`ChipTorus`)."""

    def room(self) -> int:
        """Return the number of cycles that the chips may run before `passed` must be called."""

    def passed(self, cycles: int) -> None:
        """Note that the chips have run ``cycles`` cycles since the last call."""

    def blocks(self, chip: "ChipSimulation") -> "Callable[[Run], object]":
        """Return a function that runs all chips for a block of cycles; its calls make up one run.

        `Until.INTERRUPT` refers to ``chip``. A call runs at most ``run.limit`` cycles, and sets
        ``run.done`` and ``run.ended``.
        """


_TRACED: "weakref.WeakKeyDictionary[Closeable, pathlib.Path]" = weakref.WeakKeyDictionary()
"""The models that write a trace, each with its file."""


@atexit.register
def _complete_traces() -> None:
    """Completes the traces of models that were not closed."""
    for model in list(_TRACED):
        model.close()


def open_trace(owner: Closeable, path: pathlib.Path, config: Config) -> TraceWriter:
    """Open a trace file for ``owner``, a model, whose `close` must call `close_trace`.

    Raises
    ------
    ValueError
        If another model writes to this file.
    OSError
        If the file cannot be written.
    """
    if path.resolve() in _TRACED.values():
        raise ValueError(f"trace must be a path that no other device writes to, not {str(path)!r}")
    writer = TraceWriter(path, config)
    _TRACED[owner] = path.resolve()
    return writer


def close_trace(owner: Closeable, recording: Recording | None) -> None:
    """Complete the trace of ``owner``, if there is a recording."""
    _TRACED.pop(owner, None)
    if recording is not None:
        recording.close()


def _declare(library: ctypes.CDLL) -> None:
    """Declares the types of the functions of chip.cpp."""
    pointer, u32, status = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    for name, result, arguments in (
            ("create", pointer, (pointer, pointer, u32, u32)),
            ("destroy", None, (pointer,)),
            ("reset", status, (pointer, pointer)),
            ("trace", status, (pointer, pointer, ctypes.c_char_p)),
            ("access", status, (pointer, pointer, pointer, ctypes.c_uint64,
                                ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64))),
            ("access_all", status, (pointer, pointer, pointer, pointer, pointer,
                                    ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(u32))),
            ("run", status, (pointer, pointer, ctypes.POINTER(Run))),
            ("advance", status, (pointer, pointer, ctypes.POINTER(Run)))):
        function = getattr(library, f"systolith_chip_{name}")
        function.restype = result
        function.argtypes = arguments


class ChipSimulation(Closeable):
    """The clocked part of a `ChipModel`; `ChipModel` documents the arguments.

    C++ code (chip.cpp) runs the clock and connects the chip's ports in each cycle; `advance` calls
    this code.
    """

    together: Together | None = None
    """The torus of the chip (`sim.models.chip.torus`), if it is on one."""

    def __init__(self, config: Config, *, kernels: bool, memory: HbmOptions | None,
                 trace: str | os.PathLike[str] | None, library: pathlib.Path | None) -> None:
        if not isinstance(memory, HbmOptions | None):
            raise TypeError(f"memory must be HbmOptions or None, not {memory!r}")
        files = None if trace is None else trace_paths(trace)
        self._config = config
        self._lock = threading.RLock()
        self._failed = ""
        self._watched = [False] * config.cores
        self._recording: Recording | None = None
        self._data = allocate_hbm(config)
        self._model = Model(library or chip_library(config, kernels=kernels,
                                                    trace=files is not None))
        self._library = self._model.library
        _declare(self._library)
        self._memory = Hbm(self._library, config.cores, config.hbm_channels, config.channel_bytes,
                           self._data.nbytes, memory=self._data)
        self._memory.configure(memory or HbmOptions())
        self._chip: int | None = self._library.systolith_chip_create(
            self._model.handle, self._memory.handle, config.cores, config.hbm_channels)
        if not self._chip:
            self._model.check(-1)
        if files is not None:
            try:
                self._record(self._chip, *files)
            except BaseException:
                self.close()
                raise
        self.reset()

    @property
    def config(self) -> Config:
        """The chip's parameters."""
        return self._config

    @property
    def model(self) -> Model:
        """The verilated model, with the ports of `hdl.chip.chip.Chip` and its status ports."""
        return self._model

    @property
    def handle(self) -> int:
        """Address of the chip (a ``Chip`` of chip.cpp), for other functions of its library."""
        assert self._chip is not None
        return self._chip

    @property
    def hbm(self) -> Words:
        """Contents of HBM, shape (hbm_rows, lanes), which may be read and written in place."""
        return self._data

    @property
    def memory(self) -> Hbm:
        """The model of HBM, which can change its timing, inject errors, and count bursts."""
        return self._memory

    @property
    def cycle(self) -> int:
        """Number of clock cycles since the model was created."""
        return self._model.cycle

    @property
    def interrupt(self) -> bool:
        """Whether the chip's interrupt line is set."""
        with self._lock:
            return bool(self._model.peek("interrupt"))

    def reset(self) -> None:
        """Resets the whole chip, as its pin ``rst`` does, and the ports of its memory.

        All control registers get their initial values. Memories, vector registers and scalar
        registers keep their contents, except where a write was under way.

        Raises
        ------
        RuntimeError
            If the chip is on a torus: the other chips would not advance, and links would lose
            flits.
        """
        if self.together is not None:
            raise RuntimeError("a chip on a torus must not be reset by its pin: reset its cores "
                               "(reset_core, Device.reset, Pod.reset)")
        self.advance("reset")
        self._watched = [False] * self._config.cores

    def run(self, max_cycles: int | None = None, *, until: Until | str = Until.REST,
            progress: Progress | None = None) -> int:
        """Runs the chip until an event. After Ctrl-C, another call of `run` continues.

        Parameters
        ----------
        max_cycles : int, optional
            Maximum number of cycles to run.
        until : Until
            The event. A core with a watchdog is not at rest while it waits for a semaphore, because
            the watchdog ends the wait.
        progress : callable, optional
            Called repeatedly during the run with the number of cycles since its last call.

        Returns
        -------
        int
            Number of cycles run, including some in which the chip is already at rest, because the
            model detects this a little later.

        Raises
        ------
        TimeoutError
            If the event has not happened by the limit.
        ValueError
            If ``until`` is `Until.NEVER` and there is no limit.
        """
        event = Until(until)
        if max_cycles is None and event is Until.NEVER:
            raise ValueError("max_cycles must be a number if until is NEVER, but is None")
        limit = NO_LIMIT if max_cycles is None else integer("max_cycles", max_cycles, 0,
                                                              NO_LIMIT)
        total = 0
        with self._lock:
            run = self.new_run(event)
            block = (partial(self.advance, "run") if self.together is None
                     else self.together.blocks(self))
            while True:
                run.limit = limit - total
                block(run)
                total += run.done
                if progress is not None:
                    progress(run.done)
                if run.ended or (total >= limit and event is Until.NEVER):
                    return total
                if total >= limit:
                    raise TimeoutError(f"no {event} after {total} cycles: {self._describe()}")

    def new_run(self, event: Until) -> Run:
        """Returns a run until an event, without a limit."""
        return Run(**{name: _STATUS[name.upper()].mask for name in _FLAGS},
                   until_rest=event is not Until.NEVER, until_interrupt=event is Until.INTERRUPT,
                   watched=sum(watched << core for core, watched in enumerate(self._watched)))

    def status(self, core: int) -> dict[str, int]:
        """Returns the fields of a core's register STATUS; takes no simulated time."""
        with self._lock:
            return _STATUS.unpack(self._model.peek(f"status_{self._core(core)}"))

    def fault(self, core: int) -> Fault:
        """Returns the fault that stopped a core, or `Fault.NONE`."""
        return Fault(self.status(core)["FAULT"])

    def running(self, core: int) -> bool:
        """Returns whether a program is running on a core."""
        return bool(self.status(core)["RUNNING"])

    def waiting(self, core: int) -> bool:
        """Returns whether a program is running on a core and waits for a semaphore."""
        status = self.status(core)
        return bool(status["RUNNING"] and status["WAITING"])

    def pc(self, core: int) -> int:
        """Returns the address of a core's next bundle, or of the bundle that halted or faulted."""
        with self._lock:
            return self._model.peek(f"pc_{self._core(core)}")

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing. The array `hbm` stays valid."""
        with self._lock:
            recording, self._recording = self._recording, None
            try:
                close_trace(self, recording)
            finally:
                if self._chip:
                    self._library.systolith_chip_destroy(self._chip)
                    self._chip = None
                self._memory.close()
                self._model.close()

    def _record(self, chip: int, trace: pathlib.Path, waveforms: pathlib.Path) -> None:
        """Starts to write a trace and waveforms to the given files.

        ``chip`` is the address of the ``Chip`` of chip.cpp (`handle`).
        """
        writer = open_trace(self, trace, self._config)
        try:
            waveforms.open("w").close()  # its error message is better than the driver's
            self.advance("trace", os.fsencode(waveforms))
        except BaseException:
            writer.close()
            raise
        self._recording = one_chip(writer, self._config, Recorded(self._model, chip))

    def record(self, recording: Recording | None) -> None:
        """Sets the recording that is drained whenever the clock has run; None for no recording.

        It records this chip and may record others.
        """
        self._recording = recording

    def advance(self, function: str, *arguments: Any) -> None:
        """Calls ``systolith_chip_{function}`` of chip.cpp, which runs the clock."""
        with self._lock:
            handle = self._model.handle
            if self._failed:
                raise RuntimeError(f"the simulation has failed before: {self._failed}")
            try:
                self._model.check(getattr(self._library, f"systolith_chip_{function}")(
                    handle, self._chip, *arguments))
            except RuntimeError as error:
                self._failed = str(error)
                raise
            if self._recording is not None:
                self._recording.drain()

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Runs the clock until ``done()`` is true; calls ``done`` every few cycles.

        Raises
        ------
        TimeoutError
            If that takes more than `_PATIENCE` cycles; the message begins with ``what``.
        """
        end = self.cycle + _PATIENCE
        while not done():
            if self.cycle > end:
                raise TimeoutError(f"{what} for more than {_PATIENCE} cycles: {self._describe()}")
            self.run(_RETRY_CYCLES, until=Until.NEVER)

    def _core(self, core: int) -> int:
        return integer("core", core, 0, self._config.cores - 1)

    def _require_stopped(self, core: int, purpose: str) -> None:
        if self.running(core):
            raise RuntimeError(f"a program is running on core {core}, at bundle {self.pc(core)}: "
                               f"stop it to {purpose}")

    def _describe(self) -> str:
        """Returns a text about the state of all cores, for an error message."""
        words = []
        for core in range(self._config.cores):
            status = self.status(core)
            what = [name.lower() for name in ("RUNNING", "WAITING", "IDLE", "DMA_BUSY",
                                              "RESETTING") if status[name]]
            fault = self.fault(core)
            words.append(f"core {core} at bundle {self.pc(core)} ({', '.join(what)})"
                         + (f", fault {fault.name}" if fault else ""))
        return "; ".join(words)
