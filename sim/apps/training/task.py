"""What is trained: a model, its data, and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.apps.training.optimizers import Optimizer

__all__ = ["CORES", "State", "Task"]

CORES = "cores"
"""Axis of the mesh over which batches are cut."""

State = Any
"""Parameters, the optimizer's memory, and the number of the next step."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    """A model, its data, and how it is trained; all functions are plain JAX.

    Attributes
    ----------
    name, title : str
        One word, and one line that says what it is.
    init : callable
        Makes random parameters, a pytree, from a key of ``jax.random``.
    loss : callable
        The loss of a batch, a part of which each core has: parameters, the batch as a mapping,
        and the number of the step. It is a sum over the part, divided by the whole batch's size.
    predict : callable
        Classes of held-out inputs: parameters, inputs; a part of the inputs on each core.
    optimizer : Optimizer
    data : mapping of str to array
        Batches: the first dimension counts them, the last one is cut over the cores.
    held_out : array
        Inputs for ``predict``, cut in their last dimension.
    labels : array of int32
        Their classes, in the order of their last dimension.
    steps, steps_per_call : int
        Steps in all, and in one call of the chip.
    seed : int
        Of the parameters.
    """

    name: str
    title: str
    init: Callable[[Any], Any]
    loss: Callable[[Any, Mapping[str, Any], Any], Any]
    predict: Callable[[Any, Any], Any]
    optimizer: Optimizer
    data: Mapping[str, Array]
    held_out: Array
    labels: Array
    steps: int
    steps_per_call: int
    seed: int = 0

    @property
    def batch(self) -> int:
        """Examples of a step."""
        return int(next(iter(self.data.values())).shape[-1])

    @cached_property
    def start(self) -> Callable[[Any], State]:
        """The state before the first step, from a seed."""
        import jax
        import jax.numpy as jnp

        def start(seed: Any) -> State:
            parameters = self.init(jax.random.key(seed))
            return parameters, self.optimizer.init(parameters), jnp.int32(0)

        return start

    def train(self, steps: int, cores: int) -> Callable[[State, Mapping[str, Any]], Any]:
        """Steps of training, the whole loop as one function: state, data; the state, losses.

        Parameters
        ----------
        steps : int
            Their number.
        cores : int
            Devices that share each batch, 1 or 2. Gradients are summed over them.
        """
        import jax
        from jax import lax

        def part(state: State, data: Mapping[str, Any]) -> Any:
            def step(state: State, _: None) -> Any:
                parameters, memory, number = state
                batch = {name: batches[number % len(batches)] for name, batches in data.items()}
                both = jax.value_and_grad(self.loss)(parameters, batch, number)
                value, gradients = lax.psum(both, CORES) if cores > 1 else both
                parameters, memory = self.optimizer.update(parameters, memory, gradients, number)
                return (parameters, memory, number + 1), value

            return lax.scan(step, state, length=steps)

        return self._over_cores(part, cores, {name: batches.ndim for name, batches
                                              in self.data.items()}, cut_result=False)

    def classify(self, cores: int) -> Callable[[Any, Any], Any]:
        """Classes of held-out inputs: parameters, inputs; classes."""
        return self._over_cores(self.predict, cores, self.held_out.ndim, cut_result=True)

    def _over_cores(self, function: Callable[..., Any], cores: int, ranks: Any, *,
                    cut_result: bool) -> Callable[..., Any]:
        """Cut the last dimension of the second argument's arrays over the cores."""
        import jax
        from jax.sharding import AbstractMesh, PartitionSpec

        if cores == 1:
            return function
        cut = jax.tree.map(lambda rank: PartitionSpec(*[None] * (rank - 1), CORES), ranks)
        return jax.shard_map(
            function, mesh=AbstractMesh((cores,), (CORES,)), in_specs=(PartitionSpec(), cut),
            out_specs=PartitionSpec(CORES) if cut_result else PartitionSpec(), check_vma=False)


def wrapped(count: int, size: int) -> npt.NDArray[np.int64]:
    """Indices of ``count`` examples for batches of ``size``: the first ones fill the last batch."""
    return np.arange(-(-count // size) * size) % count
