"""Images for convolutional networks, and their convolutions.

A digit of 28 x 28 pixels is padded to 32 x 32, and becomes an image of 8 x 8 positions. Each
position has 16 channels, one for each pixel of a block of 4 x 4. The channels of a convolution
occupy rows of the array, most of which a single channel would leave unused. Images have the shape
(rows, columns, channels, batch), so examples fill the lanes. A convolution is a product with
patches, which consist of whole positions. So elements need not move within vectors, neither in the
forward nor in the backward pass.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.apps.training.data import mnist
from sim.apps.training.optimizers import Optimizer
from sim.apps.training.task import Task, wrapped

__all__ = ["CHANNELS", "CLASSES", "SIDE", "convolve", "image_task", "pool"]

SIDE, BLOCK, CLASSES = 8, 4, 10
CHANNELS = BLOCK ** 2
_DIGIT = 28

Float32 = npt.NDArray[np.float32]


def image_task(name: str, title: str, batch: int, epochs: int, init: Callable[[Any], Any],
               logits: Callable[[Any, Any, Any], Any],
               optimizer: Callable[[int], Optimizer]) -> Task:
    """A task that classifies the digits of `mnist`.

    Parameters
    ----------
    name, title : str
        A word that names the task, and one line that describes it, to which the number of digits
        is added.
    batch, epochs : int
        Number of digits in a step, and number of passes over all digits.
    init : callable
        Makes random parameters, a pytree, from a key of ``jax.random``.
    logits : callable
        Takes parameters, images, and the step's number (None in the test); returns logits of shape
        (classes, batch).
    optimizer : callable
        Makes the optimizer, given the number of steps.
    """
    digits = mnist()
    order = wrapped(len(digits.images), batch).reshape(-1, batch)

    def loss(parameters: Any, part: Mapping[str, Any], step: Any) -> Any:
        import jax

        chances = jax.nn.log_softmax(logits(parameters, part["images"], step), axis=0)
        return -(chances * part["right"]).sum() * (1 / batch)

    return Task(
        name=name, title=f"{title}, {len(digits.images):,} digits", init=init, loss=loss,
        predict=lambda parameters, x: logits(parameters, x, None).argmax(axis=0),
        optimizer=optimizer(epochs * len(order)),
        data={"images": np.stack([_blocks(digits.images[part]) for part in order]),
              "right": np.eye(CLASSES, dtype=np.float32)[digits.labels[order]]
              .transpose(0, 2, 1).copy()},
        held_out=_blocks(digits.held_out_images), labels=digits.held_out_labels,
        steps=epochs * len(order), steps_per_call=len(order))


def convolve(x: Any, filters: Any) -> Any:
    """Convolve images with 3 x 3 filters, without a border.

    The result has two rows and two columns fewer than ``x``. ``filters`` has the shape (features,
    9 * channels). Its second index is (3 * row + column) * channels + channel, where row and column
    are those within the filter.
    """
    import jax.numpy as jnp

    rows, columns = x.shape[0] - 2, x.shape[1] - 2
    patches = jnp.concatenate([x[row:row + rows, column:column + columns]
                               for row in range(3) for column in range(3)], axis=2)
    return jnp.einsum("fk,hwkb->hwfb", filters, patches)


def pool(x: Any) -> Any:
    """The mean of each block of 2 x 2 positions, in each channel."""
    rows, columns = x.shape[:2]
    return x.reshape(rows // 2, 2, columns // 2, 2, *x.shape[2:]).sum(axis=(1, 3)) * 0.25


def _blocks(images: Float32) -> Float32:
    """Divide images into blocks of 4 x 4 pixels, each of which becomes a position with 16 channels.

    The shape changes from (digits, 784) to (rows, columns, channels, digits) = (8, 8, 16, digits).
    The pixel at (row, column) of a block is channel 4 * row + column. Before, each image is padded
    to 32 x 32 pixels by copies of its outermost pixels.
    """
    border = (SIDE * BLOCK - _DIGIT) // 2
    padded = np.pad(images.reshape(-1, _DIGIT, _DIGIT),
                    ((0, 0), (border, border), (border, border)), mode="edge")
    return np.ascontiguousarray(padded.reshape(-1, SIDE, BLOCK, SIDE, BLOCK)
                                .transpose(1, 3, 2, 4, 0).reshape(SIDE, SIDE, CHANNELS, -1))
