"""A transformer that predicts the next character of Python's documentation."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.apps.training.optimizers import Adam, exponential_decay
from sim.apps.training.task import Task
from sim.apps.training.text import CHARACTERS, decode, topics

__all__ = ["transformer"]

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 2, 2
BATCH = 32
STEPS = 400
HELD_OUT = 32
"""Number of texts of `CONTEXT` characters, from the end of the documentation, that are held out for
the test."""
SAMPLED = 120
"""Number of characters of the sampled text."""


def transformer(batch: int = BATCH) -> Task:
    """Task of a transformer with two layers of causal attention, trained with Adam.

    ``batch`` is the number of texts in a step; each has `CONTEXT` characters.
    """
    text = topics()
    start = len(text) - HELD_OUT * CONTEXT - 1
    rng = np.random.default_rng(5)
    first = rng.integers(0, start - CONTEXT, (STEPS, batch))
    batches = text[first[..., None] + np.arange(CONTEXT + 1)]
    held_out = text[start:-1].reshape(HELD_OUT, CONTEXT)

    def loss(parameters: Any, part: Mapping[str, Any], step: Any) -> Any:
        import jax

        chances = jax.nn.log_softmax(_logits(parameters, part["text"]))
        right = jax.nn.one_hot(part["next"], len(CHARACTERS))
        return -(chances * right).sum() * (1 / (batch * CONTEXT))

    return Task(
        name="transformer", title=f"transformer of {LAYERS} layers, {len(text):,} characters",
        init=_init, loss=loss,
        predict=lambda parameters, x: _logits(parameters, x).argmax(axis=-1),
        optimizer=Adam(exponential_decay(3e-3, ramp=20, half_life=STEPS / 3)),
        data={"text": batches[..., :-1], "next": batches[..., 1:]},
        held_out=held_out, labels=text[start + 1:].reshape(HELD_OUT, CONTEXT),
        steps=STEPS, steps_per_call=20, axis={"text": 0, "next": 0, "held_out": 0},
        show=lambda parameters, run: decode(run(_sample, parameters, np.int32(1))))


def _init(key: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def dense(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    keys = jax.random.split(key, LAYERS + 3)
    layers = []
    for each in keys[:LAYERS]:
        qkv, out, up, down = jax.random.split(each, 4)
        width = WIDTH // HEADS
        # Weights of each head are arrays of their own: heads that lie next to each other in vectors
        # would have to be moved apart.
        layers.append({"heads": [[dense(one, WIDTH, width) for one in jax.random.split(head, 3)]
                                 for head in jax.random.split(qkv, HEADS)],
                       "out": [dense(one, width, WIDTH) for one in jax.random.split(out, HEADS)],
                       "up": dense(up, WIDTH, 2 * WIDTH), "down": dense(down, 2 * WIDTH, WIDTH),
                       "attention_scale": jnp.ones(WIDTH), "dense_scale": jnp.ones(WIDTH)})
    return {"characters": dense(keys[-3], len(CHARACTERS), WIDTH),
            "places": 0.1 * dense(keys[-2], CONTEXT, WIDTH), "layers": layers,
            "scale": jnp.ones(WIDTH), "logits": dense(keys[-1], WIDTH, len(CHARACTERS))}


def _logits(parameters: Any, text: Any) -> Any:
    """Logits of the character after each position of ``text``: (batch, time, characters).

    ``text`` has the shape (batch, time) and holds indices into `CHARACTERS`.
    """
    import jax
    import jax.numpy as jnp

    time = text.shape[1]
    x = jax.nn.one_hot(text, len(CHARACTERS)) @ parameters["characters"] + parameters["places"]
    future = jnp.triu(jnp.full((time, time), -1e9, jnp.float32), 1)
    for layer in parameters["layers"]:
        y = _normalised(x, layer["attention_scale"])
        for weights, out in zip(layer["heads"], layer["out"], strict=True):
            q, k, v = (y @ w for w in weights)
            scores = jnp.einsum("btd,bsd->bts", q, k) * q.shape[-1] ** -0.5
            x = x + jax.nn.softmax(scores + future) @ v @ out
        x = x + jax.nn.gelu(_normalised(x, layer["dense_scale"]) @ layer["up"]) @ layer["down"]
    return _normalised(x, parameters["scale"]) @ parameters["logits"]


def _normalised(x: Any, scale: Any) -> Any:
    """RMS normalisation of ``x`` over its last axis, times ``scale`` (Zhang and Sennrich, 2019)."""
    import jax

    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * scale


def _sample(parameters: Any, seed: Any) -> Any:
    """Draw `SAMPLED` characters that continue the first `CONTEXT` ones of the documentation.

    Each character is drawn from the distribution that the model predicts from the `CONTEXT`
    characters before it. The logits are multiplied by 1.5 first, which favours probable characters.
    ``seed`` seeds the random numbers.
    """
    import jax
    import jax.numpy as jnp

    def draw(text: Any, key: Any) -> Any:
        logits = _logits(parameters, text[None])[0, -1]
        character = jax.random.categorical(key, 1.5 * logits).astype(jnp.int32)
        return jnp.concatenate([text[1:], character[None]]), character

    text = jnp.asarray(topics()[:CONTEXT])
    return jax.lax.scan(draw, text, jax.random.split(jax.random.key(seed), SAMPLED))[1]
