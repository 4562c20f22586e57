"""Rules for dividing the operations of a global program between the devices along a mesh axis.

A rule is a function for one kind of operation. It receives an operation and, for each operand and
result, the dimension along which it is split; None if it is not split. It accepts operations that
each device can compute from its own parts, and refuses all others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.graph.semantics.reductions import reducer_kind

__all__ = ["Cut", "Division", "NotDivisibleError", "divide"]

Cut = int | None
"""The dimension along which a value is split; None: each device has all of it."""
_IDENTITIES = {"add": 0, "xor": 0, "multiply": 1}
"""Identities of reducers. All partial reductions begin with the initial value, so it must be the
identity; idempotent reducers such as maxima may begin with any value."""
_IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})


class NotDivisibleError(Exception):
    """Raised if an operation cannot be divided between the devices."""


@dataclass(frozen=True)
class Division:
    """How each device computes its part of an operation.

    Attributes
    ----------
    attributes : dict
        Attributes of each device's operation that differ from those of the global one.
    partial : Graph or None
        If each device computes a partial result of full shape: the function of two scalars that
        combines the elements of two partial results. Otherwise None.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    partial: Graph | None = None


@dataclass(frozen=True)
class _Case:
    """An operation to divide, with the other parameters of `divide`."""

    operation: Operation
    given: Sequence[Cut]
    made: Sequence[Cut]
    parts: int
    constant: Callable[[Value], Array | None]

    @property
    def attributes(self) -> dict[str, Any]:
        return self.operation.attributes

    def shape(self, number: int) -> tuple[int, ...]:
        return self.operation.operands[number].shape


def divide(operation: Operation, given: Sequence[Cut], made: Sequence[Cut], parts: int,
           constant: Callable[[Value], Array | None]) -> Division:
    """Determine how each device computes its part of an operation.

    Parameters
    ----------
    operation : Operation
        An operation of the global program, but not ``while`` or ``case``.
    given, made : sequence of Cut
        The cuts of the operands and of the results.
    parts : int
        Number of parts into which a value that is cut is split.
    constant : callable
        Maps a value to its array if the value is a constant, otherwise to None.

    Raises
    ------
    NotDivisibleError
        If the devices cannot compute the operation from their parts.
    """
    if all(cut is None for cut in (*given, *made)):
        return Division()
    rule = _RULES.get(operation.kind)
    if rule is None:
        raise NotDivisibleError
    return rule(_Case(operation, given, made, parts, constant)) or Division()


def _require(condition: bool) -> None:
    if not condition:
        raise NotDivisibleError


def _same(cuts: Sequence[Cut]) -> int:
    """Return the cut that all values share; raise `NotDivisibleError` if there is none."""
    [cut] = set(cuts) if len(set(cuts)) == 1 else [None]
    if cut is None:
        raise NotDivisibleError
    return cut


def _nowhere(cuts: Sequence[Cut]) -> None:
    _require(all(cut is None for cut in cuts))


