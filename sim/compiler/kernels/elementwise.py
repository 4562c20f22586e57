"""The kernel of elementwise operations, alone or fused: one loop nest over the result's vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import DType, Graph, Operation, Value
from sim.compiler.kernels.elements import table
from sim.compiler.kernels.elements.expression import Elements, Node
from sim.compiler.kernels.elements.iterated import Stage, Step, stages
from sim.compiler.kernels.elements.writing import Writer, needed, pressure
from sim.compiler.kernels.lowering import (
    Choice,
    Lowering,
    Place,
    Refusal,
    chooses,
    lowers,
    refuses,
)
from sim.compiler.machine import Builder, RangeAt, VReg
from sim.compiler.tiling import Tiling, standard
from sim.compiler.words import to_words

__all__ = ["Region", "broadcast_tiling", "emit_region", "expand_readable", "is_flat",
           "region_refusal"]

Dimensions = tuple[int, ...]

_LEAVES = frozenset({"constant", "iota", "broadcast_in_dim"})
"""Kinds of operations that a region may contain in addition to `table.KINDS`."""

_LONG = 40
"""Code is *long* if a vector takes at least this number of operations (`_Kernel._copies`)."""
_COPIES = {2: (28, 6), 4: (24, 4)}
"""Registers that the copies of long code in a loop's body may use.

For each number of copies: the maximum number of vector registers, and of mask registers, that all
copies together need at one time."""


# Expressions of a region.


@dataclass(frozen=True)
class Leaf:
    """An input of a region's expressions: an operand, or the index of each element (for `iota`).

    Attributes
    ----------
    operand : int or None
        Position of the operand among the region's inputs; None for an index.
    dimensions : tuple of int
        For an operand: the result's dimension to which each of the operand's dimensions
        corresponds. For an index: the one dimension of the result along which it counts.
    """

    operand: int | None
    dimensions: Dimensions


def _region_of(operation: Operation) -> Graph:
    """Return the region of a fusion; for any other operation, make one that contains only it."""
    if operation.kind == "fusion":
        return operation.regions[0]
    inner = Operation(operation.kind, operation.operands, operation.results, operation.attributes)
    return Graph(list(dict.fromkeys(operation.operands)), [inner], list(operation.results))


class Region:
    """Expands the operations of a region into expressions built from vector-unit operations.

    Parameters
    ----------
    region : Graph
        The region. Inputs and operations may be appended to it, and its outputs changed, if
        `update` is called afterwards.

    Attributes
    ----------
    elements : Elements
        Records the operations of the expressions.
    leaves : dict of Leaf to Node
        The inputs of the expressions.
    outputs : list of Node or int
        For each output of the region, an expression whose value is a word, also for a predicate.
    """

    def __init__(self, region: Graph) -> None:
        self.elements = Elements()
        self.leaves: dict[Leaf, Node] = {}
        self.outputs: list[Any] = []
        self._region = region
        self._inputs: dict[Value, int] = {}
        self._values: dict[Value, Any] = {}
        self._recorded = 0  # number of recorded operations, without those of the outputs
        self.update()

    def update(self) -> None:
        """Expand the operations appended since the last call; expand the region's outputs anew."""
        region = self._region
        self.elements.forget(self._recorded)
        self._inputs = {value: number for number, value in enumerate(region.inputs)}
        for operation in region.operations[len(self._values):]:
            self._values[operation.result] = self._expand(operation)
        self._recorded = len(self.elements.nodes)
        self.outputs = [self._word(value) for value in region.outputs]

    def _leaf(self, leaf: Leaf) -> Node:
        return self.leaves.setdefault(leaf, self.elements.input())

    def _operand(self, value: Value, dimensions: Dimensions | None = None) -> Any:
        """Return the expression of operand ``value``; for a predicate, the expression of a mask.

        ``dimensions`` has, for each dimension of the operand, that of the result to which it
        belongs; None if this is always the dimension of the same number.
        """
        if value in self._values:
            return self._values[value]
        if dimensions is None:
            dimensions = tuple(range(len(value.shape)))
        node = self._leaf(Leaf(self._inputs[value], dimensions))
        return self.elements("ne", node, 0) if value.dtype is DType.PRED else node

    def _word(self, value: Value) -> Any:
        """Return the expression of the output ``value`` as a word; a predicate becomes 0 or 1."""
        node = self._operand(value)
        return self.elements.select(node, 1, 0) if value.dtype is DType.PRED else node

    def _expand(self, operation: Operation) -> Any:
        if operation.kind == "constant":
            value = np.asarray(operation.attributes["value"])
            return int(to_words(value[(0,) * value.ndim].reshape(1))[0])
        if operation.kind == "iota":
            return self._iota(operation)
        if operation.kind == "broadcast_in_dim":
            return self._operand(operation.operands[0],
                                 tuple(operation.attributes["broadcast_dimensions"]))
        return table.expand(self.elements, operation,
                            [self._operand(value) for value in operation.operands])

    def _iota(self, operation: Operation) -> Any:
        e, dtype = self.elements, operation.result.dtype
        node = self._leaf(Leaf(None, (operation.attributes["iota_dimension"],)))
        count = operation.result.shape[operation.attributes["iota_dimension"]]
        if dtype.is_float:
            return e("bf16", e("i2f", node)) if dtype is DType.BF16 else e("i2f", node)
        if dtype is DType.PRED:
            return e("ne", node, 0)
        assert count <= 1 << dtype.bits
        return node


