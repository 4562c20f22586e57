"""Training steps: an MLP, a CNN, an LSTM, a transformer block."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from verif.sim.compiler.programs.program import Program, normal, tokens

__all__ = ["cnn_step", "cross_entropy", "lstm_step", "mlp_step", "transformer_forward",
           "transformer_loss", "transformer_parameters", "transformer_step"]


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Cross entropy, averaged over all but the last dimension of ``logits``."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(picked)


def _descend(parameters: Any, gradients: Any, rate: float) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients)


def mlp_step(batch: int = 6, sizes: tuple[int, ...] = (10, 9, 5)) -> Program:
    """A step of gradient descent of a multilayer perceptron with ReLU."""
    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        for weights, bias in parameters[:-1]:
            x = jax.nn.relu(x @ weights + bias)
        weights, bias = parameters[-1]
        return cross_entropy(x @ weights + bias, labels)

    def step(parameters: Any, x: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
        return value, _descend(parameters, gradients, 0.1)

    parameters = [(normal(i, a, b, scale=a ** -0.5), np.zeros(b, np.float32))
                  for i, (a, b) in enumerate(itertools.pairwise(sizes))]
    return Program(step, (parameters, normal(90, batch, sizes[0]),
                          tokens(91, sizes[-1], batch)))


def cnn_step(batch: int = 2, side: int = 8, channels: tuple[int, int] = (3, 5),
             classes: int = 4) -> Program:
    """A step of a CNN: two convolutions, max-pool, dropout, a dense layer."""
    def convolve(x: Any, kernel: Any, stride: int) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(parameters: Any, x: Any, labels: Any, key: Any) -> Any:
        x = jax.nn.relu(convolve(x, parameters["first"], 1))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(convolve(x, parameters["second"], 2))
        x = x.reshape(x.shape[0], -1)
        kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.75, x.shape)
        x = jnp.where(kept, x / 0.75, 0)
        return cross_entropy(x @ parameters["dense"] + parameters["bias"], labels)

    def step(parameters: Any, x: Any, labels: Any, key: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, x, labels, key)
        return value, _descend(parameters, gradients, 0.05)

    first, second = channels
    flat = (-(-side // 4)) ** 2 * second
    parameters = {"first": normal(1, 3, 3, 1, first, scale=0.3),
                  "second": normal(2, 3, 3, first, second, scale=0.2),
                  "dense": normal(3, flat, classes, scale=0.2),
                  "bias": np.zeros(classes, np.float32)}
    return Program(step, (parameters, normal(4, batch, side, side, 1),
                          tokens(5, classes, batch), np.array([0, 7], np.uint32)))


def lstm_step(batch: int = 3, steps: int = 4, features: int = 5, hidden: int = 6) -> Program:
    """A step of an LSTM whose last state predicts a number; ``scan`` loops over time."""
    def cell(parameters: Any, state: Any, x: Any) -> Any:
        h, c = state
        gates = x @ parameters["input"] + h @ parameters["hidden"] + parameters["bias"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def loss(parameters: Any, sequence: Any, target: Any) -> Any:
        zeros = jnp.zeros((sequence.shape[1], parameters["hidden"].shape[0]))
        _, outputs = jax.lax.scan(lambda s, x: cell(parameters, s, x), (zeros, zeros), sequence)
        return jnp.mean((outputs[-1] @ parameters["out"] - target) ** 2)

    def step(parameters: Any, sequence: Any, target: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, sequence, target)
        return value, _descend(parameters, gradients, 0.1)

    parameters = {"input": normal(1, features, 4 * hidden, scale=0.4),
                  "hidden": normal(2, hidden, 4 * hidden, scale=0.4),
                  "bias": np.zeros(4 * hidden, np.float32), "out": normal(3, hidden, 1)}
    return Program(step, (parameters, normal(4, steps, batch, features), normal(5, batch, 1)))


def transformer_parameters(vocabulary: int, length: int, width: int) -> Any:
    """Parameters of an embedding, a block, and the output layer."""
    return {"embedding": normal(1, vocabulary, width, scale=0.3),
            "positions": normal(2, length, width, scale=0.1),
            "qkv": normal(3, width, 3 * width, scale=width ** -0.5),
            "out": normal(4, width, width, scale=width ** -0.5),
            "up": normal(5, width, 4 * width, scale=width ** -0.5),
            "down": normal(6, 4 * width, width, scale=(4 * width) ** -0.5),
            "norms": [(np.ones(width, np.float32), np.zeros(width, np.float32))
                      for _ in range(3)]}


def _normalise(x: Any, norm: Any) -> Any:
    scale, shift = norm
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def transformer_forward(parameters: Any, ids: Any, heads: int) -> Any:
    """Logits (batch, length, vocabulary) of a block with causal attention and GELU."""
    batch, length = ids.shape
    x = parameters["embedding"][ids] + parameters["positions"]
    width = x.shape[-1]
    y = _normalise(x, parameters["norms"][0]) @ parameters["qkv"]
    q, k, v = (part.reshape(batch, length, heads, width // heads)
               for part in jnp.split(y, 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + mixed.reshape(batch, length, width) @ parameters["out"]
    y = _normalise(x, parameters["norms"][1])
    x = x + jax.nn.gelu(y @ parameters["up"]) @ parameters["down"]
    return _normalise(x, parameters["norms"][2]) @ parameters["embedding"].T


def transformer_loss(parameters: Any, ids: Any, heads: int) -> Any:
    """Cross entropy of the predictions of each next token."""
    return cross_entropy(transformer_forward(parameters, ids[:, :-1], heads), ids[:, 1:])


def transformer_step(batch: int = 2, length: int = 5, width: int = 8, heads: int = 2,
                     vocabulary: int = 11) -> Program:
    """A step of gradient descent of a transformer block."""
    def step(parameters: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(transformer_loss)(parameters, ids, heads)
        return value, _descend(parameters, gradients, 0.1)

    return Program(step, (transformer_parameters(vocabulary, length, width),
                          tokens(7, vocabulary, batch, length + 1)))
