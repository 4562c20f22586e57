"""Connects a loop to the queues through which the host exchanges arrays with it."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hdl.config import Config
from sim.compiler.executable import Queues
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.counted import Affine, Counted, counted_loops
from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.graph.verify import verify
from sim.compiler.tiling import standard
from sim.errors import Unsupported, UnsupportedError

__all__ = ["connect_queues"]

_SLOTS = 8
"""Maximum number of batches in HBM that the host has written and no iteration has used yet."""
_WHOLE = 8
"""Each iteration writes a stacked result of at most this many vectors to HBM as a whole. Of a
larger result, iteration *n* writes only the elements at index *n* of the first dimension."""
_LEAST_RANK = 3
"""If an input has at least this rank, each index of its first dimension takes whole vectors."""


def connect_queues(graph: Graph, fed: Sequence[int], outfeed: bool, config: Config) -> Queues:
    """Mark the loop that takes batches from the infeed and writes the outfeed; return its queues.

    The loop gets the attribute ``outfeed``, a tuple with the numbers of its results in the outfeed.
    A slice of an input in the infeed gets the attributes ``in_hbm`` and ``slots``, the number of
    batches for which HBM has room. Inputs in the infeed get dimensions of size 1, so that they have
    rank 3 or more.

    Parameters
    ----------
    graph : Graph
        The graph after all passes; it is changed in place.
    fed : sequence of int
        Numbers of the inputs in the infeed.
    outfeed : bool
        Whether results that the loop stacks are in the outfeed.
    config : Config
        The chip.

    Raises
    ------
    UnsupportedError
        If there is no loop that takes a batch from each of these inputs in each iteration and, if
        there is an outfeed, stacks a result that the program returns.
    """
    for operation, loop in counted_loops(graph):
        if loop.limit == 1:
            _slice_whole(graph, fed, operation, loop)
        users, values = graph.users(), [graph.inputs[number] for number in fed]
        if all(user is operation for value in values for user in users.get(value, ())):
            for value in values:
                if value in graph.outputs and value.shape[:1] == (loop.limit,):
                    _stack(graph, value, operation, loop)
        slices = [found for number in fed
                  if (found := _slices(graph, number, operation, loop)) is not None]
        stacked = _stacked(graph, operation, loop) if outfeed else {}
        if loop.first == 0 and len(slices) == len(fed) and (any(slices) or not fed) and (
                stacked or not outfeed):
            break
    else:
        raise UnsupportedError([Unsupported(
            "a program without a loop for its infeed or outfeed", graph.name,
            "an infeed must be the xs of one lax.scan outside of all loops, and be used by nothing "
            "else; an outfeed needs ys of that scan that the program returns unchanged")])
    slots = min(_SLOTS, 1 << (loop.limit - 1).bit_length())
    for number, found in zip(fed, slices, strict=True):
        _pad(graph, number, operation, found)
        for each in found:
            each.attributes.update(in_hbm=True, slots=slots)
    for result, update in stacked.items():
        large = standard(result.shape, config).vectors > _WHOLE and result.type.rank > 1
        if update.kind == "dynamic_update_slice" and large:
            update.attributes["in_hbm"] = True
    operation.attributes["outfeed"] = tuple(map(operation.results.index, stacked))
    verify(graph)
    return Queues(loop.limit, slots, tuple(fed), tuple(
        number for number, value in enumerate(graph.outputs) if value in stacked))


def _slices(graph: Graph, number: int, operation: Operation,
            loop: Counted) -> list[Operation] | None:
    """Return the slices with which a loop takes batch *n* of an input in iteration *n*.

    ``number`` is the position of the input, ``operation`` the loop, and ``loop`` its counter. The
    list is empty if nothing uses the input. Return None if the loop or another operation uses the
    input in any other way.
    """
    value, (condition, body) = graph.inputs[number], operation.regions
    cut = graph.sharding.inputs[number] if graph.sharding else None
    users = graph.users().get(value, [])
    if value in graph.outputs or value.shape[:1] != (loop.limit,) or prod(value.shape) == 0 or (
            cut is not None and cut < 1):
        return None
    if not users:
        return []
    if users != [operation] or operation.operands.count(value) > 1:
        return None
    carried = operation.operands.index(value)
    inner, result = body.inputs[carried], operation.results[carried]
    found = body.users().get(inner, [])
    if body.outputs[carried] is not inner or body.outputs.count(inner) > 1 or (
            condition.inputs[carried] in condition.users() or result in graph.outputs
            or result in graph.users()):
        return None
    return found if found and all(
        each.kind == "dynamic_slice" and loop.values.get(each.operands[1]) == Affine(1, 0)
        and each.result.shape == (1, *value.shape[1:]) for each in found) else None


def _slice_whole(graph: Graph, fed: Sequence[int], operation: Operation, loop: Counted) -> None:
    """Add to a loop of one iteration the slices that take its batches from the infeed.

    Passes have removed these slices, because each of them takes the whole of its input. ``fed`` are
    the numbers of the inputs in the infeed.
    """
    body = operation.regions[1]
    for number in fed:
        value = graph.inputs[number]
        if value not in operation.operands or value.shape[:1] != (1,):
            continue
        inner, part = body.inputs[operation.operands.index(value)], Value(value.type)
        for each in body.operations:
            each.operands = tuple(part if operand is inner else operand
                                  for operand in each.operands)
        starts = [body.inputs[loop.number]] * value.type.rank
        body.operations.insert(0, Operation("dynamic_slice", (inner, *starts), (part,),
                                            {"slice_sizes": value.shape}, (), operation.location))


def _stack(graph: Graph, value: Value, operation: Operation, loop: Counted) -> None:
    """Let a loop stack the batches of ``value``, an input, and let the program return the stack.

    JAX makes a program return an input itself if it is both the ``xs`` and the ``ys`` of a scan.
    But an input in the infeed cannot be returned: HBM has at most `_SLOTS` of its batches.
    """
    body = operation.regions[1]
    if value not in operation.operands:
        inner, _ = _carry(operation, value)
        body.outputs.append(inner)
    inner = body.inputs[operation.operands.index(value)]
    taken = next((each for each in body.users().get(inner, ()) if each.kind == "dynamic_slice"),
                 None)
    if taken is None:
        size = 1, *value.shape[1:]
        # All starts but the first are clamped to 0.
        starts = [body.inputs[loop.number]] * value.type.rank
        taken = Operation("dynamic_slice", (inner, *starts), (
            Value(TensorType(size, value.dtype)),), {"slice_sizes": size})
        body.operations.insert(0, taken)
    zeros = np.broadcast_to(np.zeros((), array_dtype(value.dtype)), value.shape)
    initial, new = Value(value.type), Value(value.type)
    graph.operations.insert(graph.operations.index(operation), Operation(
        "constant", (), (initial,), {"value": zeros}, location=operation.location))
    old, result = _carry(operation, initial)
    body.operations.insert(body.operations.index(taken) + 1, Operation(
        "dynamic_update_slice", (old, taken.result, *taken.operands[1:]), (new,),
        location=taken.location))
    body.outputs.append(new)
    graph.outputs = [result if output is value else output for output in graph.outputs]


def _carry(operation: Operation, initial: Value) -> tuple[Value, Value]:
    """Add a carried value to a loop; return the body's input for it, and the loop's result.

    ``operation`` is the loop, and ``initial`` the value before the first iteration. The caller
    appends the value for the next iteration to the body's outputs.
    """
    condition, body = operation.regions
    inner, result = Value(initial.type), Value(initial.type)
    body.inputs.append(inner)
    condition.inputs.append(Value(initial.type))
    operation.operands = (*operation.operands, initial)
    operation.results = (*operation.results, result)
    return inner, result


def _stacked(graph: Graph, operation: Operation, loop: Counted) -> dict[Value, Operation]:
    """Find the results that a loop stacks and that the program returns.

    Map each of them to its update: in iteration *n*, this operation of the body changes index *n*
    of the result's first dimension and nothing else. In a loop of one iteration, passes have
    removed the update; the result is then mapped to the operation that computes its value.
    """
    body, found = operation.regions[1], dict[Value, Operation]()
    makers, users = body.producers(), body.users()
    for number, result in enumerate(operation.results):
        update, inner = makers.get(body.outputs[number]), body.inputs[number]
        if update is None or result not in graph.outputs or result.shape[:1] != (loop.limit,):
            continue
        whole = loop.limit == 1 and inner not in users and inner not in body.outputs
        if whole or (update.kind == "dynamic_update_slice" and update.operands[0] is inner
                     and update.operands[1].shape == (1, *result.shape[1:])
                     and loop.values.get(update.operands[2]) == Affine(1, 0)):
            found[result] = update
    return found


def _pad(graph: Graph, number: int, operation: Operation, slices: Sequence[Operation]) -> None:
    """Give input ``number``, which is in the infeed, at least `_LEAST_RANK` dimensions.

    Dimensions of size 1 are added after the first dimension. ``operation`` is the loop, and
    ``slices`` are its slices of the input.
    """
    value, (condition, body) = graph.inputs[number], operation.regions
    ones = (1,) * (_LEAST_RANK - value.type.rank)
    if not ones:
        return

    def padded(given: Value) -> Value:
        first, *rest = given.shape
        return Value(TensorType((first, *ones, *rest), given.dtype), given.name)

    graph.inputs[number] = padded(value)
    if not slices:
        return
    carried, users = operation.operands.index(value), body.users()
    inner = padded(value)
    for each in slices:
        using, [old], new = users.get(each.result, []), each.results, padded(each.result)
        start = each.operands[1]
        each.operands = (inner, *[start] * len(new.shape))
        each.results, each.attributes["slice_sizes"] = (new,), new.shape
        if len(using) == 1 and using[0].kind == "reshape" and old not in body.outputs:
            using[0].operands = (new,)
        else:
            body.operations.insert(body.operations.index(each) + 1, Operation(
                "reshape", (new,), (old,), location=each.location))
    for values in (condition.inputs, body.inputs, body.outputs):
        values[carried] = inner if values is not condition.inputs else padded(value)
    operation.operands = _put(operation.operands, carried, graph.inputs[number])
    operation.results = _put(operation.results, carried, padded(value))


def _put(values: tuple[Value, ...], number: int, value: Value) -> tuple[Value, ...]:
    return (*values[:number], value, *values[number + 1:])
