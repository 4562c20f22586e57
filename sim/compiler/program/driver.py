"""The compiler's driver: a graph becomes an executable.

Stages: passes, tilings of values, the plan (kernels, transfers, control flow), and overlays.
"""

from collections.abc import Sequence

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph, Value
from sim.compiler.passes import run_passes
from sim.compiler.program.compiled import Compiled
from sim.compiler.program.overlay import overlay
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
    return Compiled(config, title, tuple(value.type for value in arguments),
                    tuple(value.type for value in results), overlays,
                    planner.places.scratch_rows, tuple(planner.kernels)).executable()


def _rows(buffers: Sequence[str], values: Sequence[Value]) -> list[Rows]:
    """Where values with elements lie."""
    return [Rows(buffer, 0) for buffer, value in zip(buffers, values, strict=True)
            if value.type.size]
