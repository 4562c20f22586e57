"""Functions with `jax.shard_map` over two devices, on both cores of a chip."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import systolith
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import Sharding
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.driver import compile_graph
from systolith import Device, HbmOptions, UnsupportedError

BACKENDS = ["golden", "rtl"]
Function = Callable[..., Any]


def on_two(function: Function, inputs: Any, outputs: Any, devices: int = 2) -> Function:
    return jax.shard_map(function, mesh=AbstractMesh((devices,), ("x",)), in_specs=inputs,
                         out_specs=outputs, check_vma=False)


def lower(function: Function, *arrays: Any) -> Any:
    stage = jax.jit(function, keep_unused=True).trace(*arrays)
    return stage.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")


def numbers(dtype: Any, *shape: int) -> Any:
    return np.random.default_rng(4).integers(-9, 10, shape).astype(dtype)


def halves(array: Any, axis: int = 0) -> list[Any]:
    return np.split(array, 2, axis)


def run(function: Function, backend: str, *arrays: Any) -> Any:
    with Device.open("tiny", backend) as device:
        outputs = systolith.jit(function)(*arrays, device=device)
        assert set(device.last_run) == {0, 1}
        return outputs


def psum(x: Any) -> Any:
    return jax.lax.psum(x, "x")


def pmax(x: Any) -> Any:
    return jax.lax.pmax(x, "x")


def gather(x: Any) -> Any:
    return jax.lax.all_gather(x, "x", axis=1, tiled=True)


def scatter(x: Any) -> Any:
    return jax.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)


def exchange(x: Any) -> Any:
    return jax.lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)


def forward(x: Any) -> Any:
    return jax.lax.ppermute(x, "x", [(0, 1)])


def around(x: Any) -> Any:
    return jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])


def number(x: Any) -> Any:
    return x + jax.lax.axis_index("x").astype(x.dtype)


def both(results: list[Any]) -> Any:
    return np.concatenate(results)


# What each collective makes of the two halves of its operand, without the compiler.
COLLECTIVES: dict[Function, Callable[[Any, Any], Any]] = {
    psum: lambda a, b: both([a + b, a + b]),
    pmax: lambda a, b: both([np.maximum(a, b)] * 2),
    gather: lambda a, b: both([np.concatenate([a, b], 1)] * 2),
    scatter: lambda a, b: both(halves(a + b, 1)),
    exchange: lambda a, b: both([both(list(pair)) for pair in zip(
        halves(a, 1), halves(b, 1), strict=True)]),
    forward: lambda a, b: both([np.zeros_like(a), a]),
    around: lambda a, b: both([b, a]),
    number: lambda a, b: both([a, b + np.ones((), b.dtype)]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", COLLECTIVES)
@pytest.mark.parametrize(("dtype", "shape"), [
    (np.float32, (2, 2)), (np.int32, (6, 10)), (ml_dtypes.bfloat16, (10, 4, 3)),
    (np.uint32, (4, 6))])
def test_collectives(function: Function, backend: str, dtype: Any, shape: tuple[int, ...]) -> None:
    array = numbers(dtype, *shape)
    found = run(on_two(function, P("x"), P("x")), backend, array)
    wanted = COLLECTIVES[function](*halves(array))
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)
    [again] = interpret(import_stablehlo(lower(on_two(function, P("x"), P("x")), array)), [array])
    assert np.array_equal(again, wanted)


def chain(x: Any) -> Any:
    """Collectives whose order and rounding shows, in a loop and after it."""
    def body(carried: Any, _: Any) -> Any:
        total = psum(carried * 0.37) + forward(carried)
        return jnp.tanh(total) + number(carried * 0.1), scatter(total).sum()

    last, sums = jax.lax.scan(body, x, None, length=3)
    return exchange(last), sums + psum(last[0, 0])


@pytest.mark.parametrize("memory", [
    HbmOptions(latency=1), HbmOptions(latency=17, stalls=20_000, seed=5),
    HbmOptions(latency=3, beats=1, cycles=3, outstanding=1, stalls=45_000, seed=6)])
def test_bits_do_not_depend_on_timing(memory: HbmOptions) -> None:
    x = np.random.default_rng(6).normal(size=(6, 6)).astype(np.float32)
    function = on_two(chain, P("x"), (P("x"), P("x")))
    golden = run(function, "golden", x)
    with Device.open("tiny", memory=memory) as device:
        found = systolith.jit(function)(x, device=device)
    for one, other in zip(found, golden, strict=True):
        assert np.array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("devices", [4, 8])
def test_larger_meshes_are_refused(devices: int) -> None:
    function = on_two(psum, P("x"), P("x"), devices)
    with pytest.raises(UnsupportedError, match=f"a mesh of {devices} devices: use a mesh of one "
                       "or two devices"):
        import_stablehlo(lower(function, numbers(np.float32, 8, 2)))


def test_a_mesh_of_one_device_runs_on_core_0() -> None:
    def all_of_them(x: Any) -> Any:
        return scatter(exchange(gather(psum(around_itself(number(x))))))

    def around_itself(x: Any) -> Any:
        return jax.lax.ppermute(x, "x", [(0, 0)]) + jax.lax.ppermute(x, "x", [])

    array = numbers(np.float32, 3, 5)
    graph = import_stablehlo(lower(on_two(all_of_them, P("x"), P("x"), 1), array))
    assert graph.sharding is None
    with Device.open("tiny", "golden") as device:
        [found] = device.execute(compile_graph(graph, device.config), array)
        assert set(device.last_run) == {0}
    assert np.array_equal(found, array)


def test_what_is_outside_of_shard_map_is_computed_on_both_cores() -> None:
    mapped = on_two(lambda x, y: (x + gather(y)[:, :3], psum(y)), (P("x"), P(None, "x")),
                    (P("x"), P()))

    def function(x: Any, y: Any) -> Any:
        first, second = mapped(x * 2, y)
        return first.sum(0), first[::-1], second, y

    x, y = numbers(np.float32, 4, 3), numbers(np.float32, 2, 6)
    found = run(function, "golden", x, y)
    first = 2 * x + np.concatenate([y[:, :3], y[:, :3]])
    wanted = first.sum(0), first[::-1], y[:, :3] + y[:, 3:], y
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_host_cuts_inputs_and_puts_outputs_together() -> None:
    graph = import_stablehlo(lower(on_two(lambda x, y: (x + y, psum(x)), (P("x"), P()),
                                          (P("x"), P())),
                                   numbers(np.float32, 4, 3), numbers(np.float32, 2, 3)))
    assert graph.sharding == Sharding((0, None), (0, None))
    assert sum(operation.kind == "exchange" for operation in graph.operations) == 1


PER_DEVICE = """
module attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = {} : i32}} {{
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<{}> : tensor<{}xi64>{}}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %1 = stablehlo.subtract %x, %y : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }}) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}"""
CHANNEL = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
GLOBAL = f"{CHANNEL}, use_global_device_ids"


@pytest.mark.parametrize(("partitions", "replicas", "groups", "size", "rest", "wanted"), [
    (1, 2, "[[0, 1]]", "1x2", "", [-4, -4]), (1, 2, "[[1, 0]]", "1x2", "", [4, 4]),
    (1, 2, "[[0], [1]]", "2x1", "", [1, 5]), (2, 1, "0", "1x1", "", [1, 5]),
    (2, 1, "0", "1x1", CHANNEL, [-4, -4]), (2, 1, "[[0, 1]]", "1x2", GLOBAL, [-4, -4]),
    (2, 1, "[[1, 0]]", "1x2", GLOBAL, [4, 4]), (2, 1, "[[0], [1]]", "2x1", GLOBAL, [1, 5])])
def test_programs_of_devices_with_groups_of_all_kinds(
        partitions: int, replicas: int, groups: str, size: str, rest: str,
        wanted: list[int]) -> None:
    """The groups' order counts: the function is not commutative."""
    graph = import_stablehlo(PER_DEVICE.format(partitions, replicas, groups, size, rest))
    array = np.array([[1] * 4, [5] * 4], np.float32)
    with Device.open("tiny", "golden") as device:
        [found] = device.execute(compile_graph(graph, device.config), array)
    assert found[:, 0].tolist() == wanted


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="all_reduce in groups"):
        import_stablehlo(PER_DEVICE.format(1, 2, "[[0, 2], [1, 3]]", "2x2", ""))


