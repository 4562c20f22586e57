"""Compiler driver: compiles a graph to an executable.

Stages: passes, tilings of values, the plan (kernels, transfers, control flow), and overlays.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hdl.config import Config
from hdl.store import collecting_rarely
from sim.compiler.executable import Executable, Queues
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import Graph, Sharding, Value
from sim.compiler.graph.torus import Division, Torus
from sim.compiler.graph.verify import verify
from sim.compiler.kernels.elements.table import KINDS
from sim.compiler.machine.emit import forget
from sim.compiler.passes import run_passes
from sim.compiler.passes.streaming import stream_large
from sim.compiler.passes.streaming.queues import connect_queues
from sim.compiler.pod import PodArray, PodExecutable
from sim.compiler.program.arrays import View, tiled
from sim.compiler.program.check import check
from sim.compiler.program.code.overlay import overlay
from sim.compiler.program.code.reuse import times
from sim.compiler.program.code.transfers import Peer, Rows
from sim.compiler.program.compiled import Compiled, CoreCode
from sim.compiler.program.context import Context
from sim.compiler.program.control.halves import UndividedError, divide_updates
from sim.compiler.program.devices import (
    connect,
    exchanges,
    for_device,
    program_key,
    require_cores,
)
from sim.compiler.program.inputs import absorb, packable
from sim.compiler.program.launch.kernel import load_rules
from sim.compiler.program.launch.sums import connect_sums
from sim.compiler.program.order import hoist, overlap
from sim.compiler.program.planner import Planner
from sim.compiler.program.tilings import BARRIER, assign_tilings
from sim.errors import Unsupported, UnsupportedError

__all__ = ["compile_graph", "compile_pod", "pod_arrays"]

_DIVIDED = 16
"""An output with at least this number of vectors is written by both cores, a half by each."""
_DIVISIBLE = frozenset({"fusion", "transpose", *KINDS})
"""Kinds of operations whose kernels never store a result in HBM."""
_Plans = tuple[list["_Part"], tuple[bool, ...]]
"""Parts of a program, one for each device, and for each input whether it is packed."""

_SHARES = 1, 2, 4, 8
"""Values of n, tried in order: an operation's operands and results may take 1/n of vector memory.
"""


def compile_graph(graph: Graph, config: Config, *, name: str | None = None,
                  standard_inputs: bool = False, fed: Collection[int] = (),
                  outfeed: bool = False) -> Executable:
    """Compile a graph for one core, or for two if it has a sharding.

    Parameters
    ----------
    graph : Graph
        The computation; compilation changes the graph.
    config : Config
        The chip.
    name : str, optional
        Name of the program in messages; by default the graph's name.
    standard_inputs : bool
        True: inputs are in HBM already, in the standard tiling, and their addresses may change
        between runs. False: the host may reshape, transpose and pack inputs when it writes them,
        and kernels may start transfers of inputs themselves.
    fed : collection of int
        Numbers of inputs that the host writes batch by batch while a loop runs (`Queues`).
    outfeed : bool
        Whether each iteration of a loop writes its part of the stacked results to HBM, where the
        host can read it meanwhile (`Queues`).

    Returns
    -------
    Executable
        The program; its inputs and outputs are those of the graph, in the same order.

    Raises
    ------
    MemoryError
        If the operands and results of an operation do not fit vector memory together; the message
        lists all such operations, with the user's source lines. Also if the code cannot be split
        into segments that fit the chip's instruction and scalar memory.
    UnsupportedError
        If operations have no kernel; the message lists all of them, with the user's source lines.
        Also if no loop can have the infeed and outfeed that ``fed`` and ``outfeed`` require.
    ValueError
        If the chip has too few cores, or the graph is for a pod (`compile_pod`).
    """
    if graph.sharding is not None and graph.sharding.pod is not None:
        raise ValueError(f"{graph.name} must be compiled for a pod, by compile_pod")
    [made] = _compiled(graph, config, name or graph.name, standard_inputs, fed, outfeed)
    return made.executable()


def compile_pod(graph: Graph, config: Config, *, name: str | None = None,
                standard_inputs: bool = False) -> PodExecutable:
    """Compile a graph for all cores of a pod.

    Parameters
    ----------
    graph : Graph
        The computation, whose sharding says how arrays are divided between the pod's devices;
        compilation changes the graph.
    config : Config
        Configuration of each chip, with links.
    name : str, optional
        Name of the program in messages; by default the graph's name.
    standard_inputs : bool
        Whether inputs are in HBM already, in the standard tiling, as for `compile_graph`.

    Returns
    -------
    PodExecutable
        The program; its inputs and outputs are those of the graph, in the same order.

    Raises
    ------
    MemoryError, UnsupportedError
        As `compile_graph`. UnsupportedError also if the graph is not for the devices of a pod.
    ValueError
        If the chips have too few cores, or no links.
    """
    if graph.sharding is None or graph.sharding.pod is None:
        raise UnsupportedError([Unsupported(
            f"{name or graph.name}, which is not divided between the devices of a pod", "",
            "use jax.shard_map over a mesh of all its devices")])
    torus, title, arrays = graph.sharding.torus, name or graph.name, pod_arrays(graph)
    # Chips with the same code share an executable.
    made: dict[tuple[int, ...], Executable] = {}
    chips = tuple(made.setdefault(tuple(map(id, chip.cores)), chip.executable())
                  for chip in _compiled(graph, config, title, standard_inputs))
    return PodExecutable(config, title, torus, chips, *arrays)


def pod_arrays(graph: Graph) -> tuple[tuple[PodArray, ...], tuple[PodArray, ...]]:
    """Return the inputs and the outputs of a graph for a pod, before the graph is compiled."""
    sharding = graph.sharding
    assert sharding is not None
    assert sharding.pod is not None
    inputs, outputs = (
        tuple(_pod_array(f"{kind}{number}", value, division, dimension is not None)
              for number, (value, division, dimension) in enumerate(zip(
                  values, divisions, dimensions, strict=True)))
        for kind, values, divisions, dimensions in (
            ("input", graph.inputs, sharding.pod.inputs, sharding.inputs),
            ("output", graph.outputs, sharding.pod.outputs, sharding.outputs)))
    return inputs, outputs


def _pod_array(name: str, value: Value, division: Division | None, stacked: bool) -> PodArray:
    """Describe the host's array of which ``value`` is one device's part."""
    return PodArray(name, division.shape(value.shape) if division else value.shape,
                    array_dtype(value.dtype), division, stacked)


@collecting_rarely()
def _compiled(graph: Graph, config: Config, title: str, standard_inputs: bool = False,
              fed: Collection[int] = (), outfeed: bool = False) -> list[Compiled]:
    """Return the program of each chip; the parameters are those of `compile_graph`."""
    require_cores(graph, config)
    load_rules()
    run_passes(graph, config)
    check(graph, config)
    types = [value.type for value in graph.inputs]
    queues = connect_queues(graph, sorted(fed), outfeed, config) if fed or outfeed else None
    views = list[View](((),) * len(types) if standard_inputs else absorb(graph, fed))
    for number in fed:
        types[number] = replace(types[number], shape=types[number].shape[1:])
        views[number] = (("reshape", graph.inputs[number].shape[1:]),)
    outputs = tuple(value.type for value in graph.outputs)
    sharding = graph.sharding or Sharding((None,) * len(types), (None,) * len(outputs))
    try:
        parts, packed = _plans(graph, config, sharding, standard_inputs, queues)
    finally:
        forget()
    codes = _codes(parts, config, sharding.torus, title, (len(types), len(outputs)))
    return [Compiled(config, title, tuple(types), outputs, replace(sharding, pod=None),
                     tuple(codes[device] for device in chip), tuple(views), packed, queues)
            for chip in (sharding.torus.by_chip if len(codes) > 1 else [(0,)])]


@dataclass(frozen=True)
class _Part:
    """A device's part of a program.

    Attributes
    ----------
    planner : Planner
        The plan of the part.
    exchanges : dict
        The result of `sim.compiler.program.devices.exchanges`.
    """

    planner: Planner
    exchanges: Mapping[int, tuple[int, Peer]]


def _codes(parts: Sequence[_Part], config: Config, torus: Torus, title: str,
           counts: tuple[int, int]) -> tuple[CoreCode, ...]:
    """Return the code of each device, split into segments.

    Devices whose code is the same share it. ``parts`` has the devices' parts of the program,
    ``torus`` is the torus of their chips, ``title`` is the program's name, and ``counts`` are the
    numbers of inputs and outputs.
    """
    linear = {part.planner: part.planner.context.stream.finish() for part in parts}
    connect_sums([part.planner.launcher.sums for part in parts], torus)
    shared, made, found = dict[Hashable, CoreCode](), dict[Hashable, CoreCode](), []
    for device, part in enumerate(parts):
        launcher, constants = part.planner.launcher, part.planner.context.constants.words(device)
        code = connect(linear[part.planner], {
            number: (launcher.sent.get(number), peer,
                     parts[target].planner.launcher.received[number])
            for number, (target, peer) in part.exchanges.items()})
        key = part.planner, code.descriptors
        if key not in shared:
            overlays, loads = overlay(code, constants, config, title, launcher.records.added)
            places = part.planner.context.places
            shared[key] = CoreCode(overlays, places.scratch_rows,
                                   launcher.records.finish(code, loads),
                                   times(code, places.memory.reads, *counts), launcher.sums.made)
        own = *key, constants.tobytes()
        if own not in made:
            made[own] = shared[key].with_constants(constants)
        found.append(made[own])
    return tuple(found)


def _plans(graph: Graph, config: Config, sharding: Sharding, standard_inputs: bool,
           queues: Queues | None) -> _Plans:
    """Plan the programs of all devices; retry with smaller blocks if kernels lack vector memory.

    Devices that execute the same operations share a plan.

    ``sharding`` says how the host's arrays are split between cores, and ``queues`` has the infeed
    and outfeed, if any. With ``standard_inputs``, inputs may not be packed, nor may kernels start
    transfers of inputs themselves. Also return, for each input, whether it is packed.
    """
    failure: MemoryError | None = None
    try:
        for share in _SHARES:
            blocks = graph.copy()
            stream_large(blocks, config, share)
            verify(blocks)
            try:
                return _fitting(partial(_planned, blocks, config, sharding, standard_inputs,
                                        queues))
            except MemoryError as error:
                failure = failure or error
        assert failure is not None
        raise failure
    finally:
        # Its traceback refers to this frame, and so to all objects of the attempt.
        failure = None


def _fitting(plan: Callable[..., _Plans]) -> _Plans:
    """Return the result of ``plan``, which is `_planned` with all arguments but its options.

    If an update cannot be divided between the cores, it is planned again without. If joined kernels
    make a loop outgrow instruction memory, it is planned once more, with fewer joined kernels.
    Raises MemoryError if kernels lack vector memory.
    """
    try:
        planned = plan()
    except UndividedError:
        planned = None
    if planned is None:
        plan = partial(plan, divide=False)
        planned = plan()
    if any(part.planner.outgrows for part in planned[0]):
        compact = plan(compact=True)
        if not any(part.planner.outgrows for part in compact[0]):
            return compact
    return planned


def _planned(graph: Graph, config: Config, sharding: Sharding, standard_inputs: bool,
             queues: Queues | None, *, compact: bool = False, divide: bool = True
             ) -> _Plans:
    """Plan the programs of all devices once, for a graph that `_plans` has divided into blocks.

    The result is that of `_plans`; ``compact`` is `Context.compact`. With ``divide``, updates are
    divided between the cores of a chip. Raises MemoryError if kernels lack vector memory, and
    UndividedError if an update cannot be divided.
    """
    # The row numbers in transfers that kernels start themselves have 32 bits.
    own_transfers = not standard_inputs and config.hbm_rows <= 1 << 32
    graph, halved = graph.copy(), set[Value]()
    if graph.sharding is not None and graph.sharding.pod is not None:
        overlap(graph, graph.sharding.torus, config)
    elif graph.sharding is not None:
        hoist(graph, config)
        if divide:
            halved = divide_updates(graph, config)
    packed = packable(graph, config, inputs=not standard_inputs)
    writers = _writers(graph, sharding.outputs, range(len(graph.outputs))
                       if graph.sharding is None else () if queues is None
                       else queues.outputs, config, halved)
    # Recorded here, because planning removes inputs without elements.
    flags = tuple(value in packed for value in graph.inputs)
    graphs = [graph] if graph.sharding is None else [
        for_device(graph, device) for device in range(graph.sharding.torus.devices)]
    planners, parts = dict[Hashable, Planner](), []
    programs = [program_key(part) for part in graphs]
    alike = len(set(programs)) == 1
    for device, part in enumerate(graphs):
        core, *_ = sharding.torus.place(device)
        key, sent = (core, programs[device]), exchanges(part)
        if key not in planners:
            planners[key] = _plan(part, config, sharding, core, (own_transfers, alike, compact),
                                  packed, queues, writers)
        parts.append(_Part(planners[key], sent))
    return parts, flags


def _plan(graph: Graph, config: Config, sharding: Sharding, core: int,
          options: tuple[bool, bool, bool], packed: Collection[Value], queues: Queues | None,
          writers: Sequence[Sequence[range]]) -> Planner:
    """Plan one core's program; this changes the graph.

    ``sharding`` says how the host's arrays are split between cores, and ``queues`` has the infeed
    and outfeed, if any. ``options`` are `Context.own_transfers`, `Context.alike` and
    `Context.compact`. ``packed`` are the packed inputs and constants. ``writers`` is the result of
    `_writers`.
    """
    arguments = _rows("input", graph.inputs, sharding.inputs, core, config, packed)
    if queues is not None:
        for number in queues.inputs:
            value = graph.inputs[number]
            slots = Value(replace(value.type, shape=(queues.slots, *value.shape[1:])))
            [rows] = _rows("input", [slots], [sharding.inputs[number]], core, config)
            arguments[number] = replace(rows, buffer=f"input{number}")
    results = [rows if parts[core] else None for rows, parts in zip(
        _rows("output", graph.outputs, sharding.outputs, core, config), writers, strict=True)]
    divided = {rows: parts[core] for rows, parts in zip(results, writers, strict=True)
               if rows is not None and all(parts) and parts[0] != parts[1]}
    given, wanted = _with_elements(graph.inputs), _with_elements(graph.outputs)
    # Values without elements have no rows in HBM, and no vectors.
    graph.inputs = [graph.inputs[number] for number in given]
    graph.outputs = [graph.outputs[number] for number in wanted]
    graph.operations = [operation for operation in graph.operations if operation.kind == BARRIER
                        or any(value.type.size for value in operation.results)]
    planner = Planner(Context(config, assign_tilings(graph, config, packed), *options))
    planner.program(graph, [arguments[number] for number in given],
                    [results[number] for number in wanted], divided)
    return planner


def _writers(graph: Graph, cuts: Sequence[int | None], fixed: Collection[int], config: Config,
             halved: Collection[Value] = ()) -> list[tuple[range, range]]:
    """Return, for each output of a graph, the vectors that each core writes.

    ``cuts`` has the dimension along which each output is split; None if it is not. Of an output
    that is split, each core writes its part. Both cores compute the other outputs. Of an output
    that both compute, each writes a half if it is large and an operation in `_DIVISIBLE` makes it.
    Each remaining output is written by one core, so that both cores write about as many vectors.
    Of the outputs in ``halved``, each core writes the vectors that it has computed.
    Core 0 writes the outputs with the numbers ``fixed``: those that the host reads early, or all if
    the program has one core.
    """
    makers = {value: operation.kind for operation in graph.operations
              for value in operation.results}
    sizes = [tiled(value.type, config).rows // config.sublanes for value in graph.outputs]
    found = [(range(size), range(size)) for size in sizes]
    written = [0, 0]
    for number in sorted((number for number, dimension in enumerate(cuts) if dimension is None),
                         key=lambda number: (number not in fixed, -sizes[number])):
        size = sizes[number]
        half = size // 2
        if graph.outputs[number] in halved:
            continue
        if (number not in fixed and size >= _DIVIDED
                and makers.get(graph.outputs[number]) in _DIVISIBLE):
            found[number] = range(half), range(half, size)
            continue
        core = 0 if number in fixed or written[0] <= written[1] else 1
        found[number] = (range(size), range(0)) if core == 0 else (range(0), range(size))
        written[core] += size
    return found


def _with_elements(values: Sequence[Value]) -> list[int]:
    return [number for number, value in enumerate(values) if value.type.size]


def _rows(name: str, values: Sequence[Value], cuts: Sequence[int | None], core: int,
          config: Config, packed: Collection[Value] = ()) -> list[Rows]:
    """Return the rows of HBM that hold a core's part of each input or output.

    The buffers are called ``name`` and a number. ``values`` are the inputs or outputs, and
    ``packed`` contains those that are packed. ``cuts`` has the dimension along which each value is
    split between the cores; None if it is not.
    """
    return [Rows(f"{name}{number}", 0 if dimension is None else
                 core * tiled(value.type, config, packed=value in packed).rows)
            for number, (value, dimension) in enumerate(zip(values, cuts, strict=True))]
