"""Execution of compiled programs: allocate buffers, copy arrays, run, and clean up."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from hdl.checks import instance
from hdl.config import PRESETS, Config
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable
from sim.compiler.program.code.reserved import STAMP
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report
from sim.driver.backend import Backend
from sim.driver.cores import SLICE, Cores, Progress
from sim.driver.heap import Buffer
from sim.driver.queues import Batches, Outfeed, QueueHost, check_array

__all__ = ["OBSERVERS", "Execution", "Observer", "Placed", "check_arrays", "difference"]

Observer = Callable[[Executable, Mapping[Any, Mapping[str, int]], float], object]
"""Function that is called after a run, with the executable, each core's counters, and the host time
of the run in seconds.

For a run of a pod, it gets the executable of the pod's first chip, and the counters of all cores.
"""
OBSERVERS: list[Observer] = []
"""Functions that are called after each run of an executable by a device or pod of this process."""

_LOOK_SECONDS = 0.2
"""Seconds between two updates of a progress bar."""


@dataclass(frozen=True)
class Placed:
    """An executable whose buffers are in HBM (`Execution.placed`).

    Attributes
    ----------
    programs : mapping of int to Program
        The program of each core.
    addresses : dict of str to int
        Byte address of each buffer, by name.
    outputs : callable
        Function that reads the outputs from HBM.
    """

    programs: Mapping[int, Program]
    addresses: dict[str, int]
    outputs: Callable[[], tuple[npt.NDArray[Any], ...]]


class Execution(Cores):
    """Part of `Device`: runs executables.

    Executables use the cores' memories and registers as they need. Their programs stay in
    instruction memory until something else may have overwritten them, so repeated runs need not
    load them again.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._last_run: dict[int, dict[str, int]] = {}
        # While a program is profiled: number and counters of each kernel that has run so far.
        self._spans: list[tuple[int, dict[str, int]]] | None = None

    @property
    def last_run(self) -> dict[int, dict[str, int]]:
        """Counters of each core during the last `execute`, `matmul` or `dense`, as from `run`.

        Cycles in which programs were loaded are not counted. The dict is empty before the first
        such call, and after a call that failed or needed no run. It has no entry for a core that
        ran no program.
        """
        with self._lock:
            return {core: dict(counts) for core, counts in self._last_run.items()}

    def execute(self, executable: Executable, *arrays: npt.NDArray[Any],
                progress: bool | Progress = False, infeed: Batches | None = None,
                outfeed: Outfeed | None = None) -> tuple[npt.NDArray[Any], ...]:
        """Run an executable.

        Parameters
        ----------
        executable : Executable
            The executable, compiled for this device's configuration.
        arrays : arrays
            The inputs, in the order of ``executable.arguments``, with the shapes and types given
            there.
        progress : bool or callable
            Show a progress bar; or a function that is called without arguments during the run, at
            least every 1,024 cycles (golden backend: bundles).
        infeed : iterable, optional
            Batches, for an executable with an infeed (docs/compiler.md). A batch has an array for
            each input in ``executable.infeed``. The host writes the batches during the run, at most
            ``executable.queues.slots`` of them ahead of the program, which waits for them.
        outfeed : callable, optional
            For an executable with an outfeed: called as ``outfeed(n, arrays)`` during the run, for
            each iteration ``n`` from 0 on. ``arrays`` has ``output[n]`` for each output in the
            outfeed, and None for every other output.

        Returns
        -------
        tuple of arrays
            The outputs, in the order of ``executable.outputs``.

        Raises
        ------
        TypeError, ValueError
            If the executable, an array or a batch is wrong, or the infeed ends too early.
        MemoryError
            If the buffers do not fit in the free part of HBM.
        CoreFaultError
            If a program has a fault.
        RuntimeError
            If a program is running, or the device is closed; also if a function that a run calls,
            such as ``outfeed``, calls `execute`.
        """
        self._check(executable, arrays, progress)
        _check_queues(executable, infeed, outfeed)
        with self._open() as backend, self.placed(executable, *arrays) as placed:
            host = None if executable.queues is None else QueueHost(
                executable, backend, placed.addresses, list(placed.programs), infeed, outfeed)
            self._run_shown(executable, placed.programs, progress, host)
            return placed.outputs()

    @contextmanager
    def placed(self, executable: Executable,
               *arrays: npt.NDArray[Any]) -> Iterator["Placed"]:
        """Context in which an executable's buffers are in HBM, with inputs and constants written.

        Until it ends, the device runs nothing else. `execute` and `Pod.execute` use this.

        Parameters
        ----------
        executable : Executable
            The executable, compiled for this device's configuration.
        arrays : arrays
            The inputs, as for `execute`, which checks them.

        Raises
        ------
        MemoryError
            If the buffers do not fit in the free part of HBM.
        RuntimeError
            If a program is running, or the device is closed.
        """
        with self._fresh() as backend, self._allocated(
                executable.name, executable.buffers) as buffers:
            self._prepare(backend)
            addresses = {name: buffer.address for name, buffer in buffers.items()}
            self._pack(backend, executable, buffers, arrays)
            yield Placed(executable.programs(addresses), addresses,
                         lambda: self._unpack(backend, executable, buffers))

    @contextmanager
    def _fresh(self) -> Iterator[Backend]:
        """Context of a run: other runs are refused until it ends; resets chips with failed runs."""
        with self._open() as backend, self._alone():
            self._last_run = {}
            for peer in self._peers:
                if peer._unfinished and (peer is self or not peer._executing):
                    peer.reset()
                    # Its packets may still be under way.
                    self._reached = len(self._peers) > 1
            yield backend

    def needs_reset(self) -> bool:
        """Return whether programs or signals may have changed the chip since its last reset.

        Raises
        ------
        RuntimeError
            If a program is running that does not belong to a failed executable, or the device is
            closed.
        """
        with self._open() as backend, self._alone():
            if not self._unfinished:
                for core in range(self._config.cores):
                    self._require_stopped(backend, core)
            return self._unfinished or self._used or self._reached

    def load_placed(self, placed: "Placed") -> None:
        """Load the programs of a placed executable, unless they are in memory already.

        If `finish_placed` does not follow, the device must be reset after the run.
        """
        self._unfinished = True
        self._load({core: program for core, program in placed.programs.items()
                    if self._loaded.get(core) is not program})

    def finish_placed(self, placed: "Placed") -> None:
        """Note that the programs of a placed executable have ended, and that no reset is needed.

        All chips of the pod must have run such programs, and all packets must have arrived.
        """
        self._loaded |= placed.programs
        self._used = self._reached = self._unfinished = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context of a run: until it ends, other runs are refused, because they need its cores."""
        if self._executing:
            raise RuntimeError("device must not run another executable in a function that a run "
                               "calls: an infeed's iterator, an outfeed or a progress function")
        try:
            self._executing = True
            yield
        finally:
            self._executing = False

    def profile(self, executable: Executable,
                *arrays: npt.NDArray[Any]) -> tuple[tuple[npt.NDArray[Any], ...], Report]:
        """Run an executable, and measure each of its kernels.

        The program halts before each kernel, and the host starts it again. The cycles that the host
        needs for this are subtracted, but transfers proceed during them. So the program may wait
        for transfers less than it does in `execute`.

        Parameters
        ----------
        executable : Executable
            The executable, made by `sim.compiler.program.driver.compile_graph` for one core,
            without infeed and outfeed.
        arrays : arrays
            As in `execute`.

        Returns
        -------
        tuple of arrays, and Report
            The outputs, as from `execute`, and the cycles of each kernel; on the golden backend,
            which has no clock, the report has no cycles.

        Raises
        ------
        TypeError, ValueError, MemoryError, CoreFaultError, RuntimeError
            As `execute`. TypeError also if `sim.compiler.program.driver.compile_graph` did not make
            the executable; ValueError also if it is for two cores, or has an infeed or outfeed.
        """
        compiled = compiled_of(executable)
        if compiled.queues is not None:
            raise ValueError(f"{compiled.name} must be compiled without infeed and outfeed, "
                             "to be profiled")
        with self._open():
            self._spans = []
            try:
                outputs = self.execute(compiled.stopping().executable(), *arrays)
                return outputs, Report.measured(compiled, self._spans)
            finally:
                self._spans = None

    def _check(self, executable: Executable, arrays: tuple[npt.NDArray[Any], ...],
               progress: bool | Progress) -> None:
        """Raise an error if the arguments of `execute` are wrong."""
        instance("executable", executable, Executable)
        if executable.config != self._config:
            raise ValueError(difference(self._config, executable.config))
        if not isinstance(progress, bool) and not callable(progress):
            raise TypeError(f"progress must be True, False or callable, not {progress!r}")
        check_arrays(executable.name, [(spec.name, spec.layout.shape, spec.layout.dtype)
                                       for spec in executable.arguments], arrays)

    @contextmanager
    def _allocated(self, what: str, specs: Sequence[BufferSpec]) -> Iterator[dict[str, Buffer]]:
        """Return a context with buffers for ``specs``, by name, which are freed when it ends.

        ``what`` is the executable's name, for messages. If the executable's programs may still be
        running when the context ends, the buffers are freed at the next reset instead.
        """
        sizes = {spec.name: spec.layout.rows * self._config.row_bytes for spec in specs}
        buffers: dict[str, Buffer] = {}
        try:
            try:
                for name, size in sizes.items():
                    buffers[name] = self._heap.allocate(size)
            except MemoryError as error:
                free = self._heap.free_bytes + sum(buffer.size for buffer in buffers.values())
                raise MemoryError(
                    f"{what} needs {sum(sizes.values())} bytes of HBM, {free} of "
                    f"{self._config.hbm_bytes} are free: {error}") from None
            yield buffers
        finally:
            for buffer in buffers.values():
                if self._unfinished:
                    self._left.append(buffer)
                else:
                    self._heap.free(buffer)

    def _prepare(self, backend: Backend) -> None:
        """Require that all cores are stopped; reset the chip if user programs have changed it."""
        for core in range(self._config.cores):
            self._require_stopped(backend, core)
        if self._reached:
            self._drain(backend)
        if self._used or self._reached:
            # A program may have left weights or results in the array, or overwritten programs;
            # one of another chip may have signalled semaphores.
            self.reset()

    def _pack(self, backend: Backend, executable: Executable, buffers: Mapping[str, Buffer],
              arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Write the inputs ``arrays`` and the constants of an executable to its buffers."""
        given = {spec.name: array
                 for spec, array in zip(executable.arguments, arrays, strict=True)}
        with ExitStack() as stack:
            memory = {}
            for spec in executable.buffers:
                value = given.get(spec.name, spec.value)
                if value is not None:
                    memory[spec.name] = stack.enter_context(
                        backend.write_hbm(*self._rows(buffers[spec.name], spec.layout.rows)))
                    spec.layout.pack(value, memory[spec.name])
            executable.relocate({name: buffer.address for name, buffer in buffers.items()}, memory)

    def _unpack(self, backend: Backend, executable: Executable,
                buffers: Mapping[str, Buffer]) -> tuple[npt.NDArray[Any], ...]:
        """Read the outputs of an executable from its buffers."""
        return tuple(spec.layout.unpack(backend.read_hbm(
            *self._rows(buffers[spec.name], spec.layout.rows))) for spec in executable.outputs)

    def _rows(self, buffer: Buffer, rows: int) -> tuple[int, int]:
        """Return the number of the HBM row at which a buffer begins, and ``rows``."""
        return buffer.address // self._config.row_bytes, rows

    def _run_shown(self, executable: Executable, programs: Mapping[int, Program],
                   progress: bool | Progress, host: QueueHost | None) -> None:
        """Run an executable's programs to their end; show a progress bar if ``progress`` is True.

        ``host`` serves the executable's infeed and outfeed, if it has any.
        """
        with tqdm(total=executable.array_rows, unit="row", disable=progress is not True,
                  leave=False) as bar:
            follow = self._follow(bar) if progress is True else progress or None
            if host is None:
                self._run_programs(executable, programs, follow)
            else:
                self._run_queues(executable, programs, follow, host)
            bar.update(executable.array_rows - bar.n)

    def _run_programs(self, executable: Executable, programs: Mapping[int, Program],
                      progress: Progress | None) -> None:
        """Run an executable's programs to their end; load those that are not loaded already.

        ``progress`` is called without arguments during the run.
        """
        started = time.perf_counter()
        new = {core: program for core, program in programs.items()
               if self._loaded.get(core) is not program}
        try:
            self._unfinished = True
            self._last_run = self._run(programs, new, progress=progress)
            if self._spans is not None:
                self._continue(self._spans)
            self._loaded |= programs
            self._note_clean()
            self._unfinished = False
            if self._spans is None:
                # A profiled run only begins with this part, whose counters are not the run's.
                for observer in tuple(OBSERVERS):
                    observer(executable, self._last_run, time.perf_counter() - started)
        except BaseException:
            # If an interrupt ends this reset, too, the next one frees the buffers.
            self.reset()
            raise

    def _run_queues(self, executable: Executable, programs: Mapping[int, Program],
                    progress: Progress | None, host: QueueHost) -> None:
        """Run an executable's programs to their end; ``host`` serves their infeed and outfeed."""
        def follow() -> None:
            self._signals += host.work()
            if progress is not None:
                progress()

        try:
            host.work()
        except BaseException:
            # The batches written so far have added to semaphores.
            self.reset()
            raise
        self._run_programs(executable, programs, follow)
        host.finish()

    def _continue(self, spans: list[tuple[int, dict[str, int]]]) -> None:
        """Continue a program that halts before each kernel, from its first halt to its end.

        Append (number of the kernel, counters) to ``spans`` for each run of a kernel.
        """
        overhead: dict[str, int] | None = None
        while kernel := int(self.read_scalars(0)[STAMP.number]):
            if overhead is None:
                # A start at the bundle that halted executes only that bundle, and halts again.
                overhead = self._span(self.state(0).pc)
            spans.append((kernel, {name: max(count - overhead[name], 0) for name, count
                                   in self._span(self.state(0).pc + 1).items()}))

    def _span(self, pc: int) -> dict[str, int]:
        """Run core 0 from bundle ``pc`` to its next halt; return the counts of this part.

        Transfers may still be in progress at the halt: a later kernel waits for them.
        """
        before, running = self.counters(0), True
        self.start(0, pc)
        while running:
            with self._open() as backend:
                backend.advance(SLICE, interrupt=True)
                state = backend.state(0)
                running = state.running
        if state.fault:
            self.wait([0])
        return {name: count - before[name] for name, count in self.counters(0).items()}

    def _follow(self, bar: tqdm) -> Progress:
        """Return a callable that sets ``bar`` to the number of rows that entered the arrays."""
        first = self.counters()["mxu_active_cycles"]
        last = time.monotonic()

        def look() -> None:
            nonlocal last
            if time.monotonic() - last >= _LOOK_SECONDS:
                last = time.monotonic()
                rows = self.counters()["mxu_active_cycles"] - first
                bar.update(min(rows, bar.total or rows) - bar.n)

        return look