def layers(parameters: Any, x: Any) -> Any:
    for weights, bias in parameters:
        x = jnp.tanh(x @ weights + bias)
    return x


def loss(parameters: Any, x: Any, y: Any) -> Any:
    return jnp.mean((layers(parameters, x) - y) ** 2)


def update(parameters: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, gradients)


def step(parameters: Any, x: Any, y: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(parameters, x, y)
    return value, update(parameters, gradients)


def parallel_step(parameters: Any, x: Any, y: Any) -> Any:
    both = jax.value_and_grad(loss)(parameters, x, y)
    value, gradients = jax.tree.map(lambda part: jax.lax.psum(part, "x") / 2, both)
    return value, update(parameters, gradients)


@pytest.mark.slow
def test_data_parallel_step_at_v2() -> None:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    parameters = [(normal(128, 128) / 12, normal(128)) for _ in range(2)]
    x, y = normal(64, 128), normal(64, 128)
    parallel = on_two(parallel_step, (P(), P("x"), P("x")), P())
    results = {}
    for backend in BACKENDS:
        with Device.open("v2", backend) as device:
            results[backend] = jax.tree.leaves(
                systolith.jit(parallel)(parameters, x, y, device=device))
            assert set(device.last_run) == {0, 1}
    with Device.open("v2", "golden") as device:
        whole = jax.tree.leaves(systolith.jit(step)(parameters, x, y, device=device))
    for golden, rtl, one in zip(*results.values(), whole, strict=True):
        assert np.array_equal(golden.view(np.uint32), rtl.view(np.uint32))
        # The halves of the batch are added in another order.
        assert np.abs(rtl - one).max() <= 1e-5 * np.abs(one).max()
