"""The compiler's driver: a graph becomes an executable.

Stages: tilings of values, the plan (kernels, transfers, control flow), and overlays.
"""

from collections.abc import Mapping

import numpy as np

from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable, Relocations, Role
from sim.compiler.graph.ir import Graph
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
        What to compute; it is changed. No value may be without elements.
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
    tilings = assign_tilings(graph, config)
    planner = Planner(config, tilings)
    inputs = [f"input{number}" for number in range(len(graph.inputs))]
    outputs = [f"output{number}" for number in range(len(graph.outputs))]
    planner.program(graph, [Rows(buffer, 0) for buffer in inputs],
                    [Rows(buffer, 0) for buffer in outputs])
    overlays = overlay(planner.stream.finish(), planner.constants, config, title)
    specs = [BufferSpec(buffer, role, tiled(value.type, config))
             for role, names, values in ((Role.INPUT, inputs, graph.inputs),
                                         (Role.OUTPUT, outputs, graph.outputs))
             for buffer, value in zip(names, values, strict=True)]
    rows = overlays.rows
    specs.append(BufferSpec(CODE, Role.CONSTANT, RawRows(len(rows), config.lanes), rows))
    if planner.places.scratch_rows:
        specs.append(BufferSpec(SCRATCH, Role.SCRATCH,
                                RawRows(planner.places.scratch_rows, config.lanes)))
    return Executable(config, title, tuple(specs), _Link(overlays), 0, _relocations(overlays))


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
