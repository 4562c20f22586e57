"""Table of rules that convert the attributes of StableHLO's operations to those of the graph.

Operations that do not correspond to one operation of the graph are handled in `importer`.
"""

import re
from collections.abc import Callable
from typing import Any

from sim.compiler.graph.ir import Value
from sim.compiler.importer.attributes import (
    array_of,
    dimensions,
    enum_name,
    pairs,
    python,
    strings,
)

__all__ = ["RULES", "Rule"]

Rule = Callable[[Any, list[Value], list[Value]], dict[str, Any]]
"""Receives an MLIR operation, and the graph's values for its operands and its results; returns the
attributes of the graph's operation."""


def _none(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    return {}


def _fields(*names: str) -> Rule:
    """Make a rule that converts the named attributes one by one."""
    def rule(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
        return {name: python(operation.attributes[name]) for name in names}

    return rule


def _optional(operation: Any, name: str, default: Any) -> Any:
    return python(operation.attributes[name]) if name in operation.attributes else default


def _constant(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    return {"value": array_of(operation.attributes["value"], results[0].shape, results[0].dtype)}


def _compare(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    dtype = operands[0].dtype
    kind = "FLOAT" if dtype.is_float else "SIGNED" if dtype.is_signed else "UNSIGNED"
    if "compare_type" in operation.attributes:
        named = enum_name(operation.attributes["compare_type"])
        kind = named if named == "TOTALORDER" else kind
    return {"comparison_direction": enum_name(operation.attributes["comparison_direction"]),
            "compare_type": kind}


_ALGORITHMS = {("bf16", 1): "DEFAULT", ("bf16", 3): "HIGH", ("bf16", 6): "HIGHEST",
               ("bf16", 9): "HIGHEST", ("tf32", 1): "HIGH", ("tf32", 3): "HIGHEST",
               ("f32", 1): "HIGHEST"}
"""Precision of a product for each algorithm that a program can request. The key of an algorithm has
the type of the parts into which it splits operands, and how many products of parts it computes."""


def _precision(operation: Any) -> tuple[str, ...]:
    if "algorithm" in operation.attributes:
        text = str(operation.attributes["algorithm"])
        part = re.search(r"lhs_precision_type = (\w+)", text)
        count = re.search(r"num_primitive_operations = (\d+)", text)
        key = (part[1] if part else "", int(count[1]) if count else 1)
        return (_ALGORITHMS.get(key, "HIGHEST"),) * 2
    if "precision_config" in operation.attributes:
        return strings(operation.attributes["precision_config"]) or ("DEFAULT", "DEFAULT")
    return ("DEFAULT", "DEFAULT")


def _dot_general(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    return {**dimensions(numbers, "lhs_batching_dimensions", "rhs_batching_dimensions",
                         "lhs_contracting_dimensions", "rhs_contracting_dimensions"),
            "precision_config": _precision(operation)}


def _convolution(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])
    spatial = operands[0].type.rank - 2
    ones = (1,) * spatial
    return {
        "window_strides": _optional(operation, "window_strides", ones),
        "padding": pairs(operation.attributes["padding"])
        if "padding" in operation.attributes else ((0, 0),) * spatial,
        "lhs_dilation": _optional(operation, "lhs_dilation", ones),
        "rhs_dilation": _optional(operation, "rhs_dilation", ones),
        "window_reversal": _optional(operation, "window_reversal", (False,) * spatial),
        **dimensions(numbers, "input_batch_dimension", "input_feature_dimension",
                     "input_spatial_dimensions", "kernel_input_feature_dimension",
                     "kernel_output_feature_dimension", "kernel_spatial_dimensions",
                     "output_batch_dimension", "output_feature_dimension",
                     "output_spatial_dimensions"),
        "feature_group_count": python(operation.attributes["feature_group_count"]),
        "batch_group_count": python(operation.attributes["batch_group_count"]),
        "precision_config": _precision(operation)}


def _gather(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.GatherDimensionNumbers(operation.attributes["dimension_numbers"])
    return {**dimensions(numbers, "offset_dims", "collapsed_slice_dims", "operand_batching_dims",
                         "start_indices_batching_dims", "start_index_map", "index_vector_dim"),
            "slice_sizes": python(operation.attributes["slice_sizes"]),
            "indices_are_sorted": _optional(operation, "indices_are_sorted", False)}


def _scatter(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ScatterDimensionNumbers(
        operation.attributes["scatter_dimension_numbers"])
    return {**dimensions(numbers, "update_window_dims", "inserted_window_dims",
                         "input_batching_dims", "scatter_indices_batching_dims",
                         "index_vector_dim"),
            "scatter_dims_to_operand_dims": tuple(numbers.scattered_dims_to_operand_dims),
            "indices_are_sorted": _optional(operation, "indices_are_sorted", False),
            "unique_indices": _optional(operation, "unique_indices", False)}


def _window(operation: Any, rank: int) -> dict[str, Any]:
    return {"window_dimensions": _optional(operation, "window_dimensions", (1,) * rank),
            "window_strides": _optional(operation, "window_strides", (1,) * rank),
            "padding": pairs(operation.attributes["padding"])
            if "padding" in operation.attributes else ((0, 0),) * rank}


def _reduce_window(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    rank = operands[0].type.rank
    return {**_window(operation, rank),
            "base_dilations": _optional(operation, "base_dilations", (1,) * rank),
            "window_dilations": _optional(operation, "window_dilations", (1,) * rank)}


def _select_and_scatter(operation: Any, operands: list[Value],
                        results: list[Value]) -> dict[str, Any]:
    return _window(operation, operands[0].type.rank)


def _sort(operation: Any, operands: list[Value], results: list[Value]) -> dict[str, Any]:
    rank = operands[0].type.rank
    dimension = _optional(operation, "dimension", -1)
    return {"dimension": dimension % rank if rank else dimension,
            "is_stable": _optional(operation, "is_stable", False)}


RULES: dict[str, Rule] = {
    **dict.fromkeys((
        "abs", "add", "and", "atan2", "bitcast_convert", "cbrt", "ceil", "clamp", "convert",
        "cosine", "count_leading_zeros", "divide", "dynamic_update_slice", "exponential",
        "exponential_minus_one", "floor", "is_finite", "log", "log_plus_one", "logistic", "map",
        "maximum", "minimum", "multiply", "negate", "not", "optimization_barrier", "or", "popcnt",
        "power", "remainder", "reshape", "round_nearest_afz", "round_nearest_even", "rsqrt",
        "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sine",
        "sqrt", "subtract", "tan", "tanh", "xor"), _none),
    "broadcast_in_dim": _fields("broadcast_dimensions"),
    "compare": _compare,
    "concatenate": _fields("dimension"),
    "constant": _constant,
    "convolution": _convolution,
    "dot_general": _dot_general,
    "dynamic_slice": _fields("slice_sizes"),
    "gather": _gather,
    "iota": _fields("iota_dimension"),
    "pad": _fields("edge_padding_low", "edge_padding_high", "interior_padding"),
    "reduce": _fields("dimensions"),
    "reduce_precision": _fields("exponent_bits", "mantissa_bits"),
    "reduce_window": _reduce_window,
    "reverse": _fields("dimensions"),
    "scatter": _scatter,
    "select_and_scatter": _select_and_scatter,
    "slice": _fields("start_indices", "limit_indices", "strides"),
    "sort": _sort,
    "transpose": _fields("permutation"),
}
"""Rules of operations that correspond to one operation of the graph, by StableHLO's names."""
