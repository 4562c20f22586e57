"""The verilated chip with its memory, driven in process over the registers as its host would."""

import atexit
import ctypes
import operator
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from golden.dma import allocate_hbm
from hdl import isa
from hdl.axi.interface import Resp
from hdl.checks import integer
from hdl.chip.chip import Chip
from hdl.chip.registers import (
    ACCESS_ADDRESS_BITS,
    CORE_REGISTERS,
    COUNTER_REGISTERS,
    GLOBAL_REGISTERS,
    Register,
    address,
)
from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import bundle_words
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, Fault
from hdl.mxu.grid import mac_grid
from hdl.verilog import LINT_WAIVERS
from hdl.vpu.element import vpu_grid
from sim.asm.descriptor import Place, descriptor, hbm, imem, masks, smem, vmem, vreg
from sim.asm.operands import v
from sim.models.core import core_grids
from sim.models.hbm import HBM_SOURCES, Hbm, HbmOptions
from sim.models.kernels import BLOCK_WAIVERS, ModelSources, with_kernels
from sim.trace.probes import Probes, hide, port
from sim.trace.tracer import Tracer, trace_paths
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

__all__ = ["ChipModel", "DescriptorError", "RegisterError", "Until", "chip_library",
           "staging_rows"]

_TOP = "chip"
_DRIVER = pathlib.Path(__file__).with_name("cpp") / "chip.cpp"
_NO_LIMIT = 1 << 62
_PATIENCE = 1 << 20
"""Cycles that a core's reset, or room for a transfer, may take."""
_RETRY_CYCLES = 64
_STAGING_ROWS = 1024
"""Rows of memory through which the host's data pass, unless memory is very small."""
_RECORDED_WORDS = 1 << 19
"""Words of records of a core that may wait to be made part of a trace."""
_ACCESS = np.dtype([("address", "u4"), ("data", "u4"), ("write", "u4"), ("response", "u4")])
"""Mirrors ``Access`` in chip.cpp."""
_STATUS = CORE_REGISTERS["STATUS"]
_FLAGS = ("running", "waiting", "idle", "dma_busy", "resetting")

Words = npt.NDArray[np.uint32]
Progress = Callable[[int], object]


class Until(StrEnum):
    """What ends `ChipModel.run` before its limit.

    ``REST``: all cores stand, or wait for a semaphore that nothing under way can change, and no
    transfer is under way. ``INTERRUPT``: that, or the interrupt line. ``NEVER``: nothing.
    """

    REST = "rest"
    INTERRUPT = "interrupt"
    NEVER = "never"


class RegisterError(Exception):
    """The chip refused an access to a register.

    Attributes
    ----------
    address : int
        Of the register.
    write : bool
        What kind of access it was.
    response : Resp
        The chip's response.
    """

    def __init__(self, address: int, write: bool, data: int, response: Resp) -> None:
        self.address = address
        self.write = write
        self.response = response
        what = f"write of {data:#x} to" if write else "read of"
        super().__init__(f"{what} {_register_name(address)} was refused ({response.name})")


class DescriptorError(Exception):
    """The chip refused to start a transfer.

    Attributes
    ----------
    fault : Fault
        What is wrong with its descriptor.
    """

    def __init__(self, core: int, fault: Fault) -> None:
        self.fault = fault
        super().__init__(f"core {core} refused the transfer: {fault.name}. {isa.FAULTS[fault]}")


def _register_name(place: int) -> str:
    for core in (None, 0, 1):
        for register in GLOBAL_REGISTERS if core is None else CORE_REGISTERS:
            if address(register, core) == place:
                return f"{register} of " + ("the chip" if core is None else f"core {core}")
    return f"address {place:#x}"


def _sources(config: Config, kernels: bool, trace: bool) -> ModelSources:
    return with_kernels(
        _TOP, lambda: Chip(config, status=True, probes=Probes(config, _TOP) if trace else None),
        core_grids(config) if kernels else [],
        cpp={_DRIVER.name: _DRIVER.read_text(), **HBM_SOURCES}, parallel=True)