def check_arrays(what: str, inputs: Sequence[tuple[str, tuple[int, ...], np.dtype[Any]]],
                 arrays: Sequence[object]) -> None:
    """Raise an error unless ``arrays`` fit the inputs of the executable ``what``.

    ``inputs`` has the name, shape and type of each input.
    """
    if len(arrays) != len(inputs):
        needed = ", ".join(name for name, _, _ in inputs) or "none"
        raise ValueError(f"{what} must be given {len(inputs)} arrays ({needed}), not {len(arrays)}")
    for (name, shape, dtype), array in zip(inputs, arrays, strict=True):
        check_array(name, array, shape, dtype)


def _check_queues(executable: Executable, infeed: object, outfeed: object) -> None:
    """Check that ``infeed`` and ``outfeed`` are what the executable needs; else raise an error."""
    queues = executable.queues
    if infeed is None and queues is not None and queues.inputs:
        raise ValueError(f"infeed must be given: {executable.name} is compiled with an infeed")
    if infeed is not None and (queues is None or not queues.inputs):
        raise ValueError(f"infeed must be None: {executable.name} is compiled without an infeed")
    if not isinstance(infeed, Iterable | None):
        raise TypeError(f"infeed must be iterable, not {infeed!r}")
    if outfeed is not None and (queues is None or not queues.outputs):
        raise ValueError(f"outfeed must be None: {executable.name} is compiled without an outfeed")
    if outfeed is not None and not callable(outfeed):
        raise TypeError(f"outfeed must be callable, not {outfeed!r}")


def difference(wanted: Config, given: Config) -> str:
    """Return a message that tells how two configurations differ, in presets or in parameters."""
    names = {config: name for name, config in PRESETS.items()}
    if wanted in names and given in names:
        return f"executable must be compiled for {names[wanted]}, not {names[given]}"
    differing = [field.name for field in fields(Config)
                 if getattr(wanted, field.name) != getattr(given, field.name)]
    one, other = (", ".join(f"{name}={getattr(config, name)!r}" for name in differing)
                  for config in (wanted, given))
    return f"executable must be compiled for a device with {one}, not {other}"
