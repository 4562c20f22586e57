"""Gathers of rows of a table that stays in HBM."""

from math import prod

from hdl.config import Config
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion, expand
from sim.compiler.tiling import standard

__all__ = ["leave_tables"]


def leave_tables(graph: Graph, config: Config) -> None:
    """Mark gathers along the first dimension of tables that vector memory does not hold.

    They get the attribute ``in_hbm``, and a line of indices.

    Parameters
    ----------
    graph : Graph
        Is changed.
    config : Config
        The chip.
    """
    expand(graph, lambda operation, at: _line(operation, at, config))


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
    """Whether each index chooses all of an index of the first dimension."""
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
