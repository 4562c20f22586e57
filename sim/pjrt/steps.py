"""`OneProgram`: a callback of Keras that runs several training steps as one program."""

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jax
import keras

__all__ = ["OneProgram"]


class OneProgram(keras.callbacks.Callback):
    """Callback of Keras that runs ``steps_per_execution`` training steps as one program.

        model.compile(..., steps_per_execution=8)
        model.fit(x, y, callbacks=[systolith.keras.OneProgram()])

    Without it, Keras calls one program for each step. With it, ``fit`` calls one jitted function
    that repeats ``Model.train_step``, so that the model's variables need not go to HBM and back
    between steps. Results have the same bits. The program is not a loop: its code and the time to
    compile it grow with ``steps_per_execution``. The callback has no effect if
    ``steps_per_execution`` is 1, if the model runs eagerly or without ``jit_compile``, or if
    `keras.distribution` divides the model between devices.

    It works on any platform of JAX.

    Raises
    ------
    ValueError
        If Keras' backend is not JAX.
    """

    def __init__(self) -> None:
        super().__init__()
        if keras.backend.backend() != "jax":
            raise ValueError(f"Keras' backend must be jax, not {keras.backend.backend()}")
        self._keras_function: Any = None
        self._function: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Replace the model's training function, which Keras has just made, by one program."""
        model = self.model
        if (model.steps_per_execution == 1 or model.run_eagerly or not model.jit_compile
                or keras.distribution.distribution() is not None):
            return
        # Keras makes a new function after each `compile`. After a failed `fit`, it is still ours.
        if model.train_function not in (self._keras_function, self._function):
            self._keras_function = model.train_function
            self._function = _in_one_program(model.train_step, model.steps_per_execution)
        model.train_function = self._function

    def on_train_end(self, logs: Any = None) -> None:
        """Give the model its own training function back."""
        if self.model.train_function is self._function:
            self.model.train_function = self._keras_function


def _in_one_program(step: Callable[[Any, Any], Any], steps: int
                    ) -> Callable[[Any, Iterator[Any]], Any]:
    """Return a function of a model's state and an iterator, as ``Model.make_train_function`` does.

    The function takes up to ``steps`` batches from the iterator, and calls ``step(state, batch)``
    for each in one program. It returns the logs of the last batch and the state after it, and
    raises StopIteration if there is no batch.
    """
    @functools.partial(jax.jit, donate_argnums=0)
    def train_steps(state: Any, batches: list[Any]) -> Any:
        logs = None
        for batch in batches:
            logs, state = step(state, batch)
        return logs, state

    def run(state: Any, iterator: Iterator[Any]) -> Any:
        batches = list(islice(iterator, steps))
        if not batches:
            raise StopIteration
        return train_steps(state, batches)

    return run
