"""Constants, operands and checks that the tests of a device share."""

import numpy as np
from numpy.typing import NDArray

from golden.mxu import matmul
from hdl.config import Config
from sim.asm.text import assemble
from systolith import Device

SEED = 7
TINY = Config.preset("tiny")
FREE = TINY.hbm_bytes - 1024 * TINY.row_bytes
"""Number of bytes of HBM that can be allocated on a `TINY` chip."""
SPIN = assemble("again: { s1.jump again }", TINY)
HALT = assemble("{ s1.halt }", TINY)


def check_product(device: Device, rows: int = 9, depth: int = 7, columns: int = 10) -> None:
    """Check that the device still computes a product with the golden model's bits."""
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = operands(rng, rows, depth, columns, False)
    assert_same_bits(device.matmul(a, b), matmul(a, b, device.config.array))


def operands(rng: np.random.Generator, rows: int, depth: int, columns: int,
             transpose: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transpose else (depth, columns)).astype(np.float32)
    return a, b


def assert_same_bits(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
