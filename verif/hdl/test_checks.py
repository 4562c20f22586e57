"""The shared argument checks: values that pass, and messages for those that do not."""

import numpy as np
import pytest

from hdl.checks import instance, integer, vectors
from hdl.config import Config


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_python_and_numpy_pass(value: object) -> None:
    result = integer("count", value, 1, 3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [3.0, "3", None, True, np.True_, np.float32(3), np.array(3)])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="count must be an integer, not "):
        integer("count", value)


def test_bounds_are_inclusive() -> None:
    assert [integer("count", value, -1, 1) for value in (-1, 0, 1)] == [-1, 0, 1]
    with pytest.raises(ValueError, match="count must be from -1 to 1, not -2"):
        integer("count", -2, -1, 1)
    with pytest.raises(ValueError, match="count must be from -1 to 1, not 2"):
        integer("count", 2, -1, 1)
    assert integer("count", 1 << 80, 0) == 1 << 80
    with pytest.raises(ValueError, match="count must be at least 0, not -1"):
        integer("count", -1, 0)
    assert integer("count", -5) == -5


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_vectors_keep_their_bits(dtype: type[np.generic]) -> None:
    words = np.arange(3 * 4 * 2, dtype=np.uint32).reshape(3, 4, 2) + 0x3F800000
    given = words.view(dtype).transpose(0, 2, 1)
    result = vectors("data", given, (2, 4))
    assert result.dtype == np.uint32
    assert result.flags.c_contiguous
    assert np.array_equal(result, words.transpose(0, 2, 1))


def test_other_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="data must be an array of float32 or uint32, not float64"):
        vectors("data", np.zeros((1, 2, 4)), (2, 4))
    with pytest.raises(TypeError, match=r"data must be an array .* not \[\]"):
        vectors("data", [], (2, 4))
    for shape in ((2, 4), (1, 4, 2), (1, 1, 2, 4)):
        with pytest.raises(ValueError, match=r"data must have shape \(count, 2, 4\), not "):
            vectors("data", np.zeros(shape, np.uint32), (2, 4))


@pytest.mark.parametrize(("kind", "message"), [
    (Config, "chip must be a Config, not 'v2'"),
    (Exception, "chip must be an Exception, not 'v2'"),
])
def test_instance_names_the_argument_the_class_and_the_value(kind: type, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        instance("chip", "v2", kind)


def test_instance_accepts_subclasses() -> None:
    instance("flag", True, int)
