"""Finds operations that transfers of rows within HBM can compute."""

from collections.abc import Set
from math import prod

from hdl.config import Config
from sim.compiler.graph.counted import Counted, counted_loops
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion, expand
from sim.compiler.tiling import standard

__all__ = ["leave_in_hbm"]

_MOST_CUTS = 4
"""Maximum number of dimensions in which a slice in HBM may be smaller than its operand: each of
them needs a word of scalar memory for its index."""
_LEAST = 4
"""Smallest number of vectors of a slice for which a transfer pays off despite its latency."""


def leave_in_hbm(graph: Graph, config: Config) -> None:
    """Mark operations on large values that transfers can compute.

    These operations get the attribute ``in_hbm``:

    - gathers along the first dimension of a table that takes at least half of vector memory; their
      indices are reshaped to one dimension;
    - concatenations along any dimension but the last, if the values do not fit vector memory;
    - dynamic slices, if the values take more than half of vector memory, and updates of slices, if
      the values do not fit vector memory;
    - dynamic slices of an input of the graph in a counted loop, even if the input fits vector
      memory, because a transfer can load them while the loop runs.

    If a slice holds only parts of rows, its operation is replaced by operations on whole rows,
    which are marked, and one operation within these rows.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed in place.
    config : Config
        The chip.
    """
    expand(graph, lambda operation, at: _expanded(operation, at, config))
    inputs = set(graph.inputs)
    for operation, loop in counted_loops(graph):
        _leave_slices(operation, loop, inputs, config)


def _leave_slices(operation: Operation, loop: Counted, inputs: Set[Value], config: Config) -> None:
    """Mark the slices (`_is_block`) that a counted loop takes of the graph's inputs.

    The slices of an input are marked if the loop does not change the input, and uses it only for
    such slices.
    """
    condition, body = operation.regions
    users, read = body.users(), condition.users()
    for number, value in enumerate(body.inputs):
        slices = users.get(value, [])
        if (operation.operands[number] in inputs and body.outputs.count(value) == 1
                and body.outputs[number] is value and condition.inputs[number] not in read
                and all(_is_block(each, loop, config) for each in slices)):
            for each in slices:
                each.attributes["in_hbm"] = True


def _is_block(operation: Operation, loop: Counted, config: Config) -> bool:
    """Return whether an operation slices whole vectors, enough for a transfer to pay off.

    Return False unless the slice begins at indices that are affine functions of the counter of
    ``loop``.
    """
    if operation.kind != "dynamic_slice":
        return False
    (value, *starts), result = operation.operands, operation.result
    cut = [along for along, (size, whole) in enumerate(zip(result.shape, value.shape, strict=True))
           if size != whole]
    return (0 < len(cut) <= _MOST_CUTS and cut[-1] < value.type.rank - 2
            and all(starts[along] in loop.values for along in cut)
            and standard(result.shape, config).vectors >= _LEAST)


def _expanded(operation: Operation, at: Expansion, config: Config) -> Value | None:
    if operation.kind == "gather":
        return _line(operation, at, config)
    values = dict.fromkeys((*operation.operands, *operation.results))
    # A value of which only slices are read need not be in vector memory. A value that fills half of
    # vector memory would be evicted for other operations, and then be loaded again as a whole.
    room = config.vmem_vectors // (2 if operation.kind == "dynamic_slice" else 1)
    if any(0 in value.shape for value in values) or sum(
            standard(value.shape, config).vectors for value in values) <= room:
        return None
    last = operation.results[0].type.rank - 1 if operation.results else 0
    if operation.kind == "concatenate" and operation.attributes["dimension"] < last:
        operation.attributes["in_hbm"] = True
    elif operation.kind in ("dynamic_slice", "dynamic_update_slice"):
        return _slice(operation, at)
    return None


def _slice(operation: Operation, at: Expansion) -> Value | None:
    """Let transfers compute a dynamic slice, or an update of a slice.

    If the slice consists of whole rows, the operation only gets the attribute ``in_hbm``. If it
    consists of parts of rows, return the result of the operations that replace it: some move whole
    rows and have this attribute; one computes within these rows. Return None if the operation
    stays.
    """
    updates = operation.kind == "dynamic_update_slice"
    value, starts = operation.operands[0], operation.operands[2 if updates else 1:]
    part = operation.operands[1] if updates else operation.result
    cut = [along for along, (size, whole) in enumerate(zip(part.shape, value.shape, strict=True))
           if size != whole]
    last = value.type.rank - 1
    if len(cut) > _MOST_CUTS or any(start.dtype is not DType.S32 for start in starts):
        return None
    if last not in cut:
        operation.attributes["in_hbm"] = True
        return None
    if len(cut) == 1:
        return None
    zero = at.constant(0, DType.S32)
    outer, inner = (*starts[:-1], zero), (*[zero] * last, starts[-1])
    rows = (*part.shape[:-1], value.shape[-1])
    block = at.add("dynamic_slice", (value, *outer), TensorType(rows, value.dtype),
                   slice_sizes=rows, in_hbm=True)
    if not updates:
        return at.add("dynamic_slice", (block, *inner), operation.result.type,
                      slice_sizes=part.shape)
    block = at.add("dynamic_update_slice", (block, part, *inner), block.type)
    return at.add("dynamic_update_slice", (value, block, *outer), value.type, in_hbm=True)


def _line(operation: Operation, at: Expansion, config: Config) -> Value | None:
    if operation.kind != "gather" or operation.attributes.get("in_hbm") or not (
            _takes_rows(operation)):
        return None
    (table, indices), result = operation.operands, operation.result
    if standard(table.shape, config).vectors < config.vmem_vectors // 2:
        return None
    rest = table.shape[1:]
    count = prod(result.shape) // prod(rest)
    given = at.reshape(indices, (count,))
    found = at.add("gather", (table, given), TensorType((count, *rest), result.dtype), **{
        **operation.attributes, "offset_dims": tuple(range(1, len(rest) + 1)),
        "index_vector_dim": 1, "in_hbm": True})
    return at.reshape(found, result.shape)


def _takes_rows(operation: Operation) -> bool:
    """Return whether a gather copies the whole of ``table[index]`` for each of its indices."""
    (table, indices), attributes = operation.operands, operation.attributes
    rank, result = table.type.rank, operation.result
    batch = result.type.rank - rank + 1
    return (rank > 1 and 0 not in (*table.shape, *result.shape) and indices.dtype is DType.S32
            and attributes["collapsed_slice_dims"] == attributes["start_index_map"] == (0,)
            and not attributes["operand_batching_dims"]
            and attributes["slice_sizes"] == (1, *table.shape[1:])
            and attributes["offset_dims"] == tuple(range(batch, result.type.rank))
            and attributes["index_vector_dim"] >= indices.type.rank - 1
            and indices.type.size == prod(result.shape[:batch]))
