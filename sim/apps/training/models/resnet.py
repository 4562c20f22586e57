"""A small residual network with batch normalisation that reads handwritten digits."""

from typing import Any

from sim.apps.training.images import CHANNELS, CLASSES, convolve, image_task, pool
from sim.apps.training.optimizers import Momentum, exponential_decay
from sim.apps.training.task import Task

__all__ = ["resnet"]

FEATURES = 64
BLOCKS = 2
EPOCHS = 5


def resnet(batch: int = 256) -> Task:
    """Task of a network with two residual blocks (He et al., 2016), trained with momentum.

    ``batch`` is the number of digits in a step.
    """
    return image_task(
        "resnet", f"residual network of {2 * BLOCKS + 2} layers", batch, EPOCHS, _init, _logits,
        lambda steps: Momentum(exponential_decay(0.1, ramp=10, half_life=steps / 3)))


def _init(key: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def layer(key: Any, depth: int) -> Any:
        return {"kernels": jax.random.normal(key, (FEATURES, depth)) * (2 / depth) ** 0.5,
                "scale": jnp.ones((FEATURES, 1)), "shift": jnp.zeros((FEATURES, 1))}

    first, last, *rest = jax.random.split(key, 2 * BLOCKS + 2)
    return {"first": layer(first, 9 * CHANNELS),
            "layers": [layer(one, 9 * FEATURES) for one in rest],
            "dense": jax.random.normal(last, (CLASSES, FEATURES)) * FEATURES ** -0.5,
            "bias": jnp.zeros((CLASSES, 1))}


def _logits(parameters: Any, images: Any, step: Any) -> Any:
    import jax

    x = pool(jax.nn.relu(_normalised(convolve(images, parameters["first"]["kernels"]),
                                     parameters["first"])))
    layers = parameters["layers"]
    for one, two in zip(layers[::2], layers[1::2], strict=True):
        x = jax.nn.relu(x + _layer(jax.nn.relu(_layer(x, one)), two))
    return parameters["dense"] @ x.mean(axis=(0, 1)) + parameters["bias"]


def _layer(x: Any, layer: Any) -> Any:
    """A convolution of ``x`` that preserves the image size, followed by batch normalisation.

    ``layer`` has the parameters ``kernels``, ``scale`` and ``shift``.
    """
    import jax.numpy as jnp

    x = jnp.pad(x, ((1, 1), (1, 1), (0, 0), (0, 0)))
    return _normalised(convolve(x, layer["kernels"]), layer)


def _normalised(x: Any, layer: Any) -> Any:
    """Normalise ``x``, one core's part of the batch, by the mean and variance of this part.

    No running means are kept: the test uses the statistics of its own inputs.
    """
    import jax

    mean = x.mean(axis=(0, 1, 3), keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axis=(0, 1, 3), keepdims=True)
    return centred * (jax.lax.rsqrt(variance + 1e-5) * layer["scale"]) + layer["shift"]
