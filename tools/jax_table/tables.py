"""Tables of arguments: by parameter name, and by function name where that is not enough.

Static arguments are plain Python values.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tools.jax_table.maker import SIDE, Maker

__all__ = ["BY_FUNCTION", "BY_PARAMETER", "COLLECTIVES", "UNDEFINED",
           "UP_TO_SIGN"]

_ARRAYS = ("x y x1 x2 a b a1 a2 z m v u p val arr ary array operand lhs rhs element ar1 ar2 "
           "test_elements vals values prototype xs src on_true on_false value data f min max")


def _fixed(value: Any) -> Callable[[Maker], Any]:
    return lambda make: value


BY_PARAMETER: dict[str, Callable[[Maker], Any]] = {
    **dict.fromkeys(_ARRAYS.split(), lambda make: make.array()),
    **dict.fromkeys(("arrays", "tup", "arys", "operands"),
                    lambda make: (make.array(), make.array())),
    **dict.fromkeys(("condition", "pred", "mask", "which"), lambda make: make.array(kind="bool")),
    **dict.fromkeys(("indices", "idxs"), lambda make: make.index(SIDE)),
    **dict.fromkeys(("shape", "dimensions_of", "new_sizes"), _fixed((SIDE, SIDE))),
    **dict.fromkeys(("M", "N", "n", "num_classes", "size"), _fixed(SIDE)),
    **dict.fromkeys(("axis", "start", "axis1", "source", "start_index", "index", "dimension"),
                    _fixed(0)),
    **dict.fromkeys(("axis2", "destination", "shift", "obj", "k", "stride"), _fixed(1)),
    **dict.fromkeys(("kth", "repeats", "reps", "indices_or_sections", "sections", "slice_size"),
                    _fixed(2)),
    **dict.fromkeys(("axes", "dimensions"), _fixed((0,))),
    "q": _fixed(0.3), "dtype": _fixed("float32"), "fill_value": _fixed(1), "stop": _fixed(9),
    "bins": lambda make: make.rising(SIDE), "permutation": _fixed((1, 0)),
    "exponent_bits": _fixed(5), "mantissa_bits": _fixed(7), "func1d": _fixed(jnp.sum),
    "func": _fixed(jnp.sum), "pyfunc": _fixed(jnp.add), "start_indices": _fixed((0, 1)),
    "limit_indices": _fixed((3, 4)), "slice_sizes": _fixed((2, 3)), "sizes": _fixed((2, 4)),
    "scalar": _fixed(2.0), "dims": _fixed((SIDE, SIDE)), "new_dtype": _fixed("int32"),
    "init_val": lambda make: make.array(), "keys": lambda make: make.array(),
    "update": lambda make: make.array(), "upper": _fixed(3), "lower": _fixed(0),
}
"""Functions that make a value for a parameter that has no default, by the parameter's name."""


def _images(make: Maker) -> tuple[Any, Any]:
    """Two NCHW images with three channels, and a convolution filter with four output channels."""
    return make.array(2, 3, SIDE, SIDE), make.array(4, 3, 3, 3)


def _spd(make: Maker) -> Any:
    """Return a symmetric positive definite matrix of random numbers from ``make``."""
    a = make.of((SIDE, SIDE), "float32")
    return (a @ a.T + SIDE * np.eye(SIDE)).astype(np.float32)


_GATHER = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,),
                                     start_index_map=(0,))
_SCATTER = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,),
                                       scatter_dims_to_operand_dims=(0,))
_WINDOW: dict[str, Any] = {"window_dimensions": (2, 2), "window_strides": (2, 2),
                           "padding": "VALID"}


def _scatter(make: Maker) -> tuple[Any, ...]:
    return make.array(SIDE, SIDE), make.index(3, 1), make.array(3, SIDE), _SCATTER


def _positive(count: int) -> Callable[[Maker], tuple[Any, ...]]:
    return lambda make: tuple(make.positive(SIDE) for _ in range(count))


def _matrices(count: int) -> Callable[[Maker], tuple[Any, ...]]:
    return lambda make: tuple(make.array(SIDE, SIDE) for _ in range(count))


def _over_cores(*more: Any, **options: Any) -> Callable[[Maker], Any]:
    """Return a function that makes the arguments of a collective operation.

    The arguments are an array, the device axis ``x``, those in ``more``, and the keyword arguments
    ``options``.
    """
    return lambda make: ((make.array(2 * SIDE, SIDE), "x", *more), options)


