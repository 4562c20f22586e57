"""Programs on both cores: a device is a core."""

from verif.sim.pjrt.process import run


def test_shard_map_and_pmap_run_on_both_cores() -> None:
    def program() -> None:
        import jax
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        cut, whole = PartitionSpec("x"), PartitionSpec()
        x = np.arange(8, dtype=np.float32).reshape(4, 2)

        def body(v):  # type: ignore[no-untyped-def]
            return jax.lax.psum(v.sum(), "x"), 2 * v, jax.lax.axis_index("x")[None]

        for devices in (jax.devices(), jax.devices()[::-1]):
            mesh = jax.sharding.Mesh(devices, ("x",))
            step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=cut,
                                         out_specs=(whole, cut, cut)))
            # The argument is cut already, or both have it, or the first device, or the host.
            for given in (*(jax.device_put(x, NamedSharding(mesh, spec)) for spec in (cut, whole)),
                          jax.numpy.asarray(x), x):
                total, twice, numbers = step(given)
                assert float(total) == 28
                np.testing.assert_array_equal(twice, 2 * x)
                np.testing.assert_array_equal(numbers, [0, 1])
                assert [shard.device for shard in twice.addressable_shards] == devices
        sums = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(x.reshape(2, 4))
        np.testing.assert_array_equal(sums, [[4, 6, 8, 10]] * 2)

    run(program)


def test_jit_of_sharded_arrays_divides_the_work() -> None:
    def program() -> None:
        import gc

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec

        from sim.pjrt.platform import Worker

        mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
        rows, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("x",), ()))
        rng = np.random.default_rng(3)
        x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((32, 16), (16, 8)))
        given, weights = jax.device_put(x, rows), jax.device_put(w, whole)
        [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]

        def cycles(step, *arrays):  # type: ignore[no-untyped-def]
            result = step(*arrays)
            jax.block_until_ready(result)
            loaded = list(worker.chips._programs.values())[-1]
            [code, *_] = loaded.program.chips[0].cores
            return result, sum(kernel.cycles for kernel in code.kernels)

        product = jax.jit(jnp.matmul)
        one, alone = cycles(product, x, w)
        both, shared = cycles(product, given, weights)
        np.testing.assert_array_equal(both, x @ w)
        np.testing.assert_array_equal(one, x @ w)
        # Nobody says how the result is cut: it is as its rows are.
        assert both.sharding.spec == PartitionSpec("x")
        assert shared < 0.75 * alone, (alone, shared)

        def loss(w, x):  # type: ignore[no-untyped-def]
            return jnp.sum(jax.nn.relu(x @ w))

        # The gradients of both halves are added.
        step = jax.jit(lambda w, x: w - 0.5 * jax.grad(loss)(w, x), donate_argnums=0)
        expected = step(jnp.asarray(w), x)
        np.testing.assert_array_equal(step(weights, given), expected)

    run(program)


def test_meshes_with_devices_in_both_orders() -> None:
    def program() -> None:
        import jax
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        x = np.arange(16, dtype=np.float32).reshape(8, 2)
        meshes = [jax.sharding.Mesh(devices, ("x",))
                  for devices in (jax.devices(), jax.devices()[::-1])]
        forward, backward = (NamedSharding(mesh, PartitionSpec("x")) for mesh in meshes)
        given = jax.device_put(x, backward)
        moved = jax.device_put(given, forward)
        np.testing.assert_array_equal(moved + jax.device_put(x, forward), 2 * x)
        turned = jax.jit(lambda v: 3 * v, out_shardings=backward)(given)
        np.testing.assert_array_equal(turned, 3 * x)
        np.testing.assert_array_equal(jax.device_put(turned, forward) - moved, 2 * x)

    run(program)


def test_jit_of_sharded_arrays_is_right_whatever_the_operations() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec

        mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
        rows, columns = PartitionSpec("x"), PartitionSpec(None, "x")
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        given = jax.device_put(x, NamedSharding(mesh, rows))

        def many(v):  # type: ignore[no-untyped-def]
            return v.T @ v, v[::-1], jnp.cumsum(v, 0), jnp.argmax(v, 0), v[1:3]

        for result, expected in zip(jax.jit(many)(given), many(x), strict=True):
            np.testing.assert_array_equal(result, expected)
        turned = jax.jit(lambda v: v, out_shardings=NamedSharding(mesh, columns))(given)
        assert turned.sharding.spec == columns
        assert [shard.data.shape for shard in turned.addressable_shards] == [(4, 1), (4, 1)]
        np.testing.assert_array_equal(turned, x)
        np.testing.assert_array_equal(jax.device_put(turned, NamedSharding(mesh, rows)), x)

    run(program)


def test_data_parallel_training_has_the_bits_of_one_core() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = jax.make_mesh((2,), ("x",))
        rng = np.random.default_rng(2)
        # Small integers: sums are exact in any order.
        x = rng.integers(-3, 4, (8, 6)).astype(np.float32)
        w = rng.integers(-3, 4, (6, 4)).astype(np.float32)

        def loss(w, x):  # type: ignore[no-untyped-def]
            return jnp.sum(jax.nn.relu(x @ w))

        def part(w, x):  # type: ignore[no-untyped-def]
            return w - 0.5 * jax.lax.psum(jax.grad(loss)(w, x), "x")

        both = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=(PartitionSpec(),
                                                                PartitionSpec("x")),
                                     out_specs=PartitionSpec(), check_vma=False))
        cut = jax.device_put(x, NamedSharding(mesh, PartitionSpec("x")))
        copied = jax.device_put(w, NamedSharding(mesh, PartitionSpec()))
        one = jax.jit(lambda w, x: w - 0.5 * jax.grad(loss)(w, x))(w, x)
        assert len(one.devices()) == 1
        np.testing.assert_array_equal(both(copied, cut), one)

    run(program)
