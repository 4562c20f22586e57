"""The host's view of the processor: numpy arrays in, numpy arrays out; programs, and what they do.

    with Device.open("tiny") as device:
        buffer = device.allocate(1 << 12)
        device.copy_in(buffer, array)
        device.load(0, program)
        device.start(0)
        device.wait(cycles=100_000)
        result = device.copy_out(buffer, np.float32, array.shape)
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from hdl import isa
from hdl.axi.interface import channel_bits
from hdl.checks import integer, vectors
from hdl.config import Config
from hdl.core.counters import COUNTERS
from hdl.dma.interface import check_config
from hdl.isa import Fault
from sim.asm.assembler import Program
from sim.asm.disassembler import disassemble, label_names
from sim.compiler.chain import Chain
from sim.compiler.layers import Dense, checked_layer, columns_of, operand
from sim.compiler.matmul import Matmul, Places
from sim.driver.backend import BACKENDS, Backend, open_backend
from sim.driver.heap import Buffer, Heap
from sim.errors import CoreFaultError, CoreState, CoreStoppedError, DeviceTimeoutError
from sim.models.chip import ChipModel, staging_rows
from sim.models.hbm import HbmOptions

__all__ = ["BACKENDS", "Buffer", "Dense", "Device"]

Float32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Progress = Callable[[], object]

_SLICE = 1024
"""Cycles, or bundles, between two looks at the cores and at the clock on the wall."""
_LOOK_SECONDS = 0.2
"""Between two looks at the counters for a progress bar."""
_MOST_SIGNAL = (1 << 28) - 1
"""Most that the host can add to a semaphore at once."""

_COUNTERS = ("cycles", *COUNTERS)


def _words(given: npt.ArrayLike) -> Words:
    """The list of words of 32 bits."""
    words = np.asarray(given)
    if words.ndim != 1 or (words.dtype.kind not in "ui" and words.size):
        raise TypeError(f"words must be a list of integers, not {given!r}")
    if words.size and not (int(words.min()) >= 0 and int(words.max()) < 1 << 32):
        raise ValueError(f"words must be from 0 to 2**32 - 1, not {given!r}")
    return words.astype(np.uint32)


def _describe(job: Matmul) -> str:
    return f"a product of ({job.rows}, {job.depth}) and ({job.depth}, {job.columns})"


@lru_cache(maxsize=32)
def _programs(chain: Chain, places: tuple[Places, ...]) -> Mapping[int, Program]:
    return chain.programs(places)


class Device:
    """A processor, open for work. Use `Device.open`.

    Results do not depend on the backend, nor on anything but the operands and the array's size.
    Threads may share a device: what one does is done as a whole, but others may act while one
    waits, for example to halt what it waits for. There may be several devices.

    Whatever ends a method that takes time (Ctrl-C, a fault, a timeout), the device can be used
    afterwards: `stop` or `reset` ends what may still run.
    """

    def __init__(self, config: Config, backend: str, memory: HbmOptions | None = None,
                 trace: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config must be a preset's name or a Config, not {config!r}")
        if not isinstance(backend, str):
            raise TypeError(f"backend must be a string, not {backend!r}")
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
        if not isinstance(memory, HbmOptions | None):
            raise TypeError(f"memory must be HbmOptions or None, not {memory!r}")
        check_config(config)
        channel_bits(config)
        self._config = config
        self._backend_name = backend
        self._lock = threading.RLock()
        # The last rows are those through which programs and vector memory are written.
        self._heap = Heap(config.hbm_rows - staging_rows(config), config.row_bytes)
        self._names: list[dict[int, str]] = [{} for _ in range(config.cores)]
        self._before = [self._no_counts() for _ in range(config.cores)]
        self._watchdogs = [0] * config.cores
        self._kills = [0] * config.cores  # running programs that were halted or reset
        self._used = False
        self._products: dict[int, Program] = {}
        self._last_run: dict[int, dict[str, int]] = {}
        # Whether programs of a product may still run, and buffers that they may write.
        self._unfinished = False
        self._left: list[Buffer] = []
        self._backend: Backend | None = open_backend(backend, config, memory, trace)

    @classmethod
    def open(cls, config: str | Config = "v2", backend: str = "rtl", *,
             memory: HbmOptions | None = None,
             trace: str | os.PathLike[str] | None = None) -> Self:
        """Opens a device; building its simulation takes some time at first.

        Parameters
        ----------
        config : str or Config
            A preset (`tiny`, `small`, `v2`) or parameters.
        backend : str
            ``"rtl"`` simulates the hardware, ``"golden"`` is the numpy model, with the same bits.
        memory : HbmOptions, optional
            How memory behaves in ``"rtl"``: latency, bandwidth, random stalls.
        trace : path, optional
            What the names of two files begin with, only in ``"rtl"``: ``trace="build/run"`` makes
            ``build/run.json``, which ui.perfetto.dev shows, and waveforms, ``build/run.vcd``
            (docs/tracing.md). They are complete when the device is closed. The simulation is
            another one then, which is slower.

        Raises
        ------
        TypeError, ValueError
            If there is no such configuration or backend, or the configuration is not one of a chip;
            if ``trace`` is no such path, or given for ``"golden"``.
        OSError
            If the files of the trace cannot be written.
        RuntimeError
            If the simulation cannot be built; the message says what is missing.
        """
        return cls(Config.preset(config) if isinstance(config, str) else config, backend, memory,
                   trace)

    @property
    def config(self) -> Config:
        """The device's parameters."""
        return self._config

    @property
    def backend(self) -> str:
        """What the device runs on."""
        return self._backend_name

    @property
    def model(self) -> ChipModel | None:
        """The simulated chip, to change how its memory behaves; None for the golden backend.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            return backend.model

    # ---- Memory

    @property
    def free_bytes(self) -> int:
        """Bytes of HBM that can be allocated, not always in one piece.

        At first all of ``config.hbm_bytes`` but the last 1,024 rows (16 KiB of 1 MiB at `tiny`, 32
        KiB of 16 MiB at `small`, 512 KiB of 4 GiB at `v2`; at most a quarter): the device uses them
        to write programs, and to read and write vector memory, whatever other cores do meanwhile.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        with self._open():
            return self._heap.free_bytes

    def allocate(self, size: int) -> Buffer:
        """A piece of HBM. Its contents are not defined.

        Parameters
        ----------
        size : int
            In bytes, 1 or more. It begins at a multiple of ``config.row_bytes``, and the rest of
            its last row belongs to it.

        Raises
        ------
        TypeError, ValueError
            If the size is not an integer, or not positive.
        MemoryError
            If so much is not free in one piece; the message says how much is.
        RuntimeError
            If the device is closed.
        """
        with self._open():
            return self._heap.allocate(integer("size", size, 1, 1 << 62))

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer back. Nothing must use it any more.

        Raises
        ------
        TypeError, ValueError
            If it is no buffer of this device, or was given back before.
        RuntimeError
            If the device is closed.
        """
        with self._open():
            self._heap.free(buffer)

    def copy_in(self, buffer: Buffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Writes the elements of an array, in C order, to a buffer from byte ``offset`` on.

        Raises
        ------
        TypeError, ValueError
            If it is no array of numbers, or does not fit; if the buffer is not one of this device.
        RuntimeError
            If the device is closed.
        """
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"array must be a numpy array of numbers, not {array!r}")
        with self._open() as backend:
            place = self._bytes(backend, buffer, offset, array.nbytes)
            place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def copy_out(self, buffer: Buffer, dtype: npt.DTypeLike, shape: int | tuple[int, ...],
                 offset: int = 0) -> npt.NDArray[Any]:
        """An array of what a buffer holds from byte ``offset`` on; otherwise as `copy_in`."""
        result: npt.NDArray[Any] = np.empty(shape, dtype)
        if result.dtype.hasobject:
            raise TypeError(f"dtype must be one of numbers, not {dtype!r}")
        with self._open() as backend:
            place = self._bytes(backend, buffer, offset, result.nbytes)
            result.reshape(-1).view(np.uint8)[:] = place
        return result

    def read_smem(self, core: int, at: int, count: int) -> Words:
        """Words of a core's scalar memory, also while it runs."""
        with self._open() as backend:
            first = self._range("scalar memory", self._config.smem_words, at, count)
            return backend.read_smem(self._core(core), first, count)

    def write_smem(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Writes words of a core's scalar memory, also while it runs; `read_smem`."""
        given = _words(words)
        with self._open() as backend:
            first = self._range("scalar memory", self._config.smem_words, at, len(given))
            backend.write_smem(self._core(core), first, given)

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        """Words of a core's vector memory, by a transfer, also while it runs.

        Returns
        -------
        array of uint32, shape (count, sublanes, lanes)
            View it as float32 for numbers.

        Raises
        ------
        TypeError, ValueError
            If there is no such core, or the words do not lie in its memory.
        RuntimeError
            If the transfer fails, or the device is closed.
        """
        with self._open() as backend:
            first = self._range("vector memory", self._config.vmem_vectors, at, count)
            return backend.read_vmem(self._core(core), first, count)

    def write_vmem(self, core: int, at: int, words: npt.NDArray[Any]) -> None:
        """Writes words of a core's vector memory; otherwise as `read_vmem`.

        Parameters
        ----------
        core, at : int
            Where: the first word.
        words : array of float32 or uint32, shape (words, sublanes, lanes)
        """
        data = vectors("words", words, (self._config.sublanes, self._config.lanes))
        with self._open() as backend:
            first = self._range("vector memory", self._config.vmem_vectors, at, len(data))
            backend.write_vmem(self._core(core), first, data)

    def read_scalars(self, core: int) -> Words:
        """The scalar registers of a core.

        Raises
        ------
        TypeError, ValueError
            If there is no such core.
        RuntimeError
            If the core runs, or the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            self._must_stand(backend, number)
            return backend.read_scalars(number)

    def write_scalars(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Writes scalar registers from number ``at`` on; *s0* stays zero. `read_scalars`."""
        given = _words(words)
        with self._open() as backend:
            number = self._core(core)
            first = self._range("scalar registers", isa.SCALAR_REGISTERS, at, len(given))
            self._must_stand(backend, number)
            backend.write_scalars(number, first, given)

    def read_semaphores(self, core: int) -> Words:
        """The semaphores of a core, also while it runs; `signal` adds to them."""
        with self._open() as backend:
            return backend.read_semaphores(self._core(core))

    # ---- Programs

    def load(self, core: int, program: Program | Sequence[int], at: int = 0) -> None:
        """Writes a program to a core's instruction memory, from bundle ``at`` on.

        What is behind it stays.

        Raises
        ------
        TypeError, ValueError
            If it does not consist of bundles, or does not fit.
        RuntimeError
            If the core runs, or the device is closed.
        """
        self._load({core: program}, at)

    def start(self, core: int, pc: int = 0) -> None:
        """Starts a core at bundle ``pc``, and forgets its fault. It runs while `wait` waits.

        Raises
        ------
        TypeError, ValueError
            If there is no such core or bundle.
        RuntimeError
            If the core runs already, or the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            address = integer("pc", pc, 0, self._config.imem_bundles - 1)
            self._must_stand(backend, number)
            self._used = True
            backend.start(number, address)

    def wait(self, cores: Sequence[int] | None = None, *, cycles: int | None = None,
             seconds: float | None = None, poll: bool = False,
             progress: Progress | None = None) -> None:
        """Lets the device work until programs have ended, and their transfers are done.

        Parameters
        ----------
        cores : sequence of int, optional
            Whose programs; all, if not given. Other cores go on meanwhile.
        cycles : int, optional
            Most clock cycles; of the golden backend, bundles of a core.
        seconds : float, optional
            Most time that may pass for the host.
        poll : bool
            Look at the cores now and then, rather than be told by an interrupt. With the same
            result.
        progress : callable, optional
            Called now and then.

        Raises
        ------
        CoreFaultError
            If one of the cores stops, or has stopped, with a fault. Others are left as they are.
        CoreStoppedError
            If another thread halts or resets one of them meanwhile.
        DeviceTimeoutError
            If a program has not ended in time; it can be waited for again. At once if all programs
            wait for semaphores, and nothing can add to them but the host, unless a watchdog ends
            that.
        TypeError, ValueError
            If an argument is wrong.
        RuntimeError
            If the device is closed, also meanwhile.
        """
        watched = [self._core(core) for core in
                   (range(self._config.cores) if cores is None else cores)]
        if cycles is not None:
            integer("cycles", cycles, 0, 1 << 62)
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise ValueError(f"seconds must be a number that is not negative, not {seconds!r}")
        if not isinstance(poll, bool):
            raise TypeError(f"poll must be True or False, not {poll!r}")
        ends = None if seconds is None else time.monotonic() + seconds
        first: int | None = None
        kills = list(self._kills)
        while True:
            with self._open() as backend:
                first = backend.steps if first is None else first
                states = {core: backend.state(core) for core in watched}
                self._raise_fault(backend, states)
                self._raise_kill(watched, kills)
                if not any(state.running or state.transfers for state in states.values()):
                    return
                left = _SLICE if cycles is None else min(_SLICE, first + cycles - backend.steps)
                if left <= 0 or (ends is not None and time.monotonic() >= ends):
                    raise self._timeout("programs have not ended in time", states, stuck=False)
                if backend.advance(left, interrupt=not poll):
                    states = {core: backend.state(core) for core in watched}
                    self._raise_fault(backend, states)
                    if any(state.running for state in states.values()):
                        raise self._timeout("programs wait for semaphores to which nothing adds",
                                            states, stuck=True)
            if progress is not None:
                progress()

    def run(self, programs: Mapping[int, Program | Sequence[int]],
            **options: Any) -> dict[int, dict[str, int]]:
        """Loads and starts programs by core, and waits for them with the options of `wait`.

        Returns
        -------
        dict of int to dict
            By core, what its cycles were spent on, with the names of `counters`, from its start
            until all of the programs had ended: the cycles of the run are the most ``cycles`` of a
            core. Starts and ends are told over the registers, some tens of cycles in each run. What
            another thread has a core do before this method returns is counted too.
        """
        return self._execute(programs, programs, **options)

    def running(self, core: int) -> bool:
        """Whether a program runs on a core."""
        return self.state(core).running

    def fault(self, core: int) -> Fault:
        """Why a core stopped, since it was last started: `Fault.NONE` without an error."""
        return self.state(core).fault

    def state(self, core: int) -> CoreState:
        """What a core is doing."""
        with self._open() as backend:
            return backend.state(self._core(core))

    def stop(self, core: int | None = None) -> None:
        """Stops a core, or all, before the next bundle; `start` at its ``pc`` would go on."""
        with self._open() as backend:
            for number in self._cores(core):
                self._kills[number] += backend.state(number).running
                backend.stop(number)

    def reset(self, core: int | None = None) -> None:
        """Resets a core, or the whole chip: whatever it does ends, and nothing is left of it.

        Semaphores are zero and the array is empty; buffers and what is in memories and registers
        stay, and watchdogs. Counters go on.
        """
        with self._open() as backend:
            numbers = self._cores(core)
            for number in numbers:
                backend.take_counters(number)
                self._kills[number] += backend.state(number).running
            counts = {number: backend.taken_counters(number) for number in numbers}
            if core is None:
                backend.reset_all()
                # An interrupt from here on finds a chip that is as new.
                self._unfinished = False
                while self._left:
                    self._heap.free(self._left.pop())
                for number, cycles in enumerate(self._watchdogs):
                    backend.set_watchdog(number, cycles)
                self._used = False
                self._products.clear()
            else:
                backend.reset(self._core(core))
            for number, taken in counts.items():
                for name, count in taken.items():
                    self._before[number][name] += count

    def signal(self, core: int, semaphore: int, amount: int = 1) -> None:
        """Adds to a semaphore of a core. Too much is the core's fault SEMAPHORE."""
        with self._open() as backend:
            backend.signal(self._core(core),
                           integer("semaphore", semaphore, 0, isa.SEMAPHORES - 1),
                           integer("amount", amount, 0, _MOST_SIGNAL))
            self._used = True

    def set_watchdog(self, core: int, cycles: int) -> None:
        """Lets a core's programs have the fault WATCHDOG when no bundle issues for too long.

        It stays until it is set again, also over a reset, and watches over `matmul` too.

        Parameters
        ----------
        core : int
        cycles : int
            In a row without a bundle; 0, as at first: never. The golden backend has no clock: with
            any other number, a program that waits has the fault as soon as no core can go on.

        Raises
        ------
        TypeError, ValueError
            If there is no such core, or the cycles are not from 0 to 2**32 - 1.
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            most = integer("cycles", cycles, 0, (1 << 32) - 1)
            backend.set_watchdog(number, most)
            self._watchdogs[number] = most

    def counters(self, core: int | None = None) -> dict[str, int]:
        """What cycles were spent on since the device was opened.

        Parameters
        ----------
        core : int, optional
            Of which core; if not given, the sums over all cores. Then a clock cycle of a chip of
            two cores counts twice, in ``cycles`` too; `run` tells how long a run took.

        Returns
        -------
        dict of str to int
            ``cycles``: all cycles, each of which counts as one of ``mxu_active_cycles`` (an
            activation row entered the array), ``weight_load_cycles`` (otherwise, a weight row did),
            ``vector_wait_cycles``, ``memory_wait_cycles``, ``semaphore_wait_cycles``,
            ``instruction_wait_cycles`` (otherwise, a bundle waited for that) and ``idle_cycles``.
            The golden backend has no clock: all are 0.

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
            counts = [self._taken_counters(backend, number) for number in cores]
            return {name: sum(count[name] for count in counts) for name in _COUNTERS}

    @property
    def last_run(self) -> dict[int, dict[str, int]]:
        """What each core's cycles were spent on in the last `matmul` or `dense`, as `run` tells it.

        Without the time to load programs. Empty before the first, and after one that failed or had
        nothing to do; a core without a part is not in.
        """
        with self._lock:
            return {core: dict(counts) for core, counts in self._last_run.items()}

    # ---- Products

    def matmul(self, a: npt.NDArray[Any], b: npt.NDArray[Any], *, transpose_b: bool = False,
               progress: bool = False) -> Float32:
        """The matrix product of ``a`` and ``b``, to the bits of docs/numerics.md.

        It is made by programs on all cores (`sim.compiler.matmul`), which use instruction memory,
        scalar memory, vector memory and registers as they need; buffers in HBM stay.

        Parameters
        ----------
        a : array of float32 or bfloat16, shape (M, K)
            Activations; float32 is rounded to bfloat16 at the array's edge.
        b : array of float32 or bfloat16, shape (K, N); (N, K) if ``transpose_b``
            Weights, likewise.
        transpose_b : bool
            Multiply by the transpose of ``b``, which the array makes while it loads the weights.
        progress : bool
            Show a progress bar.

        Returns
        -------
        array of float32, shape (M, N)
            Empty where M or N is 0, +0.0 where K is 0.

        Raises
        ------
        TypeError
            If an operand is not an array of float32 or bfloat16.
        ValueError
            If an operand is not a matrix, or their shapes do not fit.
        MemoryError
            If the operands and the result do not fit what is free of HBM.
        CoreFaultError
            If memory fails.
        RuntimeError
            If a program runs, or the device is closed.
        """
        for flag, value in (("transpose_b", transpose_b), ("progress", progress)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be True or False, not {value!r}")
        with self._open():
            left, right = operand("a", a), operand("b", b)
            if left.shape[1] != right.shape[1 if transpose_b else 0]:
                kind = "columns" if transpose_b else "rows"
                raise ValueError(f"b must have as many {kind} as a has columns, but a has shape "
                                 f"{a.shape!r} and b {b.shape!r}")
            layer = Dense(right, transpose=transpose_b)
            if not left.shape[1]:
                return np.zeros((left.shape[0], columns_of(layer)), np.float32)
            return self._layers(left, [layer], progress)[0]

    def dense(self, x: npt.NDArray[Any], layers: Sequence[Dense], *,
              progress: bool = False) -> list[Float32]:
        """Dense layers, each of which takes the results of the one before.

        They are one program on each core, in which the host has no part. Of padding, chips and
        backends the results do not depend: they are those of the golden product, of fp32 addition
        and of `fmax` (docs/numerics.md). Otherwise as `matmul`.

        Parameters
        ----------
        x : array of float32 or bfloat16, shape (M, K)
            What the first layer takes.
        layers : sequence of Dense
            One or more.
        progress : bool
            Show a progress bar.

        Returns
        -------
        list of arrays of float32, shape (M, N of the layer)
            What each layer made. No size may be 0, but M.

        Raises
        ------
        TypeError, ValueError
            If an array is of another type or shape; if the layers' programs do not fit instruction
            memory together.
        MemoryError, CoreFaultError, RuntimeError
            As `matmul`.
        """
        if not isinstance(progress, bool):
            raise TypeError(f"progress must be True or False, not {progress!r}")
        with self._open():
            left = operand("x", x)
            if not layers:
                raise ValueError(f"layers must be one or more, not {layers!r}")
            checked, depth, before = [], left.shape[1], "x"
            for number, layer in enumerate(layers):
                name = f"layers[{number}]"
                checked.append(checked_layer(name, layer, depth, before))
                depth, before = columns_of(checked[-1]), name
            return self._layers(left, checked, progress)

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing."""
        with self._lock:
            if self._backend is not None:
                self._backend.close()
                self._backend = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ---- What the above is made of

    @contextmanager
    def _open(self) -> Iterator[Backend]:
        """The backend, for this thread alone."""
        with self._lock:
            if self._backend is None:
                raise RuntimeError("device is closed")
            yield self._backend

    @staticmethod
    def _no_counts() -> dict[str, int]:
        return dict.fromkeys(_COUNTERS, 0)

    def _taken_counters(self, backend: Backend, core: int) -> dict[str, int]:
        """A core's counters since the device was opened, when they were last taken."""
        taken, before = backend.taken_counters(core), self._before[core]
        return {name: before[name] + taken[name] for name in _COUNTERS}

    def _core(self, core: int) -> int:
        return integer("core", core, 0, self._config.cores - 1)

    def _cores(self, core: int | None) -> Sequence[int]:
        return range(self._config.cores) if core is None else [self._core(core)]

    @staticmethod
    def _range(what: str, size: int, at: int, count: int) -> int:
        """The address ``at``, from where ``count`` words must fit."""
        first = integer("at", at, 0, size)
        if first + integer("count", count, 0, size) > size:
            raise ValueError(f"words must lie within {size} words of {what}, not {count} from "
                             f"{first} on")
        return first

    def _bytes(self, backend: Backend, buffer: Buffer, offset: int,
               size: int) -> npt.NDArray[np.uint8]:
        self._heap.check(buffer)
        first = integer("offset", offset, 0, buffer.size)
        if first + size > buffer.size:
            raise ValueError(f"array must fit {buffer.size} bytes of buffer, not have {size} from "
                             f"{first} on")
        start = buffer.address + first
        return backend.hbm.reshape(-1).view(np.uint8)[start:start + size]

    def _load(self, programs: Mapping[int, Program | Sequence[int]], at: int = 0) -> None:
        """Writes programs to instruction memories by core: all, or none if one is wrong."""
        with self._open() as backend:
            size = self._config.imem_bundles
            first = integer("at", at, 0, size)
            loads: dict[int, list[int]] = {}
            for core, program in programs.items():
                loads[self._core(core)] = bundles = [
                    integer("bundle", bundle, 0, (1 << isa.BUNDLE_BITS) - 1) for bundle in program]
                if first + len(bundles) > size:
                    raise ValueError(f"program must lie within {size} bundles, not {len(bundles)} "
                                     f"from {first} on")
            for core in loads:
                self._must_stand(backend, core)
            for core in loads:
                self._products.pop(core, None)
            backend.load(loads, first)
            for (core, bundles), program in zip(loads.items(), programs.values(), strict=True):
                names = self._names[core]
                for address in range(first, first + len(bundles)):
                    names.pop(address, None)
                if isinstance(program, Program):
                    names.update((first + address, name)
                                 for address, name in label_names(program.labels).items())

    def _must_stand(self, backend: Backend, core: int) -> None:
        state = backend.state(core)
        if state.running:
            raise RuntimeError(f"a program runs on core {core}, at bundle {state.pc}: wait for it, "
                               "or halt it")

    def _text(self, core: int, pc: int, bundle: int | None) -> str:
        return "" if bundle is None else disassemble(bundle, self._names[core])

    def _raise_fault(self, backend: Backend, states: dict[int, CoreState]) -> None:
        for core, state in states.items():
            # What a core has had before it was started is forgotten by then.
            if state.fault is not Fault.NONE and not state.running:
                bundle = backend.bundle(core, state.pc)
                raise CoreFaultError(core, state.fault, state.pc, bundle,
                                self._text(core, state.pc, bundle))

    def _raise_kill(self, cores: Iterable[int], before: Sequence[int]) -> None:
        for core in cores:
            if self._kills[core] != before[core]:
                raise CoreStoppedError(core, self.state(core).pc)

    @staticmethod
    def _timeout(what: str, states: dict[int, CoreState], stuck: bool) -> DeviceTimeoutError:
        where = "; ".join(
            f"core {core} {'waits' if state.waiting else 'runs'} at bundle {state.pc}"
            if state.running else f"core {core} stands" for core, state in states.items())
        return DeviceTimeoutError(f"{what}: {where}", states, stuck)

    def _layers(self, x: Float32, layers: Sequence[Dense], progress: bool) -> list[Float32]:
        """The results of layers that have been checked."""
        self._last_run = {}
        rows, sizes = x.shape[0], [columns_of(layer) for layer in layers]
        if not rows or not all(sizes):
            return [np.zeros((rows, size), np.float32) for size in sizes]
        jobs, depth = [], x.shape[1]
        for layer, size in zip(layers, sizes, strict=True):
            jobs.append(Matmul(self._config, rows, depth, size, layer.transpose,
                               bias=layer.bias is not None, relu=layer.relu))
            depth = size
        chain = Chain.link(*jobs)
        if self._unfinished:
            self.reset()
        with self._open() as backend, self._buffers(chain) as places:
            for core in range(self._config.cores):
                self._must_stand(backend, core)
            if self._used:
                # Another program may have left something in the array, or a fault, and may have
                # written instruction memory.
                self.reset()
                self._products.clear()

            def memory(address: int, shape: tuple[int, int, int]) -> npt.NDArray[np.uint32]:
                return backend.hbm[address // self._config.row_bytes:][:shape[0] * shape[1]]

            chain.jobs[0].put_a(x, memory(places[0].a, chain.jobs[0].a_shape))
            for job, layer, place in zip(chain.jobs, layers, places, strict=True):
                job.put_b(layer.weights, memory(place.b, job.b_shape))
                if job.has_epilogue:
                    job.put_tail(layer.bias, memory(place.tail, job.tail_shape))
            programs = _programs(chain, places)
            with tqdm(total=chain.array_rows, unit="row", disable=not progress,
                      leave=False) as bar:
                try:
                    self._unfinished = True
                    self._run_product(programs, self._follow(bar) if progress else None)
                    self._unfinished = False
                except BaseException:
                    # If this is interrupted too, the next reset frees the buffers.
                    self.reset()
                    raise
                bar.update(chain.array_rows - bar.n)
            return [job.get_c(memory(place.c, job.c_shape))
                    for job, place in zip(chain.jobs, places, strict=True)]

    def _run_product(self, programs: Mapping[int, Program], progress: Progress | None) -> None:
        """Runs a product's programs, and remembers that they are loaded, for the next one."""
        new = {core: program for core, program in programs.items()
               if self._products.get(core) is not program}
        self._last_run = self._execute(programs, new, progress=progress)
        self._products |= programs
        self._used = False

    def _execute(self, cores: Iterable[int], new: Mapping[int, Program | Sequence[int]],
                 **options: Any) -> dict[int, dict[str, int]]:
        """Loads new programs, starts and waits for those of some cores, and tells what their cycles
        were spent on.
        """
        cores = list(cores)
        with self._open() as backend:
            self._load(new)
            for core in cores:
                backend.take_counters(core)
            for core in cores:
                self.start(core)
            before = {core: self._taken_counters(backend, core) for core in cores}
            kills = list(self._kills)
        self.wait(cores, **options)
        with self._open() as backend:
            self._raise_kill(cores, kills)
            for core in cores:
                backend.take_counters(core)
            after = {core: self._taken_counters(backend, core) for core in cores}
        return {core: {name: count - before[core][name] for name, count in counts.items()}
                for core, counts in after.items()}

    @contextmanager
    def _buffers(self, chain: Chain) -> Iterator[tuple[Places, ...]]:
        """Buffers for the matrices of a chain."""
        shapes = [chain.jobs[0].a_shape]
        for job in chain.jobs:
            shapes += [job.b_shape, job.tail_shape, job.c_shape]
        sizes = [panels * rows * self._config.row_bytes for panels, rows, _ in shapes]
        buffers: list[Buffer | None] = []
        try:
            try:
                for size in sizes:
                    buffers.append(self._heap.allocate(size) if size else None)
            except MemoryError as error:
                free = self._heap.free_bytes + sum(buffer.size for buffer in buffers if buffer)
                raise MemoryError(
                    f"{' and '.join(_describe(job) for job in chain.jobs)} needs {sum(sizes)} "
                    f"bytes of HBM, {free} of {self._config.hbm_bytes} are free: {error}"
                ) from None
            a, *rest = (0 if buffer is None else buffer.address for buffer in buffers)
            places = []
            for b, tail, c in zip(*[iter(rest)] * 3, strict=True):
                places.append(Places(a, b, c, tail))
                a = c
            yield tuple(places)
        finally:
            for buffer in buffers:
                if buffer is not None:
                    if self._unfinished:
                        self._left.append(buffer)
                    else:
                        self._heap.free(buffer)

    def _follow(self, bar: tqdm) -> Progress:
        """Shows in a bar how many rows have entered the arrays."""
        first = self.counters()["mxu_active_cycles"]
        last = time.monotonic()

        def look() -> None:
            nonlocal last
            if time.monotonic() - last >= _LOOK_SECONDS:
                last = time.monotonic()
                bar.update(self.counters()["mxu_active_cycles"] - first - bar.n)

        return look
