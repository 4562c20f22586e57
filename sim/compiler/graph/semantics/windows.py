"""Interpreter rules for operations on windows: ``reduce_window`` and ``select_and_scatter``."""

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.semantics.movement import pad_array
from sim.compiler.graph.semantics.reductions import fold
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__: list[str] = []


@evaluates("reduce_window")
def _reduce_window(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    count, attributes = len(operands) // 2, operation.attributes
    zeros = (0,) * operands[0].ndim
    shape = operation.results[0].shape
    padded = []
    for x, initial in zip(operands[:count], operands[count:], strict=True):
        spread = pad_array(x, initial, zeros, zeros,
                           tuple(step - 1 for step in attributes["base_dilations"]))
        padded.append(pad_array(spread, initial, tuple(low for low, _ in attributes["padding"]),
                                tuple(high for _, high in attributes["padding"]), zeros))
    totals = [np.broadcast_to(initial, shape).copy() for initial in operands[count:]]
    if not totals[0].size:
        return totals
    terms = []
    for offset in np.ndindex(*attributes["window_dimensions"]):
        places = tuple(slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
                       for at, dilation, size, stride in zip(
                           offset, attributes["window_dilations"], shape,
                           attributes["window_strides"], strict=True))
        terms.append([x[places] for x in padded])
    return fold(operation.regions[0], totals, terms, context)


@evaluates("select_and_scatter")
def _select_and_scatter(operation: Operation, operands: list[Array], context: Context) -> Array:
    (x, source, initial), attributes = operands, operation.attributes
    select, scatter = operation.regions
    best: Array = np.zeros(source.shape, x.dtype)
    chosen = np.full(source.shape, -1, np.int64)
    corners = np.indices(source.shape)
    for offset in np.ndindex(*attributes["window_dimensions"]):
        places = [corner * stride + at - low for corner, stride, at, (low, _) in zip(
            corners, attributes["window_strides"], offset, attributes["padding"], strict=True)]
        inside = np.ones(source.shape, np.bool_)
        for place, size in zip(places, x.shape, strict=True):
            inside &= (place >= 0) & (place < size)
        clipped = tuple(np.clip(place, 0, max(size - 1, 0))
                        for place, size in zip(places, x.shape, strict=True))
        if not x.size:
            break
        value = x[clipped]
        # The selected element is kept while `select` is true for it and the next element.
        stays = context.apply(select, [best, value])[0] & (chosen >= 0)
        taken = inside & ~stays
        best = np.where(taken, value, best)
        chosen = np.where(taken, np.ravel_multi_index(clipped, x.shape) if x.ndim else 0, chosen)
    result = np.broadcast_to(initial, x.shape).copy().reshape(-1)
    places_flat, values = chosen.reshape(-1), source.reshape(-1)
    remaining = np.flatnonzero(places_flat >= 0)
    while remaining.size:
        _, first = np.unique(places_flat[remaining], return_index=True)
        now = remaining[np.sort(first)]
        at = places_flat[now]
        result[at] = context.apply(scatter, [result[at], values[now]])[0]
        remaining = np.setdiff1d(remaining, now, assume_unique=True)
    return result.reshape(x.shape)
