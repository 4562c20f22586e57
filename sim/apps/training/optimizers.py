"""Optimizers and their schedules, in JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Adam", "Momentum", "Optimizer", "exponential_decay"]

Tree = Any
"""A pytree of arrays."""
Schedule = Callable[[Any], Any]
"""Function from a step's number to its learning rate."""


class Optimizer(Protocol):
    """Updates parameters by their gradients."""

    def init(self, parameters: Tree) -> Tree:
        """The optimizer's memory before the first step."""

    def update(self, parameters: Tree, memory: Tree, gradients: Tree, step: Any
               ) -> tuple[Tree, Tree]:
        """Parameters and optimizer memory after step number ``step``, which counts from 0.

        ``parameters`` and ``memory`` are those before the step, and ``gradients`` are those of the
        loss at ``parameters``.
        """


def exponential_decay(peak: float, ramp: int, half_life: float) -> Schedule:
    """A learning rate that decays exponentially; in the first ``ramp`` steps, it also ramps up.

    In step n, which counts from 0, it is ``peak * min(1, (n + 1) / ramp) * 2 ** (-n / half_life)``.
    """
    def rate(step: Any) -> Any:
        import jax.numpy as jnp

        # Products with constants: a division takes several times as long.
        number = step.astype(jnp.float32)
        return jnp.minimum(peak, (number + 1) * (peak / ramp)) * jnp.exp2(number * (-1 / half_life))

    return rate


@dataclass(frozen=True)
class Momentum:
    """Stochastic gradient descent with momentum: v = decay * v + g; w = w - rate * v."""

    rate: Schedule
    decay: float = 0.9

    def init(self, parameters: Tree) -> Tree:
        """Initial velocities, which are all 0."""
        import jax

        return jax.tree.map(jax.numpy.zeros_like, parameters)

    def update(self, parameters: Tree, memory: Tree, gradients: Tree, step: Any
               ) -> tuple[Tree, Tree]:
        """Parameters and velocities after one step; ``memory`` has the velocities before it."""
        import jax

        rate = self.rate(step)
        memory = jax.tree.map(lambda v, g: self.decay * v + g, memory, gradients)
        return jax.tree.map(lambda w, v: w - rate * v, parameters, memory), memory


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015); both bias corrections are part of the rate."""

    rate: Schedule
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8

    def init(self, parameters: Tree) -> Tree:
        """Initial first and second moments, which are all 0."""
        import jax

        zeros = jax.tree.map(jax.numpy.zeros_like, parameters)
        return zeros, zeros

    def update(self, parameters: Tree, memory: Tree, gradients: Tree, step: Any
               ) -> tuple[Tree, Tree]:
        """Parameters and moments after one step; ``memory`` has the moments before it."""
        import jax
        import jax.numpy as jnp

        number = step.astype(jnp.float32) + 1
        # The rate of the paper's section 2: alpha * sqrt(1 - beta2^t) / (1 - beta1^t).
        rate = (self.rate(step) * jnp.sqrt(1 - jnp.exp2(number * jnp.log2(self.second)))
                / (1 - jnp.exp2(number * jnp.log2(self.first))))
        means, squares = memory
        means = jax.tree.map(lambda m, g: m + (1 - self.first) * (g - m), means, gradients)
        squares = jax.tree.map(lambda s, g: s + (1 - self.second) * (g * g - s), squares, gradients)
        parameters = jax.tree.map(
            lambda w, m, s: w - rate * m / (jnp.sqrt(s) + self.epsilon), parameters, means, squares)
        return parameters, (means, squares)
