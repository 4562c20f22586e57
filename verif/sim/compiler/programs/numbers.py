"""Random numbers, sorting and searching."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from verif.sim.compiler.programs.program import Program, normal

__all__ = ["bits", "normal_numbers", "permutation", "search", "uniform_numbers"]

KEY = np.array([1, 42], np.uint32)


def bits(count: int = 13) -> Program:
    """Random bits, which are the same on every platform."""
    def function(key: Any) -> Any:
        first, second = jax.random.split(jax.random.wrap_key_data(key))
        return jax.random.bits(first, (count,)), jax.random.bits(second, (3, count))

    return Program(function, (KEY,))


def normal_numbers(rows: int = 5, columns: int = 7) -> Program:
    """Normal numbers."""
    return Program(lambda key: jax.random.normal(jax.random.wrap_key_data(key), (rows, columns)),
                   (KEY,))


def uniform_numbers(rows: int = 5, columns: int = 7) -> Program:
    """Uniform numbers, and whole numbers below 10."""
    def function(key: Any) -> Any:
        key = jax.random.wrap_key_data(key)
        return (jax.random.uniform(key, (rows, columns)),
                jax.random.randint(key, (columns,), 0, 10))

    return Program(function, (KEY,))


def permutation(count: int = 11) -> Program:
    """A random permutation."""
    return Program(lambda key: jax.random.permutation(jax.random.wrap_key_data(key), count), (KEY,))


def search(rows: int = 4, columns: int = 9) -> Program:
    """Sorting, ranking, cumulative sums, and the indices of the largest and least elements."""
    def function(x: Any) -> Any:
        return (jnp.sort(x, axis=1), jnp.argsort(x, axis=0), jax.lax.top_k(x, 3),
                jnp.argmax(x, axis=1), jnp.argmin(x, axis=0), jnp.cumsum(x, axis=1),
                jnp.cumprod(x, axis=0), jnp.flip(x, 1), jnp.roll(x, 2, axis=1),
                jnp.where(x > 0, x, 0).sum(axis=0), jnp.var(x, axis=1), jax.nn.logsumexp(x))

    return Program(function, (normal(8, rows, columns),))
