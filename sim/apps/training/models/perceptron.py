"""A perceptron with one hidden layer that reads handwritten digits.

Examples are columns: ``x`` has shape (pixels, batch). So products need no transposes, neither in
the forward nor in the backward pass.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.apps.training.data import Digits, mnist
from sim.apps.training.optimizers import Momentum, Optimizer, exponential_decay
from sim.apps.training.task import Task, wrapped

__all__ = ["dense_classifier", "perceptron"]

SIZES = 784, 100, 10
BATCH = 256
EPOCHS = 12
EPOCHS_PER_CALL = 4
RATE = 0.2
HALF_LIFE = 6
"""Number of epochs in which the learning rate halves."""


def perceptron() -> Task:
    """Task of a perceptron: 784 pixels, 100 hidden units, 10 classes; 12 epochs of 16 steps."""
    digits = mnist()
    steps = -(-len(digits.images) // BATCH)
    return dense_classifier(
        SIZES, digits, BATCH,
        Momentum(exponential_decay(RATE, ramp=steps, half_life=HALF_LIFE * steps)),
        epochs=EPOCHS, epochs_per_call=EPOCHS_PER_CALL)


def dense_classifier(sizes: tuple[int, int, int], digits: Digits, batch: int,
                     optimizer: Optimizer, *, epochs: int = 1, epochs_per_call: int = 1) -> Task:
    """Task of two dense layers with ReLU in between; the loss is softmax cross entropy.

    Parameters
    ----------
    sizes : three int
        Numbers of pixels, hidden units and classes.
    digits : Digits
        Images with any number of pixels, and labels.
    batch : int
        Number of images in a step. The last batch of an epoch is filled with the first images.
    optimizer : Optimizer
    epochs, epochs_per_call : int
        Number of passes over the images: in the whole training, and in one call of the chip.
    """
    pixels, hidden, classes = sizes
    images, labels = digits.images, digits.labels

    def init(key: Any) -> Any:
        """Normally distributed weights; variance 2 / inputs of the layer (He et al., 2015)."""
        import jax
        import jax.numpy as jnp

        first, second = jax.random.split(key)
        return {"w1": jax.random.normal(first, (hidden, pixels)) * (2 / pixels) ** 0.5,
                "b1": jnp.zeros((hidden, 1)),
                "w2": jax.random.normal(second, (classes, hidden)) * (2 / hidden) ** 0.5,
                "b2": jnp.zeros((classes, 1))}

    def logits(parameters: Any, x: Any) -> Any:
        import jax

        y = jax.nn.relu(parameters["w1"] @ x + parameters["b1"])
        return parameters["w2"] @ y + parameters["b2"]

    def loss(parameters: Any, part: Mapping[str, Any], step: Any) -> Any:
        import jax

        chances = jax.nn.log_softmax(logits(parameters, part["images"]), axis=0)
        return -(chances * part["right"]).sum() * (1 / batch)

    order = wrapped(len(images), batch).reshape(-1, batch)
    return Task(
        name="perceptron",
        title=f"perceptron {pixels}-{hidden}-{classes}, {len(images):,} digits",
        init=init, loss=loss, predict=lambda parameters, x: logits(parameters, x).argmax(axis=0),
        optimizer=optimizer,
        data={"images": np.ascontiguousarray(images[order].transpose(0, 2, 1)),
              "right": np.eye(classes, dtype=np.float32)[labels[order]].transpose(0, 2, 1).copy()},
        held_out=np.ascontiguousarray(digits.held_out_images.T), labels=digits.held_out_labels,
        steps=epochs * len(order), steps_per_call=epochs_per_call * len(order))
