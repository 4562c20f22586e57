"""The kinds of operations: numbers of operands, results and regions, and attributes.

Attributes have StableHLO's names and plain Python values. Codes denote their types: ``i`` is an
integer, ``is`` a tuple of integers, ``pairs`` a tuple of pairs of integers, ``table`` a tuple of
tuples of integers, ``s`` a string, ``ss`` a tuple of strings, ``b`` a bool, ``bs`` a tuple of
bools, ``array`` a numpy array. An operation must have all attributes of its kind.
"""

from dataclasses import dataclass, field

from sim.compiler.graph.semantics.elementwise import ELEMENTWISE

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """Requirements on the operations of a kind.

    Attributes
    ----------
    operands : int
        Number of operands; the least number if the kind is `variadic`.
    results : int
        Number of results; a `variadic` kind may have any number.
    regions : int
        Number of regions; the least number if the kind is `variadic`.
    variadic : bool
        Whether operations may have more operands and regions, and any number of results.
    attributes : dict of str to str
        Code of each attribute's type, by the attribute's name.
    """

    operands: int
    results: int = 1
    regions: int = 0
    variadic: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


_BINARY = {"add", "subtract", "multiply", "divide", "power", "remainder", "atan2", "and", "or",
           "xor", "maximum", "minimum", "shift_left", "shift_right_logical",
           "shift_right_arithmetic", "compare"}
_TERNARY = {"select", "clamp"}
_ELEMENTWISE_ATTRIBUTES = {
    "compare": {"comparison_direction": "s", "compare_type": "s"},
    "reduce_precision": {"exponent_bits": "i", "mantissa_bits": "i"},
}
_WINDOW = {"window_dimensions": "is", "window_strides": "is", "padding": "pairs"}

