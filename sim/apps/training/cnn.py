"""A convolutional network that reads handwritten digits.

A digit is an image of 8 x 8 with 16 channels: blocks of 4 x 4 pixels of 28 x 28, with a border. The
array takes channels of a convolution as its depth, and a single one would leave it empty. Images
have the shape (rows, columns, batch, channels), and the convolution is a product with its patches:
so nothing is shifted within vectors, forward and backward.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.apps.training.data import mnist
from sim.apps.training.optimizers import Adam, exponential_decay
from sim.apps.training.task import Task, wrapped

__all__ = ["cnn"]

SIDE, BLOCK, CLASSES = 8, 4, 10
FEATURES = 128
POOLED = SIDE // 2
"""Rows and columns that max-pooling leaves."""
KEPT = 0.75
"""Share of the last layer's inputs that dropout keeps."""
BATCH = 128
EPOCHS = 6

Float32 = npt.NDArray[np.float32]


def cnn() -> Task:
    """A convolution with max-pooling, dropout, and a dense layer; trained by Adam."""
    digits = mnist()
    order = wrapped(len(digits.images), BATCH).reshape(-1, BATCH)
    steps = len(order)

    def init(key: Any) -> Any:
        import jax
        import jax.numpy as jnp

        first, second = jax.random.split(key)
        depth, dense = 9 * BLOCK ** 2, (POOLED, POOLED, CLASSES, FEATURES)
        return {"kernels": jax.random.normal(first, (depth, FEATURES))
                * (2 / depth) ** 0.5, "kernels_bias": jnp.zeros(FEATURES),
                "dense": jax.random.normal(second, dense) * (CLASSES / np.prod(dense)) ** 0.5,
                "dense_bias": jnp.zeros(CLASSES)}

    def features(parameters: Any, images: Any) -> Any:
        """Inputs of the dense layer, shape (rows, columns, batch, features)."""
        import jax
        import jax.numpy as jnp

        x = jnp.pad(images, ((1, 1), (1, 1), (0, 0), (0, 0)))
        patches = jnp.concatenate([x[row:row + SIDE, column:column + SIDE]
                                   for row in range(3) for column in range(3)], axis=3)
        x = jax.nn.relu(jnp.einsum("hwbk,kf->hwbf", patches, parameters["kernels"])
                        + parameters["kernels_bias"])
        return x.reshape(POOLED, 2, POOLED, 2, *x.shape[2:]).max(axis=(1, 3))

    def logits(parameters: Any, x: Any) -> Any:
        import jax.numpy as jnp

        return jnp.einsum("hwbf,hwcf->bc", x, parameters["dense"]) + parameters["dense_bias"]

    def loss(parameters: Any, part: Mapping[str, Any], step: Any) -> Any:
        import jax
        import jax.numpy as jnp

        x = features(parameters, part["images"])
        kept = jax.random.bernoulli(jax.random.fold_in(jax.random.key(1), step), KEPT, x.shape)
        chances = jax.nn.log_softmax(logits(parameters, jnp.where(kept, x / KEPT, 0)))
        return -(chances * part["right"]).sum() / BATCH

    return Task(
        name="cnn", title=f"convolutional network, {len(digits.images):,} digits",
        init=init, loss=loss,
        predict=lambda parameters, x: logits(parameters, features(parameters, x)).argmax(axis=1),
        optimizer=Adam(exponential_decay(5e-3, ramp=10, half_life=EPOCHS * steps / 3)),
        data={"images": np.stack([_blocks(digits.images[part]) for part in order]),
              "right": np.eye(CLASSES, dtype=np.float32)[digits.labels[order]]},
        held_out=_blocks(digits.held_out_images), labels=digits.held_out_labels,
        steps=EPOCHS * steps, steps_per_call=8, axis={"images": 2, "right": 0, "held_out": 2})


def _blocks(images: Float32) -> Float32:
    """Images of shape (8, 8, digits, 16), of rows of 784 pixels."""
    side, border = 28, (SIDE * BLOCK - 28) // 2
    padded = np.pad(images.reshape(-1, side, side), ((0, 0), (border, border), (border, border)),
                    mode="edge")
    return np.ascontiguousarray(padded.reshape(-1, SIDE, BLOCK, SIDE, BLOCK)
                                .transpose(1, 3, 0, 2, 4).reshape(SIDE, SIDE, -1, BLOCK ** 2))
