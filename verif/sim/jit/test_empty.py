"""Programs with arrays without elements give JAX's results."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import systolith  # noqa: E402
from systolith import Device  # noqa: E402


def _array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype)


def _convolved(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def _padded(x: Any) -> Any:
    return jnp.pad(x, ((1, 1), (0, 2)), constant_values=7)


def _sums(x: Any) -> Any:
    return x.sum(), x.sum(0), x.sum(1), jnp.max(x, initial=-3), x.mean()


def _window(x: Any) -> Any:
    return lax.reduce_window(x, -1.0, lax.max, (2, 2), (1, 1), ((1, 1), (0, 0)))


def _joined(x: Any) -> Any:
    return jnp.concatenate([x, jnp.ones((1, 3)), x])


def _updated(x: Any, update: Any, start: Any) -> Any:
    return lax.dynamic_update_slice(x, update, (start, 0))


def _branched(choice: Any, x: Any, y: Any) -> Any:
    return lax.cond(choice, lambda x, y: (x, y * 2 + x.sum()), lambda x, y: (x * 2, y), x, y)


def _looped(x: Any) -> Any:
    return lax.scan(lambda total, row: (total + row.sum(), row * total), 2.0, x)


def _gathered(x: Any, i: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,),
                                         start_index_map=())
    return lax.gather(x, i, numbers, slice_sizes=(1, x.shape[1]))


def _scattered(x: Any, i: Any, update: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,),
                                          scatter_dims_to_operand_dims=())
    return lax.scatter_add(x, i, update, numbers)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sums": (_sums, (_array(0, 3),)),
    "sum of two": (lambda x: lax.reduce((x, x), (1.0, 2.0), lambda a, b: (a[0] + b[0], a[1] + b[1]),
                                        (0,)), (_array(0, 3),)),
    "predicates": (lambda x: (x.all(), x.any(1)), (_array(2, 0, dtype=bool),)),
    "product": (jnp.matmul, (_array(4, 0), _array(0, 3))),
    "product of integers": (jnp.matmul, (_array(4, 0, dtype=np.int32),
                                         _array(0, 3, dtype=np.int32))),
    "product without rows": (jnp.matmul, (_array(0, 4), _array(4, 3))),
    "convolution without images": (_convolved, (_array(0, 2, 4, 4), _array(3, 2, 3, 3))),
    "convolution without channels": (_convolved, (_array(1, 0, 4, 4), _array(3, 0, 3, 3))),
    "pad": (_padded, (_array(0, 3),)),
    "window": (_window, (_array(0, 3),)),
    "concatenate": (_joined, (_array(0, 3),)),
    "update": (_updated, (_array(2, 2), _array(0, 2), np.int32(1))),
    "scatter": (lambda x, i, u: x.at[i].add(u), (_array(3, 2), _array(0, dtype=np.int32),
                                                 _array(0, 2))),
    "gather": (lambda x, i: x[i], (_array(3, 2), _array(0, dtype=np.int32))),
    "gather without coordinates": (_gathered, (_array(5, 4), _array(3, 0, dtype=np.int32))),
    "gather from a scalar": (lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((), (), ()),
                                                     ()),
                             (_array(), _array(3, 0, dtype=np.int32))),
    "scatter without coordinates": (_scattered, (_array(5, 4), _array(3, 0, dtype=np.int32),
                                                 _array(3, 4))),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x)), (_array(0),)),
    "conditional": (_branched, (np.bool_(True), _array(0, 2), _array(2))),
    "loop": (_looped, (_array(4, 0),)),
    "loop without iterations": (_looped, (_array(0, 4),)),
}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device.open("tiny", "golden") as opened:
        yield opened


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_without_elements(name: str, device: Device) -> None:
    function, arguments = PROGRAMS[name]
    expected = jax.jit(function)(*arguments)
    found = systolith.jit(function)(*arguments, device=device)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