KINDS: dict[str, Kind] = {
    **{kind: Kind(2 if kind in _BINARY else 3 if kind in _TERNARY else 1,
                  attributes=_ELEMENTWISE_ATTRIBUTES.get(kind, {})) for kind in ELEMENTWISE},
    "constant": Kind(0, attributes={"value": "array"}),
    "iota": Kind(0, attributes={"iota_dimension": "i"}),
    "broadcast_in_dim": Kind(1, attributes={"broadcast_dimensions": "is"}),
    "reshape": Kind(1),
    "relayout": Kind(1),
    "transpose": Kind(1, attributes={"permutation": "is"}),
    "slice": Kind(1, attributes={"start_indices": "is", "limit_indices": "is", "strides": "is"}),
    "pad": Kind(2, attributes={"edge_padding_low": "is", "edge_padding_high": "is",
                               "interior_padding": "is"}),
    "concatenate": Kind(1, variadic=True, attributes={"dimension": "i"}),
    "reverse": Kind(1, attributes={"dimensions": "is"}),
    "optimization_barrier": Kind(1, variadic=True),
    # Operands: an array, the update (dynamic_update_slice), and a scalar start for each dimension.
    "dynamic_slice": Kind(1, variadic=True, attributes={"slice_sizes": "is"}),
    "dynamic_update_slice": Kind(2, variadic=True),
    "gather": Kind(2, attributes={
        "offset_dims": "is", "collapsed_slice_dims": "is", "operand_batching_dims": "is",
        "start_indices_batching_dims": "is", "start_index_map": "is", "index_vector_dim": "i",
        "slice_sizes": "is", "indices_are_sorted": "b"}),
    # Operands: inputs, one array of indices, and one array of updates for each input.
    "scatter": Kind(3, variadic=True, regions=1, attributes={
        "update_window_dims": "is", "inserted_window_dims": "is", "input_batching_dims": "is",
        "scatter_indices_batching_dims": "is", "scatter_dims_to_operand_dims": "is",
        "index_vector_dim": "i", "indices_are_sorted": "b", "unique_indices": "b"}),
    # Operands: inputs, then an initial value for each input.
    "reduce": Kind(2, variadic=True, regions=1, attributes={"dimensions": "is"}),
    "reduce_window": Kind(2, variadic=True, regions=1, attributes={
        **_WINDOW, "base_dilations": "is", "window_dilations": "is"}),
    # Operands: an array, the source, the initial value. Regions: select (a predicate), scatter.
    "select_and_scatter": Kind(3, regions=2, attributes=_WINDOW),
    "sort": Kind(1, variadic=True, regions=1, attributes={"dimension": "i", "is_stable": "b"}),
    # If the optional attribute ``in_order`` is True, streams keep the order of additions along the
    # contracted dimension.
    "dot_general": Kind(2, attributes={
        "lhs_batching_dimensions": "is", "rhs_batching_dimensions": "is",
        "lhs_contracting_dimensions": "is", "rhs_contracting_dimensions": "is",
        "precision_config": "ss"}),
    "convolution": Kind(2, attributes={
        "window_strides": "is", "padding": "pairs", "lhs_dilation": "is", "rhs_dilation": "is",
        "window_reversal": "bs", "input_batch_dimension": "i", "input_feature_dimension": "i",
        "input_spatial_dimensions": "is", "kernel_input_feature_dimension": "i",
        "kernel_output_feature_dimension": "i", "kernel_spatial_dimensions": "is",
        "output_batch_dimension": "i", "output_feature_dimension": "i",
        "output_spatial_dimensions": "is", "feature_group_count": "i", "batch_group_count": "i",
        "precision_config": "ss"}),
    # Operand and result have shape (lines, images, phases, positions, features): the columns of a
    # line are split into phases (sim.compiler.kernels.products.phases).
    "phase_convolution": Kind(2, attributes={
        "window_strides": "is", "padding": "pairs", "lhs_dilation": "is", "rhs_dilation": "is",
        "window_reversal": "bs", "kernel_input_feature_dimension": "i",
        "kernel_output_feature_dimension": "i", "kernel_spatial_dimensions": "is",
        "precision_config": "ss", "columns": "i"}),
    # Operand 0 has shape (images, lines, features, offsets, columns), the filter (operand 1) has
    # shape (outputs, offsets of lines * offsets * features), and the result has shape (lines,
    # images, outputs, columns).
    "line_convolution": Kind(2, attributes={"stride": "i", "precision_config": "ss"}),
    "map": Kind(1, variadic=True, regions=1),
    # A while has the carried values as operands; a value that it does not change is an input and an
    # output of its body. A case has the branch's index as operand 0, then the branches' inputs.
    "while": Kind(0, variadic=True, regions=2),
    "case": Kind(1, variadic=True, regions=1),
    # Applies regions to blocks of operands: region k runs ``counts[k]`` times. Operand n is divided
    # along ``operand_dimensions[n]`` (-1: not divided). Its first block begins at index
    # ``starts[k][n]``, and each further block ``steps[k][n]`` indices later. The blocks of result m
    # are concatenated along ``result_dimensions[m]``; with -1, the result is carried from block to
    # block. Initial values of carried results are the last operands; carried values are the last
    # inputs of the regions.
    "stream": Kind(0, variadic=True, regions=1, attributes={
        "counts": "is", "operand_dimensions": "is", "result_dimensions": "is", "starts": "table",
        "steps": "table"}),
    # The operations that differ between devices (see ir.py): one operand or value for each device.
    # An ``exchange`` may have the attribute ``sources``.
    "device_constant": Kind(0, attributes={"values": "array"}),
    "by_device": Kind(2, variadic=True),
    "exchange": Kind(2, variadic=True),
    # The sums of the operands over all devices of a pod. Until `sim.compiler.passes.join_sums` has
    # removed it, there is a region that computes the sum of a single operand by exchanges, and the
    # attribute ``large`` says whether this sum is worth streaming.
    "pod_sum": Kind(1, variadic=True),
    # A region of elementwise operations, constants, iotas and broadcasts, computed by one kernel.
    "fusion": Kind(0, variadic=True, regions=1),
}
"""All kinds of operations that a graph may contain, by name."""
