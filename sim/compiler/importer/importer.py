"""Converts a StableHLO module to a graph."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Location, TensorType, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.graph.verify import verify
from sim.compiler.importer.advice import advice_for_operation, advice_for_type
from sim.compiler.importer.attributes import python
from sim.compiler.importer.entry import Divisions, entry_divisions, entry_function
from sim.compiler.importer.locations import location_of
from sim.compiler.importer.module import read
from sim.compiler.importer.rules import RULES
from sim.compiler.importer.scope import Scope
from sim.compiler.importer.sharding.collectives import (
    COLLECTIVES,
    Team,
    device_groups,
    device_number,
    is_reducer,
)
from sim.compiler.importer.sharding.partition import ALL_REDUCE, RESHARD, Mesh, partition
from sim.compiler.importer.sharding.propagation import Cuts, Propagated, ShardingError, propagate
from sim.compiler.importer.sharding.shards import Shards, advice, manual_axes, module_devices
from sim.compiler.importer.wide import Range, narrow, range_of
from sim.compiler.passes.canonicalize import canonicalize
from sim.compiler.passes.expand_elements import expand_elements
from sim.compiler.passes.expansion import Expansion
from sim.compiler.program.check import without_kernel
from sim.errors import Unsupported, UnsupportedError

__all__ = ["import_for_devices", "import_stablehlo"]

_DTYPES = {dtype.value: dtype for dtype in DType} | {"si32": DType.S32}
_WIDE = ("i64", "ui64")
_CHIP = Torus()
_IDENTITIES = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement"})
"""Custom calls that do no more than return their operand when there is one device."""


def import_stablehlo(source: Any, torus: Torus = _CHIP) -> Graph:
    """Convert a StableHLO program to a graph.

    Calls are inlined. Values that a region reads from the program around it become operands of the
    region's operation. Integers of 64 bits whose values fit 32 bits get a type of 32 bits.
    Operations keep the user's source lines.

    Parameters
    ----------
    source : str, bytes, pathlib.Path, or jaxlib.mlir.ir.Module
        The program: text; bytecode or a portable artifact; the path of a file that contains either;
        or a module.
    torus : Torus
        The chips whose cores are the program's devices; by default, one chip.

    Returns
    -------
    Graph
        The verified graph; its inputs and outputs are those of the function ``main``, or of the
        only public function.

    Raises
    ------
    ImportError
        If jaxlib is not installed.
    TypeError
        If ``source`` has another type.
    UnsupportedError
        If the program has unsupported parts; the message lists all of them.
    ValueError
        If the source is not a StableHLO program.
    """
    return _Importer(read(source), torus, divides=torus.chips == 1).run()


def import_for_devices(module: Any, torus: Torus | None) -> tuple[Graph, Any]:
    """Convert a module that `sim.compiler.importer.module.read` returned.

    With several devices, each has inputs and outputs of its own: its parts of the function's
    arguments and results, as their shardings specify. If `partition` can divide the program, each
    device computes its part of it. Otherwise the devices exchange their parts of the arguments, and
    all compute everything.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The program.
    torus : Torus or None
        The chips whose cores are the devices; None for one device.

    Returns
    -------
    graph : Graph
        The verified graph.
    module : jaxlib.mlir.ir.Module
        The program that was imported. If it was divided, a copy whose function has the shardings of
        all arguments and results; otherwise ``module`` itself.

    Raises
    ------
    UnsupportedError
        If the program has unsupported parts; the message lists all of them.
    ValueError
        If the program is malformed.
    """
    if torus is None:
        return _Importer(module).run(), module
    try:
        divided = read(module)
        return _Importer(divided, torus, per_device=True, divides=True).run(), divided
    except (UnsupportedError, ShardingError):
        return _Importer(module, torus, per_device=True, divides=False).run(), module


@dataclass
class _Importer:
    """Converts a module to a graph; methods append operations to the graph of ``scope``."""

    module: Any
    torus: Torus = _CHIP
    per_device: bool = False
    divides: bool = True
    found: list[Unsupported] = field(default_factory=list)
    ranges: dict[Value, Range] = field(default_factory=dict)
    inside: bool = False
    """Whether the importer is inside a ``manual_computation``, the program of one device."""
    cut: dict[Value, Cuts] = field(default_factory=dict)
    """In a global program with shardings, how each value is split."""

    def run(self) -> Graph:
        name, functions = entry_function(self.module)
        self.functions = functions
        self.shards = Shards(self.module, self.torus)
        self.advice = advice(self.torus)
        self.divided = self.propagated(functions[name].operation) if self.divides else None
        self.partitions, self.replicas = module_devices(self.module)
        self.parts: tuple[Divisions, Divisions] | None = None
        if self.per_device and self.divided is None:
            self.shards.stacked = True
            if self.partitions > 1:
                self.parts = entry_divisions(functions[name], self.module, self.partitions)
        graph = Graph(name=name)
        scope = Scope(graph, self.ranges)
        [block] = functions[name].regions[0].blocks
        for number, argument in enumerate(block.arguments):
            type = self.type(argument.type, f"argument {number}", None)
            value = None if type is None else Value(type, f"arg{number}")
            scope.define(argument, None if value is None else self.input(value, number, graph))
        outputs = self.block(block, scope, None)
        if self.found:
            raise UnsupportedError([*self.found, *_later_refusals(graph)])
        graph.outputs = [self.output(value, number, graph) for number, value in enumerate(outputs)
                         if value is not None]
        self.shards.finish(graph)
        if self.divided is not None:
            self.divide(graph, functions[name])
        verify(graph)
        return graph

    def divide(self, graph: Graph, function: Any) -> None:
        """Turn ``graph``, a program on whole arrays, into the program of one device on its parts.

        ``function`` is the entry function, whose shardings say which parts a device has.
        """
        assert self.divided is not None
        mesh = Mesh(self.divided.axes, self.torus)
        found, *cuts = partition(graph, self.cut, mesh)
        if found:
            raise UnsupportedError(found)
        made = [[mesh.division(len(value.shape), cut) for value, cut in zip(
            values, parts, strict=True)]
            for values, parts in zip((graph.inputs, graph.outputs), cuts, strict=True)]
        if not self.per_device:
            if any(cut != mesh.whole for cut in (*self.cut.values(), *cuts[1])):
                graph.sharding = self.shards.sharding(*made)
            return
        wanted = entry_divisions(function, self.module, self.torus.devices)
        if list(map(list, wanted)) != made:
            raise UnsupportedError([Unsupported(
                "an argument or result whose sharding in the program's entry function differs "
                "from the sharding with which it is computed", "", self.advice)])
        self.shards.stack(graph)

    # Refusals

    def refuse(self, what: str, location: Location | None, advice: str) -> None:
        self.found.append(Unsupported(what, str(location or ""), advice))

    def type(self, type: Any, what: str, location: Location | None) -> TensorType | None:
        """Convert the MLIR type of the value that messages call ``what``; None if it is refused."""
        from jaxlib.mlir import ir

        name = str(type.element_type) if isinstance(type, ir.RankedTensorType) else str(type)
        static = isinstance(type, ir.RankedTensorType) and type.has_static_shape
        if static and name in _DTYPES:
            return TensorType(tuple(type.shape), _DTYPES[name])
        if isinstance(type, ir.RankedTensorType) and not static:
            name = "?"
            self.refuse(f"{what} of the dynamic shape {type}", location, advice_for_type(name))
        else:
            self.refuse(f"{what} of type {name}", location, advice_for_type(name))
        return None

    # Structure

    def block(self, block: Any, scope: Scope, call: Location | None) -> list[Value | None]:
        """Import the operations of an MLIR block; return the values that the block returns.

        If the block is the body of an inlined function, ``call`` is the location of the call.
        """
        for view in block.operations:
            operation = view.operation
            if operation.name in ("func.return", "stablehlo.return", "sdy.return"):
                return [scope.find(value) for value in operation.operands]
            results = self.operation(operation, scope, location_of(operation.location, call))
            for value, known in zip(operation.results, results, strict=True):
                scope.define(value, known)
            self.note_cuts(operation, results)
        raise ValueError("a block must end with a return")

    def operation(self, operation: Any, scope: Scope,
                  location: Location | None) -> Sequence[Value | None]:
        """Import an operation; return its results, None for a result that is not supported."""
        name = operation.name.removeprefix("stablehlo.").removeprefix("func.")
        name = "constant" if name == "sdy.constant" else name
        nothing = [None] * len(operation.results)
        if name == "sdy.sharding_constraint" or (
                name == "custom_call"
                and python(operation.attributes["call_target_name"]) in _IDENTITIES):
            return [scope.find(value) for value in operation.operands]
        special = {"call": self.call, "composite": self.call,
                   "sdy.manual_computation": self.manual,
                   RESHARD: self.between, ALL_REDUCE: self.between,
                   "get_dimension_size": self.dimension_size}.get(name)
        if special:
            return special(operation, scope, location)
        if name in COLLECTIVES or name in ("partition_id", "replica_id"):
            return self.collective(name, operation, scope, location)
        if name not in RULES and name not in ("while", "case", "if"):
            target = (python(operation.attributes["call_target_name"])
                      if name == "custom_call" else "")
            self.refuse(f"{name} {target}".strip(), location, advice_for_operation(name, target))
            return nothing
        operands = [scope.find(value) for value in operation.operands]
        known = [value for value in operands if value is not None]
        if len(known) < len(operands):
            return nothing
        if name in ("while", "case", "if"):
            return self.control(name, operation, known, scope, location)
        if any(_is_wide(value) for value in operation.results) or any(
                _is_wide(value) for value in operation.operands):
            return self.wide(name, operation, known, scope, location)
        types = [self.type(value.type, name, location) for value in operation.results]
        if any(type is None for type in types):
            return nothing
        return self.add(name, operation, known, [type for type in types if type is not None],
                        scope, location)

    def add(self, name: str, operation: Any, operands: list[Value], types: list[TensorType],
            scope: Scope, location: Location | None) -> Sequence[Value | None]:
        """Append the graph's operation for an MLIR operation that has a rule in `RULES`.

        Return its results, of types ``types``; None for each of them if a region is not supported.
        """
        regions = [self.region(region, scope, location) for region in operation.regions]
        if any(graph is None for graph, _ in regions):
            return [None] * len(types)
        for _, captured in regions:
            if captured:
                self.refuse(f"{name} whose function reads a value from outside of it", location,
                            "pass it as an operand, or make it a constant")
                return [None] * len(types)
        if name in ("dot_general", "convolution"):
            operands = _both_float(operands, scope.graph, location)
        attributes = RULES[name](operation, operands, [Value(type) for type in types])
        made = scope.graph.add(name, operands, types, attributes,
                               [graph for graph, _ in regions if graph is not None], location)
        if name == "constant":
            scope.add_constant(made)
        return made.results

    def call(self, operation: Any, scope: Scope,
             location: Location | None) -> Sequence[Value | None]:
        """Import the called function's operations in place of a call; return its results."""
        attribute = "callee" if "callee" in operation.attributes else "decomposition"
        [block] = self.functions[python(operation.attributes[attribute])].regions[0].blocks
        for argument, value in zip(block.arguments, operation.operands, strict=True):
            scope.define(argument, scope.find(value))
        return self.block(block, scope, location)

    def dimension_size(self, operation: Any, scope: Scope,
                       location: Location | None) -> Sequence[Value | None]:
        """Import ``get_dimension_size`` as a constant."""
        type = self.type(operation.operands[0].type, "get_dimension_size", location)
        if type is None:
            return [None]
        size = np.array(type.shape[python(operation.attributes["dimension"])], np.int32)
        return scope.graph.add("constant", (), TensorType((), DType.S32), {"value": size}, (),
                               location).results

    def region(self, region: Any, scope: Scope,
               location: Location | None) -> tuple[Graph | None, dict[Value, Value]]:
        """Import a region of an operation; ``scope`` is the scope around the region.

        Return the region's graph, or None if it is not supported. Also return the outer values that
        the region reads, each with the input of the graph that replaces it.
        """
        graph = Graph(name="region")
        inner = Scope(graph, self.ranges, scope)
        [block] = region.blocks
        for argument in block.arguments:
            type = self.type(argument.type, "an argument of a region", location)
            value = None if type is None else Value(type)
            graph.inputs.extend([] if value is None else [value])
            inner.define(argument, value)
        outputs = self.block(block, inner, location)
        graph.outputs = [value for value in outputs if value is not None]
        whole = len(graph.outputs) == len(outputs) and len(graph.inputs) == len(block.arguments)
        return graph if whole else None, inner.captures

    def control(self, name: str, operation: Any, operands: list[Value], scope: Scope,
                location: Location | None) -> Sequence[Value | None]:
        """Import a loop or conditional; outer values that its regions read become operands."""
        types = [self.type(value.type, name, location) for value in operation.results]
        imported = [self.region(region, scope, location) for region in operation.regions]
        captured = list(dict.fromkeys(outer for _, captures in imported for outer in captures))
        graphs = []
        for graph, captures in imported:
            if graph is None or any(type is None for type in types):
                return [None] * len(types)
            added = [captures.get(outer) or Value(outer.type, outer.name) for outer in captured]
            graph.inputs.extend(added)
            graphs.append(graph)
        known = [type for type in types if type is not None]
        if name == "while":
            graphs[0].name, graphs[1].name = "condition", "body"
            carried = len(operands)
            graphs[1].outputs.extend(graphs[1].inputs[carried:])
            known += [value.type for value in captured]
            return scope.graph.add("while", [*operands, *captured], known, {}, graphs,
                                   location).results[:carried]
        [index] = operands
        if name == "if":
            graphs.reverse()
            index = scope.graph.add("convert", [index], TensorType((), DType.S32), {}, (),
                                    location).result
        for number, graph in enumerate(graphs):
            graph.name = f"branch{number}"
        return scope.graph.add("case", [index, *captured], known, {}, graphs, location).results

    # Devices

    def input(self, value: Value, number: int, graph: Graph) -> Value:
        """Append the input for the program's argument ``number``; return the whole argument.

        ``value`` is a new value of the argument's type. It becomes the input, unless the argument
        is split: then the input is this device's part, and the devices exchange their parts.
        """
        division = self.parts[0][number] if self.parts else None
        if division is not None:
            value = Value(TensorType(division.part_shape(value.shape), value.dtype), value.name)
        if self.divided is not None:
            self.cut[value] = self.divided.argument(number)
        graph.inputs.append(value)
        return self.shards.whole(value, division, Expansion(graph, None))

    def output(self, value: Value, number: int, graph: Graph) -> Value:
        """Return this device's part of ``value``, a global value, for output ``number``."""
        division = self.parts[1][number] if self.parts else None
        return self.shards.local(value, division, Expansion(graph, None))

    def propagated(self, main: Any) -> Propagated | None:
        """Propagate shardings from the entry function ``main``; None if they split no value."""
        try:
            return propagate(self.module, main, self.torus.devices)
        except ShardingError as error:
            raise UnsupportedError([Unsupported(str(error), "", self.advice)]) from error

    def note_cuts(self, operation: Any, results: Sequence[Value | None]) -> None:
        """Record how ``results``, the values that a global program's operation makes, are split."""
        if self.divided is None:
            return
        for value, cut in zip(results, self.divided.results(operation), strict=True):
            if value is not None:
                # An operation that returns its operand must not change the operand's entry.
                self.cut.setdefault(value, cut)

    def between(self, operation: Any, scope: Scope,
                location: Location | None) -> Sequence[Value | None]:
        """Import a reshard or an all-reduce of a global program; `partition` replaces it later."""
        value = scope.find(operation.operands[0])
        if value is None or self.divided is None:
            return [value]
        attributes = {"cuts": self.divided.results(operation)[0]}
        return scope.graph.add(operation.name, [value], value.type, attributes, (),
                               location).results

    def manual(self, operation: Any, scope: Scope,
               location: Location | None) -> Sequence[Value | None]:
        """Inline a ``manual_computation``: the program of one device, on parts of global values."""
        nothing = [None] * len(operation.results)
        manual = set(manual_axes(operation))
        try:
            sizes = self.shards.axes(operation)
            given, made = (self.shards.divisions(operation.attributes[name], manual)
                           for name in ("in_shardings", "out_shardings"))
            count = _manual_devices(sizes, manual, self.torus)
        except ValueError as error:
            self.refuse(f"manual_computation on {error}", location, self.advice)
            return nothing
        at = Expansion(scope.graph, location)
        [block] = operation.regions[0].blocks
        for argument, operand, cut in zip(block.arguments, operation.operands, given, strict=True):
            value = scope.find(operand)
            scope.define(argument, None if value is None else self.shards.local(value, cut, at))
        outer = self.inside, self.partitions, self.replicas
        self.inside, self.partitions, self.replicas = True, count, 1
        outputs = self.block(block, scope, location)
        self.inside, self.partitions, self.replicas = outer
        self.shards.used |= count > 1
        return [None if value is None else self.shards.whole(value, cut, at)
                for value, cut in zip(outputs, made, strict=True)]

    def collective(self, name: str, operation: Any, scope: Scope,
                   location: Location | None) -> Sequence[Value | None]:
        """Import a collective operation, or an operation that returns the device's number."""
        nothing = [None] * len(operation.results)
        devices = self.partitions * self.replicas
        if devices not in (1, self.torus.devices):
            self.refuse(f"{name} in a program for {devices} devices", location, self.advice)
            return nothing
        self.shards.stacked |= not self.inside and devices > 1
        at = Expansion(scope.graph, location)
        if name in ("partition_id", "replica_id"):
            return [device_number(at, self.partitions if name == "partition_id" else self.replicas)]
        operands = [scope.find(value) for value in operation.operands]
        types = [self.type(value.type, name, location) for value in operation.results]
        imported = [self.region(region, scope, location) for region in operation.regions]
        known = [value for value in operands if value is not None]
        regions = [graph for graph, captured in imported if graph is not None]
        if len(known) < len(operands) or len(regions) < len(imported) or None in types:
            return nothing
        groups = device_groups(operation, self.partitions, self.replicas)
        if groups is None:
            self.refuse(f"{name} in groups {python(operation.attributes['replica_groups'])}"
                        if "replica_groups" in operation.attributes else f"{name} between devices "
                        "that do not exist", location, self.advice)
            return nothing
        if any(captured for _, captured in imported) or not all(map(is_reducer, regions)):
            self.refuse(f"{name} whose function contains operations that are not elementwise",
                        location,
                        "use jax.lax.psum, pmax or pmin, or gather and reduce")
            return nothing
        return COLLECTIVES[name](at, operation, known, Team(groups, self.torus), regions)

    # Integers of 64 bits

    def wide(self, name: str, operation: Any, operands: list[Value], scope: Scope,
             location: Location | None) -> Sequence[Value | None]:
        """Import an operation on 64-bit integers as one on integers of 32 bits, or refuse it."""
        nothing = [None] * len(operation.results)
        bounds = self.bounds(name, operation, operands)
        for value in operation.results:
            if _is_wide(value) and narrow(bounds) is None:
                self.type(value.type, f"result of {name}", location)
                return nothing
        if bounds is not None and bounds[0] == bounds[1] and name != "constant":
            return [_splat(bounds, tuple(operation.results[0].type.shape), scope, location)]
        wide = {value for value, source in zip(operands, operation.operands, strict=True)
                if _is_wide(source)}
        joined = [self.ranges[value] for value in wide]
        joined += [bounds] if bounds is not None and (name != "convert" or not wide) else []
        dtype = narrow((min(low for low, _ in joined), max(high for _, high in joined)))
        if dtype is None:
            self.refuse(f"{name} of type i64", location, advice_for_type("i64"))
            return nothing
        types = [TensorType(tuple(value.type.shape), dtype) if _is_wide(value) else
                 self.type(value.type, name, location) for value in operation.results]
        if any(type is None for type in types):
            return nothing
        operands = [scope.graph.add("convert", [value], TensorType(value.shape, dtype), {}, (),
                                    location).result
                    if value in wide and value.dtype is not dtype else value for value in operands]
        added = self.add(name, operation, operands, [type for type in types if type is not None],
                         scope, location)
        if bounds is not None and added[0] is not None:
            self.ranges[added[0]] = bounds
        return added

    def bounds(self, name: str, operation: Any, operands: list[Value]) -> Range | None:
        """Return the range of an operation's 64-bit result; None if not known, or not 64 bits."""
        [result] = operation.results if len(operation.results) == 1 else [None]
        if result is None or not _is_wide(result):
            return None
        if name == "iota":
            return 0, max(tuple(result.type.shape)[python(operation.attributes["iota_dimension"])]
                          - 1, 0)
        if name == "constant":
            values = np.asarray(np.array(operation.attributes["value"]))
            return (int(values.min()), int(values.max())) if values.size else (0, 0)
        known = [self.ranges.get(value, _limits(value.dtype)) for value in operands
                 if value.dtype.is_integer]
        if name == "convert":
            signed = str(result.type.element_type) == "i64"
            return known[0] if known and (signed or known[0][0] >= 0) else None
        if name in ("dynamic_slice", "gather"):
            known = known[:1]
        elif name == "dynamic_update_slice":
            known = known[:2]
        return range_of(name, known)


