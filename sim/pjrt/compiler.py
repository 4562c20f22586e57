"""Compiles the programs that JAX passes to the plugin, and describes them to JAX."""

import hashlib
from dataclasses import dataclass

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import TensorType
from sim.compiler.graph.torus import Torus
from sim.compiler.importer.entry import Entry, read_entry
from sim.compiler.importer.importer import import_for_devices
from sim.compiler.importer.module import read
from sim.compiler.pod import PodExecutable
from sim.compiler.program.cache import compile_cached, compile_pod_cached
from sim.compiler.program.compiled import Compiled, compiled_of
from sim.pjrt.options import Assignment, read_assignment
from sim.pjrt.types import number_of

__all__ = ["Program", "compile_program"]


@dataclass(frozen=True)
class Program:
    """A compiled program of JAX.

    Attributes
    ----------
    executable : Executable or PodExecutable
        The compiled program.
    assignment : Assignment
        The devices that run the program.
    entry : Entry
        Name, donated arguments and shardings of the program's entry function.
    code : bytes
        The source: the portable artifact that JAX passed.
    """

    executable: Executable | PodExecutable
    assignment: Assignment
    entry: Entry
    code: bytes

    @property
    def chips(self) -> tuple[Compiled, ...]:
        """The compiled program of each chip, in the order of the chips' numbers."""
        if isinstance(self.executable, Executable):
            return (compiled_of(self.executable),)
        return tuple(map(compiled_of, self.executable.chips))

    @property
    def types(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Tensor types of the inputs, and of the outputs, of the program on one device."""
        return self.chips[0].inputs, self.chips[0].outputs

    def numbers(self, target: int) -> list[int]:
        """Return the numbers that describe the program to the plugin's C++ library.

        ``Executable::fill`` (executables.cpp) reads them: devices, donated arguments, types of
        outputs.

        ``target`` is the number under which the program is registered (`Chips.add`).
        """
        chips, outputs = self.chips, self.types[1]
        size = sum(code.overlays.rows.nbytes for chip in chips for code in chip.cores)
        numbers = [target, self.assignment.replicas, self.assignment.partitions, size,
                   len(self.assignment.devices), *self.assignment.devices,
                   len(self.entry.donated), *self.entry.donated, len(outputs)]
        for type in outputs:
            numbers += [number_of(type.dtype), len(type.shape), *type.shape]
        return numbers

    def texts(self) -> list[bytes]:
        """Return the texts for ``systolith_answer``: name, fingerprint, program, assignment."""
        program = self.entry.outline or self.code
        return [self.entry.name.encode(), hashlib.sha256(self.code).hexdigest().encode(), program,
                self.assignment.serialize()]


def compile_program(code: bytes, options: bytes, config: Config, torus: Torus) -> Program:
    """Compile a program for the devices that the options name.

    Parameters
    ----------
    code : bytes
        A portable artifact of StableHLO.
    options : bytes
        A serialized CompileOptionsProto.
    config : Config
        The chip, or each chip of the pod.
    torus : Torus
        The torus of the pod; without one, a torus of one chip.

    Raises
    ------
    MemoryError
        If the program does not fit the chip's memories.
    UnsupportedError
        If the program has unsupported parts; the message lists all of them.
    ValueError
        If the program is for more devices than there are, or its devices are neither one core, nor
        the cores of one chip, nor all cores.
    """
    assignment = read_assignment(options)
    count = assignment.replicas * assignment.partitions
    if not assignment.devices:
        assignment = Assignment(assignment.replicas, assignment.partitions, tuple(range(count)))
    where = _torus(assignment.devices, config, torus)
    graph, module = import_for_devices(read(code), where)
    entry = read_entry(module, count)
    executable = (
        compile_cached(graph, config, name=entry.name, standard_inputs=True)
        if where is None or where.chips == 1 else
        compile_pod_cached(graph, config, name=entry.name, standard_inputs=True))
    return Program(executable, assignment, entry, code)


def _torus(devices: tuple[int, ...], config: Config, torus: Torus) -> Torus | None:
    """Return the torus of a program's devices; None if the program has a single device, a core.

    ``devices`` may have any order.

    Raises
    ------
    ValueError
        If the devices are neither a core, nor the cores of a chip, nor all cores of the torus.
    """
    count, cores = len(devices), config.cores
    if count > cores * torus.chips:
        where = "chip" if torus.chips == 1 else "pod"
        raise ValueError(f"program must be for at most {cores * torus.chips} devices, not {count}: "
                         f"each device is a core of the {where}")
    if count == 1:
        return None
    if count == cores and len({device // cores for device in devices}) == 1:
        return Torus()
    if count == cores * torus.chips:
        return Torus(torus.width, torus.height,
                     () if devices == tuple(range(count)) else devices)
    raise ValueError(f"devices of a mesh must be the cores of one chip, or all "
                     f"{cores * torus.chips} cores of the pod, not {list(devices)}")
