"""Global programs with shardings give JAX's results, or are refused."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import systolith
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import Graph, Sharding
from sim.compiler.importer.importer import import_stablehlo
from systolith import Device, UnsupportedError

Function = Callable[..., Any]
MESH = AbstractMesh((1, 2), ("one", "x"))


def over(*axes: str | None) -> NamedSharding:
    return NamedSharding(MESH, P(*axes))


WHOLE, ROWS, COLUMNS = over(), over("x"), over(None, "x")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(list(shape)).normal(size=shape).astype(np.float32)


def positions(limit: int, *shape: int) -> Any:
    return np.random.default_rng(limit).integers(0, limit, shape).astype(np.int32)


def imported(function: Function, shardings: Any, *arguments: Any, outputs: Any = None) -> Graph:
    options = {} if outputs is None else {"out_shardings": outputs}
    stage = jax.jit(function, in_shardings=shardings, keep_unused=True, **options)
    lowered = stage.trace(*arguments).lower(lowering_platforms=("tpu",))
    return import_stablehlo(lowered.compiler_ir("stablehlo"))


def compare(found: Any, wanted: Any, rtol: float = 2e-5) -> None:
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    for one, other in zip(found, map(np.asarray, wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        size = np.abs(other.astype(np.float64)).max(initial=1e-30)
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=rtol, atol=rtol * size)


def check(function: Function, shardings: Any, *arguments: Any, outputs: Any = None,
          rtol: float = 2e-5) -> Graph:
    """Interpret a program on two devices; returns its graph."""
    graph = imported(function, shardings, *arguments, outputs=outputs)
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    compare(interpret(graph, arrays), jax.jit(function)(*arguments), rtol)
    return graph


def exchanges(graph: Graph) -> int:
    return sum(operation.kind == "exchange" for operation in graph.walk())


# ---- networks

def forward(w: Any, x: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ w[0]) @ w[1])


def loss(w: Any, x: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(jnp.log(forward(w, x)), labels[:, None], 1)
    return -jnp.mean(chosen)


def step(w: Any, x: Any, labels: Any) -> Any:
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, jax.grad(loss)(w, x, labels))


def adam(state: Any, x: Any, labels: Any) -> Any:
    w, m, v, count = state
    gradient, count = jax.grad(loss)(w, x, labels), count + 1
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, gradient)
    v = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, v, gradient)
    w = jax.tree.map(lambda w, m, v: w - 0.01 * (m / (1 - 0.9 ** count)) / (
        jnp.sqrt(v / (1 - 0.99 ** count)) + 1e-8), w, m, v)
    return w, m, v, count


WEIGHTS = (numbers(6, 8), numbers(8, 4))
BATCH = (numbers(10, 6), positions(4, 10))
ADAM = (WEIGHTS, jax.tree.map(np.zeros_like, WEIGHTS), jax.tree.map(np.zeros_like, WEIGHTS),
        np.float32(0))
TENSOR = (COLUMNS, ROWS)
"""Shardings of two layers' weights that divide the hidden units."""


def test_batch_sharded_network() -> None:
    graph = check(forward, (WHOLE, ROWS), WEIGHTS, BATCH[0])
    assert graph.sharding == Sharding((None, None, 0), (0,))
    assert not exchanges(graph)


def test_tensor_sharded_network() -> None:
    graph = check(forward, (TENSOR, WHOLE), WEIGHTS, BATCH[0])
    assert graph.sharding == Sharding((1, 0, None), (None,))
    # The sum over the hidden units, each half on one device.
    assert exchanges(graph) == 1


@pytest.mark.parametrize(("shardings", "cuts"), [
    ((WHOLE, ROWS, ROWS), (None, None)), ((TENSOR, WHOLE, WHOLE), (1, 0))])
def test_training_step(shardings: Any, cuts: tuple[int | None, ...]) -> None:
    graph = check(step, shardings, WEIGHTS, *BATCH)
    assert graph.sharding is not None
    assert graph.sharding.outputs == cuts
    assert exchanges(graph)


@pytest.mark.parametrize(("state", "data"), [(WHOLE, ROWS), ((TENSOR, TENSOR, TENSOR, WHOLE),
                                                            WHOLE)])
