"""Unchanged programs of JAX on the chip."""

from verif.sim.pjrt.process import run


def test_devices_are_the_cores() -> None:
    def program() -> None:
        import jax
        import numpy as np

        first, second = jax.devices()
        assert jax.default_backend() == "systolith"
        assert [device.id for device in (first, second)] == [0, 1]
        assert second.coords == [0, 0, 0]
        assert second.core_on_chip == 1
        assert first.device_kind == "Systolith tiny"
        stats = first.memory_stats()
        assert stats["bytes_in_use"] == 0
        assert stats["bytes_limit"] == (1 << 20) - (1 << 14)
        kept = jax.device_put(np.ones((8, 8), np.float32), first)
        kept.block_until_ready()
        # 64 elements of 32 bits.
        assert first.memory_stats()["bytes_in_use"] == 256

    run(program)


def test_cpu_stays_the_default_if_nobody_asks_for_the_chip() -> None:
    def program() -> None:
        import sys

        import jax

        assert [device.platform for device in jax.devices()] == ["cpu"]
        assert "sim.pjrt.platform" not in sys.modules
        assert "sim.driver.device" not in sys.modules

    run(program, JAX_PLATFORMS="")


def test_training_agrees_with_the_cpu() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        def loss(weights, x, y):  # type: ignore[no-untyped-def]
            hidden = jnp.tanh(jnp.dot(x, weights["in"], precision="highest") + weights["bias"])
            return jnp.mean((jnp.dot(hidden, weights["out"], precision="highest") - y) ** 2)

        @jax.jit
        def step(weights, x, y):  # type: ignore[no-untyped-def]
            value, gradients = jax.value_and_grad(loss)(weights, x, y)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

        def train(device):  # type: ignore[no-untyped-def]
            keys = jax.random.split(jax.device_put(jax.random.key(3), device), 4)
            weights = {"in": jax.random.normal(keys[0], (6, 5)), "bias": jnp.zeros(5),
                       "out": jax.random.normal(keys[1], (5, 3))}
            x, y = jax.random.normal(keys[2], (7, 6)), jax.random.uniform(keys[3], (7, 3))
            losses = []
            for _ in range(4):
                weights, value = step(weights, x, y)
                losses.append(value)
            assert losses[0].devices() == {device}
            return np.array(losses)

        chip, cpu = jax.devices()[1], jax.devices("cpu")[0]
        with jax.default_device(chip):
            on_chip = train(chip)
        with jax.default_device(cpu):
            on_cpu = train(cpu)
        np.testing.assert_allclose(on_chip, on_cpu, rtol=1e-4)
        assert on_chip[-1] < 0.8 * on_chip[0]

    run(program)


def test_arrays_of_all_types_and_layouts_go_to_the_chip_and_back() -> None:
    def program() -> None:
        import itertools

        import jax
        import ml_dtypes
        import numpy as np

        rng = np.random.default_rng(5)
        count = 0
        for type, shape in itertools.product(
                ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32",
                 ml_dtypes.bfloat16), ((), (0,), (5,), (3, 7), (2, 0, 3), (2, 3, 4, 5))):
            array = rng.integers(0, 2 if type == "bool" else 100, shape).astype(type)
            for given in (array, array.T, array[..., ::-1] if array.ndim else array):
                back = np.asarray(jax.device_put(given))
                assert back.dtype == given.dtype
                np.testing.assert_array_equal(back, given)
                count += 1
        assert count == 9 * 6 * 3

    run(program)
