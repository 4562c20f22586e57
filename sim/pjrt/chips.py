"""The work of the chips' thread: uploads, runs and downloads, in the order of JAX's calls."""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.isa import BUNDLE_WORDS
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import STACKED, DType, TensorType
from sim.compiler.program.arrays import ShardedArray, TiledArray, tiled
from sim.driver.device import Device
from sim.driver.heap import Buffer
from sim.driver.pod import Pod
from sim.driver.residents import Resident
from sim.errors import CoreFaultError
from sim.pjrt.compiler import Program
from sim.pjrt.library import Job, Kind
from sim.pjrt.types import Status, dtype_of, status_of

__all__ = ["Chips"]

_DELETED = "the array has been deleted or donated"


@dataclass(eq=False)
class _Value:
    """An array in HBM.

    Attributes
    ----------
    chip : int
        Number of the chip whose HBM it is.
    layout : TiledArray
        Layout of the array in the buffer.
    buffer : Buffer
        Memory of the array in HBM.
    names : int
        Number of JAX buffers that share the array.
    """

    chip: int
    layout: TiledArray
    buffer: Buffer
    names: int = 1


@dataclass(eq=False)
class _FailedError(Exception):
    """Raised if an argument does not exist because the call that should have made it failed.

    ``status`` is the status of the failed call, which becomes that of the current call, too.
    """

    status: Status


@dataclass(eq=False)
class _Loaded:
    """A program, the layouts of its inputs and outputs, and its copies in the HBM of its chips."""

    program: Program
    inputs: list[TiledArray]
    outputs: list[TiledArray]
    residents: tuple[Resident, ...] = ()
    _pairs: dict[tuple[int, ...], dict[int, int]] = field(default_factory=dict)

    def reused(self, donated: tuple[int, ...]) -> dict[int, int]:
        """Map the index of each output that reuses a donated input's memory to the input's index.

        ``donated`` lists the indices of the inputs that a call donates.
        """
        if donated not in self._pairs:
            pairs = dict[int, int]()
            for number in donated:
                fitting = (output for output in range(len(self.outputs))
                           if output not in pairs and all(
                               chip.may_reuse(number, output) for chip in self.program.chips))
                if (output := next(fitting, None)) is not None:
                    pairs[output] = number
            self._pairs[donated] = pairs
        return self._pairs[donated]


class _Memory:
    """Allocates the HBM of one chip, and counts its use.

    Parameters
    ----------
    device : Device
        The chip.
    note : callable
        Called with six integers when HBM's use has changed: bytes in use; their maximum so far;
        number of allocations so far; bytes of the largest allocation; bytes that can be allocated
        in total; bytes of the largest free block.
    """

    def __init__(self, device: Device, note: Callable[..., None]) -> None:
        self._device, self._note_stats = device, note
        self._limit = device.free_bytes
        self._peak = self._count = self._largest = 0
        self.note()

    def allocate(self, size: int) -> Buffer:
        """Allocate ``size`` bytes; MemoryError if there is no room."""
        buffer = self._device.allocate(size)
        self._count += 1
        self._largest = max(self._largest, size)
        self.note()
        return buffer

    def note(self) -> None:
        """Report the present use of HBM, by a call of the function ``note`` given to the class."""
        used = self._limit - self._device.free_bytes
        self._peak = max(self._peak, used)
        self._note_stats(used, self._peak, self._count, self._largest, self._limit,
                         self._device.largest_free_bytes)