def test_adam_step(state: Any, data: Any) -> None:
    check(adam, (state, data, data), ADAM, *BATCH, rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_over_a_sharded_axis(axis: int) -> None:
    graph = check(lambda x: jax.nn.softmax(x * 50, axis), (over(*[None] * axis, "x"),),
                  numbers(6, 8))
    # The maximum and the sum.
    assert exchanges(graph) == 2


def test_batch_norm() -> None:
    def normalised(x: Any, scale: Any, offset: Any) -> Any:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset

    graph = check(normalised, (ROWS, WHOLE, WHOLE), numbers(4, 3, 3, 5), numbers(5), numbers(5))
    assert graph.sharding == Sharding((0, None, None), (0,))


def convolved(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME",
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"))


def classified(kernel: Any, x: Any) -> Any:
    y = jnp.maximum(convolved(x, kernel), 0)
    pooled = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.sum(pooled ** 2)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k)) @ v


def scanned(x: Any, rows: Any) -> Any:
    return lax.scan(lambda total, row: (total * row, total + row), x, rows)


def looped(x: Any) -> Any:
    return lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x * 2, x)


def branched(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda x: x * 2, lambda x: x - x.mean(), x)


def constrained(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, ROWS).sum()


def dropped(key: Any, x: Any) -> Any:
    return x * jax.random.bernoulli(key, 0.5, x.shape)


def reduced(x: Any) -> Any:
    return (x.std(0), x.max(0), x.min(), jnp.any(x > 1, 0), x.prod(0),
            lax.reduce(x, np.float32(0.3), lax.max, (0,)), jnp.argmax(x, 1))


def table_gradient(table: Any, rows: Any) -> Any:
    return jax.grad(lambda table: (table[rows] ** 2).sum())(table)