def emit_region(b: Builder, region: Graph, inputs: Sequence[VReg]) -> list[VReg]:
    """Write code that applies ``region``, a function of scalars, to each element of its inputs.

    Parameters
    ----------
    b : Builder
    region : Graph
        The operations, such as the reducer of a reduction.
    inputs : sequence of VReg
        A register for each of the region's inputs; predicates are 0 or 1.

    Returns
    -------
    list of VReg
        A register for each of the region's outputs; predicates are 0 or 1.
    """
    expanded = Region(region)
    leaves: dict[Node, Any] = {}
    for leaf, node in expanded.leaves.items():
        assert leaf.operand is not None
        leaves[node] = 0, lambda *_, register=inputs[leaf.operand]: register
    writer = Writer(b, expanded.elements, expanded.outputs, leaves, 0)
    writer.write(0, ())
    found = [writer.register(output, ()) for output in expanded.outputs]
    return [b.splat(register) if isinstance(register, int) else register for register in found]


@refuses("reduce", "reduce_window", "select_and_scatter", "sort")
def region_refusal(operation: Operation) -> Refusal | None:
    """Return why `emit_region` cannot write the code of an operation's regions; None if it can."""
    for region in operation.regions:
        for inner in region.operations:
            if inner.kind not in table.KINDS | _LEAVES or stages(inner) is not None:
                return Refusal(f"{operation.kind} whose function contains {inner.kind}",
                               "use elementwise operations on scalars in it")
    return None


def _emit(b: Builder, step: Step, registers: Sequence[Any]) -> list[Any]:
    """Write code that executes ``step`` of a `Stage` once; return the new values of the state.

    ``registers`` hold the old values. A new value is a register, or a word (int) if it is constant.
    """
    e = Elements()
    inputs = [e.input() for _ in registers]
    outputs = step(e, inputs)
    leaves = {node: (0, lambda *_, register=register: register)
              for node, register in zip(inputs, registers, strict=True)}
    writer = Writer(b, e, outputs, leaves, 0)
    writer.write(0, ())
    return [writer.register(output, ()) for output in outputs]


# Tilings.


def broadcast_tiling(shape: Sequence[int], dimensions: Dimensions, result: Tiling) -> Tiling | None:
    """Return the tiling that an operand must have for a kernel whose result has tiling ``result``.

    Parameters
    ----------
    shape : sequence of int
        Shape of the operand.
    dimensions : tuple of int
        For each dimension of the operand, the corresponding dimension of the result. A dimension
        of size 1 may correspond to a larger one.
    result : Tiling
        The tiling of the result.

    Returns
    -------
    Tiling or None
        None if there is no such tiling: the operand must be broadcast by an operation of its own.
    """
    if tuple(shape) == result.shape and dimensions == tuple(range(len(shape))):
        return result
    lane, sublane = result.lane_dimension, result.sublane_dimension
    full = {dimension: number for number, dimension in enumerate(dimensions)
            if shape[number] == result.shape[dimension]
            and (shape[number] > 1 or dimension in (lane, sublane))}
    ones = [number for number in range(len(shape)) if number not in full.values()]
    outer = [full[dimension] for dimension in result.outer_dimensions if dimension in full]
    along_lanes = lane in full
    last = [full[lane]] if lane is not None and lane in full else []
    if sublane in full and sublane is not None:
        last.insert(0, full[sublane])
    elif ones:
        last.insert(0, ones.pop())
    elif outer:
        # An outer dimension of the result would run along the operand's sublanes.
        return None
    order = tuple(ones + outer + last)
    return Tiling(tuple(shape), order, along_lanes, result.sublanes, result.lanes)


