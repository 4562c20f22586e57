"""A convolutional network that reads handwritten digits."""

from typing import Any

from sim.apps.training.images import CHANNELS, CLASSES, SIDE, convolve, image_task, pool
from sim.apps.training.optimizers import Adam, exponential_decay
from sim.apps.training.task import Task

__all__ = ["cnn"]

FEATURES = 128
EPOCHS = 8
KEPT = 0.75
"""Fraction of the convolution's channels that dropout keeps; it drops a channel at all positions.
"""


def cnn(batch: int = 256) -> Task:
    """Task of a network: convolution, mean pooling, dropout, dense layer; trained with Adam.

    ``batch`` is the number of digits in a step.
    """
    return image_task("cnn", "convolutional network", batch, EPOCHS, _init, _logits,
                      lambda steps: Adam(exponential_decay(2e-2, ramp=10, half_life=steps / 4)))


def _init(key: Any) -> Any:
    import jax
    import jax.numpy as jnp

    first, second = jax.random.split(key)
    depth, pixels = 9 * CHANNELS, ((SIDE - 2) // 2) ** 2
    return {"kernels": jax.random.normal(first, (FEATURES, depth)) * (2 / depth) ** 0.5,
            "kernels_bias": jnp.zeros((FEATURES, 1)),
            "dense": (jax.random.normal(second, (CLASSES, pixels * FEATURES))
                      * (pixels * FEATURES) ** -0.5),
            "dense_bias": jnp.zeros((CLASSES, 1))}


def _logits(parameters: Any, images: Any, step: Any) -> Any:
    import jax

    x = pool(jax.nn.relu(convolve(images, parameters["kernels"]) + parameters["kernels_bias"]))
    if step is not None:
        key = jax.random.fold_in(jax.random.key(1), step)
        x = x * (jax.random.bernoulli(key, KEPT, x.shape[2:]) / KEPT)
    return parameters["dense"] @ x.reshape(-1, x.shape[-1]) + parameters["dense_bias"]
