"""Several training steps of Keras in one program. Only `make examples` installs Keras."""

import importlib.util

import pytest

from verif.sim.pjrt.process import run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None,
                                reason="needs keras: make examples")


@pytest.mark.slow
def test_steps_of_an_execution_are_one_program() -> None:
    """Results have the bits of Keras' own loop, which runs a program for each step."""
    def program() -> None:
        import keras
        import numpy as np

        import systolith
        from systolith.keras import OneProgram

        random = np.random.default_rng(2)
        x = random.standard_normal((14, 4)).astype(np.float32)
        y = random.integers(0, 2, 14).astype(np.int32)

        def train(callbacks: list) -> tuple:
            keras.utils.set_random_seed(0)
            model = keras.Sequential([
                keras.layers.Input((4,)), keras.layers.Dropout(0.25),
                keras.layers.Dense(2, activation="softmax")])
            model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"],
                          optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
                          steps_per_execution=3)
            with systolith.profile() as profile:
                history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
            runs: dict = {}
            for each in profile.programs:
                name = each.executable.name
                runs[name] = runs.get(name, 0) + each.runs
            weights = [np.asarray(weight.value).tobytes() for weight in model.weights]
            return history.history, weights, runs, model

        plain, plain_weights, plain_runs, _ = train([])
        callback = OneProgram()
        fused, fused_weights, fused_runs, model = train([callback])
        assert fused == plain
        assert fused_weights == plain_weights
        # Executions of 3 batches and of 1 smaller batch, twice.
        assert plain_runs["jit_train_step"] == 8
        assert fused_runs["jit_train_steps"] == 4
        assert "jit_train_step" not in fused_runs
        # The model has its own function again.
        assert model.train_function is callback._keras_function

    run(program, KERAS_BACKEND="jax", JAX_PLATFORMS="systolith")


def test_keras_must_use_jax() -> None:
    def program() -> None:
        import pytest

        from systolith.keras import OneProgram

        with pytest.raises(ValueError, match="Keras' backend must be jax, not numpy"):
            OneProgram()

    run(program, KERAS_BACKEND="numpy", JAX_PLATFORMS="cpu")
