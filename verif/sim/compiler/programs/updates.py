"""Adam, with clipping by global norm and a cosine schedule with warm-up."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from verif.sim.compiler.programs.program import Program, normal

__all__ = ["adam_step"]

WARMUP, TOTAL, PEAK = 10, 100, 1e-2


def _rate(count: Any) -> Any:
    rising = PEAK * count / WARMUP
    part = jnp.clip((count - WARMUP) / (TOTAL - WARMUP), 0, 1)
    return jnp.where(count < WARMUP, rising, PEAK * 0.5 * (1 + jnp.cos(jnp.pi * part)))


def adam_step(rows: int = 7, columns: int = 5) -> Program:
    """A step of Adam (decay 0.9 and 0.999) for gradients clipped to a global norm of 1."""
    def step(parameters: Any, gradients: Any, mean: Any, square: Any, count: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        scale = jnp.minimum(1.0, 1.0 / norm)
        gradients = jax.tree.map(lambda g: g * scale, gradients)
        count = count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradients)
        rate = _rate(count)

        def update(p: Any, m: Any, s: Any) -> Any:
            m = m / (1 - 0.9 ** count)
            return p - rate * m / (jnp.sqrt(s / (1 - 0.999 ** count)) + 1e-8)

        return jax.tree.map(update, parameters, mean, square), mean, square, count

    def tree(seed: int) -> Any:
        return {"w": normal(seed, rows, columns), "b": normal(seed + 1, columns)}

    square = jax.tree.map(lambda x: np.asarray(x * x), tree(6))
    return Program(step, (tree(0), tree(2), tree(4), square, np.array(17, np.int32)))
