"""Layouts of arrays in HBM: packed and unpacked without loss, with the padding that they need."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.handwritten.matmul import Matmul
from sim.compiler.layout import ColumnOperands, Panels

SEED = 11


def dirty(rows: int, lanes: int) -> np.ndarray:
    return np.full((rows, lanes), 0x7F812345, np.uint32)


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_panels_of_a_result_are_those_of_an_operand() -> None:
    job = Matmul(Config.preset("tiny"), 20, 11, 11)
    layout = job.a_layout
    assert layout == job.c_layout
    assert (layout.shape, layout.dtype) == ((20, 11), np.float32)
    matrix = np.random.default_rng(SEED).standard_normal((20, 11)).astype(np.float32)
    memory = dirty(layout.rows, 4)
    layout.pack(matrix, memory)
    assert_same_bits(layout.unpack(memory), matrix)
    panels = memory.view(np.float32).reshape(layout.panels)
    assert_same_bits(panels[1, :20], matrix[:, 4:8])
    assert not panels.view(np.uint32)[:, 20:].any()
    assert not panels.view(np.uint32)[2, :, 3:].any()


@pytest.mark.parametrize("transpose", [False, True])
def test_weights_are_padded_with_negative_zero(transpose: bool) -> None:
    layout = Matmul(Config.preset("tiny"), 3, 6, 11, transpose).b_layout
    assert layout.shape == ((11, 6) if transpose else (6, 11))
    memory = dirty(layout.rows, 4)
    layout.pack(np.ones(layout.shape, np.float32), memory)
    assert_same_bits(layout.unpack(memory), np.ones(layout.shape, np.float32))
    words, counts = np.unique(memory, return_counts=True)
    assert dict(zip(words.tolist(), counts.tolist(), strict=True)) == {
        0x3F800000: 66, 0x80000000: 8 * 12 - 66}


def test_unpacking_copies() -> None:
    layout = Panels((2, 4), (1, 2, 4), 0.0)
    memory = dirty(2, 4)
    got = layout.unpack(memory)
    memory[:] = 0
    assert (got.view(np.uint32) == 0x7F812345).all()


@pytest.mark.parametrize("zero_pads", [False, True])
def test_column_operands_are_a_bias_and_a_mask(zero_pads: bool) -> None:
    layout = ColumnOperands(6, 2, 3, 4, zero_pads)
    assert (layout.shape, layout.dtype, layout.rows) == ((6,), np.float32, 2 * 2 * 3)
    bias = np.array([1, -0.0, np.inf, 4, 5, 6], np.float32)
    memory = dirty(layout.rows, 4)
    layout.pack(bias, memory)
    assert_same_bits(layout.unpack(memory), bias)
    tiles = memory.reshape(2, 2, 3, 4)
    for sublane in range(3):
        assert_same_bits(tiles[:, 0, sublane].reshape(-1).view(np.float32),
                         np.append(bias, np.zeros(2, np.float32)))
        keep = [0xFFFFFFFF] * 6 + [0 if zero_pads else 0xFFFFFFFF] * 2
        assert tiles[:, 1, sublane].reshape(-1).tolist() == keep
