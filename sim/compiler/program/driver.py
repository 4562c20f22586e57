"""The compiler's driver: a graph becomes an executable.

Stages: passes, tilings of values, the plan (kernels, transfers, control flow), and overlays.
"""

from collections.abc import Sequence

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph, Sharding, Value
from sim.compiler.graph.verify import verify
from sim.compiler.machine.emit import forget
from sim.compiler.passes import run_passes
from sim.compiler.passes.streaming import stream_large
from sim.compiler.program.arrays import tiled
from sim.compiler.program.check import check
from sim.compiler.program.code.overlay import overlay
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.compiled import Compiled, CoreCode
from sim.compiler.program.context import Context
from sim.compiler.program.devices import connect, for_device, hoist, require_cores
from sim.compiler.program.inputs import absorb
from sim.compiler.program.launch.kernel import load_rules
from sim.compiler.program.planner import Planner
from sim.compiler.program.tilings import assign_tilings

__all__ = ["compile_graph"]

_SHARES = 1, 2, 4, 8
"""Fractions of vector memory that an operation's operands and results may take, tried in turn."""


def compile_graph(graph: Graph, config: Config, *, name: str | None = None,
                  standard_inputs: bool = False) -> Executable:
    """Compile a graph for one core, or for two if it has a sharding.

    Parameters
    ----------
    graph : Graph
        What to compute; it is changed.
    config : Config
        The chip.
    name : str, optional
        Name of the program in messages; the graph's, if not given.
    standard_inputs : bool
        Inputs have the standard tiling, because they are in HBM already, and their addresses may
        change between runs. Otherwise the host may lay them out in another way, and kernels may
        start their transfers.

    Returns
    -------
    Executable
        Inputs and outputs are those of the graph, in order.

    Raises
    ------
    MemoryError
        If the operands and results of operations do not fit vector memory together: all such
        operations, with the user's lines; or if no segment of the code fits the chip's memories.
    UnsupportedError
        If no kernels can be written for operations: all of them, with the user's lines.
    ValueError
        If the chip has too few cores.
    """
    title = name or graph.name
    require_cores(graph, config)
    load_rules()
    run_passes(graph, config)
    check(graph, config)
    inputs = tuple(value.type for value in graph.inputs)
    views = ((),) * len(inputs) if standard_inputs else absorb(graph)
    sharding = graph.sharding or Sharding((None,) * len(graph.inputs), (None,) * len(graph.outputs))
    outputs = tuple(value.type for value in graph.outputs)
    # Kernels' own transfers take numbers of rows, of 32 bits.
    own_transfers = not standard_inputs and config.hbm_rows <= 1 << 32
    try:
        planners = _plans(graph, config, sharding, own_transfers)
    finally:
        forget()
    codes = [planner.context.stream.finish() for planner in planners]
    if len(planners) == 2:
        codes = [connect(code, other.launcher.received)
                 for code, other in zip(codes, reversed(planners), strict=True)]
    cores = tuple(
        CoreCode(overlay(code, planner.context.constants.words, config, title),
                 planner.context.places.scratch_rows, tuple(planner.launcher.records))
        for code, planner in zip(codes, planners, strict=True))
    return Compiled(config, title, inputs, outputs, sharding, cores, views).executable()


def _plans(graph: Graph, config: Config, sharding: Sharding,
           own_transfers: bool) -> list[Planner]:
    """Plan the programs of all cores: with smaller blocks, if kernels need more room."""
    failure: MemoryError | None = None
    for share in _SHARES:
        blocks = graph.copy()
        stream_large(blocks, config, share)
        verify(blocks)
        if blocks.sharding is not None:
            hoist(blocks)
        graphs = [blocks] if blocks.sharding is None else [
            for_device(blocks, core) for core in (0, 1)]
        try:
            return [_plan(part, config, sharding, core, own_transfers)
                    for core, part in enumerate(graphs)]
        except MemoryError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _plan(graph: Graph, config: Config, sharding: Sharding, core: int,
          own_transfers: bool) -> Planner:
    """Plan the program of a core; the graph is changed."""
    arguments = _rows("input", graph.inputs, sharding.inputs, core, config)
    # What both cores have, core 0 writes.
    results = [None if core and dimension is None else rows for rows, dimension in zip(
        _rows("output", graph.outputs, sharding.outputs, core, config), sharding.outputs,
        strict=True)]
    given, wanted = _with_elements(graph.inputs), _with_elements(graph.outputs)
    # Values without elements have no place.
    graph.inputs = [graph.inputs[number] for number in given]
    graph.outputs = [graph.outputs[number] for number in wanted]
    graph.operations = [operation for operation in graph.operations
                        if any(value.type.size for value in operation.results)]
    planner = Planner(Context(config, assign_tilings(graph, config), own_transfers))
    planner.program(graph, [arguments[number] for number in given],
                    [results[number] for number in wanted])
    return planner


def _with_elements(values: Sequence[Value]) -> list[int]:
    return [number for number, value in enumerate(values) if value.type.size]


def _rows(name: str, values: Sequence[Value], cuts: Sequence[int | None], core: int,
          config: Config) -> list[Rows]:
    """Where a core's parts of inputs or outputs lie."""
    return [Rows(f"{name}{number}",
                 core * tiled(value.type, config).rows if dimension is not None else 0)
            for number, (value, dimension) in enumerate(zip(values, cuts, strict=True))]
