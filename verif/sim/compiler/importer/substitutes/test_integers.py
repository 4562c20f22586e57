"""Operations on integers, run by JAX on the CPU."""

import itertools

import numpy as np
import pytest

pytest.importorskip("jax")

from sim.compiler.importer.substitutes import integers

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int8])
def test_high_half_of_a_product(kind: type[np.signedinteger]) -> None:
    limits = np.iinfo(kind)
    values = [limits.min, limits.max, 0, 1, limits.max // 2, *RNG.integers(
        limits.min, limits.max, 20)]
    x, y = (np.array(side, kind) for side in zip(*itertools.product(values, values), strict=True))
    wanted = x.astype(object) * y.astype(object) >> limits.bits
    np.testing.assert_array_equal(integers.mulhi(x, y), wanted.astype(kind))