def chip_library(config: Config, *, kernels: bool = True, trace: bool = False) -> pathlib.Path:
    """The shared library of the chip of ``config``, built unless it exists.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the grids of all cores by tile kernels, on two threads where that pays. Otherwise
        everything is pure Verilog, as in `sim.models.core.core_library`.
    trace : bool
        Let the model show what its units do, and write waveforms of all but the grids. Only with
        ``kernels``.

    Raises
    ------
    ValueError
        If ``config`` is not one of a chip, or ``trace`` is without ``kernels``.
    RuntimeError
        If a tool is missing or fails.
    """
    if trace and not kernels:
        raise ValueError("kernels must be True for a trace, not False")
    name = f"chip-{'traced' if trace else 'kernels' if kernels else 'verilog'}"
    sources = cached_json(name, asdict(config), lambda: _sources(config, kernels, trace))
    blocks = [] if kernels else [mac_grid(config).row_module, vpu_grid(config).tile_module]
    waivers = LINT_WAIVERS + (BLOCK_WAIVERS if blocks else "")
    if trace:
        waivers += hide(sources["verilog"], (
            Probes.module, *(grid.module for grid in core_grids(config))))
    return build_model(_TOP, sources["verilog"], cpp=sources["cpp"], waivers=waivers,
                       hierarchical=blocks, optimise=kernels, trace=trace)