IMAGES, KERNEL, HEADS = numbers(4, 6, 6, 2), numbers(3, 3, 2, 4), (numbers(2, 4, 6, 3),) * 3
PROGRAMS: dict[str, tuple[Function, Any, tuple[Any, ...]]] = {
    "convolution of a batch": (convolved, (ROWS, WHOLE), (IMAGES, KERNEL)),
    "convolution to channels": (convolved, (WHOLE, over(None, None, None, "x")), (IMAGES, KERNEL)),
    "convolution of channels": (convolved, (over(None, None, None, "x"), over(None, None, "x")),
                                (IMAGES, KERNEL)),
    "gradients of a convolution": (jax.grad(classified, (0, 1)), (WHOLE, ROWS), (KERNEL, IMAGES)),
    "attention by heads": (attention, (COLUMNS,) * 3, HEADS),
    "attention by positions": (attention, (over(None, None, "x"),) * 3, HEADS),
    "scan": (scanned, (ROWS, WHOLE), (numbers(8), numbers(3, 8))),
    "loop": (looped, (ROWS,), (abs(numbers(8)),)),
    "conditional": (branched, (ROWS,), (numbers(8),)),
    "constraint": (constrained, None, (numbers(8, 6),)),
    "dropout": (dropped, (None, ROWS), (np.array([1, 2], np.uint32), numbers(8, 4))),
    "reductions": (reduced, (ROWS,), (numbers(8, 4),)),
    "positions": (lambda x: x + jnp.arange(8.0) * np.array([3, 1] * 4, np.float32), (ROWS,),
                  (numbers(8),)),
    "rows of a table": (lambda table, rows: table[rows], (WHOLE, ROWS),
                        (numbers(8, 4), positions(8, 6))),
    "columns of a table": (lambda table, rows: table[rows], (COLUMNS, WHOLE),
                           (numbers(8, 4), positions(8, 5))),
    "gradient of a table": (table_gradient, (WHOLE, ROWS), (numbers(8, 4), positions(8, 6))),
    "other dimension of a table": (lambda t, i, u: t.at[i].add(u), (COLUMNS, WHOLE, COLUMNS),
                                   (numbers(8, 4), positions(8, 5), numbers(5, 4))),
    "joined": (lambda x, y: (jnp.concatenate([x, y]), jnp.concatenate([x, y], 1)), (ROWS, ROWS),
               (numbers(4, 2), numbers(4, 2))),
    "sorted": (lambda x: (jnp.sort(x, 1), jnp.sort(x, 0), lax.top_k(x, 2)), (ROWS,),
               (numbers(4, 6),)),
    "other slices": (lambda x: (x[:, 1:5:2], x[:, ::-1], jnp.pad(x, ((0, 0), (2, 1))), x.T,
                                lax.dynamic_slice(x, (0, 3), (4, 2))), (ROWS,), (numbers(4, 6),)),
    "reshaped": (lambda x: (x.reshape(8, 6).sum(1), x.reshape(48) * 2), (ROWS,),
                 (numbers(4, 2, 6),)),
    "reshaped minor": (lambda x: x.reshape(48) * 2, (COLUMNS,), (numbers(4, 2, 6),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, shardings, arguments = PROGRAMS[name]
    assert check(function, shardings, *arguments).sharding is not None


def test_results_of_other_shardings() -> None:
    graph = check(lambda x: (x.T + 1, x * 2, x - 1), (ROWS,), numbers(4, 8),
                  outputs=(ROWS, WHOLE, COLUMNS))
    assert graph.sharding == Sharding((0,), (0, None, 1))


def test_nothing_sharded_is_a_program_of_one_device() -> None:
    assert check(lambda x: x + 1, (WHOLE,), numbers(4, 8)).sharding is None
    other = NamedSharding(AbstractMesh((1,), ("x",)), P("x"))
    assert check(lambda x: x + 1, (other,), numbers(4, 8)).sharding is None


# ---- what is refused

REFUSED: dict[str, tuple[Function, Any, tuple[Any, ...]]] = {
    "convolution": (convolved, (COLUMNS, WHOLE), (IMAGES, KERNEL)),
    "reverse": (lambda x: x[::-1], (ROWS,), (numbers(8),)),
    "reduce": (jnp.argmax, (ROWS,), (numbers(8),)),
    "gather": (lambda table, rows: table[rows], (ROWS, WHOLE), (numbers(8, 4), positions(8, 4))),
    "slice": (lambda x: x[2:6] * 2, (ROWS,), (numbers(8),)),
    "reduce_window": (lambda x: jnp.cumsum(x, 0), (ROWS,), (numbers(8, 2),)),
    "while": (lambda x: lax.fori_loop(0, 4, lambda i, y: y + x[i], x[0]), (ROWS,),
              (numbers(4, 2),)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_depends_on_positions_is_refused(kind: str) -> None:
    function, shardings, arguments = REFUSED[kind]
    with pytest.raises(UnsupportedError) as caught:
        imported(function, shardings, *arguments)
    first, *_ = caught.value.found
    assert kind in {"while", first.what.split()[0]}
    assert first.what.endswith("along a sharded dimension")
    assert __file__ in first.where
    assert "jax.shard_map" in first.advice


def test_sum_that_begins_with_another_number_is_refused() -> None:
    def function(x: Any) -> Any:
        return lax.reduce(x, np.float32(3), lax.add, (0,))

    with pytest.raises(UnsupportedError, match="reduce along a sharded dimension"):
        imported(function, (ROWS,), numbers(8))
    check(function, (COLUMNS,), numbers(3, 8))


def test_all_refusals_are_listed() -> None:
    with pytest.raises(UnsupportedError) as caught:
        imported(lambda x: (x[::-1] * 2, jnp.cumsum(x)), (ROWS,), numbers(8))
    assert {item.what.split()[0] for item in caught.value.found} == {"reverse", "reduce_window"}


def test_sizes_that_do_not_divide_are_refused() -> None:
    text = str(jax.jit(lambda x: x + 1, in_shardings=(ROWS,)).trace(numbers(8)).lower(
        lowering_platforms=("cpu",)).compiler_ir("stablehlo")).replace("8xf32", "7xf32")
    with pytest.raises(UnsupportedError, match=r"argument 0 of shape \(7,\), divided into 2 "):
        import_stablehlo(text)


def test_more_devices_are_refused() -> None:
    four = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    with pytest.raises(UnsupportedError, match="a sharding over a mesh of 4 devices: use a mesh"):
        imported(lambda x: x + 1, (four,), numbers(8))


# ---- on both cores

@pytest.mark.parametrize("backend", ["golden", "rtl"])
def test_both_cores(backend: str) -> None:
    arguments = (WEIGHTS, *BATCH)
    trained = systolith.jit(step, in_shardings=(WHOLE, ROWS, ROWS))
    divided = systolith.jit(step, in_shardings=(TENSOR, WHOLE, WHOLE),
                            out_shardings=WHOLE)
    wanted = jax.jit(step)(*arguments)
    with Device.open("tiny", backend) as device:
        for function in (trained, divided):
            compare(function(*arguments, device=device), wanted, 0.02)
            assert set(device.last_run) == {0, 1}


ARRAYS = """
import jax, numpy as np, systolith
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
x = np.arange(32, dtype=np.float32).reshape(8, 4)
function = systolith.jit(lambda x: x.sum(0))
with systolith.Device.open("tiny", "golden") as device:
    for given, cores in ((x, 1), (jax.device_put(x, NamedSharding(mesh, P("x"))), 2)):
        assert (function(given, device=device) == x.sum(0)).all()
        assert len(device.last_run) == cores, device.last_run
print("done")
"""


def test_arrays_of_jax_keep_their_shardings() -> None:
    # JAX makes its devices once in a process.
    found = subprocess.run([sys.executable, "-c", ARRAYS], capture_output=True, text=True,
                           timeout=300, check=False)
    assert found.stdout == "done\n", found.stderr