BY_FUNCTION: dict[str, Callable[[Maker], Any]] = {
    # jax.numpy
    "apply_over_axes": lambda make: (jnp.sum, make.array(SIDE, SIDE), (0,)),
    "arange": _fixed((2, 20, 3)),
    "array_split": lambda make: (make.array(SIDE, SIDE), 4),
    "bincount": lambda make: ((make.index(20),), {"length": SIDE}),
    "block": lambda make: ([[make.array(2, 2), make.array(2, 3)]],),
    "broadcast_to": lambda make: (make.array(SIDE), (4, SIDE)),
    "choose": lambda make: ((np.asarray([0, 1, 1, 0], np.int32), make.array(2, 4)),
                            {"mode": "clip"}),
    "clip": lambda make: (make.array(SIDE, SIDE), -1, 2),
    "compress": lambda make: ((np.asarray([True, False, True]), make.array(3, SIDE)),
                              {"axis": 0, "size": 2}),
    "cov": lambda make: (make.array(SIDE, SIDE),),
    "delete": lambda make: ((make.array(SIDE), 2), {}),
    "dsplit": lambda make: (make.array(2, 3, 4), 2),
    "einsum": lambda make: ("ij,jk->ik", make.array(SIDE, SIDE), make.array(SIDE, SIDE)),
    "einsum_path": lambda make: ("ij,jk->ik", make.array(SIDE, SIDE), make.array(SIDE, SIDE)),
    "extract": lambda make: ((make.array(SIDE, kind="bool"), make.array(SIDE)), {"size": 3}),
    "fill_diagonal": lambda make: ((make.array(SIDE, SIDE), 1), {"inplace": False}),
    "fromfunction": _fixed((lambda i, j: i * j, (SIDE, SIDE))),
    "histogram2d": lambda make: (make.array(20), make.array(20), 4),
    "histogramdd": lambda make: (make.array(20, 2), 3),
    "hsplit": lambda make: (make.array(SIDE, SIDE), 2),
    "vsplit": lambda make: (make.array(SIDE, SIDE), 2),
    "indices": _fixed(((SIDE, 3),)),
    "insert": lambda make: (make.array(SIDE), 2, 1),
    "interp": lambda make: (make.positive(SIDE), make.rising(5), make.positive(5)),
    "ix_": lambda make: (make.index(3), make.index(2)),
    "lcm": lambda make: (make.array(SIDE), make.array(SIDE)),
    "ldexp": lambda make: (make.of((SIDE,), "float32"), make.index(SIDE)),
    "lexsort": lambda make: ((make.array(SIDE), make.array(SIDE)),),
    "linspace": _fixed((0.0, 2.0, 9)),
    "logspace": _fixed((0.0, 2.0, 9)),
    "geomspace": _fixed((1.0, 200.0, 9)),
    "moveaxis": lambda make: (make.array(2, 3, 4), 0, 2),
    "rollaxis": lambda make: (make.array(2, 3, 4), 2, 0),
    "swapaxes": lambda make: (make.array(2, 3, 4), 0, 2),
    "pad": lambda make: (make.array(SIDE, SIDE), ((1, 2), (0, 3))),
    "partition": lambda make: (make.array(20), 5),
    "piecewise": lambda make: ((make.array(SIDE), [make.array(SIDE, kind="bool")], [1, 2]), {}),
    "place": lambda make: ((make.array(SIDE), make.array(SIDE, kind="bool"), make.array(3)),
                           {"inplace": False}),
    "poly": lambda make: (make.array(4),),
    "polyadd": lambda make: (make.array(4), make.array(3)),
    "polysub": lambda make: (make.array(4), make.array(3)),
    "polymul": lambda make: (make.array(4), make.array(3)),
    "polydiv": lambda make: (make.array(4), make.positive(2)),
    "polyder": lambda make: (make.array(4),),
    "polyfit": lambda make: (make.rising(SIDE), make.array(SIDE), 2),
    "polyint": lambda make: (make.array(4),),
    "polyval": lambda make: (make.array(4), make.array(SIDE)),
    "power": lambda make: (make.positive(SIDE), make.array(SIDE)),
    "put": lambda make: ((make.array(SIDE), make.index(2), make.array(2)), {"inplace": False}),
    "put_along_axis": lambda make: ((make.array(SIDE, SIDE), make.index(SIDE, 1), 2, 1),
                                    {"inplace": False}),
    "ravel_multi_index": lambda make: (((make.index(4), make.index(4)), (SIDE, SIDE)),
                                       {"mode": "clip"}),
    "unravel_index": lambda make: (make.index(4), (3, 4)),
    "numpy.reshape": lambda make: (make.array(SIDE, SIDE), (4, 9)),
    "resize": lambda make: (make.array(SIDE, SIDE), (4, 5)),
    "searchsorted": lambda make: (make.rising(SIDE), make.array(4, kind="float32")),
    "select": lambda make: ([make.array(SIDE, kind="bool")], [make.array(SIDE)]),
    "split": lambda make: (make.array(SIDE, SIDE), 2),
    "take": lambda make: (make.array(SIDE, SIDE), make.index(4)),
    "take_along_axis": lambda make: (make.array(SIDE, SIDE), make.index(SIDE, 2), 1),
    "tensordot": _matrices(2),
    "numpy.tile": lambda make: (make.array(2, 3), (2, 3)),
    "tri": _fixed((SIDE, 4)),
    "tril_indices": _fixed((SIDE,)),
    "triu_indices": _fixed((SIDE,)),
    "mask_indices": _fixed((SIDE, jnp.triu)),
    "vander": lambda make: (make.array(4),),
    "where": lambda make: (make.array(SIDE, kind="bool"), make.array(SIDE), make.array(SIDE)),
    "argwhere": lambda make: ((make.array(SIDE),), {"size": 3}),
    "nonzero": lambda make: ((make.array(SIDE),), {"size": 3}),
    "flatnonzero": lambda make: ((make.array(SIDE),), {"size": 3}),
    **{name: lambda make: ((make.index(9),), {"size": SIDE})
       for name in ("unique", "unique_values", "unique_counts", "unique_inverse", "unique_all")},
    **{name: lambda make: ((make.index(9), make.index(9)), {"size": 12})
       for name in ("union1d", "setxor1d", "intersect1d", "setdiff1d")},
    "numpy.array": lambda make: (make.array(SIDE),), "kaiser": _fixed((SIDE, 2.0)),
    "negative": lambda make: (make.array(SIDE),),
    "trim_zeros": lambda make: (np.asarray([0, 0, 1, 2, 0], make.kind),),
    "unpackbits": lambda make: (make.index(SIDE).astype(np.uint8),),
    "packbits": lambda make: (make.array(20, kind="bool"),),
    "meshgrid": lambda make: (make.array(3), make.array(4)),
    # jax.numpy.linalg
    "cholesky": lambda make: (_spd(make),), "eigh": lambda make: (_spd(make),),
    "eigvalsh": lambda make: (_spd(make),),
    "solve": lambda make: (_spd(make), make.of((SIDE, 2), "float32")),
    "lstsq": lambda make: (_spd(make), make.of((SIDE, 2), "float32")),
    "inv": lambda make: (_spd(make),), "det": lambda make: (_spd(make),),
    "slogdet": lambda make: (_spd(make),), "cond": lambda make: (_spd(make),),
    "pinv": lambda make: (_spd(make),),
    "tensorinv": lambda make: ((_spd(make).reshape(SIDE, 2, 3),), {"ind": 1}),
    "tensorsolve": lambda make: (_spd(make), make.of((SIDE,), "float32")),
    "multi_dot": lambda make: ([make.array(2, 3), make.array(3, 4), make.array(4, 2)],),
    "matrix_power": lambda make: (make.array(3, 3), 3),
    # jax.lax
    "lax.argmax": lambda make: (make.array(SIDE, SIDE), 1, "int32"),
    "lax.argmin": lambda make: (make.array(SIDE, SIDE), 1, "int32"),
    "broadcast_like": lambda make: (make.array(SIDE), make.array(SIDE, SIDE)),
    "broadcast_to_rank": lambda make: (make.array(SIDE), 3),
    "collapse": lambda make: (make.array(2, 3, 4), 0, 2),
    "ragged_dot_general": lambda make: (
        make.of((SIDE, 4), "float32"), make.of((2, 4, 3), "float32"),
        np.asarray([2, 4], np.int32),
        lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])),
    "approx_max_k": lambda make: (make.of((64,), "float32"), 4),
    "approx_min_k": lambda make: (make.of((64,), "float32"), 4),
    "associative_scan": lambda make: (jnp.add, make.array(SIDE, SIDE)),
    "batch_matmul": lambda make: (make.array(2, 3, 4), make.array(2, 4, 3)),
    "betainc": _positive(3), "igamma": _positive(2), "igammac": _positive(2),
    "igamma_grad_a": _positive(2), "random_gamma_grad": _positive(2),
    "zeta": lambda make: (make.positive(SIDE) + 1, make.positive(SIDE)),
    "polygamma": lambda make: (np.float32(1), make.positive(SIDE)),
    "lgamma": _positive(1), "digamma": _positive(1), "bessel_i0e": _positive(1),
    "bitcast_convert_type": lambda make: (make.of((SIDE,), "float32"), "int32"),
    "broadcast": lambda make: (make.array(SIDE), (2, 3)),
    "broadcast_in_dim": lambda make: (make.array(SIDE), (3, SIDE), (1,)),
    "broadcasted_iota": _fixed(("int32", (3, 4), 1)),
    "clamp": lambda make: (make.array(SIDE), make.array(SIDE), make.array(SIDE)),
    "concatenate": lambda make: ([make.array(2, 3), make.array(4, 3)], 0),
    "lax.cond": lambda make: (make.of((), "bool"), jnp.add, jnp.subtract, make.array(SIDE),
                          make.array(SIDE)),
    "conv": lambda make: (*_images(make), (1, 1), "SAME"),
    "conv_general_dilated": lambda make: (*_images(make), (2, 2), "SAME"),
    "conv_general_dilated_local": lambda make: (
        make.array(2, 3, SIDE, SIDE), make.array(4, 27, 4, 4), (1, 1), "VALID", (3, 3)),
    "conv_general_dilated_patches": lambda make: (make.array(2, 3, SIDE, SIDE), (3, 3), (1, 1),
                                                  "VALID"),
    "conv_transpose": lambda make: (make.array(1, 4, 4, 2), make.array(3, 3, 2, 3), (2, 2),
                                    "SAME"),
    "conv_with_general_padding": lambda make: (*_images(make), (1, 1), ((1, 1), (0, 2)), None,
                                               None),
    "convert_element_type": lambda make: (make.array(SIDE), "bfloat16"),
    "dot": _matrices(2),
    "dot_general": lambda make: (make.array(2, 3, 4), make.array(2, 4, 3),
                                 (((2,), (1,)), ((0,), (0,)))),
    "ragged_dot": lambda make: (make.of((SIDE, 4), "float32"), make.of((2, 4, 3), "float32"),
                                np.asarray([2, 4], np.int32)),
    "dynamic_index_in_dim": lambda make: (make.array(SIDE, SIDE), make.index()),
    "dynamic_slice": lambda make: (make.array(SIDE, SIDE), (make.index(), make.index()), (2, 3)),
    "dynamic_slice_in_dim": lambda make: (make.array(SIDE, SIDE), make.index(), 3),
    "dynamic_update_index_in_dim": lambda make: (make.array(SIDE, SIDE), make.array(1, SIDE),
                                                 make.index(), 0),
    "dynamic_update_slice": lambda make: (make.array(SIDE, SIDE), make.array(2, 3),
                                          (make.index(), make.index())),
    "dynamic_update_slice_in_dim": lambda make: (make.array(SIDE, SIDE), make.array(2, SIDE),
                                                 make.index(), 0),
    "empty": _fixed(((SIDE, SIDE), "float32")),
    "expand_dims": lambda make: (make.array(SIDE), (0, 2)),
    "fori_loop": lambda make: (0, 3, lambda i, x: x + i, make.array(SIDE)),
    "gather": lambda make: (make.array(SIDE, SIDE), make.index(3, 1), _GATHER, (1, SIDE)),
    "index_take": lambda make: (make.array(SIDE, SIDE), (make.index(3),), (0,)),
    "integer_pow": lambda make: (make.array(SIDE), 3),
    "iota": _fixed(("int32", SIDE)),
    "map": lambda make: (jnp.square, make.array(SIDE, 3)),
    "lax.pad": lambda make: (make.array(SIDE, SIDE), make.of(()), ((1, 2, 1), (-1, 0, 0))),
    "lax.pow": lambda make: (make.positive(SIDE), make.of((SIDE,), "float32")),
    "lax.reduce": lambda make: (make.array(SIDE, SIDE), np.asarray(0, make.kind), lax.add, (0,)),
    "lax.reduce_window": lambda make: ((make.array(SIDE, SIDE), np.asarray(0, make.kind),
                                        lax.add), _WINDOW),
    "lax.reshape": lambda make: (make.array(SIDE, SIDE), (4, 9)),
    "rng_bit_generator": lambda make: (make.of((4,), "uint32"), (SIDE,)),
    "rng_uniform": lambda make: (np.float32(0), np.float32(1), (SIDE,)),
    "scan": lambda make: (lambda c, x: (c + x, c * x), make.array(3), make.array(SIDE, 3)),
    "scatter": _scatter, "scatter_add": _scatter, "scatter_max": _scatter,
    "scatter_min": _scatter, "scatter_mul": _scatter, "scatter_sub": _scatter,
    "scatter_apply": lambda make: ((make.array(SIDE, SIDE), make.index(3, 1), jnp.square,
                                    _SCATTER), {"update_shape": (3, SIDE)}),
    "lax.select": lambda make: (make.array(SIDE, kind="bool"), make.array(SIDE),
                                make.array(SIDE)),
    "select_n": lambda make: (make.array(SIDE, kind="bool"), make.array(SIDE), make.array(SIDE)),
    "slice_in_dim": lambda make: (make.array(SIDE, SIDE), 1, 5, 2),
    "sort_key_val": lambda make: (make.array(SIDE), make.array(SIDE)),
    "lax.split": lambda make: (make.array(SIDE, SIDE), (2, 4)),
    "lax.squeeze": lambda make: (make.array(1, SIDE), (0,)),
    "switch": lambda make: (np.int32(1), (jnp.sin, jnp.square, jnp.abs), make.array(SIDE)),
    "lax.tile": lambda make: (make.array(2, 3), (2, 3)),
    "top_k": lambda make: (make.array(3, 20), 4),
    "while_loop": lambda make: (lambda x: jnp.sum(x) < 50, lambda x: x * 2 + 1,
                                make.positive(SIDE)),
    "custom_linear_solve": lambda make: (
        lambda x: 2 * x, make.of((SIDE,), "float32"), lambda f, b: b / 2),
    "custom_root": lambda make: (
        lambda x: x - 2, make.of((), "float32"), lambda f, x: x - f(x), lambda g, y: y / g(1.0)),
    "platform_dependent": lambda make: ((make.array(SIDE),), {"default": jnp.square}),
    **{name: _over_cores() for name in
       ("psum", "pmax", "pmin", "pmean", "all_gather", "all_gather_reduced", "psum_scatter",
        "axis_index", "axis_size")},
    "axis_index": _fixed(("x",)), "axis_size": _fixed(("x",)),
    "psum_scatter": _over_cores(tiled=True),
    "ppermute": _over_cores([(0, 1), (1, 0)]),
    "pshuffle": _over_cores([1, 0]),
    "all_to_all": _over_cores(1, 0, tiled=True),
    "pswapaxes": lambda make: (make.array(4, SIDE), "x", 0),
    "pbroadcast": _over_cores(0),
    # jax.nn
    "dot_product_attention": lambda make: tuple(
        make.of((2, 4, 2, 8), "float32") for _ in range(3)),
    "one_hot": lambda make: (make.index(4), SIDE),
    "scaled_matmul": lambda make: tuple(
        make.of(shape, "float32") for shape in ((1, 4, 32), (1, 4, 32), (1, 4, 1), (1, 4, 1))),
}
"""Functions that make all arguments of a function, by its name or the last parts of its full name.
"""

COLLECTIVES = ("all_gather", "all_to_all", "axis_index", "axis_size", "pbroadcast", "pmax",
               "pmean", "pmin", "ppermute", "pshuffle", "psum", "psum_scatter", "pswapaxes")
"""Functions that run on both cores, in `shard_map` over the device axis ``x``."""
UP_TO_SIGN = ("eigh", "svd")
"""Functions whose result vectors have arbitrary signs: absolute values are compared."""
UNDEFINED = ("empty", "empty_like", "rng_bit_generator", "rng_uniform")
"""Functions whose results have undefined values: only shapes and types are compared."""