def _split(sizes: Sequence[int], cut: int, parts: int) -> tuple[int, ...]:
    return tuple(size // parts if number == cut else size for number, size in enumerate(sizes))


def _elementwise(case: _Case) -> None:
    operation, [made] = case.operation, case.made
    scalars = operation.kind in ("select", "clamp")
    for value, cut in zip(operation.operands, case.given, strict=True):
        if scalars and not value.shape:
            continue
        _require(value.shape == operation.result.shape and cut == made)


def _each(case: _Case) -> None:
    _require(list(case.given) == list(case.made))


def _broadcast(case: _Case) -> None:
    [given], [made], into = case.given, case.made, case.attributes["broadcast_dimensions"]
    stretched = made not in into or case.shape(0)[into.index(made)] == 1
    _require(given is None if stretched else given is not None and into[given] == made)


def _transpose(case: _Case) -> None:
    [given], [made] = case.given, case.made
    _require(made is not None and case.attributes["permutation"][made] == given)


def _reshape(case: _Case) -> None:
    # If the dimensions before both cuts have the same product, both cuts halve the same runs.
    [given], [made] = case.given, case.made
    _require(given is not None and made is not None
             and math.prod(case.shape(0)[:given]) == math.prod(case.operation.result.shape[:made]))


def _sum(operation: Operation) -> Graph:
    scalar = TensorType((), operation.result.dtype)
    region = Graph([Value(scalar), Value(scalar)])
    region.outputs = [region.add("add", region.inputs, scalar).result]
    return region


def _dot_general(case: _Case) -> Division:
    (lhs, rhs), [made], attributes = case.given, case.made, case.attributes
    batch = attributes["lhs_batching_dimensions"], attributes["rhs_batching_dimensions"]
    summed = attributes["lhs_contracting_dimensions"], attributes["rhs_contracting_dimensions"]
    free = [[dimension for dimension in range(len(case.shape(side)))
             if dimension not in (*batch[side], *summed[side])] for side in (0, 1)]
    if lhs in summed[0]:
        _require(rhs == summed[1][summed[0].index(lhs)] and made is None)
        return Division(partial=_sum(case.operation))
    if lhs in batch[0]:
        place = batch[0].index(lhs)
        _require(rhs == batch[1][place] and made == place)
    elif lhs is not None:
        _require(rhs is None and made == len(batch[0]) + free[0].index(lhs))
    else:
        _require(rhs in free[1])
        assert rhs is not None
        _require(made == len(batch[0]) + len(free[0]) + free[1].index(rhs))
    return Division()


def _convolution(case: _Case) -> Division:
    (lhs, rhs), [made], attributes = case.given, case.made, case.attributes
    _require(attributes["batch_group_count"] == 1)
    if lhs is not None and lhs == attributes["input_batch_dimension"]:
        _require(rhs is None and made == attributes["output_batch_dimension"])
        return Division()
    _require(attributes["feature_group_count"] == 1)
    if lhs is None:
        _require(rhs == attributes["kernel_output_feature_dimension"]
                 and made == attributes["output_feature_dimension"])
        return Division()
    _require(lhs == attributes["input_feature_dimension"] and made is None
             and rhs == attributes["kernel_input_feature_dimension"])
    return Division(partial=_sum(case.operation))


def _combining(case: _Case, start: Value) -> Graph:
    """Return the reducer of a reduction, as the function that combines the devices' results.

    Each device's reduction begins with the initial value ``start``, so the combined result contains
    it once for each device. Therefore, raise `NotDivisibleError` unless the reducer is idempotent,
    or ``start`` is its identity.
    """
    _require(len(case.made) == 1)
    [region] = case.operation.regions
    kind = reducer_kind(region)
    if kind not in _IDEMPOTENT:
        known = case.constant(start)
        _require(kind in _IDENTITIES and known is not None
                 and bool(np.all(known == _IDENTITIES[str(kind)])))
    return region


def _reduce(case: _Case) -> Division:
    operation, count = case.operation, len(case.operation.results)
    cut, dimensions = _same(case.given[:count]), case.attributes["dimensions"]
    _nowhere(case.given[count:])
    if cut not in dimensions:
        kept = cut - sum(dimension < cut for dimension in dimensions)
        _require(_same(case.made) == kept)
        return Division()
    _nowhere(case.made)
    return Division(partial=_combining(case, operation.operands[count]))


def _concatenate(case: _Case) -> None:
    _require(_same([*case.given, *case.made]) != case.attributes["dimension"])


def _sort(case: _Case) -> None:
    _concatenate(case)


def _pad(case: _Case) -> None:
    cut = _same([case.given[0], *case.made])
    _nowhere(case.given[1:])
    _require(not any(case.attributes[name][cut] for name in (
        "edge_padding_low", "edge_padding_high", "interior_padding")))


def _reverse(case: _Case) -> None:
    _require(_same([*case.given, *case.made]) not in case.attributes["dimensions"])


def _slice(case: _Case) -> Division:
    cut, attributes = _same([*case.given, *case.made]), case.attributes
    limits = attributes["limit_indices"]
    _require((attributes["start_indices"][cut], limits[cut], attributes["strides"][cut])
             == (0, case.shape(0)[cut], 1))
    return Division({"limit_indices": _split(limits, cut, case.parts)})


def _dynamic_slice(case: _Case) -> Division:
    cut, sizes = _same([case.given[0], *case.made]), case.attributes["slice_sizes"]
    _nowhere(case.given[1:])
    _require(sizes[cut] == case.shape(0)[cut])
    return Division({"slice_sizes": _split(sizes, cut, case.parts)})


def _dynamic_update_slice(case: _Case) -> None:
    cut = _same([*case.given[:2], *case.made])
    _nowhere(case.given[2:])
    _require(case.shape(0)[cut] == case.shape(1)[cut])


def _one_by_one(case: _Case, cut: int) -> None:
    """Raise `NotDivisibleError` unless windows are single elements along dimension ``cut``.

    Also raise it if the windows have a stride, a dilation or padding along this dimension.
    """
    attributes = case.attributes
    _require(attributes["padding"][cut] == (0, 0))
    _require(all(attributes[name][cut] == 1 for name in (
        "window_dimensions", "window_strides", "base_dilations", "window_dilations")
        if name in attributes))


def _reduce_window(case: _Case) -> None:
    count = len(case.made)
    _one_by_one(case, _same([*case.given[:count], *case.made]))
    _nowhere(case.given[count:])


def _select_and_scatter(case: _Case) -> None:
    _one_by_one(case, _same([*case.given[:2], *case.made]))
    _nowhere(case.given[2:])


def _gather(case: _Case) -> Division:
    (operand, indices), [made], attributes = case.given, case.made, case.attributes
    offset, sizes = attributes["offset_dims"], attributes["slice_sizes"]
    batching = attributes["operand_batching_dims"]
    if indices is None:
        # Windows must contain all of the dimension that is split.
        kept = [dimension for dimension in range(len(sizes))
                if dimension not in (*attributes["collapsed_slice_dims"], *batching)]
        _require(operand in kept)
        assert operand is not None
        _require(sizes[operand] == case.shape(0)[operand]
                 and made == offset[kept.index(operand)])
        return Division({"slice_sizes": _split(sizes, operand, case.parts)})
    vector, along = attributes["index_vector_dim"], attributes["start_indices_batching_dims"]
    _require(indices != vector)
    _require(operand == (batching[along.index(indices)] if indices in along else None))
    batch = [dimension for dimension in range(len(case.operation.result.shape))
             if dimension not in offset]
    _require(made == batch[indices - (indices > vector)])
    return Division()


def _scatter(case: _Case) -> Division:
    operation, attributes, count = case.operation, case.attributes, len(case.made)
    indices, vector = case.given[count], attributes["index_vector_dim"]
    window = attributes["update_window_dims"]
    batching, along = attributes["input_batching_dims"], attributes["scatter_indices_batching_dims"]
    if indices is None:
        # Windows must contain all of the dimension that is split.
        cut = _same([*case.given[:count], *case.made])
        kept = [dimension for dimension in range(len(case.shape(0)))
                if dimension not in (*attributes["inserted_window_dims"], *batching)]
        _require(cut in kept and cut not in attributes["scatter_dims_to_operand_dims"])
        place = window[kept.index(cut)]
        _require(_same(case.given[count + 1:]) == place
                 and case.shape(count + 1)[place] == case.shape(0)[cut])
        return Division()
    batch = [dimension for dimension in range(len(case.shape(count + 1)))
             if dimension not in window]
    _require(indices != vector)
    _require(_same(case.given[count + 1:]) == batch[indices - (indices > vector)])
    if indices in along:
        _require(_same([*case.given[:count], *case.made]) == batching[along.index(indices)])
        return Division()
    # Each device applies its part of the updates; then the results of all are combined.
    _nowhere([*case.given[:count], *case.made])
    return Division(partial=_combining(case, operation.operands[0]))


_Rule = Callable[[_Case], Division | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "map"), _elementwise),
    "broadcast_in_dim": _broadcast, "concatenate": _concatenate, "convolution": _convolution,
    "dot_general": _dot_general, "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "optimization_barrier": _each, "pad": _pad, "reduce": _reduce,
    "reduce_window": _reduce_window, "reshape": _reshape, "reverse": _reverse, "scatter": _scatter,
    "select_and_scatter": _select_and_scatter, "slice": _slice, "sort": _sort,
    "transpose": _transpose,
}
