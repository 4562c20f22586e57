"""The compiler's driver: a graph becomes an executable.

Stages: passes, tilings of values, the plan (kernels, transfers, control flow), and overlays.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable, Relocations, Role
from sim.compiler.graph.ir import Graph, Value
from sim.compiler.passes import run_passes
from sim.compiler.program.arrays import RawRows, tiled
from sim.compiler.program.overlay import CODE, Overlays, overlay
from sim.compiler.program.places import SCRATCH
from sim.compiler.program.planner import Planner
from sim.compiler.program.tilings import assign_tilings
from sim.compiler.program.transfers import Rows

__all__ = ["compile_graph"]


def compile_graph(graph: Graph, config: Config, *, name: str | None = None) -> Executable:
    """Compile a graph for one core.

    Parameters
    ----------
    graph : Graph
        What to compute; it is changed.
    config : Config
        The chip.
    name : str, optional
        Name of the program in messages; the graph's, if not given.

    Returns
    -------
    Executable
        Inputs and outputs are those of the graph, in order.

    Raises
    ------
    MemoryError
        If an operation's operands and results do not fit vector memory together, or no segment of
        the code fits the chip's memories.
    NotImplementedError
        If an operation has no lowering rule.
    """
    title = name or graph.name
    run_passes(graph, config)
    arguments, results = graph.inputs, graph.outputs
    # Values without elements have no place.
    graph.inputs = [value for value in arguments if value.type.size]
    graph.outputs = [value for value in results if value.type.size]
    graph.operations = [operation for operation in graph.operations
                        if any(value.type.size for value in operation.results)]
    tilings = assign_tilings(graph, config)
    planner = Planner(config, tilings)
    inputs = [f"input{number}" for number in range(len(arguments))]
    outputs = [f"output{number}" for number in range(len(results))]
    planner.program(graph, _rows(inputs, arguments), _rows(outputs, results))
    overlays = overlay(planner.stream.finish(), planner.constants, config, title)
    specs = [BufferSpec(buffer, role, tiled(value.type, config))
             for role, names, values in ((Role.INPUT, inputs, arguments),
                                         (Role.OUTPUT, outputs, results))
             for buffer, value in zip(names, values, strict=True)]
    rows = overlays.rows
    specs.append(BufferSpec(CODE, Role.CONSTANT, RawRows(len(rows), config.lanes), rows))
    if planner.places.scratch_rows:
        specs.append(BufferSpec(SCRATCH, Role.SCRATCH,
                                RawRows(planner.places.scratch_rows, config.lanes)))
    return Executable(config, title, tuple(specs), _Link(overlays), 0, _relocations(overlays))


def _rows(buffers: Sequence[str], values: Sequence[Value]) -> list[Rows]:
    """Where values with elements lie."""
    return [Rows(buffer, 0) for buffer, value in zip(buffers, values, strict=True)
            if value.type.size]


def _relocations(overlays: Overlays) -> tuple[Relocations, ...]:
    words: dict[str, list[int]] = {}
    for word, buffer in overlays.relocations:
        words.setdefault(buffer, []).append(word)
    return tuple(Relocations(CODE, np.array(places, np.int64), buffer)
                 for buffer, places in words.items())


class _Link:
    """Makes the program that loads the first segment."""

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays

    def __call__(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        return {0: self._overlays.program(addresses[CODE])}
