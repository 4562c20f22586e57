"""The verilated core, driven in process as its host would."""

import ctypes
import pathlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from hdl import isa
from hdl.checks import integer, vectors
from hdl.config import Config
from hdl.core.core import Core
from hdl.core.counters import COUNTERS
from hdl.core.interface import REQUEST_ADDRESS_BITS, REQUEST_WORD_BITS, Space
from hdl.encoding import bundle_words
from hdl.isa import Fault
from hdl.mxu.grid import mac_grid
from hdl.mxu.lane import mxu_lanes
from hdl.tiles import TileGrid
from hdl.verilog import LINT_WAIVERS
from hdl.vpu.element import vpu_grid
from hdl.vpu.interface import HostSpace
from hdl.xlu.reduce import reduce_nodes
from hdl.xlu.transpose import transpose_banks
from sim.asm.assembler import disassemble
from sim.errors import CoreFaultError
from sim.models.kernels import BLOCK_WAIVERS, ModelSources, with_kernels
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

__all__ = ["CoreModel", "Processor", "core_grids", "core_library"]

_TOP = "core"
_DRIVER = pathlib.Path(__file__).with_name("cpp") / "core.cpp"
_NO_LIMIT = 1 << 62
_IMEM_STRIDE = 1 << REQUEST_WORD_BITS
_SPACE_SHIFT = np.uint64(1)
_ADDRESS_SHIFT = np.uint64(3)
_DATA_SHIFT = np.uint64(3 + REQUEST_ADDRESS_BITS)
"""Places in a request (`hdl.core.interface.core_request`), above the bit that says write."""

Words = npt.NDArray[np.uint32]
Progress = Callable[[int], object]


class Processor(Protocol):
    """What executes programs: the golden `GoldenCore` and the simulated `CoreModel`.

    Both take the same arguments, and refuse wrong ones with a `TypeError` or a `ValueError`. A
    program that runs until it halts, faults or waits leaves the same state in both, and so do calls
    between such programs. There are differences:

    * `run` counts bundles that were executed in the machine, cycles in the core. At its limit the
      machine returns, the core raises a `TimeoutError`.
    * The core has run fewer bundles by a given call than the machine, or more: what meets a program
      on its way (`stop`, a `signal` that overflows) meets it at another bundle.
    * `load_program` is refused by the core with a `RuntimeError` while a program runs.
    * The machine's `read_state` has also what the array's rules count, unless told otherwise. The
      core's is as of now: what a stopped program began is complete after `run` only.
    * Watchdog, counters and `reset` are the core's alone.
    """

    def load_program(self, bundles: Sequence[int], at: int = 0) -> None:
        """Puts bundles into the instruction memory; what is beyond them stays."""

    def start(self, pc: int = 0) -> None:
        """Starts at a bundle; a `RuntimeError` if a program runs."""

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
        """Why the core stopped."""


def core_grids(config: Config) -> list[TileGrid]:
    """The grids of a core, which kernels can stand for."""
    return [make(config) for make in (mac_grid, mxu_lanes, vpu_grid, reduce_nodes,
                                      transpose_banks)]


def _sources(config: Config, kernels: bool) -> ModelSources:
    return with_kernels(_TOP, lambda: Core(config), core_grids(config) if kernels else [],
                        cpp={_DRIVER.name: _DRIVER.read_text()})


def core_library(config: Config, *, kernels: bool = True) -> pathlib.Path:
    """The shared library of the core of ``config``, built unless it exists.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the grids (array, lanes of the array, vector unit, cross-lane unit) by tile
        kernels. Otherwise everything is pure Verilog: a reference for small configurations, in
        which rows of the array and elements of the vector unit are verilated as blocks of their
        own.

    Raises
    ------
    RuntimeError
        If a tool is missing or fails.
    """
    name = f"core-{'kernels' if kernels else 'verilog'}"
    sources = cached_json(name, asdict(config), lambda: _sources(config, kernels))
    blocks = [] if kernels else [mac_grid(config).row_module, vpu_grid(config).tile_module]
    return build_model(_TOP, sources["verilog"], cpp=sources["cpp"],
                       waivers=LINT_WAIVERS + (BLOCK_WAIVERS if blocks else ""),
                       hierarchical=blocks, optimise=kernels)


