"""Axes along which elementwise operations and moves can be computed block by block."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import lcm, prod

import numpy as np

from sim.compiler.graph.ir import DType, Graph, Operation, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.passes.expansion import Expansion
from sim.compiler.passes.streaming.axes import Axis, Block, Part, axes, resized, same_kind, trimmed

__all__: list[str] = []

@axes(*sorted(ELEMENTWISE))
def _elementwise(operation: Operation) -> Iterator[Axis]:
    if operation.kind == "bitcast_convert" and (
            operation.operands[0].shape != operation.result.shape):
        return
    for along, size in enumerate(operation.result.shape):
        yield Axis(size, tuple((value, Part(along) if value.shape else None)
                               for value in operation.operands), (along,),
                   same_kind(operation, (along,)))


@axes("fusion")
def _fusion(operation: Operation) -> Iterator[Axis]:
    for along, size in enumerate(operation.results[0].shape):
        yield _FusionAxis(operation, along).axis(size)


class _FusionAxis:
    """Divides a fusion into blocks along a dimension of its results."""

    def __init__(self, operation: Operation, along: int) -> None:
        self._operation = operation
        self._along = along
        self._shape = operation.results[0].shape
        [self._region] = operation.regions
        self._outer = dict(zip(self._region.inputs, operation.operands, strict=True))
        # An input that is divided in several ways becomes one operand for each way.
        self._inputs: dict[tuple[Value, int | None], int] = {}
        self._numbered = False
        for inner in self._region.operations:
            for value in inner.operands:
                if value in self._outer:
                    self._inputs.setdefault((value, self._cut(inner, value)), len(self._inputs))
            if inner.kind == "iota" and inner.attributes["iota_dimension"] == along:
                self._numbered = True
        for value in self._region.outputs:
            if value in self._outer:
                self._inputs.setdefault((value, along), len(self._inputs))

    def axis(self, size: int) -> Axis:
        return Axis(size, tuple((self._outer[value], None if cut is None else Part(cut))
                                for value, cut in self._inputs),
                    (self._along,) * len(self._operation.results), self._write,
                    numbered=self._numbered)

    def _cut(self, inner: Operation, value: Value) -> int | None:
        """Return the dimension along which blocks divide ``value``; None if blocks need all of it.

        ``inner`` is the operation of the fusion's region that reads the value.
        """
        if inner.kind == "broadcast_in_dim":
            dimensions = inner.attributes["broadcast_dimensions"]
            if self._along not in dimensions:
                return None
            cut = dimensions.index(self._along)
            return cut if value.shape[cut] == self._shape[self._along] > 1 else None
        return self._along if value.shape == self._shape else None

    def _write(self, at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        region, outer = Graph(name="fusion"), at.graph
        given = [*operands, *([block.first] if block.first is not None else [])]
        region.inputs = [Value(value.type) for value in given]
        known: dict[Value, Value] = {}

        def read(inner: Operation, value: Value) -> Value:
            if value in self._outer:
                return region.inputs[self._inputs[value, self._cut(inner, value)]]
            return known[value]

        for inner in self._region.operations:
            kind = inner.result.type
            if kind.shape == self._shape:
                kind = resized(kind, self._along, block.size)
            attributes = dict(inner.attributes)
            if inner.kind == "constant":
                element = np.asarray(attributes["value"]).reshape(-1)[0]
                attributes["value"] = np.broadcast_to(element, kind.shape)
            made = region.add(inner.kind, [read(inner, value) for value in inner.operands], kind,
                              attributes, inner.regions, inner.location).result
            if inner.kind == "iota" and attributes["iota_dimension"] == self._along:
                made = _shifted(Expansion(region, inner.location), made, region.inputs[-1])
            known[inner.result] = made
        region.outputs = [
            region.inputs[self._inputs[value, self._along]] if value in self._outer
            else known[value] for value in self._region.outputs]
        types = [value.type for value in region.outputs]
        return outer.add("fusion", given, types, {}, (region,), self._operation.location).results


def _shifted(at: Expansion, numbers: Value, first: Value) -> Value:
    """Add the scalar ``first``, of type s32, to all elements of ``numbers``."""
    first = at.broadcast(first, numbers.shape, ())
    if numbers.dtype is DType.S32:
        return at.binary("add", numbers, first)
    plain = at.convert(numbers, DType.S32)
    return at.convert(at.binary("add", plain, first), numbers.dtype)


@axes("iota")
def _iota(operation: Operation) -> Iterator[Axis]:
    result, counted = operation.result, operation.attributes["iota_dimension"]
    for along, size in enumerate(result.shape):
        def write(at: Expansion, operands: Sequence[Value], block: Block, along: int = along
                  ) -> Sequence[Value]:
            made = at.add("iota", (), resized(result.type, along, block.size),
                          iota_dimension=counted)
            return [made if block.first is None else _shifted(at, made, block.first)]

        yield Axis(size, (), (along,), write, numbered=along == counted)


@axes("broadcast_in_dim")
def _broadcast(operation: Operation) -> Iterator[Axis]:
    [value] = operation.operands
    dimensions = operation.attributes["broadcast_dimensions"]
    for along, size in enumerate(operation.result.shape):
        part = None
        if along in dimensions and value.shape[cut := dimensions.index(along)] == size:
            part = Part(cut)
        yield Axis(size, ((value, part),), (along,), same_kind(operation, (along,)))


@axes("transpose")
def _transpose(operation: Operation) -> Iterator[Axis]:
    [value] = operation.operands
    for along, size in enumerate(operation.result.shape):
        yield Axis(size, ((value, Part(operation.attributes["permutation"][along])),), (along,),
                   same_kind(operation, (along,)))


@axes("reshape")
def _reshape(operation: Operation) -> Iterator[Axis]:
    """Yield the axes of a reshape.

    Each axis divides one dimension of the result and one of the operand. In both shapes, the
    sizes of the dimensions before these two have the same product. Each of the two begins a range
    of successive dimensions (`_elements_at_index`). Both ranges have equally many elements; because
    the products are equal, these are the same elements.
    """
    [value], result = operation.operands, operation.result
    ends = {prod(value.shape[:at]): at for at in range(value.type.rank, -1, -1)}
    for along in range(result.type.rank):
        cut = ends.get(prod(result.shape[:along]))
        if cut is None or result.shape[along] == 1:
            continue
        while cut < value.type.rank and value.shape[cut] == 1:
            cut += 1
        if cut == value.type.rank:
            continue
        # Number of elements at one index of either dimension, within its range.
        mine, other = _elements_at_index(result.shape, along, value.shape, cut)
        both = lcm(mine, other)
        if both // other > value.shape[cut] or value.shape[cut] * other != (
                result.shape[along] * mine):
            continue
        yield _reshape_axis(operation, along, cut, both // mine, both // other)


def _elements_at_index(shape: Sequence[int], at: int, other: Sequence[int],
                       cut: int) -> tuple[int, int]:
    """For each of two ranges of dimensions, count the elements at one index of its first dimension.

    One range begins at dimension ``at`` of ``shape``, the other at dimension ``cut`` of ``other``.
    They are the shortest such ranges with equally many elements.
    """
    a, b = shape[at], other[cut]
    i, j = at + 1, cut + 1
    while a != b:
        if a < b:
            a, i = a * shape[i], i + 1
        else:
            b, j = b * other[j], j + 1
    return a // shape[at], b // other[cut]


def _reshape_axis(operation: Operation, along: int, cut: int, mine: int, other: int) -> Axis:
    """Return the axis that divides dimension ``along`` of a reshape's result.

    The axis also divides dimension ``cut`` of the operand. One index of the axis covers ``mine``
    indices of the result's dimension and ``other`` indices of the operand's dimension.
    """
    [value] = operation.operands
    count = operation.result.shape[along] // mine
    return Axis(count, ((value, Part(cut, 0, other, other)),), (along,),
                same_kind(operation, (along,), scale=mine), scale=mine)


@axes("slice")
def _slice(operation: Operation) -> Iterator[Axis]:
    [value], attributes = operation.operands, operation.attributes
    names = "start_indices", "limit_indices", "strides"
    for along, size in enumerate(operation.result.shape):
        start, _, stride = (attributes[name][along] for name in names)

        def change(block: Block, along: int = along, stride: int = stride) -> dict[str, object]:
            [extra] = block.extra
            mine = extra, extra + (block.size - 1) * stride + 1, stride
            return {name: _with(attributes[name], along, new)
                    for name, new in zip(names, mine, strict=True)}

        yield Axis(size, ((value, Part(along, start, stride)),), (along,),
                   same_kind(operation, (along,), change), loose=True)


def _with(items: tuple[int, ...], at: int, item: int) -> tuple[int, ...]:
    return (*items[:at], item, *items[at + 1:])


@axes("pad")
def _pad(operation: Operation) -> Iterator[Axis]:
    value, filler = operation.operands
    attributes = operation.attributes
    low, interior = attributes["edge_padding_low"], attributes["interior_padding"]
    for along, size in enumerate(operation.result.shape):
        if interior[along]:
            continue

        def write(at: Expansion, operands: Sequence[Value], block: Block, along: int = along
                  ) -> Sequence[Value]:
            [before, behind], [extra, _] = block.padding[0], block.extra
            kind = resized(operation.result.type, along, block.size)
            if before - extra >= block.size or behind >= block.size:
                return [at.broadcast(operands[1], kind.shape, ())]
            given, before = trimmed(at, operands[0], along, before, extra)
            return [at.add("pad", (given, operands[1]), kind, interior_padding=interior,
                           edge_padding_low=_with(low, along, before),
                           edge_padding_high=_with(attributes["edge_padding_high"], along,
                                                   behind))]

        yield Axis(size, ((value, Part(along, -low[along])), (filler, None)), (along,), write,
                   outside=True, loose=True)


@axes("reverse")
def _reverse(operation: Operation) -> Iterator[Axis]:
    [value] = operation.operands
    for along, size in enumerate(operation.result.shape):
        turned = along in operation.attributes["dimensions"]
        yield Axis(size, ((value, Part(along, size - 1, -1) if turned else Part(along)),),
                   (along,), same_kind(operation, (along,)))


@axes("concatenate")
def _concatenate(operation: Operation) -> Iterator[Axis]:
    for along, size in enumerate(operation.result.shape):
        if along != operation.attributes["dimension"]:
            yield Axis(size, tuple((value, Part(along)) for value in operation.operands), (along,),
                       same_kind(operation, (along,)))


@axes("dynamic_slice")
def _dynamic_slice(operation: Operation) -> Iterator[Axis]:
    value, *starts = operation.operands
    sizes = operation.attributes["slice_sizes"]
    for along, size in enumerate(sizes):
        if size == value.shape[along]:
            yield Axis(size, ((value, Part(along)), *((start, None) for start in starts)), (along,),
                       same_kind(operation, (along,), partial(_sizes, sizes, along)))


def _sizes(sizes: tuple[int, ...], along: int, block: Block) -> dict[str, object]:
    return {"slice_sizes": _with(sizes, along, block.size)}


@axes("dynamic_update_slice")
def _dynamic_update_slice(operation: Operation) -> Iterator[Axis]:
    value, update, *starts = operation.operands
    for along, size in enumerate(update.shape):
        if size == value.shape[along]:
            yield Axis(size, ((value, Part(along)), (update, Part(along)),
                              *((start, None) for start in starts)), (along,),
                       same_kind(operation, (along,)))
