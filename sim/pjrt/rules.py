"""Lowering rules of JAX's primitives for this platform, written as functions of JAX."""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from sim.compiler.importer.substitutes import integers, linalg

__all__ = ["approx_top_k", "register_rules", "rng_bit_generator"]


def register_rules(platform: str) -> None:
    """Register with JAX the lowering rules that this platform needs.

    For most of these primitives, JAX itself has no rule on this platform; its rule for singular
    values generates longer code. Factorisations other than those into eigenvalues or singular
    values are replaced when a program is imported (`sim.compiler.importer.substitutes`).

    Parameters
    ----------
    platform : str
        Name of the platform; it must be registered with JAX.
    """
    from jax._src.interpreters import mlir
    from jax._src.lax import ann, lax
    from jax._src.lax import linalg as primitives

    for primitive, function in (
            (primitives.eigh_p, linalg.eigh), (primitives.svd_p, linalg.svd),
            (ann.approx_top_k_p, approx_top_k), (lax.mulhi_p, integers.mulhi),
            (lax.rng_bit_generator_p, rng_bit_generator)):
        mlir.register_lowering(
            primitive, mlir.lower_fun(function, multiple_results=primitive.multiple_results),
            platform=platform)
    # As for a TPU: a custom call, which the importer replaces. JAX's other rule is a loop that it
    # rejects inside `jax.shard_map`.
    mlir.register_lowering(primitives.lu_p, primitives._lu_tpu_lowering_rule, platform=platform)


def approx_top_k(a: Any, *, k: int, reduction_dimension: int, recall_target: float, is_max_k: bool,
                 reduction_input_size_override: int, aggregate_to_topk: bool) -> tuple[Any, Any]:
    """Return the k greatest or the k least elements along a dimension, and their indices.

    ``is_max_k`` selects the greatest. The result is exact, not approximate. Without
    ``aggregate_to_topk``, it has more than k elements: the number that the intermediate result of
    an approximation would have, which JAX derives from ``recall_target`` and
    ``reduction_input_size_override``.
    """
    if not aggregate_to_topk:
        from jaxlib import _jax

        k = _jax.approx_top_k_reduction_output_size(
            a.shape[reduction_dimension], a.ndim, k, recall_target, aggregate_to_topk,
            reduction_input_size_override)[0]
    values, indices = lax.top_k(a if is_max_k else -a, k, axis=reduction_dimension)
    return values if is_max_k else -values, indices


def rng_bit_generator(key: Any, *, shape: tuple[int, ...], dtype: Any, algorithm: Any,
                      out_sharding: Any = None) -> tuple[Any, Any]:
    """Return the next key, and random bits of shape ``shape`` and type ``dtype``.

    The generator is Threefry-2x32 for any ``algorithm``. A key has four words: the two words of
    Threefry's key, and a 64-bit counter, low word first. The next key's counter is higher by the
    number of Threefry blocks that were used. ``out_sharding`` is ignored.

    Raises
    ------
    NotImplementedError
        If ``dtype`` has more than 32 bits.
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
