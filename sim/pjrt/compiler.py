"""Compiles the programs that JAX passes to the plugin, and describes them to JAX."""

import hashlib
from dataclasses import dataclass

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import TensorType
from sim.compiler.importer.entry import Entry, read_entry
from sim.compiler.importer.importer import import_for_devices
from sim.compiler.importer.module import read
from sim.compiler.program.cache import compile_cached
from sim.compiler.program.compiled import compiled_of
from sim.pjrt.options import Assignment, read_assignment
from sim.pjrt.types import number_of

__all__ = ["Program", "compile_program"]


@dataclass(frozen=True)
class Program:
    """A compiled program of JAX.

    Attributes
    ----------
    executable : Executable
        The compiled program.
    assignment : Assignment
        The devices that run the program.
    entry : Entry
        Name, donated arguments and shardings of the program's entry function.
    code : bytes
        The source: the portable artifact that JAX passed.
    """

    executable: Executable
    assignment: Assignment
    entry: Entry
    code: bytes

    @property
    def types(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Tensor types of the inputs, and of the outputs, of the program on one device."""
        compiled = compiled_of(self.executable)
        return compiled.inputs, compiled.outputs

    def numbers(self, target: int) -> list[int]:
        """Return the numbers that ``Executable::fill`` (executables.cpp) reads.

        ``target`` is the number under which the program is registered (`Chip.add`).
        """
        compiled = compiled_of(self.executable)
        size = sum(code.overlays.rows.nbytes for code in compiled.cores)
        numbers = [target, self.assignment.replicas, self.assignment.partitions, size,
                   len(self.assignment.devices), *self.assignment.devices,
                   len(self.entry.donated), *self.entry.donated, len(compiled.outputs)]
        for type in compiled.outputs:
            numbers += [number_of(type.dtype), len(type.shape), *type.shape]
        return numbers

    def texts(self) -> list[bytes]:
        """Return the texts for ``systolith_answer``: name, fingerprint, program, assignment."""
        program = self.entry.outline or self.code
        return [self.entry.name.encode(), hashlib.sha256(self.code).hexdigest().encode(), program,
                self.assignment.serialize()]


def compile_program(code: bytes, options: bytes, config: Config) -> Program:
    """Compile a program for the devices that the options name.

    Parameters
    ----------
    code : bytes
        A portable artifact of StableHLO.
    options : bytes
        A serialized CompileOptionsProto.
    config : Config
        The chip.

    Raises
    ------
    MemoryError
        If the program does not fit the chip's memories.
    UnsupportedError
        If the program has unsupported parts; the message lists all of them.
    ValueError
        If the program is for more devices than the chip has cores.
    """
    assignment = read_assignment(options)
    count = assignment.replicas * assignment.partitions
    if count > config.cores:
        raise ValueError(f"program must be for at most {config.cores} devices, the cores of the "
                         f"chip, not {count}")
    if not assignment.devices:
        assignment = Assignment(assignment.replicas, assignment.partitions, tuple(range(count)))
    graph, module = import_for_devices(read(code), count)
    entry = read_entry(module, count)
    executable = compile_cached(graph, config, name=entry.name, standard_inputs=True)
    return Program(executable, assignment, entry, code)
