"""Executables that stay in a device's HBM, and run on buffers of the device without copies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.checks import instance
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable, Layout, Relocations, Role
from sim.compiler.program.arrays import ShardedArray
from sim.compiler.program.compiled import compiled_of
from sim.driver.backend import Backend
from sim.driver.cores import Progress
from sim.driver.execution import Execution, Placed
from sim.driver.heap import Buffer

__all__ = ["Resident", "Residents"]


@dataclass(frozen=True, eq=False)
class _Addresses:
    """Words of a constant that hold addresses of bytes in a buffer; each run writes them.

    The compiler plans one buffer (an input, an output or scratch), with a part for each core. In
    `run_placed`, each core has a separate buffer for its part.

    Attributes
    ----------
    relocations : Relocations
        The words, and the name of the planned buffer.
    part_start : int
        Bytes from the start of the planned buffer to the part of this core.
    offsets : array of uint64
        For each word, the offset from the start of the planned buffer to the byte that the word
        refers to. The address that a run writes is this offset, minus ``part_start``, plus the
        address of the core's own buffer.
    """

    relocations: Relocations
    part_start: int
    offsets: npt.NDArray[np.uint64]


@dataclass(eq=False)
class Resident:
    """An executable whose constants are in a device's HBM. Made by `Device.place`.

    Attributes
    ----------
    executable : Executable
        The executable.
    cores : tuple of int
        The cores that run its programs, in order.
    buffers : dict of str to Buffer
        The buffers of its constants, by name.
    programs : mapping of int to Program
        The programs, by core.
    displaced : bool
        Whether the constants have been freed, so that the executable cannot run any more.
    """

    executable: Executable
    cores: tuple[int, ...]
    buffers: dict[str, Buffer]
    programs: Mapping[int, Program]
    displaced: bool = False
    _addresses: dict[tuple[int, str], list[_Addresses]] = field(default_factory=dict)
    # The address that was last written to the words of each key.
    _written: dict[tuple[int, str], int] = field(default_factory=dict)


class Residents(Execution):
    """Part of `Device`: keeps executables in HBM, and runs them on buffers.

    Unlike `execute`, `run_placed` copies no array between host and device. It reads inputs from
    buffers, in the layouts that the executable specifies, and writes outputs to buffers.
    """

    def place(self, executable: Executable, core: int = 0) -> Resident:
        """Copy an executable's constants to HBM, so that `run_placed` can run it.

        Parameters
        ----------
        executable : Executable
            The executable, made by `sim.compiler.program.driver.compile_graph`. Its code must
            contain no addresses of buffers: compile it with ``standard_inputs`` if it has large
            products. If it runs on two cores, each of its inputs and outputs must have a part for
            each core.
        core : int
            The core that runs the executable, if it was compiled for one core.

        Raises
        ------
        TypeError, ValueError
            If the executable or the core is invalid, or the executable's code contains addresses
            of buffers.
        MemoryError
            If the constants do not fit in the free part of HBM.
        RuntimeError
            If the device is closed.
        """
        instance("executable", executable, Executable)
        with self._open() as backend:
            if executable.config != self._config:
                raise ValueError(f"executable must be compiled for {self._config!r}, not "
                                 f"{executable.config!r}")
            if any(code.overlays.row_numbers for code in compiled_of(executable).cores):
                # Addresses in bundles cannot change, because bundles stay in instruction memory.
                raise ValueError(f"{executable.name} must be compiled with standard_inputs, since "
                                 f"its code contains addresses of buffers")
            if executable.queues is not None:
                raise ValueError(f"{executable.name} must be compiled without infeed and outfeed")
            number = self._core(core)
            buffers: dict[str, Buffer] = {}
            try:
                return self._placed(backend, executable, number, buffers)
            except BaseException:
                for buffer in buffers.values():
                    self._heap.free(buffer)
                raise

    def _placed(self, backend: Backend, executable: Executable, core: int,
                buffers: dict[str, Buffer]) -> Resident:
        """Copy an executable's constants to HBM.

        If the executable is for one core, ``core`` is the number of the core that runs it.
        Buffers are added to ``buffers`` as soon as they are allocated.
        """
        constants = [spec for spec in executable.buffers if spec.value is not None]
        for spec in constants:
            buffers[spec.name] = self._heap.allocate(self._size(spec))
        for spec in constants:
            assert spec.value is not None
            with backend.write_hbm(*self._rows(buffers[spec.name], spec.layout.rows)) as rows:
                spec.layout.pack(spec.value, rows)
        linked = executable.link({name: buffer.address for name, buffer in buffers.items()})
        programs = linked if len(linked) > 1 else {core: linked[0]}
        made = Resident(executable, tuple(programs), buffers, programs)
        for addresses in self._relocations(executable, constants):
            key = addresses.relocations.core, addresses.relocations.target
            made._addresses.setdefault(key, []).append(addresses)
        return made

    def pack(self, buffer: Buffer, layout: Layout, array: npt.NDArray[Any]) -> None:
        """Write an array to a buffer in the given layout.

        Raises
        ------
        TypeError, ValueError
            If the buffer is not one of this device, or is too small.
        RuntimeError
            If the device is closed.
        """
        with (self._open() as backend,
              backend.write_hbm(*self._place_of(buffer, layout)) as rows):
            layout.pack(array, rows)

    def unpack(self, buffer: Buffer, layout: Layout) -> npt.NDArray[Any]:
        """Return the array that a buffer holds in the given layout; errors as `pack`."""
        with self._open() as backend:
            return layout.unpack(backend.read_hbm(*self._place_of(buffer, layout)))

    def displace(self, resident: Resident) -> None:
        """Free the constants of a placed executable, which cannot run any more afterwards."""
        instance("resident", resident, Resident)
        with self._open():
            for buffer in resident.buffers.values():
                self._heap.free(buffer)
            resident.buffers, resident.displaced = {}, True

    def run_placed(self, resident: Resident, inputs: Sequence[Sequence[Buffer]],
                   outputs: Sequence[Sequence[Buffer]], progress: Progress | None = None) -> None:
        """Run a placed executable.

        Parameters
        ----------
        resident, inputs, outputs
            As for `pointed`.
        progress : callable, optional
            Called without arguments at least every 1,024 cycles (golden backend: bundles); an
            exception that it raises ends the run.

        Raises
        ------
        ValueError
            If there are too few or too many buffers, or one is too small or not of this device.
        MemoryError
            If the program's temporary values do not fit in the free part of HBM.
        CoreFaultError
            If a program has a fault.
        RuntimeError
            If a program is running, or the device is closed; also if a function that a run calls,
            such as ``progress``, calls this.
        """
        with self.pointed(resident, inputs, outputs) as placed:
            self._run_programs(resident.executable, placed.programs, progress)

    @contextmanager
    def pointed(self, resident: Resident, inputs: Sequence[Sequence[Buffer]],
                outputs: Sequence[Sequence[Buffer]]) -> Iterator[Placed]:
        """Context in which a placed executable can run on the given buffers.

        Until it ends, the device runs nothing else. `run_placed` and `Pod.run_placed` use this.

        Parameters
        ----------
        resident : Resident
            The placed executable.
        inputs, outputs : sequences of sequences of Buffer
            For each core of the executable, in order: in ``inputs``, the buffers that hold the
            core's inputs; in ``outputs``, the buffers that receive its outputs.

        Raises
        ------
        ValueError, MemoryError, RuntimeError
            As `run_placed`.
        """
        with self._fresh() as backend:
            if resident.displaced:
                raise ValueError("resident must not be displaced by another program: place its "
                                 "executable again")
            executable = resident.executable
            places = [*self._places(resident, "inputs", executable.inputs, inputs),
                      *self._places(resident, "outputs", executable.outputs, outputs)]
            self._prepare(backend)
            scratch = [spec for spec in executable.buffers if spec.role is Role.SCRATCH]
            with self._allocated(executable.name, scratch) as temporary:
                for name, buffer in (temporary | resident.buffers).items():
                    places += [(part, name, buffer) for part in range(len(resident.cores))]
                for part, name, buffer in places:
                    self._point(backend, resident, (part, name), buffer)
                yield Placed(resident.programs, {}, tuple)

    def _places(self, resident: Resident, what: str, specs: Sequence[BufferSpec],
                given: Sequence[Sequence[Buffer]]) -> list[tuple[int, str, Buffer]]:
        """Check the buffers ``given`` for the inputs or outputs ``specs`` of a run.

        Return (part, name in the executable, buffer) of each. A part is a core's position in
        ``resident.cores``. ``what`` is "inputs" or "outputs", for messages.
        """
        if [len(buffers) for buffers in given] != [len(specs)] * len(resident.cores):
            raise ValueError(f"{what} must be {len(specs)} buffers for each of "
                             f"{len(resident.cores)} cores, not "
                             f"{[len(buffers) for buffers in given]}")
        found = []
        for part, buffers in enumerate(given):
            for spec, buffer in zip(specs, buffers, strict=True):
                self._heap.check(buffer)
                needed = self._size(spec) // len(resident.cores)
                if buffer.size < needed:
                    raise ValueError(f"buffer of {spec.name} must have at least {needed} bytes, "
                                     f"not {buffer.size}")
                found.append((part, spec.name, buffer))
        return found

    def _point(self, backend: Backend, resident: Resident, key: tuple[int, str],
               buffer: Buffer) -> None:
        """Write a buffer's address to all words of constants that refer to this buffer.

        ``key`` has the position of the buffer's core in ``resident.cores``, and the buffer's name
        in the executable.
        """
        if resident._written.get(key) == buffer.address:
            return
        for addresses in resident._addresses.get(key, ()):
            constant = resident.buffers[addresses.relocations.buffer]
            with backend.write_hbm(*self._rows(constant, constant.size // self._config.row_bytes),
                                   keep=True) as rows:
                addresses.relocations.apply(rows, addresses.offsets,
                                            buffer.address - addresses.part_start)
        resident._written[key] = buffer.address

    def _relocations(self, executable: Executable,
                     constants: Sequence[BufferSpec]) -> list[_Addresses]:
        """Return the words of an executable's constants that hold addresses of buffers."""
        values = {spec.name: spec.value for spec in constants}
        layouts = {spec.name: spec.layout for spec in executable.buffers}
        cores = 1 + max((relocation.core for relocation in executable.relocations), default=0)
        found = []
        for relocation in executable.relocations:
            value = values[relocation.buffer]
            assert value is not None
            layout, part_start = layouts[relocation.target], 0
            if isinstance(layout, ShardedArray):
                part_start = relocation.core * layout.part.rows * self._config.row_bytes
            elif cores > 1 and executable.role(relocation.target) in (Role.INPUT, Role.OUTPUT):
                raise ValueError(f"{executable.name} must have a part of {relocation.target} for "
                                 f"each core, not one for both")
            found.append(_Addresses(relocation, part_start, relocation.offsets(value)))
        return found

    def _place_of(self, buffer: Buffer, layout: Layout) -> tuple[int, int]:
        """Check that ``buffer`` is large enough for an array in ``layout``.

        Return the number of the buffer's first row in HBM, and the array's number of rows.
        """
        self._heap.check(buffer)
        if layout.rows * self._config.row_bytes > buffer.size:
            raise ValueError(f"buffer must have at least {layout.rows * self._config.row_bytes} "
                             f"bytes, not {buffer.size}")
        return self._rows(buffer, layout.rows)

    def _size(self, spec: BufferSpec) -> int:
        return spec.layout.rows * self._config.row_bytes