def staging_rows(config: Config) -> int:
    """Rows at the end of memory through which a `ChipModel` moves programs and vector registers.

    Returns
    -------
    int
        1024, or a quarter of a memory that has fewer than 4096: whole vector registers and bundles.

    Raises
    ------
    ValueError
        If memory does not even hold one of each.
    """
    least = max(config.sublanes, BUNDLE_PITCH // config.lanes)
    if config.hbm_rows < least:
        raise ValueError(f"hbm_bytes must be at least {least * config.row_bytes} for a host to "
                         f"reach vector memory, not {config.hbm_bytes!r}")
    return max(least, min(_STAGING_ROWS, config.hbm_rows // 4) // least * least)


class _Run(ctypes.Structure):
    """Mirrors ``Run`` in chip.cpp."""

    _fields_ = (("limit", ctypes.c_uint64), ("done", ctypes.c_uint64),
                *((name, ctypes.c_uint32) for name in (
                    *_FLAGS, "until_rest", "until_interrupt", "watched", "still", "ended")))


class _Recording:
    """Brings what the chip's driver records to a trace.

    It works in a thread of its own, so that an interrupt (Ctrl-C) leaves no half of a step undone.
    """

    def __init__(self, model: Model, chip: int, cores: int, tracer: Tracer) -> None:
        self._model = model
        self._chip = chip
        self._cores = range(cores)
        self._tracer = tracer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")

    def drain(self) -> None:
        """Moves the records on if they are many. The chip must not run meanwhile."""
        if any(self._words(core)[1] > _RECORDED_WORDS for core in self._cores):
            self._finish(self._move)

    def close(self) -> None:
        """Completes the trace."""
        try:
            self._finish(self._move)
        finally:
            self._finish(self._tracer.close)
            self._thread.shutdown()

    def _finish(self, step: Callable[[], None]) -> None:
        try:
            future = self._thread.submit(step)
        except RuntimeError:
            # Python ends: there are no more threads, and interrupts do no harm.
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
        """Where a core's records are, and how many words they have."""
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


_TRACED: "weakref.WeakKeyDictionary[ChipModel, pathlib.Path]" = weakref.WeakKeyDictionary()
"""Models that write a trace, and its file."""


@atexit.register
def _complete_traces() -> None:
    """Traces are complete even if nobody has closed what wrote them."""
    for chip in list(_TRACED):
        chip.close()


class ChipModel:
    """A simulated chip and its memory.

    All state is zero at first. The clock runs only while a method that takes time runs: accesses of
    registers, and what makes them, take some cycles, in which the whole chip goes on. Threads may
    share a model: it does one thing after the other. There may be several models.

    If the chip does not keep to AXI's rules at its memory, or the simulation fails in another way,
    the method ends with a `RuntimeError` that says what is wrong, and so does every later one that
    takes time.

    A host reaches instruction memory (but word by word), vector memory and vector registers by
    transfers only. They pass through memory's last `staging_rows`, which get their contents back
    at the end of the method. Transfers of programs that run meanwhile must not use these rows: they
    would see what is not theirs, or what they write there would be lost.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        As `chip_library`.
    memory : HbmOptions
        How the memory behaves: its latency and bandwidth, and random stalls.
    trace : path, optional
        What the names of two files begin with, that are complete when the model is closed: a trace
        of the units, with ``.json`` behind it, and waveforms of all but the grids, with ``.vcd``.
        Only with ``kernels``. The simulation is another one then, which is slower.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type, or ``config`` not one of a chip; if a ``trace`` is no
        such path.
    OSError
        If the files of the trace cannot be written.
    RuntimeError
        If the simulation cannot be built; the message says what is missing.
    """

    def __init__(self, config: Config, *, kernels: bool = True,
                 memory: HbmOptions | None = None,
                 trace: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a Config, not {config!r}")
        if not isinstance(memory, HbmOptions | None):
            raise TypeError(f"memory must be HbmOptions, not {memory!r}")
        files = None if trace is None else trace_paths(trace)
        self._config = config
        self._lock = threading.RLock()
        self._failed = ""
        self._watched = [False] * config.cores
        self._taken = [0] * config.cores
        self._staging = staging_rows(config)
        self._recording: _Recording | None = None
        path = chip_library(config, kernels=kernels, trace=files is not None)
        self._data = allocate_hbm(config)
        self._model = Model(path)
        library = self._library = self._model.library
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        for name, result, arguments in (
                ("create", pointer, (pointer, pointer, u32, u32)),
                ("destroy", None, (pointer,)),
                ("reset", ctypes.c_int, (pointer, pointer)),
                ("trace", ctypes.c_int, (pointer, pointer, ctypes.c_char_p)),
                ("records", ctypes.c_int, (
                    pointer, pointer, u32, ctypes.POINTER(ctypes.POINTER(u32)),
                    ctypes.POINTER(ctypes.c_uint64))),
                ("forget", ctypes.c_int, (pointer, pointer, u32)),
                ("access", ctypes.c_int, (pointer, pointer, pointer, ctypes.c_uint64,
                                          ctypes.POINTER(ctypes.c_uint64))),
                ("run", ctypes.c_int, (pointer, pointer, ctypes.POINTER(_Run)))):
            function = getattr(library, f"systolith_chip_{name}")
            function.restype = result
            function.argtypes = arguments
        self._memory = Hbm(library, config.cores, config.hbm_channels, config.channel_bytes,
                           self._data.nbytes, memory=self._data)
        self._memory.configure(memory or HbmOptions())
        self._chip: int | None = library.systolith_chip_create(
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
        """The verilated model itself: the ports of `hdl.chip.chip.Chip`, and each core's STATUS and
        PC as ``status_{core}`` and ``pc_{core}``.
        """
        return self._model

    @property
    def hbm(self) -> Words:
        """What the memory holds, shape (hbm_rows, lanes): to be read and written in place."""
        return self._data

    @property
    def memory(self) -> Hbm:
        """The memory's model, to change how it behaves, to make it fail, and for its counters."""
        return self._memory

    @property
    def cycle(self) -> int:
        """Clock cycles run so far."""
        return self._model.cycle

    @property
    def interrupt(self) -> bool:
        """The interrupt line."""
        with self._lock:
            return bool(self._model.peek("interrupt"))

    def reset(self) -> None:
        """Resets the whole chip, as its pin ``rst`` does, and the ports of the memory.

        All registers are as they were at first. Memories, vector registers and scalar registers
        keep what they have, but for what was being written.
        """
        self._advance("reset")
        self._watched = [False] * self._config.cores

    # ---- Registers

    def read(self, register: str | Register, *, core: int | None = None) -> int:
        """What a register of the chip, or of a core, holds.

        Parameters
        ----------
        register : str or Register
            One of `hdl.chip.registers.GLOBAL_REGISTERS`, or of `CORE_REGISTERS`, or its name.
        core : int, optional
            Whose.

        Raises
        ------
        KeyError, ValueError
            If there is no such register or core.
        RegisterError
            If the access is refused; the message names the register.
        """
        return self.read_address(self._address(register, core)[0])

    def read_fields(self, register: str | Register, *, core: int | None = None) -> dict[str, int]:
        """The values of a register's fields by name; otherwise as `read`."""
        place, found = self._address(register, core)
        return found.unpack(self.read_address(place))

    def write(self, register: str | Register, value: SupportsIndex | None = None, *,
              core: int | None = None, **fields: int) -> None:
        """Writes a register: a value, or fields by name with zeros elsewhere.

        Raises
        ------
        TypeError
            If there are both or none.
        KeyError, ValueError, RegisterError
            As `read`, and if a value does not fit.
        """
        place, found = self._address(register, core)
        if (value is None) == (not fields):
            raise TypeError(f"{found.name} must be given a value or fields")
        self.write_address(place, found.pack(**fields) if value is None else value)

    def read_address(self, place: SupportsIndex) -> int:
        """Reads at an address, where there may be no register."""
        return int(self._accesses([(False, integer("address", place, 0, 0xFFFF), 0)])[0])

    def write_address(self, place: SupportsIndex, value: SupportsIndex) -> None:
        """Writes at an address, where there may be no register."""
        self._accesses([(True, integer("address", place, 0, 0xFFFF),
                         integer("value", value, 0, 0xFFFFFFFF))])

    # ---- Programs

    def load_program(self, core: int, bundles: Sequence[int], at: int = 0) -> None:
        """Puts bundles into a core's instruction memory, from address ``at`` on.

        As `load_programs`, of one core.
        """
        self.load_programs({core: bundles}, at)

    def load_programs(self, programs: Mapping[int, Sequence[int]], at: int = 0) -> None:
        """Puts bundles into the instruction memories of cores, from address ``at`` on.

        Transfers bring them there, to all cores at the same time, through memory's last rows. What
        is behind a program stays.

        Raises
        ------
        TypeError, ValueError
            If a bundle is not an integer of `isa.BUNDLE_BITS`, or they do not fit the memory.
        RuntimeError
            If a program runs on one of the cores, or memory answers with an error.
        """
        words: dict[int, Words] = {}
        for core, given in programs.items():
            bundles = list(given)
            first = self._range("program", at, len(bundles), self._config.imem_bundles)
            words[self._core(core)] = rows = np.zeros((len(bundles), BUNDLE_PITCH), np.uint32)
            for number, bundle in enumerate(bundles):
                rows[number, :BUNDLE_WORDS] = bundle_words(
                    integer("bundle", bundle, 0, (1 << isa.BUNDLE_BITS) - 1))
        in_row = max(1, self._config.lanes // BUNDLE_PITCH)
        least = max(1, BUNDLE_PITCH // self._config.lanes)
        with self._lock:
            for core in words:
                self._must_stand(core, "load another one")
            cores = [core for core, rows in words.items() if len(rows) >= in_row]
            # If they have no room side by side, they use it in turn.
            share = self._staging // max(1, len(cores)) // least * least
            together = [cores] if share else [[core] for core in cores]
            for group in together:
                self._put_bundles({core: self._bundle_rows(words[core], first, share or least)
                                   for core in group}, share or least)
            for core in words.keys() - set(cores):
                # What does not fill a row goes there word by word.
                for number, row in enumerate(words[core]):
                    self.write_words(core, Space.IMEM, BUNDLE_PITCH * (first + number),
                                     row[:BUNDLE_WORDS])

    def start(self, core: int, pc: int = 0) -> None:
        """Starts a core at bundle ``pc``. A fault is forgotten.

        Raises
        ------
        RegisterError
            If it runs already, or is being reset.
        """
        with self._lock:
            self.write("START_PC", pc, core=core)
            self.write("CONTROL", core=core, START=1)

    def stop(self, core: int) -> None:
        """Stops a core before its next bundle. What was begun goes on: `run` lets it end."""
        self.write("CONTROL", core=core, STOP=1)

    def reset_core(self, core: int) -> None:
        """Resets a core and drops its transfers, and waits until it can be used again."""
        with self._lock:
            self.write("CONTROL", core=core, RESET=1)
            self._wait(lambda: not self.status(core)["RESETTING"], f"core {core} is being reset")

    def set_watchdog(self, core: int, cycles: int) -> None:
        """Lets a core fault after so many cycles in a row without a bundle; 0: never."""
        self.write("WATCHDOG", integer("cycles", cycles, 0, 0xFFFFFFFF), core=core)

    def run(self, max_cycles: int | None = None, *, until: Until | str = Until.REST,
            progress: Progress | None = None) -> int:
        """Runs the chip until something happens. A run that is interrupted (Ctrl-C) can go on.

        Parameters
        ----------
        max_cycles : int, optional
            Most cycles to run.
        until : Until
            What ends it. A core with a watchdog does not wait for ever: it counts as running.
        progress : callable, optional
            Told now and then how many cycles went by since it was last called.

        Returns
        -------
        int
            Cycles run. Rest is only noticed some cycles after it began.

        Raises
        ------
        TimeoutError
            If that did not happen by then.
        ValueError
            If ``until`` is `Until.NEVER`, without a limit.
        """
        event = Until(until)
        if max_cycles is None and event is Until.NEVER:
            raise ValueError("max_cycles must be a number to run until never, not None")
        limit = _NO_LIMIT if max_cycles is None else integer("max_cycles", max_cycles, 0,
                                                              _NO_LIMIT)
        run = _Run(**{name: _STATUS[name.upper()].mask for name in _FLAGS},
                   until_rest=event is not Until.NEVER,
                   until_interrupt=event is Until.INTERRUPT)
        total = 0
        with self._lock:
            run.watched = sum(watched << core for core, watched in enumerate(self._watched))
            while True:
                run.limit = limit - total
                self._advance("run", run)
                total += run.done
                if progress is not None:
                    progress(run.done)
                if run.ended or (total >= limit and event is Until.NEVER):
                    return total
                if total >= limit:
                    raise TimeoutError(f"no {event} after {total} cycles: {self._describe()}")

    def status(self, core: int) -> dict[str, int]:
        """The fields of a core's STATUS; to look at it takes no time."""
        with self._lock:
            return _STATUS.unpack(self._model.peek(f"status_{self._core(core)}"))

    def fault(self, core: int) -> Fault:
        """Why a core stopped."""
        return Fault(self.status(core)["FAULT"])

    def running(self, core: int) -> bool:
        """Whether a program runs on a core."""
        return bool(self.status(core)["RUNNING"])

    def waiting(self, core: int) -> bool:
        """Whether the running program waits for a semaphore."""
        status = self.status(core)
        return bool(status["RUNNING"] and status["WAITING"])

    def pc(self, core: int) -> int:
        """The bundle at issue; after a halt or a fault that bundle, after `stop` the next one."""
        with self._lock:
            return self._model.peek(f"pc_{self._core(core)}")

    def counters(self, core: int) -> dict[str, int]:
        """Where the cycles of a core went since `clear_counters` or `reset`.

        Returns
        -------
        dict of str to int
            ``cycles``, and the causes of `hdl.core.counters.COUNTERS`, which sum to it.
        """
        with self._lock:
            self.take_counters(core)
            return self.taken_counters(core)

    def take_counters(self, core: int) -> None:
        """Takes a core's counters at this moment, for `taken_counters`."""
        self._taken[self._core(core)] = self.read(f"{COUNTER_REGISTERS[0]}_LO", core=core)

    def taken_counters(self, core: int) -> dict[str, int]:
        """What `counters` would have given when they were last taken. It takes longer than that."""
        rest = self._accesses([
            (False, self._address(f"{name}_{half}", core)[0], 0)
            for name in COUNTER_REGISTERS for half in ("LO", "HI")][1:]).tolist()
        halves = [self._taken[self._core(core)], *rest]
        return {name.lower(): low | high << 32 for name, low, high in zip(
            COUNTER_REGISTERS, halves[::2], halves[1::2], strict=True)}

    def clear_counters(self, core: int) -> None:
        """Sets a core's counters to zero."""
        self.write("CONTROL", core=core, CLEAR_COUNTERS=1)

    # ---- Data

    def start_transfer(self, core: int, words: Sequence[int]) -> None:
        """Queues a transfer on a core's engine, as soon as there is room.

        Parameters
        ----------
        core : int
        words : sequence of int
            Its descriptor, as `sim.asm.descriptor.descriptor` makes it; wrong ones are not refused
            here. If memory refuses it, CORE{core}_TRANSFER_FAILED is set in INTERRUPT_STATUS, which
            the next method that moves data clears.

        Raises
        ------
        DescriptorError
            If the core refuses it.
        TimeoutError
            If there is no room for a long time.
        """
        if len(words) != DESCRIPTOR_WORDS:
            raise ValueError(f"descriptor must have {DESCRIPTOR_WORDS} words, not "
                             f"{len(words)}")
        with self._lock:
            for number, word in enumerate(words):
                self.write(f"DMA_DESCRIPTOR_{number}", word, core=core)
            self._wait(lambda: self._queued(core), f"core {core} has no room for a transfer")

    def transfer(self, core: int, words: Sequence[int]) -> None:
        """A transfer as `start_transfer`, and waits for its end.

        There must be no other transfer that the host has started.

        Raises
        ------
        DescriptorError
            As `start_transfer`.
        RuntimeError
            If memory answers with an error, or the core has dropped it.
        """
        with self._lock, self._keeping_events(core) as done:
            try:
                self.start_transfer(core, words)
                busy = True
                while not self.read("INTERRUPT_STATUS") & done:
                    if not busy:
                        raise RuntimeError(f"core {core} has dropped the transfer")
                    self.run(_RETRY_CYCLES, until=Until.NEVER)
                    busy = bool(self.status(core)["DMA_BUSY"])
            except KeyboardInterrupt:
                # It may have been started: what it uses must not change under it.
                self._wait(lambda: not self.status(core)["DMA_BUSY"]
                           or bool(self.read("INTERRUPT_STATUS") & done), f"core {core} is busy")
                raise
            self._check_refused(core)

    def write_words(self, core: int, space: Space, at: int, words: npt.ArrayLike) -> None:
        """Writes words of a space through ACCESS_DATA; addresses as of ACCESS_ADDRESS."""
        given = np.asarray(words)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "ui"):
            raise TypeError(f"words must be a list of integers, not {words!r}")
        self._accesses([self._access_address(core, space, at), *(
            (True, self._address("ACCESS_DATA", core)[0], integer("word", word, 0, 0xFFFFFFFF))
            for word in given.tolist())])

    def read_words(self, core: int, space: Space, at: int, count: int) -> Words:
        """Reads words of a space through ACCESS_DATA; addresses as of ACCESS_ADDRESS."""
        place = self._address("ACCESS_DATA", core)[0]
        return self._accesses([self._access_address(core, space, at),
                               *([(False, place, 0)] * count)])[1:]

    def write_vmem(self, core: int, at: int, words: Words) -> None:
        """Writes vector memory, by transfers: ``words`` has shape (words, sublanes, lanes).

        They pass through memory's last rows.
        """
        shape = (self._config.sublanes, self._config.lanes)
        if words.dtype != np.uint32 or words.shape[1:] != shape:
            raise TypeError(f"words must be uint32 of shape (words, {shape[0]}, {shape[1]}), not "
                            f"{words.dtype} of {words.shape!r}")
        first = self._range("words", at, len(words), self._config.vmem_vectors)
        self._put_rows(core, words.reshape(-1, self._config.lanes),
                       lambda row: vmem(first + row // self._config.sublanes))

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        """Words of vector memory, shape (count, sublanes, lanes); otherwise as `write_vmem`."""
        first = self._range("words", at, count, self._config.vmem_vectors)
        return self._get_registers(core, count, lambda word: vmem(first + word))

    def write_smem(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Writes words of scalar memory."""
        given = np.asarray(words)
        first = self._range("words", at, given.size, self._config.smem_words)
        self.write_words(core, Space.SMEM, first, given)

    def read_smem(self, core: int, at: int, count: int) -> Words:
        """Words of scalar memory; whole rows of them by transfers, as `read_vmem`."""
        first = self._range("words", at, count, self._config.smem_words)
        whole = count - count % self._config.lanes
        parts = [self._get_rows(core, whole // self._config.lanes,
                                lambda row: smem(first + row * self._config.lanes)).reshape(-1)]
        if count > whole:
            parts.append(self.read_words(core, Space.SMEM, first + whole, count - whole))
        return np.concatenate(parts)

    def state(self, core: int) -> dict[str, Any]:
        """All that a program on a core can see, as `golden.core.GoldenCore.read_state` gives it.

        The core must have come to rest. Memory's last rows are used as in `write_vmem`.

        Raises
        ------
        RuntimeError
            If a program runs, or something that it began is under way.
        """
        with self._lock:
            self._must_stand(core, "look at its registers")
            if not self.status(core)["IDLE"] or self.status(core)["DMA_BUSY"]:
                raise RuntimeError(f"core {core} has not come to rest: run the chip")
            packed = self._get_registers(core, 1, lambda word: masks())[0]
            return {
                "scalars": self.read_words(core, Space.SCALAR, 0, isa.SCALAR_REGISTERS),
                "vectors": self._get_registers(core, isa.VECTOR_REGISTERS,
                                               lambda number: vreg(v[number])),
                "masks": np.stack([packed >> mask & 1 for mask in range(isa.MASKS)]).astype(bool),
                "vmem": self.read_vmem(core, 0, self._config.vmem_vectors),
                "smem": self.read_smem(core, 0, self._config.smem_words),
                "semaphores": self.read_words(core, Space.SEMAPHORE, 0, isa.SEMAPHORES),
                "pc": self.pc(core),
                "running": self.running(core),
                "fault": self.fault(core),
            }

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing. What `hbm` gave stays."""
        with self._lock:
            try:
                _TRACED.pop(self, None)
                if self._recording is not None:
                    recording, self._recording = self._recording, None
                    recording.close()
            finally:
                if self._chip:
                    self._library.systolith_chip_destroy(self._chip)
                    self._chip = None
                self._memory.close()
                self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- What the above is made of

    def _record(self, chip: int, trace: pathlib.Path, waveforms: pathlib.Path) -> None:
        """Writes a trace and waveforms from now on."""
        if trace.resolve() in _TRACED.values():
            raise ValueError(f"trace must not be that of another device, {str(trace)!r}")
        tracer = Tracer(trace, self._config)
        try:
            waveforms.open("w").close()  # with a better message than the driver's
            self._advance("trace", os.fsencode(waveforms))
        except BaseException:
            tracer.close()
            raise
        self._recording = _Recording(self._model, chip, self._config.cores, tracer)
        _TRACED[self] = trace.resolve()

    def _advance(self, function: str, *arguments: Any) -> None:
        """Calls the driver for something that takes time."""
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

    def _accesses(self, accesses: Sequence[tuple[bool, int, int]]) -> Words:
        """Accesses (write, address, data), one after the other; what the reads gave."""
        table = np.zeros(len(accesses), _ACCESS)
        for row, (write, place, data) in zip(table, accesses, strict=True):
            row["write"], row["address"], row["data"] = write, place, data
        done = ctypes.c_uint64()
        with self._lock:
            try:
                while done.value < len(table):
                    self._advance("access", table.ctypes.data, len(table), done)
                    last = table[done.value - 1] if done.value else None
                    if last is not None and last["response"]:
                        raise RegisterError(int(last["address"]), bool(last["write"]),
                                            int(last["data"]), Resp(int(last["response"])))
            finally:
                self._note_watchdogs(accesses[:done.value])
        return table["data"].copy()

    def _note_watchdogs(self, accesses: Sequence[tuple[bool, int, int]]) -> None:
        for core in range(self._config.cores):
            place = address("WATCHDOG", core)
            for write, where, data in accesses:
                if write and where & ~3 == place:
                    self._watched[core] = data != 0

    def _address(self, register: str | Register, core: int | None) -> tuple[int, Register]:
        name = register.name if isinstance(register, Register) else register
        found = (GLOBAL_REGISTERS if core is None else CORE_REGISTERS).get(name)
        if found is None:
            of = "the chip" if core is None else "a core"
            raise KeyError(f"register must be one of {of}, not {name!r}")
        return address(name, None if core is None else self._core(core)), found

    def _core(self, core: int) -> int:
        return integer("core", core, 0, self._config.cores - 1)

    def _range(self, name: str, at: SupportsIndex, count: SupportsIndex, size: int) -> int:
        """The address ``at``, from where ``count`` words must fit a memory of ``size``."""
        first = integer("address", at, 0, size)
        if first + integer("count", count, 0, size) > size:
            raise ValueError(f"{name} must lie within {size}, not from {first} to "
                             f"{first + operator.index(count) - 1}")
        return first

    def _must_stand(self, core: int, what: str) -> None:
        if self.running(core):
            raise RuntimeError(f"a program runs on core {core}, at bundle {self.pc(core)}: stop it "
                               f"to {what}")

    def _describe(self) -> str:
        """Where the cores are."""
        words = []
        for core in range(self._config.cores):
            status = self.status(core)
            what = [name.lower() for name in ("RUNNING", "WAITING", "IDLE", "DMA_BUSY",
                                              "RESETTING") if status[name]]
            fault = self.fault(core)
            words.append(f"core {core} at bundle {self.pc(core)} ({', '.join(what)})"
                         + (f", fault {fault.name}" if fault else ""))
        return "; ".join(words)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Runs until ``done``, which is asked now and then."""
        end = self.cycle + _PATIENCE
        while not done():
            if self.cycle > end:
                raise TimeoutError(f"{what} for more than {_PATIENCE} cycles: {self._describe()}")
            self.run(_RETRY_CYCLES, until=Until.NEVER)

    def _queued(self, core: int) -> bool:
        """Tries to start the transfer whose descriptor was written."""
        try:
            self.write("DMA_START", core=core, GO=1)
        except RegisterError:
            why = self.read_fields("DMA_FAULT", core=core)
            if why["BUSY"]:
                return False
            if why["FAULT"]:
                raise DescriptorError(core, Fault(why["FAULT"])) from None
            raise
        return True

    @contextmanager
    def _keeping_events(self, core: int) -> Iterator[int]:
        """Clears the bits of INTERRUPT_STATUS that tell of a transfer's end; gives that for any.

        An event cannot be set again: if there was one before, there is afterwards, for what is done
        within sets it; but an earlier failure is forgotten.
        """
        done, failed = self._transfer_events(core)
        before = self.read("INTERRUPT_STATUS") & (done | failed)
        if before:
            self.write("INTERRUPT_STATUS", before)
        try:
            yield done
        finally:
            if not self._failed:
                self.write("INTERRUPT_STATUS", failed if before & done else done | failed)

    def _transfer_events(self, core: int) -> tuple[int, int]:
        """Bits of INTERRUPT_STATUS: a transfer of the host has ended; it has failed."""
        fields = GLOBAL_REGISTERS["INTERRUPT_STATUS"]
        number = self._core(core)
        return (fields[f"CORE{number}_TRANSFER_DONE"].mask,
                fields[f"CORE{number}_TRANSFER_FAILED"].mask)

    def _access_address(self, core: int, space: Space, at: int) -> tuple[bool, int, int]:
        first = integer("address", at, 0, (1 << ACCESS_ADDRESS_BITS) - 1)
        place, register = self._address("ACCESS_ADDRESS", core)
        return True, place, register.pack(ADDRESS=first, SPACE=Space(space).value)

    def _parts(self, rows: int) -> Iterator[tuple[slice, slice]]:
        """Parts of so many rows, whole vector registers; and of memory, where they pass through."""
        begin = len(self._data) - self._staging
        for first in range(0, rows, self._staging):
            count = min(self._staging, rows - first)
            yield slice(first, first + count), slice(begin, begin + count)

    @contextmanager
    def _borrowed(self, rows: slice) -> Iterator[None]:
        """Restores these rows of memory at the end."""
        kept = self._data[rows].copy()
        try:
            yield
        finally:
            self._data[rows] = kept

    def _bundle_rows(self, words: Words, first: int, most: int) -> list[tuple[Words, Place]]:
        """Pieces of at most so many rows, and the place of each, that fill all these bundles.

        The last row begins within the one before it, where they do not come out even: so what is
        behind the program stays.
        """
        lanes = self._config.lanes
        in_row = max(1, lanes // BUNDLE_PITCH)
        rows = words[:len(words) - len(words) % in_row].reshape(-1, lanes)
        pieces = [(rows[row:row + most], imem(first + row * lanes // BUNDLE_PITCH))
                  for row in range(0, len(rows), most)]
        if len(words) % in_row:
            pieces.append((words[-in_row:].reshape(1, lanes), imem(first + len(words) - in_row)))
        return pieces

    def _put_bundles(self, pieces: dict[int, list[tuple[Words, Place]]], share: int) -> None:
        """Moves pieces to cores that stand; each core has a share of the staging rows."""
        begin = len(self._data) - self._staging

        def at_rest() -> bool:
            return not any(self.status(core)["DMA_BUSY"] for core in pieces)

        with ExitStack() as stack:
            stack.enter_context(self._borrowed(slice(begin, begin + share * len(pieces))))
            for core in pieces:
                stack.enter_context(self._keeping_events(core))
            try:
                while any(pieces.values()):
                    for number, (core, left) in enumerate(pieces.items()):
                        at, end = begin + number * share, begin + (number + 1) * share
                        while left and at + len(left[0][0]) <= end:
                            rows, place = left.pop(0)
                            self._data[at:at + len(rows)] = rows
                            self.start_transfer(core, descriptor(
                                self._config, hbm(at * self._config.row_bytes), place,
                                rows=len(rows)))
                            at += len(rows)
                    self._wait(at_rest, "transfers of programs are under way")
            except KeyboardInterrupt:
                self._wait(at_rest, "transfers of programs are under way")
                raise
            for core in pieces:
                self._check_refused(core)

    def _check_refused(self, core: int) -> None:
        """After transfers of the host, within `_keeping_events`."""
        if self.read("INTERRUPT_STATUS") & self._transfer_events(core)[1]:
            raise RuntimeError(f"memory has refused a transfer of core {core}")

    def _put_rows(self, core: int, rows: Words, place: Callable[[int], Place]) -> None:
        """Moves rows to the place of each."""
        with self._lock:
            for part, used in self._parts(len(rows)):
                with self._borrowed(used):
                    self._data[used] = rows[part]
                    self.transfer(core, descriptor(
                        self._config, hbm(used.start * self._config.row_bytes), place(part.start),
                        rows=part.stop - part.start))

    def _get_rows(self, core: int, rows: int, place: Callable[[int], Place]) -> Words:
        """Rows from the place of each, shape (rows, lanes)."""
        result = np.zeros((rows, self._config.lanes), np.uint32)
        with self._lock:
            for part, used in self._parts(rows):
                with self._borrowed(used):
                    self.transfer(core, descriptor(
                        self._config, place(part.start), hbm(used.start * self._config.row_bytes),
                        rows=part.stop - part.start))
                    result[part] = self._data[used]
        return result

    def _get_registers(self, core: int, count: int, place: Callable[[int], Place]) -> Words:
        """As `_get_rows`, vector registers."""
        sublanes = self._config.sublanes
        rows = self._get_rows(core, count * sublanes, lambda row: place(row // sublanes))
        return rows.reshape(count, sublanes, self._config.lanes)
