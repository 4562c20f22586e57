"""A network of Flax Linen, trained by Optax: ordinary JAX, on any platform.

    python examples/flax_linen.py
    JAX_PLATFORMS=systolith python examples/flax_linen.py

The network learns which of the first four coordinates of a random point is the largest. The state
of the training is a `TrainState`, and dropout gets a new random key in each step.
"""

import argparse

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

NUMBERS, CLASSES, BATCH, STEPS = 16, 4, 64, 10


class Network(nn.Module):
    """Dense layers with layer normalization and dropout."""

    hidden: int = 32

    @nn.compact
    def __call__(self, x, *, training):
        """Return the logits of a batch of points ``x``; with dropout if ``training``."""
        x = nn.relu(nn.LayerNorm()(nn.Dense(self.hidden)(x)))
        x = nn.Dropout(0.1, deterministic=not training)(x)
        return nn.Dense(CLASSES)(x)


@jax.jit
def train_step(state, x, y, key):
    """Make a step with points ``x`` of classes ``y``; return the new state and the old one's loss.

    ``key`` is the random key from which each step derives that of its dropout.
    """
    def loss(parameters):
        logits = state.apply_fn({"params": parameters}, x, training=True,
                                rngs={"dropout": jax.random.fold_in(key, state.step)})
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def main():
    """Train, and print the loss of each epoch and the accuracy on new points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    points = rng.standard_normal((options.epochs + 1, STEPS, BATCH, NUMBERS), np.float32)
    labels = points[..., :CLASSES].argmax(axis=-1).astype(np.int32)

    network = Network()
    key, dropout = jax.random.split(jax.random.key(0))
    parameters = network.init(key, points[0, 0], training=False)["params"]
    state = train_state.TrainState.create(apply_fn=network.apply, params=parameters,
                                          tx=optax.adamw(1e-2))
    for number in range(options.epochs):
        losses = []
        for x, y in zip(points[number], labels[number], strict=True):
            state, loss = train_step(state, x, y, dropout)
            losses.append(loss)
        print(f"epoch {number + 1}: loss {np.mean(jax.device_get(losses)):.4f}", flush=True)

    x, y = points[-1].reshape(-1, NUMBERS), labels[-1].reshape(-1)
    logits = jax.jit(network.apply, static_argnames="training")(
        {"params": state.params}, x, training=False)
    print(f"accuracy {np.mean(np.asarray(logits).argmax(axis=1) == y):.1%}")


if __name__ == "__main__":
    main()