def _operand_numbers(operation: Operation) -> list[int]:
    """Return, for each operand, the number of the region's input through which it is read."""
    inputs = {value: number for number, value in
              enumerate(dict.fromkeys(operation.operands))}
    if operation.kind == "fusion":
        return list(range(len(operation.operands)))
    return [inputs[value] for value in operation.operands]


@chooses("fusion", *table.KINDS)
def _tilings(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose the result's tiling: the most frequent one among operands of the result's shape.

    If the kernel could not read all operands for a result of that tiling, choose the standard one.
    """
    shape = operation.results[0].shape
    given = [tiling for tiling in operands if tiling.shape == shape]
    plain = standard(shape, config)
    result = max(given, key=given.count, default=plain)
    choice = _choose_for(operation, result)
    if choice is None:
        choice = _choose_for(operation, plain)
    assert choice is not None, "operands of a fusion must be readable"
    return choice


def expand_readable(fusion: Operation, config: Config, expanded: Region
                    ) -> tuple[Elements, list[Node | int]] | None:
    """Return the expressions of a fusion's results, and the `Elements` that recorded them.

    From the expressions, the caller can estimate the cost of the fusion. They are for results of
    the standard tiling. Return None if the fusion cannot compute such results before some operands
    are broadcast. ``expanded`` is the fusion's region.
    """
    if _choose_for(fusion, standard(fusion.results[0].shape, config), expanded) is None:
        return None
    return expanded.elements, expanded.outputs


def _choose_for(operation: Operation, result: Tiling,
                expanded: Region | None = None) -> Choice | None:
    if stages(operation) is not None:
        return Choice((result,) * len(operation.operands), (result,))
    numbers = _operand_numbers(operation)
    inputs: dict[int, Tiling] = {}
    for leaf in (expanded or Region(_region_of(operation))).leaves:
        if leaf.operand is None:
            continue
        number = leaf.operand
        value = operation.operands[numbers.index(number)]
        wanted = broadcast_tiling(value.shape, leaf.dimensions, result)
        if wanted is None or inputs.setdefault(number, wanted) != wanted:
            return None
    operands = tuple(
        inputs.get(number, Tiling(value.shape, tuple(range(len(value.shape))),
                                  bool(value.shape), result.sublanes, result.lanes))
        for number, value in zip(numbers, operation.operands, strict=True))
    return Choice(operands, (result,) * len(operation.results))


# The loop nest.


def _coordinate_strides(dimension: int, result: Tiling) -> list[int]:
    """For each axis of the loop nest, return how far an iteration advances along ``dimension``.

    The unit is elements. The axes are the outer dimensions of ``result``, its tiles along the
    lanes, and its tiles along the sublanes.
    """
    return [*(int(outer == dimension) for outer in result.outer_dimensions),
            result.lanes * (dimension == result.lane_dimension),
            result.sublanes * (dimension == result.sublane_dimension)]


def _strides(tiling: Tiling, dimensions: Dimensions, result: Tiling) -> list[int]:
    """Return by how many vectors an operand advances along each axis of the loop nest.

    0 means that the operand is broadcast along the axis. ``tiling`` is its tiling. The axes
    are the outer dimensions of ``result``, its tiles along the lanes, and its tiles along the
    sublanes. ``dimensions[i]`` is the result's dimension that the operand's dimension i corresponds
    to.
    """
    grows = {}
    stride = tiling.lane_tiles * tiling.row_tiles
    for number in reversed(tiling.outer_dimensions):
        if tiling.shape[number] > 1:
            grows[dimensions[number]] = stride
        stride *= tiling.shape[number]
    lane, sublane = tiling.lane_dimension, tiling.sublane_dimension
    return [*(grows.get(dimension, 0) for dimension in result.outer_dimensions),
            tiling.row_tiles if lane is not None and tiling.lane_tiles > 1 else 0,
            1 if sublane is not None and tiling.row_tiles > 1 else 0]


def _replications(tiling: Tiling, dimensions: Dimensions, result: Tiling) -> list[str]:
    """Return the names of the cross-lane operations that broadcast a vector of an operand.

    These copy its first lane or sublane to all others, where the operand has one element along a
    dimension and the result has more. ``tiling`` is the operand's tiling, ``result`` the result's.
    ``dimensions`` has, for each dimension of the operand, that of the result to which it belongs.
    """
    found = []
    for name, mine, its in (("broadcast_lane", tiling.lane_dimension, result.lane_dimension),
                            ("broadcast_sublane", tiling.sublane_dimension,
                             result.sublane_dimension)):
        if mine is None:
            continue
        dimension = dimensions[mine]
        if dimension != its or result.shape[dimension] != tiling.shape[mine]:
            found.append(name)
    return found


def _merge(sizes: list[int], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Drop axes of size 1, and merge adjacent axes whose two loops can be one.

    Two axes are merged if, for each value, one iteration of the outer loop advances as far as all
    iterations of the inner loop together. ``sizes`` has the size of each axis. ``strides`` has a
    list for each value: the value's stride along each axis. Returns new sizes and strides.
    """
    kept = [axis for axis, size in enumerate(sizes) if size > 1]
    sizes = [sizes[axis] for axis in kept]
    strides = [[row[axis] for axis in kept] for row in strides]
    axis = len(sizes) - 2
    while axis >= 0:
        if all(row[axis] == row[axis + 1] * sizes[axis + 1] for row in strides):
            sizes[axis:axis + 2] = [sizes[axis] * sizes[axis + 1]]
            for row in strides:
                del row[axis]
        axis -= 1
    return sizes, strides


class _Kernel:
    """Writes the kernel of a fusion, or of an elementwise operation."""

    def __init__(self, operation: Operation, at: Lowering) -> None:
        self._at = at
        self._region = Region(_region_of(operation))
        self._results = [at.place(value) for value in operation.results]
        self._tiling = self._results[0].tiling
        numbers = _operand_numbers(operation)
        self._places = {number: at.place(value) for number, value
                        in zip(numbers, operation.operands, strict=True)}
        self._sizes, self._strides = self._axes()

    @property
    def is_flat(self) -> bool:
        """Whether the nest is one loop in which vector n of the results needs only one vector of
        each operand: its vector n, or its first.
        """
        return len(self._sizes) == 1 and all(row[0] in (0, 1) for row in self._strides)

    def _axes(self) -> tuple[list[int], list[list[int]]]:
        """Return the sizes of the loops, and the strides of the results and of each leaf."""
        tiling, region = self._tiling, self._region
        axes = [*(tiling.shape[dimension] for dimension in tiling.outer_dimensions),
                tiling.lane_tiles, tiling.row_tiles]
        plain = _strides(tiling, tuple(range(len(tiling.shape))), tiling)
        sizes, strides = _merge(axes, [plain, *(self._leaf_strides(leaf)
                                                for leaf in region.leaves)])
        if len(sizes) == 2 and sizes[1] < sizes[0]:
            # Make the longer loop the inner one: iterations of the inner loop overlap.
            sizes, strides = sizes[::-1], [row[::-1] for row in strides]
        return sizes, strides

    def write(self) -> None:
        """Write the loop nest."""
        region, sizes, strides = self._region, self._sizes, self._strides
        leaves = {}
        for (leaf, node), row in zip(region.leaves.items(), strides[1:], strict=True):
            level = max((axis + 1 for axis, stride in enumerate(row) if stride), default=0)
            leaves[node] = level, self._maker(leaf, row)
        writer = Writer(self._at.builder, region.elements, region.outputs, leaves, len(sizes),
                        self._copies())
        self._nest(writer, sizes, strides[0], [])

    def _nest(self, writer: Writer, sizes: list[int], strides: list[int],
              variables: list[Any]) -> None:
        level, b = len(variables), self._at.builder
        if level == len(sizes):
            self._body(writer, strides, variables)
            return
        writer.write(level, variables)
        section = self._at.section or range(sizes[level])
        if isinstance(section, RangeAt):
            first = b.smem_load(section.first)
            with b.loop(b.scalar("add", b.smem_load(section.fewer), section.most)) as variable:
                self._nest(writer, sizes, strides, [*variables, variable + first])
            return
        copies = self._copies() if level + 1 == len(sizes) else 1
        passes, rest = divmod(len(section), copies)
        if passes > 1 or (passes and copies == 1):
            with b.loop(passes) as variable:
                for copy in range(copies):
                    self._nest(writer, sizes, strides,
                               [*variables, variable * copies + (section.start + copy)])
        else:
            rest = len(section)
        for last in section[len(section) - rest:]:
            self._nest(writer, sizes, strides, [*variables, last])

    def _copies(self) -> int:
        """Return the number of vectors that an iteration of the innermost loop computes.

        For long code, an iteration computes several vectors, so that their operations overlap. For
        short code, it computes one: the loop is pipelined, so iterations overlap anyway.
        """
        elements, outputs = self._region.elements, self._region.outputs
        nodes = len(needed(elements, outputs))
        vectors, masks = pressure(elements, outputs)
        room = self._at.config.imem_bundles * 3 // 8
        return max((copies for copies, (most_vectors, most_masks) in _COPIES.items()
                    if nodes >= _LONG and copies * nodes <= room
                    and copies * vectors <= most_vectors and copies * masks <= most_masks),
                   default=1)

    def _body(self, writer: Writer, strides: list[int], variables: list[Any]) -> None:
        b = self._at.builder
        writer.write(len(variables), variables)
        index = _index(strides, variables)
        for place, output in zip(self._results, self._region.outputs, strict=True):
            b.store(writer.register(output, variables), place.buffer, index)

    def _leaf_strides(self, leaf: Leaf) -> list[int]:
        if leaf.operand is None:
            return _coordinate_strides(leaf.dimensions[0], self._tiling)
        return _strides(self._places[leaf.operand].tiling, leaf.dimensions, self._tiling)

    def _maker(self, leaf: Leaf, strides: list[int]) -> Any:
        if leaf.operand is None:
            return lambda b, variables: self._coordinate(b, leaf.dimensions[0],
                                                         _index(strides, variables))
        place: Place = self._places[leaf.operand]
        replications = _replications(place.tiling, leaf.dimensions, self._tiling)

        def load(b: Builder, variables: Sequence[Any]) -> Any:
            vector = b.load(place.buffer, _index(strides, variables))
            for name in replications:
                vector = b.cross(name, vector, 0)
            return vector

        return load

    def _coordinate(self, b: Builder, dimension: int, start: Any) -> Any:
        tiling = self._tiling
        if dimension == tiling.lane_dimension:
            within = b.vector("lane")
        elif dimension == tiling.sublane_dimension:
            within = b.vector("sublane")
        else:
            return b.splat(start)
        return b.vector("add", within, start) if not isinstance(start, int) or start else within


def is_flat(operation: Operation, at: Lowering) -> bool:
    """Return whether the kernel of an operation can compute a section of its results' vectors.

    It can if the operation is elementwise, and if vector n of the results needs only one vector of
    each operand: its vector n, or its first.
    """
    return (operation.kind in {"fusion", *table.KINDS} and stages(operation) is None
            and _Kernel(operation, at).is_flat)


def _index(strides: Sequence[int], variables: Sequence[Any]) -> Any:
    terms = [stride * variable for stride, variable in zip(strides, variables, strict=False)
             if stride]
    return sum(terms[1:], terms[0]) if terms else 0


@lowers("fusion", "iota", *table.KINDS)
def _elementwise(operation: Operation, at: Lowering) -> None:
    parts = stages(operation)
    if parts is None:
        _Kernel(operation, at).write()
    else:
        _write_stages(operation, at, parts)


def _write_stages(operation: Operation, at: Lowering, parts: Sequence[Stage]) -> None:
    """Write a loop over the result's vectors, with an inner loop for each repeated stage."""
    b, result = at.builder, at.place(operation.result)
    with b.loop(result.buffer.vectors) as i:
        state = [b.load(at.place(value).buffer, i) for value in operation.operands]
        for stage in parts:
            if stage.count == 1:
                state = _emit(b, stage.step, state)
                continue
            state[:stage.changed] = [b.variable(value) for value in state[:stage.changed]]
            with b.loop(stage.count):
                for variable, value in zip(state[:stage.changed], _emit(b, stage.step, state),
                                           strict=False):
                    b.assign(variable, value)
        b.store(state[0], result.buffer, i)
