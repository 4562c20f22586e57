"""A pod: chips on a torus, each of which is a `Device`.

    with Pod.open((2, 2), "tiny", backend="golden") as pod:
        pod[1, 0].write_vmem(0, 0, vectors)
        pod.run({0: program})           # on core 0 of all chips
        result = pod[0, 1].read_vmem(0, 0, count)
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from golden.torus.pod import GoldenPod, Place
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.isa import Fault
from hdl.link.format import Direction, torus_sides
from sim.asm.assembler import Program
from sim.closing import Closeable
from sim.compiler.pod import PodExecutable
from sim.driver.backend import SIMULATED, Backend, core_state, golden_backend, rtl_backend
from sim.driver.cores import SLICE, Cores, Progress, check_limits, timeout
from sim.driver.device import Device, chip_config
from sim.driver.execution import OBSERVERS, Placed, check_arrays, difference
from sim.driver.heap import Buffer
from sim.driver.ranks.shared import SharedBackend
from sim.driver.residents import Resident
from sim.errors import CoreState
from sim.models.chip.torus import LINK_COUNTERS, ChipTorus, longest_wire, wire_cycles
from sim.models.hbm import HbmOptions
from sim.models.ranks.ranks import default_communicator

__all__ = ["Pod", "with_links"]

_T = TypeVar("_T")

_MAX_LINK_BYTES = 128
"""Largest ``link_bytes`` (bytes of data in a flit) that `with_links` sets."""


def _parts(executable: PodExecutable, arrays: Sequence[npt.NDArray[Any]],
           number: int) -> list[npt.NDArray[Any]]:
    """Return the parts of the inputs ``arrays`` that chip ``number`` of a pod gets."""
    return [spec.chip(array, number)
            for spec, array in zip(executable.inputs, arrays, strict=True)]


class _Launch(NamedTuple):
    """Programs that were started together."""

    places: Sequence[Place]
    counters: dict[Place, dict[str, int]]
    """Counters of all cores before the start."""
    began: int
    """Number of the cycle, in RTL, in which the host gave the command to start."""


class PodCores(Closeable):
    """Part of `Pod`: opens its chips, and runs programs on their cores."""

    def __init__(self, shape: tuple[int, int], name: str,
                 backends: Mapping[tuple[int, int], Backend],
                 model: ChipTorus | None = None) -> None:
        self._shape, self._backend_name, self._model = shape, name, model
        self._lock = threading.RLock()
        self._backends = dict(backends)
        self._last_run: dict[Place, dict[str, int]] = {}
        chips: list[Cores] = []
        self._devices = {place: Device(backend, name, place, self._lock, chips)
                         for place, backend in backends.items()}
        self._clock = time.monotonic if model is None else model.clock
        for device in self._devices.values():
            device.clock = self._clock

    @classmethod
    def open(cls, shape: tuple[int, int] = (2, 2), config: str | Config = "v2",
             backend: str = "rtl", *, seed: int = 0, latency: npt.ArrayLike = 64,
             memory: HbmOptions | None = None, communicator: Any = None,
             trace: str | os.PathLike[str] | None = None) -> Self:
        """Open a pod.

        The first time, ``"rtl"`` builds the simulation of the chips, which can take minutes.

        Parameters
        ----------
        shape : tuple of int
            Chips along X and along Y, 1 to 32 each.
        config : str or Config
            Name of a preset, or parameters, of each chip. If ``link_bytes`` is 0, as in all
            presets, it becomes 128, or the bytes of a row if these are less.
        backend : str
            ``"rtl"`` simulates the hardware, cycle by cycle; ``"golden"`` is the numpy model.
        seed : int
            For ``"golden"``: chooses the order of events that the specification leaves open
            (docs/links.md). For ``"rtl"``: seed of the wires' faults, of which there are none until
            ``model.set_faults`` sets some.
        latency : int or array of int, shape (chips, 4)
            Cycles that a frame spends on each wire, as in `ChipTorus`; ``"golden"`` has no cycles.
        memory : HbmOptions, optional
            For ``"rtl"``: behaviour of each chip's memory.
        communicator : mpi4py.MPI.Comm, optional
            For ``"rtl"``: the ranks that simulate the pod together; each simulates a part of the
            chips (docs/links.md). By default all ranks, if a launcher of MPI has started several.
            All ranks call the same methods with the same arguments, and get the same results.
            ``MPI.COMM_SELF`` makes a pod of this rank alone.
        trace : path, optional
            For ``"rtl"``: write a trace (docs/tracing.md) to this path with ``.json`` added. It is
            complete when the pod is closed. The simulation is slower.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong type or out of range.
        ImportError
            If there are several ranks, and mpi4py is missing.
        RuntimeError
            If the simulation cannot be built.
        """
        width, height = torus_sides(shape)
        if backend not in SIMULATED:
            raise ValueError(f"backend must be one of {', '.join(SIMULATED)}, not {backend!r}")
        linked = chip_config(with_links(chip_config(config)))
        wires = _wires(linked, latency, width * height)
        if backend == "golden":
            if trace is not None:
                raise ValueError("trace must be None for the golden backend, which has no clock, "
                                 f"not {trace!r}")
            return cls((width, height), backend, _golden((width, height), linked, seed))
        torus = ChipTorus(linked, (width, height), wires, memory=memory, trace=trace,
                          seed=integer("seed", seed, 0), communicator=(
                              default_communicator() if communicator is None else communicator))
        return cls((width, height), backend, _backends(torus), torus)

    @property
    def shape(self) -> tuple[int, int]:
        """Chips along X and along Y."""
        return self._shape

    @property
    def config(self) -> Config:
        """Parameters of each chip."""
        return self._devices[0, 0].config

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self._backend_name

    @property
    def places(self) -> list[tuple[int, int]]:
        """Coordinates (x, y) of all chips, along X first: the order of the chips' numbers."""
        return [(x, y) for y, x in product(range(self._shape[1]), range(self._shape[0]))]

    @property
    def devices(self) -> list[Device]:
        """The devices of all chips, in the order of their numbers."""
        return [self[place] for place in self.places]

    @property
    def model(self) -> ChipTorus | None:
        """Model of the chips in RTL, which can make wires faulty; None for the golden backend."""
        return self._model

    def __getitem__(self, place: tuple[int, int]) -> Device:
        """Return the device of the chip at coordinates (x, y).

        Raises
        ------
        IndexError
            If there is no such chip.
        """
        if place not in self._devices:
            raise IndexError(f"chip must be within {self._shape[0]} x {self._shape[1]}, "
                             f"not at {place!r}")
        return self._devices[place]

    def run(self, programs: Mapping[Any, Program | Sequence[int]], *,
            cycles: int | None = None,
            seconds: float | None = None) -> dict[Place, dict[str, int]]:
        """Load and start programs, and wait for all of them.

        Parameters
        ----------
        programs : mapping
            Programs by core. A key is either the number of a core, for that core of every chip, or
            (x, y, core) for a single core, which takes precedence.
        cycles, seconds
            As for `wait`.

        Returns
        -------
        dict
            For each core that ran, by (x, y, core), its counters during the run. All cores start in
            the same cycle. ``cycles``, equal for all of them, counts from the host's command until
            all programs have ended and all packets have arrived.

        Raises
        ------
        TypeError, ValueError
            If a key names no core, or its value is not a program.
        CoreFaultError, DeviceTimeoutError, RuntimeError
            As `wait`.
        """
        if not isinstance(programs, Mapping):
            raise TypeError(f"programs must map cores to programs, not {programs!r}")
        chosen = dict(self._chosen(programs))
        with self._open():
            for (x, y, core), program in chosen.items():
                self[x, y].load(core, program)
            launch = self._launch(list(chosen))
        return self._finish(launch, cycles, seconds)

    def wait(self, *, cycles: int | None = None, seconds: float | None = None) -> None:
        """Wait until all programs of all chips have ended, and all packets have arrived.

        The limits apply to the programs only. When the programs have ended, the pod runs on until
        each packet that is under way arrives, or a link is found to be down.

        Parameters
        ----------
        cycles : int, optional
            Limit in clock cycles; with the golden backend, in bundles of a core.
        seconds : float, optional
            Limit in seconds of the host's clock.

        Raises
        ------
        CoreFaultError
            If a core stops, or has stopped, with a fault; the error names the core's chip. Other
            cores keep running.
        DeviceTimeoutError
            If a program has not ended within the limit, or if all programs wait for semaphores that
            only the host can still signal. The error names all cores whose programs have not ended.
        TypeError, ValueError
            If an argument is wrong.
        RuntimeError
            If the pod is closed.
        """
        self._wait(cycles, seconds)

    def _wait(self, cycles: int | None = None, seconds: float | None = None,
              progress: Progress | None = None) -> None:
        """Wait as `wait`, and call ``progress`` at least every `SLICE` cycles."""
        check_limits(cycles, seconds, False)
        ends = None if seconds is None else self._clock() + seconds
        used = 0
        while True:
            with self._open() as backends:
                states = self._unfinished()
                left = SLICE
                if states:
                    left = SLICE if cycles is None else min(SLICE, cycles - used)
                    if left <= 0 or (ends is not None and self._clock() >= ends):
                        raise timeout("programs have not ended in time", states, stuck=False)
                first = backends[0].steps
                rests = self._advance(left)
                used += backends[0].steps - first
                if progress is not None:
                    progress()
                if not rests:
                    continue
                states = self._unfinished()
                if not states:
                    return
                if any(state.running for state in states.values()):
                    raise timeout("programs wait for semaphores that only the host can signal",
                                  states, stuck=True)

    def reset(self) -> None:
        """Reset all cores of all chips; afterwards no packet is under way. See `Device.reset`.

        A link that is down stays down.
        """
        with self._open():
            self._reset_devices()
            while not self._advance(SLICE):
                if any(device.state(core).fault is Fault.LINK for device in self._devices.values()
                       for core in range(self.config.cores)):
                    break
            # Again, because packets have arrived since the first reset.
            self._reset_devices()

    def close(self) -> None:
        """Close all devices. Closing twice does nothing."""
        with self._lock:
            for device in self._devices.values():
                device.close()
            if self._model is not None:
                self._model.close()
            self._backends.clear()

    def _reset_devices(self) -> None:
        for device in self._devices.values():
            device.reset()

    @contextmanager
    def _open(self) -> Iterator[list[Backend]]:
        """Context that yields the chips' backends, and keeps other threads from using the pod."""
        with self._lock:
            if not self._backends:
                raise RuntimeError("pod is closed")
            yield list(self._backends.values())

    def _chosen(self, programs: Mapping[Any, Program | Sequence[int]],
                ) -> Iterator[tuple[Place, Program | Sequence[int]]]:
        """Yield ((x, y, core), program) for each core in ``programs``, as in `run`.

        If a core occurs twice, its later program takes precedence.
        """
        for key, program in programs.items():
            if not isinstance(key, tuple):
                core = integer("core", key, 0, self.config.cores - 1)
                yield from (((*place, core), program) for place in self._devices)
        for key, program in programs.items():
            if isinstance(key, tuple):
                if len(key) != 3 or key[:2] not in self._devices:
                    raise ValueError(f"program must be for a core or for (x, y, core) within the "
                                     f"pod, not for {key!r}")
                yield (*key[:2], integer("core", key[2], 0, self.config.cores - 1)), program

    def _launch(self, places: Sequence[Place]) -> _Launch:
        """Start cores whose programs are loaded. The caller holds `_open`."""
        return _Launch(places, self._counters(), self._start(places))

    def _finish(self, launch: _Launch, cycles: int | None, seconds: float | None,
                progress: Progress | None = None) -> dict[Place, dict[str, int]]:
        """Wait for all cores, and return the counters of those that were launched."""
        self._wait(cycles, seconds, progress)
        with self._open():
            after = self._counters()
            rested = 0 if self._model is None else self._model.rested
        counts = {place: {name: count - launch.counters[place][name]
                          for name, count in after[place].items()} for place in launch.places}
        if self._model is not None:
            # Before the start and after the last event, cores are idle.
            for count in counts.values():
                surplus = count["cycles"] - (rested - launch.began)
                count["cycles"] -= surplus
                count["idle_cycles"] -= surplus
        return counts

    def _start(self, places: Sequence[Place]) -> int:
        """Start cores whose programs are loaded; in RTL, all in the same cycle.

        Returns the number of the cycle in which the host gives the command; 0 without RTL.
        """
        for x, y, _ in places:
            self[x, y].note_start()
        if self._model is not None:
            return self._model.start((y * self._shape[0] + x, core) for x, y, core in places)
        for x, y, core in places:
            self._backends[x, y].start(core, 0)
        return 0

    def _counters(self) -> dict[Place, dict[str, int]]:
        """Return the counters of all cores since their last resets, by (x, y, core)."""
        if self._model is not None:
            return self._by_place(self._model.counters())
        return {(*place, core): backend.taken_counters(core)
                for place, backend in self._backends.items() for core in range(self.config.cores)}

    def _states(self) -> dict[Place, CoreState]:
        """Return the states of all cores, by (x, y, core)."""
        if self._model is None:
            return {(*place, core): backend.state(core)
                    for place, backend in self._backends.items()
                    for core in range(self.config.cores)}
        return {place: core_state(values["STATUS"], values["PC"]) for place, values in
                self._by_place(self._model.read_cores(["STATUS", "PC"])).items()}

    def _by_place(self, cores: Sequence[Sequence[_T]]) -> dict[Place, _T]:
        """Return ``cores``, a value for each core of each chip, as a dict by (x, y, core)."""
        return {(chip % self._shape[0], chip // self._shape[0], core): value
                for chip, values in enumerate(cores) for core, value in enumerate(values)}

    def _unfinished(self) -> dict[Place, CoreState]:
        """Return the states of all cores that are running or have transfers, by (x, y, core).

        If any core has a fault, raise a `CoreFaultError`.
        """
        states = self._states()
        for (x, y, core), state in states.items():
            if state.fault is not Fault.NONE and not state.running:
                self._devices[x, y].wait([core])  # raises the error with the bundle
        return {place: state for place, state in states.items()
                if state.running or state.transfers}

    def _advance(self, steps: int) -> bool:
        """Run all chips for at most ``steps``; return whether nothing more can happen in any.

        A golden backend runs all chips, but lets only the watchdogs of its own chip expire. If it
        reports that nothing more can happen, a watchdog of another chip may still expire. So the
        golden backends of all chips are called, up to the first one that reports the opposite.
        """
        backends = list(self._backends.values())
        return all(backend.advance(steps, interrupt=False)
                   for backend in (backends if self._model is None else backends[:1]))


class Pod(PodCores):
    """Chips on a torus, open for work. Use `Pod.open`.

    ``pod[x, y]`` is the `Device` of the chip at these coordinates. All chips share one simulated
    time: a method that advances one chip advances all. Threads may share a pod as they may share a
    device. After a fork, the child may close the pod, but not use it otherwise.
    """

    def execute(self, executable: PodExecutable, *arrays: npt.NDArray[Any],
                cycles: int | None = None,
                seconds: float | None = None) -> tuple[npt.NDArray[Any], ...]:
        """Run an executable on all cores of the pod.

        Parameters
        ----------
        executable : PodExecutable
            The executable, compiled for `config` and for a torus of this shape.
        arrays : arrays
            The inputs, as ``executable.inputs`` lists them. Each chip gets its cores' parts.
        cycles, seconds
            As for `wait`.

        Returns
        -------
        tuple of arrays
            The outputs, in the order of ``executable.outputs``.

        Raises
        ------
        TypeError, ValueError
            If the executable or an array is wrong.
        MemoryError
            If the buffers do not fit in the free part of a chip's HBM.
        CoreFaultError, DeviceTimeoutError
            As `wait`; the pod has been reset.
        RuntimeError
            If a program is running, or the pod is closed.
        """
        self._check(executable, arrays)
        with self._open():
            results = self._run_on_chips(executable, [
                device.placed(chip, *_parts(executable, arrays, number))
                for number, (device, chip) in enumerate(zip(
                    self.devices, executable.chips, strict=True))], cycles, seconds)
            return tuple(spec.join(chips) for spec, chips in zip(
                executable.outputs, zip(*results, strict=True), strict=True))

    def prepare(self) -> None:
        """Reset the pod if programs or signals may have changed a chip since its last reset.

        Afterwards all semaphores are zero. `execute` and `AllReduce.run` begin with this.

        Raises
        ------
        RuntimeError
            If a program is running that does not belong to a failed executable, or the pod is
            closed; then nothing is reset.
        """
        with self._open():
            # All chips are checked first, and reset together: one that is reset later than others
            # could still signal them.
            used = [device.needs_reset() for device in self.devices]
            if any(used):
                self.reset()

    def place(self, executable: PodExecutable) -> tuple[Resident, ...]:
        """Copy an executable's constants to the HBM of all chips, so that `run_placed` can run it.

        Returns
        -------
        tuple of Resident
            The placed executable of each chip, in the order of ``executable.chips``.

        Raises
        ------
        TypeError, ValueError, MemoryError, RuntimeError
            As `Device.place`; then nothing is placed.
        """
        self._check_made_for(executable)
        made: list[tuple[Device, Resident]] = []
        with self._open():
            try:
                for place, device, chip in zip(self.places, self.devices, executable.chips,
                                               strict=True):
                    with _memory_of(place):
                        made.append((device, device.place(chip)))
            except BaseException:
                for device, resident in made:
                    device.displace(resident)
                raise
        return tuple(resident for _, resident in made)

    def run_placed(self, executable: PodExecutable, residents: Sequence[Resident],
                   inputs: Sequence[Sequence[Sequence[Buffer]]],
                   outputs: Sequence[Sequence[Sequence[Buffer]]],
                   progress: Progress | None = None) -> None:
        """Run a placed executable on buffers; ``residents`` is what `place` returned for it.

        Parameters
        ----------
        inputs, outputs : sequences
            For each chip, in the order of ``executable.chips``, as for `Device.run_placed`.
        progress : callable, optional
            As for `Device.run_placed`.

        Raises
        ------
        ValueError, MemoryError, CoreFaultError, RuntimeError
            As `Device.run_placed`; after a failure, the pod has been reset.
        """
        with self._open():
            self._run_on_chips(executable, [
                device.pointed(resident, given, made) for device, resident, given, made in zip(
                    self.devices, residents, inputs, outputs, strict=True)],
                progress=progress)

    def _run_on_chips(self, executable: PodExecutable,
                      contexts: Sequence[AbstractContextManager[Placed]],
                      cycles: int | None = None, seconds: float | None = None,
                      progress: Progress | None = None,
                      ) -> list[tuple[npt.NDArray[Any], ...]]:
        """Run an executable on all chips; return each chip's outputs.

        ``contexts`` has a context for each chip. While it is open, the executable's buffers are in
        the HBM of this chip.
        """
        devices = self.devices
        with ExitStack() as stack:
            self._last_run = {}
            self.prepare()
            placed = []
            for place, context in zip(self.places, contexts, strict=True):
                with _memory_of(place):
                    placed.append(stack.enter_context(context))
            started = time.perf_counter()
            try:
                with self._open():
                    for device, chip in zip(devices, placed, strict=True):
                        device.load_placed(chip)
                    launch = self._launch(
                        [(*place, core) for place, chip in zip(self.places, placed, strict=True)
                         for core in chip.programs])
                self._last_run = self._finish(launch, cycles, seconds, progress)
                for observer in tuple(OBSERVERS):
                    observer(executable.chips[0], self._last_run, time.perf_counter() - started)
            except BaseException:
                self.reset()
                raise
            for device, chip in zip(devices, placed, strict=True):
                device.finish_placed(chip)
            return [chip.outputs() for chip in placed]

    def link_counters(self) -> dict[tuple[int, int, Direction], dict[str, int]]:
        """Return the counters of all links, which count from the moment the pod is opened.

        Returns
        -------
        dict
            A dict for each link. The key of a link is (x, y, direction): chip (x, y) sends by this
            link in this direction. The counters are ``cycles``; ``frames``, of which at most 11
            leave in 16 cycles; ``flits``, sent for the first time; ``repeated_flits``, sent again
            after an error; ``credit_stall_cycles``, in which a flit waits because the other end's
            buffer has no room. The golden backend has no clock and no frames: all are 0.

        Raises
        ------
        RuntimeError
            If the pod is closed.
        """
        with self._open():
            model = self._model
            table = (np.zeros((len(self.places), len(Direction), len(LINK_COUNTERS)), np.uint64)
                     if model is None else model.link_counters())
            cycles = 0 if model is None else model.cycle
            return {(*place, direction): {"cycles": cycles, **dict(zip(
                        LINK_COUNTERS, table[number, direction].tolist(), strict=True))}
                    for number, place in enumerate(self.places) for direction in Direction}

    @property
    def last_run(self) -> dict[Place, dict[str, int]]:
        """Counters of each core during the last `execute`, as from `run`.

        The dict is empty before the first such call, and after a call that failed.
        """
        with self._lock:
            return {place: dict(counts) for place, counts in self._last_run.items()}

    def _check(self, executable: PodExecutable, arrays: Sequence[object]) -> None:
        """Raise an error if the arguments of `execute` are wrong."""
        self._check_made_for(executable)
        if executable.torus.order:
            raise ValueError("executable must have its devices in ascending order, not "
                             f"{executable.torus.order!r}")
        check_arrays(executable.name, [(spec.name, spec.shape, spec.dtype)
                                       for spec in executable.inputs], arrays)

    def _check_made_for(self, executable: PodExecutable) -> None:
        """Raise an error unless ``executable`` was made for a pod like this one."""
        instance("executable", executable, PodExecutable)
        if executable.config != self.config:
            raise ValueError(difference(self.config, executable.config))
        made = executable.torus.width, executable.torus.height
        if made != self._shape:
            raise ValueError(f"executable must be compiled for a pod of shape {self._shape!r}, "
                             f"not {made!r}")


@contextmanager
def _memory_of(place: tuple[int, int]) -> Iterator[None]:
    """Context in which the message of a `MemoryError` gets the name of the chip at ``place``."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"chip {place}: {error}") from error


def with_links(config: Config) -> Config:
    """Return ``config``, with links of the usual width if it has none (``link_bytes`` is 0)."""
    if config.link_bytes:
        return config
    row = config.row_bytes
    return replace(config, link_bytes=min(_MAX_LINK_BYTES, row & -row))


def _backends(torus: ChipTorus) -> dict[tuple[int, int], Backend]:
    columns, rows = torus.shape
    return {place: rtl_backend(torus[place]) if torus.ranks is None
            else SharedBackend(torus, place) for place in product(range(columns), range(rows))}


def _wires(config: Config, latency: npt.ArrayLike, chips: int) -> npt.NDArray[np.uint32]:
    """Return the argument ``latency`` of `Pod.open` as an array of shape (chips, 4)."""
    if np.ndim(latency) == 0:
        integer("latency", latency, 1, longest_wire(config))
    return wire_cycles(config, latency, chips)


def _golden(shape: tuple[int, int], config: Config,
            seed: int) -> dict[tuple[int, int], Backend]:
    """Return the backends of the chips of a golden pod, by coordinates; see `Pod.open`."""
    pod = GoldenPod(shape, config, seed)

    def run(bundles: int) -> tuple[int, bool]:
        # The backends of all chips have their turns, most of them when all has been done.
        if pod.rests:
            return 0, False
        result = pod.run(bundles)
        return max(result.executed.values()), bool(result.running)

    return {place: golden_backend(pod[place], run)
            for place in product(range(shape[0]), range(shape[1]))}