class Chips:
    """The values and the programs of the simulated chips, used by one thread.

    JAX's device number d is core d % cores of chip d // cores.

    Parameters
    ----------
    machine : Device or Pod
        The chip, or the pod of chips.
    note_memory : callable
        Called when the use of a chip's HBM has changed, with the chip's number and six integers
        (`_Memory`).
    """

    def __init__(self, machine: Device | Pod, note_memory: Callable[..., None]) -> None:
        self._pod = machine if isinstance(machine, Pod) else None
        self._devices = machine.devices if isinstance(machine, Pod) else [machine]
        self._config = machine.config
        self._memories = [_Memory(device, partial(note_memory, chip))
                          for chip, device in enumerate(self._devices)]
        self._values: dict[int, _Value | Status] = {}
        self._programs: dict[int, _Loaded] = {}
        self._ending = False
        self._handlers = {
            Kind.EXECUTE: self._execute, Kind.UPLOAD: self._upload, Kind.DOWNLOAD: self._download,
            Kind.SHARE: self._share, Kind.RELEASE: self._release, Kind.UNLOAD: self._unload}

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of JAX buffers that exist, and number of registered programs."""
        return len(self._values), len(self._programs)

    def end(self) -> None:
        """Make the running program and all later ones fail. May be called from any thread."""
        self._ending = True

    def _look(self) -> None:
        if self._ending:
            raise InterruptedError("the process is exiting")

    def add(self, number: int, program: Program) -> None:
        """Register a program under a number. May be called from any thread."""
        inputs, outputs = (
            [_layout(type.dtype, type.shape, self._config) for type in types]
            for types in program.types)
        chip = program.chips[0].executable()
        for spec, layout in zip((*chip.inputs, *chip.outputs), (*inputs, *outputs), strict=True):
            assert spec.layout in (layout, ShardedArray(layout, STACKED))
        self._programs[number] = _Loaded(program, inputs, outputs)

    def work(self, job: Job) -> Status:
        """Do a job; return its status: code and message, (0, "") on success."""
        try:
            self._handlers[job.kind](job)
        except _FailedError as error:
            return error.status
        except Exception as error:  # noqa: BLE001 - JAX raises it where the result is needed
            return status_of(error)
        return 0, ""

    # Values

    def _upload(self, job: Job) -> None:
        device, type, *shape = job.numbers
        with self._makes(job.target):
            layout = _layout(dtype_of(type), tuple(shape), self._config)
            value = self._new(self._chip_of(device), layout)
            self._values[job.target] = value
            data = (ctypes.c_char * job.bytes).from_address(job.address) if job.bytes else b""
            array: npt.NDArray[Any] = np.frombuffer(data, layout.dtype).reshape(layout.shape)
            self._devices[value.chip].pack(value.buffer, layout, array)

    def _download(self, job: Job) -> None:
        value = self._value(job.target)
        array = np.ascontiguousarray(self._array(value))
        ctypes.memmove(job.address, array.ctypes.data, array.nbytes)

    def _share(self, job: Job) -> None:
        source, device = job.numbers
        with self._makes(job.target):
            value, chip = self._value(source), self._chip_of(device)
            if value.chip == chip:
                value.names += 1
                self._values[job.target] = value
                return
            made = self._values[job.target] = self._new(chip, value.layout)
            self._devices[chip].pack(made.buffer, made.layout, self._array(value))

    def _release(self, job: Job) -> None:
        self._drop(self._values.pop(job.target, None))

    def _drop(self, value: _Value | Status | None) -> None:
        """Remove one JAX buffer from a value; if no other shares it, free the value's memory.

        Nothing is done if ``value`` is the status of a failed call, or None.
        """
        if isinstance(value, _Value):
            value.names -= 1
            if not value.names:
                self._devices[value.chip].free(value.buffer)
                self._memories[value.chip].note()

    @contextmanager
    def _makes(self, *targets: int) -> Iterator[None]:
        """Context of a call that makes values, for the JAX buffers with the numbers ``targets``.

        On an exception, the memory of these values is freed. In their place, the exception's status
        is kept: later calls that use the JAX buffers fail with this status.
        """
        try:
            yield
        except Exception as error:
            status = error.status if isinstance(error, _FailedError) else status_of(error)
            for target in targets:
                self._drop(self._values.get(target))
                self._values[target] = status
            raise

    def _value(self, number: int) -> _Value:
        """Return the value of the JAX buffer with this number.

        Raises
        ------
        ValueError
            If the value has been deleted. Another thread may delete it after JAX has checked that
            it exists, and before JAX has enqueued the call that uses it.
        _FailedError
            If the call that should have made the value failed.
        """
        if number not in self._values:
            raise ValueError(_DELETED)
        value = self._values[number]
        if not isinstance(value, _Value):
            raise _FailedError(value)
        return value

    def _chip_of(self, device: int) -> int:
        """Return the number of the chip of JAX's device number ``device``."""
        return device // self._config.cores

    def _array(self, value: _Value) -> npt.NDArray[Any]:
        """Return the array that a value holds."""
        return self._devices[value.chip].unpack(value.buffer, value.layout)

    def _argument(self, index: int, number: int, chip: int, layout: TiledArray) -> Buffer:
        """Return the HBM buffer of JAX buffer ``number``, after a check of its chip and layout.

        ``index`` is the argument's number in the program, for messages.

        Raises
        ------
        ValueError
            If the JAX buffer is not on chip ``chip``, or has another layout.
        """
        value = self._value(number)
        if value.chip != chip:
            raise ValueError(f"argument {index} must be on chip {chip}, not on chip "
                             f"{value.chip}")
        if value.layout is not layout and value.layout != layout:
            raise ValueError(f"argument {index} must be {layout.dtype}{list(layout.shape)}, "
                             f"not {value.layout.dtype}{list(value.layout.shape)}")
        return value.buffer

    def _new(self, chip: int, layout: TiledArray) -> _Value:
        """Allocate a value with undefined contents in the HBM of a chip."""
        size = layout.rows * self._config.row_bytes
        try:
            buffer = self._with_room(lambda: self._memories[chip].allocate(size), None)
        except MemoryError as error:
            if self._pod is None:
                raise
            raise MemoryError(f"{self._name(chip)}: {error}") from error
        return _Value(chip, layout, buffer)

    def _name(self, chip: int) -> str:
        """Return a chip's name, for messages."""
        return f"chip {self._pod.places[chip]}" if self._pod is not None else "the chip"

    def _renewed(self, number: int) -> _Value:
        """Return a new value in the memory of JAX buffer ``number``, which a call donates.

        If other JAX buffers share that memory, the new value gets memory of its own.
        """
        value = self._value(number)
        if value.names > 1:
            return self._new(value.chip, value.layout)
        self._values[number] = status_of(ValueError(_DELETED))
        return _Value(value.chip, value.layout, value.buffer)

    def _with_room(self, act: Callable[[], Any], keep: _Loaded | None) -> Any:
        """Call ``act``, which allocates HBM, and return its result.

        If memory is short, remove the code of all programs except ``keep`` from HBM and try again.
        """
        try:
            return act()
        except MemoryError:
            for loaded in list(self._programs.values()):  # The compiler's thread adds some.
                if loaded is not keep:
                    self._displace(loaded)
            return act()

    # Programs

    def _execute(self, job: Job) -> None:
        devices, inputs, outputs, count, *numbers = job.numbers
        donated, numbers = tuple(numbers[:count]), numbers[count:]
        given = numbers[:devices * inputs]
        made = numbers[devices * inputs:]
        with self._makes(*made):
            loaded = self._programs.get(job.target)
            if loaded is None:
                raise ValueError("the program has been deleted")
            places = [self._chip_of(device) for device in loaded.program.assignment.devices]
            arguments = [self._argument(index % inputs, number, places[index // inputs],
                                        loaded.inputs[index % inputs])
                         for index, number in enumerate(given)]
            pairs = loaded.reused(donated)
            for index, number in enumerate(made):
                device, output = divmod(index, outputs)
                taken = given[device * inputs + pairs[output]] if output in pairs else None
                self._values[number] = (
                    self._new(places[device], loaded.outputs[output])
                    if taken is None or given.count(taken) > 1 else self._renewed(taken))
            results = [self._value(number).buffer for number in made]
            self._run(loaded, _rows(arguments, devices, inputs), _rows(results, devices, outputs))

    def _run(self, loaded: _Loaded, arguments: list[list[Buffer]],
             results: list[list[Buffer]]) -> None:
        try:
            self._with_room(partial(self._try_run, loaded, arguments, results), loaded)
        except CoreFaultError as error:
            raise RuntimeError(_explain(error, loaded.program, self._pod)) from error

    def _try_run(self, loaded: _Loaded, arguments: list[list[Buffer]],
                 results: list[list[Buffer]]) -> None:
        """Run a program; before, copy its code to HBM if HBM does not hold it."""
        program = loaded.program
        first, executable = program.assignment.devices[0], program.executable
        if isinstance(executable, Executable):
            device = self._devices[self._chip_of(first)]
            if not loaded.residents:
                core = first % self._config.cores if len(program.assignment.devices) == 1 else 0
                loaded.residents = (device.place(executable, core),)
                self._note_use(loaded)
            device.run_placed(loaded.residents[0], arguments, results, self._look)
            return
        assert self._pod is not None
        if not loaded.residents:
            loaded.residents = self._pod.place(executable)
            self._note_use(loaded)
        # The partitions of each chip, core by core.
        chips = executable.torus.by_chip
        self._pod.run_placed(
            executable, loaded.residents, [[arguments[part] for part in chip] for chip in chips],
            [[results[part] for part in chip] for chip in chips], self._look)

    def _note_use(self, loaded: _Loaded) -> None:
        """Report the present use of HBM on each chip that runs the program ``loaded``."""
        for chip in {self._chip_of(device) for device in loaded.program.assignment.devices}:
            self._memories[chip].note()

    def _displace(self, loaded: _Loaded) -> None:
        chips = sorted({self._chip_of(device) for device in loaded.program.assignment.devices})
        for chip, resident in zip(chips, loaded.residents, strict=False):
            self._devices[chip].displace(resident)
        loaded.residents = ()
        self._note_use(loaded)

    def _unload(self, job: Job) -> None:
        loaded = self._programs.pop(job.target, None)
        if loaded is not None:
            self._displace(loaded)


def _rows(items: list[Buffer], rows: int, columns: int) -> list[list[Buffer]]:
    return [items[row * columns:(row + 1) * columns] for row in range(rows)]


@lru_cache(maxsize=1024)
def _layout(type: DType, shape: tuple[int, ...], config: Config) -> TiledArray:
    """Return the layout that all arrays of a type and a shape have."""
    layout = tiled(TensorType(shape, type), config)
    assert isinstance(layout, TiledArray)
    return layout


def _explain(error: CoreFaultError, program: Program, pod: Pod | None) -> str:
    """Return a fault's message, with the kernel of ``program`` and the user's line if known."""
    chip = 0
    if len(program.chips) > 1 and pod is not None and error.chip is not None:
        chip = pod.places.index(error.chip)
    code = program.chips[chip].cores
    core = code[min(error.core, len(code) - 1)]
    where = ""
    if core.overlays.segments == 1 and core.kernels:
        # For each kernel, the address of the bundle before its first one.
        first = [stamp // BUNDLE_WORDS for stamp in core.overlays.stamps]
        kernel = core.kernels[max(bisect_right(first, error.pc) - 1, 0)]
        where = f", in {kernel.kind}" + (f" at {kernel.location}" if kernel.location else "")
    return f"{program.executable.name}{where}: {error}"
