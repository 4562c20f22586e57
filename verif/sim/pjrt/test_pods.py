"""Programs on a pod: JAX's devices are the cores of all chips."""

import signal

import pytest

from verif.sim.pjrt.process import LIMIT, run, start


def test_devices_are_all_cores_and_transfers_reach_each() -> None:
    def program() -> None:
        import jax
        import numpy as np

        devices = jax.devices()
        assert [(*device.coords, device.core_on_chip) for device in devices] == [
            (x, y, 0, core) for y in range(2) for x in range(3) for core in range(2)]
        assert str(devices[5]) == "SystolithCore(id=5, coords=(2, 0), core_on_chip=1)"
        x = np.arange(64, dtype=np.float32)
        for device in devices:
            array = jax.device_put(x, device)
            for other in devices[::5]:
                moved = jax.device_put(array, other)
                assert moved.devices() == {other}
                np.testing.assert_array_equal(moved, x)
        np.testing.assert_array_equal(moved + 1, x + 1)
        kept = [jax.device_put(x, device) for device in (devices[4], devices[5])]
        jax.block_until_ready(kept)
        # The cores of a chip share its memory.
        uses = [device.memory_stats()["bytes_in_use"] for device in devices]
        assert uses[::2] == uses[1::2]
        assert uses[4] > uses[0]

    run(program, SYSTOLITH_POD="3x2")


def test_shard_map_and_pmap_run_on_all_cores() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        rng, devices = np.random.default_rng(1), jax.devices()
        x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((4, 6), (6, 5)))

        def body(x, w):  # type: ignore[no-untyped-def]
            return jax.lax.psum(x @ w, "model"), jax.lax.axis_index("data")[None]

        for order in (devices, devices[::-1], [devices[n] for n in (2, 0, 3, 1)]):
            mesh = Mesh(np.array(order).reshape(2, 2), ("data", "model"))
            cut = P("data", "model"), P("model")
            given = [jax.device_put(array, NamedSharding(mesh, spec))
                     for array, spec in zip((x, w), cut, strict=True)]
            step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=cut, out_specs=P("data")))
            # Arguments are where the program needs them, or on the host.
            for arrays in ((x, w), given):
                product, numbers = step(*arrays)
                np.testing.assert_array_equal(product, x @ w)
                np.testing.assert_array_equal(numbers, [0, 1])
            result = jax.jit(jnp.matmul)(*given)
            np.testing.assert_array_equal(result, x @ w)
            turned = jax.jit(lambda v: 2 * v, out_shardings=NamedSharding(mesh, P("model")))(result)
            np.testing.assert_array_equal(turned, 2 * (x @ w))
        sums = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(x)
        np.testing.assert_array_equal(sums, np.tile(x.sum(0), (4, 1)))
        both = Mesh(devices[2:], ("x",))
        total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=both, in_specs=P("x"),
                                      out_specs=P()))
        np.testing.assert_array_equal(total(x), x[:2] + x[2:])

    run(program, SYSTOLITH_POD="2x1")


def test_jit_of_sharded_arrays_divides_the_work() -> None:
    def program() -> None:
        import gc

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        from sim.pjrt.platform import Worker

        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
        [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]
        rng = np.random.default_rng(1)
        x, v, w = (rng.integers(-3, 4, shape).astype(np.float32)
                   for shape in ((32, 8), (8, 16), (16, 4)))

        def put(array, *spec):  # type: ignore[no-untyped-def]
            return jax.device_put(array, NamedSharding(mesh, P(*spec)))

        def loss(weights, x):  # type: ignore[no-untyped-def]
            return jnp.sum(jax.nn.relu(x @ weights[0]) @ weights[1])

        @jax.jit
        def step(weights, x):  # type: ignore[no-untyped-def]
            return jax.tree.map(lambda one, other: one - 0.5 * other, weights,
                                jax.grad(loss)(weights, x))

        def cycles():  # type: ignore[no-untyped-def]
            loaded = list(worker.chips._programs.values())[-1]
            return sum(kernel.cycles for kernel in loaded.program.chips[0].cores[0].kernels)

        # Data by model parallel. Small integers: sums are exact in any order.
        wanted = jax.block_until_ready(step([v, w], x))
        alone = cycles()
        found = step([put(v, None, "model"), put(w, "model")], put(x, "data"))
        jax.block_until_ready(found)
        assert cycles() < 0.7 * alone, (cycles(), alone)
        assert [array.sharding.spec for array in found] == [P(None, "model"), P("model")]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        # From any division to any other one.
        specs = [(), ("data",), ("model", "data"), (("data", "model"),), (None, ("data", "model")),
                 (("model", "data"),)]
        for number, spec in enumerate(specs):
            for to in (specs[number - 1], specs[number - 2]):
                turn = jax.jit(lambda v: v + 1, out_shardings=NamedSharding(mesh, P(*to)))
                turned = turn(put(x, *spec))
                assert turned.sharding.spec == P(*to)
                np.testing.assert_array_equal(turned, x + 1)
        # Not divided, but right.
        np.testing.assert_array_equal(jax.jit(lambda v: v[::-1].cumsum(0))(put(x, "data")),
                                      x[::-1].cumsum(0))

    run(program, SYSTOLITH_POD="2x1")


