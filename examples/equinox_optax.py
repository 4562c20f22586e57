"""A network of Equinox, trained by Optax: ordinary JAX, on any platform.

    python examples/equinox_optax.py
    JAX_PLATFORMS=systolith python examples/equinox_optax.py

The network learns which of the first four coordinates of a random point is the largest. Gradients
are clipped, the learning rate ramps up and decays, and one call makes many steps.
"""

import argparse

import equinox as eqx
import jax
import numpy as np
import optax

NUMBERS, CLASSES, BATCH, STEPS = 16, 4, 64, 10


def main():
    """Train, and print the loss after each call and the accuracy on new points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    points = rng.standard_normal((options.calls + 1, STEPS, BATCH, NUMBERS), np.float32)
    labels = points[..., :CLASSES].argmax(axis=-1).astype(np.int32)

    network = eqx.nn.MLP(NUMBERS, CLASSES, 32, depth=2, key=jax.random.key(0))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.warmup_exponential_decay_schedule(0, 1e-2, 10, 50, 0.5)))
    parameters, structure = eqx.partition(network, eqx.is_array)

    def loss(parameters, x, y):
        logits = jax.vmap(eqx.combine(parameters, structure))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def train(state, batches):
        def step(state, batch):
            parameters, memory = state
            value, gradients = jax.value_and_grad(loss)(parameters, *batch)
            updates, memory = optimizer.update(gradients, memory)
            return (eqx.apply_updates(parameters, updates), memory), value

        return jax.lax.scan(step, state, batches)

    state = parameters, optimizer.init(parameters)
    for number in range(options.calls):
        state, losses = train(state, (points[number], labels[number]))
        print(f"call {number + 1}: loss {np.asarray(losses).mean():.4f}", flush=True)

    x, y = points[-1].reshape(-1, NUMBERS), labels[-1].reshape(-1)
    answers = jax.jit(jax.vmap(eqx.combine(state[0], structure)))(x)
    print(f"accuracy {np.mean(np.asarray(answers).argmax(axis=1) == y):.1%}")


if __name__ == "__main__":
    main()
