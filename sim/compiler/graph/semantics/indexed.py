"""Interpreter rules for operations that access elements at indices computed at run time."""

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.semantics.reductions import reducer_kind
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__: list[str] = []


def _starts(x: Array, starts: list[Array], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Return a Python slice for each dimension of ``x``; that of dimension n has size ``sizes[n]``.

    The slices begin at the scalars ``starts``, clamped so that they lie within ``x``.
    """
    slices = []
    for whole, start, size in zip(x.shape, starts, sizes, strict=True):
        first = min(max(int(start), 0), whole - size)
        slices.append(slice(first, first + size))
    return tuple(slices)


@evaluates("dynamic_slice")
def _dynamic_slice(operation: Operation, operands: list[Array], context: Context) -> Array:
    x, *starts = operands
    return x[_starts(x, starts, operation.attributes["slice_sizes"])]


@evaluates("dynamic_update_slice")
def _dynamic_update_slice(operation: Operation, operands: list[Array], context: Context) -> Array:
    x, update, *starts = operands
    result = x.copy()
    result[_starts(x, starts, update.shape)] = update
    return result


def _index_vectors(indices: Array, vector: int) -> Array:
    """Move the index vectors, which lie along dimension ``vector``, to the last dimension.

    If ``vector`` is the rank of ``indices``, each element is an index vector of length 1. The
    result has type int64.
    """
    if vector == indices.ndim:
        indices = indices[..., None]
    return np.moveaxis(indices, vector, -1).astype(np.int64)


def _origins(vectors: Array, rank: int, mapped: tuple[int, ...], batching: tuple[int, ...],
             batch_dims: tuple[int, ...]) -> Array:
    """Return the first index of each window in each dimension of the operand, without clamping it.

    In a dimension that is neither in ``mapped`` nor in ``batching``, it is 0.

    Parameters
    ----------
    vectors : array
        The index vectors, shape (batch dimensions..., elements of a vector).
    rank : int
        Number of dimensions of the operand.
    mapped : tuple of int
        For each element of an index vector, the dimension of the operand in which it is an index.
    batching, batch_dims : tuple of int
        Batching dimensions of the operand, and the corresponding dimensions of ``vectors``.

    Returns
    -------
    array, shape (batch dimensions..., rank)
    """
    origins = np.zeros((*vectors.shape[:-1], rank), np.int64)
    for position, dimension in enumerate(mapped):
        origins[..., dimension] = vectors[..., position]
    for dimension, along in zip(batching, batch_dims, strict=True):
        sizes = [-1 if i == along else 1 for i in range(vectors.ndim - 1)]
        origins[..., dimension] = np.arange(vectors.shape[along]).reshape(sizes)
    return origins


def _batch_positions(dimensions: tuple[int, ...], vector: int) -> tuple[int, ...]:
    """Renumber batch dimensions of an array of indices for the result of `_index_vectors`.

    That function makes dimension ``vector``, along which index vectors lie, the last one, so the
    numbers of the dimensions after it fall by 1.
    """
    return tuple(i - (i > vector) for i in dimensions)


@evaluates("gather")
def _gather(operation: Operation, operands: list[Array], context: Context) -> Array:
    (x, indices), attributes = operands, operation.attributes
    sizes, vector = attributes["slice_sizes"], attributes["index_vector_dim"]
    batching = attributes["operand_batching_dims"]
    origins = _origins(_index_vectors(indices, vector), x.ndim, attributes["start_index_map"],
                       batching, _batch_positions(attributes["start_indices_batching_dims"],
                                                  vector))
    origins = np.clip(origins, 0, np.array(x.shape, np.int64) - np.array(sizes, np.int64))
    dropped = {*attributes["collapsed_slice_dims"], *batching}
    window = [i for i in range(x.ndim) if i not in dropped]
    batch_shape = origins.shape[:-1]
    positions = []
    for dimension in range(x.ndim):
        position = origins[..., dimension].reshape(batch_shape + (1,) * len(window))
        if dimension in window:
            aligned = [sizes[dimension] if i == dimension else 1 for i in window]
            position = position + np.arange(sizes[dimension]).reshape(aligned)
        positions.append(position)
    shape = batch_shape + tuple(sizes[i] for i in window)
    found = x[tuple(np.broadcast_to(position, shape) for position in positions)] if x.ndim else \
        np.broadcast_to(x, shape).copy()
    offset = attributes["offset_dims"]
    rest = [i for i in range(found.ndim) if i not in offset]
    order = [0] * found.ndim
    for source, target in enumerate([*rest, *offset]):
        order[target] = source
    return np.transpose(found, order)


@evaluates("scatter")
def _scatter(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    count, attributes = len(operands) // 2, operation.attributes
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1:]
    x, vector = inputs[0], attributes["index_vector_dim"]
    batching = attributes["input_batching_dims"]
    origins = _origins(_index_vectors(indices, vector), x.ndim,
                       attributes["scatter_dims_to_operand_dims"], batching,
                       _batch_positions(attributes["scatter_indices_batching_dims"], vector))
    dropped = {*attributes["inserted_window_dims"], *batching}
    window = [i for i in range(x.ndim) if i not in dropped]
    offset = attributes["update_window_dims"]
    rest = [i for i in range(updates[0].ndim) if i not in offset]
    moved = [np.transpose(update, (*rest, *offset)) for update in updates]
    shape, batch_shape = moved[0].shape, origins.shape[:-1]
    positions, inside = [], np.ones(shape, np.bool_)
    for dimension in range(x.ndim):
        position = origins[..., dimension].reshape(batch_shape + (1,) * len(window))
        if dimension in window:
            size = shape[len(batch_shape) + window.index(dimension)]
            position = position + np.arange(size).reshape([size if i == dimension else 1
                                                     for i in window])
        position = np.broadcast_to(position, shape)
        inside &= (position >= 0) & (position < x.shape[dimension])
        positions.append(position)
    # Updates keep their order; of each, only the elements that lie outside the operand are dropped.
    kept = tuple(position[inside] for position in positions)
    return _apply(operation, inputs, kept, [update[inside] for update in moved], context)


_UFUNCS = {"add": np.add, "multiply": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor}


def _apply(operation: Operation, inputs: list[Array], positions: tuple[Array, ...],
           updates: list[Array], context: Context) -> list[Array]:
    """Apply a scatter's updates in order; return the changed inputs.

    ``positions`` has, for each dimension of the inputs, the index of the element to which each
    update applies.
    """
    region = operation.regions[0]
    results = [array.copy() for array in inputs]
    if not region.operations and region.outputs == region.inputs[len(inputs):]:
        for result, update in zip(results, updates, strict=True):
            result[positions] = update
        return results
    kind = reducer_kind(region)
    if kind in _UFUNCS and results[0].dtype != np.bool_:
        [result], [update] = results, updates
        wide = result.astype(np.float64) if result.dtype.kind not in "biu" else result
        _UFUNCS[kind].at(wide, positions, update.astype(wide.dtype))
        return [wide.astype(result.dtype)]
    flat = [np.ravel_multi_index(positions, inputs[0].shape) if inputs[0].ndim
            else np.zeros(len(updates[0]), np.int64)]
    # Updates of one element are applied one by one; those of different elements in one step.
    remaining = np.arange(len(flat[0]))
    views = [result.reshape(-1) for result in results]
    while remaining.size:
        _, first = np.unique(flat[0][remaining], return_index=True)
        now = remaining[np.sort(first)]
        at = flat[0][now]
        new = context.apply(region, [*(view[at] for view in views),
                                     *(update[now] for update in updates)])
        for view, values in zip(views, new, strict=True):
            view[at] = values
        remaining = np.setdiff1d(remaining, now, assume_unique=True)
    return [view.reshape(array.shape) for view, array in zip(views, inputs, strict=True)]
