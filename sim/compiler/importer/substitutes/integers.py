"""Operations on integers as functions of JAX."""

from typing import Any

import jax.numpy as jnp
from jax import lax

__all__ = ["mulhi"]


def mulhi(x: Any, y: Any) -> Any:
    """Return the high half of the product of integers of at most 32 bits.

    Products of 32-bit integers are computed from halves of 16 bits.
    """
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
    # As an unsigned number, a negative operand is 2**32 too large, so the high half of the product
    # is too large by the other operand.
    high = high - jnp.where(x < 0, b, 0) - jnp.where(y < 0, a, 0)
    return lax.bitcast_convert_type(high, jnp.int32)