def _splat(bounds: Range, shape: tuple[int, ...], scope: Scope, location: Location | None) -> Value:
    """Append a constant of shape ``shape`` whose elements are all equal.

    ``bounds`` has the elements' value twice: it is the range from this value to itself.
    """
    type = TensorType(shape, narrow(bounds) or DType.S32)
    value = np.broadcast_to(np.asarray(bounds[0], array_dtype(type.dtype)), shape)
    made = scope.graph.add("constant", (), type, {"value": value}, (), location)
    scope.add_constant(made)
    scope.ranges[made.result] = bounds
    return made.result


def _later_refusals(graph: Graph) -> list[Unsupported]:
    """Return the operations of a partly imported graph that have no kernel.

    They are refused together with the operations that could not be imported, in one error.
    """
    used = {value for operation in graph.operations for value in operation.operands}
    graph.outputs = [value for operation in graph.operations for value in operation.results
                     if value not in used]
    expand_elements(graph)
    canonicalize(graph)
    return without_kernel(graph)


def _both_float(operands: list[Value], graph: Graph, location: Location | None) -> list[Value]:
    """Return a product's operands; if only one is floating-point, the other one is converted.

    The conversion, to the other operand's type, is appended to ``graph``.
    """
    floats = [value.type.dtype for value in operands if value.dtype.is_float]
    return [value if not floats or value.dtype.is_float else
            graph.add("convert", [value], TensorType(value.shape, floats[0]), {}, (),
                      location).result for value in operands]


def _manual_devices(sizes: Mapping[str, int], manual: Set[str], torus: Torus) -> int:
    """Return how many devices have parts of their own in a ``manual_computation``: all, or one.

    ``sizes`` has the size of each axis of the computation's mesh. ``manual`` has the names of the
    axes along which the computation divides values. If all these axes have size 1, one device has
    the values; otherwise, all devices have parts.

    Raises
    ------
    ValueError
        On a pod, if ``manual`` lacks an axis whose size is not 1. The message completes
        the phrase "manual_computation on".
    """
    several = {name for name, size in sizes.items() if size > 1}
    if torus.chips > 1 and several and not several <= manual:
        raise ValueError(f"only some axes of a mesh ({', '.join(sorted(several & manual))})")
    return torus.devices if several & manual else 1


def _is_wide(value: Any) -> bool:
    return str(getattr(value.type, "element_type", "")) in _WIDE


def _limits(dtype: DType) -> Range:
    bits = dtype.bits
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