def test_errors_name_the_chip_and_leave_the_pod_usable() -> None:
    def program() -> None:
        import gc

        import jax
        import numpy as np
        import pytest
        from jax.sharding import Mesh
        from jax.sharding import PartitionSpec as P

        from hdl.isa import BUNDLE_BITS
        from sim.driver.pod import Pod
        from sim.pjrt.platform import Worker

        devices, x = jax.devices(), np.ones((4, 3), np.float32)
        mesh = Mesh(devices, ("x",))
        step = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"),
                                     out_specs=P()))
        np.testing.assert_array_equal(step(x), x[:1] * 4)
        # 1 MiB of HBM: it is full on one chip only.
        big = np.ones((64, 1024), np.float32)
        kept = [jax.device_put(big, devices[2]) for _ in range(3)]
        with pytest.raises(jax.errors.JaxRuntimeError,
                           match=r"RESOURCE_EXHAUSTED: chip \(1, 0\): .* bytes of HBM"):
            jax.device_put(big, devices[3]).block_until_ready()
        jax.device_put(big, devices[0]).block_until_ready()
        del kept
        np.testing.assert_array_equal(step(x), x[:1] * 4)
        [worker] = [item for item in gc.get_objects() if isinstance(item, Worker)]
        assert isinstance(worker._machine, Pod)
        backend = worker._machine[1, 0]._backend
        assert backend is not None
        backend.load({1: [(1 << BUNDLE_BITS) - 1]}, 4)
        with pytest.raises(jax.errors.JaxRuntimeError,
                           match=r"INTERNAL: .*: chip \(1, 0\), core 1, stopped with fault"):
            step(x).block_until_ready()
        np.testing.assert_array_equal(step(x), x[:1] * 4)
        with pytest.raises(jax.errors.JaxRuntimeError, match=(
                "INVALID_ARGUMENT: devices of a mesh must be the cores of one chip, or all 4 "
                r"cores of the pod, not \[1, 2\]")):
            jax.pmap(lambda v: v, devices=devices[1:3])(x[:2])

    run(program, SYSTOLITH_POD="2x1")


def test_interrupts_end_a_wait() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh
        from jax.sharding import PartitionSpec as P

        x, mesh = np.ones(4, np.float32), Mesh(jax.devices(), ("x",))
        long, short = (jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
                       for body in (lambda v: jax.lax.fori_loop(0, 200, lambda i, v: jnp.sin(v), v),
                                    lambda v: v + 1))
        short(x).block_until_ready()
        value = long(x)
        try:
            print("runs", flush=True)
            value.block_until_ready()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        np.testing.assert_array_equal(short(x), x + 1)

    process = start(program, SYSTOLITH_POD="2x1")
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    assert output == "interrupted\n"


@pytest.mark.parametrize(("settings", "message"), [
    ({"SYSTOLITH_POD": "4"}, "SYSTOLITH_POD must be like 2x2, not '4'"),
    ({"SYSTOLITH_POD": "2x2", "SYSTOLITH_CONFIG": "fpga"},
     "2 cores if SYSTOLITH_POD is set, not fpga"),
    ({"SYSTOLITH_POD": "0x2"}, "side of the torus must be"),
    ({"SYSTOLITH_POD": "2x1", "SYSTOLITH_TRACE": "x"}, "SYSTOLITH_TRACE must not be set")])
def test_wrong_settings_are_named(settings: dict[str, str], message: str) -> None:
    def program() -> None:
        import jax

        try:
            jax.devices()
        except RuntimeError as error:
            print(error)

    assert message in run(program, **settings)
