"""What JAX's primitives are on this platform, where StableHLO leaves it to the platform."""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from sim.pjrt import linalg

__all__ = ["approx_top_k", "mulhi", "register_rules", "rng_bit_generator"]


def register_rules(platform: str) -> None:
    """Let JAX lower some primitives as functions of its own.

    Parameters
    ----------
    platform : str
        Name of the platform, which JAX must know.
    """
    from jax._src.interpreters import mlir
    from jax._src.lax import ann, lax
    from jax._src.lax import linalg as primitives

    for primitive, function in (
            (primitives.cholesky_p, linalg.cholesky),
            (primitives.triangular_solve_p, linalg.triangular_solve),
            (primitives.householder_product_p, linalg.householder_product),
            (primitives.geqrf_p, linalg.geqrf), (primitives.eigh_p, linalg.eigh),
            (primitives.svd_p, linalg.svd), (ann.approx_top_k_p, approx_top_k),
            (lax.mulhi_p, mulhi), (lax.rng_bit_generator_p, rng_bit_generator)):
        mlir.register_lowering(
            primitive, mlir.lower_fun(function, multiple_results=primitive.multiple_results),
            platform=platform)


def approx_top_k(a: Any, *, k: int, reduction_dimension: int, recall_target: float, is_max_k: bool,
                 reduction_input_size_override: int, aggregate_to_topk: bool) -> tuple[Any, Any]:
    """The k greatest or least elements along a dimension, and their indexes: exactly those.

    Without ``aggregate_to_topk``, as many as JAX says that an approximation has.
    """
    if not aggregate_to_topk:
        from jaxlib import _jax

        k = _jax.approx_top_k_reduction_output_size(
            a.shape[reduction_dimension], a.ndim, k, recall_target, aggregate_to_topk,
            reduction_input_size_override)[0]
    values, indices = lax.top_k(a if is_max_k else -a, k, axis=reduction_dimension)
    return values if is_max_k else -values, indices


def mulhi(x: Any, y: Any) -> Any:
    """The high half of the product of two integers of at most 32 bits, from halves of 16."""
    bits, signed = 8 * x.dtype.itemsize, jnp.issubdtype(x.dtype, jnp.signedinteger)
    wide = jnp.int32 if signed else jnp.uint32
    if bits < 32:
        return ((x.astype(wide) * y.astype(wide)) >> bits).astype(x.dtype)
    a, b = (lax.bitcast_convert_type(value, jnp.uint32) for value in (x, y))
    low, half = jnp.uint32(0xFFFF), 16
    middle = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    other = (a & low) * (b >> half) + (middle & low)
    high = (a >> half) * (b >> half) + (middle >> half) + (other >> half)
    if not signed:
        return high
    # A negative operand counts 2**32 too much, as often as the other says.
    high = high - jnp.where(x < 0, b, 0) - jnp.where(y < 0, a, 0)
    return lax.bitcast_convert_type(high, jnp.int32)


def rng_bit_generator(key: Any, *, shape: tuple[int, ...], dtype: Any, algorithm: Any,
                      out_sharding: Any = None) -> tuple[Any, Any]:
    """Random bits, and the next key: Threefry, whatever algorithm is asked for.

    A key is four words: two of Threefry's key, and its counter. The counter of the next key is
    further by the number of blocks that were used.
    """
    from jax.extend.random import threefry2x32_p

    bits = 8 * jnp.dtype(dtype).itemsize
    if bits > 32:
        raise NotImplementedError(f"dtype must have at most 32 bits, not {bits}")
    count = math.prod(shape)
    blocks = -(-count // 2)
    low = lax.iota(jnp.uint32, blocks) + key[2]
    high = key[3] + (low < key[2]).astype(jnp.uint32)
    words = jnp.concatenate(threefry2x32_p.bind(
        jnp.broadcast_to(key[0], low.shape), jnp.broadcast_to(key[1], low.shape), low, high))
    after = key[2] + jnp.uint32(blocks)
    following = jnp.stack([key[0], key[1], after, key[3] + (after < key[2]).astype(jnp.uint32)])
    return following, (words[:count] >> (32 - bits)).astype(dtype).reshape(shape)