class _Rows(ctypes.Structure):
    """Mirrors ``Rows`` in core.cpp."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_uint64) for name in (
        "space", "address", "words", "done", "lanes", "sublanes")))


def _range(name: str, at: SupportsIndex, count: int, size: int, unit: str = "words") -> int:
    """The address ``at``, from where ``count`` words, or bundles, must fit a memory of ``size``."""
    first = integer("address", at, 0, size)
    if first + count > size:
        raise ValueError(f"{name} must lie within {size} {unit}, not from {first} to "
                         f"{first + count - 1}")
    return first


class CoreModel:
    """A simulated core.

    All its state is zero at first. Between two calls its clock stands still. Threads may share a
    model: it does one thing after the other. Vector memory, registers and masks can be accessed at
    any time; scalar memory, scalar registers and semaphores only while no program runs. If a
    transfer by the host does not move for 65,536 cycles, it ends with a `RuntimeError`, and so does
    every later one until `reset`.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        As `core_library`.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    RuntimeError
        If the simulation cannot be built; the message says what is missing.
    """

    def __init__(self, config: Config, *, kernels: bool = True) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a Config, not {config!r}")
        self._config = config
        self._lock = threading.RLock()
        self._path = core_library(config, kernels=kernels)
        self._model = self._new_model()
        self._stuck = False

    def _new_model(self) -> Model:
        model = Model(self._path)
        pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
        counter = ctypes.POINTER(ctypes.c_uint64)
        for name, arguments in (
                ("run", (pointer, u64, counter, ctypes.POINTER(ctypes.c_uint32))),
                ("requests", (pointer, pointer, pointer, u64, counter)),
                ("read_rows", (pointer, ctypes.POINTER(_Rows))),
                ("write_rows", (pointer, ctypes.POINTER(_Rows)))):
            function = getattr(model.library, f"systolith_core_{name}")
            function.restype = ctypes.c_int
            function.argtypes = arguments
        model.reset()
        return model

    @property
    def config(self) -> Config:
        """The core's parameters."""
        return self._config

    @property
    def model(self) -> Model:
        """The verilated model itself, with the ports of `hdl.core.core.Core`."""
        return self._model

    def reset(self) -> None:
        """Makes everything as it was at first: the core stands, and all its state is zero.

        A core in hardware cannot do that: its ``rst`` leaves memories and vector registers as they
        are.
        """
        with self._lock:
            self._model.handle  # noqa: B018  a closed model stays closed
            self._model.close()
            self._model = self._new_model()
            self._stuck = False

    # ---- Programs

    def load_program(self, bundles: Sequence[int], at: int = 0) -> None:
        """Puts bundles into the instruction memory, from address ``at`` on.

        Bundles of an earlier program that lie behind these stay: a program without a halt at its
        end runs into them.

        Raises
        ------
        TypeError, ValueError
            If a bundle is not an integer of `isa.BUNDLE_BITS`, or they do not fit the memory.
        RuntimeError
            If a program runs.
        """
        bundles = list(bundles)
        first = _range("program", at, len(bundles), self._config.imem_bundles, "bundles")
        words = [bundle_words(integer("bundle", bundle, 0, (1 << isa.BUNDLE_BITS) - 1))
                 for bundle in bundles]
        addresses = ((first + np.arange(len(bundles)))[:, np.newaxis] * _IMEM_STRIDE
                     + np.arange(isa.BUNDLE_WORDS))
        self._write_control(Space.IMEM, addresses.ravel(),
                            np.array(words, np.uint32).ravel())

    def read_program(self, at: int = 0, count: int = 1) -> list[int]:
        """Bundles of the instruction memory, ``count`` from address ``at`` on."""
        first = _range("program", at, count, self._config.imem_bundles, "bundles")
        addresses = ((first + np.arange(count))[:, np.newaxis] * _IMEM_STRIDE
                     + np.arange(isa.BUNDLE_WORDS))
        words = self._read_control(Space.IMEM, addresses.ravel())
        return [int.from_bytes(bundle.astype("<u4").tobytes(), "little")
                for bundle in words.reshape(count, isa.BUNDLE_WORDS)]

    def start(self, pc: int = 0) -> None:
        """Starts at bundle ``pc``; it takes a cycle. A fault is forgotten.

        Raises
        ------
        TypeError, ValueError
            If ``pc`` is not an integer of 32 bits.
        RuntimeError
            If a program runs.
        """
        first = integer("pc", pc, 0, (1 << 32) - 1)
        with self._lock:
            self._must_stand("start a program")
            self._model.poke("start_pc", first)
            self._pulse("start")

    def stop(self) -> None:
        """Stops before the next bundle, to whose address `pc` points; it takes a cycle.

        What was begun goes on: `run` lets it end. ``start(core.pc)`` resumes the program.
        """
        with self._lock:
            self._pulse("stop")

    def run(self, max_cycles: int | None = None, *, progress: Progress | None = None) -> int:
        """Runs until the program has stopped and all that it began has ended.

        Returns as well if the program waits for a semaphore and nothing else moves: only `signal`
        gets it on then, and another call of `run`. A program that is interrupted (Ctrl-C) can be
        run on, too.

        Parameters
        ----------
        max_cycles : int, optional
            Most cycles to run.
        progress : callable, optional
            Told now and then how many cycles went by since it was last called.

        Returns
        -------
        int
            Cycles run.

        Raises
        ------
        TimeoutError
            If the program has not stopped by then.
        """
        limit = _NO_LIMIT if max_cycles is None else integer("max_cycles", max_cycles, 0, 1 << 62)
        total = 0
        done, resting = ctypes.c_uint64(), ctypes.c_uint32()
        with self._lock:
            while True:
                self._model.check(self._model.library.systolith_core_run(
                    self._model.handle, limit - total, done, resting))
                total += done.value
                if progress is not None:
                    progress(done.value)
                # With a watchdog, no wait is for ever.
                if resting.value and not (self.running and self._model.peek("watchdog")):
                    return total
                if total >= limit:
                    break
                if resting.value:
                    self._model.tick()
                    total += 1
            raise TimeoutError(f"the core has not come to rest after {total} cycles: it is at "
                               f"bundle {self.pc}" + ("" if self.running else ", and stopped"))

    def run_program(self, bundles: Sequence[int] | None = None, *, pc: int = 0,
                    max_cycles: int | None = None, progress: Progress | None = None
                    ) -> dict[str, int]:
        """Loads a program to address 0 (unless it is None), runs it from ``pc``, and counts.

        As with `load_program`, bundles behind the program stay as they are.

        Returns
        -------
        dict of str to int
            `counters` of this run.

        Raises
        ------
        CoreFaultError
            If it faults.
        TimeoutError
            As `run`.
        RuntimeError
            If it waits for a semaphore.
        """
        with self._lock:
            if bundles is not None:
                self.load_program(bundles)
            self.clear_counters()
            self.start(pc)
            self.run(max_cycles, progress=progress)
            if self.running:
                raise RuntimeError(f"the program waits for a semaphore at bundle {self.pc}")
            if self.fault:
                bundle = (self.read_program(self.pc)[0]
                          if self.pc < self._config.imem_bundles else None)
                raise CoreFaultError(0, self.fault, self.pc, bundle,
                                     "" if bundle is None else disassemble(bundle))
            return self.counters()

    @property
    def running(self) -> bool:
        """Whether a program runs."""
        return bool(self._peek("running"))

    @property
    def waiting(self) -> bool:
        """Whether the running program waits for a semaphore."""
        return bool(self._peek("running") and self._peek("waiting"))

    @property
    def fault(self) -> Fault:
        """Why the core stopped."""
        return Fault(self._peek("fault"))

    @property
    def pc(self) -> int:
        """The bundle at issue; after a halt or a fault that bundle, after `stop` the next one."""
        return self._peek("pc")

    def set_watchdog(self, cycles: int) -> None:
        """Lets the core fault after so many cycles in a row without a bundle; 0: never."""
        limit = integer("cycles", cycles, 0, (1 << 32) - 1)
        with self._lock:
            self._model.poke("watchdog", limit)

    def signal(self, index: int, amount: int = 1) -> None:
        """Adds ``amount`` to a semaphore, whether a program runs or not; it takes a cycle."""
        number = integer("index", index, 0, isa.SEMAPHORES - 1)
        units = integer("amount", amount, 0, (1 << 32) - 1)
        with self._lock:
            self._model.poke("signal__index", number)
            self._model.poke("signal__amount", units)
            self._pulse("signal__valid")

    # ---- Counters

    def counters(self) -> dict[str, int]:
        """Where the cycles went since `clear_counters` or `reset`.

        Returns
        -------
        dict of str to int
            ``cycles``, and the causes of `hdl.core.counters.COUNTERS`, which sum to it.
        """
        with self._lock:
            return {"cycles": self._peek("cycles"),
                    **{name: self._peek(name) for name in COUNTERS}}

    def clear_counters(self) -> None:
        """Sets all counters to zero; it takes a cycle, which is not counted."""
        with self._lock:
            self._pulse("clear_counters")

    # ---- Memories and registers

    def write_vmem(self, address: int, words: npt.NDArray[Any]) -> None:
        """Writes vector memory.

        Parameters
        ----------
        address : int
            First word.
        words : array of float32 or uint32, shape (words, sublanes, lanes)

        Raises
        ------
        TypeError, ValueError
            If the array is of another type or shape, or does not fit.
        """
        data = vectors("words", words, (self._config.sublanes, self._config.lanes))
        first = _range("words", address, len(data), self._config.vmem_vectors)
        with self._lock:
            self._move_rows("write_rows", data, HostSpace.VMEM, first)

    def read_vmem(self, address: int, words: int) -> Words:
        """Words of vector memory, as uint32 of shape (words, sublanes, lanes)."""
        count = integer("words", words, 0, self._config.vmem_vectors)
        first = _range("words", address, count, self._config.vmem_vectors)
        return self._read_rows(HostSpace.VMEM, first, count)

    def read_vectors(self) -> Words:
        """The vector registers, as uint32 of shape (32, sublanes, lanes)."""
        return self._read_rows(HostSpace.VREG, 0, isa.VECTOR_REGISTERS)

    def read_masks(self) -> npt.NDArray[np.bool_]:
        """The masks, as bool of shape (8, sublanes, lanes)."""
        packed = self._read_rows(HostSpace.MASK, 0, 1)[0]
        return np.stack([packed >> mask & 1 for mask in range(isa.MASKS)]).astype(bool)

    def write_smem(self, address: int, words: npt.ArrayLike) -> None:
        """Writes words of 32 bits to scalar memory, from ``address`` on."""
        self._write_words(Space.SMEM, address, words, self._config.smem_words)

    def read_smem(self, address: int, words: int) -> Words:
        """Words of scalar memory."""
        return self._read_words(Space.SMEM, address, words, self._config.smem_words)

    def write_scalars(self, words: npt.ArrayLike, at: int = 0) -> None:
        """Writes scalar registers from number ``at`` on; s0 stays zero."""
        self._write_words(Space.SCALAR, at, words, isa.SCALAR_REGISTERS)

    def read_scalars(self) -> Words:
        """The scalar registers."""
        return self._read_words(Space.SCALAR, 0, isa.SCALAR_REGISTERS,
                                isa.SCALAR_REGISTERS)

    def write_semaphores(self, words: npt.ArrayLike, at: int = 0) -> None:
        """Sets semaphores from number ``at`` on."""
        self._write_words(Space.SEMAPHORE, at, words, isa.SEMAPHORES)

    def read_semaphores(self) -> Words:
        """The semaphores."""
        return self._read_words(Space.SEMAPHORE, 0, isa.SEMAPHORES, isa.SEMAPHORES)

    def read_state(self) -> dict[str, Any]:
        """All that a program can see, as `golden.core.GoldenCore.read_state` gives it."""
        with self._lock:
            return {
                "scalars": self.read_scalars(),
                "vectors": self.read_vectors(),
                "masks": self.read_masks(),
                "vmem": self.read_vmem(0, self._config.vmem_vectors),
                "smem": self.read_smem(0, self._config.smem_words),
                "semaphores": self.read_semaphores(),
                "pc": self.pc,
                "running": self.running,
                "fault": self.fault,
            }

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing."""
        with self._lock:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- The host's ports

    def _peek(self, name: str) -> int:
        with self._lock:
            return self._model.peek(name)

    def _pulse(self, name: str) -> None:
        """One cycle with an input set."""
        self._model.poke(name, 1)
        self._model.tick()
        self._model.poke(name, 0)

    def _must_stand(self, what: str) -> None:
        if self.running:
            raise RuntimeError(f"a program runs, at bundle {self.pc}: stop it to {what}")

    def _read_words(self, space: Space, at: int, count: int, size: int) -> Words:
        words = integer("words", count, 0, size)
        first = _range("words", at, words, size)
        return self._read_control(space, first + np.arange(words))

    def _write_words(self, space: Space, at: int, words: npt.ArrayLike, size: int) -> None:
        given = np.asarray(words)
        if given.ndim != 1:
            raise ValueError(f"words must have one dimension, not shape {given.shape!r}")
        if given.dtype == np.float32:
            given = given.view(np.uint32)
        if given.dtype.kind not in "ui" and given.size:
            raise TypeError(f"words must be integers or float32, not {given.dtype}")
        if ((given < 0) | (given >= 1 << 32)).any():
            raise ValueError("words must be unsigned integers of 32 bits")
        first = _range("words", at, len(given), size)
        self._write_control(space, first + np.arange(len(given)), given.astype(np.uint32))

    def _read_control(self, space: Space, addresses: npt.NDArray[np.int64]) -> Words:
        responses = self._requests(space, False, addresses, np.zeros(len(addresses), np.uint32))
        return (responses & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def _write_control(self, space: Space, addresses: npt.NDArray[np.int64],
                       words: Words) -> None:
        self._requests(space, True, addresses, words)

    def _requests(self, space: Space, write: bool, addresses: npt.NDArray[np.int64],
                  words: Words) -> npt.NDArray[np.uint64]:
        """Responses to requests at the sequencer's port."""
        requests = (np.uint64(write) | np.uint64(space.value) << _SPACE_SHIFT
                    | addresses.astype(np.uint64) << _ADDRESS_SHIFT
                    | words.astype(np.uint64) << _DATA_SHIFT)
        responses = np.zeros(len(requests), np.uint64)
        done = ctypes.c_uint64(0)
        with self._lock:
            self._must_stand(f"access its {space.name.lower()}")
            while done.value < len(requests):
                self._transfer("requests", requests.ctypes.data, responses.ctypes.data,
                               len(requests), done)
        if (responses >> np.uint64(32)).any():
            raise RuntimeError(f"the core refused an access to its {space.name.lower()}")
        return responses

    def _read_rows(self, space: HostSpace, address: int, words: int) -> Words:
        data = np.zeros((words, self._config.sublanes, self._config.lanes), np.uint32)
        with self._lock:
            self._move_rows("read_rows", data, space, address)
        return data

    def _move_rows(self, function: str, data: Words, space: HostSpace, address: int) -> None:
        rows = _Rows(data.ctypes.data, space.value, address, len(data), 0, self._config.lanes,
                     self._config.sublanes)
        while rows.done < rows.words:
            self._transfer(function, rows)

    def _transfer(self, function: str, *arguments: Any) -> None:
        """A part of a transfer by the driver.

        What the driver gives up may still be under way in the core, and its answers would pass for
        those of the next transfer: there is none until `reset`.
        """
        handle = self._model.handle
        if self._stuck:
            raise RuntimeError("a transfer before did not end: reset the model")
        try:
            self._model.check(getattr(self._model.library, f"systolith_core_{function}")(
                handle, *arguments))
        except RuntimeError:
            self._stuck = True
            raise
