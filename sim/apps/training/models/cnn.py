"""A convolutional network that reads handwritten digits."""

from typing import Any

import numpy as np

from sim.apps.training.images import CHANNELS, CLASSES, SIDE, convolve, image_task, pool
from sim.apps.training.optimizers import Adam, exponential_decay
from sim.apps.training.task import Task

__all__ = ["cnn"]

FEATURES = 128
KEPT = 0.75
"""Share of the last layer's inputs that dropout keeps."""


def cnn(batch: int = 128) -> Task:
    """A convolution with max-pooling, dropout, and a dense layer; trained by Adam."""
    return image_task("cnn", "convolutional network", batch, 6, _init, _logits, lambda steps: Adam(
        exponential_decay(5e-3, ramp=10, half_life=steps / 3)))


def _init(key: Any) -> Any:
    import jax
    import jax.numpy as jnp

    first, second = jax.random.split(key)
    depth, dense = 9 * CHANNELS, (SIDE // 2, SIDE // 2, CLASSES, FEATURES)
    return {"kernels": jax.random.normal(first, (depth, FEATURES)) * (2 / depth) ** 0.5,
            "kernels_bias": jnp.zeros(FEATURES),
            "dense": jax.random.normal(second, dense) * (CLASSES / np.prod(dense)) ** 0.5,
            "dense_bias": jnp.zeros(CLASSES)}


def _logits(parameters: Any, images: Any, step: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = pool(jax.nn.relu(convolve(images, parameters["kernels"]) + parameters["kernels_bias"]))
    if step is not None:
        kept = jax.random.bernoulli(jax.random.fold_in(jax.random.key(1), step), KEPT, x.shape)
        x = jnp.where(kept, x / KEPT, 0)
    return jnp.einsum("hwbf,hwcf->bc", x, parameters["dense"]) + parameters["dense_bias"]
