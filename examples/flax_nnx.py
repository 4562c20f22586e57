"""A network of Flax NNX, trained by Optax: ordinary JAX, on any platform.

    python examples/flax_nnx.py
    JAX_PLATFORMS=systolith python examples/flax_nnx.py

The network learns which of the first four coordinates of a random point is the largest. Modules
hold parameters, the statistics of batch normalization and the state of dropout's random numbers; a
step updates all of these.
"""

import argparse

import jax
import numpy as np
import optax
from flax import nnx

NUMBERS, CLASSES, BATCH, STEPS = 16, 4, 64, 10


class Network(nnx.Module):
    """Dense layers with batch normalization and dropout."""

    def __init__(self, hidden, *, rngs):
        self.first = nnx.Linear(NUMBERS, hidden, rngs=rngs)
        self.normalization = nnx.BatchNorm(hidden, momentum=0.8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(hidden, CLASSES, rngs=rngs)

    def __call__(self, x):
        """Return the logits of a batch of points ``x``."""
        return self.last(self.dropout(nnx.relu(self.normalization(self.first(x)))))


def loss(network, x, y):
    """Return the mean cross entropy of points ``x``, whose classes are ``y``."""
    return optax.softmax_cross_entropy_with_integer_labels(network(x), y).mean()


@nnx.jit
def train_step(network, optimizer, metrics, x, y):
    """Make a step with points ``x`` of classes ``y``; add the loss to ``metrics``."""
    value, gradients = nnx.value_and_grad(loss)(network, x, y)
    metrics.update(loss=value)
    optimizer.update(network, gradients)


@nnx.jit
def answers(network, x):
    """Return, for each point of ``x``, the class with the highest logit."""
    return network(x).argmax(axis=1)


def main():
    """Train, and print the loss of each epoch and the accuracy on new points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    points = rng.standard_normal((options.epochs + 1, STEPS, BATCH, NUMBERS), np.float32)
    labels = points[..., :CLASSES].argmax(axis=-1).astype(np.int32)

    network = Network(32, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.adam(1e-2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    for number in range(options.epochs):
        network.train()
        for x, y in zip(points[number], labels[number], strict=True):
            train_step(network, optimizer, metrics, x, y)
        print(f"epoch {number + 1}: loss {float(metrics.compute()['loss']):.4f}", flush=True)
        metrics.reset()

    network.eval()
    x, y = points[-1].reshape(-1, NUMBERS), labels[-1].reshape(-1)
    print(f"accuracy {np.mean(jax.device_get(answers(network, x)) == y):.1%}")


if __name__ == "__main__":
    main()
