"""ResNet-50 (He et al. 2015). In a block with a stride, the 3x3 convolution has the stride.

In training, batch normalisation uses the mean and variance of the batch. At inference, it is folded
into a scale and a shift for each channel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["STAGES", "forward", "images", "multiplications", "parameters"]

STAGES = (3, 4, 6, 3)


def _convolve(x: Any, kernel: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME",
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _norm(x: Any, scale: Any, shift: Any, training: bool) -> Any:
    if training:
        mean = jnp.mean(x, axis=(0, 1, 2))
        variance = jnp.mean((x - mean) ** 2, axis=(0, 1, 2))
        x = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return x * scale + shift


def _normal(seed: int, *shape: int, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def images(batch: int, side: int) -> Any:
    """Random images, shape (batch, side, side, 3)."""
    return _normal(1001, batch, side, side, 3)


def parameters(stages: tuple[int, ...] = STAGES, width: int = 64, classes: int = 1000) -> Any:
    """Random parameters for `forward`, as a pytree of numpy arrays.

    ``stages`` lists the number of blocks in each stage. ``width`` is the number of features after
    the first layer, ``classes`` the number of logits for an image.
    """
    seed = iter(range(1000))

    def layer(size: int, inputs: int, outputs: int) -> Any:
        scale = (2.0 / (size * size * inputs)) ** 0.5
        return (_normal(next(seed), size, size, inputs, outputs, scale=scale),
                np.ones(outputs, np.float32), np.zeros(outputs, np.float32))

    blocks, inputs = [], width
    for stage, count in enumerate(stages):
        inner = width << stage
        for number in range(count):
            block = {"a": layer(1, inputs, inner), "b": layer(3, inner, inner),
                     "c": layer(1, inner, 4 * inner)}
            if number == 0:
                block["skip"] = layer(1, inputs, 4 * inner)
            blocks.append(block)
            inputs = 4 * inner
    return {"stem": layer(7, 3, width), "blocks": blocks,
            "dense": _normal(next(seed), inputs, classes, scale=inputs ** -0.5),
            "bias": np.zeros(classes, np.float32)}


def forward(parameters: Any, x: Any, stages: tuple[int, ...] = STAGES,
            training: bool = False) -> Any:
    """Logits, shape (batch, classes), of images ``x``, shape (batch, side, side, 3).

    ``parameters`` is the result of the function `parameters` for the same ``stages``. Unless
    ``training`` is true, batch normalisation only multiplies by a scale and adds a shift.
    """
    kernel, scale, shift = parameters["stem"]
    x = jax.nn.relu(_norm(_convolve(x, kernel, 2), scale, shift, training))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    blocks = iter(parameters["blocks"])
    for stage, count in enumerate(stages):
        for number in range(count):
            block = next(blocks)
            stride = 2 if stage > 0 and number == 0 else 1
            y = x
            for name, step in (("a", 1), ("b", stride), ("c", 1)):
                kernel, scale, shift = block[name]
                y = _norm(_convolve(y, kernel, step), scale, shift, training)
                y = jax.nn.relu(y) if name != "c" else y
            if "skip" in block:
                kernel, scale, shift = block["skip"]
                x = _norm(_convolve(x, kernel, stride), scale, shift, training)
            x = jax.nn.relu(x + y)
    return jnp.mean(x, axis=(1, 2)) @ parameters["dense"] + parameters["bias"]


def multiplications(side: int) -> int:
    """Number of multiplications in all layers for one image of ``side`` x ``side`` pixels."""
    side = -(-side // 2)
    total = side ** 2 * 49 * 3 * 64
    side, inputs = -(-side // 2), 64
    for stage, count in enumerate(STAGES):
        inner = 64 << stage
        for number in range(count):
            before, side = side, -(-side // 2) if stage > 0 and number == 0 else side
            total += before ** 2 * inputs * inner + side ** 2 * (9 * inner * inner
                                                                 + inner * 4 * inner)
            if number == 0:
                total += side ** 2 * inputs * 4 * inner
            inputs = 4 * inner
    return total + inputs * 1000
