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
