"""Interpreter rules for loops, conditionals, fusions, streams, sorts, and several devices."""

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__: list[str] = []

_PAIRS = 1 << 20
"""Maximum number of comparisons that one numpy call evaluates in a sort. A call evaluates more if
a single line of the operand needs more."""


@evaluates("while")
def _while(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    condition, body = operation.regions
    while context.run(condition, operands)[0]:
        operands = context.run(body, operands)
    return operands


@evaluates("case")
def _case(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    index, last = int(operands[0]), len(operation.regions) - 1
    branch = operation.regions[index if 0 <= index <= last else last]
    return context.run(branch, operands[1:])


@evaluates("fusion")
def _fusion(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    return context.run(operation.regions[0], operands)


@evaluates("stream")
def _stream(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    results, attributes = operation.attributes["result_dimensions"], operation.attributes
    dimensions = attributes["operand_dimensions"]
    given, carried = operands[:len(dimensions)], operands[len(dimensions):]
    parts: list[list[Array]] = [[] for _ in results]
    for region, count, starts, steps in zip(operation.regions, attributes["counts"],
                                            attributes["starts"], attributes["steps"], strict=True):
        for number in range(count):
            blocks = [
                array if along < 0 else array[(slice(None),) * along + (
                    slice(start + number * step, start + number * step + value.shape[along]),)]
                for array, along, start, step, value in zip(
                    given, dimensions, starts, steps, region.inputs[:len(given)], strict=True)]
            outputs = context.run(region, [*blocks, *carried])
            carried = [output for output, along in zip(outputs, results, strict=True) if along < 0]
            for part, output, along in zip(parts, outputs, results, strict=True):
                if along >= 0:
                    part.append(output)
    last = iter(carried)
    return [next(last) if along < 0 else np.concatenate(part, along)
            for part, along in zip(parts, results, strict=True)]


@evaluates("device_constant")
def _device_constant(operation: Operation, operands: list[Array], context: Context) -> Array:
    if context.device is None:
        raise NotImplementedError(f"{operation.kind} must be in a graph for several devices, "
                                  "one with a sharding")
    return np.asarray(operation.attributes["values"][context.device])


@evaluates("by_device", "exchange")
def _devices(operation: Operation, operands: list[Array], context: Context) -> Array:
    if context.device is None:
        raise NotImplementedError(f"{operation.kind} must be in a graph for several devices, "
                                  "one with a sharding")
    mine = operands[context.device]
    if operation.kind == "by_device":
        return mine
    return context.exchange(mine, operation.attributes.get("sources", (1, 0))[context.device])


@evaluates("pod_sum")
def _pod_sum(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    [region] = operation.regions
    return context.run(region, operands)


@evaluates("sort")
def _sort(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    region, dimension = operation.regions[0], operation.attributes["dimension"]
    arrays = [np.moveaxis(array, dimension, -1) for array in operands]
    shape, size = arrays[0].shape, arrays[0].shape[-1]
    flat = [array.reshape(-1, size) if array.size else array.reshape(0, size) for array in arrays]
    if not flat[0].size:
        return operands
    # An element's rank is the number of elements that go before it: those that are less, and the
    # earlier ones that are equal.
    ranks = np.zeros(flat[0].shape, np.int64)
    earlier = np.arange(size)[None, :, None] > np.arange(size)[None, None, :]
    for first in range(0, len(flat[0]), step := max(_PAIRS // size ** 2, 1)):
        mine = [array[first:first + step, :, None] for array in flat]
        other = [array[first:first + step, None, :] for array in flat]
        pairs = [side for pair in zip(other, mine, strict=True) for side in pair]
        before = context.apply(region, pairs)[0]
        after = np.swapaxes(before, 1, 2)
        ranks[first:first + step] = (before | (earlier & ~after)).sum(axis=2)
    order = np.argsort(ranks, axis=1, kind="stable")
    return [np.moveaxis(np.take_along_axis(array, order, axis=1).reshape(shape), -1, dimension)
            for array in flat]
